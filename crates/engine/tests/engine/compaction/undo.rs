//! Undone summaries: the windows afterwards, and the numbers of later summaries.

use std::sync::Arc;

use memoird_engine::{ContextOutcome, Durability, EngineError};
use tokio::sync::Notify;

use super::script::{ModelStep, Script};
use super::talk::Talk;
use super::{compacting, opened};
use crate::bot::Bot;
use crate::kit::{World, poll_once, settle};
use crate::windows::{model, texts};

fn shown(outcome: &ContextOutcome) -> Vec<String> {
    texts(&outcome.turns)
}

#[tokio::test(start_paused = true)]
async fn summaries_are_undone_in_order_and_remade_with_new_numbers() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(10).await;
    talk.exchange_with_tools(2).await;
    let mut before = vec![shown(&talk.window().await)];
    for (keep, number) in [(6, 1), (4, 2), (2, 3)] {
        let made = talk.compact(Some(keep)).await.unwrap().summary.unwrap();
        assert_eq!(made.number, number);
        before.push(shown(&talk.window().await));
    }
    before.pop();
    let mut talk = talk;
    for (step, expected) in before.iter().enumerate().rev() {
        assert!(talk.undo().await.unwrap() > 0);
        assert_eq!(&shown(&talk.window().await), expected, "step {step}");
        if step == 1 {
            bot.engine.close().await;
            talk = talk.again(&Bot::acme(&world.open().await));
            assert_eq!(&shown(&talk.window().await), expected, "after a restart");
        }
    }
    let refused = talk.undo().await.expect_err("there is none");
    assert!(
        matches!(refused, EngineError::NoSummary { .. }),
        "{refused}"
    );
    assert_eq!(
        (
            talk.status().await.summaries,
            talk.status().await.through_seq
        ),
        (3, 0)
    );
    let made = talk.compact(Some(2)).await.unwrap().summary.unwrap();
    assert_eq!((made.number, made.first_seq), (4, 1));
    talk.exchanges(2).await;
    let made = talk.compact(Some(1)).await.unwrap().summary.unwrap();
    assert_eq!(made.number, 5);
    talk.undo().await.unwrap();
    assert_eq!(
        talk.window().await.report.summary.as_ref().unwrap().number,
        4
    );
    let made = talk.compact(Some(1)).await.unwrap().summary.unwrap();
    assert_eq!(made.number, 6);
    assert!(
        (0..=10).all(|half| made.text.contains(&format!("#{} ", half * 2))),
        "{}",
        made.text
    );
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn cut_of_undone_summary_is_not_reused_after_restart() {
    // Summary numbers are not reused. Otherwise a cut for an undone summary could, after a restart,
    // hide turns from a later window.
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    talk.compact(Some(5)).await.unwrap();
    talk.window().await;
    talk.compact(Some(1)).await.unwrap();
    talk.window().await;
    talk.exchange().await;
    talk.undo().await.unwrap();
    bot.engine.close().await;
    let mut talk = talk.again(&Bot::acme(&world.open().await));
    let said = shown(&talk.window().await);
    assert_eq!(said.len(), 2 + 12, "all but the first summary's: {said:?}");
    talk.exchange().await;
    assert_eq!(shown(&talk.window().await)[..said.len()], said[..]);
}

#[tokio::test(start_paused = true)]
async fn durability_off_recent_summaries_can_be_undone() {
    let script = Script::new([]);
    let mut config = compacting(&script);
    config.journal.durability = Durability::Off;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(12).await;
    let whole = shown(&talk.window().await);
    talk.compact(Some(7)).await.unwrap();
    let first = shown(&talk.window().await);
    talk.compact(Some(4)).await.unwrap();
    talk.undo().await.unwrap();
    assert_eq!(shown(&talk.window().await), first);
    let third = talk.compact(Some(2)).await.unwrap().summary.unwrap();
    assert_eq!(third.number, 3);
    talk.undo().await.unwrap();
    talk.undo().await.unwrap();
    assert_eq!(shown(&talk.window().await), whole);
    assert!(matches!(
        talk.undo().await,
        Err(EngineError::NoSummary { .. })
    ));
    // More summaries than are retained for undo.
    talk.exchanges(8).await;
    for keep in [16, 14, 12, 10, 8, 6, 4] {
        talk.compact(Some(keep)).await.unwrap();
    }
    let mut undone = 0;
    let refused = loop {
        match talk.undo().await {
            Ok(_) => undone += 1,
            Err(error) => break error,
        }
        talk.window().await;
    };
    assert!(undone >= 4, "{undone}");
    assert!(matches!(refused, EngineError::JournalOff), "{refused}");
    // The summaries beyond the undo limit remain.
    assert!(talk.window().await.report.summary.is_some());
    assert_eq!(talk.bot.live("a").await.unwrap(), talk.said);
}

#[tokio::test(start_paused = true)]
async fn undo_during_compaction_is_refused() {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Well, ModelStep::Waits(allowed.clone())]);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    talk.compact(Some(5)).await.unwrap();
    let other = talk.clone();
    let mut second = Box::pin(other.compact(Some(2)));
    assert!(poll_once(&mut second).await.is_none());
    settle().await;
    let refused = talk.undo().await.expect_err("one is being made");
    assert!(
        matches!(refused, EngineError::CompactionRunning),
        "{refused}"
    );
    allowed.notify_one();
    assert_eq!(second.await.unwrap().summary.unwrap().number, 2);
    talk.undo().await.unwrap();
    assert_eq!(
        talk.window().await.report.summary.as_ref().unwrap().number,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn undo_whose_commit_fails_changes_nothing() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    talk.compact(Some(5)).await.unwrap();
    talk.compact(Some(2)).await.unwrap();
    let before = shown(&talk.window().await);
    world.store.fail_commits(1);
    assert!(matches!(talk.undo().await, Err(EngineError::JournalFull)));
    assert_eq!(shown(&talk.window().await), before);
    assert_eq!(talk.undo().await.unwrap(), 6);
}

#[tokio::test(start_paused = true)]
async fn undo_restores_windows_of_two_models() {
    let script = Script::new([]);
    let mut config = compacting(&script);
    config
        .context
        .models
        .push(model("large", 100_000, &Arc::default()));
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(9).await;
    let (small, large) = (talk.window().await, talk.window_of("large").await);
    let made = talk.compact(Some(3)).await.unwrap().summary.unwrap();
    for model in ["small", "large"] {
        let outcome = talk.window_of(model).await;
        assert_eq!(
            outcome.report.summary.as_ref().unwrap().number,
            made.number,
            "{model}"
        );
        assert_eq!(outcome.turns.len(), 2 + 6, "{model}");
    }
    talk.undo().await.unwrap();
    assert_eq!(shown(&talk.window().await), shown(&small));
    assert_eq!(shown(&talk.window_of("large").await), shown(&large));
}
