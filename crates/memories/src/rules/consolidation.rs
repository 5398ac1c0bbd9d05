//! Planning of the consolidation ("dream") sweep.
//!
//! A plan pins memories that are used a lot, removes pins set by earlier sweeps from memories no
//! longer used, and deletes what the retention policy no longer keeps. Planning changes nothing. It
//! is idempotent: after a plan was carried out, planning again with the same `now` returns an empty
//! plan.

mod score;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::{MemoryKind, Pin};
use memoird_core::config::{AsText, Days, Problems, Unit};
use memoird_core::date::Date;
use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;

pub use score::{Components, components};

/// Evidence of the use of one memory.
///
/// Only current memories have evidence: superseded and expired ones are not considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    pub id: MemoryId,
    /// Retention depends on the kind.
    pub kind: MemoryKind,
    /// Set if the bot or a consolidation pinned it.
    pub pin: Option<Pin>,
    /// Time of the last pin or unpin. `None` if it never happened or is unknown.
    pub pin_changed_at: Option<Timestamp>,
    pub created_at: Timestamp,
    /// Time of the last change, reinforcement or merge.
    pub updated_at: Timestamp,
    /// Number of recalls among the stored events.
    pub recalls: u64,
    /// Number of distinct queries of these recalls.
    pub distinct_queries: u64,
    /// Number of distinct days of these recalls.
    pub distinct_days: u64,
    pub last_recall: Option<Timestamp>,
    /// Mean score of these recalls, from 0 to 1. Values outside are clamped.
    pub mean_score: f64,
}

/// Limits of a sweep, and minimums for a promotion.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsolidationSettings {
    pub min_recalls: u64,
    pub min_queries: u64,
    pub min_days: u64,
    /// From 0 to 1.
    pub min_score: f64,
    pub max_promotions: usize,
    /// Days without a recall after which a sweep removes a pin it set. At least 1.
    #[serde(rename = "unpin_after", with = "AsText::<Days>")]
    pub unpin_after_days: u64,
    /// Days without use after which a memory is deleted. `None` for never. At least 1.
    ///
    /// By kind, in the order of [`MemoryKind::ALL`].
    #[serde(rename = "retention", with = "retention")]
    pub retention_days: [Option<u64>; 4],
}

/// Decision of a sweep about one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Pin it.
    Promote,
    /// Remove a pin set by an earlier sweep.
    Demote,
    /// Delete it by the retention policy.
    Delete,
    Keep,
}

/// Reason why a memory is not promoted. The serialized names appear in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Gate {
    #[serde(rename = "pinned already")]
    Pinned,
    #[serde(rename = "too few recalls")]
    Recalls,
    #[serde(rename = "too few queries")]
    Queries,
    #[serde(rename = "too few days")]
    Days,
    #[serde(rename = "score too low")]
    Score,
    /// The last recall is too long ago, so the pin would be removed again.
    #[serde(rename = "not used any more")]
    Unused,
    /// Other memories had a better score and used up the promotions of the sweep.
    #[serde(rename = "others were better")]
    Full,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    #[serde(serialize_with = "serialize_id")]
    pub id: MemoryId,
    pub decision: Decision,
    /// From 0 to 1.
    #[serde(serialize_with = "serialize_rounded")]
    pub score: f64,
    pub components: Components,
    /// Gates that it failed. Empty if it passed all of them.
    pub missed: Vec<Gate>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsolidationPlan {
    /// Memories to pin, best first.
    pub promote: Vec<MemoryId>,
    /// Memories to unpin, by id.
    pub demote: Vec<MemoryId>,
    /// Memories to delete, by id.
    pub delete: Vec<MemoryId>,
    pub considered: u64,
    /// Number of memories that failed each gate. A memory counts once per gate it failed.
    pub not_promoted: BTreeMap<Gate, u64>,
    /// The best [`EXPLANATIONS_MAX`], with changed memories before unchanged ones.
    pub explanations: Vec<Explanation>,
}

pub const EXPLANATIONS_MAX: usize = 100;

impl Default for ConsolidationSettings {
    fn default() -> Self {
        Self {
            min_recalls: 3,
            min_queries: 2,
            min_days: 2,
            min_score: 0.35,
            max_promotions: 20,
            unpin_after_days: 60,
            retention_days: [None; 4],
        }
    }
}

impl ConsolidationSettings {
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("min_recalls", self.min_recalls);
        problems.at_least_one("min_queries", self.min_queries);
        problems.at_least_one("min_days", self.min_days);
        let is_score = (0.0..=1.0).contains(&self.min_score);
        problems.unless(is_score, "min_score", "must be 0 to 1");
        let more = "must be more than zero";
        problems.unless(self.unpin_after_days > 0, "unpin_after", more);
        for (kind, days) in MemoryKind::ALL.into_iter().zip(self.retention_days) {
            let key = format!("retention.{}", kind.as_str());
            problems.unless(days != Some(0), &key, more);
        }
    }
}

/// Serializes days by kind as a mapping such as `{ project: 365d }`.
mod retention {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        days: &[Option<u64>; 4],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let days = MemoryKind::ALL.into_iter().zip(days);
        serializer
            .collect_map(days.filter_map(|(kind, days)| Some((kind, Days::format(days.as_ref()?)))))
    }

    #[derive(Deserialize)]
    struct Kept(#[serde(with = "AsText::<Days>")] u64);

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[Option<u64>; 4], D::Error> {
        let by_kind = BTreeMap::<MemoryKind, Kept>::deserialize(deserializer)?;
        Ok(MemoryKind::ALL.map(|kind| by_kind.get(&kind).map(|kept| kept.0)))
    }
}

/// Plans a sweep at `now`.
///
/// A consolidation pin set exactly at `now`, to the millisecond, is a promotion of this same sweep.
/// It counts toward the limit of promotions and stays. A sweep that is resumed or planned again
/// therefore does not promote further memories.
pub fn plan(
    evidence: &[Evidence],
    now: Timestamp,
    settings: &ConsolidationSettings,
) -> ConsolidationPlan {
    let mut judged: Vec<Explanation> = evidence
        .iter()
        .map(|one| settings.judge(one, now))
        .collect();
    // Ties are broken by id, so that equal evidence results in an equal plan.
    judged.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    let done = evidence
        .iter()
        .filter(|one| one.is_promoted_at(now))
        .count();
    let mut left = settings.max_promotions.saturating_sub(done);
    for one in judged
        .iter_mut()
        .filter(|one| one.decision == Decision::Promote)
    {
        if left == 0 {
            (one.decision, one.missed) = (Decision::Keep, vec![Gate::Full]);
        }
        left = left.saturating_sub(1);
    }
    let ids = |decision| -> Vec<MemoryId> {
        judged
            .iter()
            .filter(|one| one.decision == decision)
            .map(|one| one.id)
            .collect()
    };
    let sorted = |mut ids: Vec<MemoryId>| {
        ids.sort_unstable();
        ids
    };
    let mut plan = ConsolidationPlan {
        promote: ids(Decision::Promote),
        demote: sorted(ids(Decision::Demote)),
        delete: sorted(ids(Decision::Delete)),
        considered: judged.len() as u64,
        not_promoted: Gate::ALL.map(|gate| (gate, 0)).into(),
        explanations: Vec::new(),
    };
    for gate in judged.iter().flat_map(|one| &one.missed) {
        *plan.not_promoted.entry(*gate).or_default() += 1;
    }
    // The sort is stable: within each decision the best stay first.
    judged.sort_by_key(|one| one.decision);
    judged.truncate(EXPLANATIONS_MAX);
    plan.explanations = judged;
    plan
}

impl Gate {
    const ALL: [Self; 7] = [
        Self::Pinned,
        Self::Recalls,
        Self::Queries,
        Self::Days,
        Self::Score,
        Self::Unused,
        Self::Full,
    ];
}

impl ConsolidationSettings {
    /// Decides about one memory, before the limit on promotions applies.
    fn judge(&self, one: &Evidence, now: Timestamp) -> Explanation {
        let components = components(one, now);
        let score = components.score();
        let missed = self.missed(one, score, now);
        let decision = match one.pin {
            Some(Pin::Consolidation) if one.is_promoted_at(now) => Decision::Keep,
            Some(Pin::Consolidation) if self.is_unused(one, score, now) => Decision::Demote,
            None if missed.is_empty() => Decision::Promote,
            None if self.is_over(one, now) => Decision::Delete,
            _ => Decision::Keep,
        };
        Explanation {
            id: one.id,
            decision,
            score,
            components,
            missed,
        }
    }

    fn missed(&self, one: &Evidence, score: f64, now: Timestamp) -> Vec<Gate> {
        let gates = [
            (one.pin.is_some(), Gate::Pinned),
            (one.recalls < self.min_recalls, Gate::Recalls),
            (one.distinct_queries < self.min_queries, Gate::Queries),
            (one.distinct_days < self.min_days, Gate::Days),
            (score < self.min_score, Gate::Score),
            (self.is_unused(one, score, now), Gate::Unused),
        ];
        gates
            .into_iter()
            .filter(|(is_missed, _)| *is_missed)
            .map(|(_, gate)| gate)
            .collect()
    }

    /// Whether a consolidation pin would be removed.
    ///
    /// Promotion uses the same test, so that a sweep never undoes the decision of another.
    fn is_unused(&self, one: &Evidence, score: f64, now: Timestamp) -> bool {
        let since = one.last_recall.map(|at| days_between(at, now));
        since.is_none_or(|days| days >= self.unpin_after_days.max(1))
            || score < self.min_score / 2.0
    }

    /// Whether the retention policy deletes it.
    ///
    /// Creating, changing, recalling and unpinning count as use. A sweep therefore does not delete
    /// a memory that it has just unpinned.
    fn is_over(&self, one: &Evidence, now: Timestamp) -> bool {
        let index = MemoryKind::ALL.iter().position(|kind| *kind == one.kind);
        let days = index.and_then(|index| self.retention_days[index]);
        let used = [one.last_recall, one.pin_changed_at].into_iter().flatten();
        let used = used.fold(one.created_at.max(one.updated_at), Timestamp::max);
        days.is_some_and(|days| days_between(used, now) >= days.max(1))
    }
}

impl Evidence {
    fn is_promoted_at(&self, now: Timestamp) -> bool {
        let changed_at = self.pin_changed_at.map(Timestamp::as_ms);
        self.pin == Some(Pin::Consolidation) && changed_at == Some(now.as_ms())
    }
}

/// Whole days of 24 hours between two times; 0 if `to` is not later.
fn days_between(from: Timestamp, to: Timestamp) -> u64 {
    let seconds = to.seconds().saturating_sub(from.seconds());
    u64::try_from(seconds).unwrap_or(0) / 86_400
}

impl ConsolidationPlan {
    /// Returns the plan as JSON: counts first, then the explanations in order.
    ///
    /// The report does not depend on whether the plan is carried out.
    pub fn report(&self, now: Timestamp, settings: &ConsolidationSettings) -> Value {
        json!({
            "date": Date::from_timestamp(now).to_string(),
            "considered": self.considered,
            "promoted": self.promote.len(),
            "demoted": self.demote.len(),
            "deleted": self.delete.len(),
            "gates": {
                "recalls": settings.min_recalls,
                "queries": settings.min_queries,
                "days": settings.min_days,
                "score": rounded(settings.min_score),
                "promotions": settings.max_promotions,
                "unpin_after_days": settings.unpin_after_days,
            },
            "not_promoted": self.not_promoted,
            "explanations": self.explanations,
            "explanations_left_out": self.considered.saturating_sub(self.explanations.len() as u64),
        })
    }
}

fn serialize_id<S: Serializer>(id: &MemoryId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

pub(super) fn serialize_rounded<S: Serializer>(
    number: &f64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    rounded(*number).serialize(serializer)
}

/// Rounds to three decimals, for readable reports.
fn rounded(number: f64) -> f64 {
    (number * 1_000.0).round() / 1_000.0
}
