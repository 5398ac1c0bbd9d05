//! Forgotten memories leave no trace in the bytes on disk.

use memoird_core::ids::{Generation, LeaseId};
use memoird_memories::MemoryFilter;
use memoird_memories::rules::{MemoryKind, Patch, Source};
use memoird_memories::store::{Hit, Lease, RecallEvent};
use memoird_memories::{ForgetRequest, RememberRequest};

use crate::kit::*;
use crate::place::*;

/// Words of the subject to be forgotten, each stored in a different place.
const TRACES: [&str; 9] = [
    "zanzibar",
    "xylophone",
    "quokka",
    "marzipan",
    "obelisk",
    "telegram:zoe",
    "zoe-subject",
    "label-of-zoe",
    "kaleidoscope",
];

fn everything_about_zoe(kit: &Kit, number: u64) {
    let zoe = |text: &str| {
        let mut fact = fact("zoe-subject", MemoryKind::Project, text);
        fact.tags = vec!["label-of-zoe".into()];
        let generation = Some(Generation::new(1, 1));
        fact.source = Some(Source {
            session: session("telegram:zoe"),
            generation,
            seqs: vec![3],
        });
        fact
    };
    kit.remember(order(number, zoe("went to zanzibar")));
    kit.remember(order(
        number + 1,
        RememberRequest {
            supersedes: Some(id(number)),
            ..zoe("plays the xylophone")
        },
    ));
    kit.remember(order(number + 2, zoe("saw a quokka")));
    let patch = Patch {
        content: Some("eats marzipan".into()),
        ..Patch::default()
    };
    kit.write(move |writer| writer.update(id(number + 2), None, &patch, at(0), &limits()));
    kit.remember(order(
        number + 3,
        RememberRequest {
            visibility: memoird_memories::rules::Visibility::Team,
            ..zoe("stands at the obelisk")
        },
    ));
    let event = RecallEvent {
        at: at(0),
        session: Some(session("telegram:zoe")),
        query: [7; 16],
        hits: vec![Hit {
            id: id(number + 1),
            rank: 1,
            score: 1.0,
        }],
    };
    kit.write(move |writer| writer.record_recall(&event, &limits()));
    kit.write(move |writer| {
        let failed = writer.embeddings_due(MODEL, at(0), 999)?;
        let due = failed.iter().find(|due| due.id == id(number + 1)).unwrap();
        writer.embed_failed(due.id, due.revision, "no kaleidoscope", at(0), true)
    });
    let lease = Lease {
        id: LeaseId::new(1, 1),
        session: session("telegram:zoe"),
        generation: Generation::new(1, 1),
        subject: subject("zoe-subject"),
        after_seq: 0,
        to_seq: 9,
        until: at(1),
    };
    kit.write(move |writer| writer.take_lease(lease, at(0)));
}

/// Facts of other subjects, so that pages fill up, split and merge.
fn crowd(kit: &Kit, from: u64, count: u64) {
    for number in from..from + count {
        let who = format!("subject-{}", number % 7);
        let text = format!(
            "note {number} about thing {} and {}",
            number % 13,
            number * 7_919
        );
        kit.say(number, &who, &text);
    }
}

fn assert_gone(kit: &Kit, traces: &[&str]) {
    for _ in 0..100 {
        if kit.memories.truncate_log().unwrap() {
            break;
        }
    }
    let bytes = bytes(kit.place.dir.path());
    let found: Vec<_> = traces
        .iter()
        .filter(|trace| contains(&bytes, trace))
        .collect();
    assert!(found.is_empty(), "{found:?} in {} bytes", bytes.len());
}

#[test]
fn forgotten_subject_leaves_no_byte() {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    crowd(&kit, 1, 40);
    everything_about_zoe(&kit, 1_000);
    crowd(&kit, 100, 40);
    let before = bytes(kit.place.dir.path());
    for trace in TRACES {
        assert!(
            contains(&before, trace),
            "{trace} must be there to be forgotten"
        );
    }
    let counts = kit.forget(5_000, &ForgetRequest::Subject(subject("zoe-subject")));
    assert_eq!(
        (counts.memories, counts.superseded, counts.cursors),
        (3, 1, 1)
    );
    assert_gone(&kit, &TRACES);
    kit.check_indexes();
}

#[test]
fn forget_filter_leaves_no_byte_of_itself() {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    everything_about_zoe(&kit, 1_000);
    kit.forget(
        5_000,
        &ForgetRequest::Filter(MemoryFilter {
            subject: Some(subject("zoe-subject")),
            kinds: vec![],
            tags: vec!["label-of-zoe".into()],
            after: None,
            before: None,
        }),
    );
    // The subject and its extraction cursors may remain.
    let texts: Vec<&str> = TRACES
        .into_iter()
        .filter(|trace| !trace.contains("zoe"))
        .collect();
    assert_gone(&kit, &texts);
    assert_gone(&kit, &["label-of-zoe"]);
}

/// Splits and merges pages in many orders, to reveal copies left behind by balancing the tree.
#[test]
fn no_copy_remains_after_other_writes_and_forgets() {
    let seed = 20_260_101_u64;
    println!("seed {seed}");
    let mut dice = seed;
    let mut roll = |sides: u64| {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let kit = Kit::new();
    let mut words = Vec::new();
    let mut number = 1;
    for round in 0..6 {
        let who = format!("doomed-{round}");
        for _ in 0..60 {
            let word = format!("rare{}x{}", round, roll(1_000_000_000));
            let filler = "lorem ipsum dolor ".repeat(usize::try_from(roll(40)).unwrap());
            let mut said = fact(
                &who,
                MemoryKind::Project,
                &format!("{word} {filler}{number}"),
            );
            said.tags = vec![format!("{word}-tag")];
            kit.remember(order(number, said));
            let other = format!("stays {number} {}", roll(1_000_000));
            kit.say(number + 1, &format!("other-{}", roll(5)), &other);
            words.push(word);
            number += 2;
        }
        kit.forget(1_000_000 + round, &ForgetRequest::Subject(subject(&who)));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_gone(&kit, &words);
    assert_gone(&kit, &["doomed-"]);
    kit.check_indexes();
}
