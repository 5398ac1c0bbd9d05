//! Usage score of a memory.

use memoird_core::time::Timestamp;
use serde::Serialize;

use super::{Evidence, serialize_rounded};

/// Components of a score, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Components {
    /// Number of recalls: `ln(1 + recalls) / ln(1 + 10)`.
    ///
    /// Grows most with the first ones and is full at 10.
    #[serde(serialize_with = "serialize_rounded")]
    pub frequency: f64,
    /// Mean score of the recalls.
    #[serde(serialize_with = "serialize_rounded")]
    pub relevance: f64,
    /// Time since the last recall. Halves every 14 days.
    #[serde(serialize_with = "serialize_rounded")]
    pub recency: f64,
    /// Distinct queries: `ln(1 + queries) / ln(1 + 5)`.
    #[serde(serialize_with = "serialize_rounded")]
    pub diversity: f64,
    /// Distinct days: `ln(1 + days) / ln(1 + 7)`.
    #[serde(serialize_with = "serialize_rounded")]
    pub consolidation: f64,
}

/// Weights of frequency, relevance, recency, diversity and consolidation.
///
/// They are those of OpenClaw's "dreaming", without its sixth component, conceptual richness (.06),
/// which only a model could judge.
const WEIGHTS: [f64; 5] = [0.24, 0.30, 0.15, 0.15, 0.10];

/// Number of recalls for full frequency.
const RECALLS_FULL: u32 = 10;
const QUERIES_FULL: u32 = 5;
const DAYS_FULL: u32 = 7;
/// Half-life of recency in days, as in OpenClaw.
const HALF_LIFE_DAYS: f64 = 14.0;

pub fn components(one: &Evidence, now: Timestamp) -> Components {
    let ms = |at: Timestamp| now.as_ms().saturating_sub(at.as_ms()).max(0) as f64;
    let days = one.last_recall.map(|at| ms(at) / 86_400_000.0);
    let relevance = if one.mean_score.is_nan() {
        0.0
    } else {
        one.mean_score.clamp(0.0, 1.0)
    };
    Components {
        frequency: saturating(one.recalls, RECALLS_FULL),
        relevance,
        recency: days.map_or(0.0, |days| (-days / HALF_LIFE_DAYS).exp2()),
        diversity: saturating(one.distinct_queries, QUERIES_FULL),
        consolidation: saturating(one.distinct_days, DAYS_FULL),
    }
}

/// Maps a count logarithmically to 0..=1. Counts from `full` on map to 1.
fn saturating(count: u64, full: u32) -> f64 {
    let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX).min(full));
    count.ln_1p() / f64::from(full).ln_1p()
}

impl Components {
    /// Weighted mean of the components, from 0 to 1.
    pub fn score(&self) -> f64 {
        let parts = [
            self.frequency,
            self.relevance,
            self.recency,
            self.diversity,
            self.consolidation,
        ];
        let weighed: f64 = parts
            .iter()
            .zip(WEIGHTS)
            .map(|(part, weight)| part * weight)
            .sum();
        (weighed / WEIGHTS.iter().sum::<f64>()).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_saturate() {
        assert_eq!(saturating(0, 10), 0.0);
        assert!((saturating(1, 10) - 0.289).abs() < 0.001);
        assert!((saturating(3, 10) - 0.578).abs() < 0.001);
        assert_eq!(saturating(10, 10), 1.0);
        assert_eq!(saturating(u64::MAX, 10), 1.0);
    }

    #[test]
    fn score_is_weighted_mean_of_components() {
        let all = |part| Components {
            frequency: part,
            relevance: part,
            recency: part,
            diversity: part,
            consolidation: part,
        };
        assert!((all(0.4).score() - 0.4).abs() < 1e-12);
        assert_eq!((all(0.0).score(), all(1.0).score()), (0.0, 1.0));
        let relevant = Components {
            relevance: 1.0,
            ..all(0.0)
        };
        assert!((relevant.score() - 0.30 / 0.94).abs() < 1e-12);
        let recent = Components {
            recency: 1.0,
            ..all(0.0)
        };
        assert!((recent.score() - 0.15 / 0.94).abs() < 1e-12);
    }
}
