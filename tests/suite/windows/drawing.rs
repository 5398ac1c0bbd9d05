//! The window as shown to operators, and the effect of a reload on the next one.

use serde_json::Value;

use super::bot::{ask, head_tail, outline, report, sliding, window_request, words};
use super::plain;
use crate::harness::{Daemon, Setup, append, ask_as, assistant, fails, reload, user};

fn context(settings: &str) -> Setup {
    let roomy = plain().section("short_term: { max_history_turns: 200 }");
    roomy.section(format!("context: {{ {settings} }}"))
}

async fn talk(daemon: &Daemon) {
    let mut client = daemon.sessions();
    for number in 0..20 {
        let turns = [user(&words(number)), assistant(&words(number))];
        client
            .append(append("chat", turns))
            .await
            .expect("appended");
    }
}

#[tokio::test]
async fn window_drawing_fits_terminal_and_shows_omissions() {
    let daemon = Daemon::with(context("policy: head_tail, turns: 10")).await;
    talk(&daemon).await;
    let drawn = ask_as(
        &daemon,
        &["window", "chat", "--context-window", "20000"],
        "",
    )
    .await;
    assert_eq!(
        (drawn.code, drawn.stderr.as_str()),
        (Some(0), ""),
        "{drawn:?}"
    );
    let text = drawn.stdout;
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80,
            "{}: {line}",
            line.chars().count()
        );
    }
    let bar = text
        .lines()
        .find(|line| line.starts_with('['))
        .expect("a bar");
    assert!(
        bar.contains("at") && bar.contains('.') && bar.contains('R'),
        "{bar}"
    );
    for word in [
        "anchor",
        "tail",
        "free",
        "context window",
        "20,000",
        "head_tail",
    ] {
        assert!(text.contains(word), "{word:?} in {text}");
    }
    assert!(
        text.contains("2-32") || text.contains("2 to 32"),
        "the omitted turns in {text}"
    );
    assert!(!text.contains('\u{1b}'), "no colours into a pipe");
    let window = ask(&mut daemon.sessions(), window_request()).await;
    assert_eq!(
        report(&window).stable_prefix_tokens,
        0,
        "nothing was sent by looking"
    );

    let args = [
        "window",
        "chat",
        "--format",
        "anthropic",
        "--model",
        "claude-opus-5",
    ];
    let printed = ask_as(&daemon, &args, "").await.stdout;
    let at = printed.find("\n[\n").expect("an array");
    let messages: Value = serde_json::from_str(&printed[at..]).expect("JSON at the end");
    assert_eq!(messages[0]["role"], "user");
    fails(
        &ask_as(&daemon, &["window", "chat", "--model", "nobody"], "").await,
        1,
        "UNKNOWN_MODEL",
    );
}

#[tokio::test]
async fn window_command_json_matches_report() {
    let daemon = Daemon::with(context("policy: head_tail, turns: 10")).await;
    talk(&daemon).await;
    let json = ask_as(&daemon, &["--json", "window", "chat"], "")
        .await
        .json();
    let window = ask(&mut daemon.sessions(), window_request()).await;
    let report = report(&window);
    assert_eq!(
        json["report"]["tokens_total"], report.tokens_total,
        "{json}"
    );
    assert_eq!(
        json["report"]["input_budget"], report.input_budget,
        "{json}"
    );
    assert_eq!(
        json["report"]["turns_omitted"], report.turns_omitted,
        "{json}"
    );
    assert_eq!(
        json["turns"].as_array().map(Vec::len),
        Some(window.turns.len()),
        "{json}"
    );
}

#[tokio::test]
async fn reload_changes_policy_and_models_of_next_window() {
    let mut daemon = Daemon::with(context("policy: head_tail")).await;
    talk(&daemon).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    let before = ask(&mut client, window_request()).await;
    assert_eq!(
        (before.turns.len(), report(&before).policy),
        (40, head_tail(0))
    );
    daemon.rewrite(context(
        "policy: sliding_window, turns: 3, default_model: ours, \
         models: { ours: { context_window: 30000, safety_headroom: 0 } }",
    ));
    let (_, refused) = reload(&mut admin).await;
    assert_eq!(refused, [""; 0]);
    let after = ask(&mut client, window_request()).await;
    let report_after = report(&after);
    assert_eq!(
        (report_after.policy, report_after.model.as_str()),
        (sliding(3), "ours")
    );
    assert_eq!(report_after.input_budget, 30_000 - 3_750 - 7_500);
    assert_eq!(outline(&after), "[elision] 38 39 40");
    daemon.rewrite(context("policy: head_tail"));
    reload(&mut admin).await;
    assert_eq!(
        ask(&mut client, window_request()).await.turns,
        before.turns,
        "and back"
    );
}
