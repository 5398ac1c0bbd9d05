//! The stable prefix: between cuts a window only grows at its end, also across crashes.

use memoird_proto::v1::{BuildContextRequest, Role, Turn, WindowPolicy};

use super::bot::{
    ask, budget, bytes_of, head_tail, is_paired, outline, report, salience, token_budget,
    window_request, window_request_with, words,
};
use super::plain;
use crate::harness::{Daemon, append, assistant, tool_uses, turn, user};
use memoird_proto::v1::ToolResult;
use memoird_proto::v1::part::Part as Kind;

const ROOMY: &str = "short_term: { max_history_turns: 1000 }";

/// A tool result with this many lines.
fn long_result(id: &str, lines: usize) -> Turn {
    let content = (0..lines)
        .map(|line| format!("line {line} of {id}\n"))
        .collect();
    let result = ToolResult {
        tool_use_id: id.into(),
        content,
        ..ToolResult::default()
    };
    turn(Role::Tool, [Kind::ToolResult(result)])
}

/// The turns of one round. Every third has the same tool call, and every sixth a very long result.
fn round(number: usize) -> Vec<Turn> {
    let id = format!("call{number}");
    let lines = if number.is_multiple_of(6) { 900 } else { 30 };
    match number % 3 {
        0 => vec![
            user(&words(number)),
            tool_uses(&[&id]),
            long_result(&id, lines),
            assistant("I see"),
        ],
        1 => vec![user(&words(number)), assistant(&words(number))],
        _ => vec![
            Turn {
                salience: Some(0.1),
                ..user(&words(number))
            },
            assistant("short"),
        ],
    }
}

fn policies() -> [Option<WindowPolicy>; 4] {
    [head_tail(0), head_tail(9), token_budget(), salience()]
}

/// The number of leading turns that are identical in both windows.
fn same(before: &[Vec<u8>], after: &[Vec<u8>]) -> usize {
    before
        .iter()
        .zip(after)
        .take_while(|(before, after)| before == after)
        .count()
}

#[tokio::test]
async fn window_is_byte_prefix_of_next_window_between_cuts() {
    let daemon = Daemon::with(plain().section(ROOMY)).await;
    let mut client = daemon.sessions();
    for (place, policy) in policies().into_iter().enumerate() {
        let session = format!("chat {place}");
        let request = BuildContextRequest {
            session_id: session.clone(),
            policy,
            budget: budget(6_000),
            ..window_request()
        };
        let (mut before, mut cuts) = (Vec::new(), 0);
        for number in 0..60 {
            client
                .append(append(&session, round(number)))
                .await
                .expect("appended");
            let next = bytes_of(&daemon, &request).await;
            let shared = same(&before, &next);
            assert!(
                shared >= 1 || number == 0,
                "{policy:?}: not even the anchor at {number}"
            );
            cuts += usize::from(shared < before.len());
            before = next;
        }
        assert!((2..40).contains(&cuts), "{policy:?}: {cuts} cuts");
        let last = ask(&mut client, request).await;
        is_paired(&last.turns);
        let report = report(&last);
        assert_eq!(
            report.stable_prefix_tokens, report.tokens_total,
            "{policy:?}"
        );
    }
}

/// Fills a session until its window has just been cut, and has room before the next cut.
async fn settled(
    daemon: &Daemon,
    session: &str,
    policy: Option<WindowPolicy>,
) -> BuildContextRequest {
    let mut client = daemon.sessions();
    let request = BuildContextRequest {
        session_id: session.into(),
        policy,
        budget: budget(6_000),
        ..window_request()
    };
    for number in 0..200 {
        client
            .append(append(session, round(number)))
            .await
            .expect("appended");
        let window = ask(&mut client, request.clone()).await;
        let report = report(&window);
        let has_few = policy != head_tail(9) || window.turns.len() <= 9;
        let has_room = report.tokens_total < 4_500 && has_few;
        let fresh = report.stable_prefix_tokens < report.tokens_total / 2;
        if number > 20 && has_room && fresh {
            return request;
        }
    }
    panic!("{policy:?} never made a cut with room");
}

/// Asserts that windows of all policies are unchanged by `what`, and only grow with the next turn.
async fn survives(durability: &str, what: impl AsyncFn(&mut Daemon)) {
    let journal = format!("journal: {{ durability: {durability} }}");
    let mut daemon = Daemon::with(plain().section(ROOMY).section(journal)).await;
    let mut before = Vec::new();
    for (place, policy) in policies().into_iter().enumerate() {
        let request = settled(&daemon, &format!("chat {place}"), policy).await;
        let window = ask(&mut daemon.sessions(), request.clone()).await;
        before.push((
            request.clone(),
            outline(&window),
            bytes_of(&daemon, &request).await,
        ));
    }
    let shown: Vec<&str> = before
        .iter()
        .map(|(_, outline, _)| outline.as_str())
        .collect();
    assert!(
        shown.iter().all(|shown| shown.contains("elision")),
        "{shown:?}"
    );
    assert!(
        shown.iter().any(|shown| shown.contains("trimmed")),
        "{shown:?}"
    );
    assert!(shown[3].matches("elision").count() >= 1, "{shown:?}");
    what(&mut daemon).await;
    for (request, shown, bytes) in &before {
        let after = bytes_of(&daemon, request).await;
        assert_eq!(after.len(), bytes.len(), "{shown}");
        assert_eq!(same(bytes, &after), bytes.len(), "{shown}");
    }
    for (request, shown, bytes) in &before {
        let said = append(&request.session_id, [user("and now?")]);
        daemon.sessions().append(said).await.expect("appended");
        let after = bytes_of(&daemon, request).await;
        assert_eq!(same(bytes, &after), bytes.len(), "{shown}");
        assert_eq!(after.len(), bytes.len() + 1, "{shown}");
    }
}

#[tokio::test]
async fn prefix_is_unchanged_after_kill() {
    survives("sync", async |daemon| {
        daemon.kill9().await;
        daemon.restart().await;
    })
    .await;
}

#[tokio::test]
async fn prefix_is_unchanged_after_restart() {
    survives("interval", async |daemon| {
        daemon.stop().await;
        daemon.restart().await;
    })
    .await;
}

#[tokio::test]
async fn window_after_kill_starts_with_window_before() {
    let mut daemon = Daemon::with(plain().section(ROOMY)).await;
    let mut before: Vec<Vec<u8>> = Vec::new();
    let (mut cuts, request) = (
        0,
        BuildContextRequest {
            budget: budget(5_000),
            ..window_request()
        },
    );
    for number in 0..40 {
        let asked = BuildContextRequest {
            append: window_request_with(round(number)).append,
            ..request.clone()
        };
        let next = bytes_of(&daemon, &asked).await;
        cuts += usize::from(same(&before, &next) < before.len());
        before = next;
        if number % 8 == 7 {
            daemon.kill9().await;
            daemon.restart().await;
            let after = bytes_of(&daemon, &request).await;
            assert_eq!(same(&before, &after), before.len(), "after round {number}");
        }
    }
    assert!((1..20).contains(&cuts), "{cuts} cuts");
}
