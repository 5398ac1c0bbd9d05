//! Forgotten memories are gone from everywhere, and nothing else is.

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, LeaseId};
use memoird_memories::MemoryFilter;
use memoird_memories::rules::{MemoryKind, NearDuplicate, Outcome, Visibility};
use memoird_memories::store::{Hit, Lease, RecallEvent};
use memoird_memories::{ForgetOutcome, ForgetRequest, ListRequest};
use memoird_memories::{MemoryError, RememberRequest};

use crate::kit::*;

fn left(kit: &Kit) -> Vec<u64> {
    let filter = ListRequest {
        include_history: true,
        ..Default::default()
    };
    let memories = kit
        .memories
        .read(|reader| reader.list(&filter, 1_000, at(0)))
        .unwrap();
    memories.iter().map(|memory| number(memory.id)).collect()
}

fn supersede(kit: &Kit, new: u64, old: u64, who: &str, text: &str) {
    let fact = RememberRequest {
        supersedes: Some(id(old)),
        ..fact(who, MemoryKind::Project, text)
    };
    kit.remember(order(new, fact));
}

fn tell(kit: &Kit, numbers: &[u64], chat: &str) {
    let hits = numbers.iter().map(|number| Hit {
        id: id(*number),
        rank: 1,
        score: 0.5,
    });
    let event = RecallEvent {
        at: at(0),
        session: Some(session(chat)),
        query: [1; 16],
        hits: hits.collect(),
    };
    kit.write(move |writer| writer.record_recall(&event, &limits()));
}

#[test]
fn memory_is_forgotten_with_its_history() {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    kit.say(1, "ann", "first");
    supersede(&kit, 2, 1, "ann", "second");
    supersede(&kit, 3, 2, "ann", "third");
    kit.say(4, "ann", "fourth");
    tell(&kit, &[3, 4], "chat");
    let filter = ForgetRequest::One(id(3));
    let expected = ForgetOutcome {
        memories: 1,
        superseded: 2,
        recall_events: 1,
        queued_embeddings: 1,
        ..ForgetOutcome::default()
    };
    let planned = kit
        .memories
        .read(|reader| reader.forget_count(&filter))
        .unwrap();
    assert_eq!(planned, expected);
    assert_eq!(
        kit.forget(50, &filter),
        expected,
        "the dry run told the truth"
    );
    assert_eq!(left(&kit), [4]);
    kit.check_indexes();
    let refusal = kit.refusal(move |writer| writer.forget_begin(id(51), &filter, at(1)));
    assert_eq!(refusal, MemoryError::NotFound { id: id(3) });
}

/// A memory that was restated many times, and one with circular versions.
#[test]
fn long_history_is_deleted_before_its_memory() {
    let kit = Kit::new();
    for number in 1..=60 {
        let name = |text: String| RememberRequest {
            external_key: Some("boat".into()),
            ..fact("ann", MemoryKind::Project, &text)
        };
        kit.remember(order(number, name(format!("boat number {number}"))));
        let supersedes = (number > 1).then(|| id(100 + number - 1));
        let text = format!("dog number {number}");
        let said = RememberRequest {
            supersedes,
            ..fact("ann", MemoryKind::Project, &text)
        };
        kit.remember(order(100 + number, said));
    }
    for (job, last) in [(200, 1), (201, 160)] {
        let before = kit.peek("SELECT count(*) FROM memories");
        let (filter, mut left) = (ForgetRequest::One(id(last)), before);
        kit.write(move |writer| writer.forget_begin(id(job), &filter, at(1)));
        loop {
            let progress = kit.write(move |writer| writer.forget_step(id(job), 10));
            let rows = kit.peek("SELECT count(*) FROM memories");
            assert!(left - rows <= 10, "{left} to {rows}");
            left = rows;
            if progress.is_done {
                let counts = (progress.counts.memories, progress.counts.superseded);
                assert_eq!((counts, before - left), ((1, 59), 60));
                break;
            }
            assert!(kit.get(id(last)).is_some());
            kit.check_indexes();
        }
    }
    kit.check_indexes();
}

#[test]
fn newer_memory_survives_forgotten_history() {
    let kit = Kit::new();
    kit.say(1, "ann", "first");
    supersede(&kit, 2, 1, "ann", "second");
    kit.forget(50, &ForgetRequest::One(id(1)));
    assert_eq!(left(&kit), [2]);
    kit.check_indexes();
}

#[test]
fn forgotten_subject_is_gone_at_job_start_and_later_memories_stay() {
    let kit = Kit::new();
    for number in 1..=20 {
        let mut said = fact("ann", MemoryKind::Project, &format!("tea number {number}"));
        if number % 4 == 0 {
            said.visibility = Visibility::Team;
        }
        kit.remember(order(number, said));
    }
    kit.say(30, "bob", "tea as well");
    let mut keyed = order(31, fact("ann", MemoryKind::Project, "tea with a key"));
    keyed.key = Some(IdempotencyKey {
        key: [1; 16],
        content: [1; 16],
    });
    kit.remember(keyed.clone());
    let filter = ForgetRequest::Subject(subject("ann"));
    let planned = kit
        .memories
        .read(|reader| reader.forget_count(&filter))
        .unwrap();
    assert_eq!(planned.memories, 21);
    kit.write(move |writer| writer.forget_begin(id(50), &filter, at(1)));
    assert_eq!(left(&kit), [30], "before any step");
    assert_eq!(kit.found("ann", "tea"), [0; 0]);
    assert_eq!(kit.found("bob", "tea"), [30]);
    let manifest = kit
        .memories
        .read(|reader| reader.manifest(&subject("ann"), at(1), 9))
        .unwrap();
    assert!(manifest.0.is_empty());
    // Stated again while the job runs, with the same words and key.
    keyed.memory.id = id(32);
    let done = kit.remember(keyed);
    assert_eq!(
        (done.outcome, done.is_repetition),
        (Outcome::Created, false)
    );
    let mut counts = ForgetOutcome::default();
    for step in 0.. {
        let progress = kit.write(|writer| writer.forget_step(id(50), 4));
        assert!(step < 20);
        counts = progress.counts;
        if progress.is_done {
            break;
        }
        assert_eq!(left(&kit), [30, 32]);
    }
    assert_eq!(counts, planned);
    assert_eq!(left(&kit), [30, 32]);
    assert!(
        kit.write(|writer| writer.forget_step(id(50), 4)).is_done,
        "a done job stays done"
    );
    kit.check_indexes();
}

#[test]
fn forget_filter_covers_matches_that_existed_at_start() {
    let kit = Kit::new();
    for number in 1..=12 {
        let who = if number % 2 == 0 { "ann" } else { "bob" };
        let kind = if number % 3 == 0 {
            MemoryKind::User
        } else {
            MemoryKind::Project
        };
        let mut said = fact(who, kind, &format!("fact {number}"));
        said.observed_at = Some(at(number as i64));
        if number > 6 {
            said.tags = vec!["late".into(), "any".into()];
        }
        kit.remember(order(number, said));
    }
    let matching = |who: Option<&str>, kinds: &[MemoryKind], tags: &[&str], after, before| {
        ForgetRequest::Filter(MemoryFilter {
            subject: who.map(subject),
            kinds: kinds.to_vec(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            after,
            before,
        })
    };
    let filter = matching(
        Some("ann"),
        &[MemoryKind::Project],
        &["late"],
        None,
        Some(at(10)),
    );
    let counts = kit.forget(50, &filter);
    assert_eq!((counts.memories, left(&kit).contains(&8)), (1, false));
    let filter = matching(None, &[], &["late", "any"], Some(at(11)), None);
    kit.write(move |writer| writer.forget_begin(id(51), &filter, at(1)));
    let mut later = fact("bob", MemoryKind::Project, "fact from later");
    (later.tags, later.observed_at) = (vec!["any".into(), "late".into()], Some(at(20)));
    kit.remember(order(13, later));
    while !kit.write(|writer| writer.forget_step(id(51), 1)).is_done {}
    assert_eq!(left(&kit), [1, 2, 3, 4, 5, 6, 7, 9, 10, 13]);
    kit.forget(52, &matching(Some("nobody"), &[], &[], None, None));
    assert_eq!(
        left(&kit).len(),
        10,
        "an unknown subject has nothing to forget"
    );
    kit.check_indexes();
}

#[test]
fn interrupted_job_is_found_and_continues() {
    let mut kit = Kit::new();
    for number in 1..=9 {
        kit.say(number, "ann", &format!("fact number {number}"));
        kit.say(number + 20, "bob", &format!("fact number {number}"));
    }
    let filter = ForgetRequest::Subject(subject("ann"));
    kit.write(move |writer| writer.forget_begin(id(50), &filter, at(1)));
    let mut steps = 0;
    loop {
        kit = kit.reopened();
        let jobs = kit.memories.read(|reader| reader.forget_jobs()).unwrap();
        assert_eq!(jobs, [id(50)]);
        assert_eq!(left(&kit).len(), 9);
        steps += 1;
        if kit.write(|writer| writer.forget_step(id(50), 2)).is_done {
            break;
        }
    }
    assert!(steps > 3, "it was cut off {steps} times");
    assert_eq!(
        kit.memories.read(|reader| reader.forget_jobs()).unwrap(),
        []
    );
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), 9);
    kit.check_indexes();
}

#[test]
fn lease_does_not_restore_forgotten_facts() {
    let kit = Kit::new();
    kit.say(1, "ann", "a fact of ann");
    kit.say(2, "bob", "a fact of bob");
    let generation = |number| Generation::new(1, number);
    for (number, who) in [(1, "ann"), (2, "bob")] {
        let lease = Lease {
            id: LeaseId::new(1, number),
            session: session("chat"),
            generation: generation(number),
            subject: subject(who),
            after_seq: 0,
            to_seq: 9,
            until: at(1),
        };
        kit.write(move |writer| writer.take_lease(lease, at(0)));
    }
    let filter = ForgetRequest::Subject(subject("ann"));
    assert_eq!(kit.forget(50, &filter).cursors, 1);
    let commit = |number| {
        kit.memories
            .write_one(move |w| w.commit_extraction(LeaseId::new(1, number), at(0)))
    };
    assert!(commit(1).is_err());
    let cursor = |number| {
        kit.memories
            .read(|reader| reader.cursor(&session("chat"), generation(number)))
            .unwrap()
    };
    assert_eq!((cursor(1).not_before, cursor(1).lease), (Some(at(1)), None));
    let not_before = |who| {
        kit.memories
            .read(|reader| reader.not_before(&subject(who)))
            .unwrap()
    };
    assert_eq!((not_before("ann"), not_before("bob")), (Some(at(1)), None));
    assert!(cursor(2).lease.is_some());
    kit.forget(51, &ForgetRequest::One(id(2)));
    assert!(commit(2).is_err(), "also of one memory");
    assert_eq!(cursor(2).not_before, None);
}

#[test]
fn long_expired_memories_are_deleted_in_steps() {
    let kit = Kit::new();
    for number in 1..=6 {
        let mut said = fact("ann", MemoryKind::Project, &format!("fact {number}"));
        said.expires_at = Some(at(number as i64));
        said.near_duplicate = NearDuplicate::Keep;
        kit.remember(order(number, said));
    }
    let mut newest = fact("ann", MemoryKind::Project, "the last word");
    (newest.expires_at, newest.supersedes) = (Some(at(2)), Some(id(6)));
    kit.remember(order(7, newest));
    assert_eq!(kit.write(|writer| writer.expire_step(at(4), 2)), 2);
    assert_eq!(
        kit.write(|writer| writer.expire_step(at(4), 9)),
        3,
        "with its history"
    );
    assert_eq!(kit.write(|writer| writer.expire_step(at(4), 9)), 0);
    assert_eq!(left(&kit), [4, 5]);
    kit.check_indexes();
}
