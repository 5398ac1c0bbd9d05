//! Summaries of sessions that are reset or end.

use memoird_proto::v1::ResetSessionRequest;
use serde_json::Value;

use crate::harness::{
    Daemon, Events, RECORDING_HOOK, Setup, Summaries, SummaryReply, Wire, all_delivered, delivered,
    detail, documents, end, eventually, field, git, journal,
};

use super::bot::{Bot, ROOMY, STRICT, order, summary};

/// One hook of each kind.
fn hooks() -> String {
    format!(
        "hooks: [ {{ name: checkpoint, git: {{ dir: ./checkpoints }} }}, {{ name: keeps, {RECORDING_HOOK} }} ]"
    )
}

#[tokio::test]
async fn reset_clears_summary() {
    let daemon = Daemon::with(Setup::default().section(ROOMY)).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    let old = bot.session_detail().await.session.expect("a session");
    let reset = ResetSessionRequest {
        session_id: "chat".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    bot.client.reset_session(reset).await.expect("reset");
    let mut new = Bot::new(daemon.sessions());
    let seen = new.session_detail().await;
    assert_eq!((seen.summary, seen.summary_text.as_str()), (None, ""));
    let session = seen.session.expect("a session");
    let state = session.compaction.expect("its state");
    assert_eq!(
        (session.has_summary, state.summaries, state.through_seq),
        (false, 0, 0)
    );
    let window = new.exchange().await;
    assert!(summary(&window).is_none());
    let event = new.until(&mut events, "compacted").await;
    let (detail, text) = (detail(&event), new.session_detail().await.summary_text);
    assert_eq!(
        (&detail["number"], &detail["first_seq"]),
        (&1.into(), &1.into())
    );
    assert!(text.contains(&order(0)), "{text}");
    new.journal_is_whole().await;
    assert_eq!(
        journal(&mut new.client, "chat", &old.generation)
            .await
            .len() as u64,
        old.last_seq
    );
}

#[tokio::test]
async fn end_hooks_receive_summary_and_all_turns() {
    let daemon = Daemon::with(Setup::default().section(ROOMY).section(hooks())).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    let seen = bot.session_detail().await;
    let info = seen.summary.expect("a summary");
    let generation = end(&mut bot.client, "chat").await;
    all_delivered(&mut daemon.admin()).await;
    let payloads = delivered(&daemon);
    let [payload] = &payloads[..] else {
        panic!("{} payloads", payloads.len())
    };
    assert_eq!(field(payload, "generation"), generation);
    let said = &payload["summary"];
    assert_eq!(field(said, "text"), seen.summary_text);
    assert_eq!(
        (&said["number"], &said["turns"]),
        (&info.number.into(), &info.turns.into())
    );
    assert_eq!(said["through_seq"], info.through_seq);
    let turns = payload["turns"].as_array().expect("turns");
    let last_seq = seen.session.expect("a session").last_seq;
    assert_eq!(turns.len() as u64, last_seq, "those it stands for as well");

    let dir = daemon.path("checkpoints/default.git");
    let names = documents(&dir);
    let document = git(&dir, &["show", &format!("main:{}", names[0])]);
    assert!(
        document.contains(&order(1)) && document.contains("summary"),
        "{document}"
    );
    let lines = git(
        &dir,
        &[
            "show",
            &format!("main:{}.jsonl", names[0].trim_end_matches(".md")),
        ],
    );
    let lines: Vec<Value> = lines
        .lines()
        .map(|it| serde_json::from_str(it).expect("JSON"))
        .collect();
    assert_eq!(
        lines.iter().filter(|line| line["seq"].is_u64()).count() as u64,
        last_seq
    );
    let summaries: Vec<&Value> = lines
        .iter()
        .filter(|line| line["summary"].is_object())
        .collect();
    assert_eq!(summaries.len(), 1);
    assert_eq!(summaries[0]["summary"]["text"], seen.summary_text.as_str());
}

#[tokio::test]
async fn end_during_compaction_discards_the_new_summary() {
    let provider = Summaries::start(SummaryReply::Held).await;
    let setup = provider
        .setup(Wire::Anthropic, "", STRICT)
        .section(ROOMY)
        .section(hooks());
    let daemon = Daemon::with(setup).await;
    let mut bot = Bot::new(daemon.sessions());
    while provider.calls().is_empty() {
        bot.exchange().await;
    }
    end(&mut bot.client, "chat").await;
    let mut new = Bot::new(daemon.sessions());
    new.exchanges(3).await;
    provider.let_through(1);
    eventually("it answered", async || {
        (provider.answered() == 1).then_some(())
    })
    .await;
    all_delivered(&mut daemon.admin()).await;
    assert_eq!(delivered(&daemon)[0]["summary"], Value::Null);
    new.exchanges(3).await;
    let seen = new.session_detail().await;
    assert_eq!(seen.summary, None, "of another life");
    let state = seen
        .session
        .and_then(|it| it.compaction)
        .expect("its state");
    assert_eq!((state.running, state.consecutive_failures), (false, 0));
    // The new generation is compacted as usual.
    provider.set_reply(SummaryReply::Well);
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = new.until(&mut events, "compacted").await;
    assert_eq!(detail(&event)["number"], 1);
    new.journal_is_whole().await;
}
