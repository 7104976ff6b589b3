//! What templates may not do, and how they say no. Bytes are compared in golden.rs.

use serde_json::json;
use strata_text::{ChatTemplate, Error, Message, RenderOptions, TokenizerConfig};

fn compile(text: &str) -> Result<ChatTemplate, Error> {
    let chat_templates = [("default".to_owned(), text.to_owned())].into();
    let template_origin = "chat_template.jinja".to_owned();
    ChatTemplate::new(&TokenizerConfig { chat_templates, template_origin, ..TokenizerConfig::default() })
}

fn render(text: &str) -> Result<String, Error> {
    compile(text)?.render(&[Message::new("user", "hi")], &RenderOptions::default())
}

#[test]
fn a_template_that_raises_gives_its_own_words() {
    let text = "{% macro check() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ check() }}";
    for text in [text, "{{ raise_exception('roles must alternate') }}"] {
        let error = render(text).unwrap_err();
        assert!(
            matches!(&error, Error::TemplateRaised { message } if message == "roles must alternate"),
            "{error:?}"
        );
    }
}

#[test]
fn b20_a_render_error_is_an_error_and_names_the_line() {
    for text in [
        "a\n{{ messages[0].content.missing.deeper }}",
        "a\n{{ nope() }}",
        "a\n{{ 1 | nofilter }}",
        "a\n{{ missing | tojson }}",
    ] {
        let error = render(text).unwrap_err();
        assert!(
            matches!(error, Error::TemplateRender { line: 2, .. } | Error::TemplateSyntax { line: 2, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("chat_template.jinja, line 2"), "{error}");
    }
}

#[test]
fn a_template_that_does_not_parse_names_the_line() {
    assert!(matches!(compile("a\nb\n{% if %}"), Err(Error::TemplateSyntax { line: 3, .. })));
}

#[test]
fn templates_without_a_default_are_refused() {
    let config = TokenizerConfig::from_json(
        r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#,
        "tokenizer_config.json",
    )
    .unwrap();
    assert!(
        matches!(ChatTemplate::new(&config), Err(Error::NoDefaultTemplate { names, .. }) if names == ["rag"])
    );
}

#[test]
fn an_empty_conversation_is_refused() {
    let template = compile("x").unwrap();
    assert!(matches!(template.render(&[], &RenderOptions::default()), Err(Error::EmptyConversation)));
}

#[test]
fn endless_work_ends_with_an_error() {
    let loops = "{% for a in range(10000) %}".repeat(3) + "x" + &"{% endfor %}".repeat(3);
    let doubling = "{% set ns = namespace(t='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t | length }}";
    let json = "{% set ns = namespace(t=[1,2,3,4]) %}{% for i in range(40) %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.t | tojson }}";
    for text in [&loops, doubling, json] {
        let error = render(text).unwrap_err();
        assert!(matches!(error, Error::TemplateLimit { .. }), "{error:?}");
    }
}

#[test]
fn deep_recursion_ends_with_an_error() {
    let macros = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    let json = "{% set ns = namespace(t=[]) %}{% for i in range(1000) %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.t | tojson }}";
    let brackets = format!("{{{{ {}{} }}}}", "(".repeat(30_000), ")".repeat(30_000));
    for text in [macros, json, &brackets] {
        let error = render(text).unwrap_err();
        assert!(matches!(error, Error::TemplateRender { .. } | Error::TemplateSyntax { .. }), "{error:?}");
    }
}

#[test]
fn what_nests_without_limit_does_not_overflow_the_stack() {
    let nest = |open: &str, close: &str| {
        format!(
            "{{% set ns = namespace(t=[]) %}}{{% for i in range(99999) %}}{{% set ns.t = {}ns.t{} %}}{{% endfor %}}",
            open.repeat(40),
            close.repeat(40)
        )
    };
    for text in [nest("[", "]"), nest("{'a':", "}"), nest("(", ",)")] {
        assert!(matches!(render(&text), Err(Error::TemplateLimit { .. })));
    }
    for (start, link, end) in
        [("{{ ", "-", "1 }}"), ("{{ x", ".a", " }}"), ("{{ 1", "+1", " }}"), ("{{ 1", "|e", " }}")]
    {
        let source = start.to_owned() + &link.repeat(30_000) + end;
        match render(&source) {
            Ok(_) | Err(Error::TemplateRender { .. }) => {}
            Err(error) => panic!("{link}: {error:?}"),
        }
    }
}

#[test]
fn a_source_longer_than_any_real_template_is_refused() {
    assert!(matches!(compile(&"x".repeat(70_000)), Err(Error::TemplateSize { bytes: 70_000, .. })));
    assert_eq!(render(&"x".repeat(60_000)).unwrap().len(), 60_000);
}

#[test]
fn large_conversations_fit_the_limit() {
    let template = compile(
        "{% for m in messages %}{% set content = m.content | trim %}{% if m.role == 'user' and loop.index0 % 2 == 0 %}\
         {{ '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}",
    )
    .unwrap();
    let messages = vec![Message::new("user", "word ".repeat(80)); 10_000];
    let text = template.render(&messages, &RenderOptions::default()).unwrap();
    assert!(text.len() > 5_000 * 400);
}

#[test]
fn hostile_widths_are_refused() {
    assert_eq!(render("{{ '{:>4}|{}'.format('x', 1) }}").unwrap(), "   x|1");
    for text in
        ["{{ '{:1000000000}'.format('x') }}", "{{ '%1000000000d' | format(3) }}", "{{ 'a' * 9999999999 }}"]
    {
        assert!(render(text).is_err(), "{text}");
    }
}

#[test]
fn strftime_now_gives_the_date_and_refuses_nonsense() {
    let year: i32 = render("{{ strftime_now('%Y') }}").unwrap().parse().unwrap();
    assert!(year >= 2024);
    assert!(render("{{ strftime_now('%d %b %Y') }}").unwrap().len() >= 11);
    assert!(matches!(render("{{ strftime_now('%Q') }}"), Err(Error::TemplateRender { .. })));
}

#[test]
fn b33_content_parts_are_joined_in_order() {
    for role in ["user", "tool"] {
        let json =
            json!({"role": role, "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]});
        let message: Message = serde_json::from_value(json).unwrap();
        assert_eq!(message, Message::new(role, "a b"));
    }
    let image = json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]});
    let error = serde_json::from_value::<Message>(image).unwrap_err().to_string();
    assert!(error.contains("content part 1 is of type `image_url`"), "{error}");
    let number =
        serde_json::from_value::<Message>(json!({"role": "user", "content": 7})).unwrap_err().to_string();
    assert!(number.contains("content must be a string or a list of parts"), "{number}");
}

#[test]
fn variables_win_over_special_tokens() {
    let config =
        TokenizerConfig::from_json(r#"{"bos_token": "<s>", "chat_template": "{{ bos_token }}"}"#, "x")
            .unwrap();
    let template = ChatTemplate::new(&config).unwrap();
    let mut options = RenderOptions::default();
    let messages = [Message::new("user", "")];
    assert_eq!(template.render(&messages, &options).unwrap(), "<s>");
    options.variables.insert("bos_token".to_owned(), json!("[B]"));
    assert_eq!(template.render(&messages, &options).unwrap(), "[B]");
}

#[test]
fn reasoning_is_found_under_every_name() {
    let template = compile("{{ messages[0].reasoning_content }}|{{ messages[0].thinking }}").unwrap();
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let message = Message::new("assistant", "x").with(name, "because");
        assert_eq!(template.render(&[message], &RenderOptions::default()).unwrap(), "because|because");
    }
}
