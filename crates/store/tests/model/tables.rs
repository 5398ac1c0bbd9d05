//! Tables of the in-memory journal, and how changes are applied to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, ChangeSet, EndReason, SummaryChange};
use memoird_core::compaction::{CompactionStatus, Summary};
use memoird_core::history::LiveSet;
use memoird_core::history::REWOUND_BEFORE_MAX;
use memoird_core::idempotency::{Fingerprint, KeyRecord, Keys};
use memoird_core::ids::{ErasureId, Generation, SessionKey, Subject};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::Head;
use memoird_core::state::State;
use memoird_core::time::{Now, Steady};
use memoird_core::window::SavedCut;

use super::erase::ErasureAndScope;
use super::outbox::{self, Outbox};
use memoird_store::{
    ClockAnchor, EndedGeneration, EventSubscription, KEYS_MAX, PostedEvent, StaleBase, WrittenTurn,
    summaries, windows,
};

/// Time within which the use of a key by another process rejects a start with this key.
const USED_WITHIN_MS: u64 = 60_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) clock: Option<ClockAnchor>,
    pub(super) live: BTreeMap<SessionKey, Generation>,
    pub(super) generations: BTreeMap<Generation, Row>,
    pub(super) keys: BTreeMap<SessionKey, BTreeMap<Fingerprint, KeyRecord>>,
    pub(super) outbox: Outbox,
    /// Generation and seq of each turn, by its number.
    pub(super) written: BTreeMap<u64, (Generation, u64)>,
    pub(super) last_number: u64,
    pub(super) erasures: BTreeMap<ErasureId, ErasureAndScope>,
    /// Version of each live generation. Unique across all versions.
    pub(super) versions: BTreeMap<Generation, u64>,
    pub(super) last_version: u64,
    pub(super) watched: BTreeMap<u128, EventSubscription>,
    /// Posted events, each with its process.
    pub(super) posted: Vec<(u128, PostedEvent)>,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: SessionKey,
    pub(super) head: Head,
    pub(super) kept: LiveSet,
    pub(super) cuts: Vec<SavedCut>,
    /// By number. The last is the current one.
    pub(super) summaries: BTreeMap<u32, Arc<Summary>>,
    pub(super) state: Option<State>,
    pub(super) turns: BTreeMap<u64, Arc<[u8]>>,
    pub(super) rewound: SeqRanges,
    /// The turns each rewind removed, by idempotency key.
    pub(super) rewinds: BTreeMap<Fingerprint, SeqRanges>,
    pub(super) ended: Option<(Now, EndReason)>,
    /// Generations that its turns are a copy of.
    pub(super) sources: BTreeSet<Generation>,
    pub(super) former_subjects: BTreeSet<Subject>,
}

impl Row {
    fn begin(key: SessionKey, head: Head) -> Self {
        Self {
            key,
            head,
            kept: LiveSet::default(),
            cuts: Vec::new(),
            summaries: BTreeMap::new(),
            state: None,
            turns: BTreeMap::new(),
            rewound: SeqRanges::default(),
            rewinds: BTreeMap::new(),
            ended: None,
            sources: BTreeSet::new(),
            former_subjects: BTreeSet::new(),
        }
    }

    pub(super) fn summary(&self) -> Option<Arc<Summary>> {
        self.summaries
            .last_key_value()
            .map(|(_, summary)| Arc::clone(summary))
    }

    pub(super) fn as_ended(&self) -> Option<EndedGeneration> {
        let (at, reason) = self.ended?;
        Some(EndedGeneration {
            key: self.key.clone(),
            head: self.head.clone(),
            at,
            reason,
        })
    }

    /// Returns the rewound ranges that a loaded session needs.
    pub(super) fn known_rewound(&self) -> SeqRanges {
        let mut known = self.rewound.clone();
        known.bound_before(self.kept.floor, REWOUND_BEFORE_MAX);
        known
    }

    fn take_summary(&mut self, status: &Arc<CompactionStatus>, summary: &SummaryChange) {
        self.head.compaction = Some(summaries::kept_status(status));
        match summary {
            SummaryChange::Stays => {}
            SummaryChange::Made(made) => {
                // Numbers only grow. A leftover with a higher number must not be taken for a newer
                // summary.
                self.summaries.retain(|number, _| *number < made.number);
                self.summaries.insert(made.number, Arc::clone(made));
            }
            SummaryChange::Undone(number) => {
                self.summaries.remove(number);
            }
            SummaryChange::Rewound { after_seq } => {
                self.summaries
                    .retain(|_, summary| summary.through_seq <= *after_seq);
                let standing = self.summary();
                let status =
                    summaries::status_through(&summaries::kept_status(status), standing.as_deref());
                self.head.compaction = Some(status);
            }
        }
    }

    fn take_cuts(&mut self, cuts: Option<&[SavedCut]>) {
        if let Some(cuts) = cuts {
            self.cuts = windows::decode(&windows::encode(cuts)).unwrap_or_default();
        }
    }
}

impl Tables {
    /// Returns the live row that a change is based on.
    fn expected(&mut self, change: &Change) -> Result<&mut Row, StaleBase> {
        let generation = change.generation;
        let revision = change.expected_revision;
        let generation_row = self.generations.get_mut(&generation);
        let first = match &change.kind {
            ChangeKind::Append(appended) => appended.turns.first().map(|(seq, _)| *seq),
            _ => None,
        };
        let row = generation_row
            .filter(|row| row.ended.is_none() && row.head.revision == revision)
            .filter(|row| first.is_none_or(|seq| seq == row.head.last_seq + 1))
            .filter(|row| match &change.kind {
                ChangeKind::Rewind(rewound) => {
                    rewound.through_seq == row.head.last_seq
                        && rewound.after_seq <= row.head.last_seq
                }
                _ => true,
            })
            .ok_or(StaleBase { generation })?;
        row.head.revision += 1;
        Ok(row)
    }

    /// Applies a change, or rejects it without effect.
    pub(super) fn apply(&mut self, change: &Change) -> Result<(), StaleBase> {
        let generation = change.generation;
        match &change.kind {
            ChangeKind::Begin {
                key,
                created_at,
                last_access,
            } => {
                if self.live.contains_key(key) || self.generations.contains_key(&generation) {
                    return Err(StaleBase { generation });
                }
                let head = Head::begin(generation, *created_at, *last_access);
                let row = Row::begin(key.clone(), head);
                self.live.insert(key.clone(), generation);
                self.generations.insert(generation, row);
            }
            ChangeKind::Append(appended) => {
                let of_source = appended.copied_from.map(|source| {
                    let known = self.generations.get(&source);
                    let known = known.map(|row| row.sources.clone()).unwrap_or_default();
                    known.into_iter().chain([source])
                });
                let row = self.expected(change)?;
                row.sources.extend(of_source.into_iter().flatten());
                row.former_subjects.extend(appended.former_subject.clone());
                row.turns.extend(appended.turns.iter().cloned());
                row.kept = appended.kept.clone();
                row.take_cuts(appended.cuts.as_deref());
                row.head.last_seq = appended
                    .turns
                    .last()
                    .map_or(row.head.last_seq, |(seq, _)| *seq);
                row.head.newest_seq = row.head.last_seq;
                row.head.totals = appended.totals;
                row.head.partial = appended.partial;
                row.head.last_access = appended.last_access;
                row.head.subject = appended.subject.clone().or(row.head.subject.take());
                let numbers = self.last_number + 1..;
                let places = appended
                    .turns
                    .iter()
                    .map(|(seq, _)| (change.generation, *seq));
                self.written.extend(numbers.zip(places));
                self.last_number += appended.turns.len() as u64;
                self.take_key(&appended.key, appended.idempotency);
            }
            ChangeKind::Rewind(rewound) => {
                let row = self.expected(change)?;
                row.rewound
                    .add_last(rewound.after_seq + 1, rewound.through_seq);
                row.take_cuts(rewound.cuts.as_deref());
                row.kept.clone_from(&rewound.kept);
                row.rewinds.extend(rewound.taken.clone());
                row.head.newest_seq = rewound.newest_seq;
                row.head.totals = rewound.totals;
                row.head.partial = rewound.partial;
                row.head.last_access = rewound.last_access;
                self.take_key(&rewound.key, rewound.idempotency);
            }
            ChangeKind::UpdateTurn(updated) => {
                let row = self.expected(change)?;
                if let Some(content) = row.turns.get_mut(&updated.seq) {
                    content.clone_from(&updated.content);
                }
                row.take_cuts(updated.cuts.as_deref());
                row.kept.clone_from(&updated.kept);
                row.head.totals = updated.totals;
                let key = row.key.clone();
                self.take_key(&key, updated.idempotency);
            }
            ChangeKind::PatchState(patched) => {
                let row = self.expected(change)?;
                row.state = Some(State {
                    json: Arc::clone(&patched.state_json),
                    version: patched.version,
                });
                row.head.state_version = patched.version;
                row.head.last_access = patched.last_access;
                self.take_key(&patched.key, patched.idempotency);
            }
            ChangeKind::SetOptions(options) => {
                self.expected(change)?.head.options = Some(Arc::clone(options));
            }
            ChangeKind::Touch { last_access, cuts } => {
                let row = self.expected(change)?;
                row.head.last_access = *last_access;
                row.take_cuts(cuts.as_deref());
            }
            ChangeKind::Compact {
                status,
                summary,
                cuts,
            } => {
                let row = self.expected(change)?;
                row.take_summary(status, summary);
                row.take_cuts(cuts.as_deref());
            }
            ChangeKind::End {
                reason,
                at,
                owed,
                idempotency,
            } => {
                let row = self.expected(change)?;
                row.ended = Some((*at, *reason));
                let key = row.key.clone();
                self.live.remove(&key);
                for hook in owed.iter() {
                    let delivery = outbox::owed(generation, hook, &key, *reason, at.steady);
                    self.outbox.add(delivery);
                }
                self.take_key(&key, idempotency.as_deref().copied());
            }
        }
        Ok(())
    }

    /// Assigns a new unique version to a changed generation.
    pub(super) fn count_version(&mut self, generation: Generation) {
        let row = self.generations.get(&generation);
        if row.is_some_and(|row| row.ended.is_none()) {
            self.last_version += 1;
            self.versions.insert(generation, self.last_version);
        } else {
            self.versions.remove(&generation);
        }
    }

    /// Deletes the generations that ended before this time and have no open delivery.
    pub(super) fn forget(&mut self, before: Steady) {
        let Self {
            generations,
            outbox,
            written,
            ..
        } = self;
        generations.retain(|generation, row| {
            let is_old = row.ended.is_some_and(|(at, _)| at.steady < before);
            let stays = !is_old || outbox.owes(*generation);
            if !stays {
                outbox.remove_all_of(*generation).for_each(drop);
            }
            stays
        });
        written.retain(|_, (generation, _)| generations.contains_key(generation));
    }

    /// Returns the turn with this number. `None` if it was pruned or rewound.
    pub(super) fn written_turn(&self, number: u64) -> Option<WrittenTurn> {
        let (generation, seq) = *self.written.get(&number)?;
        let row = self.generations.get(&generation)?;
        let content = row.turns.get(&seq).filter(|_| !row.rewound.contains(seq))?;
        Some(WrittenTurn {
            number,
            generation,
            seq,
            content: Arc::clone(content),
        })
    }

    /// Stores the record of an idempotency key, if there is one.
    /// A generation that a set starts with a key that was used less than a minute before.
    pub(super) fn starts_with_used_key(&self, set: &ChangeSet) -> Option<Generation> {
        let starts = |name: Generation| {
            let mut changes = set.changes.iter();
            changes.any(|it| it.generation == name && matches!(it.kind, ChangeKind::Begin { .. }))
        };
        set.changes.iter().find_map(|change| {
            let ChangeKind::Append(appended) = &change.kind else {
                return None;
            };
            let (name, record) = appended.idempotency?;
            let known = self.keys.get(&appended.key)?.get(&name)?;
            let is_recent = known.at.0 + USED_WITHIN_MS > record.at.0;
            (is_recent && starts(change.generation)).then_some(change.generation)
        })
    }

    fn take_key(&mut self, session: &SessionKey, idempotency: Option<(Fingerprint, KeyRecord)>) {
        if let Some((name, record)) = idempotency {
            let keys = self.keys.entry(session.clone()).or_default();
            keys.insert(name, record);
        }
    }

    fn with_rewound(&self, record: KeyRecord) -> KeyRecord {
        let row = self.generations.get(&record.generation);
        let rewound = row.map(|row| &row.rewound);
        KeyRecord {
            rewound: rewound.is_some_and(|it| it.overlaps(record.first_seq, record.last_seq)),
            ..record
        }
    }

    pub(super) fn keys_of(&self, key: &SessionKey, since: Steady) -> Keys {
        let known = self.keys.get(key).into_iter().flatten();
        let mut records: Vec<(Fingerprint, KeyRecord)> = known
            .filter(|(_, record)| record.at >= since)
            .map(|(name, record)| (*name, self.with_rewound(*record)))
            .collect();
        records
            .sort_by_key(|(name, record)| (record.at, record.generation, record.last_seq, *name));
        let surplus = records.len().saturating_sub(KEYS_MAX);
        Keys::restore(records.into_iter().skip(surplus))
    }
}
