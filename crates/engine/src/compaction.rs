//! Compaction: the oldest exchanges of a session become a summary, in the background, from a
//! snapshot. It is committed only if the session is still in the state of the snapshot.
//!
//! Remote summarizers have a breaker for all sessions, beside that of each session.

mod attempt;
mod chunks;
mod near_limit;
mod queue;
mod remote_counts;
mod span;
mod summarize;
mod summarizer;
mod worker;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::breaker::{Breaker, BreakerPolicy, BreakerState};
use memoird_core::compaction::{CompactionPolicy, Summary, Trigger};
use memoird_core::config::{AsText, Problems, Span};
use memoird_core::ids::SessionId;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::blocking::{Blocking, Executor, cores};
use crate::error::EngineError;
use crate::events::EventKind;
use crate::models::ModelRegistry;
use crate::sessions::{Decision, Effect, SessionRef, SessionView, Sessions, UpdateOptions};
use crate::stats::Stats;
use crate::tenants::{Tenant, ms};

pub(crate) use near_limit::NearLimit;
pub(crate) use queue::{CompactionQueue, CompactionRequest};
use remote_counts::RemoteCounts;
pub use summarizer::{Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest, TextEnd};
pub(crate) use worker::CompactionWorker;

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
}

/// A session, looked at closely.
#[derive(Clone, Debug)]
pub struct SessionDetail {
    /// The session without its turns.
    pub session: SessionView,
    /// What stands for its oldest turns.
    pub summary: Option<Arc<Summary>>,
}

impl CompactionConfig {
    /// Adds its problems; the policy is checked by itself.
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

/// Compacts sessions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Compaction {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sessions: Sessions,
    queue: Arc<CompactionQueue>,
    config: ArcSwap<CompactionConfig>,
    models: Arc<ModelRegistry>,
    remote_counts: RemoteCounts,
    /// Of a remote summarizer, for all sessions.
    provider_breaker: Mutex<Breaker>,
    stats: Arc<Stats>,
    /// Where turns are read and summaries made and looked at.
    threads: Executor,
}

/// What compaction is built from.
pub(crate) struct CompactionParts {
    pub(crate) sessions: Sessions,
    pub(crate) queue: Arc<CompactionQueue>,
    pub(crate) models: Arc<ModelRegistry>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) blocking: Blocking,
}

impl Compaction {
    pub(crate) fn new(parts: CompactionParts, config: CompactionConfig) -> Self {
        parts.queue.note_summarizer(config.summarizer.as_ref());
        let shared = Shared {
            sessions: parts.sessions,
            queue: parts.queue,
            config: ArcSwap::from_pointee(config),
            models: parts.models,
            remote_counts: RemoteCounts::default(),
            provider_breaker: Mutex::default(),
            stats: parts.stats,
            threads: Executor::awaited(parts.blocking, "summarizer", cores()),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Another configuration applies from now on. Its provider, or the same with another key,
    /// is called as if it had never failed.
    pub(crate) fn reconfigure(&self, config: CompactionConfig) {
        self.queue().note_summarizer(config.summarizer.as_ref());
        self.shared.config.store(Arc::new(config));
        *self.provider_breaker() = Breaker::default();
    }

    fn config(&self) -> Arc<CompactionConfig> {
        self.shared.config.load_full()
    }

    fn sessions(&self) -> &Sessions {
        &self.shared.sessions
    }

    fn queue(&self) -> &Arc<CompactionQueue> {
        &self.shared.queue
    }

    /// How many compactions are requested or under way.
    pub fn pending(&self) -> usize {
        self.queue().pending()
    }

    /// Waits until no compaction is requested or under way.
    pub async fn idle(&self) {
        self.queue().idle().await;
    }

    fn provider_breaker(&self) -> MutexGuard<'_, Breaker> {
        let breaker = self.shared.provider_breaker.lock();
        breaker.unwrap_or_else(PoisonError::into_inner)
    }

    /// When calls of a remote summarizer stop for all sessions.
    fn provider_policy(&self) -> BreakerPolicy {
        self.config().provider_breaker.policy()
    }

    /// Replaces the oldest exchanges of a session by a summary, and waits for it. Keeps exactly
    /// `keep_exchanges` of the newest exchanges; without a number 5, or fewer if they need over
    /// 30 % of the window.
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
        let session = SessionRef::new(tenant, session);
        // Before it waits for its turn.
        self.sessions().head(&session).await?;
        let (reply, answer) = oneshot::channel();
        let mut request = CompactionRequest::new(session, Trigger::Command);
        request.keep_exchanges = keep_exchanges;
        request.reply = Some(reply);
        self.queue().request_now(request)?;
        answer.await.unwrap_or(Err(EngineError::Stopping))
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
        let session = SessionRef::new(tenant, session);
        let is_stored = self.sessions().have_journal();
        let undone = self
            .sessions()
            .update(&session, UpdateOptions::of_live(0), |update| {
                let no_summary = || EngineError::NoSummary {
                    session: update.key.session.clone(),
                };
                let number = update.session.summary().ok_or_else(no_summary)?.number;
                if update.session.compaction().running {
                    return Err(EngineError::CompactionRunning);
                }
                let (change, restored) = update
                    .session
                    .undo_compaction(is_stored)
                    .ok_or(EngineError::JournalOff)?;
                let outcome = (update.view(), restored, number);
                let effect = Effect::ChangeAndUnload {
                    changes: vec![change],
                    dropped_turns: 0,
                };
                Ok(Decision::unused(outcome, Some(effect)))
            });
        let (view, restored, number) = undone.await?;
        let stats = &tenant.stats.compaction;
        stats.undone.fetch_add(1, Ordering::Relaxed);
        let kind = EventKind::CompactionUndone { number };
        self.sessions()
            .publish(&session, view.head.generation, kind);
        Ok((view, restored))
    }

    /// What the remote summarizer's breaker lets through, with the summarizer's name; `None`
    /// where the summarizer is not remote, or there is none.
    pub fn summarizer_state(&self) -> Option<(String, BreakerState)> {
        let config = self.config();
        let summarizer = config.summarizer.as_ref()?;
        if !summarizer.is_remote() {
            return None;
        }
        let now = self.sessions().now().steady;
        let state = self.provider_breaker().state(now, &self.provider_policy());
        Some((summarizer.name().to_owned(), state))
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
        let session = SessionRef::new(tenant, session);
        let options = UpdateOptions::optional();
        let detail = self.sessions().update(&session, options, |update| {
            let detail = SessionDetail {
                session: update.view(),
                summary: update.session.summary().cloned(),
            };
            Ok::<_, EngineError>(Decision::unused(detail, None))
        });
        detail.await
    }
}
