//! Erasures in the in-memory journal. Each step completes in one call.

use std::collections::BTreeSet;

use memoird_core::ids::{ErasureId, Generation, SessionKey, Subject};
use memoird_core::outbox::DeliveryState;

use super::tables::{Row, Tables};
use memoird_store::{EraseTarget, ErasedRows, Erasure, ErasureScope};

impl Tables {
    pub(super) fn collect_erased(&mut self, id: ErasureId) {
        let Some((erasure, scope)) = self.erasures.get_mut(&id) else {
            return;
        };
        let covered = self
            .generations
            .iter()
            .filter(|(name, row)| covers(erasure, &row.key, **name, row.head.subject.as_ref()));
        scope.generations = covered
            .map(|(name, row)| (*name, row.key.session.clone()))
            .collect();
    }

    pub(super) fn erase_rows(&mut self, id: ErasureId) -> ErasedRows {
        let Some((erasure, scope)) = self.erasures.get_mut(&id) else {
            return ErasedRows::AllGone;
        };
        let lives = |name: &Generation| {
            let row = self.generations.get(name);
            row.is_some_and(|row| row.ended.is_none())
        };
        if scope.generations.iter().any(|(name, _)| lives(name)) {
            return ErasedRows::Live;
        }
        for (name, _) in &scope.generations {
            for delivery in self.outbox.remove_all_of(*name) {
                let is_done = delivery.state == DeliveryState::Done;
                if is_done || delivery.tries > 0 {
                    scope.delivered.push((*name, delivery.id.hook));
                }
                erasure.counts.deliveries += u64::from(!is_done);
            }
            if let Some(row) = self.generations.remove(name) {
                erasure.counts.turns += row.turns.len() as u64;
                erasure.counts.summaries += row.summaries.len() as u64;
            }
            self.written.retain(|_, (of, _)| of != name);
        }
        let is_whole = erasure.whole_session();
        let erased = |name: &Generation| scope.generations.iter().any(|(of, _)| of == name);
        for (key, keys) in &mut self.keys {
            if key.tenant != erasure.tenant {
                continue;
            }
            let before = keys.len();
            keys.retain(|_, record| {
                let is_orphan = is_whole.as_ref() == Some(key)
                    && !self.generations.contains_key(&record.generation);
                !erased(&record.generation) && !is_orphan
            });
            erasure.counts.keys += (before - keys.len()) as u64;
        }
        self.keys.retain(|_, keys| !keys.is_empty());
        ErasedRows::AllGone
    }

    pub(super) fn erasure_scope(&self, id: ErasureId) -> ErasureScope {
        let Some((erasure, scope)) = self.erasures.get(&id) else {
            return ErasureScope::default();
        };
        let erased: BTreeSet<Generation> =
            scope.generations.iter().map(|(name, _)| *name).collect();
        let others = |is_named: &dyn Fn(&Row) -> bool| {
            let named = self.generations.iter().filter(|(name, row)| {
                row.key.tenant == erasure.tenant && !erased.contains(name) && is_named(row)
            });
            named.map(|(name, _)| *name).collect()
        };
        let formerly_owned = |row: &Row| match &erasure.target {
            Some(EraseTarget::Subject(subject)) => row.former_subjects.contains(subject),
            _ => false,
        };
        ErasureScope {
            copies: others(&|row| !row.sources.is_disjoint(&erased)),
            formerly_owned: others(&formerly_owned),
            ..scope.clone()
        }
    }

    /// Records that a hook received a generation whose delivery had been cancelled.
    pub(super) fn note_delivered(&mut self, id: &memoird_core::ids::DeliveryId) {
        for (_, scope) in self.erasures.values_mut() {
            let covers = scope.generations.iter().any(|(of, _)| *of == id.generation);
            let delivered = (id.generation, id.hook.clone());
            if covers && !scope.delivered.contains(&delivered) {
                scope.delivered.push(delivered);
            }
        }
    }
}

pub(super) type ErasureAndScope = (Erasure, ErasureScope);

fn covers(erasure: &Erasure, key: &SessionKey, name: Generation, owner: Option<&Subject>) -> bool {
    key.tenant == erasure.tenant
        && match &erasure.target {
            Some(EraseTarget::Session {
                session,
                generation,
            }) => key.session == *session && generation.is_none_or(|wanted| wanted == name),
            Some(EraseTarget::Subject(subject)) => owner == Some(subject),
            None => false,
        }
}
