//! Reconfiguring a running engine.
//!
//! Lowered limits take effect at once and in order, and nothing else is lost.

mod traffic;

use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_engine::{EngineConfig, EngineError, TenantLimits};
use tokio::time::{advance, sleep};

use crate::bot::Bot;
use crate::hooks::script::ScriptedHook;
use crate::hooks::{hooked, turn_texts, with_hooks};
use crate::kit::{
    NEVER, TTL, World, capped, config, poll_once, settle, soon, tenant, unswept, unswept_with_cap,
};
use crate::store::Fate;

fn history_of(turns: usize) -> EngineConfig {
    let mut config = unswept();
    config.limits.max_history_turns = turns;
    config
}

async fn say_all(bot: &Bot, ids: &[&str]) {
    for id in ids {
        bot.say(id, id).await.unwrap();
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lowered_tenant_cap_evicts_longest_idle_and_calls_hooks() {
    let hook = ScriptedHook::new([]);
    let with = |config| with_hooks(config, [hooked("a", &hook)]);
    let engine = World::new(with(unswept_with_cap(5))).open().await;
    let bot = Bot::acme(&engine);
    say_all(&bot, &["a", "b", "c", "d", "e", "a"]).await;
    engine.reconfigure(with(unswept_with_cap(2))).await;
    assert_eq!(bot.list().await, ["a", "e"], "when it is done, it is done");
    settle().await;
    let seen: Vec<_> = hook
        .seen()
        .iter()
        .map(|ended| (turn_texts(ended), ended.reason))
        .collect();
    let evicted = |id: &str| (vec![id.to_owned()], EndReason::Evicted);
    assert_eq!(seen, ["b", "c", "d"].map(evicted));
    bot.say("f", "f").await.unwrap();
    assert_eq!(bot.list().await, ["f", "a"]);
    bot.recount().await;
    // A raised cap leaves room, and 0 disables the cap.
    for (cap, sessions) in [(4, 4), (0, 24)] {
        engine.reconfigure(with(unswept_with_cap(cap))).await;
        for id in 0..20 {
            bot.say(&format!("{cap}.{id}"), "hello").await.unwrap();
        }
        assert_eq!(bot.list().await.len(), sessions);
    }
}

#[tokio::test(start_paused = true)]
async fn lowered_process_cap_evicts_from_tenant_with_most_sessions() {
    let tenants = vec![capped("large", 0), capped("small", 0)];
    let shared = |max_sessions| {
        let mut config = EngineConfig {
            tenants: tenants.clone(),
            ..unswept()
        };
        config.sessions.max_sessions = max_sessions;
        config
    };
    let engine = World::new(shared(0)).open().await;
    let (large, small) = (Bot::new(&engine, "large"), Bot::new(&engine, "small"));
    say_all(&small, &["x", "y"]).await;
    say_all(&large, &["a", "b", "c", "d", "e"]).await;
    engine.reconfigure(shared(4)).await;
    assert_eq!(
        (large.list().await, small.list().await.len()),
        (vec!["e".into(), "d".into()], 2)
    );
    assert_eq!((large.stats().evicted, small.stats().evicted), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn shortened_ttl_expires_sessions_and_shortens_sweep_interval() {
    let hook = ScriptedHook::new([]);
    let with = |ttl| {
        let mut config = with_hooks(config(), [hooked("a", &hook)]);
        config.sessions.session_ttl = ttl;
        config
    };
    let engine = World::new(with(NEVER)).open().await;
    let bot = Bot::acme(&engine);
    bot.say("old", "hello").await.unwrap();
    sleep(TTL).await;
    bot.say("new", "hello").await.unwrap();
    engine.reconfigure(with(TTL)).await;
    assert_eq!(
        (bot.list().await, bot.stats().expired),
        (vec!["new".to_owned()], 1)
    );
    let view = bot.view("new").await.unwrap();
    let left_ms = view.expires_at.unwrap().as_ms() - view.last_access.as_ms();
    assert_eq!(left_ms, i64::try_from(TTL.as_millis()).unwrap());
    // The sweeper was asleep for years and must wake up.
    sleep(TTL + TTL / 4 + TTL / 100).await;
    assert_eq!((bot.stats().expired, hook.count()), (2, 2));
    // A longer TTL applies to live sessions.
    bot.say("long", "hello").await.unwrap();
    engine.reconfigure(with(10 * TTL)).await;
    sleep(9 * TTL).await;
    assert_eq!(bot.list().await, ["long"]);
}

#[tokio::test(start_paused = true)]
async fn lowered_history_cap_trims_live_sessions_across_restart() {
    let mut world = World::new(history_of(10));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for text in 0..9 {
        bot.say("s", &text.to_string()).await.unwrap();
        bot.say("silent", &text.to_string()).await.unwrap();
    }
    engine.reconfigure(history_of(3)).await;
    for id in ["s", "silent"] {
        assert_eq!(bot.live(id).await.unwrap(), ["0", "6", "7", "8"]);
        assert_eq!(bot.view(id).await.unwrap().head.totals.turns, 4);
    }
    bot.recount().await;
    bot.say("s", "9").await.unwrap();
    assert_eq!(bot.live("s").await.unwrap(), ["0", "7", "8", "9"]);
    engine.close().await;
    // The session `silent` had no append since, so the journal does not have its shorter history.
    world.config = history_of(3);
    for text in ["10", "11"] {
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        assert_eq!(bot.live("silent").await.unwrap(), ["0", "6", "7", "8"]);
        bot.say("s", text).await.unwrap();
        bot.recount().await;
        engine.close().await;
    }
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.live("s").await.unwrap(), ["0", "9", "10", "11"]);
    assert_eq!(
        bot.journal("s", None).await.unwrap().len(),
        12,
        "the journal has them all"
    );
    engine.reconfigure(history_of(5)).await;
    for text in ["12", "13", "14"] {
        bot.say("s", text).await.unwrap();
    }
    assert_eq!(
        bot.live("s").await.unwrap(),
        ["0", "10", "11", "12", "13", "14"]
    );
}

#[tokio::test(start_paused = true)]
async fn failed_commit_after_lowered_history_cap_restores_journal_state() {
    let world = World::new(history_of(10));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for text in 0..9 {
        bot.say("s", &text.to_string()).await.unwrap();
    }
    engine.reconfigure(history_of(2)).await;
    world.store.fail_commits(1);
    bot.say("s", "lost").await.unwrap_err();
    assert_eq!(bot.live("s").await.unwrap(), ["0", "7", "8"]);
    bot.say("s", "9").await.unwrap();
    assert_eq!(bot.live("s").await.unwrap(), ["0", "8", "9"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn new_tenant_gets_its_limits_and_removed_tenant_the_defaults() {
    let limits = TenantLimits {
        max_history_turns: Some(1),
        ..TenantLimits::default()
    };
    let mut common = unswept();
    common.limits.max_history_turns = 3;
    let mut world = World::new(common.clone());
    let engine = world.open().await;
    let acme = Bot::acme(&engine);
    acme.say("s", "hello").await.unwrap();
    assert!(engine.tenants.get(&crate::kit::tenant_id("new")).is_none());
    engine
        .reconfigure(EngineConfig {
            tenants: vec![tenant("new", limits)],
            ..common.clone()
        })
        .await;
    let new = Bot::new(&engine, "new");
    for bot in [&new, &acme] {
        for text in ["0", "1", "2", "3"] {
            bot.say("t", text).await.unwrap();
        }
    }
    assert_eq!(new.live("t").await.unwrap(), ["0", "3"]);
    assert_eq!(acme.live("t").await.unwrap(), ["0", "1", "2", "3"]);
    assert_eq!(acme.list().await, ["t", "s"]);
    engine.close().await;
    world.config = EngineConfig {
        tenants: vec![],
        ..common
    };
    let engine = world.open().await;
    assert_eq!(Bot::acme(&engine).list().await, ["t", "s"]);
    sleep(TTL).await;
    assert_eq!(engine.sessions.sweep(None).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn reconfigured_queue_wait_flush_and_retention_apply() {
    let mut config = unswept();
    config.journal.queue_bytes = 1 << 10;
    config.journal.queue_wait = NEVER;
    let world = World::with_pool(config.clone());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    config.journal.queue_wait = Duration::from_millis(10);
    engine.reconfigure(config).await;
    world.store.hold_commits();
    let mut say = Box::pin(bot.say("s", "hello"));
    assert!(poll_once(&mut say).await.is_none());
    world.store.commit_begun(1).await;
    let mut late = Box::pin(bot.say("t", "hello"));
    assert!(poll_once(&mut late).await.is_none());
    advance(Duration::from_millis(11)).await;
    assert!(matches!(
        poll_once(&mut late).await,
        Some(Err(EngineError::JournalBusy))
    ));
    world.store.let_commits_go();
    say.await.unwrap();

    let mut config = unswept();
    let world = World::new(config.clone());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    bot.end("s").await.unwrap();
    sleep(100 * TTL).await;
    assert_eq!(bot.journal("s", None).await.unwrap(), ["hello"]);
    config.journal.retention = TTL;
    engine.reconfigure(config).await;
    sleep(2 * TTL).await;
    assert!(bot.journal("s", None).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn cap_enforcement_that_failed_is_retried() {
    let mut world = World::new(unswept_with_cap(9));
    world.config.sessions.sweep_interval = None;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    say_all(&bot, &["a", "b", "c", "d", "e", "f"]).await;
    world.store.fate([Fate::Full; 4]);
    let mut config = unswept_with_cap(2);
    config.sessions.sweep_interval = None;
    soon(engine.reconfigure(config)).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(bot.list().await, ["f", "e"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn cap_enforcement_refused_by_full_queue_is_retried() {
    let config = |cap| {
        let mut config = unswept_with_cap(cap);
        config.journal.queue_bytes = 1 << 10;
        config
    };
    let world = World::with_pool(config(9));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    say_all(&bot, &["a", "b", "c"]).await;
    world.store.hold_commits();
    let mut say = Box::pin(bot.say("a", "again"));
    assert!(poll_once(&mut say).await.is_none());
    let mut reconfigure = Box::pin(engine.reconfigure(config(1)));
    for _ in 0..10 {
        assert!(poll_once(&mut reconfigure).await.is_none());
        advance(Duration::from_secs(1)).await;
        if poll_once(&mut reconfigure).await.is_some() {
            break;
        }
    }
    world.store.let_commits_go();
    say.await.unwrap();
    sleep(TTL / 2).await;
    assert_eq!(bot.list().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn interrupted_sweep_is_retried_after_short_pause() {
    let mut world = World::new(config());
    world.config.sessions.sweep_interval = Some(100 * TTL);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    world.store.fail_commits(1);
    sleep(100 * TTL + Duration::from_secs(5)).await;
    assert_eq!(bot.stats().expired, 1);
}
