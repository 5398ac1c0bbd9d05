//! A command is one change set: atomic, written in decision order, and batched with others.

use memoird_core::change::EndReason;
use memoird_engine::EngineError;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::{Bot, named};
use crate::kit::{TTL, World, poll_once, settle, unswept, unswept_with_cap};

#[tokio::test(start_paused = true)]
async fn eviction_is_written_before_new_session() {
    let world = World::new(unswept_with_cap(1));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    bot.say("b", "hello").await.unwrap();
    assert_eq!(world.store.record().set_sizes, [2, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn end_of_expired_generation_is_written_before_next_one() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let old = bot.say("a", "old").await.unwrap().record.generation;
    sleep(TTL).await;
    bot.append("a", named("key", &["new"])).await.unwrap();
    assert_eq!(world.store.record().set_sizes, [2, 1, 2]);
    assert_eq!(
        world.store.record().lives[&old].ended,
        Some(EndReason::Expired)
    );
    assert_eq!((bot.stats().expired, bot.stats().sessions_created), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn failed_commit_undoes_eviction_and_start() {
    let world = World::new(unswept_with_cap(2));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    settle().await;
    world.store.fail_commits(1);
    assert!(matches!(
        bot.say("c", "hello").await,
        Err(EngineError::JournalFull)
    ));
    settle().await;
    assert_eq!(bot.list().await, ["b", "a"], "in the order of their use");
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    assert!(matches!(
        bot.view("c").await,
        Err(EngineError::SessionNotFound { .. })
    ));
    let stats = bot.stats();
    assert_eq!(
        (stats.sessions_created, stats.evicted, stats.turns_appended),
        (2, 0, 2)
    );
    bot.recount().await;

    // The failed eviction left `a` the least recently used session.
    bot.say("c", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["c", "b"]);
    assert_eq!((bot.stats().sessions_created, bot.stats().evicted), (3, 1));
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn failed_restart_of_expired_session_leaves_it_to_expire() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "old").await.unwrap();
    sleep(TTL).await;
    world.store.fail_commits(1);
    assert!(matches!(
        bot.say("a", "new").await,
        Err(EngineError::JournalFull)
    ));
    settle().await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_created), (0, 1));
    assert!(matches!(
        bot.view("a").await,
        Err(EngineError::SessionNotFound { .. })
    ));
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 0));
    assert_eq!(bot.say("a", "new").await.unwrap().record.first_seq, 1);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_appends_are_committed_in_one_transaction_in_order() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "first").await.unwrap();
    let before = world.store.commits();
    let mut calls = JoinSet::new();
    for text in 0..100 {
        let bot = bot.clone();
        calls.spawn(async move { (text, bot.say("a", &text.to_string()).await.unwrap()) });
    }
    let mut answers = calls.join_all().await;
    answers.sort_by_key(|(_, answer)| answer.record.first_seq);
    assert!(
        world.store.commits() - before <= 2,
        "{} commits",
        world.store.commits() - before
    );
    let said: Vec<String> = answers.iter().map(|(text, _)| text.to_string()).collect();
    assert_eq!(bot.journal("a", None).await.unwrap()[1..], said);
    let stats = engine.stats();
    assert_eq!(
        (stats.commit_sets, stats.commits),
        (101, world.store.commits())
    );
}

#[tokio::test(start_paused = true)]
async fn next_command_sees_uncommitted_changes() {
    let world = World::new(unswept_with_cap(2));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut first = Box::pin(bot.say("a", "one"));
    let mut second = Box::pin(bot.say("a", "two"));
    let mut ended = Box::pin(bot.end("a"));
    let mut third = Box::pin(bot.say("a", "three"));
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut second).await.is_none());
    assert!(poll_once(&mut ended).await.is_none());
    assert!(poll_once(&mut third).await.is_none());
    assert_eq!(world.store.commits(), 0);
    assert_eq!(first.await.unwrap().record.last_seq, 1);
    assert_eq!(second.await.unwrap().record.last_seq, 2);
    assert_eq!(ended.await.unwrap().head.last_seq, 2);
    assert_eq!(third.await.unwrap().record.last_seq, 1);
    assert_eq!(world.store.commits(), 1);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn wal_is_checkpointed_after_many_or_large_commits() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for _ in 0..127 {
        bot.say("a", "hello").await.unwrap();
    }
    assert_eq!(world.store.log_moves(), 0);
    bot.say("a", "hello").await.unwrap();
    assert_eq!(world.store.log_moves(), 1);
    let large = "x".repeat(1 << 20);
    for _ in 0..4 {
        bot.say("a", &large).await.unwrap();
    }
    assert_eq!(world.store.log_moves(), 2);
}
