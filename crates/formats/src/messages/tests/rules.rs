//! Rules of models: order of roles, empty text, reasoning, images.

use memoird_core::turn::{MediaSource, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::{Anthropic, MessageFormat, OpenAi, OpenAiResponses, read};
use crate::messages::{RenderOptions, render};
use crate::model::{MessageRules, Provider};

fn sent(format: MessageFormat, turns: &[Turn], provider: Provider, model: &str) -> Value {
    let options = RenderOptions {
        system: "Be brief.",
        is_request: true,
        rules: MessageRules::for_model(provider, model),
        ..RenderOptions::default()
    };
    let rendered = render(format, turns, &options);
    let messages: Vec<Value> = serde_json::from_str(&rendered.messages_json).unwrap();
    assert!(rendered.ends.is_sorted());
    assert_eq!(rendered.ends.last(), Some(&messages.len()));
    messages.into()
}

fn said(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

fn calls() -> [Value; 2] {
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    [
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "c", "content": "1" }),
    ]
}

#[test]
fn mistral_gets_no_user_message_after_a_result() {
    let [call, result] = calls();
    let came = json!([said("user", "a"), call, result, said("user", "b")]);
    let turns = read(OpenAi, &came);
    let nothing = "[memoird 000000000: no reply was given here]";
    assert_eq!(
        sent(OpenAi, &turns, Provider::Open, "mistral-large-4"),
        json!([
            said("system", "Be brief."),
            said("user", "a"),
            call,
            result,
            said("assistant", nothing),
            said("user", "b")
        ])
    );
    assert_eq!(
        sent(OpenAi, &turns, Provider::Open, "qwen3.8-27b"),
        json!([
            said("system", "Be brief."),
            said("user", "a"),
            call,
            result,
            said("user", "b")
        ])
    );
    // In this format, the image of a result becomes a user message.
    let mut turns = turns[..3].to_vec();
    let image = PartKind::Media {
        media_type: "image/png".into(),
        name: String::new(),
        source: MediaSource::Data(vec![1; 8]),
    };
    turns[2] = Turn::new(
        Role::Tool,
        vec![
            PartKind::ToolResult {
                tool_use_id: "c".into(),
                content: String::new(),
                parts: vec![image.into()],
                is_error: false,
            }
            .into(),
        ],
    );
    let shown = sent(OpenAi, &turns, Provider::Open, "mistral-large-4");
    let roles: Vec<&str> = shown
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["role"].as_str())
        .collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool", "assistant", "user"]
    );
}

#[test]
fn strict_template_gets_one_system_message_and_alternating_roles() {
    for (came, shown) in [
        (
            json!([
                said("system", "Be kind."),
                said("developer", "Rhyme."),
                said("user", "a"),
                said("user", "b"),
                said("assistant", "c"),
                said("assistant", "d")
            ]),
            json!([
                said("system", "Be brief.\n\nBe kind.\n\nRhyme."),
                said("user", "a\n\nb"),
                said("assistant", "c\n\nd")
            ]),
        ),
        (
            json!([
                said("assistant", "Hello!"),
                said("user", "a"),
                said("system", "Rhyme.")
            ]),
            json!([
                said("system", "Be brief."),
                said("user", "(The conversation begins with the assistant.)"),
                said("assistant", "Hello!"),
                said("user", "a\n\n[system 000000000] Rhyme.")
            ]),
        ),
    ] {
        let turns = read(OpenAi, &came);
        assert_eq!(
            sent(OpenAi, &turns, Provider::Open, "gemma-4-31b-it"),
            shown
        );
    }
}

#[test]
fn old_claude_gets_no_system_role_inside_messages() {
    let came = json!([
        said("user", "a"),
        said("system", "Rhyme."),
        said("assistant", "b")
    ]);
    let turns = read(Anthropic, &came);
    assert_eq!(
        sent(Anthropic, &turns, Provider::Anthropic, "claude-opus-4-8"),
        came
    );
    let shown = sent(Anthropic, &turns, Provider::Anthropic, "claude-sonnet-4-5");
    let texts = json!([{ "type": "text", "text": "a" },
        { "type": "text", "text": "[system 000000000] Rhyme." }]);
    assert_eq!(
        shown,
        json!([{ "role": "user", "content": texts }, said("assistant", "b")])
    );
}

#[test]
fn kimi_and_glm_get_no_empty_text() {
    let [call, result] = calls();
    let mut with_text = call.clone();
    with_text["content"] = json!("");
    let mut empty_result = result.clone();
    empty_result["content"] = json!(" ");
    let blank = json!({ "role": "user", "content": [{ "type": "text", "text": "" },
        { "type": "text", "text": "b" }] });
    let came = json!([
        said("user", ""),
        with_text,
        empty_result,
        said("assistant", ""),
        blank
    ]);
    let turns = read(OpenAi, &came);
    for model in ["kimi-k3", "zai-org/GLM-5.3"] {
        let mut filled = result.clone();
        filled["content"] = json!("(empty)");
        let rest = json!({ "role": "user", "content": [{ "type": "text", "text": "b" }] });
        assert_eq!(
            sent(OpenAi, &turns, Provider::Open, model),
            json!([
                said("system", "Be brief."),
                said("user", "(empty)"),
                call,
                filled,
                rest
            ])
        );
    }
}

#[test]
fn mistral_gets_no_assistant_message_without_content_and_calls() {
    let [call, result] = calls();
    let refused = json!({ "role": "assistant", "content": null, "refusal": "I cannot." });
    let came = json!([
        said("user", "a"),
        call,
        result,
        said("assistant", ""),
        said("user", "b"),
        refused,
        said("user", "c"),
        { "role": "assistant", "content": null, "reasoning_content": "Hm." },
    ]);
    let shown = sent(
        OpenAi,
        &read(OpenAi, &came),
        Provider::Open,
        "mistral-large-4",
    );
    let nothing = "[memoird 000000000: no reply was given here]";
    assert_eq!(
        shown,
        json!([
            said("system", "Be brief."),
            said("user", "a"),
            call,
            result,
            said("assistant", nothing),
            said("user", "b"),
            said("assistant", "I cannot."),
            said("user", "c"),
        ])
    );
}

#[test]
fn non_reasoning_model_gets_no_reasoning_items() {
    let came = json!([
        said("user", "a"),
        { "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA" },
        { "type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA" },
        { "type": "reasoning", "id": "rs_2", "summary": [{ "type": "summary_text", "text": "Hm." }] },
        { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": "1" },
        said("assistant", "b"),
    ]);
    let turns = read(OpenAiResponses, &came);
    assert_eq!(
        sent(OpenAiResponses, &turns, Provider::OpenAi, "gpt-5"),
        came
    );
    let shown = sent(OpenAiResponses, &turns, Provider::OpenAi, "gpt-4.1");
    assert_eq!(shown, json!([came[0], came[4], came[5], came[6]]));
    let thought = json!({ "role": "assistant", "content": "b", "reasoning_content": "Hm." });
    let turns = read(OpenAi, &json!([said("user", "a"), thought]));
    let shown = sent(OpenAi, &turns, Provider::OpenAi, "gpt-4.1-2025-04-14");
    assert_eq!(shown[2], said("assistant", "b"));
}

/// A GIF with this width in pixels.
fn gif(side: u16) -> Turn {
    let side = side.to_le_bytes();
    let mut data = b"GIF89a".to_vec();
    data.extend([side[0], side[1], 1, 0, 0, 0, 0]);
    let image = PartKind::Media {
        media_type: "image/gif".into(),
        name: String::new(),
        source: MediaSource::Data(data),
    };
    Turn::new(Role::User, vec![image.into()])
}

/// Renders images of these widths for Claude, and returns the indices of those sent.
fn images(sides: &[u16]) -> Vec<usize> {
    let turns: Vec<Turn> = sides.iter().map(|side| gif(*side)).collect();
    let shown = sent(Anthropic, &turns, Provider::Anthropic, "claude-opus-5");
    let blocks = shown[0]["content"].as_array().unwrap();
    assert_eq!(
        blocks.len(),
        sides.len(),
        "a note stands for each of the others"
    );
    let is_image = |(place, block): (usize, &Value)| {
        let note = "[memoird 000000000: an image is left out here]";
        assert!(block["type"] == "image" || block["text"] == note, "{block}");
        (block["type"] == "image").then_some(place)
    };
    blocks.iter().enumerate().filter_map(is_image).collect()
}

#[test]
fn oldest_images_beyond_provider_limits_are_replaced() {
    let all = |range: std::ops::Range<usize>| range.collect::<Vec<_>>();
    assert_eq!(images(&[100; 100]), all(0..100));
    assert_eq!(
        images(&[100; 101]),
        all(20..101),
        "the prefix changes once for 20 images"
    );
    assert_eq!(images(&[100; 120]), all(20..120));
    assert_eq!(images(&[9_000, 100]), [1]);
    assert_eq!(images(&[3_000; 20]), all(0..20));
    assert_eq!(images(&[3_000; 21]), all(4..21));
    let old_is_large = [&[3_000][..], &[100; 30]].concat();
    assert_eq!(images(&old_is_large), all(1..31));
    let new_is_large = [&[100; 30][..], &[3_000]].concat();
    assert_eq!(images(&new_is_large), all(12..31));
}
