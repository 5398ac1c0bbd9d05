//! What hooks are owed, as a map: the questions that the journal answers by its indexes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;

use crate::{DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries};

type Outbox = BTreeMap<DeliveryId, Delivery>;

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

/// The generations whose content a delivery still needs.
pub(super) fn owing(outbox: &Outbox) -> BTreeSet<Generation> {
    let open = outbox
        .values()
        .filter(|delivery| delivery.state != DeliveryState::Done);
    open.map(|delivery| delivery.id.generation).collect()
}

pub(super) fn list(
    outbox: &Outbox,
    filter: &DeliveryFilter,
    after: Option<&DeliveryId>,
    max: usize,
) -> Vec<Delivery> {
    let passes = |delivery: &&Delivery| {
        after.is_none_or(|after| delivery.id > *after)
            && filter
                .tenant
                .as_ref()
                .is_none_or(|tenant| *tenant == delivery.key.tenant)
            && filter
                .hook
                .as_ref()
                .is_none_or(|hook| *hook == delivery.id.hook)
            && filter.state.is_none_or(|state| state == delivery.state)
    };
    outbox.values().filter(passes).take(max).cloned().collect()
}

pub(super) fn due(
    outbox: &Outbox,
    hook: &HookName,
    after: Option<&TenantId>,
    now: Steady,
    max: usize,
) -> DueDeliveries {
    let is_pending = |delivery: &&Delivery| {
        delivery.id.hook == *hook && delivery.state == DeliveryState::Pending
    };
    let pending = || outbox.values().filter(is_pending);
    let mut due: Vec<Delivery> = pending()
        .filter(|delivery| delivery.due <= now)
        .cloned()
        .collect();
    due.sort_by(|a, b| (a.due, &a.id).cmp(&(b.due, &b.id)));
    let mut earlier: HashMap<TenantId, usize> = HashMap::new();
    due.sort_by_cached_key(|delivery| {
        let tenant = &delivery.key.tenant;
        let place = earlier.entry(tenant.clone()).or_default();
        *place += 1;
        let is_behind = after.is_some_and(|after| tenant <= after);
        (*place, is_behind, tenant.clone())
    });
    due.truncate(max);
    let next = pending()
        .map(|delivery| delivery.due)
        .filter(|due| *due > now)
        .min();
    DueDeliveries { due, next }
}

pub(super) fn counts(outbox: &Outbox) -> Vec<DeliveryCount> {
    let mut counts = BTreeMap::new();
    let is_open = |delivery: &&Delivery| delivery.state != DeliveryState::Done;
    for delivery in outbox.values().filter(is_open) {
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

/// Records outcomes; gives the deliveries that are owed no more.
pub(super) fn record_outcomes(
    outbox: &mut Outbox,
    outcomes: &[DeliveryOutcome],
) -> Vec<DeliveryId> {
    let mut lost = Vec::new();
    for outcome in outcomes {
        if let Some(delivery) = outbox.get_mut(&outcome.id) {
            if !outcome.changes(delivery.state) {
                continue;
            }
            delivery.state = outcome.state;
            delivery.tries = outcome.tries;
            delivery.last_error.clone_from(&outcome.last_error);
            delivery.due = outcome.due;
        } else {
            lost.push(outcome.id.clone());
        }
    }
    lost
}
