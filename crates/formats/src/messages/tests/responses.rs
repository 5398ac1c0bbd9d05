//! Handwritten items of OpenAI's responses, the turns they become, and errors.

use memoird_core::limits::Limits;
use memoird_core::turn::{Part, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::{OpenAiResponses, give, read};

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

/// Distinct items.
pub(super) fn items() -> Vec<Value> {
    let mut items = vec![
        json!({ "role": "user", "content": "hi" }),
        json!({ "type": "message", "role": "user", "content": "hi" }),
        json!({ "role": "user", "content": "", "memoird": { "items": [null] } }),
        json!({ "role": "system", "content": "Be brief." }),
        json!({ "role": "developer", "content": "Be brief." }),
        json!({ "type": "message", "role": "developer", "status": "completed",
            "content": [{ "type": "input_text", "text": "Be brief." }] }),
        json!({ "role": "user", "content": [] }),
        json!({ "role": "assistant", "content": "hi", "phase": "commentary" }),
        json!({ "role": "assistant", "content": [] }),
        json!({ "role": "assistant", "content": [{ "type": "input_text", "text": "odd" }] }),
        // If translated, the text would get another type.
        json!({ "role": "user", "content": [{ "type": "input_image" },
            { "type": "output_text", "text": "odd" }] }),
    ];
    items.extend(
        parts()
            .into_iter()
            .map(|part| json!({ "role": "user", "content": [part] })),
    );
    items.extend(output_messages());
    items.extend(reasonings());
    items.extend(calls());
    items.extend(others());
    items
}

fn parts() -> Vec<Value> {
    vec![
        json!({ "type": "input_text", "text": "a" }),
        json!({ "type": "input_file", "filename": "a.pdf" }),
        json!({ "type": "input_text", "text": "", "memoird": { "placeholder": true } }),
        json!({ "type": "output_text", "text": "a" }),
        json!({ "type": "text", "text": "a" }),
        json!({ "type": "refusal", "refusal": "no" }),
        json!({ "type": "input_image", "detail": "auto", "image_url": PNG }),
        json!({ "type": "input_image", "image_url": "https://example.org/a.png" }),
        json!({ "type": "input_image", "image_url": null, "file_id": "file-1", "x": 1.50 }),
        json!({ "type": "input_image", "image_url": "data:,x", "file_id": "file-1" }),
        json!({ "type": "input_image" }),
        json!({ "type": "input_file", "filename": "a.pdf", "file_data": "data:,x" }),
        json!({ "type": "input_file", "file_url": "https://example.org/a.pdf" }),
        json!({ "type": "input_file", "file_id": "file-1", "detail": "low" }),
        json!({ "type": "input_audio", "input_audio": { "data": "UklG", "format": "wav" } }),
        json!({ "type": "input_video", "video": {} }),
    ]
}

fn output_messages() -> Vec<Value> {
    let said = json!({ "type": "output_text", "text": "a", "annotations": [], "logprobs": [] });
    let refused = json!({ "type": "refusal", "refusal": "I cannot." });
    let message = |content: Value| {
        json!({ "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": content })
    };
    vec![
        message(json!([said])),
        message(json!([said, refused])),
        message(json!([refused])),
    ]
}

fn reasonings() -> Vec<Value> {
    let piece = |text: &str| json!({ "type": "summary_text", "text": text });
    let content = json!([{ "type": "reasoning_text", "text": "why\n\nnot" }]);
    let reasoning = |rest: Value| {
        let mut item = json!({ "type": "reasoning", "id": "rs_1" });
        item.as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        item
    };
    vec![
        reasoning(json!({ "summary": [] })),
        reasoning(json!({ "summary": [], "encrypted_content": null })),
        reasoning(json!({ "summary": [], "encrypted_content": "gAAA" })),
        reasoning(json!({ "summary": [], "encrypted_content": "" })),
        reasoning(json!({ "summary": [piece("J\u{f6}rg")], "encrypted_content": "gAAA" })),
        reasoning(
            json!({ "summary": [piece("**A**\n\nb"), piece(""), piece("c")],
            "content": content, "status": "completed", "memoird": { "bytes": [0] } }),
        ),
        reasoning(json!({ "summary": [piece("")], "content": null, "encrypted_content": "g" })),
        reasoning(json!({ "summary": [piece("a"), "b", { "text": 1 }, { "text": "d" }] })),
        reasoning(json!({ "summary": "a" })),
        json!({ "type": "reasoning", "id": "rs_1" }),
    ]
}

fn calls() -> Vec<Value> {
    let mut items = vec![
        json!({ "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": " }),
        json!({ "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f",
            "arguments": "", "status": "completed", "namespace": "n" }),
        json!({ "type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "ls -l" }),
        json!({ "type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "f",
            "input": "", "caller": { "type": "direct" } }),
        json!({ "type": "computer_call", "id": "cu_1", "call_id": "c1", "status": "completed",
            "action": { "type": "click", "x": 1 }, "pending_safety_checks": [] }),
        json!({ "type": "shell_call", "call_id": "c1", "action": { "commands": ["ls"] } }),
        json!({ "type": "apply_patch_call", "call_id": "c1", "operation": {} }),
        json!({ "type": "apply_patch_call", "call_id": "c1", "action": null, "operation": "" }),
        json!({ "type": "computer_call", "call_id": "c1", "actions": [{ "x": 1.50 }] }),
        json!({ "type": "computer_call", "call_id": "c1" }),
        json!({ "type": "shell_call", "call_id": null, "action": {} }),
        json!({ "type": "computer_call_output", "call_id": "c1",
            "output": { "type": "computer_screenshot", "image_url": PNG } }),
        json!({ "type": "shell_call_output", "call_id": "c1", "output": [{ "stdout": "a" }] }),
        json!({ "type": "apply_patch_call_output", "call_id": "c1", "status": "failed" }),
    ];
    let rich = json!([
        { "type": "input_text", "text": "a" },
        { "type": "input_image", "image_url": PNG },
        { "type": "output_text", "text": "b" },
        { "type": "computer_screenshot", "file_id": "file-1" },
    ]);
    for kind in ["function_call_output", "custom_tool_call_output"] {
        for output in [json!(""), json!("a"), json!([]), rich.clone()] {
            items.push(json!({ "type": kind, "call_id": "c1", "output": output }));
        }
        items.push(
            json!({ "type": kind, "id": "o_1", "call_id": "c1", "output": "a",
            "status": "completed", "memoird": {} }),
        );
    }
    items
}

fn others() -> Vec<Value> {
    let mut items = vec![
        json!({ "type": "item_reference", "id": "msg_1" }),
        json!({ "type": null, "id": "msg_1" }),
        json!({ "id": "msg_1", "memoird": 1 }),
        json!({ "type": "mcp_approval_response", "approval_request_id": "m", "approve": true }),
        json!({ "type": "local_shell_call_output", "id": "c1", "output": "{}" }),
    ];
    for kind in [
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "local_shell_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_call",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
        "compaction",
        "compaction_trigger",
        "program",
        "program_output",
        "what_comes_next",
    ] {
        items.push(json!({ "type": kind, "id": "x_1", "content": [{ "type": "x" }] }));
    }
    items
}

/// Rejected item arrays with their errors.
pub(super) const REFUSED: &[(&str, &str)] = &[
    ("{}", ": an object; expected a list of messages"),
    (r#"["a"]"#, "[0]: a string; expected an object"),
    ("[{}]", "[0].type: missing; expected a string"),
    (r#"[{"type":null}]"#, "[0].type: null; expected a string"),
    (
        r#"[{"role":"user"}]"#,
        "[0].content: missing; expected a string or a list",
    ),
    (
        r#"[{"type":"message","content":"a"}]"#,
        "[0].role: missing; expected a string",
    ),
    (
        r#"[{"role":"tool","content":"a"}]"#,
        r#"[0].role: unknown: "tool"; expected user, assistant, system or developer"#,
    ),
    (
        r#"[{"role":"user","content":"a"},{"role":"assistant","content":null}]"#,
        "[1].content: null; expected a string or a list",
    ),
    (
        r#"[{"role":"user","content":[{"text":"a"}]}]"#,
        "[0].content[0].type: missing; expected a string",
    ),
    (
        r#"[{"role":"user","content":[{"type":"input_text"}]}]"#,
        "[0].content[0].text: missing; expected a string",
    ),
    (
        r#"[{"role":"user","content":[{"type":"input_image","image_url":{"url":"u"}}]}]"#,
        "[0].content[0].image_url: an object; expected a string",
    ),
    (
        r#"[{"role":"user","content":[{"type":"input_audio"}]}]"#,
        "[0].content[0].input_audio: missing; expected an object",
    ),
    (
        r#"[{"type":"function_call","name":"f","arguments":"{}"}]"#,
        "[0].call_id: missing; expected a string",
    ),
    (
        r#"[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]"#,
        "[0].arguments: an object; expected a string",
    ),
    (
        r#"[{"type":"custom_tool_call","call_id":"c","name":"f"}]"#,
        "[0].input: missing; expected a string",
    ),
    (
        r#"[{"type":"function_call_output","call_id":"c"}]"#,
        "[0].output: missing; expected a string or a list",
    ),
    (
        r#"[{"type":"function_call_output","call_id":"c","output":[{"text":"a"}]}]"#,
        "[0].output[0].type: missing; expected a string",
    ),
    (
        r#"[{"type":"custom_tool_call_output","output":"a"}]"#,
        "[0].call_id: missing; expected a string",
    ),
];

#[test]
fn consecutive_model_items_become_one_turn() {
    let reasoning = json!({ "type": "reasoning", "id": "rs_1", "encrypted_content": "gAAA",
        "summary": [{ "type": "summary_text", "text": "why" }] });
    let said = json!({ "type": "message", "role": "assistant", "id": "msg_1",
        "content": [{ "type": "output_text", "text": "Let me see.", "annotations": [] }] });
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "f", "arguments": "{}" });
    let output = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": id });
    let messages = json!([
        { "role": "user", "content": "weather?" },
        reasoning, said, call("a"), call("b"),
        output("a"), output("b"),
        { "role": "assistant", "content": "rain" },
    ]);
    let turns = read(OpenAiResponses, &messages);
    let roles: Vec<Role> = turns.iter().map(|turn| turn.role).collect();
    let expected = [
        Role::User,
        Role::Assistant,
        Role::Tool,
        Role::Tool,
        Role::Assistant,
    ];
    assert_eq!(roles, expected);
    assert_eq!(turns[1].links().uses, ["a".into(), "b".into()]);
    assert_eq!(turns[3].links().results, ["b".into()]);
    let thinking = &turns[1].parts[0].kind;
    let expected = PartKind::Thinking {
        text: "why".into(),
        signature: "gAAA".into(),
        redacted: false,
    };
    assert_eq!(thinking, &expected);
    assert_eq!(
        turns[1].extra_json,
        r#"{"type":"message","id":"msg_1","content":[]}"#
    );
    assert_eq!(give(OpenAiResponses, &turns), messages);
}

#[test]
fn plain_responses_conversation_needs_no_extra() {
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "weather?" },
        { "role": "assistant", "content": "Let me see." },
        { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c1", "output": "rain" },
    ]);
    let text = |text: &str| Part::from(PartKind::Text(text.into()));
    let call = PartKind::ToolUse {
        id: "c1".into(),
        name: "f".into(),
        input_json: "{}".into(),
    };
    let result = PartKind::ToolResult {
        tool_use_id: "c1".into(),
        content: "rain".into(),
        parts: vec![],
        is_error: false,
    };
    let turn = |role, parts| Turn {
        format: Some(OpenAiResponses),
        ..Turn::new(role, parts)
    };
    let turns = [
        turn(Role::System, vec![text("Be brief.")]),
        turn(Role::User, vec![text("weather?")]),
        turn(Role::Assistant, vec![text("Let me see."), call.into()]),
        turn(Role::Tool, vec![result.into()]),
    ];
    assert_eq!(read(OpenAiResponses, &messages), turns);
}

#[test]
fn any_item_sequence_renders_unchanged() {
    let all = items();
    for one in &all {
        for other in &all {
            let messages = json!([one, other, one]);
            let turns = read(OpenAiResponses, &messages);
            assert_eq!(give(OpenAiResponses, &turns), messages, "{turns:?}");
            turns
                .iter()
                .for_each(|turn| turn.check(0, &Limits::default()).unwrap());
        }
    }
}

#[test]
fn long_run_is_split_before_reasoning_without_call() {
    let pair = [
        json!({ "type": "reasoning", "summary": [] }),
        json!({ "type": "mcp_call" }),
    ];
    let mut items: Vec<Value> = pair.iter().cycle().take(300).cloned().collect();
    let turns = read(OpenAiResponses, &items.clone().into());
    assert_eq!(
        turns
            .iter()
            .map(|turn| turn.parts.len())
            .collect::<Vec<_>>(),
        [64, 64, 64, 64, 44]
    );
    assert_eq!(give(OpenAiResponses, &turns), Value::from(items.clone()));

    items[1] = json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "" });
    assert_eq!(
        read(OpenAiResponses, &items.into()).len(),
        1,
        "a call keeps its company"
    );
}

#[test]
fn untyped_unanswered_and_lone_items_render_unchanged() {
    let items = json!([
        { "role": "user", "content": "Weather?" },
        { "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}" },
        { "role": "user", "content": [{ "type": "input_text", "text": "Never mind." }] },
        { "type": "function_call_output", "call_id": "elsewhere", "output": "rain" },
        { "role": "assistant", "content": "Well." },
        { "role": "developer", "content": "Be brief." },
        { "type": "message", "role": "user", "content": "And now?" },
        { "type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}" },
    ]);
    assert_eq!(give(OpenAiResponses, &read(OpenAiResponses, &items)), items);
}
