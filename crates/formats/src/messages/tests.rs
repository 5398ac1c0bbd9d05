//! Parsed messages are restored exactly, and errors name the invalid field.

mod across;
mod fixtures;
mod fuzz;
mod native;
mod pairs;
mod responses;
mod rules;

use memoird_core::limits::Limits;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind, Role, Turn};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use super::{RenderOptions, Rendered, parse};
use MessageFormat::{Anthropic, OpenAi, OpenAiResponses};

fn read(format: MessageFormat, messages: &Value) -> Vec<Turn> {
    parse(format, &messages.to_string()).unwrap_or_else(|error| panic!("{messages}: {error}"))
}

fn render(format: MessageFormat, turns: &[Turn]) -> Rendered {
    super::render(format, turns, &RenderOptions::default())
}

/// Renders turns as a message array.
fn give(format: MessageFormat, turns: &[Turn]) -> Value {
    let Rendered {
        messages_json,
        ends,
        ..
    } = render(format, turns);
    let messages: Value = serde_json::from_str(&messages_json).unwrap();
    assert!(ends.is_sorted() && ends.len() == turns.len(), "{ends:?}");
    assert_eq!(
        ends.last().copied().unwrap_or(0),
        messages.as_array().unwrap().len()
    );
    messages
}

fn refusal(format: MessageFormat, messages: &str) -> String {
    parse(format, messages).unwrap_err().to_string()
}

fn fixtures() -> Vec<(MessageFormat, Value)> {
    let openai = fixtures::openai()
        .into_iter()
        .map(|message| (OpenAi, message));
    let anthropic = fixtures::anthropic()
        .into_iter()
        .map(|message| (Anthropic, message));
    let responses = responses::items()
        .into_iter()
        .map(|item| (OpenAiResponses, item));
    openai.chain(anthropic).chain(responses).collect()
}

#[test]
fn parsed_messages_render_unchanged() {
    for (format, message) in fixtures() {
        let messages = json!([message]);
        let turns = read(format, &messages);
        assert_eq!(give(format, &turns), messages, "{turns:?}");
        turns[0].check(0, &Limits::default()).unwrap();
    }
    for (format, all) in [
        (OpenAi, fixtures::openai()),
        (Anthropic, fixtures::anthropic()),
        (OpenAiResponses, responses::items()),
    ] {
        let all = Value::Array(all);
        assert_eq!(give(format, &read(format, &all)), all);
        assert_eq!(read(format, &json!([])), []);
    }
}

#[test]
fn system_message_in_the_middle_renders_in_place() {
    let messages = json!([
        { "role": "user", "content": "Review my code." },
        { "role": "assistant", "content": [{ "type": "text", "text": "Gladly." }] },
        { "role": "user", "content": "Here it is." },
        { "role": "system", "content": [{ "type": "text", "text": "Be brief from now on." }] },
    ]);
    let turns = read(Anthropic, &messages);
    assert_eq!(turns[3].role, Role::System);
    assert_eq!(give(Anthropic, &turns), messages);
}

/// Renders turns as a request to the provider.
fn send(format: MessageFormat, turns: &[Turn]) -> Value {
    let options = RenderOptions {
        is_request: true,
        ..RenderOptions::default()
    };
    let rendered = super::render(format, turns, &options);
    let ends = rendered.ends;
    assert!(ends.is_sorted() && ends.len() == turns.len(), "{ends:?}");
    serde_json::from_str(&rendered.messages_json).unwrap()
}

#[test]
fn mid_conversation_system_message_is_sent_where_allowed() {
    let (hi, yes) = (
        json!({ "role": "user", "content": "Hi." }),
        json!({ "role": "assistant", "content": "Yes." }),
    );
    let brief = json!({ "role": "system", "content": "Be brief." });
    let kind = json!({ "role": "system", "content": "Be kind." });
    let both = json!({ "role": "system", "content": [
        { "type": "text", "text": "Be brief." }, { "type": "text", "text": "Be kind." },
    ] });
    let said = |texts: &[&str]| {
        let blocks = texts
            .iter()
            .map(|text| json!({ "type": "text", "text": text }));
        json!({ "role": "user", "content": blocks.collect::<Vec<_>>() })
    };
    let brief_said = "[system 000000000] Be brief.";
    let searched = json!({ "role": "assistant", "content": [
        { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} },
    ] });
    for (came, sent) in [
        (json!([hi, brief]), json!([hi, brief])),
        (json!([hi, brief, yes]), json!([hi, brief, yes])),
        (json!([hi, searched, brief]), json!([hi, searched, brief])),
        (json!([hi, brief, kind, yes]), json!([hi, both, yes])),
        // The message before it was dropped: it now follows the assistant, or precedes a user
        // message.
        (
            json!([hi, yes, brief]),
            json!([hi, yes, said(&[brief_said])]),
        ),
        (
            json!([hi, brief, hi]),
            json!([said(&["Hi.", brief_said, "Hi."])]),
        ),
    ] {
        let turns = read(Anthropic, &came);
        assert_eq!(send(Anthropic, &turns), sent, "{came}");
        assert_eq!(give(Anthropic, &turns), came, "as it came");
    }
}

#[test]
fn empty_message_is_sent_where_allowed() {
    let hi = json!({ "role": "user", "content": "Hi." });
    let nothing = json!({ "role": "assistant", "content": [] });
    let asks_nothing = json!({ "role": "user", "content": [] });
    let empty = json!({ "role": "user", "content": [{ "type": "text", "text": "(empty)" }] });
    let yes = json!({ "role": "assistant", "content": "Yes." });
    let silent = json!({ "role": "system", "content": "" });
    let blank = json!({ "type": "text", "text": " \n" });
    let call = json!({ "type": "tool_use", "id": "t", "name": "f", "input": {} });
    let thinking = json!({ "type": "thinking", "thinking": "hm", "signature": "s" });
    let says = |blocks: Value| json!({ "role": "assistant", "content": blocks });
    for (came, sent) in [
        (
            json!([hi, says(json!([blank, call]))]),
            json!([hi, says(json!([call]))]),
        ),
        (json!([hi, says(json!([blank])), hi]), json!([hi, hi])),
        (json!([hi, says(json!([thinking])), hi]), json!([hi, hi])),
        (
            json!([hi, says(json!([thinking, call, thinking, blank]))]),
            json!([hi, says(json!([thinking, call]))]),
        ),
        (
            json!([{ "role": "user", "content": [blank] }, yes]),
            json!([empty, yes]),
        ),
        (json!([hi, nothing]), json!([hi, nothing])),
        (json!([hi, nothing, hi]), json!([hi, hi])),
        (json!([asks_nothing, yes]), json!([empty, yes])),
        (json!([hi, silent, yes]), json!([hi, yes])),
    ] {
        let turns = read(Anthropic, &came);
        assert_eq!(send(Anthropic, &turns), sent, "{came}");
        assert_eq!(give(Anthropic, &turns), came, "as it came");
    }
}

/// Bots mark the last block of each call as a cache breakpoint.
///
/// The provider accepts four per request.
#[test]
fn last_two_cache_marks_of_bot_are_kept() {
    let mark = json!({ "type": "ephemeral", "ttl": "1h" });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let marked = |text: &str| json!({ "type": "text", "text": text, "cache_control": mark });
    let result = |inner: Value| {
        json!({ "type": "tool_result", "tool_use_id": "t", "content": [inner],
            "cache_control": mark })
    };
    let call = json!({ "type": "tool_use", "id": "t", "name": "f",
        "input": { "content": [{ "cache_control": 1 }] } });
    let user = |block: &Value| json!({ "role": "user", "content": [block] });
    let yes = json!({ "role": "assistant", "content": "Yes." });
    let calls = json!({ "role": "assistant", "content": [call] });
    let came = json!([
        user(&marked("a")),
        yes,
        user(&marked("b")),
        calls,
        user(&result(marked("c"))),
        yes,
        user(&marked("d")),
    ]);
    let turns = read(Anthropic, &came);
    assert_eq!(give(Anthropic, &turns), came, "as it came");
    let sent = json!([
        user(&text("a")),
        yes,
        user(&text("b")),
        calls,
        user(&result(text("c"))),
        yes,
        user(&marked("d")),
    ]);
    assert_eq!(send(Anthropic, &turns), sent);
    let few = json!([user(&marked("a")), yes, user(&marked("b"))]);
    assert_eq!(send(Anthropic, &read(Anthropic, &few)), few);
}

#[test]
fn fields_openai_rejects_are_not_sent() {
    let hi = json!({ "role": "user", "content": "Hi." });
    let said = json!({ "role": "assistant", "content": "Yes.", "reasoning_content": "why" });
    let with = |name: &str, value: Value| {
        let mut message = said.clone();
        message[name] = value;
        message
    };
    let silent = |content: Value| json!({ "role": "assistant", "content": content, "tool_calls": [], "refusal": null });
    let refused = json!({ "role": "assistant", "content": null, "refusal": "No." });
    for (came, sent) in [
        (with("tool_calls", json!([])), json!([hi, said, hi])),
        (with("tool_calls", json!(null)), json!([hi, said, hi])),
        (silent(json!(null)), json!([hi, hi])),
        (json!({ "role": "assistant" }), json!([hi, hi])),
        (refused.clone(), json!([hi, refused, hi])),
    ] {
        let turns = read(OpenAi, &json!([hi, came, hi]));
        assert_eq!(send(OpenAi, &turns), sent, "{came}");
        assert_eq!(give(OpenAi, &turns)[1], came, "as it came");
    }
    let empty = silent(json!(""));
    assert_eq!(
        send(OpenAi, &read(OpenAi, &json!([empty])))[0]["content"],
        ""
    );
}

#[test]
fn too_many_json_values_are_refused() {
    let many = "0,".repeat(300_000);
    let messages = format!(r#"[{{"role":"user","content":"a","x":[{many}0]}}]"#);
    for format in [OpenAi, OpenAiResponses, Anthropic] {
        let text = refusal(format, &messages);
        assert!(text.contains("more than 262144 JSON values"), "{text}");
    }
    let said = many.replace('0', "\\\"");
    let messages = format!(r#"[{{"role":"user","content":"{said}"}}]"#);
    assert_eq!(
        read(OpenAi, &serde_json::from_str(&messages).unwrap()).len(),
        1
    );
}

#[test]
fn page_starting_with_assistant_renders_unchanged() {
    let hello = json!([{ "role": "assistant", "content": "Hello!" }]);
    let turns = read(Anthropic, &hello);
    assert_eq!(give(Anthropic, &turns), hello);
    assert_eq!(send(Anthropic, &turns)[0]["role"], "user");
}

#[test]
fn different_messages_parse_to_different_turns() {
    let all = fixtures();
    let turns: Vec<_> = all
        .iter()
        .map(|(format, one)| (format, read(*format, &json!([one]))))
        .collect();
    for (i, one) in turns.iter().enumerate() {
        for (j, other) in turns.iter().enumerate().skip(i + 1) {
            assert_ne!(one, other, "{} and {}", all[i].1, all[j].1);
        }
    }
}

#[test]
fn plain_openai_message_needs_no_extra() {
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "" },
        { "role": "assistant", "content": "Let me see.", "tool_calls": [{
            "id": "c1", "type": "function",
            "function": { "name": "weather", "arguments": "{\"city\": \"Oslo\" " },
        }] },
        { "role": "tool", "tool_call_id": "c1", "content": "rain" },
    ]);
    let text = |text: &str| Part::from(PartKind::Text(text.into()));
    let call = PartKind::ToolUse {
        id: "c1".into(),
        name: "weather".into(),
        input_json: "{\"city\": \"Oslo\" ".into(),
    };
    let result = PartKind::ToolResult {
        tool_use_id: "c1".into(),
        content: "rain".into(),
        parts: vec![],
        is_error: false,
    };
    let turn = |role, parts| Turn {
        format: Some(OpenAi),
        ..Turn::new(role, parts)
    };
    let turns = vec![
        turn(Role::System, vec![text("Be brief.")]),
        turn(Role::User, vec![text("")]),
        turn(Role::Assistant, vec![text("Let me see."), call.into()]),
        turn(Role::Tool, vec![result.into()]),
    ];
    assert_eq!(read(OpenAi, &messages), turns);
}

#[test]
fn anthropic_blocks_become_parts() {
    let messages = json!([{ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [
            { "type": "image", "source":
                { "type": "base64", "media_type": "image/png", "data": "AAEC" } },
        ] },
        { "type": "redacted_thinking", "data": "EroB" },
    ] }]);
    let image = Part {
        kind: PartKind::Media {
            media_type: "image/png".into(),
            source: MediaSource::Uri("data:image/png;base64,AAEC".into()),
            name: String::new(),
        },
        extra_json:
            r#"{"type":"image","source":{"type":"base64","media_type":"image/png","data":""}}"#
                .into(),
    };
    let result = Part {
        kind: PartKind::ToolResult {
            tool_use_id: "t1".into(),
            content: String::new(),
            parts: vec![image],
            is_error: true,
        },
        extra_json: r#"{"content":[]}"#.into(),
    };
    let redacted = PartKind::Thinking {
        text: "EroB".into(),
        signature: String::new(),
        redacted: true,
    };
    let turn = Turn {
        extra_json: r#"{"content":[]}"#.into(),
        format: Some(Anthropic),
        ..Turn::new(Role::User, vec![result, redacted.into()])
    };
    assert_eq!(read(Anthropic, &messages), [turn]);
}

#[test]
fn numbers_and_key_order_stay_exact() {
    let input = r#"{"z":1.10,"a":123456789012345678901234567890,"m":[1E400,-0.0]}"#;
    let block = format!(r#"{{"type":"tool_use","id":"1","name":"f","input":{input}}}"#);
    let message = format!(r#"[{{"role":"assistant","content":[{block}]}}]"#);
    let turns = parse(Anthropic, &message).unwrap();
    let PartKind::ToolUse { input_json, .. } = &turns[0].parts[0].kind else {
        panic!("{turns:?}")
    };
    assert_eq!(input_json, &input.replace("1E400", "1e+400"));
}

#[test]
fn client_fields_are_stripped_from_messages_and_items() {
    for (format, mut message) in fixtures() {
        let plain = read(format, &json!([message]));
        message["memoird_client_id"] = json!("m1");
        message["memoird_client_json"] = json!({ "b": 1.5, "a": null });
        let turns = read(format, &json!([message]));
        assert_eq!(turns[0].client_id, "m1");
        assert_eq!(turns[0].client_json, r#"{"b":1.5,"a":null}"#);
        assert_eq!(give(format, &turns), give(format, &plain), "not given back");
    }
    let twice = |name: &str| {
        let item = |value: u32| json!({ "id": "r", "type": "reasoning", name: value.to_string() });
        refusal(OpenAiResponses, &json!([item(1), item(2)]).to_string())
    };
    for name in ["memoird_client_id", "memoird_client_json"] {
        assert!(twice(name).starts_with(&format!("messages_json[1].{name}: another item")));
    }
}

#[test]
fn labels_too_long_for_a_part_stay_in_the_extra() {
    let long = "x".repeat(2_000);
    let source = json!({ "type": "base64", "media_type": long, "data": "AA==" });
    let blocks = json!([{ "type": "document", "title": long, "source": source }]);
    let messages = json!([{ "role": "user", "content": blocks }]);
    let turns = read(Anthropic, &messages);
    turns[0].check(0, &Limits::default()).unwrap();
    assert_eq!(give(Anthropic, &turns), messages);
}

#[test]
fn adjacent_messages_are_joined_only_across_a_gap() {
    let messages = json!([
        {"role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "three"},
    ]);
    let turns = read(Anthropic, &messages);
    let written = |is_request: bool, behind_gap: &[usize]| -> Value {
        let options = RenderOptions {
            behind_gap,
            is_request,
            ..RenderOptions::default()
        };
        let rendered = super::render(Anthropic, &turns, &options);
        assert_eq!(rendered.ends.len(), 3);
        serde_json::from_str(&rendered.messages_json).unwrap()
    };
    for is_request in [true, false] {
        assert_eq!(written(is_request, &[]), messages);
        assert_eq!(written(is_request, &[2]), messages);
    }
    let both = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let joined =
        json!([{"role": "user", "content": both}, {"role": "assistant", "content": "three"}]);
    assert_eq!(written(true, &[1]), joined);
    assert_eq!(
        written(false, &[1]),
        messages,
        "who reads gets what came in"
    );
}

#[test]
fn parse_error_names_the_path() {
    for (messages, problem) in fixtures::OPENAI_REFUSED {
        assert_eq!(
            refusal(OpenAi, messages),
            format!("messages_json{problem}"),
            "{messages}"
        );
    }
    for (messages, problem) in fixtures::ANTHROPIC_REFUSED {
        assert_eq!(
            refusal(Anthropic, messages),
            format!("messages_json{problem}"),
            "{messages}"
        );
    }
    for (messages, problem) in responses::REFUSED {
        let text = refusal(OpenAiResponses, messages);
        assert_eq!(text, format!("messages_json{problem}"), "{messages}");
    }
}

#[test]
fn parse_error_bounds_quoted_input() {
    let long = "r\u{e9}".repeat(10_000);
    let messages = json!([{ "role": long, "content": "secret" }]).to_string();
    let text = refusal(OpenAi, &messages);
    assert!(
        text.len() < 250 && text.contains("user") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn too_deep_nesting_is_refused_and_allowed_depth_kept() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"[{{"role":"user","content":"x","extra":{open}{close}}}]"#)
    };
    let text = refusal(OpenAi, &nested(200_000));
    assert!(
        text.starts_with("messages_json: nested deeper than 128 levels at line 1"),
        "{text}"
    );
    let deepest = (1..200)
        .rev()
        .map(nested)
        .find(|text| parse(OpenAi, text).is_ok())
        .unwrap();
    let value: Value = serde_json::from_str(&deepest).unwrap();
    assert_eq!(give(OpenAi, &read(OpenAi, &value)), value);
}

/// Any JSON, with field names that the formats use.
fn anything() -> impl Strategy<Value = Value> {
    let name = select(vec![
        "memoird",
        "type",
        "content",
        "absent",
        "placeholder",
        "id",
        "x",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        select(vec!["", "text", "file", "custom", "memoird", "content"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let object = prop::collection::vec((name.clone(), inner.clone()), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(Value::from),
            object.prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

/// Collects JSON pointers to all objects and lists in a value.
fn containers(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| {
                containers(item, &format!("{place}/{i}"), found);
            });
        }
        Value::Object(fields) => {
            // The field names contain no characters that a pointer must escape.
            fields.iter().for_each(|(name, item)| {
                containers(item, &format!("{place}/{name}"), found);
            });
        }
        _ => return,
    }
    found.push(place.to_owned());
}

/// Adds, replaces or removes a value somewhere.
fn edit(messages: &mut Value, place: Index, item: Index, remove: bool, name: &str, value: Value) {
    let mut found = Vec::new();
    containers(messages, "", &mut found);
    match messages
        .pointer_mut(&found[place.index(found.len())])
        .unwrap()
    {
        Value::Array(items) if items.is_empty() || !remove => items.push(value),
        Value::Array(items) => drop(items.remove(item.index(items.len()))),
        Value::Object(fields) if remove && !fields.is_empty() => {
            let name = fields.keys().nth(item.index(fields.len())).unwrap().clone();
            fields.shift_remove(&name);
        }
        Value::Object(fields) if item.index(2) == 0 && !fields.is_empty() => {
            let nth = item.index(fields.len());
            *fields.values_mut().nth(nth).unwrap() = value;
        }
        Value::Object(fields) => drop(fields.insert(name.to_owned(), value)),
        _ => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// An edited valid message is either rejected or restored exactly.
    #[test]
    fn edited_messages_are_refused_or_round_trip(
        (format, message) in select(fixtures()),
        edits in prop::collection::vec(
            (any::<Index>(), any::<Index>(), any::<bool>(),
             select(vec!["memoird", "type", "content", "index", "tool_calls", "signature", "summary"]),
             anything()),
            1..4,
        ),
    ) {
        let mut messages = json!([message]);
        for (place, item, remove, name, value) in edits {
            edit(&mut messages, place, item, remove, name, value);
        }
        if let Ok(turns) = parse(format, &messages.to_string()) {
            for other in [OpenAi, OpenAiResponses, Anthropic] {
                let translated = give(other, &turns);
                prop_assert_eq!(give(other, &read(other, &translated)), translated);
            }
            prop_assert_eq!(give(format, &turns), messages);
        }
    }
}
