//! Extraction leases and cursors.

use memoird_core::ids::{Generation, LeaseId};
use memoird_core::time::Timestamp;
use memoird_memories::rules::{MemoryKind, Origin, Source};
use memoird_memories::store::{ExtractionCursor, Lease};
use memoird_memories::{MemoryError, RememberRequest};

use crate::kit::*;

fn generation(number: u128) -> Generation {
    Generation::new(at(0).as_ms(), number)
}

/// A lease, and the time at which it is taken.
fn lease(number: u128, to_seq: u64, from: i64, until: i64) -> (Lease, Timestamp) {
    let lease = Lease {
        id: LeaseId::new(1, number),
        session: session("chat"),
        generation: generation(1),
        subject: subject("ann"),
        after_seq: 0,
        to_seq,
        until: at(until),
    };
    (lease, at(from))
}

fn cursor(kit: &Kit) -> ExtractionCursor {
    kit.memories
        .read(|reader| reader.cursor(&session("chat"), generation(1)))
        .unwrap()
}

#[test]
fn cursor_and_facts_are_committed_atomically() {
    let kit = Kit::new();
    let ask = lease(1, 7, 0, 1);
    let taken = kit.write(move |writer| writer.take_lease(ask.0, ask.1));
    let held = taken.lease.unwrap();
    assert_eq!((held.after_seq, held.to_seq, held.until), (0, 7, at(1)));
    let bad = RememberRequest {
        supersedes: Some(id(99)),
        ..fact("ann", MemoryKind::User, "two")
    };
    let facts = [
        order(1, fact("ann", MemoryKind::User, "one")),
        order(2, bad),
    ];
    let refused = facts.clone();
    kit.refusal(move |writer| {
        writer.commit_extraction(LeaseId::new(1, 1), at(0))?;
        refused
            .iter()
            .try_for_each(|fact| writer.remember(fact, &limits()).map(|_| ()))
    });
    assert_eq!((cursor(&kit).seq, kit.get(id(1))), (0, None));
    let [good, _] = facts;
    kit.write(move |writer| {
        writer.remember(&good, &limits())?;
        writer.commit_extraction(LeaseId::new(1, 1), at(0))
    });
    assert_eq!((cursor(&kit).seq, cursor(&kit).lease), (7, None));
    assert!(kit.get(id(1)).is_some());
    let again = kit.refusal(|writer| writer.commit_extraction(LeaseId::new(1, 1), at(0)));
    assert_eq!(again, MemoryError::LeaseLost);
}

#[test]
fn leases_are_exclusive_and_expiry_is_no_failure() {
    let kit = Kit::new();
    let (first, second) = (lease(1, 7, 0, 2), lease(2, 9, 1, 3));
    kit.write(move |writer| writer.take_lease(first.0, first.1));
    let refused = second.clone();
    let refusal = kit.refusal(move |writer| writer.take_lease(refused.0, refused.1));
    assert_eq!(
        refusal,
        MemoryError::LeaseHeld {
            seconds_left: 3_600
        }
    );
    let skipped = kit.refusal(|writer| {
        writer.skip_turns(&session("chat"), generation(1), &subject("ann"), 9, at(1))
    });
    assert_eq!(
        skipped,
        MemoryError::LeaseHeld {
            seconds_left: 3_600
        }
    );
    let late = Lease {
        until: at(4),
        ..second.0
    };
    let late = (late, at(2));
    let taken = kit.write(move |writer| writer.take_lease(late.0, late.1));
    assert_eq!((taken.failures, taken.failed_at, taken.seq), (0, None, 0));
    let lost = kit.refusal(|writer| writer.commit_extraction(LeaseId::new(1, 1), at(2)));
    assert_eq!(lost, MemoryError::LeaseLost);
    let third = lease(3, 9, 4, 5);
    let taken = kit.write(move |writer| writer.take_lease(third.0, third.1));
    let given_back = taken.lease.clone().unwrap();
    kit.write(move |writer| writer.return_lease(&given_back, true, at(4)));
    assert_eq!(
        (cursor(&kit).failures, cursor(&kit).failed_at),
        (1, Some(at(4)))
    );
    let fourth = lease(4, 9, 4, 5);
    kit.write(move |writer| writer.take_lease(fourth.0, fourth.1));
    kit.write(|writer| writer.commit_extraction(LeaseId::new(1, 4), at(4)));
    assert_eq!(
        (cursor(&kit).seq, cursor(&kit).failures),
        (9, 0),
        "a success clears them"
    );
}

#[test]
fn lease_ends_after_clock_was_set_back() {
    let kit = Kit::new();
    let (far, back) = (lease(1, 7, 10_000, 10_001), lease(2, 7, 0, 1));
    kit.write(move |writer| writer.take_lease(far.0, far.1));
    let taken = kit.write(move |writer| writer.take_lease(back.0, back.1));
    assert_eq!(taken.lease.unwrap().id, LeaseId::new(1, 2));
}

#[test]
fn remembered_turns_are_listed_until_cursor_passes() {
    let kit = Kit::new();
    let say = |number, origin, seqs: &[u64], at_seq| {
        let mut said = fact("ann", MemoryKind::User, &format!("fact {number}"));
        let generation = Some(generation(1));
        said.source = Some(Source {
            session: session("chat"),
            generation,
            seqs: seqs.to_vec(),
        });
        let mut order = order(number, said);
        order.at_seq = at_seq;
        order.memory.origin = origin;
        kit.remember(order);
    };
    say(1, Origin::Bot, &[3], Some(4));
    say(2, Origin::Bot, &[], Some(8));
    say(3, Origin::Extraction, &[6], Some(6));
    let seqs = |chat: &str, after| {
        kit.memories
            .read(|r| r.remembered_seqs(&session(chat), generation(1), after))
            .unwrap()
    };
    assert_eq!(seqs("chat", 0), [3, 4, 8]);
    assert_eq!((seqs("chat", 3), seqs("another", 0)), (vec![4, 8], vec![]));
    kit.write(|writer| {
        writer.skip_turns(&session("chat"), generation(1), &subject("ann"), 4, at(1))
    });
    assert_eq!((seqs("chat", 0), cursor(&kit).seq), (vec![8], 4));
    kit.write(|writer| {
        writer.skip_turns(&session("chat"), generation(1), &subject("ann"), 2, at(1))
    });
    assert_eq!(cursor(&kit).seq, 4, "a cursor never goes back");
    assert_eq!(
        kit.write(|writer| writer.prune_cursors(at(1), 9)),
        1,
        "an old generation's turn"
    );
    assert_eq!(kit.write(|writer| writer.prune_cursors(at(2), 9)), 1);
    assert_eq!(cursor(&kit), ExtractionCursor::default());
}

#[test]
fn token_correction_of_yesterday_keeps_today() {
    let kit = Kit::new();
    let spend = |day| kit.write(move |writer| writer.spend_tokens(day, 900, 1_000));
    assert!(spend(1) && spend(2));
    kit.write(|writer| writer.correct_tokens(1, 900, 5));
    assert!(!spend(2), "today's are spent");
    kit.write(|writer| writer.correct_tokens(2, 900, 5));
    assert!(spend(2));
}
