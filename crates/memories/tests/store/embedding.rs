//! Vectors: queued, stored, used, replaced.

use memoird_memories::RecallRequest;
use memoird_memories::rules::{MemoryKind, NearDuplicate, Outcome, Visibility};
use memoird_memories::store::Embedding;
use memoird_memories::{MemoryError, RememberRequest};

use crate::kit::*;

/// A vector that points roughly in this direction.
fn towards(place: usize, noise: f32) -> Embedding {
    let mut values = [0.0; 8];
    values[place] = 1.0;
    values[(place + 1) % 8] = noise;
    vector(values)
}

fn due(kit: &Kit) -> Vec<u64> {
    let due = kit
        .memories
        .read(|reader| reader.embeddings_due(MODEL, at(0), 99))
        .unwrap();
    due.iter().map(|due| number(due.id)).collect()
}

fn embed(kit: &Kit, number: u64, vector: Embedding) -> bool {
    kit.write(move |writer| writer.embedded(id(number), 1, &vector))
}

fn nearest(kit: &Kit, who: &str, vector: &Embedding) -> Vec<u64> {
    by_vector(&kit.recall_at(at(1), &ask(&[who], ""), Some(vector)))
}

fn embedded_kit() -> Kit {
    let kit = Kit::new();
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    kit
}

#[test]
fn texts_stay_queued_until_embedded_across_restart() {
    let kit = embedded_kit();
    for number in 1..=3 {
        kit.say(number, "ann", &format!("fact {number}"));
    }
    let kit = kit.reopened();
    assert_eq!(due(&kit), [1, 2, 3]);
    assert!(embed(&kit, 2, towards(2, 0.1)));
    assert_eq!(due(&kit), [1, 3]);
    kit.write(|writer| writer.embed_failed(id(1), 1, "busy", at(2), false));
    kit.write(|writer| writer.embed_failed(id(3), 1, "broken", at(0), true));
    assert_eq!(due(&kit), [0; 0]);
    let next = kit
        .memories
        .read(|reader| reader.embeddings_next_due(at(0)))
        .unwrap();
    assert_eq!(next, Some(at(2)));
    let counts = kit
        .memories
        .read(|reader| reader.stats(Some(MODEL), at(0)))
        .unwrap();
    assert_eq!((counts.memories, counts.embedded), (3, 1));
    assert_eq!((counts.embedding_queued, counts.embedding_failed), (1, 1));
    let later = kit
        .memories
        .read(|reader| reader.embeddings_due(MODEL, at(2), 99))
        .unwrap();
    assert_eq!((later[0].id, later[0].tries), (id(1), 1));
    kit.check_indexes();
}

#[test]
fn nearest_are_found_among_visible_memories() {
    let kit = embedded_kit();
    for number in 1..=8 {
        let who = if number <= 6 { "ann" } else { "bob" };
        let mut said = fact(who, MemoryKind::Project, &format!("fact {number}"));
        if number == 8 {
            said.visibility = Visibility::Team;
        }
        kit.remember(order(number, said));
        assert!(embed(&kit, number, towards(0, number as f32 / 10.0)));
    }
    assert_eq!(
        nearest(&kit, "ann", &towards(0, 0.0)),
        [1, 2, 3, 4, 5, 6, 8]
    );
    assert_eq!(nearest(&kit, "bob", &towards(0, 0.0)), [7, 8]);
    assert_eq!(nearest(&kit, "nobody", &towards(0, 0.0)), [8]);
    let mut other = towards(0, 0.0);
    other.model = "another".into();
    assert_eq!(
        nearest(&kit, "ann", &other),
        [0; 0],
        "vectors of two models are not compared"
    );
    let two = RecallRequest {
        limit: 2,
        ..ask(&["ann"], "fact 6")
    };
    let found = kit.recall_at(at(1), &two, Some(&towards(0, 0.0)));
    let near = found.list.iter().filter(|one| one.is_near);
    let cosines: Vec<f64> = near.filter_map(|one| one.cosine).collect();
    assert_eq!(cosines.len(), 2);
    let nearest = cosines.iter().copied().fold(0.0, f64::max);
    assert!((nearest - 0.995).abs() < 0.001, "{nearest}");
    assert!(found.list.iter().all(|one| one.cosine.is_some()));
    let few = RecallRequest {
        limit: 2,
        after: Some(at(1)),
        ..ask(&["ann"], "")
    };
    let found = kit.recall_at(at(1), &few, Some(&towards(0, 0.0)));
    assert_eq!(by_vector(&found), [0; 0]);
}

#[test]
fn vector_of_other_dimension_is_rejected() {
    let kit = embedded_kit();
    kit.say(1, "ann", "one");
    kit.say(2, "ann", "two");
    assert!(embed(&kit, 1, towards(0, 0.0)));
    let short = Embedding {
        model: MODEL.into(),
        values: vec![1.0; 4],
    };
    let given = short.clone();
    let outcome = kit
        .memories
        .write_one(move |writer| writer.embedded(id(2), 1, &given));
    assert!(matches!(
        outcome,
        Err(MemoryError::DimensionMismatch {
            found: 4,
            expected: 8,
            ..
        })
    ));
    let question = ask(&["ann"], "one");
    assert!(
        kit.memories
            .read(|reader| reader.recall(&question, Some(&short), at(1)))
            .is_err()
    );
    for bad in [[0.0; 8], [f32::NAN; 8], [1e-30; 8], [1e30; 8]] {
        let bad = vector(bad);
        let refusal = kit.refusal(move |writer| writer.embedded(id(2), 1, &bad));
        assert!(matches!(
            refusal,
            MemoryError::Invalid {
                field: "vector",
                ..
            }
        ));
    }
    assert_eq!(due(&kit), [2]);
}

#[test]
fn new_model_queues_all_memories() {
    let kit = Kit::new();
    for number in 1..=5 {
        kit.say(number, "ann", &format!("fact {number}"));
    }
    assert_eq!(due(&kit), [0; 0], "nobody embeds");
    assert!(kit.write(|writer| writer.set_embedding_model(Some(MODEL))));
    assert!(
        !kit.write(|writer| writer.set_embedding_model(Some(MODEL))),
        "it is that already"
    );
    assert_eq!(kit.write(|writer| writer.backfill(2, at(0))), 3);
    let kit = kit.reopened();
    assert!(kit.write(|writer| writer.backfill(2, at(0))) > 0);
    assert_eq!(kit.write(|writer| writer.backfill(2, at(0))), 0);
    assert_eq!(
        kit.write(|writer| writer.backfill(2, at(0))),
        0,
        "it is done"
    );
    assert_eq!(due(&kit), [1, 2, 3, 4, 5]);
    for number in 1..=5 {
        embed(&kit, number, towards(0, 0.1));
    }
    assert!(kit.write(|writer| writer.set_embedding_model(Some("newer"))));
    assert_eq!(
        nearest(&kit, "ann", &towards(0, 0.0)),
        [0; 0],
        "the old ones are not used"
    );
    while kit.write(|writer| writer.backfill(2, at(0))) > 0 {}
    assert_eq!(kit.peek("SELECT count(*) FROM vectors"), 0);
    assert_eq!(kit.peek("SELECT count(*) FROM embeddings_due"), 5);
    // The newer model may have another dimension.
    let wide = Embedding {
        model: "newer".into(),
        values: vec![1.0; 16],
    };
    assert!(kit.write(move |writer| writer.embedded(id(1), 1, &wide)));
    assert!(
        !embed(&kit, 2, towards(0, 0.1)),
        "who comes late with the old one"
    );
}

#[test]
fn reindex_retries_failed_texts() {
    let kit = embedded_kit();
    for number in 1..=3 {
        kit.say(number, "ann", &format!("fact {number}"));
    }
    embed(&kit, 1, towards(0, 0.1));
    kit.write(|writer| writer.embed_failed(id(2), 1, "broken", at(0), true));
    let counts = |kit: &Kit| kit.memories.read(|reader| reader.stats(Some(MODEL), at(0)));
    let queued = |kit: &Kit| counts(kit).unwrap().embedding_queued;
    kit.write(|writer| writer.reindex_begin());
    assert!(queued(&kit) >= 3, "from the first moment on");
    while kit.write(|writer| writer.reindex_step(1, at(0))) > 0 {}
    let mut waiting = due(&kit);
    waiting.sort_unstable();
    assert_eq!(waiting, [1, 2, 3]);
    assert_eq!(queued(&kit), 3);
    assert_eq!(
        nearest(&kit, "ann", &towards(0, 0.0)),
        [1],
        "until then the old one is used"
    );
    assert_eq!(kit.found("ann", "fact").len(), 3);
    kit.check_indexes();
}

#[test]
fn near_duplicate_is_merged_rejected_or_kept_as_requested() {
    let kit = embedded_kit();
    let say = |number, text: &str, near_duplicate, noise| {
        let fact = RememberRequest {
            near_duplicate,
            ..fact("ann", MemoryKind::Project, text)
        };
        let mut order = order(number, fact);
        order.vector = Some(towards(0, noise));
        order
    };
    assert_eq!(
        kit.remember(say(1, "ships on friday", NearDuplicate::Merge, 0.0))
            .outcome,
        Outcome::Created
    );
    assert_eq!(due(&kit), [0; 0], "its vector came along");
    let refused = say(2, "ships on the fridays", NearDuplicate::Refuse, 0.1);
    let refusal = kit.refusal(move |writer| writer.remember(&refused, &limits()));
    assert_eq!(refusal, MemoryError::Duplicate { id: id(1) });
    for (number, text, noise) in [
        (3, "never ships on friday", 0.0),
        (4, "ships on friday 13", 0.0),
        (5, "sleeps", 2.0),
        (9, "friday is the day of shipping", 0.0),
        (10, "ships on monday", 0.0),
        (11, "shıps on friday", 0.0),
    ] {
        let done = kit.remember(say(number, text, NearDuplicate::Merge, noise));
        assert_eq!(done.outcome, Outcome::Created, "{text}");
    }
    let merged = kit.remember(say(6, "ships on the fridays", NearDuplicate::Merge, 0.1));
    assert_eq!((merged.outcome, merged.memory.id), (Outcome::Merged, id(6)));
    assert_eq!(
        kit.get(id(1)).unwrap().superseded_by,
        Some(id(6)),
        "nothing is lost"
    );
    let kept = kit.remember(say(7, "the ships on friday", NearDuplicate::Keep, 0.1));
    assert_eq!(kept.outcome, Outcome::Created);
    let near = |number| {
        kit.memories
            .read(|reader| reader.near_by_cosine(id(number), 0.9, at(0)))
            .unwrap()
    };
    assert_eq!(
        (near(7), near(6)),
        (None, None),
        "side by side, as asked, also later"
    );
    assert_eq!((near(3), near(1)), (None, None));
    kit.say(8, "ann", "Ship on Friday");
    embed(&kit, 8, towards(0, 0.1));
    assert_eq!(near(8), Some(id(6)), "whose vector came later");
    kit.check_indexes();
}
