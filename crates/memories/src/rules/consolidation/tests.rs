//! Plans of consolidation sweeps, without a store.

use memoird_core::date::Date;
use proptest::prelude::*;

use super::*;

const DAY: i64 = 86_400;
const NOW: i64 = 20_000 * DAY + 3_600;

fn days_ago(days: i64) -> Timestamp {
    Timestamp::new(NOW - days * DAY, 0).unwrap()
}

fn now() -> Timestamp {
    days_ago(0)
}

/// Evidence that passes every gate.
fn used(number: u128) -> Evidence {
    Evidence {
        id: MemoryId::new(0, number),
        kind: MemoryKind::Project,
        pin: None,
        pin_changed_at: None,
        created_at: days_ago(100),
        updated_at: days_ago(100),
        recalls: 6,
        distinct_queries: 3,
        distinct_days: 3,
        last_recall: Some(days_ago(1)),
        mean_score: 0.7,
    }
}

fn planned(evidence: &[Evidence]) -> ConsolidationPlan {
    plan(evidence, now(), &ConsolidationSettings::default())
}

impl ConsolidationPlan {
    /// Whether the plan changes nothing.
    fn is_empty(&self) -> bool {
        self.promote.is_empty() && self.demote.is_empty() && self.delete.is_empty()
    }
}

/// Evidence after the store has carried out a plan.
fn carried_out(evidence: &[Evidence], plan: &ConsolidationPlan, now: Timestamp) -> Vec<Evidence> {
    let pinned = |mut one: Evidence| {
        if plan.promote.contains(&one.id) {
            (one.pin, one.pin_changed_at) = (Some(Pin::Consolidation), Some(now));
        } else if plan.demote.contains(&one.id) {
            (one.pin, one.pin_changed_at) = (None, Some(now));
        }
        one
    };
    let kept = evidence
        .iter()
        .filter(|one| !plan.delete.contains(&one.id))
        .cloned();
    kept.map(pinned).collect()
}

#[test]
fn every_gate_must_pass_for_promotion() {
    assert_eq!(planned(&[used(1)]).promote, [MemoryId::new(0, 1)]);
    type Spoil = fn(&mut Evidence);
    let spoiled: [(Gate, Spoil); 7] = [
        (Gate::Recalls, |one| one.recalls = 2),
        (Gate::Queries, |one| one.distinct_queries = 1),
        (Gate::Days, |one| one.distinct_days = 1),
        (Gate::Score, |one| {
            (one.mean_score, one.last_recall) = (f64::NAN, Some(days_ago(59)));
        }),
        (Gate::Unused, |one| one.last_recall = Some(days_ago(60))),
        (Gate::Unused, |one| one.last_recall = None),
        (Gate::Pinned, |one| one.pin = Some(Pin::Bot)),
    ];
    for (gate, spoil) in spoiled {
        let mut one = used(1);
        (one.recalls, one.distinct_queries, one.distinct_days) = (3, 2, 2);
        spoil(&mut one);
        let plan = planned(&[one]);
        assert!(plan.is_empty(), "{gate:?}");
        assert_eq!(plan.explanations[0].missed, [gate]);
        assert_eq!(plan.explanations[0].decision, Decision::Keep);
    }
}

#[test]
fn best_twenty_are_promoted_with_ties_by_id() {
    let mut evidence: Vec<Evidence> = (0..30).rev().map(used).collect();
    evidence[3].mean_score = 0.9;
    let best = evidence[3].id;
    let plan = planned(&evidence);
    let expected = std::iter::once(best).chain((0..19).map(|number| MemoryId::new(0, number)));
    assert_eq!(plan.promote, expected.collect::<Vec<_>>());
    assert_eq!((plan.considered, plan.not_promoted[&Gate::Full]), (30, 10));
    // The next sweep pins the others. The same sweep does not.
    let after = carried_out(&evidence, &plan, now());
    assert!(planned(&after).is_empty());
    let tomorrow = days_ago(-1);
    assert_eq!(
        super::plan(&after, tomorrow, &ConsolidationSettings::default())
            .promote
            .len(),
        10
    );
}

#[test]
fn sweep_removes_only_its_own_unused_pins() {
    let pinned = |number, pin, last_recall| Evidence {
        pin: Some(pin),
        pin_changed_at: Some(days_ago(70)),
        last_recall,
        ..used(number)
    };
    let evidence = [
        pinned(1, Pin::Consolidation, Some(days_ago(61))),
        pinned(2, Pin::Consolidation, Some(days_ago(59))),
        pinned(3, Pin::Bot, Some(days_ago(400))),
        pinned(4, Pin::Consolidation, None),
        Evidence {
            recalls: 1,
            mean_score: 0.0,
            ..pinned(5, Pin::Consolidation, Some(days_ago(50)))
        },
    ];
    let evidence = evidence.map(|one| match one.recalls {
        1 => Evidence {
            distinct_queries: 0,
            distinct_days: 0,
            ..one
        },
        _ => one,
    });
    let plan = planned(&evidence);
    assert_eq!(
        plan.demote,
        [1, 4, 5].map(|number| MemoryId::new(0, number))
    );
    assert!(plan.promote.is_empty() && plan.delete.is_empty());
}

#[test]
fn only_retention_of_its_kind_deletes_a_memory() {
    let unused = |number, kind, days| Evidence {
        kind,
        created_at: days_ago(days),
        updated_at: days_ago(days),
        recalls: 0,
        distinct_queries: 0,
        distinct_days: 0,
        last_recall: None,
        ..used(number)
    };
    let mut evidence = vec![
        unused(1, MemoryKind::Project, 30),
        unused(2, MemoryKind::Project, 29),
        unused(3, MemoryKind::User, 9_999),
        Evidence {
            last_recall: Some(days_ago(5)),
            ..unused(4, MemoryKind::Project, 99)
        },
        Evidence {
            updated_at: days_ago(5),
            ..unused(5, MemoryKind::Project, 99)
        },
        Evidence {
            pin: Some(Pin::Bot),
            ..unused(6, MemoryKind::Project, 99)
        },
        Evidence {
            pin: Some(Pin::Consolidation),
            ..unused(7, MemoryKind::Project, 99)
        },
        Evidence {
            created_at: days_ago(-9),
            ..unused(8, MemoryKind::Project, 99)
        },
    ];
    assert!(planned(&evidence).delete.is_empty());
    let mut settings = ConsolidationSettings::default();
    settings.retention_days[2] = Some(30);
    let first = plan(&evidence, now(), &settings);
    assert_eq!(first.delete, [MemoryId::new(0, 1)]);
    assert_eq!(
        first.demote,
        [MemoryId::new(0, 7)],
        "unpinned, not deleted at once"
    );
    evidence = carried_out(&evidence, &first, now());
    assert!(plan(&evidence, now(), &settings).is_empty());
    assert_eq!(plan(&evidence, days_ago(-30), &settings).delete.len(), 4);
}

#[test]
fn report_contains_decisions_and_reasons() {
    let mut evidence: Vec<Evidence> = (0..150).map(used).collect();
    evidence[7].distinct_days = 1;
    let plan = planned(&evidence);
    let report = plan.report(now(), &ConsolidationSettings::default());
    assert_eq!(report["considered"], 150);
    assert_eq!(report["promoted"], 20);
    assert_eq!(report["not_promoted"]["too few days"], 1);
    assert_eq!(report["not_promoted"]["others were better"], 129);
    assert_eq!(
        report["explanations"].as_array().unwrap().len(),
        EXPLANATIONS_MAX
    );
    assert_eq!(report["explanations_left_out"], 50);
    let first = &report["explanations"][0];
    assert_eq!(first["decision"], "promote");
    assert_eq!(first["components"]["relevance"].to_string(), "0.7");
    assert_eq!(first["score"].to_string(), "0.777");
    assert_eq!(
        report["explanations"][20]["missed"][0],
        "others were better"
    );
    assert_eq!(report["date"], Date::from_timestamp(now()).to_string());
}

fn evidence() -> impl Strategy<Value = Vec<Evidence>> {
    let time = || (-3..130_i64).prop_map(days_ago);
    let pin = prop_oneof![3 => Just(None), 1 => Just(Some(Pin::Bot)), 2 => Just(Some(Pin::Consolidation))];
    let counts = (0..12_u64, 0..7_u64, 0..9_u64);
    let kind = proptest::sample::select(MemoryKind::ALL.to_vec());
    let times = (
        time(),
        time(),
        proptest::option::of(time()),
        proptest::option::of(time()),
    );
    let one = (kind, pin, counts, times, -0.5..1.5_f64);
    let made = |(place, (kind, pin, counts, times, mean_score)): (usize, _)| {
        let (created_at, updated_at, last_recall, pin_changed_at) = times;
        let (recalls, distinct_queries, distinct_days) = counts;
        let id = MemoryId::new(0, place as u128);
        Evidence {
            id,
            kind,
            pin,
            pin_changed_at,
            created_at,
            updated_at,
            recalls,
            distinct_queries,
            distinct_days,
            last_recall,
            mean_score,
        }
    };
    proptest::collection::vec(one, 0..60)
        .prop_map(move |all| all.into_iter().enumerate().map(made).collect())
}

proptest! {
    #[test]
    fn carried_out_plan_is_followed_by_an_empty_one(
        evidence in evidence(),
        max_promotions in 0..12_usize,
        unpin_after_days in 0..90_u64,
        retention_days in proptest::array::uniform4(proptest::option::of(0..120_u64)),
        min_score in 0.0..1.0_f64,
    ) {
        let settings = ConsolidationSettings {
            max_promotions, unpin_after_days, retention_days, min_score,
            ..ConsolidationSettings::default()
        };
        let plan = plan(&evidence, now(), &settings);
        let after = carried_out(&evidence, &plan, now());
        let again = super::plan(&after, now(), &settings);
        prop_assert!(again.is_empty(), "{plan:?}\nthen {again:?}");
        prop_assert!(plan.promote.len() <= max_promotions);
        prop_assert_eq!(plan.considered, evidence.len() as u64);
        for one in &evidence {
            let (is_promoted, is_demoted, is_deleted) =
                (plan.promote.contains(&one.id), plan.demote.contains(&one.id),
                 plan.delete.contains(&one.id));
            prop_assert!(u8::from(is_promoted) + u8::from(is_demoted) + u8::from(is_deleted) <= 1);
            prop_assert!(!is_promoted || one.pin.is_none());
            prop_assert!(!is_demoted || one.pin == Some(Pin::Consolidation));
            prop_assert!(!is_deleted || one.pin.is_none());
        }
        // The order of the evidence must not affect the plan.
        let mut turned = evidence.clone();
        turned.reverse();
        prop_assert_eq!(super::plan(&turned, now(), &settings), plan);
    }
}
