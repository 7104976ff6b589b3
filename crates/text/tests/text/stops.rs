//! Stop strings in streamed text: where the text ends, and that chunks do not matter.

use proptest::collection::vec;
use proptest::prelude::*;
use strata_text::{Error, StopMatcher, StopStrings};

/// Deltas, what `finish` adds, and the stop that was hit.
fn stream(stops: &[&str], chunks: &[&str]) -> (Vec<String>, Option<usize>) {
    let mut matcher = StopMatcher::new(StopStrings::new(stops.iter().copied()).unwrap());
    let mut stopped = None;
    let mut parts = Vec::new();
    for chunk in chunks {
        let step = matcher.push(chunk);
        parts.push(step.text);
        stopped = stopped.or(step.stopped);
    }
    parts.push(matcher.finish());
    (parts, stopped)
}

#[test]
fn b32_a_stop_split_over_pieces_never_shows() {
    assert_eq!(
        stream(&["five"], &["four ", "fi", "ve six"]),
        (["four ", "", "", ""].map(String::from).into(), Some(0))
    );
}

#[test]
fn b32_half_a_stop_at_the_end_is_sent() {
    assert_eq!(stream(&["five"], &["four fi"]), (["four ", "fi"].map(String::from).into(), None));
    assert_eq!(
        stream(&["five"], &["four fi", "fth"]),
        (["four ", "fifth", ""].map(String::from).into(), None)
    );
}

#[test]
fn b32_of_two_stops_the_one_complete_first_cuts() {
    assert_eq!(stream(&["cdef", "d"], &["abcdef"]), (["abc", ""].map(String::from).into(), Some(1)));
    assert_eq!(stream(&["ve", "five"], &["a five"]), (["a ", ""].map(String::from).into(), Some(1)));
    assert_eq!(
        stream(&["\n\n", "\nUser:"], &["x\n", "User", ": y"]),
        (["x", "", "", ""].map(String::from).into(), Some(1))
    );
}

#[test]
fn b32_one_stop_may_be_a_plain_string() {
    let parse = |json: &str| serde_json::from_str::<StopStrings>(json);
    assert_eq!(parse("\"five\"").unwrap().as_slice(), ["five"]);
    assert_eq!(parse("[\"a\", \"bc\"]").unwrap().as_slice(), ["a", "bc"]);
    assert!(parse("null").unwrap().as_slice().is_empty());
    assert!(parse("7").unwrap_err().to_string().contains("a string or a list of strings"));
    assert!(parse("[\"a\", \"\"]").unwrap_err().to_string().contains("stop string 1 is empty"));
}

#[test]
fn an_empty_stop_is_refused() {
    assert!(matches!(StopStrings::new(["a", ""]), Err(Error::EmptyStop { index: 1 })));
}

#[test]
fn overlapping_starts_are_found() {
    assert_eq!(stream(&["aab"], &["a", "a", "a", "b", "c"]).0.concat(), "a");
    assert_eq!(stream(&["éé"], &["xé", "a", "éé"]).0.concat(), "xéa");
}

/// The rule said plainly: the shortest prefix of the text that ends in a stop, without the longest such stop.
fn unstreamed<'a>(stops: &[String], text: &'a str) -> (&'a str, bool) {
    for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
        let longest = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
        if let Some(longest) = longest {
            return (&text[..end - longest], true);
        }
    }
    (text, false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn streamed_text_equals_unstreamed_text(
        stops in vec("[abé]{1,4}", 0..4),
        chunks in vec("[abcé]{0,5}", 0..8),
    ) {
        let mut matcher = StopMatcher::new(StopStrings::new(stops.clone()).unwrap());
        let (mut streamed, mut stopped) = (String::new(), false);
        for chunk in &chunks {
            let step = matcher.push(chunk);
            streamed.push_str(&step.text);
            stopped |= step.stopped.is_some();
        }
        streamed.push_str(&matcher.finish());
        let text = chunks.concat();
        prop_assert_eq!((streamed.as_str(), stopped), unstreamed(&stops, &text));
    }
}
