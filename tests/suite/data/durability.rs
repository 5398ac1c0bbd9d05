//! Acknowledged turns are stored once and in order, however the daemon ends.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_proto::v1::{
    AppendRequest, AppendResponse, GetHistoryRequest, GetStatsRequest, HistoryScope,
};
use tokio::task::JoinSet;
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Sessions, Setup, eventually, http_get, journal, keyed, live, refused, refused_code,
    say, text_of, user,
};

fn numbered(number: usize) -> AppendRequest {
    let text = format!("call {number}");
    keyed(&format!("s{}", number % 50), &text, [user(&text)])
}

type Answers = Vec<(usize, Result<AppendResponse, Status>)>;

/// Sends a thousand calls, and SIGTERM as soon as the first of them succeeds.
async fn sigterm_amid_a_thousand_calls(daemon: &mut Daemon) -> Answers {
    let clients: Vec<Sessions> = (0..4).map(|_| daemon.sessions()).collect();
    let done = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    for number in 0..1_000 {
        let (mut client, done) = (clients[number % clients.len()].clone(), Arc::clone(&done));
        calls.spawn(async move {
            let answer = client.append(numbered(number)).await;
            done.fetch_add(1, Ordering::Relaxed);
            (number, answer.map(Response::into_inner))
        });
    }
    eventually("the first call is done", async || {
        (done.load(Ordering::Relaxed) > 0).then_some(())
    })
    .await;
    daemon.ask_to_stop();
    let answers = calls.join_all().await;
    assert_eq!(daemon.ended().await, Some(0), "{}", daemon.log());
    answers
}

/// Asserts that acknowledged turns are stored, and the others are once they are retried.
async fn check_each_stored_once(daemon: &mut Daemon, answers: Answers) {
    daemon.restart().await;
    let mut client = daemon.sessions();
    for (number, answer) in answers {
        let again = client
            .append(numbered(number))
            .await
            .expect("done")
            .into_inner();
        if let Ok(answer) = answer {
            assert!(
                again.duplicate,
                "call {number} was acknowledged and is lost"
            );
            assert_eq!(again.first_seq, answer.first_seq);
        }
    }
    let mut texts = Vec::new();
    for session in 0..50 {
        let turns = live(&mut client, &format!("s{session}")).await;
        texts.extend(turns.iter().map(|turn| text_of(turn).to_owned()));
    }
    texts.sort();
    let mut expected: Vec<String> = (0..1_000).map(|number| format!("call {number}")).collect();
    expected.sort();
    assert_eq!(texts, expected, "each exactly once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_amid_1000_calls_completes_or_fails_each_cleanly() {
    let roomy = Setup::default().section("short_term: { max_history_turns: 100000 }");
    let mut daemon = Daemon::with(roomy).await;
    let answers = sigterm_amid_a_thousand_calls(&mut daemon).await;
    assert!(
        daemon.log().contains("all changes are written"),
        "{}",
        daemon.log()
    );
    for status in answers
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().err())
    {
        // Either the daemon refused the call, or it never received it and the transport failed.
        let is_unseen = status.source().is_some();
        assert!(
            is_unseen || status.code() == Code::Unavailable,
            "{status:?}"
        );
    }
    check_each_stored_once(&mut daemon, answers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_past_grace_loses_no_acknowledged_append() {
    let hasty = Setup::default()
        .server("shutdown_grace: 1ms")
        .section("short_term: { max_history_turns: 100000 }");
    let mut daemon = Daemon::with(hasty).await;
    let answers = sigterm_amid_a_thousand_calls(&mut daemon).await;
    check_each_stored_once(&mut daemon, answers).await;
}

#[tokio::test]
async fn call_after_sigterm_is_refused_at_once() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    daemon.stop().await;
    let answer = client.append(keyed("chat", "k", [user("too late")])).await;
    assert_eq!(
        answer.expect_err("nobody listens").code(),
        Code::Unavailable
    );
}

#[tokio::test]
async fn interval_durability_keeps_flushed_appends_in_order_after_kill() {
    let setup = Setup::default()
        .section("journal: { durability: interval, flush_interval: 50ms }")
        .section("short_term: { max_history_turns: 100000 }");
    let mut daemon = Daemon::with(setup).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for number in 0..20 {
        say(&mut client, "chat", &number.to_string()).await;
    }
    eventually("all is flushed", async || {
        let stats = admin
            .get_stats(GetStatsRequest::default())
            .await
            .expect("stats")
            .into_inner();
        (stats.commit_sets >= 20).then_some(())
    })
    .await;
    for number in 20..200 {
        say(&mut client, "chat", &number.to_string()).await;
    }
    daemon.kill9().await;
    daemon.restart().await;
    let turns = live(&mut daemon.sessions(), "chat").await;
    assert!(
        turns.len() >= 20,
        "what was flushed is there: {}",
        turns.len()
    );
    for (number, turn) in turns.iter().enumerate() {
        assert_eq!(
            text_of(turn),
            number.to_string(),
            "and nothing is missing in between"
        );
    }
    let next = say(&mut daemon.sessions(), "chat", "more").await;
    assert_eq!(next.first_seq, turns.len() as u64 + 1);
}

#[tokio::test]
async fn interval_durability_loses_nothing_on_sigterm() {
    let setup = Setup::default().section("journal: { durability: interval, flush_interval: 1h }");
    let mut daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    for number in 0..30 {
        say(&mut client, "chat", &number.to_string()).await;
    }
    // Reading the journal includes unflushed turns.
    assert_eq!(journal(&mut client, "chat", "").await.len(), 30);
    say(&mut client, "chat", "30").await;
    daemon.stop().await;
    daemon.restart().await;
    assert_eq!(live(&mut daemon.sessions(), "chat").await.len(), 31);
}

#[tokio::test]
async fn durability_off_serves_calls_but_keeps_nothing_after_restart() {
    let mut daemon = Daemon::with(Setup::default().section("journal: { durability: off }")).await;
    let mut client = daemon.sessions();
    let first = client
        .append(keyed("chat", "k", [user("hi")]))
        .await
        .expect("done")
        .into_inner();
    let again = client
        .append(keyed("chat", "k", [user("hi")]))
        .await
        .expect("done")
        .into_inner();
    assert!(again.duplicate && !first.duplicate);
    assert_eq!(live(&mut client, "chat").await.len(), 1);
    let read = GetHistoryRequest {
        session_id: "chat".into(),
        scope: HistoryScope::Journal.into(),
        ..GetHistoryRequest::default()
    };
    refused(
        client.get_history(read).await,
        Code::FailedPrecondition,
        "JOURNAL_OFF",
    );
    daemon.stop().await;
    assert!(!daemon.path("data/journal.db").exists());
    daemon.restart().await;
    let look = GetHistoryRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let status = daemon
        .sessions()
        .get_history(look)
        .await
        .expect_err("it is gone");
    assert_eq!(refused_code(&status), "SESSION_NOT_FOUND");
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_data_dir_refuses_appends_and_is_not_ready_until_it_is_back() {
    for durability in ["sync", "interval"] {
        let setup = Setup::default().section(format!("journal: {{ durability: {durability} }}"));
        let daemon = Daemon::with(setup).await;
        let mut client = daemon.sessions();
        say(&mut client, "chat", "before").await;
        let (data, moved) = (daemon.path("data"), daemon.path("moved"));
        std::fs::rename(&data, &moved).expect("moved");
        let page = async || http_get(daemon.admin_addr(), "/readyz").await;
        let unready = eventually("it is not ready", async || {
            Some(page().await).filter(|page| page.0 == 503)
        })
        .await;
        assert!(
            unready.1.contains("was deleted, moved or replaced"),
            "{unready:?}"
        );
        // With `interval`, the failed commit of the first one makes the daemon refuse the others.
        let refused = eventually("appends are refused", async || {
            let request = keyed("chat", "lost", [user("lost")]);
            client.append(request).await.err()
        })
        .await;
        assert_eq!(refused_code(&refused), "JOURNAL_FAILED");
        std::fs::rename(&moved, &data).expect("moved back");
        eventually("it is ready", async || {
            (page().await.0 == 200).then_some(())
        })
        .await;
        eventually("appends are written", async || {
            let request = keyed("chat", "after", [user("after")]);
            client.append(request).await.ok()
        })
        .await;
    }
}
