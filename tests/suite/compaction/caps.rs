//! Histories that drop turns before they are summarized, and daemons without a journal.

use memoird_proto::v1::UndoCompactionRequest;
use tonic::Code;

use crate::harness::{
    Daemon, Events, Setup, Summaries, SummaryReply, Wire, detail, live, refused, without_nonce,
};
use crate::windows::bot::report;

use super::bot::{Bot, EARLY, STRICT, order, summary};

#[tokio::test]
async fn turns_dropped_while_provider_hung_are_summarized_from_journal() {
    let provider = Summaries::start(SummaryReply::Never).await;
    let few = "short_term: { max_history_turns: 20 }";
    let setup = provider
        .setup(Wire::Anthropic, "tries: 1, timeout: 10s,", STRICT)
        .section(few);
    let mut daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    // More turns than the history holds.
    bot.exchanges(20).await;
    assert!(
        live(&mut bot.client, "chat").await.len() <= 21,
        "the task and twenty"
    );
    assert!(
        !provider.calls().is_empty(),
        "it is asked before turns are dropped"
    );
    let window = bot.window().await;
    let note = "turns are left out until there is a summary of them";
    assert!(
        report(&window).notes.iter().any(|said| said == note),
        "{:?}",
        report(&window).notes
    );
    provider.set_reply(SummaryReply::Well);
    daemon.kill9().await;
    daemon.restart().await;
    bot.reconnect(&daemon);
    bot.waits_for_summaries(&daemon);
    bot.journal_is_whole().await;
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(detail(&event)["first_seq"], 1, "{event:?}");
    let window = bot.window().await;
    let text = summary(&window).expect("a summary");
    for number in 1..12 {
        assert!(text.contains(&order(number)), "{number} is lost: {text}");
    }
    assert!(
        report(&window).notes.is_empty(),
        "{:?}",
        report(&window).notes
    );
    // This remains so as the conversation continues.
    bot.exchanges(30).await;
    let text = bot.session_detail().await.summary_text;
    assert!(
        text.contains(&order(0)) && text.contains(&order(30)),
        "{text}"
    );
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn durability_off_compacts_and_undoes_from_memory() {
    let off = Setup::default()
        .section(EARLY)
        .section("journal: { durability: off }")
        .section("short_term: { max_history_turns: 10000 }");
    let daemon = Daemon::with(off).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    let first = bot.until_shown(1).await;
    bot.until(&mut events, "compacted").await;
    let undo = || UndoCompactionRequest {
        session_id: "chat".into(),
    };
    let second = bot
        .client
        .undo_compaction(undo())
        .await
        .expect("undone")
        .into_inner();
    assert!(second.restored_turns > 0 && second.session.expect("a session").has_summary);
    assert_eq!(
        bot.session_detail().await.summary_text,
        without_nonce(&first)
    );
    let last = bot
        .client
        .undo_compaction(undo())
        .await
        .expect("undone")
        .into_inner();
    assert!(last.restored_turns > 0 && !last.session.expect("a session").has_summary);
    refused(
        bot.client.undo_compaction(undo()).await,
        Code::FailedPrecondition,
        "NO_SUMMARY",
    );
    bot.until(&mut events, "compacted").await;
    bot.window().await;
}
