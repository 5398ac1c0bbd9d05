//! Handwritten messages: every kind of part, with every variant of its fields.

use serde_json::{Value, json};

/// Distinct messages of an OpenAI array.
pub(super) fn openai() -> Vec<Value> {
    let mut messages = vec![
        json!({ "role": "system", "content": "Be brief." }),
        json!({ "role": "developer", "content": "Be brief." }),
        json!({ "role": "developer", "content": [{ "type": "text", "text": "a" }], "name": "d" }),
        json!({ "role": "user", "content": "hi", "name": "ann", "memoird": { "absent": [1] } }),
        json!({ "role": "user", "content": "", "tool_calls": [], "tool_call_id": "c", "x": 1.50 }),
        json!({ "content": "hi", "role": "user", "refusal": null }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": "" }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": "a", "name": "f", "x": 1 }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": [
            { "type": "text", "text": "a", "memoird": { "placeholder": true } },
            { "type": "image_url", "image_url": { "url": "https://example.org/a.png" } },
        ] }),
        json!({ "role": "assistant" }),
        json!({ "role": "assistant", "content": null }),
        json!({ "role": "assistant", "content": null, "tool_calls": [] }),
        json!({ "role": "assistant", "content": "", "tool_calls": null }),
        json!({ "role": "assistant", "content": "" }),
        json!({ "role": "assistant", "content": [{ "type": "text", "text": "" }] }),
        json!({ "role": "assistant", "content": null, "refusal": "No.", "annotations": [] }),
        json!({ "role": "assistant", "audio": { "id": "audio_1" } }),
        json!({ "role": "assistant", "content": null,
            "function_call": { "name": "f", "arguments": "{}" } }),
        json!({ "role": "assistant", "content": [
            { "type": "refusal", "refusal": "I cannot." }, { "type": "refusal", "refusal": "" },
        ] }),
    ];
    let image = "data:image/png;base64,iVBORw0KGgo=";
    for part in [
        json!({ "type": "text", "text": "a" }),
        json!({ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } }),
        json!({ "type": "text", "text": "", "memoird": { "placeholder": true } }),
        json!({ "type": "image_url", "image_url": { "url": image } }),
        json!({ "type": "image_url", "image_url": { "detail": "low", "url": image }, "x": [] }),
        json!({ "type": "image_url", "image_url": { "url": "data:,", "memoird": 1 } }),
        json!({ "type": "input_audio", "input_audio": { "data": "UklG", "format": "wav" } }),
        json!({ "type": "input_audio", "input_audio": { "data": "", "format": "mp3", "x": 1 } }),
        json!({ "type": "input_audio",
            "input_audio": { "data": ";base64,", "format": "a;base64,b" } }),
        json!({ "type": "file", "file": { "file_id": "file-1" } }),
        json!({ "type": "file", "file": { "file_data": "file-1", "filename": "a.pdf" } }),
        json!({ "type": "file", "file": { "file_data": "file-1", "file_id": "file-1" } }),
        json!({ "type": "file", "file": { "file_data": null, "file_id": "file-1" } }),
        json!({ "type": "file", "file": { "file_data": "file-1", "file_id": null } }),
        json!({ "type": "file", "file": { "filename": "a.pdf" } }),
        json!({ "type": "video_url", "video_url": { "url": "https://example.org/a.mp4" } }),
        json!({ "type": "", "memoird": { "placeholder": true } }),
    ] {
        messages
            .push(json!({ "role": "user", "content": [part, { "type": "text", "text": "?" }] }));
    }
    messages.extend(openai_calls());
    messages
}

fn openai_calls() -> Vec<Value> {
    let mut messages = Vec::new();
    let call =
        json!({ "id": "c1", "type": "function", "function": { "name": "f", "arguments": "" } });
    for calls in [
        json!([call]),
        json!([call, call]),
        json!([{ "id": "c1", "function": { "name": "f", "arguments": "" } }]),
        json!([{ "id": "c1", "function": { "name": "f", "arguments": "" }, "memoird": {} }]),
        json!([{ "id": "c1", "type": "function", "index": 0, "custom": {},
            "function": { "name": "f", "arguments": "{\"a\": ", "strict": true, "memoird": 1 } }]),
        json!([{ "id": "c1", "type": "custom", "custom": { "name": "f", "input": "" } }]),
        json!([{ "id": "c1", "type": "custom", "custom": { "name": "f", "input": "ls -l", "x": 1 },
            "function": null }]),
    ] {
        messages.push(json!({ "role": "assistant", "tool_calls": calls }));
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": calls }));
        messages.push(json!({ "role": "assistant", "content": "", "tool_calls": calls }));
        messages.push(json!({ "role": "assistant", "tool_calls": calls,
            "content": [{ "type": "text", "text": "" }], "reasoning_content": "why" }));
    }
    messages
}

/// Distinct messages of an Anthropic array.
pub(super) fn anthropic() -> Vec<Value> {
    let mut messages = vec![
        json!({ "role": "user", "content": "hi" }),
        json!({ "role": "user", "content": "" }),
        json!({ "role": "user", "content": [] }),
        json!({ "role": "assistant", "content": [], "id": "msg_1", "stop_reason": "end_turn" }),
        json!({ "role": "user", "content": [{ "type": "text", "text": "" }] }),
        json!({ "role": "assistant", "content": [
            { "type": "thinking", "thinking": "why", "signature": "EuYB" },
            { "type": "redacted_thinking", "data": "EroB" },
            { "type": "text", "text": "a", "citations": [{ "type": "char_location" }] },
            { "type": "tool_use", "id": "t1", "name": "f", "input": { "b": 1.0, "a": [] } },
            { "type": "tool_use", "id": "t2", "name": "f", "input": {}, "caller": { "type": "x" } },
        ] }),
        json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": "a" },
            { "type": "tool_result", "tool_use_id": "t2", "content": "b", "is_error": true },
            { "type": "text", "text": "both, please" },
        ], "memoird": [] }),
    ];
    let cached = json!({ "type": "ephemeral", "ttl": "1h" });
    let png = json!({ "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" });
    let plain = json!({ "type": "text", "media_type": "text/plain", "data": "J\u{f6}rg\n" });
    let content = json!({ "type": "content", "content": [{ "type": "text", "text": "a" }] });
    let inner = [
        json!({ "type": "text", "text": "a", "cache_control": cached }),
        json!({ "type": "text", "text": "", "memoird": { "placeholder": true } }),
        json!({ "type": "image", "source": png }),
        json!({ "type": "image", "source": png, "cache_control": cached, "memoird": null }),
        json!({ "type": "image", "source": { "type": "url", "url": "https://example.org/a" } }),
        json!({ "type": "image", "source": { "type": "file", "file_id": "file_1", "x": 1 } }),
        json!({ "type": "image", "source": { "type": "base64", "media_type": "", "data": "" } }),
        json!({ "type": "document", "source": plain, "title": "t", "context": "c",
            "citations": { "enabled": true } }),
        json!({ "type": "document", "source": plain, "title": null }),
        json!({ "type": "document", "source": content }),
        json!({ "type": "search_result", "source": "s", "title": "t", "content": [] }),
        json!({ "type": "tool_reference", "tool_name": "f" }),
    ];
    let outer = [
        json!({ "type": "thinking", "thinking": "", "signature": "" }),
        json!({ "type": "thinking", "thinking": "" }),
        json!({ "type": "thinking", "thinking": "", "memoird": { "absent": ["signature"] } }),
        json!({ "type": "tool_result", "tool_use_id": "t1" }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": null }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": "" }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": [] }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "is_error": false }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "is_error": true, "memoird": 1 }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": "", "is_error": null,
            "cache_control": cached }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": inner }),
        json!({ "type": "tool_result", "tool_use_id": "t1", "content": [
            { "type": "tool_result", "tool_use_id": "t2", "content": "kept whole" },
        ] }),
        json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} }),
        json!({ "type": "web_search_tool_result", "tool_use_id": "s1", "content": [{}] }),
    ];
    messages.extend(
        inner
            .iter()
            .chain(&outer)
            .map(|block| json!({ "role": "user", "content": [block] })),
    );
    messages
}

/// Rejected OpenAI arrays with their errors.
pub(super) const OPENAI_REFUSED: &[(&str, &str)] = &[
    (
        "",
        ": not JSON: EOF while parsing a value at line 1 column 0",
    ),
    (
        "[\n{]",
        ": not JSON: key must be a string at line 2 column 2",
    ),
    (
        r#"{"messages":[]}"#,
        ": an object; expected a list of messages",
    ),
    (
        r#"[{"role":"user","content":"a"},"b"]"#,
        "[1]: a string; expected an object",
    ),
    (
        r#"[{"content":"a"}]"#,
        "[0].role: missing; expected a string",
    ),
    (r#"[{"role":null}]"#, "[0].role: null; expected a string"),
    (
        r#"[{"role":"bot"}]"#,
        r#"[0].role: unknown: "bot"; expected system, developer, user, assistant or tool"#,
    ),
    (
        r#"[{"role":"function","name":"f","content":"a"}]"#,
        "[0].role: the legacy role \"function\" is not supported; \
         send a \"tool\" message with the call's tool_call_id",
    ),
    (
        r#"[{"role":"user"}]"#,
        "[0].content: missing; expected a string or a list",
    ),
    (
        r#"[{"role":"system","content":null}]"#,
        "[0].content: null; expected a string or a list",
    ),
    (
        r#"[{"role":"user","content":{}}]"#,
        "[0].content: an object; expected a string or a list",
    ),
    (
        r#"[{"role":"user","content":[]}]"#,
        "[0].content: an empty list; expected at least one part",
    ),
    (
        r#"[{"role":"user","content":["a"]}]"#,
        "[0].content[0]: a string; expected an object",
    ),
    (
        r#"[{"role":"user","content":[{}]}]"#,
        "[0].content[0].type: missing; expected a string",
    ),
    (
        r#"[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]"#,
        "[0].content[0].image_url: a string; expected an object",
    ),
    (
        r#"[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]"#,
        "[0].content[0].image_url.url: missing; expected a string",
    ),
    (
        r#"[{"role":"tool","content":"a"}]"#,
        "[0].tool_call_id: missing; expected a string",
    ),
    (
        r#"[{"role":"assistant","tool_calls":{}}]"#,
        "[0].tool_calls: an object; expected a list",
    ),
    (
        r#"[{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{}}]}]"#,
        "[0].tool_calls[0].function.name: missing; expected a string",
    ),
    (
        r#"[{"role":"assistant","tool_calls":[{"id":"","function":{"name":"","arguments":{}}}]}]"#,
        "[0].tool_calls[0].function.arguments: an object; expected a string",
    ),
    (
        r#"[{"role":"assistant","tool_calls":[{"id":"c","type":"mcp"}]}]"#,
        r#"[0].tool_calls[0].type: unknown: "mcp"; expected function or custom"#,
    ),
    (
        r#"[{"role":"user","content":"a","$serde_json::private::Number":"secret"}]"#,
        r#"[0]: the field name "$serde_json::private::Number" is reserved"#,
    ),
    (
        r#"[{"role":"user","content":{"$serde_json::private::Number":true}}]"#,
        ": cannot be read at line 1 column 62",
    ),
];

/// Rejected Anthropic arrays with their errors.
pub(super) const ANTHROPIC_REFUSED: &[(&str, &str)] = &[
    (
        r#"[{"role":"tool"}]"#,
        r#"[0].role: unknown: "tool"; expected user, assistant or system"#,
    ),
    (
        r#"[{"role":"assistant"}]"#,
        "[0].content: missing; expected a string or a list",
    ),
    (
        r#"[{"role":"user","content":[{"type":"text"}]}]"#,
        "[0].content[0].text: missing; expected a string",
    ),
    (
        r#"[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"b"}]}]"#,
        "[0].content[0].input: missing; expected an object",
    ),
    (
        r#"[{"role":"user","content":[{"type":"image"}]}]"#,
        "[0].content[0].source: missing; expected an object",
    ),
    (
        r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"AA"}}]}]"#,
        "[0].content[0].source.media_type: missing; expected a string",
    ),
    (
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":1}]}]"#,
        "[0].content[0].is_error: a number; expected a boolean",
    ),
    (
        r#"[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[1]}]}]"#,
        "[0].content[0].content[0]: a number; expected an object",
    ),
];
