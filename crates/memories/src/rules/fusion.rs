//! One order out of two: what the words found and what the meaning found become one list, in which
//! what was said beside it, importance and age have a say.
//!
//! It fuses shares of the best score, not reciprocal ranks: with those two middling places beat a
//! first place that is won by far, and hybrid recall was worse than lexical recall alone.

use std::cmp::Ordering;

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

/// A memory that may be an answer, judged both ways: what one way of looking did not find has a
/// score by that way as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate<Id> {
    /// Its id.
    pub id: Id,
    /// When it was observed: of two equal scores the newer one comes first.
    pub observed_at: Timestamp,
    /// By words: 0 or more; 0 has none of them.
    pub words: f64,
    /// Share of the query's weight that its words cover, from 0 to 1.
    pub coverage: f64,
    /// By meaning, -1 to 1; `None` in a search without meaning, and of a memory without a vector.
    pub cosine: Option<f64>,
    /// True among the best by words.
    pub is_lexical: bool,
    /// True among the best by meaning.
    pub is_near: bool,
    /// How well a reranker says that it answers the query, from 0 to 1; `None` of what it was not
    /// asked.
    pub judged: Option<f64>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates<Id> {
    /// The best of both ways of looking, and what was said beside them; the order means nothing.
    pub list: Vec<Candidate<Id>>,
    /// Of two candidates of one conversation the first, and the one that was said right after it.
    pub said_after: Vec<(Id, Id)>,
    /// Cosine that the embedder has for unrelated texts, below 1.
    pub unrelated: f64,
}

/// A memory in the list that came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused<Id> {
    /// The memory. Its score is 0 or more: relevance, which is up to 1 for the best by words and
    /// by meaning and somewhat more beside another one, times [`HalfLives::factor`].
    pub ranked: Ranked<Id>,
    /// Its place by words, from 1; `None` where it was not among the best.
    pub lexical_rank: Option<u32>,
    /// Its place by meaning, from 1; `None` where it was not among the best.
    pub vector_rank: Option<u32>,
    /// What its score is made of.
    pub parts: ScoreParts,
}

/// The factors of a score, which is (`fused` + `beside`) × `importance` × `recency`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParts {
    /// By words: 0 or more.
    pub words: f64,
    /// By meaning, -1 to 1.
    pub cosine: Option<f64>,
    /// The share of the best by words, 0 to 1.
    pub words_share: f64,
    /// The share of the best by meaning, 0 to 1.
    pub meaning_share: Option<f64>,
    /// The factor of its length and form.
    pub form: f64,
    /// Both shares by their weights, times `form`; with a reranker, its judgement.
    pub fused: f64,
    /// What it has from what was said right before and after it.
    pub beside: f64,
    /// The factor of its importance.
    pub importance: f64,
    /// The factor of its age.
    pub recency: f64,
    /// A reranker's score from 0 to 1, which then is also `fused`.
    pub judged: Option<f64>,
    /// Share of the query's weight that its words cover, from 0 to 1.
    pub coverage: f64,
    /// Relevance to the query, from 0 to 1, whatever else was found. The reply to a relevant
    /// question has part of its question's.
    pub relevance: f64,
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
    /// How many words it has.
    pub words: usize,
    /// True of a text that asks.
    pub is_question: bool,
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

/// The share of a score by meaning, from 0 to 1; the score by words has the rest.
const VECTOR_SHARE: f64 = 0.45;
/// Relevance that shared words add to a cosine at most.
const WORDS_BONUS: f64 = 0.3;
/// What the shortest text loses where both ways are asked, and in how many words that falls to
/// about a third: a cosine takes a few words for like anything.
const SHORTNESS_LOSS: f64 = 0.3;
const SHORTNESS_WORDS: f64 = 10.0;
/// What a question ends with.
const QUESTION_MARKS: [char; 5] = ['?', '？', '؟', '\u{37e}', '՞'];
/// The factor of a question where both ways are asked: it has the query's words and meaning, and
/// not the answer.
const QUESTION_FACTOR: f64 = 0.9;
/// What of its score a memory gives to the one that was said right after it, if it asks and if it
/// does not, and to the one before it.
const AFTER_QUESTION: f64 = 0.75;
const AFTER: f64 = 0.2;
/// Maximum length in words of a question. A longer text that ends with one mostly states something.
const QUESTION_WORDS_MAX: usize = 40;
const BEFORE: f64 = 0.1;
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

    /// One list, best first; equal ones by newness, then by id.
    ///
    /// Scores become shares of the best, and shares are added by weight: the convex combination
    /// of "An analysis of fusion functions for hybrid retrieval" (S. Bruch, S. Gai and A. Ingber,
    /// 2023), of the scores of all candidates both ways: whoever is missing in one list is not
    /// nothing by that way. Reciprocal ranks (G. Cormack, C. Clarke and S. Büttcher, 2009) know
    /// nothing of a first place that is won by far. What was said beside a good one is better
    /// for it: an answer seldom repeats the words of its question.
    ///
    /// `standing` is asked once of each memory.
    pub fn fuse<Id: Ord + Clone>(
        &self,
        candidates: &Candidates<Id>,
        standing: impl Fn(&Id) -> Standing,
    ) -> Vec<Fused<Id>> {
        let mut list = candidates.list.clone();
        list.retain(|one| one.words.is_finite() && one.cosine.is_none_or(f64::is_finite));
        list.sort_by(|a, b| a.id.cmp(&b.id));
        list.dedup_by(|a, b| a.id == b.id);
        let standings: Vec<Standing> = list.iter().map(|one| standing(&one.id)).collect();
        let mut parts = fused_scores(&list, &standings);
        for (parts, one) in parts.iter_mut().zip(&list) {
            parts.coverage = one.coverage;
            parts.relevance = relevance(one, candidates.unrelated);
        }
        let place = |id: &Id| list.binary_search_by(|one| one.id.cmp(id)).ok();
        for (first, second) in &candidates.said_after {
            let (Some(first), Some(second)) = (place(first), place(second)) else {
                continue;
            };
            let asks = standings[first].is_question && standings[first].words <= QUESTION_WORDS_MAX;
            let given = |one: usize, share: f64| found(&list[one], parts[one].fused) * share;
            // What answers a question may be better than it; other neighbors may not.
            let up_to = |one: usize, other: usize| (parts[one].fused - parts[other].fused).max(0.0);
            let to_first = given(second, BEFORE).min(up_to(second, first));
            let to_second = match asks {
                true => given(first, AFTER_QUESTION),
                false => given(first, AFTER).min(up_to(first, second)),
            };
            parts[first].beside = parts[first].beside.max(to_first);
            parts[second].beside = parts[second].beside.max(to_second);
            if asks {
                let inherited = relevance(&list[first], candidates.unrelated) * AFTER_QUESTION;
                parts[second].relevance = parts[second].relevance.max(inherited);
            }
        }
        for (parts, standing) in parts.iter_mut().zip(&standings) {
            parts.importance = importance(*standing);
            parts.recency = self.recency(*standing);
        }
        let lexical = ranks(&list, |one| one.is_lexical.then_some(one.words));
        let near = ranks(&list, |one| one.cosine.filter(|_| one.is_near));
        let mut fused: Vec<_> = list
            .into_iter()
            .enumerate()
            .map(|(place, one)| Fused {
                lexical_rank: lexical[place],
                vector_rank: near[place],
                ranked: Ranked {
                    score: parts[place].score(),
                    observed_at: one.observed_at,
                    id: one.id,
                },
                parts: parts[place],
            })
            .collect();
        fused.sort_by(|a, b| a.ranked.order(&b.ranked));
        fused
    }

    /// What importance and age make of a score: a factor above 0, which is the same for
    /// memories of the same kind, importance and age, so that it changes no order among
    /// them.
    pub fn factor(&self, standing: Standing) -> f64 {
        (importance(standing) * self.recency(standing)).max(f64::MIN_POSITIVE)
    }

    fn recency(&self, standing: Standing) -> f64 {
        let days = standing.age_ms.max(0) as f64 / DAY_MS;
        let half_lives = days / self.days(standing.kind).max(f64::MIN_POSITIVE);
        RECENCY_FLOOR + (1.0 - RECENCY_FLOOR) * (-half_lives).exp2()
    }
}

impl ScoreParts {
    fn score(&self) -> f64 {
        let factor = (self.importance * self.recency).max(f64::MIN_POSITIVE);
        (self.fused + self.beside) * factor
    }
}

fn importance(standing: Standing) -> f64 {
    let importance = if standing.importance.is_finite() {
        standing.importance
    } else {
        0.5
    };
    let importance = f64::from(importance.clamp(0.0, 1.0));
    1.0 + IMPORTANCE_SPREAD * (importance - 0.5)
}

/// True of a text that asks.
pub fn is_question(text: &str) -> bool {
    text.trim_end().ends_with(QUESTION_MARKS)
}

/// What a candidate that was found gives to those beside it; what is only beside one gives
/// nothing on.
fn found<Id>(one: &Candidate<Id>, fused: f64) -> f64 {
    if one.is_lexical || one.is_near {
        fused
    } else {
        0.0
    }
}

/// How relevant a candidate is to the query, from 0 to 1. It does not depend on other candidates,
/// so that an unrelated query has a low best.
///
/// With a vector it is the cosine, rescaled so that unrelated memories have 0, plus a bonus for
/// shared words; without one it is the share of the query that the words cover.
fn relevance<Id>(one: &Candidate<Id>, unrelated: f64) -> f64 {
    let Some(cosine) = one.cosine else {
        return one.coverage;
    };
    let rescaled = (cosine - unrelated) / (1.0 - unrelated);
    (rescaled + WORDS_BONUS * one.coverage).clamp(0.0, 1.0)
}

/// How much each candidate has of the best by words and by meaning, from 0 to 1.
fn fused_scores<Id>(list: &[Candidate<Id>], standings: &[Standing]) -> Vec<ScoreParts> {
    let words = shares(list.iter().map(|one| Some(one.words)));
    let near = shares(list.iter().map(|one| one.cosine));
    let is_by_words = list.iter().any(|one| one.is_lexical);
    let is_by_meaning = list.iter().any(|one| one.is_near);
    let judged = list.iter().zip(standings).zip(words.into_iter().zip(near));
    let lowest = list.iter().filter_map(|one| one.judged).reduce(f64::min);
    judged
        .map(|((one, standing), (words, meaning_share))| {
            let words_share = words.unwrap_or(0.0);
            let (share, form) = match (is_by_words, is_by_meaning, meaning_share) {
                (true, true, Some(near)) => {
                    let share = (1.0 - VECTOR_SHARE) * words_share + VECTOR_SHARE * near;
                    (share, shape(*standing))
                }
                // It has no vector yet: its score by words counts in full.
                (true, true, None) => (words_share, shape(*standing)),
                (false, true, near) => (near.unwrap_or(0.0), 1.0),
                _ => (words_share, 1.0),
            };
            ScoreParts {
                words: one.words,
                cosine: one.cosine,
                words_share,
                meaning_share,
                form,
                // What a reranker was not asked stands behind all that it judged.
                fused: one.judged.unwrap_or(share * form * lowest.unwrap_or(1.0)),
                judged: one.judged,
                ..ScoreParts::default()
            }
        })
        .collect()
}

/// What the length and the form of a text make of its score.
fn shape(standing: Standing) -> f64 {
    let shortness = (-(standing.words as f64) / SHORTNESS_WORDS).exp();
    let question = if standing.is_question {
        QUESTION_FACTOR
    } else {
        1.0
    };
    (1.0 - SHORTNESS_LOSS * shortness) * question
}

/// The share that each score has of the best: from 0, which is nothing of the query or a cosine
/// that is not alike, to 1.
fn shares(scores: impl Iterator<Item = Option<f64>>) -> Vec<Option<f64>> {
    let scores: Vec<Option<f64>> = scores.collect();
    let best = scores.iter().flatten().copied().fold(COSINE_MIN, f64::max);
    // Where not even the best is alike, its order is still the best there is.
    let zero = if best > 0.0 { 0.0 } else { COSINE_MIN };
    let share = |score: f64| match best > zero {
        true => ((score - zero).max(0.0) / (best - zero)).min(1.0),
        false => 1.0,
    };
    scores.into_iter().map(|score| score.map(share)).collect()
}

/// The places from 1 of those that have a score, the best first.
fn ranks<Id: Ord + Clone>(
    list: &[Candidate<Id>],
    score: impl Fn(&Candidate<Id>) -> Option<f64>,
) -> Vec<Option<u32>> {
    let mut order: Vec<(usize, Ranked<Id>)> = list
        .iter()
        .enumerate()
        .filter_map(|(place, one)| {
            let ranked = Ranked {
                id: one.id.clone(),
                score: score(one)?,
                observed_at: one.observed_at,
            };
            Some((place, ranked))
        })
        .collect();
    order.sort_by(|(_, a), (_, b)| a.order(b));
    let mut ranks = vec![None; list.len()];
    for (rank, (place, _)) in (1_u32..).zip(order) {
        ranks[place] = Some(rank);
    }
    ranks
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
