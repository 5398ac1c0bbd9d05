//! Failed writes of a summary, and crashes while one is made.
//!
//! Afterwards the session has the whole summary or is unchanged.

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::turn::Role;
use memoird_engine::{CompactionResult, ContextOutcome, ContextRequest, EngineError, Machine};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::script::{ModelStep, Script};
use super::talk::{Talk, text_turn};
use super::{compacting, opened};
use crate::bot::Bot;
use crate::cluster::Daemons;
use crate::kit::{TestMachine, World, paused_runtime, poll_once, settle};
use crate::windows::texts;

/// Sessions that several daemons change are often read again, which must not discard a summary.
#[tokio::test(start_paused = true)]
async fn session_of_several_daemons_is_compacted() {
    let script = Script::new([]);
    let daemons = Daemons::open(compacting(&script), 2).await;
    let [mut here, mut there] = [0, 1].map(|place| Talk::new(&daemons.bots[place], "a"));
    for _ in 0..4 {
        here.exchange().await;
        there.exchange().await;
    }
    assert!(here.compact(Some(2)).await.unwrap().is_new);
}

#[tokio::test(start_paused = true)]
async fn summary_whose_commit_fails_leaves_session_unchanged() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    let before = texts(&talk.window().await.turns);
    world.store.fail_summaries(1);
    let failure = talk.compact(Some(2)).await.expect_err("the disk is full");
    assert!(matches!(failure, EngineError::JournalFull), "{failure}");
    assert_eq!(texts(&talk.window().await.turns), before);
    let status = talk.status().await;
    assert_eq!(
        (status.summaries, status.through_seq, status.running),
        (0, 0, false)
    );
    talk.exchange().await;
    assert!(talk.compact(Some(2)).await.unwrap().is_new);
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn summary_that_cannot_be_written_opens_breaker() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    world.store.fail_summaries(u64::MAX);
    let mut windows = 0_u64;
    for _ in 0..60 {
        talk.exchange().await;
        if talk.window().await.report.blocks.total() > 2_750 {
            windows += 1;
        }
        settle().await;
    }
    assert!(windows > 15, "{windows}");
    // Three attempts, then one trial every five turns.
    assert!(script.times() <= 22, "{} times", script.times());
    assert_ne!(talk.breaker().await.0, BreakerState::Closed);
    assert!(
        talk.status().await.last_error.starts_with("not_written"),
        "{:?}",
        talk.status().await
    );
    world.store.forgive();
    for _ in 0..4 {
        talk.exchange().await;
        talk.window().await;
        settle().await;
    }
    assert_eq!(talk.breaker().await, (BreakerState::Closed, 0));
    assert!(talk.window().await.report.summary.is_some());
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn summarizer_is_not_called_while_commits_fail() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(18).await;
    world.store.fail_commits(1_000);
    for _ in 0..10 {
        assert!(
            talk.try_add(vec![text_turn(Role::User, "more")])
                .await
                .is_err()
        );
        talk.window().await;
        settle().await;
    }
    assert!(script.times() <= 1, "{}", script.times());
    world.store.forgive();
    talk.exchange().await;
    talk.window().await;
    settle().await;
    assert!(talk.has_summary().await);
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn summary_of_uncommitted_turns_is_discarded() {
    let (freed, allowed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (waits, then) = (
        ModelStep::Waits(freed.clone()),
        ModelStep::Waits(allowed.clone()),
    );
    let script = Script::new([waits, ModelStep::Never, then]);
    let world = World::with_pool(compacting(&script));
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(6).await;
    // The tenant's compaction slots are all taken, so this one is queued.
    let (first, second, other) = (Talk::new(&bot, "b"), Talk::new(&bot, "c"), talk.clone());
    let mut waiting = Vec::new();
    for mut busy in [first, second] {
        busy.exchanges(6).await;
        waiting.push(Box::pin(async move { busy.compact(Some(1)).await }));
    }
    let mut compacting = Box::pin(async move { other.compact(Some(0)).await });
    for (place, call) in waiting.iter_mut().enumerate() {
        assert!(poll_once(call).await.is_none());
        until(|| script.times() == place + 1).await;
    }
    assert!(poll_once(&mut compacting).await.is_none());
    bot.end("b").await.unwrap();
    // This turn is in the snapshot, but its commit fails.
    let begun_commits = world.store.commits();
    world.store.hold_commits();
    world.store.fail_commits(1);
    let mut failing = talk.clone();
    let mut lost = Box::pin(failing.try_add(vec![text_turn(Role::Assistant, "it is #666")]));
    assert!(poll_once(&mut lost).await.is_none());
    world.store.commit_begun(begun_commits + 1).await;
    freed.notify_one();
    let discarded = || {
        let outcomes = bot.stats().compaction.outcomes;
        outcomes
            .iter()
            .any(|(_, outcome, count)| *outcome == CompactionResult::Discarded && *count > 0)
    };
    until(discarded).await;
    for _ in 0..100 {
        yield_now().await;
    }
    world.store.let_commits_go();
    assert!(lost.await.is_err());
    talk.add(vec![text_turn(Role::Assistant, "it is #777")])
        .await;
    allowed.notify_one();
    let outcome = compacting.await;
    let shown = texts(&talk.window().await.turns).join(" ");
    let summary = talk.window().await.report.summary;
    let text = summary
        .map(|summary| summary.text.to_string())
        .unwrap_or_default();
    assert!(!text.contains("#666"), "nobody said that: {outcome:?}");
    assert!(
        shown.contains("#777") || text.contains("#777"),
        "{outcome:?}: {shown} {text}"
    );
    talk.check_journal().await;
    script.will_now(ModelStep::Well);
    talk.exchanges(2).await;
    talk.compact(Some(0)).await.unwrap();
    assert!(!talk.status().await.running);
}

/// Waits for work on other threads, which does not advance the paused clock.
async fn until(holds: impl Fn() -> bool) {
    let pause = || std::thread::sleep(std::time::Duration::from_millis(1));
    for _ in 0..8_000 {
        if holds() {
            return;
        }
        tokio::task::spawn_blocking(pause).await.unwrap();
    }
    panic!("it never came to that");
}

fn runtime() -> tokio::runtime::Runtime {
    paused_runtime()
}

/// Stops the daemon while the summarizer is waiting, or `steps` yields after its reply.
///
/// Returns whether the summary exists after the restart.
fn summary_survives_stop(steps: Option<usize>, orderly: bool) -> bool {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Waits(allowed.clone())]);
    let (mut world, said) = {
        let runtime = runtime();
        let lived = runtime.block_on(async {
            let world = World::new(compacting(&script));
            let bot = Bot::acme(&world.open().await);
            let mut talk = Talk::new(&bot, "a");
            talk.exchanges(4).await;
            talk.exchange_with_tools(2).await;
            talk.exchanges(3).await;
            let mut compacting = Box::pin(talk.compact(Some(2)));
            assert!(poll_once(&mut compacting).await.is_none());
            settle().await;
            assert_eq!(script.times(), 1);
            if let Some(steps) = steps {
                allowed.notify_one();
                for _ in 0..steps {
                    yield_now().await;
                }
            }
            if orderly {
                bot.engine.close().await;
                let _ = compacting.await;
            } else {
                drop(compacting);
            }
            world.machine.stop();
            (world, talk.said)
        });
        // Abort all remaining tasks.
        drop(runtime);
        lived
    };
    script.will_now(ModelStep::Well);
    runtime().block_on(async {
        world.machine = Arc::new(TestMachine::resume(world.machine.stopped(), 7));
        let bot = Bot::acme(&world.open().await);
        let mut talk = Talk {
            said,
            ..Talk::new(&bot, "a")
        };
        talk.check_journal().await;
        let status = talk.status().await;
        let outcome = talk.window().await;
        let is_true = outcome.report.summary.is_some();
        let expected = if is_true { (1, 15) } else { (0, 0) };
        assert_eq!(
            (status.summaries, status.through_seq),
            expected,
            "{status:?}"
        );
        assert!(!status.running);
        talk.exchange().await;
        let made = talk.compact(Some(1)).await.unwrap().summary.unwrap();
        assert_eq!(made.number, if is_true { 2 } else { 1 });
        talk.window().await;
        talk.check_journal().await;
        assert!(world.machine.now().steady.0 > 0);
        is_true
    })
}

#[test]
fn crash_during_compaction_leaves_old_or_new_summary() {
    for orderly in [true, false] {
        assert!(
            !summary_survives_stop(None, orderly),
            "while the summarizer waits"
        );
        let outcomes: Vec<bool> = (0..24)
            .map(|steps| summary_survives_stop(Some(steps), orderly))
            .collect();
        println!("{outcomes:?}");
        assert!(
            outcomes.is_sorted() && !outcomes[0] && outcomes[23],
            "{outcomes:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pending_summary_stays_pending_after_restart() {
    let script = Script::new([]);
    let world = World::new(compacting(&script));
    let mut engine = world.open().await;
    let (mut first_waits, mut later_waits) = (0, 0);
    for number in 0..150 {
        let bot = Bot::acme(&engine);
        bot.exchange("a", number).await;
        let shown = bot.context("a", ContextRequest::default()).await.unwrap();
        settle().await;
        let before = bot.context("a", ContextRequest::default()).await.unwrap();
        let newest = before
            .session
            .head
            .compaction
            .as_ref()
            .map_or(0, |status| status.summaries);
        let shows = before.report.summary.as_ref();
        match shows.map_or(0, |summary| summary.number) {
            number if number == newest => {}
            0 => first_waits += 1,
            _ => later_waits += 1,
        }
        assert!(before.turns.len() >= shown.turns.len().min(2));
        // Drop the engine without a flush, as in a crash.
        if number % 3 == 0 {
            drop(engine);
        } else {
            engine.close().await;
        }
        settle().await;
        engine = world.open().await;
        let after = Bot::acme(&engine)
            .context("a", ContextRequest::default())
            .await
            .unwrap();
        assert_eq!(contents(&after), contents(&before), "exchange {number}");
    }
    assert!(
        first_waits > 2 && later_waits > 2,
        "{first_waits} and {later_waits}"
    );
    // A summary acknowledged to a caller is shown, even if a crash follows.
    let bot = Bot::acme(&engine);
    let number = bot
        .compact("a", Some(1))
        .await
        .unwrap()
        .summary
        .unwrap()
        .number;
    drop(engine);
    settle().await;
    let bot = Bot::acme(&world.open().await);
    let after = bot.context("a", ContextRequest::default()).await.unwrap();
    assert_eq!(after.report.summary.unwrap().number, number);
}

fn contents(window: &ContextOutcome) -> Vec<Vec<u8>> {
    let turns = window.turns.iter();
    turns.map(|turn| turn.content.to_vec()).collect()
}
