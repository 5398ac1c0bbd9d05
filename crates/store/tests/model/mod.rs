//! A journal in memory: the reference model of the conformance suite and of simulations.
//!
//! It applies every change by itself, and shares no code with the planner and the statements of the
//! stores that are compared with it. Also used by the tests of the engine.

#![allow(dead_code, reason = "not all that include this module need all of it")]

mod erase;
mod outbox;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memoird_core::change::ChangeSet;
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{DeliveryId, ErasureId, Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::Delivery;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;

use tables::{Row, Tables};

use memoird_store::{
    CleanupPending, ClockAnchor, DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries,
    EndedGeneration, EndedPage, EndedQuery, EndedRecord, ErasedRows, Erasure, ErasureScope,
    ErasureStage, EventExchange, ExchangedEvents, GenerationOwner, JournalPage, JournalRange,
    PruneBefore, PruneBounds, PruningPending, SessionOrder, StaleBase, Store, StoreError,
    WrittenTurn, WrittenTurns, encoding, windows,
};

/// A journal in memory. It stores and rejects the same as [`memoird_store::SqliteStore`].
#[derive(Debug, Default)]
pub(crate) struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    /// State of this handle. `None` unless several handles share the journal.
    known: Option<Mutex<ProcessView>>,
}

/// State of one of several simulated processes that share the journal.
#[derive(Debug, Default)]
struct ProcessView {
    process: u128,
    /// Versions of the generations it loaded or wrote.
    versions: BTreeMap<Generation, u64>,
    /// Number of posted events it has read.
    events: usize,
}

/// Maximum number of erasures retained.
const ERASURES_MAX: usize = 10_000;

impl MemoryStore {
    /// Returns a handle for one of several processes that share the journal.
    #[must_use]
    pub(crate) fn shared(&self, process: u128) -> Self {
        Self {
            tables: Arc::clone(&self.tables),
            known: Some(Mutex::new(ProcessView {
                process,
                ..ProcessView::default()
            })),
        }
    }

    /// Records the current versions of these generations as seen by this handle.
    fn note_versions(&self, tables: &Tables, generations: impl Iterator<Item = Generation>) {
        let Some(known) = &self.known else {
            return;
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        for generation in generations {
            match tables.versions.get(&generation) {
                Some(version) => known.versions.insert(generation, *version),
                None => known.versions.remove(&generation),
            };
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError> {
        let mut tables = self.tables();
        tables.clock = Some(clock.clone());
        let mut refused = BTreeSet::new();
        let answers = sets.iter().map(|set| {
            let names = || set.changes.iter().map(|change| change.generation);
            // A set that builds on a rejected one must not match a revision of another process.
            if self.known.is_some()
                && let Some(generation) = names().find(|name| refused.contains(name))
            {
                return Err(StaleBase { generation });
            }
            // Otherwise one process could not know of a key that another one used while it decided.
            if self.known.is_some()
                && let Some(generation) = tables.starts_with_used_key(set)
            {
                refused.insert(generation);
                return Err(StaleBase { generation });
            }
            // Only a set of several changes can fail halfway and need a rollback.
            let before = (set.changes.len() > 1).then(|| tables.clone());
            let outcome = set
                .changes
                .iter()
                .try_for_each(|change| tables.apply(change));
            if let (Err(_), Some(before)) = (outcome, before) {
                *tables = before;
            }
            if outcome.is_ok() {
                names().for_each(|generation| tables.count_version(generation));
                self.note_versions(&tables, names());
            } else {
                refused.extend(names());
            }
            outcome
        });
        Ok(answers.collect())
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        Ok(self.tables().clock.clone())
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        let tables = self.tables();
        let head = |generation| tables.generations[generation].head.clone();
        let heads: Vec<_> = tables
            .live
            .iter()
            .map(|(key, generation)| (key.clone(), head(generation)))
            .collect();
        // The visitor may call the store.
        drop(tables);
        heads.into_iter().for_each(|(key, head)| visit(key, head));
        Ok(())
    }

    fn ended_page(&self, query: &EndedQuery) -> Result<EndedPage, StoreError> {
        let tables = self.tables();
        let mut found: Vec<EndedGeneration> = tables
            .generations
            .values()
            .filter_map(Row::as_ended)
            .filter(|it| it.key.tenant == query.tenant)
            .filter(|it| it.key.session.as_str().starts_with(&*query.id_prefix))
            .filter(|it| query.subject.is_none() || it.head.subject == query.subject)
            .filter(|it| it.at.steady >= query.from && it.at.steady <= query.until)
            .filter(|it| {
                let mut labels = query.labels.iter();
                labels.all(|(name, value)| it.head.label(name) == Some(value))
            })
            .collect();
        found.sort_by_key(|it| (it.at.steady, it.head.generation));
        match query.order {
            SessionOrder::Oldest => {}
            SessionOrder::Newest => found.reverse(),
            SessionOrder::Id => found.sort_by_key(|it| it.key.session.clone()),
        }
        if let Some(after) = &query.after {
            let end = (after.at, after.generation);
            found.retain(|it| {
                let own_end = (it.at.steady, it.head.generation);
                match query.order {
                    SessionOrder::Oldest => own_end > end,
                    SessionOrder::Newest => own_end < end,
                    SessionOrder::Id => (&it.key.session, own_end) > (&after.session, end),
                }
            });
        }
        let has_more = found.len() > query.max;
        found.truncate(query.max);
        let last = found.last().filter(|_| has_more);
        Ok(EndedPage {
            next: last.map(EndedGeneration::position),
            generations: found,
        })
    }

    fn states(
        &self,
        generations: &[Generation],
    ) -> Result<BTreeMap<Generation, Arc<str>>, StoreError> {
        let tables = self.tables();
        let state = |name: &Generation| {
            let state = tables.generations.get(name)?.state.as_ref()?;
            Some((*name, Arc::clone(&state.json)))
        };
        Ok(generations.iter().filter_map(state).collect())
    }

    fn exchange_events(&self, exchange: EventExchange) -> Result<ExchangedEvents, StoreError> {
        let mut tables = self.tables();
        let Some(known) = &self.known else {
            return Ok(ExchangedEvents::default());
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let own = known.process;
        let posted = exchange.posted.into_iter().map(|event| (own, event));
        tables.posted.extend(posted);
        let mut answer = ExchangedEvents::default();
        if !exchange.watched.is_empty() {
            let looked_at = std::mem::replace(&mut known.events, tables.posted.len());
            let new = tables.posted[looked_at..].iter();
            let of_others = new.filter(|(process, _)| *process != own);
            answer.received.extend(of_others.cloned());
        }
        tables.watched.insert(own, exchange.watched);
        for (process, watched) in &tables.watched {
            if *process != own {
                answer.watched.join(watched.clone());
            }
        }
        Ok(answer)
    }

    fn current_revisions(
        &self,
        generations: &[Generation],
    ) -> Result<Vec<Option<u64>>, StoreError> {
        let tables = self.tables();
        let Some(known) = &self.known else {
            return Ok(vec![Some(0); generations.len()]);
        };
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = |name: &Generation| {
            let row = tables.generations.get(name)?;
            let is_known = known.versions.get(name) == tables.versions.get(name);
            (row.ended.is_none() && is_known).then_some(row.head.revision)
        };
        Ok(generations.iter().map(revision).collect())
    }

    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError> {
        let tables = self.tables();
        let Some(generation) = tables.live.get(key) else {
            return Ok(None);
        };
        self.note_versions(&tables, std::iter::once(*generation));
        let row = &tables.generations[generation];
        let is_kept = |seq: u64| {
            let has_left = row.kept.holes.contains(&seq) || row.rewound.contains(seq);
            let in_tail = seq >= row.kept.floor && !has_left;
            let kept = &row.kept;
            in_tail
                || kept.anchor == Some(seq)
                || kept.pinned.contains(&seq)
                || kept.preamble.contains(&seq)
        };
        let kept = row.turns.iter().filter(|(seq, _)| is_kept(**seq));
        let turns = kept.map(|(&seq, content)| {
            let damaged = || StoreError::TurnDamaged {
                generation: generation.to_string(),
                seq,
            };
            encoding::decode_saved(seq, Arc::clone(content)).ok_or_else(damaged)
        });
        let summary = row.summary();
        let earlier = windows::earlier_summaries(&row.cuts, summary.as_deref())
            .filter_map(|number| row.summaries.get(&number).cloned());
        Ok(Some(SavedSession {
            earlier: earlier.collect(),
            summary,
            head: row.head.clone(),
            kept: row.kept.clone(),
            cuts: row.cuts.clone(),
            rewound: row.known_rewound(),
            turns: turns.collect::<Result<_, _>>()?,
            state: row.state.clone(),
            keys: tables.keys_of(key, keys_since),
        }))
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        Ok(self.tables().keys_of(key, since))
    }

    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError> {
        let tables = self.tables();
        let keyed = tables
            .keys
            .keys()
            .filter(|key| after.is_none_or(|after| *key > after));
        Ok(keyed.take(max).cloned().collect())
    }

    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        let tables = self.tables();
        let newest = || {
            let of_session = tables.generations.iter().filter(|(_, row)| row.key == *key);
            let ended_at = |row: &Row| row.ended.map(|(at, _)| at.steady);
            let last = of_session.max_by_key(|(name, row)| (ended_at(row), **name));
            tables
                .live
                .get(key)
                .copied()
                .or(last.map(|(name, _)| *name))
        };
        let generation = generation.or_else(newest);
        let row = generation.and_then(|name| tables.generations.get(&name));
        let Some(row) = row.filter(|row| row.key == *key) else {
            return Ok(None);
        };
        let subject = row.head.subject.clone();
        let page = JournalPage {
            generation,
            subject,
            ..JournalPage::default()
        };
        let (mut page, mut bytes) = (page, 0);
        let first = range.after_seq.saturating_add(1);
        let mut turns = row.turns.range(first..range.before_seq.max(first));
        let mut next = || {
            if range.last {
                turns.next_back()
            } else {
                turns.next()
            }
        };
        while let Some((seq, content)) = next() {
            let is_rewound = row.rewound.contains(*seq);
            if is_rewound && !range.with_rewound {
                continue;
            }
            if page.turns.len() >= range.turns_max || bytes >= range.bytes_max {
                page.more = true;
                break;
            }
            bytes += content.len();
            page.rewound.extend(is_rewound.then_some(*seq));
            page.turns.push((*seq, Arc::clone(content)));
        }
        if range.last {
            page.turns.reverse();
            page.rewound.reverse();
        }
        Ok(Some(page))
    }

    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError> {
        let tables = self.tables();
        let row = tables.generations.get(&generation);
        let taken = row.and_then(|row| row.rewinds.get(key)).cloned();
        Ok(taken.unwrap_or_default())
    }

    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError> {
        let tables = self.tables();
        let later = tables.written.range(number.saturating_add(1)..);
        let (mut turns, mut bytes) = (Vec::new(), 0);
        for turn in later.filter_map(|(number, _)| tables.written_turn(*number)) {
            if turns.len() >= turns_max.max(1) || bytes >= bytes_max.max(1) {
                break;
            }
            bytes += turn.content.len();
            turns.push(turn);
        }
        Ok(WrittenTurns {
            turns,
            last_number: tables.last_number,
        })
    }

    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        let tables = self.tables();
        let turns = numbers
            .iter()
            .filter_map(|number| tables.written_turn(*number));
        Ok(turns.collect())
    }

    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        let tables = self.tables();
        let rows = generations
            .iter()
            .filter_map(|name| tables.generations.get(name));
        let owner = |row: &Row| GenerationOwner {
            generation: row.head.generation,
            key: row.key.clone(),
            subject: row.head.subject.clone(),
        };
        Ok(rows.map(owner).collect())
    }

    fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        Ok(self.tables().outbox.list(filter, after, max))
    }

    fn delivery(&self, id: &DeliveryId) -> Result<Option<Delivery>, StoreError> {
        Ok(self.tables().outbox.get(id).cloned())
    }

    fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> Result<DueDeliveries, StoreError> {
        Ok(self.tables().outbox.due(hook, after, now, max))
    }

    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError> {
        Ok(self.tables().outbox.counts())
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        let mut bytes = BTreeMap::<TenantId, u64>::new();
        for row in self.tables().generations.values() {
            let turns = row.turns.values().map(|content| content.len() as u64);
            *bytes.entry(row.key.tenant.clone()).or_default() += turns.sum::<u64>();
        }
        Ok(bytes.into_iter().filter(|(_, bytes)| *bytes > 0).collect())
    }

    fn record_outcomes(&self, outcomes: &[DeliveryOutcome]) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let lost = tables.outbox.record_outcomes(outcomes);
        lost.iter().for_each(|id| tables.note_delivered(id));
        Ok(())
    }

    fn drop_delivery(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        Ok(self.tables().outbox.remove(id))
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        let tables = self.tables();
        let (mut records, mut bytes) = (Vec::new(), 0);
        for (_, generation) in wanted {
            if bytes >= bytes_max && !records.is_empty() {
                break;
            }
            let row = tables.generations.get(generation);
            let Some((row, (at, reason))) = row.and_then(|row| Some((row, row.ended?))) else {
                continue;
            };
            let (key, head, state) = (row.key.clone(), row.head.clone(), row.state.clone());
            let turns = newest(row, bytes_max);
            bytes += turns
                .iter()
                .map(|(_, content)| content.len())
                .sum::<usize>();
            let summary = row.summary();
            records.push(EndedRecord {
                key,
                head,
                at,
                reason,
                turns,
                rewound_turns: row.rewound.count(),
                state,
                summary,
            });
        }
        Ok(records)
    }

    fn prune(&self, before: PruneBefore, _: PruneBounds) -> Result<PruningPending, StoreError> {
        let mut tables = self.tables();
        tables.forget(before.ended);
        for keys in tables.keys.values_mut() {
            keys.retain(|_, record| record.at >= before.keys);
        }
        tables.keys.retain(|_, keys| !keys.is_empty());
        Ok(PruningPending::default())
    }

    fn save_erasure(&self, erasure: &Erasure) -> Result<(), StoreError> {
        let mut tables = self.tables();
        let kept = tables.erasures.entry(erasure.id);
        let (known, _) = kept.or_insert_with(|| (erasure.clone(), ErasureScope::default()));
        known.stage = erasure.stage;
        known.counts = erasure.counts;
        known.outside.clone_from(&erasure.outside);
        while tables.erasures.len() > ERASURES_MAX
            && let Some(oldest) = tables.erasures.first_entry()
            && oldest.get().0.stage == ErasureStage::Done
        {
            oldest.remove();
        }
        Ok(())
    }

    fn erasure(&self, id: ErasureId) -> Result<Option<Erasure>, StoreError> {
        let tables = self.tables();
        Ok(tables.erasures.get(&id).map(|(erasure, _)| erasure.clone()))
    }

    fn open_erasures(&self, max: usize) -> Result<Vec<Erasure>, StoreError> {
        let tables = self.tables();
        let known = tables.erasures.values().map(|(erasure, _)| erasure);
        let open = known.filter(|erasure| erasure.stage < ErasureStage::Done);
        Ok(open.take(max).cloned().collect())
    }

    fn collect_erased(&self, id: ErasureId, _: usize) -> Result<bool, StoreError> {
        self.tables().collect_erased(id);
        Ok(true)
    }

    fn erasure_scope(&self, id: ErasureId) -> Result<ErasureScope, StoreError> {
        Ok(self.tables().erasure_scope(id))
    }

    fn erase_rows(&self, id: ErasureId, _: usize) -> Result<ErasedRows, StoreError> {
        Ok(self.tables().erase_rows(id))
    }

    fn forget_erasure_names(&self, id: ErasureId, _: usize) -> Result<bool, StoreError> {
        if let Some((erasure, scope)) = self.tables().erasures.get_mut(&id) {
            erasure.target = None;
            *scope = ErasureScope::default();
        }
        Ok(true)
    }

    fn clean_pages(&self, _: usize) -> Result<CleanupPending, StoreError> {
        Ok(CleanupPending::default())
    }
}

/// Returns the newest turns that fit into `bytes_max`, ascending, and at least one.
fn newest(row: &Row, bytes_max: usize) -> Vec<(u64, Arc<[u8]>)> {
    let (mut newest, mut bytes) = (Vec::new(), 0);
    let turns = row.turns.iter().rev();
    for (seq, content) in turns.filter(|(seq, _)| !row.rewound.contains(**seq)) {
        bytes += content.len();
        if bytes > bytes_max && !newest.is_empty() {
            break;
        }
        newest.push((*seq, Arc::clone(content)));
    }
    newest.reverse();
    newest
}
