//! Queue of one hook: running deliveries, and when to check for more.

use std::collections::HashSet;

use memoird_core::ids::{Generation, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;
use memoird_store::{DeliveryOutcome, DueDeliveries};
use tracing::{info, warn};

use crate::hook::HookConfig;
use crate::tenants::ms;

pub(super) struct HookQueue {
    /// `None` once the hook was removed from the configuration.
    pub(super) hook: Option<HookConfig>,
    running: HashSet<Generation>,
    attempts: usize,
    /// When to check for due deliveries. `None` means not before a notification.
    check_at: Option<Steady>,
    /// Value of the dispatcher's start counter when it last started an attempt.
    pub(super) started: u64,
    /// Tenant served last. The next attempt starts with the tenants after it.
    pub(super) last_tenant: Option<TenantId>,
    is_failing: bool,
}

impl HookQueue {
    pub(super) fn new(hook: HookConfig) -> Self {
        let (running, check_at) = (HashSet::new(), Some(Steady(0)));
        Self {
            hook: Some(hook),
            running,
            attempts: 0,
            check_at,
            started: 0,
            last_tenant: None,
            is_failing: false,
        }
    }

    /// Logs when the hook starts failing and when it recovers.
    ///
    /// Deliveries are abandoned only hours later.
    pub(super) fn note_outcome(&mut self, recorded: &DeliveryOutcome) {
        let (id, problem) = (&recorded.id, &recorded.last_error);
        let fails = recorded.state != DeliveryState::Done;
        if fails == std::mem::replace(&mut self.is_failing, fails) {
            return;
        }
        if fails {
            warn!(hook = %id.hook, delivery = %id, problem, "a hook fails");
        } else {
            info!(hook = %id.hook, "a hook works again");
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.attempts == 0
    }

    pub(super) fn check_now(&mut self) {
        self.check_at = Some(Steady(0));
    }

    /// When to check for due deliveries, if there is room for another attempt.
    pub(super) fn next_check(&self) -> Option<Steady> {
        self.room().and(self.check_at)
    }

    /// Number of due deliveries to read, including running ones, with room for `room` attempts.
    ///
    /// Returns `None` if no check is due.
    pub(super) fn count_to_read(&self, now: Steady, room: usize) -> Option<usize> {
        let own_room = self.room()?;
        let batch = self.batch_max();
        self.check_at
            .filter(|check_at| *check_at <= now && room > 0)?;
        Some(self.running.len() + own_room.min(room) * batch)
    }

    /// Splits due deliveries into batches, one per attempt.
    pub(super) fn take(
        &mut self,
        found: DueDeliveries,
        count_to_read: usize,
        now: Steady,
        room: usize,
        waits_for_batch: bool,
    ) -> Vec<Vec<Delivery>> {
        let is_all = found.due.len() < count_to_read;
        self.check_at = if is_all { found.next } else { Some(Steady(0)) };
        let mut free: Vec<_> = found
            .due
            .into_iter()
            .filter(|delivery| !self.running.contains(&delivery.id.generation))
            .collect();
        let batch_max = self.batch_max();
        // Save calls to hooks that accept batches: an incomplete batch waits briefly for more
        // deliveries.
        let wait_ms = if waits_for_batch && batch_max > 1 {
            self.batch_wait_ms()
        } else {
            0
        };
        let full = free.len() - free.len() % batch_max;
        let oldest = free[full..].iter().map(|delivery| delivery.due).min();
        let is_fresh = |due: &Steady| is_all && now.since(*due) < wait_ms;
        if let Some(due) = oldest.filter(is_fresh) {
            let at = Steady(due.0.saturating_add(wait_ms));
            self.check_at = Some(self.check_at.map_or(at, |next| next.min(at)));
            free.truncate(full);
        }
        let attempts = self.room().unwrap_or(0).min(room);
        let batches: Vec<Vec<Delivery>> = free
            .chunks(batch_max)
            .take(attempts)
            .map(<[Delivery]>::to_vec)
            .collect();
        for batch in &batches {
            self.attempts += 1;
            self.last_tenant = batch.last().map(|delivery| delivery.key.tenant.clone());
            self.running
                .extend(batch.iter().map(|delivery| delivery.id.generation));
        }
        batches
    }

    /// Records that the outcome of an attempt for these generations was written.
    pub(super) fn attempt_finished(&mut self, generations: impl Iterator<Item = Generation>) {
        for generation in generations {
            self.running.remove(&generation);
        }
        self.attempts = self.attempts.saturating_sub(1);
        self.check_now();
    }

    /// Number of attempts that may start, if any.
    fn room(&self) -> Option<usize> {
        let hook = self.hook.as_ref()?;
        Some(hook.concurrency.max(1).saturating_sub(self.attempts)).filter(|room| *room > 0)
    }

    fn batch_wait_ms(&self) -> u64 {
        self.hook
            .as_ref()
            .map_or(0, |hook| ms(hook.hook.batch_wait()))
    }

    fn batch_max(&self) -> usize {
        self.hook
            .as_ref()
            .map_or(1, |hook| hook.hook.batch_max().max(1))
    }
}
