//! Stored memories and documents that were damaged on disk.

use memoird_core::ids::Generation;
use memoird_memories::rules::documents::{
    Document, DocumentDelete, DocumentGet, DocumentName, DocumentPut, DocumentQuery, DocumentRange,
    DocumentValue, NamespacePath,
};
use memoird_memories::rules::{Memory, MemoryKind, Outcome, Patch, Source};
use memoird_memories::{ForgetRequest, ListRequest, MemoryError, RememberRequest};

use crate::kit::*;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);

/// A fact with a value in every field.
fn full(text: &str) -> RememberRequest {
    RememberRequest {
        tags: vec!["dock".into()],
        source: Some(Source {
            session: session("telegram:1"),
            generation: Some(Generation::new(1, 1)),
            seqs: vec![3],
        }),
        expires_at: Some(at(90)),
        pinned: true,
        external_key: Some("boat".into()),
        metadata: Some(r#"{"a":1}"#.into()),
        ..fact("ann", MemoryKind::Project, text)
    }
}

fn two_memories() -> Kit {
    let kit = Kit::new();
    kit.remember(order(1, full("the boat is called Zuiderzee")));
    kit.say(2, "ann", "the boat has two sails");
    kit
}

fn listed(kit: &Kit) -> Vec<u64> {
    let all = ListRequest {
        count: 1,
        include_history: true,
        ..ListRequest::default()
    };
    let mut request = all;
    let mut found = Vec::new();
    loop {
        let page = kit.memories.read(|reader| reader.page_of(&request, at(1)));
        let page = page.unwrap();
        found.extend(page.memories.iter().map(|memory| number(memory.id)));
        request.after = page.next;
        if request.after.is_none() {
            return found;
        }
    }
}

fn damage_of(kit: &Kit) -> u64 {
    let looked = kit.memories.read(|reader| {
        reader.recall(&ask(&["ann"], "boat"), None, at(1))?;
        Ok(reader.take_damage().map_or(0, |damage| damage.rows))
    });
    looked.unwrap()
}

#[test]
fn memory_with_any_damaged_column_is_not_returned() {
    for column in [
        "content = 'the boat is called Zuiderzef'",
        "kind = 3",
        "polarity = 1",
        "importance = 0.25",
        "observed = observed + 1",
        "created = created + 1",
        "updated = updated + 1",
        "expires = expires + 1",
        "reinforced = reinforced + 4",
        "pin = NULL",
        "origin = 1",
        "session = 'telegram:3'",
        "generation = NULL",
        "tags = NULL",
        "external_key = 'coat'",
        "metadata = NULL",
        // These cannot be decoded.
        "kind = 77",
        "session = ''",
    ] {
        let kit = two_memories();
        kit.place.damage(&format!(
            "UPDATE memories SET {column} WHERE external_key = 'boat'"
        ));
        let refused = kit.memories.read(|reader| reader.get(id(1)));
        let expected = MemoryError::MemoryDamaged { id: id(1) };
        assert_eq!(refused.unwrap_err(), expected, "{column}");
        assert_eq!(kit.found("ann", "boat"), [2], "{column}");
        assert_eq!(listed(&kit), [2], "{column}");
        let manifest = kit
            .memories
            .read(|reader| reader.manifest(&subject("ann"), at(1), 9));
        let (memories, _) = manifest.unwrap();
        let ids: Vec<u64> = memories.iter().map(|memory| number(memory.id)).collect();
        assert_eq!(ids, [2], "{column}");
    }
    let kit = two_memories();
    assert_eq!(damage_of(&kit), 0);
    // Recalls are counted in place.
    kit.place.damage("UPDATE memories SET recalls = 7");
    assert_eq!((listed(&kit), damage_of(&kit)), (vec![1, 2], 0));
    kit.place.damage("UPDATE memories SET importance = 0.25");
    assert_eq!((listed(&kit), damage_of(&kit)), (vec![], 2));
}

#[test]
fn name_of_another_subject_is_damage() {
    let kit = two_memories();
    kit.say(3, "bob", "the boat of Bob");
    let swap = "UPDATE memories SET owner = (SELECT no FROM partitions WHERE subject = 'bob')
        WHERE external_key = 'boat'";
    kit.place.damage(swap);
    let refused = kit.memories.read(|reader| reader.get(id(1)));
    assert_eq!(
        refused.unwrap_err(),
        MemoryError::MemoryDamaged { id: id(1) }
    );
}

/// Changes that the store makes itself keep the checksum correct.
#[test]
fn changed_memories_match_their_checksums() {
    let kit = two_memories();
    kit.remember(order(3, full("the boat was sold")));
    let patch = Patch {
        pinned: Some(false),
        ..Patch::default()
    };
    kit.write(move |writer| writer.update(id(2), None, &patch, at(2), &limits()));
    let pin = memoird_memories::rules::Pin::Consolidation;
    assert_eq!(kit.write(move |writer| writer.pin(&[id(2)], pin, at(2))), 1);
    assert_eq!(listed(&kit), [1, 2, 3]);
    assert_eq!(kit.get(id(2)).unwrap().pin, Some(pin));
    assert_eq!(kit.write(move |writer| writer.unpin(&[id(2)], at(2))), 1);
    let newer = RememberRequest {
        supersedes: Some(id(2)),
        ..fact("ann", MemoryKind::Project, "the boat has three sails")
    };
    kit.remember(order(4, newer));
    assert_eq!(listed(&kit), [1, 2, 3, 4]);
    assert_eq!(damage_of(&kit), 0);
}

#[test]
fn damaged_memory_is_forgotten_or_imported_again() {
    let spoil = "UPDATE memories SET content = 'the boat is called Zuiderzef'
        WHERE external_key = 'boat'";
    let kit = two_memories();
    let whole = kit.get(id(1)).unwrap();
    kit.place.damage(spoil);
    // A fact with its key depends on it.
    let order_of_key = order(5, full("the boat was sold"));
    let refused = kit.refusal(move |writer| writer.remember(&order_of_key, &limits()));
    assert_eq!(refused, MemoryError::MemoryDamaged { id: id(1) });
    let import = |memory: Memory| {
        kit.write(move |writer| writer.import(&[memory], at(2), &limits()))
            .added
    };
    assert_eq!(import(whole.clone()), 1);
    assert_eq!(kit.get(id(1)), Some(whole.clone()));
    assert_eq!(import(whole), 0, "it is whole");
    kit.place.damage(spoil);
    kit.place.damage("UPDATE memories SET kind = 77");
    kit.forget(90, &ForgetRequest::One(id(1)));
    assert_eq!(kit.get(id(1)), None);
    kit.forget(91, &ForgetRequest::Subject(subject("ann")));
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), 0);
    assert_eq!(kit.peek("SELECT memories FROM state"), 0);
}

#[test]
fn fact_like_a_damaged_memory_is_stored_again() {
    let kit = Kit::new();
    kit.say(1, "ann", "likes tea");
    kit.place.damage("UPDATE memories SET importance = 0.25");
    let again = kit.remember(order(2, fact("ann", MemoryKind::Project, "likes tea")));
    assert_eq!(again.outcome, Outcome::Created);
    assert_eq!(listed(&kit), [2]);
}

#[test]
fn missing_checksums_are_computed_in_steps() {
    let kit = Kit::new();
    for number in 1..=5 {
        kit.say(number, "ann", &format!("boat number {number}"));
    }
    put(&kit, "a", None);
    kit.place.damage("UPDATE memories SET checksum = NULL");
    kit.place.damage("UPDATE documents SET checksum = NULL");
    assert_eq!(listed(&kit).len(), 5);
    let mut steps = Vec::new();
    loop {
        steps.push(kit.write(|writer| writer.checksums_step(2)));
        if steps.last() == Some(&0) {
            break;
        }
    }
    assert_eq!(steps, [2, 2, 1, 1, 0]);
    assert_eq!(listed(&kit).len(), 5);
    assert!(document(&kit, "a").is_ok());
    kit.place.damage("UPDATE memories SET importance = 0.25");
    kit.place.damage("UPDATE documents SET value = key");
    assert_eq!(listed(&kit), [0; 0]);
    assert!(document(&kit, "a").is_err());
}

fn name(key: &str) -> DocumentName {
    DocumentName {
        namespace: NamespacePath::parse("namespace", &["a", "b"]).unwrap(),
        key: key.to_owned(),
    }
}

fn put_expecting(key: &str, expected_version: Option<u64>) -> DocumentPut {
    DocumentPut {
        name: name(key),
        value: DocumentValue::Json("1".to_owned()),
        expected_version,
        ttl: Some(HOUR),
        idempotency: None,
    }
}

fn put(kit: &Kit, key: &str, expected_version: Option<u64>) -> Document {
    let put = put_expecting(key, expected_version);
    let put = kit.write(move |writer| writer.put_document(&put, &limits(), at(1)));
    put.document
}

fn document(kit: &Kit, key: &str) -> Result<Option<Document>, MemoryError> {
    kit.memories
        .read(|reader| reader.document(&name(key), at(1)))
}

fn listed_documents(kit: &Kit, with_values: bool) -> Vec<String> {
    let mut query = DocumentQuery {
        range: DocumentRange::default(),
        with_values,
        count: 1,
        ..DocumentQuery::default()
    };
    let mut found = Vec::new();
    loop {
        let page = kit.memories.read(|reader| reader.documents(&query, at(1)));
        let page = page.unwrap();
        found.extend(page.documents.into_iter().map(|document| document.name.key));
        query.after = page.next;
        if query.after.is_none() {
            return found;
        }
    }
}

#[test]
fn document_with_any_damaged_column_is_not_returned() {
    let kit = Kit::new();
    for (column, is_of_value) in [
        ("value = key", true),
        ("form = 0", true),
        ("version = 9", false),
        ("created = created + 1", false),
        ("updated = updated + 1", false),
        ("expires = expires + 1", false),
    ] {
        // The last one has the highest number.
        for key in ["a", "c", "b"] {
            put(&kit, key, None);
        }
        assert_eq!(listed_documents(&kit, true), ["a", "b", "c"]);
        let spoil =
            format!("UPDATE documents SET {column} WHERE no = (SELECT max(no) FROM documents)");
        kit.place.damage(&spoil);
        let damaged = MemoryError::DocumentDamaged { key: "b".into() };
        assert_eq!(document(&kit, "b").unwrap_err(), damaged, "{column}");
        assert_eq!(listed_documents(&kit, true), ["a", "c"], "{column}");
        if !is_of_value {
            assert_eq!(listed_documents(&kit, false), ["a", "c"], "{column}");
            let expecting = put_expecting("b", Some(1));
            let refused =
                kit.refusal(move |writer| writer.put_document(&expecting, &limits(), at(1)));
            assert_eq!(refused, damaged, "{column}");
        }
        let get = DocumentGet {
            name: name("b"),
            ttl: Some(HOUR),
        };
        let refused = kit.refusal(move |writer| writer.read_document(&get, at(1)));
        assert_eq!(refused, damaged, "{column}");
        // It can be replaced and deleted.
        put(&kit, "b", None);
        assert!(document(&kit, "b").unwrap().is_some());
        kit.place.damage(&spoil);
        let delete = DocumentDelete {
            name: name("b"),
            expected_version: None,
        };
        assert!(kit.write(move |writer| writer.delete_document(&delete, at(1))));
        assert_eq!(document(&kit, "b"), Ok(None));
    }
}

#[test]
fn document_with_restarted_lifetime_matches_its_checksum() {
    let kit = Kit::new();
    put(&kit, "a", None);
    let get = DocumentGet {
        name: name("a"),
        ttl: Some(3 * HOUR),
    };
    kit.write(move |writer| writer.read_document(&get, at(1)));
    assert_eq!(
        document(&kit, "a").unwrap().unwrap().expires_at,
        Some(at(4))
    );
    assert_eq!(put(&kit, "a", Some(1)).version, 2);
    assert!(document(&kit, "a").unwrap().is_some());
}

#[test]
fn verification_names_every_damaged_row() {
    let kit = two_memories();
    put(&kit, "a", None);
    put(&kit, "b", None);
    assert_eq!(kit.place.damages(), [""; 0]);
    kit.place
        .damage("UPDATE memories SET importance = 0.25 WHERE external_key = 'boat'");
    kit.place
        .damage("UPDATE documents SET value = key WHERE no = (SELECT max(no) FROM documents)");
    let found = kit.place.damages();
    let expected = [
        format!("memory {} ", id(1)),
        r#"document "b" of namespace ["a", "b"] "#.to_owned(),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(&expected), "{found}");
        assert!(found.ends_with("does not match its checksum"), "{found}");
    }
}
