//! Generated conversations, and the invariants of all their windows.

use proptest::prelude::*;

use super::*;
use crate::CoreError;
use crate::turn::{MediaSource, Part};

#[derive(Clone, Debug)]
pub(super) enum Step {
    User {
        bytes: usize,
        pinned: bool,
        salience: Option<u8>,
    },
    Assistant {
        bytes: usize,
    },
    System {
        bytes: usize,
    },
    /// Calls `count` tools at once, with the same arguments for the same `input`.
    Calls {
        count: usize,
        input: u8,
        thinks: bool,
    },
    /// Adds the result of the pending call at this index.
    Answer {
        index: usize,
        bytes: usize,
        as_user: bool,
        is_json: bool,
    },
    /// Adds the results of several calls in one turn.
    AnswerAll {
        bytes: usize,
    },
    Media,
    /// A call that the provider executes itself, under one of a few ids.
    Program {
        id: u8,
    },
    /// Calls a tool for a program, or adds its output.
    OfProgram {
        id: u8,
        is_output: bool,
    },
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![8 => 0..200_usize, 2 => 200..3_000_usize, 1 => Just(60_000)];
    let salience = proptest::option::of(0..=10_u8);
    let pinned = proptest::bool::weighted(0.05);
    prop_oneof![
        4 => (bytes.clone(), pinned, salience)
            .prop_map(|(bytes, pinned, salience)| Step::User { bytes, pinned, salience }),
        3 => bytes.clone().prop_map(|bytes| Step::Assistant { bytes }),
        1 => (0..50_usize).prop_map(|bytes| Step::System { bytes }),
        4 => (1..4_usize, 0..3_u8, any::<bool>())
            .prop_map(|(count, input, thinks)| Step::Calls { count, input, thinks }),
        6 => (0..3_usize, bytes.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(index, bytes, as_user, is_json)| Step::Answer { index, bytes, as_user, is_json }
        ),
        1 => bytes.prop_map(|bytes| Step::AnswerAll { bytes }),
        1 => Just(Step::Media),
        1 => (0..2_u8).prop_map(|id| Step::Program { id }),
        2 => (0..2_u8, proptest::bool::weighted(0.2))
            .prop_map(|(id, is_output)| Step::OfProgram { id, is_output }),
    ]
}

/// The turn of a step, or `None` if it needs a pending call and there is none.
pub(super) fn turns_of(step: &Step, pending: &mut Vec<String>, calls: &mut usize) -> Option<Turn> {
    let words = |bytes: usize| {
        "lorem ipsum "
            .chars()
            .cycle()
            .take(bytes)
            .collect::<String>()
    };
    Some(match step {
        Step::User {
            bytes,
            pinned,
            salience,
        } => Turn {
            pinned: *pinned,
            salience: salience.map(|tenths| f32::from(tenths) / 10.0),
            ..text(Role::User, words(*bytes))
        },
        Step::Assistant { bytes } => text(Role::Assistant, words(*bytes)),
        Step::System { bytes } => text(Role::System, words(*bytes)),
        Step::Calls {
            count,
            input,
            thinks,
        } => {
            let owned_ids: Vec<String> = (0..*count).map(|n| format!("c{}", *calls + n)).collect();
            *calls += count;
            pending.extend(owned_ids.iter().cloned());
            let ids: Vec<&str> = owned_ids.iter().map(String::as_str).collect();
            let mut turn = call(&ids, &format!("{{\"of\":{input}}}"));
            if *thinks {
                let (text, signature) = ("hm".into(), "s".into());
                turn.parts.insert(
                    0,
                    PartKind::Thinking {
                        text,
                        signature,
                        redacted: false,
                    }
                    .into(),
                );
            }
            turn
        }
        Step::Answer {
            index,
            bytes,
            as_user,
            is_json,
        } => {
            let id = pending.remove((pending.len().checked_sub(1)?).min(*index));
            let content = if *is_json {
                serde_json::json!({ "rows": vec![words(40); bytes / 40] }).to_string()
            } else {
                words(*bytes)
            };
            let mut turn = result(&id, content);
            if *as_user {
                turn.role = Role::User;
                turn.parts.push(PartKind::Text("and?".into()).into());
            }
            turn
        }
        Step::AnswerAll { bytes } => {
            pending.first()?;
            let parts = pending
                .drain(..)
                .flat_map(|id| result(&id, words(*bytes)).parts);
            Turn::new(Role::User, parts.collect())
        }
        Step::Program { id } => {
            let extra = format!("{{\"type\":\"server_tool_use\",\"id\":\"p{id}\"}}");
            Turn::new(Role::Assistant, vec![opaque(extra)])
        }
        Step::OfProgram {
            id,
            is_output: true,
        } => {
            let extra = format!("{{\"type\":\"tool_result\",\"tool_use_id\":\"p{id}\"}}");
            Turn::new(Role::Assistant, vec![opaque(extra)])
        }
        Step::OfProgram { id, .. } => {
            let call_id = format!("c{calls}");
            *calls += 1;
            let mut turn = call(&[&call_id], "{}");
            turn.parts[0].extra_json = format!("{{\"caller\":{{\"tool_id\":\"p{id}\"}}}}");
            pending.push(call_id);
            turn
        }
        Step::Media => {
            let source = MediaSource::Data(vec![7; 100]);
            let (media_type, name) = ("image/png".into(), String::new());
            Turn::new(
                Role::User,
                vec![
                    PartKind::Media {
                        media_type,
                        source,
                        name,
                    }
                    .into(),
                ],
            )
        }
    })
}

/// A part that memoird has no type for.
fn opaque(extra_json: String) -> Part {
    Part {
        kind: PartKind::Text(String::new()),
        extra_json,
    }
}

fn budget() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(60),
        Just(150),
        Just(400),
        Just(1_500),
        Just(8_000),
        Just(1_000_000)
    ]
}

pub(super) fn limits() -> impl Strategy<Value = Limits> {
    let turns = prop_oneof![Just(1_usize), Just(3), Just(8), Just(50)];
    let bytes = prop_oneof![Just(20_usize), Just(1 << 22)];
    (turns, bytes).prop_map(|(max_history_turns, max_history_bytes)| Limits {
        max_history_turns,
        max_history_bytes,
        pinned_turns: 2,
        ..Limits::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn generated_windows_keep_invariants(
        steps in proptest::collection::vec(step(), 1..60),
        policy in proptest::sample::select(POLICIES.to_vec()),
        budget in budget(),
        limits in limits(),
        skipped in 1..4_usize,
        summarized in proptest::option::of((3..12_usize, 0..4_u32)),
        rewound in proptest::option::of((2..9_usize, 1..12_u64)),
    ) {
        let mut chat = Chat::new(limits);
        let (mut pending, mut calls, mut before) = (Vec::new(), 0, None);
        for (index, step) in steps.iter().enumerate() {
            if let Some((every, count)) = rewound && index.is_multiple_of(every) {
                let after_seq = chat.last_seq.saturating_sub(count);
                if chat.rewind(after_seq) {
                    prop_assert!(chat.history.turns_after(after_seq).next().is_none());
                    before = None;
                }
            }
            let Some(turn) = turns_of(step, &mut pending, &mut calls) else { continue };
            if !chat.append(turn.clone()) || !index.is_multiple_of(skipped) {
                continue;
            }
            if let Some((every, keep)) = summarized && index.is_multiple_of(every) {
                chat.summarize(keep);
                if index.is_multiple_of(2) {
                    chat.show_summary();
                }
            }
            let (mut twin, mut later) = (chat.clone(), chat.restarted());
            let built = chat.build(policy, budget);
            let again = twin.build(policy, budget);
            prop_assert_eq!(
                built.as_ref().map(|built| &built.turns),
                again.as_ref().map(|built| &built.turns)
            );
            let after_restart = later.build(policy, budget);
            let Ok(built) = built else { before = None; continue };
            // After a restart, only the newest summary is known.
            let shown = built.window.report.summary.as_ref().map_or(0, |shown| shown.number);
            let newest = chat.summary.as_ref().map_or(0, |newest| newest.number);
            let is_known = shown == 0 || shown == newest;
            if chat.windows.is_changed() && !built.window.has_new_cut && is_known {
                let after_restart = after_restart.unwrap().turns;
                prop_assert_eq!(&after_restart, &built.turns, "a restart changes no window");
            }
            check_pairs(&built)?;
            check_budget(&chat, &built, budget)?;
            check_survivors(&chat, &built, policy, &turn)?;
            check_exchange(&chat, &built, policy, budget)?;
            if let Some(before) = &before {
                check_prefix(&chat, before, &built)?;
            }
            before = Some(built);
        }
    }

    #[test]
    fn too_large_error_reports_more_tokens_than_budget(
        steps in proptest::collection::vec(step(), 1..30),
        policy in proptest::sample::select(POLICIES.to_vec()),
        budget in 20..600_u64,
    ) {
        let mut chat = Chat::new(Limits { pinned_turns: 0, ..Limits::default() });
        let (mut pending, mut calls) = (Vec::new(), 0);
        for step in &steps {
            let Some(turn) = turns_of(step, &mut pending, &mut calls) else { continue };
            chat.append(turn);
            let outcome = chat.build(policy, budget);
            if let Err(CoreError::CurrentTurnTooLarge { budget: reported, tokens, .. }) = outcome {
                prop_assert_eq!(reported, budget);
                prop_assert!(tokens > budget, "{} fit in {}", tokens, budget);
            }
        }
    }
}

/// Invariant 1: results directly follow their calls, and every call has its result.
///
/// Only a call at the very end may be pending.
pub(super) fn check_pairs(built: &BuiltWindow) -> Result<(), TestCaseError> {
    let mut open: Vec<String> = Vec::new();
    for (index, turn) in built.turns.iter().enumerate() {
        let links = turn.links();
        for id in &links.results {
            let found = open.iter().position(|open| **open == **id);
            prop_assert!(
                found.is_some(),
                "{}: result {} without a call: {}",
                index,
                id,
                built.words()
            );
            open.remove(found.unwrap_or(0));
        }
        if links.results.is_empty() {
            prop_assert!(
                open.is_empty(),
                "{}: calls {:?} without results: {}",
                index,
                open,
                built.words()
            );
        }
        open.extend(links.uses.iter().map(ToString::to_string));
    }
    Ok(())
}

/// Invariant 2: the window uses at most the reported tokens, and they fit the budget.
fn check_budget(chat: &Chat, built: &BuiltWindow, budget: u64) -> Result<(), TestCaseError> {
    let report = &built.window.report;
    prop_assert!(report.blocks.total() <= budget);
    let turns: u64 = built.window.turns.charged().sum();
    prop_assert_eq!(turns + chat.fixed, report.blocks.total());
    for (turn, reported) in built.turns.iter().zip(built.window.turns.iter()) {
        prop_assert!(weigh(turn) <= reported.tokens, "{:?}", turn);
    }
    Ok(())
}

/// Invariant 3: the anchor, pinned turns and the current turn are in the window.
pub(super) fn check_survivors(
    chat: &Chat,
    built: &BuiltWindow,
    policy: Policy,
    current: &Turn,
) -> Result<(), TestCaseError> {
    let has = |wanted: &Turn| {
        let kinds: Vec<&PartKind> = built
            .turns
            .iter()
            .flat_map(|turn| &turn.parts)
            .map(|part| &part.kind)
            .collect();
        wanted.parts.iter().all(|part| kinds.contains(&&part.kind))
    };
    // A result that came too late for its call was dropped with it.
    let is_kept = chat.history.turns_after(chat.last_seq - 1).next().is_some();
    // A reply may be summarized, but never the turns that the model answers next.
    let is_summarized = matches!(current.role, Role::Assistant | Role::System)
        && chat
            .summary
            .as_ref()
            .is_some_and(|summary| summary.through_seq >= chat.last_seq);
    // Results that do not fit are trimmed, which the report shows.
    let is_trimmed = !current.links().results.is_empty() && built.window.report.degraded;
    prop_assert!(
        !is_kept || is_summarized || is_trimmed || has(current),
        "the current turn: {}",
        built.words()
    );
    let first = chat
        .history
        .turns_after(0)
        .find(|record| record.role == Role::User && record.stands_alone());
    let is_sliding = matches!(policy, Policy::SlidingWindow { .. });
    let through_seq = chat
        .summary
        .as_ref()
        .map_or(0, |summary| summary.through_seq);
    let is_shown = |first: &&TurnRecord| !is_sliding && first.seq > through_seq;
    if let Some(anchor) = first.filter(is_shown) {
        let is_excerpt = built.words().contains("[excerpt]");
        prop_assert!(
            is_excerpt || has(&open(&anchor.content).unwrap()),
            "the anchor: {}",
            built.words()
        );
    }
    for pinned in chat.history.turns_after(0).filter(|record| record.pinned) {
        let is_anchor = first.is_some_and(|first| first.seq == pinned.seq);
        prop_assert!(
            is_anchor || has(&open(&pinned.content).unwrap()),
            "a pinned turn: {}",
            built.words()
        );
    }
    Ok(())
}

/// The exchange in progress is in the window, whole or visibly shortened.
///
/// The report lists turns that are left out without a summary.
fn check_exchange(
    chat: &Chat,
    built: &BuiltWindow,
    policy: Policy,
    budget: u64,
) -> Result<(), TestCaseError> {
    let report = &built.window.report;
    if matches!(policy, Policy::SlidingWindow { .. }) {
        return Ok(());
    }
    let left_out: Vec<&Omission> = report
        .omissions
        .iter()
        .filter(|o| o.is_left_out())
        .collect();
    prop_assert!(left_out.is_empty() || report.degraded, "{}", built.words());
    let is_short = |omission: &&Omission| omission.reason == OmissionReason::Excerpt;
    let view = chat.history.view(chat.last_seq);
    let in_progress = view.request_under_way().map(|request| request.seq);
    let is_excerpt = report
        .omissions
        .iter()
        .any(|omission: &Omission| is_short(&omission) && Some(omission.first_seq) == in_progress);
    prop_assert!(!is_excerpt || report.degraded && !report.notes.is_empty());
    let Some(request) = view.request() else {
        return Ok(());
    };
    let is_out = |seq: u64| {
        left_out
            .iter()
            .any(|o| o.first_seq <= seq && seq <= o.last_seq)
    };
    // The request must be in the window only if an excerpt of it fits next to the current turn.
    let mut now: Vec<u64> = vec![chat.last_seq];
    while let Some(more) = now
        .iter()
        .filter_map(|&seq| view.record(seq))
        .flat_map(TurnRecord::mates)
        .find(|mate| !now.contains(mate))
    {
        now.push(more);
    }
    let pinned = chat.history.turns_after(0).filter(|record| record.pinned);
    let stays: u64 = now
        .iter()
        .filter_map(|&seq| view.record(seq))
        .chain(pinned)
        .map(|record| weigh(&open(&record.content).expect("a turn")))
        .sum();
    // A turn with results for several others is in the window several times, and so is one with
    // other parts next to results. Each time it counts with all its tokens.
    let is_split = view.tail_from(request.seq).any(|record| {
        let calls = record.answers();
        let is_other_part = |part: &Part| !matches!(part.kind, PartKind::ToolResult { .. });
        let turn = open(&record.content).expect("a turn");
        calls.iter().any(|call| *call != calls[0])
            || !calls.is_empty() && turn.parts.iter().any(is_other_part)
    });
    if budget > stays + 400 && !is_split {
        prop_assert!(
            !is_out(request.seq),
            "the request {}: {}",
            request.seq,
            built.words()
        );
    }
    // Steps after the request that were left out, although they could be shortened.
    let steps = view.tail_from(request.seq + 1);
    let omitted = steps.clone().filter(|step| is_out(step.seq)).count();
    let is_long = |step: &&TurnRecord| weigh(&open(&step.content).expect("a turn")) > 2_000;
    let has_caps = chat.limits.max_history_turns < 50 || chat.limits.max_history_bytes < 1_000;
    // A window cannot contain a result without its call, which is dropped or summarized here.
    let summaries = report
        .omissions
        .iter()
        .filter(|it| it.reason == OmissionReason::Summarized);
    let through = summaries.map(|it| it.last_seq).max().unwrap_or(0);
    let is_outside = |mate| mate < request.seq || mate <= through;
    let is_late = steps
        .clone()
        .any(|step: &TurnRecord| step.mates().any(is_outside));
    if budget >= 8_000
        && !has_caps
        && !is_late
        && !steps.clone().any(|step| is_long(&step))
        && !is_long(&request)
    {
        prop_assert_eq!(
            omitted,
            0,
            "steps of the exchange {}: {} {:?}",
            request.seq,
            built.words(),
            report.omissions
        );
    }
    Ok(())
}

/// Invariant 4: the reported stable prefix was sent before.
///
/// Between two cuts it is the whole previous window, unless a late result arrived.
fn check_prefix(
    chat: &Chat,
    before: &BuiltWindow,
    built: &BuiltWindow,
) -> Result<(), TestCaseError> {
    let mut tokens = chat.fixed;
    let stable = built.window.report.stable_prefix_tokens;
    let mut same = 0;
    while tokens < stable {
        tokens += built.window.turns[same].tokens;
        same += 1;
    }
    prop_assert_eq!(tokens, stable, "a whole number of turns");
    prop_assert!(
        before.turns.len() >= same,
        "{} before {}",
        before.words(),
        built.words()
    );
    prop_assert_eq!(&built.turns[..same], &before.turns[..same]);
    let is_late = built.turns[same..]
        .first()
        .is_some_and(|turn| !turn.links().results.is_empty());
    let is_sliding = matches!(built.window.report.policy, Policy::SlidingWindow { .. });
    if !built.window.has_new_cut && !is_late && !is_sliding {
        prop_assert_eq!(
            same,
            before.turns.len(),
            "{} before {}",
            before.words(),
            built.words()
        );
    }
    Ok(())
}
