//! Circuit breakers of sessions and of providers: how they open after failures and close again.

use memoird_proto::v1::{BreakerState, CompactSessionRequest, CompactionInfo};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Events, Summaries, SummaryReply, Wire, eventually, refused, refused_code,
};

use super::bot::{Bot, ROOMY, STRICT, counted, daemon, event_text, sum};

async fn state(bot: &mut Bot) -> CompactionInfo {
    bot.session_detail()
        .await
        .session
        .and_then(|session| session.compaction)
        .expect("its state")
}

async fn last_seq(bot: &mut Bot) -> u64 {
    bot.session_detail()
        .await
        .session
        .expect("a session")
        .last_seq
}

/// Runs exchanges of a patient bot until exactly three failures have opened its breaker.
///
/// Five turns later it would be half open.
async fn opened(bot: &mut Bot, events: &mut Events) {
    for exchanges in 0.. {
        assert!(exchanges < 120, "{exchanges} exchanges and no open breaker");
        bot.exchange().await;
        if state(bot).await.breaker() == BreakerState::Open {
            break;
        }
    }
    for _ in 0..3 {
        let failed = events.until("compaction_failed").await.pop();
        assert_eq!(failed.expect("an event").session_id, bot.session);
    }
}

#[tokio::test]
async fn open_breaker_makes_no_calls_until_trial_after_five_turns() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let daemon = daemon(&provider, Wire::Anthropic, "tries: 1,").await;
    let mut bot = Bot::patient(&daemon);
    let mut events = Events::now(&mut daemon.sessions()).await;
    opened(&mut bot, &mut events).await;
    assert_eq!(
        sum(&daemon, "memoird_compaction_breakers_open{", "").await,
        1
    );
    // Windows work without a summary. A trial takes place after five turns at the earliest.
    let (before, asked) = (last_seq(&mut bot).await, provider.calls().len());
    for _ in 0..20 {
        for _ in 0..3 {
            bot.window().await;
        }
        bot.exchange().await;
    }
    let turns = last_seq(&mut bot).await - before;
    let trials = eventually("the last trial has failed", async || {
        let calls = provider.calls().len();
        let failures = state(&mut bot).await.consecutive_failures;
        (u32::try_from(calls) == Ok(failures)).then_some(calls - asked)
    });
    let trials = trials.await as u64;
    assert!(
        (2..=turns / 5 + 1).contains(&trials),
        "{trials} trials in {turns} turns"
    );
    while let Some(event) = events.soon().await {
        let is_failure = event.word() == "compaction_failed";
        assert!(
            !is_failure || event_text(&event, "breaker") == "BREAKER_STATE_OPEN",
            "a trial opens it again"
        );
    }
    assert_eq!(
        sum(&daemon, "memoird_compaction_breakers_open{", "").await,
        1
    );
    provider.set_reply(SummaryReply::Well);
    bot.until(&mut events, "compacted").await;
    assert_eq!(state(&mut bot).await.breaker(), BreakerState::Closed);
    assert_eq!(
        sum(&daemon, "memoird_compaction_breakers_open{", "").await,
        0
    );
}

#[tokio::test]
async fn breaker_state_survives_kill_and_stop() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let patient = format!("{STRICT} breaker: {{ failures: 3, turns: 60, cool_down: 1h }},");
    let setup = provider
        .setup(Wire::OpenAi, "tries: 1,", &patient)
        .section(ROOMY);
    let mut daemon = Daemon::with(setup).await;
    // An exchange requests several windows, each of which may trigger a compaction.
    let mut bot = Bot::patient(&daemon);
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compaction_failed").await;
    let before = state(&mut bot).await;
    daemon.kill9().await;
    daemon.restart().await;
    bot.reconnect(&daemon);
    assert_eq!(state(&mut bot).await, before, "a failure is counted once");
    let mut events = Events::now(&mut daemon.sessions()).await;
    for _ in before.consecutive_failures..3 {
        bot.until(&mut events, "compaction_failed").await;
    }
    let before = state(&mut bot).await;
    assert_eq!(
        (before.breaker(), before.consecutive_failures),
        (BreakerState::Open, 3)
    );
    for crash in [true, false] {
        let asked = provider.calls().len();
        if crash {
            daemon.kill9().await;
        } else {
            daemon.stop().await;
        }
        daemon.restart().await;
        bot.reconnect(&daemon);
        assert_eq!(state(&mut bot).await, before, "crash: {crash}");
        bot.window().await;
        assert_eq!(
            sum(&daemon, "memoird_compaction_breakers_open{", "").await,
            1
        );
        assert_eq!(provider.calls().len(), asked, "nobody is asked");
    }
    provider.set_reply(SummaryReply::Well);
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    assert_eq!(state(&mut bot).await.breaker(), BreakerState::Closed);
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn cool_down_allows_trial_without_more_turns() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let quick = format!("{STRICT} breaker: {{ failures: 1, turns: 1000, cool_down: 500ms }},");
    let setup = provider
        .setup(Wire::Webhook, "tries: 1,", &quick)
        .section(ROOMY);
    let daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compaction_failed").await;
    assert_eq!(
        event_text(&event, "breaker"),
        "BREAKER_STATE_OPEN",
        "the first failure is one too many"
    );
    provider.set_reply(SummaryReply::Well);
    eventually("a window asks again", async || {
        bot.window().await;
        bot.session_detail().await.summary.map(|_| ())
    })
    .await;
}

#[tokio::test]
async fn failing_session_does_not_open_breaker_of_others() {
    let provider = Summaries::start(SummaryReply::Apology).await;
    let daemon = daemon(&provider, Wire::Anthropic, "tries: 1,").await;
    let mut bot = Bot::named(daemon.sessions(), "bad");
    bot.waits_for_summaries(&daemon);
    let mut events = Events::now(&mut daemon.sessions()).await;
    opened(&mut bot, &mut events).await;
    provider.set_reply(SummaryReply::Well);
    let mut other = Bot::named(daemon.sessions(), "good");
    let event = other.until(&mut events, "compacted").await;
    assert_eq!(event.session_id, "good");
    assert_eq!(state(&mut bot).await.breaker(), BreakerState::Open);
    // A manual compaction is possible at any time.
    let asked = CompactSessionRequest {
        session_id: "bad".into(),
        keep_exchanges: None,
    };
    let made = bot
        .client
        .compact_session(asked)
        .await
        .expect("a summary")
        .into_inner();
    assert!(made.is_new && made.summary_info.is_some());
    assert_eq!(state(&mut bot).await.breaker(), BreakerState::Closed);
}

#[tokio::test]
async fn provider_breaker_stops_calls_of_all_sessions() {
    let provider = Summaries::start(SummaryReply::Broken).await;
    let patient = "provider_breaker: { failures: 2, cool_down: 1h },";
    let setup = provider
        .setup(Wire::OpenAi, "tries: 1,", patient)
        .section(ROOMY);
    let mut daemon = Daemon::with(setup.clone()).await;
    let mut events = Events::now(&mut daemon.sessions()).await;
    let mut bots = ["a", "b", "c"].map(|name| Bot::named(daemon.sessions(), name));
    bots[0].until(&mut events, "compaction_failed").await;
    bots[0].until(&mut events, "compaction_failed").await;
    assert_eq!(provider.calls().len(), 2);
    for bot in &mut bots {
        bot.exchanges(30).await;
        let asked = CompactSessionRequest {
            session_id: bot.session.clone(),
            keep_exchanges: None,
        };
        // A compaction triggered by a window may still be failing in the background.
        let answer = eventually("no other compaction is running", async || {
            let answer = bot.client.compact_session(asked.clone()).await;
            let is_running = |status: &Status| refused_code(status) == "COMPACTION_RUNNING";
            (!answer.as_ref().is_err_and(is_running)).then_some(answer)
        })
        .await;
        let said = refused(answer, Code::Unavailable, "COMPACTION_FAILED");
        assert!(said.contains("later"), "{said}");
        bot.journal_is_whole().await;
    }
    assert_eq!(provider.calls().len(), 2, "nobody asks it any more");
    assert_eq!(
        state(&mut bots[1]).await.consecutive_failures,
        0,
        "it is no fault of the session"
    );
    assert_eq!(
        sum(&daemon, "memoird_summarizer_breaker{", "openai:small").await,
        2
    );
    // A new provider is called at once.
    let new = Summaries::start(SummaryReply::Well).await;
    daemon.rewrite(
        new.setup(Wire::Webhook, "tries: 1,", patient)
            .section(ROOMY),
    );
    crate::harness::reload(&mut daemon.admin()).await;
    bots[1].until(&mut events, "compacted").await;
    assert!(counted(&daemon, "made").await >= 1);
}

#[tokio::test]
async fn provider_breaker_closes_after_cool_down() {
    let provider = Summaries::start(SummaryReply::Broken).await;
    let quick = "provider_breaker: { failures: 1, cool_down: 200ms },";
    let setup = provider
        .setup(Wire::Anthropic, "tries: 1,", quick)
        .section(ROOMY);
    let daemon = Daemon::with(setup).await;
    let mut events = Events::now(&mut daemon.sessions()).await;
    let mut bot = Bot::new(daemon.sessions());
    bot.until(&mut events, "compaction_failed").await;
    provider.set_reply(SummaryReply::Well);
    bot.until(&mut events, "compacted").await;
    assert_eq!(sum(&daemon, "memoird_summarizer_breaker{", "").await, 0);
}
