//! State that is restored after a restart.

use std::time::Duration;

use memoird_core::ids::Subject;
use memoird_core::session::AppendCommand;
use memoird_engine::EngineConfig;
use tokio::time::sleep;

use crate::bot::{Bot, named, saying};
use crate::kit::{TTL, World, capped, config, settle, soon, unswept, unswept_with_cap};

#[tokio::test(start_paused = true)]
async fn restart_restores_sessions_states_keys_and_counters() {
    let mut config = unswept();
    config.limits.max_history_turns = 3;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["c", "a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    settle().await;
    let subject = Some(Subject::parse("somebody").unwrap());
    let command = AppendCommand {
        subject,
        partial: true,
        ..named("key", &["x"])
    };
    let before = bot.append("a", command.clone()).await.unwrap();
    for text in ["2", "3", "4"] {
        bot.say("c", text).await.unwrap();
    }
    let state = bot.patch("c", r#"{"a":1}"#, None).await.unwrap();
    bot.say("ended", "hello").await.unwrap();
    bot.end("ended").await.unwrap();
    let (views, stats) = (bot.views(100).await, bot.stats());
    engine.close().await;

    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let again = bot.views(100).await;
    assert_eq!(again.len(), 3);
    for (view, again) in views.iter().zip(&again) {
        assert_eq!((&view.session, &view.head), (&again.session, &again.head));
    }
    assert_eq!(bot.list().await, ["c", "a", "b"]);
    let counted = bot.stats();
    assert_eq!(
        counted.turns_live, stats.turns_live,
        "also of what was not asked for yet"
    );
    assert_eq!(counted.bytes_live, stats.bytes_live);
    assert_eq!(bot.live("c").await.unwrap(), ["hello", "2", "3", "4"]);
    let patched = bot.patch("c", "{}", Some(state.version)).await.unwrap();
    assert_eq!(patched.json, state.json);
    let repeated = bot.append("a", command).await.unwrap();
    assert!(repeated.duplicate);
    assert_eq!(repeated.record, before.record);
    assert_eq!(bot.say("a", "next").await.unwrap().record.first_seq, 3);
    assert_eq!(
        bot.view("a").await.unwrap().subject().unwrap().as_str(),
        "somebody"
    );
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn session_only_in_journal_can_be_used_ended_and_evicted() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["evicted", "ended", "patched", "reset", "appended"] {
        settle().await;
        bot.append(id, saying(&["one", "two"])).await.unwrap();
    }
    engine.close().await;

    let capped = EngineConfig {
        tenants: vec![capped("acme", 5)],
        ..unswept()
    };
    let engine = World {
        config: capped,
        ..world.clone()
    }
    .open()
    .await;
    let bot = Bot::acme(&engine);
    bot.say("new", "hello").await.unwrap();
    assert_eq!(bot.end("ended").await.unwrap().head.last_seq, 2);
    assert_eq!(
        bot.patch("patched", r#"{"a":1}"#, Some(0))
            .await
            .unwrap()
            .version,
        1
    );
    bot.reset("reset").await.unwrap();
    assert_eq!(
        bot.say("appended", "three").await.unwrap().record.first_seq,
        3
    );
    assert_eq!(bot.list().await, ["appended", "reset", "patched", "new"]);
    assert_eq!((bot.stats().evicted, bot.stats().ended), (1, 2));
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn lru_order_survives_restart() {
    let world = World::new(EngineConfig {
        tenants: vec![capped("acme", 3)],
        ..unswept()
    });
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    settle().await;
    bot.say("a", "again").await.unwrap();
    engine.close().await;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("d", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["d", "a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn session_that_expired_during_downtime_ends_after_start() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("old", "hello").await.unwrap();
    sleep(TTL / 2).await;
    bot.say("young", "hello").await.unwrap();
    engine.close().await;
    sleep(TTL / 2).await;

    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    settle().await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 1));
    assert_eq!(world.store.record().live.len(), 1);
    assert_eq!(bot.list().await, ["young"]);
    assert_eq!(bot.journal("old", None).await.unwrap(), ["hello"]);
}

#[tokio::test(start_paused = true)]
async fn start_does_not_wait_for_ends_of_expired_sessions() {
    let world = World::with_pool(unswept_with_cap(2));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["old", "older"] {
        bot.say(id, "hello").await.unwrap();
    }
    engine.close().await;
    sleep(TTL).await;

    let commits = world.store.commits();
    world.store.hold_commits();
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.stats().expired, 0, "the journal cannot be written");
    assert_eq!(
        bot.list().await,
        [""; 0],
        "and yet no expired session is shown"
    );
    world.store.commit_begun(commits + 1).await;
    world.store.let_commits_go();
    let said = bot.say("old", "a new life").await.unwrap();
    assert_eq!(said.record.first_seq, 1);
    soon(async {
        while bot.stats().expired < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bot.say("new", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["new", "old"]);
    assert_eq!(
        bot.stats().evicted,
        0,
        "the caps counted what had expired no more"
    );
}

#[tokio::test(start_paused = true)]
async fn lowered_caps_evict_longest_idle_after_start() {
    let mut config = unswept();
    config.tenants = vec![capped("small", 0), capped("large", 0)];
    let mut world = World::new(config);
    let engine = world.open().await;
    for (tenant, count) in [("small", 3), ("large", 6)] {
        for id in 0..count {
            settle().await;
            Bot::new(&engine, tenant)
                .say(&id.to_string(), "hello")
                .await
                .unwrap();
        }
    }
    engine.close().await;

    world.config.sessions.max_sessions = 5;
    world.config.tenants = vec![capped("small", 2), capped("large", 0)];
    let engine = world.open().await;
    let (small, large) = (Bot::new(&engine, "small"), Bot::new(&engine, "large"));
    settle().await;
    assert_eq!(small.list().await, ["2", "1"]);
    assert_eq!(large.list().await, ["5", "4", "3"]);
    assert_eq!((small.stats().evicted, large.stats().evicted), (1, 3));
    assert_eq!(world.store.record().live.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn lowered_history_cap_trims_session_on_load() {
    let mut world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.append("a", saying(&["1", "2", "3", "4", "5"]))
        .await
        .unwrap();
    engine.close().await;
    world.config.limits.max_history_turns = 2;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.live("a").await.unwrap(), ["1", "4", "5"]);
    bot.recount().await;
    bot.say("a", "6").await.unwrap();
    assert_eq!(bot.live("a").await.unwrap(), ["1", "5", "6"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn tenant_missing_in_config_keeps_its_sessions_until_they_end() {
    let mut world = World::new(config());
    let engine = world.open().await;
    Bot::acme(&engine).say("a", "hello").await.unwrap();
    engine.close().await;
    world.config.tenants = Vec::new();
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    bot.say("a", "again").await.unwrap();
    sleep(TTL + TTL / 4 + Duration::from_millis(1)).await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 0));
}
