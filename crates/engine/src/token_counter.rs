//! Port for remote token counters, which count as the provider does.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use memoird_core::turn::MessageFormat;

use crate::model_fault::ModelFault;

/// Counts the tokens of a request with the provider's API.
pub trait TokenCounter: Debug + Send + Sync + 'static {
    /// Provider and model, for logs and metrics.
    fn name(&self) -> &str;

    /// Message format of [`CountRequest::messages_json`].
    fn format(&self) -> MessageFormat;

    /// Implementations enforce their own timeout and do not retry.
    ///
    /// Dropping the future cancels the call.
    fn count(&self, request: CountRequest) -> CountFuture<'_>;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountRequest {
    /// System prompt, or empty.
    pub system: String,
    /// Tools in the provider's format, or empty.
    pub tools_json: String,
    /// JSON array of messages in the provider's format.
    pub messages_json: String,
}

pub type CountFuture<'a> = Pin<Box<dyn Future<Output = Result<u64, ModelFault>> + Send + 'a>>;
