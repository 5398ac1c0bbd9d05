//! Wall clock steps: sessions neither expire early nor live longer.

use memoird_proto::v1::{GetSessionRequest, SessionInfo};
use tonic::Code;

use crate::harness::{Clock, Daemon, Sessions, Setup, eventually, live, say, text_of};

const DAY: i64 = 86_400;

async fn session_info(client: &mut Sessions) -> Option<SessionInfo> {
    let request = GetSessionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    match client.get_session(request).await {
        Ok(answer) => answer.into_inner().session,
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => panic!("{status:?}"),
    }
}

fn last_access(info: &SessionInfo) -> i64 {
    info.last_access.expect("a time").seconds
}

async fn is_gone(client: &mut Sessions, when: &str) {
    eventually(&format!("the short session is gone {when}"), async || {
        session_info(client).await.is_none().then_some(())
    })
    .await;
}

/// Steps the clock by one day while the daemon runs, and by another while it is down.
async fn steps(clock: &Clock, sign: i64) {
    let lives = ("session_ttl: 1h", "session_ttl: 1s");
    let setup = Setup::default().section("short_term: { sweep_interval: 100ms }");
    let mut daemon = Daemon::with(clock.applied_to(setup.two_tenants(lives.0, lives.1))).await;
    let mut long = daemon.sessions_of(Setup::ALPHA);
    let mut short = daemon.sessions_of(Setup::BETA);
    let first = say(&mut long, "chat", "before")
        .await
        .session
        .expect("a session");
    say(&mut short, "chat", "before").await;

    clock.set(&format!("{:+}", sign * DAY));
    is_gone(&mut short, "after a step").await;
    let second = say(&mut long, "chat", "after").await;
    assert_eq!(second.first_seq, 2, "the long one lives on");
    let second = second.session.expect("a session");
    let stepped = last_access(&second) - last_access(&first);
    assert!(
        (stepped - sign * DAY).abs() < 60,
        "the clock did not step: {stepped}"
    );
    let left = second.expires_at.expect("a time").seconds - last_access(&second);
    assert!(
        (left - 3_600).abs() <= 1,
        "an hour from now, by the clock on the wall: {left}"
    );

    say(&mut short, "chat", "again").await;
    match sign {
        1 => daemon.kill9().await,
        _ => daemon.stop().await,
    }
    clock.set(&format!("{:+}", sign * 2 * DAY));
    daemon.restart().await;
    let mut long = daemon.sessions_of(Setup::ALPHA);
    is_gone(
        &mut daemon.sessions_of(Setup::BETA),
        "after a step while the daemon was down",
    )
    .await;
    let third = session_info(&mut long)
        .await
        .expect("the long one lives on");
    assert_eq!(third.generation, first.generation);
    let texts = live(&mut long, "chat").await;
    assert_eq!(
        texts.iter().map(text_of).collect::<Vec<_>>(),
        ["before", "after"]
    );
    let said = say(&mut long, "chat", "and on")
        .await
        .session
        .expect("a session");
    let stepped = last_access(&said) - last_access(&first);
    assert!(
        (stepped - sign * 2 * DAY).abs() < 60,
        "the clock did not step: {stepped}"
    );
}

#[tokio::test]
async fn clock_step_one_day_forward_expires_nothing_early() {
    let test = "clock::clock_step_one_day_forward_expires_nothing_early";
    if let Some(clock) = Clock::new(test) {
        steps(&clock, 1).await;
    }
}

#[tokio::test]
async fn clock_step_one_day_back_does_not_prolong_sessions() {
    let test = "clock::clock_step_one_day_back_does_not_prolong_sessions";
    if let Some(clock) = Clock::new(test) {
        steps(&clock, -1).await;
    }
}

#[tokio::test]
async fn clock_wrong_by_decades_does_not_block_appends() {
    let test = "clock::clock_wrong_by_decades_does_not_block_appends";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    let mut daemon = Daemon::with(clock.applied_to(Setup::default())).await;
    let mut said = 0;
    for offset in ["-50y", "+70y", "+0"] {
        clock.set(offset);
        for _ in 0..2 {
            let mut client = daemon.sessions();
            said += 1;
            assert_eq!(
                say(&mut client, "chat", offset).await.first_seq,
                said,
                "{offset}"
            );
            assert!(session_info(&mut client).await.is_some(), "{offset}");
            daemon.kill9().await;
            daemon.restart().await;
        }
    }
    assert_eq!(
        live(&mut daemon.sessions(), "chat").await.len() as u64,
        said
    );
}
