//! Calibration of token counts by the provider's charges.
//!
//! It applies to one tenant and one model, and ignores implausible charges.

use memoird_proto::v1::{AppendRequest, BuildContextRequest, ContextReport, ModelUsage};

use super::bot::{ask, budget, report, window_request, window_request_with, words};
use super::plain;
use crate::harness::{Daemon, Sessions, Setup, append, assistant, user};

/// Appends an exchange with the charge of the last call, and requests a window.
async fn next(
    client: &mut Sessions,
    model: &str,
    charged: Option<u64>,
    number: usize,
) -> ContextReport {
    let usage = charged.map(|input_tokens| ModelUsage {
        model: model.into(),
        input_tokens,
        output_tokens: 100,
        ..ModelUsage::default()
    });
    let turns = vec![assistant(&words(number)), user(&words(number + 1))];
    let append = AppendRequest {
        turns,
        usage,
        ..AppendRequest::default()
    };
    let request = BuildContextRequest {
        append: Some(append),
        model: model.into(),
        budget: budget(40_000),
        ..window_request()
    };
    report(&ask(client, request).await).clone()
}

/// A chat long enough for its charges to be used.
async fn talk(client: &mut Sessions) {
    for number in 0..40 {
        client
            .append(append("chat", [user(&words(number))]))
            .await
            .expect("appended");
    }
}

#[allow(clippy::cast_possible_truncation)]
fn charged_for(report: &ContextReport, percent: u64) -> u64 {
    // Undo the correction in the report, which the provider does not know.
    let counted = report.tokens_total as f64 / report.token_factor;
    format!("{:.0}", counted * percent as f64 / 100.0)
        .parse()
        .expect("a number")
}

#[tokio::test]
async fn windows_follow_provider_charges_per_tenant_and_model() {
    let daemon = Daemon::with(plain().two_tenants("", "")).await;
    let mut alpha = daemon.sessions_of(Setup::ALPHA);
    let mut beta = daemon.sessions_of(Setup::BETA);
    talk(&mut alpha).await;
    talk(&mut beta).await;
    let first = next(&mut alpha, "gpt-4o", None, 0).await;
    assert!((first.token_factor - 1.0).abs() < 1e-9, "{first:?}");
    // `beta` has the same turns without charges, so its counts are uncorrected.
    let mut counted = next(&mut beta, "gpt-4o", None, 0).await;
    let mut last = first.clone();
    for number in 1..30 {
        let charged = counted.tokens_total * 130 / 100;
        last = next(&mut alpha, "gpt-4o", Some(charged), number).await;
        counted = next(&mut beta, "gpt-4o", None, number).await;
        let ratio = last.tokens_total as f64 / counted.tokens_total as f64;
        assert!(
            (1.27..1.33).contains(&ratio),
            "{ratio} after {number} charges"
        );
    }
    assert!((1.2..1.35).contains(&last.token_factor), "{last:?}");

    let other_model = BuildContextRequest {
        model: "gpt-4o-mini".into(),
        ..window_request()
    };
    let other_model = ask(&mut alpha, other_model).await;
    assert!(
        (report(&other_model).token_factor - 1.0).abs() < 1e-9,
        "{other_model:?}"
    );
    assert!((counted.token_factor - 1.0).abs() < 1e-9, "{counted:?}");

    // Budgets are in the provider's tokens, so fewer turns fit than before.
    let small = BuildContextRequest {
        model: "gpt-4o".into(),
        budget: budget(4_000),
        ..window_request()
    };
    let held = ask(&mut alpha, small.clone()).await;
    let free = ask(&mut beta, small).await;
    assert!(report(&held).tokens_total <= 4_000 && report(&free).tokens_total <= 4_000);
    assert!(
        held.turns.len() < free.turns.len(),
        "{} {}",
        held.turns.len(),
        free.turns.len()
    );
}

#[tokio::test]
async fn absurd_charges_do_no_harm() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    talk(&mut client).await;
    let mut last = next(&mut client, "gpt-4o", None, 0).await;
    for charged in [0, u64::MAX, 1, 0, u64::MAX] {
        let more = next(&mut client, "gpt-4o", Some(charged), 1).await;
        let change = more.token_factor / last.token_factor;
        assert!((change - 1.0).abs() < 1e-9, "{charged}: {change}");
        assert!((0.0..=0.3).contains(&more.token_margin), "{more:?}");
        last = more;
    }
    for number in 0..40 {
        let charged = charged_for(&last, 100);
        last = next(&mut client, "gpt-4o", Some(charged), number).await;
    }
    assert!(
        (0.98..1.02).contains(&last.token_factor),
        "it heals: {last:?}"
    );
    for number in 0..60 {
        last = next(&mut client, "gpt-4o", Some(u64::MAX), number).await;
    }
    assert!(
        last.token_factor <= 2.0 && last.tokens_total <= 40_000,
        "{last:?}"
    );
}

#[tokio::test]
async fn charge_counts_once_and_for_its_model_only() {
    let daemon = Daemon::with(plain()).await;
    let mut client = daemon.sessions();
    talk(&mut client).await;
    let first = next(&mut client, "gpt-4o", None, 0).await;
    let charge = |model: &str| {
        let input_tokens = charged_for(&first, 150);
        let usage = Some(ModelUsage {
            model: model.into(),
            input_tokens,
            output_tokens: 1,
            ..ModelUsage::default()
        });
        AppendRequest {
            usage,
            ..append("chat", [assistant("ok")])
        }
    };
    let asked = BuildContextRequest {
        model: "gpt-4o".into(),
        peek: true,
        ..window_request()
    };
    client
        .append(charge("claude-opus-5"))
        .await
        .expect("appended");
    let other = ask(&mut client, asked.clone()).await;
    assert!(
        (report(&other).token_factor - 1.0).abs() < 1e-9,
        "another model's: {other:?}"
    );
    client
        .append(charge("gpt-4o-2024-08-06"))
        .await
        .expect("appended");
    let known = report(&ask(&mut client, asked.clone()).await).token_factor;
    assert!(known > 1.01, "{known}");
    client
        .append(charge("gpt-4o-2024-08-06"))
        .await
        .expect("appended");
    let again = report(&ask(&mut client, asked).await).token_factor;
    assert!(
        (again - known).abs() < 1e-9,
        "no window was asked for in between: {again} {known}"
    );
    let silent = window_request_with([user("well?")]);
    assert!(
        report(&ask(&mut client, silent).await).token_factor < 1.001,
        "the default model"
    );
}

#[tokio::test]
async fn cached_prompt_tokens_are_charged_like_others() {
    let daemon = Daemon::with(plain().two_tenants("", "")).await;
    let mut learnt = Vec::new();
    for (tenant, is_apart) in [(Setup::ALPHA, false), (Setup::BETA, true)] {
        let mut client = daemon.sessions_of(tenant);
        talk(&mut client).await;
        let first = next(&mut client, "claude-opus-5", None, 0).await;
        let tokens = charged_for(&first, 150);
        let (read, created) = (tokens / 2, tokens / 3);
        let usage = if is_apart {
            ModelUsage {
                input_tokens: tokens - read - created,
                cache_read_tokens: read,
                cache_creation_tokens: created,
                ..ModelUsage::default()
            }
        } else {
            ModelUsage {
                input_tokens: tokens,
                ..ModelUsage::default()
            }
        };
        let told = AppendRequest {
            usage: Some(ModelUsage {
                model: "claude-opus-5".into(),
                ..usage
            }),
            ..append("chat", [assistant("ok")])
        };
        client.append(told).await.expect("appended");
        let asked = BuildContextRequest {
            model: "claude-opus-5".into(),
            peek: true,
            ..window_request()
        };
        learnt.push(report(&ask(&mut client, asked).await).token_factor);
    }
    assert!(learnt[0] > 1.01, "{learnt:?}");
    assert!((learnt[0] - learnt[1]).abs() < 1e-9, "{learnt:?}");
}
