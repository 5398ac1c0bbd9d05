//! The outbox of the in-memory journal.
//!
//! Pending deliveries are indexed by hook, tenant and due time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;

use memoird_store::{DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries};

/// Due times of pending deliveries, by hook and tenant.
type Pending = BTreeMap<HookName, BTreeMap<TenantId, BTreeSet<(Steady, Generation)>>>;

/// Deliveries of all generations.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    deliveries: BTreeMap<Generation, BTreeMap<HookName, Delivery>>,
    /// Index of the pending ones.
    pending: Pending,
}

pub(super) fn owed(
    generation: Generation,
    hook: &HookName,
    key: &SessionKey,
    reason: EndReason,
    due: Steady,
) -> Delivery {
    Delivery {
        id: DeliveryId {
            generation,
            hook: hook.clone(),
        },
        key: key.clone(),
        reason,
        state: DeliveryState::Pending,
        tries: 0,
        last_error: String::new(),
        due,
    }
}

impl Outbox {
    /// Adds a delivery unless it exists.
    pub(super) fn add(&mut self, delivery: Delivery) {
        let DeliveryId { generation, hook } = delivery.id.clone();
        let of_generation = self.deliveries.entry(generation).or_default();
        if of_generation.contains_key(&hook) {
            return;
        }
        if delivery.state == DeliveryState::Pending {
            note_pending(&mut self.pending, &delivery);
        }
        of_generation.insert(hook, delivery);
    }

    pub(super) fn get(&self, id: &DeliveryId) -> Option<&Delivery> {
        self.deliveries.get(&id.generation)?.get(&id.hook)
    }

    /// Drops a delivery. Returns false if there is none.
    pub(super) fn remove(&mut self, id: &DeliveryId) -> bool {
        let of_generation = self.deliveries.get_mut(&id.generation);
        let removed = of_generation.and_then(|of| of.remove(&id.hook));
        if let Some(removed) = &removed {
            forget_pending(&mut self.pending, removed);
        }
        removed.is_some()
    }

    /// Removes and returns the deliveries of a generation.
    pub(super) fn remove_all_of(
        &mut self,
        generation: Generation,
    ) -> impl Iterator<Item = Delivery> + use<> {
        let removed = self.deliveries.remove(&generation).unwrap_or_default();
        for delivery in removed.values() {
            forget_pending(&mut self.pending, delivery);
        }
        removed.into_values()
    }

    /// Whether a delivery still needs the content of a generation.
    pub(super) fn owes(&self, generation: Generation) -> bool {
        self.deliveries.get(&generation).is_some_and(is_owed)
    }

    pub(super) fn list(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Vec<Delivery> {
        let passes = |delivery: &&Delivery| {
            let key = &delivery.key;
            after.is_none_or(|after| delivery.id > *after)
                && filter.tenant.as_ref().is_none_or(|it| *it == key.tenant)
                && filter
                    .hook
                    .as_ref()
                    .is_none_or(|it| *it == delivery.id.hook)
                && filter.state.is_none_or(|state| state == delivery.state)
        };
        let first = after.map_or(Generation::new(0, 0), |after| after.generation);
        let behind = self
            .deliveries
            .range(first..)
            .flat_map(|(_, of_generation)| of_generation.values());
        behind.filter(passes).take(max).cloned().collect()
    }

    /// Returns due deliveries, round robin over tenants, starting with those after `after`.
    pub(super) fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> DueDeliveries {
        let mut found = DueDeliveries::default();
        let Some(tenants) = self.pending.get(hook) else {
            return found;
        };
        let last_due = (now, Generation::from_bytes([u8::MAX; 16]));
        let later = tenants
            .values()
            .filter_map(|of_tenant| of_tenant.range((Excluded(last_due), Unbounded)).next());
        found.next = later.map(|(due, _)| *due).min();
        let is_behind = |tenant: &TenantId| after.is_some_and(|after| tenant <= after);
        let (behind, first): (Vec<_>, Vec<_>) =
            tenants.iter().partition(|(tenant, _)| is_behind(tenant));
        let mut in_turn: Vec<_> = first
            .into_iter()
            .chain(behind)
            .map(|(_, of)| of.range(..=last_due))
            .collect();
        while found.due.len() < max && !in_turn.is_empty() {
            in_turn.retain_mut(|of_tenant| {
                if found.due.len() == max {
                    return false;
                }
                let next = of_tenant.next();
                let delivery = next.and_then(|(_, name)| self.deliveries.get(name)?.get(hook));
                found.due.extend(delivery.cloned());
                next.is_some()
            });
        }
        found
    }

    pub(super) fn counts(&self) -> Vec<DeliveryCount> {
        let mut counts = BTreeMap::new();
        let all = self.deliveries.values().flat_map(BTreeMap::values);
        for delivery in all.filter(|delivery| delivery.state != DeliveryState::Done) {
            let is_dead = delivery.state == DeliveryState::Dead;
            let of = (
                delivery.key.tenant.clone(),
                delivery.id.hook.clone(),
                is_dead,
            );
            *counts.entry(of).or_insert(0) += 1;
        }
        let counted = counts.into_iter().map(|((tenant, hook, is_dead), count)| {
            let state = if is_dead {
                DeliveryState::Dead
            } else {
                DeliveryState::Pending
            };
            DeliveryCount {
                tenant,
                hook,
                state,
                count,
            }
        });
        counted.collect()
    }

    /// Records outcomes, and returns the ids of deliveries that no longer exist.
    pub(super) fn record_outcomes(&mut self, outcomes: &[DeliveryOutcome]) -> Vec<DeliveryId> {
        let mut lost = Vec::new();
        for outcome in outcomes {
            let DeliveryId { generation, hook } = &outcome.id;
            let of_generation = self.deliveries.get_mut(generation);
            let Some(delivery) = of_generation.and_then(|of| of.get_mut(hook)) else {
                lost.push(outcome.id.clone());
                continue;
            };
            if !outcome.changes(delivery.state) {
                continue;
            }
            forget_pending(&mut self.pending, delivery);
            delivery.state = outcome.state;
            delivery.tries = outcome.tries;
            delivery.last_error.clone_from(&outcome.last_error);
            delivery.due = outcome.due;
            if delivery.state == DeliveryState::Pending {
                note_pending(&mut self.pending, delivery);
            }
        }
        lost
    }
}

fn is_owed(of_generation: &BTreeMap<HookName, Delivery>) -> bool {
    let mut deliveries = of_generation.values();
    deliveries.any(|delivery| delivery.state != DeliveryState::Done)
}

fn note_pending(pending: &mut Pending, delivery: &Delivery) {
    let of_hook = pending.entry(delivery.id.hook.clone()).or_default();
    let of_tenant = of_hook.entry(delivery.key.tenant.clone()).or_default();
    of_tenant.insert((delivery.due, delivery.id.generation));
}

/// A no-op for a delivery that is not pending.
fn forget_pending(pending: &mut Pending, delivery: &Delivery) {
    let Some(of_hook) = pending.get_mut(&delivery.id.hook) else {
        return;
    };
    let tenant = &delivery.key.tenant;
    if let Some(of_tenant) = of_hook.get_mut(tenant) {
        of_tenant.remove(&(delivery.due, delivery.id.generation));
        if of_tenant.is_empty() {
            of_hook.remove(tenant);
        }
    }
    if of_hook.is_empty() {
        pending.remove(&delivery.id.hook);
    }
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::SessionId;

    use super::*;

    const TENANTS: [&str; 3] = ["a", "b", "c"];
    const HOOKS: [&str; 2] = ["one", "other"];

    /// Reference implementation of `due` that scans all deliveries.
    fn due_of_all(
        outbox: &Outbox,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> (Vec<DeliveryId>, Option<Steady>) {
        let filter = DeliveryFilter {
            hook: Some(hook.clone()),
            state: Some(DeliveryState::Pending),
            ..DeliveryFilter::default()
        };
        let mut pending = outbox.list(&filter, None, usize::MAX);
        pending.sort_by_key(|delivery| (delivery.due, delivery.id.clone()));
        let next = pending
            .iter()
            .map(|delivery| delivery.due)
            .filter(|due| *due > now)
            .min();
        pending.retain(|delivery| delivery.due <= now);
        let mut earlier = BTreeMap::<TenantId, usize>::new();
        pending.sort_by_cached_key(|delivery| {
            let tenant = &delivery.key.tenant;
            let place = earlier.entry(tenant.clone()).or_default();
            *place += 1;
            let is_behind = after.is_some_and(|after| tenant <= after);
            (*place, is_behind, tenant.clone())
        });
        let ids = pending.into_iter().map(|delivery| delivery.id);
        (ids.take(max).collect(), next)
    }

    /// A deterministic pseudorandom number generator.
    fn numbers() -> impl FnMut(u8) -> u8 {
        let mut state = 1_u64;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state.to_be_bytes()[0] % below
        }
    }

    #[test]
    fn indexed_due_deliveries_match_full_scan() {
        let hooks = HOOKS.map(|hook| HookName::parse(hook).unwrap());
        let tenants = TENANTS.map(|tenant| TenantId::parse(tenant).unwrap());
        let mut outbox = Outbox::default();
        let mut number = numbers();
        for round in 0..4_000 {
            let generation = Generation::new(0, u128::from(number(40)));
            let hook = &hooks[usize::from(number(2))];
            let id = DeliveryId {
                generation,
                hook: hook.clone(),
            };
            match number(6) {
                0..3 => {
                    let key = SessionKey {
                        tenant: tenants[usize::from(number(3))].clone(),
                        session: SessionId::parse("chat").unwrap(),
                    };
                    let due = Steady(u64::from(number(20)));
                    outbox.add(owed(generation, hook, &key, EndReason::Ended, due));
                }
                3 => _ = outbox.remove(&id),
                4 => outbox.remove_all_of(generation).for_each(drop),
                _ => {
                    use DeliveryState::{Dead, Done, Pending};
                    let outcome = DeliveryOutcome {
                        id,
                        state: [Pending, Done, Dead][usize::from(number(3))],
                        tries: 0,
                        last_error: String::new(),
                        due: Steady(u64::from(number(20))),
                    };
                    outbox.record_outcomes(&[outcome]);
                }
            }
            let (now, max) = (Steady(u64::from(number(22))), usize::from(number(9)));
            let after = tenants.get(usize::from(number(4)));
            let found = outbox.due(hook, after, now, max);
            let ids: Vec<_> = found.due.into_iter().map(|delivery| delivery.id).collect();
            let expected = due_of_all(&outbox, hook, after, now, max);
            assert_eq!((ids, found.next), expected, "in round {round}");
        }
        let is_indexed = outbox.pending.values().flat_map(BTreeMap::values);
        let all = outbox.deliveries.values().flat_map(BTreeMap::values);
        let pending = all.filter(|delivery| delivery.state == DeliveryState::Pending);
        assert_eq!(
            is_indexed.map(BTreeSet::len).sum::<usize>(),
            pending.count()
        );
    }
}
