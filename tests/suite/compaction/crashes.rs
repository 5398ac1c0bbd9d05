//! `kill -9` at each step of a compaction.
//!
//! Afterwards the session has the old or the new summary and every turn, and the next compaction
//! continues from there.

use memoird_proto::v1::SummaryInfo;

use crate::harness::{
    Daemon, Events, Summaries, SummaryReply, Wire, detail, eventually, seeds_factor, without_nonce,
};
use crate::windows::bot::report;

use super::bot::{Bot, ROOMY, daemon, order, summary};

async fn info(bot: &mut Bot) -> Option<SummaryInfo> {
    bot.session_detail().await.summary
}

async fn crash(daemon: &mut Daemon, bot: &mut Bot) {
    daemon.kill9().await;
    daemon.restart().await;
    bot.reconnect(daemon);
}

/// Checks a session after a crash, and returns its summary.
///
/// No compaction is running, windows and `GetSession` agree on the summary, and every turn is
/// stored.
async fn check_session(bot: &mut Bot) -> Option<SummaryInfo> {
    bot.journal_is_whole().await;
    let seen = bot.session_detail().await;
    let state = seen
        .session
        .and_then(|session| session.compaction)
        .expect("its state");
    assert!(!state.running, "{state:?}");
    let window = bot.window().await;
    // A new summary is shown at the next cut. Until then windows show the previous one.
    if let Some(text) = summary(&window) {
        let newest = seen.summary.as_ref().map_or(0, |info| info.number);
        let shown = report(&window).summary.clone().expect("a summary");
        if shown.number == newest {
            assert_eq!(without_nonce(text), seen.summary_text);
            assert_eq!(Some(shown), seen.summary);
        } else {
            assert_eq!(shown.number + 1, newest);
        }
    }
    assert_eq!(
        state.through_seq,
        seen.summary.as_ref().map_or(0, |info| info.through_seq)
    );
    seen.summary
}

/// Asserts that the next compaction succeeds and its summary still contains earlier facts.
async fn check_next_compaction(daemon: &Daemon, bot: &mut Bot, before: u32) {
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compacted").await;
    // The compaction after it may have finished before the subscription.
    assert!(
        detail(&event)["number"].as_u64() > Some(before.into()),
        "{event:?}"
    );
    let text = bot.until_shown(before + 1).await;
    assert!(
        text.contains(&order(0)) && text.contains("The assistant looked orders up."),
        "the task, and what the model wrote: {text}"
    );
    bot.journal_is_whole().await;
}

/// Runs exchanges until the provider was called more than `times` times.
async fn run_until_called_again(provider: &Summaries, bot: &mut Bot, times: usize) {
    for _ in 0..100 {
        if provider.calls().len() > times {
            return;
        }
        bot.exchange().await;
    }
    panic!("it is not asked");
}

/// Without and with an earlier summary.
const ROUNDS: u32 = 2;

#[tokio::test]
async fn kill_during_provider_call_keeps_previous_summary() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let mut daemon = daemon(&provider, Wire::Anthropic, "").await;
    let mut bot = Bot::new(daemon.sessions());
    for _ in 0..u64::from(ROUNDS) * seeds_factor() {
        provider.set_reply(SummaryReply::Never);
        run_until_called_again(&provider, &mut bot, provider.calls().len()).await;
        let before = info(&mut bot).await;
        bot.exchanges(3).await;
        provider.set_reply(SummaryReply::Well);
        crash(&mut daemon, &mut bot).await;
        assert_eq!(
            check_session(&mut bot).await,
            before,
            "the one before stands"
        );
        check_next_compaction(&daemon, &mut bot, before.map_or(0, |info| info.number)).await;
    }
}

#[tokio::test]
async fn kill_after_provider_reply_has_old_or_new_summary() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let mut daemon = daemon(&provider, Wire::OpenAi, "").await;
    let mut bot = Bot::new(daemon.sessions());
    for _ in 0..2 * u64::from(ROUNDS) * seeds_factor() {
        provider.set_reply(SummaryReply::Held);
        run_until_called_again(&provider, &mut bot, provider.calls().len()).await;
        let before = info(&mut bot).await.map_or(0, |info| info.number);
        let answered = provider.answered();
        provider.set_reply(SummaryReply::Well);
        provider.let_through(1);
        eventually("it has answered", async || {
            (provider.answered() > answered).then_some(())
        })
        .await;
        crash(&mut daemon, &mut bot).await;
        let after = check_session(&mut bot).await.map_or(0, |info| info.number);
        assert!(
            after == before || after == before + 1,
            "{before}, then {after}"
        );
        check_next_compaction(&daemon, &mut bot, after).await;
    }
}

#[tokio::test]
async fn kill_after_compacted_event_keeps_the_summary() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let mut daemon = daemon(&provider, Wire::Webhook, "").await;
    let mut bot = Bot::new(daemon.sessions());
    for round in 1..=ROUNDS {
        let mut events = Events::now(&mut daemon.sessions()).await;
        let event = bot.until(&mut events, "compacted").await;
        let told = detail(&event);
        crash(&mut daemon, &mut bot).await;
        let found = check_session(&mut bot)
            .await
            .expect("what was told is true");
        assert_eq!(
            (found.number, told["number"].as_u64()),
            (round, Some(u64::from(round)))
        );
        assert_eq!(Some(found.through_seq), told["through_seq"].as_u64());
    }
    check_next_compaction(&daemon, &mut bot, ROUNDS).await;
}

#[tokio::test]
async fn window_is_byte_identical_after_kill() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let mut daemon = daemon(&provider, Wire::Anthropic, "").await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    bot.until_shown(1).await;
    bot.exchange().await;
    let before = bot.window().await;
    let all = bot.session_detail().await;
    crash(&mut daemon, &mut bot).await;
    let after = bot.window().await;
    assert_eq!(
        (before.turns, before.messages_json),
        (after.turns, after.messages_json)
    );
    let again = bot.session_detail().await;
    assert_eq!(
        (all.summary, all.summary_text),
        (again.summary, again.summary_text)
    );
}

#[tokio::test]
async fn stop_does_not_wait_for_provider() {
    let provider = Summaries::start(SummaryReply::Never).await;
    let mut daemon = daemon(&provider, Wire::OpenAi, "timeout: 10m,").await;
    let mut bot = Bot::new(daemon.sessions());
    run_until_called_again(&provider, &mut bot, 0).await;
    // The provider would take ten minutes, so a stop that waits for it fails the test.
    daemon.stop().await;
    provider.set_reply(SummaryReply::Well);
    daemon.restart().await;
    bot.reconnect(&daemon);
    assert_eq!(check_session(&mut bot).await, None);
    check_next_compaction(&daemon, &mut bot, 0).await;
}

#[tokio::test]
async fn undone_compaction_stays_undone_after_kill() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let setup = provider
        .setup(Wire::Webhook, "", "turns_between_min: 100,")
        .section(ROOMY);
    let mut daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    bot.until(&mut events, "compacted").await;
    for number in [1, 0] {
        let asked = memoird_proto::v1::UndoCompactionRequest {
            session_id: "chat".into(),
        };
        let undone = bot
            .client
            .undo_compaction(asked)
            .await
            .expect("undone")
            .into_inner();
        assert!(undone.restored_turns > 0);
        crash(&mut daemon, &mut bot).await;
        let found = check_session(&mut bot).await;
        assert_eq!(found.map_or(0, |info| info.number), number);
    }
}
