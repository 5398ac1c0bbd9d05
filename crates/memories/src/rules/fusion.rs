//! One order out of two: what the words found and what the meaning found become one list,
//! in which importance and age have a say.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use memoird_core::config::{AsText, Days, Problems};
use memoird_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::MemoryKind;

/// The lowest cosine.
const COSINE_MIN: f64 = -1.0;
/// A day in milliseconds.
const DAY_MS: f64 = 24.0 * 60.0 * 60.0 * 1_000.0;

/// A memory in a list, before lists become one.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked<Id> {
    /// Its id.
    pub id: Id,
    /// By words: 0 or more. By meaning: a cosine, -1 to 1. A score that is not finite is
    /// left out.
    pub score: f64,
    /// When it was observed: of two equal scores the newer one comes first.
    pub observed_at: Timestamp,
}

/// What two ways of looking found. The order inside a list means nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Lists<Id> {
    /// Found by words.
    pub lexical: Vec<Ranked<Id>>,
    /// Found by meaning; empty without a search by meaning.
    pub vector: Vec<Ranked<Id>>,
}

/// A memory in the list that came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused<Id> {
    /// The memory. Its score is 0 or more: relevance, which is 1 for the best of every list,
    /// times [`HalfLives::factor`].
    pub ranked: Ranked<Id>,
    /// Its place by words, from 1; `None` where it was not among the best.
    pub lexical_rank: Option<u32>,
    /// Its place by meaning, from 1; `None` where it was not among the best.
    pub vector_rank: Option<u32>,
}

/// The properties of a memory that change its score for any query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// What it is about.
    pub kind: MemoryKind,
    /// From 0 to 1.
    pub importance: f32,
    /// How old it is, in milliseconds. Below 0: it is new.
    pub age_ms: i64,
    /// False while a worker has not made its vector: then only words can find it, and that
    /// is not held against it.
    pub has_vector: bool,
}

/// In how many days half of what age can take off a score is gone.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HalfLives {
    /// Of [`MemoryKind::User`].
    #[serde(rename = "user", with = "AsText::<Days>")]
    pub user_days: f64,
    /// Of [`MemoryKind::Feedback`].
    #[serde(rename = "feedback", with = "AsText::<Days>")]
    pub feedback_days: f64,
    /// Of [`MemoryKind::Project`].
    #[serde(rename = "project", with = "AsText::<Days>")]
    pub project_days: f64,
    /// Of [`MemoryKind::Reference`].
    #[serde(rename = "reference", with = "AsText::<Days>")]
    pub reference_days: f64,
}

/// The share of a score by meaning, from 0 to 1; the score by words has the rest. Of the shares
/// from 0.3 to 0.6, by twentieths, 0.45 alone found no less than words alone in each of the
/// four sets of questions it was tried with.
const VECTOR_SHARE: f64 = 0.45;
/// How far the factors of the most and of the least important memory are apart; the factor of
/// one in the middle is 1. Importance and age together take at most about a third off a score:
/// they decide between answers of much the same worth, and never lift one that hardly answers
/// above one that clearly does.
const IMPORTANCE_SPREAD: f64 = 0.2;
/// The factor of a memory however old it is.
const RECENCY_FLOOR: f64 = 0.8;

impl Default for HalfLives {
    fn default() -> Self {
        Self {
            user_days: 10_000.0,
            feedback_days: 365.0,
            project_days: 90.0,
            reference_days: 10_000.0,
        }
    }
}

impl HalfLives {
    /// Adds their problems.
    pub fn check(&self, problems: &mut Problems) {
        for kind in MemoryKind::ALL {
            let is_good = self.days(kind) > 0.0;
            problems.unless(is_good, kind.as_str(), "must be more than zero");
        }
    }

    /// That of a kind, in days.
    pub fn days(&self, kind: MemoryKind) -> f64 {
        match kind {
            MemoryKind::User => self.user_days,
            MemoryKind::Feedback => self.feedback_days,
            MemoryKind::Project => self.project_days,
            MemoryKind::Reference => self.reference_days,
        }
    }

    /// One list of both, best first; equal ones by newness, then by id.
    ///
    /// Scores become shares of their list's best, and shares are added by weight: the convex
    /// combination of "An analysis of fusion functions for hybrid retrieval" (S. Bruch, S. Gai
    /// and A. Ingber, 2023). Reciprocal ranks (G. Cormack, C. Clarke and S. Büttcher, 2009)
    /// know nothing of a first place that is won by far: there two middling places beat it,
    /// and both together found less than words alone.
    ///
    /// `standing` is asked once of each memory.
    pub fn fuse<Id: Ord + Clone>(
        &self,
        lists: Lists<Id>,
        standing: impl Fn(&Id) -> Standing,
    ) -> Vec<Fused<Id>> {
        let lexical = shares(lists.lexical);
        let vector = shares(lists.vector);
        let is_hybrid = !lexical.is_empty() && !vector.is_empty();
        let (by_words, by_meaning) = if is_hybrid {
            (1.0 - VECTOR_SHARE, VECTOR_SHARE)
        } else {
            (1.0, 1.0)
        };
        let mut fused: BTreeMap<Id, Fused<Id>> = BTreeMap::new();
        for (rank, found) in (1_u32..).zip(lexical) {
            let one = found.entry(&mut fused);
            if one.lexical_rank.is_none() {
                one.lexical_rank = Some(rank);
                one.ranked.score += found.score * by_words;
            }
        }
        for (rank, found) in (1_u32..).zip(vector) {
            let one = found.entry(&mut fused);
            if one.vector_rank.is_none() {
                one.vector_rank = Some(rank);
                one.ranked.score += found.score * by_meaning;
            }
        }
        let mut fused: Vec<_> = fused.into_values().collect();
        for one in &mut fused {
            let standing = standing(&one.ranked.id);
            if is_hybrid && !standing.has_vector && one.vector_rank.is_none() {
                // It has no vector yet: its score by words counts in full.
                one.ranked.score /= by_words;
            }
            one.ranked.score *= self.factor(standing);
        }
        fused.sort_by(|a, b| a.ranked.order(&b.ranked));
        fused
    }

    /// What importance and age make of a score: a factor above 0, which is the same for
    /// memories of the same kind, importance and age, so that it changes no order among
    /// them.
    pub fn factor(&self, standing: Standing) -> f64 {
        let importance = if standing.importance.is_finite() {
            standing.importance
        } else {
            0.5
        };
        let importance = f64::from(importance.clamp(0.0, 1.0));
        let importance = 1.0 + IMPORTANCE_SPREAD * (importance - 0.5);
        let days = standing.age_ms.max(0) as f64 / DAY_MS;
        let half_lives = days / self.days(standing.kind).max(f64::MIN_POSITIVE);
        let recency = RECENCY_FLOOR + (1.0 - RECENCY_FLOOR) * (-half_lives).exp2();
        (importance * recency).max(f64::MIN_POSITIVE)
    }
}

/// A list, best first, each memory with the share that its score has of the best: from 0,
/// which is nothing of the query or a cosine that is not alike, to 1.
fn shares<Id: Ord>(mut list: Vec<Ranked<Id>>) -> Vec<Ranked<Id>> {
    list.retain(|one| one.score.is_finite());
    list.sort_by(Ranked::order);
    let best = list.first().map_or(0.0, |one| one.score);
    // Where not even the best is alike, its order is still the best there is.
    let zero = if best > 0.0 { 0.0 } else { COSINE_MIN };
    for one in &mut list {
        one.score = match best > zero {
            true => ((one.score - zero).max(0.0) / (best - zero)).min(1.0),
            false => 1.0,
        };
    }
    list
}

impl<Id: Ord + Clone> Ranked<Id> {
    /// Its entry in the fused list.
    fn entry<'a>(&self, fused: &'a mut BTreeMap<Id, Fused<Id>>) -> &'a mut Fused<Id> {
        fused.entry(self.id.clone()).or_insert_with(|| Fused {
            ranked: Self {
                score: 0.0,
                ..self.clone()
            },
            lexical_rank: None,
            vector_rank: None,
        })
    }
}

impl<Id: Ord> Ranked<Id> {
    /// Better first, then newer, then by id: so that the same memories always stand the same.
    fn order(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        let by_time = other.observed_at.cmp(&self.observed_at);
        by_score.then(by_time).then(self.id.cmp(&other.id))
    }
}

#[cfg(test)]
#[path = "fusion_tests.rs"]
mod tests;
