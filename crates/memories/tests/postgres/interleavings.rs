//! Two daemons that write to one tenant at the same time.
//!
//! The first one has an open transaction until the second one waits for a lock or is done.

use std::sync::mpsc::channel;

use memoird_core::CoreError;
use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::MemoryId;
use memoird_memories::rules::{MemoryKind, MemoryLimits, Outcome, Pin};
use memoird_memories::store::{MemoryWriter, RememberCommand};
use memoird_memories::{ForgetRequest, MemoryError, RememberOutcome};

use crate::kit::*;
use crate::place::Place;

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";
const CURRENT: &str = "SELECT count(*) FROM memories WHERE superseded_by IS NULL";

/// A new database. `None` if there is no server.
fn shared() -> Option<Kit> {
    let kit = Kit::new();
    match kit.place {
        Place::Database(..) => Some(kit),
        Place::Skipped(_) => None,
    }
}

/// A new database with a memory of ann and one of bob.
fn with_subjects() -> Option<Kit> {
    let kit = shared()?;
    kit.say(101, "ann", "the house is blue");
    kit.say(102, "bob", "the garden is green");
    Some(kit)
}

/// Runs `second` at one daemon while the transaction of `first` is open at another.
fn interleave<A: Send + 'static, B: Send + 'static>(
    kit: &Kit,
    first: impl FnOnce(&MemoryWriter<'_>) -> Result<A, MemoryError> + Send + 'static,
    second: impl FnOnce(&MemoryWriter<'_>) -> Result<B, MemoryError> + Send + 'static,
) -> (Result<A, MemoryError>, Result<B, MemoryError>) {
    let (begin, begun) = channel();
    let (release, released) = channel::<()>();
    let memories = kit.memories.clone();
    let other = kit.place.open().tenant(&tenant("acme")).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(move || {
            memories.write_one(move |writer| {
                let done = first(writer)?;
                let _ = (begin.send(()), released.recv());
                Ok(done)
            })
        });
        begun.recv().unwrap();
        let second = scope.spawn(move || other.write_one(second));
        while !second.is_finished() && kit.peek(WAITING) == 0 {}
        drop(release);
        (first.join().unwrap(), second.join().unwrap())
    })
}

/// Remembers one fact at each of two daemons.
fn remember_both(
    kit: &Kit,
    first: RememberCommand,
    second: RememberCommand,
    limits: &MemoryLimits,
) -> (
    Result<RememberOutcome, MemoryError>,
    Result<RememberOutcome, MemoryError>,
) {
    let (ours, theirs) = (limits.clone(), limits.clone());
    interleave(
        kit,
        move |writer| writer.remember(&first, &ours),
        move |writer| writer.remember(&second, &theirs),
    )
}

fn said(number: u64, who: &str, text: &str) -> RememberCommand {
    order(number, fact(who, MemoryKind::Project, text))
}

#[test]
fn same_text_is_stored_once() {
    let Some(kit) = with_subjects() else { return };
    let (first, second) = remember_both(
        &kit,
        said(1, "ann", "the boat is called Zuiderzee"),
        said(2, "ann", "The boat is called Zuiderzee."),
        &limits(),
    );
    assert_eq!(first.unwrap().outcome, Outcome::Created);
    assert_eq!(second.unwrap().outcome, Outcome::Merged);
    assert_eq!(kit.peek(CURRENT), 3);
    kit.check_indexes();
}

#[test]
fn same_external_key_has_one_current_memory() {
    let Some(kit) = with_subjects() else { return };
    let named = |number, text| {
        let mut fact = fact("ann", MemoryKind::Project, text);
        fact.external_key = Some("boat".to_owned());
        order(number, fact)
    };
    let (first, second) = remember_both(&kit, named(1, "Zuiderzee"), named(2, "Rex"), &limits());
    assert_eq!(first.unwrap().outcome, Outcome::Created);
    let second = second.unwrap();
    assert_eq!(
        (second.outcome, second.memory.id),
        (Outcome::Replaced, id(1))
    );
    assert_eq!(kit.peek(CURRENT), 3);
    kit.check_indexes();
}

#[test]
fn one_idempotency_key_is_applied_once() {
    let keyed = |number, who, content| {
        let mut command = said(number, who, "the boat is called Zuiderzee");
        command.key = Some(IdempotencyKey {
            key: [7; 16],
            content: [content; 16],
        });
        command
    };
    // Subject and content of the second use.
    for (who, content) in [("ann", 1), ("bob", 1), ("ann", 2), ("bob", 2)] {
        let Some(kit) = with_subjects() else { return };
        let (first, second) =
            remember_both(&kit, keyed(1, "ann", 1), keyed(2, who, content), &limits());
        let first = first.unwrap();
        assert!(!first.is_repetition);
        if content == 1 {
            let second = second.unwrap();
            assert_eq!((second.is_repetition, second.memory.id), (true, id(1)));
        } else {
            let reused = MemoryError::Core(CoreError::IdempotencyKeyReused);
            assert_eq!(second.unwrap_err(), reused);
        }
        assert_eq!(kit.peek(CURRENT), 3);
        assert_eq!(kit.peek("SELECT count(*) FROM keys"), 1);
        kit.check_indexes();
    }
}

#[test]
fn numbers_of_idempotency_keys_are_distinct() {
    let Some(kit) = with_subjects() else { return };
    let keyed = |number: u64, who| {
        let mut command = said(number, who, "the boat is called Zuiderzee");
        let key = [u8::try_from(number).unwrap(); 16];
        command.key = Some(IdempotencyKey { key, content: key });
        command
    };
    let (first, second) = remember_both(&kit, keyed(1, "ann"), keyed(2, "bob"), &limits());
    assert_eq!(first.unwrap().outcome, Outcome::Created);
    assert_eq!(second.unwrap().outcome, Outcome::Created);
    assert_eq!(kit.peek("SELECT count(DISTINCT no) FROM keys"), 2);
}

#[test]
fn limit_of_memories_is_exact() {
    let Some(kit) = with_subjects() else { return };
    let limits = MemoryLimits {
        memories: 3,
        ..limits()
    };
    let (first, second) = remember_both(
        &kit,
        said(1, "ann", "the boat is called Zuiderzee"),
        said(2, "bob", "the dog is called Rex"),
        &limits,
    );
    assert_eq!(first.unwrap().outcome, Outcome::Created);
    assert_eq!(second.unwrap_err(), MemoryError::Full { limit: 3 });
    assert_eq!(kit.peek("SELECT memories FROM state"), 3);
    kit.check_indexes();
}

#[test]
fn new_subjects_get_one_partition_each() {
    for (who, partitions) in [("ann", 1), ("bob", 2)] {
        let Some(kit) = shared() else { return };
        let (first, second) = remember_both(
            &kit,
            said(1, "ann", "the boat is called Zuiderzee"),
            said(2, who, "the dog is called Rex"),
            &limits(),
        );
        assert_eq!(first.unwrap().outcome, Outcome::Created);
        assert_eq!(second.unwrap().outcome, Outcome::Created);
        let counted = "SELECT count(*) FROM partitions WHERE no > 0";
        assert_eq!(kit.peek(counted), partitions, "{who}");
        assert_eq!(kit.peek(CURRENT), 2, "{who}");
        kit.check_indexes();
    }
}

/// Completes a job that forgets, and returns the number of rows that are left.
fn left_after(kit: &Kit, job: MemoryId) -> i64 {
    let step = || kit.write(move |writer| writer.forget_step(job, 3));
    while !step().is_done {}
    kit.check_indexes();
    kit.peek("SELECT (SELECT count(*) FROM memories) + (SELECT count(*) FROM terms)")
}

#[test]
fn forgetting_a_subject_erases_the_fact_being_remembered() {
    let by_subject = ForgetRequest::Subject(subject("ann"));
    for request in [by_subject, ForgetRequest::One(id(1))] {
        let Some(kit) = shared() else { return };
        let fact = said(1, "ann", "the boat is called Zuiderzee");
        let (remembered, begun) = interleave(
            &kit,
            move |writer| writer.remember(&fact, &limits()),
            move |writer| writer.forget_begin(id(9), &request, at(1)),
        );
        assert_eq!(remembered.unwrap().outcome, Outcome::Created);
        begun.unwrap();
        assert_eq!(left_after(&kit, id(9)), 0);
    }
}

#[test]
fn fact_remembered_while_its_subject_is_forgotten_stays() {
    let Some(kit) = shared() else { return };
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let request = ForgetRequest::Subject(subject("ann"));
    let fact = said(2, "ann", "the boat is called Zuiderzee");
    let (begun, remembered) = interleave(
        &kit,
        move |writer| writer.forget_begin(id(9), &request, at(1)),
        move |writer| writer.remember(&fact, &limits()),
    );
    begun.unwrap();
    // It does not reinforce the memory that is being forgotten.
    assert_eq!(remembered.unwrap().outcome, Outcome::Created);
    assert!(left_after(&kit, id(9)) > 0);
    assert_eq!((kit.get(id(1)), kit.peek(CURRENT)), (None, 1));
}

#[test]
fn consolidation_keeps_a_concurrent_reinforcement() {
    let Some(kit) = shared() else { return };
    let text = "the boat is called Zuiderzee";
    kit.say(1, "ann", text);
    let pin = |writer: &MemoryWriter<'_>| writer.pin(&[id(1)], Pin::Consolidation, at(1));
    let (first, second) = (said(2, "ann", text), said(3, "ann", text));
    let (remembered, pinned) =
        interleave(&kit, move |writer| writer.remember(&first, &limits()), pin);
    assert_eq!(remembered.unwrap().outcome, Outcome::Reinforced);
    assert_eq!(pinned.unwrap(), 1);
    let unpin = |writer: &MemoryWriter<'_>| writer.unpin(&[id(1)], at(2));
    let (unpinned, remembered) = interleave(&kit, unpin, move |writer| {
        writer.remember(&second, &limits())
    });
    assert_eq!(unpinned.unwrap(), 1);
    assert_eq!(remembered.unwrap().outcome, Outcome::Reinforced);
    let memory = kit.get(id(1)).unwrap();
    assert_eq!((memory.reinforced, memory.pin), (2, None));
    kit.check_indexes();
}
