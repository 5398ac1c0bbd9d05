//! The dream sweep: which memories are used so much that they are pinned, which pins of its
//! own are used no more, and what an explicit policy lets go. Only planned here; a plan that
//! is carried out and made again at the same moment is empty.

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

/// How one memory is used. Only memories that a recall may return have evidence: those
/// that are superseded or expired are not considered.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    /// The memory.
    pub id: MemoryId,
    /// What it is about: retention is by kind.
    pub kind: MemoryKind,
    /// Who pinned it.
    pub pin: Option<Pin>,
    /// When it was last pinned or unpinned; `None`: never, or not known.
    pub pin_changed_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last changed, reinforced or merged into.
    pub updated_at: Timestamp,
    /// How often it was recalled, as far as events are kept.
    pub recalls: u64,
    /// By how many different queries.
    pub distinct_queries: u64,
    /// On how many different days.
    pub distinct_days: u64,
    /// When last.
    pub last_recall: Option<Timestamp>,
    /// How well it fitted on the average, from 0 to 1; what lies outside counts as the
    /// nearer of the two.
    pub mean_score: f64,
}

/// The thresholds and limits of a sweep.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsolidationSettings {
    /// Recalls, at least.
    pub min_recalls: u64,
    /// Different queries, at least.
    pub min_queries: u64,
    /// Different days, at least.
    pub min_days: u64,
    /// The score, at least; from 0 to 1.
    pub min_score: f64,
    /// Promotions of one sweep.
    pub max_promotions: usize,
    /// Days without a recall after which a sweep takes its pin away. At least 1.
    #[serde(rename = "unpin_after", with = "AsText::<Days>")]
    pub unpin_after_days: u64,
    /// Days without use after which a memory is deleted, by kind in the order of
    /// [`MemoryKind::ALL`]; `None`: never. At least 1.
    #[serde(rename = "retention", with = "retention")]
    pub retention_days: [Option<u64>; 4],
}

/// The decision of a sweep for one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Pins it.
    Promote,
    /// Takes its own pin away.
    Demote,
    /// Deletes it, by the policy.
    Delete,
    /// Leaves it as it is.
    Keep,
}

/// Why a memory is not promoted; with its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Gate {
    /// It is pinned already.
    #[serde(rename = "pinned already")]
    Pinned,
    /// Too few recalls.
    #[serde(rename = "too few recalls")]
    Recalls,
    /// Too few different queries.
    #[serde(rename = "too few queries")]
    Queries,
    /// Too few different days.
    #[serde(rename = "too few days")]
    Days,
    /// Its score is too low.
    #[serde(rename = "score too low")]
    Score,
    /// Its last recall is too long ago: the pin would be taken away again.
    #[serde(rename = "not used any more")]
    Unused,
    /// Others had a better score, and the limit of promotions was reached.
    #[serde(rename = "others were better")]
    Full,
}

/// How a decision came about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The memory.
    #[serde(serialize_with = "serialize_id")]
    pub id: MemoryId,
    /// The decision.
    pub decision: Decision,
    /// Its score, from 0 to 1.
    #[serde(serialize_with = "serialize_rounded")]
    pub score: f64,
    /// The components of the score.
    pub components: Components,
    /// The gates that it missed; empty: it passed all of them.
    pub missed: Vec<Gate>,
}

/// The changes that a sweep makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsolidationPlan {
    /// To be pinned by the dream, best first.
    pub promote: Vec<MemoryId>,
    /// Whose pin of the dream is to be taken away, by id.
    pub demote: Vec<MemoryId>,
    /// To be deleted, by id.
    pub delete: Vec<MemoryId>,
    /// Memories looked at.
    pub considered: u64,
    /// How many memories missed each gate; one that missed several counts at each.
    pub not_promoted: BTreeMap<Gate, u64>,
    /// The best [`EXPLANATIONS_MAX`]; changed memories come before unchanged ones.
    pub explanations: Vec<Explanation>,
}

/// Explanations of one plan.
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
    /// Adds its problems.
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

/// Days by kind are written as a mapping such as `{ project: 365d }`.
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

/// Plans a sweep at this moment.
///
/// A pin that was set at `now`, to the millisecond, is a promotion of this sweep: it counts
/// as one and stays, so that a sweep which is taken up again, or planned again, does not go
/// on to the next ones.
pub fn plan(
    evidence: &[Evidence],
    now: Timestamp,
    settings: &ConsolidationSettings,
) -> ConsolidationPlan {
    let mut judged: Vec<Explanation> = evidence
        .iter()
        .map(|one| settings.judge(one, now))
        .collect();
    // Best first; equal ones by id, so that the same evidence gives the same plan.
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
    // Stable: within each decision the best stay first.
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
    /// The decision for a memory, without the limit of promotions.
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

    /// True where a pin of a consolidation would be removed: an unused memory is neither pinned
    /// nor kept pinned, so that no sweep undoes another.
    fn is_unused(&self, one: &Evidence, score: f64, now: Timestamp) -> bool {
        let since = one.last_recall.map(|at| days_between(at, now));
        since.is_none_or(|days| days >= self.unpin_after_days.max(1))
            || score < self.min_score / 2.0
    }

    /// True when the policy of its kind lets it go. To be made, changed, recalled or
    /// unpinned is use: a sweep does not delete a memory that it has just unpinned.
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

/// Whole days of 24 hours from one moment to another; none when it is not later.
fn days_between(from: Timestamp, to: Timestamp) -> u64 {
    let seconds = to.seconds().saturating_sub(from.seconds());
    u64::try_from(seconds).unwrap_or(0) / 86_400
}

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

/// Writes an id as people know it.
fn serialize_id<S: Serializer>(id: &MemoryId, serializer: S) -> Result<S::Ok, S::Error> {
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
