//! The Jinja dialect of chat templates: minijinja, brought as close to transformers' environment as output shows.
//!
//! transformers (`utils/chat_template_utils.py`, 5.24) uses Jinja2's sandbox with `trim_blocks`, `lstrip_blocks`, loop
//! controls, a `generation` block, and its own `tojson`, `raise_exception` and `strftime_now`. Where minijinja
//! differs from Python in what chat templates use (tests on strings and maps, string methods), Python's meaning
//! stands here. Invariant: a render is bounded in steps and recursion, and reads nothing but its arguments and the clock.
//!
//! Known differences that remain. Some conversations render here that Python refuses: loops over `none`, and `tojson`
//! of lazy sequences. `safe` strings do not escape what is appended to them. minijinja 3.1 does not charge fuel for
//! `list + list`, so a template that doubles a list more than thirty times can exhaust memory.

use super::json;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use std::fmt::Write;

/// Steps a render may take: instructions, plus one for each 64 bytes made. A conversation of 10,000 messages takes
/// fewer, and a template that never ends is stopped within a second.
pub(super) const FUEL: u64 = 2_000_000;

/// Bytes of a template's source. Published ones stay below 20,000, and minijinja needs quadratic time for some chains.
pub(super) const MAX_SOURCE: usize = 64 * 1024;

/// Bytes of a `strftime_now` format.
const MAX_TIME_FORMAT: usize = 256;

/// What `raise_exception` said; found again as the source of minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", json::tojson);
    env.add_filter("trim", |state: &State, value: &Value, chars: Option<&str>| {
        let text = value.to_string();
        pay(state, &text)?;
        Ok::<_, Error>(strip(&text, chars, true, true).to_owned())
    });
    env.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    env.add_test("iterable", |value: &Value| {
        value.is_undefined()
            || matches!(
                value.kind(),
                ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Iterable
            )
    });
    env.add_function("raise_exception", raise_exception);
    env.add_function("strftime_now", strftime_now);
    env
}

/// Turns `{% generation %}` … `{% endgeneration %}`, which only mark what training looks at, into blocks that have
/// the same scope and leave the same whitespace.
pub(super) fn without_generation_blocks(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + length];
        out.push_str(&rest[..start + 2]);
        match tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
            "generation" => out.push_str(&tag.replace("generation", "with")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endwith")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()).with_source(Raised(message.to_owned())))
}

/// The local time in C's `strftime` notation.
fn strftime_now(format: &str) -> Result<String, Error> {
    if format.len() > MAX_TIME_FORMAT {
        return Err(invalid(format!("strftime_now: a format has at most {MAX_TIME_FORMAT} bytes")));
    }
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(format)).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: {format:?} is not a format of strftime"),
        )
    })?;
    Ok(text)
}

/// Python's methods of strings, lists and maps: those that minijinja-contrib lacks or that differ, then its own.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        pay(state, text)?;
        if let Some(result) = string_method(text, name, args)? {
            return Ok(result);
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, chars, name != "rstrip", name != "lstrip"))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let forward = name == "partition";
            let parts = if forward { text.split_once(separator) } else { text.rsplit_once(separator) };
            let [before, between, after] = match parts {
                _ if separator.is_empty() => return Err(invalid(format!("{name}: empty separator"))),
                Some((before, after)) => [before, separator, after],
                None if forward => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from([before, between, after].map(Value::from)))
        }
        // With a separator minijinja agrees; without one, it takes fewer characters for white space than Python.
        "split" if args.is_empty() => text.split(is_space).filter(|word| !word.is_empty()).collect(),
        "rsplit" => rsplit(text, args)?,
        "splitlines" => {
            let (keep_ends,): (Option<bool>,) = from_args(args)?;
            split_lines(text, keep_ends.unwrap_or(false)).into_iter().collect()
        }
        // minijinja-contrib pads to any width before it charges for it.
        "format" if text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4) => {
            return Err(invalid("format: widths and precisions have at most four digits".to_owned()));
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let at =
                text.find(part).ok_or_else(|| invalid(format!("index: {part:?} is not in the string")))?;
            Value::from(text[..at].chars().count())
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let splits = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("rsplit: empty separator".to_owned())),
        Some(separator) => text.rsplitn(splits + 1, separator).collect(),
        None => {
            let mut rest = text.trim_end_matches(is_space);
            let mut words = Vec::new();
            while words.len() < splits
                && let Some((at, space)) = rest.char_indices().rev().find(|&(_, c)| is_space(c))
            {
                words.push(&rest[at + space.len_utf8()..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            if !rest.is_empty() {
                words.push(rest);
            }
            words
        }
    };
    parts.reverse();
    Ok(parts.into_iter().collect())
}

fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_line_end).unwrap_or(rest.len());
        let break_len = match &rest[end..] {
            tail if tail.starts_with("\r\n") => 2,
            tail => tail.chars().next().map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { end + break_len } else { end }]);
        rest = &rest[end + break_len..];
    }
    lines
}

fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(strips) } else { text };
    if right { text.trim_end_matches(strips) } else { text }
}

/// Python's `str.isspace`: Unicode white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's line boundaries (`str.splitlines`).
fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Charges a render for reading a text.
fn pay(state: &State, text: &str) -> Result<(), Error> {
    state.consume_fuel(text.len() as u64 / 64)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
