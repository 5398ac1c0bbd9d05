//! Limits on the memory and the journal bytes of sessions, and what happens above them.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{
    ContextRequest, Durability, EngineConfig, EngineError, EraseTarget, HookConfig, TenantLimits,
};
use memoird_store::ErasureStage;
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::hooks::script::{HookStep, ScriptedHook};
use crate::hooks::{hooked, with_hooks};
use crate::kit::{ACME, NEVER, TTL, World, capped, session_id, settle, tenant, unswept};
use crate::windows::{model, with_models};

const OTHER: &str = "other";

/// A process-wide limit on session memory in bytes.
fn limited(memory_bytes: u64) -> EngineConfig {
    EngineConfig {
        memory_bytes,
        ..unswept()
    }
}

fn long(name: &str) -> String {
    format!("{name} {}", "x".repeat(10_000))
}

#[tokio::test(start_paused = true)]
async fn idle_session_content_is_unloaded_and_reloaded() {
    let world = World::new(limited(100_000));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for number in 0..40 {
        bot.say(&number.to_string(), &long("first")).await.unwrap();
        settle().await;
        let memory = engine.stats().memory;
        assert!(memory.used_bytes() <= memory.limit_bytes, "{memory:?}");
    }
    let memory = engine.stats().memory;
    assert_eq!(memory.session_bytes, 40 << 10, "their heads stay");
    assert!(memory.unloads >= 35, "{memory:?}");
    let loads = world.store.loads();
    assert_eq!(bot.view("0").await.unwrap().head.last_seq, 1);
    assert_eq!(bot.list().await.len(), 40);
    assert_eq!(world.store.loads(), loads, "a head is enough for these");
    assert_eq!(bot.live("39").await.unwrap(), [long("first")]);
    assert_eq!(world.store.loads(), loads, "the last used is still there");
    assert_eq!(bot.live("0").await.unwrap(), [long("first")]);
    assert_eq!(bot.say("1", "second").await.unwrap().record.first_seq, 2);
    assert_eq!(
        bot.live("1").await.unwrap(),
        [long("first"), "second".into()]
    );
    assert!(world.store.loads() >= loads + 2);
    bot.recount().await;
    engine.close().await;
}

/// A memory limit in bytes for the tenant `acme` only.
fn limited_acme(memory_bytes: usize) -> EngineConfig {
    let own = TenantLimits {
        memory_bytes: Some(memory_bytes),
        ..TenantLimits::default()
    };
    EngineConfig {
        tenants: vec![tenant(ACME, own), capped(OTHER, 0)],
        ..unswept()
    }
}

#[tokio::test(start_paused = true)]
async fn tenant_over_its_memory_limit_unloads_only_its_sessions() {
    let world = World::new(limited_acme(100_000));
    let engine = world.open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    for number in 0..40 {
        other
            .say(&number.to_string(), &long("first"))
            .await
            .unwrap();
    }
    let of_other = engine.stats().memory.content_bytes;
    let of_acme = || engine.stats().memory.content_bytes - of_other;
    for number in 0..40 {
        acme.say(&number.to_string(), &long("first")).await.unwrap();
        settle().await;
        assert!(of_acme() <= 100_000, "{}", of_acme());
    }
    let loads = world.store.loads();
    assert_eq!(other.live("0").await.unwrap(), [long("first")]);
    assert_eq!(world.store.loads(), loads, "it never left");
    assert_eq!(acme.live("0").await.unwrap(), [long("first")]);
    assert_eq!(world.store.loads(), loads + 1);
    // A lowered limit applies to sessions already in memory.
    engine.reconfigure(limited_acme(20_000)).await;
    settle().await;
    assert!(of_acme() <= 20_000, "{}", of_acme());
    acme.recount().await;
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn durability_off_tenant_over_memory_limit_is_refused_alone() {
    let mut config = limited_acme(50_000);
    config.journal.durability = Durability::Off;
    let engine = World::new(config).open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    for number in 0..4 {
        acme.say(&number.to_string(), &long("hello")).await.unwrap();
    }
    let refused = acme.say("more", &long("hello")).await.unwrap_err();
    let is_own = matches!(
        refused,
        EngineError::MemoryFull { setting, limit_bytes: 50_000, .. } if setting.starts_with("tenants")
    );
    assert!(is_own, "{refused:?}");
    for number in 0..10 {
        other
            .say(&number.to_string(), &long("hello"))
            .await
            .unwrap();
    }
    acme.end("0").await.unwrap();
    acme.say("more", &long("hello")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unloading_does_not_change_expiry() {
    let world = World::new(limited(60_000));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", &long("hello")).await.unwrap();
    sleep(TTL / 2).await;
    for number in 0..10 {
        bot.say(&number.to_string(), &long("hello")).await.unwrap();
        settle().await;
    }
    assert_eq!(bot.live("a").await.unwrap(), [long("hello")]);
    sleep(TTL / 2).await;
    let gone = bot.live("a").await;
    assert!(matches!(gone, Err(EngineError::SessionNotFound { .. })));
    assert_eq!(bot.live("9").await.unwrap(), [long("hello")]);
}

/// A session that was just loaded is not the next one to be unloaded, however long it was idle.
#[tokio::test(start_paused = true)]
async fn reloaded_session_is_unloaded_last() {
    let world = World::new(limited(100_000));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for number in 0..20 {
        bot.say(&number.to_string(), &long("first")).await.unwrap();
        settle().await;
    }
    let before = world.store.loads();
    assert_eq!(bot.live("0").await.unwrap(), [long("first")]);
    assert_eq!(world.store.loads(), before + 1);
    for number in 0..3 {
        let more = format!("more-{number}");
        bot.say(&more, &long("first")).await.unwrap();
        settle().await;
        assert_eq!(bot.live("0").await.unwrap(), [long("first")]);
    }
    assert_eq!(world.store.loads(), before + 1, "it stayed");
    engine.close().await;
}

/// A use whose commit failed still counts after the session is unloaded.
#[tokio::test(start_paused = true)]
async fn unloaded_session_keeps_uncommitted_last_access() {
    let world = World::new(with_models(
        limited(60_000),
        vec![model("m", 1_000, &Arc::default())],
    ));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL / 2).await;
    world.store.fail_all_commits();
    bot.say("b", "hello").await.unwrap_err();
    let window = bot.context("a", ContextRequest::default()).await;
    window.unwrap();
    world.store.forgive();
    let loads = world.store.loads();
    for number in 0..10 {
        bot.say(&number.to_string(), &long("hello")).await.unwrap();
        settle().await;
    }
    sleep(TTL * 3 / 4).await;
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    assert!(world.store.loads() > loads, "it was unloaded");
}

#[tokio::test(start_paused = true)]
async fn tenant_with_most_memory_is_unloaded_first() {
    let mut config = limited(120_000);
    config.tenants = vec![capped("quiet", 0), capped("loud", 0)];
    let world = World::new(config);
    let engine = world.open().await;
    let (quiet, loud) = (Bot::new(&engine, "quiet"), Bot::new(&engine, "loud"));
    quiet.say("q", &long("hello")).await.unwrap();
    for number in 0..30 {
        settle().await;
        loud.say(&number.to_string(), &long("hello")).await.unwrap();
    }
    settle().await;
    let loads = world.store.loads();
    assert_eq!(quiet.live("q").await.unwrap(), [long("hello")]);
    assert_eq!(
        world.store.loads(),
        loads,
        "the quiet one's was never unloaded"
    );
    assert_eq!(loud.live("0").await.unwrap(), [long("hello")]);
    assert_eq!(world.store.loads(), loads + 1);
}

#[tokio::test(start_paused = true)]
async fn durability_off_append_over_memory_limit_is_refused_and_drops_nothing() {
    let mut config = limited(60_000);
    config.journal.durability = Durability::Off;
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut taken = 0;
    let refusal = loop {
        match bot.say("chat", &long("hello")).await {
            Ok(_) => taken += 1,
            Err(refusal) => break refusal,
        }
        settle().await;
    };
    assert!(
        matches!(refusal, EngineError::MemoryFull { used_bytes, limit_bytes: 60_000, .. } if used_bytes > 40_000),
        "{refusal:?}"
    );
    let other = bot.append("other", saying(&[&long("hello")])).await;
    assert!(matches!(other, Err(EngineError::MemoryFull { .. })));
    assert_eq!(bot.live("chat").await.unwrap().len(), taken);
    bot.end("chat").await.unwrap();
    bot.say("other", &long("hello")).await.unwrap();
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_whose_metadata_exceeds_memory_limit_are_refused() {
    let world = World::new(limited(10 << 10));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for number in 0..10 {
        bot.say(&number.to_string(), "hi").await.unwrap();
    }
    let refused = bot.say("one more", "hi").await;
    assert!(matches!(refused, Err(EngineError::MemoryFull { .. })));
    bot.say("0", "who is here already may go on").await.unwrap();
    bot.end("1").await.unwrap();
    bot.say("one more", "hi").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn journal_quota_refuses_appends_until_retention_frees_space() {
    let mut config = unswept();
    config.journal.retention = TTL;
    config.journal_bytes = 200_000;
    let own = TenantLimits {
        journal_bytes: Some(50_000),
        ..TenantLimits::default()
    };
    config.tenants = vec![tenant("small", own), capped("large", 0)];
    let world = World::new(config);
    let engine = world.open().await;
    let (small, large) = (Bot::new(&engine, "small"), Bot::new(&engine, "large"));
    let fill = async |bot: &Bot| {
        for number in 0.. {
            if let Err(refusal) = bot.say(&number.to_string(), &long("hello")).await {
                return (number, refusal);
            }
        }
        unreachable!("numbers do not end")
    };
    let (taken, refusal) = fill(&small).await;
    assert_eq!(taken, 4);
    let own_limit = matches!(
        refusal,
        EngineError::JournalQuota {
            scope: "tenant",
            ..
        }
    );
    assert!(own_limit, "{refusal:?}");
    let (taken, refusal) = fill(&large).await;
    assert!((14..=15).contains(&taken), "{taken}");
    let of_all = matches!(refusal, EngineError::JournalQuota { scope: "all", .. });
    assert!(of_all, "{refusal:?}");
    assert_eq!(
        large.live("0").await.unwrap(),
        [long("hello")],
        "reads go on"
    );
    large.patch("0", "{}", None).await.unwrap();
    engine.close().await;

    // On start, the journal bytes are counted from the store.
    let engine = world.open().await;
    let large = Bot::new(&engine, "large");
    settle().await;
    large.say("more", &long("hello")).await.unwrap_err();
    for number in 0..10 {
        large.end(&number.to_string()).await.unwrap();
    }
    sleep(4 * TTL).await;
    // A refusal triggers a recount.
    large.say("more", &long("hello")).await.unwrap_err();
    settle().await;
    large.say("more", &long("hello")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn erasure_frees_journal_quota_at_once() {
    let mut config = unswept();
    config.journal_bytes = 50_000;
    let engine = World::new(config).open().await;
    engine.start_erasing(Vec::new());
    let bot = Bot::acme(&engine);
    settle().await;
    for number in 0..4 {
        bot.say(&number.to_string(), &long("hello")).await.unwrap();
    }
    bot.say("more", &long("hello")).await.unwrap_err();
    for number in 0..2 {
        let target = EraseTarget::Session {
            session: session_id(&number.to_string()),
            generation: None,
        };
        let erased = engine.erasures.erase(&bot.tenant, target).await.unwrap();
        assert_eq!(erased.stage, ErasureStage::Done);
    }
    let refused = bot.say("more", &long("hello")).await;
    assert!(matches!(refused, Err(EngineError::JournalQuota { .. })));
    // A refusal triggers a recount.
    sleep(Duration::from_secs(2)).await;
    settle().await;
    bot.say("more", &long("hello")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hook_payloads_are_limited_per_hook_by_memory() {
    let (large, small) = (
        ScriptedHook::always(HookStep::Hang),
        ScriptedHook::always(HookStep::Hang),
    );
    let configured = |name: &str, hook: &Arc<ScriptedHook>| HookConfig {
        concurrency: 4,
        timeout: NEVER,
        ..hooked(name, hook)
    };
    let hooks = [configured("large", &large), configured("small", &small)];
    // Each hook may use an eighth of the memory, and a delivery holds its three turns twice.
    let of_one = 6 * long("turn").len() as u64;
    let memory_bytes = 8 * of_one * 8 / 3;
    let world = World::new(with_hooks(limited(memory_bytes), hooks));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for session in ["a", "b", "c", "d"] {
        for _ in 0..3 {
            bot.say(session, &long("turn")).await.unwrap();
        }
        bot.end(session).await.unwrap();
    }
    sleep(TTL).await;
    let counts = [large.count(), small.count()];
    assert_eq!(counts, [2, 2], "the others wait for room");
    assert!(
        large
            .seen()
            .iter()
            .all(|content| content.turns_omitted == 0)
    );
    let memory = engine.stats().memory;
    let expected = 4 * of_one..5 * of_one;
    assert!(expected.contains(&memory.hook_bytes), "{memory:?}");
    assert!(memory.hook_bytes <= memory_bytes / 4);
    engine.close().await;
    assert_eq!(engine.stats().memory.hook_bytes, 0);
}
