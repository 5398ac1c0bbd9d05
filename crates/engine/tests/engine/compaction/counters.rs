//! Remote token counters.
//!
//! They decide near the limit and count the same content once. While they are down, the estimate is
//! used.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::turn::MessageFormat;
use memoird_core::turn::Role;
use memoird_core::window::Report;
use memoird_engine::{
    ContextRequest, CountFuture, CountRequest, FaultKind, ModelFault, TokenCounter,
};
use tokio::time::sleep;

use super::compacting;
use super::script::Script;
use super::talk::{Talk, answering, calling, text_turn};
use crate::bot::Bot;
use crate::kit::{World, settle};
use crate::windows::{Remembered, model, with_models};

/// A token counter that returns scripted counts, or fails.
#[derive(Debug)]
struct ScriptedCounter {
    counts: Mutex<VecDeque<Option<u64>>>,
    then: Mutex<Option<u64>>,
    /// The error for a scripted `None`.
    fault: ModelFault,
    asked: Mutex<Vec<CountRequest>>,
}

impl ScriptedCounter {
    fn new(then: Option<u64>) -> Arc<Self> {
        Self::that_fails(then, ModelFault::new(FaultKind::Later, "down"))
    }

    fn that_fails(then: Option<u64>, fault: ModelFault) -> Arc<Self> {
        let (counts, asked) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            counts,
            then: Mutex::new(then),
            fault,
            asked,
        })
    }

    fn will_now(&self, tokens: Option<u64>) {
        *self.then.lock().unwrap() = tokens;
    }

    fn times(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

impl TokenCounter for ScriptedCounter {
    fn name(&self) -> &str {
        "counter"
    }

    fn format(&self) -> MessageFormat {
        MessageFormat::OpenAi
    }

    fn count(&self, ask: CountRequest) -> CountFuture<'_> {
        self.asked.lock().unwrap().push(ask);
        let told = self
            .counts
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(*self.then.lock().unwrap());
        let fault = self.fault.clone();
        Box::pin(async move { told.ok_or(fault) })
    }
}

async fn counted(script: &Arc<Script>, counter: &Arc<ScriptedCounter>) -> (World, Bot) {
    let mut small = model("small", 4_000, &Arc::default());
    small.counter = Some(counter.clone());
    let world = World::new(with_models(compacting(script), vec![small]));
    let bot = Bot::acme(&world.open().await);
    (world, bot)
}

/// Talks until the counter is called or the window exceeds `tokens`.
async fn talk_until_asked(talk: &mut Talk, counter: &ScriptedCounter, tokens: u64) {
    for _ in 0..30 {
        talk.exchange().await;
        let used = talk.window().await.report.blocks.total();
        settle().await;
        if counter.times() > 0 || used > tokens {
            return;
        }
    }
    panic!("it never came to that");
}

#[tokio::test(start_paused = true)]
async fn token_count_of_provider_decides_near_the_limit() {
    let (script, counter) = (Script::new([]), ScriptedCounter::new(Some(2_000)));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    talk_until_asked(&mut talk, &counter, 3_300).await;
    assert!(counter.times() > 0);
    // The provider counts less than the estimate, and appended turns do not change that.
    for _ in 0..3 {
        talk.exchange().await;
        settle().await;
    }
    assert_eq!(script.times(), 0, "the provider counts less");
    let ask = counter.asked.lock().unwrap()[0].clone();
    assert!(ask.messages_json.contains("what of #0?"), "{ask:?}");
    // The same content is counted once.
    let times = counter.times();
    talk.window().await;
    settle().await;
    let once = counter.times();
    assert!(once <= times + 1);
    for _ in 0..3 {
        talk.window().await;
        settle().await;
    }
    assert_eq!(counter.times(), once);
    counter.will_now(Some(3_900));
    talk.exchange().await;
    talk.window().await;
    settle().await;
    assert_eq!(script.times(), 1, "now it is due");
    assert!(talk.has_summary().await);
}

#[tokio::test(start_paused = true)]
async fn results_appended_after_count_do_not_trigger_compaction() {
    let (script, counter) = (Script::new([]), ScriptedCounter::new(Some(2_799)));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    talk_until_asked(&mut talk, &counter, 3_300).await;
    for _ in 0..2 {
        let ids = talk.ids(1);
        talk.add(vec![text_turn(Role::User, "look")]).await;
        talk.add(vec![calling("I look", &ids)]).await;
        talk.window().await;
        settle().await;
        talk.add(vec![answering("one", &ids[0])]).await;
        settle().await;
    }
    assert_eq!(script.times(), 0);
}

#[tokio::test(start_paused = true)]
async fn failing_counter_opens_breaker_and_estimate_decides() {
    let (script, counter) = (Script::new([]), ScriptedCounter::new(None));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    let mut largest = 0;
    for _ in 0..30 {
        talk.exchange().await;
        largest = largest.max(talk.window().await.report.blocks.total());
        settle().await;
    }
    assert!(script.times() > 0, "the estimate decides");
    assert!(largest < 3_800, "{largest}");
    assert_eq!(counter.times(), 3, "its breaker is open");
    // After its cool-down one trial is admitted.
    sleep(Duration::from_secs(5 * 60)).await;
    for _ in 0..12 {
        talk.exchange().await;
        talk.window().await;
        settle().await;
    }
    assert_eq!(counter.times(), 4, "one trial");
    sleep(Duration::from_secs(5 * 60)).await;
    counter.will_now(Some(10));
    for _ in 0..12 {
        talk.exchange().await;
        talk.window().await;
        settle().await;
    }
    assert!(counter.times() > 5, "it is back: {}", counter.times());
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_counter_is_respected() {
    let script = Script::new([]);
    let busy = ModelFault {
        after: Some(Duration::from_secs(600)),
        ..ModelFault::new(FaultKind::Later, "busy")
    };
    let counter = ScriptedCounter::that_fails(None, busy);
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    let mut windows = async |count| {
        for _ in 0..count {
            talk.exchange().await;
            talk.window().await;
            settle().await;
        }
    };
    windows(30).await;
    assert_eq!(counter.times(), 1, "it asked for a pause");
    sleep(Duration::from_secs(599)).await;
    windows(12).await;
    assert_eq!(counter.times(), 1);
    sleep(Duration::from_secs(1)).await;
    counter.will_now(Some(10));
    windows(12).await;
    assert!(counter.times() > 1, "it is back");
}

#[tokio::test(start_paused = true)]
async fn refused_count_request_does_not_open_counter_breaker() {
    let script = Script::new([]);
    let counter = ScriptedCounter::that_fails(None, ModelFault::new(FaultKind::Refused, "no"));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    for _ in 0..40 {
        talk.exchange().await;
        talk.window().await;
        settle().await;
    }
    assert!(counter.times() > 3, "{}", counter.times());
}

#[tokio::test(start_paused = true)]
async fn provider_counts_calibrate_the_estimate() {
    let (script, counter) = (Script::new([]), ScriptedCounter::new(None));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchange().await;
    let first = talk.window().await;
    // The provider counts more than the estimate, so windows have less room.
    for _ in 0..40 {
        talk.exchange().await;
        talk.window().await;
        counter.will_now(Some(6_000));
        settle().await;
    }
    assert!(counter.times() > 0);
    let (first, last) = (first.report, talk.window().await.report);
    let system = |report: &Report| report.blocks.system as f64 / report.token_factor;
    assert!(
        last.token_factor > 1.05 || system(&last) > system(&first) + 500.0,
        "{last:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn counts_without_memories_do_not_lower_calibration() {
    let (script, counter) = (Script::new([]), ScriptedCounter::new(None));
    let (_world, bot) = counted(&script, &counter).await;
    let mut talk = Talk::new(&bot, "a");
    let mut factors = Vec::new();
    while counter.times() < 3 {
        talk.exchange().await;
        let request = ContextRequest {
            peek: true,
            ..ContextRequest::default()
        };
        let plain = bot.context("a", request).await.unwrap().report;
        factors.push((plain.token_factor, plain.blocks.system));
        counter.will_now(Some(plain.blocks.total()));
        let ask = ContextRequest {
            memories: Some(Arc::new(Remembered(800))),
            ..ContextRequest::default()
        };
        bot.context("a", ask).await.unwrap();
        settle().await;
    }
    assert!(factors.iter().all(|it| *it == factors[0]), "{factors:?}");
}
