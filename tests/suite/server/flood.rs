//! Overload: excess work is refused or queued, and other clients do not suffer.

use std::time::Duration;

use bytes::Bytes;
use memoird_proto::v1::{AppendResponse, GetHistoryRequest, Role, SearchTranscriptsRequest};
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Response, Status, Streaming};

use crate::harness::{
    Daemon, Setup, SlowReader, append, eventually, http_get, keyed, live, refused_code, say,
    text_of, user,
};

const HISTORY: &str = "/memoird.v1.SessionService/GetHistory";
const SEARCH: &str = "/memoird.v1.SessionService/SearchTranscripts";

type Answer = Result<Response<AppendResponse>, Status>;

/// Sends `calls` concurrent appends over several connections.
async fn flood(daemon: &Daemon, calls: usize, bytes: usize) -> Vec<(usize, Answer)> {
    let clients: Vec<_> = (0..8).map(|_| daemon.sessions()).collect();
    let mut flood = JoinSet::new();
    for number in 0..calls {
        let mut client = clients[number % clients.len()].clone();
        let text = format!("{number:04}{}", "x".repeat(bytes));
        flood.spawn(async move {
            let request = keyed(
                &format!("s{}", number % 10),
                &number.to_string(),
                [user(&text)],
            );
            (number, client.append(request).await)
        });
    }
    flood.join_all().await
}

/// Counts the refusals, which must have this reason.
fn count_refused(answers: &[(usize, Answer)], reason: &str) -> usize {
    let refusals = answers
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().err());
    let count = refusals.map(|status| {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert_eq!(refused_code(status), reason, "{status:?}");
    });
    count.count()
}

async fn check_exactly_acknowledged_stored(daemon: &Daemon, answers: &[(usize, Answer)]) {
    let mut client = daemon.sessions();
    let mut there = Vec::new();
    for session in 0..10 {
        let request = memoird_proto::v1::GetSessionRequest {
            session_id: format!("s{session}"),
            ..Default::default()
        };
        if client.get_session(request).await.is_ok() {
            let turns = live(&mut client, &format!("s{session}")).await;
            there.extend(turns.iter().map(|turn| text_of(turn)[..4].to_owned()));
        }
    }
    there.sort();
    let done = answers.iter().filter(|(_, answer)| answer.is_ok());
    let mut expected: Vec<String> = done.map(|(number, _)| format!("{number:04}")).collect();
    expected.sort();
    assert_eq!(there, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_over_max_calls_in_flight_are_refused_with_retry_hint() {
    let roomy = "short_term: { max_history_turns: 10000 }";
    let setup = Setup::default()
        .server("max_calls_in_flight: 4")
        .section(roomy);
    let daemon = Daemon::with(setup).await;
    let answers = flood(&daemon, 1_000, 100).await;
    let refused = count_refused(&answers, "TOO_MANY_CALLS");
    assert!(refused > 0, "a thousand calls found room for four");
    assert!(refused < 1_000, "nobody was served");
    check_exactly_acknowledged_stored(&daemon, &answers).await;
    say(&mut daemon.sessions(), "after", "still here").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_over_journal_queue_bytes_are_refused() {
    let setup = Setup::default()
        .section("short_term: { max_history_turns: 10000 }")
        .section("journal: { queue_bytes: 64KiB, queue_wait: 1ms }");
    let daemon = Daemon::with(setup).await;
    let answers = flood(&daemon, 400, 30_000).await;
    let refused = count_refused(&answers, "JOURNAL_BUSY");
    assert!(refused > 0, "all of it waited");
    assert!(refused < 400, "nobody was served");
    check_exactly_acknowledged_stored(&daemon, &answers).await;
    say(&mut daemon.sessions(), "after", "still here").await;
}

#[tokio::test]
async fn connections_over_limit_wait_without_disturbing_served_ones() {
    let daemon = Daemon::with(Setup::default().server("max_connections: 3")).await;
    let mut early = daemon.sessions();
    say(&mut early, "chat", "first").await;
    // A connection that was served once stays open, however many others arrive.
    let mut others = [daemon.sessions(), daemon.sessions()];
    for other in &mut others {
        say(other, "other", "hi").await;
    }
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(
            TcpStream::connect(daemon.grpc_addr())
                .await
                .expect("it listens"),
        );
    }
    say(&mut early, "chat", "second").await;
    let mut late = daemon.sessions();
    let waiting = late.append(append("chat", [user("third")]));
    let mut waiting = Box::pin(waiting);
    // Not accepted yet: a served call takes a fraction of this time.
    assert!(
        timeout(Duration::from_millis(300), &mut waiting)
            .await
            .is_err()
    );
    say(&mut early, "chat", "still served").await;
    drop(others);
    waiting.await.expect("its turn has come");
    drop(idle);
    assert_eq!(live(&mut early, "chat").await.len(), 4);
}

#[tokio::test]
async fn cancelled_calls_release_their_permits() {
    let daemon = Daemon::with(Setup::default().server("max_calls_in_flight: 8")).await;
    for _ in 0..20 {
        let mut impatient = JoinSet::new();
        for number in 0..8 {
            let mut client = daemon.sessions();
            impatient.spawn(async move {
                let call = client.append(append("chat", [user(&number.to_string())]));
                let _ = timeout(Duration::from_micros(1_500), call).await;
            });
        }
        impatient.join_all().await;
    }
    // All permits of abandoned calls are released.
    let mut client = daemon.sessions();
    eventually("a call finds its place", async || {
        client.append(append("after", [user("hi")])).await.ok()
    })
    .await;
    let answers = flood(&daemon, 8, 10).await;
    assert!(
        answers.iter().all(|(_, answer)| answer.is_ok()),
        "{answers:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_flood_leaves_call_permits_for_others() {
    let setup = Setup::default()
        .two_tenants("", "calls_in_flight: 2")
        .server("max_calls_in_flight: 12")
        .section("short_term: { max_history_turns: 10000 }");
    let daemon = Daemon::with(setup).await;
    let mut stop = JoinSet::new();
    for number in 0..24 {
        let mut flood = daemon.sessions_of(Setup::ALPHA);
        stop.spawn(async move {
            loop {
                let text = "x".repeat(20_000);
                let _ = flood
                    .append(append(&format!("s{number}"), [user(&text)]))
                    .await;
            }
        });
    }
    for number in 0..50 {
        let mut victim = daemon.sessions_of(Setup::BETA);
        say(&mut victim, "chat", &number.to_string()).await;
    }
    stop.shutdown().await;
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let mut client = daemon.sessions_of(Setup::BETA);
        calls.spawn(async move {
            client
                .append(append(&format!("s{number}"), [user("hi")]))
                .await
        });
    }
    let answers: Vec<_> = calls.join_all().await.into_iter().enumerate().collect();
    assert!(
        count_refused(&answers, "TOO_MANY_CALLS") > 0,
        "its own limit is 2"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_is_refused_further_replies_without_affecting_others() {
    let setup = Setup::default()
        .two_tenants("", "")
        .section("limits: { memory: 64MiB }")
        .section("short_term: { max_history_turns: 10000 }");
    let daemon = Daemon::with(setup).await;
    let mut writer = daemon.sessions_of(Setup::ALPHA);
    for _ in 0..4 {
        let text = "x".repeat(900_000);
        writer
            .append(append("long", [user(&text)]))
            .await
            .expect("it has room");
    }
    let asked = GetHistoryRequest {
        session_id: "long".into(),
        ..GetHistoryRequest::default()
    };
    // Each reply exceeds the flow-control window of an unread connection.
    let slow = SlowReader::new(daemon.grpc_addr(), Setup::ALPHA);
    let unread = unread_until_refused(&slow, HISTORY, asked.encode_to_vec()).await;
    let mut other = daemon.sessions_of(Setup::BETA);
    say(&mut other, "chat", "hello").await;
    assert_eq!(live(&mut other, "chat").await.len(), 1);
    drop(unread);
    eventually("there is room again", async || {
        writer.get_history(asked.clone()).await.ok()
    })
    .await;
    let sought = SearchTranscriptsRequest {
        session_id: "long".into(),
        roles: vec![Role::User.into()],
        ..SearchTranscriptsRequest::default()
    };
    unread_until_refused(&slow, SEARCH, sought.encode_to_vec()).await;
}

/// Requests replies without reading them, until one is refused for lack of memory.
async fn unread_until_refused(
    slow: &SlowReader,
    path: &str,
    message: Vec<u8>,
) -> Vec<Streaming<Bytes>> {
    let mut unread = Vec::new();
    let refusal = loop {
        match slow.unread(path, message.clone()).await {
            Ok(answer) => unread.push(answer),
            Err(refusal) => break refusal,
        }
        assert!(
            unread.len() < 40,
            "{} answers wait to be read",
            unread.len()
        );
    };
    assert_eq!(refused_code(&refusal), "MEMORY_FULL", "{refusal:?}");
    unread
}

#[tokio::test]
async fn idle_session_content_is_unloaded_and_reloaded_on_read() {
    let daemon = Daemon::with(Setup::default().section("limits: { memory: 32MiB }")).await;
    let mut client = daemon.sessions();
    let text = |number: usize| format!("{number}{}", "x".repeat(900_000));
    for number in 0..60 {
        say(&mut client, &number.to_string(), &text(number)).await;
    }
    let figure = async |name: &str| -> u64 {
        let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(name));
        let value = value.unwrap_or_else(|| panic!("no {name}"));
        value.trim().parse().expect("a number")
    };
    let used = async || {
        let content = figure("memoird_memory_used_bytes{of=\"content\"}").await;
        (content < 32 << 20).then_some(content)
    };
    assert!(eventually("the limit is kept", used).await > 16 << 20);
    assert_eq!(figure("memoird_memory_limit_bytes").await, 32 << 20);
    assert!(figure("memoird_sessions_unloaded_total").await >= 20);
    for number in [0, 30, 59] {
        let turns = live(&mut client, &number.to_string()).await;
        assert!(
            text_of(&turns[0]) == text(number),
            "another text in {number}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_cache_is_bounded_by_memory_limit() {
    let daemon = Daemon::with(Setup::default().section("limits: { memory: 16MiB }")).await;
    let mut client = daemon.sessions();
    say(&mut client, "first", "hello").await;
    let before = daemon.resident_bytes();
    let text = "x".repeat(900_000);
    for number in 0..100 {
        say(&mut client, &number.to_string(), &text).await;
    }
    // Twice the memory of sessions and calls, plus 16 MiB of file pages.
    let used = daemon.resident_bytes().saturating_sub(before) >> 20;
    assert!(used < 64, "{used} MiB");
    assert_eq!(live(&mut client, "0").await.len(), 1);
}
