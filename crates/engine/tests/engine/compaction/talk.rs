//! A bot in one session that checks windows and the journal against the turns acknowledged to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use memoird_core::breaker::BreakerState;
use memoird_core::compaction::CompactionStatus;
use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_core::window::{OmissionReason, Policy};
use memoird_engine::{CompactionOutcome, ContextOutcome, ContextRequest, EngineError, WindowTurn};
use memoird_store::encoding;

use crate::bot::Bot;
use crate::kit::session_id;

#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) bot: Bot,
    pub(crate) session: String,
    /// Acknowledged texts, in order.
    pub(crate) said: Vec<String>,
    pub(crate) calls: usize,
}

/// A text turn. The brackets let `text_of` find the text inside the encoded turn.
pub(crate) fn text_turn(role: Role, text: &str) -> Turn {
    Turn::new(role, vec![PartKind::Text(format!("[[{text}]]")).into()])
}

/// An assistant turn that calls tools with these ids.
pub(crate) fn calling(text: &str, ids: &[String]) -> Turn {
    let mut turn = text_turn(Role::Assistant, text);
    turn.parts.extend(ids.iter().map(|id| {
        let (id, name, input_json) = (id.clone(), "look".to_owned(), "{}".to_owned());
        PartKind::ToolUse {
            id,
            name,
            input_json,
        }
        .into()
    }));
    turn
}

/// A turn with the result of a call.
pub(crate) fn answering(text: &str, id: &str) -> Turn {
    let (tool_use_id, content) = (id.to_owned(), format!("[[{text}]]"));
    let part = PartKind::ToolResult {
        tool_use_id,
        content,
        parts: Vec::new(),
        is_error: false,
    };
    Turn::new(Role::Tool, vec![part.into()])
}

pub(crate) fn command(turns: Vec<Turn>) -> AppendCommand {
    let turns = turns.into_iter().map(encoding::encode).collect();
    AppendCommand {
        turns,
        ..AppendCommand::default()
    }
}

impl Talk {
    pub(crate) fn new(bot: &Bot, session: &str) -> Self {
        Self {
            bot: bot.clone(),
            session: session.to_owned(),
            said: Vec::new(),
            calls: 0,
        }
    }

    /// Continues the same conversation on a reopened engine.
    pub(crate) fn again(&self, bot: &Bot) -> Self {
        Self {
            bot: bot.clone(),
            ..self.clone()
        }
    }

    /// Whether the session has a summary, shown or waiting for the next cut.
    pub(crate) async fn has_summary(&self) -> bool {
        self.bot.summary_through(&self.session).await > 0
    }

    /// Appends turns, and panics on an error.
    pub(crate) async fn add(&mut self, turns: Vec<Turn>) {
        self.try_add(turns).await.unwrap();
    }

    pub(crate) async fn try_add(&mut self, turns: Vec<Turn>) -> Result<(), EngineError> {
        let texts = turns.iter().map(text_of_turn).collect::<Vec<_>>();
        self.bot.append(&self.session, command(turns)).await?;
        self.said.extend(texts);
        Ok(())
    }

    /// Appends a user turn and an assistant turn.
    pub(crate) async fn exchange(&mut self) {
        let number = self.said.len();
        let asked = format!("what of #{number}? {}", "x".repeat(80));
        self.add(vec![text_turn(Role::User, &asked)]).await;
        let answered = format!("it is done {number} {}", "y".repeat(80));
        self.add(vec![text_turn(Role::Assistant, &answered)]).await;
    }

    pub(crate) async fn exchanges(&mut self, count: usize) {
        for _ in 0..count {
            self.exchange().await;
        }
    }

    /// Returns `count` unused call ids.
    pub(crate) fn ids(&mut self, count: usize) -> Vec<String> {
        self.calls += count;
        (self.calls - count..self.calls)
            .map(|number| format!("call_{number}"))
            .collect()
    }

    /// Appends an exchange with `calls` parallel tool calls.
    pub(crate) async fn exchange_with_tools(&mut self, calls: usize) {
        let number = self.said.len();
        let ids = self.ids(calls);
        let asked = format!("look for #{number} {}", "x".repeat(60));
        self.add(vec![text_turn(Role::User, &asked)]).await;
        self.add(vec![calling(&format!("I look {number}"), &ids)])
            .await;
        for id in &ids {
            self.add(vec![answering(
                &format!("found {id} {}", "z".repeat(60)),
                id,
            )])
            .await;
        }
        self.add(vec![text_turn(
            Role::Assistant,
            &format!("there it is {number}"),
        )])
        .await;
    }

    /// Returns a window of the default model, after checking its invariants.
    pub(crate) async fn window(&self) -> ContextOutcome {
        self.window_of("").await
    }

    pub(crate) async fn window_of(&self, model: &str) -> ContextOutcome {
        let request = ContextRequest {
            model: model.to_owned(),
            ..ContextRequest::default()
        };
        let outcome = self.bot.context(&self.session, request).await.unwrap();
        check_window(&outcome);
        outcome
    }

    pub(crate) async fn compact(
        &self,
        keep: Option<u32>,
    ) -> Result<CompactionOutcome, EngineError> {
        self.bot
            .engine
            .compaction
            .compact_session(&self.bot.tenant, &session_id(&self.session), keep)
            .await
    }

    /// Returns the reason of a failed compaction.
    pub(crate) async fn fails(&self, keep: Option<u32>) -> &'static str {
        match self.compact(keep).await.expect_err("no summary") {
            EngineError::CompactionFailed { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn undo(&self) -> Result<u64, EngineError> {
        let session = session_id(&self.session);
        let undone = self
            .bot
            .engine
            .compaction
            .undo_compaction(&self.bot.tenant, &session)
            .await;
        undone.map(|(_, restored)| restored)
    }

    pub(crate) async fn status(&self) -> CompactionStatus {
        let view = self.bot.view(&self.session).await.unwrap();
        view.head.compaction.as_deref().cloned().unwrap_or_default()
    }

    pub(crate) async fn breaker(&self) -> (BreakerState, u32) {
        let view = self.bot.view(&self.session).await.unwrap();
        (
            view.breaker,
            view.head.compaction.map_or(0, |status| status.failures),
        )
    }

    /// Asserts that the journal holds exactly the acknowledged turns, in order.
    pub(crate) async fn check_journal(&self) {
        let journal = self.bot.journal(&self.session, None).await.unwrap();
        // The encoding before a text may itself end with a bracket.
        let is_other = |(read, said): (&String, &String)| read.trim_start_matches('[') != said;
        let differs = journal.iter().zip(&self.said).position(is_other);
        let lengths = (journal.len(), self.said.len());
        assert!(
            differs.is_none() && lengths.0 == lengths.1,
            "at {differs:?} of {lengths:?}"
        );
    }
}

fn text_of_turn(turn: &Turn) -> String {
    let text = turn.parts.iter().find_map(|part| match &part.kind {
        PartKind::Text(text) => Some(text),
        PartKind::ToolResult { content, .. } => Some(content),
        _ => None,
    });
    text.unwrap()
        .trim_start_matches("[[")
        .trim_end_matches("]]")
        .to_owned()
}

/// Asserts that a window is within its budget and every call is paired with its result.
///
/// Only calls at its end may be pending.
pub(crate) fn check_window(outcome: &ContextOutcome) {
    let report = &outcome.report;
    assert!(report.blocks.total() <= report.input_budget, "{report:?}");
    check_pairs(&outcome.turns);
    check_account(outcome);
}

/// Asserts that each turn is shown or reported as omitted.
///
/// The summary must also end before the first turn shown after it.
fn check_account(outcome: &ContextOutcome) {
    let report = &outcome.report;
    if matches!(report.policy, Policy::SlidingWindow { .. }) {
        return;
    }
    let through = report
        .summary
        .as_ref()
        .map_or(0, |summary| summary.through_seq);
    assert!(through <= outcome.session.head.last_seq, "{report:?}");
    for omission in &report.omissions {
        assert!(omission.first_seq <= omission.last_seq, "{report:?}");
        if omission.reason == OmissionReason::Summarized {
            assert!(omission.last_seq <= through, "{report:?}");
        }
    }
}

/// Decodes the turns of a window.
pub(crate) fn opened(turns: &[WindowTurn]) -> Vec<Turn> {
    turns
        .iter()
        .map(|turn| encoding::open(&turn.content).unwrap())
        .collect()
}

fn check_pairs(turns: &[WindowTurn]) {
    let mut open: BTreeSet<Arc<str>> = BTreeSet::new();
    for turn in opened(turns) {
        let links = turn.links();
        for result in &links.results {
            assert!(open.remove(&**result), "{result} is no call's: {turn:?}");
        }
        if links.results.is_empty() {
            assert!(open.is_empty(), "{open:?} have no results before {turn:?}");
        }
        open.extend(links.uses.iter().map(|id| Arc::from(&**id)));
    }
}
