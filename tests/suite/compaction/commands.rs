//! The rpcs `CompactSession` and `UndoCompaction`.

use memoird_proto::v1::{
    BreakerState, CompactSessionRequest, CompactSessionResponse, ResetSessionRequest, SummaryMaker,
    UndoCompactionRequest, UndoCompactionResponse,
};
use tokio::task::JoinSet;
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Events, Sessions, Setup, Summaries, SummaryReply, Wire, append, assistant, detail, end,
    eventually, journal, live, refused, say, tool_results, tool_uses, user, without_nonce,
};
use crate::windows::bot::{report, words};

use super::bot::{Bot, EARLY, ROOMY, daemon, order, sum, summary};

async fn try_compact(
    client: &mut Sessions,
    keep_exchanges: Option<u32>,
) -> Result<Response<CompactSessionResponse>, Status> {
    let request = CompactSessionRequest {
        session_id: "chat".into(),
        keep_exchanges,
    };
    client.compact_session(request).await
}

async fn compact(client: &mut Sessions, keep_exchanges: Option<u32>) -> CompactSessionResponse {
    try_compact(client, keep_exchanges)
        .await
        .expect("compacted")
        .into_inner()
}

async fn try_undo(client: &mut Sessions) -> Result<Response<UndoCompactionResponse>, Status> {
    client
        .undo_compaction(UndoCompactionRequest {
            session_id: "chat".into(),
        })
        .await
}

async fn undo(client: &mut Sessions) -> UndoCompactionResponse {
    try_undo(client).await.expect("undone").into_inner()
}

/// The seqs of the stored turns in the window.
async fn shown(bot: &mut Bot) -> Vec<u64> {
    crate::windows::bot::seqs(&bot.window().await)
}

/// A daemon with the default summarizer.
async fn own() -> (Daemon, Bot) {
    let daemon = Daemon::with(Setup::default().section(ROOMY).section(EARLY)).await;
    let bot = Bot::new(daemon.sessions());
    (daemon, bot)
}

#[tokio::test]
async fn compact_keeps_requested_number_of_exchanges() {
    // Exchanges alternately have two and four turns.
    for (keep, first_kept) in [
        (None, 9),
        (Some(2), 19),
        (Some(0), 25),
        (Some(1), 21),
        (Some(4), 13),
    ] {
        let (daemon, mut bot) = own().await;
        bot.exchanges(8).await;
        let mut events = Events::now(&mut daemon.sessions()).await;
        let made = compact(&mut bot.client, keep).await;
        assert_eq!(
            (made.first_seq, made.last_seq, made.is_new),
            (1, first_kept - 1, true),
            "{keep:?}"
        );
        let info = made.summary_info.expect("a summary");
        assert_eq!((info.number, info.made_by()), (1, SummaryMaker::Extractive));
        assert_eq!(info.turns, first_kept - 1, "all of them");
        assert!(
            made.tokens_after < made.tokens_before,
            "{keep:?}: {made:?}",
            made = made.summary
        );
        let session = made.session.expect("a session");
        assert!(
            session.has_summary
                && session
                    .compaction
                    .is_some_and(|it| it.through_seq == first_kept - 1)
        );
        let expected: Vec<u64> = (first_kept..=24).collect();
        let window = bot_window(&mut bot, first_kept <= 24).await;
        assert_eq!(window, expected, "{keep:?}");
        let event = events.until("compacted").await.pop().expect("an event");
        assert_eq!(detail(&event)["trigger"], "COMPACTION_TRIGGER_COMMAND");
        bot.journal_is_whole().await;
        assert_eq!(
            live(&mut bot.client, "chat").await.len(),
            24,
            "the history stays as it is"
        );
        // A repetition has nothing to summarize and succeeds.
        let again = compact(&mut bot.client, keep).await;
        assert!(!again.is_new, "{keep:?}");
        assert_eq!(
            (again.summary, again.summary_info.map(|it| it.number)),
            (made.summary, Some(1))
        );
    }
}

/// The seqs in the window.
///
/// Without a tail, the newest turn is not in the window, which `Bot::window` would reject.
async fn bot_window(bot: &mut Bot, has_tail: bool) -> Vec<u64> {
    if has_tail {
        return shown(bot).await;
    }
    let request = bot.request();
    crate::windows::bot::seqs(&crate::windows::bot::ask(&mut bot.client, request).await)
}

#[tokio::test]
async fn invalid_compact_and_undo_are_refused_and_change_nothing() {
    let (daemon, mut bot) = own().await;
    let client = &mut daemon.sessions();
    refused(
        try_compact(client, None).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    refused(try_undo(client).await, Code::NotFound, "SESSION_NOT_FOUND");
    bot.exchanges(4).await;
    for keep in [1_001, u32::MAX] {
        let answer = try_compact(client, Some(keep)).await;
        let said = refused(answer, Code::InvalidArgument, "KEEP_EXCHANGES_INVALID");
        assert!(said.contains("1000"), "{said}");
    }
    let few = compact(client, Some(1_000)).await;
    assert!(
        !few.is_new && few.summary_info.is_none() && few.summary.is_empty(),
        "{few:?}"
    );
    let few = compact(client, None).await;
    assert!(
        !few.is_new && few.summary_info.is_none(),
        "fewer than are kept: {few:?}"
    );
    let short = append("short", [user("hi"), assistant("yes?"), user("no")]);
    client.append(short).await.expect("done");
    let request = CompactSessionRequest {
        session_id: "short".into(),
        keep_exchanges: Some(0),
    };
    let short = client
        .compact_session(request)
        .await
        .expect("no mistake")
        .into_inner();
    assert!(
        !short.is_new && short.summary_info.is_none(),
        "no fewer tokens: {short:?}"
    );
    let state = short
        .session
        .and_then(|session| session.compaction)
        .expect("its state");
    assert_eq!((state.consecutive_failures, state.running), (0, false));
    refused(
        try_undo(client).await,
        Code::FailedPrecondition,
        "NO_SUMMARY",
    );
    for id in ["", &"x".repeat(257)] {
        let request = CompactSessionRequest {
            session_id: id.to_owned(),
            keep_exchanges: None,
        };
        refused(
            client.compact_session(request).await,
            Code::InvalidArgument,
            "ID_INVALID",
        );
        let request = UndoCompactionRequest {
            session_id: id.to_owned(),
        };
        refused(
            client.undo_compaction(request).await,
            Code::InvalidArgument,
            "ID_INVALID",
        );
    }
    end(client, "chat").await;
    refused(
        try_compact(client, None).await,
        Code::NotFound,
        "SESSION_NOT_FOUND",
    );
    refused(try_undo(client).await, Code::NotFound, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn compact_is_refused_while_call_is_pending_or_reply_is_partial() {
    let (_daemon, mut bot) = own().await;
    bot.exchanges(8).await;
    let client = &mut bot.client;
    client
        .append(append("chat", [user("look"), tool_uses(&["a", "b"])]))
        .await
        .expect("done");
    refused(
        try_compact(client, Some(0)).await,
        Code::FailedPrecondition,
        "CALL_PENDING",
    );
    client
        .append(append("chat", [tool_results(&["a"])]))
        .await
        .expect("done");
    refused(
        try_compact(client, Some(0)).await,
        Code::FailedPrecondition,
        "CALL_PENDING",
    );
    client
        .append(append("chat", [tool_results(&["b"])]))
        .await
        .expect("done");
    let mut partial = append("chat", [assistant("I fou")]);
    partial.partial = true;
    client.append(partial).await.expect("done");
    refused(
        try_compact(client, Some(0)).await,
        Code::FailedPrecondition,
        "CALL_PENDING",
    );
    client
        .append(append("chat", [assistant("nd it.")]))
        .await
        .expect("done");
    assert!(compact(client, Some(0)).await.is_new);
    // An abandoned call does not count as pending.
    let said = [
        user(&words(1)),
        assistant(&words(2)),
        user("look"),
        tool_uses(&["c"]),
        user("no"),
    ];
    client.append(append("chat", said)).await.expect("done");
    let made = compact(client, Some(1)).await;
    assert!(made.is_new, "{made:?}");
}

#[tokio::test]
async fn concurrent_compact_and_undo_are_refused() {
    let provider = Summaries::start(SummaryReply::Held).await;
    let daemon = daemon(&provider, Wire::Anthropic, "").await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(8).await;
    let mut other = daemon.sessions();
    let mut first = JoinSet::new();
    first.spawn(async move { compact(&mut other, None).await });
    provider.was_asked(1).await;
    refused(
        try_compact(&mut bot.client, None).await,
        Code::Aborted,
        "COMPACTION_RUNNING",
    );
    let made = bot.exchange().await;
    assert!(report(&made).summary.is_none(), "the bot goes on");
    let seen = bot
        .session_detail()
        .await
        .session
        .and_then(|session| session.compaction);
    assert!(seen.expect("its state").running);
    provider.let_through(1);
    let made = first.join_next().await.expect("one").expect("it ends");
    assert!(made.is_new);
    bot.journal_is_whole().await;
    assert_eq!(provider.calls().len(), 1);
    refused(
        try_undo_while_running(&provider, &daemon, &mut bot).await,
        Code::Aborted,
        "COMPACTION_RUNNING",
    );
}

/// Undoes a summary while the next one is being made.
async fn try_undo_while_running(
    provider: &Summaries,
    daemon: &Daemon,
    bot: &mut Bot,
) -> Result<Response<UndoCompactionResponse>, Status> {
    bot.exchanges(6).await;
    let mut other = daemon.sessions();
    let mut second = JoinSet::new();
    second.spawn(async move { compact(&mut other, None).await });
    provider.was_asked(2).await;
    let answer = try_undo(&mut bot.client).await;
    provider.let_through(1);
    assert!(
        second
            .join_next()
            .await
            .expect("one")
            .expect("it ends")
            .is_new
    );
    answer
}

#[tokio::test]
async fn undo_restores_turns_of_last_summary_then_of_the_one_before() {
    let (daemon, mut bot) = own().await;
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.exchanges(6).await;
    let all = shown(&mut bot).await;
    let one = compact(&mut bot.client, Some(3)).await;
    let with_one = bot.window().await;
    bot.exchanges(1).await;
    let two = compact(&mut bot.client, Some(2)).await;
    assert_eq!(
        (two.first_seq, two.summary_info.expect("one").number),
        (one.last_seq + 1, 2)
    );
    assert!(
        two.summary.contains(&order(0)),
        "cumulative: {}",
        two.summary
    );

    let undone = undo(&mut bot.client).await;
    assert_eq!(undone.restored_turns, two.last_seq - one.last_seq);
    let session = undone.session.expect("a session");
    assert!(session.has_summary);
    assert_eq!(
        session.compaction.expect("its state").through_seq,
        one.last_seq
    );
    let window = bot.window().await;
    assert_eq!(summary(&window).map(without_nonce), Some(one.summary));
    assert_eq!(summary(&window), summary(&with_one), "to the byte");
    let event = events
        .until("compaction_undone")
        .await
        .pop()
        .expect("an event");
    assert_eq!(detail(&event), serde_json::json!({"number": 2}));

    let undone = undo(&mut bot.client).await;
    assert_eq!(undone.restored_turns, one.last_seq, "all of them");
    assert!(!undone.session.expect("a session").has_summary);
    let window = shown(&mut bot).await;
    assert!(window.starts_with(&all), "{window:?}");
    refused(
        try_undo(&mut bot.client).await,
        Code::FailedPrecondition,
        "NO_SUMMARY",
    );
    assert_eq!(
        sum(&daemon, "memoird_compactions_undone_total{", "").await,
        2
    );
    // The number of an undone summary is not reused.
    let three = compact(&mut bot.client, Some(2)).await;
    assert_eq!(
        (three.first_seq, three.summary_info.expect("one").number),
        (1, 3)
    );
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn compaction_does_not_touch_last_access() {
    let (_daemon, mut bot) = own().await;
    bot.exchanges(8).await;
    let access = |bot: memoird_proto::v1::SessionInfo| bot.last_access.expect("a time");
    let before = access(bot.session_detail().await.session.expect("a session"));
    compact(&mut bot.client, Some(1)).await;
    undo(&mut bot.client).await;
    let after = access(bot.session_detail().await.session.expect("a session"));
    let ms =
        |time: prost_types::Timestamp| time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000;
    assert!(
        (ms(after) - ms(before)).abs() <= 5,
        "{before:?}, then {after:?}"
    );
}

#[tokio::test]
async fn pinned_and_system_turns_are_never_summarized() {
    let (_daemon, mut bot) = own().await;
    let client = &mut bot.client;
    let system = memoird_proto::v1::Turn {
        role: memoird_proto::v1::Role::System.into(),
        ..user("You sell shoes.")
    };
    let pinned = memoird_proto::v1::Turn {
        pinned: true,
        ..user("My size is 43-B7.")
    };
    client
        .append(append("chat", [system, user("I want shoes.")]))
        .await
        .expect("done");
    client
        .append(append("chat", [assistant("Fine."), pinned]))
        .await
        .expect("done");
    for number in 0..8 {
        let price = format!("Pair {number} costs $1{number}9. {}", words(number));
        let said = [assistant(&price), user("Another one.")];
        client.append(append("chat", said)).await.expect("done");
    }
    let made = compact(client, Some(0)).await;
    assert!(
        made.is_new && made.summary.contains("I want shoes.") && !made.summary.contains("43-B7"),
        "{}",
        made.summary
    );
    let request = bot.request();
    let window = crate::windows::bot::ask(&mut bot.client, request).await;
    let seqs = crate::windows::bot::seqs(&window);
    assert!([1, 4].iter().all(|seq| seqs.contains(seq)), "{seqs:?}");
    assert_eq!(
        seqs.last(),
        Some(&20),
        "what is to be answered is shown: {seqs:?}"
    );
}

#[tokio::test]
async fn compact_without_summarizer_fails_and_windows_are_cut() {
    let none = Setup::default()
        .section("compaction: { summarizer: none }")
        .section(ROOMY);
    let daemon = Daemon::with(none).await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(40).await;
    assert!(summary(&bot.window().await).is_none());
    let said = refused(
        try_compact(&mut bot.client, None).await,
        Code::Unavailable,
        "COMPACTION_FAILED",
    );
    assert!(said.contains("none"), "{said}");
    let off = Setup::default()
        .section("compaction: { enabled: false }")
        .section(ROOMY);
    let daemon = Daemon::with(off).await;
    let mut bot = Bot::new(daemon.sessions());
    bot.exchanges(40).await;
    assert!(summary(&bot.window().await).is_none());
    assert!(
        compact(&mut bot.client, None).await.is_new,
        "but when a call asks for it"
    );
}

#[tokio::test]
async fn session_with_concurrent_compactions_stays_consistent() {
    let (daemon, mut bot) = own().await;
    bot.exchanges(4).await;
    let mut busy = JoinSet::new();
    for number in 0..6_u32 {
        let mut client = daemon.sessions();
        busy.spawn(async move {
            for round in 0..12 {
                match (number + round) % 3 {
                    0 => drop(try_compact(&mut client, Some(round % 4)).await),
                    1 => drop(try_undo(&mut client).await),
                    _ => drop(
                        client
                            .get_session(memoird_proto::v1::GetSessionRequest {
                                session_id: "chat".into(),
                                ..Default::default()
                            })
                            .await
                            .expect("a session"),
                    ),
                }
            }
        });
    }
    bot.exchanges(20).await;
    busy.join_all().await;
    bot.journal_is_whole().await;
    let state = eventually("nothing is being made", async || {
        let state = bot
            .session_detail()
            .await
            .session
            .and_then(|it| it.compaction)
            .expect("its state");
        (!state.running).then_some(state)
    });
    assert_eq!(state.await.breaker(), BreakerState::Closed);
    let generation = bot
        .session_detail()
        .await
        .session
        .expect("a session")
        .generation;
    let reset = ResetSessionRequest {
        session_id: "chat".into(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    bot.client.reset_session(reset).await.expect("reset");
    assert_eq!(
        journal(&mut bot.client, "chat", &generation).await.len(),
        72
    );
    say(&mut bot.client, "chat", "new").await;
}
