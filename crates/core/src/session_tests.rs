//! Tests of sessions: appends, idempotency, rewinds, summaries and updates.

use super::*;
use crate::change::ChangeSet;
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
        client_id: Box::default(),
        client_bytes: 0,
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
    session.append(&key(), command, &Limits::default(), now(at), &seal)
}

#[test]
fn changes_have_consecutive_seqs_and_revisions() {
    let mut session = session();
    for (round, first) in [(0, 1), (1, 3), (2, 5)] {
        let done = append(&mut session, &command(&["a", "b"]), round).unwrap();
        let (record, change) = (done.record, done.changes.into_iter().next().unwrap());
        assert_eq!((record.first_seq, record.last_seq), (first, first + 1));
        assert_eq!(change.expected_revision, round);
        let ChangeKind::Append(appended) = change.kind else {
            panic!("expected an append");
        };
        assert_eq!(&*appended.turns[0].1, format!("a{first}").as_bytes());
    }
    let (state, change) = session
        .patch_state(
            &key(),
            Some(&r#"{"a":1}"#.into()),
            None,
            &Limits::default(),
            now(9),
        )
        .unwrap();
    assert_eq!((&*state.json, state.version), (r#"{"a":1}"#, 1));
    assert_eq!(change.expected_revision, 3);
    assert!(matches!(change.kind, ChangeKind::PatchState(_)));
    let head = session.head();
    assert_eq!(
        (head.last_seq, head.revision, head.last_access),
        (6, 4, Steady(9))
    );
}

#[test]
fn repeated_idempotency_key_returns_first_record() {
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
    // The first append made `expected_seq` stale. A repeated key skips that check.
    let again = append(&mut session, &command, 2).unwrap();
    assert!(again.changes.is_empty());
    assert_eq!((again.record, session.head().last_seq), (first.record, 1));
}

#[test]
fn append_with_stale_seq_or_generation_is_refused() {
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
fn session_expires_by_steady_clock() {
    let mut session = session();
    append(&mut session, &command(&["a"]), 1_000).unwrap();
    assert!(!session.head().is_expired(Steady(1_999), 1_000));
    assert!(session.head().is_expired(Steady(2_000), 1_000));
    assert!(
        !session.head().is_expired(Steady(0), 1_000),
        "a clock set back expires no session"
    );
}

fn rewind(
    session: &mut Session,
    after_seq: u64,
    append: AppendCommand,
    at: u64,
) -> Result<RewindDecision, CoreError> {
    let command = RewindCommand { after_seq, append };
    session.rewind(&key(), &command, &Limits::default(), now(at), &seal, true)
}

fn named(name: u8, texts: &[&str]) -> AppendCommand {
    AppendCommand {
        idempotency: Some(IdempotencyKey {
            key: [name; 16],
            content: [name; 16],
        }),
        ..command(texts)
    }
}

#[test]
fn rewind_with_append_returns_both_changes_in_order() {
    let mut session = session();
    append(&mut session, &command(&["a", "b", "c"]), 1).unwrap();
    let edited = rewind(&mut session, 1, command(&["d"]), 2).unwrap();
    let removed: Vec<u64> = edited.removed.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(removed, [2, 3]);
    assert_eq!((edited.record.first_seq, edited.record.last_seq), (4, 4));
    assert!(!edited.must_reload);
    let [first, second] = &edited.changes[..] else {
        panic!("expected two changes")
    };
    let ChangeKind::Rewind(rewound) = &first.kind else {
        panic!("expected a rewind")
    };
    assert_eq!((rewound.after_seq, rewound.through_seq), (1, 3));
    assert_eq!(rewound.totals.turns, 1);
    assert_eq!((first.expected_revision, second.expected_revision), (1, 2));
    assert_eq!(session.head().last_seq, 4);
    assert_eq!(session.head().totals.turns, 2);

    let popped = rewind(&mut session, 3, AppendCommand::default(), 3).unwrap();
    assert_eq!((popped.removed.len(), popped.changes.len()), (1, 1));
    assert_eq!(session.head().last_seq, 4, "seqs are not reused");
    assert_eq!(session.head().newest_seq, 1, "2 and 3 were rewound before");
    let expecting = |seq| AppendCommand {
        expected_seq: Some(seq),
        ..AppendCommand::default()
    };
    for seq in [0, 2, 3, 4] {
        let stale = rewind(&mut session, 0, expecting(seq), 3).unwrap_err();
        assert!(matches!(stale, CoreError::StaleSeq { actual: 1, .. }));
    }
    let nothing = rewind(&mut session, 1, expecting(1), 3).unwrap();
    assert_eq!((nothing.removed.len(), nothing.changes.len()), (0, 1));
    let next = append(&mut session, &command(&["e"]), 4).unwrap();
    assert_eq!(next.record.first_seq, 5);
    let nothing = rewind(&mut session, 5, AppendCommand::default(), 5).unwrap();
    assert_eq!((nothing.removed.len(), nothing.changes.len()), (0, 1));
}

#[test]
fn refused_rewind_changes_nothing() {
    let mut session = session();
    append(&mut session, &command(&["a", "b"]), 1).unwrap();
    let before = format!("{session:?}");
    let beyond = rewind(&mut session, 3, AppendCommand::default(), 2).unwrap_err();
    let expected = CoreError::RewindBeyondEnd {
        after_seq: 3,
        last_seq: 2,
    };
    assert_eq!(beyond, expected);
    let stale_rewind = AppendCommand {
        expected_seq: Some(1),
        ..AppendCommand::default()
    };
    let stale = rewind(&mut session, 1, stale_rewind, 2).unwrap_err();
    assert!(matches!(stale, CoreError::StaleSeq { .. }));
    let mut orphan_rewind = command(&["a"]);
    orphan_rewind.turns[0].links.results.push("x".into());
    let orphan = rewind(&mut session, 1, orphan_rewind, 2).unwrap_err();
    assert!(matches!(orphan, CoreError::ToolUseUnknown { .. }));
    assert_eq!(format!("{session:?}"), before);
}

#[test]
fn idempotency_key_of_rewound_turns_is_refused() {
    let mut session = session();
    append(&mut session, &named(1, &["a"]), 1).unwrap();
    append(&mut session, &named(2, &["b"]), 2).unwrap();
    let popped = rewind(&mut session, 1, named(3, &[]), 3).unwrap();
    assert_eq!(popped.changes.len(), 1);
    let again = rewind(&mut session, 1, named(3, &[]), 4).unwrap();
    assert_eq!((again.changes.len(), again.record), (0, popped.record));
    let known = append(&mut session, &named(1, &["a"]), 5).unwrap();
    assert!(known.changes.is_empty(), "its turn was not rewound");
    assert_eq!(
        append(&mut session, &named(2, &["b"]), 6).unwrap_err(),
        CoreError::IdempotencyKeyRewound
    );
    rewind(&mut session, 1, named(4, &["c"]), 7).unwrap();
    rewind(&mut session, 0, AppendCommand::default(), 8).unwrap();
    assert_eq!(
        rewind(&mut session, 1, named(4, &["c"]), 9).unwrap_err(),
        CoreError::IdempotencyKeyRewound
    );
}

fn summary(number: u32, first_seq: u64, through_seq: u64) -> Arc<Summary> {
    Arc::new(Summary {
        number,
        first_seq,
        through_seq,
        turns: through_seq,
        made_at: Timestamp::from_ms(0),
        by: "a test".into(),
        body: Default::default(),
        text: "a summary".into(),
    })
}

#[test]
fn rewind_removes_summaries_of_rewound_turns() {
    for (after_seq, remaining) in [(5, 2), (4, 2), (3, 1), (2, 1), (1, 0)] {
        let mut session = session();
        append(&mut session, &command(&["a", "b", "c", "d", "e"]), 1).unwrap();
        let generation = session.head().generation;
        for summary in [summary(1, 1, 2), summary(2, 3, 4)] {
            session
                .compact(generation, 5, &summary, true, true)
                .unwrap();
        }
        let rewound = rewind(&mut session, after_seq, AppendCommand::default(), 2).unwrap();
        let newest = session.summary().map_or(0, |summary| summary.number);
        assert_eq!(newest, remaining, "after {after_seq}");
        assert_eq!(rewound.must_reload, remaining < 2);
        let through = session.summary().map_or(0, |summary| summary.through_seq);
        assert_eq!(session.compaction().through_seq, through);
        assert_eq!(
            session.compaction().summaries,
            2,
            "summary numbers are not reused"
        );
    }
}

#[test]
fn rewind_during_compaction_discards_its_summary() {
    let mut session = session();
    append(&mut session, &command(&["a", "b", "c", "d"]), 1).unwrap();
    let policy = crate::compaction::CompactionPolicy::default();
    let trigger = crate::compaction::Trigger::Command;
    let snapshot = session
        .begin_compaction(trigger, Some(1), Steady(2), &policy, &Limits::default())
        .unwrap();
    let span = snapshot.span;
    assert!(span.through_seq > 1);
    rewind(&mut session, 1, command(&["e", "f", "g"]), 3).unwrap();
    let late = summary(snapshot.number, span.first_seq, span.through_seq);
    let change = session.compact(snapshot.generation, 4, &late, true, true);
    assert!(change.is_none() && session.summary().is_none());
    assert!(!session.compaction().running);
}

#[test]
fn request_tokens_include_provider_cache_tokens() {
    let usage = |input_tokens, cache_read_tokens, cache_creation_tokens| ModelUsage {
        input_tokens,
        cache_read_tokens,
        cache_creation_tokens,
        output_tokens: 1_000,
        ..ModelUsage::default()
    };
    for (reported, tokens) in [
        (usage(0, 0, 0), 0),
        (usage(7, 0, 0), 7),
        (usage(7, 20, 300), 327),
        (usage(u64::MAX, 1, u64::MAX), u64::MAX),
    ] {
        assert_eq!(reported.request_tokens(), tokens);
    }
}

#[test]
fn weight_of_turn_update_includes_new_text() {
    let mut session = session();
    append(&mut session, &command(&["short"]), 1).unwrap();
    let long = "x".repeat(10_000);
    let [before, after] = ["short", &long].map(|text| command(&[text]).turns.remove(0));
    let update = TurnUpdate {
        seq: 1,
        bytes_before: before.body.len(),
        before,
        after,
        idempotency: None,
    };
    let limits = Limits::default();
    let updated = session.update_turn(&update, &limits, now(2), &seal, true);
    let set = ChangeSet {
        changes: updated.unwrap().changes,
    };
    assert!(set.weight_bytes() > 10_000, "{}", set.weight_bytes());
}
