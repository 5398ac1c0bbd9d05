//! Large appends are written in parts: other calls overtake them, and they stay atomic and ordered.

use std::time::Duration;

use memoird_engine::{Durability, EngineConfig, EngineError};
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::kit::{ACME, World, capped, poll_once, soon, unswept, unswept_with_cap};

const OTHER: &str = "other";
const TEXT: &str = "a text of which a few are too many for one part";

/// Parts hold one text each, and two texts exceed a transaction.
fn config() -> EngineConfig {
    in_parts(unswept())
}

fn in_parts(mut config: EngineConfig) -> EngineConfig {
    config.journal.part_bytes = TEXT.len();
    config
}

/// Commits can be held, and turns are prewritten.
fn world(config: EngineConfig) -> World {
    let world = World::with_pool(config);
    world.store.write_ahead(true);
    world
}

/// Blocks all commits after the next one.
fn hold_all_but_one(world: &World) {
    world.store.hold_commits();
    world.store.let_one_commit_go();
}

/// Two sessions with one turn each. Commits block after the next one.
async fn held() -> (World, Bot) {
    let world = world(config());
    let bot = Bot::acme(&world.open().await);
    for session in ["large", "small"] {
        bot.say(session, "first").await.unwrap();
    }
    hold_all_but_one(&world);
    (world, bot)
}

#[tokio::test(start_paused = true)]
async fn small_appends_overtake_large_append_which_stays_in_order() {
    let (world, bot) = held().await;
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 9])));
    let mut behind = Box::pin(bot.say("large", "behind"));
    let mut small = Box::pin(bot.say("small", "passes"));
    assert!(poll_once(&mut large).await.is_none());
    assert!(poll_once(&mut behind).await.is_none());
    assert!(poll_once(&mut small).await.is_none());
    let mut ended = Box::pin(bot.end("large"));
    assert!(poll_once(&mut ended).await.is_none());
    small.await.unwrap();
    assert_eq!(world.store.prewritten_turns(), [1], "beside the first part");
    assert_eq!(bot.live("small").await.unwrap(), ["first", "passes"]);
    assert!(poll_once(&mut large).await.is_none());
    world.store.let_commits_go();
    assert_eq!(large.await.unwrap().record.last_seq, 10);
    assert_eq!(behind.await.unwrap().record.last_seq, 11);
    assert_eq!(ended.await.unwrap().head.last_seq, 11);
    assert_eq!(world.store.prewritten_turns(), [1; 9]);
    let texts = bot.journal("large", None).await.unwrap();
    assert_eq!((texts.len(), texts[10].as_str()), (11, "behind"));
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn session_that_overtook_large_append_is_readable() {
    let (world, bot) = held().await;
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 9])));
    assert!(poll_once(&mut large).await.is_none());
    bot.say("small", "passes").await.unwrap();
    let texts = soon(bot.journal("small", None)).await.unwrap();
    assert_eq!(texts, ["first", "passes"]);
    assert!(poll_once(&mut large).await.is_none());
    world.store.let_commits_go();
    large.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn read_that_saw_large_append_waits_for_it() {
    let (world, bot) = held().await;
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 5])));
    assert!(poll_once(&mut large).await.is_none());
    let mut list = Box::pin(bot.list());
    let mut settled = Box::pin(bot.engine.transcripts.settled(&bot.tenant));
    let mut view = Box::pin(bot.view("large"));
    assert!(poll_once(&mut list).await.is_none());
    assert!(poll_once(&mut settled).await.is_none());
    assert!(poll_once(&mut view).await.is_none());
    bot.say("small", "passes").await.unwrap();
    assert!(poll_once(&mut list).await.is_none(), "the list shows it");
    assert!(poll_once(&mut settled).await.is_none());
    assert!(poll_once(&mut view).await.is_none());
    world.store.let_commits_go();
    large.await.unwrap();
    assert_eq!(view.await.unwrap().head.last_seq, 6);
    assert_eq!(list.await, ["large", "small"]);
    settled.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lists_and_searches_of_other_tenants_do_not_wait_for_large_append() {
    let mut config = config();
    config.tenants = vec![capped(ACME, 1_000), capped(OTHER, 1_000)];
    let world = world(config);
    let engine = world.open().await;
    let (bot, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    bot.say("large", "first").await.unwrap();
    other.say("chat", "first").await.unwrap();
    let transcripts = &bot.engine.transcripts;
    let seen = transcripts.settled(&other.tenant).await.unwrap();
    hold_all_but_one(&world);
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 9])));
    assert!(poll_once(&mut large).await.is_none());
    let mut behind = Box::pin(bot.say("large", "behind"));
    assert!(poll_once(&mut behind).await.is_none());
    other.say("chat", "passes").await.unwrap();
    assert_eq!(soon(other.list()).await, ["chat"]);
    let settled = soon(transcripts.settled(&other.tenant)).await.unwrap();
    assert!(settled > seen, "a later batch");
    let followed = soon(transcripts.written_beyond(seen)).await;
    assert!(followed >= settled, "who follows the journal has it");
    let mut later = Box::pin(transcripts.written_beyond(followed));
    assert!(poll_once(&mut later).await.is_none());
    world.store.let_commits_go();
    large.await.unwrap();
    let large_settled = transcripts.settled(&bot.tenant).await.unwrap();
    assert!(large_settled > followed);
    assert!(
        soon(later).await > followed,
        "and is told of what was passed"
    );
    behind.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_appends_are_written_one_after_another() {
    let world = world(config());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut calls: Vec<_> = ["a", "b", "c"]
        .map(|session| Box::pin(bot.append(session, saying(&[TEXT; 4]))))
        .into();
    for call in &mut calls {
        assert!(poll_once(call).await.is_none());
    }
    for call in calls {
        assert_eq!(call.await.unwrap().record.last_seq, 4);
    }
    assert_eq!(world.store.prewritten_turns(), [1; 12]);
}

#[tokio::test(start_paused = true)]
async fn session_start_waits_for_eviction_commit() {
    let world = world(in_parts(unswept_with_cap(2)));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    bot.say("b", "hello").await.unwrap();
    hold_all_but_one(&world);
    let mut large = Box::pin(bot.append("a", saying(&[TEXT; 5])));
    let mut ended = Box::pin(bot.end("a"));
    let mut started = Box::pin(bot.say("c", "hello"));
    assert!(poll_once(&mut large).await.is_none());
    assert!(poll_once(&mut ended).await.is_none());
    assert!(poll_once(&mut started).await.is_none());
    bot.say("b", "passes").await.unwrap();
    assert!(poll_once(&mut started).await.is_none());
    world.store.let_commits_go();
    started.await.unwrap();
    ended.await.unwrap();
    assert_eq!(world.store.record().set_sizes, [2, 2, 1, 1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn failed_part_fails_its_append_and_later_ones_are_retried() {
    let (world, bot) = held().await;
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 9])));
    let mut behind = Box::pin(bot.say("large", "behind"));
    assert!(poll_once(&mut large).await.is_none());
    assert!(poll_once(&mut behind).await.is_none());
    bot.say("small", "passes").await.unwrap();
    world.store.fail_commits(1);
    world.store.let_commits_go();
    assert!(matches!(large.await, Err(EngineError::JournalFull)));
    // The append is retried on the remaining turns.
    assert_eq!(behind.await.unwrap().record.last_seq, 2);
    let texts = bot.journal("large", None).await.unwrap();
    assert_eq!(texts, ["first", "behind"]);
    bot.append("large", saying(&[TEXT; 9])).await.unwrap();
    assert_eq!(bot.journal("large", None).await.unwrap().len(), 11);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn interval_large_append_is_written_once_disk_has_room() {
    let mut config = config();
    config.journal.durability = Durability::Interval;
    let world = world(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.fail_all_commits();
    bot.append("large", saying(&[TEXT; 6])).await.unwrap();
    bot.say("small", "passes").await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert!(world.store.prewritten_turns().is_empty());
    world.store.forgive();
    engine.transcripts.settled(&bot.tenant).await.unwrap();
    assert_eq!(world.store.prewritten_turns(), [1; 6]);
    let stored = world.store.record();
    assert_eq!(stored.counts[&bot.tenant.id].turns, 7);
}

#[tokio::test(start_paused = true)]
async fn close_writes_remaining_parts_of_large_append() {
    let world = world(config());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    hold_all_but_one(&world);
    let mut large = Box::pin(bot.append("large", saying(&[TEXT; 9])));
    assert!(poll_once(&mut large).await.is_none());
    bot.say("small", "passes").await.unwrap();
    world.store.let_commits_go();
    engine.close().await;
    assert_eq!(large.await.unwrap().record.last_seq, 9);
    let engine = world.open().await;
    let texts = Bot::acme(&engine).live("large").await.unwrap();
    assert_eq!(texts, [TEXT; 9]);
}
