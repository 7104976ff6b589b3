//! Stop strings in a stream of text.
//!
//! Invariants: (1) text ends at the first moment at which some stop string is complete, cut before the start of that
//! string (the longest one, if several end there); (2) the outcome depends on the text alone, not on how it is cut
//! into chunks; (3) text is held back only while it could still be the start of a stop string. Pure: no tokens here.

use crate::error::{Error, Result};
use serde::{Deserialize, Deserializer};

/// Stop strings, none of them empty. Deserializes from null, one string or a list of strings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings(Vec<String>);

impl StopStrings {
    /// Checks a list.
    ///
    /// # Errors
    /// [`Error::EmptyStop`] for an empty string.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        match stops.iter().position(String::is_empty) {
            Some(index) => Err(Error::EmptyStop { index }),
            None => Ok(Self(stops)),
        }
    }

    /// The strings in the order given.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for StopStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a string or a list of strings")]
        enum Form {
            One(String),
            Many(Vec<String>),
        }
        let stops = match Option::<Form>::deserialize(deserializer)? {
            None => Vec::new(),
            Some(Form::One(stop)) => vec![stop],
            Some(Form::Many(stops)) => stops,
        };
        Self::new(stops).map_err(serde::de::Error::custom)
    }
}

/// What one chunk of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopStep {
    /// Text that no stop string can reach any more.
    pub text: String,
    /// The stop string that ended the text, as an index into the list. Nothing comes after it.
    pub stopped: Option<usize>,
}

/// Passes text through until a stop string appears in it.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: StopStrings,
    /// The end of the text so far, as long as it could be the start of a stop string.
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher at the start of a text.
    pub fn new(stops: StopStrings) -> Self {
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next chunk. After a stop, every chunk gives nothing.
    pub fn push(&mut self, chunk: &str) -> StopStep {
        if self.stopped {
            return StopStep { text: String::new(), stopped: None };
        }
        let old = self.held.len();
        self.held.push_str(chunk);
        for (offset, c) in self.held[old..].char_indices() {
            let end = old + offset + c.len_utf8();
            if let Some((index, start)) = self.match_ending_at(end) {
                self.stopped = true;
                self.held.truncate(start);
                return StopStep { text: std::mem::take(&mut self.held), stopped: Some(index) };
            }
        }
        let held = self.held.split_off(self.held.len() - self.partial_len());
        StopStep { text: std::mem::replace(&mut self.held, held), stopped: None }
    }

    /// The text still held back: it turned out not to be a stop string.
    pub fn finish(self) -> String {
        self.held
    }

    /// Index and start of the longest stop string that ends at byte `end` of the held text.
    fn match_ending_at(&self, end: usize) -> Option<(usize, usize)> {
        let text = &self.held[..end];
        let ending = self.stops.0.iter().enumerate().filter(|(_, stop)| text.ends_with(stop.as_str()));
        ending.max_by_key(|(_, stop)| stop.len()).map(|(index, stop)| (index, end - stop.len()))
    }

    /// Bytes at the end of the held text that are the start of some stop string; the longest such end.
    fn partial_len(&self) -> usize {
        let longest = self.stops.0.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        let starts = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        let mut ends = starts.map(|at| &self.held[at..]);
        ends.find(|end| self.stops.0.iter().any(|stop| stop.starts_with(end))).map_or(0, str::len)
    }
}
