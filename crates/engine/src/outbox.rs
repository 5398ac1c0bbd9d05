//! What hooks are owed: with a journal in it, written with the end that owes it; without
//! one in memory, with the content, because nobody else has it.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, HookName, SessionKey, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::session::Session;
use memoird_core::time::{Now, Timestamp};
use memoird_store::{
    DeliveryCount, DeliveryFilter, EndedRecord, MemoryStore, Settlement, Store, StoreError,
    encoding,
};
use tokio::sync::Notify;
use tracing::error;

use crate::config::{HookConfig, HooksConfig};
use crate::engine::{Blocking, Engine};
use crate::error::EngineError;
use crate::hook::Ended;

/// The way to what hooks are owed.
pub(crate) struct Outbox {
    store: Arc<dyn Store>,
    /// The same, where there is no journal.
    memory: Option<Arc<MemoryStore>>,
    blocking: Blocking,
    config: ArcSwap<HooksConfig>,
    /// Something may be owed that was not, or be due that was not.
    arrived: Notify,
    /// How many deliveries were open when somebody last asked.
    counts: Mutex<Arc<[DeliveryCount]>>,
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A delivery as an operator sees it.
#[derive(Clone, Debug)]
pub struct DeliveryView {
    /// What the outbox has.
    pub delivery: Delivery,
    /// When the next try is due; of one that is done or dead, when that happened.
    pub due_at: Timestamp,
}

impl Outbox {
    /// The outbox of a journal, or one in memory.
    pub(crate) fn new(
        journal: Option<Arc<dyn Store>>,
        blocking: Blocking,
        config: HooksConfig,
    ) -> Self {
        let (store, memory, blocking) = match journal {
            Some(store) => (store, None, blocking),
            None => {
                let memory = Arc::<MemoryStore>::default();
                (
                    Arc::clone(&memory) as Arc<dyn Store>,
                    Some(memory),
                    Blocking::Inline,
                )
            }
        };
        Self {
            store,
            memory,
            blocking,
            config: ArcSwap::from_pointee(config),
            arrived: Notify::new(),
            counts: Mutex::new(Arc::from([])),
        }
    }

    /// The hooks as they are now.
    pub(crate) fn config(&self) -> Arc<HooksConfig> {
        self.config.load_full()
    }

    /// Other hooks are called from now on. What is owed to one that is gone stays owed.
    pub(crate) fn reconfigure(&self, config: HooksConfig) {
        self.config.store(Arc::new(config));
        self.ring();
    }

    /// The hooks that are called for this end.
    pub(crate) fn owed(&self, tenant: &TenantId, reason: EndReason) -> Arc<[HookName]> {
        let config = self.config.load();
        let wants = |hook: &&HookConfig| hook.subscription.wants(tenant, reason);
        config
            .hooks
            .iter()
            .filter(wants)
            .map(|hook| hook.subscription.hook.clone())
            .collect()
    }

    /// Without a journal: keeps the content of a session that ends, as long as there is
    /// room.
    pub(crate) fn keep(
        &self,
        key: &SessionKey,
        session: &Session,
        reason: EndReason,
        at: Now,
        owed: &[HookName],
    ) {
        let Some(memory) = &self.memory else { return };
        let turns = session.history().turns_after(0);
        let state = session.state();
        let record = EndedRecord {
            key: key.clone(),
            head: session.head().clone(),
            at,
            reason,
            turns: turns
                .map(|turn| (turn.seq, Arc::clone(&turn.content)))
                .collect(),
            state: (state.version > 0).then_some(state),
            summary: session.summary().cloned(),
        };
        if memory.keep(record, owed, self.config.load().memory_bytes) {
            self.ring();
        } else {
            error!(
                tenant = %key.tenant,
                "hooks are owed more than memory may hold; a session is lost to them"
            );
        }
    }

    /// Wakes the dispatcher.
    pub(crate) fn ring(&self) {
        self.arrived.notify_one();
    }

    pub(crate) async fn rung(&self) {
        self.arrived.notified().await;
    }

    /// Asks the store that has the outbox, off the executor's threads where it is a disk.
    pub(crate) async fn with_store<T: Send + 'static>(
        &self,
        action: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = Arc::clone(&self.store);
        let outcome = self.blocking.run(move || action(&*store)).await?;
        outcome.map_err(|error| EngineError::from(&error))
    }

    /// The content of these deliveries, as many as one delivery may hold.
    pub(crate) async fn contents(
        &self,
        deliveries: &[Delivery],
        bytes_max: usize,
    ) -> Result<Vec<Ended>, EngineError> {
        let wanted: Vec<_> = deliveries
            .iter()
            .map(|delivery| (delivery.key.clone(), delivery.id.generation))
            .collect();
        let decoded = move |store: &dyn Store| {
            let records = store.ended(&wanted, bytes_max)?;
            Ok(records.into_iter().map(opened).collect())
        };
        self.with_store(decoded).await
    }
}

fn opened(record: EndedRecord) -> Ended {
    let EndedRecord {
        key,
        head,
        at,
        reason,
        turns,
        state,
        summary,
    } = record;
    let open = |(seq, content): (u64, Arc<[u8]>)| Some((seq, encoding::open(&content)?));
    let turns: Vec<_> = turns.into_iter().filter_map(open).collect();
    Ended {
        tenant: key.tenant,
        session: key.session,
        generation: head.generation,
        subject: head.subject,
        reason,
        created_at: head.created_at,
        ended_at: at.wall,
        turns_omitted: head.last_seq.saturating_sub(turns.len() as u64),
        turns,
        state: state.unwrap_or_default(),
        summary,
    }
}

impl Engine {
    /// Deliveries after this one that pass the filter, ordered by id.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn deliveries(
        &self,
        filter: DeliveryFilter,
        after: Option<DeliveryId>,
        count: usize,
    ) -> Result<Vec<DeliveryView>, EngineError> {
        self.shared.journal.all_settled().await;
        let list = move |store: &dyn Store| store.deliveries(&filter, after.as_ref(), count);
        let deliveries = self.shared.outbox.with_store(list).await?;
        Ok(deliveries
            .into_iter()
            .map(|delivery| self.view(delivery))
            .collect())
    }

    /// Makes a delivery due now, as if it had never been tried: one that is owed, was given
    /// up, or was made.
    ///
    /// # Errors
    /// [`EngineError::DeliveryNotFound`], or a journal that cannot be written.
    pub async fn retry_delivery(&self, id: DeliveryId) -> Result<DeliveryView, EngineError> {
        let due = self.shared.machine.now().steady;
        let again = Settlement {
            id: id.clone(),
            state: DeliveryState::Pending,
            tries: 0,
            last_error: String::new(),
            due,
        };
        let wanted = id.clone();
        let retry = move |store: &dyn Store| {
            store.settle(&[again])?;
            store.delivery(&wanted)
        };
        let found = self.shared.outbox.with_store(retry).await?;
        self.shared.outbox.ring();
        let delivery = found.ok_or(EngineError::DeliveryNotFound { id })?;
        Ok(self.view(delivery))
    }

    /// Forgets that a delivery is owed.
    ///
    /// # Errors
    /// [`EngineError::DeliveryNotFound`], or a journal that cannot be written.
    pub async fn drop_delivery(&self, id: DeliveryId) -> Result<(), EngineError> {
        let wanted = id.clone();
        let drop = move |store: &dyn Store| store.drop_delivery(&wanted);
        match self.shared.outbox.with_store(drop).await? {
            true => Ok(()),
            false => Err(EngineError::DeliveryNotFound { id }),
        }
    }

    /// Counts the deliveries that are pending or dead.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub async fn count_deliveries(&self) -> Result<Arc<[DeliveryCount]>, EngineError> {
        let counted = self
            .shared
            .outbox
            .with_store(<dyn Store>::open_deliveries)
            .await?;
        let counts: Arc<[DeliveryCount]> = counted.into();
        *self.shared.outbox.counts() = Arc::clone(&counts);
        Ok(counts)
    }

    /// The hooks that are called now.
    pub fn hook_names(&self) -> Vec<HookName> {
        let config = self.shared.outbox.config();
        config
            .hooks
            .iter()
            .map(|hook| hook.subscription.hook.clone())
            .collect()
    }

    /// What [`Self::count_deliveries`] last gave.
    pub fn last_delivery_counts(&self) -> Arc<[DeliveryCount]> {
        Arc::clone(&self.shared.outbox.counts())
    }

    fn view(&self, delivery: Delivery) -> DeliveryView {
        let now = self.shared.machine.now();
        DeliveryView {
            due_at: now.wall_of(delivery.due),
            delivery,
        }
    }
}

impl Outbox {
    fn counts(&self) -> std::sync::MutexGuard<'_, Arc<[DeliveryCount]>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
