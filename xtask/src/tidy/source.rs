//! A Rust file taken apart into code and comments, line by line, so that a check on one cannot trip over the other.
//!
//! Both views keep every line in its place. Strings and characters are blank in `code`: a word in it is a token.

/// The views of one file. Each has as many lines as the file.
#[derive(Debug)]
pub(super) struct Source {
    /// Without comments and without what strings hold.
    pub(super) code: String,
    /// `code` without the items under `#[cfg(test)]`.
    pub(super) shipped: String,
    /// Only comments, with their markers.
    pub(super) comments: String,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let (code, comments) = split(text);
        let shipped = without_tests(&code);
        Self { code, shipped, comments }
    }
}

/// The places of `word` in `text` as (line from 1, byte offset), where neither neighbour continues an identifier.
pub(super) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let starts_word = word.starts_with(part);
    let ends_word = word.ends_with(part);
    text.match_indices(word).filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let continued = starts_word && before.is_some_and(part) || ends_word && after.is_some_and(part);
        (!continued).then(|| (line_of(text, at), at))
    })
}

/// The line, from 1, that holds byte `at`.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// What the scanner is inside of.
enum State {
    Code,
    LineComment,
    /// Depth of nesting.
    BlockComment(usize),
    /// Ends at an unescaped quote.
    Text,
    /// Ends at a quote and this many `#`.
    RawText(usize),
}

fn split(text: &str) -> (String, String) {
    let (mut code, mut comments) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    let chars: Vec<char> = text.chars().collect();
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        // How many characters this step takes, and which view shows them.
        let mut take = 1;
        let (mut in_code, mut in_comments) = (false, false);
        match state {
            State::Code => {
                if rest.starts_with(&['/', '/']) {
                    state = State::LineComment;
                    in_comments = true;
                } else if rest.starts_with(&['/', '*']) {
                    state = State::BlockComment(1);
                    (take, in_comments) = (2, true);
                } else if let Some(hashes) = raw_text_opens(&chars, at) {
                    state = State::RawText(hashes);
                    (take, in_code) = (hashes + 2, true);
                } else if rest[0] == '"' {
                    state = State::Text;
                    in_code = true;
                } else if let Some(length) = character_length(rest) {
                    take = length;
                } else {
                    in_code = true;
                }
            }
            State::LineComment => {
                in_comments = true;
                if rest[0] == '\n' {
                    state = State::Code;
                }
            }
            State::BlockComment(depth) => {
                in_comments = true;
                if rest.starts_with(&['/', '*']) {
                    state = State::BlockComment(depth + 1);
                    take = 2;
                } else if rest.starts_with(&['*', '/']) {
                    state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                    take = 2;
                }
            }
            State::Text => match rest[0] {
                '\\' => take = 2.min(rest.len()),
                '"' => (state, in_code) = (State::Code, true),
                _ => {}
            },
            State::RawText(hashes) => {
                if rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes {
                    state = State::Code;
                    (take, in_code) = (hashes + 1, true);
                }
            }
        }
        for &c in &rest[..take] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            code.push(if in_code { c } else { blank });
            comments.push(if in_comments { c } else { blank });
        }
        at += take;
    }
    (code, comments)
}

/// The number of `#` when a raw string starts at `at`: `r"`, `r#"`; a prefix `b` or `c` stands before it as code.
fn raw_text_opens(chars: &[char], at: usize) -> Option<usize> {
    let continues_name = |c: &char| c.is_alphanumeric() || *c == '_';
    if chars[at] != 'r' || at > 0 && continues_name(&chars[at - 1]) && !matches!(chars[at - 1], 'b' | 'c') {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// The length of a character literal at the start of `rest`; none for a lifetime.
fn character_length(rest: &[char]) -> Option<usize> {
    match rest {
        ['\'', '\\', _, tail @ ..] => tail.iter().position(|c| *c == '\'').map(|end| end + 4),
        ['\'', _, '\'', ..] => Some(3),
        _ => None,
    }
}

fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut left = code.to_owned();
    let mut from = 0;
    while let Some(found) = left[from..].find(MARK) {
        let start = from + found;
        let end = item_end(&left, start + MARK.len());
        let blank: String = left[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        left.replace_range(start..end, &blank);
        from = start + blank.len();
    }
    left
}

/// One past the item that follows `from`: its closing brace, or the semicolon of an item without a body.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0_usize;
    for (offset, c) in code[from..].char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return from + offset + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return from + offset + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_holds_no_comment_no_string_and_no_character() {
        let text = concat!(
            "let a = \"x // \\\" y\"; // one\n",
            "let b = r#\"two \" three\"#; /* four /* five */ six */ let c = '\"';\n",
            "let d: &'static str = br\"seven\"; let e = '\\u{1F600}'; f('\\'')\n",
        );
        let source = Source::parse(text);
        for hidden in ["x", "y", "one", "two", "three", "four", "five", "six", "seven", "1F600"] {
            assert_eq!(words(&source.code, hidden).count(), 0, "{hidden} in {}", source.code);
        }
        for shown in ["a", "b", "c", "d", "e", "f", "static"] {
            assert_eq!(words(&source.code, shown).count(), 1, "{shown} in {}", source.code);
        }
        for shown in ["one", "four", "five", "six"] {
            assert_eq!(words(&source.comments, shown).count(), 1, "{shown} in {}", source.comments);
        }
        assert_eq!(source.code.lines().count(), text.lines().count());
        assert_eq!(source.comments.lines().count(), text.lines().count());
    }

    #[test]
    fn items_for_tests_are_not_shipped() {
        let source = Source::parse(
            "fn a() {}\n#[cfg(test)]\nuse b;\n#[cfg(test)]\nmod c {\n fn d() { {} }\n}\nfn e() {}\n",
        );
        for (word, shipped) in [("a", 1), ("b", 0), ("c", 0), ("d", 0), ("e", 1)] {
            assert_eq!(words(&source.shipped, word).count(), shipped, "{word}");
        }
        assert_eq!(words(&source.shipped, "e").next().map(|(line, _)| line), Some(8));
    }

    #[test]
    fn a_word_is_not_part_of_another() {
        assert_eq!(words("unsafe_code unsafe\n unsafely un_unsafe unsafe{", "unsafe").count(), 2);
        assert_eq!(words("a.item(b) items(c)", ".item(").count(), 1);
    }
}
