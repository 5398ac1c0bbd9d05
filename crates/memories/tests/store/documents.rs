//! Documents in a tenant's file: order, versions, expiry and limits, compared with a sorted map.

use std::collections::BTreeMap;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::idempotency::{IdempotencyKey, fingerprint};
use memoird_memories::MemoryError;
use memoird_memories::rules::MemoryLimits;
use memoird_memories::rules::documents::{
    Document, DocumentDelete, DocumentFilter, DocumentGet, DocumentName, DocumentOperation,
    DocumentOutcome, DocumentPut, DocumentQuery, DocumentRange, DocumentValue, NamespacePath,
    NamespaceQuery, StoredDocument,
};

use crate::kit::{Kit, at, contains, limits};
use crate::seeds::seeds;

const HOUR: Duration = Duration::from_secs(60 * 60);

fn path(text: &str) -> NamespacePath {
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    NamespacePath::parse("namespace", &parts).unwrap()
}

fn name(namespace: &str, key: &str) -> DocumentName {
    DocumentName {
        namespace: path(namespace),
        key: key.to_owned(),
    }
}

fn put(namespace: &str, key: &str, json: &str) -> DocumentPut {
    DocumentPut {
        name: name(namespace, key),
        value: DocumentValue::Json(json.to_owned()),
        expected_version: None,
        ttl: None,
        idempotency: None,
    }
}

/// A put with an idempotency key.
fn put_keyed(key: &str, json: &str, name: u8) -> DocumentPut {
    DocumentPut {
        idempotency: Some(IdempotencyKey {
            key: [name; 16],
            content: fingerprint([json.as_bytes()]),
        }),
        ..put("a", key, json)
    }
}

fn json(document: &Document) -> &str {
    match &document.value {
        Some(DocumentValue::Json(text)) => text,
        other => panic!("{other:?}"),
    }
}

impl Kit {
    fn put_at(&self, hours: i64, put: DocumentPut) -> Document {
        self.put_outcome(hours, put).document
    }

    fn put_outcome(&self, hours: i64, put: DocumentPut) -> StoredDocument {
        self.write(move |writer| writer.put_document(&put, &limits(), at(hours)))
    }

    fn put(&self, namespace: &str, key: &str, json: &str) -> Document {
        self.put_at(0, put(namespace, key, json))
    }

    fn document_at(&self, hours: i64, namespace: &str, key: &str) -> Option<Document> {
        let name = name(namespace, key);
        let read = self
            .memories
            .read(|reader| reader.document(&name, at(hours)));
        read.unwrap()
    }

    fn delete(&self, namespace: &str, key: &str) -> bool {
        let delete = DocumentDelete {
            name: name(namespace, key),
            expected_version: None,
        };
        self.write(move |writer| writer.delete_document(&delete, at(0)))
    }

    /// All pages of a query, and their number.
    fn pages(&self, hours: i64, mut query: DocumentQuery) -> (Vec<Document>, usize) {
        let (mut all, mut pages) = (Vec::new(), 0);
        loop {
            let page = self
                .memories
                .read(|reader| reader.documents(&query, at(hours)))
                .unwrap();
            assert!(page.documents.len() <= query.count);
            all.extend(page.documents);
            pages += 1;
            match page.next {
                Some(next) => query.after = Some(next),
                None => return (all, pages),
            }
        }
    }

    fn namespaces(&self, query: &NamespaceQuery) -> Vec<String> {
        let (mut query, mut all) = (query.clone(), Vec::new());
        loop {
            let page = self
                .memories
                .read(|reader| reader.namespaces(&query, at(0)))
                .unwrap();
            all.extend(page.namespaces.iter().map(|path| {
                let parts: Vec<&str> = path.parts().collect();
                parts.join("/")
            }));
            match page.next {
                Some(next) => query.from = next,
                None => return all,
            }
        }
    }

    /// Checks that the stored counts match the rows.
    fn check_counts(&self) {
        for stray in [
            "SELECT count(*) - (SELECT documents FROM document_state) FROM documents",
            "SELECT coalesce(sum(length(value) + length(key) + length(path)), 0)
                 - (SELECT bytes FROM document_state)
             FROM documents JOIN namespaces ON namespaces.no = namespace",
            "SELECT count(*) FROM namespaces WHERE documents <>
                 (SELECT count(*) FROM documents WHERE namespace = namespaces.no)
                 OR documents = 0",
            "SELECT count(*) FROM documents WHERE namespace NOT IN (SELECT no FROM namespaces)",
        ] {
            assert_eq!(self.peek(stray), 0, "{stray}");
        }
    }
}

fn query(namespace: &str, count: usize) -> DocumentQuery {
    DocumentQuery {
        range: DocumentRange {
            namespace: path(namespace),
            ..DocumentRange::default()
        },
        with_values: true,
        count,
        ..DocumentQuery::default()
    }
}

fn keys(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|found| &*found.name.key).collect()
}

#[test]
fn document_round_trips_and_version_increases() {
    let kit = Kit::new();
    let first = kit.put("a/b", "k", "{\"x\": 1.50}");
    assert_eq!((first.version, first.size, first.value), (1, 11, None));
    let second = kit.put_at(1, put("a/b", "k", "2"));
    assert_eq!((second.version, second.created_at), (2, at(0)));
    let raw = DocumentPut {
        value: DocumentValue::Bytes(vec![0, 159, 146, 150]),
        ..put("a/b", "k", "")
    };
    kit.put_at(2, raw.clone());
    let kit = kit.reopened();
    let read = kit.document_at(2, "a/b", "k").unwrap();
    assert_eq!(read.value, Some(raw.value));
    assert_eq!((read.version, read.updated_at), (3, at(2)));
    assert_eq!(kit.document_at(2, "a", "k"), None);
    assert_eq!(kit.document_at(2, "a/b", "K"), None);
    kit.check_counts();
    assert!(kit.delete("a/b", "k"));
    assert!(!kit.delete("a/b", "k"));
    assert_eq!(kit.put("a/b", "k", "3").version, 1);
    kit.check_counts();
}

#[test]
fn unexpected_version_is_rejected() {
    let kit = Kit::new();
    let expecting = |version, json| DocumentPut {
        expected_version: Some(version),
        ..put("a", "k", json)
    };
    let stale = |order: DocumentPut, there| {
        let refused = kit.refusal(move |writer| writer.put_document(&order, &limits(), at(0)));
        let MemoryError::StaleVersion { version, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(version, there);
    };
    stale(expecting(1, "0"), 0);
    assert_eq!(kit.put_at(0, expecting(0, "1")).version, 1);
    stale(expecting(0, "2"), 1);
    stale(expecting(2, "2"), 1);
    assert_eq!(kit.put_at(0, expecting(1, "2")).version, 2);
    let delete = |version| DocumentDelete {
        name: name("a", "k"),
        expected_version: Some(version),
    };
    let old = delete(1);
    let refused = kit.refusal(move |writer| writer.delete_document(&old, at(0)));
    assert!(matches!(
        refused,
        MemoryError::StaleVersion { version: 2, .. }
    ));
    let right = delete(2);
    assert!(kit.write(move |writer| writer.delete_document(&right, at(0))));
    let none = delete(0);
    assert!(!kit.write(move |writer| writer.delete_document(&none, at(0))));
    kit.check_counts();
}

#[test]
fn expired_document_is_absent_and_deleted_later() {
    let kit = Kit::new();
    let short = |key| DocumentPut {
        ttl: Some(HOUR),
        ..put("a", key, "1")
    };
    kit.put_at(0, short("one"));
    kit.put_at(0, short("two"));
    kit.put("b", "stays", "1");
    let expires = kit.document_at(0, "a", "one").unwrap().expires_at;
    assert_eq!(expires, Some(at(1)));
    assert_eq!(kit.document_at(1, "a", "one"), None);
    assert_eq!(keys(&kit.pages(1, query("", 10)).0), ["stays"]);
    let namespaces = kit.memories.read(|reader| {
        reader.namespaces(
            &NamespaceQuery {
                count: 10,
                ..Default::default()
            },
            at(1),
        )
    });
    assert_eq!(namespaces.unwrap().namespaces, [path("b")]);
    let delete = DocumentDelete {
        name: name("a", "one"),
        expected_version: None,
    };
    assert!(!kit.write(move |writer| writer.delete_document(&delete, at(1))));
    // Put again, it is a new document.
    let again = kit.put_at(2, put("a", "one", "2"));
    assert_eq!(
        (again.version, again.created_at, again.expires_at),
        (1, at(2), None)
    );
    kit.check_counts();
    assert_eq!(kit.write(|writer| writer.expire_documents(at(2), 10)), 1);
    assert_eq!(kit.write(|writer| writer.expire_documents(at(2), 10)), 0);
    assert_eq!(kit.peek("SELECT count(*) FROM documents"), 2);
    kit.check_counts();
}

#[test]
fn read_with_ttl_restarts_lifetime() {
    let kit = Kit::new();
    kit.put_at(
        0,
        DocumentPut {
            ttl: Some(HOUR),
            ..put("a", "short", "1")
        },
    );
    kit.put("a", "long", "1");
    let get = |key| DocumentGet {
        name: name("a", key),
        ttl: Some(3 * HOUR),
    };
    for (key, expires) in [("short", Some(at(3))), ("long", None)] {
        let get = get(key);
        let read = kit
            .write(move |writer| writer.read_document(&get, at(0)))
            .unwrap();
        assert_eq!((read.expires_at, read.version), (expires, 1));
        assert_eq!(kit.document_at(2, "a", key), Some(read));
    }
}

#[test]
fn pages_are_ordered_in_both_directions() {
    let kit = Kit::new();
    for (namespace, key) in [
        ("a", "1"),
        ("a", "2"),
        ("a/b", "1"),
        ("a/b", "3"),
        ("a/c", "2"),
        ("ab", "1"),
        ("b", "1"),
    ] {
        kit.put(namespace, key, "0");
    }
    for count in 1..6 {
        let (all, pages) = kit.pages(0, query("a", count));
        assert_eq!(keys(&all), ["1", "2", "1", "3", "2"], "{count}");
        assert_eq!(pages, 5_usize.div_ceil(count));
        let backwards = DocumentQuery {
            is_descending: true,
            ..query("a", count)
        };
        let mut reversed = kit.pages(0, backwards).0;
        reversed.reverse();
        assert_eq!(reversed, all, "{count}");
    }
    let mut exact = query("a", 2);
    exact.range.is_exact = true;
    assert_eq!(keys(&kit.pages(0, exact.clone()).0), ["1", "2"]);
    exact.range.key_from = "2".into();
    assert_eq!(keys(&kit.pages(0, exact).0), ["2"]);
    let mut before = query("a", 2);
    before.range.key_before = "2".into();
    before.with_values = false;
    let found = kit.pages(0, before).0;
    assert_eq!(keys(&found), ["1", "1"]);
    assert!(
        found
            .iter()
            .all(|found| found.value.is_none() && found.size == 1)
    );
}

#[test]
fn page_of_large_documents_ends_early() {
    let kit = Kit::new();
    let large = format!("\"{}\"", "x".repeat(900 << 10));
    for key in ["1", "2", "3", "4"] {
        kit.put("a", key, &large);
    }
    let (all, pages) = kit.pages(0, query("a", 100));
    assert_eq!((all.len(), pages), (4, 2));
    let names = DocumentQuery {
        with_values: false,
        ..query("a", 100)
    };
    assert_eq!(kit.pages(0, names).1, 1);
}

#[test]
fn filtered_list_omits_other_documents() {
    let kit = Kit::new();
    for number in 0..10 {
        kit.put("a", &number.to_string(), &format!("{{\"n\": {number}}}"));
    }
    kit.put_at(
        0,
        DocumentPut {
            value: DocumentValue::Bytes(b"{\"n\": 7}".to_vec()),
            ..put("a", "bytes", "")
        },
    );
    let filtered = DocumentQuery {
        filter: Some(DocumentFilter::parse("{\"n\": {\"$gte\": 7}}").unwrap()),
        ..query("a", 2)
    };
    assert_eq!(keys(&kit.pages(0, filtered.clone()).0), ["7", "8", "9"]);
    let names = DocumentQuery {
        with_values: false,
        ..filtered
    };
    assert!(
        kit.pages(0, names)
            .0
            .iter()
            .all(|found| found.value.is_none())
    );
}

#[test]
fn namespaces_are_listed_once_up_to_depth() {
    let kit = Kit::new();
    for namespace in ["a", "a/b/x", "a/c/x", "a/c/y", "b/b/x", "c"] {
        kit.put(namespace, "1", "0");
        kit.put(namespace, "2", "0");
    }
    let parts = |parts: &[&str]| parts.iter().map(|part| (*part).to_owned()).collect();
    for count in [1, 2, 100] {
        let all = NamespaceQuery {
            count,
            ..NamespaceQuery::default()
        };
        let every = ["a", "a/b/x", "a/c/x", "a/c/y", "b/b/x", "c"];
        assert_eq!(kit.namespaces(&all), every, "{count}");
        let shallow = NamespaceQuery {
            depth: 2,
            ..all.clone()
        };
        assert_eq!(
            kit.namespaces(&shallow),
            ["a", "a/b", "a/c", "b/b", "c"],
            "{count}"
        );
        let first = NamespaceQuery {
            depth: 1,
            ..all.clone()
        };
        assert_eq!(kit.namespaces(&first), ["a", "b", "c"], "{count}");
        let below = NamespaceQuery {
            prefix: parts(&["a"]),
            ..all.clone()
        };
        assert_eq!(kit.namespaces(&below), &every[..4], "{count}");
        let ending = NamespaceQuery {
            suffix: parts(&["x"]),
            ..all.clone()
        };
        assert_eq!(
            kit.namespaces(&ending),
            ["a/b/x", "a/c/x", "b/b/x"],
            "{count}"
        );
        let starred = NamespaceQuery {
            prefix: parts(&["*", "b"]),
            suffix: parts(&["*"]),
            depth: 2,
            ..all
        };
        assert_eq!(kit.namespaces(&starred), ["a/b", "b/b"], "{count}");
    }
}

#[test]
fn repeated_put_with_key_stores_nothing() {
    let kit = Kit::new();
    kit.put("a", "k", "0");
    let first = DocumentPut {
        ttl: Some(HOUR * 40),
        expected_version: Some(1),
        ..put_keyed("k", "1", 7)
    };
    let stored = kit.put_outcome(1, first.clone());
    assert!(!stored.duplicate && stored.document.version == 2);
    kit.put_at(2, put("a", "k", "2"));
    for hours in [3, 24] {
        let again = kit.put_outcome(hours, first.clone());
        assert!(again.duplicate);
        assert_eq!(again.document, stored.document);
        let newest = kit.document_at(hours, "a", "k").unwrap();
        assert_eq!((newest.version, json(&newest)), (3, "2"));
    }
    let reused = put_keyed("k", "other", 7);
    let refused = kit.refusal(move |writer| writer.put_document(&reused, &limits(), at(3)));
    let expected = MemoryError::Core(CoreError::IdempotencyKeyReused);
    assert_eq!(refused.to_string(), expected.to_string());
    // A key belongs to its document, and the deletion of the document does not remove it.
    assert!(!kit.put_outcome(3, put_keyed("other", "1", 7)).duplicate);
    let delete = DocumentDelete {
        name: name("a", "k"),
        expected_version: None,
    };
    assert!(kit.write(move |writer| writer.delete_document(&delete, at(4))));
    let again = [
        DocumentOperation::Put(first.clone()),
        DocumentOperation::Put(put_keyed("batch", "1", 8)),
        DocumentOperation::Put(put_keyed("batch", "1", 8)),
    ];
    let outcomes = kit.write(move |writer| writer.document_batch(&again, &limits(), at(5)));
    let duplicates = outcomes.iter().map(|outcome| match outcome {
        DocumentOutcome::Stored(stored) => stored.duplicate,
        other => panic!("{other:?}"),
    });
    assert!(duplicates.eq([true, false, true]));
    assert_eq!(kit.document_at(5, "a", "k"), None);
    let later = DocumentPut {
        expected_version: None,
        ..first
    };
    assert!(!kit.put_outcome(26, later).duplicate, "it has expired");
    kit.check_counts();
    kit.check_indexes();
}

#[test]
fn erased_documents_lose_their_keys() {
    let kit = Kit::new();
    for key in ["1", "2"] {
        kit.put_at(0, put_keyed(key, "1", 7));
    }
    let only = |key: &str| DocumentRange {
        namespace: path("a"),
        key_prefix: key.to_owned(),
        ..DocumentRange::default()
    };
    for (key, with_keys) in [("1", true), ("2", false)] {
        let range = only(key);
        let removed = kit.write(move |writer| writer.delete_documents_step(&range, 20, with_keys));
        assert_eq!(removed, 1);
        let again = kit.put_outcome(1, put_keyed(key, "1", 7));
        assert_eq!(again.duplicate, !with_keys, "{key}");
    }
}

#[test]
fn namespace_is_deleted_in_steps_without_traces() {
    let kit = Kit::new();
    for number in 0..25 {
        kit.put("thread/1", &number.to_string(), "\"a-secret-word\"");
        kit.put("thread/1/sub", &number.to_string(), "\"a-secret-word\"");
        kit.put("thread/10", &number.to_string(), "\"stays\"");
    }
    let range = DocumentRange {
        namespace: path("thread/1"),
        ..DocumentRange::default()
    };
    let mut steps = Vec::new();
    loop {
        let range = range.clone();
        match kit.write(move |writer| writer.delete_documents_step(&range, 20, false)) {
            0 => break,
            removed => steps.push(removed),
        }
    }
    assert_eq!(steps, [20, 20, 10]);
    assert_eq!(kit.pages(0, query("", 100)).0.len(), 25);
    kit.check_counts();
    assert!(kit.memories.truncate_log().unwrap());
    if let Some(left) = kit.bytes() {
        assert!(!contains(&left, "a-secret-word") && contains(&left, "stays"));
    }
}

#[test]
fn document_limits_apply() {
    let kit = Kit::new();
    let small = MemoryLimits {
        documents: 3,
        documents_bytes: 100,
        ..limits()
    };
    let put_within = |hours, order: DocumentPut| {
        let small = small.clone();
        kit.memories
            .write_one(move |writer| writer.put_document(&order, &small, at(hours)))
    };
    let is_full = |answer: Result<StoredDocument, MemoryError>| {
        assert!(
            matches!(answer, Err(MemoryError::DocumentsFull { .. })),
            "{answer:?}"
        );
    };
    let short = DocumentPut {
        ttl: Some(HOUR),
        ..put("a", "1", "1")
    };
    put_within(0, short).unwrap();
    put_within(0, put("a", "2", "1")).unwrap();
    put_within(0, put("a", "3", "1")).unwrap();
    is_full(put_within(0, put("a", "4", "1")));
    put_within(0, put("a", "3", "22")).unwrap();
    // Expired documents make room.
    put_within(1, put("a", "4", "1")).unwrap();
    let long = "1".repeat(100);
    is_full(put_within(1, put("a", "4", &long)));
    put_within(1, put("a", "4", &long[..80])).unwrap();
    put_within(1, put("a", "4", &long[..79])).unwrap();
    kit.check_counts();
}

#[test]
fn batch_is_atomic() {
    let kit = Kit::new();
    kit.put("a", "old", "1");
    let get = |key| {
        DocumentOperation::Get(DocumentGet {
            name: name("a", key),
            ttl: None,
        })
    };
    let delete = |key| {
        DocumentOperation::Delete(DocumentDelete {
            name: name("a", key),
            expected_version: None,
        })
    };
    let new = DocumentOperation::Put(put("a", "new", "2"));
    let all = [
        new.clone(),
        get("new"),
        delete("old"),
        get("old"),
        delete("old"),
    ];
    let done = kit.write({
        let all = all.clone();
        move |writer| writer.document_batch(&all, &limits(), at(0))
    });
    let [
        DocumentOutcome::Stored(made),
        DocumentOutcome::Document(read),
        rest @ ..,
    ] = &done[..]
    else {
        panic!("{done:?}");
    };
    assert_eq!((made.document.version, json(read)), (1, "2"));
    let expected = [
        DocumentOutcome::Deleted(true),
        DocumentOutcome::Absent,
        DocumentOutcome::Deleted(false),
    ];
    assert_eq!(rest, expected);
    let stale = DocumentOperation::Put(DocumentPut {
        expected_version: Some(5),
        ..put("a", "new", "3")
    });
    let refused = kit.refusal(move |writer| {
        let all = [DocumentOperation::Put(put("a", "other", "1")), stale];
        writer.document_batch(&all, &limits(), at(0))
    });
    let MemoryError::InList { index, error, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!(index, 1);
    assert!(matches!(
        *error,
        MemoryError::StaleVersion { version: 1, .. }
    ));
    assert_eq!(kit.document_at(0, "a", "other"), None);
    let reads = [get("new"), get("other")];
    let reads = kit
        .memories
        .read(|reader| reader.document_reads(&reads, at(0)))
        .unwrap();
    assert!(matches!(
        &reads[..],
        [DocumentOutcome::Document(_), DocumentOutcome::Absent]
    ));
    kit.check_counts();
}

#[test]
fn random_documents_match_sorted_map() {
    const NAMESPACES: [&str; 6] = ["a", "a/b", "a/b/c", "a/c", "b", "ä"];
    const KEYS: [&str; 6] = ["1", "10", "2", "x", "xy", "ü"];
    for seed in seeds(8) {
        println!("seed {seed}");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |count: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % count as u64).unwrap()
        };
        let kit = Kit::new();
        let mut model: BTreeMap<(NamespacePath, String), u64> = BTreeMap::new();
        for _ in 0..60 {
            let (namespace, key) = (NAMESPACES[below(6)], KEYS[below(6)]);
            let entry = (path(namespace), key.to_owned());
            if below(4) == 0 {
                assert_eq!(kit.delete(namespace, key), model.remove(&entry).is_some());
            } else {
                let version = model.entry(entry).or_default();
                *version += 1;
                assert_eq!(kit.put(namespace, key, "1").version, *version);
            }
        }
        kit.check_counts();
        for _ in 0..30 {
            let range = DocumentRange {
                namespace: path(["", NAMESPACES[below(6)]][below(2)]),
                is_exact: below(3) == 0,
                key_prefix: ["", "1", "x"][below(3)].to_owned(),
                key_from: ["", KEYS[below(6)]][below(2)].to_owned(),
                key_before: ["", KEYS[below(6)]][below(2)].to_owned(),
            };
            let query = DocumentQuery {
                range: range.clone(),
                is_descending: below(2) == 0,
                with_values: below(2) == 0,
                count: 1 + below(4),
                ..DocumentQuery::default()
            };
            let is_meant = |((namespace, key), _): &(&(NamespacePath, String), &u64)| {
                let is_in = if range.is_exact {
                    *namespace == range.namespace
                } else {
                    namespace.as_bytes().starts_with(range.namespace.as_bytes())
                };
                is_in
                    && key.starts_with(&range.key_prefix)
                    && *key >= range.key_from
                    && (range.key_before.is_empty() || *key < range.key_before)
            };
            let mut expected: Vec<_> = model
                .iter()
                .filter(is_meant)
                .map(|((namespace, key), version)| (namespace.clone(), key.clone(), *version))
                .collect();
            if query.is_descending {
                expected.reverse();
            }
            let found = kit.pages(0, query.clone()).0.into_iter();
            let found: Vec<_> = found
                .map(|found| (found.name.namespace, found.name.key, found.version))
                .collect();
            assert_eq!(found, expected, "seed {seed}: {query:?}");
        }
    }
}
