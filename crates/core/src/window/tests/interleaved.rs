//! Windows of one session for several models, policies and budgets in turn.
//!
//! In between, limits are lowered and the session is restarted.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::generated::{Step, check_pairs, check_survivors, limits, step, turns_of};
use super::*;
use crate::CoreError;

/// An event in a session.
#[derive(Clone, Debug)]
enum Event {
    Say(Step),
    See(Terms),
    /// A window that is not stored, then one that is.
    Peek(Terms, u64),
    Restart,
    /// An operator lowers the cap on turns.
    Lower(usize),
}

fn terms() -> impl Strategy<Value = Terms> {
    let budget = prop_oneof![
        Just(60_u64),
        Just(150),
        Just(300),
        Just(310),
        Just(400),
        Just(1_500),
        Just(8_000),
        Just(1_000_000)
    ];
    let rest = (
        proptest::sample::select(POLICIES.to_vec()),
        proptest::sample::select(vec![1.0, 1.0, 0.5, 0.83, 1.37, 2.0]),
        proptest::sample::select(vec![0.0, 0.0, 0.02, 0.3]),
    );
    (0..2_u32, budget, proptest::bool::weighted(0.85), rest).prop_map(
        |(model, budget, keep, (policy, factor, margin))| Terms {
            model,
            policy,
            budget,
            keep,
            factor,
            margin,
        },
    )
}

fn event(few: Vec<Terms>) -> impl Strategy<Value = Event> {
    let known = proptest::sample::select(few);
    let budget = prop_oneof![Just(100_u64), Just(500), Just(100_000)];
    prop_oneof![
        12 => step().prop_map(Event::Say),
        8 => known.clone().prop_map(Event::See),
        1 => terms().prop_map(Event::See),
        1 => (known, budget).prop_map(|(terms, budget)| Event::Peek(terms, budget)),
        1 => Just(Event::Restart),
        1 => (1..20_usize).prop_map(Event::Lower),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(terms(), 1..5)
        .prop_flat_map(|few| proptest::collection::vec(event(few), 1..120))
}

struct Session {
    chat: Chat,
    saved: Vec<SavedCut>,
    sent: BTreeMap<(u32, Policy), SentWindow>,
    current: Option<Turn>,
}

struct SentWindow {
    seen: Seen,
    /// False after a restart, which loses what was sent.
    is_remembered: bool,
}

impl Session {
    fn new(limits: Limits) -> Self {
        Self {
            chat: Chat::new(limits),
            saved: Vec::new(),
            sent: BTreeMap::new(),
            current: None,
        }
    }

    fn save(&mut self) {
        if let Some(changes) = self.chat.windows.take_changes() {
            self.saved = changes.to_vec();
            for saved in &mut self.saved {
                saved
                    .cut
                    .reduced
                    .values_mut()
                    .for_each(|reduced| reduced.shown = None);
            }
        }
    }

    /// The same session as restored from a store.
    fn restarted(&self) -> Chat {
        Chat {
            windows: Windows::restore(self.saved.clone(), 0, Vec::new()),
            history: self.chat.history_restored(),
            ..self.chat.clone()
        }
    }

    fn see(&mut self, terms: &Terms) -> Result<(), TestCaseError> {
        let key = (terms.model, terms.policy);
        let mut restarted = self.restarted();
        let mut fresh = Chat {
            windows: Windows::default(),
            ..self.chat.clone()
        };
        let later = restarted.see_on(&Terms {
            keep: false,
            ..*terms
        });
        let seen = match self.chat.see_on(terms) {
            Ok(seen) => seen,
            Err(CoreError::CurrentTurnTooLarge { budget, tokens, .. }) => {
                prop_assert_eq!(budget, terms.budget);
                prop_assert!(tokens > budget, "{} fit in {}", tokens, budget);
                prop_assert!(
                    fresh.see_on(terms).is_err(),
                    "it is not the cut that is too large"
                );
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        check_pairs(&seen)?;
        check_budget(&self.chat, &seen, terms)?;
        // On the other scale there is no room for the smallest JSON.
        if terms.model == 0 {
            check_json(&seen)?;
        }
        if let Some(current) = &self.current {
            check_survivors(&self.chat, &seen, terms.policy, current)?;
        }
        let later = later.map(|later| later.words());
        prop_assert_eq!(later, Ok(seen.words()), "a restart changes nothing");
        if let Some(before) = self.sent.get(&key) {
            check_prefix(before, &seen)?;
        }
        if terms.keep {
            self.sent.insert(
                key,
                SentWindow {
                    seen,
                    is_remembered: true,
                },
            );
        }
        // Evicted cuts are made from scratch.
        let windows = &self.chat.windows;
        self.sent.retain(|&(model, policy), sent| {
            let terms = Terms {
                model,
                ..Terms::default()
            };
            !sent.is_remembered || windows.knows(terms.name(), policy)
        });
        self.save();
        Ok(())
    }

    fn lower(&mut self, turns: usize) {
        self.chat.limits.max_history_turns = self.chat.limits.max_history_turns.min(turns);
        if self.chat.history.trim(&self.chat.limits) > 0 {
            self.chat.windows.forget_sent();
            self.sent.clear();
        }
    }
}

/// The window uses at most the reported tokens, and they fit the budget.
fn check_budget(chat: &Chat, seen: &Seen, terms: &Terms) -> Result<(), TestCaseError> {
    let report = &seen.window.report;
    let shown = |tokens: u64| whole(tokens as f64 * terms.factor);
    prop_assert!(report.blocks.total() <= terms.budget, "{:?}", report.blocks);
    let turns: u64 = seen.window.turns.charged().sum();
    prop_assert_eq!(turns + shown(chat.fixed), report.blocks.total());
    prop_assert!(
        report.stable_prefix_tokens <= report.blocks.total(),
        "{:?}",
        report
    );
    for (turn, charged) in seen.turns.iter().zip(seen.window.turns.charged()) {
        prop_assert!(shown(terms.weigh()(turn)) <= charged, "{:?}", turn);
    }
    let places = &seen.window.cache_breakpoints;
    prop_assert!(places.is_sorted() && places.iter().all(|&place| place < seen.turns.len()));
    Ok(())
}

/// JSON is still JSON after trimming.
fn check_json(seen: &Seen) -> Result<(), TestCaseError> {
    let trimmed = seen
        .turns
        .iter()
        .filter(|turn| turn.metadata.get(LABEL).is_some_and(|l| l == "trimmed"));
    for part in trimmed.flat_map(|turn| &turn.parts) {
        if let PartKind::ToolResult { content, .. } = &part.kind
            && content.starts_with('{')
        {
            let value = serde_json::from_str::<serde_json::Value>(content);
            prop_assert!(value.is_ok(), "{}", content);
        }
    }
    Ok(())
}

/// Invariant 4, for the windows themselves and for the report.
fn check_prefix(before: &SentWindow, seen: &Seen) -> Result<(), TestCaseError> {
    let (old, new) = (&before.seen.turns, &seen.turns);
    let same = new
        .iter()
        .zip(old)
        .take_while(|(new, old)| new == old)
        .count();
    let report = &seen.window.report;
    let tokens: u64 = seen.window.turns.charged().take(same).sum();
    prop_assert!(
        report.stable_prefix_tokens <= tokens + report.blocks.system,
        "{} then {}: {} of {} tokens",
        before.seen.words(),
        seen.words(),
        report.stable_prefix_tokens,
        tokens
    );
    if before.is_remembered && same > 0 {
        prop_assert!(report.stable_prefix_tokens > 0);
    }
    let is_late = new
        .get(same)
        .is_some_and(|turn| !turn.links().results.is_empty());
    let is_sliding = matches!(report.policy, Policy::SlidingWindow { .. });
    if !seen.window.has_new_cut && !is_late && !is_sliding {
        prop_assert_eq!(
            same,
            old.len(),
            "{} then {}",
            before.seen.words(),
            seen.words()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn windows_of_one_session_do_not_disturb_each_other(events in events(), limits in limits()) {
        let mut session = Session::new(limits);
        let (mut waiting, mut calls) = (Vec::new(), 0);
        for event in &events {
            match event {
                Event::Say(step) => {
                    let Some(turn) = turns_of(step, &mut waiting, &mut calls) else { continue };
                    if session.chat.say(turn.clone()) {
                        session.current = Some(turn);
                        session.save();
                    }
                }
                Event::See(_) | Event::Peek(..) if session.chat.last_seq == 0 => {}
                Event::See(terms) => session.see(terms)?,
                Event::Peek(terms, budget) => {
                    let mut twin = session.chat.clone();
                    let _ = session.chat.see_on(&Terms { keep: false, budget: *budget, ..*terms });
                    let words = |chat: &mut Chat| chat.see_on(terms).map(|seen| seen.words());
                    prop_assert_eq!(words(&mut twin), words(&mut session.chat.clone()));
                    session.see(terms)?;
                }
                Event::Restart => {
                    session.chat = session.restarted();
                    session.sent.values_mut().for_each(|sent| sent.is_remembered = false);
                }
                Event::Lower(turns) => session.lower(*turns),
            }
        }
    }
}
