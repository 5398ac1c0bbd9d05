//! Plans the rows that a batch of change sets writes.
//!
//! The planner is pure. A store reads the [`Base`] of a batch, plans it, and writes the [`Plan`]. A
//! set is applied completely or rejected, on top of the sets before it. The plan borrows contents
//! from the sets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use memoird_core::change::{
    Appended, Change, ChangeKind, ChangeSet, EndReason, PatchedState, Rewound, SummaryChange,
    UpdatedTurn,
};
use memoird_core::compaction::{CompactionStatus, Summary};
use memoird_core::history::{LiveSet, Totals};
use memoird_core::idempotency::{Fingerprint, KeyRecord};
use memoird_core::ids::{Generation, HookName, SessionKey, Subject};
use memoird_core::options::SessionOptions;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_core::window::SavedCut;

use crate::{StaleBase, summaries};

/// The part of a generation's row that changes are checked against.
#[derive(Clone, Copy, Debug)]
pub struct RowState<'a> {
    pub key: &'a SessionKey,
    pub revision: u64,
    pub last_seq: u64,
    pub is_live: bool,
}

impl<'a> RowState<'a> {
    /// Returns the state of a generation that starts.
    fn new(key: &'a SessionKey) -> Self {
        Self {
            key,
            revision: 0,
            last_seq: 0,
            is_live: true,
        }
    }
}

/// The stored row of a generation. Stores may keep more in it.
pub trait BaseRow {
    fn state(&self) -> RowState<'_>;
}

/// Stored data that a batch is planned on.
#[derive(Debug)]
pub struct Base<R> {
    /// The changed generations. Those that are not live may be missing.
    pub rows: HashMap<Generation, R>,
    /// Sessions that have a live generation. Only read for sessions that start one.
    pub live: HashSet<SessionKey>,
    /// Generations that exist without being in `rows`. Only read for generations that start.
    pub taken: HashSet<Generation>,
    /// Summaries of generations with a changed compaction. Bodies are read only for rewinds.
    pub summaries: HashMap<Generation, StoredSummaries>,
}

/// Summaries by number. `None` if the body was not read or does not decode.
pub type StoredSummaries = BTreeMap<u32, Option<Summary>>;

impl<R> Default for Base<R> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            live: HashSet::new(),
            taken: HashSet::new(),
            summaries: HashMap::new(),
        }
    }
}

/// The rows that a batch writes.
#[derive(Debug)]
pub struct Plan<'a, R> {
    /// Result of each set.
    pub results: Vec<Result<(), StaleBase>>,
    pub rows: BTreeMap<Generation, RowChange<'a, R>>,
    /// In journal order.
    pub appends: Vec<(Generation, &'a Appended)>,
    /// In order of application, after `appends`: they may replace a turn of the same batch.
    pub updates: Vec<(Generation, &'a UpdatedTurn)>,
    /// If a key is used several times, the last use wins.
    pub keys: Vec<NewKey<'a>>,
}

/// All changes of a batch to one generation. `None` leaves a column unchanged.
#[derive(Debug)]
pub struct RowChange<'a, R> {
    pub generation: Generation,
    pub key: &'a SessionKey,
    pub before: RowBefore<'a, R>,
    pub revision: u64,
    pub last_seq: u64,
    pub newest_seq: Option<u64>,
    pub subject: Option<&'a Subject>,
    /// Subjects that were replaced.
    pub former_subjects: Vec<&'a Subject>,
    /// Generation that the turns are a copy of.
    pub copied_from: Option<Generation>,
    pub last_access: Option<Steady>,
    pub live_set: Option<&'a LiveSet>,
    pub totals: Option<Totals>,
    pub partial: Option<bool>,
    pub compaction: Option<Arc<CompactionStatus>>,
    pub options: Option<&'a Arc<SessionOptions>>,
    pub ended: Option<(Now, EndReason, &'a [HookName])>,
    pub cuts: Option<&'a [SavedCut]>,
    pub patched: Option<&'a PatchedState>,
    pub rewound: SeqRanges,
    /// Turns removed by rewinds that have an idempotency key, by key.
    pub rewinds: BTreeMap<&'a Fingerprint, &'a SeqRanges>,
    pub summaries_made: BTreeMap<u32, &'a Summary>,
    pub summaries_gone: BTreeSet<u32>,
}

/// State of a row before the batch.
#[derive(Debug)]
pub enum RowBefore<'a, R> {
    /// The generation starts.
    Nothing {
        created_at: Timestamp,
    },
    Row(&'a R),
}

#[derive(Clone, Copy, Debug)]
pub struct NewKey<'a> {
    /// The changed generation. `record` may name an earlier one.
    pub generation: Generation,
    pub session: &'a SessionKey,
    pub name: &'a Fingerprint,
    pub record: &'a KeyRecord,
}

/// Plans the sets of a batch. `has_others`: other processes may write to the same generations.
pub fn plan<'a, R: BaseRow>(
    sets: &'a [ChangeSet],
    base: &'a Base<R>,
    has_others: bool,
) -> Plan<'a, R> {
    let mut planner = Planner::new(base);
    let mut rejected = HashSet::new();
    for set in sets {
        let names = || set.changes.iter().map(|change| change.generation);
        // A set built on a rejected one must not match a revision written by another process.
        let result = match names().find(|name| rejected.contains(name)) {
            Some(generation) => Err(StaleBase { generation }),
            None => planner.add(set),
        };
        if result.is_err() && has_others {
            rejected.extend(names());
        }
        planner.plan.results.push(result);
    }
    planner.plan
}

struct Planner<'a, R> {
    base: &'a Base<R>,
    /// Of the sets accepted until now.
    plan: Plan<'a, R>,
    /// Whether a session has a live generation, for those that started or ended one.
    live: HashMap<&'a SessionKey, bool>,
}

/// Changes of one set until it is accepted or rejected.
#[derive(Default)]
struct Draft<'a> {
    states: HashMap<Generation, RowState<'a>>,
    live: HashMap<&'a SessionKey, bool>,
}

impl<'a, R: BaseRow> Planner<'a, R> {
    fn new(base: &'a Base<R>) -> Self {
        Self {
            base,
            plan: Plan {
                results: Vec::new(),
                rows: BTreeMap::new(),
                appends: Vec::new(),
                updates: Vec::new(),
                keys: Vec::new(),
            },
            live: HashMap::new(),
        }
    }

    /// Adds all changes of a set, or none if one of them is stale.
    fn add(&mut self, set: &'a ChangeSet) -> Result<(), StaleBase> {
        let mut draft = Draft::default();
        for change in &set.changes {
            let generation = change.generation;
            let state = self
                .changed(&draft, change)
                .ok_or(StaleBase { generation })?;
            // Only the other changes of the set read the draft.
            if set.changes.len() > 1 {
                draft.live.insert(state.key, state.is_live);
                draft.states.insert(generation, state);
            }
        }
        set.changes.iter().for_each(|change| self.take(change));
        Ok(())
    }

    /// Returns the state after a change. `None` if the base of the change is stale.
    fn changed(&self, draft: &Draft<'a>, change: &'a Change) -> Option<RowState<'a>> {
        let generation = change.generation;
        let known = self.state(draft, generation);
        if let ChangeKind::Begin { key, .. } = &change.kind {
            let live = draft.live.get(key).or_else(|| self.live.get(key)).copied();
            let is_free = !live.unwrap_or_else(|| self.base.live.contains(key));
            let is_new = known.is_none() && !self.base.taken.contains(&generation);
            return (is_free && is_new).then(|| RowState::new(key));
        }
        let mut state = known.filter(|state| state.is_live)?;
        if change.expected_revision != state.revision {
            return None;
        }
        state.revision += 1;
        match &change.kind {
            ChangeKind::Append(appended) => {
                for (seq, _) in &appended.turns {
                    // Seqs are contiguous.
                    if *seq != state.last_seq + 1 {
                        return None;
                    }
                    state.last_seq = *seq;
                }
            }
            ChangeKind::Rewind(rewound) => {
                let fits = rewound.through_seq == state.last_seq;
                if !fits || rewound.after_seq > state.last_seq {
                    return None;
                }
            }
            ChangeKind::End { .. } => state.is_live = false,
            _ => {}
        }
        Some(state)
    }

    fn state(&self, draft: &Draft<'a>, generation: Generation) -> Option<RowState<'a>> {
        let draft = draft.states.get(&generation).copied();
        draft
            .or_else(|| self.plan.rows.get(&generation).map(RowChange::state))
            .or_else(|| self.base.rows.get(&generation).map(BaseRow::state))
    }

    /// Plans the writes of an accepted change.
    fn take(&mut self, change: &'a Change) {
        let generation = change.generation;
        let row = match self.plan.rows.entry(generation) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => match RowChange::begin(change, self.base) {
                Some(row) => vacant.insert(row),
                None => return,
            },
        };
        if let ChangeKind::Begin { last_access, .. } = &change.kind {
            row.last_access = Some(*last_access);
            self.live.insert(row.key, true);
            return;
        }
        row.revision = change.expected_revision + 1;
        let key = match &change.kind {
            ChangeKind::Begin { .. } => None,
            ChangeKind::Append(appended) => {
                row.append(appended);
                self.plan.appends.push((generation, appended));
                Some((&appended.key, appended.idempotency.as_ref()))
            }
            ChangeKind::Rewind(rewound) => {
                row.rewind(rewound);
                Some((&rewound.key, rewound.idempotency.as_ref()))
            }
            ChangeKind::UpdateTurn(updated) => {
                row.update(updated);
                // A turn that does not exist yet must not get this content when it is appended.
                if updated.seq <= row.last_seq {
                    self.plan.updates.push((generation, updated));
                }
                Some((row.key, updated.idempotency.as_ref()))
            }
            ChangeKind::PatchState(patched) => {
                row.patched = Some(patched);
                row.last_access = Some(patched.last_access);
                Some((&patched.key, patched.idempotency.as_ref()))
            }
            ChangeKind::SetOptions(options) => {
                row.options = Some(options);
                None
            }
            ChangeKind::Touch { last_access, cuts } => {
                row.last_access = Some(*last_access);
                row.take_cuts(cuts.as_deref());
                None
            }
            ChangeKind::Compact {
                status,
                summary,
                cuts,
            } => {
                row.take_summary(status, summary, self.base.summaries.get(&generation));
                row.take_cuts(cuts.as_deref());
                None
            }
            ChangeKind::End {
                reason,
                at,
                owed,
                idempotency,
            } => {
                row.ended = Some((*at, *reason, owed));
                self.live.insert(row.key, false);
                Some((row.key, idempotency.as_deref()))
            }
        };
        if let Some((session, Some((name, record)))) = key {
            self.plan.keys.push(NewKey {
                generation,
                session,
                name,
                record,
            });
        }
    }
}

impl<'a, R: BaseRow> RowChange<'a, R> {
    /// Returns the row of a first change, which must have been accepted.
    fn begin(change: &'a Change, base: &'a Base<R>) -> Option<Self> {
        let (state, before) = match &change.kind {
            ChangeKind::Begin {
                key, created_at, ..
            } => {
                let created_at = *created_at;
                (RowState::new(key), RowBefore::Nothing { created_at })
            }
            _ => {
                let row = base.rows.get(&change.generation)?;
                (row.state(), RowBefore::Row(row))
            }
        };
        Some(Self {
            generation: change.generation,
            key: state.key,
            before,
            revision: state.revision,
            last_seq: state.last_seq,
            newest_seq: None,
            subject: None,
            former_subjects: Vec::new(),
            copied_from: None,
            last_access: None,
            live_set: None,
            totals: None,
            partial: None,
            compaction: None,
            options: None,
            ended: None,
            cuts: None,
            patched: None,
            rewound: SeqRanges::default(),
            rewinds: BTreeMap::new(),
            summaries_made: BTreeMap::new(),
            summaries_gone: BTreeSet::new(),
        })
    }
}

impl<'a, R> RowChange<'a, R> {
    /// Whether the generation starts in the batch.
    pub fn is_new(&self) -> bool {
        matches!(self.before, RowBefore::Nothing { .. })
    }

    fn state(&self) -> RowState<'a> {
        RowState {
            key: self.key,
            revision: self.revision,
            last_seq: self.last_seq,
            is_live: self.ended.is_none(),
        }
    }

    /// Applies the changes to the head of the generation.
    pub fn apply_to(&self, head: &mut Head) {
        head.revision = self.revision;
        head.last_seq = self.last_seq;
        head.newest_seq = self.newest_seq.unwrap_or(head.newest_seq);
        head.last_access = self.last_access.unwrap_or(head.last_access);
        head.totals = self.totals.unwrap_or(head.totals);
        head.partial = self.partial.unwrap_or(head.partial);
        if let Some(patched) = self.patched {
            head.state_version = patched.version;
        }
        if self.subject.is_some() {
            head.subject = self.subject.cloned();
        }
        if self.compaction.is_some() {
            head.compaction.clone_from(&self.compaction);
        }
        if self.options.is_some() {
            head.options = self.options.cloned();
        }
    }

    fn append(&mut self, appended: &'a Appended) {
        if let Some((newest, _)) = appended.turns.last() {
            self.last_seq = *newest;
            self.newest_seq = Some(*newest);
        }
        self.live_set = Some(&appended.kept);
        self.totals = Some(appended.totals);
        self.partial = Some(appended.partial);
        self.last_access = Some(appended.last_access);
        self.subject = appended.subject.as_ref().or(self.subject);
        self.former_subjects.extend(&appended.former_subject);
        self.copied_from = appended.copied_from.or(self.copied_from);
        self.take_cuts(appended.cuts.as_deref());
    }

    fn rewind(&mut self, rewound: &'a Rewound) {
        self.live_set = Some(&rewound.kept);
        self.totals = Some(rewound.totals);
        self.partial = Some(rewound.partial);
        self.last_access = Some(rewound.last_access);
        self.newest_seq = Some(rewound.newest_seq);
        self.rewound
            .add_last(rewound.after_seq + 1, rewound.through_seq);
        self.rewinds
            .extend(rewound.taken.iter().map(|(key, seqs)| (key, seqs)));
        self.take_cuts(rewound.cuts.as_deref());
    }

    fn update(&mut self, updated: &'a UpdatedTurn) {
        self.live_set = Some(&updated.kept);
        self.totals = Some(updated.totals);
        self.take_cuts(updated.cuts.as_deref());
    }

    fn take_cuts(&mut self, cuts: Option<&'a [SavedCut]>) {
        self.cuts = cuts.or(self.cuts);
    }

    fn take_summary(
        &mut self,
        status: &Arc<CompactionStatus>,
        change: &'a SummaryChange,
        base: Option<&'a StoredSummaries>,
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
                self.summaries_made.insert(made.number, made);
            }
            SummaryChange::Undone(number) => {
                self.summaries_made.remove(number);
                self.summaries_gone.insert(*number);
            }
            SummaryChange::Rewound { after_seq } => {
                let standing = self.standing(base, *after_seq);
                let number = standing.map_or(0, |summary| summary.number);
                let later = known.filter(|known| *known > number);
                self.summaries_gone.extend(later);
                self.summaries_made.retain(|made, _| *made <= number);
                status = summaries::status_through(&status, standing);
            }
        }
        self.compaction = Some(status);
    }

    /// Returns the newest summary that decodes and covers no turn after `after_seq`.
    fn standing(&self, base: Option<&'a StoredSummaries>, after_seq: u64) -> Option<&'a Summary> {
        let is_replaced = |number: &u32| {
            self.summaries_gone.contains(number) || self.summaries_made.contains_key(number)
        };
        let stored = base
            .into_iter()
            .flatten()
            .filter(|(number, _)| !is_replaced(number))
            .filter_map(|(_, summary)| summary.as_ref());
        let made = self.summaries_made.values().copied();
        stored
            .chain(made)
            .filter(|summary| summary.through_seq <= after_seq)
            .max_by_key(|summary| summary.number)
    }
}
