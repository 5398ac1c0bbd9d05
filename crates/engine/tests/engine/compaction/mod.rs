//! Compaction through the public API.
//!
//! Covers when a session gets a summary, how windows use it, and that a failing summarizer changes
//! nothing.

mod bad_replies;
mod breakers;
mod chunks;
mod commits;
mod counters;
mod deferral;
mod ends;
mod fairness;
mod history;
mod requests;
pub(crate) mod script;
mod sections;
mod simulation;
pub(crate) mod talk;
mod undo;

use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::{ModelSections, SummaryTokens};
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{
    CompactionOutcome, ContextRequest, EngineConfig, EngineError, FaultKind, ModelFault,
};
use memoird_store::encoding;
use tokio::sync::Notify;

use crate::bot::{ALL, Bot};
use crate::kit::{NEVER, World, session_id, settle, unswept};
use crate::windows::{model, texts, with_models};
use script::{ModelStep, Script};

/// Compaction with this summarizer, and a model of 4,000 tokens.
fn compacting(script: &Arc<Script>) -> EngineConfig {
    let mut config = with_models(unswept(), vec![model("small", 4_000, &Arc::default())]);
    config.compaction.summarizer = Some(script.clone());
    config.compaction.policy.turns_between_min = 2;
    config.compaction.policy.soft_watermark_percent = 70;
    config.compaction.policy.hard_watermark_percent = 95;
    config.context.settings.floor_percent = 50;
    config.compaction.policy.summary_tokens = SummaryTokens::Fixed(600);
    config.limits.max_history_turns = 1_000;
    config.sessions.session_ttl = NEVER;
    config
}

pub(crate) async fn opened(script: &Arc<Script>) -> (World, Bot) {
    let world = World::new(compacting(script));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    (world, bot)
}

impl Bot {
    /// One exchange. The user names `#number`, which a summary must retain.
    async fn exchange(&self, session: &str, number: usize) {
        self.say_as(
            session,
            Role::User,
            &format!("what of #{number}? {}", "x".repeat(80)),
        )
        .await;
        self.say_as(
            session,
            Role::Assistant,
            &format!("it is done {}", "y".repeat(80)),
        )
        .await;
    }

    async fn say_as(&self, session: &str, role: Role, text: &str) {
        let part = PartKind::Text(format!("[[{text}]]"));
        let turns = vec![encoding::encode(Turn::new(role, vec![part.into()]))];
        let command = memoird_core::session::AppendCommand {
            turns,
            ..Default::default()
        };
        self.append(session, command).await.unwrap();
    }

    async fn compact(
        &self,
        session: &str,
        keep: Option<u32>,
    ) -> Result<CompactionOutcome, EngineError> {
        self.engine
            .compaction
            .compact_session(&self.tenant, &session_id(session), keep)
            .await
    }

    pub(crate) async fn summary_through(&self, session: &str) -> u64 {
        let status = self.view(session).await.unwrap().head.compaction;
        status.map_or(0, |status| status.through_seq)
    }

    async fn breaker(&self, session: &str) -> (BreakerState, u32) {
        let view = self.view(session).await.unwrap();
        (
            view.breaker,
            view.head.compaction.map_or(0, |status| status.failures),
        )
    }

    /// Alternates exchanges and windows until a condition holds.
    async fn talk_until(&self, session: &str, holds: impl AsyncFn() -> bool) {
        for number in 0..200 {
            self.exchange(session, number).await;
            self.context(session, ContextRequest::default())
                .await
                .unwrap();
            settle().await;
            if holds().await {
                return;
            }
        }
        panic!("it never came to that");
    }
}

#[tokio::test(start_paused = true)]
async fn remote_summary_is_prepared_before_the_window_is_full_and_shown_at_the_cut() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    bot.talk_until("a", async || bot.summary_through("a").await > 0)
        .await;
    // The summary is ready, and windows do not change before they need it.
    let mut before = bot.context("a", ContextRequest::default()).await.unwrap();
    let through = bot.summary_through("a").await;
    let mut since = 0;
    let outcome = loop {
        bot.exchange("a", 500 + since).await;
        since += 1;
        let outcome = bot.context("a", ContextRequest::default()).await.unwrap();
        assert!(!outcome.report.degraded, "{:?}", outcome.report);
        if outcome.report.summary.is_some() {
            break outcome;
        }
        let (now, then) = (texts(&outcome.turns), texts(&before.turns));
        assert_eq!(now[..then.len()], then[..]);
        before = outcome;
    };
    assert_eq!(
        bot.summary_through("a").await,
        through,
        "and there is no other one"
    );
    let said = texts(&outcome.turns);
    assert_eq!(
        said[..2],
        ["...", "..."],
        "the summary and its acknowledgement"
    );
    assert!(
        !said.iter().any(|text| text.contains("#0?")),
        "the first user turn is summarized: {said:?}"
    );
    assert!(outcome.report.blocks.summary > 0);
    assert!(before.report.blocks.total() > 3_000);
    assert!(
        outcome.report.blocks.total() <= 3_000,
        "{:?}",
        outcome.report.blocks
    );
    let summary = outcome.report.summary.unwrap();
    assert_eq!(
        (summary.number, summary.first_seq, &*summary.by),
        (1, 1, "script")
    );
    // All turns after the summary are shown verbatim.
    let last_seq = outcome.session.head.last_seq;
    assert_eq!(said.len() as u64, 2 + last_seq - through, "{said:?}");
    assert!(
        last_seq - through > 2 * since as u64 + 4,
        "{through} of {last_seq}"
    );
    // The history keeps the summarized turns.
    let live = bot
        .engine
        .commands
        .history(&bot.tenant, &session_id("a"), ALL)
        .await
        .unwrap();
    assert_eq!(
        live.turns.len() as u64,
        bot.view("a").await.unwrap().head.last_seq
    );
}

#[tokio::test(start_paused = true)]
async fn next_summary_includes_the_previous_one() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    bot.talk_until("a", async || {
        bot.view("a")
            .await
            .unwrap()
            .head
            .compaction
            .is_some_and(|status| status.summaries > 2)
    })
    .await;
    let asked = script.asked.lock().unwrap().clone();
    assert!(asked[0].previous.is_none());
    let mut last = 1;
    for pair in asked.windows(2) {
        let previous = pair[1].previous.as_ref().unwrap();
        assert_eq!(previous.through_seq, pair[0].turns.last().unwrap().seq);
        assert_eq!(
            pair[1].turns[0].seq,
            previous.through_seq + 1,
            "no turn between the two"
        );
        last = previous.number + 1;
    }
    assert_eq!(last, 3);
    let detail = bot
        .engine
        .compaction
        .session_detail(&bot.tenant, &session_id("a"))
        .await
        .unwrap();
    assert!(
        detail.summary.unwrap().text.contains("#1"),
        "nothing before it is forgotten"
    );
}

#[tokio::test(start_paused = true)]
async fn appends_continue_during_compaction() {
    let allowed = Arc::new(Notify::new());
    let script = Script::new([ModelStep::Waits(allowed.clone())]);
    let (_world, bot) = opened(&script).await;
    bot.talk_until("a", async || script.times() == 1).await;
    assert!(
        bot.view("a")
            .await
            .unwrap()
            .head
            .compaction
            .unwrap()
            .running
    );
    for number in 500..505 {
        bot.exchange("a", number).await;
        bot.context("a", ContextRequest::default()).await.unwrap();
    }
    let last = *script.last_seqs().last().unwrap();
    allowed.notify_one();
    settle().await;
    assert_eq!(bot.summary_through("a").await, last);
    let said = bot.window("a").await.unwrap().join(" ");
    for number in 500..505 {
        assert!(said.contains(&format!("#{number}")), "{said}");
    }
    assert_eq!(script.times(), 1, "one at a time");
}

#[tokio::test(start_paused = true)]
async fn invalid_summarizer_replies_change_nothing() {
    let later = ModelFault::new(FaultKind::Later, "down");
    let refused = ModelFault::new(FaultKind::Refused, "no");
    let bad = [
        (ModelStep::Never, "timeout"),
        (ModelStep::Writes(""), "empty"),
        (ModelStep::Writes("{}"), "field_missing"),
        (ModelStep::Writes("{\"details\": \"to ta"), "cut_off"),
        (
            ModelStep::Writes("I'm sorry, but I can't help with that."),
            "refusal",
        ),
        (ModelStep::CutOff, "cut_off"),
        (ModelStep::Answers(ModelSections::default()), "empty"),
        (ModelStep::Fails(later), "provider_failed"),
        (ModelStep::Fails(refused), "provider_refused"),
    ];
    for (step, reason) in bad {
        let script = Script::new([step.clone()]);
        let (_world, bot) = opened(&script).await;
        for number in 0..12 {
            bot.exchange("a", number).await;
        }
        let before = bot.window("a").await.unwrap();
        let failure = bot.compact("a", Some(2)).await.expect_err("no summary");
        let EngineError::CompactionFailed { reason: told, .. } = &failure else {
            panic!("{step:?}: {failure}")
        };
        assert_eq!(*told, reason, "{step:?}: {failure}");
        assert_eq!(bot.window("a").await.unwrap(), before, "{step:?}");
        assert_eq!(
            bot.breaker("a").await,
            (BreakerState::Closed, 1),
            "{step:?}"
        );
        bot.compact("a", Some(2))
            .await
            .expect("the next one is good");
        assert_eq!(
            bot.breaker("a").await,
            (BreakerState::Closed, 0),
            "{step:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn compact_keeps_last_exchanges_and_is_idempotent() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    for number in 0..8 {
        bot.exchange("a", number).await;
    }
    let done = bot.compact("a", Some(3)).await.unwrap();
    assert!(done.is_new);
    assert_eq!(done.summary.as_ref().map(|made| made.through_seq), Some(10));
    assert_eq!(bot.window("a").await.unwrap().len(), 2 + 6);
    // The same turns are not summarized again.
    let again = bot.compact("a", Some(3)).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(again.summary, done.summary);
    let all = bot.compact("a", Some(0)).await.unwrap();
    assert_eq!(
        all.summary.map(|made| (made.number, made.through_seq)),
        Some((2, 16))
    );
    assert_eq!(bot.window("a").await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn undo_restores_turns_across_restart() {
    let script = Script::new([]);
    let (world, bot) = opened(&script).await;
    for number in 0..12 {
        bot.exchange("a", number).await;
    }
    let whole = bot.window("a").await.unwrap();
    bot.compact("a", Some(7)).await.unwrap();
    let first = bot.window("a").await.unwrap();
    bot.compact("a", Some(2)).await.unwrap();
    let (_, restored) = bot.undo("a").await.unwrap();
    assert_eq!(restored, 10);
    assert_eq!(bot.window("a").await.unwrap(), first);
    bot.engine.close().await;
    let bot = Bot::acme(&world.open().await);
    assert_eq!(bot.window("a").await.unwrap(), first);
    assert_eq!(bot.undo("a").await.unwrap().1, 10);
    assert_eq!(bot.window("a").await.unwrap(), whole);
    let refused = bot.undo("a").await.expect_err("there is none");
    assert!(
        matches!(refused, EngineError::NoSummary { .. }),
        "{refused}"
    );
}

impl Bot {
    async fn undo(&self, session: &str) -> Result<(memoird_engine::SessionView, u64), EngineError> {
        self.engine
            .compaction
            .undo_compaction(&self.tenant, &session_id(session))
            .await
    }
}
