//! `strata chat`: turns with history. `/reset` forgets, `/system TEXT` sets the system message, `/exit` ends; Ctrl-C
//! stops the answer and not the program.

use crate::args::ChatArgs;
use crate::output::{note, statistics_line};
use crate::session::{Session, write_stdout};
use anyhow::Result;
use rustyline::error::ReadlineError;
use std::io::{BufRead, IsTerminal};
use std::sync::atomic::Ordering;
use strata_contracts::FinishReason;
use strata_state::State;
use strata_text::{Message, RenderOptions};

const HELP: &str = "/reset forgets the conversation, /system TEXT sets the system message, /exit ends; \
                    Ctrl-C stops an answer";

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let session = Session::load(&args.model, &args.sampling, args.quiet)?;
    let interrupted = session.interrupt_flag();
    ctrlc::set_handler(move || interrupted.store(true, Ordering::Relaxed))?;
    let mut input = Input::open()?;
    let mut conversation = Conversation::new(&session, args.system.clone())?;
    if !args.quiet {
        note(HELP);
    }
    while let Some(line) = input.line()? {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match line.split_once(char::is_whitespace).unwrap_or((line, "")) {
            ("/exit" | "/quit", _) => return Ok(()),
            ("/help", _) => note(HELP),
            ("/reset", _) => conversation.reset()?,
            ("/system", text) => conversation.set_system(text.trim())?,
            (command, _) if command.starts_with('/') => note(format_args!("there is no {command}: {HELP}")),
            _ => {
                if let Err(error) = conversation.turn(line, args.quiet) {
                    // A turn that fails takes nothing with it.
                    crate::failure::report(&error);
                }
            }
        }
    }
    Ok(())
}

/// Where turns come from: an editor on a terminal, else the lines of a pipe or file.
enum Input {
    Terminal(Box<rustyline::DefaultEditor>),
    Pipe(std::io::StdinLock<'static>),
}

impl Input {
    fn open() -> Result<Self> {
        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            Ok(Self::Terminal(Box::new(rustyline::DefaultEditor::new()?)))
        } else {
            Ok(Self::Pipe(stdin.lock()))
        }
    }

    /// The next line; `None` at the end. Bytes that are no UTF-8 become U+FFFD.
    fn line(&mut self) -> Result<Option<String>> {
        match self {
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(line.trim());
                    Ok(Some(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
                Err(ReadlineError::Eof) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Self::Pipe(stdin) => {
                let mut bytes = Vec::new();
                let read = stdin.read_until(b'\n', &mut bytes)?;
                Ok((read > 0).then(|| String::from_utf8_lossy(&bytes).into_owned()))
            }
        }
    }
}

/// Messages so far, and the state that has read them.
struct Conversation<'a> {
    session: &'a Session,
    system: Option<String>,
    messages: Vec<Message>,
    state: State,
    /// The ids that the state holds.
    held: Vec<u32>,
}

impl<'a> Conversation<'a> {
    fn new(session: &'a Session, system: Option<String>) -> Result<Self> {
        Ok(Self { session, system, messages: Vec::new(), state: session.new_state()?, held: Vec::new() })
    }

    fn reset(&mut self) -> Result<()> {
        self.messages.clear();
        self.held.clear();
        self.state = self.session.new_state()?;
        Ok(())
    }

    fn set_system(&mut self, text: &str) -> Result<()> {
        self.system = (!text.is_empty()).then(|| text.to_owned());
        self.reset()
    }

    fn turn(&mut self, line: &str, quiet: bool) -> Result<()> {
        self.messages.push(Message::new("user", line));
        let result = self.answer(quiet);
        if result.is_err() {
            self.messages.pop();
            self.held.clear();
            self.state = self.session.new_state()?;
        }
        result
    }

    fn answer(&mut self, quiet: bool) -> Result<()> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        let messages: Vec<Message> = system.chain(self.messages.iter().cloned()).collect();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        let ids = self.session.tokenizer.encode_chat(&self.session.template, &messages, &options)?;
        let kept = self.keep_common_prefix(&ids)?;
        let answer = self.session.answer(&mut self.state, &ids[kept..], &mut write_stdout)?;
        write_stdout("\n")?;
        if answer.finish_reason == FinishReason::Cancelled {
            note("(stopped)");
        }
        if !quiet {
            note(statistics_line(&answer.statistics));
        }
        self.held = ids;
        self.held.extend(&answer.tokens);
        self.held.truncate(self.state.position());
        self.messages.push(Message::new("assistant", answer.text));
        Ok(())
    }

    /// Trims the state to what it shares with `ids`, leaving at least one id to read; returns how many it holds then.
    fn keep_common_prefix(&mut self, ids: &[u32]) -> Result<usize> {
        let common = self.held.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let kept = common.min(ids.len().saturating_sub(1));
        let surplus = self.state.position() - kept;
        if surplus > 0 && self.state.trim(surplus).is_err() {
            // A cache that can't go back (a wrapped ring) starts again.
            self.state = self.session.new_state()?;
            return Ok(0);
        }
        Ok(kept)
    }
}
