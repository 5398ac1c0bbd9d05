//! Replays of recorded conversations: each message is stored once and unchanged.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{GetStatsRequest, Part, Role, Turn};
use serde_json::{Value, json};

use crate::harness::{Daemon, Outcome, Setup, eventually, journal, live, run};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn conversations(path: &Path) -> Vec<(String, Vec<Value>)> {
    let text = std::fs::read_to_string(path).expect("a fixture");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let read = |line: Value| {
        let id = line["id"].as_str().expect("an id").to_owned();
        (id, line["messages"].as_array().expect("messages").clone())
    };
    lines.map(read).collect()
}

/// A canonical text of a message in either provider's format.
fn message_text(message: &Value) -> String {
    let mut words = match message["role"].as_str().expect("a role") {
        "user" => "USER".to_owned(),
        "assistant" => "ASSISTANT".to_owned(),
        "tool" => "TOOL".to_owned(),
        "system" | "developer" => "SYSTEM".to_owned(),
        other => panic!("{other}"),
    };
    if let Some(id) = message["tool_call_id"].as_str() {
        let _ = write!(words, " answer {id}: {}", text(&message["content"]));
        return words;
    }
    match &message["content"] {
        Value::String(text) => words += &format!(" {text:?}"),
        Value::Array(blocks) => blocks.iter().for_each(|block| words += &block_text(block)),
        _ => {}
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let (name, input) = (text(&function["name"]), text(&function["arguments"]));
        let _ = write!(words, " call {} {name} {input}", text(&call["id"]));
    }
    words
}

fn block_text(block: &Value) -> String {
    match block["type"].as_str().expect("a type") {
        "text" => format!(" {:?}", text(&block["text"])),
        "thinking" => format!(" thought {:?}", text(&block["thinking"])),
        "tool_use" => {
            let (id, name) = (text(&block["id"]), text(&block["name"]));
            format!(" call {id} {name} {}", block["input"])
        }
        "tool_result" => {
            format!(
                " answer {}: {}",
                text(&block["tool_use_id"]),
                text(&block["content"])
            )
        }
        other => panic!("{other}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// The same canonical text for a stored turn.
fn turn_text(turn: &Turn) -> String {
    let role = Role::try_from(turn.role).expect("a role").as_str_name();
    let mut words = role.strip_prefix("ROLE_").expect("a prefix").to_owned();
    for part in &turn.parts {
        let _ = match part {
            Part {
                part: Some(Kind::Text(text)),
                ..
            } => write!(words, " {text:?}"),
            Part {
                part: Some(Kind::Thinking(thought)),
                ..
            } => {
                write!(words, " thought {:?}", thought.text)
            }
            Part {
                part: Some(Kind::ToolUse(call)),
                ..
            } => {
                write!(words, " call {} {} {}", call.id, call.name, call.input_json)
            }
            Part {
                part: Some(Kind::ToolResult(answer)),
                ..
            } => {
                write!(words, " answer {}: {}", answer.tool_use_id, answer.content)
            }
            other => panic!("{other:?}"),
        };
    }
    words
}

async fn replay(daemon: &Daemon, file: &Path, format: &str, more: &[&str]) -> Outcome {
    let file = file.display().to_string();
    let mut args = vec![
        "--addr",
        daemon.grpc_addr(),
        "--json",
        "replay",
        &file,
        "--format",
        format,
    ];
    args.extend(more);
    run(&args, &[]).await
}

/// Asserts that each session has its conversation, message by message.
async fn all_is_there(daemon: &Daemon, file: &Path, prefix: &str) {
    let mut client = daemon.sessions();
    for (id, messages) in conversations(file) {
        let session = format!("{prefix}{id}");
        let expected: Vec<String> = messages.iter().map(message_text).collect();
        let turns = journal(&mut client, &session, "").await;
        assert_eq!(
            turns.iter().map(turn_text).collect::<Vec<_>>(),
            expected,
            "{session}"
        );
        if messages.len() < 50 {
            let turns = live(&mut client, &session).await;
            assert_eq!(
                turns.iter().map(turn_text).collect::<Vec<_>>(),
                expected,
                "{session}"
            );
        }
    }
}

#[tokio::test]
async fn replay_stores_every_message_and_second_replay_adds_nothing() {
    let daemon = Daemon::start().await;
    for (format, name) in [("openai", "openai.jsonl"), ("anthropic", "anthropic.jsonl")] {
        let file = fixture(name);
        let all = conversations(&file);
        let messages: usize = all.iter().map(|(_, messages)| messages.len()).sum();
        let prefix = format!("{format}:");
        for duplicates in [0, messages] {
            let more = ["--session-prefix", &prefix];
            let summary = replay(&daemon, &file, format, &more).await.json();
            assert_eq!(summary["conversations"], json!(all.len()), "{summary}");
            assert_eq!(summary["messages"], json!(messages), "{summary}");
            assert_eq!(summary["duplicates"], json!(duplicates), "{summary}");
            all_is_there(&daemon, &file, &prefix).await;
        }
    }
    let table = ["--addr", daemon.grpc_addr(), "replay"];
    let file = fixture("openai.jsonl").display().to_string();
    let again = run(&[&table[..], &[&file, "--format", "openai"]].concat(), &[]).await;
    assert!(
        again.stdout.contains("conversations") && again.stderr.is_empty(),
        "{again:?}"
    );
}

/// A file with `conversations` conversations of `messages` messages, some with tool calls.
fn large_file(dir: &Path, conversations: usize, messages: usize) -> PathBuf {
    let mut lines = String::new();
    for conversation in 0..conversations {
        let message = |number: usize| match number % 4 {
            0 => json!({"role": "user", "content": format!("{conversation}: question {number}")}),
            1 => json!({"role": "assistant", "content": null, "tool_calls": [{
                "id": format!("c{number}"), "type": "function",
                "function": {"name": "look", "arguments": format!("{{ \"n\":{number}}}")},
            }]}),
            2 => json!({"role": "tool", "tool_call_id": format!("c{}", number - 1),
                "content": format!("found \u{1f408} {number}")}),
            _ => json!({"role": "assistant", "content": format!("answer {number}")}),
        };
        let messages: Vec<Value> = (0..messages).map(message).collect();
        let line = json!({"id": format!("conversation {conversation}"), "messages": messages});
        lines += &format!("{line}\n");
    }
    let path = dir.join("large.jsonl");
    std::fs::write(&path, lines).expect("written");
    path
}

#[tokio::test]
async fn replay_continues_across_kill_and_restart_of_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = large_file(dir.path(), 24, 48);
    let mut daemon = Daemon::start().await;
    // A fixed port, so that the replay finds the restarted daemon.
    let addr = daemon.grpc_addr().to_owned();
    let setup = daemon.setup().listen(&addr);
    let path = file.display().to_string();
    let args = [
        "--addr", &addr, "--json", "replay", &path, "--format", "openai",
    ];
    let args = [&args[..], &["--retry-for", "60s"]].concat();
    let killing = async {
        for _ in 0..2 {
            let mut admin = daemon.admin();
            eventually("a good part is played", async || {
                let stats = admin
                    .get_stats(GetStatsRequest::default())
                    .await
                    .ok()?
                    .into_inner();
                (stats.turns_appended >= 200).then_some(())
            })
            .await;
            daemon.kill9().await;
            daemon.restart_with(setup.clone()).await;
        }
    };
    let (outcome, ()) = tokio::join!(run(&args, &[]), killing);
    let summary = outcome.json();
    assert_eq!(summary["messages"], json!(24 * 48), "{summary}");
    assert!(summary["retries"].as_u64() > Some(0), "{summary}");
    all_is_there(&daemon, &file, "").await;
}

#[tokio::test]
async fn interrupted_replay_resumes_where_it_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = large_file(dir.path(), 24, 48);
    let mut daemon = Daemon::start().await;
    let mut admin = daemon.admin();
    let part = ["--retry-for", "0s"];
    let killing = async {
        eventually("a good part is played", async || {
            let stats = admin
                .get_stats(GetStatsRequest::default())
                .await
                .ok()?
                .into_inner();
            (stats.turns_appended >= 200).then_some(())
        })
        .await;
        let sent = std::process::Command::new("kill")
            .args(["-9", &daemon.pid()])
            .status();
        assert!(sent.expect("kill runs").success());
    };
    let (outcome, ()) = tokio::join!(replay(&daemon, &file, "openai", &part), killing);
    assert_eq!(outcome.code, Some(69), "{outcome:?}");
    assert!(
        outcome.stderr.contains("message "),
        "it says where: {outcome:?}"
    );
    daemon.ended().await;
    daemon.restart().await;
    let summary = replay(&daemon, &file, "openai", &[]).await.json();
    assert_eq!(summary["messages"], json!(24 * 48), "{summary}");
    // Up to 8 counted appends, one per parallel conversation, may not have been written.
    assert!(summary["duplicates"].as_u64() >= Some(200 - 8), "{summary}");
    all_is_there(&daemon, &file, "").await;
}

#[tokio::test]
async fn replay_longer_than_remembered_keys_stores_each_turn_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = large_file(dir.path(), 1, 1_100);
    let quick = Setup::default().section("journal: { durability: interval, flush_interval: 50ms }");
    let daemon = Daemon::with(quick).await;
    for duplicates in [0, 1_100] {
        let summary = replay(&daemon, &file, "openai", &[]).await.json();
        assert_eq!(summary["messages"], json!(1_100), "{summary}");
        assert_eq!(summary["duplicates"], json!(duplicates), "{summary}");
    }
    all_is_there(&daemon, &file, "").await;
    // The history starts with the task, and has each call with its result.
    let turns = live(&mut daemon.sessions(), "conversation 0").await;
    assert_eq!(turn_text(&turns[0]), "USER \"0: question 0\"");
    let calls = turns
        .iter()
        .filter(|turn| turn_text(turn).contains(" call "))
        .count();
    let answers = turns
        .iter()
        .filter(|turn| turn_text(turn).starts_with("TOOL"))
        .count();
    assert!(
        calls == answers && turns.len() <= 1_001,
        "{calls} calls, {answers} answers"
    );
}

#[tokio::test]
async fn replay_of_invalid_file_names_the_line() {
    let daemon = Daemon::start().await;
    let missing = replay(&daemon, Path::new("/proc/no-such-file"), "openai", &[]).await;
    assert_eq!(missing.code, Some(66), "{missing:?}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let good = r#"{"id":"a","messages":[{"role":"user","content":"hi"}]}"#;
    let cases = [
        (format!("{good}\nnonsense\n"), 65, "line 2"),
        (format!("{good}\n{good}\n"), 65, "line 2"),
        (
            format!("{good}\n{{\"id\":\"b\",\"messages\":[{{\"role\":\"x\"}}]}}\n"),
            1,
            "line 2",
        ),
    ];
    for (content, code, place) in cases {
        std::fs::write(file.path(), content).expect("written");
        let outcome = replay(&daemon, file.path(), "openai", &["--retry-for", "0s"]).await;
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains(place), "{outcome:?}");
    }
    assert_eq!(
        live(&mut daemon.sessions(), "a").await.len(),
        1,
        "what came before is played"
    );
}
