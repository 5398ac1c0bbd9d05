//! Windows through the engine's API: which commits they wait for, which uses and counts they cause.

mod consistency;
mod counting;
mod fuzz;
mod touches;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use memoird_core::budget::{Budget, BudgetOverride};
use memoird_core::session::{AppendCommand, ModelUsage};
use memoird_core::turn::LABEL;
use memoird_core::turn::Turn;
use memoird_core::window::{Policy, Window};
use memoird_engine::{
    ContextModel, ContextOutcome, ContextRequest, EngineConfig, EngineError, MemoryBlock,
    RecallResult, RecalledMemories, SessionPoint, WindowMemories, WindowRecall, WindowRoom,
    WindowTurn,
};
use memoird_formats::model::{ModelProfile, Provider, TokenizerKind};
use memoird_formats::tokens::{Scale, Tokenizer};
use memoird_store::encoding;

use crate::bot::{Bot, saying, text_of};
use crate::kit::{session_id, unswept};

/// A tokenizer that counts one token per byte and records its inputs.
#[derive(Debug, Default)]
pub(crate) struct RecordingTokenizer {
    asked: Mutex<Vec<String>>,
    /// While set, texts that contain `wait` block.
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Tokenizer for RecordingTokenizer {
    fn count(&self, text: &str) -> usize {
        self.asked.lock().unwrap().push(text.to_owned());
        if text.contains("wait") {
            let closed = self.is_closed.lock().unwrap();
            // A test that fails while it is closed must not hang forever.
            let limit = Duration::from_secs(10);
            drop(
                self.opened
                    .wait_timeout_while(closed, limit, |closed| *closed)
                    .unwrap(),
            );
        }
        text.len()
    }

    fn margin(&self) -> f64 {
        0.0
    }
}

impl RecordingTokenizer {
    /// How often this text was counted.
    pub(crate) fn times(&self, text: &str) -> usize {
        self.asked
            .lock()
            .unwrap()
            .iter()
            .filter(|asked| *asked == text)
            .count()
    }

    /// Number of texts counted.
    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn set_closed(&self, closed: bool) {
        *self.is_closed.lock().unwrap() = closed;
        self.opened.notify_all();
    }
}

/// Memories of this many tokens, whatever the query.
#[derive(Clone, Debug)]
pub(crate) struct Remembered(pub(crate) u64);

impl WindowMemories for Remembered {
    fn recall<'a>(&'a self, _room: WindowRoom<'a>) -> WindowRecall<'a> {
        let memories: Box<dyn RecalledMemories> = Box::new(self.clone());
        let recalled = RecallResult {
            memories: Some(memories),
            notes: Vec::new(),
        };
        Box::pin(std::future::ready(recalled))
    }
}

impl RecalledMemories for Remembered {
    fn tokens(&self) -> u64 {
        self.0
    }

    fn block(&self, _window: &Window, _session: SessionPoint<'_>, _scale: &Scale) -> MemoryBlock {
        MemoryBlock {
            tokens: self.0,
            ..MemoryBlock::default()
        }
    }
}

/// A model with `context_window` tokens and no reserves.
pub(crate) fn model(
    name: &str,
    context_window: u64,
    tokenizer: &Arc<RecordingTokenizer>,
) -> ContextModel {
    let budget = Budget {
        context_window,
        max_reply_tokens: 0,
        safety_headroom: 0,
        tool_result_headroom: 0,
    };
    let profile = ModelProfile {
        name: name.to_owned(),
        provider: Provider::OpenAi,
        tokenizer: TokenizerKind::O200k,
        budget,
    };
    ContextModel {
        profile,
        tokenizer: tokenizer.clone(),
        counter: None,
    }
}

/// Sets the models, with the first one as the default.
pub(crate) fn with_models(mut config: EngineConfig, models: Vec<ContextModel>) -> EngineConfig {
    config.context.default_model = models[0].profile.name.clone();
    config.context.models = models;
    config
}

/// No sweeps, and one large model.
fn one_model() -> EngineConfig {
    with_models(unswept(), vec![model("large", 1_000_000, &Arc::default())])
}

/// The texts of a window's turns, with `...` for turns inserted by memoird.
pub(crate) fn texts(turns: &[WindowTurn]) -> Vec<String> {
    let text = |turn: &WindowTurn| {
        let is_inserted = |turn: Turn| turn.metadata.contains_key(LABEL);
        let is_said = String::from_utf8_lossy(&turn.content).contains("[[");
        if !is_said || encoding::open(&turn.content).is_none_or(is_inserted) {
            "...".to_owned()
        } else {
            text_of(&turn.content)
        }
    };
    turns.iter().map(text).collect()
}

/// Requests a window of `context_window` tokens.
pub(crate) fn asking(model: &str, context_window: u64) -> ContextRequest {
    ContextRequest {
        model: model.to_owned(),
        budget: BudgetOverride::without_reserves(context_window),
        ..ContextRequest::default()
    }
}

fn peeking() -> ContextRequest {
    ContextRequest {
        peek: true,
        ..ContextRequest::default()
    }
}

/// An append that reports a provider's charge.
fn charged(model: &str, input_tokens: u64) -> AppendCommand {
    let usage = ModelUsage {
        model: model.to_owned(),
        input_tokens,
        output_tokens: 1,
        ..ModelUsage::default()
    };
    AppendCommand {
        usage: Some(usage),
        ..saying(&["answer"])
    }
}

impl Bot {
    pub(crate) async fn context(
        &self,
        session: &str,
        request: ContextRequest,
    ) -> Result<ContextOutcome, EngineError> {
        self.engine
            .commands
            .context(&self.tenant, &session_id(session), request)
            .await
    }

    /// The texts of the default window.
    pub(crate) async fn window(&self, session: &str) -> Result<Vec<String>, EngineError> {
        Ok(texts(
            &self
                .context(session, ContextRequest::default())
                .await?
                .turns,
        ))
    }
}

/// A long text, so that few fit into a small window.
fn long(number: usize) -> String {
    format!("{number} {}", "x".repeat(96))
}

const TAIL: Policy = Policy::TokenBudget;
