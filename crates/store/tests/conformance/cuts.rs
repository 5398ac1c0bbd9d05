//! Decisions about windows (cuts): written with their change, and loaded.
//!
//! Parts that can be rebuilt are not stored.

use std::sync::Arc;

use memoird_core::change::{Change, ChangeKind};
use memoird_core::time::Steady;
use memoird_core::window::{
    CachedPlan, Cut, CutKey, Policy, ReducedTurn, SavedCut, SavedWindow, ScaleId, SentWindow,
    Shortening, ShownTurn, WindowTokens,
};
use memoird_store::{PruneBefore, Store};

use crate::chat::{Chat, begun};
use crate::kit::*;
use crate::prune::prune_all;

for_every_store!(
    cuts_round_trip_except_shown_text,
    newer_cuts_replace_older_ones,
    refused_cuts_leave_no_trace,
    cuts_are_deleted_with_their_generation,
    system_turns_apart_from_history_are_loaded,
);

/// Returns the change with these cuts.
pub(crate) fn with_cuts(mut change: Change, new: Option<Vec<SavedCut>>) -> Change {
    match &mut change.kind {
        ChangeKind::Touch { cuts, .. } => *cuts = new.map(Into::into),
        ChangeKind::Append(appended) => appended.cuts = new.map(Into::into),
        other => panic!("it carries no cuts: {other:?}"),
    }
    change
}

/// Returns cuts that differ per number. Empty for 0.
pub(crate) fn cuts_of(number: u64) -> Vec<SavedCut> {
    let cut = |turn: u64| Cut {
        seq: turn,
        budget: number * 1_000,
        made_at: turn + 3,
        ..Cut::default()
    };
    let key = |model: u64| CutKey {
        model: format!("m{model}").into(),
        policy: Policy::Salience,
    };
    (0..number)
        .map(|place| SavedCut {
            key: key(place),
            cut: cut(number * 10 + place),
            last: None,
        })
        .collect()
}

fn shown(text: &str) -> Option<ShownTurn> {
    Some(ShownTurn {
        content: text.as_bytes().into(),
        tokens: 9,
    })
}

/// Every field with a distinct value, including the ends of its range.
fn every_field() -> Vec<SavedCut> {
    let trimmed = |bytes| Shortening::Trimmed { bytes };
    let results = vec![
        (
            0,
            Shortening::Superseded {
                by: "call ü\0".into(),
            },
        ),
        (1, trimmed(0)),
        (127, trimmed(u32::MAX)),
        (usize::MAX, Shortening::Superseded { by: "".into() }),
    ];
    let reduced = [
        (
            2,
            ReducedTurn {
                results,
                shown: shown("a"),
            },
        ),
        (
            u64::MAX,
            ReducedTurn {
                results: vec![(3, trimmed(1))],
                shown: None,
            },
        ),
    ];
    let whole = Cut {
        seq: 4,
        kept: vec![1, 3, u64::MAX],
        holes: vec![(5, 6), (9, 9), (u64::MAX - 1, u64::MAX)],
        reduced: reduced.into_iter().collect(),
        budget: u64::MAX,
        made_at: 8,
        summary: 9,
        through_seq: u64::MAX,
        found: CachedPlan::default(),
    };
    let tokens = WindowTokens {
        scale: ScaleId(u64::MAX),
        budget: 3,
        fixed: u64::MAX - 1,
    };
    let sent = SentWindow {
        last_seq: 11,
        fixed_digest: u64::MAX - 2,
    };
    let last = |place: usize| {
        (place > 0).then(|| SavedWindow {
            sent: (place > 1).then_some(sent),
            newest: u32::MAX,
            due: u32::MAX - 1,
            tokens: (place > 3).then_some(tokens),
            tail_seq: (place > 4).then_some(0),
        })
    };
    let policies = [
        Policy::SlidingWindow { turns: 1 },
        Policy::SlidingWindow { turns: u32::MAX },
        Policy::HeadTail { turns: 0 },
        Policy::HeadTail { turns: 12 },
        Policy::TokenBudget,
        Policy::Salience,
    ];
    let cuts = policies
        .into_iter()
        .enumerate()
        .map(|(place, policy)| SavedCut {
            key: CutKey {
                model: format!("model/{place} \u{1f600}").into(),
                policy,
            },
            cut: if place % 2 == 0 {
                whole.clone()
            } else {
                Cut::default()
            },
            last: last(place),
        });
    let key = CutKey {
        model: "".into(),
        policy: Policy::TokenBudget,
    };
    let cut = Cut::default();
    let last = None;
    cuts.chain([SavedCut { key, cut, last }]).collect()
}

fn without_shown(mut cuts: Vec<SavedCut>) -> Vec<SavedCut> {
    for SavedCut { cut, .. } in &mut cuts {
        cut.reduced
            .values_mut()
            .for_each(|reduced| reduced.shown = None);
    }
    cuts
}

fn saved(store: &dyn Store, chat: &Chat) -> Vec<SavedCut> {
    known(store, &chat.key).unwrap().cuts
}

fn cuts_round_trip_except_shown_text(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    assert_eq!(saved(store, &chat), []);
    must_write(store, [chat.append("u a", 2)]);
    assert_eq!(saved(store, &chat), []);
    must_write(store, [with_cuts(chat.touch(3), Some(every_field()))]);
    assert_eq!(saved(store, &chat), without_shown(every_field()));
    let mut other = begun(store, "other", 4);
    must_write(
        store,
        [with_cuts(other.append("u", 5), Some(every_field()))],
    );
    assert_eq!(saved(store, &other), without_shown(every_field()));
}

fn newer_cuts_replace_older_ones(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    let mut expected = Vec::new();
    for (number, at) in [3_u64, 1, 2, 0, 4].into_iter().zip((10..).step_by(10)) {
        must_write(store, [with_cuts(chat.touch(at), Some(cuts_of(number)))]);
        expected.clone_from(&cuts_of(number));
        assert_eq!(saved(store, &chat), expected);
        // Changes without cuts leave them unchanged.
        must_write(store, [chat.append("u a", at + 1), chat.touch(at + 2)]);
        must_write(store, [chat.patch("{}", at + 3)]);
        assert_eq!(saved(store, &chat), expected);
        must_write(
            store,
            [with_cuts(
                chat.append("u", at + 4),
                Some(cuts_of(number + 1)),
            )],
        );
        expected.clone_from(&cuts_of(number + 1));
        assert_eq!(saved(store, &chat), expected);
    }
    // The last cuts of a set, and of a batch, are stored.
    let sets = [
        set([1, 2].map(|number| with_cuts(chat.touch(70), Some(cuts_of(number))))),
        set([with_cuts(chat.touch(71), Some(cuts_of(3)))]),
    ];
    assert_eq!(write(store, &sets), [Ok(()); 2]);
    assert_eq!(saved(store, &chat), cuts_of(3));
}

fn refused_cuts_leave_no_trace(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a", 2)]);
    let stale = chat.clone();
    must_write(store, [with_cuts(chat.touch(3), Some(cuts_of(2)))]);
    let before = known(store, &chat.key);
    must_refuse(store, with_cuts(stale.clone().touch(4), Some(cuts_of(3))));
    must_refuse(
        store,
        with_cuts(stale.clone().append("u", 4), Some(cuts_of(3))),
    );
    // Valid by itself, but its set is not.
    let mut doomed = chat.clone();
    let right = with_cuts(doomed.touch(5), Some(cuts_of(4)));
    let wrong = with_cuts(stale.clone().touch(5), Some(cuts_of(4)));
    assert!(write(store, &[set([right, wrong])])[0].is_err());
    assert_eq!(known(store, &chat.key), before);
    must_write(store, [chat.touch(6)]);
    assert_eq!(saved(store, &chat), cuts_of(2));
}

fn cuts_are_deleted_with_their_generation(store: &dyn Store) {
    let mut first = begun(store, "s", 10);
    must_write(
        store,
        [with_cuts(first.append("u a", 11), Some(cuts_of(2)))],
    );
    let generation = memoird_core::ids::Generation::new(20, 20);
    let (mut second, begin) = Chat::begin(&first.key, generation, 20);
    must_write(store, [first.end(20), begin]);
    assert_eq!(saved(store, &second), [], "another life starts without");
    must_write(store, [with_cuts(second.touch(21), Some(cuts_of(1)))]);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(30),
            keys: Steady(0),
        },
        100,
    );
    assert_eq!(saved(store, &second), cuts_of(1));
    must_write(store, [second.end(31)]);
    prune_all(
        store,
        PruneBefore {
            ended: Steady(40),
            keys: Steady(0),
        },
        1,
    );
    // No leftover prevents reuse of their ids.
    for forgotten in [&first, &second] {
        let (again, begin) = Chat::begin(&first.key, forgotten.generation(), 50);
        must_write(store, [begin]);
        assert_eq!(saved(store, &again), []);
        must_write(store, [again.end(51)]);
    }
}

/// System turns before the first user turn leave the history, and are loaded.
fn system_turns_apart_from_history_are_loaded(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("s s u a", 2)]);
    assert_eq!(
        known(store, &chat.key).unwrap().kept.preamble,
        Vec::<u64>::new()
    );
    for at in 3..15 {
        must_write(store, [chat.append("u a", at)]);
        let last_seq = chat.session.head().last_seq;
        let reloaded = chat.reloaded(store);
        let kept = known(store, &chat.key).unwrap().kept;
        assert_eq!(kept, chat.session.history().live_set(last_seq));
        assert_eq!(kept, reloaded.session.history().live_set(last_seq));
        assert_eq!(reloaded.session.head(), chat.session.head());
        assert_eq!(
            reloaded.session.history().totals(),
            chat.session.history().totals()
        );
        assert_eq!(reloaded.kept(), chat.kept());
        let told = known(store, &chat.key).unwrap();
        let apart: Vec<u64> = told
            .turns
            .iter()
            .map(|(seq, ..)| *seq)
            .filter(|seq| *seq < told.kept.floor)
            .collect();
        assert_eq!(apart, if at < 5 { apart.clone() } else { vec![1, 2, 3] });
    }
    assert_eq!(known(store, &chat.key).unwrap().kept.preamble, [1, 2]);
    let content = |seq: u64| {
        let all = page(store, &chat.key, None, ALL).unwrap().turns;
        Arc::clone(&all.iter().find(|(found, _)| *found == seq).unwrap().1)
    };
    let told = known(store, &chat.key).unwrap();
    assert_eq!(
        (&told.turns[0].1, &told.turns[1].1),
        (&content(1), &content(2))
    );
}
