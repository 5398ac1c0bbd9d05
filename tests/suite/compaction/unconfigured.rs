//! Without configuration, a long chat with tools is summarized, for bots of each provider.

use memoird_proto::v1::{
    AppendRequest, BuildContextRequest, BuildContextResponse, MessageFormat, OmissionReason,
    SummaryMaker,
};
use serde_json::{Value, json};

use crate::harness::{
    Daemon, Events, Sessions, Setup, append, assistant, eventually, journal, user, without_nonce,
};
use crate::windows::bot::{ask, budget, report, window_request, window_request_with};

use super::bot::{BUDGET, order};

/// A bot's conversation in its provider's message format.
struct Chat {
    client: Sessions,
    format: MessageFormat,
    appended: usize,
}

impl Chat {
    async fn append_and_get_window(&mut self, messages: Value) -> BuildContextResponse {
        self.appended += messages.as_array().map_or(0, Vec::len);
        let append = AppendRequest {
            messages_json: messages.to_string(),
            format: self.format.into(),
            ..AppendRequest::default()
        };
        let request = BuildContextRequest {
            append: Some(append),
            format: self.format.into(),
            budget: budget(BUDGET),
            system: "You find orders.".into(),
            ..window_request()
        };
        ask(&mut self.client, request).await
    }

    /// An exchange: a question, two parallel calls, their results, and an answer.
    ///
    /// Returns the windows before each call of the model.
    async fn exchange(&mut self, number: usize) -> [BuildContextResponse; 2] {
        let question = format!(
            "Where is {}? {}",
            order(number),
            "I am waiting. ".repeat(20)
        );
        let one = self
            .append_and_get_window(json!([{"role": "user", "content": question}]))
            .await;
        let ids = [format!("a{number}"), format!("b{number}")];
        let found = format!(
            "{{\"order\":\"{}\",\"parcel\":\"PX{number:06}\"}}",
            order(number)
        );
        let messages = match self.format {
            MessageFormat::Anthropic => json!([
                {"role": "assistant", "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": ids[0], "name": "find", "input": {"n": number}},
                    {"type": "tool_use", "id": ids[1], "name": "stock", "input": {"n": number}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": ids[0], "content": found},
                    {"type": "tool_result", "tool_use_id": ids[1], "content": "none"},
                ]},
            ]),
            _ => {
                let call = |id: &String, name: &str| {
                    let arguments = json!({"n": number}).to_string();
                    json!({"id": id, "type": "function",
                           "function": {"name": name, "arguments": arguments}})
                };
                json!([
                    {"role": "assistant", "content": "I look.",
                     "tool_calls": [call(&ids[0], "find"), call(&ids[1], "stock")]},
                    {"role": "tool", "tool_call_id": ids[0], "content": found},
                    {"role": "tool", "tool_call_id": ids[1], "content": "none"},
                ])
            }
        };
        let two = self.append_and_get_window(messages).await;
        let answer = format!(
            "It is in parcel PX{number:06}. {}",
            "It is on its way. ".repeat(10)
        );
        let request = AppendRequest {
            session_id: "chat".into(),
            messages_json: json!([{"role": "assistant", "content": answer}]).to_string(),
            format: self.format.into(),
            ..AppendRequest::default()
        };
        self.appended += 1;
        self.client.append(request).await.expect("appended");
        [one, two]
    }
}

/// The texts of a message in either notation.
fn text(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect::<Vec<_>>()
            .join("\n"),
        _ => String::new(),
    }
}

/// Asserts what OpenAI requires: calls are followed by their results, and results have a call.
#[track_caller]
fn openai_takes(messages: &[Value]) {
    let mut open: Vec<&Value> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let place = open.iter().position(|id| **id == message["tool_call_id"]);
            open.remove(place.unwrap_or_else(|| panic!("a result of nobody: {message}")));
            continue;
        }
        assert!(open.is_empty(), "{open:?} have no result before {message}");
        let calls = message["tool_calls"].as_array();
        open.extend(calls.into_iter().flatten().map(|call| &call["id"]));
    }
    assert!(open.is_empty(), "{open:?} have no result");
}

/// Asserts what Anthropic requires of messages.
///
/// Roles alternate, no message is empty, a call has its results in the next message, and a result
/// has its call in the previous one.
#[track_caller]
fn anthropic_takes(messages: &[Value]) {
    let parts = |message: &Value, kind: &str, field: &str| -> Vec<String> {
        let parts = message["content"].as_array().cloned().unwrap_or_default();
        let of_kind = parts.iter().filter(|part| part["type"] == kind);
        of_kind
            .map(|part| part[field].as_str().expect("an id").to_owned())
            .collect()
    };
    let mut before: Vec<String> = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        let role = if place % 2 == 0 { "user" } else { "assistant" };
        assert_eq!(message["role"], role, "{place}: {messages:#?}");
        assert!(
            message["content"] != json!("") && message["content"] != json!([]),
            "{message}"
        );
        let mut results = parts(message, "tool_result", "tool_use_id");
        results.sort_unstable();
        assert_eq!(results, before, "{place}");
        before = parts(message, "tool_use", "id");
        before.sort_unstable();
    }
    assert!(before.is_empty(), "{before:?} have no result");
}

/// The message with the summary, directly after the system prompt. Checks the reply to it, too.
#[track_caller]
fn block(format: MessageFormat, messages: &[Value]) -> String {
    let first = usize::from(format == MessageFormat::Openai);
    if first == 1 {
        assert_eq!(
            (&messages[0]["role"], text(&messages[0])),
            (&"system".into(), "You find orders.".into())
        );
    }
    assert_eq!(messages[first]["role"], "user");
    assert_eq!(messages[first + 1]["role"], "assistant");
    assert!(
        text(&messages[first + 1]).contains("summary"),
        "{}",
        messages[first + 1]
    );
    let said = text(&messages[first]);
    let summary = without_nonce(&said);
    assert!(summary.starts_with("[memoird: a summary of the"), "{said}");
    said
}

async fn talk(format: MessageFormat) {
    let daemon = Daemon::start().await;
    let mut chat = Chat {
        client: daemon.sessions(),
        format,
        appended: 0,
    };
    let mut events = Events::now(&mut daemon.sessions()).await;
    let (mut last, mut numbers) = ((0, String::new()), Vec::new());
    for number in 0..60 {
        for window in chat.exchange(number).await {
            let messages: Vec<Value> = serde_json::from_str(&window.messages_json).expect("JSON");
            match format {
                MessageFormat::Anthropic => {
                    assert_eq!(window.system, "You find orders.");
                    anthropic_takes(&messages);
                }
                _ => openai_takes(&messages),
            }
            let report = report(&window);
            let tokens = report.tokens_by_block.expect("blocks").summary;
            let Some(info) = &report.summary else {
                assert_eq!(tokens, 0);
                continue;
            };
            assert!(
                tokens > 0 && info.made_by() == SummaryMaker::Extractive,
                "{report:?}"
            );
            let said = block(format, &messages);
            if info.number == last.0 {
                assert_eq!(said, last.1, "to the byte, until the next one");
            }
            if info.number != last.0 {
                numbers.push(info.number);
            }
            last = (info.number, said);
            assert!(
                messages.iter().any(|it| text(it).contains(&order(0))),
                "the task is there"
            );
        }
    }
    assert!(numbers.len() >= 2 && numbers.is_sorted(), "{numbers:?}");
    // The summary contains the task and the end of the summarized span.
    let known: Vec<usize> = (0..60)
        .filter(|number| last.1.contains(&order(*number)))
        .collect();
    assert!(
        known.first() == Some(&0) && known.len() >= 4,
        "{known:?} in {}",
        last.1
    );
    let (first, newest) = (known[1], known[known.len() - 1]);
    assert!(
        newest >= 40 && known[1..].iter().copied().eq(first..=newest),
        "without gaps up to the end: {known:?}"
    );
    let mut failed = Vec::new();
    while let Some(event) = events.soon().await {
        if event.word() == "compaction_failed" {
            failed.push(event);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    let turns = eventually("all is in the journal", async || {
        let turns = journal(&mut chat.client, "chat", "").await;
        (turns.len() >= chat.appended - 60).then_some(turns)
    });
    let seqs: Vec<u64> = turns.await.iter().map(|turn| turn.seq).collect();
    assert!(
        seqs.iter().copied().eq(1..=seqs.len() as u64),
        "each once, in order"
    );
}

#[tokio::test]
async fn long_openai_chat_is_compacted_by_default() {
    talk(MessageFormat::Openai).await;
}

#[tokio::test]
async fn long_anthropic_chat_is_compacted_by_default() {
    talk(MessageFormat::Anthropic).await;
}

#[tokio::test]
async fn full_history_is_summarized_before_turns_are_dropped() {
    // The history keeps fifty turns, and the default model's window holds far more.
    let daemon = Daemon::with(Setup::default().section("short_term: { max_history_turns: 50 }"));
    let daemon = daemon.await;
    let mut bot = super::bot::Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = loop {
        bot.exchange().await;
        let request = BuildContextRequest {
            budget: None,
            ..bot.request()
        };
        ask(&mut bot.client, request).await;
        let mut found = None;
        while let Some(event) = events.soon().await {
            if event.word() == "compacted" {
                found = Some(event);
            }
        }
        if let Some(event) = found {
            break crate::harness::detail(&event);
        }
        assert!(
            bot.session_detail()
                .await
                .session
                .expect("a session")
                .last_seq
                < 120,
            "never"
        );
    };
    assert_eq!(
        (&event["first_seq"], &event["number"]),
        (&1.into(), &1.into()),
        "{event}"
    );
    bot.exchanges(30).await;
    bot.journal_is_whole().await;
    let text = bot.session_detail().await.summary_text;
    assert!(
        text.contains(&order(0)) && text.contains("## Recent details"),
        "{text}"
    );
}

/// A conversation of one-word messages, longer than the history.
async fn short_talk(durability: &str) {
    let section = format!("journal: {{ durability: {durability} }}");
    let daemon = Daemon::with(Setup::default().section(&section)).await;
    let mut client = daemon.sessions();
    for number in 0..260 {
        let window = ask(
            &mut client,
            window_request_with([user(&format!("hi {number}"))]),
        )
        .await;
        let report = report(&window);
        let left_out = |reason| {
            [
                OmissionReason::Dropped,
                OmissionReason::Cut,
                OmissionReason::Salience,
            ]
            .contains(&reason)
        };
        let hidden = report.omissions.iter().filter(|it| left_out(it.reason()));
        assert_eq!(hidden.count(), 0, "{durability}, {number}: {report:?}");
        assert!(!report.degraded, "{durability}, {number}: {report:?}");
        let answer = append("chat", [assistant(&format!("ok {number}"))]);
        client.append(answer).await.expect("appended");
    }
}

#[tokio::test]
async fn short_messages_are_never_hidden_without_a_summary() {
    short_talk("sync").await;
}

#[tokio::test]
async fn short_messages_are_never_hidden_with_durability_off() {
    short_talk("off").await;
}
