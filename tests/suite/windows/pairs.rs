//! Calls and their outputs stay together in windows, histories and rewinds.

use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, GetHistoryRequest, MessageFormat, RewindSessionRequest,
};
use serde_json::{Value, json};
use tonic::Code;

use super::bot::{ask, budget, window_request};
use crate::harness::{Daemon, Sessions, Setup, refused};

const ANTHROPIC: MessageFormat = MessageFormat::Anthropic;
const RESPONSES: MessageFormat = MessageFormat::OpenaiResponses;

fn append(format: MessageFormat, messages: &[Value]) -> AppendRequest {
    AppendRequest {
        session_id: "chat".into(),
        messages_json: json!(messages).to_string(),
        format: format.into(),
        ..AppendRequest::default()
    }
}

async fn add(client: &mut Sessions, format: MessageFormat, messages: &[Value]) {
    let request = append(format, messages);
    client.append(request).await.expect("appended");
}

async fn window(client: &mut Sessions, format: MessageFormat, tokens: u64) -> Vec<Value> {
    let request = BuildContextRequest {
        session_id: "chat".into(),
        format: format.into(),
        budget: budget(tokens),
        ..window_request()
    };
    let answer = ask(client, request).await;
    serde_json::from_str(&answer.messages_json).expect("a JSON array")
}

async fn history(client: &mut Sessions, format: MessageFormat) -> Vec<Value> {
    let request = GetHistoryRequest {
        session_id: "chat".into(),
        format: format.into(),
        ..GetHistoryRequest::default()
    };
    let answer = client.get_history(request).await.expect("a history");
    serde_json::from_str(&answer.into_inner().messages_json).expect("a JSON array")
}

async fn capped(turns: usize) -> Daemon {
    let cap = format!("short_term: {{ max_history_turns: {turns} }}");
    Daemon::with(Setup::default().section(cap)).await
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(content: &Value) -> Value {
    json!({ "role": "assistant", "content": content })
}

fn paused() -> [Value; 2] {
    let call = json!({ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} });
    let result = json!({ "type": "web_search_tool_result", "tool_use_id": "s", "content": [] });
    [
        assistant(&json!([call])),
        assistant(&json!([result, { "type": "text", "text": "Found." }])),
    ]
}

#[tokio::test]
async fn history_cap_keeps_split_server_tool_calls_whole() {
    let daemon = capped(3).await;
    let mut client = daemon.sessions();
    let [call, result] = paused();
    let (one, two) = (assistant(&json!("One.")), assistant(&json!("Two.")));
    for message in [&user("a"), &one, &user("b"), &call, &result, &user("c")] {
        add(&mut client, ANTHROPIC, std::slice::from_ref(message)).await;
    }
    let whole = [user("a"), call, result, user("c")];
    assert_eq!(history(&mut client, ANTHROPIC).await, whole);
    add(&mut client, ANTHROPIC, std::slice::from_ref(&two)).await;
    let left = [user("a"), user("c"), two];
    assert_eq!(history(&mut client, ANTHROPIC).await, left);
}

#[tokio::test]
async fn history_cap_keeps_local_shell_items_whole() {
    let daemon = capped(3).await;
    let mut client = daemon.sessions();
    let said = assistant(&json!("Two files."));
    let items = [
        user("ls"),
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA" }),
        json!({ "type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed",
            "action": { "type": "exec", "command": ["ls"], "env": {} } }),
        json!({ "type": "local_shell_call_output", "id": "c", "output": "a b" }),
        said.clone(),
        user("Thanks."),
    ];
    for item in &items {
        add(&mut client, RESPONSES, std::slice::from_ref(item)).await;
    }
    let kinds = |items: &[Value]| -> Vec<String> {
        let kind = |item: &Value| item["type"].as_str().unwrap_or("message").to_owned();
        items.iter().map(kind).collect()
    };
    for shown in [
        history(&mut client, RESPONSES).await,
        window(&mut client, RESPONSES, 8_000).await,
    ] {
        let has = |kind: &str| kinds(&shown).iter().any(|item| item == kind);
        assert_eq!(
            has("local_shell_call"),
            has("local_shell_call_output"),
            "{shown:?}"
        );
        assert_ne!(kinds(&shown)[0], "local_shell_call_output");
        assert_eq!(has("reasoning"), has("local_shell_call"), "{shown:?}");
    }
}

#[tokio::test]
async fn rewind_between_parts_that_name_each_other_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let [call, result] = paused();
    add(&mut client, ANTHROPIC, &[user("a"), call, result]).await;
    let rewind = |after_seq| RewindSessionRequest {
        session_id: "chat".into(),
        after_seq,
        ..RewindSessionRequest::default()
    };
    let splits = client.rewind_session(rewind(2)).await;
    refused(splits, Code::InvalidArgument, "TOOL_UNIT_SPLIT");
    client.rewind_session(rewind(1)).await.expect("rewound");
}

#[tokio::test]
async fn calls_of_a_program_are_never_sent_without_it() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let program =
        json!({ "type": "server_tool_use", "id": "p", "name": "code_execution", "input": {} });
    let call = |number: usize| {
        json!({ "type": "tool_use", "id": format!("t{number}"), "name": "query",
            "input": { "sql": format!("select {number}") },
            "caller": { "type": "code_execution_20250825", "tool_id": "p" } })
    };
    let result = |number: usize| {
        let rows = format!("row {number} ").repeat(60);
        json!({ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": format!("t{number}"), "content": rows } ] })
    };
    let first = assistant(&json!([program, call(0)]));
    add(
        &mut client,
        ANTHROPIC,
        &[user("Sum it up."), first, result(0)],
    )
    .await;
    for number in 1..100 {
        let next = [assistant(&json!([call(number)])), result(number)];
        add(&mut client, ANTHROPIC, &next).await;
        let sent = window(&mut client, ANTHROPIC, 8_000).await;
        let text = json!(sent).to_string();
        let has_program = text.contains("server_tool_use");
        assert_eq!(text.contains("\"caller\""), has_program, "{number}: {text}");
        assert!(text.contains(&format!("select {number}")), "{number}");
    }
    let done = json!({ "type": "code_execution_tool_result", "tool_use_id": "p", "content": {} });
    add(
        &mut client,
        ANTHROPIC,
        &[assistant(
            &json!([done, { "type": "text", "text": "Done." }]),
        )],
    )
    .await;
    add(&mut client, ANTHROPIC, &[user("Thanks.")]).await;
    let sent = window(&mut client, ANTHROPIC, 8_000).await;
    let text = json!(sent).to_string();
    assert_eq!(
        text.contains("\"caller\""),
        text.contains("server_tool_use"),
        "{text}"
    );
    assert_eq!(
        text.contains("\"code_execution_tool_result\""),
        text.contains("server_tool_use"),
        "{text}"
    );
}

#[tokio::test]
async fn approval_after_the_session_expired_is_shown_as_a_note() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let approval = json!({ "type": "mcp_approval_response", "approval_request_id": "m",
        "approve": true });
    let output = json!({ "type": "function_call_output", "call_id": "c", "output": "paid" });
    add(&mut client, RESPONSES, &[approval, output]).await;
    for shown in [
        history(&mut client, RESPONSES).await,
        window(&mut client, RESPONSES, 8_000).await,
        window(&mut client, ANTHROPIC, 8_000).await,
        window(&mut client, MessageFormat::Openai, 8_000).await,
    ] {
        let text = json!(shown).to_string();
        assert!(text.contains("not shown here"), "{text}");
        assert!(text.contains("paid") && text.contains("approve"), "{text}");
        let mut roles = shown.iter().map(|message| message["role"].as_str());
        assert!(roles.all(|role| role == Some("user")), "{text}");
    }
    add(&mut client, RESPONSES, &[assistant(&json!("Paid."))]).await;
    assert_eq!(history(&mut client, RESPONSES).await.len(), 3);
}

#[tokio::test]
async fn a_session_may_begin_with_results_of_its_expired_generation_in_any_format() {
    let openai = [
        json!({ "role": "tool", "tool_call_id": "c", "content": "paid" }),
        json!({ "role": "tool", "tool_call_id": "d", "content": "sent" }),
    ];
    let block =
        |id: &str, text: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": text });
    let anthropic =
        [json!({ "role": "user", "content": [block("c", "paid"), block("d", "sent")] })];
    for (format, results) in [
        (MessageFormat::Openai, &openai[..]),
        (ANTHROPIC, &anthropic),
    ] {
        let daemon = Daemon::start().await;
        let mut client = daemon.sessions();
        add(&mut client, format, results).await;
        for shown in [
            history(&mut client, format).await,
            window(&mut client, ANTHROPIC, 8_000).await,
            window(&mut client, MessageFormat::Openai, 8_000).await,
        ] {
            let text = json!(shown).to_string();
            assert!(text.contains("not shown here"), "{text}");
            assert!(text.contains("paid") && text.contains("sent"), "{text}");
            let mut roles = shown.iter().map(|message| message["role"].as_str());
            assert!(roles.all(|role| role == Some("user")), "{text}");
        }
        add(
            &mut client,
            format,
            &[json!({ "role": "assistant", "content": "Done." })],
        )
        .await;
        let late = client.append(append(format, results)).await;
        refused(late, Code::InvalidArgument, "TOOL_USE_UNKNOWN");
    }
}

#[tokio::test]
async fn id_of_a_call_may_have_4_kib() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let messages = |length: usize| {
        let id = "x".repeat(length);
        let function = json!({ "name": "f", "arguments": "{}" });
        let call = json!({ "id": id, "type": "function", "function": function });
        [
            user("a"),
            json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": id, "content": "1" }),
        ]
    };
    let openai = MessageFormat::Openai;
    add(&mut client, openai, &messages(4_096)).await;
    assert_eq!(window(&mut client, openai, 8_000).await, messages(4_096));
    let long = client.append(append(openai, &messages(4_097))).await;
    refused(long, Code::InvalidArgument, "TURN_INVALID");
    let lost = client.append(append(openai, &messages(4_000)[2..])).await;
    refused(lost, Code::InvalidArgument, "TOOL_USE_UNKNOWN");
}

#[tokio::test]
async fn empty_assistant_message_is_accepted_and_not_sent() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for content in [json!([]), json!("")] {
        add(
            &mut client,
            ANTHROPIC,
            &[user("a"), assistant(&content), user("b")],
        )
        .await;
    }
    let sent = window(&mut client, ANTHROPIC, 8_000).await;
    assert!(
        sent.iter().all(|message| message["role"] == "user"),
        "{sent:?}"
    );
}
