//! Hook guarantees.
//!
//! Each subscribed end is delivered whole and at least once, despite failures, hangs and crashes.
//! Hooks do not delay each other.

mod batches;
mod concurrency;
mod crashes;
mod durability_off;
mod ends;
mod journal_failures;
mod removed;
mod retries;
pub(crate) mod script;
mod shutdown;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::HookName;
use memoird_core::outbox::{Delivery, DeliveryState, RetryPolicy, Subscription};
use memoird_core::turn::{PartKind, Turn};
use memoird_engine::{DeliveryView, Engine, EngineConfig, Hook, HookConfig, SessionContent};
use memoird_store::DeliveryFilter;

use script::ScriptedHook;

/// All end reasons except a plain reset.
pub(crate) const ALL_ENDS: [EndReason; 3] =
    [EndReason::Expired, EndReason::Evicted, EndReason::Ended];
/// Timeout of a delivery in these tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);

pub(crate) fn hook_name(text: &str) -> HookName {
    HookName::parse(text).unwrap()
}

/// Subscribes a hook to all ends.
pub(crate) fn hooked(name: &str, hook: &Arc<ScriptedHook>) -> HookConfig {
    hooked_as(name, hook.clone())
}

/// The same for any implementation of `Hook`.
pub(crate) fn hooked_as(name: &str, hook: Arc<dyn Hook>) -> HookConfig {
    HookConfig {
        subscription: Subscription {
            hook: hook_name(name),
            on: ALL_ENDS.to_vec(),
            tenants: Vec::new(),
        },
        timeout: LIMIT,
        concurrency: 4,
        retry: RetryPolicy {
            tries_max: 5,
            pause_ms_min: 1_000,
            pause_ms_max: 60_000,
        },
        hook,
    }
}

/// Replaces the hooks of a configuration.
pub(crate) fn with_hooks(
    config: EngineConfig,
    hooks: impl IntoIterator<Item = HookConfig>,
) -> EngineConfig {
    let mut config = config;
    config.hooks.hooks = hooks.into_iter().collect();
    config
}

/// The texts of the turns of an ended generation.
pub(crate) fn turn_texts(ended: &SessionContent) -> Vec<String> {
    ended.turns.iter().map(|(_, turn)| text(turn)).collect()
}

fn text(turn: &Turn) -> String {
    match &turn.parts[0].kind {
        PartKind::Text(text) => text
            .trim_start_matches("[[")
            .trim_end_matches("]]")
            .to_owned(),
        other => panic!("a text was expected: {other:?}"),
    }
}

/// All deliveries, ordered by id.
pub(crate) async fn deliveries(engine: &Engine) -> Vec<Delivery> {
    views(engine)
        .await
        .into_iter()
        .map(|view| view.delivery)
        .collect()
}

pub(crate) async fn views(engine: &Engine) -> Vec<DeliveryView> {
    engine
        .hooks
        .deliveries(DeliveryFilter::default(), None, usize::MAX)
        .await
        .unwrap()
}

/// Returns the single delivery, and panics if there are more.
pub(crate) async fn only_delivery(engine: &Engine) -> Delivery {
    let mut all = deliveries(engine).await;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

pub(crate) async fn states(engine: &Engine) -> Vec<DeliveryState> {
    deliveries(engine)
        .await
        .into_iter()
        .map(|delivery| delivery.state)
        .collect()
}
