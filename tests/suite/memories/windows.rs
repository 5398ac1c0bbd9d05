//! Memories in windows: a separate block at the end, within its own budget.
//!
//! The block never changes the prefix and never fails a call.

use memoird_proto::v1::{
    Budget, BuildContextRequest, BuildContextResponse, ContextReport, MessageFormat, RecallRequest,
};
use serde_json::Value;
use tonic::Code;

use crate::harness::{
    Daemon, Embeddings, Sessions, Setup, append, assistant, eventually, fact, memories_of,
    query_of, refused, remember, remember_new, tool_results, tool_uses, user,
};

const FORMATS: [MessageFormat; 3] = [
    MessageFormat::Openai,
    MessageFormat::OpenaiResponses,
    MessageFormat::Anthropic,
];

/// A request for a window of `chat` with ann's memories for this query.
fn window(format: MessageFormat, query: &str) -> BuildContextRequest {
    BuildContextRequest {
        session_id: "chat".into(),
        format: format.into(),
        memories: Some(query_of("ann", query)),
        ..BuildContextRequest::default()
    }
}

async fn ask(client: &mut Sessions, request: BuildContextRequest) -> BuildContextResponse {
    let answer = client
        .build_context(request)
        .await
        .expect("a window")
        .into_inner();
    let (report, block) = (report(&answer), &answer.memories_text);
    let tokens = report.tokens_by_block.expect("blocks");
    let all = tokens.system + tokens.summary + tokens.memories + tokens.anchor + tokens.tail;
    assert_eq!(all, report.tokens_total, "{report:?}");
    assert!(report.tokens_total <= report.input_budget, "{report:?}");
    assert_eq!(tokens.memories > 0, !block.is_empty(), "{report:?}");
    assert_eq!(answer.memories.is_empty(), block.is_empty(), "{block:?}");
    for hit in &answer.memories {
        let memory = hit.memory.as_ref().expect("a memory");
        assert!(
            block.contains(&memory.content),
            "{block:?} lacks {memory:?}"
        );
    }
    answer
}

#[track_caller]
fn report(answer: &BuildContextResponse) -> &ContextReport {
    answer.report.as_ref().expect("a report")
}

#[track_caller]
fn messages(answer: &BuildContextResponse) -> Vec<Value> {
    serde_json::from_str(&answer.messages_json).expect("a JSON array")
}

/// A block as it appears in JSON.
fn in_json(block: &str) -> String {
    let quoted = Value::from(block).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

async fn daemon_with(facts: &[&str]) -> Daemon {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    for content in facts {
        remember_new(&mut client, fact("ann", content)).await;
    }
    daemon
}

#[tokio::test]
async fn explained_recall_returns_score_parts_and_is_not_counted() {
    let daemon = daemon_with(&["Ann's launch is in May"]).await;
    let mut client = daemon.sessions();
    let turns = [user("When is my launch?")];
    client
        .append(append("chat", turns))
        .await
        .expect("appended");
    let mut request = window(MessageFormat::Openai, "launch");
    let plain = ask(&mut client, request.clone()).await;
    assert_eq!(plain.memories[0].parts, None);
    let told = async || memories_of(&mut daemon.memories(), "ann").await[0].recall_count;
    eventually("it counts", async || (told().await == 1).then_some(())).await;
    request.memories.as_mut().expect("a recall").explain = true;
    let explained = ask(&mut client, request).await;
    let hit = &explained.memories[0];
    let parts = hit.parts.as_ref().expect("its parts");
    let score = (parts.fused + parts.beside) * parts.importance * parts.recency;
    assert!((score - hit.score).abs() < 1e-9, "{hit:?}");
    // Recalls are counted in order, so the count of an earlier one would show by now.
    ask(&mut client, window(MessageFormat::Openai, "launch")).await;
    eventually("the last one counts", async || {
        (told().await >= 2).then_some(())
    })
    .await;
    assert_eq!(told().await, 2);
}

#[tokio::test]
async fn memory_block_is_last_user_message_in_every_format() {
    let daemon = daemon_with(&["Ann's launch is in May", "The launch is in Oslo"]).await;
    let mut client = daemon.sessions();
    let turns = [user("hello"), assistant("hi"), user("When is my launch?")];
    client
        .append(append("chat", turns))
        .await
        .expect("appended");
    for format in FORMATS {
        let with = ask(&mut client, window(format, "launch")).await;
        assert_eq!(with.memories.len(), 2, "{format:?}");
        assert!(
            with.memories_text.contains("recalled"),
            "it is marked: {}",
            with.memories_text
        );
        let json = &with.messages_json;
        let block = in_json(&with.memories_text);
        assert_eq!(json.matches(&block).count(), 1, "{format:?}: {json}");
        let behind = &json[json.find(&block).expect("found") + block.len()..];
        assert!(
            !behind.contains("\"text\":") && !behind.contains("\"content\":"),
            "{behind}"
        );
        let last = messages(&with).pop().expect("a message");
        assert_eq!(last["role"], "user", "{format:?}");
        assert!(last.to_string().contains(&block), "{format:?}: {last}");
        if format == MessageFormat::Anthropic {
            let roles: Vec<String> = messages(&with)
                .iter()
                .map(|message| message["role"].to_string())
                .collect();
            assert!(
                roles.windows(2).all(|pair| pair[0] != pair[1]),
                "{roles:?} take turns"
            );
        }
        let plain = BuildContextRequest {
            memories: None,
            ..window(format, "")
        };
        let plain = ask(&mut client, plain).await;
        assert!(plain.memories_text.is_empty() && plain.memories.is_empty());
        assert_eq!(plain.turns, with.turns, "the stored turns are the same");
    }
    // For bots that use `turns`, the text is in a separate field.
    let turns = ask(&mut client, window(MessageFormat::Unspecified, "launch")).await;
    assert_eq!(
        (turns.memories.len(), turns.messages_json.as_str()),
        (2, "")
    );
    assert!(!turns.memories_text.is_empty());
    let nothing = ask(&mut client, window(MessageFormat::Openai, "xylophone")).await;
    assert!(nothing.memories_text.is_empty());
}

#[tokio::test]
async fn memory_block_never_follows_pending_tool_call() {
    let daemon = daemon_with(&["Ann's launch is in May"]).await;
    let mut client = daemon.sessions();
    let turns = [user("When is my launch?"), tool_uses(&["a"])];
    client
        .append(append("chat", turns))
        .await
        .expect("appended");
    for format in FORMATS {
        let waiting = ask(&mut client, window(format, "launch")).await;
        let all = messages(&waiting);
        let last = all.last().expect("a message").to_string();
        assert!(!last.contains("launch is in May"), "{format:?}: {last}");
        assert!(
            waiting.messages_json.contains("launch is in May"),
            "{format:?}: {all:?}"
        );
    }
    client
        .append(append("chat", [tool_results(&["a"])]))
        .await
        .expect("appended");
    for format in FORMATS {
        let answered = ask(&mut client, window(format, "launch")).await;
        let last = messages(&answered).pop().expect("a message").to_string();
        assert!(last.contains("launch is in May"), "{format:?}: {last}");
    }
}

#[tokio::test]
async fn messages_before_memory_block_are_byte_stable() {
    let daemon = daemon_with(&[]).await;
    let (mut client, mut memories) = (daemon.sessions(), daemon.memories());
    for format in [MessageFormat::Openai, MessageFormat::OpenaiResponses] {
        let session = format!("chat {format:?}");
        let asked = |query: &str| BuildContextRequest {
            session_id: session.clone(),
            ..window(format, query)
        };
        let mut before = String::from("[");
        for number in 0..12 {
            // Each round recalls another memory, so only the block changes.
            let content = format!("Visit {number} of the museum was fun {format:?}");
            remember(&mut memories, fact("ann", &content)).await;
            let turns = [
                assistant(&format!("Answer {number}")),
                user(&format!("Day {number}")),
            ];
            client
                .append(append(&session, turns))
                .await
                .expect("appended");
            let with = ask(&mut client, asked(&format!("museum visit {number}"))).await;
            let plain = BuildContextRequest {
                memories: None,
                ..asked("")
            };
            let plain = ask(&mut client, plain).await.messages_json;
            let open = plain.strip_suffix(']').expect("an array").to_owned();
            assert!(
                with.messages_json.starts_with(&open),
                "{open}\n{}",
                with.messages_json
            );
            assert!(open.starts_with(&before), "{before}\n{open}");
            assert!(with.messages_json.len() > plain.len());
            let (stable, tokens) = {
                let report = report(&with);
                (
                    report.stable_prefix_tokens,
                    report.tokens_by_block.expect("blocks"),
                )
            };
            assert!(
                stable <= tokens.system + tokens.anchor + tokens.tail,
                "without the block"
            );
            before = open;
        }
    }
}

#[tokio::test]
async fn memories_already_in_window_are_not_repeated() {
    let daemon = daemon_with(&["Ann's launch is in May", "The launch is in Oslo"]).await;
    let mut client = daemon.sessions();
    let said = user("As I said: Ann's launch is in May. Where is it?");
    client
        .append(append("chat", [said]))
        .await
        .expect("appended");
    for format in FORMATS {
        let answer = ask(&mut client, window(format, "launch")).await;
        assert_eq!(
            answer.memories.len(),
            1,
            "{format:?}: {}",
            answer.memories_text
        );
        assert!(
            answer.memories_text.contains("Oslo"),
            "{}",
            answer.memories_text
        );
        assert_eq!(
            answer.messages_json.matches("launch is in May").count(),
            1,
            "{format:?}"
        );
    }
    // Also if the turn with the same text is appended in the same call.
    let request = BuildContextRequest {
        append: Some(append("", [user("The launch is in Oslo!")])),
        ..window(MessageFormat::Openai, "launch")
    };
    let answer = ask(&mut client, request).await;
    assert!(answer.memories.is_empty(), "{}", answer.memories_text);
}

#[tokio::test]
async fn memory_block_is_limited_by_window_tokens_and_budget() {
    let long = "a very long story about the museum and everything in it ".repeat(8);
    let stories: Vec<String> = (0..40)
        .map(|number| format!("Story {number}: {long}"))
        .collect();
    let setup = Setup::default().section("long_term: { window_tokens: 600 }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.memories();
    for story in &stories {
        remember_new(&mut client, fact("ann", story)).await;
    }
    let mut client = daemon.sessions();
    client
        .append(append("chat", [user("Tell me of it")]))
        .await
        .expect("appended");
    let request = window(MessageFormat::Openai, "museum story");
    let answer = ask(&mut client, request.clone()).await;
    let tokens = report(&answer).tokens_by_block.expect("blocks").memories;
    assert!((100..=600).contains(&tokens), "{tokens}");
    assert!(
        (1..40).contains(&answer.memories.len()),
        "{}",
        answer.memories.len()
    );

    // With a budget too small for both, turns take precedence and the call succeeds.
    for context_window in [40, 80, 200, 400, 800] {
        let budget = Budget {
            context_window: Some(context_window),
            max_reply_tokens: Some(0),
            safety_headroom: Some(0),
            tool_result_headroom: Some(0),
        };
        let tight = BuildContextRequest {
            budget: Some(budget),
            ..request.clone()
        };
        let answer = ask(&mut client, tight).await;
        assert_eq!(report(&answer).input_budget, context_window);
        assert_eq!(answer.turns.len(), 1, "the turn is there: {context_window}");
        if context_window < 80 {
            assert!(answer.memories.is_empty());
        }
    }
}

#[tokio::test]
async fn broken_embedder_degrades_block_to_lexical_with_note() {
    let provider = Embeddings::start().await;
    provider.set_down(true);
    let nobody = "long_term: { query_wait: 100ms, embedder: { openai: { \
                  base_url: 'http://127.0.0.1:1/v1', model: m } } }";
    for section in [provider.section("m"), nobody.to_owned()] {
        let daemon = Daemon::with(Setup::default().section(section)).await;
        remember_new(
            &mut daemon.memories(),
            fact("ann", "Ann's launch is in May"),
        )
        .await;
        let mut client = daemon.sessions();
        client
            .append(append("chat", [user("When is it?")]))
            .await
            .expect("appended");
        let answer = ask(&mut client, window(MessageFormat::Openai, "launch")).await;
        assert_eq!(answer.memories.len(), 1);
        let notes = report(&answer).notes.join("\n");
        assert!(
            notes.contains("words") || notes.contains("lexical"),
            "it says so: {notes:?}"
        );
    }
}

#[tokio::test]
async fn recall_of_window_is_validated_before_append_and_uses_session_subject() {
    let daemon = daemon_with(&["Ann's launch is in May"]).await;
    let mut client = daemon.sessions();
    let mut said = append("chat", [user("When is it?")]);
    said.subject = "ann".into();
    client.append(said).await.expect("appended");
    let ask_for = |memories: RecallRequest| BuildContextRequest {
        append: Some(append("", [user("and now?")])),
        memories: Some(memories),
        ..window(MessageFormat::Openai, "")
    };
    let launch = RecallRequest {
        query: "launch".into(),
        ..RecallRequest::default()
    };
    let other = RecallRequest {
        session_id: "other".into(),
        ..launch.clone()
    };
    let code = Code::InvalidArgument;
    refused(
        client.build_context(ask_for(other)).await,
        code,
        "SESSION_ID_MISMATCH",
    );
    let kind = RecallRequest {
        kinds: vec![9],
        ..launch.clone()
    };
    refused(
        client.build_context(ask_for(kind)).await,
        code,
        "MEMORY_KIND_INVALID",
    );
    // Without subjects, the session's subject is used. A recalled fact counts as known to the
    // session.
    let answer = ask(&mut client, ask_for(launch)).await;
    assert_eq!(
        (answer.memories.len(), answer.turns.len()),
        (1, 2),
        "the refused said nothing"
    );
    let mut memories = daemon.memories();
    let counted = eventually("the recall is counted", async || {
        let known = memories_of(&mut memories, "ann").await;
        (known[0].recall_count == 1).then_some(())
    });
    counted.await;
    let source = memoird_proto::v1::MemorySource {
        session_id: "chat".into(),
        ..Default::default()
    };
    let mut echo = fact("ann", "Ann's launch is in May");
    echo.source = Some(source);
    let echo = remember(&mut memories, echo).await;
    assert_eq!(echo.outcome(), memoird_proto::v1::RememberOutcome::Recalled);
}
