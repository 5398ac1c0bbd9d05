//! Windows in each provider's format, independent of the format of the appends.

use memoird_proto::v1::{AppendRequest, BuildContextRequest, BuildContextResponse, MessageFormat};
use serde_json::{Value, json};

use super::bot::{ask, budget, outline, report, window_request, window_request_with, words};
use super::plain;
use crate::harness::{Daemon, Sessions, append, assistant, tool_uses, user, without_nonce};

async fn append_json(
    client: &mut Sessions,
    session: &str,
    format: MessageFormat,
    messages: &Value,
) {
    let request = AppendRequest {
        session_id: session.into(),
        messages_json: messages.to_string(),
        format: format.into(),
        ..AppendRequest::default()
    };
    client.append(request).await.expect("appended");
}

fn in_format(session: &str, format: MessageFormat) -> BuildContextRequest {
    BuildContextRequest {
        session_id: session.into(),
        format: format.into(),
        ..window_request()
    }
}

#[track_caller]
fn messages(answer: &BuildContextResponse) -> Vec<Value> {
    serde_json::from_str(&answer.messages_json).expect("a JSON array")
}

/// A system prompt, parallel calls with their results, and an answer.
fn openai() -> Value {
    let call = |id: &str, city: &str| {
        let arguments = json!({ "city": city }).to_string();
        json!({ "id": id, "type": "function",
                "function": { "name": "weather", "arguments": arguments } })
    };
    json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Rain in Rome or Oslo?" },
        { "role": "assistant", "content": null, "tool_calls": [call("c1", "Rome"), call("c2", "Oslo")] },
        { "role": "tool", "tool_call_id": "c1", "content": "dry" },
        { "role": "tool", "tool_call_id": "c2", "content": "rain" },
        { "role": "assistant", "content": "Oslo." },
        { "role": "user", "content": "Thanks" },
    ])
}

#[tokio::test]
async fn openai_messages_render_unchanged_and_convert_to_other_formats() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    append_json(&mut client, "chat", MessageFormat::Openai, &openai()).await;
    let same = ask(&mut client, in_format("chat", MessageFormat::Openai)).await;
    assert_eq!(Value::from(messages(&same)), openai());
    assert_eq!(same.system, "");

    let anthropic = ask(&mut client, in_format("chat", MessageFormat::Anthropic)).await;
    assert_eq!(anthropic.system, "Be brief.");
    let turns = messages(&anthropic);
    let roles: Vec<&str> = turns
        .iter()
        .filter_map(|turn| turn["role"].as_str())
        .collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(turns[1]["content"][0]["input"], json!({ "city": "Rome" }));
    assert_eq!(turns[1]["content"][1]["type"], "tool_use");
    let ids = [0, 1].map(|place| turns[2]["content"][place]["tool_use_id"].clone());
    assert_eq!(ids, ["c1", "c2"], "both results in one message");

    let responses = ask(
        &mut client,
        in_format("chat", MessageFormat::OpenaiResponses),
    )
    .await;
    let items = messages(&responses);
    let kinds: Vec<&str> = items
        .iter()
        .map(|item| item["type"].as_str().unwrap_or("message"))
        .collect();
    let (call, output) = ("function_call", "function_call_output");
    assert_eq!(
        kinds[kinds.len() - 6..],
        [call, call, output, output, "message", "message"]
    );

    // And converted back.
    for (session, format, came) in [
        ("a", MessageFormat::Anthropic, turns),
        ("r", MessageFormat::OpenaiResponses, items),
    ] {
        append_json(&mut client, session, format, &Value::from(came.clone())).await;
        let again = ask(&mut client, in_format(session, format)).await;
        assert_eq!(messages(&again), came, "{format:?}");
        let back = ask(&mut client, in_format(session, MessageFormat::Openai)).await;
        let back = messages(&back);
        let at = back
            .iter()
            .position(|message| message["tool_calls"].is_array());
        let calls = &back[at.expect("calls")]["tool_calls"];
        assert_eq!(calls[1]["function"]["name"], "weather", "{format:?}");
        let arguments = calls[1]["function"]["arguments"].as_str().expect("text");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        assert_eq!(arguments, json!({ "city": "Oslo" }), "{format:?}");
    }
}

#[tokio::test]
async fn system_prompt_of_call_is_placed_as_provider_requires() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    client
        .append(append("chat", [user("hello")]))
        .await
        .expect("appended");
    let with_system = |format| BuildContextRequest {
        system: "Be kind.".into(),
        ..in_format("chat", format)
    };
    let openai = ask(&mut client, with_system(MessageFormat::Openai)).await;
    let expected = json!([
        { "role": "system", "content": "Be kind." },
        { "role": "user", "content": "hello" },
    ]);
    assert_eq!(
        (Value::from(messages(&openai)), openai.system.as_str()),
        (expected, "")
    );
    let anthropic = ask(&mut client, with_system(MessageFormat::Anthropic)).await;
    assert_eq!(anthropic.system, "Be kind.");
    assert_eq!(messages(&anthropic).len(), 1);
    let turns_only = ask(&mut client, with_system(MessageFormat::Unspecified)).await;
    assert_eq!(
        (
            turns_only.system.as_str(),
            turns_only.messages_json.as_str()
        ),
        ("Be kind.", "")
    );
}

#[tokio::test]
async fn cache_control_matches_reported_breakpoints_and_is_opt_in() {
    let daemon = Daemon::with(plain().section("short_term: { max_history_turns: 200 }")).await;
    let mut client = daemon.sessions();
    let request = BuildContextRequest {
        set_cache_control: true,
        budget: budget(4_000),
        ..in_format("chat", MessageFormat::Anthropic)
    };
    let mut breakpoints_max = 0;
    for number in 0..40 {
        let turns = [user(&words(number)), assistant(&words(number))];
        client
            .append(append("chat", turns))
            .await
            .expect("appended");
        let window = ask(&mut client, request.clone()).await;
        let marked: Vec<u32> = (0..)
            .zip(messages(&window))
            .filter(|(_, message)| message.to_string().contains(r#""cache_control""#))
            .map(|(place, _)| place)
            .collect();
        assert_eq!(marked, report(&window).cache_breakpoints);
        assert!(
            (1..=4).contains(&marked.len()),
            "{marked:?}: a provider takes four"
        );
        breakpoints_max = breakpoints_max.max(marked.len());
    }
    assert!(breakpoints_max >= 2);
    let plain = BuildContextRequest {
        set_cache_control: false,
        ..request
    };
    assert!(
        !ask(&mut client, plain)
            .await
            .messages_json
            .contains("cache_control")
    );
}

#[tokio::test]
async fn abandoned_call_gets_error_result() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let pending = ask(
        &mut client,
        window_request_with([user("look"), tool_uses(&["one", "two"])]),
    )
    .await;
    assert_eq!(outline(&pending), "1 2", "it may still be answered");
    let window = ask(&mut client, window_request_with([user("never mind")])).await;
    assert_eq!(outline(&window), "1 2 [abandoned] 3");
    let openai = messages(&ask(&mut client, in_format("chat", MessageFormat::Openai)).await);
    let ids = [&openai[2]["tool_call_id"], &openai[3]["tool_call_id"]];
    assert_eq!(ids, ["one", "two"]);
    let error = openai[2]["content"].as_str().expect("text");
    assert!(
        without_nonce(error).contains("[memoird: no result; the call was abandoned]"),
        "{error}"
    );
    let anthropic = messages(&ask(&mut client, in_format("chat", MessageFormat::Anthropic)).await);
    assert_eq!(anthropic[2]["content"][0]["is_error"], true);
    assert_eq!(
        anthropic.len(),
        3,
        "the results and the words are one message"
    );
    assert!(
        !anthropic
            .iter()
            .any(|message| message.to_string().contains("metadata"))
    );
}

#[tokio::test]
async fn leading_system_message_survives_history_cap() {
    let daemon = Daemon::with(plain().section("short_term: { max_history_turns: 4 }")).await;
    let mut client = daemon.sessions();
    let start = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "the task" },
    ]);
    append_json(&mut client, "chat", MessageFormat::Openai, &start).await;
    for number in 0..10 {
        let said = json!([{ "role": "assistant", "content": format!("answer {number}") },
                          { "role": "user", "content": format!("question {number}") }]);
        append_json(&mut client, "chat", MessageFormat::Openai, &said).await;
    }
    let window = messages(&ask(&mut client, in_format("chat", MessageFormat::Openai)).await);
    assert_eq!(window[0]["content"], "Be brief.");
    assert_eq!(window[1]["content"], "the task");
    assert!(
        window[2]["content"]
            .as_str()
            .is_some_and(|text| text.contains("not shown here"))
    );
    assert_eq!(window.last().expect("turns")["content"], "question 9");
    let anthropic = ask(&mut client, in_format("chat", MessageFormat::Anthropic)).await;
    assert_eq!(anthropic.system, "Be brief.");
    assert_eq!(messages(&anthropic)[0]["role"], "user");
}
