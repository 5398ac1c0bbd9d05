//! The `CopySession` command: copies the turns of a session to a new one.
//!
//! A copy is an append of all turns to a session that starts with it. If requested, the live target
//! session ends first.

use std::sync::Arc;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject};
use memoird_core::options::OptionsPatch;
use memoird_core::session::{AppendCommand, Head};
use memoird_core::state::{State, StatePatch};
use memoird_core::turn::NewTurn;
use memoird_store::{JournalRange, Store, StoreError, encoding};
use tokio::sync::{AcquireError, SemaphorePermit};

use super::append::{AppendOutcome, decision, queue_bytes};
use super::handle::Commands;
use crate::error::EngineError;
use crate::memory_use::CallBytes;
use crate::sessions::{Decision, SessionRef, Update, UpdateOptions};
use crate::tenants::Tenant;

/// Maximum turns and bytes of a copy, which is a single change and in memory as a whole.
const TURNS_MAX: usize = 100_000;
const BYTES_MAX: usize = 64 << 20;
/// Maximum concurrent copies, across all tenants. Each occupies a reader thread.
pub(super) const COPIES_MAX: usize = 2;
/// Bytes reserved first for a session of unknown length, and their growth factor.
///
/// The copy of a short session thus reserves little.
const BYTES_FIRST: usize = 1 << 20;
const TIMES_MORE: usize = 8;
/// Number of permits into which the memory for all copies is divided.
pub(super) const ROOM_PARTS: usize = 64;

#[derive(Clone, Debug)]
pub struct CopyCommand {
    /// Generation to copy. `None` selects the live one, or else the newest one in the journal.
    pub generation: Option<Generation>,
    /// Last turn to copy. 0 copies all.
    pub through_seq: u64,
    /// Session id of the copy.
    pub target: SessionId,
    /// If the target is live, end it without hooks. Otherwise reject the copy.
    pub replaces: bool,
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Default)]
struct CopiedContent {
    generation: Option<Generation>,
    /// Turns without their content.
    turns: Vec<NewTurn>,
    /// Content of the turns, sealed with their seqs in the copy, from 1.
    contents: Vec<Arc<[u8]>>,
    subject: Option<Subject>,
    state: Option<State>,
    options: OptionsPatch,
    /// Whether the source exceeds the limits of the read.
    is_cut: bool,
}

/// Memory reserved for a copy, until dropped.
struct CopyRoom<'a> {
    parts: SemaphorePermit<'a>,
    counted: CallBytes,
    bytes_max: usize,
}

impl CopyRoom<'_> {
    fn shrink(&mut self, bytes: usize) {
        let unused = self
            .parts
            .num_permits()
            .saturating_sub(parts(bytes, self.bytes_max));
        drop(self.parts.split(unused));
        self.counted.set(bytes as u64);
    }
}

impl Commands {
    /// Atomically creates a session from another one's turns, state, subject and options.
    ///
    /// Rewound turns are not copied. Turns get new seqs.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`],
    /// [`EngineError::TargetLives`], [`EngineError::CopyEmpty`], [`EngineError::CopyTooLarge`], a
    /// full journal queue, or an error of the journal.
    pub async fn copy_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: CopyCommand,
    ) -> Result<AppendOutcome, EngineError> {
        let source = SessionRef::new(tenant, session);
        let target = SessionRef::new(tenant, &command.target);
        let mut append = AppendCommand {
            idempotency: command.idempotency,
            ..AppendCommand::default()
        };
        // Handle duplicates and rejections without reading the source.
        let replaces = command.replaces;
        if let Some(outcome) = self.try_copy(&target, &append, &[], replaces).await? {
            return Ok(outcome);
        }
        let _own = tenant.copies.acquire().await.map_err(stopping)?;
        let _place = self.shared.copies.acquire().await.map_err(stopping)?;
        let (copied, _room) = self.read_copied_content(&source, &command).await?;
        if copied.turns.is_empty() {
            let session = session.clone();
            return Err(EngineError::CopyEmpty { session });
        }
        append.turns = copied.turns;
        append.copied_from = copied.generation;
        append.subject = copied.subject;
        append.options = copied.options;
        append.state = copied.state.map(|state| StatePatch {
            json: String::from(&*state.json),
            replaces: true,
            expected_version: None,
        });
        let contents = &copied.contents;
        let outcome = self.try_copy(&target, &append, contents, replaces).await?;
        outcome.ok_or(EngineError::RetriesExhausted)
    }

    /// Tries to copy. Returns `None` if the turns are needed and `append` has none.
    async fn try_copy(
        &self,
        target: &SessionRef,
        append: &AppendCommand,
        contents: &[Arc<[u8]>],
        replaces: bool,
    ) -> Result<Option<AppendOutcome>, EngineError> {
        let bytes = bytes_of(contents) + queue_bytes(append, &target.tenant);
        let options = UpdateOptions {
            starts: true,
            key: append.idempotency.map(|named| named.key),
            ..UpdateOptions::of_live(bytes)
        };
        let made = self.shared.sessions.update(target, options, |update| {
            decide(update, append, contents, replaces)
        });
        made.await
    }

    /// Waits for memory to be available for a copy of this size.
    ///
    /// It is counted immediately, so that idle content is unloaded before the turns are read.
    async fn room(&self, tenant: &Tenant, bytes: usize) -> Result<CopyRoom<'_>, EngineError> {
        let bytes_max = bytes_of_all(tenant);
        let wanted = u32::try_from(parts(bytes, bytes_max)).unwrap_or(u32::MAX);
        let parts = self.shared.copy_room.acquire_many(wanted).await;
        Ok(CopyRoom {
            parts: parts.map_err(stopping)?,
            counted: CallBytes::count(&tenant.memory, bytes as u64),
            bytes_max,
        })
    }

    /// Reads the data to copy, consistent as of one moment.
    async fn read_copied_content(
        &self,
        source: &SessionRef,
        command: &CopyCommand,
    ) -> Result<(CopiedContent, CopyRoom<'_>), EngineError> {
        let tenant = &source.tenant;
        let sessions = &self.shared.sessions;
        let through_seq = match command.through_seq {
            0 => u64::MAX,
            seq => seq,
        };
        let reading = sessions.view(source, |session, view| {
            let head = session.head();
            let is_meant = |named: Generation| named == head.generation;
            let state = session.state();
            let turns = session
                .history()
                .turns_after(0)
                .take_while(|turn| turn.seq <= through_seq);
            let is_wanted = command.generation.is_none_or(is_meant);
            is_wanted.then(|| {
                let state = (state.version > 0).then_some(state);
                let turns: Vec<Arc<[u8]>> = turns.map(|turn| Arc::clone(&turn.content)).collect();
                (view.head, state, turns)
            })
        });
        let live = match reading.await {
            Ok(live) => live,
            Err(EngineError::SessionNotFound { .. }) if sessions.have_journal() => None,
            Err(error) => return Err(error),
        };
        let not_found = || EngineError::GenerationNotFound {
            session: source.key.session.clone(),
            generation: command.generation,
        };
        let Ok(store) = sessions.store() else {
            let (head, state, turns) = live.ok_or_else(not_found)?;
            let room = self.room(tenant, bytes_of(&turns)).await?;
            // Without a journal, nothing can be unloaded for it.
            tenant.check_memory_room(0)?;
            let mut copied = CopiedContent::new(&head, state);
            for content in turns {
                copied.add(&content);
            }
            return Ok((copied, room));
        };
        let generation = live
            .as_ref()
            .map(|(head, ..)| head.generation)
            .or(command.generation);
        sessions.wait_session_processed(&source.key).await?;
        let bytes_max = BYTES_MAX.min(bytes_of_all(tenant));
        let mut bytes = BYTES_FIRST.min(bytes_max);
        loop {
            let mut room = self.room(tenant, bytes).await?;
            let range = JournalRange {
                before_seq: through_seq.saturating_add(1),
                turns_max: TURNS_MAX,
                bytes_max: bytes,
                ..JournalRange::ALL
            };
            let decided = live
                .as_ref()
                .map(|(head, state, _)| CopiedContent::new(head, state.clone()));
            let key = source.key.clone();
            let read = move |store: &dyn Store| {
                CopiedContent::read(store, &key, generation, range, decided)
            };
            let copied = store
                .run(Some(&tenant.id), read)
                .await?
                .ok_or_else(not_found)?;
            if !copied.is_cut {
                room.shrink(bytes_of(&copied.contents));
                return Ok((copied, room));
            }
            if bytes == bytes_max || copied.turns.len() == TURNS_MAX {
                return Err(EngineError::CopyTooLarge {
                    session: source.key.session.clone(),
                    turns_max: TURNS_MAX,
                    bytes_max,
                });
            }
            bytes = bytes.saturating_mul(TIMES_MORE).min(bytes_max);
        }
    }
}

fn bytes_of_all(tenant: &Tenant) -> usize {
    let share = usize::try_from(tenant.memory.copies_max()).unwrap_or(usize::MAX);
    share.min(COPIES_MAX * BYTES_MAX)
}

/// Number of permits for this many bytes. Capped at all of them, so that a lone copy proceeds.
fn parts(bytes: usize, bytes_max: usize) -> usize {
    let parts = bytes.saturating_mul(ROOM_PARTS).div_ceil(bytes_max.max(1));
    parts.min(ROOM_PARTS)
}

fn stopping(_: AcquireError) -> EngineError {
    EngineError::Stopping
}

impl CopiedContent {
    /// State, subject and options of a session, without its turns.
    fn new(head: &Head, state: Option<State>) -> Self {
        Self {
            generation: Some(head.generation),
            options: options_of(head),
            subject: head.subject.clone(),
            state,
            ..Self::default()
        }
    }

    /// Reads from the journal. `decided` has the state and options of a live generation.
    fn read(
        store: &dyn Store,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
        decided: Option<Self>,
    ) -> Result<Option<Self>, StoreError> {
        let Some(page) = store.journal(key, generation, range)? else {
            return Ok(None);
        };
        let mut copied = match (decided, page.generation) {
            (Some(decided), _) => decided,
            (None, Some(ended)) => {
                let record = store.ended(&[(key.clone(), ended)], 1)?.pop();
                let copied = record.map(|record| Self::new(&record.head, record.state));
                copied.unwrap_or_default()
            }
            (None, None) => Self::default(),
        };
        copied.generation = page.generation;
        copied.subject = page.subject;
        copied.is_cut = page.more;
        // Convert one turn at a time, so that it replaces the one that was read.
        for (seq, content) in page.turns {
            copied
                .add(&content)
                .ok_or_else(|| StoreError::TurnDamaged {
                    generation: key.session.as_str().to_owned(),
                    seq,
                })?;
        }
        Ok(Some(copied))
    }

    /// Adds a turn. Returns `None` if it is damaged.
    fn add(&mut self, content: &[u8]) -> Option<()> {
        let turn = encoding::open(content)?;
        self.turns.push(NewTurn::from_turn(&turn));
        let seq = self.turns.len() as u64;
        self.contents.push(encoding::encode_with_seq(turn, seq));
        Some(())
    }
}

fn options_of(head: &Head) -> OptionsPatch {
    let options = head.options.as_deref().cloned().unwrap_or_default();
    OptionsPatch {
        labels: options.labels,
        ttl_class: options.ttl_class,
        keep_all: options.keep_all.then_some(true),
    }
}

fn index_of(seq: u64) -> usize {
    usize::try_from(seq - 1).unwrap_or(usize::MAX)
}

fn bytes_of(contents: &[Arc<[u8]>]) -> usize {
    contents.iter().map(|content| content.len()).sum()
}

fn decide(
    update: &mut Update<'_>,
    append: &AppendCommand,
    contents: &[Arc<[u8]>],
    replaces: bool,
) -> Result<Decision<Option<AppendOutcome>>, EngineError> {
    let (limits, now) = (&update.policy.limits, update.now);
    let is_known = update.session.knows(append.idempotency, limits, now);
    if !is_known && !update.is_new && !replaces {
        let session = update.key.session.clone();
        return Err(EngineError::TargetLives { session });
    }
    if !is_known && append.turns.is_empty() {
        return Ok(Decision::intermediate(None));
    }
    let before = (!is_known && !update.is_new).then(|| update.session.clone());
    let mut changes = match &before {
        Some(_) => update.restart(false, None),
        None => Vec::new(),
    };
    let session = &mut *update.session;
    // A new generation assigns seqs from 1.
    let sealed = |_: &NewTurn, seq: u64, _| Arc::clone(&contents[index_of(seq)]);
    let made = session
        .append(update.key, append, limits, now, &sealed)
        .inspect_err(|_| {
            if let Some(before) = &before {
                *update.session = before.clone();
            }
        })?;
    changes.extend(made.changes);
    Ok(decision(update, made.record, changes, false).map(Some))
}
