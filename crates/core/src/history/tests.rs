//! Tests of histories in a compact notation: each word is a turn, and the result is a list of seqs.
//!
//! `u` is a user turn, `a` assistant, `s` system. `a+x` calls the tool with id `x`, `t-x` has its
//! result, `u-x` has it in a user turn. `a^x` has a part with the id `x`, and `a~x` references it.
//! `a>` ends in reasoning that leads to the next turn. `!` pins, and `?` accepts results of unknown
//! calls.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ids::Generation;
use crate::nonce::NonceSecret;
use crate::turn::{Links, NewTurn};

const BYTES: usize = 10;

fn turn(word: &str) -> NewTurn {
    let (letter, rest) = word.split_at(1);
    let role = match letter {
        "u" => Role::User,
        "a" => Role::Assistant,
        "t" => Role::Tool,
        _ => Role::System,
    };
    let mut links = Links::default();
    let (mut ids, mut pinned) = (rest.chars(), false);
    while let Some(sign) = ids.next() {
        match sign {
            '+' => links
                .uses
                .extend(ids.next().map(|id| id.to_string().into())),
            '-' => links
                .results
                .extend(ids.next().map(|id| id.to_string().into())),
            '^' => links
                .names
                .extend(ids.next().map(|id| id.to_string().into())),
            '~' => links
                .refs
                .extend(ids.next().map(|id| id.to_string().into())),
            '>' => links.leads_on = true,
            '?' => links.takes_orphans = true,
            _ => pinned = true,
        }
    }
    NewTurn {
        body: Vec::new(),
        role,
        timestamp: None,
        pinned,
        links,
        client_id: Box::default(),
        client_bytes: 0,
    }
}

fn append(
    history: &mut History,
    last_seq: &mut u64,
    words: &str,
    limits: &Limits,
) -> Result<u64, CoreError> {
    let turns: Vec<NewTurn> = words.split_whitespace().map(turn).collect();
    let arrivals = (*last_seq + 1..).zip(&turns).map(|(seq, turn)| {
        let record = TurnRecord::new(turn, seq, vec![0; BYTES].into());
        (record, &turn.links.results[..])
    });
    let dropped = history.append(arrivals.collect(), limits)?;
    *last_seq += turns.len() as u64;
    Ok(dropped)
}

fn seqs(history: &History) -> Vec<u64> {
    history.turns_after(0).map(|record| record.seq).collect()
}

fn caps(turns: usize) -> Limits {
    Limits {
        max_history_turns: turns,
        pinned_turns: 3,
        ..Limits::default()
    }
}

/// Each case: the cap, the appends, the retained seqs, and the total number of dropped turns.
#[test]
fn fifo_keeps_newest_whole_units_and_anchor() {
    let cases: [(usize, &[&str], &[u64], u64); 23] = [
        (3, &["u", "a", "u"], &[1, 2, 3], 0),
        (2, &["u", "a", "u", "a"], &[1, 3, 4], 1),
        (2, &["u a u a u a"], &[1, 5, 6], 3),
        (2, &["s u", "a u a"], &[2, 4, 5], 2),
        // A call is dropped with its result, whatever is between them.
        (3, &["u", "a+x", "t-x", "a", "u"], &[1, 4, 5], 2),
        (4, &["u", "a+x", "u", "t-x", "a", "u"], &[1, 3, 5, 6], 2),
        // Parallel calls stay together.
        (4, &["u", "a+x+y", "t-x", "t-y", "a", "u"], &[1, 5, 6], 3),
        // A unit larger than the cap is dropped whole, and so is its late result.
        (2, &["u", "a+x+y", "t-x", "t-y", "a"], &[1, 5], 3),
        // A result belongs to the latest open call of its id.
        (3, &["u", "a+x", "a+x", "t-x", "t-x", "a"], &[1, 3, 4, 6], 2),
        // Pinned turns stay, and their units with them.
        (3, &["u", "a!", "u", "a", "u", "a"], &[1, 2, 5, 6], 2),
        (
            4,
            &["u", "a+x!", "t-x", "u", "a", "u", "a"],
            &[1, 2, 3, 6, 7],
            2,
        ),
        (
            4,
            &["u", "a+x", "t-x!", "u", "a", "u", "a"],
            &[1, 2, 3, 6, 7],
            2,
        ),
        // A provider's call and its result are dropped together, even with turns in between.
        (3, &["u", "a", "u", "a^x", "a~x", "u"], &[1, 4, 5, 6], 2),
        (2, &["u", "a^x", "a~x", "u", "a"], &[1, 4, 5], 2),
        (3, &["u a^x u a~x a u a"], &[1, 5, 6, 7], 3),
        // So are all calls that a program makes, and its result.
        (
            6,
            &["u", "a^x+1~x", "t-1", "a+2~x", "t-2", "a~x", "u", "a", "u"],
            &[1, 7, 8, 9],
            5,
        ),
        // A unit in progress that is too large loses its oldest calls.
        (
            4,
            &["u", "a^x+1", "t-1", "a+2~x", "t-2", "a+3~x", "t-3"],
            &[1, 4, 5, 6, 7],
            2,
        ),
        // An id can be used again.
        (2, &["u", "a^x", "a~x", "a^x", "a~x"], &[1, 4, 5], 2),
        // Reasoning is dropped with the turn that it led to.
        (4, &["u", "u", "a>", "a>", "a+x", "t-x", "u"], &[1, 7], 5),
        (3, &["u", "a>", "u", "a", "u"], &[1, 3, 4, 5], 1),
        (2, &["u u a> a u"], &[1, 5], 3),
        // A part may reference a call and its result.
        (2, &["u a+x t-x a~x u"], &[1, 5], 3),
        // A user turn with results is no anchor.
        (9, &["a+x", "u-x", "u"], &[1, 2, 3], 0),
    ];
    for (cap, appends, kept, dropped_in_all) in cases {
        let (mut history, mut last_seq, mut dropped) = (History::default(), 0, 0);
        for words in appends {
            dropped += append(&mut history, &mut last_seq, words, &caps(cap)).unwrap();
        }
        assert_eq!(
            (seqs(&history), dropped),
            (kept.to_vec(), dropped_in_all),
            "{appends:?}"
        );
    }
}

#[test]
fn result_of_unknown_call_is_kept_if_orphans_are_accepted() {
    let (mut history, mut last_seq) = (History::default(), 0);
    for (words, kept) in [
        ("t-z?", &[1][..]),
        ("u t-z? a+x t-x-z?", &[1, 2, 3, 4, 5]),
        ("t-x?", &[1, 2, 3, 4, 5, 6]),
        ("a t-z!?", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ] {
        let dropped = append(&mut history, &mut last_seq, words, &caps(9)).unwrap();
        assert_eq!((dropped, &*seqs(&history)), (0, kept), "{words}");
        assert_eq!(seqs(&restore(&history, last_seq)), kept, "{words}");
    }
    append(&mut history, &mut last_seq, "a a a a", &caps(4)).unwrap();
    assert_eq!(seqs(&history), [2, 8, 10, 11, 12]);
}

#[test]
fn rewind_between_linked_turns_is_refused() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u a^x u a~x a", &caps(9)).unwrap();
    for after_seq in 2..4 {
        let refused = history.rewind(after_seq, last_seq).unwrap_err();
        let expected = CoreError::RewindSplitsUnit {
            after_seq,
            first_seq: 2,
            last_seq: 4,
        };
        assert_eq!(refused, expected);
    }
    history.rewind(4, last_seq).unwrap();
    history.rewind(1, last_seq).unwrap();
    assert_eq!(seqs(&history), [1]);
}

#[test]
fn results_that_open_a_generation_form_one_unit() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "t-x t-y", &caps(3)).unwrap();
    append(&mut history, &mut last_seq, "t-z", &caps(3)).unwrap();
    assert_eq!(seqs(&history), [1, 2, 3]);
    let again = restore(&history, last_seq);
    assert_eq!(seqs(&again), [1, 2, 3]);
    assert_eq!(again.unit_of(1), BTreeSet::from([1, 2, 3]));
    append(&mut history, &mut last_seq, "a", &caps(3)).unwrap();
    assert_eq!(seqs(&history), [4]);
    let later = append(&mut history, &mut last_seq, "t-x", &caps(3));
    assert!(matches!(later, Err(CoreError::ToolUseUnknown { .. })));
}

#[test]
fn refused_append_changes_nothing() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u a+x t-x", &caps(9)).unwrap();
    for (words, index) in [("u t-x", 1), ("a+y t-y t-y", 2), ("t-z", 0)] {
        let refused = append(&mut history, &mut last_seq, words, &caps(9)).unwrap_err();
        assert!(
            matches!(refused, CoreError::ToolUseUnknown { index: at, .. } if at == index),
            "{words}: {refused}"
        );
    }
    let refused = append(&mut history, &mut last_seq, "u! u! u! u!", &caps(9)).unwrap_err();
    assert!(matches!(
        refused,
        CoreError::PinnedTooMany {
            turns: 4,
            turns_max: 3,
            ..
        }
    ));
    assert_eq!(seqs(&history), [1, 2, 3]);
    // The result turns of a pinned call count too.
    append(&mut history, &mut last_seq, "a+p+q+r!", &caps(9)).unwrap();
    append(&mut history, &mut last_seq, "t-p t-q", &caps(9)).unwrap();
    assert!(append(&mut history, &mut last_seq, "t-r", &caps(9)).is_err());
}

/// The appends under a cap of 9, the lowered cap, its result, more appends, and their result.
type Lowered<'a> = (&'a [&'a str], usize, &'a [u64], &'a [&'a str], &'a [u64]);

#[test]
fn trim_to_lowered_cap_drops_oldest_pinned_turns() {
    let cases: [Lowered<'_>; 4] = [
        // Of the turns that FIFO has passed, the oldest pins are dropped.
        (
            &["u a! a! a!", "u a u a u a", "u a u a"],
            2,
            &[1, 4, 14],
            &["u"],
            &[1, 4, 15],
        ),
        // A pinned turn that FIFO has not passed is no longer held, and is dropped like the rest.
        (&["u a! a! a! u"], 2, &[1, 4, 5], &["u", "a"], &[1, 4, 7]),
        // A unit is dropped whole.
        (
            &["u a+x! t-x a!", "u a u a u a u a"],
            2,
            &[1, 4, 12],
            &["u"],
            &[1, 4, 13],
        ),
        (&["u a! a! a!", "u a"], 1, &[1, 6], &["u"], &[1, 7]),
    ];
    for (before, cap, left, after, kept) in cases {
        let (mut history, mut last_seq) = (History::default(), 0);
        for words in before {
            append(&mut history, &mut last_seq, words, &caps(9)).unwrap();
        }
        history.trim(&caps(cap));
        assert_eq!(seqs(&history), left, "{before:?} under {cap}");
        for words in after {
            append(&mut history, &mut last_seq, words, &caps(cap)).unwrap();
        }
        assert_eq!(
            seqs(&history),
            kept,
            "{before:?} under {cap}, then {after:?}"
        );
    }
}

#[test]
fn fifo_keeps_current_request_until_next_one() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u a u a u", &caps(4)).unwrap();
    for _ in 0..5 {
        append(&mut history, &mut last_seq, "a+x t-x", &caps(4)).unwrap();
    }
    assert_eq!(seqs(&history), [1, 5, 14, 15], "whole units next to it");
    let restored = restore(&history, last_seq);
    assert_eq!(restored.live_set(last_seq), history.live_set(last_seq));
    append(&mut history, &mut last_seq, "a u", &caps(4)).unwrap();
    assert_eq!(seqs(&history), [1, 14, 15, 16, 17]);

    // The current turns take precedence.
    append(&mut history, &mut last_seq, "a+x+y t-x t-y", &caps(3)).unwrap();
    assert_eq!(seqs(&history), [1, 18, 19, 20]);
}

#[test]
fn max_history_bytes_drops_oldest_turns() {
    let limits = Limits {
        max_history_bytes: 3 * BYTES,
        ..caps(100)
    };
    let (mut history, mut last_seq) = (History::default(), 0);
    let dropped = append(&mut history, &mut last_seq, "u a u a u", &limits).unwrap();
    assert_eq!((seqs(&history), dropped), (vec![1, 3, 4, 5], 1));
}

#[test]
fn late_result_of_dropped_call_is_accepted_and_dropped() {
    let limits = Limits {
        departed_calls: 1,
        ..caps(1)
    };
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u a+x a+y a", &limits).unwrap();
    assert_eq!(append(&mut history, &mut last_seq, "t-y", &limits), Ok(1));
    assert_eq!(append(&mut history, &mut last_seq, "t-x", &limits), Ok(1));
    assert_eq!(seqs(&history), [1, 4]);
}

fn word() -> impl Strategy<Value = String> {
    let id = prop::sample::select(vec!["x", "y", "z"]);
    let ids = prop::collection::vec(id, 0..3);
    let pin = prop::sample::select(vec!["", "", "", "", "", "!"]);
    (0..9, ids, pin).prop_map(|(kind, ids, pin)| match kind {
        6 => format!(
            "a{}{pin}",
            ids.iter().map(|id| format!("^{id}")).collect::<String>()
        ),
        7 => format!("a>{pin}"),
        8 => format!(
            "a{}{pin}",
            ids.iter().map(|id| format!("~{id}")).collect::<String>()
        ),
        0 => format!("u{pin}"),
        1 => format!("a{pin}"),
        2 | 3 => format!(
            "a{}{pin}",
            ids.iter().map(|id| format!("+{id}")).collect::<String>()
        ),
        4 => format!(
            "t{}{pin}",
            ids.iter().map(|id| format!("-{id}")).collect::<String>()
        ),
        _ => format!(
            "u{}",
            ids.iter().map(|id| format!("-{id}")).collect::<String>()
        ),
    })
}

/// Turns appended after the rewind, and the retained seqs.
type AfterRewind = (&'static str, &'static [u64]);

/// Each case: the cap, the turns, the newest remaining turn, the retained seqs, the next append.
#[test]
fn rewind_removes_newest_units_and_never_reuses_seqs() {
    let cases: [(usize, &str, u64, &[u64], AfterRewind); 8] = [
        (9, "u a u a", 3, &[1, 2, 3], ("a", &[1, 2, 3, 5])),
        (9, "u a u a", 0, &[], ("u a", &[5, 6])),
        (9, "u a", 2, &[1, 2], ("u", &[1, 2, 3])),
        // A pending call is rewound whole, and its id is free again.
        (9, "u a+x", 1, &[1], ("a+x t-x", &[1, 3, 4])),
        (9, "u a+x t-x a u", 3, &[1, 2, 3], ("a", &[1, 2, 3, 6])),
        // Pinned turns are rewound too.
        (9, "u a! u! a", 1, &[1], ("u", &[1, 5])),
        // Turns that FIFO has dropped do not come back.
        (2, "u a u a", 3, &[1, 3], ("a", &[1, 3, 5])),
        (2, "u a u a u", 2, &[1], ("u a u", &[1, 7, 8])),
    ];
    for (cap, words, after_seq, left, (more, expected)) in cases {
        let (mut history, mut last_seq) = (History::default(), 0);
        append(&mut history, &mut last_seq, words, &caps(cap)).unwrap();
        let before = seqs(&history);
        let removed: Vec<u64> = history
            .rewind(after_seq, last_seq)
            .unwrap()
            .iter()
            .map(|record| record.seq)
            .collect();
        assert_eq!(seqs(&history), left, "{words}");
        assert_eq!([left, &removed].concat(), before, "{words}");
        append(&mut history, &mut last_seq, more, &caps(cap)).unwrap();
        assert_eq!(seqs(&history), expected, "{words}, {more}");
        check(&history, &caps(cap), &BTreeSet::new());
    }
}

#[test]
fn rewind_inside_a_unit_is_refused() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u a+x+y t-x u t-y a", &caps(9)).unwrap();
    for after_seq in 2..5 {
        let refused = history.rewind(after_seq, last_seq).unwrap_err();
        let first = if after_seq < 3 { 3 } else { 5 };
        let expected = CoreError::RewindSplitsUnit {
            after_seq,
            first_seq: 2,
            last_seq: first,
        };
        assert_eq!(refused, expected);
        assert_eq!(seqs(&history), [1, 2, 3, 4, 5, 6], "nothing is removed");
    }
    history.rewind(5, last_seq).unwrap();
    history.rewind(1, last_seq).unwrap();
    assert_eq!(seqs(&history), [1]);
    let unknown = append(&mut history, &mut last_seq, "t-x", &caps(9));
    assert!(matches!(unknown, Err(CoreError::ToolUseUnknown { .. })));
}

#[test]
fn rewound_ranges_stay_bounded_after_many_rewinds() {
    let (mut history, mut last_seq) = (History::default(), 0);
    append(&mut history, &mut last_seq, "u", &caps(4)).unwrap();
    for round in 0..3_000 {
        append(&mut history, &mut last_seq, "a u", &caps(4)).unwrap();
        history.rewind(last_seq - 1, last_seq).unwrap();
        if round % 3 == 0 {
            append(&mut history, &mut last_seq, "a", &caps(4)).unwrap();
        }
    }
    let runs = history
        .rewound()
        .map_or(0, |rewound| rewound.iter().count());
    assert!(runs <= REWOUND_BEFORE_MAX + 8, "{runs} runs");
    assert_eq!(restore(&history, last_seq).rewound(), history.rewound());
}

/// Checks the invariants of every history: caps, whole units, pins, sums.
fn check(history: &History, limits: &Limits, pinned: &BTreeSet<u64>) {
    assert!(history.capped.turns <= limits.max_history_turns as u64);
    let kept: Vec<&TurnRecord> = history.turns_after(0).collect();
    assert!(kept.is_sorted_by_key(|record| record.seq));
    let present: BTreeSet<u64> = kept.iter().map(|record| record.seq).collect();
    for record in &kept {
        for mate in record.mates() {
            assert!(present.contains(&mate), "{} without {mate}", record.seq);
        }
    }
    assert!(
        pinned.is_subset(&present),
        "pinned {pinned:?} of {present:?}"
    );
    let sum = kept
        .iter()
        .fold(Totals::default(), |sum, record| sum.plus(record.totals()));
    assert_eq!(history.totals(), sum);
}

proptest! {
    #[test]
    fn generated_histories_keep_invariants_and_restore_equal(
        cap in 4_usize..9,
        appends in prop::collection::vec((prop::collection::vec(word(), 1..4), 0..20_u64), 1..40),
    ) {
        let limits = Limits { departed_calls: 4, ..caps(cap) };
        let (mut history, mut last_seq) = (History::default(), 0_u64);
        let mut pinned = BTreeSet::new();
        for (words, rewound) in appends {
            // A quarter of the steps rewinds first, by 0 to 4 turns.
            if rewound < 5 {
                let after_seq = last_seq.saturating_sub(rewound);
                let before = seqs(&history);
                let mut restored = restore(&history, last_seq);
                let again = restored.rewind(after_seq, last_seq).map(|removed| removed.len());
                let outcome = history.rewind(after_seq, last_seq).map(|removed| removed.len());
                prop_assert_eq!(&outcome, &again);
                prop_assert_eq!(history.live_set(last_seq), restored.live_set(last_seq));
                match outcome {
                    Ok(_) => {
                        pinned.retain(|seq| *seq <= after_seq);
                        prop_assert!(seqs(&history).iter().all(|seq| *seq <= after_seq));
                    }
                    Err(_) => prop_assert_eq!(before, seqs(&history)),
                }
                check(&history, &limits, &pinned);
            }
            let first = last_seq + 1;
            let before = seqs(&history);
            let line = words.join(" ");
            let mut restored = restore(&history, last_seq);
            let mut restored_seq = last_seq;
            let outcome = append(&mut history, &mut last_seq, &line, &limits);
            let again = append(&mut restored, &mut restored_seq, &line, &limits);
            prop_assert_eq!(&outcome, &again, "a restored history returns the same");
            prop_assert_eq!(seqs(&history), seqs(&restored));
            prop_assert_eq!(history.live_set(last_seq), restored.live_set(last_seq));
            match outcome {
                Ok(_) => pinned.extend(
                    (first..).zip(&words).filter(|(_, word)| word.ends_with('!')).map(|(seq, _)| seq),
                ),
                Err(_) => prop_assert_eq!(before, seqs(&history), "a refused append has no effect"),
            }
            check(&history, &limits, &pinned);
        }
    }
}

/// Limits under which no leading system turns are retained.
fn without_preamble(limits: &Limits) -> Limits {
    Limits {
        pinned_bytes: 0,
        ..limits.clone()
    }
}

proptest! {
    /// System turns from before the first user turn are retained for windows.
    ///
    /// This does not affect the history itself.
    #[test]
    fn retained_system_turns_do_not_change_history(
        cap in 1_usize..9,
        bytes in prop::sample::select(vec![BYTES, 3 * BYTES, 1 << 20]),
        pinned_bytes in prop::sample::select(vec![0, BYTES, 2 * BYTES, 1 << 20]),
        leading in 0_usize..7,
        appends in prop::collection::vec(prop::collection::vec(word(), 1..4), 0..30),
    ) {
        let limits = Limits { max_history_bytes: bytes, pinned_bytes, departed_calls: 4, ..caps(cap) };
        let (mut history, mut last_seq) = (History::default(), 0);
        let (mut plain, mut plain_seq) = (History::default(), 0);
        let lines = appends.iter().map(|words| words.join(" ").replace('!', ""));
        for line in std::iter::repeat_n("s".to_owned(), leading).chain(lines) {
            let outcome = append(&mut history, &mut last_seq, &line, &limits);
            let expected = append(&mut plain, &mut plain_seq, &line, &without_preamble(&limits));
            prop_assert_eq!(outcome, expected);
            prop_assert_eq!(seqs(&history), seqs(&plain));
            prop_assert_eq!(history.totals(), plain.totals());
            prop_assert_eq!(history.count(), plain.count());
            check(&history, &limits, &BTreeSet::new());

            let kept = history.live_set(last_seq);
            let without = LiveSet { preamble: Vec::new(), ..kept.clone() };
            prop_assert_eq!(without, plain.live_set(last_seq));
            let is_leading = |seq: &u64| *seq <= leading.min(4) as u64;
            prop_assert!(kept.preamble.iter().all(is_leading), "{:?}", kept);
            let preamble = history.preamble().iter();
            let bytes: usize = preamble.map(|turn| turn.content.len()).sum();
            prop_assert!(bytes <= limits.pinned_bytes_effective(), "{} bytes", bytes);

            let restored = restore(&history, last_seq);
            prop_assert_eq!(restored.live_set(last_seq), kept);
            prop_assert_eq!(restored.totals(), history.totals());
            let apart = |history: &History| -> Vec<u64> {
                history.view(last_seq).apart.iter().map(|record| record.seq).collect()
            };
            prop_assert_eq!(apart(&restored), apart(&history));
        }
    }
}

/// Simulates a restart: stores the live set and loads its turns again.
fn restore(history: &History, last_seq: u64) -> History {
    let kept = history.live_set(last_seq);
    let all = history.preamble().iter().chain(history.turns_after(0));
    let mut turns: Vec<(TurnRecord, Vec<Box<str>>)> =
        all.map(|record| reloaded(history, record)).collect();
    turns.sort_by_key(|(record, _)| record.seq);
    let arrivals = turns
        .iter()
        .map(|(record, results)| (record.clone(), &results[..]))
        .collect();
    let rewound = history.rewound().cloned().unwrap_or_default();
    History::restore(&kept, rewound, arrivals)
}

fn reloaded(history: &History, record: &TurnRecord) -> (TurnRecord, Vec<Box<str>>) {
    let uses: Vec<Box<str>> = record.uses().cloned().collect();
    let results = history.results_of(record);
    let links = Links {
        uses,
        results: results.clone(),
        names: record.names().to_vec(),
        refs: record.refs().to_vec(),
        takes_orphans: record.takes_orphans,
        leads_on: record.leads_on,
    };
    let new = NewTurn {
        role: record.role,
        pinned: record.pinned,
        links,
        ..turn("u")
    };
    (
        TurnRecord::new(&new, record.seq, record.content.clone()),
        results,
    )
}

impl History {
    /// The ids of a turn's results, in the order of the calls.
    fn results_of(&self, record: &TurnRecord) -> Vec<Box<str>> {
        let mut once = Vec::new();
        // A turn of calls is listed once for each of its results. Take each result once.
        for use_seq in record
            .mates()
            .filter(|mate| *mate < record.seq)
            .collect::<BTreeSet<_>>()
        {
            let calls = self
                .find(use_seq)
                .into_iter()
                .flat_map(|call| call.calls_answered_by(record.seq));
            once.extend(calls.cloned());
        }
        let unknown = record.answers().iter().filter(|seq| **seq == record.seq);
        once.extend(unknown.map(|_| "unknown".into()));
        once
    }
}

#[test]
fn token_estimate_of_updated_turn_excludes_client_bytes() {
    let mut history = History::default();
    let mut last_seq = 0;
    append(&mut history, &mut last_seq, "u", &Limits::default()).unwrap();
    let nonce = NonceSecret::new([1; 32]).nonce(Generation::new(1, 1));
    let content: Arc<[u8]> = vec![0; 4_000].into();
    assert!(history.update(1, content, 3_600, nonce));
    assert_eq!(
        history.turn(1).unwrap().tokens,
        crate::turn::estimate_tokens(400)
    );
}
