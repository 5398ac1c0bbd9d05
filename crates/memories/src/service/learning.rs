//! Fact extraction by the configured model.
//!
//! Leases unread turns, prompts the model, validates its reply and commits the accepted facts. It
//! uses the same lease and commit operations as a bot that runs its own model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::breaker::{BreakerPolicy, BreakerState};
use memoird_core::date::day_number;
use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_engine::{EventKind, FaultKind, ModelFault, Tenant, TextEnd};
use serde_json::Value;
use tokio::time::timeout;

use super::extraction::{GenerationSelector, HeldLease, Learning, LeaseMode, Prepared};
use crate::error::MemoryError;
use crate::extractor::{Extractor, ExtractorRequest};
use crate::lock;
use crate::requests::{ExtractedFact, LearnOutcome, LearnedEntry, RememberOutcome};
use crate::rules::extraction::{
    CheckedEntry, ExtractionInput, ReplaceableMemory, entries, judge, replaced,
};
use crate::rules::{Pin, Visibility};
use crate::store::MemoryReader;

/// Maximum tokens of a reply.
const ANSWER_TOKENS: u64 = 4_096;
/// Low estimate of bytes per token, to stay within the provider's input limit.
const TOKEN_BYTES: u64 = 3;
/// Bytes reserved for the fixed part of a prompt: task, rules and manifest.
const PROMPT_BYTES: u64 = 32 << 10;
/// Unusable replies after which the turns are skipped.
///
/// More retries would cost tokens and delay the turns after them.
pub(super) const FAILURES_MAX: u32 = 3;
/// Circuit breaker of the model, shared by all tenants.
const BREAKER: BreakerPolicy = BreakerPolicy {
    failures_max: 3,
    cool_down_ms: 60_000,
};
/// Pause before a failed call is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

struct ParsedReply {
    entries: Vec<Value>,
    tokens: (u64, u64),
}

impl Learning {
    /// Extracts facts from the next unread turns of a session and stores them.
    ///
    /// A dry run calls the model too, and returns the facts without storing them.
    ///
    /// # Errors
    /// [`MemoryError::NoExtractor`], [`MemoryError::ExtractorFailed`],
    /// [`MemoryError::ExtractionSpent`], and those of a lease and its commit.
    pub async fn learn(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        subject: Option<Subject>,
        dry_run: bool,
    ) -> Result<LearnOutcome, MemoryError> {
        let extractor = self.storage.config().extractor.clone();
        let extractor = extractor.ok_or(MemoryError::NoExtractor)?;
        if let Some(after) = self.extractor_pause() {
            return Err(resting(after));
        }
        let whose = GenerationSelector {
            session,
            generation,
            subject,
        };
        let take = if dry_run {
            LeaseMode::Preview
        } else {
            LeaseMode::Lease
        };
        let bytes_max = extractor.input_tokens_max().saturating_mul(TOKEN_BYTES);
        let bytes_max = bytes_max.saturating_sub(PROMPT_BYTES);
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let mut prepared = match self.prepare(tenant, whose, take, bytes_max).await? {
            Ok(prepared) => prepared,
            Err(nothing) => {
                return Ok(LearnOutcome {
                    generation: Some(nothing.generation),
                    cursor_seq: nothing.cursor_seq,
                    by: extractor.name().to_owned(),
                    ..LearnOutcome::default()
                });
            }
        };
        let answer = match self.ask(tenant, &*extractor, &prepared).await {
            Ok(answer) => answer,
            Err(failure) => return Err(self.give_back(tenant, &mut prepared, failure).await),
        };
        let judged = self.judged(tenant, &prepared, &answer.entries).await?;
        let facts: Vec<ExtractedFact> = judged
            .iter()
            .filter_map(|judged| judged.fact.clone().ok())
            .collect();
        let outcomes = match self.keep_facts(tenant, &prepared, facts).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let failure = Failure::Refused(error);
                return Err(self.give_back(tenant, &mut prepared, failure).await);
            }
        };
        prepared.held.take().into_iter().for_each(HeldLease::keep);
        // Outcomes are in the order of the entries that passed validation.
        let mut outcomes = outcomes.into_iter();
        let entries = judged.into_iter().map(|judged| LearnedEntry {
            outcome: judged.fact.as_ref().ok().and_then(|_| outcomes.next()),
            judged,
        });
        let outcome = LearnOutcome {
            generation: Some(prepared.lease.generation),
            turns: Some((prepared.from_seq, prepared.lease.to_seq)),
            cursor_seq: if dry_run {
                prepared.cursor_seq
            } else {
                prepared.lease.to_seq
            },
            by: extractor.name().to_owned(),
            tokens: answer.tokens,
            entries: entries.collect(),
        };
        if !dry_run {
            self.tell(tenant, &prepared, &outcome);
        }
        Ok(outcome)
    }

    /// Time until the open breaker allows a trial call. `None` if it is not open.
    pub(crate) fn extractor_pause(&self) -> Option<Duration> {
        let now = self.storage.engine.machine.now().steady;
        let breaker = lock(&self.breaker);
        (breaker.state(now, &BREAKER) == BreakerState::Open)
            .then(|| Duration::from_millis(breaker.pause_ms(now, &BREAKER).max(1)))
    }

    /// Whether the breaker admits a call now. A half-open breaker admits one trial.
    fn is_admitted(&self) -> bool {
        let now = self.storage.engine.machine.now().steady;
        lock(&self.breaker).admits(now, &BREAKER)
    }

    /// Calls the model, within the daily tokens and the duration of the lease.
    async fn ask(
        &self,
        tenant: &Arc<Tenant>,
        extractor: &dyn Extractor,
        prepared: &Prepared,
    ) -> Result<ParsedReply, Failure> {
        let config = self.storage.config();
        let day = day_number(self.storage.now());
        let prompt_tokens = prepared.prompt.len() as u64 / TOKEN_BYTES;
        let counted = prompt_tokens + ANSWER_TOKENS;
        let limit = config.extraction.tokens_per_day;
        let spend = self
            .storage
            .write(&tenant.id, move |writer| {
                writer.spend_tokens(day, counted, limit)
            })
            .await;
        if !spend.map_err(Failure::Refused)? {
            return Err(Failure::Refused(MemoryError::ExtractionSpent { limit }));
        }
        let correct = |used: u64| {
            self.storage.write(&tenant.id, move |writer| {
                writer.correct_tokens(day, counted, used)
            })
        };
        if !self.is_admitted() {
            correct(0).await.map_err(Failure::Refused)?;
            let after = self.extractor_pause().unwrap_or(RETRY_AFTER);
            return Err(Failure::Refused(resting(after)));
        }
        let request = Arc::new(ExtractorRequest {
            tenant: tenant.id.clone(),
            session: prepared.lease.session.clone(),
            generation: prepared.lease.generation,
            subject: prepared.lease.subject.clone(),
            turns: prepared.said.clone(),
            manifest: prepared.manifest.text.clone(),
            recalled: prepared.recalled.clone(),
            prompt: prepared.prompt.clone(),
            tokens_max: ANSWER_TOKENS,
        });
        // A later reply could not be committed: the lease would have expired.
        let answered = timeout(config.lease, extractor.extract(request)).await;
        let late = || ModelFault::new(FaultKind::Later, "no answer before the lease is over");
        let answered = answered.unwrap_or_else(|_| Err(late()));
        self.note_answer(&answered);
        let answer = match answered {
            Ok(answer) => answer,
            Err(fault) => {
                // The provider charges nothing for a failed call, so refund the reserved tokens.
                if matches!(fault.kind, FaultKind::Later | FaultKind::Misconfigured) {
                    correct(0).await.map_err(Failure::Refused)?;
                }
                return Err(Failure::Fault(fault));
            }
        };
        let written = answer.text.len() as u64 / TOKEN_BYTES;
        let tokens = answer.tokens.unwrap_or((prompt_tokens, written));
        let used = tokens.0.saturating_add(tokens.1);
        correct(used).await.map_err(Failure::Refused)?;
        {
            let state = self.storage.state(&tenant.id);
            let mut counts = state.counters();
            counts.extraction_prompt_tokens += tokens.0;
            counts.extraction_answer_tokens += tokens.1;
        }
        let unusable = |problem: &str| {
            let fault = ModelFault::new(FaultKind::Unusable, problem);
            Err(Failure::Fault(fault))
        };
        match answer.end {
            TextEnd::CutOff => return unusable("the answer is cut off"),
            TextEnd::Refused => return unusable("the model refuses to answer"),
            TextEnd::Complete => {}
        }
        match entries(&answer.text) {
            Some(entries) => Ok(ParsedReply { entries, tokens }),
            None => unusable("the answer is not a JSON list of facts"),
        }
    }

    /// Records in the breaker whether the provider is available.
    fn note_answer<T>(&self, answered: &Result<T, ModelFault>) {
        let now = self.storage.engine.machine.now().steady;
        let mut breaker = lock(&self.breaker);
        match answered {
            Err(fault) if matches!(fault.kind, FaultKind::Later | FaultKind::Misconfigured) => {
                breaker.failed(now, &BREAKER);
            }
            _ => breaker.succeeded(),
        }
    }

    async fn judged(
        &self,
        tenant: &Arc<Tenant>,
        prepared: &Prepared,
        entries: &[Value],
    ) -> Result<Vec<CheckedEntry>, MemoryError> {
        // The id comes last in a line, so that no content can imitate one.
        let is_shown = |id: &MemoryId| {
            let end = format!("; id {id}");
            let mut lines = prepared.manifest.text.lines();
            lines.any(|line| line.ends_with(&end))
        };
        let ids: Vec<MemoryId> = replaced(entries).filter(is_shown).collect();
        let (subject, now) = (prepared.lease.subject.clone(), self.storage.now());
        let read = move |reader: &MemoryReader<'_>| {
            let mut known = BTreeMap::new();
            for id in ids {
                let memory = reader.get(id)?;
                let memory = memory.filter(|it| it.subject == subject && it.is_current(now));
                if let Some(memory) = memory {
                    let is_fixed = memory.pin == Some(Pin::Bot)
                        || memory.visibility == Visibility::Team
                        || memory.external_key.is_some();
                    let observed_at = memory.observed_at;
                    known.insert(
                        id,
                        ReplaceableMemory {
                            observed_at,
                            is_fixed,
                        },
                    );
                }
            }
            Ok(known)
        };
        let known = self.storage.read(&tenant.id, read).await?;
        let shown = ExtractionInput {
            turns: &prepared.said,
            said_at: &prepared.said_at,
            known: &known,
            recalled: &prepared.recalled,
            now,
            content_bytes: self.storage.config().limits.content_bytes,
        };
        Ok(judge(entries, &shown))
    }

    /// Commits the facts. A preview applies the same write and rolls it back.
    async fn keep_facts(
        &self,
        tenant: &Arc<Tenant>,
        prepared: &Prepared,
        mut facts: Vec<ExtractedFact>,
    ) -> Result<Vec<RememberOutcome>, MemoryError> {
        let once = async |facts: Vec<ExtractedFact>| {
            if prepared.held.is_some() {
                let committed = self.commit(tenant, prepared.lease.id, facts);
                committed.await.map(|outcome| outcome.results)
            } else {
                self.preview(tenant, &prepared.lease, facts).await
            }
        };
        match once(facts.clone()).await {
            // The memory to supersede has changed since: store the fact next to it.
            Err(MemoryError::Superseded { .. } | MemoryError::NotFound { .. }) => {
                for found in &mut facts {
                    found.fact.supersedes = None;
                }
                once(facts).await
            }
            done => done,
        }
    }

    /// Releases the turns for a retry, or skips them after too many failures.
    async fn give_back(
        &self,
        tenant: &Arc<Tenant>,
        prepared: &mut Prepared,
        failure: Failure,
    ) -> MemoryError {
        let is_content = failure.is_content();
        let (reason, problem) = failure.reason();
        let mut gave_up = false;
        if prepared.held.is_some() {
            let (lease, now) = (prepared.lease.clone(), self.storage.now());
            let session = lease.session.clone();
            let read = move |reader: &MemoryReader<'_>| reader.cursor(&session, lease.generation);
            let failures = self.storage.read(&tenant.id, read).await;
            let failures = failures.map_or(0, |cursor| cursor.failures);
            if is_content && failures + 1 >= FAILURES_MAX {
                let left = self.commit(tenant, prepared.lease.id, Vec::new());
                gave_up = left.await.is_ok();
            }
            if !gave_up {
                let lease = prepared.lease.clone();
                let give = self.storage.write(&tenant.id, move |writer| {
                    writer.return_lease(&lease, is_content, now)
                });
                if let Err(error) = give.await {
                    tracing::warn!(%error, "turns stay leased until their lease is over");
                }
            }
            prepared.held.take().into_iter().for_each(HeldLease::keep);
        }
        if !failure.is_put_off() {
            self.storage.state(&tenant.id).counters().extractions_failed += 1;
            tracing::warn!(
                tenant = %tenant.id,
                session = %prepared.lease.session,
                reason,
                problem,
                gave_up,
                "a model found no facts"
            );
            let kind = EventKind::ExtractionFailed {
                reason: reason.into(),
                problem,
                gave_up,
            };
            self.publish(tenant, prepared, kind);
        }
        failure.into_error()
    }

    fn tell(&self, tenant: &Arc<Tenant>, prepared: &Prepared, outcome: &LearnOutcome) {
        let is_kept = |entry: &&LearnedEntry| entry.outcome.is_some();
        let kept = outcome.entries.iter().filter(is_kept).count();
        let refused = outcome.entries.len() - kept;
        {
            let state = self.storage.state(&tenant.id);
            let mut counts = state.counters();
            counts.extractions += 1;
            counts.extractions_refused += refused as u64;
        }
        let kind = EventKind::Learned {
            by: outcome.by.as_str().into(),
            first_seq: prepared.from_seq,
            through_seq: prepared.lease.to_seq,
            kept,
            refused,
            tokens: outcome.tokens.0.saturating_add(outcome.tokens.1),
        };
        self.publish(tenant, prepared, kind);
    }

    fn publish(&self, tenant: &Arc<Tenant>, prepared: &Prepared, kind: EventKind) {
        let (session, generation) = (&prepared.lease.session, prepared.lease.generation);
        let at = self.storage.now();
        let events = &self.storage.engine.events;
        events.publish(tenant, at, session, generation, kind);
    }
}

/// Why extraction of the turns failed.
enum Failure {
    /// The model failed, or its reply is unusable.
    Fault(ModelFault),
    /// memoird itself rejected or failed the operation.
    Refused(MemoryError),
}

impl Failure {
    /// Whether the failure depends on the turns, so that a retry would probably fail the same way.
    fn is_content(&self) -> bool {
        match self {
            Self::Fault(fault) => fault.is_refusal() || fault.kind == FaultKind::Unusable,
            // The rules reject the content of the reply.
            Self::Refused(MemoryError::LeaseLost | MemoryError::Full { .. }) => false,
            Self::Refused(error) => error.is_refusal(),
        }
    }

    /// Whether the model was not called.
    fn is_put_off(&self) -> bool {
        let Self::Refused(error) = self else {
            return false;
        };
        matches!(
            error,
            MemoryError::ExtractionSpent { .. } | MemoryError::ExtractorFailed { .. }
        )
    }

    /// Machine-readable reason, and the problem for an operator.
    fn reason(&self) -> (&'static str, String) {
        match self {
            Self::Fault(fault) => {
                let reason = match fault.kind {
                    FaultKind::Later => "UNAVAILABLE",
                    FaultKind::Unusable => "UNUSABLE",
                    FaultKind::Misconfigured => "MISCONFIGURED",
                    FaultKind::TooLong => "TOO_LONG",
                    FaultKind::Refused => "REFUSED",
                };
                (reason, fault.problem.clone())
            }
            Self::Refused(error) => ("NOT_STORED", error.to_string()),
        }
    }

    fn into_error(self) -> MemoryError {
        match self {
            Self::Fault(fault) => MemoryError::ExtractorFailed {
                detail: fault.problem,
                after: fault.after.unwrap_or(RETRY_AFTER),
            },
            Self::Refused(error) => error,
        }
    }
}

/// Error while the breaker is open.
fn resting(after: Duration) -> MemoryError {
    MemoryError::ExtractorFailed {
        detail: "it failed several times in a row, and is left alone for a while".to_owned(),
        after,
    }
}
