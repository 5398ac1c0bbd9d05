//! Extraction by a bot: it leases turns, runs its own model on them and commits the facts.
//!
//! Turns whose lease expires before the commit can be leased again. The id of a lease contains a
//! digest of its turns, so that facts from turns that were updated or rewound since are refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use memoird_core::breaker::Breaker;
use memoird_core::date::Date;
use memoird_core::ids::{Generation, LeaseId, SessionId, Subject, TenantId};
use memoird_core::sha256::Sha256;
use memoird_core::time::Timestamp;
use memoird_core::turn::Turn;
use memoird_engine::{EngineError, HistoryPage, JournalRange, Tenant};
use memoird_store::encoding;
use tokio::sync::Notify;

use super::facts::Facts;
use super::learning::FAILURES_MAX;
use super::recall::Recall;
use super::sources::{SourceTurns, text_of};
use super::storage::MemoryStorage;
use crate::error::MemoryError;
use crate::lock;
use crate::requests::{ExtractedFact, ExtractionLease, ExtractionOutcome, RememberOutcome};
use crate::rules::manifest::Manifest;
use crate::rules::prompt::{ExtractionPrompt, RECALLED_CHARS_MAX, TranscriptTurn, prompt};
use crate::rules::{MemoryLimits, Origin, Source};
use crate::store::time::after;
use crate::store::{Lease, MemoryReader, MemoryWriter, RememberCommand};

/// Minimum bytes of turns in a prompt, whatever else it contains.
const TURNS_BYTES_MIN: usize = 4 << 10;
/// Maximum pages that one call skips because their turns predate the forgetting of the subject.
const SKIPS_MAX: usize = 64;

/// Generation with unread turns, and its cursor.
struct Unread {
    session: SessionId,
    generation: Generation,
    subject: Subject,
    cursor_seq: u64,
    /// Unusable replies about the next turns.
    failures: u32,
    not_before: Option<Timestamp>,
    recalled: Vec<String>,
}

/// Selects a generation.
pub(super) struct GenerationSelector<'a> {
    pub(super) session: &'a SessionId,
    /// `None` for the live generation, or else the newest.
    pub(super) generation: Option<Generation>,
    /// `None` for the subject of the session.
    pub(super) subject: Option<Subject>,
}

/// Whether turns are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseMode {
    /// Lease them exclusively.
    Lease,
    /// Preview them without a lease.
    Preview,
}

/// Guard of a lease.
///
/// If it is dropped because the call was cancelled, the lease is queued for release.
#[derive(Debug)]
pub(super) struct HeldLease {
    released: Arc<ReleasedLeases>,
    lease: Option<(TenantId, Lease)>,
}

/// The leases of cancelled calls, for the learning worker.
#[derive(Debug, Default)]
pub(crate) struct ReleasedLeases {
    leases: Mutex<Vec<(TenantId, Lease)>>,
    /// Signals leases to release, or a changed configuration.
    pub(crate) changed: Notify,
}

impl HeldLease {
    fn new(released: &Arc<ReleasedLeases>, tenant: &TenantId, lease: &Lease) -> Self {
        Self {
            released: Arc::clone(released),
            lease: Some((tenant.clone(), lease.clone())),
        }
    }

    /// Defuses the guard. The lease then ends with a commit or expires.
    pub(super) fn keep(mut self) {
        self.lease = None;
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lock(&self.released.leases).push(lease);
            self.released.changed.notify_one();
        }
    }
}

/// The result if there are no unread turns.
pub(super) struct Nothing {
    pub(super) generation: Generation,
    pub(super) cursor_seq: u64,
}

/// Leased turns and the input of the model.
pub(super) struct Prepared {
    /// The lease, or for a preview the lease that would be taken.
    pub(super) lease: Lease,
    /// Releases the lease if the call is cancelled. `None` for a preview.
    pub(super) held: Option<HeldLease>,
    /// Last turn that was extracted before.
    pub(super) cursor_seq: u64,
    pub(super) from_seq: u64,
    /// In encoded form.
    pub(super) turns: Vec<Arc<[u8]>>,
    pub(super) said: Vec<TranscriptTurn>,
    pub(super) said_at: BTreeMap<u64, Timestamp>,
    pub(super) manifest: Manifest,
    pub(super) recalled: Vec<String>,
    pub(super) prompt: String,
}

/// Extraction of facts from turns, by bots and by the configured model.
#[derive(Debug)]
pub struct Learning {
    pub(crate) storage: Arc<MemoryStorage>,
    facts: Facts,
    recall: Arc<Recall>,
    /// Circuit breaker of the extraction model.
    pub(super) breaker: Mutex<Breaker>,
    pub(crate) released: Arc<ReleasedLeases>,
}

impl Learning {
    pub(super) fn new(facts: &Facts, recall: &Arc<Recall>) -> Self {
        Self {
            storage: Arc::clone(&facts.storage),
            facts: facts.clone(),
            recall: Arc::clone(recall),
            breaker: Mutex::default(),
            released: Arc::default(),
        }
    }

    /// Leases the turns after the cursor. Returns no lease if there are none.
    ///
    /// # Errors
    /// [`MemoryError::LeaseHeld`], an unknown session or generation, or no subject in the request
    /// and the session.
    pub async fn lease(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        subject: Option<Subject>,
    ) -> Result<ExtractionLease, MemoryError> {
        let whose = GenerationSelector {
            session,
            generation,
            subject,
        };
        let prepared = match self
            .prepare(tenant, whose, LeaseMode::Lease, usize::MAX)
            .await?
        {
            Ok(prepared) => prepared,
            Err(nothing) => {
                return Ok(ExtractionLease {
                    generation: Some(nothing.generation),
                    cursor_seq: nothing.cursor_seq,
                    ..ExtractionLease::default()
                });
            }
        };
        // The bot owns the lease from here on.
        prepared.held.into_iter().for_each(HeldLease::keep);
        Ok(ExtractionLease {
            lease: Some(prepared.lease.id),
            prompt: prepared.prompt,
            turns: prepared.turns,
            manifest: prepared.manifest.text,
            expires_at: prepared.lease.until,
            generation: Some(prepared.lease.generation),
            cursor_seq: prepared.cursor_seq,
        })
    }

    /// Prepares the next unread turns and the prompt, or returns the cursor if there are none.
    ///
    /// Recalled contents and turns together have `bytes_max`, halved after each failure. The newest
    /// recalled contents and the first turns are used, and a turn that is too long is truncated.
    pub(super) async fn prepare(
        &self,
        tenant: &Arc<Tenant>,
        whose: GenerationSelector<'_>,
        take: LeaseMode,
        bytes_max: usize,
    ) -> Result<Result<Prepared, Nothing>, MemoryError> {
        // Events of the session's last recalls may still be queued.
        self.storage.flush(&tenant.id).await?;
        let mut unread = self
            .unread(tenant, whose.session, whose.generation, whose.subject)
            .await?;
        let mut page = self.turns_to_look_at(tenant, &mut unread).await?;
        let bytes_max = bytes_max >> unread.failures.min(FAILURES_MAX);
        let (told, told_bytes) = fitting_recalled(&unread.recalled, bytes_max / 2);
        let bytes_max = (bytes_max - told_bytes).max(TURNS_BYTES_MIN);
        cut(&mut page.turns, bytes_max);
        let turns: Vec<(u64, Turn)> = page
            .turns
            .iter()
            .filter_map(|content| encoding::open_with_seq(content))
            .collect();
        let Some(&(to_seq, _)) = turns.last() else {
            return Ok(Err(Nothing {
                generation: unread.generation,
                cursor_seq: unread.cursor_seq,
            }));
        };
        let now = self.storage.now();
        let salt = self.storage.engine.machine.random();
        let lease = Lease {
            id: LeaseId::new(now.as_ms(), with_digest(salt, to_seq, &page.turns)),
            session: unread.session.clone(),
            generation: unread.generation,
            subject: unread.subject.clone(),
            after_seq: unread.cursor_seq,
            to_seq,
            until: after(now, self.storage.config().lease),
        };
        let from_seq = turns.first().map_or(0, |(seq, _)| *seq);
        let held =
            (take == LeaseMode::Lease).then(|| HeldLease::new(&self.released, &tenant.id, &lease));
        if held.is_some() {
            let lease = lease.clone();
            let taken = self.storage.write(&tenant.id, move |writer| {
                let cursor = writer.cursor(&lease.session, lease.generation)?;
                if (from_seq..=to_seq).contains(&cursor.seq) {
                    // Another lease of these turns was committed since they were read.
                    return Err(MemoryError::LeaseHeld { seconds_left: 1 });
                }
                writer.take_lease(lease, now)
            });
            if let Err(error) = taken.await {
                if error.is_refusal() {
                    // No lease was taken, so there is nothing to release.
                    held.into_iter().for_each(HeldLease::keep);
                }
                return Err(error);
            }
        }
        let manifest = self
            .recall
            .manifest(tenant, unread.subject.clone(), 0, 0)
            .await?;
        let said: Vec<TranscriptTurn> = turns
            .iter()
            .map(|(seq, turn)| {
                let mut text = text_of(turn);
                text.truncate(text.floor_char_boundary(bytes_max));
                TranscriptTurn {
                    seq: *seq,
                    on: turn.timestamp.map(Date::from_timestamp),
                    role: turn.role,
                    text,
                }
            })
            .collect();
        let sessions = &self.storage.engine.sessions;
        let request = ExtractionPrompt {
            today: Date::from_timestamp(now),
            subject: &unread.subject,
            manifest: &manifest.text,
            turns: &said,
            recalled: told,
            nonce: sessions.prompt_nonce(unread.generation, to_seq),
        };
        let said_at = turns
            .iter()
            .filter_map(|(seq, turn)| Some((*seq, turn.timestamp?)));
        Ok(Ok(Prepared {
            prompt: prompt(&request),
            said_at: said_at.collect(),
            held,
            cursor_seq: unread.cursor_seq,
            from_seq,
            lease,
            turns: page.turns,
            said,
            manifest,
            recalled: unread.recalled,
        }))
    }

    /// Releases the leases of cancelled calls. Ignores leases that were committed or have expired.
    pub(crate) async fn give_back_dropped(&self) {
        let dropped = std::mem::take(&mut *lock(&self.released.leases));
        for (tenant, lease) in dropped {
            let now = self.storage.now();
            let give = move |writer: &MemoryWriter<'_>| writer.return_lease(&lease, false, now);
            if let Err(error) = self.storage.write(&tenant, give).await {
                tracing::warn!(%error, %tenant, "turns stay leased until their lease is over");
            }
        }
    }

    /// Stores the facts and advances the cursor, atomically.
    ///
    /// A commit repeated with the same facts returns the outcome of the first one.
    ///
    /// # Errors
    /// [`MemoryError::LeaseLost`], also if a leased turn was updated or rewound since, or a fact
    /// that is invalid. Nothing is stored then.
    pub async fn commit(
        &self,
        tenant: &Arc<Tenant>,
        id: LeaseId,
        facts: Vec<ExtractedFact>,
    ) -> Result<ExtractionOutcome, MemoryError> {
        let config = self.storage.config();
        if facts.len() > MemoryLimits::EXTRACTED {
            let limit = MemoryLimits::EXTRACTED;
            let problem = format!("{} are more than {limit}", facts.len());
            return Err(MemoryError::invalid("memories", problem));
        }
        let now = self.storage.now();
        let content = Arc::new(format!("{facts:?}"));
        let known = Arc::clone(&content);
        let read = move |reader: &MemoryReader<'_>| match reader.repeated_commit(id, &known)? {
            Some(earlier) => Ok(Err(earlier)),
            None => Ok(Ok(reader.lease(id, now)?)),
        };
        let lease = match self.storage.read(&tenant.id, read).await? {
            Ok(lease) => lease,
            Err(earlier) => return Ok(earlier),
        };
        let commands = match self.commands_of(tenant, &lease, facts).await {
            Err(MemoryError::LeaseLost) => {
                // The turns can be leased again at once.
                let give = move |writer: &MemoryWriter<'_>| writer.return_lease(&lease, false, now);
                self.storage.write(&tenant.id, give).await?;
                return Err(MemoryError::LeaseLost);
            }
            commands => commands?,
        };
        let commit = move |writer: &MemoryWriter<'_>| {
            // Two identical commits may run concurrently.
            if let Some(earlier) = writer.repeated_commit(id, &content)? {
                return Ok(earlier);
            }
            let results = remember_all(writer, &commands, &config.limits);
            let lease = writer.commit_extraction(id, now)?;
            let results = results?;
            writer.keep_commit(&lease, &content, &results, now)?;
            Ok(ExtractionOutcome {
                cursor_seq: lease.to_seq,
                results,
            })
        };
        let outcome = self.storage.write(&tenant.id, commit).await?;
        let results = outcome.results.iter();
        results.for_each(|done| self.facts.note_outcome(tenant, done));
        Ok(outcome)
    }

    /// Computes the outcome of a commit of these facts by applying it and rolling back.
    pub(super) async fn preview(
        &self,
        tenant: &Arc<Tenant>,
        lease: &Lease,
        facts: Vec<ExtractedFact>,
    ) -> Result<Vec<RememberOutcome>, MemoryError> {
        let config = self.storage.config();
        let commands = self.commands_of(tenant, lease, facts).await?;
        let outcomes = Arc::new(Mutex::new(None));
        let given = Arc::clone(&outcomes);
        let undone = self.storage.write(&tenant.id, move |writer| {
            *lock(&given) = Some(remember_all(writer, &commands, &config.limits)?);
            // The job of a rejected write is rolled back.
            Err::<(), _>(MemoryError::LeaseLost)
        });
        let undone = undone.await;
        let done = lock(&outcomes).take();
        match (done, undone) {
            (Some(done), _) => Ok(done),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(MemoryError::LeaseLost),
        }
    }

    /// Converts the facts of a lease to write commands.
    async fn commands_of(
        &self,
        tenant: &Arc<Tenant>,
        lease: &Lease,
        facts: Vec<ExtractedFact>,
    ) -> Result<Vec<RememberCommand>, MemoryError> {
        let said_at = self.times_of(tenant, lease).await?;
        let command = |(index, found): (usize, ExtractedFact)| {
            let source = source_of(&found, lease, &said_at);
            source
                .and_then(|source| self.facts.command(found.fact, source, Origin::Extraction))
                .map_err(|error| error.in_list("memories", index))
        };
        facts.into_iter().enumerate().map(command).collect()
    }

    /// Resolves the generation and reads its cursor.
    async fn unread(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        subject: Option<Subject>,
    ) -> Result<Unread, MemoryError> {
        let live = self.storage.live_head(tenant, session, generation).await?;
        let (newest, whose) = match live {
            Some(head) => (Some(head.generation), head.subject),
            None => {
                let page = self.turns_after(tenant, session, generation, 0, 1).await?;
                (page.generation, page.subject)
            }
        };
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let generation = newest.ok_or_else(not_found)?;
        let subject = subject.or(whose).ok_or_else(|| {
            let problem = "is empty, and the session does not say whose memories these become";
            MemoryError::invalid("subject", problem)
        })?;
        let now = self.storage.now();
        let mut unread = Unread {
            session: session.clone(),
            generation,
            subject,
            cursor_seq: 0,
            failures: 0,
            not_before: None,
            recalled: Vec::new(),
        };
        let read = move |reader: &MemoryReader<'_>| {
            let cursor = reader.cursor(&unread.session, generation)?;
            unread.cursor_seq = cursor.seq;
            unread.failures = cursor.failures;
            unread.not_before = reader.not_before(&unread.subject)?.max(cursor.not_before);
            let echoes = reader.echoes(&unread.session, &unread.subject, now)?;
            unread.recalled = echoes.into_iter().map(|(_, content)| content).collect();
            // Whether a lease covers these turns is checked when one is taken.
            let remembered = reader.remembered_seqs(&unread.session, generation, cursor.seq)?;
            Ok((unread, remembered))
        };
        let (mut unread, remembered) = self.storage.read(&tenant.id, read).await?;
        // The bot has read the turns up to the last one from which it remembered a fact itself.
        if let Some(&newest) = remembered.last() {
            self.skip_to(tenant, &mut unread, newest).await?;
        }
        Ok(unread)
    }

    /// Reads the next turns. Skips turns that predate the forgetting of their subject.
    async fn turns_to_look_at(
        &self,
        tenant: &Arc<Tenant>,
        unread: &mut Unread,
    ) -> Result<HistoryPage, MemoryError> {
        let turns_max = self.storage.config().limits.lease_turns;
        for _ in 0..SKIPS_MAX {
            let (session, generation) = (&unread.session, Some(unread.generation));
            let turns_after =
                |after| self.turns_after(tenant, session, generation, after, turns_max);
            let after = unread.cursor_seq;
            let mut page = turns_after(after).await?;
            if page.turns.is_empty() && after > 0 && self.is_gone(tenant, unread).await? {
                // The cursor's turn no longer exists: read the generation from its beginning.
                page = turns_after(0).await?;
            }
            let Some(not_before) = unread.not_before else {
                return Ok(page);
            };
            let is_old = |content: &Arc<[u8]>| {
                let turn = encoding::open(content);
                turn.and_then(|turn| turn.timestamp)
                    .is_some_and(|said| said < not_before)
            };
            let old = page
                .turns
                .iter()
                .take_while(|content| is_old(content))
                .count();
            let last_old = old
                .checked_sub(1)
                .and_then(|last| encoding::open_with_seq(&page.turns[last]));
            if let Some((seq, _)) = last_old {
                self.skip_to(tenant, unread, seq).await?;
            }
            page.turns.drain(..old);
            if !page.turns.is_empty() || old == 0 {
                return Ok(page);
            }
        }
        Ok(HistoryPage::default())
    }

    /// Whether the generation has no turns from the cursor on.
    async fn is_gone(&self, tenant: &Arc<Tenant>, unread: &Unread) -> Result<bool, MemoryError> {
        let (session, generation) = (&unread.session, Some(unread.generation));
        let at = unread.cursor_seq.saturating_sub(1);
        let page = self.turns_after(tenant, session, generation, at, 1).await?;
        Ok(page.turns.is_empty())
    }

    async fn skip_to(
        &self,
        tenant: &Arc<Tenant>,
        unread: &mut Unread,
        to_seq: u64,
    ) -> Result<(), MemoryError> {
        let (session, subject) = (unread.session.clone(), unread.subject.clone());
        let (generation, now) = (unread.generation, self.storage.now());
        self.storage
            .write(&tenant.id, move |writer| {
                writer.skip_turns(&session, generation, &subject, to_seq, now)
            })
            .await?;
        unread.cursor_seq = to_seq;
        Ok(())
    }

    /// Reads the turns of a lease.
    async fn turns_after(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        after_seq: u64,
        turns_max: usize,
    ) -> Result<HistoryPage, MemoryError> {
        let range = JournalRange {
            after_seq,
            turns_max,
            bytes_max: MemoryLimits::LEASE_BYTES,
            ..JournalRange::ALL
        };
        let page = self.storage.history(tenant, session, generation, range);
        Ok(page.await?)
    }

    /// Returns the times of the turns of a lease.
    ///
    /// # Errors
    /// [`MemoryError::LeaseLost`] if a turn was updated or rewound since.
    async fn times_of(
        &self,
        tenant: &Arc<Tenant>,
        lease: &Lease,
    ) -> Result<BTreeMap<u64, Timestamp>, MemoryError> {
        let range = JournalRange {
            after_seq: lease.after_seq,
            before_seq: lease.to_seq.saturating_add(1),
            bytes_max: MemoryLimits::LEASE_BYTES,
            ..JournalRange::ALL
        };
        let (session, generation) = (&lease.session, Some(lease.generation));
        let page = match self
            .storage
            .history(tenant, session, generation, range)
            .await
        {
            Ok(page) => page,
            // The turns have been pruned since. Facts found in them are stored anyway.
            Err(EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. }) => {
                return Ok(BTreeMap::new());
            }
            Err(error) => return Err(error.into()),
        };
        let id = u128::from_be_bytes(lease.id.to_bytes());
        let without_time = |random| LeaseId::new(0, random);
        let now = with_digest(id, lease.to_seq, &page.turns);
        if without_time(now) != without_time(id) {
            return Err(MemoryError::LeaseLost);
        }
        let placed = page
            .turns
            .iter()
            .filter_map(|content| encoding::open_with_seq(content));
        Ok(placed
            .filter_map(|(seq, turn)| Some((seq, turn.timestamp?)))
            .collect())
    }
}

/// The random part of a lease id: the lowest 32 bits of `salt`, after 48 bits of a digest of them
/// and of the turns up to `to_seq`.
fn with_digest(salt: u128, to_seq: u64, turns: &[Arc<[u8]>]) -> u128 {
    let salt = salt & u128::from(u32::MAX);
    let mut digest = Sha256::new().chain_update(salt.to_be_bytes());
    let is_leased = |turn: &&Arc<[u8]>| encoding::seq_of(turn).is_some_and(|seq| seq <= to_seq);
    for turn in turns.iter().filter(is_leased) {
        digest.update((turn.len() as u64).to_be_bytes());
        digest.update(turn);
    }
    let [.., a, b, c, d, e, f] = digest.finalize();
    u128::from(u64::from_be_bytes([0, 0, a, b, c, d, e, f])) << 32 | salt
}

/// The newest recalled contents that fit into `bytes_max` of a prompt, and their size in bytes.
fn fitting_recalled(recalled: &[String], bytes_max: usize) -> (&[String], usize) {
    let (mut count, mut bytes) = (0, 0_usize);
    for content in recalled {
        let shown = content.chars().take(RECALLED_CHARS_MAX);
        let with = bytes + shown.map(char::len_utf8).sum::<usize>();
        if with > bytes_max {
            break;
        }
        (count, bytes) = (count + 1, with);
    }
    (&recalled[..count], bytes)
}

/// Truncates the list to the turns that fit into `bytes_max` together, but keeps at least one.
fn cut(turns: &mut Vec<Arc<[u8]>>, bytes_max: usize) {
    let mut bytes = 0_usize;
    let fitting = turns.iter().take_while(|turn| {
        bytes = bytes.saturating_add(turn.len());
        bytes <= bytes_max
    });
    let count = fitting.count().max(1);
    turns.truncate(count);
}

fn remember_all(
    writer: &MemoryWriter<'_>,
    commands: &[RememberCommand],
    limits: &MemoryLimits,
) -> Result<Vec<RememberOutcome>, MemoryError> {
    let commands = commands.iter();
    commands.map(|it| writer.remember(it, limits)).collect()
}

/// The turns of a lease that state a fact.
fn source_of(
    found: &ExtractedFact,
    lease: &Lease,
    said_at: &BTreeMap<u64, Timestamp>,
) -> Result<SourceTurns, MemoryError> {
    let leased = lease.after_seq + 1..=lease.to_seq;
    if let Some(seq) = found.seqs.iter().find(|seq| !leased.contains(seq)) {
        let problem = format!("{seq} is not among the leased turns {leased:?}");
        return Err(MemoryError::invalid("seqs", problem));
    }
    let seqs: Vec<u64> = if found.seqs.is_empty() {
        leased.collect()
    } else {
        found.seqs.clone()
    };
    let last = seqs.iter().copied().max().unwrap_or(lease.to_seq);
    Ok(SourceTurns {
        subject: Some(lease.subject.clone()),
        said_at: said_at.get(&last).copied(),
        source: Some(Source {
            session: lease.session.clone(),
            generation: Some(lease.generation),
            seqs,
        }),
        ..SourceTurns::default()
    })
}
