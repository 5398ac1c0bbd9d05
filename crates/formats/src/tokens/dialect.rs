//! How each provider presents a request to its models, and the tokens that adds.

use crate::model::{Provider, base_name};

/// How a provider presents a request to its models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI's models before reasoning: GPT-3.5, GPT-4, GPT-4o, GPT-4.1.
    OpenAiChat,
    /// OpenAI's reasoning models, from o1 on.
    OpenAiReasoning,
    Anthropic {
        /// Tokens of the system prompt that Anthropic adds to a request with tools.
        tool_prompt: u16,
    },
    Google,
    /// Models with open weights, and those of providers without rules of their own.
    Open(ChatTemplate),
}

/// Chat template of a model family, as far as it adds tokens that the request does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChatTemplate {
    /// Role markers only.
    Plain,
    /// Amazon Nova 1: charges no role markers, but a prompt for tools.
    Nova,
    /// Amazon Nova 2: as Nova 1, with a longer prompt for tools.
    Nova2,
    /// DeepSeek V4: a system prompt, and instructions for tools.
    DeepSeek4,
    /// The harmony format of gpt-oss: a system message with dates and channels.
    Harmony,
    /// Llama 3.1 to 3.3: a system message with dates.
    Llama3,
    /// Llama 4: instructions for tools.
    Llama4,
    /// MiniMax: a default system prompt.
    MiniMax,
    /// Mistral: one token at the end of each message.
    Mistral,
}

/// Tokens of Anthropic's prompt for tools with `tool_choice: auto`, by prefix of the model's name.
///
/// Source: "Tool use with Claude", table of system prompts. The charges of Claude Sonnet 5 match
/// the prompt of Claude 4.5, not the 354 tokens in that table.
const ANTHROPIC_TOOL_PROMPTS: [(&str, u16); 8] = [
    ("claude-3-5-haiku", 264),
    ("claude-3-", 346),
    ("claude-opus-4-0", 346),
    ("claude-opus-4-1", 346),
    ("claude-opus-4-2", 346),
    ("claude-sonnet-4-0", 346),
    ("claude-sonnet-4-2", 346),
    ("claude-opus-4-8", 290),
];
/// Claude Opus 4.7 has the longest prompt.
const OPUS_4_7: (&str, u16) = ("claude-opus-4-7", 675);
/// Claude 4.5 and 4.6, and models newer than the table.
const ANTHROPIC_TOOL_PROMPT: u16 = 496;

/// Chat templates by a substring of the model's name. The first match applies.
const CHAT_TEMPLATES: [(&str, ChatTemplate); 14] = [
    ("gpt-oss", ChatTemplate::Harmony),
    ("llama-4", ChatTemplate::Llama4),
    ("llama4", ChatTemplate::Llama4),
    ("llama-3.", ChatTemplate::Llama3),
    ("llama3.", ChatTemplate::Llama3),
    ("llama3-1", ChatTemplate::Llama3),
    ("llama3-3", ChatTemplate::Llama3),
    ("deepseek-v4", ChatTemplate::DeepSeek4),
    ("minimax", ChatTemplate::MiniMax),
    ("nova-2", ChatTemplate::Nova2),
    ("nova-", ChatTemplate::Nova),
    ("mistral", ChatTemplate::Mistral),
    ("ministral", ChatTemplate::Mistral),
    ("magistral", ChatTemplate::Mistral),
];

impl Dialect {
    pub fn for_model(provider: Provider, model: &str) -> Self {
        let name = base_name(model).to_ascii_lowercase();
        match provider {
            Provider::OpenAi => {
                let before_reasoning = ["gpt-4", "gpt-3", "chatgpt-4"];
                if before_reasoning.iter().any(|start| name.starts_with(start)) {
                    Self::OpenAiChat
                } else {
                    Self::OpenAiReasoning
                }
            }
            Provider::Anthropic => {
                let name = name.replace('.', "-");
                let prompts = ANTHROPIC_TOOL_PROMPTS.iter().chain([&OPUS_4_7]);
                let known = prompts.copied().find(|(start, _)| name.starts_with(start));
                Self::Anthropic {
                    tool_prompt: known.map_or(ANTHROPIC_TOOL_PROMPT, |(_, tokens)| tokens),
                }
            }
            Provider::Google => Self::Google,
            Provider::Open => {
                let known = CHAT_TEMPLATES.iter().find(|(part, _)| name.contains(part));
                Self::Open(known.map_or(ChatTemplate::Plain, |(_, template)| *template))
            }
        }
    }

    pub(super) fn provider(self) -> Provider {
        match self {
            Self::OpenAiChat | Self::OpenAiReasoning => Provider::OpenAi,
            Self::Anthropic { .. } => Provider::Anthropic,
            Self::Google => Provider::Google,
            Self::Open(_) => Provider::Open,
        }
    }

    /// Returns the tokens that the provider may add to a request without showing them.
    pub fn unseen(self) -> Unseen {
        let [first, later] = match self.provider() {
            Provider::OpenAi => [300, 60],
            Provider::Anthropic => [1_500, 100],
            Provider::Open => [1_000, 100],
            Provider::Google => [1_600, 1_600],
        };
        Unseen { first, later }
    }
}

/// Tokens that a provider may add to a request without showing them.
///
/// Examples are instructions for structured output, prompts of hosts, tools of remote servers, and
/// encrypted reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// Before the provider reported usage for this model.
    pub first: u64,
    /// Once the constant part of all requests is known from reports.
    pub later: u64,
}

/// Tokens that a provider adds to those of the text itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overheads {
    /// Per request: the priming of the reply.
    pub(super) request: u64,
    /// Per message: its role, start and end.
    pub(super) message: u64,
    /// Per tool call, in addition to name and arguments.
    pub(super) call: u64,
    /// Per tool result, in addition to its content.
    pub(super) result: u64,
    /// Per request with tools.
    pub(super) tools: u64,
}

impl Overheads {
    /// Returns the overheads of a dialect.
    ///
    /// They are fitted to what providers charged for half of the recorded requests that
    /// `tests/eval/counting.py` reads. For texts, OpenAI's match exactly. Its cookbook, "How to count
    /// tokens with tiktoken", has the same numbers for messages.
    pub(super) fn for_dialect(dialect: Dialect) -> Self {
        // In the order of the fields.
        let [request, message, call, result, tools] = match dialect {
            Dialect::OpenAiChat => [3, 4, 5, 4, 0],
            Dialect::OpenAiReasoning => [2, 4, 7, 6, 0],
            Dialect::Anthropic { tool_prompt } => [3, 4, 28, 17, u64::from(tool_prompt)],
            Dialect::Google => [0, 1, 1, 1, 0],
            Dialect::Open(template) => match template {
                ChatTemplate::Plain => [4, 4, 8, 6, 24],
                ChatTemplate::Nova => [0, 0, 8, 6, 344],
                ChatTemplate::Nova2 => [0, 0, 8, 6, 858],
                ChatTemplate::DeepSeek4 => [78, 4, 8, 6, 222],
                ChatTemplate::Harmony => [65, 4, 8, 6, 24],
                ChatTemplate::Llama3 => [30, 4, 8, 6, 24],
                ChatTemplate::Llama4 => [4, 4, 8, 6, 664],
                ChatTemplate::MiniMax => [36, 4, 8, 6, 24],
                ChatTemplate::Mistral => [1, 2, 8, 6, 24],
            },
        };
        Self {
            request,
            message,
            call,
            result,
            tools,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claude_tool_prompt_follows_the_model_in_every_spelling() {
        let cases = [
            ("claude-sonnet-4-5", 496),
            ("anthropic/claude-sonnet-4.5", 496),
            ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", 496),
            ("us.anthropic.claude-sonnet-4-20250514-v1%3A0", 346),
            ("claude-sonnet-4-0", 346),
            ("claude-opus-4-7", 675),
            ("claude-opus-4.8", 290),
            ("claude-3-5-haiku-latest", 264),
            ("claude-3-7-sonnet-20250219", 346),
            ("claude-opus-9", 496),
        ];
        for (model, tool_prompt) in cases {
            let expected = Dialect::Anthropic { tool_prompt };
            assert_eq!(
                Dialect::for_model(Provider::Anthropic, model),
                expected,
                "{model}"
            );
        }
    }

    #[test]
    fn chat_template_follows_the_model_family() {
        let cases = [
            ("openai/gpt-oss-120b", ChatTemplate::Harmony),
            (
                "meta-llama/llama-4-scout-17b-16e-instruct",
                ChatTemplate::Llama4,
            ),
            ("llama-3.3-70b-instruct", ChatTemplate::Llama3),
            ("llama3-8b-8192", ChatTemplate::Plain),
            ("us.amazon.nova-2-lite-v1%3A0", ChatTemplate::Nova2),
            ("us.amazon.nova-pro-v1%3A0", ChatTemplate::Nova),
            ("mistral-large-latest", ChatTemplate::Mistral),
            ("qwen3:32b", ChatTemplate::Plain),
        ];
        for (model, template) in cases {
            let expected = Dialect::Open(template);
            assert_eq!(
                Dialect::for_model(Provider::Open, model),
                expected,
                "{model}"
            );
        }
    }

    #[test]
    fn openai_vendor_prefix_does_not_hide_the_generation() {
        for (model, expected) in [
            ("openai/gpt-4.1-mini", Dialect::OpenAiChat),
            ("openai.gpt-4o", Dialect::OpenAiChat),
            ("openai.gpt-5.5", Dialect::OpenAiReasoning),
            ("o3-mini", Dialect::OpenAiReasoning),
        ] {
            assert_eq!(
                Dialect::for_model(Provider::OpenAi, model),
                expected,
                "{model}"
            );
        }
    }
}
