//! Documents through the service: background expiry, and calls that are dropped but still complete.

use std::time::Duration;

use memoird_engine::TenantLimits;
use memoird_memories::rules::documents::{
    Document, DocumentGet, DocumentName, DocumentPut, DocumentValue,
};
use memoird_memories::{ForgetRequest, MemoryError};
use tokio::time::sleep;

use crate::world::Bot;
use crate::{ANN, acme, kit, subject, world};

fn name(key: &str) -> DocumentName {
    DocumentName::parse(&["a".to_owned()], key.to_owned()).unwrap()
}

fn put(key: &str, ttl: Option<Duration>) -> DocumentPut {
    DocumentPut {
        name: name(key),
        value: DocumentValue::Json("1".to_owned()),
        expected_version: None,
        ttl,
        idempotency: None,
    }
}

impl Bot {
    async fn put(&self, put: DocumentPut) -> Document {
        let stored = self.memories.documents.put(&self.tenant, put).await;
        stored.unwrap().document
    }

    async fn document(&self, key: &str, ttl: Option<Duration>) -> Result<Document, MemoryError> {
        let get = DocumentGet {
            name: name(key),
            ttl,
        };
        self.memories.documents.get(&self.tenant, get).await
    }

    async fn documents_kept(&self) -> u64 {
        let stats = self.memories.facts.stats(&self.tenant).await;
        stats.unwrap().documents
    }
}

#[tokio::test(start_paused = true)]
async fn expired_documents_are_deleted_in_background() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let world = world();
    let bot = acme(&world.open().await);
    bot.put(put("stays", None)).await;
    bot.put(put("short", Some(HOUR / 60))).await;
    bot.put(put("read", Some(HOUR / 60))).await;
    bot.document("read", Some(3 * HOUR)).await.unwrap();
    assert_eq!(bot.documents_kept().await, 3);
    sleep(HOUR / 60).await;
    let gone = bot.document("short", None).await;
    assert!(matches!(gone, Err(MemoryError::DocumentNotFound { .. })));
    sleep(HOUR).await;
    assert_eq!(bot.documents_kept().await, 2);
    sleep(3 * HOUR).await;
    assert_eq!(bot.documents_kept().await, 1);
    bot.document("stays", None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn damaged_file_does_not_delay_maintenance_of_others() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let mut world = world();
    let bad = kit::tenant("bad", TenantLimits::default());
    world.config.tenants.push(bad);
    let dir = world.memories.as_ref().unwrap().dir.path();
    std::fs::write(dir.join("bad.db"), "no database at all\n".repeat(1_000)).unwrap();
    let house = world.open().await;
    let (bot, bad) = (acme(&house), Bot::new(&house, "bad"));
    bot.put(put("short", Some(HOUR))).await;
    let forget = ForgetRequest::Subject(subject(ANN));
    bad.forget(forget).await.unwrap_err();
    sleep(24 * HOUR).await;
    assert_eq!(bot.documents_kept().await, 0);
}

#[tokio::test(start_paused = true)]
async fn put_completes_if_its_caller_is_dropped() {
    let world = world();
    let bot = acme(&world.open().await);
    {
        let stored = bot.memories.documents.put(&bot.tenant, put("left", None));
        let mut stored = std::pin::pin!(stored);
        // After one poll it is queued or done.
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(stored.as_mut().poll(context).is_ready())
        });
        polled.await;
    }
    sleep(Duration::from_secs(1)).await;
    bot.document("left", None).await.unwrap();
}
