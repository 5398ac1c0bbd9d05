//! The dispatcher: takes due deliveries, calls the hooks, and records the outcomes.
//!
//! Each hook has its own queue, so that a slow hook does not delay others. A global limit applies
//! to all of them.
//!
//! Due deliveries are taken round-robin by tenant, starting after the tenant served last. A hook
//! that accepts batches (git) waits `batch_wait` for more deliveries. An attempt has at most
//! `limits.hook_content_bytes` of turns: a longer generation is cut to its newest turns, with the
//! number of omitted ones.

mod attempt;
mod queue;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{HookName, SessionKey};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;
use memoird_store::DeliveryOutcome;
use tokio::task::{self, JoinSet};
use tracing::{debug, warn};

use crate::error::EngineError;
use crate::events::EventKind;
use crate::hook::{HookConfig, HookError, HooksConfig, Retry};
use crate::hooks::Hooks;
use crate::tenants::ms;
use crate::worker::{WorkError, Worker};
use attempt::{Attempt, attempt};
use queue::HookQueue;

/// Worker that calls the hooks.
pub(crate) struct Dispatcher {
    hooks: Hooks,
    config: Arc<HooksConfig>,
    queues: BTreeMap<HookName, HookQueue>,
    attempts: JoinSet<Attempt>,
    /// Hook and deliveries of each running attempt, in case it panics.
    running: HashMap<task::Id, (HookConfig, Vec<Delivery>)>,
    /// Attempts whose outcomes are not yet written.
    finished: Vec<Attempt>,
    /// Whether deliveries may wait to share a call, if their hook supports it.
    waits_for_batches: bool,
    /// Incremented each time a queue starts attempts.
    starts: u64,
    /// Whether pending deliveries to unconfigured hooks are still to be logged.
    logs_unknown_hooks: bool,
}

/// Maximum outcomes per transaction.
const OUTCOMES_MAX: usize = 200;
/// Maximum bytes of a recorded error.
const PROBLEM_BYTES_MAX: usize = 500;

impl Dispatcher {
    pub(crate) fn new(hooks: Hooks) -> Self {
        let config = hooks.shared.outbox.config();
        let mut dispatcher = Self {
            hooks,
            config: Arc::default(),
            queues: BTreeMap::new(),
            attempts: JoinSet::new(),
            running: HashMap::new(),
            finished: Vec::new(),
            waits_for_batches: true,
            starts: 0,
            logs_unknown_hooks: true,
        };
        dispatcher.apply_config(config);
        dispatcher
    }

    /// Updates the queues to the configured hooks. Running attempts continue unchanged.
    fn apply_config(&mut self, config: Arc<HooksConfig>) {
        self.queues.retain(|name, queue| {
            queue.hook = config
                .hooks
                .iter()
                .find(|hook| hook.subscription.hook == *name)
                .cloned();
            queue.hook.is_some() || !queue.is_idle()
        });
        for hook in &config.hooks {
            let name = hook.subscription.hook.clone();
            self.queues
                .entry(name)
                .or_insert_with(|| HookQueue::new(hook.clone()));
        }
        self.config = config;
        self.logs_unknown_hooks = true;
    }

    /// Logs pending deliveries to hooks that are not configured.
    ///
    /// No attempt is made for them, and the journal retains their turns.
    async fn log_unknown_hooks(&mut self) -> Result<(), EngineError> {
        if !self.logs_unknown_hooks {
            return Ok(());
        }
        let counts = self.hooks.count_deliveries().await?;
        self.logs_unknown_hooks = false;
        let mut pending: BTreeMap<&HookName, u64> = BTreeMap::new();
        for count in counts.iter() {
            let mut is_known = self.config.hooks.iter().map(|hook| &hook.subscription.hook);
            if count.state == DeliveryState::Pending && !is_known.any(|hook| *hook == count.hook) {
                *pending.entry(&count.hook).or_default() += count.count;
            }
        }
        for (hook, deliveries) in pending {
            warn!(
                %hook,
                deliveries,
                "deliveries are pending for a hook that is not configured; they and their turns \
                 are retained until a hook of this name is configured or `memoird hooks drop` \
                 drops them"
            );
        }
        Ok(())
    }

    /// When the next delivery is due in a queue that has room for an attempt.
    fn next_due(&self) -> Option<Steady> {
        let may_start = self
            .queues
            .values()
            .filter(|queue| self.room_for(queue) > 0);
        may_start.filter_map(HookQueue::next_check).min()
    }

    /// Number of attempts that may start in this queue, given the other queues.
    ///
    /// Up to half of the attempts are reserved for queues with none running, so that a hanging hook
    /// with a high concurrency cannot take all of them.
    fn room_for(&self, queue: &HookQueue) -> usize {
        let attempts_max = self.config.concurrency.max(1);
        let free = attempts_max.saturating_sub(self.attempts.len());
        let is_idle = |queue: &&HookQueue| queue.hook.is_some() && queue.is_idle();
        let idle = self.queues.values().filter(is_idle).count();
        let reserved_for = |queues: usize| queues.min(attempts_max / 2);
        if queue.is_idle() {
            free.saturating_sub(reserved_for(idle.saturating_sub(1)))
                .max(1)
                .min(free)
        } else {
            free.saturating_sub(reserved_for(idle))
        }
    }

    fn take_all_finished(&mut self) {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.take_finished(ended);
        }
    }

    fn take_finished(&mut self, ended: Result<(task::Id, Attempt), task::JoinError>) {
        match ended {
            Ok((id, attempt)) => {
                self.running.remove(&id);
                self.finished.push(attempt);
            }
            Err(error) => {
                let Some((hook, batch)) = self.running.remove(&error.id()) else {
                    return;
                };
                let panicked = || Err(HookError::later("the hook panicked; see the log"));
                let outcome = error.is_panic().then(panicked);
                let outcomes = std::iter::repeat(outcome);
                self.finished.push(Attempt {
                    hook,
                    results: batch.into_iter().zip(outcomes).collect(),
                });
            }
        }
    }

    /// Writes the outcomes of finished attempts, in transactions short enough not to delay appends.
    ///
    /// Idempotent, so it can be repeated after an error.
    async fn record_outcomes(&mut self) -> Result<(), EngineError> {
        if self.finished.is_empty() {
            return Ok(());
        }
        let now = self.hooks.shared.sessions.now().steady;
        let mut delivery_outcomes = Vec::new();
        for Attempt { hook, results } in &self.finished {
            let outcomes = results.iter().filter_map(|(delivery, outcome)| {
                Some(self.delivery_outcome(hook, delivery, outcome.as_ref()?, now))
            });
            delivery_outcomes.extend(outcomes);
        }
        let (outbox, store) = (&self.hooks.shared.outbox, &self.hooks.shared.store);
        for part in delivery_outcomes.chunks(OUTCOMES_MAX) {
            let part = part.to_vec();
            store
                .run(None, move |store| store.record_outcomes(&part))
                .await?;
        }
        let mut recorded = delivery_outcomes.iter();
        for attempt in std::mem::take(&mut self.finished) {
            let generations = attempt
                .results
                .iter()
                .map(|(delivery, _)| delivery.id.generation);
            outbox.finish(generations.clone());
            let name = &attempt.hook.subscription.hook;
            if let Some(queue) = self.queues.get_mut(name) {
                queue.attempt_finished(generations);
            }
            let tried = attempt.results.iter().filter(|(_, it)| it.is_some());
            for ((delivery, _), recorded) in tried.zip(&mut recorded) {
                self.publish(&delivery.key, recorded);
                if let Some(queue) = self.queues.get_mut(name) {
                    queue.note_outcome(recorded);
                }
            }
        }
        self.hooks.shared.sessions.notify_watchers();
        Ok(())
    }

    fn delivery_outcome(
        &self,
        hook: &HookConfig,
        delivery: &Delivery,
        outcome: &Result<(), HookError>,
        now: Steady,
    ) -> DeliveryOutcome {
        let tries = delivery.tries.saturating_add(1);
        let (state, last_error, pause_ms) = match outcome {
            Ok(()) => (DeliveryState::Done, String::new(), 0),
            Err(HookError { problem, retry }) => {
                #[allow(clippy::cast_possible_truncation, reason = "any 64 bits will do")]
                let random = self.hooks.shared.sessions.random() as u64;
                let pause_ms = match retry {
                    Retry::Never => None,
                    Retry::Later => hook.retry.pause_ms(tries, random, None),
                    Retry::After(asked) => hook.retry.pause_ms(tries, random, Some(ms(*asked))),
                };
                let state = match pause_ms {
                    Some(_) => DeliveryState::Pending,
                    None => DeliveryState::Dead,
                };
                (state, shortened(problem), pause_ms.unwrap_or(0))
            }
        };
        let due = Steady(now.0.saturating_add(pause_ms));
        DeliveryOutcome {
            id: delivery.id.clone(),
            state,
            tries,
            last_error,
            due,
        }
    }

    fn publish(&self, key: &SessionKey, recorded: &DeliveryOutcome) {
        let (id, tries, problem) = (&recorded.id, recorded.tries, recorded.last_error.clone());
        let hook = id.hook.clone();
        let outcome = match recorded.state {
            DeliveryState::Done => "done",
            DeliveryState::Dead => {
                warn!(delivery = %id, tries, problem, "a delivery is abandoned");
                "dead"
            }
            DeliveryState::Pending => {
                debug!(delivery = %id, tries, problem, "a delivery failed");
                "failed"
            }
        };
        let kind = if recorded.state == DeliveryState::Done {
            EventKind::HookDelivered { hook, tries }
        } else {
            EventKind::HookFailed {
                hook,
                tries,
                problem,
                gave_up: recorded.state == DeliveryState::Dead,
            }
        };
        let shared = &self.hooks.shared;
        shared.stats.hooks.count(&id.hook, outcome);
        let tenant = shared.sessions.tenants().get_or_insert(&key.tenant);
        let at = shared.sessions.now().wall;
        tenant.events.push(at, &key.session, id.generation, kind);
    }

    /// Starts attempts for due deliveries while there is room.
    async fn start_attempts(&mut self) -> Result<(), EngineError> {
        // The queue that has waited longest comes first.
        let mut names: Vec<(u64, HookName)> = self
            .queues
            .iter()
            .map(|(name, queue)| (queue.started, name.clone()))
            .collect();
        names.sort_unstable();
        for (_, name) in names {
            let now = self.hooks.shared.sessions.now();
            let room = self
                .queues
                .get(&name)
                .map_or(0, |queue| self.room_for(queue));
            let Some(queue) = self.queues.get_mut(&name) else {
                continue;
            };
            let Some(count_to_read) = queue.count_to_read(now.steady, room) else {
                continue;
            };
            let (hook, after) = (name.clone(), queue.last_tenant.clone());
            let (outbox, store) = (&self.hooks.shared.outbox, &self.hooks.shared.store);
            let found = store
                .run(None, move |store| {
                    store.due(&hook, after.as_ref(), now.steady, count_to_read)
                })
                .await?;
            let Some(config) = queue.hook.clone() else {
                continue;
            };
            self.starts += 1;
            let starts = self.starts;
            for batch in queue.take(
                found,
                count_to_read,
                now.steady,
                room,
                self.waits_for_batches,
            ) {
                let (hooks, content_bytes) = (self.hooks.clone(), self.config.content_bytes);
                outbox.begin(&batch);
                let attempting = attempt(hooks, config.clone(), batch.clone(), content_bytes);
                let task = self.attempts.spawn(attempting);
                self.running.insert(task.id(), (config.clone(), batch));
                queue.started = starts;
            }
        }
        Ok(())
    }

    /// One round: records finished attempts, and starts due deliveries.
    async fn round(&mut self) -> Result<(), EngineError> {
        let config = self.hooks.shared.outbox.config();
        if !Arc::ptr_eq(&config, &self.config) {
            self.apply_config(config);
        }
        self.take_all_finished();
        self.record_outcomes().await?;
        self.start_attempts().await?;
        self.log_unknown_hooks().await
    }
}

impl Worker for Dispatcher {
    fn name(&self) -> &'static str {
        "dispatcher"
    }

    async fn wait(&mut self) {
        // Outcomes that could not be written are retried right after the supervisor's backoff.
        if !self.finished.is_empty() || self.logs_unknown_hooks {
            return;
        }
        let now = self.hooks.shared.sessions.now().steady;
        let pause = self
            .next_due()
            .map(|due| Duration::from_millis(due.since(now)));
        let shared = Arc::clone(&self.hooks.shared);
        // A round does everything there is to do, no matter which event triggered it.
        tokio::select! {
            biased;
            () = shared.outbox.changed() => self.queues.values_mut().for_each(HookQueue::check_now),
            Some(ended) = self.attempts.join_next_with_id() => self.take_finished(ended),
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        Ok(self.round().await?)
    }

    /// Lets running attempts finish. Without a journal, also makes all pending deliveries.
    async fn finish(&mut self) {
        let is_last_chance = !self.hooks.shared.sessions.have_journal();
        let drain = self.config.drain;
        let drained = tokio::time::timeout(drain, self.drain(is_last_chance))
            .await
            .is_ok();
        self.attempts.abort_all();
        self.take_all_finished();
        if let Err(error) = self.record_outcomes().await {
            warn!(%error, "some delivery outcomes could not be written; these deliveries are made \
                again");
        }
        let open = self.hooks.count_deliveries().await.unwrap_or_default();
        let pending: u64 = open
            .iter()
            .filter(|count| count.state == DeliveryState::Pending)
            .map(|count| count.count)
            .sum();
        match (pending, is_last_chance) {
            (0, _) => {}
            (pending, true) => warn!(
                pending,
                drained, "pending deliveries are lost: there is no journal"
            ),
            (pending, false) => {
                debug!(pending, "deliveries are pending; the next start makes them");
            }
        }
    }
}

impl Dispatcher {
    async fn drain(&mut self, is_last_chance: bool) {
        self.queues.values_mut().for_each(HookQueue::check_now);
        self.waits_for_batches = false;
        loop {
            let round = if is_last_chance {
                self.round().await
            } else {
                self.take_all_finished();
                self.record_outcomes().await
            };
            if let Err(error) = round {
                warn!(%error, "deliveries could not be drained");
                return;
            }
            if is_last_chance && self.next_due().is_some() {
                self.wait().await;
            } else if let Some(ended) = self.attempts.join_next_with_id().await {
                self.take_finished(ended);
            } else {
                return;
            }
        }
    }
}

fn shortened(problem: &str) -> String {
    problem[..problem.floor_char_boundary(PROBLEM_BYTES_MAX)].to_owned()
}
