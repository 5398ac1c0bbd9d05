//! Eviction at the session caps of a tenant and of the process.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use memoird_engine::{EngineConfig, TenantLimits};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::Bot;
use crate::kit::{TTL, World, capped, settle, tenant, unswept, unswept_with_cap};

/// A process-wide cap, and tenants without caps.
fn process_cap(max_sessions: usize, tenants: &[&str]) -> EngineConfig {
    let mut config = unswept();
    config.sessions.max_sessions = max_sessions;
    let uncapped = TenantLimits {
        max_sessions: Some(0),
        ..TenantLimits::default()
    };
    config.tenants = tenants
        .iter()
        .map(|id| tenant(id, uncapped.clone()))
        .collect();
    config
}

#[tokio::test(start_paused = true)]
async fn tenant_cap_evicts_least_recently_used_session_of_that_tenant() {
    let mut config = unswept();
    config.tenants = vec![capped("small", 2), capped("other", 0)];
    let engine = World::new(config).open().await;
    let (bot, other) = (Bot::new(&engine, "small"), Bot::new(&engine, "other"));
    other.say("x", "older than all").await.unwrap();
    for id in ["a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    // An append moves `a` to the back of the LRU list. Reading `b` does not.
    bot.say("a", "again").await.unwrap();
    bot.view("b").await.unwrap();
    bot.live("b").await.unwrap();
    bot.say("c", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["c", "a"]);
    bot.patch("a", "{}", None).await.unwrap();
    bot.say("d", "hello").await.unwrap();
    assert_eq!(bot.list().await, ["d", "a"]);
    assert_eq!(other.list().await, ["x"]);
    let stats = bot.stats();
    assert_eq!(
        (stats.evicted, stats.expired, stats.sessions_live),
        (2, 0, 2)
    );
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn process_cap_evicts_from_tenant_with_most_sessions() {
    let engine = World::new(process_cap(5, &["large", "small", "new"]))
        .open()
        .await;
    let (large, small, new) = (
        Bot::new(&engine, "large"),
        Bot::new(&engine, "small"),
        Bot::new(&engine, "new"),
    );
    small.say("s1", "the oldest of all").await.unwrap();
    for id in ["l1", "l2", "l3", "l4"] {
        large.say(id, "hello").await.unwrap();
    }
    new.say("n1", "hello").await.unwrap();
    small.say("s2", "hello").await.unwrap();
    assert_eq!(large.list().await, ["l4", "l3"]);
    assert_eq!(small.list().await, ["s2", "s1"]);

    // `small` and `large` are tied at two sessions, so the requesting tenant evicts its own.
    small.say("s3", "hello").await.unwrap();
    large.say("l5", "hello").await.unwrap();
    assert_eq!(
        (small.list().await, large.list().await),
        (
            vec!["s3".to_owned(), "s2".to_owned()],
            vec!["l5".to_owned(), "l4".to_owned()],
        )
    );
    assert_eq!(new.list().await, ["n1"]);
    assert_eq!(
        (
            large.stats().evicted,
            small.stats().evicted,
            new.stats().evicted
        ),
        (3, 1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn evicting_expired_session_counts_as_expired() {
    let engine = World::new(unswept_with_cap(1)).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL).await;
    bot.say("b", "hello").await.unwrap();
    let stats = bot.stats();
    assert_eq!(
        (stats.expired, stats.evicted, stats.sessions_live),
        (1, 0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn concurrent_starts_never_exceed_caps() {
    let mut config = process_cap(40, &["a", "b", "c"]);
    config.tenants.push(capped("d", 7));
    let world = World::new(config);
    let engine = world.open().await;
    let mut calls = JoinSet::new();
    for call in 0..600 {
        let bot = Bot::new(&engine, ["a", "b", "b", "c", "d", "d"][call % 6]);
        calls.spawn(async move {
            // Stagger the calls, so that some arrive while others are committing.
            sleep(Duration::from_millis(call as u64 % 5)).await;
            bot.say(&format!("s{}", call % 400), "hello").await.unwrap();
        });
    }
    let live = || {
        engine
            .stats()
            .tenants
            .into_iter()
            .map(|tenant| tenant.sessions_live)
    };
    while let Some(done) = calls.join_next().await {
        done.unwrap();
        assert!(live().sum::<u64>() <= 40);
        assert!(Bot::new(&engine, "d").stats().sessions_live <= 7);
    }
    settle().await;
    assert_eq!(live().sum::<u64>(), 40);
    assert_eq!(world.store.record().live.len(), 40);
    for tenant in engine.stats().tenants {
        let gone = tenant.evicted + tenant.expired + tenant.ended;
        assert_eq!(
            tenant.sessions_created - gone,
            tenant.sessions_live,
            "{tenant:?}"
        );
        Bot::new(&engine, tenant.id.as_str()).recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_appends_create_one_generation() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let mut calls = JoinSet::new();
    for call in 0..100 {
        let bot = Bot::acme(&engine);
        calls.spawn(async move {
            bot.say("a", &call.to_string())
                .await
                .unwrap()
                .record
                .generation
        });
    }
    let generations = calls.join_all().await;
    assert!(
        generations
            .iter()
            .all(|generation| *generation == generations[0])
    );
    let bot = Bot::acme(&engine);
    assert_eq!(bot.journal("a", None).await.unwrap().len(), 100);
    assert_eq!(bot.stats().sessions_created, 1);
}

#[tokio::test(start_paused = true)]
async fn cap_zero_disables_eviction() {
    let engine = World::new(unswept_with_cap(0)).open().await;
    let bot = Bot::acme(&engine);
    for id in 0..200 {
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    assert_eq!((bot.stats().sessions_live, bot.stats().evicted), (200, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_enforcement_of_lowered_cap_evicts_only_the_excess() {
    for round in 0..20 {
        let engine = World::with_pool(unswept_with_cap(60)).open().await;
        let bot = Bot::acme(&engine);
        for number in 0..60 {
            bot.say(&format!("s{number}"), "hello").await.unwrap();
        }
        engine.adopt(unswept_with_cap(10));
        let mut enforcing = JoinSet::new();
        for _ in 0..4 {
            let engine = engine.clone();
            enforcing.spawn(async move { engine.enforce_limits().await });
        }
        enforcing.join_all().await;
        assert_eq!(bot.stats().sessions_live, 10, "round {round}");
        engine.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn enforce_limits_waits_for_evictions_of_concurrent_call() {
    let world = World::with_pool(unswept_with_cap(3));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        bot.say(id, "hello").await.unwrap();
    }
    let commits = world.store.commits();
    world.store.hold_commits();
    engine.adopt(unswept_with_cap(1));
    let mut first = JoinSet::new();
    first.spawn({
        let engine = engine.clone();
        async move { engine.enforce_limits().await }
    });
    world.store.commit_begun(commits + 1).await;
    let mut second = pin!(engine.enforce_limits());
    let mut context = Context::from_waker(Waker::noop());
    let polled = second.as_mut().poll(&mut context);
    assert!(polled.is_pending(), "the ends are not written yet");
    world.store.let_commits_go();
    second.await;
    first.join_all().await;
    assert_eq!(bot.stats().evicted, 2);
}

/// Each commit takes 150 ms, and each start needs two: one to evict, one to create.
#[tokio::test(start_paused = true)]
async fn concurrent_starts_at_cap_one_all_succeed() {
    let world = World::with_pool(unswept_with_cap(1));
    let engine = world.open().await;
    world.store.hold_commits();
    let mut calls = JoinSet::new();
    for call in 0..32 {
        let bot = Bot::acme(&engine);
        calls.spawn(async move { bot.say(&format!("s{call}"), "hello").await });
    }
    let mut commits = 0;
    let mut done = 0;
    while done < 32 {
        tokio::select! {
            () = world.store.commit_begun(commits + 1) => {
                commits += 1;
                tokio::time::advance(Duration::from_millis(150)).await;
                world.store.let_one_commit_go();
            }
            Some(answer) = calls.join_next() => {
                answer.unwrap().unwrap();
                done += 1;
            }
        }
    }
    world.store.let_commits_go();
    assert!(commits >= 32, "{commits} commits: a place at a time");
    assert_eq!(Bot::acme(&engine).stats().sessions_created, 32);
}
