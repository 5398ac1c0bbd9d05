//! More than there is room for: refused or kept waiting, and nobody else suffers.

use std::time::Duration;

use memoird_proto::v1::AppendResponse;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Setup, append, eventually, keyed, live, refused_code, say, text_of, user,
};

type Answer = Result<Response<AppendResponse>, Status>;

/// Sends so many appends at once, over several connections.
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

/// Refusals with this reason; every other call is done.
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

async fn exactly_the_acknowledged_are_there(daemon: &Daemon, answers: &[(usize, Answer)]) {
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
async fn more_calls_than_configured_are_refused_with_a_hint_when_to_come_again() {
    let roomy = "short_term: { max_history_turns: 10000 }";
    let setup = Setup::default()
        .server("max_calls_in_flight: 4")
        .section(roomy);
    let daemon = Daemon::with(setup).await;
    let answers = flood(&daemon, 1_000, 100).await;
    let refused = count_refused(&answers, "TOO_MANY_CALLS");
    assert!(refused > 0, "a thousand calls found room for four");
    assert!(refused < 1_000, "nobody was served");
    exactly_the_acknowledged_are_there(&daemon, &answers).await;
    say(&mut daemon.sessions(), "after", "still here").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_changes_than_may_wait_for_the_disk_are_refused() {
    let setup = Setup::default()
        .section("short_term: { max_history_turns: 10000 }")
        .section("journal: { queue_bytes: 64KiB, queue_wait: 1ms }");
    let daemon = Daemon::with(setup).await;
    let answers = flood(&daemon, 400, 30_000).await;
    let refused = count_refused(&answers, "JOURNAL_BUSY");
    assert!(refused > 0, "all of it waited");
    assert!(refused < 400, "nobody was served");
    exactly_the_acknowledged_are_there(&daemon, &answers).await;
    say(&mut daemon.sessions(), "after", "still here").await;
}

#[tokio::test]
async fn connections_over_their_number_wait_and_take_nothing_from_the_others() {
    let daemon = Daemon::with(Setup::default().server("max_connections: 3")).await;
    let mut early = daemon.sessions();
    say(&mut early, "chat", "first").await;
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
    // It has no place yet: this is as long as a served call takes many times over.
    assert!(
        timeout(Duration::from_millis(300), &mut waiting)
            .await
            .is_err()
    );
    say(&mut early, "chat", "still served").await;
    drop(idle);
    waiting.await.expect("its turn has come");
    assert_eq!(live(&mut early, "chat").await.len(), 4);
}

#[tokio::test]
async fn clients_that_hang_up_leave_nothing_behind() {
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
    // Every place in flight is given back.
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
