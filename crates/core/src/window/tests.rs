//! Tests of windows: generated conversations, every policy, budgets from tiny to huge.

mod chat;
mod cuts;
mod exchange;
mod generated;
mod interleaved;
mod kept;
mod summaries;

use std::cell::RefCell;
use std::sync::Arc;

use super::*;
use crate::budget::Budget;
use crate::compaction::{Summary, SummaryBody, TailLimits, choose, is_waiting};
use crate::history::{History, TurnRecord};
use crate::limits::Limits;
use crate::nonce::Nonce;
use crate::time::Timestamp;
use crate::turn::{LABEL, NewTurn, PartKind, Role, Turn};

thread_local! {
    /// The turns by their content, which is just an index here, because core never decodes it.
    static TURNS: RefCell<Vec<(u64, Turn)>> = const { RefCell::new(Vec::new()) };
}

/// Counts a turn as four tokens plus one for every four bytes.
pub(super) fn weigh(turn: &Turn) -> u64 {
    let bytes = |kind: &PartKind| match kind {
        PartKind::Text(text) => text.len(),
        PartKind::ToolUse {
            id,
            name,
            input_json,
        } => id.len() + name.len() + input_json.len() + 16,
        PartKind::ToolResult {
            tool_use_id,
            content,
            parts,
            ..
        } => {
            let inner = parts.iter().map(|part| match &part.kind {
                PartKind::Text(text) => text.len(),
                _ => 4_000,
            });
            tool_use_id.len() + content.len() + 16 + inner.sum::<usize>()
        }
        PartKind::Media { .. } => 4_000,
        PartKind::Thinking { text, .. } => text.len(),
    };
    4 + turn
        .parts
        .iter()
        .map(|part| bytes(&part.kind).div_ceil(4) as u64)
        .sum::<u64>()
}

fn open(content: &[u8]) -> Option<Turn> {
    let index = usize::from_le_bytes(content[..8].try_into().ok()?);
    TURNS.with_borrow(|turns| turns.get(index).map(|(_, turn)| turn.clone()))
}

fn seal(turn: Turn, seq: u64) -> Arc<[u8]> {
    let index = TURNS.with_borrow_mut(|turns| {
        let known = turns.iter().position(|known| *known == (seq, turn.clone()));
        known.unwrap_or_else(|| {
            turns.push((seq, turn));
            turns.len() - 1
        })
    });
    index.to_le_bytes().as_slice().into()
}

#[derive(Clone)]
pub(super) struct Chat {
    pub(super) history: History,
    pub(super) windows: Windows,
    pub(super) last_seq: u64,
    pub(super) limits: Limits,
    pub(super) settings: WindowSettings,
    pub(super) fixed: u64,
    pub(super) summary: Option<Arc<Summary>>,
    summaries: u32,
    pub(super) soft_percent: Option<u8>,
    pub(super) is_shared: bool,
}

/// Parameters of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// Each model has its own scale.
    pub(super) model: u32,
    pub(super) policy: Policy,
    /// On the provider's scale.
    pub(super) budget: u64,
    pub(super) keep: bool,
    pub(super) factor: f64,
    pub(super) margin: f64,
}

impl Default for Terms {
    fn default() -> Self {
        let policy = Policy::TokenBudget;
        Self {
            model: 0,
            policy,
            budget: 1_000,
            keep: true,
            factor: 1.0,
            margin: 0.0,
        }
    }
}

impl Terms {
    pub(super) fn name(&self) -> &'static str {
        ["m", "n", "o"][self.model as usize % 3]
    }

    pub(super) fn weigh(&self) -> fn(&Turn) -> u64 {
        match self.model {
            0 => weigh,
            _ => |turn| weigh(turn) * 3 / 2,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct BuiltWindow {
    pub(super) window: Window,
    pub(super) turns: Vec<Turn>,
}

pub(super) const POLICIES: [Policy; 6] = [
    Policy::HeadTail { turns: 0 },
    Policy::HeadTail { turns: 12 },
    Policy::TokenBudget,
    Policy::Salience,
    Policy::SlidingWindow { turns: 1 },
    Policy::SlidingWindow { turns: 9 },
];

impl Chat {
    pub(super) fn new(limits: Limits) -> Self {
        TURNS.with_borrow_mut(Vec::clear);
        Self {
            history: History::default(),
            windows: Windows::default(),
            last_seq: 0,
            limits,
            settings: WindowSettings::default(),
            fixed: 20,
            summary: None,
            summaries: 0,
            soft_percent: None,
            is_shared: false,
        }
    }

    /// Appends a turn. Returns false if it is rejected.
    pub(super) fn append(&mut self, turn: Turn) -> bool {
        let seq = self.last_seq + 1;
        let new = NewTurn::from_turn(&turn);
        let record = TurnRecord::new(&new, seq, seal(turn, seq));
        let arrivals = vec![(record, &new.links.results[..])];
        let is_accepted = self.history.append(arrivals, &self.limits).is_ok();
        self.last_seq += u64::from(is_accepted);
        is_accepted
    }

    pub(super) fn build(
        &mut self,
        policy: Policy,
        budget: u64,
    ) -> Result<BuiltWindow, crate::CoreError> {
        self.build_with(policy, budget, true)
    }

    pub(super) fn build_with(
        &mut self,
        policy: Policy,
        budget: u64,
        keep: bool,
    ) -> Result<BuiltWindow, crate::CoreError> {
        self.build_on(&Terms {
            policy,
            budget,
            keep,
            ..Terms::default()
        })
    }

    pub(super) fn build_on(&mut self, terms: &Terms) -> Result<BuiltWindow, crate::CoreError> {
        let Terms {
            model,
            policy,
            budget,
            keep,
            factor,
            margin,
        } = *terms;
        let scale = ScaleId(model.into());
        let weigh = terms.weigh();
        let uncounted =
            self.windows
                .uncounted(&self.history, self.last_seq, scale, policy.looks_at(budget));
        let counted: Vec<(u64, u64)> = uncounted
            .into_iter()
            .map(|record| (record.seq, weigh(&open(&record.content).expect("a turn"))))
            .collect();
        self.windows.note_counts(scale, counted);
        let input = WindowInput {
            model: terms.name(),
            model_budget: Budget {
                context_window: budget,
                max_reply_tokens: 0,
                safety_headroom: 0,
                tool_result_headroom: 0,
            },
            policy,
            input_budget: budget,
            budget: whole(budget as f64 / (1.0 + margin) / factor),
            fixed: self.fixed,
            memories: 0,
            learnt: 0,
            fixed_digest: 7,
            factor,
            margin,
            settings: &self.settings,
            limits: &self.limits,
            scale,
            overheads: overheads(&weigh),
            weigh: &weigh,
            nonce: Nonce::default(),
            codec: Codec { open, seal },
            keep,
            is_shared: self.is_shared,
            soft_percent: self.soft_percent,
            summary_tokens: None,
        };
        let summary = self.summary.as_ref();
        let mut fresh_windows = self.windows.clone();
        fresh_windows.forget_all_kept();
        let outcome = self
            .windows
            .window(&self.history, self.last_seq, summary, &input);
        let from_scratch = fresh_windows.window(&self.history, self.last_seq, summary, &input);
        assert_eq!(
            format!("{outcome:?}"),
            format!("{from_scratch:?}"),
            "a window from the cached front equals one from scratch"
        );
        let window = outcome?;
        let turns = window
            .turns
            .iter()
            .map(|turn| open(&turn.content).expect("a turn"));
        Ok(BuiltWindow {
            turns: turns.collect(),
            window,
        })
    }

    /// Summarizes all but the last `exchanges` exchanges.
    ///
    /// Returns false if there is nothing to summarize or a call is pending.
    pub(super) fn summarize(&mut self, exchanges: u32) -> bool {
        let view = self.history.view(self.last_seq);
        let keep = TailLimits {
            exchanges,
            is_exact: exchanges.is_multiple_of(2),
            tokens: 200,
            turns: u64::MAX,
            bytes: u64::MAX,
            splits_exchange: false,
        };
        let after = self.summary.as_ref().map_or(0, |last| last.through_seq);
        let number = self.summaries + 1;
        let span = choose(&view, after, &keep, |record| record.tokens.into());
        let Some(span) = span.filter(|_| !is_waiting(&view)) else {
            return false;
        };
        self.summary = Some(Arc::new(Summary {
            number,
            first_seq: span.first_seq,
            through_seq: span.through_seq,
            turns: span.through_seq,
            made_at: Timestamp::from_ms(0),
            by: "a test".into(),
            body: SummaryBody::default(),
            text: format!("what was said up to {}", span.through_seq).into(),
        }));
        self.summaries = number;
        self.windows.note_summary_made(number, false);
        true
    }

    /// Rewinds the turns after `after_seq`. Returns false if that would split a unit.
    pub(super) fn rewind(&mut self, after_seq: u64) -> bool {
        if self.history.rewind(after_seq, self.last_seq).is_err() {
            return false;
        }
        if let Some(removed) = self.summary.take_if(|it| it.through_seq > after_seq) {
            assert!(removed.number > 0);
            self.windows.note_summary_undone(0);
        }
        self.windows.rewind(after_seq, self.last_seq);
        true
    }

    /// Lets the next window show the summary, without waiting for a cut.
    pub(super) fn show_summary(&mut self) {
        let number = self.summary.as_ref().map_or(0, |summary| summary.number);
        self.windows.note_summary_made(number, true);
    }

    /// The same history as restored from a store.
    pub(super) fn history_restored(&self) -> History {
        let view = self.history.view(self.last_seq);
        let kept = self.history.live_set(self.last_seq);
        let mut records: Vec<&TurnRecord> = view.apart.clone();
        records.extend(view.tail_from(0));
        records.sort_by_key(|record| record.seq);
        let read_back = |record: &&TurnRecord| {
            let turn = open(&record.content).expect("a turn");
            let new = NewTurn::from_turn(&turn);
            (
                TurnRecord::new(&new, record.seq, Arc::clone(&record.content)),
                new.links.results,
            )
        };
        let turns: Vec<_> = records.iter().map(read_back).collect();
        let arrivals = turns
            .iter()
            .map(|(record, results)| (record.clone(), &results[..]));
        let rewound = self.history.rewound().cloned().unwrap_or_default();
        History::restore(&kept, rewound, arrivals.collect())
    }

    /// The same session after a restart.
    pub(super) fn restarted(&mut self) -> Self {
        let mut saved = self.windows.clone().take_changes().unwrap_or_default();
        for cut in &mut saved {
            cut.cut
                .reduced
                .values_mut()
                .for_each(|reduced| reduced.shown = None);
        }
        let newest = self.summary.as_ref().map_or(0, |summary| summary.number);
        Self {
            windows: Windows::restore(saved, newest, Vec::new()),
            ..self.clone()
        }
    }
}

impl BuiltWindow {
    /// The turns of the window in the notation of the history tests.
    pub(super) fn words(&self) -> String {
        let word = |turn: &WindowTurn| {
            let index = usize::from_le_bytes(turn.content[..8].try_into().unwrap());
            let (seq, turn) = TURNS.with_borrow(|turns| turns[index].clone());
            if let Some(label) = turn.metadata.get(LABEL) {
                return format!("[{label}]");
            }
            let role = match turn.role {
                Role::User => 'u',
                Role::Assistant => 'a',
                Role::Tool => 't',
                Role::System => 's',
            };
            format!("{role}{seq}")
        };
        self.window
            .turns
            .iter()
            .map(word)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "all values in these tests fit"
)]
pub(super) fn whole(tokens: f64) -> u64 {
    tokens as u64
}

pub(super) fn text(role: Role, text: impl Into<String>) -> Turn {
    Turn::new(role, vec![PartKind::Text(text.into()).into()])
}

pub(super) fn call(ids: &[&str], input: &str) -> Turn {
    let part = |id: &&str| {
        let (id, name, input_json) = ((*id).to_owned(), "look".to_owned(), input.to_owned());
        PartKind::ToolUse {
            id,
            name,
            input_json,
        }
        .into()
    };
    Turn::new(Role::Assistant, ids.iter().map(part).collect())
}

pub(super) fn result(id: &str, content: impl Into<String>) -> Turn {
    let (tool_use_id, content, parts) = (id.to_owned(), content.into(), Vec::new());
    let kind = PartKind::ToolResult {
        tool_use_id,
        content,
        parts,
        is_error: false,
    };
    Turn::new(Role::Tool, vec![kind.into()])
}
