//! Outcomes of facts.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::idempotency::IdempotencyKey;
use memoird_memories::MemoryError;
use memoird_memories::rules::{
    Memory, MemoryKind, MemoryLimits, NearDuplicate, Origin, Outcome, Pin, Polarity, Visibility,
};
use memoird_memories::store::{
    FactLookup, Hit, MemoryWriter, Prepared, RecallEvent, RememberCommand, WriteJob,
};
use memoird_memories::{ForgetRequest, ListRequest, RememberRequest};

use crate::kit::*;
use crate::seeds::seeds;

fn project(text: &str) -> RememberRequest {
    fact("ann", MemoryKind::Project, text)
}

fn all(kit: &Kit) -> Vec<Memory> {
    let filter = ListRequest {
        include_history: true,
        ..Default::default()
    };
    kit.memories
        .read(|reader| reader.list(&filter, 1_000, at(0)))
        .unwrap()
}

#[test]
fn remembered_fact_has_all_fields() {
    let kit = Kit::new();
    let mut given = fact("ann", MemoryKind::Feedback, "write short answers");
    given.polarity = Some(Polarity::Correction);
    given.tags = vec!["style".into(), "answers".into()];
    given.importance = Some(0.7);
    given.pinned = true;
    given.observed_at = Some(at(-5));
    given.expires_at = Some(at(500));
    given.source = Some(source("chat"));
    let mut said = order(1, given.clone());
    said.memory.origin = Origin::Extraction;
    let done = kit.remember(said);
    assert_eq!(
        (done.outcome, done.is_repetition),
        (Outcome::Created, false)
    );
    let memory = kit.get(id(1)).unwrap();
    assert_eq!(memory, done.memory);
    assert_eq!((memory.kind, memory.polarity), (given.kind, given.polarity));
    assert_eq!(
        (&*memory.content, memory.importance),
        ("write short answers", 0.7)
    );
    assert_eq!(memory.tags, ["answers", "style"]);
    assert_eq!((memory.observed_at, memory.created_at), (at(-5), at(0)));
    assert_eq!(
        (memory.pin, memory.origin),
        (Some(Pin::Bot), Origin::Extraction)
    );
    assert_eq!(
        (memory.expires_at, memory.source),
        (Some(at(500)), given.source)
    );
    kit.check_indexes();
}

#[test]
fn identical_fact_reinforces() {
    let kit = Kit::new();
    let mut first = project("ships on Friday");
    (first.tags, first.importance, first.expires_at) = (vec!["a".into()], Some(0.9), Some(at(9)));
    kit.remember(order(1, first));
    let mut again = project("ships on Friday");
    (again.tags, again.expires_at, again.pinned) = (vec!["b".into()], Some(at(99)), true);
    again.near_duplicate = NearDuplicate::Refuse;
    let done = kit.remember(order_at(at(3), 2, again));
    assert_eq!((done.outcome, done.memory.id), (Outcome::Reinforced, id(1)));
    let memory = kit.get(id(1)).unwrap();
    assert_eq!(
        (memory.reinforced, memory.updated_at, memory.created_at),
        (1, at(3), at(0))
    );
    assert_eq!(
        (memory.tags, memory.importance),
        (vec!["a".into(), "b".into()], 0.9)
    );
    assert_eq!(
        (memory.expires_at, memory.pin),
        (Some(at(99)), Some(Pin::Bot))
    );
    assert_eq!(memory.observed_at, at(3));
    kit.remember(order(3, project("ships on Friday")));
    assert_eq!(
        kit.get(id(1)).unwrap().expires_at,
        None,
        "for ever is the later one"
    );
    assert_eq!(all(&kit).len(), 1);
}

#[test]
fn same_words_are_merged_rejected_or_kept_as_requested() {
    let kit = Kit::new();
    kit.say(1, "ann", "ships on friday");
    let say = |number, near_duplicate| {
        order(
            number,
            RememberRequest {
                near_duplicate,
                ..project("Ships on Friday!")
            },
        )
    };
    let refused = say(2, NearDuplicate::Refuse);
    let refusal = kit.refusal(move |writer| writer.remember(&refused, &limits()));
    assert_eq!(refusal, MemoryError::Duplicate { id: id(1) });
    let merged = kit.remember(say(3, NearDuplicate::Merge));
    assert_eq!((merged.outcome, merged.memory.id), (Outcome::Merged, id(1)));
    assert_eq!(
        kit.get(id(1)).unwrap().content,
        "Ships on Friday!",
        "the newer wording"
    );
    let history = kit.get(id(3)).unwrap();
    assert_eq!(
        (&*history.content, history.superseded_by),
        ("ships on friday", Some(id(1))),
        "the older wording is history"
    );
    assert_eq!(kit.found("ann", "friday"), [1]);
    kit.say(4, "ann", "ships on thursday");
    let kept = order(
        5,
        RememberRequest {
            near_duplicate: NearDuplicate::Keep,
            ..project("SHIPS on Friday")
        },
    );
    assert_eq!(kit.remember(kept).outcome, Outcome::Created);
    assert_eq!(all(&kit).len(), 4);
    kit.check_indexes();
}

#[test]
fn alternating_spellings_are_history_once_each() {
    let kit = Kit::new();
    kit.say(1, "ann", "ships on friday");
    for (number, text) in (2..).zip(["Ships on Friday!", "ships on friday"].repeat(5)) {
        let done = kit.remember(order(number, project(text)));
        assert_eq!((done.outcome, done.memory.id), (Outcome::Merged, id(1)));
        assert_eq!(done.memory.content, text);
    }
    let mut texts: Vec<_> = all(&kit).into_iter().map(|memory| memory.content).collect();
    texts.sort();
    assert_eq!(
        texts,
        ["Ships on Friday!", "ships on friday", "ships on friday"]
    );
    assert_eq!(kit.get(id(1)).unwrap().reinforced, 10);
    kit.check_indexes();
}

#[test]
fn case_whitespace_and_final_punctuation_merge() {
    for (one, other, outcome) in [
        ("ships on friday", "Ships on  FRIDAY!", Outcome::Merged),
        (
            "meets José in a café",
            "meets Jose\u{301} in a cafe\u{301}.",
            Outcome::Merged,
        ),
        ("Straße 5", "STRASSE 5", Outcome::Merged),
        ("KÖYDE ÇAY İÇER", "köyde çay içer", Outcome::Merged),
        ("ships on friday", "Ships, on friday", Outcome::Created),
        ("ｔｅａ at home", "Tea at home", Outcome::Created),
        ("- **likes** tea", "likes tea", Outcome::Created),
        ("likes tea", "likes tea 🍵", Outcome::Created),
        ("likes 🍎", "likes 🍌", Outcome::Created),
        ("३ बिल्लियाँ हैं", "3 बिल्लियाँ हैं", Outcome::Created),
        ("deploy if !ready", "deploy if ready", Outcome::Created),
        ("user_id != 0", "user_id = 0", Outcome::Created),
        ("x ∉ S", "x ∈ S", Outcome::Created),
        ("A → B", "A ← B", Outcome::Created),
        ("T is –5", "T is 5", Outcome::Created),
        ("loss (10)", "loss 10", Outcome::Created),
        ("10² m", "102 m", Outcome::Created),
        ("5' tall", "5\" tall", Outcome::Created),
        ("es ist schön", "es ist schon", Outcome::Created),
        (
            "it costs 5 dollars",
            "it costs 50 dollars",
            Outcome::Created,
        ),
        ("it costs 5 €", "it costs 5 $", Outcome::Created),
        ("it grew by 5 %", "it grew by 5", Outcome::Created),
        ("it is -5 outside", "it is 5 outside", Outcome::Created),
        ("on 3.4. at ten", "on 3 4 at ten", Outcome::Created),
        (
            "the call is at 12:30",
            "the call is at 12.30",
            Outcome::Created,
        ),
        ("due 2026-01-31", "due 2026-01-30", Outcome::Created),
        ("writes C++", "writes C", Outcome::Created),
        ("writes C++", "writes C#", Outcome::Created),
        ("wants a < b", "wants a > b", Outcome::Created),
        ("likes tea", "likes no tea", Outcome::Created),
        (
            "she does like tea",
            "she doesn't like tea",
            Outcome::Created,
        ),
        ("from Rome to Riga", "to Rome from Riga", Outcome::Created),
    ] {
        let kit = Kit::new();
        kit.say(1, "ann", one);
        let done = kit.remember(order(2, project(other)));
        assert_eq!(done.outcome, outcome, "{one} / {other}");
    }
}

#[test]
fn merge_requires_same_subject_kind_visibility_and_polarity() {
    let kit = Kit::new();
    kit.say(1, "ann", "ships on friday");
    let others = [
        fact("bob", MemoryKind::Project, "ships on friday"),
        fact("ann", MemoryKind::Reference, "ships on friday"),
        RememberRequest {
            visibility: Visibility::Team,
            ..project("ships on friday")
        },
        fact("ann", MemoryKind::Feedback, "ships on friday"),
        RememberRequest {
            polarity: Some(Polarity::Confirmation),
            ..fact("ann", MemoryKind::Feedback, "ships on friday")
        },
    ];
    for (number, other) in (2..).zip(others) {
        assert_eq!(
            kit.remember(order(number, other)).outcome,
            Outcome::Created,
            "{number}"
        );
    }
    assert_eq!(all(&kit).len(), 6);
}

#[test]
fn expired_and_superseded_memories_are_not_merged() {
    let kit = Kit::new();
    kit.remember(order(
        1,
        RememberRequest {
            expires_at: Some(at(1)),
            ..project("ships on friday")
        },
    ));
    let later = order_at(at(1), 2, project("ships on friday"));
    assert_eq!(kit.remember(later).outcome, Outcome::Created);
    kit.remember(order(
        3,
        RememberRequest {
            supersedes: Some(id(2)),
            ..project("ships on monday")
        },
    ));
    assert_eq!(kit.get(id(2)).unwrap().superseded_by, Some(id(3)));
    let again = order_at(at(1), 4, project("ships on friday"));
    assert_eq!(kit.remember(again).outcome, Outcome::Created);
    kit.check_indexes();
}

#[test]
fn supersede_requires_current_memory_of_subject() {
    let kit = Kit::new();
    kit.say(1, "ann", "ships on friday");
    kit.say(2, "bob", "ships never");
    let supersede = |number, old| {
        let text = format!("ships at last {number}");
        order(
            number,
            RememberRequest {
                supersedes: Some(id(old)),
                ..project(&text)
            },
        )
    };
    for missing in [2, 99] {
        let order = supersede(10, missing);
        let refusal = kit.refusal(move |writer| writer.remember(&order, &limits()));
        assert_eq!(refusal, MemoryError::NotFound { id: id(missing) });
    }
    kit.remember(supersede(11, 1));
    let order = supersede(12, 1);
    let refusal = kit.refusal(move |writer| writer.remember(&order, &limits()));
    assert_eq!(
        refusal,
        MemoryError::Superseded {
            id: id(1),
            by: id(11)
        }
    );
    assert_eq!(kit.found("ann", "ships"), [11]);
    assert_eq!(kit.found("ann", "friday"), [0; 0], "history is not found");
}

#[test]
fn idempotency_key_repeats_outcome_within_limits() {
    let kit = Kit::new();
    let tight = MemoryLimits {
        idempotency_keys: 2,
        idempotency_span: Duration::from_secs(3_600),
        ..limits()
    };
    let say = |number, key: u8, content: u8, hours| {
        let fact = project(&format!("fact {content}"));
        let mut order = order_at(at(hours), number, fact);
        order.key = Some(IdempotencyKey {
            key: [key; 16],
            content: [content; 16],
        });
        order
    };
    let run = |order| {
        let tight = tight.clone();
        kit.write(move |writer| writer.remember(&order, &tight))
    };
    let first = run(say(1, 1, 1, 0));
    let again = run(say(2, 1, 1, 0));
    assert!(again.is_repetition);
    assert_eq!(
        (again.memory, again.outcome),
        (first.memory, Outcome::Created)
    );
    let (other, tight_too) = (say(3, 1, 2, 0), tight.clone());
    let refusal = kit.refusal(move |writer| writer.remember(&other, &tight_too));
    assert_eq!(refusal, MemoryError::Core(CoreError::IdempotencyKeyReused));
    assert!(!run(say(4, 1, 1, 2)).is_repetition, "its time is over");
    for key in 2..=3 {
        run(say(10 + u64::from(key), key, key, 2));
    }
    assert!(!run(say(20, 1, 1, 2)).is_repetition, "two newer ones came");
    assert_eq!(kit.peek("SELECT count(*) FROM keys"), 2);
}

#[test]
fn echo_of_recalled_memory_is_no_new_memory() {
    let kit = Kit::new();
    let content = "The release is planned for Friday, 12:30";
    let teams = RememberRequest {
        visibility: Visibility::Team,
        ..fact("bob", MemoryKind::Project, content)
    };
    kit.remember(order(1, teams));
    let told = RecallEvent {
        at: at(0),
        session: Some(session("chat")),
        query: [7; 16],
        hits: vec![Hit {
            id: id(1),
            rank: 1,
            score: 0.5,
        }],
    };
    kit.write(move |writer| writer.record_recall(&told, &limits()));
    let say = |number, text: &str, chat: &str, hours| {
        let said = RememberRequest {
            source: Some(source(chat)),
            ..project(text)
        };
        order_at(at(hours), number, said)
    };
    let echo = kit.remember(say(2, "release is planned for friday", "chat", 1));
    assert_eq!((echo.outcome, echo.memory.id), (Outcome::Recalled, id(1)));
    assert_eq!(all(&kit).len(), 1, "nothing changed");
    let created = [
        say(3, "release is planned for fri", "chat", 1),
        say(
            4,
            "The release is planned for Friday, 12:30",
            "another chat",
            1,
        ),
        say(5, "planned for Friday", "chat", 25),
        say(6, "…", "chat", 1),
    ];
    for order in created {
        let text = order.memory.content.clone();
        assert_eq!(kit.remember(order).outcome, Outcome::Created, "{text}");
    }
}

#[test]
fn memory_limit_applies() {
    let kit = Kit::new();
    let tight = MemoryLimits {
        memories: 2,
        ..limits()
    };
    kit.say(1, "ann", "one");
    kit.say(2, "ann", "two");
    let order = order(3, project("three"));
    let refusal = kit.refusal(move |writer| writer.remember(&order, &tight));
    assert_eq!(refusal, MemoryError::Full { limit: 2 });
}

#[test]
fn rejected_job_rolls_back_only_itself_and_its_index_changes() {
    let kit = Kit::new();
    let (good, bad, last) = (
        order(1, project("alpha")),
        order(2, project("beta")),
        order(
            3,
            RememberRequest {
                supersedes: Some(id(99)),
                ..project("gamma")
            },
        ),
    );
    let answers = kit.memories.write(vec![
        WriteJob::new(move |writer| writer.remember(&good, &limits()).map(|_| ())),
        WriteJob::new(move |writer| {
            writer.remember(&bad, &limits())?;
            // Reading its own write makes the job write the index.
            let found = writer.recall(&ask(&["ann"], "alpha beta"), None, at(1))?;
            assert_eq!(by_words(&found).len(), 2);
            writer.remember(&last, &limits()).map(|_| ())
        }),
    ]);
    let answers = answers.unwrap();
    assert!(answers[0].is_ok() && answers[1].is_err());
    assert_eq!(kit.found("ann", "alpha beta gamma"), [1]);
    kit.check_indexes();
}

#[test]
fn words_with_other_diacritics_are_distinct() {
    let kit = Kit::new();
    for (number, text) in (1..).zip([
        "Dị ứng bò",
        "Dị ứng bơ",
        "di ung bo",
        "Likes crème brûlée",
        "likes creme brûlée",
    ]) {
        kit.say(number, "ann", text);
    }
}

#[test]
fn piece_of_recalled_memory_with_other_signs_is_new() {
    for (recalled, told, outcome) in [
        ("deploy if !ready", "deploy if ready", Outcome::Created),
        ("it is -5 outside", "5 outside", Outcome::Created),
        ("user_id != 0 is an error", "user_id = 0", Outcome::Created),
        ("das Haus ist schön", "das Haus ist schon", Outcome::Created),
        ("deploy if !ready", "if !ready.", Outcome::Recalled),
    ] {
        let kit = Kit::new();
        kit.say(1, "ann", recalled);
        let event = RecallEvent {
            at: at(0),
            session: Some(session("chat")),
            query: [7; 16],
            hits: vec![Hit {
                id: id(1),
                rank: 1,
                score: 0.5,
            }],
        };
        kit.write(move |writer| writer.record_recall(&event, &limits()));
        let said = RememberRequest {
            source: Some(source("chat")),
            ..project(told)
        };
        assert_eq!(kit.remember(order(2, said)).outcome, outcome, "{told}");
    }
}

/// Facts that are looked up together with those of other jobs end up like facts that are not.
#[test]
fn facts_looked_up_together_are_stored_as_if_one_by_one() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let kits = [Kit::new(), Kit::new()];
        let mut random = seed;
        let mut below = |bound: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for batch in 0..12 {
            let commands: Vec<RememberCommand> = (0..8)
                .map(|place| {
                    let who = ["ann", "bob", "zoe", "eve"][usize::try_from(below(4)).unwrap()];
                    let mut said = fact(who, MemoryKind::Project, &format!("boat {}", below(5)));
                    said.key = (below(2) == 0).then(|| IdempotencyKey {
                        key: [u8::try_from(below(6)).unwrap(); 16],
                        content: [u8::try_from(below(2)).unwrap(); 16],
                    });
                    // Some are rejected.
                    said.supersedes = (below(8) == 0).then(|| id(9_999));
                    said.external_key = (below(6) == 0).then(|| "boat".to_owned());
                    order(100 * (batch + 1) + place, said)
                })
                .collect();
            let forgotten = (below(3) == 0).then(|| id(5_000 + batch));
            let outcomes = [false, true].map(|is_together| {
                let kit = &kits[usize::from(is_together)];
                let mut jobs: Vec<WriteJob> = commands
                    .iter()
                    .map(|command| {
                        let prepared = Prepared::new(&command.memory.content);
                        let lookup = FactLookup::new(command, &prepared);
                        let command = command.clone();
                        let tight = MemoryLimits {
                            memories: 14,
                            idempotency_keys: 4,
                            ..limits()
                        };
                        let job = WriteJob::new(move |writer| {
                            writer.remember(&command, &tight).map(drop)
                        });
                        job.with_fact(is_together.then_some(lookup))
                    })
                    .collect();
                if let Some(job) = forgotten {
                    let forget = move |writer: &MemoryWriter<'_>| {
                        let all = ForgetRequest::Subject(subject("ann"));
                        writer.forget_begin(job, &all, at(1))?;
                        writer.forget_step(job, 100).map(drop)
                    };
                    jobs.insert(4, WriteJob::new(forget));
                }
                kit.memories.write(jobs).unwrap()
            });
            assert_eq!(outcomes[0], outcomes[1]);
            let contents = [0, 1].map(|kit: usize| {
                let mut contents = kits[kit].memories.contents().unwrap();
                // These digests are salted.
                contents.remove("forgotten");
                contents
            });
            assert_eq!(contents[0], contents[1], "batch {batch}");
        }
        kits.iter().for_each(Kit::check_indexes);
    }
}
