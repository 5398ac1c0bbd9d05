//! A plan as people read it.

use memoird_core::date::Date;
use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{ConsolidationPlan, ConsolidationSettings};

impl ConsolidationPlan {
    /// The plan in JSON: the numbers first, then why, in the order of the explanations. It is
    /// the same whether the plan is carried out or not.
    pub fn report(&self, now: Timestamp, settings: &ConsolidationSettings) -> Value {
        json!({
            "date": Date::of(now).to_string(),
            "considered": self.considered,
            "promoted": self.promote.len(),
            "demoted": self.demote.len(),
            "deleted": self.delete.len(),
            "gates": {
                "recalls": settings.recalls_min,
                "queries": settings.queries_min,
                "days": settings.days_min,
                "score": rounded(settings.score_min),
                "promotions": settings.promotions_max,
                "unpin_after_days": settings.unpin_after_days,
            },
            "not_promoted": self.not_promoted,
            "explanations": self.explanations,
            "explanations_left_out": self.considered.saturating_sub(self.explanations.len() as u64),
        })
    }
}

/// Writes an id as people know it.
pub(super) fn serialize_id<S: Serializer>(id: &MemoryId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

/// Writes a number with three digits.
pub(super) fn serialize_rounded<S: Serializer>(
    number: &f64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    rounded(*number).serialize(serializer)
}

/// Three digits are enough to compare, and can be read.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}
