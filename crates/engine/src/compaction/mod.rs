//! Compaction: the oldest exchanges of a session become a summary, in the background, on a
//! snapshot. It is committed only where the session still is what it was.

mod attempt;
mod counts;
mod ladder;
mod near;
mod pieces;
mod queue;
mod span;
mod stats;
mod worker;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use memoird_core::breaker::{BreakerPolicy, BreakerState};
use memoird_core::change::ChangeSet;
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::probe::Probe;
use memoird_core::compaction::spoken::spoken;
use memoird_core::compaction::{CompactionPolicy, Summary};
use memoird_core::config::{AsText, Problems, Span};
use memoird_core::ids::{Generation, SessionId, SessionKey};
use memoird_store::encoding;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::append::ATTEMPTS;
use crate::cell::{Residence, SessionCell};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::EventKind;
use crate::journal::{Permit, Submitted};
use crate::read::SessionView;
use crate::summarizer::Summarizer;
use crate::tenant::{Tenant, ms};

pub(crate) use counts::RemoteCounts;
pub(crate) use near::Near;
use queue::Wanted;
pub(crate) use queue::{Compactions, Wish};
pub(crate) use stats::CompactionStats;
pub use stats::{CompactionSnapshot, Outcome};
pub(crate) use worker::Compactor;

/// How sessions are compacted.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionConfig {
    /// When, and how far.
    #[serde(skip)]
    pub policy: CompactionPolicy,
    /// Who makes summaries. Without one windows are cut, and nothing is compacted.
    #[serde(skip)]
    pub summarizer: Option<Arc<dyn Summarizer>>,
    /// Compactions under way at once, at least 1.
    pub concurrency: usize,
    /// Of these, of one tenant.
    pub tenant_concurrency: usize,
    /// How long one summary may take, with all its pieces.
    #[serde(with = "AsText::<Span>")]
    pub timeout: Duration,
    /// When a remote summarizer that fails is stopped for all sessions.
    pub provider_breaker: ProviderBreaker,
}

/// When a remote summarizer that fails is stopped for all sessions, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderBreaker {
    /// Failures in a row that stop it. At least 1.
    #[serde(rename = "failures")]
    pub failures_max: u32,
    /// How long it is stopped then.
    #[serde(with = "AsText::<Span>")]
    pub cool_down: Duration,
}

/// What a compaction did.
#[derive(Clone, Debug)]
pub struct CompactionOutcome {
    /// The session after it.
    pub session: SessionView,
    /// The summary; `None` when there was nothing to summarize, and never was.
    pub summary: Option<Arc<Summary>>,
    /// False when there was nothing to summarize: `summary` is the one that stood before.
    pub is_new: bool,
    /// Tokens of what it newly stands for and of the summary before it. Estimated.
    pub tokens_before: u64,
    /// Its own.
    pub tokens_after: u64,
    /// What can still be found of what it stands for.
    pub probe: Probe,
}

/// A session, looked at closely.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    /// What is known of it.
    pub session: SessionView,
    /// What stands for its oldest turns.
    pub summary: Option<Arc<Summary>>,
    /// What was noted of it, up to its newest turn.
    pub notes: Notes,
}

impl CompactionConfig {
    /// Adds what is wrong with it; the policy is checked by itself.
    pub fn check(&self, problems: &mut Problems) {
        const SECOND: Duration = Duration::from_secs(1);
        const HOUR: Duration = Duration::from_secs(60 * 60);
        let breaker = &self.provider_breaker;
        problems.range("concurrency", self.concurrency as u64, 1..=256);
        problems.range(
            "tenant_concurrency",
            self.tenant_concurrency as u64,
            1..=256,
        );
        problems.unless(
            self.tenant_concurrency <= self.concurrency,
            "tenant_concurrency",
            "must be at most concurrency",
        );
        let is_timeout = (SECOND..=HOUR).contains(&self.timeout);
        problems.unless(is_timeout, "timeout", "must be 1s to 1h");
        let failures = breaker.failures_max.into();
        problems.range("provider_breaker.failures", failures, 1..=100);
        problems.unless(
            (Duration::from_millis(1)..=24 * HOUR).contains(&breaker.cool_down),
            "provider_breaker.cool_down",
            "must be 1ms to 24h",
        );
    }

    /// True where sessions are compacted without being asked.
    pub(crate) fn is_on(&self) -> bool {
        self.policy.enabled && self.summarizer.is_some()
    }
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            policy: CompactionPolicy::default(),
            summarizer: None,
            concurrency: 4,
            tenant_concurrency: 2,
            timeout: Duration::from_secs(120),
            provider_breaker: ProviderBreaker::default(),
        }
    }
}

impl Default for ProviderBreaker {
    fn default() -> Self {
        Self {
            failures_max: 3,
            cool_down: Duration::from_secs(60),
        }
    }
}

impl ProviderBreaker {
    /// The same as the breaker takes it.
    fn policy(&self) -> BreakerPolicy {
        BreakerPolicy {
            failures_max: self.failures_max,
            cool_down_ms: ms(self.cool_down),
        }
    }
}

impl Engine {
    /// Replaces the oldest exchanges of a session by a summary, and waits for it. Without
    /// `keep_exchanges` as many stay as configured, fewer where they alone exceed the floor;
    /// with it exactly so many.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::CallPending`],
    /// [`EngineError::CompactionRunning`], [`EngineError::CompactionFailed`], a journal that
    /// cannot be written.
    pub async fn compact_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        keep_exchanges: Option<u32>,
    ) -> Result<CompactionOutcome, EngineError> {
        // What has expired is not compacted, and what does not live is not found.
        self.session(tenant, session).await?;
        let cell = self.cell_of(tenant, session)?;
        let (answer, answered) = oneshot::channel();
        self.shared
            .compactions
            .want_now(Wanted::by_command(cell, keep_exchanges, answer))?;
        answered.await.unwrap_or(Err(EngineError::Stopping))
    }

    /// Takes the last summary back. Gives the session, and how many turns windows show again.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::NoSummary`],
    /// [`EngineError::CompactionRunning`], a journal that cannot be written.
    pub async fn undo_compaction(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<(SessionView, u64), EngineError> {
        for _ in 0..ATTEMPTS {
            self.session(tenant, session).await?;
            let cell = self.cell_of(tenant, session)?;
            let permit = self.shared.journal.permit(0).await?;
            if matches!(
                cell.lock().residence(),
                Residence::Stored(_) | Residence::Unknown
            ) {
                self.load(&cell).await?;
            }
            if let Some((view, restored, submitted, generation, number)) =
                self.undo_in(&cell, permit)?
            {
                submitted.written().await?;
                tenant
                    .stats
                    .compaction
                    .undone
                    .fetch_add(1, Ordering::Relaxed);
                let kind = EventKind::CompactionUndone { number };
                self.tell_compaction(&cell, generation, kind);
                return Ok((view, restored));
            }
        }
        Err(EngineError::NoPlace)
    }

    /// `None` where the session has to be looked for again.
    #[allow(clippy::type_complexity, reason = "taken apart by its only caller")]
    fn undo_in(
        &self,
        cell: &Arc<SessionCell>,
        permit: Permit,
    ) -> Result<Option<(SessionView, u64, Submitted, Generation, u32)>, EngineError> {
        let mut inner = cell.lock();
        let now = self.shared.machine.now();
        let is_stored = self.shared.journal.is_on();
        let Some(session) = inner.session_mut() else {
            return Ok(None);
        };
        let missing = || EngineError::NoSummary {
            session: cell.key.session.clone(),
        };
        let number = session.summary().ok_or_else(missing)?.number;
        if session.compaction().running {
            return Err(EngineError::CompactionRunning);
        }
        let undone = session.undo_compaction(is_stored);
        let (change, restored) = undone.ok_or(EngineError::JournalOff)?;
        let head = session.head().clone();
        let view = SessionView::of(&cell.key, &head, &cell.tenant, now);
        let set = ChangeSet {
            changes: vec![change],
        };
        let submitted = self
            .shared
            .journal
            .submit(permit, set, vec![Arc::clone(cell)], 0);
        inner.ticket = submitted.ticket;
        let generation = head.generation;
        if is_stored {
            // Only the store knows the summary before.
            inner.settle(&cell.tenant, Residence::Stored(Box::new(head)));
        }
        Ok(Some((view, restored, submitted, generation, number)))
    }

    fn cell_of(
        &self,
        tenant: &Tenant,
        session: &SessionId,
    ) -> Result<Arc<SessionCell>, EngineError> {
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        self.shared.table.get(&key).ok_or_else(not_found)
    }

    /// What the remote summarizer's breaker lets through; `None` where the summarizer is not
    /// remote, or there is none.
    pub fn summarizer_state(&self) -> Option<(String, BreakerState)> {
        let config = self.shared.config.load();
        let summarizer = config.compaction.summarizer.as_ref()?;
        let now = self.shared.machine.now().steady;
        summarizer.is_remote().then(|| {
            let breaker = self.shared.compactions.breaker();
            (
                summarizer.name().to_owned(),
                breaker.state(now, &self.provider_policy()),
            )
        })
    }

    /// Looks at one live session closely, without touching it.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`].
    pub async fn session_detail(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
    ) -> Result<SessionDetail, EngineError> {
        let (session, summary, turns) = self.session_and_turns(tenant, session).await?;
        let mut notes = summary
            .as_ref()
            .map(|summary| summary.notes.clone())
            .unwrap_or_default();
        let fold = move || {
            for (seq, content) in turns {
                if let Some(turn) = encoding::open(&content) {
                    notes.note(&spoken(seq, &turn, content.len()));
                }
            }
            notes
        };
        let notes = self.shared.blocking.run(fold).await?;
        Ok(SessionDetail {
            session,
            summary,
            notes,
        })
    }
}
