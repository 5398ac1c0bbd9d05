//! Calls dropped at an await point, as when a client disconnects.
//!
//! The change is applied whole or not at all, and nothing leaks.

use std::pin::Pin;
use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, ChangeSet};
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::AppendCommand;
use memoird_core::time::Timestamp;
use memoird_engine::{EngineConfig, EngineError, Machine};
use memoird_store::Store;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use crate::bot::{Bot, named, saying};
use crate::kit::{
    ACME, TTL, World, capped, config, one_by_one, poll_once, session_id, settle, soon, tenant_id,
    unswept, unswept_with_cap,
};

type Call = Pin<Box<dyn Future<Output = bool> + Send>>;

const CALLS: usize = 11;

/// Issues one call of each kind. The future resolves to whether it succeeded.
fn call(kind: usize, bot: Bot) -> Call {
    Box::pin(async move {
        match kind {
            0 => bot.say("a", "x").await.is_ok(),
            1 => bot.say("new", "x").await.is_ok(),
            2 => bot.append("new", named("key", &["x"])).await.is_ok(),
            3 => bot.append("a", named("key", &["x"])).await.is_ok(),
            4 => bot.append("a", named("known", &["x"])).await.is_ok(),
            5 => bot.end("a").await.is_ok(),
            6 => bot.reset("a").await.is_ok(),
            7 => bot.patch("a", "{}", None).await.is_ok(),
            8 => bot.view("a").await.is_ok(),
            9 => bot.live("a").await.is_ok() && bot.journal("a", None).await.is_ok(),
            _ => !bot.views(2).await.is_empty(),
        }
    })
}

/// Drops a call after `polls` polls, at the session cap and with another append in flight.
async fn drop_after(kind: usize, polls: usize, fails: bool) {
    let mut config = unswept_with_cap(2);
    config.journal.queue_bytes = 16 << 10;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.append("a", named("known", &["x"])).await.unwrap();
    bot.say("b", "hello").await.unwrap();
    world.store.fail_commits(usize::from(fails));
    let mut under_way = Box::pin(bot.say("a", "under way"));
    assert!(poll_once(&mut under_way).await.is_none());

    let mut dropped = call(kind, bot.clone());
    for _ in 0..polls {
        if poll_once(&mut dropped).await.is_some() {
            dropped = call(8, bot.clone());
        }
        if polls > 1 {
            yield_now().await;
        }
    }
    drop(dropped);
    drop(under_way);
    settle().await;

    let what = format!("call {kind}, dropped after {polls} steps, commit fails: {fails}");
    bot.recount().await;
    let (stats, record) = (bot.stats(), world.store.record().counts[&tenant_id(ACME)]);
    assert!(stats.sessions_live <= 2, "{what}");
    let counted = (
        stats.sessions_created,
        stats.evicted,
        stats.ended,
        stats.turns_appended,
    );
    assert_eq!(
        counted,
        (record.created, record.evicted, record.ended, record.turns),
        "{what}"
    );
    // The queue is empty again, so an append may use all of it.
    let large = "x".repeat(16 << 10);
    let whole = soon(bot.say("a", &large)).await;
    assert!(whole.is_ok(), "{what}: {whole:?}");
    assert!(soon(call(0, bot.clone())).await, "{what}");
}

#[tokio::test(start_paused = true)]
async fn any_call_may_be_dropped_at_any_step() {
    for kind in 0..CALLS {
        for polls in 0..5 {
            for fails in [false, true] {
                drop_after(kind, polls, fails).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn start_dropped_while_selecting_victim_is_not_counted() {
    let mut config = unswept_with_cap(1);
    config.journal = one_by_one();
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    // Two appends to `a` are in flight: the first fails, the second hangs. The session must be
    // reloaded from the journal, which is not possible before the second commit finishes.
    world.store.hold_commits();
    world.store.fail_commits(1);
    let mut calls = JoinSet::new();
    for _ in 0..2 {
        let bot = bot.clone();
        calls.spawn(async move { bot.say("a", "lost").await });
    }
    world.store.commit_begun(2).await;
    world.store.let_one_commit_go();
    world.store.commit_begun(3).await;
    let mut start = Box::pin(bot.say("b", "hello"));
    assert!(poll_once(&mut start).await.is_none());
    drop(start);
    world.store.let_commits_go();
    while calls.join_next().await.is_some() {}
    settle().await;
    // The second append was retried.
    assert_eq!((bot.stats().sessions_live, bot.stats().turns_live), (1, 2));
    bot.recount().await;
    soon(bot.say("b", "hello")).await.unwrap();
    assert_eq!(bot.list().await, ["b"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn call_dropped_while_waiting_for_queue_space_releases_it() {
    let mut config = unswept();
    config.journal.queue_bytes = 1;
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.hold_commits();
    let mut first = Box::pin(bot.say("a", "hello"));
    let mut waits = Box::pin(bot.say("b", "hello"));
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut waits).await.is_none());
    drop((first, waits));
    world.store.let_commits_go();
    soon(bot.say("c", "hello")).await.unwrap();
    assert_eq!(bot.list().await, ["c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn session_ended_while_loading_from_journal_stays_ended() {
    for (end_by_cap, written_first) in [(false, true), (true, true), (false, false), (true, false)]
    {
        let world = World::with_pool(unswept_with_cap(1));
        let engine = world.open().await;
        Bot::acme(&engine)
            .append("a", saying(&["one", "two"]))
            .await
            .unwrap();
        engine.close().await;
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        world.store.hold_loads();
        let loads = world.store.loads();
        let mut reads = JoinSet::new();
        let reader = bot.clone();
        reads.spawn(async move { reader.live("a").await });
        world.store.load_begun(loads + 1).await;

        world.store.hold_commits();
        let mut end = if end_by_cap {
            call(1, bot.clone())
        } else {
            call(5, bot.clone())
        };
        assert!(poll_once(&mut end).await.is_none());
        if written_first {
            world.store.let_commits_go();
            assert!(soon(&mut end).await);
            world.store.let_loads_go();
        } else {
            world.store.let_loads_go();
            // Let the read return; it then waits for the commit of the end.
            tokio::task::spawn_blocking(|| {}).await.unwrap();
            for _ in 0..10 {
                yield_now().await;
            }
            world.store.let_commits_go();
            assert!(soon(&mut end).await);
        }
        let read = reads.join_next().await.unwrap().unwrap();
        assert!(
            matches!(read, Err(EngineError::SessionNotFound { .. })),
            "{read:?}"
        );
        settle().await;
        assert_eq!(bot.stats().sessions_live, u64::from(end_by_cap));
        assert!(bot.view("a").await.is_err());
        bot.recount().await;
        assert_eq!(bot.say("a", "three").await.unwrap().record.first_seq, 1);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn patch_of_expired_session_needs_one_queue_slot() {
    let mut config: EngineConfig = unswept();
    config.journal.queue_bytes = 1;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL).await;
    let patched = bot.patch("a", "{}", None).await;
    assert!(
        matches!(patched, Err(EngineError::SessionNotFound { .. })),
        "{patched:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn engine_closes_during_sweep() {
    let mut config = config();
    config.tenants = vec![capped(ACME, 0)];
    let world = World::with_pool(config);
    let now = world.machine.now();
    let begin = |id: u64| Change {
        generation: Generation::new(1, id.into()),
        expected_revision: 0,
        kind: ChangeKind::Begin {
            key: SessionKey {
                tenant: tenant_id(ACME),
                session: session_id(&id.to_string()),
            },
            created_at: Timestamp::default(),
            last_access: now.steady,
        },
    };
    let sets: Vec<_> = (0..3_000)
        .map(|id| ChangeSet {
            changes: vec![begin(id)],
        })
        .collect();
    world.store.commit(&world.machine.anchor(), &sets).unwrap();
    let engine = world.open().await;
    let commits = world.store.commits();
    world.store.hold_commits();
    world.store.commit_begun(commits + 1).await;
    let mut close = Box::pin(engine.close());
    assert!(poll_once(&mut close).await.is_none());
    world.store.let_commits_go();
    soon(close).await;
    assert!(Arc::clone(&world.store).record().live.len() < 3_000);
}

#[tokio::test(start_paused = true)]
async fn dropped_keyed_append_is_still_written() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut append = Box::pin(bot.append("a", AppendCommand::clone(&named("key", &["x"]))));
    assert!(poll_once(&mut append).await.is_none());
    drop(append);
    let again = bot.append("a", named("key", &["x"])).await.unwrap();
    assert!(again.duplicate);
    assert_eq!(bot.live("a").await.unwrap(), ["x"]);
}
