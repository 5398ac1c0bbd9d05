//! Operating windows: configuration, reloads, metrics and the command line.

use super::plain;
use crate::harness::{Daemon, Setup, ask_as, fails, http_get, reload, say};

fn context(settings: &str) -> Setup {
    plain().section(format!("context: {{ {settings} }}"))
}

#[tokio::test]
async fn invalid_window_settings_are_reported_and_prevent_start() {
    let wrong = context(
        "policy: sliding_window, watermark: 25%, default_model: nobody, \
         models: { ours: { tokenizer: { file: ./no-such.json } } }",
    );
    let ended = Daemon::refused(&wrong).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    for part in [
        "context.turns: must be at least 1",
        "context.floor: must be less than watermark",
        "context.default_model: unknown [not shown]; expected one of default, ",
        "context.models.ours: is not a built-in model: set its context_window",
        "context.models.ours.tokenizer: ./no-such.json cannot be used",
    ] {
        assert!(ended.stderr.contains(part), "{part:?} in {}", ended.stderr);
    }
}

#[tokio::test]
async fn window_settings_are_reloadable() {
    let mut daemon = Daemon::with(context("watermark: 90%")).await;
    let mut admin = daemon.admin();
    daemon.rewrite(context(
        "floor: 35%, models: { ours: { context_window: 90000 } }",
    ));
    let (applied, refused) = reload(&mut admin).await;
    assert_eq!(
        applied,
        [
            "context.floor",
            "context.models.ours.context_window",
            "context.watermark"
        ]
    );
    assert_eq!(refused, [""; 0]);
}

#[tokio::test]
async fn window_metrics_exist_from_first_turn() {
    let daemon = Daemon::with(plain()).await;
    say(&mut daemon.sessions(), "chat", "hello").await;
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    for name in [
        "windows_built",
        "windows_refused",
        "window_tokens",
        "window_tokens_saved",
        "window_prefix_tokens",
        "window_cuts",
        "window_results_trimmed",
    ] {
        let sample = format!("memoird_{name}_total{{tenant=\"default\"}} ");
        assert!(page.contains(&sample), "{sample} in {page}");
    }
    assert!(
        page.contains("memoird_call_seconds_count{method=\"BuildContext\"} 0"),
        "{page}"
    );
}

#[tokio::test]
async fn window_command_reports_invalid_arguments() {
    let daemon = Daemon::with(plain()).await;
    fails(
        &ask_as(&daemon, &["window", "nobody"], "").await,
        1,
        "SESSION_NOT_FOUND",
    );
    for (args, word) in [
        (&["window"][..], "SESSION"),
        (&["window", "a", "--policy", "sliding_window"], "--turns"),
        (
            &["window", "a", "--policy", "salience", "--turns", "3"],
            "--turns",
        ),
        (&["window", "a", "--turns", "3"], "--policy"),
        (&["window", "a", "--policy", "psychic"], "token_budget"),
        (&["window", "a", "--format", "psychic"], "openai-responses"),
    ] {
        fails(&ask_as(&daemon, args, "").await, 2, word);
    }
    let keyed = Daemon::with(plain().two_tenants("", "")).await;
    fails(&ask_as(&keyed, &["window", "a"], "").await, 77, "NO_KEY");
}
