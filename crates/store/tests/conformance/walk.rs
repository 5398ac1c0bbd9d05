//! A random walk over two stores.
//!
//! Random valid and invalid sets are written to both. Both must return the same results and have
//! the same content, which reveals any error that only one of them makes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memoird_core::change::{Change, ChangeSet, EndReason, SummaryChange};
use memoird_core::idempotency::{IdempotencyKey, Keys};
use memoird_core::ids::{Generation, SessionKey, Subject};
use memoird_core::session::Session;
use memoird_core::time::Steady;
use memoird_core::turn::Role;
use memoird_store::{
    EndedQuery, JournalRange, PruneBefore, SqliteOptions, SqliteStore, Store, encoding,
};

use crate::chat::{Chat, command, idempotency_key, named};
use crate::compaction::{compact, made, status_of};
use crate::cuts::{cuts_of, with_cuts};
use crate::ended_list::{ORDERS, all};
use crate::kit::*;
use crate::model::MemoryStore;
use crate::prune::prune_all;
use crate::rewind;
use crate::seeds::seeds;
use crate::update;

const BATCHES: usize = 60;
const WORDS: [&str; 14] = [
    "u", "u", "a", "s", "a+x", "a+y", "a+x+y", "t-x", "t-y", "u-x", "a!", "u!", "a+z!", "t-z",
];
/// Number of distinct idempotency keys of appends, few enough that they repeat.
const NAMES: u64 = 12;

/// The pending table is flushed repeatedly, in steps of different sizes.
fn options(seed: u64) -> SqliteOptions {
    SqliteOptions {
        pending_changes_max: [7, 40, 200][usize::try_from(seed % 3).unwrap()],
        ..SqliteOptions::default()
    }
}

#[test]
fn sqlite_and_memory_store_match_on_random_walk() {
    for seed in seeds(8) {
        // Shown if the test fails.
        println!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        walk_beside_memory(seed, || {
            Box::new(SqliteStore::open(dir.path(), options(seed)).unwrap())
        });
    }
}

/// Walks over the store that `open` returns and one in memory.
///
/// Finally reopens the store and compares again.
pub(crate) fn walk_beside_memory(seed: u64, open: impl Fn() -> Box<dyn Store>) {
    let store = open();
    let (memory, mut walk) = (MemoryStore::default(), Walk::new(seed));
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..BATCHES {
        let (yes, no) = walk.step(&*store, &memory);
        (taken, refused) = (taken + yes, refused + no);
    }
    drop(store);
    let reopened = open();
    walk.compare(&*reopened, &memory);
    assert!(
        taken > 20 && refused > 20,
        "seed {seed}: {taken} taken, {refused} refused"
    );
}

/// SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

struct Walk {
    random: Random,
    at: u64,
    keys: Vec<SessionKey>,
    live: BTreeMap<SessionKey, Chat>,
    /// Keys of ended sessions, including ends in a batch that is not written yet.
    left: BTreeMap<SessionKey, Keys>,
    /// Every generation ever begun, including rejected ones.
    generations: BTreeSet<Generation>,
    /// Those of earlier batches. Within a batch, ids are unique, as the daemon makes them.
    earlier: Vec<Generation>,
    /// Written changes. Each is stale if written again.
    written: Vec<Change>,
    /// Whether a compaction was written that the sessions in memory do not know of.
    is_compacted: bool,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let keys = ["a", "b"].map(|tenant| ["s", "s\0/"].map(|session| key(tenant, session)));
        Self {
            random: Random(seed),
            at: 1,
            keys: keys.into_iter().flatten().collect(),
            live: BTreeMap::new(),
            left: BTreeMap::new(),
            generations: BTreeSet::new(),
            earlier: Vec::new(),
            written: Vec::new(),
            is_compacted: false,
        }
    }

    /// Writes one batch to both. Returns how many sets were accepted and rejected.
    fn step(&mut self, sqlite: &dyn Store, memory: &dyn Store) -> (usize, usize) {
        // Some batches have the same time.
        self.at += self.random.below(4) * 3;
        self.earlier = self.generations.iter().copied().collect();
        let sets: Vec<ChangeSet> = (0..=self.random.below(4))
            .map(|_| self.change_set(memory))
            .collect();
        let answers = sqlite.commit(&clock(self.at), &sets).unwrap();
        assert_eq!(
            answers,
            memory.commit(&clock(self.at), &sets).unwrap(),
            "{sets:#?}"
        );
        let taken = sets
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_ok());
        self.written.extend(taken.flat_map(|(set, _)| set.changes));
        let refused = answers.iter().filter(|answer| answer.is_err()).count();

        if self.random.below(8) == 0 {
            let ago = self.random.below(60);
            let at = Steady(self.at.saturating_sub(ago));
            let before = PruneBefore {
                ended: at,
                keys: at,
            };
            let rows_max = 1 + usize::try_from(self.random.below(9)).unwrap();
            prune_all(sqlite, before, rows_max);
            prune_all(memory, before, rows_max);
        }
        if refused > 0 || std::mem::take(&mut self.is_compacted) || self.random.below(4) == 0 {
            // Discard sessions based on a rejected set, as the daemon does.
            self.reload(sqlite);
        }
        self.compare(sqlite, memory);
        (answers.len() - refused, refused)
    }

    fn change_set(&mut self, store: &dyn Store) -> ChangeSet {
        let mut changes = Vec::new();
        for _ in 0..=self.random.below(3) {
            let key = self.random.pick(&self.keys.clone()).clone();
            let change = match self.random.below(20) {
                0 if !self.written.is_empty() => Some(self.random.pick(&self.written).clone()),
                1 => self.live.get(&key).map(|chat| {
                    let mut ahead = chat.clone();
                    ahead.touch(self.at);
                    ahead.touch(self.at)
                }),
                2 => Some(self.begin(&key, store)),
                _ if !self.live.contains_key(&key) => Some(self.begin(&key, store)),
                3 => self.end(&key),
                4 | 5 => {
                    let touch = self.live.get_mut(&key).map(|chat| chat.touch(self.at));
                    let cuts = Some(self.at % 5).filter(|_| self.random.below(2) == 0);
                    touch.map(|touch| with_cuts(touch, cuts.map(cuts_of)))
                }
                6 | 7 => {
                    let patch = format!(r#"{{"{}":{}}}"#, self.random.below(3), self.at);
                    self.live
                        .get_mut(&key)
                        .map(|chat| chat.patch(&patch, self.at))
                }
                8 | 9 => self.compact(&key),
                12 => {
                    let value = format!("{}-{}", self.at, self.random.below(9));
                    let chat = self.live.get_mut(&key);
                    chat.filter(|chat| chat.session.head().label("a") != Some(&value))
                        .map(|chat| chat.label("a", &value))
                }
                10 | 11 => {
                    changes.extend(self.rewind(&key));
                    None
                }
                13 => {
                    changes.extend(self.update(&key));
                    None
                }
                _ => self.append(&key),
            };
            changes.extend(change);
        }
        ChangeSet { changes }
    }

    /// Invalid while another generation is live, or if an earlier batch used the id.
    fn begin(&mut self, key: &SessionKey, store: &dyn Store) -> Change {
        let generation = match self.random.below(6) {
            0 if !self.earlier.is_empty() => *self.random.pick(&self.earlier),
            _ => Generation::new(i64::try_from(self.at).unwrap(), self.random.next().into()),
        };
        let (mut chat, change) = Chat::begin(key, generation, self.at);
        let live = self
            .live
            .get_mut(key)
            .and_then(|chat| chat.session.take_keys());
        let keys = live
            .or_else(|| self.left.remove(key))
            .unwrap_or_else(|| store.keys(key, Steady(0)).unwrap());
        chat.session.set_keys(keys);
        self.generations.insert(generation);
        self.live.insert(key.clone(), chat);
        change
    }

    fn end(&mut self, key: &SessionKey) -> Option<Change> {
        let reason = *self.random.pick(&[
            EndReason::Expired,
            EndReason::Evicted,
            EndReason::Ended,
            EndReason::Reset,
            EndReason::Shutdown,
        ]);
        let named = self.new_key();
        let mut chat = self.live.remove(key)?;
        let (last_seq, at) = (chat.session.head().last_seq, now(self.at));
        let named = chat.session.use_key(named, last_seq, &chat.limits, at);
        self.left
            .extend(chat.session.take_keys().map(|keys| (key.clone(), keys)));
        Some(chat.session.head().end(reason, at, Arc::default(), named))
    }

    /// A key of a command that appends no turns, in half of the cases.
    fn new_key(&mut self) -> Option<IdempotencyKey> {
        let name = NAMES + self.random.below(2 * NAMES);
        (name < 2 * NAMES).then(|| idempotency_key(name, 1))
    }

    fn compact(&mut self, key: &SessionKey) -> Option<Change> {
        let number = u32::try_from(1 + self.random.below(5)).unwrap();
        let summary = match self.random.below(4) {
            0 => SummaryChange::Stays,
            1 => SummaryChange::Undone(number),
            _ => made(number),
        };
        let mut status = status_of(number);
        status.running = self.random.below(2) == 0;
        self.is_compacted = true;
        self.live
            .get(key)
            .map(|chat| compact(chat, status, summary))
    }

    /// `None` if the rules reject the words.
    fn append(&mut self, key: &SessionKey) -> Option<Change> {
        let words: Vec<&str> = (0..=self.random.below(3))
            .map(|_| *self.random.pick(&WORDS))
            .collect();
        let mut append = command(&words.join(" "));
        if self.random.below(3) == 0 {
            append = named(&words.join(" "), self.random.below(NAMES), 1);
        }
        append.partial = self.random.below(4) == 0;
        if self.random.below(5) == 0 {
            append.subject = Subject::parse(words[0]).ok();
        }
        let chat = self.live.get_mut(key)?;
        match chat.decide(&append, self.at).ok()?.changes.pop() {
            Some(change) => {
                let cuts = self.at.is_multiple_of(3).then(|| cuts_of(self.at % 4));
                Some(with_cuts(change, cuts))
            }
            None => Some(chat.touch(self.at)),
        }
    }

    /// Empty if the rules reject it.
    fn rewind(&mut self, key: &SessionKey) -> Vec<Change> {
        let (count, name) = (self.random.below(6), self.random.below(3 * NAMES));
        let words = *self.random.pick(&["", "u", "a u"]);
        let Some(chat) = self.live.get_mut(key) else {
            return Vec::new();
        };
        let append = if name < NAMES {
            named(words, name, 1)
        } else {
            command(words)
        };
        let after_seq = chat.session.head().last_seq.saturating_sub(count);
        let Ok(decision) = rewind::decide(chat, after_seq, append, self.at) else {
            return Vec::new();
        };
        if decision.changes.is_empty() {
            return vec![chat.touch(self.at)];
        }
        // Only the stores know which summary is current after it.
        self.is_compacted |= decision.must_reload;
        decision.changes
    }

    /// Empty if there is no plain user turn.
    fn update(&mut self, key: &SessionKey) -> Vec<Change> {
        let (pick, bytes) = (self.random.next(), self.random.below(60));
        let named = self.new_key();
        let Some(chat) = self.live.get_mut(key) else {
            return Vec::new();
        };
        let is_plain = |content: &[u8]| {
            let turn = encoding::encode(encoding::open(content).unwrap());
            turn.role == Role::User && !turn.pinned && turn.links.results.is_empty()
        };
        let turns = chat.session.history().turns_after(0);
        let plain = turns.filter(|turn| is_plain(&turn.content));
        let seqs: Vec<u64> = plain.map(|turn| turn.seq).collect();
        let Some(seq) = pick.checked_rem(seqs.len() as u64) else {
            return Vec::new();
        };
        let seq = seqs[usize::try_from(seq).unwrap()];
        let text = "x".repeat(usize::try_from(bytes).unwrap());
        let decision = update::decide(chat, seq, &text, named, self.at);
        self.is_compacted |= decision.must_reload;
        decision.changes
    }

    fn reload(&mut self, store: &dyn Store) {
        let sample = Chat::begin(&self.keys[0], Generation::new(0, 0), 0).0;
        self.live.clear();
        self.left.clear();
        for key in &self.keys {
            if let Some(saved) = load(store, key) {
                let session = Session::restore(saved);
                self.live.insert(
                    key.clone(),
                    Chat {
                        key: key.clone(),
                        session,
                        ..sample.clone()
                    },
                );
            }
        }
    }

    /// Compares the turns that followers of the journal read, in any order of generations.
    fn compare_written(sqlite: &dyn Store, memory: &dyn Store) {
        let [one, two] = [sqlite, memory].map(|store| {
            let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
            let turns = written.turns.into_iter();
            let parts = turns.map(|turn| (turn.generation, turn.seq, turn.content));
            let mut parts: Vec<_> = parts.collect();
            // Stable, so that seqs stay in the order of their numbers.
            parts.sort_by_key(|(generation, ..)| *generation);
            parts
        });
        assert_eq!(one, two);
    }

    fn compare_ended(&self, sqlite: &dyn Store, memory: &dyn Store) {
        // A generation is found by its id alone.
        let key = &self.keys[0];
        let wanted: Vec<_> = self
            .generations
            .iter()
            .map(|name| (key.clone(), *name))
            .collect();
        let [one, two] = [sqlite, memory].map(|store| {
            let records = store.ended(&wanted, usize::MAX).unwrap().into_iter();
            let parts = records.map(|ended| {
                (
                    ended.key,
                    ended.head,
                    ended.turns.len(),
                    ended.state,
                    ended.summary,
                )
            });
            parts.collect::<Vec<_>>()
        });
        assert_eq!(one, two);
        let tenants: BTreeSet<_> = self.keys.iter().map(|key| &key.tenant).collect();
        for (tenant, order) in tenants
            .into_iter()
            .flat_map(|it| ORDERS.map(|order| (it, order)))
        {
            let query = EndedQuery {
                tenant: tenant.clone(),
                max: usize::MAX,
                ..all(order)
            };
            let [one, two] = [sqlite, memory].map(|store| store.ended_page(&query).unwrap());
            assert_eq!(one, two);
        }
    }

    fn compare(&mut self, sqlite: &dyn Store, memory: &dyn Store) {
        assert_eq!(sqlite.clock().unwrap(), memory.clock().unwrap());
        assert_eq!(live_heads(sqlite), live_heads(memory));
        let [one, two] = [sqlite, memory].map(|store| {
            let mut bytes = store.turn_bytes().unwrap();
            bytes.sort();
            bytes
        });
        assert_eq!(one, two);
        Self::compare_written(sqlite, memory);
        self.compare_ended(sqlite, memory);
        for key in &self.keys {
            let since = Steady(self.at.saturating_sub(self.random.below(40)));
            assert_eq!(
                sqlite.keys(key, since).unwrap(),
                memory.keys(key, since).unwrap()
            );
            let stored = known(sqlite, key);
            assert_eq!(stored, known(memory, key));
            assert_eq!(stored.is_some(), self.live.contains_key(key));
            if let (Some(stored), Some(chat)) = (stored, self.live.get(key)) {
                is_what_the_session_knows(&stored, chat);
            }
            for generation in self.generations.iter().copied().map(Some).chain([None]) {
                let range = JournalRange {
                    after_seq: self.random.below(3) * self.random.below(10),
                    turns_max: usize::try_from(1 + self.random.below(20)).unwrap(),
                    bytes_max: usize::try_from(self.random.below(600)).unwrap(),
                    before_seq: match self.random.below(3) {
                        0 => self.random.below(20),
                        _ => u64::MAX,
                    },
                    last: self.random.below(2) == 0,
                    with_rewound: self.random.below(2) == 0,
                };
                let [one, two] = [sqlite, memory].map(|store| page(store, key, generation, range));
                let [one, two] =
                    [one, two].map(|page| page.map(|page| (page.turns, page.rewound, page.more)));
                assert_eq!(one, two, "{key:?} {generation:?} {range:?}");
            }
        }
    }
}

/// Compares with the session in memory, which decided the changes.
fn is_what_the_session_knows(stored: &ExpectedSession, chat: &Chat) {
    assert_eq!(stored.head, *chat.session.head());
    // Turns before the history are loaded for windows only.
    let seqs = stored.turns.iter().map(|(seq, ..)| *seq);
    let kept: Vec<u64> = seqs
        .filter(|seq| !stored.kept.preamble.contains(seq))
        .collect();
    assert_eq!(kept, chat.kept());
    if stored.head.last_seq > 0 {
        assert_eq!(
            stored.kept,
            chat.session.history().live_set(stored.head.last_seq)
        );
    }
    assert_eq!(
        stored.state.clone().unwrap_or_default(),
        chat.session.state()
    );
    for name in 0..2 * NAMES {
        let find = |keys: &Keys| {
            keys.find(
                idempotency_key(name, 1),
                &chat.limits,
                stored.head.last_access,
            )
        };
        // The session retains keys pruned on disk until it is reloaded.
        let in_memory = chat.session.keys().map(find);
        match find(&stored.keys) {
            Ok(None) => {}
            known => assert_eq!(in_memory, Some(known)),
        }
    }
}
