//! Decides the change sets of a batch before anything is written.
//!
//! Each set is applied completely or rejected, on top of the sets before it. The result is one row
//! change per generation, plus the turns, keys and other contents that belong to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use memoird_core::change::{
    Appended, Change, ChangeKind, ChangeSet, EndReason, Rewound, SummaryChange, UpdatedTurn,
};
use memoird_core::compaction::{CompactionStatus, Summary};
use memoird_core::history::{LiveSet, Totals};
use memoird_core::idempotency::{Fingerprint, KeyRecord};
use memoird_core::ids::{Generation, HookName, SessionKey, Subject};
use memoird_core::options::SessionOptions;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::time::{Now, Steady};
use memoird_core::window::SavedCut;
use memoird_store::{StaleBase, encoding, summaries, windows};

/// The current version of a live generation.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) key: SessionKey,
    pub(crate) revision: u64,
    /// Distinguishes versions with the same revision. A failover may have lost one of them.
    pub(crate) stamp: i64,
    pub(crate) last_seq: u64,
}

/// Data read before deciding a batch.
#[derive(Debug, Default)]
pub(crate) struct StoredState {
    /// The changed generations that are live.
    pub(crate) versions: HashMap<Generation, Version>,
    /// Live generations of the sessions that are started, for those in [`RequiredReads::begins`].
    pub(crate) live: HashMap<SessionKey, Generation>,
    /// Generation ids that already exist, for those in [`RequiredReads::begins`].
    pub(crate) taken: HashSet<Generation>,
    /// Summaries of generations with a changed compaction. Bodies are loaded only for rewinds.
    pub(crate) summaries: HashMap<Generation, BTreeMap<u32, Option<Summary>>>,
}

/// Data to read before a batch can be decided.
#[derive(Debug, Default)]
pub(crate) struct RequiredReads {
    /// The generations that the batch changes, with the revision expected by the first change.
    pub(crate) versions: BTreeMap<Generation, u64>,
    /// Generations to start that may have conflicts which the statement cannot detect.
    pub(crate) begins: Vec<(SessionKey, Generation)>,
    /// Generations with a changed compaction. True if the bodies of summaries are needed as well.
    pub(crate) summaries: BTreeMap<Generation, bool>,
}

impl RequiredReads {
    /// `is_live`: whether this process knows a generation as live. The batch may reuse its id.
    pub(crate) fn of(sets: &[ChangeSet], is_live: impl Fn(&Generation) -> bool) -> Self {
        let mut needs = Self::default();
        let (mut begins, mut begun) = (Vec::new(), HashSet::new());
        let mut of_begun = BTreeMap::new();
        let (mut sessions, mut is_twisted) = (HashSet::new(), false);
        for set in sets {
            let mut names = set.changes.iter().map(|change| change.generation);
            let first = names.next();
            is_twisted |= names.any(|name| Some(name) != first);
            for change in &set.changes {
                let name = change.generation;
                match &change.kind {
                    ChangeKind::Begin { key, .. } => {
                        is_twisted |= !sessions.insert(key) || is_live(&name);
                        begun.insert(name);
                        begins.push((key.clone(), name));
                        continue;
                    }
                    ChangeKind::Compact { summary, .. } => {
                        let is_rewound = matches!(summary, SummaryChange::Rewound { .. });
                        *needs.summaries.entry(name).or_default() |= is_rewound;
                    }
                    _ => {}
                }
                let versions = if begun.contains(&name) {
                    &mut of_begun
                } else {
                    &mut needs.versions
                };
                versions.entry(name).or_insert(change.expected_revision);
            }
        }
        if is_twisted {
            needs.begins = begins;
            // The id may already belong to another generation, which is then the one that changes.
            needs.versions.append(&mut of_begun);
        }
        needs
    }
}

/// State of a row before the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowBefore {
    /// There was no row.
    Nothing {
        /// Start of the generation in wall-clock milliseconds.
        created_ms: i64,
    },
    /// The row had this version.
    Version { revision: u64, stamp: i64 },
}

/// A generation after the sets decided until now.
#[derive(Clone, Debug)]
struct DecidedGeneration {
    key: SessionKey,
    before: RowBefore,
    revision: u64,
    last_seq: u64,
    is_live: bool,
}

/// All changes of a batch to one generation. `None` leaves a column unchanged.
#[derive(Debug)]
pub(crate) struct RowChange {
    pub(crate) generation: Generation,
    pub(crate) key: SessionKey,
    pub(crate) before: RowBefore,
    pub(crate) revision: u64,
    pub(crate) last_seq: u64,
    pub(crate) newest_seq: Option<u64>,
    pub(crate) subject: Option<Subject>,
    pub(crate) last_access: Option<Steady>,
    pub(crate) live_set: Option<LiveSet>,
    pub(crate) totals: Option<Totals>,
    pub(crate) partial: Option<bool>,
    pub(crate) state_version: Option<u64>,
    pub(crate) compaction: Option<Arc<CompactionStatus>>,
    pub(crate) options: Option<Arc<SessionOptions>>,
    pub(crate) ended: Option<(Now, EndReason, Arc<[HookName]>)>,
    pub(crate) added_bytes: u64,
    pub(crate) cuts: Option<Vec<u8>>,
    pub(crate) state: Option<Arc<str>>,
    pub(crate) rewound: SeqRanges,
    /// Turns removed by rewinds that have an idempotency key, by key.
    pub(crate) rewinds: BTreeMap<Fingerprint, SeqRanges>,
    /// New contents of turns that are already stored, by seq.
    pub(crate) replaced: BTreeMap<u64, Arc<[u8]>>,
    pub(crate) summaries_made: BTreeMap<u32, Vec<u8>>,
    pub(crate) summaries_gone: BTreeSet<u32>,
}

#[derive(Debug)]
pub(crate) struct NewTurn {
    pub(crate) generation: Generation,
    pub(crate) seq: u64,
    pub(crate) content: Arc<[u8]>,
}

#[derive(Debug)]
pub(crate) struct NewKey {
    pub(crate) generation: Generation,
    pub(crate) session: SessionKey,
    pub(crate) name: Fingerprint,
    pub(crate) record: KeyRecord,
}

/// Rows that one statement writes.
#[derive(Debug, Default)]
pub(crate) struct WritePart {
    /// Sorted by generation. Rows are locked in this order.
    pub(crate) rows: BTreeMap<Generation, RowChange>,
    /// In journal order.
    pub(crate) turns: Vec<NewTurn>,
    /// Without duplicates.
    pub(crate) keys: Vec<NewKey>,
    /// Whether the part is written completely or not at all. Otherwise each row is independent.
    pub(crate) is_whole: bool,
    /// Stamps of the new versions, in the order of `rows`.
    pub(crate) stamps: Vec<i64>,
}

#[derive(Debug, Default)]
pub(crate) struct DecidedBatch {
    /// Refusal of each set, if it was rejected.
    pub(crate) rejected: Vec<Option<StaleBase>>,
    /// The generations that each set changes.
    pub(crate) names: Vec<BTreeSet<Generation>>,
    /// The parts to write. The first one may be empty.
    pub(crate) parts: Vec<WritePart>,
}

impl DecidedBatch {
    /// Refuses all sets that change this generation, because it was not written.
    pub(crate) fn reject(&mut self, generation: Generation) {
        let sets = self.names.iter().zip(&mut self.rejected);
        for (_, rejected) in sets.filter(|(names, _)| names.contains(&generation)) {
            rejected.get_or_insert(StaleBase { generation });
        }
    }
}

/// Decides all sets of a batch. `has_others`: other processes may write to the same generations.
pub(crate) fn decide(sets: &[ChangeSet], known: StoredState, has_others: bool) -> DecidedBatch {
    let mut batch = Batch::new(known);
    let mut decided = DecidedBatch::default();
    let mut rejected = HashSet::new();
    for set in sets {
        let mut all = set.changes.iter().map(|change| change.generation);
        // A set built on a rejected one must not match a revision written by another process.
        let outcome = match all.find(|name| rejected.contains(name)) {
            Some(generation) => Err(StaleBase { generation }),
            None => batch.decide(set),
        };
        if outcome.is_err() && has_others {
            rejected.extend(set.changes.iter().map(|change| change.generation));
        }
        let mut names = BTreeSet::new();
        if outcome.is_ok() {
            for change in &set.changes {
                names.insert(change.generation);
                batch.take(change);
            }
        }
        decided.rejected.push(outcome.err());
        decided.names.push(names);
    }
    decided.parts = batch.into_parts(&decided.names);
    decided
}

struct Batch {
    known: StoredState,
    /// After the sets accepted until now.
    generations: HashMap<Generation, DecidedGeneration>,
    live: HashMap<SessionKey, Option<Generation>>,
    rows: BTreeMap<Generation, RowChange>,
    turns: Vec<NewTurn>,
    keys: Vec<NewKey>,
}

/// Changes of one set until it is accepted or rejected.
#[derive(Default)]
struct Draft {
    generations: HashMap<Generation, DecidedGeneration>,
    live: HashMap<SessionKey, Option<Generation>>,
}

impl Batch {
    fn new(mut known: StoredState) -> Self {
        let (mut generations, mut live) = (HashMap::new(), HashMap::new());
        for (key, generation) in known.live.drain() {
            live.insert(key, Some(generation));
        }
        for (generation, version) in known.versions.drain() {
            live.insert(version.key.clone(), Some(generation));
            let generation_state = DecidedGeneration {
                key: version.key,
                before: RowBefore::Version {
                    revision: version.revision,
                    stamp: version.stamp,
                },
                revision: version.revision,
                last_seq: version.last_seq,
                is_live: true,
            };
            generations.insert(generation, generation_state);
        }
        Self {
            known,
            generations,
            live,
            rows: BTreeMap::new(),
            turns: Vec::new(),
            keys: Vec::new(),
        }
    }

    fn decide(&mut self, set: &ChangeSet) -> Result<(), StaleBase> {
        let mut draft = Draft::default();
        for change in &set.changes {
            let generation = change.generation;
            let generation_state = self
                .changed(&draft, change)
                .ok_or(StaleBase { generation })?;
            let live = generation_state.is_live.then_some(generation);
            draft.live.insert(generation_state.key.clone(), live);
            draft.generations.insert(generation, generation_state);
        }
        self.generations.extend(draft.generations);
        self.live.extend(draft.live);
        Ok(())
    }

    /// Applies a change to its generation. Returns `None` if the base of the change is stale.
    fn changed(&self, draft: &Draft, change: &Change) -> Option<DecidedGeneration> {
        let generation = change.generation;
        let known = draft
            .generations
            .get(&generation)
            .or_else(|| self.generations.get(&generation));
        if let ChangeKind::Begin {
            key, created_at, ..
        } = &change.kind
        {
            let live = draft.live.get(key).or_else(|| self.live.get(key));
            let is_free = live.is_none_or(Option::is_none);
            let is_new = known.is_none() && !self.known.taken.contains(&generation);
            return (is_free && is_new).then(|| DecidedGeneration {
                key: key.clone(),
                before: RowBefore::Nothing {
                    created_ms: created_at.as_ms(),
                },
                revision: 0,
                last_seq: 0,
                is_live: true,
            });
        }
        let mut generation_state = known
            .filter(|generation_state| generation_state.is_live)?
            .clone();
        if change.expected_revision != generation_state.revision {
            return None;
        }
        generation_state.revision += 1;
        match &change.kind {
            ChangeKind::Append(appended) => {
                for (seq, _) in &appended.turns {
                    // Seqs are contiguous.
                    if *seq != generation_state.last_seq + 1 {
                        return None;
                    }
                    generation_state.last_seq = *seq;
                }
            }
            ChangeKind::Rewind(rewound) => {
                let fits = rewound.through_seq == generation_state.last_seq;
                if !fits || rewound.after_seq > generation_state.last_seq {
                    return None;
                }
            }
            ChangeKind::End { .. } => generation_state.is_live = false,
            _ => {}
        }
        Some(generation_state)
    }

    /// Records the writes of an accepted change.
    fn take(&mut self, change: &Change) {
        let generation = change.generation;
        let Some(generation_state) = self.generations.get(&generation) else {
            return;
        };
        let row = self
            .rows
            .entry(generation)
            .or_insert_with(|| RowChange::new(generation, generation_state));
        (row.revision, row.last_seq) = (generation_state.revision, generation_state.last_seq);
        match &change.kind {
            ChangeKind::Begin { last_access, .. } => row.last_access = Some(*last_access),
            ChangeKind::Append(appended) => {
                row.append(appended);
                let turns = appended.turns.iter().map(|(seq, content)| NewTurn {
                    generation,
                    seq: *seq,
                    content: Arc::clone(content),
                });
                self.turns.extend(turns);
                self.take_key(generation, &appended.key, appended.idempotency);
            }
            ChangeKind::Rewind(rewound) => {
                row.rewind(rewound);
                self.take_key(generation, &rewound.key, rewound.idempotency);
            }
            ChangeKind::UpdateTurn(updated) => {
                let is_it =
                    |turn: &&mut NewTurn| turn.generation == generation && turn.seq == updated.seq;
                row.update(updated, self.turns.iter_mut().find(is_it));
            }
            ChangeKind::PatchState(patched) => {
                row.state = Some(Arc::clone(&patched.state_json));
                row.state_version = Some(patched.version);
                row.last_access = Some(patched.last_access);
                self.take_key(generation, &patched.key, patched.idempotency);
            }
            ChangeKind::SetOptions(options) => row.options = Some(Arc::clone(options)),
            ChangeKind::Touch { last_access, cuts } => {
                row.last_access = Some(*last_access);
                row.take_cuts(cuts.as_deref());
            }
            ChangeKind::Compact {
                status,
                summary,
                cuts,
            } => {
                let base = self.known.summaries.get(&generation);
                row.take_summary(status, summary, base);
                row.take_cuts(cuts.as_deref());
            }
            ChangeKind::End { reason, at, owed } => {
                row.ended = Some((*at, *reason, Arc::clone(owed)));
            }
        }
    }

    /// If a key is used again, the last use wins.
    fn take_key(
        &mut self,
        generation: Generation,
        session: &SessionKey,
        idempotency: Option<(Fingerprint, KeyRecord)>,
    ) {
        self.keys.extend(idempotency.map(|(name, record)| NewKey {
            generation,
            session: session.clone(),
            name,
            record,
        }));
    }

    /// Splits the writes into statements.
    ///
    /// Generations that one set changes together get a part of their own, along with all
    /// generations connected to them by other sets.
    fn into_parts(self, names: &[BTreeSet<Generation>]) -> Vec<WritePart> {
        let part_of = self.part_indexes(names);
        let mut parts: Vec<WritePart> = Vec::new();
        parts.resize_with(1 + part_of.values().max().copied().unwrap_or(0), || {
            WritePart {
                is_whole: true,
                ..WritePart::default()
            }
        });
        parts[0].is_whole = false;
        let place = |generation: &Generation| part_of.get(generation).copied().unwrap_or(0);
        for (generation, row) in self.rows {
            parts[place(&generation)].rows.insert(generation, row);
        }
        for turn in self.turns {
            parts[place(&turn.generation)].turns.push(turn);
        }
        for key in last_of_each(self.keys) {
            parts[place(&key.generation)].keys.push(key);
        }
        for part in &mut parts {
            part.stamps = part.rows.keys().map(|_| rand::random()).collect();
        }
        parts
    }

    /// Part indexes of the generations that are not in the first part.
    fn part_indexes(&self, names: &[BTreeSet<Generation>]) -> HashMap<Generation, usize> {
        if names.iter().all(|names| names.len() < 2) {
            return HashMap::new();
        }
        let mut groups: Vec<BTreeSet<Generation>> = Vec::new();
        let mut join = |names: BTreeSet<Generation>| {
            let mut joined = names;
            groups.retain(|group| {
                let is_apart = group.is_disjoint(&joined);
                if !is_apart {
                    joined.extend(group);
                }
                is_apart
            });
            groups.push(joined);
        };
        let mut sessions: HashMap<&SessionKey, BTreeSet<Generation>> = HashMap::new();
        for row in self.rows.values() {
            let of_session = sessions.entry(&row.key).or_default();
            of_session.insert(row.generation);
        }
        sessions.into_values().for_each(&mut join);
        names.iter().cloned().for_each(&mut join);
        let is_whole = |group: &&BTreeSet<Generation>| {
            let mut several = names.iter().filter(|names| names.len() > 1);
            several.any(|names| names.is_subset(group))
        };
        let whole = groups.iter().filter(is_whole);
        let placed = whole.zip(1..).flat_map(|(group, place)| {
            let names = group.iter();
            names.map(move |name| (*name, place))
        });
        placed.collect()
    }
}

/// Keeps the last of several keys with the same name and session.
fn last_of_each(mut keys: Vec<NewKey>) -> Vec<NewKey> {
    let mut known = HashSet::new();
    keys.reverse();
    keys.retain(|key| known.insert((key.session.clone(), key.name)));
    keys.reverse();
    keys
}

impl RowChange {
    fn new(generation: Generation, generation_state: &DecidedGeneration) -> Self {
        Self {
            generation,
            key: generation_state.key.clone(),
            before: generation_state.before,
            revision: generation_state.revision,
            last_seq: generation_state.last_seq,
            newest_seq: None,
            subject: None,
            last_access: None,
            live_set: None,
            totals: None,
            partial: None,
            state_version: None,
            compaction: None,
            options: None,
            ended: None,
            added_bytes: 0,
            cuts: None,
            state: None,
            rewound: SeqRanges::default(),
            rewinds: BTreeMap::new(),
            replaced: BTreeMap::new(),
            summaries_made: BTreeMap::new(),
            summaries_gone: BTreeSet::new(),
        }
    }

    fn append(&mut self, appended: &Appended) {
        let bytes = appended
            .turns
            .iter()
            .map(|(_, content)| content.len() as u64);
        self.added_bytes += bytes.sum::<u64>();
        let newest = appended.turns.last().map(|(seq, _)| *seq);
        self.newest_seq = newest.or(self.newest_seq);
        self.live_set = Some(appended.kept.clone());
        self.totals = Some(appended.totals);
        self.partial = Some(appended.partial);
        self.last_access = Some(appended.last_access);
        if appended.subject.is_some() {
            self.subject.clone_from(&appended.subject);
        }
        self.take_cuts(appended.cuts.as_deref());
    }

    fn rewind(&mut self, rewound: &Rewound) {
        self.live_set = Some(rewound.kept.clone());
        self.totals = Some(rewound.totals);
        self.partial = Some(rewound.partial);
        self.last_access = Some(rewound.last_access);
        self.newest_seq = Some(rewound.newest_seq);
        self.rewound
            .add_last(rewound.after_seq + 1, rewound.through_seq);
        self.rewinds.extend(rewound.taken.clone());
        self.take_cuts(rewound.cuts.as_deref());
    }

    /// `new` is the turn if this batch inserts it. No reader has seen its earlier content.
    fn update(&mut self, updated: &UpdatedTurn, new: Option<&mut NewTurn>) {
        match new {
            Some(turn) => {
                self.added_bytes -= turn.content.len() as u64;
                self.added_bytes += updated.content.len() as u64;
                turn.content.clone_from(&updated.content);
            }
            None => drop(
                self.replaced
                    .insert(updated.seq, Arc::clone(&updated.content)),
            ),
        }
        self.live_set = Some(updated.kept.clone());
        self.totals = Some(updated.totals);
        self.take_cuts(updated.cuts.as_deref());
    }

    fn take_cuts(&mut self, cuts: Option<&[SavedCut]>) {
        if let Some(cuts) = cuts {
            self.cuts = Some(windows::encode(cuts));
        }
    }

    /// `base` has the stored summaries of the generation.
    fn take_summary(
        &mut self,
        status: &Arc<CompactionStatus>,
        change: &SummaryChange,
        base: Option<&BTreeMap<u32, Option<Summary>>>,
    ) {
        let mut status = summaries::kept_status(status);
        let known = base.into_iter().flat_map(BTreeMap::keys).copied();
        match change {
            SummaryChange::Stays => {}
            SummaryChange::Made(made) => {
                // Numbers only grow. A summary with a higher number must not be mistaken for the
                // newest.
                let later = known.filter(|number| *number > made.number);
                self.summaries_gone.extend(later);
                drop(self.summaries_made.split_off(&made.number));
                self.summaries_gone.remove(&made.number);
                self.summaries_made
                    .insert(made.number, summaries::encode(made));
            }
            SummaryChange::Undone(number) => {
                self.summaries_made.remove(number);
                self.summaries_gone.insert(*number);
            }
            SummaryChange::Rewound { after_seq } => {
                let standing = self.standing(base, *after_seq);
                let number = standing.as_ref().map_or(0, |summary| summary.number);
                let later = known.filter(|known| *known > number);
                self.summaries_gone.extend(later);
                self.summaries_made.retain(|made, _| *made <= number);
                status = summaries::status_through(&status, standing.as_ref());
            }
        }
        self.compaction = Some(status);
    }

    /// The newest summary that decodes and covers no turn after `after_seq`.
    fn standing(
        &self,
        base: Option<&BTreeMap<u32, Option<Summary>>>,
        after_seq: u64,
    ) -> Option<Summary> {
        let is_gone = |number: &u32| {
            self.summaries_gone.contains(number) || self.summaries_made.contains_key(number)
        };
        let base = base
            .into_iter()
            .flatten()
            .filter(|(number, _)| !is_gone(number))
            .filter_map(|(_, summary)| summary.clone());
        let made = self
            .summaries_made
            .values()
            .filter_map(|body| summaries::decode(body));
        let all = base.chain(made);
        all.filter(|summary| summary.through_seq <= after_seq)
            .max_by_key(|summary| summary.number)
    }

    /// The encoded live set. An unchanged one is encoded only for a new generation, as the default.
    pub(crate) fn encoded_live_set(&self) -> Option<Vec<u8>> {
        let is_new = matches!(self.before, RowBefore::Nothing { .. });
        let empty = is_new.then(LiveSet::default);
        let live_set = self.live_set.clone().or(empty);
        live_set.as_ref().map(encoding::encode_live_set)
    }
}
