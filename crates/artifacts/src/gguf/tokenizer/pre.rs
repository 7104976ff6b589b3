//! The `tokenizer.ggml.pre` kinds of the supported architectures: how a byte-level tokenizer cuts text into words.
//!
//! Each expression cuts the pieces that the one before it left; what it matches and what lies between matches are
//! pieces alike. The expressions are those of the models' own tokenizers, as llama.cpp records them
//! (`src/llama-vocab.cpp`, `llm_tokenizer_bpe` and `llama_vocab::impl::load`, 2026).

use crate::gguf::error::GgufError;

/// How one kind behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pre {
    /// Regular expressions in order.
    pub(super) splits: &'static [&'static str],
    /// Text is composed to Unicode NFC first. llama.cpp leaves this out; the models' own tokenizers do it.
    pub(super) composes: bool,
    /// A word that is a token is taken whole, without merging.
    pub(super) whole_words_first: bool,
    /// A BOS token is put before a text unless the file says otherwise.
    pub(super) adds_bos: bool,
}

const PLAIN: Pre = Pre { splits: &[GPT2], composes: false, whole_words_first: false, adds_bos: false };

/// Finds a kind by its name in the file.
///
/// # Errors
/// [`GgufError::PreTokenizer`] for a kind that is not known: guessing would give wrong ids.
pub(super) fn lookup(name: &str) -> Result<Pre, GgufError> {
    let found = KINDS.iter().find(|(names, _)| names.contains(&name));
    found.map(|&(_, pre)| pre).ok_or_else(|| GgufError::PreTokenizer {
        found: name.to_owned(),
        supported: KINDS.iter().flat_map(|(names, _)| *names).copied().collect::<Vec<_>>().join(", "),
    })
}

const KINDS: &[(&[&str], Pre)] = &[
    (&["default"], Pre { splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..PLAIN }),
    (&["gpt-2", "trillion", "a.x-4.0", "mellum"], PLAIN),
    (&["smollm", "minerva-7b"], Pre { splits: &[r"\p{N}", GPT2], ..PLAIN }),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"],
        Pre { splits: &[LLAMA3], whole_words_first: true, adds_bos: true, ..PLAIN },
    ),
    (&["smaug-bpe"], Pre { splits: &[LLAMA3], ..PLAIN }),
    (&["minicpm5"], Pre { splits: &[r"\p{N}{1,3}", MINICPM5], whole_words_first: true, ..PLAIN }),
    (&["qwen2", "deepseek-r1-qwen"], Pre { splits: &[QWEN2], composes: true, ..PLAIN }),
    (&["seed-coder"], Pre { splits: &[SEED_CODER], ..PLAIN }),
    (
        &["deepseek-llm"],
        Pre {
            splits: &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", DEEPSEEK_HAN, r"\p{N}+"],
            ..PLAIN
        },
    ),
    (
        &["deepseek-coder"],
        Pre { splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_HAN, r"\p{N}"], ..PLAIN },
    ),
    (&["tekken"], Pre { splits: &[TEKKEN], whole_words_first: true, adds_bos: true, ..PLAIN }),
    (&["gpt-4o"], Pre { splits: &[GPT4O], ..PLAIN }),
    (&["viking"], Pre { splits: &[VIKING, r"\p{N}"], ..PLAIN }),
];

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const MINICPM5: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const DEEPSEEK_HAN: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";

const DEEPSEEK_MARKS: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";

/// Letters that have a case, range by range.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-\u{293}\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}",
    "\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}",
    "\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}",
    "]+"
);

const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

const VIKING: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
