//! Hooks: external actions when a generation ends.
//!
//! The outbox stores pending deliveries, and the dispatcher calls the hooks until these succeed.

mod dispatcher;
mod retention;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use memoird_core::ids::{DeliveryId, HookName};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Timestamp;
use memoird_store::{DeliveryCount, DeliveryFilter, DeliveryOutcome, Store};
use parking_lot::Mutex;

use crate::cluster::Cluster;
use crate::error::EngineError;
use crate::hook::HooksConfig;
use crate::outbox::Outbox;
use crate::sessions::Sessions;
use crate::stats::Stats;
use crate::store_handle::StoreHandle;
use crate::worker::{LeaderOnly, Supervisor};

use dispatcher::Dispatcher;
use retention::RetentionWorker;

pub(crate) use retention::RetentionConfig;

/// A delivery with wall-clock times, for operators.
#[derive(Clone, Debug)]
pub struct DeliveryView {
    pub delivery: Delivery,
    /// When the next attempt is due. For a finished or dead delivery, when it became so.
    pub due_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct Hooks {
    shared: Arc<HooksInner>,
}

#[derive(Debug)]
struct HooksInner {
    outbox: Arc<Outbox>,
    store: StoreHandle,
    sessions: Sessions,
    stats: Arc<Stats>,
    retention: ArcSwap<RetentionConfig>,
    /// Result of the last count of open deliveries.
    last_counts: Mutex<Arc<[DeliveryCount]>>,
}

impl Hooks {
    pub(crate) fn new(
        outbox: Arc<Outbox>,
        store: StoreHandle,
        sessions: Sessions,
        stats: Arc<Stats>,
        retention: RetentionConfig,
    ) -> Self {
        let shared = HooksInner {
            outbox,
            store,
            sessions,
            stats,
            retention: ArcSwap::from_pointee(retention),
            last_counts: Mutex::new(Arc::from([])),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Starts the dispatcher and the retention worker.
    pub(crate) fn start_workers(&self, supervisor: &Supervisor, cluster: Option<&Cluster>) {
        let retention = RetentionWorker::new(self.clone());
        supervisor.run(LeaderOnly::new(retention, cluster.cloned()));
        let dispatcher = Dispatcher::new(self.clone());
        supervisor.run(LeaderOnly::new(dispatcher, cluster.cloned()));
    }

    pub(crate) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.shared.outbox)
    }

    pub(crate) fn retention(&self) -> Duration {
        self.shared.retention.load().turns
    }

    pub(crate) fn reconfigure(&self, config: HooksConfig, retention: RetentionConfig) {
        self.shared.retention.store(Arc::new(retention));
        self.shared.outbox.reconfigure(config);
    }

    /// Lists deliveries that match the filter, ordered by id, after `after`.
    pub async fn deliveries(
        &self,
        filter: DeliveryFilter,
        after: Option<DeliveryId>,
        count: usize,
    ) -> Result<Vec<DeliveryView>, EngineError> {
        // An error means that commits fail. Then the written deliveries are all there are.
        let _ = self.shared.sessions.journal().wait_all_processed().await;
        let list = move |store: &dyn Store| store.deliveries(&filter, after.as_ref(), count);
        let deliveries = self.shared.store.run(None, list).await?;
        Ok(deliveries
            .into_iter()
            .map(|delivery| self.view(delivery))
            .collect())
    }

    /// Makes a pending, dead or finished delivery due now, with its attempts reset.
    pub async fn retry_delivery(&self, id: DeliveryId) -> Result<DeliveryView, EngineError> {
        let due = self.shared.sessions.now().steady;
        let outcome = DeliveryOutcome {
            id: id.clone(),
            state: DeliveryState::Pending,
            tries: 0,
            last_error: String::new(),
            due,
        };
        let wanted = id.clone();
        let retry = move |store: &dyn Store| {
            store.record_outcomes(&[outcome])?;
            store.delivery(&wanted)
        };
        let found = self.shared.store.run(None, retry).await?;
        self.shared.outbox.notify();
        let delivery = found.ok_or(EngineError::DeliveryNotFound { id })?;
        Ok(self.view(delivery))
    }

    pub async fn drop_delivery(&self, id: DeliveryId) -> Result<(), EngineError> {
        let wanted = id.clone();
        let drop = move |store: &dyn Store| store.drop_delivery(&wanted);
        if self.shared.store.run(None, drop).await? {
            Ok(())
        } else {
            Err(EngineError::DeliveryNotFound { id })
        }
    }

    /// Counts the pending and dead deliveries.
    pub async fn count_deliveries(&self) -> Result<Arc<[DeliveryCount]>, EngineError> {
        let counted = self
            .shared
            .store
            .run(None, <dyn Store>::open_deliveries)
            .await?;
        let counts: Arc<[DeliveryCount]> = counted.into();
        *self.shared.last_counts.lock() = Arc::clone(&counts);
        Ok(counts)
    }

    pub fn hook_names(&self) -> Vec<HookName> {
        let config = self.shared.outbox.config();
        config
            .hooks
            .iter()
            .map(|hook| hook.subscription.hook.clone())
            .collect()
    }

    /// Last result of [`Self::count_deliveries`].
    pub fn last_delivery_counts(&self) -> Arc<[DeliveryCount]> {
        Arc::clone(&self.shared.last_counts.lock())
    }

    fn view(&self, delivery: Delivery) -> DeliveryView {
        let now = self.shared.sessions.now();
        DeliveryView {
            due_at: now.wall_of(delivery.due),
            delivery,
        }
    }
}
