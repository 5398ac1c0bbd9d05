//! What two lists become, and what importance and age may change in it.

use proptest::prelude::*;

use super::*;

const FRESH: Standing = Standing {
    kind: MemoryKind::User,
    importance: 0.5,
    age_ms: 0,
    has_vector: true,
};

fn list(scores: &[(u32, f64)]) -> Vec<Ranked<u32>> {
    let ranked = |(id, score): &(u32, f64)| Ranked {
        id: *id,
        score: *score,
        observed_at: Timestamp::from_ms(0),
    };
    scores.iter().map(ranked).collect()
}

fn fused(lexical: &[(u32, f64)], vector: &[(u32, f64)]) -> Vec<Fused<u32>> {
    let lists = Lists {
        lexical: list(lexical),
        vector: list(vector),
    };
    HalfLives::default().fuse(lists, |_| FRESH)
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
    // By reciprocal ranks 2 would be first.
    let hits = fused(
        &[(1, 9.0), (2, 2.0), (3, 2.0)],
        &[(2, 0.31), (3, 0.3), (1, 0.29)],
    );
    assert_eq!(ids(&hits), [1, 2, 3]);
}

#[test]
fn equal_ones_stand_by_newness_then_by_id() {
    let mut lexical = list(&[(3, 1.0), (1, 1.0), (2, 1.0), (2, 1.0)]);
    lexical[0].observed_at = Timestamp::from_ms(5);
    let lists = Lists {
        lexical,
        vector: vec![],
    };
    let hits = HalfLives::default().fuse(lists, |_| FRESH);
    assert_eq!(ids(&hits), [3, 1, 2], "and each once");
}

#[test]
fn what_has_no_vector_yet_is_judged_by_its_words() {
    let lists = Lists {
        lexical: list(&[(1, 9.0), (2, 3.0)]),
        vector: list(&[(2, 0.9), (3, 0.8)]),
    };
    let hits = HalfLives::default().fuse(lists.clone(), |_| FRESH);
    assert_eq!(ids(&hits)[0], 2);
    let hits = HalfLives::default().fuse(lists, |id| Standing {
        has_vector: *id != 1,
        ..FRESH
    });
    assert_eq!(ids(&hits)[0], 1);
    assert_eq!(hits[0].ranked.score, 1.0);
}

#[test]
fn importance_and_age_decide_between_answers_of_much_the_same_worth() {
    let of = |scores: &[(u32, f64)], standing: fn(&u32) -> Standing| {
        let lists = Lists {
            lexical: list(scores),
            vector: vec![],
        };
        ids(&HalfLives::default().fuse(lists, standing))
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
    let lexical = list(&[
        (1, 1.0),
        (2, f64::NAN),
        (3, 3.0),
        (4, 2.0),
        (5, f64::INFINITY),
    ]);
    let hits = HalfLives::default().fuse(
        Lists {
            lexical,
            vector: vec![],
        },
        |_| FRESH,
    );
    assert_eq!(ids(&hits), [3, 4, 1]);
}

fn any_list() -> impl Strategy<Value = Vec<Ranked<u32>>> {
    let one = (0_u32..30, -1.0_f64..1.0, 0_i64..3);
    let ranked = |(id, score, ms)| Ranked {
        id,
        score,
        observed_at: Timestamp::from_ms(ms),
    };
    let each_once = |list: Vec<Ranked<u32>>| {
        let by_id: BTreeMap<u32, Ranked<u32>> =
            list.into_iter().map(|ranked| (ranked.id, ranked)).collect();
        by_id.into_values().collect()
    };
    proptest::collection::vec(one.prop_map(ranked), 0..30).prop_map(each_once)
}

proptest! {
    #[test]
    fn the_order_that_comes_in_changes_nothing(
        (lexical, mixed) in any_list().prop_flat_map(|l| (Just(l.clone()), Just(l).prop_shuffle())),
        vector in any_list(),
    ) {
        let of = |lexical, vector| HalfLives::default().fuse(Lists { lexical, vector }, |_| FRESH);
        let mut turned = vector.clone();
        turned.reverse();
        let hits = of(lexical, vector);
        prop_assert_eq!(&of(mixed, turned), &hits);
        prop_assert!(hits.is_sorted_by(|a, b| a.ranked.score >= b.ranked.score));
        for hit in &hits {
            prop_assert!((0.0..=1.0).contains(&hit.ranked.score));
        }
    }

    #[test]
    fn equal_importance_and_age_change_no_order(
        lexical in any_list(),
        vector in any_list(),
        importance in 0.0_f32..1.0,
        age_days in 0_i64..10_000,
    ) {
        let lists = Lists { lexical, vector };
        let standing =
            Standing { importance, age_ms: age_days * 86_400_000, ..FRESH };
        let fresh = HalfLives::default().fuse(lists.clone(), |_| FRESH);
        let aged = HalfLives::default().fuse(lists, |_| standing);
        prop_assert_eq!(ids(&aged), ids(&fresh));
    }
}
