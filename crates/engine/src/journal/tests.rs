//! Tests of each tenant's share of the queue.

use memoird_core::ids::TenantId;
use memoird_store::RetainedStore;

use super::*;
use crate::blocking::{Blocking, Executor};
use crate::store_handle::StoreHandle;
use crate::tenants::Tenants;

const BUSY: EngineError = EngineError::JournalBusy;

/// A journal without a committer.
fn journal() -> Journal<()> {
    let store = Arc::new(RetainedStore::new().expect("a store"));
    let readers = Executor::readers(Blocking::Inline);
    let handle = StoreHandle::new(store, readers, Blocking::Inline);
    let store = CommitHandle::new(&handle, Blocking::Inline);
    Journal::new(&JournalConfig::default(), Some(store))
}

fn tenant(tenants: &Tenants, id: &str) -> Arc<Tenant> {
    tenants.get_or_insert(&TenantId::parse(id).expect("an id"))
}

/// Acquires permits for this many small sets.
async fn permits(
    journal: &Journal<()>,
    tenant: &Tenant,
    sets: u32,
) -> Result<Vec<Permit>, EngineError> {
    let mut permits = Vec::new();
    for _ in 0..sets {
        permits.push(journal.permit_of(tenant, 0).await?);
    }
    Ok(permits)
}

#[tokio::test(start_paused = true)]
async fn tenant_share_leaves_journal_queue_permits_for_others() {
    let (journal, tenants) = (journal(), Tenants::new(<_>::default()));
    let (flood, victim) = (tenant(&tenants, "flood"), tenant(&tenants, "victim"));
    let mut many = permits(&journal, &flood, JOURNAL_SHARE)
        .await
        .expect("its share");
    assert_eq!(permits(&journal, &flood, 1).await.unwrap_err(), BUSY);
    assert!(permits(&journal, &victim, JOURNAL_SHARE).await.is_ok());
    many.pop();
    assert!(permits(&journal, &flood, 1).await.is_ok(), "one is written");
}

#[tokio::test(start_paused = true)]
async fn large_set_takes_a_whole_share() {
    let (journal, tenants) = (journal(), Tenants::new(<_>::default()));
    let (flood, victim) = (tenant(&tenants, "flood"), tenant(&tenants, "victim"));
    let large = journal.permit_of(&flood, 8 << 20).await;
    assert!(large.is_ok());
    assert_eq!(permits(&journal, &flood, 1).await.unwrap_err(), BUSY);
    assert!(permits(&journal, &victim, 1).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn only_tenant_may_use_whole_queue() {
    let (journal, tenants) = (journal(), Tenants::new(<_>::default()));
    let only = tenant(&tenants, "only");
    assert!(permits(&journal, &only, 4 * JOURNAL_SHARE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn set_larger_than_queue_leaves_room_for_others() {
    let (journal, tenants) = (journal(), Tenants::new(<_>::default()));
    let (flood, victim) = (tenant(&tenants, "flood"), tenant(&tenants, "victim"));
    let larger = 2 * JournalConfig::default().queue_bytes;
    let large = journal.permit_of(&flood, larger).await;
    assert!(large.is_ok());
    assert!(permits(&journal, &victim, JOURNAL_SHARE).await.is_ok());
}
