//! Token counts of turns.

use memoird_core::turn::{MediaSource, Role};

use super::super::OpenAiTokenizer::O200k;
use super::super::{ChatTemplate, CorrectedTokenizer};
use super::*;

const ANTHROPIC: Dialect = Dialect::Anthropic { tool_prompt: 496 };
const DIALECTS: [Dialect; 5] = [
    Dialect::OpenAiChat,
    Dialect::OpenAiReasoning,
    ANTHROPIC,
    Dialect::Google,
    Dialect::Open(ChatTemplate::Plain),
];

fn scale(dialect: Dialect) -> Scale {
    Scale::new(Arc::new(O200k), dialect)
}

fn turn(kind: PartKind) -> Turn {
    Turn::new(Role::Assistant, vec![kind.into()])
}

fn call(id: &str, input_json: &str) -> PartKind {
    PartKind::ToolUse {
        id: id.into(),
        name: "calculator".into(),
        input_json: input_json.into(),
    }
}

fn result(id: &str, content: &str, parts: Vec<Part>) -> PartKind {
    let (tool_use_id, content) = (id.into(), content.into());
    PartKind::ToolResult {
        tool_use_id,
        content,
        parts,
        is_error: false,
    }
}

#[test]
fn message_tokens_match_openai_cookbook() {
    let scale = scale(Dialect::OpenAiChat);
    // From OpenAI's cookbook: a message is its text, its role and three tokens. The reply is primed
    // with three.
    let hello = turn(PartKind::Text("tiktoken is great!".into()));
    assert_eq!(scale.turn(&hello), 6 + 4);
    assert_eq!(scale.system("tiktoken is great!"), 6 + 4);
    assert_eq!(scale.request(), 3);
    // A call and its result, for which OpenAI charged 25.
    let pair = scale.turn(&turn(call("a", r#"{"a":2, "b":2}"#)))
        + scale.turn(&turn(result("a", "4", Vec::new())));
    assert!((25..=31).contains(&pair), "{pair}");
}

#[test]
fn every_turn_counts_and_empty_prompts_do_not() {
    for dialect in DIALECTS {
        let scale = scale(dialect);
        assert!(scale.turn(&turn(PartKind::Text(String::new()))) > 0);
        assert!(scale.turn(&Turn::new(Role::User, Vec::new())) > 0);
        let empty = Turn::new(Role::User, Vec::new());
        assert!(scale.request() + scale.turn(&empty) > 0);
        for nothing in ["", "[]", " [] ", "null"] {
            assert_eq!(scale.tools(nothing, None), 0, "{nothing:?}");
        }
        assert_eq!(scale.system(""), 0);
        assert!(scale.tools(r#"[{"name":"a"}]"#, None) > scale.text("a"));
        assert!(scale.tools("no JSON at all", None) > 2);
    }
    assert!(scale(ANTHROPIC).tools(r#"[{"name":"a"}]"#, None) > 495);
}

#[test]
fn everything_sent_back_is_counted() {
    let long = "the captain read the letter twice ".repeat(20);
    for dialect in DIALECTS {
        let scale = scale(dialect);
        let text = scale.text(&long);
        let thinking = |text: &str, signature: &str, redacted| PartKind::Thinking {
            text: text.into(),
            signature: signature.into(),
            redacted,
        };
        let inner = PartKind::Text(long.clone()).into();
        let encrypted = "A".repeat(4_000);
        let encrypted_tokens = match scale.provider() {
            Provider::OpenAi => 522,
            Provider::Anthropic => 628,
            Provider::Google => 0,
            Provider::Open => 1_000,
        };
        let cases = [
            (PartKind::Text(long.clone()), text),
            (call("a", &long), text),
            (result("a", &long, Vec::new()), text),
            (result("a", "", vec![inner]), text),
            (thinking(&long, "short", false), text),
            (thinking("", &encrypted, false), encrypted_tokens),
            (thinking(&encrypted, "", true), encrypted_tokens),
        ];
        for (kind, at_least) in cases {
            let tokens = scale.turn(&turn(kind.clone()));
            assert!(
                (at_least..at_least + 50).contains(&tokens),
                "{tokens} {kind:?}"
            );
        }
        let bare = turn(PartKind::Text("hello".into()));
        let mut with_extra = bare.clone();
        with_extra.extra_json = format!(r#"{{"name":"{long}"}}"#);
        assert!(scale.turn(&with_extra) > scale.turn(&bare) + text);
        let mut with_extra = bare.clone();
        with_extra.parts[0].extra_json = format!(r#"{{"citations":"{long}"}}"#);
        assert!(scale.turn(&with_extra) > scale.turn(&bare) + text);
    }
}

#[test]
fn claude_tool_counts_one_and_a_half_times_its_schema() {
    let tokenizer = Arc::new(CorrectedTokenizer::new(Provider::Anthropic));
    let scale = Scale::new(tokenizer, ANTHROPIC);
    let nothing = r#"[{"name":"get_file","description":"","input_schema":
        {"additionalProperties":false,"properties":{},"type":"object"}}]"#;
    let weather = r#"[{"name":"get_weather","description":"Get the current weather for a city.",
        "input_schema":{"additionalProperties":false,"properties":{"city":{"type":"string"}},
        "required":["city"],"type":"object"}}]"#;
    // Anthropic charged 531 and 558 for them with Claude Sonnet 4.5.
    assert!((529..=534).contains(&scale.tools(nothing, None)));
    assert!((555..=561).contains(&scale.tools(weather, None)));
}

#[test]
fn deferred_tool_counts_where_it_is_referenced() {
    let scale = scale(ANTHROPIC);
    let tool = |more: &str| format!(r#"[{{"name":"refund","input_schema":{{}}{more}}}]"#);
    let deferred = scale.tools(&tool(r#","defer_loading":true"#), None);
    assert_eq!(deferred, 496);
    assert!(scale.tools(&tool(""), None) > deferred);
    let mut reference = Part::from(PartKind::Text(String::new()));
    reference.extra_json = r#"{"type":"tool_reference","tool_name":"refund"}"#.into();
    let bare = scale.turn(&turn(result("a", "", Vec::new())));
    let with_reference = scale.turn(&turn(result("a", "", vec![reference])));
    assert_eq!(with_reference - bare, TOOL_REFERENCE_TOKENS);
}

#[test]
fn additional_tools_item_counts_as_shown_by_openai() {
    let scale = scale(Dialect::OpenAiReasoning);
    let tools = r#"[{"type":"function","name":"refund","description":"Look up the refund policy.",
        "parameters":{"type":"object","properties":{"order_id":{"type":"string"}}}}]"#;
    let mut item = Part::from(PartKind::Text(String::new()));
    item.extra_json = format!(r#"{{"type":"additional_tools","tools":{tools}}}"#);
    let shown = scale.tools(tools, Some(MessageFormat::OpenAi));
    assert!(shown > 100);
    let bare = scale.turn(&turn(PartKind::Text(String::new())));
    assert_eq!(scale.turn(&Turn::new(Role::User, vec![item])) - bare, shown);
}

#[test]
fn google_result_counts_without_quotes_and_escapes() {
    let text =
        r#"{"error":"1 validation error:\n```json\n[\n  {\n    \"type\": \"extra_forbidden\",
        \n    \"loc\": [\n      \"type\"\n    ],\n    \"msg\": \"Extra inputs are not permitted\",
        \n    \"input\": \"VIDEO\"\n  }\n]\n```"}"#
            .replace("\n        ", "");
    let error = text.as_str();
    let scale = scale(Dialect::Google);
    let tokens = scale.turn(&turn(result("a", error, Vec::new())));
    assert!(tokens + 5 < scale.text(error), "{tokens}");
    // Text that is not an object is counted unchanged.
    for text in ["{no JSON", "[1, 2]", "{}"] {
        let tokens = scale.turn(&turn(result("a", text, Vec::new())));
        assert!((2..=8).contains(&tokens), "{tokens} {text}");
    }
}

#[test]
fn signature_of_google_is_not_text() {
    let scale = scale(Dialect::Google);
    let bare = turn(call("a", "{}"));
    let mut signed = bare.clone();
    let signature = "AbC9".repeat(400);
    for extra in [
        format!(r#"{{"thought_signature":"{signature}"}}"#),
        format!(r#"{{"extra_content":{{"google":{{"thought_signature":"{signature}"}}}}}}"#),
    ] {
        signed.parts[0].extra_json = extra;
        assert_eq!(scale.turn(&signed), scale.turn(&bare));
    }
}

#[test]
fn base64_in_an_extra_is_not_counted_as_text() {
    let scale = scale(Dialect::Open(ChatTemplate::Plain));
    let part = |data: &str| {
        let extra_json = format!(
            r#"{{"type":"blob_url","blob_url":{{"url":"data:application/octet-stream;base64,{data}"}}}}"#
        );
        Turn::new(
            Role::User,
            vec![Part {
                kind: PartKind::Text(String::new()),
                extra_json,
            }],
        )
    };
    let empty = scale.turn(&part(""));
    let large = scale.turn(&part(&"AbC9".repeat(500_000)));
    assert!(
        (empty..=empty + OPAQUE_RUN_TOKENS_MAX + 2).contains(&large),
        "{large}"
    );
    let small = scale.turn(&part(&"AbC9".repeat(1_000)));
    assert!((empty + 1_000..empty + 1_010).contains(&small), "{small}");
    // Text is split only around data, whatever characters are there.
    let between = format!("é{0}é{0}é", "A".repeat(4_000));
    let both = scale.turn(&part(&between));
    assert!((empty + 2_000..empty + 2_020).contains(&both), "{both}");
}

/// Base64 of a PNG with this size, as long as a real one.
fn png(width: u32, height: u32) -> String {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend(width.to_be_bytes());
    bytes.extend(height.to_be_bytes());
    bytes.extend([8, 6, 0, 0, 0]);
    let noise = (0_u32..200_000).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8);
    bytes.extend(noise);
    crate::base64::encode(&bytes)
}

#[test]
fn media_inside_json_counts_as_media() {
    let data = png(1_280, 800);
    let uri = format!("data:image/png;base64,{data}");
    let as_part = |scale: &Scale| {
        scale.turn(&turn(PartKind::Media {
            media_type: String::new(),
            source: MediaSource::Uri(uri.clone()),
            name: String::new(),
        }))
    };
    let opaque = |extra: Value| {
        let mut part = Part::from(PartKind::Text(String::new()));
        part.extra_json = extra.to_string();
        Turn::new(Role::Assistant, vec![part])
    };
    let block = serde_json::json!({ "type": "image", "data": data, "mimeType": "image/png" });
    let blob = serde_json::json!({ "type": "resource",
        "resource": { "uri": "a", "mimeType": "image/png", "blob": data } });
    let in_turn = |extra: Value| Turn {
        extra_json: extra.to_string(),
        ..turn(PartKind::Text("here it is".into()))
    };
    let image = serde_json::json!({ "type": "image_url", "image_url": { "url": uri } });
    let turns = [
        opaque(
            serde_json::json!({ "type": "computer_call_output", "call_id": "a",
            "output": { "type": "computer_screenshot", "image_url": uri } }),
        ),
        opaque(serde_json::json!({ "type": "mcp_call", "name": "shot",
            "output": serde_json::json!([block]).to_string() })),
        opaque(serde_json::json!({ "type": "mcp_call", "name": "shot",
            "output": serde_json::json!({ "content": [blob] }).to_string() })),
        opaque(serde_json::json!({ "type": "image_generation_call", "result": data })),
        in_turn(serde_json::json!({ "images": [image] })),
        turn(result(
            "a",
            &serde_json::json!([block]).to_string(),
            Vec::new(),
        )),
        turn(result(
            "a",
            &serde_json::json!({ "content": [blob] }).to_string(),
            Vec::new(),
        )),
        turn(result(
            "a",
            "",
            vec![PartKind::Text(serde_json::json!({ "content": [block] }).to_string()).into()],
        )),
    ];
    for dialect in DIALECTS {
        let scale = scale(dialect);
        let image = as_part(&scale);
        for turn in &turns {
            let tokens = scale.turn(turn);
            assert!(
                (image..image + 80).contains(&tokens),
                "{image} {tokens} {dialect:?}"
            );
        }
    }
}

#[test]
fn message_audio_counts_by_its_length() {
    let scale = scale(Dialect::OpenAiChat);
    let data = "A".repeat(400_000);
    let mut spoken = turn(PartKind::Text("hello".into()));
    let bare = scale.turn(&spoken);
    let audio = serde_json::json!({ "audio": { "id": "audio_1", "data": data, "expires_at": 1 } });
    spoken.extra_json = audio.to_string();
    let tokens = scale.turn(&spoken) - bare;
    // 300 kB, at 4 kB per second.
    assert!((75 * 32..75 * 32 + 80).contains(&tokens), "{tokens}");
}

#[test]
fn base64_in_non_json_text_counts_as_text() {
    let scale = scale(Dialect::OpenAiChat);
    let text = format!("<img src=\"data:image/png;base64,{}\">", png(100, 100));
    let tokens = scale.turn(&turn(result("a", &text, Vec::new())));
    assert!(tokens >= scale.text(&text), "{tokens}");
}

#[test]
fn media_in_results_counts() {
    let image = PartKind::Media {
        media_type: "image/png".into(),
        source: MediaSource::Uri("https://example.com/cat".into()),
        name: "cat".into(),
    };
    let scale = scale(ANTHROPIC);
    let shown = scale.turn(&turn(result("a", "", vec![image.clone().into()])));
    assert!((1_369..1_430).contains(&shown), "{shown}");
    assert!(scale.turn(&turn(image)) > 1_369);
}

#[test]
fn cloned_scale_counts_the_same() {
    let scale = Scale::new(
        Arc::new(CorrectedTokenizer::new(Provider::Google)),
        Dialect::Google,
    );
    let hello = turn(PartKind::Text("hello there".into()));
    assert_eq!(scale.turn(&hello), scale.clone().turn(&hello));
    assert!((scale.margin() - 0.015).abs() < 1e-9);
}
