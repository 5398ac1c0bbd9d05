//! What a provider adds around text: to each request, message, call and result.

use crate::model::Provider;

/// Tokens that a provider adds, beside what the text itself takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overheads {
    /// To every request: what primes the reply.
    pub(super) request: u64,
    /// To a message: its role and where it begins and ends.
    pub(super) message: u64,
    /// To a part after the first one of its message.
    pub(super) part: u64,
    /// To a call of a tool, beside name and arguments.
    pub(super) call: u64,
    /// To a tool's result, beside its content.
    pub(super) result: u64,
    /// To a request that has tools.
    pub(super) tools: u64,
    /// Whether the model reads the ids of calls.
    pub(super) reads_ids: bool,
}

impl Overheads {
    /// OpenAI: its cookbook, "How to count tokens with tiktoken" (three tokens a message,
    /// three for the reply's priming, twelve around all tools, of which each takes less
    /// than its JSON); a call with its result was seen to cost eight more than its text.
    /// Anthropic: the table of tool-use prompts in its documentation (346 with the choice
    /// `auto`, the most of the Claude 4 models) and the example of its counting endpoint
    /// (14 for a system prompt of four words and a greeting of two); how it writes calls is
    /// not published, so these are estimates of the safe side. Google publishes none;
    /// Gemma's chat template has five around a turn. Open models: estimates after the
    /// templates of Llama, Qwen, Mistral and DeepSeek, the largest of each.
    pub(super) fn of(provider: Provider) -> Self {
        match provider {
            Provider::OpenAi => Self {
                request: 3,
                message: 3,
                part: 0,
                call: 6,
                result: 4,
                tools: 12,
                reads_ids: false,
            },
            Provider::Anthropic => Self {
                request: 4,
                message: 4,
                part: 1,
                call: 24,
                result: 16,
                tools: 346,
                reads_ids: true,
            },
            Provider::Google => Self {
                request: 4,
                message: 5,
                part: 1,
                call: 12,
                result: 12,
                tools: 32,
                reads_ids: false,
            },
            Provider::Open => Self {
                request: 5,
                message: 6,
                part: 1,
                call: 16,
                result: 12,
                tools: 160,
                reads_ids: true,
            },
        }
    }
}
