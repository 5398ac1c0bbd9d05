//! Shared helpers: timestamps, sets, and a comparable form of stored sessions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::change::{Change, ChangeSet};
use memoird_core::compaction::Summary;
use memoird_core::history::{KnownTurns, LiveSet};
use memoird_core::idempotency::Keys;
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession, Session};
use memoird_core::state::State;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_core::turn::Role;
use memoird_core::window::SavedCut;
use memoird_store::{ClockAnchor, JournalPage, JournalRange, SessionToLoad, StaleBase, Store};

pub(crate) use crate::kinds::for_every_store;

/// The whole journal of a generation.
pub(crate) const ALL: JournalRange = JournalRange::ALL;

pub(crate) fn key(tenant: &str, session: &str) -> SessionKey {
    SessionKey {
        tenant: TenantId::parse(tenant).unwrap(),
        session: SessionId::parse(session).unwrap(),
    }
}

pub(crate) fn now(at: u64) -> Now {
    Now {
        wall: wall(at),
        steady: Steady(at),
    }
}

pub(crate) fn wall(at: u64) -> Timestamp {
    Timestamp::from_ms(1_700_000_000_000 + i64::try_from(at).unwrap())
}

pub(crate) fn clock(at: u64) -> ClockAnchor {
    ClockAnchor {
        steady: Steady(at),
        wall: wall(at),
        boot_id: "boot".into(),
        boot_ms: at + 7,
    }
}

pub(crate) fn set(changes: impl IntoIterator<Item = Change>) -> ChangeSet {
    ChangeSet {
        changes: changes.into_iter().collect(),
    }
}

/// Writes the sets in one batch.
pub(crate) fn write(store: &dyn Store, sets: &[ChangeSet]) -> Vec<Result<(), StaleBase>> {
    store.commit(&clock(1), sets).unwrap()
}

/// Writes one set, which must be accepted.
pub(crate) fn must_write(store: &dyn Store, changes: impl IntoIterator<Item = Change>) {
    assert_eq!(write(store, &[set(changes)]), [Ok(())]);
}

/// Writes one set of one change, which must be rejected.
pub(crate) fn must_refuse(store: &dyn Store, change: Change) {
    let refused = StaleBase {
        generation: change.generation,
    };
    assert_eq!(write(store, &[set([change])]), [Err(refused)]);
}

/// A turn: seq, bytes, role, tokens, pin, and the calls it answers.
pub(crate) type ExpectedTurn = (u64, Arc<[u8]>, Role, u32, bool, Vec<Box<str>>);

/// A comparable form of a saved session.
#[derive(Debug, PartialEq)]
pub(crate) struct ExpectedSession {
    pub(crate) head: Head,
    pub(crate) kept: LiveSet,
    pub(crate) rewound: SeqRanges,
    pub(crate) turns: Vec<ExpectedTurn>,
    pub(crate) state: Option<State>,
    pub(crate) keys: Keys,
    pub(crate) cuts: Vec<SavedCut>,
    pub(crate) summary: Option<Arc<Summary>>,
}

impl From<SavedSession> for ExpectedSession {
    fn from(saved: SavedSession) -> Self {
        let turns = saved.turns.into_iter().map(|(turn, results)| {
            (
                turn.seq,
                turn.content,
                turn.role,
                turn.tokens,
                turn.pinned,
                results,
            )
        });
        Self {
            turns: turns.collect(),
            head: saved.head,
            kept: saved.kept,
            rewound: saved.rewound,
            state: saved.state,
            keys: saved.keys,
            cuts: saved.cuts,
            summary: saved.summary,
        }
    }
}

/// Loads a session that is not written concurrently.
///
/// Asserts that the load is the same for a caller that has the turns of an earlier version.
pub(crate) fn load(store: &dyn Store, key: &SessionKey) -> Option<SavedSession> {
    let saved = store.load(key, Steady(0)).unwrap();
    let comparable = |saved: &SavedSession| {
        let keys = Keys::default();
        ExpectedSession::from(SavedSession {
            keys,
            ..saved.clone()
        })
    };
    let again = load_known(store, key);
    let again = again.as_ref().map(comparable);
    assert_eq!(again, saved.as_ref().map(comparable));
    saved
}

thread_local! {
    /// Turns of each session that the test has loaded before.
    static LOADED: RefCell<HashMap<SessionKey, KnownTurns>> = RefCell::default();
}

/// Loads a session as a caller does that has the turns of the last load.
pub(crate) fn load_known(store: &dyn Store, key: &SessionKey) -> Option<SavedSession> {
    let wanted = SessionToLoad {
        key: key.clone(),
        known: LOADED.with_borrow_mut(|loaded| loaded.remove(key)),
        idempotency_key: None,
    };
    let mut found = None;
    let loaded = store.load_all(&[wanted], Steady(0), &mut |_, loaded| found = Some(loaded));
    loaded.unwrap();
    let saved = found.transpose().unwrap()?;
    let known = Session::restore(saved.clone()).into_known_turns(u64::MAX);
    LOADED.with_borrow_mut(|loaded| loaded.insert(key.clone(), known));
    Some(saved)
}

pub(crate) fn known(store: &dyn Store, key: &SessionKey) -> Option<ExpectedSession> {
    load(store, key).map(ExpectedSession::from)
}

pub(crate) fn page(
    store: &dyn Store,
    key: &SessionKey,
    generation: Option<Generation>,
    range: JournalRange,
) -> Option<JournalPage> {
    store.journal(key, generation, range).unwrap()
}

/// Returns the seqs of a whole journal.
pub(crate) fn seqs(
    store: &dyn Store,
    key: &SessionKey,
    generation: Option<Generation>,
) -> Option<Vec<u64>> {
    page(store, key, generation, ALL).map(|page| page.turns.iter().map(|(seq, _)| *seq).collect())
}

pub(crate) fn live_heads(store: &dyn Store) -> Vec<(SessionKey, Head)> {
    let mut heads = Vec::new();
    store
        .live_heads(&mut |key, head| heads.push((key, head)))
        .unwrap();
    heads.sort_by(|(left, _), (right, _)| left.cmp(right));
    heads
}
