//! The dispatcher: takes what hooks are owed and is due, calls them, and writes down what
//! became of it. Each hook has a lane of its own, so that a slow one holds up nobody else,
//! and all of them together have a limit.

mod lane;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{Generation, HookName};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;
use memoird_store::{Settlement, Store};
use tokio::task::{self, JoinSet};
use tracing::{debug, warn};

use crate::config::{HookConfig, HooksConfig};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::EventKind;
use crate::hook::{Again, HookCall, HookError};
use crate::machine::Stopwatch;
use crate::worker::{WorkError, Worker};
use lane::Lane;

/// The worker that calls the hooks.
pub(crate) struct Dispatcher {
    engine: Engine,
    config: Arc<HooksConfig>,
    lanes: HashMap<HookName, Lane>,
    attempts: JoinSet<Attempt>,
    /// What they are for, should one panic.
    under_way: HashMap<task::Id, (HookConfig, Vec<Delivery>)>,
    /// Attempts that ended and are not written down yet.
    ended: Vec<Attempt>,
}

/// One call of a hook, for one delivery or for a batch of them.
struct Attempt {
    hook: HookConfig,
    results: Vec<(Delivery, Outcome)>,
}

/// What became of a delivery in one attempt.
enum Outcome {
    Done,
    Failed(HookError),
    /// There was no room for its content: it is not counted as a try.
    NotTried,
}

/// The longest problem that is written down, in bytes.
const PROBLEM_BYTES: usize = 500;

impl Dispatcher {
    pub(crate) fn new(engine: Engine) -> Self {
        let config = engine.shared.outbox.config();
        let mut dispatcher = Self {
            engine,
            config: Arc::default(),
            lanes: HashMap::new(),
            attempts: JoinSet::new(),
            under_way: HashMap::new(),
            ended: Vec::new(),
        };
        dispatcher.take_over(config);
        dispatcher
    }

    /// Lanes for the hooks as they are now. What is under way goes on as it began.
    fn take_over(&mut self, config: Arc<HooksConfig>) {
        self.lanes.retain(|name, lane| {
            lane.hook = config.hooks.iter().find(|hook| hook.subscription.hook == *name).cloned();
            lane.hook.is_some() || !lane.is_idle()
        });
        for hook in &config.hooks {
            let name = hook.subscription.hook.clone();
            self.lanes.entry(name).or_insert_with(|| Lane::new(hook.clone()));
        }
        self.config = config;
    }

    /// When the next delivery is due that no attempt stands in the way of.
    fn next_due(&self) -> Option<Steady> {
        if self.attempts.len() >= self.config.concurrency {
            return None;
        }
        self.lanes.values().filter_map(Lane::wants_at).min()
    }

    /// Collects the attempts that have ended.
    fn collect(&mut self) {
        while let Some(ended) = self.attempts.try_join_next_with_id() {
            self.collected(ended);
        }
    }

    fn collected(&mut self, ended: Result<(task::Id, Attempt), task::JoinError>) {
        match ended {
            Ok((id, attempt)) => {
                self.under_way.remove(&id);
                self.ended.push(attempt);
            }
            Err(error) => {
                let Some((hook, batch)) = self.under_way.remove(&error.id()) else { return };
                let outcome = || match error.is_panic() {
                    true => Outcome::Failed(HookError::later("the hook panicked; see the log")),
                    false => Outcome::NotTried,
                };
                let results = batch.into_iter().map(|delivery| (delivery, outcome())).collect();
                self.ended.push(Attempt { hook, results });
            }
        }
    }

    /// Writes down what became of the attempts that have ended, all in one transaction.
    async fn settle(&mut self) -> Result<(), EngineError> {
        if self.ended.is_empty() {
            return Ok(());
        }
        let now = self.engine.shared.machine.now().steady;
        let mut settlements = Vec::new();
        for attempt in &self.ended {
            for (delivery, outcome) in &attempt.results {
                settlements.extend(self.settlement(&attempt.hook, delivery, outcome, now));
            }
        }
        let written = settlements.clone();
        let outbox = &self.engine.shared.outbox;
        outbox.with_store(move |store: &dyn Store| store.settle(&written)).await?;
        for attempt in std::mem::take(&mut self.ended) {
            let generations = attempt.results.iter().map(|(delivery, _)| delivery.id.generation);
            let name = &attempt.hook.subscription.hook;
            if let Some(lane) = self.lanes.get_mut(name) {
                lane.ended(generations);
            }
            let keys = attempt.results.iter().map(|(delivery, _)| &delivery.key);
            let by_id: HashMap<Generation, _> =
                attempt.results.iter().map(|(d, _)| d.id.generation).zip(keys).collect();
            for settled in settlements.iter().filter(|settled| settled.id.hook == *name) {
                if let Some(key) = by_id.get(&settled.id.generation) {
                    self.tell(key, settled);
                }
            }
        }
        self.engine.shared.bell.ring();
        Ok(())
    }

    fn settlement(
        &self,
        hook: &HookConfig,
        delivery: &Delivery,
        outcome: &Outcome,
        now: Steady,
    ) -> Option<Settlement> {
        let tries = delivery.tries.saturating_add(1);
        let (state, last_error, pause_ms) = match outcome {
            Outcome::NotTried => return None,
            Outcome::Done => (DeliveryState::Done, String::new(), 0),
            Outcome::Failed(HookError { problem, again }) => {
                #[allow(clippy::cast_possible_truncation, reason = "any 64 bits will do")]
                let random = self.engine.shared.machine.random() as u64;
                let pause_ms = match again {
                    Again::Never => None,
                    Again::Later => hook.retry.pause_ms(tries, random, None),
                    Again::After(asked) => {
                        let asked = u64::try_from(asked.as_millis()).unwrap_or(u64::MAX);
                        hook.retry.pause_ms(tries, random, Some(asked))
                    }
                };
                let state = match pause_ms {
                    Some(_) => DeliveryState::Pending,
                    None => DeliveryState::Dead,
                };
                (state, shortened(problem), pause_ms.unwrap_or(0))
            }
        };
        let due = Steady(now.0.saturating_add(pause_ms));
        Some(Settlement { id: delivery.id.clone(), state, tries, last_error, due })
    }

    /// Counts what became of a delivery, and tells whoever watches.
    fn tell(&self, key: &memoird_core::ids::SessionKey, settled: &Settlement) {
        let Settlement { id, state, tries, last_error, .. } = settled;
        let (hook, tries) = (id.hook.clone(), *tries);
        let (outcome, kind) = match state {
            DeliveryState::Done => ("done", EventKind::HookDelivered { hook, tries }),
            failed => {
                let gave_up = *failed == DeliveryState::Dead;
                if gave_up {
                    warn!(delivery = %id, tries, problem = %last_error, "a delivery is given up");
                } else {
                    debug!(delivery = %id, tries, problem = %last_error, "a delivery failed");
                }
                let problem = last_error.clone();
                let outcome = if gave_up { "dead" } else { "failed" };
                (outcome, EventKind::HookFailed { hook, tries, problem, gave_up })
            }
        };
        let shared = &self.engine.shared;
        shared.stats.hooks.count(&id.hook, outcome);
        let tenant = self.engine.tenant_or_common(&key.tenant);
        let at = shared.machine.now().wall;
        tenant.events.put(at, &key.session, id.generation, kind);
    }

    /// Starts attempts for what is due, as many as there is room for.
    async fn start_attempts(&mut self) -> Result<(), EngineError> {
        let names: Vec<HookName> = self.lanes.keys().cloned().collect();
        for name in names {
            let now = self.engine.shared.machine.now();
            let Some(lane) = self.lanes.get_mut(&name) else { continue };
            let room = self.config.concurrency.saturating_sub(self.attempts.len());
            let Some(wanted) = lane.wanted(now.steady, room) else { continue };
            let hook = name.clone();
            let outbox = &self.engine.shared.outbox;
            let found =
                outbox.with_store(move |store| store.due(&hook, now.steady, wanted)).await?;
            let Some(config) = lane.hook.clone() else { continue };
            for batch in lane.take(found, wanted, now.steady, room) {
                let (engine, content_bytes) = (self.engine.clone(), self.config.content_bytes);
                let task = attempt(engine, config.clone(), batch.clone(), content_bytes);
                let task = self.attempts.spawn(task);
                self.under_way.insert(task.id(), (config.clone(), batch));
            }
        }
        Ok(())
    }

    /// One round: what ended is written down, what is due is started.
    async fn round(&mut self) -> Result<(), WorkError> {
        let config = self.engine.shared.outbox.config();
        if !Arc::ptr_eq(&config, &self.config) {
            self.take_over(config);
        }
        self.collect();
        let settled = self.settle().await;
        settled.map_err(|error| WorkError(error.to_string()))?;
        let started = self.start_attempts().await;
        started.map_err(|error| WorkError(error.to_string()))
    }
}

impl Worker for Dispatcher {
    fn name(&self) -> &'static str {
        "dispatcher"
    }

    async fn wait(&mut self) {
        let now = self.engine.shared.machine.now().steady;
        let pause = self.next_due().map(|due| Duration::from_millis(due.since(now)));
        let shared = Arc::clone(&self.engine.shared);
        tokio::select! {
            () = shared.outbox.rung() => self.lanes.values_mut().for_each(Lane::look_again),
            Some(ended) = self.attempts.join_next_with_id() => self.collected(ended),
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        self.round().await
    }

    /// Deliveries under way may end. Without a journal all that is owed is delivered now
    /// or never.
    async fn finish(&mut self) {
        let is_last_chance = !self.engine.shared.journal.is_on();
        let drain = self.config.drain;
        let drained = tokio::time::timeout(drain, self.drain(is_last_chance)).await.is_ok();
        self.attempts.abort_all();
        self.collect();
        if let Err(error) = self.settle().await {
            warn!(%error, "what became of some deliveries could not be written down");
        }
        let open = self.engine.count_deliveries().await.unwrap_or_default();
        let pending: u64 = open
            .iter()
            .filter(|of_hook| of_hook.state == DeliveryState::Pending)
            .map(|of_hook| of_hook.count)
            .sum();
        match (pending, is_last_chance) {
            (0, _) => {}
            (pending, true) => warn!(pending, drained, "deliveries are lost: there is no journal"),
            (pending, false) => debug!(pending, "deliveries are owed; the next start makes them"),
        }
    }
}

impl Dispatcher {
    async fn drain(&mut self, is_last_chance: bool) {
        self.lanes.values_mut().for_each(Lane::look_again);
        loop {
            let round = match is_last_chance {
                true => self.round().await,
                false => {
                    self.collect();
                    let settled = self.settle().await;
                    settled.map_err(|error| WorkError(error.to_string()))
                }
            };
            if let Err(WorkError(detail)) = round {
                warn!(detail, "deliveries could not be drained");
                return;
            }
            if is_last_chance && self.next_due().is_some() {
                self.wait().await;
            } else if let Some(ended) = self.attempts.join_next_with_id().await {
                self.collected(ended);
            } else {
                return;
            }
        }
    }
}

/// Calls a hook for a batch, within its time limit.
async fn attempt(
    engine: Engine,
    hook: HookConfig,
    batch: Vec<Delivery>,
    content_bytes: usize,
) -> Attempt {
    let watch = Stopwatch::start();
    let outcomes = match engine.shared.outbox.contents(&batch, content_bytes).await {
        Err(error) => {
            let problem = HookError::later(format!("the content cannot be read: {error}"));
            vec![Some(Err(problem)); batch.len()]
        }
        Ok(contents) => deliver(&engine, &hook, &batch, contents).await,
    };
    engine.shared.stats.hooks.time(&hook.subscription.hook, watch.seconds());
    let outcomes = outcomes.into_iter().map(|outcome| match outcome {
        None => Outcome::NotTried,
        Some(Ok(())) => Outcome::Done,
        Some(Err(error)) => Outcome::Failed(error),
    });
    Attempt { hook, results: batch.into_iter().zip(outcomes).collect() }
}

/// The outcome of each delivery; `None` for one whose content had no room.
async fn deliver(
    engine: &Engine,
    hook: &HookConfig,
    batch: &[Delivery],
    contents: Vec<crate::hook::Ended>,
) -> Vec<Option<Result<(), HookError>>> {
    let at = engine.shared.machine.now().wall;
    let last_read = contents.last().map(|ended| ended.generation);
    let mut contents: HashMap<Generation, _> =
        contents.into_iter().map(|ended| (ended.generation, Arc::new(ended))).collect();
    // What stands behind the last content that was read had no room; what stands before it
    // and was not found is gone.
    let read = batch.iter().position(|d| Some(d.id.generation) == last_read).map_or(0, |i| i + 1);
    let gone = || HookError::never("its content is gone: nothing is left to deliver");
    let mut outcomes: Vec<Option<Result<(), HookError>>> = vec![None; batch.len()];
    let (mut calls, mut places) = (Vec::new(), Vec::new());
    for (place, delivery) in batch.iter().enumerate() {
        match contents.remove(&delivery.id.generation) {
            Some(ended) => {
                let (delivery, attempt) = (delivery.id.clone(), delivery.tries.saturating_add(1));
                calls.push(HookCall { delivery, attempt, at, ended });
                places.push(place);
            }
            None if place < read || last_read.is_none() => outcomes[place] = Some(Err(gone())),
            None => {}
        }
    }
    let limit = hook.timeout;
    let answers = match calls.is_empty() {
        true => Vec::new(),
        false => match tokio::time::timeout(limit, hook.hook.deliver(calls)).await {
            Ok(answers) => answers,
            Err(_) => {
                let problem = format!("not done within {limit:?}");
                vec![Err(HookError::later(problem)); places.len()]
            }
        },
    };
    let mut answers = answers.into_iter();
    for place in places {
        let missing = || Err(HookError::later("the hook gave no answer"));
        outcomes[place] = Some(answers.next().unwrap_or_else(missing));
    }
    outcomes
}

fn shortened(problem: &str) -> String {
    let mut end = problem.len().min(PROBLEM_BYTES);
    while !problem.is_char_boundary(end) {
        end -= 1;
    }
    problem[..end].to_owned()
}
