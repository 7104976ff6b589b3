//! Template values as JSON, byte for byte as Python's `json.dumps`.
//!
//! transformers replaces Jinja's own `tojson`, which escapes HTML, by `json.dumps(x, ensure_ascii, indent,
//! separators, sort_keys)` with `ensure_ascii=False` as default (`utils/chat_template_utils.py`, 5.24). Models were
//! trained on those bytes, so order, spaces and escapes all count. Format after CPython 3.11, `json/encoder.py`.

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State};
use std::fmt::Write;

/// Levels of nesting that are written out; what a prompt holds is flat in comparison.
const MAX_DEPTH: usize = 128;

/// The filter `value|tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (positional, keywords): (&[Value], Kwargs) = from_args(&args)?;
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if positional.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut options = Vec::with_capacity(names.len());
    for (at, name) in names.into_iter().enumerate() {
        let keyword: Option<Value> = keywords.get(name)?;
        options.push(keyword.or_else(|| positional.get(at).cloned()).filter(|value| !value.is_none()));
    }
    keywords.assert_all_used()?;

    let indent = options[1].as_ref().map(indentation).transpose()?;
    let (item, key) = match &options[2] {
        Some(pair) => (text(&pair.get_item_by_index(0)?)?, text(&pair.get_item_by_index(1)?)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer {
        state,
        out: String::new(),
        paid: 0,
        ensure_ascii: options[0].as_ref().is_some_and(Value::is_true),
        sort_keys: options[3].as_ref().is_some_and(Value::is_true),
        indent,
        item,
        key,
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

struct Writer<'a, 'env, 'state> {
    state: &'a State<'env, 'state>,
    out: String,
    /// Bytes of `out` that the render's fuel has paid for.
    paid: usize,
    ensure_ascii: bool,
    sort_keys: bool,
    /// What one level adds to a line's start; `None` keeps everything on one line.
    indent: Option<String>,
    /// Between items.
    item: String,
    /// Between key and value.
    key: String,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: nested deeper than {MAX_DEPTH} levels")));
        }
        self.pay(1)?;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth)?,
            // Lazy iterators are how lists come out of filters such as `map`.
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            _ => {
                let text = scalar(value)?;
                self.out.push_str(&text);
            }
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut empty = true;
        for element in value.try_iter()?.checked() {
            self.out.push_str(if empty { "[" } else { &self.item });
            empty = false;
            self.line(depth + 1)?;
            self.value(&element?, depth + 1)?;
        }
        self.close(empty, "[", "]", depth)
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
        if self.sort_keys {
            keys.sort();
        }
        let mut empty = true;
        for key in keys {
            self.out.push_str(if empty { "{" } else { &self.item });
            empty = false;
            self.line(depth + 1)?;
            let name = key.as_str().map_or_else(|| scalar(&key), |name| Ok(name.to_owned()))?;
            self.string(&name);
            self.out.push_str(&self.key);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close(empty, "{", "}", depth)
    }

    fn close(&mut self, empty: bool, open: &str, close: &str, depth: usize) -> Result<(), Error> {
        if empty {
            self.out.push_str(open);
        } else {
            self.line(depth)?;
        }
        self.out.push_str(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
        self.pay(0)
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// Charges the render `steps` and what was written since the last call, so that no template can make `tojson`
    /// work without end.
    fn pay(&mut self, steps: u64) -> Result<(), Error> {
        let written = (self.out.len() - self.paid) / 64;
        self.paid += written * 64;
        self.state.consume_fuel(steps + written as u64)
    }
}

/// A value that is neither text nor a collection; also the text of a key that is not a string.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(value.is_true().to_string()),
        ValueKind::Number if value.is_integer() => Ok(value.to_string()),
        ValueKind::Number => Ok(float(f64::try_from(value.clone())?)),
        kind => Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
    }
}

/// Python's `float.__repr__`: the shortest digits that read back the same, exponents outside 1e-4 ..= 1e16.
pub(super) fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// A count of spaces or the text itself. Python treats true as 1, and 0 and less as bare line breaks.
fn indentation(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let count =
        if value.kind() == ValueKind::Bool { Some(i64::from(value.is_true())) } else { value.as_i64() };
    match count {
        Some(count @ ..=64) => Ok(" ".repeat(usize::try_from(count).unwrap_or(0))),
        _ => Err(invalid("tojson: indent must be text or a number of at most 64".to_owned())),
    }
}

fn text(value: &Value) -> Result<String, Error> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| invalid("tojson: separators must be two strings".to_owned()))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
