//! Rules of models for requests, beyond their message format. They depend on provider and family.

use super::{Provider, base_name};

/// Rules of a model for requests. The default allows everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRules {
    /// Accepts consecutive user messages.
    pub users_in_a_row: bool,
    /// Accepts any order of roles and any number of system messages.
    ///
    /// Otherwise only one system message, first, followed by alternating user and assistant
    /// messages, the user first.
    pub any_order: bool,
    /// Accepts a user message directly after a tool result.
    pub user_after_tool: bool,
    /// Accepts the role `system` inside Anthropic's `messages`.
    pub system_inside: bool,
    /// Accepts messages with empty text.
    pub empty_text: bool,
    /// Accepts reasoning and encrypted content of earlier replies.
    pub reasoning: bool,
    pub images: ImageLimits,
}

/// Limits on the images of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Maximum number.
    pub count: usize,
    /// Maximum length of the longer side, in pixels.
    pub side_px: u64,
    /// With more images than this, `side_px_of_many` applies.
    pub many: usize,
    /// Maximum length of the longer side of each of many images, in pixels.
    pub side_px_of_many: u64,
}

impl ImageLimits {
    pub(crate) const NONE: Self = Self {
        count: usize::MAX,
        side_px: u64::MAX,
        many: usize::MAX,
        side_px_of_many: u64::MAX,
    };

    /// <https://platform.openai.com/docs/guides/images-vision>
    const OPENAI: Self = Self {
        count: 500,
        ..Self::NONE
    };

    /// <https://docs.anthropic.com/en/docs/build-with-claude/vision>
    pub(super) const ANTHROPIC: Self = Self {
        count: 100,
        side_px: 8_000,
        many: 20,
        side_px_of_many: 2_000,
    };

    /// <https://ai.google.dev/gemini-api/docs/image-understanding>
    const GOOGLE: Self = Self {
        count: 3_000,
        ..Self::NONE
    };
}

impl Default for MessageRules {
    fn default() -> Self {
        Self {
            users_in_a_row: true,
            any_order: true,
            user_after_tool: true,
            system_inside: true,
            empty_text: true,
            reasoning: true,
            images: ImageLimits::NONE,
        }
    }
}

/// Changes the rules of a provider to those of a family.
type Change = fn(&mut MessageRules);

/// The model maker's own API rejects a user message after a tool result, and empty text.
const MISTRAL: Change = |rules| {
    rules.user_after_tool = false;
    rules.empty_text = false;
};
/// The chat template raises an error for anything but user and assistant in turn.
const STRICT: Change = |rules| {
    rules.any_order = false;
    rules.user_after_tool = false;
};
/// The model maker's own API rejects empty text.
const NO_EMPTY_TEXT: Change = |rules| rules.empty_text = false;
/// The model does not reason, and its provider rejects the reasoning of other models.
const NO_REASONING: Change = |rules| rules.reasoning = false;

/// Families by the start of a part of the model's name. Every match applies.
const FAMILIES: [(&str, Change); 25] = [
    ("mistral", MISTRAL),
    ("ministral", MISTRAL),
    ("magistral", MISTRAL),
    ("codestral", MISTRAL),
    ("devstral", MISTRAL),
    ("pixtral", MISTRAL),
    ("voxtral", MISTRAL),
    ("mixtral", MISTRAL),
    ("mistral-7b", STRICT),
    ("mixtral-8x", STRICT),
    ("gemma", STRICT),
    ("codegemma", STRICT),
    ("medgemma", STRICT),
    ("llama-2", STRICT),
    ("llama2", STRICT),
    ("kimi", NO_EMPTY_TEXT),
    ("moonshot", NO_EMPTY_TEXT),
    ("glm", NO_EMPTY_TEXT),
    ("chatglm", NO_EMPTY_TEXT),
    ("gpt-3", NO_REASONING),
    ("gpt-4", NO_REASONING),
    ("chatgpt-4", NO_REASONING),
    ("gpt-5-chat", NO_REASONING),
    ("claude-instant", NO_REASONING),
    ("claude-2", NO_REASONING),
];

/// First version of Claude that reasons, and first that accepts `system` inside `messages`.
const CLAUDE_REASONS: (u32, u32) = (3, 7);
const CLAUDE_TAKES_SYSTEM: (u32, u32) = (4, 8);

impl MessageRules {
    pub fn for_model(provider: Provider, model: &str) -> Self {
        let name = base_name(model).to_ascii_lowercase().replace('.', "-");
        let mut rules = Self::default();
        match provider {
            Provider::OpenAi => rules.images = ImageLimits::OPENAI,
            Provider::Google => rules.images = ImageLimits::GOOGLE,
            // The server's chat template is unknown. Most reject consecutive user messages.
            Provider::Open => rules.users_in_a_row = false,
            Provider::Anthropic => {
                let version = claude_version(&name);
                rules.images = ImageLimits::ANTHROPIC;
                rules.reasoning = version.is_none_or(|version| version >= CLAUDE_REASONS);
                rules.system_inside = version.is_some_and(|version| version >= CLAUDE_TAKES_SYSTEM);
            }
        }
        // This runs for each window, and a search per family took longer than the plan.
        let starts = starts_of_parts(&name);
        for (family, change) in FAMILIES {
            if starts.iter().any(|start| start.starts_with(family)) {
                change(&mut rules);
            }
        }
        rules.users_in_a_row &= rules.any_order;
        rules
    }
}

/// The name from each of its parts on. Parts are separated by anything but letters and digits.
fn starts_of_parts(name: &str) -> Vec<&str> {
    let separators = name.match_indices(|letter: char| !letter.is_ascii_alphanumeric());
    let starts = separators.map(|(start, separator)| start + separator.len());
    std::iter::once(0)
        .chain(starts)
        .map(|start| &name[start..])
        .collect()
}

/// Returns the version in the name of an Anthropic model: its first two numbers except dates.
fn claude_version(name: &str) -> Option<(u32, u32)> {
    let is_number = |part: &&str| part.len() <= 2;
    let mut parts = name.split(['-', '@', ':', '_']);
    let major = parts
        .by_ref()
        .filter(is_number)
        .find_map(|part| part.parse().ok())?;
    let minor = parts.next().filter(is_number);
    Some((major, minor.and_then(|part| part.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::Provider::{Anthropic, Google, Open, OpenAi};
    use super::*;

    #[test]
    fn rules_follow_from_the_provider_and_the_family() {
        let takes = |provider, model| {
            let rules = MessageRules::for_model(provider, model);
            let all = [
                ("in a row", rules.users_in_a_row),
                ("any order", rules.any_order),
                ("after tool", rules.user_after_tool),
                ("system", rules.system_inside),
                ("empty", rules.empty_text),
                ("reasoning", rules.reasoning),
            ];
            let lacks = all.into_iter().filter(|(_, takes)| !takes);
            lacks.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
        };
        let strict = "in a row, any order, after tool";
        for (provider, model, lacks) in [
            (OpenAi, "default", ""),
            (OpenAi, "gpt-5", ""),
            (OpenAi, "o3", ""),
            (OpenAi, "gpt-4.1-2025-04-14", "reasoning"),
            (OpenAi, "openai/gpt-4o-mini", "reasoning"),
            (OpenAi, "ft:gpt-4.1:acme", "reasoning"),
            (OpenAi, "gpt-5-chat-latest", "reasoning"),
            (Anthropic, "claude-opus-4-8", ""),
            (Anthropic, "claude-sonnet-5-20260801", ""),
            (Anthropic, "claude-haiku-5-5", ""),
            (Anthropic, "claude-opus-4-7", "system"),
            (Anthropic, "anthropic/claude-sonnet-4.5", "system"),
            (
                Anthropic,
                "us.anthropic.claude-sonnet-4-20250514-v1:0",
                "system",
            ),
            (Anthropic, "claude-3-7-sonnet-latest", "system"),
            (Anthropic, "claude-3-5-haiku-20241022", "system, reasoning"),
            (Anthropic, "ours", "system"),
            (Google, "gemini-2.5-pro", ""),
            (Google, "gemma-4-31b-it", strict),
            (Open, "qwen3.8-27b", "in a row"),
            (Open, "google/gemma-3-27b-it", strict),
            (Open, "mistral-large-4", "in a row, after tool, empty"),
            (
                Open,
                "mistralai/Mistral-7B-Instruct-v0.2",
                "in a row, any order, after tool, empty",
            ),
            (Open, "moonshotai/kimi-k3", "in a row, empty"),
            (Open, "glm-5.3", "in a row, empty"),
        ] {
            assert_eq!(takes(provider, model), lacks, "{model}");
        }
        assert_eq!(
            MessageRules::for_model(Anthropic, "claude-opus-5")
                .images
                .count,
            100
        );
    }
}
