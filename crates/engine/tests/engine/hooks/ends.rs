//! Hooks receive each end they subscribe to once, with the whole session, and no other ends.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind, ChangeSet, EndReason, SummaryChange};
use memoird_core::compaction::{CompactionStatus, Summary, SummaryBody};
use memoird_core::ids::{SessionKey, Subject};
use memoird_core::outbox::DeliveryState;
use memoird_core::session::AppendCommand;
use memoird_core::time::{Steady, Timestamp};
use memoird_engine::EngineConfig;
use memoird_store::{ClockAnchor, Store};
use tokio::time::sleep;

use super::script::ScriptedHook;
use super::{ALL_ENDS, deliveries, hooked, only_delivery, states, turn_texts, with_hooks};
use crate::bot::{Bot, saying};
use crate::kit::unswept_with_cap;
use crate::kit::{ACME, TTL, World, capped, config, session_id, settle, tenant_id, unswept};

#[tokio::test(start_paused = true)]
async fn expired_session_is_delivered_by_its_sweep() {
    let hook = ScriptedHook::new([]);
    let engine = World::new(with_hooks(config(), [hooked("a", &hook)]))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    bot.say("s", "hello").await.unwrap();
    sleep(TTL).await;
    assert_eq!(hook.count(), 0, "nothing has ended");
    sleep(TTL / 4 + TTL / 100).await;
    let ended = hook.only();
    assert_eq!(
        (ended.reason, turn_texts(&ended)),
        (EndReason::Expired, vec!["hello".to_owned()])
    );
    assert_eq!(only_delivery(&engine).await.state, DeliveryState::Done);
    sleep(10 * TTL).await;
    assert_eq!(hook.count(), 1, "and only once");
}

#[tokio::test(start_paused = true)]
async fn session_that_expired_during_downtime_is_delivered_at_start() {
    let hook = ScriptedHook::new([]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    Bot::acme(&engine).say("s", "hello").await.unwrap();
    engine.close().await;
    sleep(TTL).await;
    let engine = world.open().await;
    settle().await;
    assert_eq!(hook.only().reason, EndReason::Expired);
    assert_eq!(states(&engine).await, [DeliveryState::Done]);
}

#[tokio::test(start_paused = true)]
async fn evicted_session_is_delivered() {
    let hook = ScriptedHook::new([]);
    let engine = World::new(with_hooks(unswept_with_cap(1), [hooked("a", &hook)]))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    let first = bot.say("s", "hello").await.unwrap();
    bot.say("t", "make room").await.unwrap();
    settle().await;
    let ended = hook.only();
    assert_eq!(
        (ended.reason, &ended.session),
        (EndReason::Evicted, &session_id("s"))
    );
    assert_eq!(ended.generation, first.record.generation);
    assert_eq!(turn_texts(&ended), ["hello"]);
}

#[tokio::test(start_paused = true)]
async fn ended_session_is_delivered_with_dropped_turns() {
    let hook = ScriptedHook::new([]);
    let mut config = with_hooks(unswept(), [hooked("a", &hook)]);
    config.limits.max_history_turns = 2;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    let texts: Vec<String> = (0..20).map(|text| text.to_string()).collect();
    for text in &texts {
        let subject = Subject::parse("ann").ok();
        bot.append(
            "s",
            AppendCommand {
                subject,
                ..saying(&[text])
            },
        )
        .await
        .unwrap();
        sleep(TTL / 20).await;
    }
    bot.patch("s", r#"{"a":1}"#, None).await.unwrap();
    assert_eq!(bot.live("s").await.unwrap().len(), 3);
    let view = bot.end("s").await.unwrap();
    settle().await;
    let (ended, call) = (hook.only(), hook.calls().remove(0));
    assert_eq!(turn_texts(&ended), texts);
    assert!(ended.turns.iter().map(|(seq, _)| *seq).eq(1..=20));
    assert_eq!(
        (&ended.tenant, &ended.session),
        (&tenant_id(ACME), &session_id("s"))
    );
    assert_eq!(ended.subject.as_ref().map(Subject::as_str), Some("ann"));
    assert_eq!((&*ended.state.json, ended.state.version), (r#"{"a":1}"#, 1));
    assert_eq!((ended.reason, ended.turns_omitted), (EndReason::Ended, 0));
    assert_eq!(ended.created_at, view.head.created_at);
    let lived_ms = ended.ended_at.as_ms() - ended.created_at.as_ms();
    assert_eq!(lived_ms, i64::try_from(TTL.as_millis()).unwrap());
    assert_eq!((call.attempt, call.delivery.hook.as_str()), (1, "a"));
    assert_eq!(call.delivery.generation, view.head.generation);
}

#[tokio::test(start_paused = true)]
async fn reset_is_delivered_only_with_run_hooks() {
    let hook = ScriptedHook::new([]);
    let engine = World::new(with_hooks(unswept(), [hooked("a", &hook)]))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    bot.say("s", "plain").await.unwrap();
    bot.reset("s").await.unwrap();
    settle().await;
    assert_eq!((hook.count(), deliveries(&engine).await.len()), (0, 0));
    bot.say("s", "with hooks").await.unwrap();
    let reset = bot.reset_with_hooks("s").await.unwrap();
    settle().await;
    let ended = hook.only();
    assert_eq!(
        (ended.generation, ended.reason),
        (reset.1, EndReason::Reset)
    );
    assert_eq!(turn_texts(&ended), ["with hooks"]);
    // The generation left by the reset has no turns, so its end creates no delivery.
    bot.end("s").await.unwrap();
    settle().await;
    assert_eq!((hook.count(), deliveries(&engine).await.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn generation_with_state_and_no_turns_is_delivered() {
    let hook = ScriptedHook::new([]);
    let engine = World::new(with_hooks(unswept(), [hooked("a", &hook)]))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    bot.say("s", "first").await.unwrap();
    bot.reset("s").await.unwrap();
    bot.patch("s", r#"{"step":1}"#, None).await.unwrap();
    bot.end("s").await.unwrap();
    settle().await;
    assert_eq!((hook.count(), turn_texts(&hook.only())), (1, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn append_to_expired_session_delivers_its_old_generation() {
    let hook = ScriptedHook::new([]);
    let engine = World::new(with_hooks(unswept(), [hooked("a", &hook)]))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    let first = bot.say("s", "first").await.unwrap();
    sleep(TTL).await;
    bot.say("s", "second").await.unwrap();
    settle().await;
    let ended = hook.only();
    assert_eq!(
        (ended.generation, ended.reason),
        (first.record.generation, EndReason::Expired)
    );
    assert_eq!(turn_texts(&ended), ["first"]);
    assert_eq!(bot.live("s").await.unwrap(), ["second"]);
}

#[tokio::test(start_paused = true)]
async fn session_not_loaded_since_start_is_delivered_whole() {
    let hook = ScriptedHook::new([]);
    let world = World::new(with_hooks(unswept_with_cap(1), [hooked("a", &hook)]));
    let engine = world.open().await;
    Bot::acme(&engine)
        .append("s", saying(&["one", "two"]))
        .await
        .unwrap();
    engine.close().await;
    let engine = world.open().await;
    Bot::acme(&engine).say("t", "make room").await.unwrap();
    settle().await;
    assert_eq!(turn_texts(&hook.only()), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn hook_gets_only_subscribed_reasons_and_tenants() {
    let reasons = [EndReason::Expired, EndReason::Evicted, EndReason::Ended];
    let hooks = reasons.map(|_| ScriptedHook::new([]));
    let mut configs = Vec::new();
    for (reason, hook) in reasons.into_iter().zip(&hooks) {
        let mut config = hooked(&format!("{reason:?}").to_lowercase(), hook);
        config.subscription.on = vec![reason];
        configs.push(config);
    }
    let foreign = ScriptedHook::new([]);
    let mut other = hooked("other", &foreign);
    other.subscription.tenants = vec![tenant_id("other")];
    configs.push(other);
    let tenants = vec![capped(ACME, 2), capped("other", 0)];
    let config = EngineConfig {
        tenants,
        ..with_hooks(unswept(), configs)
    };
    let engine = World::new(config).open().await;
    let (bot, other) = (Bot::acme(&engine), Bot::new(&engine, "other"));
    for id in ["evicted", "ended", "expired"] {
        bot.say(id, id).await.unwrap();
    }
    bot.end("ended").await.unwrap();
    sleep(TTL).await;
    engine.sessions.sweep(None).await.unwrap();
    other.say("x", "other").await.unwrap();
    other.end("x").await.unwrap();
    settle().await;
    let seen = |hook: &ScriptedHook| {
        hook.seen()
            .iter()
            .map(|ended| ended.session.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(seen(&hooks[0]), ["expired"]);
    assert_eq!(seen(&hooks[1]), ["evicted"]);
    assert_eq!(seen(&hooks[2]), ["ended", "x"]);
    assert_eq!(seen(&foreign), ["x"]);
    assert_eq!(deliveries(&engine).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn each_hook_gets_every_end_once() {
    let hooks = ["a", "b", "c"].map(|name| (name, ScriptedHook::new([])));
    let configs = hooks.iter().map(|(name, hook)| hooked(name, hook));
    let engine = World::new(with_hooks(unswept(), configs)).open().await;
    let bot = Bot::acme(&engine);
    for id in 0..10 {
        bot.say(&id.to_string(), "hello").await.unwrap();
        bot.end(&id.to_string()).await.unwrap();
    }
    settle().await;
    for (name, hook) in &hooks {
        let mut seen: Vec<_> = hook.seen().iter().map(|ended| ended.generation).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), hook.count()), (10, 10), "{name}");
    }
    assert_eq!(states(&engine).await, [DeliveryState::Done; 30]);
    assert_eq!(ALL_ENDS.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn oversized_generation_is_delivered_with_newest_turns() {
    let hook = ScriptedHook::new([]);
    let mut config = with_hooks(unswept(), [hooked("a", &hook)]);
    config.hooks.content_bytes = 100;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    for text in 0..30 {
        bot.say("s", &format!("{text:02}")).await.unwrap();
    }
    bot.end("s").await.unwrap();
    settle().await;
    let ended = hook.only();
    let count = ended.turns.len();
    assert!((1..30).contains(&count), "{count} turns");
    let newest: Vec<String> = (30 - count..30).map(|text| format!("{text:02}")).collect();
    assert_eq!(turn_texts(&ended), newest);
    assert_eq!(ended.turns_omitted, 30 - count as u64);
}

/// Whether or not the session was in memory when it ended.
#[tokio::test(start_paused = true)]
async fn summary_is_delivered_with_its_turns() {
    for is_loaded in [false, true] {
        let hook = ScriptedHook::new([]);
        let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
        let engine = world.open().await;
        Bot::acme(&engine)
            .append("s", saying(&["one", "two", "three"]))
            .await
            .unwrap();
        engine.close().await;
        let key = SessionKey {
            tenant: tenant_id(ACME),
            session: session_id("s"),
        };
        let head = world.store.load(&key, Steady(0)).unwrap().unwrap().head;
        let summary = Arc::new(Summary {
            number: 1,
            first_seq: 1,
            through_seq: 2,
            turns: 2,
            made_at: Timestamp::from_ms(5),
            by: "extractive".into(),
            body: SummaryBody::default(),
            text: "what was said".into(),
        });
        let compact = Change {
            generation: head.generation,
            expected_revision: head.revision,
            kind: ChangeKind::Compact {
                status: Arc::new(CompactionStatus {
                    summaries: 1,
                    ..CompactionStatus::default()
                }),
                summary: SummaryChange::Made(Arc::clone(&summary)),
                cuts: None,
            },
        };
        let set = ChangeSet {
            changes: vec![compact],
        };
        assert_eq!(
            world.store.commit(&ClockAnchor::default(), &[set]).unwrap(),
            [Ok(())]
        );
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        if is_loaded {
            bot.say("s", "four").await.unwrap();
        }
        bot.end("s").await.unwrap();
        settle().await;
        let ended = hook.only();
        assert_eq!(ended.summary, Some(summary));
        assert_eq!(turn_texts(&ended)[..3], ["one", "two", "three"]);
    }
}
