//! The port of remote token counters: a request in, its tokens as the provider counts them
//! out.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_core::turn::MessageFormat;

use crate::model_fault::ModelFault;

/// Counts the tokens of a request where the provider does.
pub trait TokenCounter: Debug + Send + Sync + 'static {
    /// Names it in logs and metrics: the provider and its model.
    fn name(&self) -> &str;

    /// In which format it takes messages.
    fn format(&self) -> MessageFormat;

    /// The tokens of a request. It has a time limit of its own and does not repeat.
    /// Cancelled by being dropped.
    fn count(&self, request: CountRequest) -> CountFuture<'_>;
}

/// A request whose tokens are to be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountRequest {
    /// The system prompt; empty for none.
    pub system: String,
    /// The tools, as the provider takes them; empty for none.
    pub tools_json: String,
    /// The messages, as the provider takes them: a JSON array.
    pub messages_json: String,
}

/// The count, on its way.
pub type CountFuture<'a> = Pin<Box<dyn Future<Output = Result<u64, ModelFault>> + Send + 'a>>;
