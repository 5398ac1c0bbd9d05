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
    Append(Step),
    Build(Terms),
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
        12 => step().prop_map(Event::Append),
        8 => known.clone().prop_map(Event::Build),
        1 => terms().prop_map(Event::Build),
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
    built: BuiltWindow,
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

    fn build(&mut self, terms: &Terms) -> Result<(), TestCaseError> {
        let key = (terms.model, terms.policy);
        let mut restarted = self.restarted();
        let mut fresh = Chat {
            windows: Windows::default(),
            ..self.chat.clone()
        };
        let later = restarted.build_on(&Terms {
            keep: false,
            ..*terms
        });
        let built = match self.chat.build_on(terms) {
            Ok(built) => built,
            Err(CoreError::CurrentTurnTooLarge { budget, tokens, .. }) => {
                prop_assert_eq!(budget, terms.budget);
                prop_assert!(tokens > budget, "{} fit in {}", tokens, budget);
                prop_assert!(
                    fresh.build_on(terms).is_err(),
                    "the turn does not fit without the cut either"
                );
                return Ok(());
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        };
        check_pairs(&built)?;
        check_budget(&self.chat, &built, terms)?;
        // On the other scale there is no room for the smallest JSON.
        if terms.model == 0 {
            check_json(&built)?;
        }
        if let Some(current) = &self.current {
            check_survivors(&self.chat, &built, terms.policy, current)?;
        }
        let later = later.map(|later| later.words());
        prop_assert_eq!(later, Ok(built.words()), "a restart changes no window");
        if let Some(before) = self.sent.get(&key) {
            check_prefix(before, &built)?;
        }
        if terms.keep {
            self.sent.insert(
                key,
                SentWindow {
                    built,
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
fn check_budget(chat: &Chat, built: &BuiltWindow, terms: &Terms) -> Result<(), TestCaseError> {
    let report = &built.window.report;
    let shown = |tokens: u64| whole(tokens as f64 * terms.factor);
    prop_assert!(report.blocks.total() <= terms.budget, "{:?}", report.blocks);
    let turns: u64 = built.window.turns.charged().sum();
    prop_assert_eq!(turns + shown(chat.fixed), report.blocks.total());
    prop_assert!(
        report.stable_prefix_tokens <= report.blocks.total(),
        "{:?}",
        report
    );
    for (turn, charged) in built.turns.iter().zip(built.window.turns.charged()) {
        prop_assert!(shown(terms.weigh()(turn)) <= charged, "{:?}", turn);
    }
    let breakpoints = &built.window.cache_breakpoints;
    prop_assert!(
        breakpoints.is_sorted() && breakpoints.iter().all(|&index| index < built.turns.len())
    );
    Ok(())
}

/// JSON is still JSON after trimming.
fn check_json(built: &BuiltWindow) -> Result<(), TestCaseError> {
    let trimmed = built
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
fn check_prefix(before: &SentWindow, built: &BuiltWindow) -> Result<(), TestCaseError> {
    let (old, new) = (&before.built.turns, &built.turns);
    let same = new
        .iter()
        .zip(old)
        .take_while(|(new, old)| new == old)
        .count();
    let report = &built.window.report;
    let tokens: u64 = built.window.turns.charged().take(same).sum();
    prop_assert!(
        report.stable_prefix_tokens <= tokens + report.blocks.system,
        "{} before {}: {} of {} tokens",
        before.built.words(),
        built.words(),
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
    if !built.window.has_new_cut && !is_late && !is_sliding {
        prop_assert_eq!(
            same,
            old.len(),
            "{} before {}",
            before.built.words(),
            built.words()
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn windows_of_one_session_do_not_affect_each_other(events in events(), limits in limits()) {
        let mut session = Session::new(limits);
        let (mut pending, mut calls) = (Vec::new(), 0);
        for event in &events {
            match event {
                Event::Append(step) => {
                    let Some(turn) = turns_of(step, &mut pending, &mut calls) else { continue };
                    if session.chat.append(turn.clone()) {
                        session.current = Some(turn);
                        session.save();
                    }
                }
                Event::Build(_) | Event::Peek(..) if session.chat.last_seq == 0 => {}
                Event::Build(terms) => session.build(terms)?,
                Event::Peek(terms, budget) => {
                    let mut twin = session.chat.clone();
                    let peeked = Terms { keep: false, budget: *budget, ..*terms };
                    let _ = session.chat.build_on(&peeked);
                    let words = |chat: &mut Chat| chat.build_on(terms).map(|built| built.words());
                    prop_assert_eq!(words(&mut twin), words(&mut session.chat.clone()));
                    session.build(terms)?;
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
