//! Per-session options: the TTL class, and keeping the whole history.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::change::EndReason;
use memoird_core::options::OptionsPatch;
use memoird_core::session::AppendCommand;
use memoird_engine::{ClassTtl, EngineConfig, EngineError, PatchCommand, TtlClasses};
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::hooks::script::ScriptedHook;
use crate::hooks::{hooked, with_hooks};
use crate::kit::{TTL, World, config, session_id, settle, unswept, unswept_with_cap};

fn classes(classes: &[(&str, Option<Duration>)]) -> TtlClasses {
    let classes = classes.iter();
    TtlClasses(
        classes
            .map(|(name, ttl)| ((*name).to_owned(), ClassTtl(*ttl)))
            .collect(),
    )
}

/// TTL classes: short, long and without expiry.
fn with_classes(mut config: EngineConfig) -> EngineConfig {
    let (short, long) = (Some(TTL / 2), Some(10 * TTL));
    config.sessions.ttl_classes = classes(&[("short", short), ("long", long), ("kept", None)]);
    config
}

fn in_class(class: &str) -> AppendCommand {
    AppendCommand {
        options: OptionsPatch {
            ttl_class: Some(class.into()),
            ..OptionsPatch::default()
        },
        ..saying(&["hello"])
    }
}

pub(crate) fn keeping_all(keep_all: bool, texts: &[&str]) -> AppendCommand {
    AppendCommand {
        options: OptionsPatch {
            keep_all: Some(keep_all),
            ..OptionsPatch::default()
        },
        ..saying(texts)
    }
}

/// Creates one session per class, used in this order.
async fn one_of_each(bot: &Bot) {
    for class in ["kept", "long", "default", "short"] {
        bot.append(class, in_class(class)).await.unwrap();
        settle().await;
    }
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

#[tokio::test(start_paused = true)]
async fn each_ttl_class_expires_on_time_and_none_never_expires() {
    let hook = ScriptedHook::new([]);
    let world = World::new(with_hooks(with_classes(config()), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    one_of_each(&bot).await;
    let left = |view: memoird_engine::SessionView| {
        let at = view.expires_at?.as_ms() - view.last_access.as_ms();
        Some(Duration::from_millis(u64::try_from(at).unwrap()))
    };
    assert_eq!(left(bot.view("short").await.unwrap()), Some(TTL / 2));
    assert_eq!(left(bot.view("default").await.unwrap()), Some(TTL));
    assert_eq!(left(bot.view("kept").await.unwrap()), None);
    // The sweep interval follows the shortest TTL.
    sleep(TTL * 3 / 4).await;
    assert_eq!((bot.stats().expired, hook.count()), (1, 1));
    assert_eq!(sorted(bot.list().await), ["default", "kept", "long"]);
    sleep(TTL / 2).await;
    assert_eq!((bot.stats().expired, hook.count()), (2, 2));
    sleep(11 * TTL).await;
    assert_eq!(bot.list().await, ["kept"]);
    sleep(1_000 * TTL).await;
    assert_eq!(bot.list().await, ["kept"]);
    assert_eq!(hook.seen()[0].reason, EndReason::Expired);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn class_never_is_built_in_unless_configured() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    bot.append("kept", in_class("never")).await.unwrap();
    assert_eq!(bot.view("kept").await.unwrap().expires_at, None);
    sleep(1_000 * TTL).await;
    assert_eq!(bot.list().await, ["kept"]);
    let mut own = config();
    own.sessions.ttl_classes = classes(&[("never", Some(TTL))]);
    let engine = World::new(own).open().await;
    let bot = Bot::acme(&engine);
    bot.append("kept", in_class("never")).await.unwrap();
    assert!(bot.view("kept").await.unwrap().expires_at.is_some());
}

#[tokio::test(start_paused = true)]
async fn session_past_ttl_of_its_class_is_gone_before_sweep() {
    let engine = World::new(with_classes(unswept())).open().await;
    let bot = Bot::acme(&engine);
    one_of_each(&bot).await;
    sleep(TTL / 2).await;
    assert_eq!(sorted(bot.list().await), ["default", "kept", "long"]);
    let gone = bot.view("short").await.unwrap_err();
    assert!(matches!(gone, EngineError::SessionNotFound { .. }));
    // A use prolongs a session, and an append may change its class.
    sleep(TTL / 4).await;
    bot.append("default", in_class("short")).await.unwrap();
    bot.append("long", in_class("default")).await.unwrap();
    sleep(TTL / 2).await;
    assert_eq!(sorted(bot.list().await), ["kept", "long"]);
    let swept = engine.sessions.sweep(None).await.unwrap();
    assert_eq!(swept.len(), 1, "{swept:?}");
    sleep(TTL / 2).await;
    let swept = engine.sessions.sweep(None).await.unwrap();
    assert_eq!(swept[0].session.as_str(), "long");
    assert_eq!(bot.list().await, ["kept"]);
}

#[tokio::test(start_paused = true)]
async fn ttl_classes_survive_restart_and_unexpiring_session_is_evictable() {
    let world = World::new(with_classes(unswept_with_cap(4)));
    let engine = world.open().await;
    one_of_each(&Bot::acme(&engine)).await;
    engine.close().await;
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    sleep(TTL / 2).await;
    engine.sessions.sweep(None).await.unwrap();
    assert_eq!(sorted(bot.list().await), ["default", "kept", "long"]);
    for id in ["a", "b"] {
        bot.say(id, "hello").await.unwrap();
        settle().await;
    }
    assert_eq!(bot.list().await, ["b", "a", "default", "long"]);
    assert_eq!(bot.stats().evicted, 1);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn sessions_of_removed_ttl_class_get_default_ttl() {
    let engine = World::new(with_classes(unswept())).open().await;
    let bot = Bot::acme(&engine);
    one_of_each(&bot).await;
    sleep(TTL / 4).await;
    let mut fewer = unswept();
    fewer.sessions.ttl_classes = classes(&[("long", Some(10 * TTL))]);
    engine.reconfigure(fewer.clone()).await;
    assert_eq!(bot.list().await.len(), 4);
    // A bot may repeat a removed class for a session that has it, but for no other.
    bot.append("short", in_class("short")).await.unwrap();
    let refused = bot.append("new", in_class("short")).await.unwrap_err();
    let expected = CoreError::TtlClassUnknown {
        class: "short".into(),
        known: vec!["long".into(), "never".into(), "default".into()],
    };
    assert!(matches!(refused, EngineError::Core(error) if error == expected));
    sleep(TTL * 3 / 4).await;
    let ended = engine.sessions.sweep(None).await.unwrap();
    let swept = ended.iter().map(|ended| ended.session.to_string());
    assert_eq!(sorted(swept.collect()), ["default", "kept"]);
    // Restoring the class restores its TTL.
    engine.reconfigure(with_classes(unswept())).await;
    assert_eq!(
        bot.list().await,
        ["long"],
        "the short one is past its time again"
    );
    sleep(9 * TTL).await;
    assert_eq!(engine.sessions.sweep(None).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn uncommitted_ttl_class_does_not_apply() {
    let world = World::new(with_classes(unswept()));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    engine.sessions.sweep(None).await.unwrap();
    world.store.fail_commits(1);
    bot.append("a", in_class("kept")).await.unwrap_err();
    settle().await;
    assert!(bot.view("a").await.unwrap().expires_at.is_some());
    sleep(TTL).await;
    assert_eq!(engine.sessions.sweep(None).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn keep_all_session_drops_nothing_and_is_refused_when_full() {
    let mut config = unswept();
    config.limits.max_history_turns = 3;
    config.limits.max_history_bytes = 2_000;
    let world = World::new(config);
    let mut bot = Bot::acme(&world.open().await);
    for number in 0..20 {
        let text = number.to_string();
        let all = bot
            .append("all", keeping_all(true, &[&text]))
            .await
            .unwrap();
        assert_eq!(all.record.dropped_turns, 0);
        bot.say("fifo", &text).await.unwrap();
    }
    for _ in 0..2 {
        assert_eq!(bot.live("all").await.unwrap().len(), 20);
        assert_eq!(bot.live("fifo").await.unwrap().len(), 4);
        bot.recount().await;
        bot.engine.close().await;
        bot = Bot::acme(&world.open().await);
    }
    let before = bot.view("all").await.unwrap().head;
    let long = "x".repeat(1_700);
    let refused = bot.say("all", &long).await.unwrap_err();
    assert!(matches!(
        refused,
        EngineError::Core(CoreError::HistoryFull { limit: 2_000, .. })
    ));
    assert_eq!(
        bot.view("all").await.unwrap().head.last_seq,
        before.last_seq
    );
    // A lowered limit does not drop turns of such a session.
    let mut lower = world.config.clone();
    lower.limits.max_history_bytes = 500;
    bot.engine.reconfigure(lower).await;
    assert_eq!(bot.live("all").await.unwrap().len(), 20);
    bot.engine.reconfigure(world.config.clone()).await;
    // From now on turns are dropped first in, first out.
    bot.append("all", keeping_all(false, &["last"]))
        .await
        .unwrap();
    assert_eq!(bot.live("all").await.unwrap(), ["0", "18", "19", "last"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn patch_of_options_touches_session_and_keeps_state() {
    let engine = World::new(with_classes(unswept())).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL / 2).await;
    let command = PatchCommand {
        options: in_class("long").options,
        ..PatchCommand::default()
    };
    let commands = &engine.commands;
    let (a, b) = (session_id("a"), session_id("b"));
    let patched = commands.patch_state(&bot.tenant, &a, &command);
    assert_eq!(patched.await.unwrap().session.unwrap().1.version, 0);
    sleep(9 * TTL).await;
    assert_eq!(bot.list().await, ["a"]);
    let gone = commands.patch_state(&bot.tenant, &b, &command);
    assert!(matches!(
        gone.await,
        Err(EngineError::SessionNotFound { .. })
    ));
}
