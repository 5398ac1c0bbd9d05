//! Rank fusion: combines the lexical and the vector search into one ranking.
//!
//! Neighbors in the conversation, importance and age also affect the score. Scores are fused as
//! shares of the best score, not as reciprocal ranks: with ranks, two middling places beat a first
//! place won by a wide margin, and hybrid recall was worse than lexical recall alone.

use std::cmp::Ordering;

use memoird_core::config::{AsText, Days, Problems};
use memoird_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::MemoryKind;
use super::floor::SharedWords;

/// The lowest possible cosine.
const COSINE_MIN: f64 = -1.0;
const DAY_MS: f64 = 24.0 * 60.0 * 60.0 * 1_000.0;

/// A memory with a score.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked<Id> {
    pub id: Id,
    /// Lexical score (0 or more), cosine (-1 to 1) or fused score. Must be finite to be ranked.
    pub score: f64,
    /// Breaks ties: the newer memory comes first.
    pub observed_at: Timestamp,
}

/// A possible hit, with its scores in both searches.
///
/// A candidate that only one search found has the score of the other search as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate<Id> {
    pub id: Id,
    /// Breaks ties: the newer memory comes first.
    pub observed_at: Timestamp,
    /// Lexical score: 0 or more, and 0 without any word of the query.
    pub words: f64,
    /// Share of the query's term weight that its words cover, from 0 to 1.
    pub coverage: f64,
    /// Content words shared with the query. `None` if the query's content words are unknown.
    pub shared: Option<SharedWords>,
    /// Cosine to the query, from -1 to 1.
    ///
    /// `None` without vector search, and for a memory without a vector.
    pub cosine: Option<f64>,
    /// Whether it is among the best of the lexical search.
    pub is_lexical: bool,
    /// Whether it is among the best of the vector search.
    pub is_near: bool,
    /// Score of the reranker from 0 to 1. `None` if the reranker did not judge it.
    pub judged: Option<f64>,
}

/// Input of the fusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates<Id> {
    /// The best of both searches and their neighbors in the conversation, in no particular order.
    pub list: Vec<Candidate<Id>>,
    /// Pairs of candidates that directly follow each other in a conversation, the first one first.
    pub said_after: Vec<(Id, Id)>,
    /// Cosine that the embedder assigns to unrelated texts, below 1.
    pub unrelated: f64,
}

/// A ranked result of the fusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused<Id> {
    /// The memory with its final score, 0 or more.
    ///
    /// The score is up to 1 for the best in both searches, somewhat more next to another hit, times
    /// [`HalfLives::factor`].
    pub ranked: Ranked<Id>,
    /// Rank in the lexical search, from 1. `None` if it was not among the best.
    pub lexical_rank: Option<u32>,
    /// Rank in the vector search, from 1. `None` if it was not among the best.
    pub vector_rank: Option<u32>,
    pub parts: ScoreParts,
}

/// Components of a score, which is (`fused` + `beside`) × `importance` × `recency`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreParts {
    /// Lexical score, 0 or more.
    pub words: f64,
    /// Cosine to the query, from -1 to 1.
    pub cosine: Option<f64>,
    /// Lexical score relative to the best one, from 0 to 1.
    pub words_share: f64,
    /// Cosine relative to the best one, from 0 to 1.
    pub meaning_share: Option<f64>,
    /// Factor for length and form.
    pub form: f64,
    /// Weighted sum of both shares times `form`. With a reranker, its score.
    pub fused: f64,
    /// Bonus from the memories stated directly before and after it.
    pub beside: f64,
    pub importance: f64,
    pub recency: f64,
    /// Score of the reranker from 0 to 1. If set, `fused` is the same.
    pub judged: Option<f64>,
    /// Share of the query's term weight that its words cover, from 0 to 1.
    pub coverage: f64,
    /// Content words shared with the query, by itself or by the question that it follows.
    pub shared: Option<SharedWords>,
    /// Relevance to the query from 0 to 1, independent of the other hits.
    ///
    /// The reply to a relevant question inherits part of the question's relevance.
    pub relevance: f64,
}

/// Properties of a memory that affect its score for any query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    pub kind: MemoryKind,
    /// From 0 to 1.
    pub importance: f32,
    /// Age in milliseconds. Negative ages count as 0.
    pub age_ms: i64,
    pub words: usize,
    pub is_question: bool,
}

/// Days in which half of the maximum age penalty is reached, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HalfLives {
    #[serde(rename = "user", with = "AsText::<Days>")]
    pub user_days: f64,
    #[serde(rename = "feedback", with = "AsText::<Days>")]
    pub feedback_days: f64,
    #[serde(rename = "project", with = "AsText::<Days>")]
    pub project_days: f64,
    #[serde(rename = "reference", with = "AsText::<Days>")]
    pub reference_days: f64,
}

/// Weight of the vector search, from 0 to 1. The lexical search has the rest.
const VECTOR_SHARE: f64 = 0.45;
/// Maximum relevance that shared words add to a cosine.
const WORDS_BONUS: f64 = 0.3;
/// Maximum share of its score that a short text loses in hybrid search.
///
/// A few words have a high cosine to almost anything.
const SHORTNESS_LOSS: f64 = 0.3;
/// Number of words at which that loss has fallen to 1/e.
const SHORTNESS_WORDS: f64 = 10.0;
const QUESTION_MARKS: [char; 5] = ['?', '？', '؟', '\u{37e}', '՞'];
/// Factor of a question in hybrid search.
///
/// It shares words and meaning with the query, but does not contain the answer.
const QUESTION_FACTOR: f64 = 0.9;
/// Share of its score that a question passes to the memory stated directly after it.
const AFTER_QUESTION: f64 = 0.75;
/// The same share of a memory that is not a question.
const AFTER: f64 = 0.2;
/// Maximum length of a question in words. A longer text that ends with one mostly states something.
const QUESTION_WORDS_MAX: usize = 40;
/// Share of its score that a memory passes to the one stated directly before it.
const BEFORE: f64 = 0.1;
/// Difference between the factors of the most and the least important memory.
///
/// The middle has factor 1.
///
/// Importance and age together reduce a score by at most about a third. They decide between answers
/// of similar relevance, and never lift a barely relevant one above a clearly relevant one.
const IMPORTANCE_SPREAD: f64 = 0.2;
/// Minimum factor for age.
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
    pub fn check(&self, problems: &mut Problems) {
        for kind in MemoryKind::ALL {
            let is_good = self.days(kind) > 0.0;
            problems.unless(is_good, kind.as_str(), "must be more than zero");
        }
    }

    /// Half-life of a kind, in days.
    pub fn days(&self, kind: MemoryKind) -> f64 {
        match kind {
            MemoryKind::User => self.user_days,
            MemoryKind::Feedback => self.feedback_days,
            MemoryKind::Project => self.project_days,
            MemoryKind::Reference => self.reference_days,
        }
    }

    /// Fuses candidates into one list, best first. Ties are broken by age, newer first, then by id.
    ///
    /// Scores become shares of the best score, and the shares are added by weight: the convex
    /// combination of "An analysis of fusion functions for hybrid retrieval" (S. Bruch, S. Gai and
    /// A. Ingber, 2023). Every candidate has its score in both searches, so missing from one list
    /// does not mean zero. Reciprocal ranks (G. Cormack, C. Clarke and S. Büttcher, 2009) ignore by
    /// how much the first place leads.
    ///
    /// A good hit raises the score of its neighbors in the conversation, because an answer seldom
    /// repeats the words of its question. `standing` is called once per memory.
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
            parts.shared = one.shared;
            parts.relevance = relevance(one, candidates.unrelated);
        }
        let place = |id: &Id| list.binary_search_by(|one| one.id.cmp(id)).ok();
        for (first, second) in &candidates.said_after {
            let (Some(first), Some(second)) = (place(first), place(second)) else {
                continue;
            };
            let asks = standings[first].is_question && standings[first].words <= QUESTION_WORDS_MAX;
            let given = |one: usize, share: f64| found(&list[one], parts[one].fused) * share;
            // Only the answer to a question may outrank its neighbor.
            let up_to = |one: usize, other: usize| (parts[one].fused - parts[other].fused).max(0.0);
            let to_first = given(second, BEFORE).min(up_to(second, first));
            let to_second = if asks {
                given(first, AFTER_QUESTION)
            } else {
                given(first, AFTER).min(up_to(first, second))
            };
            parts[first].beside = parts[first].beside.max(to_first);
            parts[second].beside = parts[second].beside.max(to_second);
            if asks {
                let inherited = relevance(&list[first], candidates.unrelated) * AFTER_QUESTION;
                parts[second].relevance = parts[second].relevance.max(inherited);
                parts[second].shared = list[second].shared.max(list[first].shared);
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

    /// Factor above 0 for importance and age.
    ///
    /// It is equal for memories of the same kind, importance and age, so it changes no order among
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

pub fn is_question(text: &str) -> bool {
    text.trim_end().ends_with(QUESTION_MARKS)
}

/// Score that a candidate passes to its neighbors: 0 unless a search found the candidate itself.
fn found<Id>(one: &Candidate<Id>, fused: f64) -> f64 {
    if one.is_lexical || one.is_near {
        fused
    } else {
        0.0
    }
}

/// Relevance of a candidate to the query, from 0 to 1.
///
/// It is independent of the other candidates, so that an unrelated query has a low best relevance.
/// With a vector, it is the cosine rescaled so that unrelated memories have 0, plus a bonus for
/// shared words. Without one, it is the share of the query that the words cover.
fn relevance<Id>(one: &Candidate<Id>, unrelated: f64) -> f64 {
    let Some(cosine) = one.cosine else {
        return one.coverage;
    };
    let rescaled = (cosine - unrelated) / (1.0 - unrelated);
    let words = one.shared.map_or(one.coverage, SharedWords::evidence);
    (rescaled + WORDS_BONUS * words).clamp(0.0, 1.0)
}

/// Computes the fused score of each candidate, from 0 to 1.
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
                // It has no vector yet, so its lexical score counts in full.
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
                // Candidates that the reranker did not judge rank below all that it judged.
                fused: one.judged.unwrap_or(share * form * lowest.unwrap_or(1.0)),
                judged: one.judged,
                ..ScoreParts::default()
            }
        })
        .collect()
}

/// Factor for the length and the form of a text.
fn shape(standing: Standing) -> f64 {
    let shortness = (-(standing.words as f64) / SHORTNESS_WORDS).exp();
    let question = if standing.is_question {
        QUESTION_FACTOR
    } else {
        1.0
    };
    (1.0 - SHORTNESS_LOSS * shortness) * question
}

/// Scores relative to the best one.
///
/// 0 means none of the query's words, or a cosine of at most 0; 1 is the best.
fn shares(scores: impl Iterator<Item = Option<f64>>) -> Vec<Option<f64>> {
    let scores: Vec<Option<f64>> = scores.collect();
    let best = scores.iter().flatten().copied().fold(COSINE_MIN, f64::max);
    // If even the best cosine is not positive, keep the order by scaling from the lowest possible
    // one.
    let zero = if best > 0.0 { 0.0 } else { COSINE_MIN };
    let share = |score: f64| {
        if best > zero {
            ((score - zero).max(0.0) / (best - zero)).min(1.0)
        } else {
            1.0
        }
    };
    scores.into_iter().map(|score| score.map(share)).collect()
}

/// Ranks, from 1, of the candidates that have a score.
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
    /// Orders by score, then newer first, then by id, so that the order is deterministic.
    fn order(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        let by_time = other.observed_at.cmp(&self.observed_at);
        by_score.then(by_time).then(self.id.cmp(&other.id))
    }
}

#[cfg(test)]
#[path = "fusion_tests.rs"]
mod tests;
