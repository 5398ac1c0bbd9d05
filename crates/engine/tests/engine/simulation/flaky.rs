//! Hooks of the simulation.
//!
//! They fail, hang, panic and delay at random, and check the content of their calls against the
//! journal.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::Generation;
use memoird_core::outbox::{DeliveryState, RetryPolicy};
use memoird_engine::{Engine, Hook, HookCall, HookConfig, HookError, HookFuture, Retry};
use memoird_store::{DeliveryFilter, Store};
use tokio::time::sleep;

use crate::hooks::{hook_name, hooked_as, turn_texts};
use crate::kit::Dice;
use crate::store::FaultyStore;

#[derive(Debug)]
pub(crate) struct FlakyHook {
    name: &'static str,
    on: &'static [EndReason],
    batch_max: usize,
    /// Set once every call should succeed.
    is_tame: AtomicBool,
    dice: Mutex<Dice>,
    store: Arc<FaultyStore>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    /// All calls in order, with generation and attempt.
    pub(crate) calls: Vec<(Generation, u32)>,
    /// Generations reported as delivered.
    pub(crate) done: BTreeSet<Generation>,
    pub(crate) violations: Vec<String>,
}

/// The hooks of a simulation.
pub(crate) fn flaky_hooks(seed: u64, store: &Arc<FaultyStore>) -> Vec<Arc<FlakyHook>> {
    let all: &[_] = &[EndReason::Expired, EndReason::Evicted, EndReason::Ended];
    let kinds = [
        ("each", all, 1),
        ("many", all, 4),
        ("expired", &all[..1], 100),
    ];
    let made = kinds
        .into_iter()
        .zip(1..)
        .map(|((name, on, batch_max), number)| FlakyHook {
            name,
            on,
            batch_max,
            is_tame: AtomicBool::new(false),
            dice: Mutex::new(Dice(seed ^ number)),
            store: Arc::clone(store),
            log: Mutex::default(),
        });
    made.map(Arc::new).collect()
}

impl FlakyHook {
    pub(crate) fn config(self: &Arc<Self>) -> HookConfig {
        let mut config = hooked_as(self.name, self.clone());
        config.subscription.on = self.on.to_vec();
        config.timeout = Duration::from_secs(2);
        config.concurrency = 2;
        config.retry = RetryPolicy {
            tries_max: 4,
            pause_ms_min: 200,
            pause_ms_max: 20_000,
        };
        config
    }

    pub(crate) fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// Checks a call against the current journal.
    fn look_at(&self, call: &HookCall) -> Result<(), String> {
        let (ended, id) = (&call.content, &call.delivery);
        let state = self
            .store
            .delivery(id)
            .unwrap()
            .map(|delivery| delivery.state);
        let record = self.store.record();
        let life = record.lives.get(&ended.generation).ok_or("it never was")?;
        let is_so = life.ended == Some(ended.reason)
            && life.texts == turn_texts(ended)
            && ended.turns_omitted == 0
            && (&life.key.tenant, &life.key.session) == (&ended.tenant, &ended.session)
            && life.state_version == ended.state.version
            && (id.generation, &id.hook) == (ended.generation, &hook_name(self.name));
        match state {
            Some(DeliveryState::Pending) if is_so => Ok(()),
            _ => Err(format!("{state:?}, {call:?} of {life:?}")),
        }
    }

    fn note(&self, calls: &[HookCall]) {
        for call in calls {
            let outcome = self.look_at(call);
            let mut log = self.log();
            log.calls.push((call.content.generation, call.attempt));
            log.violations.extend(outcome.err());
        }
        if calls.len() > self.batch_max {
            self.log()
                .violations
                .push(format!("{} calls at once", calls.len()));
        }
    }

    /// Asserts that every subscribed end had a delivery, and that exactly these were made.
    pub(crate) fn check(&self) {
        let log = self.log();
        assert_eq!(log.violations, Vec::<String>::new());
        let record = self.store.record();
        let name = hook_name(self.name);
        let mut owed = BTreeSet::new();
        for (generation, life) in &record.lives {
            let Some(reason) = life.ended else { continue };
            // Only a reset can skip hooks.
            let is_free = reason == EndReason::Reset && life.owed.is_empty();
            let asks_for_all = reason == EndReason::Reset && self.on.contains(&EndReason::Ended);
            // The generation has neither turns nor state.
            let is_empty = life.texts.is_empty() && life.state_version == 0;
            let wants = (self.on.contains(&reason) || asks_for_all) && !is_empty;
            assert_eq!(
                life.owed.contains(&name),
                wants && !is_free,
                "{} {life:?}",
                self.name
            );
            owed.extend(life.owed.contains(&name).then_some(*generation));
        }
        assert_eq!(log.done, owed, "{}", self.name);
        assert!(
            log.calls.len() > owed.len(),
            "{} was never repeated",
            self.name
        );
    }
}

/// Lets all pending and dead deliveries succeed.
pub(crate) async fn deliver_all(engine: &Engine, hooks: &[Arc<FlakyHook>]) {
    hooks
        .iter()
        .for_each(|hook| hook.is_tame.store(true, Ordering::Relaxed));
    // Longer than any session TTL and any retry pause, so nothing is in flight.
    sleep(Duration::from_secs(300)).await;
    let list = || {
        engine
            .hooks
            .deliveries(DeliveryFilter::default(), None, usize::MAX)
    };
    for view in list().await.unwrap() {
        if view.delivery.state == DeliveryState::Dead {
            engine.hooks.retry_delivery(view.delivery.id).await.unwrap();
        }
    }
    // Longer than any session TTL and any retry pause, so nothing is in flight.
    sleep(Duration::from_secs(300)).await;
    let left = list().await.unwrap();
    let is_open = |state| state != DeliveryState::Done;
    let open: Vec<_> = left
        .iter()
        .filter(|view| is_open(view.delivery.state))
        .collect();
    assert!(open.is_empty(), "{open:?}");
}

impl Hook for FlakyHook {
    fn batch_max(&self) -> usize {
        self.batch_max
    }

    fn batch_wait(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_> {
        self.note(&calls);
        let is_tame = self.is_tame.load(Ordering::Relaxed);
        let (act, wait_ms) = {
            let mut dice = self.dice.lock().unwrap();
            (if is_tame { 0 } else { dice.below(8) }, dice.below(1_500))
        };
        if act == 1 {
            // Panics without printing a message or a backtrace.
            std::panic::resume_unwind(Box::new("as the dice say"));
        }
        Box::pin(async move {
            let done = calls.iter().map(|call| call.content.generation);
            let failed = |retry| {
                vec![
                    Err(HookError {
                        problem: "no".into(),
                        retry
                    });
                    calls.len()
                ]
            };
            match act {
                2 => std::future::pending().await,
                3 => return failed(Retry::Later),
                4 => return failed(Retry::After(Duration::from_millis(wait_ms * 5))),
                5 => return failed(Retry::Never),
                6 => sleep(Duration::from_millis(wait_ms)).await,
                _ => {}
            }
            self.log().done.extend(done);
            vec![Ok(()); calls.len()]
        })
    }
}
