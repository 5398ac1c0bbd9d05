//! Reads of the journal: a few at once, and tenants in turn.

use memoird_store::READERS_MAX;
use tokio::task::JoinSet;

use crate::bot::Bot;
use crate::kit::{World, begun, capped, unswept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_of_one_tenant_hold_up_no_other() {
    let mut config = unswept();
    config.tenants = vec![capped("flood", 0), capped("other", 0)];
    let world = World::with_threads(config);
    let engine = world.open().await;
    let (flood, other) = (Bot::of(&engine, "flood"), Bot::of(&engine, "other"));
    for bot in [&flood, &other] {
        bot.say("a", "hello").await.unwrap();
    }
    let readers = READERS_MAX as u64;
    world.store.hold_journals();
    let mut reads = JoinSet::new();
    for _ in 0..3_000 {
        let flood = flood.clone();
        reads.spawn(async move { flood.journal("a", None).await });
    }
    world.store.journal_begun(readers).await;
    let mut read = Box::pin(other.journal("a", None));
    assert!(begun(&mut read).await.is_none());
    other.say("a", "appends go on").await.unwrap();
    other.say("new", "and starts").await.unwrap();
    assert_eq!(world.store.journal_reads().len(), READERS_MAX);

    // One of those that were first, and then it is its turn.
    world.store.let_one_journal_go();
    world.store.let_one_journal_go();
    world.store.journal_begun(readers + 2).await;
    let begun = world.store.journal_reads();
    assert!(begun[READERS_MAX..].contains(&other.tenant.id), "{begun:?}");
    world.store.let_journals_go();
    assert!(read.await.unwrap().contains(&"hello".to_owned()));
    while let Some(read) = reads.join_next().await {
        read.unwrap().unwrap();
    }
}
