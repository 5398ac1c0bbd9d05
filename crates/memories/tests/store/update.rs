//! Updates, moves, imports and merges.

use memoird_memories::MemoryError;
use memoird_memories::RecallRequest;
use memoird_memories::rules::{Memory, MemoryKind, Origin, Patch, Pin, Polarity, Visibility};
use memoird_memories::store::{Hit, RecallEvent};
use memoird_memories::{ListRequest, RememberRequest};

use crate::kit::*;

fn change(kit: &Kit, number: u64, patch: Patch) -> Memory {
    kit.write(move |writer| writer.update(id(number), None, &patch, at(2), &limits()))
}

#[test]
fn changed_memory_is_found_by_new_words_only() {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    kit.say(1, "ann", "likes tea");
    let due = kit
        .memories
        .read(|reader| reader.embeddings_due(MODEL, at(0), 9))
        .unwrap();
    let first = due[0].revision;
    let given = vector([1.0; 8]);
    assert!(kit.write(move |writer| writer.embedded(id(1), first, &given)));
    let changed = change(
        &kit,
        1,
        Patch {
            content: Some(" likes coffee ".into()),
            tags: Some(vec!["drinks".into()]),
            importance: Some(1.0),
            expires_at: Some(Some(at(9))),
            pinned: Some(true),
            ..Patch::default()
        },
    );
    assert_eq!(
        (&*changed.content, changed.pin),
        ("likes coffee", Some(Pin::Bot))
    );
    assert_eq!(
        (changed.updated_at, changed.expires_at),
        (at(2), Some(at(9)))
    );
    assert_eq!(
        (kit.found("ann", "tea"), kit.found("ann", "coffee")),
        (vec![], vec![1])
    );
    let tagged = RecallRequest {
        tags: vec!["drinks".into()],
        ..ask(&["ann"], "coffee")
    };
    assert_eq!(by_words(&kit.recall(&tagged)), [1]);
    let late = vector([1.0; 8]);
    assert!(
        !kit.write(move |writer| writer.embedded(id(1), first, &late)),
        "of the old text"
    );
    let due = kit
        .memories
        .read(|reader| reader.embeddings_due(MODEL, at(2), 9))
        .unwrap();
    assert_eq!(
        due.iter().map(|due| &*due.content).collect::<Vec<_>>(),
        ["likes coffee"]
    );
    kit.check_indexes();
}

#[test]
fn memory_moves_to_team_and_back_completely() {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    kit.say(1, "ann", "the code word is tulip");
    kit.say(2, "ann", "something else");
    let given = vector([1.0; 8]);
    kit.write(move |writer| writer.embedded(id(1), 1, &given));
    let told = RecallEvent {
        at: at(0),
        session: None,
        query: [1; 16],
        hits: vec![Hit {
            id: id(1),
            rank: 1,
            score: 1.0,
        }],
    };
    kit.write(move |writer| writer.record_recall(&told, &limits()));
    let found_near = |who: &str| {
        by_vector(&kit.recall_at(at(1), &ask(&[who], ""), Some(&vector([1.0; 8])))).len()
    };
    for (visibility, bob_finds) in [(Visibility::Team, 1), (Visibility::Private, 0)] {
        let patch = Patch {
            visibility: Some(visibility),
            ..Patch::default()
        };
        assert_eq!(change(&kit, 1, patch).visibility, visibility);
        assert_eq!(kit.found("bob", "tulip").len(), bob_finds);
        assert_eq!((found_near("bob"), found_near("ann")), (bob_finds, 1));
        assert_eq!(kit.found("ann", "tulip"), [1]);
        assert_eq!(kit.peek("SELECT count(*) FROM recall_events"), 1);
        kit.check_indexes();
    }
}

#[test]
fn invalid_changes_are_rejected_with_reason() {
    let kit = Kit::new();
    kit.say(1, "ann", "first");
    let second = RememberRequest {
        supersedes: Some(id(1)),
        ..fact("ann", MemoryKind::User, "second")
    };
    kit.remember(order(2, second));
    let refused = |number, who: Option<&str>, patch: Patch| {
        let who = who.map(subject);
        kit.refusal(move |w| w.update(id(number), who.as_ref(), &patch, at(2), &limits()))
    };
    let superseded = MemoryError::Superseded {
        id: id(1),
        by: id(2),
    };
    assert_eq!(refused(1, None, Patch::default()), superseded);
    for (number, who) in [(2, Some("bob")), (9, None)] {
        let missing = MemoryError::NotFound { id: id(number) };
        assert_eq!(refused(number, who, Patch::default()), missing);
    }
    for patch in [
        Patch {
            visibility: Some(Visibility::Team),
            ..Patch::default()
        },
        Patch {
            polarity: Some(Some(Polarity::Correction)),
            ..Patch::default()
        },
        Patch {
            content: Some("  ".into()),
            ..Patch::default()
        },
    ] {
        assert!(matches!(
            refused(2, None, patch),
            MemoryError::Invalid { .. }
        ));
    }
}

#[test]
fn import_is_exact_and_overwrites_nothing() {
    let kit = Kit::new();
    let mut full = fact("ann", MemoryKind::Feedback, "write short answers");
    (full.polarity, full.tags) = (Some(Polarity::Confirmation), vec!["a".into(), "b".into()]);
    (full.source, full.expires_at) = (Some(source("chat")), Some(at(900)));
    kit.remember(order(1, full));
    let team = RememberRequest {
        visibility: Visibility::Team,
        ..fact("bob", MemoryKind::Project, "ours")
    };
    kit.remember(order(2, team));
    let third = RememberRequest {
        supersedes: Some(id(2)),
        ..fact("bob", MemoryKind::Project, "ours, too")
    };
    kit.remember(order(3, third));
    let all = ListRequest {
        include_history: true,
        ..Default::default()
    };
    let listed = |kit: &Kit| {
        kit.memories
            .read(|reader| reader.list(&all, 99, at(0)))
            .unwrap()
    };
    let mut exported = listed(&kit);
    exported[0].origin = Origin::Import;
    (exported[0].recalls, exported[0].recalled_at) = (7, Some(at(5)));
    (exported[0].reinforced, exported[0].pin) = (3, Some(Pin::Consolidation));
    exported[0].created_at =
        memoird_core::time::Timestamp::new(1_600_000_000, 123_456_789).unwrap();
    let other = Kit::new();
    let import = |memories: &[Memory]| {
        let memories = memories.to_vec();
        other.write(move |writer| writer.import(&memories, at(0), &limits()))
    };
    let first = import(&exported);
    assert_eq!((first.added, first.skipped), (3, 0));
    assert_eq!(listed(&other), exported);
    let mut changed = exported.clone();
    changed[1].content = "something else".into();
    let again = import(&changed);
    assert_eq!((again.added, again.skipped), (0, 3));
    assert_eq!(listed(&other), exported);
    assert_eq!(other.found("ann", "answers"), [1]);
    assert_eq!(other.found("ann", "ours"), [0; 0]);
    other.check_indexes();
}

#[test]
fn newer_memory_inherits_from_merged_older_one() {
    let kit = Kit::new();
    let mut older = fact("ann", MemoryKind::Project, "ships on friday");
    (older.pinned, older.tags, older.importance) = (true, vec!["a".into()], Some(0.9));
    kit.remember(order(1, older));
    kit.say(2, "ann", "the release ships on friday");
    kit.say(3, "bob", "the release ships on friday");
    let merge = |older, newer| kit.write(move |writer| writer.merge(id(older), id(newer), at(1)));
    assert!(
        !merge(1, 3) && !merge(1, 1) && !merge(1, 9),
        "only of one subject, and there"
    );
    assert!(merge(1, 2));
    let merged = kit.get(id(2)).unwrap();
    assert_eq!(
        (merged.pin, merged.importance, merged.reinforced),
        (Some(Pin::Bot), 0.9, 1)
    );
    assert_eq!(merged.tags, ["a"]);
    assert_eq!(kit.get(id(1)).unwrap().superseded_by, Some(id(2)));
    assert!(!merge(1, 2), "the older is history now");
    assert_eq!(kit.found("ann", "ships"), [2]);
    kit.check_indexes();
}
