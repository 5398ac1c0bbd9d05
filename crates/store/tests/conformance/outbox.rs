//! The outbox: deliveries are written with the end that causes them, finished, or dropped.
//!
//! They are deleted with their generation, and not before.

use std::sync::Arc;

use memoird_core::change::{Change, EndReason};
use memoird_core::ids::{DeliveryId, Generation, HookName, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;
use memoird_store::{
    DeliveryCount, DeliveryFilter, DeliveryOutcome, PruneBefore, StaleBase, Store,
};

use crate::chat::{Chat, begun};
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    end_creates_deliveries_for_named_hooks_only,
    refused_set_creates_no_delivery,
    deliveries_are_listed_by_id_and_filter,
    delivery_pages_have_each_delivery_once,
    due_deliveries_are_ordered_by_due_time,
    due_deliveries_alternate_between_tenants,
    recorded_outcome_is_returned,
    late_outcome_does_not_change_finished_delivery,
    dropped_delivery_stays_dropped,
    open_deliveries_are_counted_by_tenant_hook_and_state,
    pending_deliveries_are_not_pruned_and_done_ones_are,
);

pub(crate) fn hook(name: &str) -> HookName {
    HookName::parse(name).unwrap()
}

pub(crate) fn id(generation: Generation, name: &str) -> DeliveryId {
    DeliveryId {
        generation,
        hook: hook(name),
    }
}

/// The end of a chat, with deliveries to these hooks.
pub(crate) fn owing_end(chat: &Chat, at: u64, hooks: &[&str]) -> Change {
    let owed: Arc<[HookName]> = hooks.iter().map(|name| hook(name)).collect();
    chat.session
        .head()
        .end(EndReason::Ended, now(at), owed, None)
}

/// Begins a chat at `at`, appends turns, and ends it a moment later.
pub(crate) fn owing(store: &dyn Store, session: &str, at: u64, hooks: &[&str]) -> Chat {
    let mut chat = begun(store, session, at);
    must_write(store, [chat.append("u a u", at)]);
    must_write(store, [owing_end(&chat, at + 1, hooks)]);
    chat
}

fn all(store: &dyn Store) -> Vec<Delivery> {
    list(store, &DeliveryFilter::default())
}

fn list(store: &dyn Store, filter: &DeliveryFilter) -> Vec<Delivery> {
    store.deliveries(filter, None, usize::MAX).unwrap()
}

fn ids(deliveries: &[Delivery]) -> Vec<DeliveryId> {
    deliveries
        .iter()
        .map(|delivery| delivery.id.clone())
        .collect()
}

pub(crate) fn outcome(id: &DeliveryId, state: DeliveryState, due: u64) -> DeliveryOutcome {
    let (last_error, tries) = (format!("{state:?}"), 3);
    DeliveryOutcome {
        id: id.clone(),
        state,
        tries,
        last_error,
        due: Steady(due),
    }
}

fn end_creates_deliveries_for_named_hooks_only(store: &dyn Store) {
    let reasons = [
        EndReason::Expired,
        EndReason::Evicted,
        EndReason::Ended,
        EndReason::Reset,
        EndReason::Shutdown,
    ];
    for (at, reason) in (10..).step_by(10).zip(reasons) {
        let chat = begun(store, &format!("s{at}"), at);
        let owed: Arc<[HookName]> = [hook("b"), hook("a-1_")].into();
        let quiet = begun(store, &format!("quiet{at}"), at + 1);
        let ends = [
            chat.session.head().end(reason, now(at + 5), owed, None),
            quiet.end(at + 5),
        ];
        must_write(store, ends);
        let expected = ["a-1_", "b"].map(|name| Delivery {
            id: id(chat.generation(), name),
            key: chat.key.clone(),
            reason,
            state: DeliveryState::Pending,
            tries: 0,
            last_error: String::new(),
            due: Steady(at + 5),
        });
        for delivery in &expected {
            assert_eq!(
                store.delivery(&delivery.id).unwrap().as_ref(),
                Some(delivery)
            );
        }
        assert_eq!(store.delivery(&id(chat.generation(), "a")).unwrap(), None);
        let listed = store
            .deliveries(&DeliveryFilter::default(), None, usize::MAX)
            .unwrap();
        assert_eq!(listed[listed.len() - 2..], expected);
    }
    assert_eq!(all(store).len(), 10);
}

fn refused_set_creates_no_delivery(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let stale = chat.clone();
    must_write(store, [chat.append("u", 2)]);
    must_refuse(store, owing_end(&stale, 3, &["a"]));
    // The end is valid; the change after it is not.
    let mut other = begun(store, "other", 4);
    let stale = other.clone();
    must_write(store, [other.touch(5)]);
    let mixed = set([owing_end(&chat, 6, &["a"]), owing_end(&stale, 6, &["a"])]);
    let (good, generation) = (set([owing_end(&other, 6, &["b"])]), other.generation());
    assert_eq!(
        write(store, &[mixed, good]),
        [Err(StaleBase { generation }), Ok(())]
    );
    assert_eq!(ids(&all(store)), [id(generation, "b")]);
    // A repeated end is rejected, and adds no delivery.
    must_refuse(store, owing_end(&other, 7, &["c"]));
    assert_eq!(all(store).len(), 1);
}

fn deliveries_are_listed_by_id_and_filter(store: &dyn Store) {
    let mut chats = Vec::new();
    for (at, tenant) in [(30, "t"), (10, "u"), (20, "t")] {
        let generation = Generation::new(at, 0);
        let at = at.unsigned_abs();
        let (chat, begin) = Chat::begin(&key(tenant, &format!("s{at}")), generation, at);
        must_write(store, [begin]);
        must_write(store, [owing_end(&chat, at, &["a", "b"])]);
        chats.push(chat);
    }
    let [third, first, second] = [0, 1, 2].map(|place: usize| chats[place].generation());
    for (generation, state) in [(first, DeliveryState::Done), (second, DeliveryState::Dead)] {
        store
            .record_outcomes(&[outcome(&id(generation, "a"), state, 99)])
            .unwrap();
    }
    let filter = |tenant: Option<&str>, name: Option<&str>, state| {
        let tenant = tenant.map(|tenant| key(tenant, "s").tenant);
        let filter = DeliveryFilter {
            tenant,
            hook: name.map(hook),
            state,
        };
        ids(&list(store, &filter))
    };
    let every: Vec<_> = [first, second, third]
        .into_iter()
        .flat_map(|of| [id(of, "a"), id(of, "b")])
        .collect();
    assert_eq!(filter(None, None, None), every);
    assert_eq!(filter(Some("u"), None, None), every[..2]);
    assert_eq!(
        filter(None, Some("a"), None),
        [first, second, third].map(|of| id(of, "a"))
    );
    let pending = Some(DeliveryState::Pending);
    assert_eq!(filter(None, Some("a"), pending), [id(third, "a")]);
    assert_eq!(
        filter(None, None, Some(DeliveryState::Done)),
        [id(first, "a")]
    );
    assert_eq!(
        filter(None, None, Some(DeliveryState::Dead)),
        [id(second, "a")]
    );
    assert_eq!(
        filter(Some("t"), Some("b"), pending),
        [id(second, "b"), id(third, "b")]
    );
    assert_eq!(filter(Some("nobody"), None, None), []);
    assert_eq!(filter(Some("u"), Some("b"), Some(DeliveryState::Dead)), []);
}

fn delivery_pages_have_each_delivery_once(store: &dyn Store) {
    for at in 1..=7 {
        owing(store, &format!("s{at}"), at, &["a", "b", "c"]);
    }
    let filters = [None, Some(hook("b"))].map(|hook| DeliveryFilter {
        hook,
        ..Default::default()
    });
    for filter in filters {
        let whole = ids(&list(store, &filter));
        for size in 1..=8 {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = ids(&store.deliveries(&filter, after.as_ref(), size).unwrap());
                assert!(page.len() <= size);
                let Some(last) = page.last().cloned() else {
                    break;
                };
                after = Some(last);
                found.extend(page);
            }
            assert_eq!(found, whole, "{size} at a time");
        }
    }
    // A page can start after a delivery that is gone.
    let list = all(store);
    assert!(store.drop_delivery(&list[4].id).unwrap());
    let rest = store
        .deliveries(&DeliveryFilter::default(), Some(&list[4].id), 2)
        .unwrap();
    assert_eq!(rest, list[5..7]);
}

fn due_deliveries_are_ordered_by_due_time(store: &dyn Store) {
    let chats = [40, 10, 30, 20].map(|at| owing(store, &format!("s{at}"), at, &["a", "b"]));
    let [forty, ten, thirty, twenty] = chats.each_ref().map(Chat::generation);
    let due = |at, max| {
        let found = store.due(&hook("a"), None, Steady(at), max).unwrap();
        let generations: Vec<_> = found.due.iter().map(|owed| owed.id.generation).collect();
        (generations, found.next.map(|next| next.0))
    };
    assert_eq!(due(10, 9), (vec![], Some(11)));
    assert_eq!(due(11, 9), (vec![ten], Some(21)));
    assert_eq!(due(31, 9), (vec![ten, twenty, thirty], Some(41)));
    assert_eq!(
        due(31, 2),
        (vec![ten, twenty], Some(41)),
        "the next one is not due yet"
    );
    assert_eq!(due(99, 0), (vec![], None));
    assert_eq!(due(u64::MAX, 9), (vec![ten, twenty, thirty, forty], None));
    // Failed deliveries come later, finished ones not at all.
    let states = [
        outcome(&id(ten, "a"), DeliveryState::Pending, 35),
        outcome(&id(twenty, "a"), DeliveryState::Done, 12),
        outcome(&id(thirty, "a"), DeliveryState::Dead, 12),
    ];
    store.record_outcomes(&states).unwrap();
    assert_eq!(due(34, 9), (vec![], Some(35)));
    assert_eq!(due(50, 9), (vec![ten, forty], None));
    assert_eq!(
        store
            .due(&hook("b"), None, Steady(99), 9)
            .unwrap()
            .due
            .len(),
        4
    );
    assert_eq!(
        store.due(&hook("none"), None, Steady(99), 9).unwrap(),
        Default::default()
    );
}

fn due_deliveries_alternate_between_tenants(store: &dyn Store) {
    let mut at = 10;
    let mut owe = |tenant: &str| {
        at += 10;
        let generation = Generation::new(i64::try_from(at).unwrap(), u128::from(at));
        let (chat, begin) = Chat::begin(&key(tenant, &at.to_string()), generation, at);
        must_write(store, [begin]);
        must_write(store, [owing_end(&chat, at + 1, &["a"])]);
    };
    for tenant in [
        "flood", "flood", "flood", "flood", "quiet", "flood", "other", "quiet",
    ] {
        owe(tenant);
    }
    let due = |after: Option<&str>, at, max| {
        let after = after.map(|tenant| TenantId::parse(tenant).unwrap());
        let found = store.due(&hook("a"), after.as_ref(), Steady(at), max);
        let due = found
            .unwrap()
            .due
            .into_iter()
            .map(|owed| format!("{} {}", owed.key.tenant, owed.key.session));
        due.collect::<Vec<_>>()
    };
    let all = [
        "flood 20", "other 80", "quiet 60", "flood 30", "quiet 90", "flood 40", "flood 50",
        "flood 70",
    ];
    assert_eq!(due(None, 99, 9), all);
    assert_eq!(due(None, 99, 4), all[..4]);
    assert_eq!(
        due(Some("flood"), 99, 3),
        ["other 80", "quiet 60", "flood 20"]
    );
    assert_eq!(due(Some("flood"), 99, 1), ["other 80"]);
    assert_eq!(due(Some("zzz"), 99, 1), ["flood 20"]);
    assert_eq!(
        due(Some("quiet"), 75, 9)[..3],
        ["flood 20", "quiet 60", "flood 30"]
    );
    assert_eq!(due(Some("flood"), 45, 2), ["flood 20", "flood 30"]);
}

fn recorded_outcome_is_returned(store: &dyn Store) {
    let chats = [1, 5].map(|at| owing(store, &format!("s{at}"), at, &["a", "b"]));
    let before = all(store);
    let states = [
        DeliveryState::Pending,
        DeliveryState::Dead,
        DeliveryState::Done,
    ];
    // A finished or dead delivery can become pending again, and any due time is valid.
    for (state, due) in states
        .into_iter()
        .chain(states)
        .zip([7, 8, 9, 1, 2, i64::MAX as u64])
    {
        let changed = id(chats[0].generation(), "b");
        // Without attempts, it is an operator's retry.
        let tries = if state == DeliveryState::Pending {
            0
        } else {
            3
        };
        let base = outcome(&changed, state, due);
        let told = DeliveryOutcome { tries, ..base };
        store.record_outcomes(&[told]).unwrap();
        let delivery = store.delivery(&changed).unwrap().unwrap();
        let last_error = delivery.last_error;
        assert_eq!(
            (delivery.state, delivery.tries, delivery.due),
            (state, tries, Steady(due))
        );
        assert_eq!(last_error, format!("{state:?}"));
        let others = |deliveries: Vec<Delivery>| {
            deliveries
                .into_iter()
                .filter(|other| other.id != changed)
                .collect::<Vec<_>>()
        };
        assert_eq!(others(all(store)), others(before.clone()));
    }
    store.record_outcomes(&[]).unwrap();
}

fn late_outcome_does_not_change_finished_delivery(store: &dyn Store) {
    let owed = owing(store, "s", 1, &["a"]);
    let name = id(owed.generation(), "a");
    let tell = |state, tries| {
        let base = outcome(&name, state, 5);
        let told = DeliveryOutcome { tries, ..base };
        store.record_outcomes(&[told]).unwrap();
        store.delivery(&name).unwrap().unwrap().state
    };
    assert_eq!(tell(DeliveryState::Done, 1), DeliveryState::Done);
    assert_eq!(tell(DeliveryState::Pending, 1), DeliveryState::Done);
    assert_eq!(tell(DeliveryState::Dead, 1), DeliveryState::Done);
    assert_eq!(tell(DeliveryState::Pending, 0), DeliveryState::Pending);
    assert_eq!(tell(DeliveryState::Dead, 3), DeliveryState::Dead);
    assert_eq!(tell(DeliveryState::Pending, 2), DeliveryState::Dead);
    assert_eq!(tell(DeliveryState::Done, 2), DeliveryState::Done);
}

fn dropped_delivery_stays_dropped(store: &dyn Store) {
    let chat = owing(store, "s", 1, &["a", "b"]);
    let [dropped, kept] = ["a", "b"].map(|name| id(chat.generation(), name));
    assert!(store.drop_delivery(&dropped).unwrap());
    assert!(!store.drop_delivery(&dropped).unwrap());
    assert!(
        !store
            .drop_delivery(&id(Generation::new(9, 9), "a"))
            .unwrap()
    );
    let both = [&dropped, &kept].map(|id| outcome(id, DeliveryState::Done, 5));
    store.record_outcomes(&both).unwrap();
    assert_eq!(store.delivery(&dropped).unwrap(), None);
    assert_eq!(ids(&all(store)), [kept]);
    assert_eq!(all(store)[0].state, DeliveryState::Done);
}

fn open_deliveries_are_counted_by_tenant_hook_and_state(store: &dyn Store) {
    assert_eq!(store.open_deliveries().unwrap(), []);
    let chats = [1, 5, 9].map(|at| owing(store, &format!("s{at}"), at, &["a", "b"]));
    let [one, two, _] = chats.each_ref().map(Chat::generation);
    store
        .record_outcomes(&[outcome(&id(one, "a"), DeliveryState::Done, 5)])
        .unwrap();
    store
        .record_outcomes(&[outcome(&id(two, "a"), DeliveryState::Dead, 5)])
        .unwrap();
    let mut counts = store.open_deliveries().unwrap();
    counts.sort_by_key(|of| (of.hook.clone(), of.state == DeliveryState::Dead));
    let count = |name, state, count| {
        let tenant = key("t", "s").tenant;
        DeliveryCount {
            tenant,
            hook: hook(name),
            state,
            count,
        }
    };
    assert_eq!(
        counts,
        [
            count("a", DeliveryState::Pending, 1),
            count("a", DeliveryState::Dead, 1),
            count("b", DeliveryState::Pending, 3),
        ]
    );
}

fn pending_deliveries_are_not_pruned_and_done_ones_are(store: &dyn Store) {
    let chats = [1, 5, 9, 13].map(|at| owing(store, &format!("s{at}"), at, &["a", "b"]));
    let names = chats.each_ref().map(Chat::generation);
    let states = [
        (0, "a", DeliveryState::Done),
        (0, "b", DeliveryState::Done),
        (1, "a", DeliveryState::Done),
        (2, "a", DeliveryState::Done),
        (2, "b", DeliveryState::Dead),
    ];
    for (place, name, state) in states {
        store
            .record_outcomes(&[outcome(&id(names[place], name), state, 50)])
            .unwrap();
    }
    let before = PruneBefore {
        ended: Steady(13),
        keys: Steady(0),
    };
    let left = || {
        chats
            .each_ref()
            .map(|chat| seqs(store, &chat.key, None).map(|all| all.len()))
    };
    prune_all(store, before, 2);
    assert_eq!(left(), [None, Some(3), Some(3), Some(3)]);
    assert!(all(store).iter().all(|owed| owed.id.generation != names[0]));
    assert_eq!(
        all(store).len(),
        6,
        "also what was done, where something else is owed"
    );
    assert_eq!(
        store
            .ended(&[(chats[2].key.clone(), names[2])], 1 << 20)
            .unwrap()
            .len(),
        1
    );
    // Once dropped or finished, a delivery no longer retains its generation.
    store.drop_delivery(&id(names[2], "b")).unwrap();
    store
        .record_outcomes(&[outcome(&id(names[1], "b"), DeliveryState::Done, 60)])
        .unwrap();
    prune_all(store, before, 2);
    assert_eq!(left(), [None, None, None, Some(3)]);
    assert_eq!(all(store).len(), 2);
}
