//! Translation between providers.

use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::{Anthropic, OpenAi, OpenAiResponses, give, read, render};
use crate::messages::RenderOptions;
use crate::model::MessageRules;

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

/// Parses in one format, renders in another.
fn across(from: MessageFormat, to: MessageFormat, messages: &Value) -> Value {
    give(to, &read(from, messages))
}

/// A user message with these parts.
fn user(parts: &Value) -> Value {
    json!([{ "role": "user", "content": parts }])
}

/// A message as translated: its content is a list.
fn said(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": [{ "type": "text", "text": text }] })
}

#[test]
fn conversation_with_calls_converts_between_all_formats() {
    let call = |id: &str| {
        json!({ "id": id, "type": "function",
            "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\"}" } })
    };
    let openai = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [call("c.1"), call("c2")] },
        { "role": "tool", "tool_call_id": "c.1", "content": "rain" },
        { "role": "tool", "tool_call_id": "c2", "content": "sun" },
        { "role": "system", "content": "Be kind." },
        { "role": "assistant", "content": "Rain." },
    ]);
    let use_of = |id: &str| json!({ "type": "tool_use", "id": id, "name": "weather", "input": { "city": "Oslo" } });
    let result = |id: &str, content: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
    let mapped = "c_1_f6db3a190db79b1f";
    let anthropic = json!([
        said("user", "Weather?"),
        { "role": "assistant", "content": [use_of(mapped), use_of("c2")] },
        { "role": "user", "content": [
            result(mapped, "rain"), result("c2", "sun"),
            { "type": "text", "text": "[system 000000000] Be kind." },
        ] },
        said("assistant", "Rain."),
    ]);
    let turns = read(OpenAi, &openai);
    assert_eq!(give(Anthropic, &turns), anthropic);
    let rendered = render(Anthropic, &turns);
    assert_eq!(
        (rendered.system.as_str(), rendered.ends),
        ("Be brief.", vec![0, 1, 2, 3, 3, 3, 4])
    );

    let call = |id: &str| {
        json!({ "type": "function_call", "call_id": id, "name": "weather",
            "arguments": "{\"city\": \"Oslo\"}" })
    };
    let output = |id: &str, output: &str| json!({ "type": "function_call_output", "call_id": id, "output": output });
    let responses = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Weather?" },
        call("c.1"), call("c2"), output("c.1", "rain"), output("c2", "sun"),
        { "role": "system", "content": "Be kind." },
        { "role": "assistant", "content": "Rain." },
    ]);
    assert_eq!(give(OpenAiResponses, &turns), responses);
    assert_eq!(render(OpenAiResponses, &turns).ends, [1, 2, 4, 5, 6, 7, 8]);
    assert_eq!(across(OpenAiResponses, OpenAi, &responses), openai);
}

#[test]
fn content_without_equivalent_is_omitted() {
    let reasoning = json!({ "type": "reasoning", "id": "r", "encrypted_content": "g",
        "summary": [{ "type": "summary_text", "text": "why" }] });
    let thinking = json!({ "type": "thinking", "thinking": "why", "signature": "s" });
    let hi = json!({ "role": "user", "content": "hi" });
    let no = json!({ "role": "assistant", "content": "No." });
    let refusal = json!([{ "type": "refusal", "refusal": "No." }]);
    let cases = [
        (OpenAiResponses, json!([hi, reasoning, no])),
        (
            OpenAiResponses,
            json!([hi, { "type": "web_search_call", "id": "w" }, no]),
        ),
        (
            OpenAiResponses,
            json!([hi, { "type": "message", "role": "assistant", "id": "m",
            "content": [{ "type": "output_text", "text": "No.", "annotations": [] }] }]),
        ),
        (
            OpenAi,
            json!([hi, { "role": "assistant", "content": refusal }]),
        ),
        (
            OpenAi,
            json!([hi, { "role": "assistant", "content": "No.", "reasoning": "why" }]),
        ),
        (
            OpenAi,
            json!([hi, { "role": "assistant", "content": "" }, no]),
        ),
        (
            Anthropic,
            json!([hi, { "role": "assistant", "content": [
            thinking, { "type": "server_tool_use", "id": "s", "name": "n", "input": {} },
            { "type": "text", "text": "No.", "cache_control": { "type": "ephemeral" } },
        ] }]),
        ),
        (
            Anthropic,
            json!([hi, { "role": "assistant", "content": [] }, no]),
        ),
    ];
    for (from, messages) in cases {
        for to in [OpenAi, OpenAiResponses, Anthropic]
            .into_iter()
            .filter(|to| *to != from)
        {
            let expected = match to {
                Anthropic => json!([said("user", "hi"), said("assistant", "No.")]),
                _ => json!([hi, no]),
            };
            assert_eq!(
                across(from, to, &messages),
                expected,
                "{messages} in {to:?}"
            );
        }
    }
}

#[test]
fn media_converts_to_each_provider_format() {
    let web = "https://example.org/a.png";
    let pdf = "data:application/pdf;base64,JVBERi0=";
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    let input_image =
        |url: &str| json!({ "type": "input_image", "detail": "auto", "image_url": url });
    let source = |kind: &str, source: Value| json!({ "type": kind, "source": source });
    let base64 = |media_type: &str, data: &str| json!({ "type": "base64", "media_type": media_type, "data": data });
    let chat = json!([
        image(PNG), image(web), image("data:image/tiff;base64,AA=="),
        { "type": "input_audio", "input_audio": { "data": "UklG", "format": "wav" } },
        { "type": "file", "file": { "filename": "a.pdf", "file_data": pdf } },
        { "type": "file", "file": { "file_id": "file-1" } },
    ]);
    let anthropic = json!([
        source("image", base64("image/png", "iVBORw0KGgo=")),
        source("image", json!({ "type": "url", "url": web })),
        { "type": "text", "text": "[image: image/tiff]" },
        { "type": "text", "text": "[audio: audio/wav]" },
        { "type": "document", "title": "a.pdf", "source": base64("application/pdf", "JVBERi0=") },
        { "type": "text", "text": "[document]" },
    ]);
    let responses = json!([
        input_image(PNG), input_image(web),
        { "type": "input_text", "text": "[image: image/tiff]" },
        { "type": "input_text", "text": "[audio: audio/wav]" },
        { "type": "input_file", "filename": "a.pdf", "file_data": pdf },
        { "type": "input_file", "file_id": "file-1" },
    ]);
    assert_eq!(across(OpenAi, Anthropic, &user(&chat)), user(&anthropic));
    assert_eq!(
        across(OpenAi, OpenAiResponses, &user(&chat)),
        user(&responses)
    );

    let blocks = json!([
        source("image", json!({ "type": "file", "file_id": "file_1" })),
        source(
            "document",
            json!({ "type": "text", "media_type": "text/plain", "data": "J\u{f6}rg" })
        ),
        source(
            "document",
            json!({ "type": "url", "url": "https://example.org/a" })
        ),
    ]);
    let chat = json!([
        { "type": "text", "text": "[image]" },
        { "type": "text", "text": "[document: text/plain]\n\nJ\u{f6}rg" },
        { "type": "text", "text": "[document: https://example.org/a]" },
    ]);
    assert_eq!(across(Anthropic, OpenAi, &user(&blocks)), user(&chat));
}

/// A single unsupported part would make the provider reject every request with it.
#[test]
fn unsupported_media_becomes_a_text_line() {
    let media = |media_type: &str, source: MediaSource| {
        let (media_type, name) = (media_type.into(), String::new());
        let part = PartKind::Media {
            media_type,
            source,
            name,
        };
        Turn::new(Role::User, vec![part.into()])
    };
    let data = |media_type: &str| media(media_type, MediaSource::Data(b"{}".to_vec()));
    for (turn, line) in [
        (data("video/mp4"), "[video: video/mp4]"),
        (data("image/heic"), "[image: image/heic]"),
        (data("image/svg+xml"), "[image: image/svg+xml]"),
        (data("audio/ogg"), "[audio: audio/ogg]"),
        (
            data("application/json"),
            "[document: application/json]\n\n{}",
        ),
        (
            media("", MediaSource::Uri("https://example.org/a.mp4".into())),
            "[video: https://example.org/a.mp4]",
        ),
        (
            media("image/png", MediaSource::Uri("s3://photos/1.png".into())),
            "[image: image/png]",
        ),
    ] {
        for format in [OpenAi, OpenAiResponses] {
            let expected = json!([{ "role": "user", "content": line }]);
            assert_eq!(give(format, std::slice::from_ref(&turn)), expected);
        }
        let block = &give(Anthropic, &[turn])[0]["content"][0];
        let is_text = block["type"] == "document" && block["source"]["data"] == "{}";
        assert!(is_text || block["text"] == line, "{block}");
    }
}

/// A call of one of the provider's own tools, unanswered or answered by the bot with a turn.
#[test]
fn native_tool_call_gets_output_of_its_type() {
    let calls = json!([
        { "type": "shell_call", "call_id": "a", "action": { "commands": ["ls"] } },
        { "type": "apply_patch_call", "call_id": "b", "operation": { "type": "delete_file" } },
    ]);
    let mut turns = read(OpenAiResponses, &calls);
    for (id, is_error) in [("a", true), ("b", false)] {
        let result = PartKind::ToolResult {
            tool_use_id: id.into(),
            content: "no error".into(),
            parts: vec![],
            is_error,
        };
        turns.push(Turn::new(Role::Tool, vec![result.into()]));
    }
    let items = give(OpenAiResponses, &turns);
    let outcome = json!({ "type": "exit", "exit_code": 1 });
    let shell = json!({ "type": "shell_call_output", "call_id": "a",
        "output": [{ "stdout": "no error", "stderr": "", "outcome": outcome }] });
    let patch = json!({ "type": "apply_patch_call_output", "call_id": "b", "status": "completed",
        "output": "no error" });
    assert_eq!(items, json!([calls[0], calls[1], shell, patch]));
}

#[test]
fn results_become_tool_messages_followed_by_other_content() {
    let blocks = json!([
        { "type": "tool_result", "tool_use_id": "a", "is_error": true, "content": "no such city" },
        { "type": "tool_result", "tool_use_id": "b", "is_error": true, "content": "An error!" },
        { "type": "tool_result", "tool_use_id": "c" },
        { "type": "text", "text": "Go on." },
        { "type": "tool_result", "tool_use_id": "d", "content": [
            { "type": "text", "text": "a map" },
            { "type": "image", "source":
                { "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" } },
        ] },
    ]);
    let tool = |id: &str, content: Value| json!({ "role": "tool", "tool_call_id": id, "content": content });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let image = json!({ "type": "image_url", "image_url": { "url": PNG } });
    let expected = json!([
        tool("a", "Error: no such city".into()),
        tool("b", "An error!".into()),
        tool("c", "(empty)".into()),
        tool("d", json!([text("a map"), text("[image: image/png]")])),
        { "role": "user", "content": [image, text("Go on.")] },
    ]);
    assert_eq!(across(Anthropic, OpenAi, &user(&blocks)), expected);
    let rich = json!([
        { "type": "input_text", "text": "a map" },
        { "type": "input_image", "detail": "auto", "image_url": PNG },
    ]);
    let output = |id: &str, output: Value| json!({ "type": "function_call_output", "call_id": id, "output": output });
    let expected = json!([
        output("a", "Error: no such city".into()),
        output("b", "An error!".into()),
        output("c", "(empty)".into()),
        output("d", rich),
        { "role": "user", "content": "Go on." },
    ]);
    assert_eq!(across(Anthropic, OpenAiResponses, &user(&blocks)), expected);
}

/// Two turns of results. Other content of the first must not separate them.
#[test]
fn parallel_results_stay_together() {
    let image = PartKind::Media {
        media_type: "image/png".into(),
        source: MediaSource::Data(vec![0, 1, 2]),
        name: "a\nmap".into(),
    };
    let result = |id: &str, parts: Vec<Part>| PartKind::ToolResult {
        tool_use_id: id.into(),
        content: String::new(),
        parts,
        is_error: false,
    };
    let text = PartKind::Text("b".into());
    let turns = [
        Turn::new(Role::Tool, vec![result("a", vec![image.into()]).into()]),
        Turn::new(Role::Tool, vec![result("b", vec![text.into()]).into()]),
        Turn::new(Role::Assistant, vec![PartKind::Text("Seen.".into()).into()]),
    ];
    let shown =
        json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAEC" } });
    let expected = json!([
        { "role": "tool", "tool_call_id": "a", "content": "[image: a map]" },
        { "role": "tool", "tool_call_id": "b", "content": "b" },
        { "role": "user", "content": [shown] },
        { "role": "assistant", "content": "Seen." },
    ]);
    assert_eq!(give(OpenAi, &turns), expected);
    assert_eq!(render(OpenAi, &turns).ends, [3, 3, 4]);
}

#[test]
fn tool_input_converts_to_each_provider_format() {
    let cases = [
        ("{\"a\": 1.0}", "{\"a\": 1.0}", json!({ "a": 1.0 })),
        ("", "{}", json!({})),
        ("[1]", "[1]", json!({ "input": "[1]" })),
        ("ls -l", r#"{"input":"ls -l"}"#, json!({ "input": "ls -l" })),
    ];
    for (input, arguments, object) in cases {
        let call =
            json!([{ "type": "custom_tool_call", "call_id": "c", "name": "f", "input": input }]);
        let chat = across(OpenAiResponses, OpenAi, &call);
        assert_eq!(chat[0]["tool_calls"][0]["function"]["arguments"], arguments);
        let anthropic = across(OpenAiResponses, Anthropic, &call);
        let text = anthropic[0]["content"][0]["input"].to_string();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            object,
            "{input}"
        );
    }
}

/// A bot may send the model's messages unchanged, and results as turns.
#[test]
fn custom_tool_call_gets_custom_output() {
    let calls = json!([
        { "type": "custom_tool_call", "call_id": "a", "name": "f", "input": "ls" },
        { "type": "function_call", "call_id": "b", "name": "g", "arguments": "{}" },
    ]);
    let mut turns = read(OpenAiResponses, &calls);
    for id in ["a", "b"] {
        let result = PartKind::ToolResult {
            tool_use_id: id.into(),
            content: "ok".into(),
            parts: vec![],
            is_error: false,
        };
        turns.push(Turn::new(Role::Tool, vec![result.into()]));
    }
    let items = give(OpenAiResponses, &turns);
    let kinds = [&items[2]["type"], &items[3]["type"]];
    assert_eq!(kinds, ["custom_tool_call_output", "function_call_output"]);
}

#[test]
fn shortened_ids_match_between_call_and_result() {
    let long = "toolu_".repeat(12);
    let call = PartKind::ToolUse {
        id: long.clone(),
        name: "f".into(),
        input_json: "{}".into(),
    };
    let result = PartKind::ToolResult {
        tool_use_id: long.clone(),
        content: "a".into(),
        parts: vec![],
        is_error: false,
    };
    let mut turns = [
        Turn::new(Role::Assistant, vec![call.into()]),
        Turn::new(Role::Tool, vec![result.into()]),
    ];
    let ids = |turns: &[Turn]| {
        let messages = give(OpenAi, turns);
        (
            messages[0]["tool_calls"][0]["id"].clone(),
            messages[1]["tool_call_id"].clone(),
        )
    };
    let (call, result) = ids(&turns);
    assert!(
        call == result && call.as_str().unwrap().len() <= 40,
        "{call} {result}"
    );
    turns[0].format = Some(OpenAi);
    assert_eq!(
        ids(&turns),
        (long.clone().into(), long.into()),
        "what is given back is the name"
    );
}

#[test]
fn system_prompt_is_placed_as_provider_requires() {
    let turns = read(
        OpenAi,
        &json!([
            { "role": "system", "content": "Be brief." },
            { "role": "developer", "content": [{ "type": "text", "text": "Be kind." }] },
            { "role": "user", "content": "hi" },
        ]),
    );
    let options = RenderOptions {
        system: "You are a bot.",
        ..RenderOptions::default()
    };
    let render = |format| crate::messages::render(format, &turns, &options);
    let chat = render(OpenAi);
    assert_eq!((chat.system.as_str(), &chat.ends[..]), ("", &[2, 3, 4][..]));
    let messages: Value = serde_json::from_str(&chat.messages_json).unwrap();
    assert_eq!(
        messages[0],
        json!({ "role": "system", "content": "You are a bot." })
    );
    assert_eq!(messages[2]["role"], "developer");

    let anthropic = render(Anthropic);
    assert_eq!(anthropic.system, "You are a bot.\n\nBe brief.\n\nBe kind.");
    let expected = r#"[{"role":"user","content":[{"type":"text","text":"hi"}]}]"#;
    assert_eq!(anthropic.messages_json, expected);
    let responses = render(OpenAiResponses);
    assert_eq!(
        (responses.system.as_str(), &responses.ends[..]),
        ("You are a bot.", &[1, 2, 3][..])
    );
}

#[test]
fn text_sent_with_partial_results_follows_all_results() {
    let use_of = |id: &str| json!({ "type": "tool_use", "id": id, "name": "weather", "input": {} });
    let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "rain" });
    let text = json!({ "type": "text", "text": "Hurry." });
    let mut turns = vec![
        json!({ "role": "user", "content": "Weather?" }),
        json!({ "role": "assistant", "content": [use_of("a"), use_of("b")] }),
        json!({ "role": "user", "content": [result("a"), text] }),
    ];
    let roles = |turns: &[Value]| -> Vec<String> {
        let sent = across(Anthropic, OpenAi, &json!(turns));
        let messages = sent.as_array().expect("messages");
        let role = |message: &Value| {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            format!("{}{id}", message["role"].as_str().unwrap_or_default())
        };
        messages.iter().map(role).collect()
    };
    let all = ["user", "assistant", "toola", "toolb", "user"];
    assert_eq!(roles(&turns), all, "one is marked as missing");
    turns.push(json!({ "role": "user", "content": [result("b")] }));
    assert_eq!(roles(&turns), all, "and here it is");
}

#[test]
fn adjacent_user_messages_are_joined_for_strict_models() {
    let image = json!([
        { "type": "text", "text": "This one?" },
        { "type": "image_url", "image_url": { "url": PNG } },
    ]);
    let openai = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "A long task." },
        { "role": "user", "content": "And this.", "name": "ann" },
        { "role": "assistant", "content": "Done." },
        { "role": "user", "content": "Next." },
        { "role": "user", "content": image },
    ]);
    let turns = read(OpenAi, &openai);
    let sent = |users_in_a_row| {
        let options = RenderOptions {
            is_request: true,
            rules: MessageRules {
                users_in_a_row,
                ..MessageRules::default()
            },
            ..RenderOptions::default()
        };
        let rendered = crate::messages::render(OpenAi, &turns, &options);
        let messages: Value = serde_json::from_str(&rendered.messages_json).unwrap();
        (messages, rendered.ends)
    };
    assert_eq!(sent(true), (openai, vec![1, 2, 3, 4, 5, 6]));
    let joined = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "A long task.\n\nAnd this.", "name": "ann" },
        { "role": "assistant", "content": "Done." },
        { "role": "user", "content": [
            { "type": "text", "text": "Next." },
            { "type": "text", "text": "This one?" },
            { "type": "image_url", "image_url": { "url": PNG } },
        ] },
    ]);
    assert_eq!(sent(false), (joined, vec![1, 2, 2, 3, 4, 4]));
}
