//! Chat templates: a conversation to the text that a model was trained to continue.
//!
//! Invariants: (1) the bytes are those of transformers' `apply_chat_template` (5.24); (2) a template that fails or
//! refuses gives an error, never another template's output; (3) where a model brings no template, the one used
//! instead is said by [`ChatTemplate::source`]. Turning the text into ids is `Tokenizer::encode_chat`.

mod environment;
mod json;
mod message;
mod stack;

pub use message::Message;

use crate::config::TokenizerConfig;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use environment::{FUEL, MAX_SOURCE, Raised, environment, without_generation_blocks};
use minijinja::{Environment, ErrorKind, Value};
use stack::with_deep_stack;
use std::error::Error as _;

/// ChatML, as OpenAI published it: each turn between `<|im_start|>` and `<|im_end|>`.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// One `role: content` paragraph a turn.
const PLAIN: &str = "{% for message in messages %}{{ message.role + ': ' + (message.content or '') + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";

/// Where a template came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateSource {
    /// The model's own: the file that held it.
    Model(String),
    /// The model has none, but its vocabulary has `<|im_start|>` and `<|im_end|>`: ChatML.
    ChatMl,
    /// The model has none: `role: content` lines.
    Plain,
}

impl TemplateSource {
    /// True if the model brought no template of its own.
    pub fn is_fallback(&self) -> bool {
        !matches!(self, Self::Model(_))
    }
}

impl std::fmt::Display for TemplateSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Model(origin) => f.write_str(origin),
            Self::ChatMl => f.write_str("the built-in ChatML template"),
            Self::Plain => f.write_str("the built-in plain template"),
        }
    }
}

/// What a render is given besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of an assistant turn.
    pub add_generation_prompt: bool,
    /// Tool descriptions (JSON schemas); `None` if the conversation has no tools.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Further variables by name, such as `enable_thinking`. They win over the tokenizer's special tokens.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

/// A compiled chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: TemplateSource,
    special_tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// The template of a tokenizer: its own, or ChatML if its vocabulary has the two markers, or plain lines.
    ///
    /// # Errors
    /// The errors of [`ChatTemplate::new`].
    pub fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let config = tokenizer.config();
        if !config.chat_templates.is_empty() {
            return Self::new(config);
        }
        let chatml =
            ["<|im_start|>", "<|im_end|>"].iter().all(|token| tokenizer.token_to_id(token).is_some());
        let (source, text) =
            if chatml { (TemplateSource::ChatMl, CHATML) } else { (TemplateSource::Plain, PLAIN) };
        let fallback = TokenizerConfig {
            chat_templates: [("default".to_owned(), text.to_owned())].into(),
            ..config.clone()
        };
        Ok(Self { source, ..Self::new(&fallback)? })
    }

    /// Compiles the templates of a configuration.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`], [`Error::TemplateSize`], [`Error::NoDefaultTemplate`] if none is named `default`,
    /// [`Error::TemplateThread`].
    pub fn new(config: &TokenizerConfig) -> Result<Self> {
        let origin = &config.template_origin;
        if !config.chat_templates.contains_key("default") {
            let names = config.chat_templates.keys().cloned().collect();
            return Err(Error::NoDefaultTemplate { origin: origin.clone(), names });
        }
        let mut env = environment();
        // The two that `render` chooses from; the others are never used.
        for name in ["default", "tool_use"] {
            let Some(text) = config.chat_templates.get(name) else { continue };
            if text.len() > MAX_SOURCE {
                return Err(Error::TemplateSize {
                    origin: origin.clone(),
                    bytes: text.len(),
                    limit: MAX_SOURCE,
                });
            }
            let text = without_generation_blocks(text);
            with_deep_stack(|| env.add_template_owned(name, text)).map_err(Error::TemplateThread)?.map_err(
                |error| Error::TemplateSyntax {
                    origin: origin.clone(),
                    line: error.line().unwrap_or(0),
                    reason: reason(&error),
                },
            )?;
        }
        Ok(Self {
            env,
            source: TemplateSource::Model(origin.clone()),
            special_tokens: config.special_tokens.clone().into_iter().collect(),
        })
    }

    /// Where the template came from.
    pub fn source(&self) -> &TemplateSource {
        &self.source
    }

    /// The text of a conversation. With tools, a template named `tool_use` is used if there is one.
    ///
    /// The template sees `messages`, `tools` and `documents` (none if absent), `add_generation_prompt`, the special
    /// tokens by name (`bos_token`), and the options' variables. A message's null fields are left out, and its
    /// reasoning is found under each of the names that templates use for it, as in transformers.
    ///
    /// # Errors
    /// [`Error::EmptyConversation`]; [`Error::TemplateRaised`] with the template's words if it refuses the
    /// conversation; [`Error::TemplateLimit`] if it does not end; [`Error::TemplateRender`] for every other fault of the template;
    /// [`Error::TemplateThread`].
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        if messages.is_empty() {
            return Err(Error::EmptyConversation);
        }
        with_deep_stack(|| self.render_here(messages, options)).map_err(Error::TemplateThread)?
    }

    fn render_here(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        let tools = options.tools.as_ref().map(|tools| tools.iter().map(value).collect::<Value>());
        let template = match &tools {
            Some(_) => self.env.get_template("tool_use").or_else(|_| self.env.get_template("default")),
            None => self.env.get_template("default"),
        };
        let mut context: Vec<(String, Value)> = self
            .special_tokens
            .iter()
            .map(|(name, text)| (name.clone(), Value::from(text.as_str())))
            .collect();
        context.push(("tools".to_owned(), tools.unwrap_or_else(none)));
        context.push(("documents".to_owned(), none()));
        context.push(("messages".to_owned(), messages.iter().map(message_value).collect()));
        context.push(("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)));
        context.extend(options.variables.iter().map(|(name, json)| (name.clone(), value(json))));
        template
            .and_then(|template| template.render(Value::from_pairs(context)))
            .map_err(|error| self.render_error(&error))
    }

    fn render_error(&self, error: &minijinja::Error) -> Error {
        let origin = self.source.to_string();
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(Raised(message)) = current.downcast_ref() {
                return Error::TemplateRaised { message: message.clone() };
            }
            let inner = current.downcast_ref::<minijinja::Error>();
            if inner.is_some_and(|inner| inner.kind() == ErrorKind::OutOfFuel) {
                return Error::TemplateLimit { origin, fuel: FUEL };
            }
            cause = current.source();
        }
        Error::TemplateRender { origin, line: error.line().unwrap_or(0), reason: reason(error) }
    }
}

fn reason(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    if let Some(source) = error.source() {
        text = format!("{text} ({source})");
    }
    text
}

fn none() -> Value {
    Value::from(())
}

/// A message as a template sees it. Reasoning stands under `reasoning_content`, and under `thinking` for templates
/// of gpt-oss, whichever of three names it came by (transformers 5.24, `_alias_reasoning_fields`).
fn message_value(message: &Message) -> Value {
    let reasoning = ["reasoning_content", "thinking", "reasoning"]
        .iter()
        .find_map(|&name| message.extra.get(name).filter(|text| !text.is_null()));
    let mut fields = vec![("role".to_owned(), Value::from(message.role.as_str()))];
    if let Some(content) = &message.content {
        fields.push(("content".to_owned(), Value::from(content.as_str())));
    }
    for (name, json) in message.extra.iter().filter(|(_, json)| !json.is_null()) {
        fields.push((name.clone(), value(json)));
    }
    if let Some(reasoning) = reasoning {
        if !fields.iter().any(|(name, _)| name == "thinking") {
            fields.insert(0, ("thinking".to_owned(), value(reasoning)));
        }
        fields.push(("reasoning_content".to_owned(), value(reasoning)));
    }
    Value::from_pairs(fields)
}

/// JSON as a template value; the order of keys is kept.
fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => none(),
        Json::Bool(flag) => Value::from(*flag),
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(list) => list.iter().map(value).collect(),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(name, json)| (name.clone(), value(json)))),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (.., number) => Value::from(number.unwrap_or(f64::NAN)),
        },
    }
}
