//! Window budgets: limits, reserves, and errors when the budget is too small.

use std::fmt::Write as _;

use memoird_proto::v1::{Budget, BuildContextRequest, BuildContextResponse, Turn};
use tonic::Code;
use tonic_types::StatusExt;

use super::bot::{
    ask, budget, bytes_of, no_window, outline, report, window_request, window_request_with, words,
};
use super::plain;
use crate::harness::{Daemon, append, assistant, live, refused, refused_code, user};

fn attempt(attempt: u32, request: &BuildContextRequest) -> BuildContextRequest {
    BuildContextRequest {
        attempt,
        ..request.clone()
    }
}

/// A conversation of `turns` turns.
fn talk(turns: usize) -> Vec<Turn> {
    let turn = |number| match number % 2 {
        0 => user(&words(number)),
        _ => assistant(&words(number)),
    };
    (0..turns).map(turn).collect()
}

#[tokio::test]
async fn budget_defaults_to_model_and_call_overrides_it() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let window = ask(&mut client, window_request_with([user("hello")])).await;
    let (of, given) = (report(&window), report(&window).budget.expect("a budget"));
    assert_eq!((of.input_budget, of.model.as_str()), (185_664, "default"));
    assert_eq!(
        (given.context_window(), given.max_reply_tokens()),
        (200_000, 4_096)
    );
    assert_eq!(
        (given.safety_headroom(), given.tool_result_headroom()),
        (2_048, 8_192)
    );

    let some = Budget {
        context_window: Some(20_000),
        tool_result_headroom: Some(0),
        ..given
    };
    let window = ask(
        &mut client,
        BuildContextRequest {
            budget: Some(some),
            ..window_request()
        },
    )
    .await;
    assert_eq!(report(&window).input_budget, 20_000 - 4_096 - 2_048);
    assert_eq!(report(&window).budget, Some(some));
    let small = Budget {
        context_window: Some(32_000),
        ..Budget::default()
    };
    let scaled = BuildContextRequest {
        budget: Some(small),
        ..window_request()
    };
    let window = ask(&mut client, scaled).await;
    assert_eq!(report(&window).input_budget, 32_000 - 4_000 - 2_000 - 8_000);
    let none = BuildContextRequest {
        budget: Some(Budget::default()),
        ..window_request()
    };
    assert_eq!(report(&ask(&mut client, none).await).input_budget, 185_664);
    let named = BuildContextRequest {
        model: "gpt-4".into(),
        ..window_request()
    };
    let window = ask(&mut client, named).await;
    assert_eq!(report(&window).input_budget, 8_192 - 1_024 - 512 - 2_048);
    assert_eq!(report(&window).model, "gpt-4");
}

#[tokio::test]
async fn retry_attempt_has_smaller_budget_and_leaves_no_trace() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    client
        .append(append("chat", talk(40)))
        .await
        .expect("appended");
    let request = BuildContextRequest {
        budget: budget(6_000),
        ..window_request()
    };
    let before = bytes_of(&daemon, &request).await;
    for (number, left) in [(1, 5_400), (2, 4_860), (3, 4_374)] {
        let window = ask(&mut client, attempt(number, &request)).await;
        assert_eq!(report(&window).input_budget, left);
    }
    let last = ask(&mut client, attempt(6, &request)).await;
    assert!(
        last.turns.len() < before.len(),
        "{} of {}",
        last.turns.len(),
        before.len()
    );
    assert_eq!(
        bytes_of(&daemon, &request).await,
        before,
        "as if nobody had tried"
    );
    client
        .append(append("chat", [user("next")]))
        .await
        .expect("appended");
    let after = bytes_of(&daemon, &request).await;
    assert_eq!(
        after[..before.len()],
        before,
        "nor does the next window know"
    );
    let hopeless = attempt(u32::MAX, &request);
    let status = no_window(&mut client, hopeless).await;
    assert_eq!(
        refused_code(&status),
        "CURRENT_TURN_TOO_LARGE",
        "{status:?}"
    );
}

#[tokio::test]
async fn invalid_budget_and_unknown_model_are_refused_before_append() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    for wrong in [
        budget(0).expect("a budget"),
        Budget {
            context_window: Some(0),
            ..Budget::default()
        },
        Budget {
            max_reply_tokens: Some(u64::MAX),
            ..Budget::default()
        },
        Budget {
            context_window: Some(u64::MAX),
            max_reply_tokens: Some(u64::MAX),
            safety_headroom: Some(u64::MAX),
            tool_result_headroom: Some(u64::MAX),
        },
    ] {
        let request = BuildContextRequest {
            budget: Some(wrong),
            ..window_request_with([user("a")])
        };
        let answer = client.build_context(request).await;
        let said = refused(answer, Code::InvalidArgument, "BUDGET_NOT_POSITIVE");
        assert!(said.contains("max_reply_tokens"), "{said}");
    }
    let request = BuildContextRequest {
        model: "psychic".into(),
        ..window_request_with([user("a")])
    };
    let said = refused(
        client.build_context(request).await,
        Code::InvalidArgument,
        "UNKNOWN_MODEL",
    );
    assert!(
        said.contains("psychic") && said.contains("gpt-4o, gpt-4o-mini"),
        "{said}"
    );
    refused(
        client.build_context(window_request()).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
}

#[tokio::test]
async fn oversized_current_turn_is_refused_with_size_and_kept_in_history() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    ask(
        &mut client,
        window_request_with([user("hello"), assistant("hello")]),
    )
    .await;
    let long: String = (0..3_000).fold(String::new(), |mut text, number| {
        let _ = write!(text, "word{number} ");
        text
    });
    let request = BuildContextRequest {
        budget: budget(4_000),
        ..window_request_with([user(&long)])
    };
    let status = no_window(&mut client, request).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(refused_code(&status), "CURRENT_TURN_TOO_LARGE");
    let metadata = status.get_details_error_info().expect("details").metadata;
    let tokens: u64 = metadata["tokens"].parse().expect("a number");
    assert_eq!(metadata["budget"], "4000");
    assert!(tokens > 6_000, "{metadata:?}");
    assert_eq!(
        live(&mut client, "chat").await.len(),
        3,
        "the append was done"
    );

    // The number of tokens in the error is sufficient.
    let request = BuildContextRequest {
        budget: budget(tokens + 100),
        ..window_request()
    };
    assert!(outline(&ask(&mut client, request).await).ends_with('3'));
    let request = BuildContextRequest {
        budget: budget(tokens / 2),
        ..window_request()
    };
    assert_eq!(
        refused_code(&no_window(&mut client, request).await),
        "CURRENT_TURN_TOO_LARGE"
    );
}

#[tokio::test]
async fn overhead_tokens_count_in_window_and_cannot_overflow() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let plain = ask(&mut client, window_request_with([user("hello")])).await;
    let plain = report(&plain).clone();
    let more = BuildContextRequest {
        overhead_tokens: 1_000,
        ..window_request()
    };
    let more = ask(&mut client, more).await;
    assert_eq!(report(&more).tokens_total, plain.tokens_total + 1_000);
    // A few percent are reserved, because counts may be inexact.
    let whole = plain.input_budget - plain.tokens_total;
    let much = BuildContextRequest {
        overhead_tokens: whole * 96 / 100,
        ..window_request()
    };
    assert!(report(&ask(&mut client, much).await).tokens_total > 175_000);
    let absurd = [whole + 1, u64::MAX / 2, u64::MAX - 5, u64::MAX];
    let policies = [None, super::bot::sliding(3), super::bot::salience()];
    for overhead_tokens in absurd {
        for policy in policies {
            let request = BuildContextRequest {
                overhead_tokens,
                policy,
                ..window_request()
            };
            let status = no_window(&mut client, request).await;
            assert_eq!(
                refused_code(&status),
                "CURRENT_TURN_TOO_LARGE",
                "{overhead_tokens}"
            );
        }
    }
    let all = BuildContextRequest {
        overhead_tokens: u64::MAX,
        budget: budget(u64::MAX),
        ..window_request()
    };
    assert_eq!(
        refused_code(&no_window(&mut client, all).await),
        "CURRENT_TURN_TOO_LARGE"
    );
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
}

#[tokio::test]
async fn system_prompt_and_tools_are_counted() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    let plain = ask(&mut client, window_request_with([user("hello")])).await;
    let system_tokens =
        |answer: &BuildContextResponse| report(answer).tokens_by_block.expect("blocks").system;
    let (system, tools_json) = (words(1), format!("[{{\"name\":{:?}}}]", words(2)));
    let with_system = BuildContextRequest {
        system: system.clone(),
        ..window_request()
    };
    let with_system = ask(&mut client, with_system).await;
    assert!(system_tokens(&with_system) > system_tokens(&plain) + 100);
    let request = BuildContextRequest {
        system,
        tools_json,
        ..window_request()
    };
    let with_both = ask(&mut client, request.clone()).await;
    assert!(system_tokens(&with_both) > system_tokens(&with_system) + 100);
    // They reduce the budget for turns.
    let small = BuildContextRequest {
        budget: budget(system_tokens(&with_both)),
        ..request
    };
    assert_eq!(
        refused_code(&no_window(&mut client, small).await),
        "CURRENT_TURN_TOO_LARGE"
    );
}
