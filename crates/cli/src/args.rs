//! The command line as typed. Meaning is worked out in `session.rs`.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use strata_artifacts::quantize::QuantRule;
use strata_contracts::{QuantError, QuantScheme};

/// Language models on MLX: Apple GPUs, NVIDIA GPUs and plain CPUs.
#[derive(Debug, Parser)]
#[command(name = "strata", version, propagate_version = true)]
pub(crate) struct Arguments {
    /// Say more about what is being done, on stderr
    #[arg(long, global = true)]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Generate(GenerateArgs),
    /// Talk, turn by turn
    Chat(ChatArgs),
    /// Bring a model here
    Pull(PullArgs),
    /// List the models that are here
    Ls(LsArgs),
    /// Describe a model: family, size, quantization, memory
    Inspect(InspectArgs),
    /// Make a model folder of a GGUF file, or quantize a folder
    Convert(ConvertArgs),
    /// Measure prompt and decode speed
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Folder, GGUF file, Hugging Face repository (organisation/name), or built-in name
    #[arg(long, short, default_value = "smollm2", value_name = "NAME")]
    pub(crate) model: String,
    /// Which implementations run: `fast` is Strata's kernels where the device has them (at present CPUs), `reference`
    /// gives mlx-lm's logits bit for bit
    #[arg(long, value_enum, default_value_t = Kernels::Fast)]
    pub(crate) kernels: Kernels,
    /// Type of activations and unquantized weights [default: float32 on a CPU, the model's own on a GPU]
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<ActivationType>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
}

/// How keys and values are kept; names and defaults are those of mlx-lm, and of mlx-optiq for its file.
#[derive(Debug, Args)]
pub(crate) struct KvArgs {
    /// Quantize keys and values of every layer: 2, 3, 4, 5, 6 or 8 bits
    #[arg(long, value_name = "BITS", group = "kv_format", value_parser = parse_kv_bits)]
    pub(crate) kv_bits: Option<u32>,
    /// Values that share a scale: 32, 64 or 128 [default: 64]
    #[arg(long, value_name = "N", requires = "kv_bits", value_parser = parse_kv_group)]
    pub(crate) kv_group_size: Option<u32>,
    /// Quantize keys and values layer by layer, as a `kv_config.json` lists them; `auto` is the one in the model's folder
    #[arg(long, value_name = "FILE", group = "kv_format")]
    pub(crate) kv_config: Option<PathBuf>,
    /// Round keys and values to a codebook after a rotation (TurboQuant): 1 to 4 bits of a key's value and of a value's, or one
    /// number for both
    #[arg(long, value_name = "BITS[,BITS]", group = "kv_format", value_parser = parse_kv_turbo)]
    pub(crate) kv_turbo: Option<[u8; 2]>,
    /// Quantize from the time on when so many tokens are there [default: 5000 with --kv-bits, otherwise 0]
    #[arg(long, value_name = "N", requires = "kv_format")]
    pub(crate) quantized_kv_start: Option<u32>,
}

fn parse_kv_bits(text: &str) -> Result<u32, String> {
    let bits = text.parse().map_err(|_| format!("{text:?} is no number of bits"))?;
    QuantScheme::affine(bits, 64).map(QuantScheme::bits).map_err(|error| error.to_string())
}

fn parse_kv_turbo(text: &str) -> Result<[u8; 2], String> {
    let (keys, values) = text.split_once(',').unwrap_or((text, text));
    let bits = |text: &str| match text.parse() {
        Ok(bits @ 1..=4) => Ok(bits),
        _ => Err(format!("codebooks have 1 to 4 bits, not {text:?}")),
    };
    Ok([bits(keys)?, bits(values)?])
}

fn parse_kv_group(text: &str) -> Result<u32, String> {
    let group = text.parse().map_err(|_| format!("{text:?} is no number of values"))?;
    QuantScheme::affine(4, group).map(QuantScheme::group_size).map_err(|error| error.to_string())
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kernels {
    Reference,
    Fast,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ActivationType {
    Float32,
    Float16,
    Bfloat16,
}

#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Tokens to produce at most
    #[arg(long, short = 'n', default_value_t = 512, value_name = "N")]
    pub(crate) max_tokens: usize,
    /// Temperature of the draw; 0 takes the likeliest token
    #[arg(long, default_value_t = 0.7, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: f32,
    /// Keep the likeliest tokens whose probabilities sum to this
    #[arg(long, default_value_t = 0.95, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: f32,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: u32,
    /// Keep tokens at least this fraction as likely as the likeliest
    #[arg(long, default_value_t = 0.0, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: f32,
    /// Divide positive and multiply negative logits of recent tokens by this
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f32,
    /// Subtract this from logits of recent tokens, once each
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Subtract this from logits of recent tokens, for each occurrence
    #[arg(long, default_value_t = 0.0, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Add a bias to the logit of a token id: ID=BIAS, repeatable
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Seed of the draw; the same seed gives the same answer
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End the answer before this text, repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("write ID=BIAS, such as 42=-5")?;
    let id = id.trim().parse().map_err(|_| format!("{id:?} is no token id"))?;
    let bias: f32 = bias.trim().parse().map_err(|_| format!("{bias:?} is no number"))?;
    Ok((id, bias))
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// The prompt; read from standard input when that is a pipe and none is given
    pub(crate) prompt: Option<std::ffi::OsString>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Give the prompt to the model as it is, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,
    /// Print the answer alone
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Print the answers alone, without statistics
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) prompt: u32,
    /// Tokens to produce
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) r#gen: u32,
    /// Rows that decode together
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) batch: u32,
    /// Measured runs, after one that is not counted
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Built-in name, Hugging Face repository or GGUF file
    pub(crate) name: String,
    /// Print nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print one JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Folder, GGUF file, Hugging Face repository or built-in name
    #[arg(default_value = "smollm2")]
    pub(crate) name: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// A GGUF file, or a model folder in Hugging Face layout
    pub(crate) input: PathBuf,
    /// Folder to make; it must not exist
    pub(crate) out: PathBuf,
    /// Quantize: BITS (2, 3, 4, 5, 6 or 8) in groups of GROUP (32, 64 or 128; 64 by default), or mxfp4, mxfp8, nvfp4.
    /// Of a GGUF file this is for tensors that MLX can't hold exactly as they are, and `nearest` keeps those at about
    /// the size they have, in the groups that are nearest to theirs
    #[arg(long, value_name = "BITS[:GROUP]")]
    pub(crate) quantize: Option<Quantize>,
    /// Another quantization for some layers: PATTERN=8, PATTERN=8:32, or PATTERN=none to make them plain. A `*` in the
    /// pattern stands for any characters, and the first one that fits decides, of a GGUF file also for tensors that
    /// could stay exactly as they are. Repeatable: `--layer lm_head=8 --layer 'model.layers.0.*=8'` gives the head and
    /// the first layer 8 bits
    #[arg(long = "layer", value_name = "PATTERN=BITS[:GROUP]", requires = "quantize")]
    pub(crate) layers: Vec<QuantRule>,
    /// Print nothing but errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// What matrices become.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quantize {
    /// The form nearest to the one that they have in a GGUF file.
    Nearest,
    Scheme(QuantScheme),
}

impl FromStr for Quantize {
    type Err = QuantError;

    fn from_str(text: &str) -> Result<Self, QuantError> {
        if text == "nearest" { Ok(Self::Nearest) } else { text.parse().map(Self::Scheme) }
    }
}
