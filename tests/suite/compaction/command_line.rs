//! Compaction commands and their output in a terminal.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::harness::{
    Daemon, Events, Outcome, Setup, Summaries, SummaryReply, Wire, ask_as, binary, fails,
};

use super::bot::{Bot, ROOMY, STRICT, order};

/// Returns the output of a successful command, after checking that it has no control characters.
#[track_caller]
fn printed(outcome: &Outcome) -> &str {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        !outcome.stdout.contains('\u{1b}'),
        "no colours into a pipe: {outcome:?}"
    );
    &outcome.stdout
}

#[track_caller]
fn has_all(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in\n{text}");
    }
}

async fn asked(daemon: &Daemon, args: &[&str]) -> Outcome {
    ask_as(daemon, args, "").await
}

#[tokio::test]
async fn compact_command_makes_shows_and_undoes_summary() {
    let daemon = Daemon::with(Setup::default().section(ROOMY)).await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(8).await;

    let compact = asked(&daemon, &["sessions", "compact", "chat", "--keep", "2"]).await;
    let text = printed(&compact);
    has_all(
        text,
        &[
            "summary no. 1, of 18 turns (1-18 newly), by extractive",
            "tokens",
        ],
    );
    has_all(text, &[&order(0), "## "]);
    let again = asked(&daemon, &["sessions", "compact", "chat", "--keep", "3"]).await;
    assert!(printed(&again).starts_with("nothing new to summarize; the summary stays: no. 1"));

    let show = asked(&daemon, &["sessions", "show", "chat"]).await;
    has_all(
        printed(&show),
        &["summary", "no. 1, of 18 turns", &order(1)],
    );
    let json = asked(&daemon, &["--json", "sessions", "show", "chat"])
        .await
        .json();
    assert_eq!(json["summary"]["number"], 1, "{json}");
    assert_eq!(
        json["summary_text"],
        bot.session_detail().await.summary_text
    );
    assert_eq!(
        json["session"]["compaction"]["breaker"], "BREAKER_STATE_CLOSED",
        "{json}"
    );
    assert_eq!(json["session"]["has_summary"], true, "{json}");

    let window = asked(&daemon, &["window", "chat"]).await;
    let text = printed(&window);
    has_all(
        text,
        &[
            "summary",
            "no. 1, of 18 turns",
            "18 turns summarized: 1-18",
            "[summary]",
        ],
    );
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80,
            "{}: {line}",
            line.chars().count()
        );
    }
    let json = asked(&daemon, &["--json", "window", "chat"]).await.json();
    assert_eq!(json["report"]["summary"]["through_seq"], 18, "{json}");
    assert!(
        json["report"]["tokens_by_block"]["summary"].as_u64() > Some(0),
        "{json}"
    );

    let undo = asked(&daemon, &["sessions", "undo-compaction", "chat"]).await;
    let expected = "taken back: windows show 18 turns again, and there is no summary any more\n";
    assert_eq!(printed(&undo), expected);
    let undo = asked(&daemon, &["sessions", "undo-compaction", "chat"]).await;
    fails(&undo, 1, "NO_SUMMARY");
    let json = asked(
        &daemon,
        &["--json", "sessions", "compact", "chat", "--keep", "0"],
    )
    .await
    .json();
    assert_eq!(
        (&json["is_new"], &json["first_seq"]),
        (&true.into(), &1.into()),
        "{json}"
    );
    assert_eq!(json["summary_info"]["number"], 2, "{json}");
    let json = asked(&daemon, &["--json", "sessions", "undo-compaction", "chat"])
        .await
        .json();
    assert_eq!(json["session"]["has_summary"], false, "{json}");
}

/// The lines that `memoird watch` prints after the first event, up to one that contains `word`.
async fn watched(daemon: &Daemon, word: &str) -> Vec<String> {
    let mut watching = Command::new(binary())
        .args(["--addr", daemon.grpc_addr(), "watch", "--after", "1-0"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    let mut seen = Vec::new();
    let reading = async {
        while let Some(line) = lines.next_line().await.expect("text") {
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(word)) {
                return;
            }
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(30), reading).await;
    assert!(read.is_ok(), "no {word}: {seen:#?}");
    seen
}

#[tokio::test]
async fn watch_command_prints_compactions_failures_and_undo() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let setup = provider
        .setup(Wire::OpenAi, "tries: 1,", STRICT)
        .section(ROOMY);
    let daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(8).await;
    let compact = ["sessions", "compact", "chat", "--keep", "2"];
    fails(&asked(&daemon, &compact).await, 1, "COMPACTION_FAILED");
    provider.set_reply(SummaryReply::Well);
    printed(&asked(&daemon, &compact).await);
    printed(&asked(&daemon, &["sessions", "undo-compaction", "chat"]).await);
    let lines = watched(&daemon, "compaction_undone").await;
    let told: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split("  chat  ").nth(1))
        .collect();
    let [.., failed, compacted, undone] = &told[..] else {
        panic!("{lines:#?}")
    };
    assert!(
        failed.starts_with("refusal (command), breaker closed: "),
        "{lines:#?}"
    );
    let start = "summary 1 of turns 1-18 by openai:small (command), ";
    assert!(compacted.starts_with(start), "{lines:#?}");
    assert!(compacted.ends_with(" tokens"), "{lines:#?}");
    assert_eq!(*undone, "summary 1", "{lines:#?}");
}

#[tokio::test]
async fn impossible_compaction_fails_with_one_line() {
    let daemon = Daemon::with(Setup::default().section(ROOMY)).await;
    for args in [
        &["sessions", "compact", "nobody"][..],
        &["sessions", "undo-compaction", "nobody"],
    ] {
        fails(&asked(&daemon, args).await, 1, "SESSION_NOT_FOUND");
    }
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(2).await;
    let few = asked(&daemon, &["sessions", "compact", "chat"]).await;
    assert_eq!(printed(&few), "nothing to summarize\n");
    let many = asked(&daemon, &["sessions", "compact", "chat", "--keep", "1001"]).await;
    fails(&many, 1, "KEEP_EXCHANGES_INVALID");
    fails(
        &asked(&daemon, &["sessions", "compact", "chat", "--keep", "-1"]).await,
        2,
        "-1",
    );
}

#[tokio::test]
async fn compaction_failures_are_shown_by_sessions_show() {
    let provider = Summaries::start(SummaryReply::Braces).await;
    let setup = provider
        .setup(Wire::Anthropic, "tries: 1,", STRICT)
        .section(ROOMY);
    let daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    for _ in 0..3 {
        bot.until(&mut events, "compaction_failed").await;
    }
    let show = asked(&daemon, &["sessions", "show", "chat", "--turns", "1"]).await;
    has_all(
        printed(&show),
        &["compaction", "breaker ", " times in a row"],
    );
    has_all(printed(&show), &["field_missing", "details is empty"]);
    let window = asked(&daemon, &["window", "chat", "--context-window", "20000"]).await;
    printed(&window);
    let compact = asked(&daemon, &["sessions", "compact", "chat"]).await;
    fails(&compact, 1, "COMPACTION_FAILED");
    assert!(compact.stderr.contains("details is empty"), "{compact:?}");
    assert_eq!(compact.stderr.trim_end().lines().count(), 1, "{compact:?}");
}
