//! Spans longer than the summarizer's input.
//!
//! They are split at exchange boundaries and merged, and each turn is sent exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::SummaryTokens;
use memoird_core::turn::Role;
use memoird_engine::SummaryRequest;

use super::compacting;
use super::script::{ModelStep, Script, weight};
use super::talk::Talk;
use crate::bot::Bot;
use crate::kit::World;
use crate::windows::{model, with_models};

/// A summarizer limited to `tokens` of input, which it declares only if `says_so`.
fn taking(tokens: u64, says_so: bool) -> Arc<Script> {
    let mut script = Script::then([], ModelStep::Well);
    script.too_long_over = tokens + 50;
    script.input_tokens_max = if says_so { tokens } else { u64::MAX };
    Arc::new(script)
}

/// Windows so large that compactions happen only on request.
async fn roomy(script: &Arc<Script>) -> (World, Bot) {
    let mut config = compacting(script);
    config.compaction.policy.summary_tokens = SummaryTokens::Fixed(4_000);
    let world = World::new(with_models(
        config,
        vec![model("m", 1_000_000, &Arc::default())],
    ));
    let bot = Bot::acme(&world.open().await);
    (world, bot)
}

/// The requests that were within the summarizer's input limit.
fn answered(script: &Script) -> Vec<Arc<SummaryRequest>> {
    let asked = script.asked.lock().unwrap().clone();
    asked
        .into_iter()
        .filter(|ask| weight(ask) <= script.too_long_over)
        .collect()
}

/// Bytes of each turn in these requests, by seq.
fn bytes_by_turn(asks: &[Arc<SummaryRequest>]) -> BTreeMap<u64, usize> {
    let mut bytes = BTreeMap::new();
    for turn in asks.iter().flat_map(|ask| ask.turns.iter()) {
        *bytes.entry(turn.seq).or_default() += turn.text.len();
    }
    bytes
}

#[tokio::test(start_paused = true)]
async fn chunks_cover_each_turn_once_in_whole_exchanges() {
    let script = taking(1_000, true);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    for calls in 0..60 {
        talk.exchange_with_tools(calls % 4).await;
    }
    let done = talk.compact(Some(3)).await.unwrap();
    let asks = answered(&script);
    assert_eq!(asks.len(), script.times(), "nothing was too long");
    assert!(asks.len() > 3, "{}", asks.len());
    let summary = done.summary.unwrap();
    let bytes = bytes_by_turn(&asks);
    let expected: Vec<u64> = (1..=summary.through_seq).collect();
    assert_eq!(bytes.keys().copied().collect::<Vec<_>>(), expected);
    let parts: usize = asks.iter().map(|ask| ask.turns.len()).sum();
    assert_eq!(parts, expected.len(), "each once");
    for (place, ask) in asks.iter().filter(|ask| !ask.turns.is_empty()).enumerate() {
        let first = &ask.turns[0];
        assert!(
            place == 0 || first.role == Role::User,
            "piece {place} begins with {first:?}"
        );
        assert!(weight(ask) <= 1_000);
    }
    for call in 0..talk.calls - 6 {
        assert!(
            summary.text.contains(&format!("call_{call}")),
            "{call}: {}",
            summary.text
        );
    }
    talk.window().await;
    // The next summary request contains the last summary once.
    script.asked.lock().unwrap().clear();
    for calls in 0..60 {
        talk.exchange_with_tools(calls % 4).await;
    }
    let next = talk.compact(Some(3)).await.unwrap().summary.unwrap();
    let asks = answered(&script);
    let with_previous = asks.iter().filter(|ask| ask.previous.is_some()).count();
    assert!(
        asks.len() > 3 && with_previous == 1,
        "{with_previous} of {}",
        asks.len()
    );
    assert!(
        next.text.contains("call_0 "),
        "nothing before it is forgotten"
    );
    assert_eq!(next.first_seq, summary.through_seq + 1);
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn oversized_turn_is_split_without_loss() {
    let script = taking(1_000, true);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(2).await;
    let long = format!("{} #999 ü{}", "ü ".repeat(6_000), "word ".repeat(2_000));
    talk.add(vec![super::talk::text_turn(Role::User, &long)])
        .await;
    talk.add(vec![super::talk::text_turn(Role::Assistant, "much")])
        .await;
    talk.exchanges(3).await;
    let done = talk.compact(Some(2)).await.unwrap();
    let asks = answered(&script);
    let bytes = bytes_by_turn(&asks);
    assert!(
        bytes[&5] >= long.trim().len(),
        "{} of {}",
        bytes[&5],
        long.len()
    );
    assert!(asks.len() > 10 && asks.len() == script.times());
    assert!(done.summary.unwrap().text.contains("#999"));
}

#[tokio::test(start_paused = true)]
async fn chunks_are_halved_when_summarizer_accepts_less_than_declared() {
    let script = taking(1_500, false);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    for calls in 0..60 {
        talk.exchange_with_tools(calls % 4).await;
    }
    let summary = talk.compact(Some(3)).await.unwrap().summary.unwrap();
    assert!(
        answered(&script).len() < script.times(),
        "some were too long"
    );
    for call in 0..talk.calls - 6 {
        assert!(
            summary.text.contains(&format!("call_{call}")),
            "{call}: {}",
            summary.text
        );
    }
    assert_eq!(talk.breaker().await, (BreakerState::Closed, 0));
}

#[tokio::test(start_paused = true)]
async fn input_always_too_long_fails_after_bounded_calls() {
    let script = taking(0, false);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(60).await;
    assert_eq!(talk.fails(Some(3)).await, "too_long");
    assert!(script.times() <= 64, "{}", script.times());
    assert!(talk.window().await.report.summary.is_none());
}

#[tokio::test(start_paused = true)]
async fn unsplittable_chunk_is_not_sent_again() {
    for exchanges in [6, 20, 60] {
        let script = taking(0, false);
        let (_world, bot) = roomy(&script).await;
        let mut talk = Talk::new(&bot, "a");
        talk.exchanges(exchanges).await;
        assert_eq!(talk.fails(Some(1)).await, "too_long");
        let asked = script.asked.lock().unwrap().clone();
        let texts = |ask: &Arc<SummaryRequest>| -> Vec<String> {
            ask.turns.iter().map(|turn| turn.text.clone()).collect()
        };
        for (place, ask) in asked.iter().enumerate() {
            let earlier = asked[..place].iter();
            let is_again = earlier.filter(|other| texts(other) == texts(ask)).count();
            assert_eq!(
                is_again,
                0,
                "{exchanges} exchanges: call {place} of {}",
                asked.len()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn previous_summary_fits_when_chunks_are_combined() {
    let script = taking(1_400, true);
    let mut config = compacting(&script);
    config.compaction.policy.summary_tokens = SummaryTokens::Fixed(4_000);
    let world = World::new(with_models(
        config,
        vec![model("m", 1_000_000, &Arc::default())],
    ));
    let bot = Bot::acme(&world.open().await);
    let mut talk = Talk::new(&bot, "a");
    let mut number = 0;
    for round in 0..2 {
        for calls in 0..110 {
            talk.exchange_with_tools(calls % 4).await;
        }
        let done = talk.compact(Some(3)).await;
        let made = done.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let summary = made.summary.unwrap();
        number += 1;
        assert_eq!(summary.number, number);
    }
    assert!(
        script
            .asked
            .lock()
            .unwrap()
            .iter()
            .all(|ask| weight(ask) <= script.too_long_over)
    );
}

#[tokio::test(start_paused = true)]
async fn very_long_span_is_summarized_in_several_compactions() {
    let script = taking(1_000, true);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    for _ in 0..100 {
        let turns = (0..10).map(|number| {
            let role = if number % 2 == 0 {
                Role::User
            } else {
                Role::Assistant
            };
            super::talk::text_turn(role, &"word and word ".repeat(40))
        });
        talk.add(turns.collect()).await;
    }
    let mut through = 0;
    for _ in 0..10 {
        let done = talk.compact(Some(3)).await.unwrap();
        let summary = done.summary.unwrap();
        assert!(summary.through_seq > through, "{through}");
        assert_eq!(summary.first_seq, through + 1);
        through = summary.through_seq;
        talk.window().await;
        if through == 994 {
            break;
        }
    }
    assert_eq!(through, 994);
    let bytes = bytes_by_turn(&answered(&script));
    assert_eq!(bytes.len(), 994);
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn long_agent_run_is_summarized_in_whole_tool_units() {
    let script = taking(1_000, true);
    let (_world, bot) = roomy(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.add(vec![super::talk::text_turn(Role::User, "do it all")])
        .await;
    for number in 0..150 {
        let ids = talk.ids(2);
        let text = format!("I look {number} {}", "word ".repeat(100));
        let mut turns = vec![super::talk::calling(&text, &ids)];
        let results: Vec<String> = ids
            .iter()
            .map(|id| format!("found {id} {}", "word ".repeat(60)))
            .collect();
        turns.extend(
            ids.iter()
                .zip(&results)
                .map(|(id, text)| super::talk::answering(text, id)),
        );
        talk.add(turns).await;
    }
    talk.add(vec![super::talk::text_turn(Role::Assistant, "it is done")])
        .await;
    let (mut through, last) = (0, talk.said.len() as u64);
    for _ in 0..20 {
        through = talk
            .compact(Some(0))
            .await
            .unwrap()
            .summary
            .unwrap()
            .through_seq;
        assert!(
            through == last || through % 3 == 1,
            "{through} tears a unit apart"
        );
        talk.window().await;
        if through == last {
            break;
        }
    }
    assert_eq!(through, last);
    assert_eq!(bytes_by_turn(&answered(&script)).len() as u64, last);
}
