//! One message of a conversation, as chat APIs and chat templates exchange it.
//!
//! Invariant: content is one string. A list of text parts is joined in order, with nothing between and nothing lost,
//! as mlx-lm's server does (0.32.2, `process_message_content`); a part that is not text is refused by name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A message: who speaks, what is said, and whatever else a template may look at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or another role that the template knows.
    pub role: String,
    /// The text; `None` for a message that has none, such as a bare tool call.
    #[serde(default, deserialize_with = "joined", skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Further fields by name: `tool_calls`, `tool_call_id`, `name`, `reasoning_content` and so on.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of `role` that says `content`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), extra: Map::new() }
    }

    /// The same message with one more field.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(field.into(), value.into());
        self
    }
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "content must be a string or a list of parts `{\"type\": \"text\", \"text\": ...}`"
)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

fn joined<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let parts = match Option::<Content>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Content::Text(text)) => return Ok(Some(text)),
        Some(Content::Parts(parts)) => parts,
    };
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        match &part.text {
            Some(text) if part.kind == "text" => joined.push_str(text),
            _ => {
                return Err(serde::de::Error::custom(format!(
                    "content part {index} is of type `{}`; only parts of type `text` that hold `text` can be used",
                    part.kind
                )));
            }
        }
    }
    Ok(Some(joined))
}
