//! Rank fusion: combines the lexical and the vector search into one ranking.
//!
//! Neighbors in the conversation, importance and age also affect the score. Scores are fused as
//! shares of the best score, not as reciprocal ranks: with ranks, two middling places beat a first
//! place won by a wide margin, and hybrid recall was worse than lexical recall alone.

use memoird_core::config::{AsText, Days, Problems};
use memoird_core::time::Timestamp;
use memoird_core::words::ranking::Judgement;
use serde::{Deserialize, Serialize};

use super::floor::SharedWords;
use super::{Memory, MemoryKind};

/// The lowest possible cosine.
const COSINE_MIN: f64 = -1.0;
const DAY_MS: f64 = 24.0 * 60.0 * 60.0 * 1_000.0;

/// A possible hit, with its scores in both searches.
///
/// A candidate that only one search found has the score of the other search as well.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub memory: Memory,
    /// Score, coverage and length in the lexical search. All 0 without any word of the query.
    pub words: Judgement,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidates {
    /// The best of both searches and their neighbors in the conversation, in no particular order.
    pub list: Vec<Candidate>,
    /// Indices of candidates that directly follow each other in a conversation, the first one first.
    pub said_after: Vec<(usize, usize)>,
    /// Approximate number of memories searched.
    pub searched: u64,
}

/// A ranked result of the fusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// Index of the candidate.
    pub place: usize,
    /// Final score, 0 or more.
    ///
    /// Up to 1 for the best in both searches, somewhat more next to another hit, times the factors
    /// for importance and age.
    pub score: f64,
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
    /// repeats the words of its question. `unrelated` is the cosine that the embedder assigns to
    /// unrelated texts, below 1. All scores must be finite.
    pub fn fuse(&self, candidates: &Candidates, unrelated: f64, now: Timestamp) -> Vec<Fused> {
        let list = &candidates.list;
        let mut parts = fused_scores(list, unrelated);
        for &(first, second) in &candidates.said_after {
            let asks = list[first].is_question() && list[first].words.words <= QUESTION_WORDS_MAX;
            let given = |one: usize, share: f64| {
                // Only candidates found by a search raise their neighbors.
                let is_found = list[one].is_lexical || list[one].is_near;
                if is_found {
                    parts[one].fused * share
                } else {
                    0.0
                }
            };
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
                let inherited = list[first].relevance(unrelated) * AFTER_QUESTION;
                parts[second].relevance = parts[second].relevance.max(inherited);
                parts[second].shared = list[second].shared.max(list[first].shared);
            }
        }
        for (parts, one) in parts.iter_mut().zip(list) {
            parts.importance = importance(one.memory.importance);
            parts.recency = self.recency(&one.memory, now);
        }
        let lexical = ranks(list, |_, one| one.is_lexical.then_some(one.words.score));
        let near = ranks(list, |_, one| one.cosine.filter(|_| one.is_near));
        best_first(list, |place, _| Some(parts[place].score()))
            .map(|place| Fused {
                place,
                score: parts[place].score(),
                lexical_rank: lexical[place],
                vector_rank: near[place],
                parts: parts[place],
            })
            .collect()
    }

    fn recency(&self, memory: &Memory, now: Timestamp) -> f64 {
        let days = memory.age_ms(now) as f64 / DAY_MS;
        let half_lives = days / self.days(memory.kind).max(f64::MIN_POSITIVE);
        RECENCY_FLOOR + (1.0 - RECENCY_FLOOR) * (-half_lives).exp2()
    }
}

impl Candidate {
    /// A candidate without scores.
    pub fn new(memory: Memory) -> Self {
        Self {
            memory,
            words: Judgement::default(),
            shared: None,
            cosine: None,
            is_lexical: false,
            is_near: false,
            judged: None,
        }
    }

    fn is_question(&self) -> bool {
        is_question(&self.memory.content)
    }

    /// Relevance to the query, from 0 to 1.
    ///
    /// It is independent of the other candidates, so that an unrelated query has a low best
    /// relevance. With a vector, it is the cosine rescaled so that unrelated memories have 0, plus a
    /// bonus for shared words. Without one, it is the share of the query that the words cover.
    fn relevance(&self, unrelated: f64) -> f64 {
        let Some(cosine) = self.cosine else {
            return self.words.coverage;
        };
        let rescaled = (cosine - unrelated) / (1.0 - unrelated);
        let words = self
            .shared
            .map_or(self.words.coverage, SharedWords::evidence);
        (rescaled + WORDS_BONUS * words).clamp(0.0, 1.0)
    }

    /// Factor for the length and the form of the text.
    fn form(&self) -> f64 {
        let shortness = (-(self.words.words as f64) / SHORTNESS_WORDS).exp();
        let question = if self.is_question() {
            QUESTION_FACTOR
        } else {
            1.0
        };
        (1.0 - SHORTNESS_LOSS * shortness) * question
    }
}

impl ScoreParts {
    fn score(&self) -> f64 {
        let factor = (self.importance * self.recency).max(f64::MIN_POSITIVE);
        (self.fused + self.beside) * factor
    }
}

fn importance(importance: f32) -> f64 {
    let importance = if importance.is_finite() {
        importance
    } else {
        0.5
    };
    let importance = f64::from(importance.clamp(0.0, 1.0));
    1.0 + IMPORTANCE_SPREAD * (importance - 0.5)
}

pub fn is_question(text: &str) -> bool {
    text.trim_end().ends_with(QUESTION_MARKS)
}

/// Computes the fused score of each candidate, from 0 to 1.
fn fused_scores(list: &[Candidate], unrelated: f64) -> Vec<ScoreParts> {
    let words = shares(list.iter().map(|one| Some(one.words.score)));
    let near = shares(list.iter().map(|one| one.cosine));
    let is_by_words = list.iter().any(|one| one.is_lexical);
    let is_by_meaning = list.iter().any(|one| one.is_near);
    let lowest = list.iter().filter_map(|one| one.judged).reduce(f64::min);
    list.iter()
        .zip(words.into_iter().zip(near))
        .map(|(one, (words, meaning_share))| {
            let words_share = words.unwrap_or(0.0);
            let (share, form) = match (is_by_words, is_by_meaning, meaning_share) {
                (true, true, Some(near)) => {
                    let share = (1.0 - VECTOR_SHARE) * words_share + VECTOR_SHARE * near;
                    (share, one.form())
                }
                // It has no vector yet, so its lexical score counts in full.
                (true, true, None) => (words_share, one.form()),
                (false, true, near) => (near.unwrap_or(0.0), 1.0),
                _ => (words_share, 1.0),
            };
            ScoreParts {
                words: one.words.score,
                cosine: one.cosine,
                words_share,
                meaning_share,
                form,
                // Candidates that the reranker did not judge rank below all that it judged.
                fused: one.judged.unwrap_or(share * form * lowest.unwrap_or(1.0)),
                judged: one.judged,
                coverage: one.words.coverage,
                shared: one.shared,
                relevance: one.relevance(unrelated),
                ..ScoreParts::default()
            }
        })
        .collect()
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

/// Indices of the candidates that have a score, best first.
///
/// Among equal scores the newer memory comes first, then the lower id, so that the order is
/// deterministic.
fn best_first(
    list: &[Candidate],
    score: impl Fn(usize, &Candidate) -> Option<f64>,
) -> impl Iterator<Item = usize> {
    let scored = list.iter().enumerate();
    let scored = scored.filter_map(|(place, one)| Some((score(place, one)?, &one.memory, place)));
    let mut scored: Vec<(f64, &Memory, usize)> = scored.collect();
    scored.sort_by(|(one, memory, _), (other, other_memory, _)| {
        let by_time = other_memory.observed_at.cmp(&memory.observed_at);
        let by_id = memory.id.cmp(&other_memory.id);
        other.total_cmp(one).then(by_time).then(by_id)
    });
    scored.into_iter().map(|(_, _, place)| place)
}

/// Ranks, from 1, of the candidates that have a score.
fn ranks(list: &[Candidate], score: impl Fn(usize, &Candidate) -> Option<f64>) -> Vec<Option<u32>> {
    let mut ranks = vec![None; list.len()];
    for (rank, place) in (1_u32..).zip(best_first(list, score)) {
        ranks[place] = Some(rank);
    }
    ranks
}

#[cfg(test)]
#[path = "fusion_tests.rs"]
mod tests;
