//! Histories close to their limit.
//!
//! Turns are summarized before they are dropped, or read back from the journal.

use std::sync::Arc;

use memoird_core::turn::Role;
use memoird_engine::Durability;
use tokio::sync::Notify;

use super::compacting;
use super::script::{ModelStep, Script};
use super::talk::{Talk, text_turn};
use crate::bot::Bot;
use crate::kit::{World, settle};
use crate::windows::{model, texts, with_models};

const CAP: usize = 20;

async fn capped(script: &Arc<Script>, durability: Durability) -> (World, Bot) {
    let mut config = compacting(script);
    config.limits.max_history_turns = CAP;
    config.journal.durability = durability;
    let world = World::new(with_models(
        config,
        vec![model("m", 1_000_000, &Arc::default())],
    ));
    let bot = Bot::acme(&world.open().await);
    (world, bot)
}

/// The seqs of all turns sent to the summarizer.
fn given(script: &Script) -> Vec<u64> {
    let asked = script.asked.lock().unwrap();
    asked
        .iter()
        .flat_map(|ask| ask.turns.iter().map(|turn| turn.seq))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn history_drops_no_turn_that_no_summary_covers() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let script = Script::new([]);
        let (_world, bot) = capped(&script, durability).await;
        let mut talk = Talk::new(&bot, "a");
        for number in 0..60 {
            talk.exchange_with_tools(number % 3).await;
            talk.window().await;
            settle().await;
            let live = bot.live("a").await.unwrap().len() as u64;
            let last = talk.said.len() as u64;
            let through = talk.status().await.through_seq;
            // The anchor is retained in addition to the limit.
            let gone = last.saturating_sub(live - 1);
            assert!(
                gone <= through.max(1),
                "{gone} left, {through} are summarized: {durability:?}"
            );
        }
        let through = talk.status().await.through_seq;
        assert!(script.times() > 3);
        assert_eq!(
            given(&script),
            (1..=through).collect::<Vec<_>>(),
            "each once"
        );
        let outcome = talk.window().await;
        assert!(outcome.report.summary.unwrap().text.contains("call_0 "));
    }
}

/// Even if few turns covered by the last summary are still in the history.
#[tokio::test(start_paused = true)]
async fn history_full_of_bytes_drops_no_unsummarized_turn() {
    let script = Script::new([]);
    let mut config = compacting(&script);
    config.limits.max_history_bytes = 20_000;
    // Without a journal, dropped turns cannot be read back.
    config.journal.durability = Durability::Off;
    let models = vec![model("m", 1_000_000, &Arc::default())];
    let bot = Bot::acme(&World::new(with_models(config, models)).open().await);
    let mut talk = Talk::new(&bot, "a");
    let role = |talk: &Talk| [Role::User, Role::Assistant][talk.said.len() % 2];
    let long = "x".repeat(800);
    for words in ["the task", &long, "tiny", "too", "and", "so"] {
        talk.add(vec![text_turn(role(&talk), words)]).await;
    }
    talk.window().await;
    talk.compact(Some(1)).await.unwrap();
    assert_eq!(given(&script), [1, 2, 3, 4]);
    for number in 0..40 {
        let words = format!("#{number} {}", "x".repeat(1_500));
        talk.add(vec![text_turn(role(&talk), &words)]).await;
        settle().await;
    }
    let through = talk.status().await.through_seq;
    assert!(script.times() > 2);
    assert_eq!(given(&script), Vec::from_iter(1..=through), "each once");
}

#[tokio::test(start_paused = true)]
async fn turns_dropped_before_first_window_are_read_from_journal() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let script = Script::new([]);
        let (_world, bot) = capped(&script, durability).await;
        let mut talk = Talk::new(&bot, "a");
        for number in 0..20 {
            talk.exchange_with_tools(number % 3).await;
        }
        assert_eq!(
            script.times(),
            0,
            "who never asks for a window needs no summary"
        );
        talk.window().await;
        settle().await;
        let seqs = given(&script);
        let through = talk.status().await.through_seq;
        let live = bot.live("a").await.unwrap().len() as u64 - 1;
        let oldest = talk.said.len() as u64 - live + 1;
        // The history keeps the first user turn.
        let first = if durability == Durability::Off {
            oldest
        } else {
            2
        };
        let expected = std::iter::once(1).chain(first..=through);
        assert_eq!(seqs, expected.collect::<Vec<_>>(), "{durability:?}");
        let outcome = talk.window().await;
        assert_eq!(
            outcome.report.summary.as_ref().unwrap().through_seq,
            through
        );
        // The same after undoing the summary and making it again.
        talk.undo().await.unwrap();
        talk.window().await;
        script.asked.lock().unwrap().clear();
        talk.compact(Some(2)).await.unwrap();
        assert_eq!(given(&script)[..2], [1, first], "{durability:?}");
        talk.window().await;
    }
}

/// The history is full, not the token budget.
#[tokio::test(start_paused = true)]
async fn window_of_full_history_shows_at_least_half() {
    let script = Script::new([]);
    let (_world, bot) = capped(&script, Durability::Sync).await;
    let mut talk = Talk::new(&bot, "a");
    for number in 0..60 {
        talk.exchange_with_tools(number % 3).await;
        let window = talk.window().await;
        settle().await;
        let shown = window.turns.len();
        let least = CAP.min(talk.said.len()) / 2;
        assert!(shown >= least, "{shown} after {}", talk.said.len());
    }
    assert!(script.times() > 3);
}

#[tokio::test(start_paused = true)]
async fn first_window_of_full_history_has_half_and_a_summary() {
    let mut scripted = Script::then([], ModelStep::Well);
    scripted.is_remote = false;
    let script = Arc::new(scripted);
    let (_world, bot) = capped(&script, Durability::Sync).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(40).await;
    let window = talk.window().await;
    assert!(window.turns.len() > CAP / 2, "{}", window.turns.len());
    let summary = window.report.summary.expect("a summary");
    assert_eq!((summary.first_seq, summary.turns), (1, summary.through_seq));
    assert_eq!(script.times(), 0, "a local summarizer is not called");
}

/// The cap is raised after turns were dropped.
#[tokio::test(start_paused = true)]
async fn dropped_turns_are_summarized_although_the_rest_fits() {
    let script = Script::new([]);
    let (mut world, bot) = capped(&script, Durability::Sync).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(20).await;
    bot.engine.close().await;
    world.config.limits.max_history_turns = 10 * CAP;
    let bot = Bot::acme(&world.open().await);
    let talk = talk.again(&bot);
    talk.window().await;
    settle().await;
    let window = talk.window().await;
    let left = bot.live("a").await.unwrap().len() as u64 - 1;
    let through = window.report.summary.expect("a summary").through_seq;
    assert_eq!(through, talk.said.len() as u64 - left);
}

#[tokio::test(start_paused = true)]
async fn turns_appended_during_compaction_are_summarized_next() {
    let goes_on = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Waits(Arc::clone(&goes_on))]);
    let (_world, bot) = capped(&script, Durability::Sync).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchange().await;
    talk.window().await;
    talk.exchanges(40).await;
    settle().await;
    assert_eq!(script.times(), 1, "it is being made");
    goes_on.notify_one();
    settle().await;
    for _ in 0..3 {
        talk.window().await;
        settle().await;
    }
    let window = talk.window().await;
    assert!(!window.report.degraded, "{:?}", window.report);
    assert_eq!(script.times(), 2);
}

/// Bots put data such as the current time or search results into system turns.
#[tokio::test(start_paused = true)]
async fn system_turn_in_the_middle_is_summarized() {
    for durability in [Durability::Sync, Durability::Off] {
        let script = Script::new([]);
        let (_world, bot) = capped(&script, durability).await;
        let mut talk = Talk::new(&bot, "a");
        talk.add(vec![text_turn(Role::System, "you are kind")])
            .await;
        for number in 0..20 {
            talk.exchange().await;
            let clock = text_turn(Role::System, &format!("it is {number} o'clock"));
            talk.add(vec![clock]).await;
            talk.window().await;
            settle().await;
        }
        let through = talk.status().await.through_seq;
        assert!(script.times() > 2);
        // The system prompt is not summarized.
        assert_eq!(given(&script), (2..=through).collect::<Vec<_>>());
        let window = talk.window().await;
        let shown = texts(&window.turns);
        assert!(shown.contains(&"you are kind".to_owned()), "{shown:?}");
        assert!(!shown.contains(&"it is 0 o'clock".to_owned()), "{shown:?}");
        assert!(shown.contains(&"it is 19 o'clock".to_owned()), "{shown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tiny_history_cap_never_corrupts_windows() {
    for cap in [1, 2, 3, 5] {
        let script = Script::new([]);
        let mut config = compacting(&script);
        config.limits.max_history_turns = cap;
        let world = World::new(config);
        let bot = Bot::acme(&world.open().await);
        let mut talk = Talk::new(&bot, "a");
        for number in 0..40 {
            talk.exchange_with_tools(number % 4).await;
            talk.window().await;
            settle().await;
        }
        assert!(script.times() <= 81, "cap {cap}: {}", script.times());
        talk.check_journal().await;
    }
}
