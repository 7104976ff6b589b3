//! Chat templates against transformers: the text of every case in templates.json, byte for byte.
//!
//! The truth comes from `fixtures/make_templates.py`, which renders with transformers 5.24 and Jinja2 3.1.6.

use serde_json::{Map, Value};
use strata_text::{ChatTemplate, Error, Message, RenderOptions, TokenizerConfig};

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/templates.json")).unwrap()
}

fn options(fixture: &Value, case: &Value) -> RenderOptions {
    let mut variables: Map<String, Value> = fixture["variables"].as_object().unwrap().clone();
    variables.extend(case["variables"].as_object().unwrap().clone());
    let tools = &fixture["conversations"][case["conversation"].as_str().unwrap()]["tools"];
    RenderOptions {
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        tools: tools.as_array().cloned(),
        variables,
    }
}

#[test]
fn b20_every_template_and_conversation_has_transformers_bytes() {
    let fixture = fixture();
    let mut wrong = Vec::new();
    for case in fixture["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let conversation = case["conversation"].as_str().unwrap();
        let template = compile(fixture["templates"][name].as_str().unwrap());
        let messages: Vec<Message> =
            serde_json::from_value(fixture["conversations"][conversation]["messages"].clone()).unwrap();
        let result = template.render(&messages, &options(&fixture, case));
        let agrees = match (&result, case["text"].as_str(), case["raises"].as_str()) {
            (Ok(text), Some(expected), None) => text == expected,
            (Err(Error::TemplateRaised { message }), None, Some(expected)) => message == expected,
            // What Python refuses without `raise_exception`: the words differ, the refusal does not.
            (Err(Error::TemplateRender { .. }), None, None) => true,
            _ => false,
        };
        if !agrees {
            wrong.push(format!("{name} / {conversation}: {result:?}\n  expected {case}"));
        }
    }
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn compile(text: &str) -> ChatTemplate {
    let chat_templates = [("default".to_owned(), text.to_owned())].into();
    ChatTemplate::new(&TokenizerConfig { chat_templates, ..TokenizerConfig::default() }).unwrap()
}
