//! External keys, metadata, client vectors and subject prefixes.

use memoird_memories::rules::documents::DocumentFilter;
use memoird_memories::rules::{Memory, MemoryKind, NearDuplicate, Outcome, Patch};
use memoird_memories::store::CLIENTS;
use memoird_memories::{ForgetRequest, ListRequest, MemoryError, RecallRequest, RememberRequest};

use crate::kit::*;

fn keyed(key: &str, text: &str) -> RememberRequest {
    RememberRequest {
        external_key: Some(key.to_owned()),
        ..fact("ann", MemoryKind::Project, text)
    }
}

fn noted(who: &str, text: &str, json: &str) -> RememberRequest {
    RememberRequest {
        metadata: Some(json.to_owned()),
        ..fact(who, MemoryKind::Project, text)
    }
}

fn filter(json: &str) -> Option<DocumentFilter> {
    Some(DocumentFilter::parse(json).unwrap())
}

impl Kit {
    fn add(&self, number: u64, fact: RememberRequest) -> (Outcome, Memory) {
        let done = self.remember(order(number, fact));
        (done.outcome, done.memory)
    }

    fn listed(&self, request: &ListRequest) -> Vec<Memory> {
        let (mut request, mut all) = (request.clone(), Vec::new());
        loop {
            let page = self.memories.read(|reader| reader.page_of(&request, at(0)));
            let page = page.unwrap();
            all.extend(page.memories);
            match page.next {
                Some(next) => request.after = Some(next),
                None => return all,
            }
        }
    }

    fn of_key(&self, who: &str, key: &str) -> Option<Memory> {
        let who = subject(who);
        self.memories
            .read(|reader| reader.named(&who, key))
            .unwrap()
    }
}

fn contents(memories: &[Memory]) -> Vec<&str> {
    memories.iter().map(|memory| &*memory.content).collect()
}

#[test]
fn keyed_memory_is_replaced_under_its_id_with_history() {
    let kit = Kit::new();
    let (outcome, first) = kit.add(1, keyed("address", "Ann lives in Oslo"));
    assert_eq!((outcome, first.id), (Outcome::Created, id(1)));
    let moved = RememberRequest {
        kind: MemoryKind::Reference,
        metadata: Some("{\"by\": \"crm\"}".into()),
        ..keyed("address", "Ann lives in Rome")
    };
    let (outcome, second) = kit.add(2, moved.clone());
    assert_eq!((outcome, second.id), (Outcome::Replaced, id(1)));
    assert_eq!(second.created_at, first.created_at);
    assert_eq!(kit.of_key("ann", "address"), Some(second.clone()));
    assert_eq!(kit.of_key("bob", "address"), None);
    let old = kit.get(id(2)).unwrap();
    assert_eq!(
        (&*old.content, old.superseded_by),
        ("Ann lives in Oslo", Some(id(1)))
    );
    assert!(kit.found("ann", "Oslo").is_empty());
    assert_eq!(kit.found("ann", "Rome"), [1]);
    // The same content again creates no new version.
    assert_eq!(kit.add(3, moved).0, Outcome::Replaced);
    assert_eq!(kit.get(id(3)), None);
    kit.check_indexes();
    let kit = kit.reopened();
    assert_eq!(kit.of_key("ann", "address"), Some(second));
    // Its history is deleted with it.
    let gone = kit.forget(9, &ForgetRequest::One(id(1)));
    assert_eq!((gone.memories, gone.superseded), (1, 1));
    assert_eq!(
        kit.add(4, keyed("address", "Ann lives in Rome")).0,
        Outcome::Created
    );
    kit.check_indexes();
}

#[test]
fn keyed_memory_is_never_merged() {
    let kit = Kit::new();
    kit.say(1, "ann", "Ann likes tea");
    assert_eq!(kit.add(2, keyed("a", "Ann likes tea")).0, Outcome::Created);
    assert_eq!(kit.add(3, keyed("b", "Ann likes tea")).0, Outcome::Created);
    let plain = fact("ann", MemoryKind::Project, "Ann likes tea");
    let (outcome, memory) = kit.add(4, plain);
    assert_eq!((outcome, memory.id), (Outcome::Reinforced, id(1)));
    // The same key of another subject is independent.
    let bobs = RememberRequest {
        subject: Some(subject("bob")),
        ..keyed("a", "Bob likes tea")
    };
    assert_eq!(kit.add(5, bobs).0, Outcome::Created);
    kit.check_indexes();
}

#[test]
fn equal_facts_can_be_stored_apart() {
    let kit = Kit::new();
    let apart = RememberRequest {
        near_duplicate: NearDuplicate::Apart,
        ..fact("ann", MemoryKind::Project, "The launch is in May")
    };
    for number in 1..4 {
        assert_eq!(kit.add(number, apart.clone()).0, Outcome::Created);
    }
    assert_eq!(kit.found("ann", "launch").len(), 3);
    kit.check_indexes();
}

#[test]
fn metadata_filters_lists_and_recalls() {
    let kit = Kit::new();
    kit.add(
        1,
        noted("ann", "tea one", "{\"source\": \"crm\", \"year\": 2019}"),
    );
    kit.add(
        2,
        noted("ann", "tea two", "{\"source\": \"crm\", \"year\": 2024}"),
    );
    kit.add(
        3,
        noted("ann", "tea three", "{\"source\": \"mail\", \"year\": 2024}"),
    );
    kit.say(4, "ann", "tea four");
    for (json, texts) in [
        ("{\"source\": \"crm\"}", vec!["tea one", "tea two"]),
        ("{\"year\": {\"$gte\": 2020}}", vec!["tea two", "tea three"]),
        ("{\"nothing\": 1}", vec![]),
        ("{}", vec!["tea one", "tea two", "tea three"]),
    ] {
        for count in [1, 2, 10] {
            let request = ListRequest {
                metadata: filter(json),
                count,
                ..ListRequest::default()
            };
            assert_eq!(contents(&kit.listed(&request)), texts, "{json}");
        }
        let ask = RecallRequest {
            metadata: filter(json),
            ..ask(&["ann"], "tea")
        };
        let lists = kit.recall(&ask);
        let mut found = by_words(&lists);
        found.sort_unstable();
        let numbers: Vec<u64> = (1..5)
            .filter(|number| texts.contains(&&*kit.get(id(*number)).unwrap().content))
            .collect();
        assert_eq!(found, numbers, "{json}");
    }
    // A fact stated again brings its metadata along.
    let (outcome, again) = kit.add(5, noted("ann", "Tea four!", "{\"source\": \"chat\"}"));
    assert_eq!((outcome, again.id), (Outcome::Merged, id(4)));
    assert_eq!(again.metadata.as_deref(), Some("{\"source\": \"chat\"}"));
    let (_, again) = kit.add(6, fact("ann", MemoryKind::Project, "Tea four!"));
    assert_eq!(again.metadata.as_deref(), Some("{\"source\": \"chat\"}"));
    let patch = Patch {
        metadata: Some(Some("{\"source\": \"web\"}".into())),
        ..Patch::default()
    };
    let changed = kit.write(move |writer| writer.update(id(4), None, &patch, at(0), &limits()));
    assert_eq!(changed.metadata.as_deref(), Some("{\"source\": \"web\"}"));
    let bad = Patch {
        metadata: Some(Some("[]".into())),
        ..Patch::default()
    };
    let refused = kit.refusal(move |writer| writer.update(id(4), None, &bad, at(0), &limits()));
    assert!(matches!(
        refused,
        MemoryError::Invalid {
            field: "metadata_json",
            ..
        }
    ));
}

#[test]
fn subject_prefix_filters_lists_and_recalls() {
    let kit = Kit::new();
    let whose = ["org:a", "org:a:ann", "org:b", "other", "org:ä"];
    for (number, who) in (1..).zip(whose) {
        kit.say(number, who, "likes tea");
        kit.say(10 + number, who, &format!("is {who}"));
    }
    kit.forget(1, &ForgetRequest::Subject(subject("org:b")));
    let subjects = |prefix: &str, after: Option<&str>, max| -> Vec<(String, u64)> {
        let after = after.map(subject);
        let found = kit
            .memories
            .read(|reader| reader.subjects(prefix, after.as_ref(), max, at(0)))
            .unwrap();
        let found = found.into_iter();
        found.map(|(who, count)| (who.to_string(), count)).collect()
    };
    let two = |who: &str| (who.to_owned(), 2);
    let all = ["org:a", "org:a:ann", "org:ä", "other"].map(two);
    assert_eq!(subjects("", None, 10), all);
    assert_eq!(subjects("org:", None, 2), all[..2]);
    assert_eq!(subjects("org:", Some("org:a:ann"), 2), all[2..3]);
    assert_eq!(subjects("nobody", None, 2), []);
    let listed = ListRequest {
        subject_prefix: "org:a".into(),
        count: 3,
        ..ListRequest::default()
    };
    assert_eq!(
        contents(&kit.listed(&listed)),
        ["likes tea", "likes tea", "is org:a", "is org:a:ann"]
    );
    let asked = RecallRequest {
        subject_prefix: "org:".into(),
        ..ask(&[], "tea")
    };
    assert_eq!(by_words(&kit.recall(&asked)).len(), 3);
    for number in 0..70 {
        kit.say(100 + number, &format!("many:{number}"), "likes tea");
    }
    let many = RecallRequest {
        subject_prefix: "many:".into(),
        ..ask(&[], "tea")
    };
    let refused = kit
        .memories
        .read(|reader| reader.recall(&many, None, at(1)));
    assert!(matches!(
        refused,
        Err(MemoryError::SubjectsTooMany { limit: 64 })
    ));
}

#[test]
fn client_vectors_are_used_without_embedder() {
    let kit = Kit::new();
    kit.write(|writer| writer.use_clients_vectors());
    let mut given = vector([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    given.model = CLIENTS.into();
    let mut near = order(1, fact("ann", MemoryKind::Project, "a"));
    near.vector = Some(given.clone());
    kit.remember(near);
    kit.say(2, "ann", "without a vector");
    let lists = kit.recall_at(at(1), &ask(&["ann"], ""), Some(&given));
    assert_eq!(by_vector(&lists), [1]);
    let mut other = order(3, fact("ann", MemoryKind::Project, "b"));
    other.vector = Some(given.clone());
    other.vector.as_mut().unwrap().values.pop();
    let refused = kit.refusal(move |writer| writer.remember(&other, &limits()));
    assert!(matches!(refused, MemoryError::DimensionMismatch { .. }));
    // The rest is not embedded, and a start without an embedder changes nothing.
    assert_eq!(kit.peek("SELECT count(*) FROM embeddings_due"), 0);
    assert!(!kit.write(|writer| writer.set_embedding_model(None)));
    // A changed memory has no vector of its old content.
    kit.add(4, keyed("k", "old"));
    let mut named = order(5, keyed("k", "new"));
    named.vector = Some(given.clone());
    kit.remember(named);
    let near = || by_vector(&kit.recall_at(at(1), &ask(&["ann"], ""), Some(&given)));
    assert_eq!(near().len(), 2);
    kit.add(6, keyed("k", "newer"));
    assert_eq!(near().len(), 1);
    kit.check_indexes();
}
