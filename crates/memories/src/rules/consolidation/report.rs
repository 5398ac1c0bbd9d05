//! A plan as people read it.

use memoird_core::date::Date;
use memoird_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::{ConsolidationPlan, ConsolidationSettings, Decision, Explanation, Gate};

impl ConsolidationPlan {
    /// The plan in JSON: the numbers first, then why, in the order of the explanations. It is
    /// the same whether the plan is carried out or not.
    pub fn report(&self, now: Timestamp, settings: &ConsolidationSettings) -> Value {
        let below = &self.below;
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
            "not_promoted": {
                "pinned already": below.pinned,
                "too few recalls": below.recalls,
                "too few queries": below.queries,
                "too few days": below.days,
                "score too low": below.score,
                "not used any more": below.unused,
                "others were better": below.full,
            },
            "explanations": self.explanations.iter().map(Explanation::report).collect::<Vec<_>>(),
            "explanations_left_out": self.considered.saturating_sub(self.explanations.len() as u64),
        })
    }
}

impl Decision {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Demote => "demote",
            Self::Delete => "delete",
            Self::Keep => "keep",
        }
    }
}

impl Gate {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pinned => "pinned already",
            Self::Recalls => "too few recalls",
            Self::Queries => "too few queries",
            Self::Days => "too few days",
            Self::Score => "score too low",
            Self::Unused => "not used any more",
            Self::Full => "others were better",
        }
    }
}

impl Explanation {
    fn report(&self) -> Value {
        let mut object = Map::new();
        object.insert("id".to_owned(), self.id.to_string().into());
        object.insert("decision".to_owned(), self.decision.as_str().into());
        object.insert("score".to_owned(), rounded(self.score));
        let parts = &self.components;
        let components = json!({
            "frequency": rounded(parts.frequency),
            "relevance": rounded(parts.relevance),
            "recency": rounded(parts.recency),
            "diversity": rounded(parts.diversity),
            "consolidation": rounded(parts.consolidation),
        });
        object.insert("components".to_owned(), components);
        let missed: Vec<&str> = self.missed.iter().map(|gate| gate.as_str()).collect();
        object.insert("missed".to_owned(), json!(missed));
        Value::Object(object)
    }
}

/// Three digits are enough to compare, and can be read.
fn rounded(number: f64) -> Value {
    json!((number * 1_000.0).round() / 1_000.0)
}
