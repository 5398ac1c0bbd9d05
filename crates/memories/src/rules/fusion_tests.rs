//! Fusion of two lists, and the effect of importance and age.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const FRESH: Standing = Standing {
    kind: MemoryKind::User,
    importance: 0.5,
    age_ms: 0,
    words: 1_000,
    is_question: false,
};

/// Candidates from two lists. One that is missing in a list has no score there.
fn candidates(lexical: &[(u32, f64)], vector: &[(u32, f64)]) -> Candidates<u32> {
    let score = |list: &[(u32, f64)], id| {
        let found = list.iter().find(|(other, _)| *other == id);
        found.map(|(_, score)| *score)
    };
    let ids: BTreeSet<u32> = lexical.iter().chain(vector).map(|(id, _)| *id).collect();
    let candidate = |id| Candidate {
        id,
        observed_at: Timestamp::from_ms(0),
        words: score(lexical, id).unwrap_or(0.0),
        cosine: if vector.is_empty() {
            None
        } else {
            Some(score(vector, id).unwrap_or(0.0))
        },
        is_lexical: score(lexical, id).is_some(),
        is_near: score(vector, id).is_some(),
        judged: None,
        coverage: 0.0,
        shared: None,
    };
    Candidates {
        list: ids.into_iter().map(candidate).collect(),
        said_after: Vec::new(),
        unrelated: 0.0,
    }
}

fn fused(lexical: &[(u32, f64)], vector: &[(u32, f64)]) -> Vec<Fused<u32>> {
    HalfLives::default().fuse(&candidates(lexical, vector), |_| FRESH)
}

fn ids(fused: &[Fused<u32>]) -> Vec<u32> {
    fused.iter().map(|one| one.ranked.id).collect()
}

#[test]
fn one_list_keeps_its_order_and_the_share_of_its_scores() {
    for (hits, share) in [
        (fused(&[(1, 8.0), (2, 4.0)], &[]), 0.5),
        (fused(&[], &[(1, 0.8), (2, 0.2)]), 0.25),
        (fused(&[], &[(1, 0.8), (2, -0.2)]), 0.0),
        (fused(&[], &[(1, -0.5), (2, -0.75)]), 0.5),
        (fused(&[], &[(1, -1.0), (2, -1.0)]), 1.0),
    ] {
        assert_eq!(ids(&hits), [1, 2]);
        assert_eq!(hits[0].ranked.score, 1.0);
        assert!(
            (hits[1].ranked.score - share).abs() < 1e-9,
            "{}",
            hits[1].ranked.score
        );
    }
    assert_eq!(fused(&[], &[]), []);
}

#[test]
fn what_both_found_stands_first_and_knows_its_ranks() {
    let hits = fused(
        &[(1, 8.0), (2, 7.0), (3, 1.0)],
        &[(4, 0.6), (2, 0.5), (3, 0.1)],
    );
    assert_eq!(hits[0].ranked.id, 2);
    let of = |id| hits.iter().find(|hit| hit.ranked.id == id).unwrap();
    assert_eq!((of(2).lexical_rank, of(2).vector_rank), (Some(2), Some(2)));
    assert_eq!((of(1).lexical_rank, of(1).vector_rank), (Some(1), None));
    assert_eq!((of(4).lexical_rank, of(4).vector_rank), (None, Some(1)));
}

#[test]
fn a_first_place_won_by_far_is_not_outvoted_by_two_middling_ones() {
    // Reciprocal ranks would put 2 first.
    let hits = fused(
        &[(1, 9.0), (2, 2.0), (3, 2.0)],
        &[(2, 0.31), (3, 0.3), (1, 0.29)],
    );
    assert_eq!(ids(&hits), [1, 2, 3]);
}

#[test]
fn equal_ones_stand_by_newness_then_by_id() {
    let mut found = candidates(&[(3, 1.0), (1, 1.0), (2, 1.0)], &[]);
    found.list[2].observed_at = Timestamp::from_ms(5);
    let again = found.list[1].clone();
    found.list.push(again);
    let hits = HalfLives::default().fuse(&found, |_| FRESH);
    assert_eq!(ids(&hits), [3, 1, 2], "and each once");
}

#[test]
fn what_one_way_did_not_find_is_judged_by_it_all_the_same() {
    // One of the two best by words has a cosine close to the nearest.
    let mut found = candidates(&[(1, 9.0), (2, 9.0)], &[(3, 0.8)]);
    found.list[1].cosine = Some(0.79);
    let hits = HalfLives::default().fuse(&found, |_| FRESH);
    assert_eq!(ids(&hits), [2, 1, 3]);
    assert_eq!(hits[0].vector_rank, None, "it was not among the nearest");
}

#[test]
fn a_reranker_decides_and_what_it_was_not_asked_stands_behind() {
    let mut found = candidates(&[(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.0)], &[]);
    for (place, judged) in [(0, 0.1), (1, 0.3), (2, 0.9)] {
        found.list[place].judged = Some(judged);
    }
    let hits = HalfLives::default().fuse(&found, |_| FRESH);
    assert_eq!(ids(&hits), [3, 2, 1, 4]);
    assert_eq!(hits[0].parts.judged, Some(0.9));
    assert_eq!(hits[0].lexical_rank, Some(3), "by words it was third");
    assert!(hits[3].ranked.score < 0.1 && hits[3].parts.judged.is_none());
    // The memory after a highly judged question gains by it, as without a reranker.
    found.list[2].judged = Some(0.2);
    found.said_after = vec![(2, 4)];
    let asks = |id: &u32| Standing {
        is_question: *id == 2,
        words: 8,
        ..FRESH
    };
    let hits = HalfLives::default().fuse(&found, asks);
    assert_eq!(ids(&hits), [2, 4, 3, 1]);
}

#[test]
fn the_parts_of_a_score_give_the_score() {
    let mut found = candidates(&[(1, 9.0), (2, 3.0)], &[(2, 0.9), (3, 0.8)]);
    found.said_after = vec![(1, 2)];
    let standing = |id: &u32| Standing {
        importance: 0.9,
        age_ms: i64::from(*id) * 400 * 24 * 3_600_000,
        words: 4,
        is_question: *id == 1,
        ..FRESH
    };
    for hit in HalfLives::default().fuse(&found, standing) {
        let parts = hit.parts;
        let own =
            (1.0 - VECTOR_SHARE) * parts.words_share + VECTOR_SHARE * parts.meaning_share.unwrap();
        assert!((parts.fused - own * parts.form).abs() < 1e-12, "{parts:?}");
        let score = (parts.fused + parts.beside) * parts.importance * parts.recency;
        assert!((score - hit.ranked.score).abs() < 1e-12, "{parts:?}");
        assert!(parts.form < 1.0 && parts.importance > 1.0 && parts.recency < 1.0);
        assert_eq!(parts.beside > 0.0, hit.ranked.id < 3, "{parts:?}");
    }
}

#[test]
fn what_has_no_vector_yet_is_judged_by_its_words() {
    let mut found = candidates(&[(1, 9.0), (2, 3.0)], &[(2, 0.9), (3, 0.8)]);
    let hits = HalfLives::default().fuse(&found, |_| FRESH);
    assert_eq!(ids(&hits)[0], 2);
    found.list[0].cosine = None;
    let hits = HalfLives::default().fuse(&found, |_| FRESH);
    assert_eq!(ids(&hits)[0], 1);
    assert!(hits[0].ranked.score > 0.99);
}

#[test]
fn what_was_said_beside_a_good_one_is_better_and_the_most_behind_a_question() {
    let mut found = candidates(&[(1, 9.0), (4, 4.0)], &[]);
    let beside = |id| Candidate {
        id,
        observed_at: Timestamp::from_ms(0),
        words: 0.0,
        cosine: None,
        is_lexical: false,
        is_near: false,
        judged: None,
        coverage: 0.0,
        shared: None,
    };
    found.list.extend([beside(2), beside(3), beside(5)]);
    // 3 is next to one that is only a neighbor itself, and gains nothing.
    found.said_after = vec![(1, 2), (2, 3), (5, 1), (9, 1)];
    let of = |is_question: bool| {
        let standing = |id: &u32| Standing {
            is_question: is_question && *id == 1,
            words: 8,
            ..FRESH
        };
        let hits = HalfLives::default().fuse(&found, standing);
        let score = |id| {
            hits.iter()
                .find(|hit| hit.ranked.id == id)
                .unwrap()
                .ranked
                .score
        };
        ([1, 2, 3, 5].map(score), ids(&hits))
    };
    let (scores, order) = of(false);
    assert_eq!(scores, [1.0, AFTER, 0.0, BEFORE]);
    assert_eq!(order, [1, 4, 2, 5, 3]);
    let (scores, order) = of(true);
    assert_eq!(scores, [1.0, AFTER_QUESTION, 0.0, BEFORE]);
    assert_eq!(order, [1, 2, 4, 5, 3]);
}

#[test]
fn neighbor_outranks_its_hit_only_as_the_reply_to_a_question() {
    let mut found = candidates(&[(1, 10.0), (2, 9.8)], &[]);
    found.said_after = vec![(1, 2)];
    let order = |is_question: bool, words: usize| {
        let standing = |id: &u32| Standing {
            is_question: is_question && *id == 1,
            words,
            ..FRESH
        };
        ids(&HalfLives::default().fuse(&found, standing))
    };
    assert_eq!(order(true, 8), [2, 1]);
    assert_eq!(order(false, 8), [1, 2]);
    assert_eq!(
        order(true, 80),
        [1, 2],
        "a long text that ends with a question"
    );
}

#[test]
fn a_short_text_and_a_question_are_worth_less_where_both_ways_are_asked() {
    let found = candidates(
        &[(1, 9.0), (2, 9.0), (3, 9.0)],
        &[(1, 0.5), (2, 0.5), (3, 0.5)],
    );
    let standing = |id: &u32| Standing {
        words: if *id == 1 { 3 } else { 30 },
        is_question: *id == 2,
        ..FRESH
    };
    let hits = HalfLives::default().fuse(&found, standing);
    assert_eq!(ids(&hits), [3, 2, 1]);
    let found = candidates(&[(1, 9.0), (2, 8.9)], &[]);
    assert_eq!(ids(&HalfLives::default().fuse(&found, standing)), [1, 2]);
}

#[test]
fn importance_and_age_decide_between_answers_of_much_the_same_worth() {
    let of = |scores: &[(u32, f64)], standing: fn(&u32) -> Standing| {
        ids(&HalfLives::default().fuse(&candidates(scores, &[]), standing))
    };
    let year_ms = 365 * 24 * 60 * 60 * 1_000;
    let important: fn(&u32) -> Standing = |id| Standing {
        importance: if *id == 2 { 1.0 } else { 0.0 },
        ..FRESH
    };
    assert_eq!(of(&[(1, 9.0), (2, 8.5)], important), [2, 1]);
    assert_eq!(of(&[(1, 9.0), (2, 6.0)], important), [1, 2]);
    let old: fn(&u32) -> Standing = |id| Standing {
        kind: MemoryKind::Project,
        age_ms: if *id == 1 { i64::MAX } else { 0 },
        ..FRESH
    };
    assert_eq!(of(&[(1, 9.0), (2, 8.5)], old), [2, 1]);
    assert_eq!(of(&[(1, 9.0), (2, 6.0)], old), [1, 2], "however old");
    let factor = |kind| {
        HalfLives::default().factor(Standing {
            kind,
            age_ms: year_ms,
            ..FRESH
        })
    };
    assert!((factor(MemoryKind::Feedback) - 0.9).abs() < 1e-9);
    assert!(factor(MemoryKind::Project) < factor(MemoryKind::Feedback));
    assert!(factor(MemoryKind::User) > 0.99 && factor(MemoryKind::Reference) > 0.99);
}

#[test]
fn no_number_that_somebody_configures_makes_a_score_that_is_none() {
    for odd in [0.0, -1.0, f64::INFINITY, f64::MAX] {
        let half_lives = HalfLives {
            user_days: odd,
            ..HalfLives::default()
        };
        for age_ms in [i64::MIN, 0, 1, i64::MAX] {
            for importance in [0.0, 1.0, f32::NAN, f32::INFINITY] {
                let factor = half_lives.factor(Standing {
                    age_ms,
                    importance,
                    ..FRESH
                });
                assert!(
                    factor.is_finite() && factor > 0.0,
                    "{odd} {age_ms} {importance}"
                );
            }
        }
    }
}

#[test]
fn what_is_no_number_does_not_count() {
    let lexical = [
        (1, 1.0),
        (2, f64::NAN),
        (3, 3.0),
        (4, 2.0),
        (5, f64::INFINITY),
    ];
    assert_eq!(ids(&fused(&lexical, &[])), [3, 4, 1]);
}

fn any_candidates() -> impl Strategy<Value = Candidates<u32>> {
    let cosine = proptest::option::of(-1.0_f64..1.0);
    let one = (
        0_u32..30,
        0.0_f64..9.0,
        cosine,
        0_i64..3,
        any::<(bool, bool)>(),
    );
    let candidate = |(id, words, cosine, ms, (is_lexical, is_near))| Candidate {
        id,
        observed_at: Timestamp::from_ms(ms),
        words,
        cosine,
        is_lexical,
        is_near: is_near && cosine.is_some(),
        judged: None,
        coverage: 0.0,
        shared: None,
    };
    let each_once = |list: Vec<Candidate<u32>>| {
        let by_id: BTreeMap<u32, _> = list.into_iter().map(|one| (one.id, one)).collect();
        by_id.into_values().collect()
    };
    let list = proptest::collection::vec(one.prop_map(candidate), 0..30).prop_map(each_once);
    let said_after = proptest::collection::vec((0_u32..30, 0_u32..30), 0..20);
    (list, said_after).prop_map(|(list, said_after)| Candidates {
        list,
        said_after,
        unrelated: 0.1,
    })
}

proptest! {
    #[test]
    fn the_order_that_comes_in_changes_nothing(found in any_candidates()) {
        let mut turned = found.clone();
        turned.list.reverse();
        turned.said_after.reverse();
        let hits = HalfLives::default().fuse(&found, |_| FRESH);
        prop_assert_eq!(&HalfLives::default().fuse(&turned, |_| FRESH), &hits);
        prop_assert!(hits.is_sorted_by(|a, b| a.ranked.score >= b.ranked.score));
        for hit in &hits {
            prop_assert!((0.0..=1.0 + AFTER_QUESTION).contains(&hit.ranked.score));
        }
    }

    #[test]
    fn equal_importance_and_age_change_no_order(
        found in any_candidates(),
        importance in 0.0_f32..1.0,
        age_days in 0_i64..10_000,
    ) {
        let standing =
            Standing { importance, age_ms: age_days * 86_400_000, ..FRESH };
        let fresh = HalfLives::default().fuse(&found, |_| FRESH);
        let aged = HalfLives::default().fuse(&found, |_| standing);
        prop_assert_eq!(ids(&aged), ids(&fresh));
    }
}
