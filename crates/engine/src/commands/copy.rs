//! A copy of what was said in a session becomes a session of its own.
//!
//! It is an append of all that was said to a session that starts with it, after the end of the
//! session that lives there, where that is asked for.

use std::sync::Arc;

use memoird_core::idempotency::{IdempotencyKey, KeyRecord};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject};
use memoird_core::options::OptionsPatch;
use memoird_core::session::{AppendCommand, Head};
use memoird_core::state::{State, StatePatch};
use memoird_core::turn::NewTurn;
use memoird_store::{JournalRange, Store, StoreError, encoding};
use tokio::sync::{AcquireError, SemaphorePermit};

use super::Commands;
use super::append::queue_bytes;
use crate::error::EngineError;
use crate::memory_use::CallBytes;
use crate::sessions::{
    Decision, Effect, SessionRef, SessionView, Update, UpdateOptions, WhenAbsent,
};
use crate::tenants::Tenant;

/// Turns of a copy, and their bytes: it is one change, and all of it is in memory, once.
const TURNS_MAX: usize = 100_000;
const BYTES_MAX: usize = 64 << 20;
/// Copies that are made at once, of all tenants: each keeps a thread that reads busy.
pub(super) const COPIES_MAX: usize = 2;
/// Where the length of a session is not known, room for so many bytes is taken first, and where there
/// are more, for so many times as many: the copy of a short session takes little.
const BYTES_FIRST: usize = 1 << 20;
const TIMES_MORE: usize = 8;
/// The room of all copies is given in so many parts.
pub(super) const ROOM_PARTS: usize = 64;

/// What to copy, and where to.
#[derive(Clone, Debug)]
pub struct CopyCommand {
    /// Which life of the session; `None`: the live one, else the newest that the journal has.
    pub generation: Option<Generation>,
    /// The last turn to be copied; 0: all.
    pub through_seq: u64,
    /// The id of the copy.
    pub target: SessionId,
    /// True: a session that lives there ends, without hooks; else the copy is refused.
    pub replaces: bool,
    /// The name of this copy.
    pub idempotency: Option<IdempotencyKey>,
}

/// What a copy did.
#[derive(Clone, Debug)]
pub struct CopyOutcome {
    /// The copy; `None` for a repetition whose session has ended since.
    pub session: Option<SessionView>,
    /// Which turns it got, now or the first time.
    pub record: KeyRecord,
    /// True when it was done before.
    pub duplicate: bool,
}

/// What is copied.
#[derive(Default)]
struct Copied {
    /// Without their content.
    turns: Vec<NewTurn>,
    /// Their content, with the seqs that they have in the copy: from 1.
    contents: Vec<Arc<[u8]>>,
    subject: Option<Subject>,
    state: Option<State>,
    options: OptionsPatch,
    /// True when there is more than a copy may have.
    is_cut: bool,
}

/// What a copy may hold in memory, until this is dropped.
struct CopyRoom<'a> {
    parts: SemaphorePermit<'a>,
    counted: CallBytes,
    /// What all copies together may hold, in bytes.
    bytes_max: usize,
}

impl CopyRoom<'_> {
    /// It holds so many bytes, and no more.
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
    /// Makes a session of the turns of another one, with its state, subject and options, as one change: all
    /// of it or nothing. Turns that were taken back are not copied, and the others get new seqs.
    ///
    /// # Errors
    /// [`EngineError::SessionNotFound`], [`EngineError::GenerationNotFound`],
    /// [`EngineError::TargetLives`], [`EngineError::CopyEmpty`], [`EngineError::CopyTooLarge`], a
    /// queue without room, a journal that cannot be read or written.
    pub async fn copy_session(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        command: CopyCommand,
    ) -> Result<CopyOutcome, EngineError> {
        let source = SessionRef::new(tenant, session);
        let target = SessionRef::new(tenant, &command.target);
        let mut append = AppendCommand {
            idempotency: command.idempotency,
            ..AppendCommand::default()
        };
        // What was done before, or is refused, reads nothing.
        let replaces = command.replaces;
        if let Some(outcome) = self.try_copy(&target, &append, &[], replaces).await? {
            return Ok(outcome);
        }
        let _own = tenant.copies.acquire().await.map_err(stopping)?;
        let _place = self.shared.copies.acquire().await.map_err(stopping)?;
        let (copied, _room) = self.copied(&source, &command).await?;
        if copied.turns.is_empty() {
            let session = session.clone();
            return Err(EngineError::CopyEmpty { session });
        }
        append.turns = copied.turns;
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

    /// `None` where the turns are wanted, and there are none.
    async fn try_copy(
        &self,
        target: &SessionRef,
        append: &AppendCommand,
        contents: &[Arc<[u8]>],
        replaces: bool,
    ) -> Result<Option<CopyOutcome>, EngineError> {
        let bytes = bytes_of(contents) + queue_bytes(append, &target.tenant);
        let options = UpdateOptions {
            when_absent: WhenAbsent::Start,
            needs_keys: append.idempotency.is_some(),
            ..UpdateOptions::of_live(bytes)
        };
        let made = self.shared.sessions.update(target, options, |update| {
            decide(update, append, contents, replaces)
        });
        made.await
    }

    /// Waits for room for so many bytes: other copies may have to be made before. They count from
    /// now on, so that content of idle sessions makes room before they are read.
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

    /// What is to be copied: of one moment.
    async fn copied(
        &self,
        source: &SessionRef,
        command: &CopyCommand,
    ) -> Result<(Copied, CopyRoom<'_>), EngineError> {
        let tenant = &source.tenant;
        let sessions = &self.shared.sessions;
        let through_seq = match command.through_seq {
            0 => u64::MAX,
            seq => seq,
        };
        let live = sessions.view(source, |session, view| {
            let head = session.head();
            let is_meant = |named: Generation| named == head.generation;
            let state = session.state();
            let turns = session.history().turns_after(0);
            let turns = turns.take_while(|turn| turn.seq <= through_seq);
            let is_wanted = command.generation.is_none_or(is_meant);
            is_wanted.then(|| {
                let state = (state.version > 0).then_some(state);
                let turns: Vec<Arc<[u8]>> = turns.map(|turn| Arc::clone(&turn.content)).collect();
                (view.head, state, turns)
            })
        });
        let live = match live.await {
            Ok(live) => live,
            Err(EngineError::SessionNotFound { .. }) if sessions.have_journal() => None,
            Err(error) => return Err(error),
        };
        let not_found = || EngineError::GenerationNotFound {
            session: source.key.session.clone(),
            generation: command.generation,
        };
        if !sessions.have_journal() {
            let (head, state, turns) = live.ok_or_else(not_found)?;
            let room = self.room(tenant, bytes_of(&turns)).await?;
            // Nothing can leave memory for it.
            tenant.check_memory_room(0)?;
            let mut copied = Copied::of(&head, state);
            for content in turns {
                copied.add(&content);
            }
            return Ok((copied, room));
        }
        let generation = live.as_ref().map(|(head, ..)| head.generation);
        let generation = generation.or(command.generation);
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
                .map(|(head, state, _)| Copied::of(head, state.clone()));
            let key = source.key.clone();
            let read =
                move |store: &dyn Store| Copied::read(store, &key, generation, range, decided);
            let copied = sessions.read_store(read).await?.ok_or_else(not_found)?;
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

/// What all copies together may hold, in bytes.
fn bytes_of_all(tenant: &Tenant) -> usize {
    let share = usize::try_from(tenant.memory.copies_max()).unwrap_or(usize::MAX);
    share.min(COPIES_MAX * BYTES_MAX)
}

/// The parts of the room of all copies that so many bytes take: all of them at most, so that who is
/// alone goes on.
fn parts(bytes: usize, bytes_max: usize) -> usize {
    let parts = bytes.saturating_mul(ROOM_PARTS).div_ceil(bytes_max.max(1));
    parts.min(ROOM_PARTS)
}

fn stopping(_: AcquireError) -> EngineError {
    EngineError::Stopping
}

impl Copied {
    /// What was decided about a session, without its turns.
    fn of(head: &Head, state: Option<State>) -> Self {
        Self {
            options: options_of(head),
            subject: head.subject.clone(),
            state,
            ..Self::default()
        }
    }

    /// What the journal has; of a life that is over that is also what was `decided`.
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
                let copied = record.map(|record| Self::of(&record.head, record.state));
                copied.unwrap_or_default()
            }
            (None, None) => Self::default(),
        };
        copied.subject = page.subject;
        copied.is_cut = page.more;
        // One after the other: each takes the place of what was read.
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

    /// Adds a turn; `None` when its bytes are damaged.
    fn add(&mut self, content: &[u8]) -> Option<()> {
        let turn = encoding::open(content)?;
        self.turns.push(NewTurn::of(&turn));
        let seq = self.turns.len() as u64;
        self.contents.push(encoding::seal_again(turn, seq));
        Some(())
    }
}

/// What was decided about the session, as it is decided about another one.
fn options_of(head: &Head) -> OptionsPatch {
    let options = head.options.as_deref().cloned().unwrap_or_default();
    OptionsPatch {
        labels: options.labels,
        ttl_class: options.ttl_class,
        keep_all: options.keep_all.then_some(true),
    }
}

/// Where the content of this seq is.
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
) -> Result<Decision<Option<CopyOutcome>>, EngineError> {
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
        Some(_) => update.restart(false),
        None => Vec::new(),
    };
    let session = &mut *update.session;
    // A generation that begins gives seqs from 1.
    let sealed = |_: &NewTurn, seq: u64, _| Arc::clone(&contents[index_of(seq)]);
    let made = session.append(update.key, append, limits, now, &sealed);
    let made = made.inspect_err(|_| {
        if let Some(before) = &before {
            *update.session = before.clone();
        }
    })?;
    let duplicate = made.changes.is_empty();
    let record = made.record;
    changes.extend(made.changes);
    let is_ended = duplicate && update.is_new;
    let outcome = CopyOutcome {
        session: (!is_ended).then(|| update.view()),
        record,
        duplicate,
    };
    if is_ended {
        return Ok(Decision::unused(Some(outcome), None));
    }
    let dropped_turns = if duplicate { 0 } else { record.dropped_turns };
    let effect = (!changes.is_empty()).then_some(Effect::Change {
        changes,
        dropped_turns,
    });
    Ok(Decision::used(Some(outcome), effect))
}
