//! Calls and outputs of every type, at each point of a conversation, and truncated anywhere.
//!
//! Every request is valid for its provider.

use std::collections::{HashMap, HashSet};

use memoird_core::limits::Limits;
use memoird_core::turn::{Part, PartKind, Role, Turn};
use serde_json::{Value, json};

use super::{Anthropic, MessageFormat, OpenAi, OpenAiResponses, give, read, send};
use crate::messages::{RenderOptions, render};

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn anthropic(role: &str, blocks: &Value) -> Value {
    json!({ "role": role, "content": blocks })
}

/// Conversations with Anthropic's calls, from a user message to a reply.
fn anthropic_talks() -> Vec<Vec<Value>> {
    let text = json!({ "type": "text", "text": "Done." });
    let server = |id: &str, name: &str| json!({ "type": "server_tool_use", "id": id, "name": name, "input": {} });
    let result = |kind: &str, id: &str| json!({ "type": kind, "tool_use_id": id, "content": [] });
    let paused = |name: &str, kind: &str| {
        vec![
            user("Search."),
            anthropic(
                "assistant",
                &json!([{ "type": "text", "text": "I search." }, server("s", name)]),
            ),
            anthropic("assistant", &json!([result(kind, "s"), text])),
        ]
    };
    let called = |id: &str| {
        json!({ "type": "tool_use", "id": id, "name": "q", "input": {},
            "caller": { "type": "code_execution_20250825", "tool_id": "p" } })
    };
    let answered = |id: &str| {
        anthropic(
            "user",
            &json!([{ "type": "tool_result", "tool_use_id": id, "content": "1" }]),
        )
    };
    let mut talks: Vec<Vec<Value>> = [
        ("web_search", "web_search_tool_result"),
        ("web_fetch", "web_fetch_tool_result"),
        ("code_execution", "code_execution_tool_result"),
        ("bash_code_execution", "bash_code_execution_tool_result"),
        (
            "text_editor_code_execution",
            "text_editor_code_execution_tool_result",
        ),
        ("advisor", "advisor_tool_result"),
        ("tool_search_tool_bm25", "tool_search_tool_result"),
        ("later", "later_tool_result"),
    ]
    .iter()
    .map(|(name, kind)| paused(name, kind))
    .collect();
    talks.push(vec![
        user("Ask."),
        anthropic(
            "assistant",
            &json!([{ "type": "mcp_tool_use", "id": "m", "name": "q",
            "server_name": "s", "input": {} }]),
        ),
        anthropic(
            "assistant",
            &json!([{ "type": "mcp_tool_result", "tool_use_id": "m",
            "is_error": false, "content": [] }, text]),
        ),
    ]);
    talks.push(vec![
        user("Sum."),
        anthropic(
            "assistant",
            &json!([server("p", "code_execution"), called("t1")]),
        ),
        answered("t1"),
        anthropic("assistant", &json!([called("t2")])),
        answered("t2"),
        anthropic(
            "assistant",
            &json!([result("code_execution_tool_result", "p"), text]),
        ),
    ]);
    talks
}

/// Conversations with calls of OpenAI's responses.
fn responses_talks() -> Vec<Vec<Value>> {
    let reasoning = |id: &str| json!({ "type": "reasoning", "id": id, "summary": [], "encrypted_content": "gAAA" });
    let done = json!({ "role": "assistant", "content": "Done." });
    let pair = |call: Value, output: Value| {
        vec![user("Go."), reasoning("rs_1"), call, output, done.clone()]
    };
    let called = |id: &str| {
        json!({ "type": "function_call", "call_id": id, "name": "q", "arguments": "{}",
            "caller": { "type": "program", "caller_id": "p" } })
    };
    let answered = |id: &str| {
        json!({ "type": "function_call_output", "call_id": id, "output": "1",
            "caller": { "type": "program", "caller_id": "p" } })
    };
    vec![
        pair(
            json!({ "type": "function_call", "call_id": "c", "name": "q", "arguments": "{}" }),
            json!({ "type": "function_call_output", "call_id": "c", "output": "1" }),
        ),
        pair(
            json!({ "type": "custom_tool_call", "call_id": "c", "name": "q", "input": "1" }),
            json!({ "type": "custom_tool_call_output", "call_id": "c", "output": "1" }),
        ),
        pair(
            json!({ "type": "shell_call", "call_id": "c", "action": { "commands": ["ls"] } }),
            json!({ "type": "shell_call_output", "call_id": "c", "output": [] }),
        ),
        pair(
            json!({ "type": "apply_patch_call", "call_id": "c", "operation": { "type": "delete_file" } }),
            json!({ "type": "apply_patch_call_output", "call_id": "c", "status": "completed" }),
        ),
        pair(
            json!({ "type": "computer_call", "call_id": "c", "action": { "type": "click" } }),
            json!({ "type": "computer_call_output", "call_id": "c",
                "output": { "type": "computer_screenshot", "image_url": "data:image/png;base64,AA" } }),
        ),
        pair(
            json!({ "type": "local_shell_call", "id": "l", "call_id": "c", "action": { "type": "exec" } }),
            json!({ "type": "local_shell_call_output", "id": "c", "output": "1" }),
        ),
        pair(
            json!({ "type": "local_shell_call", "id": "l", "call_id": "c", "action": { "type": "exec" } }),
            json!({ "type": "local_shell_call_output", "id": "c", "call_id": "c", "output": "1" }),
        ),
        pair(
            json!({ "type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {} }),
            json!({ "type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [] }),
        ),
        pair(
            json!({ "type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {} }),
            json!({ "type": "tool_search_output", "call_id": null, "execution": "server", "tools": [] }),
        ),
        vec![
            user("Go."),
            reasoning("rs_1"),
            json!({ "type": "mcp_approval_request", "id": "c", "name": "q", "arguments": "{}",
                "server_label": "s" }),
            json!({ "type": "mcp_approval_response", "approval_request_id": "c", "approve": true }),
            json!({ "type": "mcp_call", "id": "m", "approval_request_id": "c", "name": "q",
                "arguments": "{}", "server_label": "s", "output": "1" }),
            done.clone(),
        ],
        vec![
            user("Go."),
            reasoning("rs_1"),
            json!({ "type": "program", "id": "x", "call_id": "p", "code": "q()" }),
            called("c1"),
            answered("c1"),
            called("c2"),
            answered("c2"),
            json!({ "type": "program_output", "id": "o", "call_id": "p", "output": "3" }),
            done.clone(),
        ],
        pair(
            json!({ "type": "later_call", "call_id": "c" }),
            json!({ "type": "later_call_output", "call_id": "c" }),
        ),
    ]
}

fn talks() -> Vec<(MessageFormat, Vec<Value>)> {
    let anthropic = anthropic_talks().into_iter().map(|talk| (Anthropic, talk));
    let responses = responses_talks()
        .into_iter()
        .map(|talk| (OpenAiResponses, talk));
    anthropic.chain(responses).collect()
}

/// Returns why a provider would reject the request.
fn problem(format: MessageFormat, messages: &Value) -> Option<String> {
    let messages = messages.as_array().expect("a list");
    match format {
        Anthropic => anthropic_problem(messages),
        OpenAiResponses => responses_problem(messages),
        OpenAi => None,
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

fn anthropic_problem(messages: &[Value]) -> Option<String> {
    let mut server = HashSet::new();
    let mut closed = HashSet::new();
    let mut made = HashSet::new();
    let mut calls: Vec<String> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let none = Vec::new();
        let blocks = message["content"].as_array().unwrap_or(&none);
        let results: Vec<&str> = blocks
            .iter()
            .filter_map(|block| match text(block, "type") {
                Some("tool_result") => text(block, "tool_use_id"),
                _ => None,
            })
            .collect();
        if message["role"] == "user" {
            if results.len() != calls.len() || !calls.iter().all(|call| results.contains(&&**call))
            {
                return Some(format!("{index}: results {results:?} of {calls:?}"));
            }
            let is_mixed = results.len() < blocks.len() || message["content"].is_string();
            if is_mixed && results.iter().any(|id| made.contains(*id)) {
                return Some(format!("{index}: more than a program's results"));
            }
            if results.is_empty() && server.len() > closed.len() {
                return Some(format!("{index}: a call of the provider is open"));
            }
        } else if !calls.is_empty() {
            return Some(format!("{index}: {calls:?} have no results"));
        }
        calls.clear();
        for block in blocks {
            let kind = text(block, "type").unwrap_or_default();
            let caller = block
                .get("caller")
                .and_then(|caller| text(caller, "tool_id"));
            if caller.is_some_and(|caller| !server.contains(caller) || closed.contains(caller)) {
                return Some(format!("{index}: {caller:?} is not there"));
            }
            match kind {
                "tool_use" => {
                    let id = text(block, "id").unwrap_or_default();
                    calls.push(id.to_owned());
                    made.extend(caller.map(|_| id.to_owned()));
                }
                "server_tool_use" | "mcp_tool_use" => {
                    server.insert(text(block, "id").unwrap_or_default().to_owned());
                }
                kind if kind.ends_with("_tool_result") => {
                    let id = text(block, "tool_use_id").unwrap_or_default();
                    if !server.contains(id) || !closed.insert(id.to_owned()) {
                        return Some(format!("{index}: {kind} without its call"));
                    }
                }
                _ => {}
            }
        }
    }
    None
}

fn responses_problem(items: &[Value]) -> Option<String> {
    let outputs: HashMap<&str, &str> = HashMap::from([
        ("function_call_output", "function_call"),
        ("custom_tool_call_output", "custom_tool_call"),
        ("shell_call_output", "shell_call"),
        ("apply_patch_call_output", "apply_patch_call"),
        ("computer_call_output", "computer_call"),
        ("local_shell_call_output", "local_shell_call"),
        ("tool_search_output", "tool_search_call"),
        ("mcp_approval_response", "mcp_approval_request"),
        ("program_output", "program"),
        ("later_call_output", "later_call"),
    ]);
    let mut open: HashMap<(String, String), usize> = HashMap::new();
    let mut programs = HashSet::new();
    let mut requests = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let kind = text(item, "type").unwrap_or("message");
        let is_user = text(item, "role") == Some("user");
        let is_models = !is_user && !outputs.contains_key(kind) || kind == "program_output";
        if is_user && !open.is_empty() {
            return Some(format!("{index}: {open:?} are open"));
        }
        let before = index.checked_sub(1).map(|before| &items[before]);
        if before.is_some_and(|before| text(before, "type") == Some("reasoning")) && !is_models {
            return Some(format!("{index}: reasoning without its item"));
        }
        let id = |names: &[&str]| {
            let mut ids = names.iter().filter_map(|name| text(item, name));
            ids.next().unwrap_or("by order").to_owned()
        };
        let caller = item
            .get("caller")
            .and_then(|caller| text(caller, "caller_id"));
        if caller.is_some_and(|caller| !programs.contains(caller)) {
            return Some(format!("{index}: {caller:?} is not there"));
        }
        if let Some(call) = outputs.get(kind) {
            let given = id(&["call_id", "approval_request_id", "id"]);
            let id = if item.get("call_id") == Some(&Value::Null) {
                "by order".into()
            } else {
                given
            };
            if open.remove(&((*call).to_owned(), id)).is_none() {
                return Some(format!("{index}: {kind} without its call"));
            }
        } else if outputs.values().any(|call| *call == kind) {
            let id = if item.get("call_id") == Some(&Value::Null) {
                "by order".to_owned()
            } else {
                id(&["call_id", "id"])
            };
            if kind == "program" {
                programs.insert(id.clone());
            }
            if kind == "mcp_approval_request" {
                requests.insert(id.clone());
            }
            open.insert((kind.to_owned(), id), index);
        }
        if kind == "mcp_call"
            && text(item, "approval_request_id").is_some_and(|id| !requests.contains(id))
        {
            return Some(format!("{index}: an approval that is not there"));
        }
    }
    let last = items.last().and_then(|last| text(last, "type"));
    (last == Some("reasoning")).then(|| "reasoning at the end".into())
}

/// Adds the results that a window synthesizes for unanswered calls.
fn with_abandoned(turns: &[Turn]) -> Vec<Turn> {
    let mut all = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        all.push(turn.clone());
        let answered: Vec<Box<str>> = turns[index + 1..]
            .iter()
            .flat_map(|turn| turn.links().results)
            .collect();
        let open = turn
            .links()
            .uses
            .into_iter()
            .filter(|id| !answered.contains(id));
        let result = |id: Box<str>| -> Part {
            PartKind::ToolResult {
                tool_use_id: id.into(),
                content: "no result".into(),
                parts: Vec::new(),
                is_error: true,
            }
            .into()
        };
        let results: Vec<Part> = open.map(result).collect();
        if !results.is_empty() && index + 1 < turns.len() {
            all.push(Turn::new(Role::Tool, results));
        }
    }
    all
}

#[test]
fn conversation_with_every_call_type_renders_unchanged() {
    for (format, talk) in talks() {
        let messages = Value::Array(talk);
        let turns = read(format, &messages);
        for turn in &turns {
            turn.check(0, &Limits::default()).unwrap();
        }
        assert_eq!(give(format, &turns), messages);
        assert_eq!(send(format, &turns), messages);
        assert_eq!(problem(format, &messages), None);
    }
}

#[test]
fn unanswered_call_of_every_type_is_completed_or_omitted() {
    for (format, talk) in talks() {
        for end in 1..talk.len() {
            let mut turns = Vec::new();
            for message in talk[..end].iter().chain([&user("Never mind.")]) {
                turns.extend(read(format, &json!([message])));
            }
            let sent = send(format, &with_abandoned(&turns));
            assert_eq!(problem(format, &sent), None, "{end} of {talk:?}: {sent}");
            assert!(sent.to_string().contains("Never mind."));
            // The same if the bot sends everything at once.
            let all = Value::Array([&talk[..end], &[user("Never mind.")]].concat());
            let sent = send(format, &with_abandoned(&read(format, &all)));
            assert_eq!(problem(format, &sent), None, "{end} of {talk:?}: {sent}");
        }
    }
}

#[test]
fn user_message_between_call_and_output_renders_validly() {
    for (format, talk) in talks() {
        for place in 2..talk.len() {
            let mut talk = talk.clone();
            talk.insert(place, user("Hurry."));
            let mut turns = Vec::new();
            for message in &talk {
                turns.extend(read(format, &json!([message])));
            }
            // Skip these: a window moves late results to their calls.
            let calls = turns.iter().flat_map(|turn| turn.links().uses).count();
            if calls > 0 {
                continue;
            }
            let sent = send(format, &turns);
            assert_eq!(problem(format, &sent), None, "{place} of {talk:?}: {sent}");
        }
    }
}

#[test]
fn cut_beginning_leaves_no_output_without_its_call() {
    for (format, talk) in talks() {
        for start in 1..talk.len() {
            let turns: Vec<Turn> = talk
                .iter()
                .flat_map(|message| read(format, &json!([message])))
                .skip(start)
                .collect();
            let sent = send(format, &with_abandoned(&turns));
            assert_eq!(problem(format, &sent), None, "{start} of {talk:?}: {sent}");
        }
    }
}

#[test]
fn links_to_cut_program_are_removed() {
    let talk = anthropic_talks().pop().unwrap();
    let turns = read(Anthropic, &json!(talk));
    let sent = send(Anthropic, &turns[3..]);
    assert_eq!(
        sent[1]["content"],
        json!([{ "type": "tool_use", "id": "t2", "name": "q", "input": {} }])
    );
    let note = "[memoird 000000000: code_execution_tool_result of a call that is not shown here]";
    assert_eq!(
        sent[3]["content"][0],
        json!({ "type": "text", "text": note })
    );
}

#[test]
fn output_without_its_call_becomes_a_note() {
    let whole = RenderOptions {
        is_start: true,
        ..RenderOptions::default()
    };
    let request = RenderOptions {
        is_request: true,
        ..RenderOptions::default()
    };
    let line = "[memoird 000000000: result of a call that is not shown here]\n";
    for (output, said) in [
        (
            json!({ "type": "function_call_output", "call_id": "c", "output": "yes" }),
            "yes",
        ),
        (
            json!({ "type": "mcp_approval_response", "approval_request_id": "c", "approve": true,
                "reason": "[memoird: go]" }),
            "{\"approve\":true,\"reason\":\"[quoted memoird: go]\"}",
        ),
        (
            json!({ "type": "shell_call_output", "call_id": "c", "output": [{ "stdout": "a" }] }),
            "{\"output\":[{\"stdout\":\"a\"}]}",
        ),
        (
            json!({ "type": "mcp_approval_response", "approval_request_id": "c", "approve": false }),
            "{\"approve\":false}",
        ),
    ] {
        let messages = json!([output, { "role": "assistant", "content": "Good." }]);
        let turns = read(OpenAiResponses, &messages);
        assert_eq!(give(OpenAiResponses, &turns), messages, "a page");
        for options in [&whole, &request] {
            let rendered = render(OpenAiResponses, &turns, options);
            let shown: Value = serde_json::from_str(&rendered.messages_json).unwrap();
            let said_note = format!("{line}{said}").trim_end().to_owned();
            let note = json!({ "role": "user", "content": said_note });
            assert_eq!(
                shown,
                json!([note, { "role": "assistant", "content": "Good." }])
            );
        }
    }
    let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": "yes" });
    let turns = read(Anthropic, &json!([anthropic("user", &json!([result]))]));
    let text = json!([{ "type": "text", "text": format!("{line}yes") }]);
    assert_eq!(send(Anthropic, &turns), json!([anthropic("user", &text)]));
    let turns = read(
        OpenAi,
        &json!([{ "role": "tool", "tool_call_id": "t", "content": "yes" }]),
    );
    assert_eq!(send(OpenAi, &turns), json!([user(&format!("{line}yes"))]));
}

#[test]
fn note_shows_what_an_opaque_output_says_in_every_format() {
    let long = "word ".repeat(10_000);
    let cases = [
        (
            OpenAiResponses,
            json!({ "type": "program_output", "id": "p", "call_id": "c", "output": "42" }),
            "42",
        ),
        (
            OpenAiResponses,
            json!({ "type": "new_output", "call_id": "c", "content": { "deep": "42" } }),
            "42",
        ),
        (
            OpenAiResponses,
            json!({ "type": "new_output", "call_id": "c", "first": "42", "then": long }),
            "42",
        ),
        (
            Anthropic,
            json!({ "type": "mcp_tool_result", "tool_use_id": "c", "is_error": false,
                "content": [{ "type": "text", "text": "42" }] }),
            "42",
        ),
        (
            Anthropic,
            json!({ "type": "code_execution_tool_result", "tool_use_id": "c", "content": {
                "type": "code_execution_result", "stdout": "42", "return_code": 0 } }),
            "42",
        ),
        (
            Anthropic,
            json!({ "type": "web_search_tool_result", "tool_use_id": "c", "content": [{
                "type": "web_search_result", "title": "42", "encrypted_content": "Eqgf" }] }),
            "42",
        ),
    ];
    for (from, output, said) in cases {
        let messages = match from {
            Anthropic => json!([anthropic("assistant", &json!([output]))]),
            _ => json!([output]),
        };
        let turns = read(from, &messages);
        for to in [OpenAi, OpenAiResponses, Anthropic] {
            let sent = send(to, &turns).to_string();
            assert!(
                sent.contains("of a call that is not shown here"),
                "{to:?}: {sent}"
            );
            assert!(sent.contains(said), "{to:?}: {sent}");
            assert!(!sent.contains("Eqgf"), "{to:?}: {sent}");
            assert!(sent.len() < 20_000, "{to:?}: {} bytes", sent.len());
        }
    }
}

#[test]
fn note_keeps_the_screenshot_of_a_computer_call() {
    let image = "data:image/png;base64,AAAA";
    let output = json!({ "type": "computer_call_output", "call_id": "c", "output": {
        "type": "computer_screenshot", "image_url": image } });
    let sent = send(OpenAiResponses, &read(OpenAiResponses, &json!([output])));
    let line = "[memoird 000000000: result of a call that is not shown here]";
    let parts = sent[0]["content"].as_array().unwrap();
    assert_eq!(parts[0]["text"], line);
    assert_eq!(parts[1]["image_url"], image);
}

#[test]
fn trailing_reasoning_without_output_is_not_sent() {
    let reasoning = |id: &str| json!({ "type": "reasoning", "id": id, "summary": [] });
    let said = json!({ "role": "assistant", "content": "Hm." });
    for (came, sent) in [
        (
            json!([user("a"), reasoning("r"), user("b")]),
            json!([user("a"), user("b")]),
        ),
        (json!([user("a"), reasoning("r")]), json!([user("a")])),
        (
            json!([
                user("a"),
                reasoning("r"),
                said,
                reasoning("s"),
                reasoning("t"),
                user("b")
            ]),
            json!([user("a"), reasoning("r"), said, user("b")]),
        ),
    ] {
        let turns = read(OpenAiResponses, &came);
        assert_eq!(send(OpenAiResponses, &turns), sent);
        assert_eq!(give(OpenAiResponses, &turns), came);
    }
}
