//! Fusion of two searches, and the effect of importance and age.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::manifest::tests::memory;
use super::*;

/// Words of a text that loses nothing by its length.
const LONG: usize = 1_000;
const DAY: i64 = 24 * 60 * 60 * 1_000;

/// A candidate without scores, observed at time 0.
fn candidate(id: u32) -> Candidate {
    let mut memory = memory(id.into(), MemoryKind::User, "a statement");
    memory.observed_at = Timestamp::from_ms(0);
    let mut one = Candidate::new(memory);
    one.words.words = LONG;
    one
}

/// Candidates of two searches, by id. One that is missing in a search has no score there.
fn candidates(lexical: &[(u32, f64)], vector: &[(u32, f64)]) -> Candidates {
    let score = |list: &[(u32, f64)], id| {
        let found = list.iter().find(|(other, _)| *other == id);
        found.map(|(_, score)| *score)
    };
    let ids: BTreeSet<u32> = lexical.iter().chain(vector).map(|(id, _)| *id).collect();
    let candidate = |id| {
        let mut one = candidate(id);
        one.words.score = score(lexical, id).unwrap_or(0.0);
        one.cosine = (!vector.is_empty()).then(|| score(vector, id).unwrap_or(0.0));
        one.is_lexical = score(lexical, id).is_some();
        one.is_near = score(vector, id).is_some();
        one
    };
    Candidates {
        list: ids.into_iter().map(candidate).collect(),
        ..Candidates::default()
    }
}

fn fuse(candidates: &Candidates) -> Vec<Fused> {
    HalfLives::default().fuse(candidates, 0.0, Timestamp::from_ms(0))
}

/// Ids of the candidates, best first.
fn order(candidates: &Candidates) -> Vec<u32> {
    ids(candidates, &fuse(candidates))
}

fn ids(candidates: &Candidates, fused: &[Fused]) -> Vec<u32> {
    let id = |one: &Fused| id(&candidates.list[one.place]);
    fused.iter().map(id).collect()
}

fn id(candidate: &Candidate) -> u32 {
    let bytes = candidate.memory.id.to_bytes();
    u32::from_be_bytes(std::array::from_fn(|byte| bytes[12 + byte]))
}

fn ask(candidate: &mut Candidate) {
    candidate.memory.content = "a question?".to_owned();
}

#[test]
fn one_search_keeps_its_order_and_the_share_of_its_scores() {
    for (found, share) in [
        (candidates(&[(1, 8.0), (2, 4.0)], &[]), 0.5),
        (candidates(&[], &[(1, 0.8), (2, 0.2)]), 0.25),
        (candidates(&[], &[(1, 0.8), (2, -0.2)]), 0.0),
        (candidates(&[], &[(1, -0.5), (2, -0.75)]), 0.5),
        (candidates(&[], &[(1, -1.0), (2, -1.0)]), 1.0),
    ] {
        let hits = fuse(&found);
        assert_eq!(ids(&found, &hits), [1, 2]);
        assert_eq!(hits[0].score, 1.0);
        assert!((hits[1].score - share).abs() < 1e-9, "{}", hits[1].score);
    }
    assert_eq!(fuse(&Candidates::default()), []);
}

#[test]
fn hit_of_both_searches_is_first_and_has_both_ranks() {
    let found = candidates(
        &[(1, 8.0), (2, 7.0), (3, 1.0)],
        &[(4, 0.6), (2, 0.5), (3, 0.1)],
    );
    let hits = fuse(&found);
    assert_eq!(ids(&found, &hits)[0], 2);
    let ranks = |wanted| {
        let is_it = |hit: &&Fused| id(&found.list[hit.place]) == wanted;
        let hit = hits.iter().find(is_it).unwrap();
        (hit.lexical_rank, hit.vector_rank)
    };
    assert_eq!(ranks(2), (Some(2), Some(2)));
    assert_eq!(ranks(1), (Some(1), None));
    assert_eq!(ranks(4), (None, Some(1)));
}

#[test]
fn clear_first_place_beats_two_middling_places() {
    // Reciprocal ranks would put 2 first.
    let found = candidates(
        &[(1, 9.0), (2, 2.0), (3, 2.0)],
        &[(2, 0.31), (3, 0.3), (1, 0.29)],
    );
    assert_eq!(order(&found), [1, 2, 3]);
}

#[test]
fn equal_scores_are_ordered_by_time_then_by_id() {
    let mut found = candidates(&[(3, 1.0), (1, 1.0), (2, 1.0)], &[]);
    found.list[2].memory.observed_at = Timestamp::from_ms(5);
    assert_eq!(order(&found), [3, 1, 2]);
}

#[test]
fn hit_of_one_search_is_scored_by_the_other_too() {
    // One of the two best by words has a cosine close to the nearest.
    let mut found = candidates(&[(1, 9.0), (2, 9.0)], &[(3, 0.8)]);
    found.list[1].cosine = Some(0.79);
    assert_eq!(order(&found), [2, 1, 3]);
    assert_eq!(
        fuse(&found)[0].vector_rank,
        None,
        "it was not among the nearest"
    );
}

#[test]
fn reranker_decides_and_unjudged_candidates_come_last() {
    let mut found = candidates(&[(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.0)], &[]);
    for (place, judged) in [(0, 0.1), (1, 0.3), (2, 0.9)] {
        found.list[place].judged = Some(judged);
    }
    let hits = fuse(&found);
    assert_eq!(ids(&found, &hits), [3, 2, 1, 4]);
    assert_eq!(hits[0].parts.judged, Some(0.9));
    assert_eq!(hits[0].lexical_rank, Some(3), "by words it was third");
    assert!(hits[3].score < 0.1 && hits[3].parts.judged.is_none());
    // The memory after a highly judged question gains by it, as without a reranker.
    found.list[2].judged = Some(0.2);
    found.said_after = vec![(1, 3)];
    for one in &mut found.list {
        one.words.words = 8;
    }
    ask(&mut found.list[1]);
    assert_eq!(order(&found), [2, 4, 3, 1]);
}

#[test]
fn parts_of_a_score_give_the_score() {
    let mut found = candidates(&[(1, 9.0), (2, 3.0)], &[(2, 0.9), (3, 0.8)]);
    found.said_after = vec![(0, 1)];
    let now = Timestamp::from_ms(10_000 * DAY);
    for one in &mut found.list {
        one.memory.importance = 0.9;
        one.memory.observed_at = Timestamp::from_ms((10_000 - i64::from(id(one)) * 400) * DAY);
        one.words.words = 4;
    }
    ask(&mut found.list[0]);
    for hit in HalfLives::default().fuse(&found, 0.0, now) {
        let parts = hit.parts;
        let own =
            (1.0 - VECTOR_SHARE) * parts.words_share + VECTOR_SHARE * parts.meaning_share.unwrap();
        assert!((parts.fused - own * parts.form).abs() < 1e-12, "{parts:?}");
        let score = (parts.fused + parts.beside) * parts.importance * parts.recency;
        assert!((score - hit.score).abs() < 1e-12, "{parts:?}");
        assert!(parts.form < 1.0 && parts.importance > 1.0 && parts.recency < 1.0);
        assert_eq!(parts.beside > 0.0, hit.place < 2, "{parts:?}");
    }
}

#[test]
fn memory_without_vector_is_scored_by_its_words() {
    let mut found = candidates(&[(1, 9.0), (2, 3.0)], &[(2, 0.9), (3, 0.8)]);
    assert_eq!(order(&found)[0], 2);
    found.list[0].cosine = None;
    assert_eq!(order(&found)[0], 1);
    assert!(fuse(&found)[0].score > 0.99);
}

#[test]
fn neighbors_of_a_hit_gain_most_after_a_question() {
    let mut found = candidates(&[(1, 9.0), (4, 4.0)], &[]);
    found.list.extend([2, 3, 5].map(candidate));
    for one in &mut found.list {
        one.words.words = 8;
    }
    // 3 is next to one that is only a neighbor itself, and gains nothing.
    found.said_after = vec![(0, 2), (2, 3), (4, 0)];
    let scores = |found: &Candidates| {
        let hits = fuse(found);
        let score = |place| hits.iter().find(|hit| hit.place == place).unwrap().score;
        [0, 2, 3, 4].map(score)
    };
    assert_eq!(scores(&found), [1.0, AFTER, 0.0, BEFORE]);
    assert_eq!(order(&found), [1, 4, 2, 5, 3]);
    ask(&mut found.list[0]);
    assert_eq!(scores(&found), [1.0, AFTER_QUESTION, 0.0, BEFORE]);
    assert_eq!(order(&found), [1, 2, 4, 5, 3]);
}

#[test]
fn neighbor_outranks_its_hit_only_as_the_reply_to_a_question() {
    let mut found = candidates(&[(1, 10.0), (2, 9.8)], &[]);
    found.said_after = vec![(0, 1)];
    let with_words = |found: &Candidates, words| {
        let mut found = found.clone();
        found.list[0].words.words = words;
        order(&found)
    };
    assert_eq!(with_words(&found, 8), [1, 2]);
    ask(&mut found.list[0]);
    assert_eq!(with_words(&found, 8), [2, 1]);
    assert_eq!(
        with_words(&found, 80),
        [1, 2],
        "a long text that ends with a question"
    );
}

#[test]
fn short_texts_and_questions_lose_in_hybrid_search_only() {
    let change = |mut found: Candidates| {
        for one in &mut found.list {
            one.words.words = if id(one) == 1 { 3 } else { 30 };
        }
        ask(&mut found.list[1]);
        order(&found)
    };
    let found = candidates(
        &[(1, 9.0), (2, 9.0), (3, 9.0)],
        &[(1, 0.5), (2, 0.5), (3, 0.5)],
    );
    assert_eq!(change(found), [3, 2, 1]);
    assert_eq!(change(candidates(&[(1, 9.0), (2, 8.9)], &[])), [1, 2]);
}

#[test]
fn importance_and_age_decide_between_similar_scores() {
    let important = |second| {
        let mut found = candidates(&[(1, 9.0), (2, second)], &[]);
        found.list[0].memory.importance = 0.0;
        found.list[1].memory.importance = 1.0;
        order(&found)
    };
    assert_eq!(important(8.5), [2, 1]);
    assert_eq!(important(6.0), [1, 2]);
    let now = Timestamp::from_ms(100_000 * DAY);
    let old = |second| {
        let mut found = candidates(&[(1, 9.0), (2, second)], &[]);
        for one in &mut found.list {
            one.memory.kind = MemoryKind::Project;
        }
        found.list[1].memory.observed_at = now;
        ids(&found, &HalfLives::default().fuse(&found, 0.0, now))
    };
    assert_eq!(old(8.5), [2, 1]);
    assert_eq!(old(6.0), [1, 2], "however old");
    let factor = |kind| {
        let mut found = candidates(&[(1, 1.0)], &[]);
        found.list[0].memory.kind = kind;
        let now = Timestamp::from_ms(365 * DAY);
        HalfLives::default().fuse(&found, 0.0, now)[0].score
    };
    assert!((factor(MemoryKind::Feedback) - 0.9).abs() < 1e-9);
    assert!(factor(MemoryKind::Project) < factor(MemoryKind::Feedback));
    assert!(factor(MemoryKind::User) > 0.99 && factor(MemoryKind::Reference) > 0.99);
}

#[test]
fn odd_half_lives_ages_and_importances_give_finite_scores() {
    for odd in [0.0, -1.0, f64::INFINITY, f64::MAX] {
        let half_lives = HalfLives {
            user_days: odd,
            ..HalfLives::default()
        };
        for now_ms in [i64::MIN, 0, 1, i64::MAX] {
            for importance in [0.0, 1.0, f32::NAN, f32::INFINITY] {
                let mut found = candidates(&[(1, 1.0)], &[]);
                found.list[0].memory.importance = importance;
                let score = half_lives.fuse(&found, 0.0, Timestamp::from_ms(now_ms))[0].score;
                assert!(
                    score.is_finite() && score > 0.0,
                    "{odd} {now_ms} {importance}"
                );
            }
        }
    }
}

fn any_candidates() -> impl Strategy<Value = Candidates> {
    let cosine = proptest::option::of(-1.0_f64..1.0);
    let one = (0.0_f64..9.0, cosine, 0_i64..3, any::<(bool, bool)>());
    let list = proptest::collection::vec(one, 0..30);
    let said_after = proptest::collection::vec((0_usize..30, 0_usize..30), 0..20);
    (list, said_after).prop_map(|(list, mut said_after)| {
        let candidate = |(id, (words, cosine, ms, (is_lexical, is_near)))| {
            let mut one = candidate(id);
            one.memory.observed_at = Timestamp::from_ms(ms);
            one.words.score = words;
            one.cosine = cosine;
            one.is_lexical = is_lexical;
            one.is_near = is_near && cosine.is_some();
            one
        };
        let count = list.len();
        said_after.retain(|(first, second)| first.max(second) < &count);
        Candidates {
            list: (0..).zip(list).map(candidate).collect(),
            said_after,
            ..Candidates::default()
        }
    })
}

proptest! {
    #[test]
    fn order_of_the_input_changes_nothing(found in any_candidates()) {
        let mut turned = found.clone();
        turned.list.reverse();
        turned.said_after.reverse();
        for (first, second) in &mut turned.said_after {
            let last = found.list.len() - 1;
            (*first, *second) = (last - *first, last - *second);
        }
        let hits = fuse(&found);
        prop_assert_eq!(order(&turned), ids(&found, &hits));
        prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
        for (hit, other) in hits.iter().zip(fuse(&turned)) {
            prop_assert_eq!(hit.parts, other.parts);
            prop_assert!((0.0..=1.0 + AFTER_QUESTION).contains(&hit.score));
        }
    }

    #[test]
    fn equal_importance_and_age_change_no_order(
        found in any_candidates(),
        importance in 0.0_f32..1.0,
        age_days in 0_i64..10_000,
    ) {
        let mut found = found;
        for one in &mut found.list {
            one.memory.observed_at = Timestamp::from_ms(0);
        }
        let mut aged = found.clone();
        for one in &mut aged.list {
            one.memory.importance = importance;
        }
        let now = Timestamp::from_ms(age_days * DAY);
        let hits = HalfLives::default().fuse(&aged, 0.0, now);
        prop_assert_eq!(ids(&aged, &hits), order(&found));
    }
}
