//! Effects of a reranker on a recall, which never fails because of it.

use std::sync::Arc;
use std::time::Duration;

use memoird_memories::{RecallOutcome, RecallRequest};
use tokio::time::{sleep, timeout};

use super::reranker::{Says, ScriptedReranker};
use super::{ANN, acme, query, told};
use crate::world::{Bot, World, unswept};

const TEA: &str = "green tea in the morning";
const CAKE: &str = "tea with cake";
const TEXTS: [&str; 3] = [TEA, CAKE, "a teapot of black tea"];

async fn taught(reranker: &Arc<ScriptedReranker>) -> (World, Bot) {
    let mut config = unswept();
    config.long_term.reranker = Some(reranker.clone());
    let world = World::new(config).remembering();
    let bot = acme(&world.open().await);
    for text in TEXTS {
        bot.learn(ANN, text).await;
    }
    (world, bot)
}

async fn recalled(bot: &Bot, words: &str) -> RecallOutcome {
    bot.recall(query(ANN, words)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn best_of_reranker_comes_first() {
    let reranker = Arc::new(ScriptedReranker::new(50, Says::Best(CAKE)));
    let (_world, bot) = taught(&reranker).await;
    let outcome = recalled(&bot, "green tea, ghp_x7Rk2mQv9LbT4wZs8NcY1hFj6PdG3aKe5UoX").await;
    assert_eq!((&*told(&outcome)[0], outcome.is_reranked), (CAKE, true));
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
    assert_eq!(outcome.hits[0].parts.judged, Some(0.9));
    let [(asked, texts)] = &reranker.asked()[..] else {
        panic!("{:?}", reranker.asked());
    };
    assert!(
        asked.contains("green tea") && !asked.contains("x7Rk2mQv9"),
        "{asked}"
    );
    assert_eq!(texts.len(), 3);

    let without = RecallRequest {
        without_reranker: true,
        ..query(ANN, "green tea")
    };
    let outcome = bot.recall(without).await.unwrap();
    assert_eq!((&*told(&outcome)[0], outcome.is_reranked), (TEA, false));
    assert!(outcome.notes.is_empty(), "{:?}", outcome.notes);
    assert_eq!(reranker.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn reranker_judges_up_to_its_maximum_and_rest_follows() {
    let reranker = Arc::new(ScriptedReranker::new(2, Says::Scores(vec![0.2, 0.8])));
    let (_world, bot) = taught(&reranker).await;
    let plain = RecallRequest {
        without_reranker: true,
        ..query(ANN, "tea cake morning")
    };
    let before = bot.recall(plain).await.unwrap();
    let told_before = told(&before);
    let [first, second, third] = &told_before[..] else {
        panic!("{before:?}");
    };
    let outcome = recalled(&bot, "tea cake morning").await;
    assert_eq!(
        told(&outcome).iter().collect::<Vec<_>>(),
        [second, first, third]
    );
    // A single hit is not reranked.
    let one = recalled(&bot, "cake").await;
    assert_eq!((&*told(&one)[0], one.is_reranked), (CAKE, false));
    // More hits than requested are reranked.
    let few = RecallRequest {
        limit: 1,
        ..query(ANN, "tea cake morning")
    };
    let few = bot.recall(few).await.unwrap();
    assert_eq!(&told(&few)[0], second);
}

#[tokio::test(start_paused = true)]
async fn unusable_reranker_reply_keeps_recall() {
    for says in [
        Says::Away,
        Says::Refuses,
        Says::Scores(vec![0.5]),
        Says::Scores(vec![0.5; 4]),
        Says::Scores(vec![0.5, f64::NAN, 0.5]),
        Says::Scores(vec![0.5, 1.5, 0.5]),
    ] {
        let reranker = Arc::new(ScriptedReranker::new(50, says.clone()));
        let (_world, bot) = taught(&reranker).await;
        let outcome = recalled(&bot, "green tea").await;
        assert_eq!(
            (&*told(&outcome)[0], outcome.is_reranked),
            (TEA, false),
            "{says:?}"
        );
        let [note] = &outcome.notes[..] else {
            panic!("{says:?}: {:?}", outcome.notes);
        };
        assert!(note.contains("reranker"), "{note}");
        assert_eq!(outcome.hits[0].parts.judged, None);
    }
}

#[tokio::test(start_paused = true)]
async fn failing_reranker_is_paused() {
    let reranker = Arc::new(ScriptedReranker::new(50, Says::Refuses));
    let (_world, bot) = taught(&reranker).await;
    for _ in 0..10 {
        assert!(!recalled(&bot, "tea").await.is_reranked);
    }
    assert_eq!(
        reranker.asked().len(),
        10,
        "what some texts are refused for is no outage"
    );
    let reranker = Arc::new(ScriptedReranker::new(50, Says::Away));
    let (_world, bot) = taught(&reranker).await;
    for _ in 0..10 {
        let outcome = recalled(&bot, "tea").await;
        assert_eq!((outcome.is_reranked, outcome.notes.len()), (false, 1));
    }
    assert_eq!(reranker.asked().len(), 3, "then a breaker is open");
    reranker.says(Says::Best(CAKE));
    assert!(!recalled(&bot, "tea").await.is_reranked);
    sleep(Duration::from_secs(31)).await;
    let outcome = recalled(&bot, "tea").await;
    assert_eq!((&*told(&outcome)[0], outcome.is_reranked), (CAKE, true));
    assert!(outcome.notes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_does_not_break_reranker() {
    let reranker = Arc::new(ScriptedReranker::new(50, Says::Hangs));
    let (_world, bot) = taught(&reranker).await;
    let left = timeout(Duration::from_secs(5), bot.recall(query(ANN, "tea"))).await;
    assert!(left.is_err(), "{left:?}");
    reranker.says(Says::Best(CAKE));
    assert!(recalled(&bot, "tea").await.is_reranked);
}
