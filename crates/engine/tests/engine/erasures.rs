//! Erasures of several tenants.
//!
//! One tenant's erasures do not delay another's, and freed pages are wiped once for many of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::ids::{Subject, TenantId};
use memoird_core::outbox::DeliveryState;
use memoird_core::session::AppendCommand;
use memoird_engine::{EraseFuture, EraseRequest, EraseTarget, ErasedElsewhere, Eraser};
use memoird_store::{ErasureStage, Store};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::hooks::script::ScriptedHook;
use crate::hooks::{hooked, states, with_hooks};
use crate::kit::{
    ACME, Daemon, World, capped, poll_once, session_id, settle, soon, tenant_id, unswept,
};

const OTHER: &str = "other";

/// An eraser that takes a second per call, or `delay`, and records the tenants.
#[derive(Debug, Default)]
struct SlowEraser {
    called_for: Mutex<Vec<TenantId>>,
    delay: Option<Duration>,
    /// Number of calls for each tenant that report that there is more.
    steps: usize,
}

impl Eraser for SlowEraser {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn erase(&self, request: EraseRequest) -> EraseFuture<'_> {
        Box::pin(async move {
            let calls = {
                let mut called_for = self.called_for.lock().unwrap();
                called_for.push(request.tenant.clone());
                let own = called_for.iter().filter(|of| **of == request.tenant);
                own.count()
            };
            sleep(self.delay.unwrap_or(Duration::from_secs(1))).await;
            Ok(ErasedElsewhere {
                has_more: calls <= self.steps,
                ..ErasedElsewhere::default()
            })
        })
    }
}

fn two_tenants() -> World {
    let mut config = unswept();
    config.tenants = vec![capped(ACME, 1_000), capped(OTHER, 1_000)];
    World::new(config)
}

/// Erases these sessions concurrently. Each task returns whether the erasure was done on return.
fn ask(bot: &Bot, sessions: impl IntoIterator<Item = String>) -> JoinSet<bool> {
    let mut asked = JoinSet::new();
    for session in sessions {
        let bot = bot.clone();
        asked.spawn(async move {
            let target = EraseTarget::Session {
                session: session_id(&session),
                generation: None,
            };
            let erased = bot.engine.erasures.erase(&bot.tenant, target).await;
            erased.unwrap().stage == ErasureStage::Done
        });
    }
    asked
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("chat-{number}"))
}

#[tokio::test(start_paused = true)]
async fn many_erasures_of_one_tenant_do_not_delay_others() {
    let world = two_tenants();
    let engine = world.open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    for session in names(30) {
        acme.say(&session, "hello").await.unwrap();
    }
    other.say("one", "hello").await.unwrap();
    let flood = ask(&acme, names(30));
    sleep(Duration::from_millis(1)).await;
    let one = ask(&other, ["one".to_owned()]);
    sleep(Duration::from_millis(1)).await;
    let eraser = Arc::new(SlowEraser::default());
    engine.start_erasing(vec![eraser.clone()]);
    assert_eq!(soon(one.join_all()).await, [true], "within five seconds");
    let called_for = eraser.called_for.lock().unwrap().clone();
    let turn = called_for.iter().position(|of| *of == tenant_id(OTHER));
    assert!(turn.unwrap() <= 1, "{called_for:?}");
    soon(flood.join_all()).await;
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn one_page_cleaning_serves_many_erasures() {
    let world = two_tenants();
    let engine = world.open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    engine.start_erasing(Vec::new());
    let nothing = ask(&acme, names(64)).join_all().await;
    assert!(nothing.iter().all(|is_done| *is_done), "{nothing:?}");
    let before = world.store.cleanings();
    assert!((1..=2).contains(&before), "{before} for 64 jobs");
    for session in names(40) {
        acme.say(&session, "hello").await.unwrap();
        other.say(&session, "hello").await.unwrap();
    }
    let (ours, theirs) = (ask(&acme, names(40)), ask(&other, names(40)));
    assert!(ours.join_all().await.iter().all(|is_done| *is_done));
    assert!(theirs.join_all().await.iter().all(|is_done| *is_done));
    let cleanings = world.store.cleanings() - before;
    assert!((1..=4).contains(&cleanings), "{cleanings} for 80 jobs");
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn cleaning_backs_off_while_wal_is_read() {
    let world = two_tenants();
    let engine = world.open().await;
    let bots = [Bot::acme(&engine), Bot::new(&engine, OTHER)];
    engine.start_erasing(Vec::new());
    world.store.read_log(true);
    let mut asked = JoinSet::new();
    for session in names(20) {
        for bot in &bots {
            bot.say(&session, "hello").await.unwrap();
            let bot = bot.clone();
            let session = session.clone();
            asked.spawn(async move { ask(&bot, [session]).join_all().await });
        }
        sleep(Duration::from_secs(3)).await;
    }
    let tries = world.store.cleanings();
    assert!((5..=15).contains(&tries), "{tries} in a minute");
    asked.join_all().await;
    world.store.read_log(false);
    sleep(Duration::from_secs(60)).await;
    let last = ask(&bots[0], ["one more".to_owned()]).join_all().await;
    assert_eq!(last, [true]);
    let open = world.store.open_erasures(99).unwrap();
    assert!(open.is_empty(), "{open:?}");
    engine.close().await;
}

#[test]
fn erasure_that_ended_the_daemon_waits_before_it_runs_again() {
    let mut daemon = Daemon::new(unswept());
    let eraser = Arc::new(SlowEraser {
        delay: Some(Duration::from_secs(1_000_000)),
        ..SlowEraser::default()
    });
    let calls = || eraser.called_for.lock().unwrap().len();
    daemon.live(async |engine| {
        let bot = Bot::acme(engine);
        bot.say("one", "hello").await.unwrap();
        let _asked = ask(&bot, ["one".to_owned()]);
        settle().await;
        engine.start_erasing(vec![eraser.clone()]);
        sleep(Duration::from_secs(10)).await;
    });
    assert_eq!(calls(), 1);
    // One end may have another cause.
    for (seconds, expected) in [(1, 2), (59, 2), (61, 3), (119, 3), (121, 4)] {
        daemon.live(async |engine| {
            engine.start_erasing(vec![eraser.clone()]);
            sleep(Duration::from_secs(seconds)).await;
            assert_eq!(calls(), expected, "after {seconds} s");
        });
    }
    let open = daemon.store.open_erasures(9).unwrap();
    assert_eq!(open[0].counts.attempts, 4);
}

/// The daemon is restarted in every second step, as in a container that is too small for its work.
#[test]
fn erasure_that_took_a_step_since_the_start_does_not_wait() {
    let mut daemon = Daemon::new(unswept());
    let eraser = Arc::new(SlowEraser {
        delay: Some(Duration::from_secs(20)),
        steps: 20,
        ..SlowEraser::default()
    });
    let calls = || eraser.called_for.lock().unwrap().len();
    daemon.live(async |engine| {
        let bot = Bot::acme(engine);
        bot.say("one", "hello").await.unwrap();
        let _asked = ask(&bot, ["one".to_owned()]);
        settle().await;
    });
    for life in 1..=10 {
        daemon.live(async |engine| {
            engine.start_erasing(vec![eraser.clone()]);
            sleep(Duration::from_secs(30)).await;
            assert_eq!(calls(), 2 * life, "in life {life}");
        });
    }
    daemon.live(async |engine| {
        engine.start_erasing(vec![eraser.clone()]);
        sleep(Duration::from_secs(30)).await;
    });
    assert_eq!(calls(), 21);
    let open = daemon.store.open_erasures(9).unwrap();
    assert!(open.is_empty(), "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn tenants_take_turns_between_steps_of_their_erasures() {
    let world = two_tenants();
    let engine = world.open().await;
    let mut asked = Vec::new();
    for tenant in [ACME, OTHER] {
        let bot = Bot::new(&engine, tenant);
        bot.say("one", "hello").await.unwrap();
        asked.push(ask(&bot, ["one".to_owned()]));
        sleep(Duration::from_millis(1)).await;
    }
    let eraser = Arc::new(SlowEraser {
        steps: 1,
        ..SlowEraser::default()
    });
    engine.start_erasing(vec![eraser.clone()]);
    for one in asked {
        assert_eq!(soon(one.join_all()).await, [true], "within five seconds");
    }
    let called_for = eraser.called_for.lock().unwrap().clone();
    let expected = [ACME, OTHER, ACME, OTHER].map(tenant_id);
    assert_eq!(called_for, expected);
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn delivered_generations_are_listed_up_to_a_bound() {
    const ENDS: usize = 130;
    let scripted = [ScriptedHook::new([]), ScriptedHook::new([])];
    let hooks = ["crm", "log"]
        .iter()
        .zip(&scripted)
        .map(|(name, hook)| hooked(name, hook));
    let world = World::new(with_hooks(unswept(), hooks));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for _ in 0..ENDS {
        bot.say("chat", "hello").await.unwrap();
        bot.end("chat").await.unwrap();
    }
    settle().await;
    assert_eq!(states(&engine).await, [DeliveryState::Done; 2 * ENDS]);
    engine.start_erasing(Vec::new());
    let target = EraseTarget::Session {
        session: session_id("chat"),
        generation: None,
    };
    let erased = engine.erasures.erase(&bot.tenant, target).await.unwrap();
    assert_eq!(erased.stage, ErasureStage::Done);
    assert_eq!(erased.outside.len(), 2 * 101);
    for (hook, lines) in ["crm", "log"].iter().zip(erased.outside.chunks(101)) {
        let one = format!("hook {hook} received generation ");
        assert!(lines[..100].iter().all(|line| line.starts_with(&one)));
        let more = format!("hook {hook} received {} more generations", ENDS - 100);
        assert_eq!(lines[100], more);
    }
    engine.close().await;
}

/// Erases `target`, and returns the lines of `outside`.
async fn left_after(bot: &Bot, target: EraseTarget) -> Vec<String> {
    let erased = bot
        .engine
        .erasures
        .erase(&bot.tenant, target)
        .await
        .unwrap();
    assert_eq!(erased.stage, ErasureStage::Done);
    erased.outside
}

fn of_session(session: &str) -> EraseTarget {
    EraseTarget::Session {
        session: session_id(session),
        generation: None,
    }
}

#[tokio::test(start_paused = true)]
async fn erasure_of_copied_session_lists_its_copies() {
    let world = two_tenants();
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    engine.start_erasing(Vec::new());
    bot.say("chat", "hello").await.unwrap();
    bot.say("other", "hello").await.unwrap();
    let mut copies = Vec::new();
    for (source, copy) in [("chat", "fork"), ("fork", "of-fork"), ("other", "of-other")] {
        let made = bot.copy(source, copy, true).await.unwrap();
        copies.push(made.session.unwrap().head.generation);
    }
    let line = |copy: usize| format!("not erased: generation {}, a copy", copies[copy]);
    assert_eq!(left_after(&bot, of_session("fork")).await, [line(1)]);
    assert_eq!(left_after(&bot, of_session("chat")).await, [line(1)]);
    assert_eq!(bot.live("of-fork").await.unwrap(), ["hello"]);
    assert_eq!(left_after(&bot, of_session("of-fork")).await, [""; 0]);
    // The restored session is erased with the ended one.
    bot.end("other").await.unwrap();
    bot.copy("other", "other", true).await.unwrap();
    assert_eq!(left_after(&bot, of_session("other")).await, [line(2)]);
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn erasure_of_subject_lists_sessions_with_another_subject_since() {
    let world = two_tenants();
    let engine = world.open().await;
    let (bot, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    engine.start_erasing(Vec::new());
    let told = |whose: &str| AppendCommand {
        subject: Some(Subject::parse(whose).unwrap()),
        ..saying(&["hello"])
    };
    let tell = async |bot: &Bot, session: &str, subjects: &[&str]| {
        for whose in subjects {
            bot.append(session, told(whose)).await.unwrap();
        }
        bot.view(session).await.unwrap().head.generation
    };
    tell(&bot, "own", &["ann"]).await;
    tell(&bot, "again", &["ann", "bob", "ann"]).await;
    tell(&bot, "never", &["bob", "bob"]).await;
    tell(&other, "theirs", &["ann", "bob"]).await;
    let changed = tell(&bot, "changed", &["ann", "ann", "bob", "cem"]).await;
    let line =
        format!("not erased: generation {changed}, with turns from before its subject was changed");
    let of = |whose: &str| EraseTarget::Subject(Subject::parse(whose).unwrap());
    for _ in 0..2 {
        assert_eq!(left_after(&bot, of("ann")).await, [line.as_str()]);
    }
    bot.live("own").await.unwrap_err();
    bot.live("again").await.unwrap_err();
    assert_eq!(bot.live("changed").await.unwrap().len(), 4);
    assert_eq!(left_after(&bot, of("cem")).await, [""; 0]);
    assert_eq!(left_after(&bot, of("ann")).await, [""; 0]);
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn erasure_waits_until_no_file_copy_is_left() {
    let world = two_tenants();
    let engine = world.open().await;
    let acme = Bot::acme(&engine);
    acme.say("chat-0", "hello").await.unwrap();
    engine.start_erasing(Vec::new());
    let copy = engine.erasures.copies().token();
    assert_eq!(ask(&acme, names(1)).join_all().await, [false]);
    assert_eq!(world.store.cleanings(), 0, "it would be looked at again");
    drop(copy);
    assert_eq!(ask(&acme, names(1)).join_all().await, [true]);
    engine.close().await;
}

/// A large append is written in parts, so its commit stays in flight while others finish.
#[tokio::test(start_paused = true)]
async fn erasure_waits_only_for_commits_of_its_target() {
    const TEXT: &str = "a text of which a few are too many for one part";
    let mut config = unswept();
    config.tenants = vec![capped(ACME, 1_000), capped(OTHER, 1_000)];
    config.journal.part_bytes = TEXT.len();
    let world = World::with_pool(config);
    world.store.write_ahead(true);
    let engine = world.open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    for bot in [&acme, &other] {
        bot.say("chat-0", "hello").await.unwrap();
        bot.end("chat-0").await.unwrap();
    }
    acme.say("large", "hello").await.unwrap();
    engine.start_erasing(Vec::new());
    world.store.hold_commits();
    world.store.let_one_commit_go();
    let mut large = Box::pin(acme.append("large", saying(&[TEXT; 9])));
    assert!(poll_once(&mut large).await.is_none());
    for bot in [&other, &acme] {
        let erased = soon(ask(bot, names(1)).join_all()).await;
        assert_eq!(erased, [true], "of {}", bot.tenant.id);
        assert!(poll_once(&mut large).await.is_none(), "it is being written");
    }
    let mut of_large = Box::pin(ask(&acme, ["large".to_owned()]).join_all());
    assert!(poll_once(&mut of_large).await.is_none());
    world.store.let_commits_go();
    large.await.unwrap();
    assert_eq!(of_large.await, [true]);
    acme.live("large").await.unwrap_err();
    engine.close().await;
}

/// The session is written to after its erasure has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_write_to_erased_session_does_not_delay_other_erasures() {
    let World { config, .. } = two_tenants();
    let world = World::with_threads(config);
    let engine = world.open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, OTHER));
    for (bot, session) in [(&acme, "chat-1"), (&other, "chat-0")] {
        bot.say(session, "hello").await.unwrap();
        bot.end(session).await.unwrap();
    }
    acme.say("chat-0", "hello").await.unwrap();
    let slow = ask(&acme, names(1));
    while world.store.open_erasures(1).unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    world.store.hold_commits();
    let mut written = Box::pin(acme.say("chat-0", "more"));
    assert!(poll_once(&mut written).await.is_none());
    engine.start_erasing(Vec::new());
    assert_eq!(ask(&other, names(1)).join_all().await, [true]);
    let own = ask(&acme, ["chat-1".to_owned()]).join_all();
    assert_eq!(own.await, [true]);
    assert!(poll_once(&mut written).await.is_none());
    world.store.let_commits_go();
    slow.join_all().await;
    assert_eq!(ask(&acme, names(1)).join_all().await, [true]);
    acme.live("chat-0").await.unwrap_err();
    engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn erasure_reports_what_it_waits_for() {
    let world = two_tenants();
    let engine = world.open().await;
    let acme = Bot::acme(&engine);
    acme.say("chat-0", "hello").await.unwrap();
    let eraser = Arc::new(SlowEraser {
        delay: Some(Duration::from_secs(8)),
        ..SlowEraser::default()
    });
    engine.start_erasing(vec![eraser]);
    let target = EraseTarget::Session {
        session: session_id("chat-0"),
        generation: None,
    };
    let begun = engine.erasures.erase(&acme.tenant, target).await.unwrap();
    let waits_for = || engine.erasures.waits_for(begun.id);
    assert_eq!(waits_for(), "erasing slow");
    let copy = engine.erasures.copies().token();
    world.store.read_log(true);
    sleep(Duration::from_secs(5)).await;
    assert!(waits_for().contains("a backup"), "{}", waits_for());
    drop(copy);
    sleep(Duration::from_secs(5)).await;
    assert!(waits_for().contains("a reader holds"), "{}", waits_for());
    world.store.read_log(false);
    sleep(Duration::from_secs(300)).await;
    let done = engine.erasures.get(&acme.tenant.id, begun.id).await;
    assert_eq!(done.unwrap().stage, ErasureStage::Done);
    assert_eq!(waits_for(), "");
    engine.close().await;
}
