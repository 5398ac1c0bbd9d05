//! Consolidation sweeps: when they are due, only once, and dry runs without effect.

use std::time::Duration;

use memoird_core::ids::MemoryId;
use memoird_engine::Blocking;
use memoird_memories::RecallRequest;
use memoird_memories::rules::{Patch, Pin};
use tokio::time::sleep;

use super::{ANN, Daemon, acme, query, world};
use crate::world::Bot;
use crate::world::{Config, unswept};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// Without scheduled sweeps.
fn asked_only() -> Config {
    let mut config = unswept();
    config.long_term.consolidation_interval = None;
    config
}

/// Recalls a memory by several queries on two days, enough to be pinned.
async fn prove(bot: &Bot, words: &str) {
    for extra in ["please", "again", "once more"] {
        let asked = RecallRequest {
            limit: 1,
            ..query(ANN, &format!("{words} {extra}"))
        };
        assert_eq!(bot.recall(asked).await.unwrap().hits.len(), 1);
        sleep(DAY / 2).await;
    }
}

async fn dream(bot: &Bot, dry_run: bool) -> String {
    let reports = bot
        .memories
        .consolidation
        .run(Some(&bot.tenant.id), dry_run)
        .await
        .unwrap();
    assert_eq!(reports.len(), 1);
    reports[0].1.clone()
}

/// Returns a number from a report.
fn number(report: &str, name: &str) -> u64 {
    let (_, rest) = report.split_once(&format!("\"{name}\":")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

async fn pin_of(bot: &Bot, id: MemoryId) -> Option<Pin> {
    bot.memory(id).await.unwrap().pin
}

#[tokio::test(start_paused = true)]
async fn often_recalled_memory_is_pinned_except_in_dry_run() {
    let mut world = world();
    world.config = asked_only();
    let bot = acme(&world.open().await);
    let (tea, chess) = (
        bot.learn(ANN, "likes tea").await,
        bot.learn(ANN, "likes chess").await,
    );
    prove(&bot, "tea").await;
    assert!(!bot.manifest(ANN).await.contains("pinned"));
    let dry = dream(&bot, true).await;
    assert_eq!(
        (number(&dry, "promoted"), number(&dry, "considered")),
        (1, 2)
    );
    assert_eq!(pin_of(&bot, tea).await, None);
    let real = dream(&bot, false).await;
    assert_eq!(dry, real, "the same report");
    assert_eq!(
        (pin_of(&bot, tea).await, pin_of(&bot, chess).await),
        (Some(Pin::Consolidation), None)
    );
    assert!(
        bot.manifest(ANN).await.contains("pinned"),
        "the one in the cache was old"
    );
    assert_eq!(bot.memories.counts(&bot.tenant.id).promoted, 1);
    assert_eq!(number(&dream(&bot, false).await, "promoted"), 0);
    // No longer used.
    sleep(61 * DAY).await;
    assert_eq!(number(&dream(&bot, false).await, "demoted"), 1);
    assert_eq!(pin_of(&bot, tea).await, None);
    assert!(
        bot.memory(chess).await.is_ok(),
        "nothing is deleted without a policy"
    );
}

#[tokio::test(start_paused = true)]
async fn memory_past_retention_is_forgotten() {
    let mut world = world();
    world.config = asked_only();
    // Retention of kind project.
    world.config.long_term.consolidation.retention_days = [None, None, Some(90), None];
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "ships on Friday").await;
    sleep(89 * DAY).await;
    assert_eq!(number(&dream(&bot, false).await, "deleted"), 0);
    assert!(bot.manifest(ANN).await.contains("Friday"));
    sleep(2 * DAY).await;
    assert_eq!(number(&dream(&bot, true).await, "deleted"), 1);
    assert!(bot.memory(id).await.is_ok());
    assert_eq!(number(&dream(&bot, false).await, "deleted"), 1);
    assert!(super::is_not_found(&bot.memory(id).await));
    assert_eq!(bot.manifest(ANN).await, "");
}

/// Pins a memory at each point of a sweep that would delete it.
#[tokio::test(start_paused = true)]
async fn memory_used_during_sweep_is_kept() {
    for yields in 0..12 {
        let mut world = world();
        world.config = asked_only();
        world.config.long_term.consolidation.retention_days = [None, None, Some(1), None];
        world.blocking = Blocking::Pool;
        let bot = acme(&world.open().await);
        bot.learn(ANN, "ships on Friday").await;
        let id = bot.learn(ANN, "rests on Sunday").await;
        sleep(2 * DAY).await;
        let pin = async {
            for _ in 0..yields {
                tokio::task::yield_now().await;
                std::thread::yield_now();
            }
            let patch = Patch {
                pinned: Some(true),
                ..Patch::default()
            };
            bot.memories
                .facts
                .update(&bot.tenant, id, None, patch)
                .await
        };
        let (_, pinned) = tokio::join!(dream(&bot, false), pin);
        assert_eq!(bot.memory(id).await.is_ok(), pinned.is_ok(), "{yields}");
        bot.engine.close().await;
    }
}

#[test]
fn sweep_runs_once_per_interval_across_restarts() {
    let mut daemon = Daemon::new(asked_only());
    let (tea, chess) = daemon.live(async |engine, _| {
        let bot = acme(engine);
        let tea = bot.learn(ANN, "likes tea").await;
        let chess = bot.learn(ANN, "likes chess").await;
        prove(&bot, "tea").await;
        (tea, chess)
    });
    daemon.config = unswept();
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        sleep(HOUR).await;
        assert_eq!(
            pin_of(&bot, tea).await,
            Some(Pin::Consolidation),
            "there was none so far"
        );
        // The last sweep came too early for it. The next one does not.
        prove(&bot, "chess").await;
        sleep(33 * HOUR).await;
        assert_eq!(pin_of(&bot, chess).await, Some(Pin::Consolidation));
        assert_eq!(bot.memories.counts(&bot.tenant.id).promoted, 2);
    });
    let go = daemon.live(async |engine, _| {
        let bot = acme(engine);
        let go = bot.learn(ANN, "likes go").await;
        // The next sweep finds one recall of it, and the one after that all of them.
        prove_at_once(&bot, "go").await;
        go
    });
    for hour in 0..48 {
        let pinned = daemon.live(async |engine, _| {
            sleep(HOUR).await;
            pin_of(&acme(engine), go).await.is_some()
        });
        if pinned {
            assert!((1..6).contains(&hour), "after {hour} hours");
            return;
        }
    }
    panic!("short lives put sweeps off for good");
}

/// The same within a day, across midnight.
async fn prove_at_once(bot: &Bot, words: &str) {
    for extra in ["please", "again", "once more"] {
        bot.recall(RecallRequest {
            limit: 1,
            ..query(ANN, &format!("{words} {extra}"))
        })
        .await
        .unwrap();
        sleep(8 * HOUR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_skips_tenants_without_memories() {
    let world = world();
    let bot = acme(&world.open().await);
    assert!(
        bot.memories
            .consolidation
            .run(None, false)
            .await
            .unwrap()
            .is_empty()
    );
    bot.learn(ANN, "likes tea").await;
    assert_eq!(
        bot.memories
            .consolidation
            .run(None, true)
            .await
            .unwrap()
            .len(),
        1
    );
}
