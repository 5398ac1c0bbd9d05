//! What an append is to a session: ordered, repeatable, refused when it is stale.

use super::*;
use crate::ids::{SessionId, TenantId};
use crate::turn::{Links, Role};

fn key() -> SessionKey {
    SessionKey {
        tenant: TenantId::parse("t").unwrap(),
        session: SessionId::parse("s").unwrap(),
    }
}

fn now(ms: u64) -> Now {
    Now {
        wall: Timestamp::from_ms(1_000_000 + ms as i64),
        steady: Steady(ms),
    }
}

fn command(texts: &[&str]) -> AppendCommand {
    let turns = texts.iter().map(|text| NewTurn {
        body: text.as_bytes().to_vec(),
        role: Role::User,
        timestamp: None,
        pinned: false,
        links: Links::default(),
    });
    AppendCommand {
        turns: turns.collect(),
        ..AppendCommand::default()
    }
}

fn seal(turn: &NewTurn, seq: u64, _at: Timestamp) -> Arc<[u8]> {
    [&turn.body[..], seq.to_string().as_bytes()].concat().into()
}

fn session() -> Session {
    Session::begin(&key(), Generation::new(1, 1), now(0)).0
}

fn append(
    session: &mut Session,
    command: &AppendCommand,
    at: u64,
) -> Result<AppendDecision, CoreError> {
    session.append(&key(), command, &Limits::default(), now(at), seal)
}

#[test]
fn seqs_follow_each_other_and_every_change_builds_on_the_last() {
    let mut session = session();
    for (round, first) in [(0, 1), (1, 3), (2, 5)] {
        let done = append(&mut session, &command(&["a", "b"]), round).unwrap();
        let (record, change) = (done.record, done.changes.into_iter().next().unwrap());
        assert_eq!((record.first_seq, record.last_seq), (first, first + 1));
        assert_eq!(change.expected_revision, round);
        let ChangeKind::Append(appended) = change.kind else {
            panic!("an append was expected");
        };
        assert_eq!(&*appended.turns[0].1, format!("a{first}").as_bytes());
    }
    let (state, change) = session
        .patch_state(&r#"{"a":1}"#.into(), &Limits::default(), now(9))
        .unwrap();
    assert_eq!((&*state.json, state.version), (r#"{"a":1}"#, 1));
    assert_eq!(change.expected_revision, 3);
    assert!(matches!(change.kind, ChangeKind::PatchState { .. }));
    let head = session.head();
    assert_eq!(
        (head.last_seq, head.revision, head.last_access),
        (6, 4, Steady(9))
    );
}

#[test]
fn a_repetition_is_answered_and_not_done_again() {
    let mut session = session();
    let named = IdempotencyKey {
        key: [1; 16],
        content: [2; 16],
    };
    let command = AppendCommand {
        idempotency: Some(named),
        expected_seq: Some(0),
        ..command(&["a"])
    };
    let first = append(&mut session, &command, 1).unwrap();
    assert!(!first.changes.is_empty());
    // The repetition's expectation is stale by its own success; that is no error.
    let again = append(&mut session, &command, 2).unwrap();
    assert!(again.changes.is_empty());
    assert_eq!((again.record, session.head().last_seq), (first.record, 1));
}

#[test]
fn stale_expectations_are_refused() {
    let mut session = session();
    let stale_seq = AppendCommand {
        expected_seq: Some(3),
        ..command(&["a"])
    };
    assert_eq!(
        append(&mut session, &stale_seq, 1).unwrap_err(),
        CoreError::StaleSeq {
            expected: 3,
            actual: 0
        }
    );
    let other = Generation::new(2, 2);
    let stale_generation = AppendCommand {
        expected_generation: Some(other),
        ..command(&["a"])
    };
    assert_eq!(
        append(&mut session, &stale_generation, 1).unwrap_err(),
        CoreError::StaleGeneration {
            expected: other,
            actual: Some(Generation::new(1, 1))
        }
    );
    assert_eq!(session.head().revision, 0);
}

#[test]
fn idle_time_is_measured_on_the_steady_line_alone() {
    let mut session = session();
    append(&mut session, &command(&["a"]), 1_000).unwrap();
    assert!(!session.head().is_expired(Steady(1_999), 1_000));
    assert!(session.head().is_expired(Steady(2_000), 1_000));
    assert!(
        !session.head().is_expired(Steady(0), 1_000),
        "time that went back expires nothing"
    );
}
