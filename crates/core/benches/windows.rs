//! Cost of planning a window: `cargo bench -p memoird-core --bench windows`.
//!
//! Counts are cached, as from a session's second window on. If everything fits and no cut is made,
//! the goals are 20 µs for 1,000 turns and 60 µs for 10,000.

use std::sync::Arc;

use divan::Bencher;
use memoird_core::budget::Budget;
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::limits::Limits;
use memoird_core::nonce::Nonce;
use memoird_core::session::{AppendCommand, Session};
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_core::turn::{NewTurn, PartKind, Role, Turn};
use memoird_core::window::{
    Codec, Overheads, Policy, ScaleId, Window, WindowInput, WindowSettings, overheads,
};

fn main() {
    divan::main();
}

const TURNS: [usize; 3] = [50, 1_000, 10_000];
const TOKENS: u64 = 50;
const SCALE: ScaleId = ScaleId(1);
const POLICIES: [Policy; 3] = [
    Policy::HeadTail { turns: 0 },
    Policy::Salience,
    Policy::SlidingWindow { turns: u32::MAX },
];

/// A codec without real content, because windows are planned by counts.
const CODEC: Codec = Codec {
    open: |_| Some(said(Role::User)),
    seal: |_, _| Arc::new([0; 8]),
};

fn said(role: Role) -> Turn {
    Turn::new(role, vec![PartKind::Text("hello".to_owned()).into()])
}

fn now() -> Now {
    Now {
        wall: Timestamp::from_ms(1),
        steady: Steady(1),
    }
}

fn weigh(_: &Turn) -> u64 {
    TOKENS
}

/// A session in which the fifth of every ten turns calls a tool and the sixth has the result.
struct Chat {
    session: Session,
    limits: Limits,
    settings: WindowSettings,
    /// Counted once, as the engine does for each model.
    overheads: Overheads,
}

impl Chat {
    fn new(turns: usize) -> Self {
        let parse = |text: &str| (TenantId::parse(text).ok(), SessionId::parse(text).ok());
        let (Some(tenant), Some(session)) = parse("a") else {
            unreachable!("a valid id")
        };
        let key = SessionKey { tenant, session };
        let limits = Limits {
            max_history_turns: turns,
            ..Limits::default()
        };
        let (session, _) = Session::begin(&key, Generation::new(1, 1), now());
        let mut chat = Self {
            session,
            limits,
            settings: WindowSettings::default(),
            overheads: overheads(&weigh),
        };
        for place in 0..turns {
            let turn = match place % 10 {
                4 => {
                    let (id, name) = (format!("call {place}"), "look".to_owned());
                    let kind = PartKind::ToolUse {
                        id,
                        name,
                        input_json: "{}".to_owned(),
                    };
                    Turn::new(Role::Assistant, vec![kind.into()])
                }
                5 => {
                    let tool_use_id = format!("call {}", place - 1);
                    let (content, parts) = ("seen".to_owned(), Vec::new());
                    let kind = PartKind::ToolResult {
                        tool_use_id,
                        content,
                        parts,
                        is_error: false,
                    };
                    Turn::new(Role::Tool, vec![kind.into()])
                }
                place if place % 2 == 0 => said(Role::User),
                _ => said(Role::Assistant),
            };
            let command = AppendCommand {
                turns: vec![NewTurn::from_turn(&turn)],
                ..AppendCommand::default()
            };
            let seal = |_: &NewTurn, _: u64, _: Timestamp| Arc::from([0_u8; 200].as_slice());
            if let Err(error) = chat
                .session
                .append(&key, &command, &chat.limits, now(), &seal)
            {
                panic!("turn {place}: {error}");
            }
        }
        let counted: Vec<_> = chat
            .session
            .uncounted(SCALE, u64::MAX)
            .into_iter()
            .map(|(seq, _)| (seq, TOKENS))
            .collect();
        chat.session
            .windows_mut()
            .expect("windows")
            .note_counts(SCALE, counted);
        chat
    }

    /// Builds a window with this budget, as for a call.
    fn window(&mut self, policy: Policy, budget: u64, keep: bool) -> Window {
        assert!(
            self.session.uncounted(SCALE, u64::MAX).is_empty(),
            "all is counted"
        );
        let input = WindowInput {
            nonce: Nonce::default(),
            model: "m",
            model_budget: Budget {
                context_window: budget,
                max_reply_tokens: 0,
                safety_headroom: 0,
                tool_result_headroom: 0,
            },
            policy,
            input_budget: budget,
            budget,
            fixed: 100,
            memories: 0,
            learnt: 0,
            fixed_digest: 1,
            factor: 1.0,
            margin: 0.0,
            settings: &self.settings,
            limits: &self.limits,
            scale: SCALE,
            overheads: self.overheads,
            weigh: &weigh,
            codec: CODEC,
            keep,
            is_shared: false,
            soft_percent: None,
            summary_tokens: None,
        };
        match self.session.window(&input) {
            Ok(window) => window,
            Err(error) => panic!("{error}"),
        }
    }
}

fn everything(bencher: Bencher<'_, '_>, policy: Policy, turns: usize) {
    let mut chat = Chat::new(turns);
    let window = chat.window(policy, u64::MAX >> 8, true);
    assert_eq!((window.turns.len(), window.has_new_cut), (turns, false));
    bencher.bench_local(|| chat.window(policy, u64::MAX >> 8, true));
}

/// Everything fits, and no cut is made.
#[divan::bench(args = TURNS)]
fn all_of_it(bencher: Bencher<'_, '_>, turns: usize) {
    everything(bencher, POLICIES[0], turns);
}

/// The same with the policy that makes a new decision for each window.
#[divan::bench(args = TURNS)]
fn all_of_it_sliding(bencher: Bencher<'_, '_>, turns: usize) {
    everything(bencher, POLICIES[2], turns);
}

/// After a cut that left out half of the turns.
#[divan::bench(args = TURNS)]
fn after_a_cut(bencher: Bencher<'_, '_>, turns: usize) {
    let mut chat = Chat::new(turns);
    let budget = turns as u64 * TOKENS * 9 / 10;
    assert!(chat.window(POLICIES[0], budget, true).has_new_cut);
    assert!(!chat.window(POLICIES[0], budget, true).has_new_cut);
    bencher.bench_local(|| chat.window(POLICIES[0], budget, true));
}

/// The window for which a cut is made.
#[divan::bench(args = TURNS)]
fn a_cut(bencher: Bencher<'_, '_>, turns: usize) {
    cut(bencher, POLICIES[0], turns);
}

/// The same by importance, which reads every turn.
#[divan::bench(args = TURNS)]
fn a_cut_by_salience(bencher: Bencher<'_, '_>, turns: usize) {
    cut(bencher, POLICIES[1], turns);
}

fn cut(bencher: Bencher<'_, '_>, policy: Policy, turns: usize) {
    let mut chat = Chat::new(turns);
    let budget = turns as u64 * TOKENS * 9 / 10;
    assert!(chat.window(policy, budget, false).has_new_cut);
    bencher.bench_local(|| chat.window(policy, budget, false));
}
