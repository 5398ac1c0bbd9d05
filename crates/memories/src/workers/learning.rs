//! Extracts facts in the background with the configured model.
//!
//! The worker follows the journal, records which generations have new turns, and calls
//! `Learning::learn` for those that are due. Extraction cursors are stored with each tenant's
//! memories. The stored journal position never passes a turn that was not extracted, so no turn is
//! lost in a crash. Only the leading daemon of a cluster extracts.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::{Generation, SessionKey, TenantId};
use memoird_core::time::Timestamp;
use memoird_engine::{EngineError, Transcripts, WorkError, Worker};
use tokio::task::{self, JoinError, JoinSet};
use tracing::{error, info, warn};

use crate::config::{After, ExtractionConfig};
use crate::error::MemoryError;
use crate::service::Learning;
use crate::store::MemoryStore;

/// Maximum turns of the journal per step.
const STEP_TURNS: usize = 1_024;
/// Bytes after which a step reads no further turns.
const STEP_BYTES: usize = 2 << 20;
/// Maximum pending generations. At this number, the worker stops following the journal.
const PENDING_MAX: usize = 100_000;
/// Maximum due generations to check per step, in search of a tenant with a free slot.
const DUE_SEEN_MAX: usize = 1_000;
/// Delay after a change of the journal, to follow several changes at once.
const GATHER: Duration = Duration::from_millis(200);
/// First pause between checks whether a session has ended. It doubles up to [`LOOK_MAX_MS`].
const LOOK_MIN_MS: u64 = 2_000;
const LOOK_MAX_MS: u64 = 120_000;
/// First pause after a failure. It doubles up to [`RETRY_MAX_MS`].
const RETRY_MIN_MS: u64 = 1_000;
const RETRY_MAX_MS: u64 = 600_000;
/// Maximum consecutive leases of a session, before other sessions get a slot.
const LEASES_MAX: usize = 8;
const DAY_MS: u64 = 86_400_000;
/// Pause before due generations that cannot start are checked again.
const BLOCKED_MS: u64 = 1_000;
/// Pause of a generation if its tenant has no free slot.
const GIVE_WAY_MS: u64 = 100;
/// Interval between writes of the journal position.
const SAVE_EVERY_MS: u64 = 1_000;
/// Interval between checks for writes of other daemons.
const LOOK_AT_OTHERS: Duration = Duration::from_secs(2);
/// Maximum sleep of the worker.
const SLEEP_MAX: Duration = Duration::from_secs(60);

pub(super) struct LearningWorker {
    learning: Arc<Learning>,
    /// Journal position up to which turns were read. `None` before the first read.
    followed: Option<u64>,
    /// Last known change of the journal before it was read.
    seen: u64,
    has_more: bool,
    /// The stored journal position.
    saved: Option<u64>,
    /// Whether the position to start from is stored.
    has_begun: bool,
    pending: HashMap<Generation, Pending>,
    /// Pending generations that are not running, by the time of their next check.
    due: BTreeSet<(u64, Generation)>,
    tasks: JoinSet<Ended>,
    running: HashMap<task::Id, (TenantId, Generation)>,
    /// The configuration of the last step.
    config_seen: Option<ExtractionConfig>,
    /// Time of the next write of the journal position.
    save_ms: u64,
}

/// A generation with turns that are not extracted.
struct Pending {
    key: SessionKey,
    /// Journal positions of its first and last pending turn.
    numbers: (u64, u64),
    turns: u32,
    /// Time at which the last turn was read.
    last_ms: u64,
    /// Time of the next check whether its session has ended.
    look_ms: u64,
    /// Number of these checks so far.
    looks: u32,
    /// Time of the next attempt after a failure.
    not_before_ms: u64,
    /// Number of failures.
    failures: u32,
    /// Key of its entry in `due`.
    due_ms: u64,
    is_running: bool,
    has_ended: bool,
    /// Journal position of its last turn when extraction started.
    begun: u64,
}

/// Result of an extraction task.
enum Ended {
    Done,
    /// There is nothing to extract, now or later.
    Gone,
    /// Retry after this pause.
    Later(Duration),
    /// It failed. Retry after a growing pause of at least this.
    Failed(Duration),
}

impl LearningWorker {
    pub(super) fn new(learning: Arc<Learning>) -> Self {
        Self {
            learning,
            followed: None,
            seen: 0,
            has_more: true,
            saved: None,
            has_begun: false,
            pending: HashMap::new(),
            due: BTreeSet::new(),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            config_seen: None,
            save_ms: 0,
        }
    }

    fn transcripts(&self) -> &Transcripts {
        &self.learning.storage.engine.transcripts
    }

    fn now_ms(&self) -> u64 {
        self.learning.storage.engine.machine.now().steady.0
    }

    /// The configuration. `None` without an extraction model, or if another daemon leads.
    fn config(&self) -> Option<ExtractionConfig> {
        self.configured().filter(|_| self.learning.storage.leads())
    }

    /// The configuration. `None` without an extraction model.
    fn configured(&self) -> Option<ExtractionConfig> {
        let config = self.learning.storage.config();
        let is_on = self.learning.storage.is_on() && self.transcripts().have_journal();
        (is_on && config.extractor.is_some()).then_some(config.extraction)
    }

    /// Drops all state. Pending turns are found again in the journal.
    fn rest(&mut self) {
        self.followed = None;
        self.pending.clear();
        self.due.clear();
        self.has_more = true;
    }

    /// Reads new turns of the journal, and records their generations as pending.
    async fn follow(&mut self, config: &ExtractionConfig) -> Result<(), MemoryError> {
        if self.pending.len() >= PENDING_MAX {
            self.has_more = false;
            return Ok(());
        }
        let changed = self.transcripts().written_beyond(self.seen);
        if let Ok(seen) = tokio::time::timeout(Duration::ZERO, changed).await {
            self.seen = seen;
        }
        let from = match self.followed {
            Some(number) => number,
            None => self.begin().await?,
        };
        let read = self.transcripts();
        let written = read.written_after(from, STEP_TURNS, STEP_BYTES).await?;
        let reached = written.turns.last().map_or(from, |turn| turn.number);
        let new: HashSet<Generation> = written.turns.iter().map(|turn| turn.generation).collect();
        let unknown = new.into_iter().filter(|it| !self.pending.contains_key(it));
        let owners = self.transcripts().owners(unknown.collect()).await?;
        let now_ms = self.now_ms();
        for owner in owners {
            let pending = Pending {
                key: owner.key,
                numbers: (u64::MAX, 0),
                turns: 0,
                last_ms: now_ms,
                look_ms: now_ms + LOOK_MIN_MS,
                looks: 0,
                not_before_ms: 0,
                failures: 0,
                due_ms: 0,
                is_running: false,
                has_ended: false,
                begun: 0,
            };
            self.pending.insert(owner.generation, pending);
        }
        let mut touched = HashSet::new();
        for turn in &written.turns {
            // Its session was forgotten since.
            let Some(pending) = self.pending.get_mut(&turn.generation) else {
                continue;
            };
            let (first, last) = pending.numbers;
            pending.numbers = (first.min(turn.number), last.max(turn.number));
            pending.turns = pending.turns.saturating_add(1);
            pending.last_ms = now_ms;
            touched.insert(turn.generation);
        }
        for generation in touched {
            self.schedule(generation, config);
        }
        self.followed = Some(reached);
        self.has_more = reached > from && reached < written.last_number;
        Ok(())
    }

    /// Position to start from: the stored one, or the end of the journal on the first run.
    async fn begin(&mut self) -> Result<u64, MemoryError> {
        let written = self
            .transcripts()
            .written_after(u64::MAX >> 1, 1, 1)
            .await?;
        let last = written.last_number;
        let begin = match self.learning.storage.run(MemoryStore::read_learnt).await? {
            Some(number) if number <= last => number,
            // An older journal was restored.
            Some(_) => 0,
            None => {
                info!("a model looks for facts in what is said from now on");
                last
            }
        };
        self.save(begin).await?;
        Ok(begin)
    }

    async fn save(&mut self, number: u64) -> Result<(), MemoryError> {
        if self.saved != Some(number) {
            let storage = &self.learning.storage;
            storage.run(move |store| store.write_learnt(number)).await?;
            self.saved = Some(number);
        }
        Ok(())
    }

    /// Stores the position up to which all turns are extracted.
    async fn save_progress(&mut self) -> Result<(), MemoryError> {
        let Some(followed) = self.followed else {
            return Ok(());
        };
        let waiting = self.pending.values().map(|pending| pending.numbers.0);
        let first = waiting.min().map_or(followed, |first| first - 1);
        self.save(first.min(followed)).await
    }

    /// Computes when a generation is checked next.
    fn schedule(&mut self, generation: Generation, config: &ExtractionConfig) {
        let now_ms = self.now_ms();
        let Some(pending) = self.pending.get_mut(&generation) else {
            return;
        };
        self.due.remove(&(pending.due_ms, generation));
        if pending.is_running {
            return;
        }
        let wanted_ms = match config.after {
            _ if pending.has_ended => now_ms,
            After::Idle(span) => {
                let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
                pending.last_ms.saturating_add(span_ms)
            }
            After::Turns(count) if pending.turns >= count => now_ms,
            After::Turns(_) | After::End => pending.look_ms,
        };
        pending.due_ms = wanted_ms.max(pending.not_before_ms);
        self.due.insert((pending.due_ms, generation));
    }

    /// Starts due generations while slots are free.
    async fn start(&mut self, config: &ExtractionConfig) {
        let now_ms = self.now_ms();
        let due = self.due.iter().take_while(|(due_ms, _)| *due_ms <= now_ms);
        let due: Vec<Generation> = due.take(DUE_SEEN_MAX).map(|(_, it)| *it).collect();
        for generation in due {
            if self.tasks.len() >= config.concurrency || self.learning.extractor_pause().is_some() {
                return;
            }
            if self.is_ready(generation, config).await {
                self.run(generation, config);
            }
        }
    }

    /// Whether to extract a generation now. If not, reschedules it.
    async fn is_ready(&mut self, generation: Generation, config: &ExtractionConfig) -> bool {
        let Some(pending) = self.pending.get(&generation) else {
            return false;
        };
        let is_waiting = match config.after {
            After::Idle(_) => false,
            After::Turns(count) => pending.turns < count,
            After::End => true,
        };
        if pending.has_ended || !is_waiting {
            return true;
        }
        let key = pending.key.clone();
        let engine = &self.learning.storage.engine;
        let tenant = engine.tenants.get_or_insert(&key.tenant);
        let lives = match engine.commands.session(&tenant, &key.session).await {
            Ok(view) => view.head.generation == generation,
            Err(EngineError::SessionNotFound { .. }) => false,
            // Assume that it is live, and check again later.
            Err(_) => true,
        };
        let now_ms = self.now_ms();
        if let Some(pending) = self.pending.get_mut(&generation) {
            pending.has_ended = !lives;
            let pause_ms = LOOK_MIN_MS << pending.looks.min(16);
            pending.look_ms = now_ms + pause_ms.min(LOOK_MAX_MS);
            pending.looks = pending.looks.saturating_add(1);
        }
        self.schedule(generation, config);
        !lives
    }

    fn run(&mut self, generation: Generation, config: &ExtractionConfig) {
        let now_ms = self.now_ms();
        let Some(pending) = self.pending.get_mut(&generation) else {
            return;
        };
        let tenant = pending.key.tenant.clone();
        let running = self.running.values();
        if running.filter(|(owner, _)| *owner == tenant).count() >= config.tenant_concurrency {
            // Let other tenants go first.
            pending.not_before_ms = now_ms + GIVE_WAY_MS;
            self.schedule(generation, config);
            return;
        }
        self.due.remove(&(pending.due_ms, generation));
        pending.is_running = true;
        pending.begun = pending.numbers.1;
        let (learning, key) = (Arc::clone(&self.learning), pending.key.clone());
        let task = self.tasks.spawn(learn(learning, key, generation));
        self.running.insert(task.id(), (tenant, generation));
    }

    fn ended(&mut self, result: Result<(task::Id, Ended), JoinError>) {
        let (id, ended) = match result {
            Ok((id, ended)) => (id, ended),
            Err(failure) => {
                if failure.is_panic() {
                    error!(%failure, "an extraction panicked; its turns are looked at again");
                }
                (failure.id(), Ended::Failed(Duration::ZERO))
            }
        };
        let Some((_, generation)) = self.running.remove(&id) else {
            return;
        };
        let now_ms = self.now_ms();
        let Some(pending) = self.pending.get_mut(&generation) else {
            return;
        };
        pending.is_running = false;
        let pause = |least: Duration, failures: u32| {
            let grown = (RETRY_MIN_MS << failures.min(16)).min(RETRY_MAX_MS);
            grown.max(ms(least))
        };
        match ended {
            Ended::Done if pending.numbers.1 > pending.begun => {
                // New turns arrived during the extraction.
                pending.numbers.0 = pending.begun + 1;
                pending.turns = 1;
                pending.failures = 0;
                pending.not_before_ms = 0;
            }
            Ended::Done | Ended::Gone => {
                self.pending.remove(&generation);
                return;
            }
            Ended::Later(least) => pending.not_before_ms = now_ms + ms(least),
            Ended::Failed(least) => {
                pending.not_before_ms = now_ms + pause(least, pending.failures);
                pending.failures = pending.failures.saturating_add(1);
            }
        }
        if let Some(config) = self.config() {
            self.schedule(generation, &config);
        }
    }
}

impl Worker for LearningWorker {
    fn name(&self) -> &'static str {
        "extractor"
    }

    async fn wait(&mut self) {
        let learning = Arc::clone(&self.learning);
        // Writes and failures of other daemons cause no notification, so poll for them.
        let looks_again = learning.storage.are_shared().then_some(LOOK_AT_OTHERS);
        if self.configured().is_some() && !self.has_begun {
            return;
        }
        if self.config().is_none() {
            let changed = learning.released.changed.notified();
            let _ = tokio::time::timeout(looks_again.unwrap_or(Duration::MAX), changed).await;
            return;
        }
        if self.has_more {
            return;
        }
        let engine = &learning.storage.engine;
        let first = self.due.first().map(|(due_ms, _)| *due_ms);
        let until_due = first.map(|due_ms| {
            let ahead = due_ms.saturating_sub(self.now_ms()).max(1);
            // What is due already waits for a slot or for the provider.
            let ahead = if ahead == 1 { BLOCKED_MS } else { ahead };
            Duration::from_millis(ahead).min(SLEEP_MAX)
        });
        tokio::select! {
            biased;
            Some(result) = self.tasks.join_next_with_id() => self.ended(result),
            _ = engine.transcripts.written_beyond(self.seen) => {
                tokio::time::sleep(GATHER).await;
                self.has_more = true;
            }
            () = tokio::time::sleep(until_due.unwrap_or(SLEEP_MAX)) => {}
            () = tokio::time::sleep(looks_again.unwrap_or(SLEEP_MAX)) => {
                self.has_more = looks_again.is_some();
            }
            () = learning.released.changed.notified() => {}
        }
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        while let Some(result) = self.tasks.try_join_next_with_id() {
            self.ended(result);
        }
        if self.configured().is_some() && !self.has_begun {
            // Store the position, so that a later leader starts from here.
            self.begin().await?;
            self.has_begun = true;
        }
        self.learning.give_back_dropped().await;
        let Some(config) = self.config() else {
            self.rest();
            return Ok(());
        };
        if self.config_seen != Some(config) {
            self.config_seen = Some(config);
            let all: Vec<Generation> = self.pending.keys().copied().collect();
            for generation in all {
                self.schedule(generation, &config);
            }
        }
        if self.has_more || self.followed.is_none() {
            self.follow(&config).await?;
        }
        self.start(&config).await;
        let now_ms = self.now_ms();
        if now_ms >= self.save_ms {
            self.save_ms = now_ms + SAVE_EVERY_MS;
            self.save_progress().await?;
        }
        Ok(())
    }

    /// Aborts running extractions and releases their leases.
    ///
    /// The next run extracts these turns again.
    async fn finish(&mut self) {
        self.tasks.shutdown().await;
        self.learning.give_back_dropped().await;
        if let Err(error) = self.save_progress().await {
            warn!(%error, "extractions begin again with what they looked at last");
        }
    }
}

/// Extracts all new turns of a generation.
async fn learn(learning: Arc<Learning>, key: SessionKey, generation: Generation) -> Ended {
    let tenants = &learning.storage.engine.tenants;
    let tenant = tenants.get_or_insert(&key.tenant);
    for _ in 0..LEASES_MAX {
        let learnt = learning.learn(&tenant, &key.session, Some(generation), None, false);
        match learnt.await {
            Ok(outcome) if outcome.turns.is_none() => return Ended::Done,
            Ok(_) => {}
            Err(error) => return after(learning.storage.now(), error),
        }
    }
    Ended::Later(Duration::ZERO)
}

fn after(now: Timestamp, error: MemoryError) -> Ended {
    match error {
        MemoryError::LeaseHeld { seconds_left } => {
            Ended::Later(Duration::from_secs(seconds_left.max(1)))
        }
        // The generation has no subject, or its turns are gone.
        MemoryError::Invalid {
            field: "subject", ..
        }
        | MemoryError::Engine(
            EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. },
        ) => Ended::Gone,
        MemoryError::ExtractionSpent { .. } => {
            let today_ms = now.as_ms().unsigned_abs() % DAY_MS;
            Ended::Later(Duration::from_millis((DAY_MS - today_ms).min(RETRY_MAX_MS)))
        }
        MemoryError::ExtractorFailed { after, .. } => Ended::Failed(after),
        MemoryError::NoExtractor => Ended::Later(Duration::from_secs(1)),
        error => {
            warn!(%error, "turns could not be looked at; they are tried again");
            Ended::Failed(Duration::ZERO)
        }
    }
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
