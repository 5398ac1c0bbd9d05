//! Shared helpers: texts, errors, and a fast clock.

use std::time::Duration;

use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::{Embedder, Purpose};
use memoird_models::{ApiKey, OpenAiEmbedder, OpenAiEmbedderConfig};
use serde::de::DeserializeOwned;
use serde_json::{Value, from_value, json};
use tokio::time::{Instant, sleep};

/// The API key, which must never occur in an error.
pub(crate) const SECRET: &str = "sk-hunter2";

pub(crate) type Outcome = Result<Vec<Vec<f32>>, ModelFault>;

/// Deserializes a configuration.
pub(crate) fn configured<T: DeserializeOwned>(config: Value) -> T {
    from_value(config).expect("a configuration")
}

pub(crate) fn config(url: impl Into<String>) -> OpenAiEmbedderConfig {
    let url: String = url.into();
    configured(json!({"base_url": url, "model": "small"}))
}

/// The key that is sent to providers.
pub(crate) fn key() -> Option<ApiKey> {
    Some(ApiKey::parse(SECRET).expect("a key"))
}

pub(crate) fn embedder(config: &OpenAiEmbedderConfig) -> OpenAiEmbedder {
    OpenAiEmbedder::new(config, key()).expect("a good configuration")
}

pub(crate) fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// Embeds texts and runs the service concurrently, with a paused clock.
pub(crate) async fn exchange<T>(
    embedder: &dyn Embedder,
    texts: &[&str],
    service: impl Future<Output = T>,
) -> (Outcome, T) {
    while_ticking(embedder.embed(Purpose::Memory, strings(texts)), service).await
}

/// Runs a call and the service concurrently, with a paused clock.
pub(crate) async fn while_ticking<C: Future, S: Future>(
    call: C,
    service: S,
) -> (C::Output, S::Output) {
    let both = async { tokio::join!(call, service) };
    tokio::select! {
        done = both => done,
        () = ticks() => panic!("still waiting after a day"),
    }
}

#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A day in steps of a millisecond.
///
/// A paused clock jumps to the next timer as soon as all tasks are idle, even while bytes are in
/// transit through the kernel. These steps limit how far it can jump.
async fn ticks() {
    for _ in 0..24 * 60 * 60 * 1_000 {
        sleep(Duration::from_millis(1)).await;
    }
}

/// The message of a temporary error.
#[track_caller]
pub(crate) fn later(outcome: Outcome) -> String {
    match outcome {
        Err(fault) if matches!(fault.kind, FaultKind::Later | FaultKind::Unusable) => fault.problem,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn misconfigured(outcome: Outcome) -> String {
    match outcome {
        Err(fault) if fault.kind == FaultKind::Misconfigured => fault.problem,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn refused(outcome: Outcome) -> String {
    match outcome {
        Err(fault) if fault.is_refusal() => fault.problem,
        other => panic!("{other:?}"),
    }
}
