//! `strata generate`: one prompt, one answer.

use crate::args::GenerateArgs;
use crate::failure::Failure;
use crate::output::{note, statistics_line};
use crate::session::{Answer, Session, write_stdout};
use anyhow::Result;
use serde_json::json;
use std::io::{IsTerminal, Read};
use std::sync::atomic::Ordering;
use strata_text::{Message, RenderOptions};

pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let prompt = prompt(args)?;
    let session = Session::load(&args.model, &args.sampling, args.quiet || args.json)?;
    let interrupted = session.interrupt_flag();
    ctrlc::set_handler(move || {
        // The second Ctrl-C does not wait for the answer to end.
        if interrupted.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    let ids = encode(&session, args, &prompt)?;
    let mut state = session.new_state()?;
    if args.json {
        let answer = session.answer(&mut state, &ids, &mut |_| Ok(()))?;
        return print_json(&answer);
    }
    let answer = session.answer(&mut state, &ids, &mut write_stdout)?;
    if !answer.text.ends_with('\n') {
        write_stdout("\n")?;
    }
    if !args.quiet {
        note(statistics_line(&answer.statistics));
    }
    Ok(())
}

/// The prompt as text: the argument, else what a pipe brings. Bytes that are no UTF-8 become U+FFFD.
fn prompt(args: &GenerateArgs) -> Result<String> {
    if let Some(prompt) = &args.prompt {
        return Ok(prompt.to_string_lossy().into_owned());
    }
    let mut stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::error("there is no prompt", "write it behind the command, or pipe it in"));
    }
    let mut bytes = Vec::new();
    stdin.read_to_end(&mut bytes)?;
    // The line end that `echo` and editors add is not part of the prompt.
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn encode(session: &Session, args: &GenerateArgs, prompt: &str) -> Result<Vec<u32>> {
    if args.raw {
        return Ok(session.tokenizer.encode_prompt(prompt)?);
    }
    let system = args.system.iter().map(|text| Message::new("system", text.as_str()));
    let messages: Vec<Message> = system.chain([Message::new("user", prompt)]).collect();
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    Ok(session.tokenizer.encode_chat(&session.template, &messages, &options)?)
}

fn print_json(answer: &Answer) -> Result<()> {
    let s = &answer.statistics;
    let object = json!({
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": s.prompt_tokens,
        "generated_tokens": s.generated_tokens,
        "prompt_tokens_per_s": s.prompt_tokens_per_second(),
        "decode_tokens_per_s": s.decode_tokens_per_second(),
        "first_token_ms": s.first_token.as_secs_f64() * 1e3,
        "peak_memory_bytes": s.peak_memory_bytes,
    });
    write_stdout(&format!("{object}\n"))?;
    Ok(())
}
