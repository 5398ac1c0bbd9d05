//! Memories copied from a file to a database, and back.

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, LeaseId};
use memoird_memories::rules::documents::{DocumentName, DocumentPut, DocumentValue, NamespacePath};
use memoird_memories::rules::{MemoryKind, Source};
use memoird_memories::store::{FilesOptions, Hit, Lease, MemoryStore, RecallEvent, TenantMemories};
use memoird_memories::{ForgetRequest, RememberRequest};
use tempfile::TempDir;

use crate::kit::*;
use crate::place::Place;

fn file(dir: &TempDir) -> TenantMemories {
    let store = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
    store.tenant(&tenant("acme")).unwrap()
}

/// Stores rows of every kind.
fn fill(memories: &TenantMemories) {
    let generation = Generation::new(1, 1);
    memories
        .write_one(move |writer| {
            writer.set_embedding_model(Some(MODEL))?;
            for number in 1..=40 {
                let who = ["ann", "bob", "zoe"][usize::try_from(number % 3).unwrap()];
                let mut said = fact(who, MemoryKind::Project, &format!("boat number {number}\0"));
                said.tags = vec![format!("tag {}", number % 4)];
                said.external_key = (number % 5 == 0).then(|| format!("key {number}"));
                said.source = Some(Source {
                    session: session("telegram:1"),
                    generation: Some(generation),
                    seqs: vec![number],
                });
                let mut command = order(number, said);
                if number % 2 == 0 {
                    let mut values = [0.1; 8];
                    values[usize::try_from(number % 8).unwrap()] = 1.0;
                    command.vector = Some(vector(values));
                }
                command.key = (number == 4).then_some(IdempotencyKey {
                    key: [1; 16],
                    content: [2; 16],
                });
                writer.remember(&command, &limits())?;
            }
            let newer = RememberRequest {
                supersedes: Some(id(1)),
                ..fact("bob", MemoryKind::Project, "boat number one was sold")
            };
            writer.remember(&order(50, newer), &limits())?;
            let event = RecallEvent {
                at: at(1),
                session: Some(session("telegram:1")),
                query: memoird_core::idempotency::fingerprint([b"boat".as_slice()]),
                hits: vec![Hit {
                    id: id(4),
                    rank: 1,
                    score: 0.5,
                }],
            };
            writer.record_recall(&event, &limits())?;
            let lease = Lease {
                id: LeaseId::from_bytes([7; 16]),
                session: session("telegram:1"),
                generation,
                subject: subject("ann"),
                after_seq: 0,
                to_seq: 9,
                until: at(9),
            };
            writer.take_lease(lease.clone(), at(1))?;
            writer.keep_commit(&lease, "facts", &[], at(1))?;
            for number in 0..30 {
                let put = DocumentPut {
                    name: DocumentName {
                        namespace: NamespacePath::parse("namespace", &["a", "b"]).unwrap(),
                        key: format!("key {number}"),
                    },
                    value: DocumentValue::Bytes(vec![0, number]),
                    ttl: None,
                    expected_version: None,
                    idempotency: Some(IdempotencyKey {
                        key: [2; 16],
                        content: [3; 16],
                    }),
                };
                writer.put_document(&put, &limits(), at(1))?;
            }
            // An unfinished forget job.
            writer.forget_begin(id(99), &ForgetRequest::Subject(subject("zoe")), at(2))?;
            writer.forget_step(id(99), 3)?;
            Ok(())
        })
        .unwrap();
}

#[test]
fn transfer_to_database_and_back_is_exact() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let source = file(&from);
    fill(&source);
    let expected = source.contents().unwrap();
    assert!(expected.values().all(|kind| kind.rows > 0), "{expected:?}");
    assert!(kit.memories.is_unused().unwrap());
    source.copy_to(&kit.memories).unwrap();
    let kit = kit.reopened();
    assert!(!kit.memories.is_unused().unwrap());
    assert_eq!(kit.memories.contents().unwrap(), expected);
    let back = file(&to);
    kit.memories.copy_to(&back).unwrap();
    assert_eq!(back.contents().unwrap(), expected);
    // They are found, forgotten and recognized as before.
    let mut ask = ask(&["ann", "bob"], "boat 7");
    ask.limit = 50;
    let near = vector([0.1, 0.1, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1]);
    let found = [&source, &kit.memories, &back].map(|memories| {
        let lists = memories.read(|reader| reader.recall(&ask, Some(&near), at(3)));
        let lists = lists.unwrap();
        (by_words(&lists), by_vector(&lists), lists.said_after.len())
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    assert!(!found[0].0.is_empty() && !found[0].1.is_empty());
    for memories in [&kit.memories, &back] {
        let echoes = memories
            .read(|reader| reader.echoes(&session("telegram:1"), &subject("bob"), at(2)))
            .unwrap();
        assert_eq!(echoes.len(), 1);
        while !memories
            .write_one(|writer| writer.forget_step(id(99), 100))
            .unwrap()
            .is_done
        {}
    }
    kit.check_indexes();
    assert_eq!(kit.memories.contents().unwrap(), back.contents().unwrap());
}

/// Storage without memories may still contain other rows, so it is not copied to again.
#[test]
fn storage_of_forgotten_subject_is_not_unused() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    assert!(kit.memories.is_unused().unwrap());
    let request = ForgetRequest::Subject(subject("zoe"));
    let begun = kit
        .memories
        .write_one(move |writer| writer.forget_begin(id(99), &request, at(2)));
    begun.unwrap();
    assert!(!kit.memories.is_unused().unwrap());
}
