//! Turns without a format: whatever they contain, each provider gets valid messages.
//!
//! Also cache breakpoints.

use std::collections::{BTreeSet, HashSet};

use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use super::{Anthropic, OpenAi, OpenAiResponses, give, read, send};
use crate::messages::{RenderOptions, render};

fn text(text: &str) -> Part {
    PartKind::Text(text.into()).into()
}

fn turn(role: Role, parts: impl IntoIterator<Item = Part>) -> Turn {
    Turn::new(role, parts.into_iter().collect())
}

fn thinking(text: &str, signature: &str, redacted: bool) -> Part {
    PartKind::Thinking {
        text: text.into(),
        signature: signature.into(),
        redacted,
    }
    .into()
}

fn call(id: &str, input_json: &str) -> Part {
    PartKind::ToolUse {
        id: id.into(),
        name: "f".into(),
        input_json: input_json.into(),
    }
    .into()
}

fn result(id: &str, content: &str, parts: Vec<Part>, is_error: bool) -> Part {
    let (tool_use_id, content) = (id.into(), content.into());
    PartKind::ToolResult {
        tool_use_id,
        content,
        parts,
        is_error,
    }
    .into()
}

fn cached(turns: &[Turn], cache_after: &[usize]) -> Value {
    let options = RenderOptions {
        cache_after,
        is_request: true,
        ..RenderOptions::default()
    };
    serde_json::from_str(&render(Anthropic, turns, &options).messages_json).unwrap()
}

#[test]
fn client_extra_fields_are_sent_to_every_provider() {
    let with = |part: Part, extra: &str| Part {
        extra_json: extra.into(),
        ..part
    };
    let said = Turn {
        extra_json: r#"{"name":"ann","role":"x"}"#.into(),
        ..turn(Role::User, [with(text("hi"), r#"{"x":1.50,"text":"y"}"#)])
    };
    let asked = turn(Role::Assistant, [with(call("c", "{}"), r#"{"x":2}"#)]);
    let turns = [said, asked];
    let expected = |kind: &str| {
        format!(
            r#"{{"role":"user","content":[{{"type":"{kind}","text":"hi","x":1.50}}],"name":"ann"}}"#
        )
    };
    for (format, kind) in [
        (OpenAi, "text"),
        (OpenAiResponses, "input_text"),
        (Anthropic, "text"),
    ] {
        let messages = give(format, &turns);
        assert_eq!(messages[0].to_string(), expected(kind));
        let call = [
            &messages[1],
            &messages[1]["tool_calls"][0],
            &messages[1]["content"][0],
        ];
        assert!(call.iter().any(|call| call["x"] == json!(2)), "{messages}");
    }
}

#[test]
fn thinking_is_sent_only_to_its_signer() {
    let parts = [
        thinking("a", "sig", false),
        thinking("b", "", false),
        thinking("c", "", true),
        text("hi"),
        thinking("d", "sig", false),
    ];
    let turns = [turn(Role::User, [text("?")]), turn(Role::Assistant, parts)];
    let expected = json!([
        { "type": "thinking", "thinking": "a", "signature": "sig" },
        { "type": "redacted_thinking", "data": "c" },
        { "type": "text", "text": "hi" },
    ]);
    assert_eq!(give(Anthropic, &turns)[1]["content"], expected);
    for format in [OpenAi, OpenAiResponses] {
        assert_eq!(
            give(format, &turns)[1],
            json!({ "role": "assistant", "content": "hi" })
        );
    }
}

#[test]
fn leading_assistant_and_empty_messages_get_placeholders() {
    let turns = [
        turn(Role::Assistant, [text("Hello!")]),
        turn(Role::User, [text(" \n")]),
        turn(Role::Assistant, [text("Anyone?  ")]),
        turn(Role::Assistant, [thinking("hm", "s", false)]),
    ];
    let text = |text: &str| json!({ "type": "text", "text": text });
    let expected = json!([
        { "role": "user", "content": [text("(The conversation begins with the assistant.)")] },
        { "role": "assistant", "content": [text("Hello!")] },
        { "role": "user", "content": [text("(empty)")] },
        { "role": "assistant", "content": [text("Anyone?")] },
    ]);
    assert_eq!(send(Anthropic, &turns), expected);
    let options = RenderOptions {
        is_request: true,
        ..RenderOptions::default()
    };
    for (end, count) in [(0, 0), (1, 2), (2, 3), (3, 4), (4, 4)] {
        let json = render(Anthropic, &turns[..end], &options).messages_json;
        let fewer = json.trim_end_matches(']');
        assert!(
            expected.to_string().starts_with(fewer),
            "what was sent is sent again: {fewer}"
        );
        assert_eq!(
            render(Anthropic, &turns, &options).ends[..end].last(),
            Some(&count).filter(|_| end > 0)
        );
    }
    for format in [OpenAi, OpenAiResponses] {
        let expected = json!([
            { "role": "assistant", "content": "Hello!" },
            { "role": "user", "content": "(empty)" },
            { "role": "assistant", "content": "Anyone?  " },
        ]);
        assert_eq!(give(format, &turns), expected);
        assert_eq!(give(format, &[]), json!([]));
    }
}

#[test]
fn parsed_messages_are_joined_only_with_native_turns() {
    let given = json!([
        { "role": "user", "content": "a" },
        { "role": "user", "content": [{ "type": "text", "text": "b" }], "id": 1 },
    ]);
    let mut turns = read(Anthropic, &given);
    assert_eq!(give(Anthropic, &turns), given);
    turns.push(turn(Role::Tool, [result("c", "", vec![], true), text("d")]));
    let failed = json!({ "type": "tool_result", "tool_use_id": "c", "content": "(empty)", "is_error": true });
    let joined = json!([failed, { "type": "text", "text": "b" }, { "type": "text", "text": "d" }]);
    let messages = give(Anthropic, &turns);
    assert_eq!(messages[0], given[0]);
    assert_eq!(
        messages[1],
        json!({ "role": "user", "content": joined, "id": 1 })
    );
}

/// For example because a window shortened the result, or a bot set the extra itself.
#[test]
fn mismatched_extras_do_no_harm() {
    let list = r#"{"content":[],"output":[],"memoird":{"items":[null,[7,{}]],"absent":["type"]}}"#;
    let shortened = result("c", "a \u{2026} z", vec![], false);
    for format in [OpenAi, OpenAiResponses, Anthropic] {
        let role = if format == Anthropic {
            Role::User
        } else {
            Role::Tool
        };
        let mut short = turn(role, [shortened.clone()]);
        short.format = Some(format);
        (short.extra_json, short.parts[0].extra_json) = (list.into(), list.into());
        let text = give(format, &[short]).to_string();
        assert!(
            text.contains("a \u{2026} z") && !text.contains("[7,{}]"),
            "{text}"
        );
    }
    let odd = [
        r#"{"type":"image_url"}"#,
        r#"{"type":"x","content":3}"#,
        "[]",
        "{",
        "{\"memoird\":1}",
    ];
    for format in [OpenAi, OpenAiResponses, Anthropic] {
        for extra in odd {
            for role in [Role::User, Role::Assistant, Role::Tool, Role::System] {
                let mut odd = turn(role, [text("hi"), call("c", "{"), shortened.clone()]);
                odd.parts.push(thinking("why", "", false));
                odd.parts
                    .iter_mut()
                    .for_each(|part| part.extra_json = extra.into());
                (odd.format, odd.extra_json) = (Some(format), extra.into());
                give(format, &[odd]);
            }
        }
    }
}

#[test]
fn cache_control_is_set_on_last_allowed_block() {
    let mark = json!({ "type": "ephemeral" });
    let marked = |text: &str| json!({ "type": "text", "text": text, "cache_control": mark });
    let turns = [
        turn(Role::User, [text("a")]),
        turn(Role::Assistant, [text("b"), thinking("c", "s", false)]),
        turn(
            Role::Assistant,
            [thinking("d", "s", false), call("t", "{}")],
        ),
        turn(Role::Tool, [result("t", "e", vec![], false)]),
    ];
    let messages = cached(&turns, &[0, 1]);
    assert_eq!(messages[0]["content"], json!([marked("a")]));
    assert_eq!(messages[1]["content"][0], marked("b"));
    assert_eq!(messages.to_string().matches("cache_control").count(), 2);

    let all: Vec<Turn> = (0..9)
        .map(|i| turn(Role::User, [text(&i.to_string())]))
        .collect();
    let messages = cached(&all, &[8, 1, 2, 3, 4, 5, 5, 99]);
    let blocks = messages[0]["content"].as_array().unwrap();
    let found = blocks
        .iter()
        .enumerate()
        .filter(|(_, block)| block["cache_control"] == mark);
    assert_eq!(
        found.map(|(place, _)| place).collect::<Vec<_>>(),
        [3, 4, 5, 8]
    );

    let theirs = json!([
        { "role": "user", "content": [marked("a"), marked("b"), marked("c")] },
        { "role": "assistant", "content": "" },
        { "role": "user", "content": "d" },
    ]);
    let turns = read(Anthropic, &theirs);
    let messages = cached(&turns, &[0, 1, 2]);
    assert_eq!(
        messages.to_string().matches("cache_control").count(),
        2,
        "these take the place of theirs"
    );
    assert_eq!(messages[0]["content"][2], marked("c"));
    assert_eq!(messages[1]["content"], json!([marked("d")]));
}

/// A bot may restart counting calls in each message.
#[test]
fn reused_call_id_is_made_unique_for_anthropic() {
    let said = |of: &str| {
        [
            turn(Role::Assistant, [call("1", of), call("2", of)]),
            turn(Role::Tool, [result("1", of, vec![], false)]),
            turn(Role::Tool, [result("2", of, vec![], false)]),
        ]
    };
    let mut turns = vec![turn(Role::User, [text("hi")])];
    turns.extend(["{}", "{}", "{}"].into_iter().flat_map(said));
    let sent = send(Anthropic, &turns);
    let messages = sent.as_array().unwrap();
    check_anthropic(messages);
    let ids: Vec<&str> = messages
        .iter()
        .flat_map(|message| texts(blocks(message), "tool_use", "id"))
        .collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 6, "{ids:?}");
    assert_eq!(ids[..2], ["1", "2"]);
    let earlier = send(Anthropic, &turns[..7]).to_string();
    let all = send(Anthropic, &turns).to_string();
    assert!(all.starts_with(earlier.trim_end_matches(']')));
    for format in [OpenAi, OpenAiResponses] {
        assert!(
            !send(format, &turns).to_string().contains("1_"),
            "{format:?}"
        );
    }
}

/// Results of a native assistant's call.
fn answers() -> impl Strategy<Value = (String, Vec<Part>, bool)> {
    let content = select(vec!["", " ", "ok", "error: no"]).prop_map(str::to_owned);
    (content, prop::collection::vec(said(), 0..3), any::<bool>())
}

/// Text and media.
fn said() -> impl Strategy<Value = Part> {
    let media_type = select(vec![
        "image/png",
        "image/tiff",
        "audio/wav",
        "application/pdf",
        "text/plain",
        "",
    ]);
    let source = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..5).prop_map(MediaSource::Data),
        select(vec!["https://example.org/a.png", "file-1", "data:,x", PNG])
            .prop_map(|uri| MediaSource::Uri(uri.into())),
    ];
    let media =
        (media_type, source, select(vec!["", "a\nname"])).prop_map(|(media_type, source, name)| {
            PartKind::Media {
                media_type: media_type.into(),
                source,
                name: name.into(),
            }
        });
    let text = select(vec!["", " \n", "hi", "two\nlines "]);
    let kind = prop_oneof![text.prop_map(|text| PartKind::Text(text.into())), media];
    (kind, select(vec!["", "", r#"{"x":1}"#])).prop_map(|(kind, extra_json)| Part {
        kind,
        extra_json: extra_json.into(),
    })
}

const PNG: &str = "data:image/png;base64,iVBORw0KGgo=";

/// Steps of a conversation: one turn, or a call with the turns that answer it.
fn steps() -> impl Strategy<Value = Vec<Turn>> {
    let said = || prop::collection::vec(said(), 1..4);
    let role = select(vec![Role::User, Role::Assistant, Role::System]);
    let one = (role, said()).prop_map(|(role, parts)| vec![turn(role, parts)]);
    let thought = (any::<bool>(), any::<bool>())
        .prop_map(|(signed, redacted)| thinking("why", if signed { "sig" } else { "" }, redacted));
    let ids = prop::collection::btree_set(select(ids()), 1..4);
    let answered = (
        prop::option::of(thought),
        prop::option::of(said()),
        ids,
        any::<bool>(),
        said(),
    )
        .prop_flat_map(|(thought, before, ids, at_once, after)| {
            let count = ids.len();
            (
                Just((thought, before, ids, at_once, after)),
                prop::collection::vec(answers(), count),
            )
        })
        .prop_map(|((thought, before, ids, at_once, after), answers)| {
            exchange(thought, before, &ids, at_once, after, answers)
        });
    prop_oneof![one, answered]
}

fn ids() -> Vec<String> {
    let long = "x".repeat(200);
    vec![
        "a".into(),
        "toolu_01".into(),
        "a.b".into(),
        "a b".into(),
        "a:b".into(),
        "\u{f6}".into(),
        long,
    ]
}

/// A call, followed by its results in one turn with other content, or in a turn each.
fn exchange(
    thought: Option<Part>,
    before: Option<Vec<Part>>,
    ids: &BTreeSet<String>,
    at_once: bool,
    after: Vec<Part>,
    answers: Vec<(String, Vec<Part>, bool)>,
) -> Vec<Turn> {
    let inputs = ["{}", "", "{\"a\": 1", "[2]", "free text"];
    let calls = ids
        .iter()
        .zip(inputs.iter().cycle())
        .map(|(id, input)| call(id, input));
    let asked = thought
        .into_iter()
        .chain(before.into_iter().flatten())
        .chain(calls);
    let mut turns = vec![turn(Role::Assistant, asked)];
    let results = ids
        .iter()
        .zip(answers)
        .map(|(id, (content, parts, is_error))| result(id, &content, parts, is_error));
    if at_once {
        turns.push(turn(Role::User, after.into_iter().chain(results)));
    } else {
        turns.extend(results.map(|part| turn(Role::Tool, [part])));
    }
    turns
}

fn blocks(message: &Value) -> &[Value] {
    message["content"].as_array().map_or(&[], Vec::as_slice)
}

fn texts<'a>(blocks: &'a [Value], kind: &str, id: &str) -> Vec<&'a str> {
    let of_kind = blocks.iter().filter(|block| block["type"] == kind);
    of_kind.map(|block| block[id].as_str().unwrap()).collect()
}

fn check_anthropic(messages: &[Value]) {
    let mut role = "assistant";
    let mut waiting = HashSet::new();
    for message in messages {
        assert_ne!(message["role"], role, "no alternation");
        role = message["role"].as_str().unwrap();
        assert!(
            message["content"]
                .as_str()
                .is_none_or(|text| !text.trim().is_empty())
        );
        assert!(message["content"].is_string() || !blocks(message).is_empty());
        let results = texts(blocks(message), "tool_result", "tool_use_id");
        assert!(
            blocks(message)[..results.len()]
                .iter()
                .all(|block| block["type"] == "tool_result")
        );
        assert_eq!(results.iter().copied().collect::<HashSet<_>>(), waiting);
        assert_eq!(results.len(), waiting.len());
        waiting = texts(blocks(message), "tool_use", "id")
            .into_iter()
            .collect();
        for block in blocks(message) {
            assert!(
                block["text"]
                    .as_str()
                    .is_none_or(|text| !text.trim().is_empty())
            );
            assert!(block["input"].is_null() || block["input"].is_object());
        }
        let plain = |id: &&str| {
            id.chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
        };
        assert!(waiting.iter().all(plain), "{waiting:?}");
        let last = blocks(message)
            .last()
            .map_or("", |block| block["type"].as_str().unwrap());
        assert!(!last.contains("thinking"), "{message}");
    }
    assert_eq!(waiting, HashSet::new());
}

fn check_openai(messages: &[Value]) {
    let mut waiting: Vec<&str> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap();
            assert_eq!(
                waiting.iter().position(|waits| *waits == id),
                Some(0),
                "{id} {waiting:?}"
            );
            waiting.remove(0);
            assert!(blocks(message).iter().all(|part| part["type"] == "text"));
        } else {
            assert_eq!(waiting, [""; 0], "a call without its results");
        }
        let calls = message["tool_calls"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        waiting.extend(calls.iter().map(|call| call["id"].as_str().unwrap()));
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            serde_json::from_str::<Value>(arguments).unwrap();
        }
        assert!(waiting.iter().all(|id| id.len() <= 40));
        let said = message["content"]
            .as_str()
            .map_or(blocks(message).len(), str::len);
        assert!(
            said > 0 || (message["content"].is_null() && !waiting.is_empty()),
            "{message}"
        );
    }
}

fn check_responses(items: &[Value]) {
    let of = |kind: &str| texts(items, kind, "call_id");
    assert_eq!(of("function_call"), of("function_call_output"));
    for item in items {
        let content = if item["type"].is_null() {
            &item["content"]
        } else {
            &item["call_id"]
        };
        assert!(
            content.as_str().is_none_or(|text| !text.is_empty()),
            "{item}"
        );
        assert!(content.is_string() || !blocks(item).is_empty(), "{item}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_conversation_renders_to_valid_requests(
        steps in prop::collection::vec(steps(), 0..8),
        marks in prop::collection::vec(0_usize..20, 0..6),
        cut in any::<Index>(),
    ) {
        let earlier: usize = steps[..cut.index(steps.len() + 1)].iter().map(Vec::len).sum();
        let turns: Vec<Turn> = steps.into_iter().flatten().collect();
        let of = |format: MessageFormat| send(format, &turns);
        check_anthropic(of(Anthropic).as_array().unwrap());
        check_openai(of(OpenAi).as_array().unwrap());
        check_responses(of(OpenAiResponses).as_array().unwrap());
        let marked = cached(&turns, &marks);
        check_anthropic(marked.as_array().unwrap());
        prop_assert!(marked.to_string().matches("cache_control").count() <= 4);
        for format in [OpenAi, OpenAiResponses, Anthropic] {
            let messages = of(format);
            let sent = send(format, &turns[..earlier]).to_string();
            let sent = sent.trim_end_matches([']', '}']);
            prop_assert!(messages.to_string().starts_with(sent), "{sent} is sent again in {messages}");
            prop_assert_eq!(give(format, &read(format, &messages)), messages);
        }
    }
}
