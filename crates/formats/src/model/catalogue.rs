//! The models that are known without being configured.

use memoird_core::budget::Budget;

use super::{ModelProfile, Provider, TokenizerKind};
use Provider::{Anthropic, Google, Open, OpenAi};
use TokenizerKind::{Cl100k, Estimate, O200k};

/// A line of the catalogue: the name as its provider says it, without a date; how its
/// tokens are counted; and the tokens it takes.
struct Entry(&'static str, Provider, TokenizerKind, u64);

/// Windows are from the list that litellm 1.109.1 carries (November 2026), not from each
/// provider's page. A window is that of request and reply together; where a provider
/// bounds the request alone, it is that bound (272,000 for GPT-5, 922,000 for GPT-5.6 and
/// GPT-6), because a larger request is refused. GPT-5.4 and 5.5 are listed with 1,050,000
/// and get the same bound, as the smaller one. Of models that several hosts serve
/// differently it is what most or the smaller of them state. OpenAI has not published an
/// encoding for GPT-6; `o200k` is that of GPT-5. Where a host serves less, or a model is
/// not here, the configuration says it.
const ENTRIES: [Entry; 43] = [
    Entry("gpt-6-astra", OpenAi, O200k, 922_000),
    Entry("gpt-6-sol", OpenAi, O200k, 922_000),
    Entry("gpt-6-luna", OpenAi, O200k, 922_000),
    Entry("gpt-6.1-sol", OpenAi, O200k, 922_000),
    Entry("gpt-6.1-terra", OpenAi, O200k, 922_000),
    Entry("gpt-5.6-sol", OpenAi, O200k, 922_000),
    Entry("gpt-5.6-terra", OpenAi, O200k, 922_000),
    Entry("gpt-5.6-luna", OpenAi, O200k, 922_000),
    Entry("gpt-5.5", OpenAi, O200k, 922_000),
    Entry("gpt-5.4", OpenAi, O200k, 922_000),
    Entry("gpt-5.4-mini", OpenAi, O200k, 272_000),
    Entry("gpt-5.2", OpenAi, O200k, 272_000),
    Entry("gpt-5", OpenAi, O200k, 272_000),
    Entry("gpt-5-mini", OpenAi, O200k, 272_000),
    Entry("gpt-4.1", OpenAi, O200k, 1_047_576),
    Entry("gpt-4.1-mini", OpenAi, O200k, 1_047_576),
    Entry("gpt-4o", OpenAi, O200k, 128_000),
    Entry("gpt-4o-mini", OpenAi, O200k, 128_000),
    Entry("gpt-4-turbo", OpenAi, Cl100k, 128_000),
    Entry("gpt-4", OpenAi, Cl100k, 8_192),
    Entry("claude-opus-5-5", Anthropic, Estimate, 1_000_000),
    Entry("claude-sonnet-5-5", Anthropic, Estimate, 1_000_000),
    Entry("claude-haiku-5-5", Anthropic, Estimate, 1_000_000),
    Entry("claude-opus-5", Anthropic, Estimate, 1_000_000),
    Entry("claude-sonnet-5", Anthropic, Estimate, 1_000_000),
    Entry("claude-opus-4-8", Anthropic, Estimate, 1_000_000),
    Entry("claude-sonnet-4-6", Anthropic, Estimate, 1_000_000),
    Entry("claude-sonnet-4-5", Anthropic, Estimate, 200_000),
    Entry("claude-haiku-4-5", Anthropic, Estimate, 200_000),
    Entry("gemini-4-argon", Google, Estimate, 1_048_576),
    Entry("gemini-3.8-flash", Google, Estimate, 1_048_576),
    Entry("gemini-3.5-flash-lite", Google, Estimate, 1_048_576),
    Entry("gemini-2.5-pro", Google, Estimate, 1_048_576),
    Entry("gemini-2.5-flash", Google, Estimate, 1_048_576),
    Entry("gpt-oss-120b", Open, O200k, 131_072),
    Entry("deepseek-v4.1-flash", Open, Estimate, 1_000_000),
    Entry("kimi-k3", Open, Estimate, 1_000_000),
    Entry("glm-5.3", Open, Estimate, 1_000_000),
    Entry("qwen3.8-27b", Open, Estimate, 262_144),
    Entry("mistral-large-4", Open, Estimate, 1_048_576),
    Entry("minimax-m3", Open, Estimate, 524_288),
    Entry("gemma-4-31b-it", Open, Estimate, 262_144),
    Entry("llama-3.3-70b-instruct", Open, Estimate, 131_072),
];

/// The name of the profile that a call gets which names none.
pub const DEFAULT_MODEL: &str = "default";

/// The models that are known without being configured; the first is [`DEFAULT_MODEL`].
pub fn catalogue() -> Vec<ModelProfile> {
    let default = Entry(DEFAULT_MODEL, OpenAi, O200k, 200_000);
    std::iter::once(default)
        .chain(ENTRIES)
        .map(Entry::into_profile)
        .collect()
}

impl Entry {
    fn into_profile(self) -> ModelProfile {
        let Self(name, provider, tokenizer, context_window) = self;
        ModelProfile {
            name: name.to_owned(),
            provider,
            tokenizer,
            budget: Budget::of_window(context_window),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_first_profile_is_the_default_one() {
        let first = catalogue().remove(0);
        assert_eq!(first.name, DEFAULT_MODEL);
        assert_eq!(first.budget.input(0), Ok(185_664));
        assert_eq!((first.provider, first.tokenizer), (OpenAi, O200k));
    }

    #[test]
    fn every_profile_has_a_name_of_its_own_and_room_for_a_window() {
        let profiles = catalogue();
        let names: BTreeSet<&str> = profiles.iter().map(|profile| &*profile.name).collect();
        assert_eq!(names.len(), profiles.len());
        for ModelProfile { name, budget, .. } in &profiles {
            let input = budget.input(0).expect("a budget");
            assert!(input * 16 >= budget.context_window * 9, "{name}: {input}");
        }
        for window in 1..3_000 {
            assert!(Budget::of_window(window).input(0).is_ok(), "{window}");
        }
    }

    #[test]
    fn no_profile_answers_to_the_name_of_another() {
        let profiles = catalogue();
        for asked in &profiles {
            let answers = profiles
                .iter()
                .filter(|profile| profile.answers_to(&asked.name));
            let names: Vec<&str> = answers.map(|profile| &*profile.name).collect();
            assert_eq!(names, [&*asked.name]);
        }
    }

    #[test]
    fn only_openai_and_its_open_models_are_counted_by_its_encodings() {
        for profile in catalogue() {
            let is_theirs = profile.provider == OpenAi || profile.name.starts_with("gpt-oss");
            assert_eq!(profile.tokenizer != Estimate, is_theirs, "{}", profile.name);
        }
    }
}
