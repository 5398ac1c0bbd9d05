//! Models: their budget, their provider, and their tokenizer.

mod rules;

use std::cmp::Reverse;
use std::path::PathBuf;

use memoird_core::budget::Budget;
use memoird_core::config::by_name;
use memoird_core::turn::MessageFormat;
use serde::{Deserialize, Serialize};

pub use rules::{ImageLimits, MessageRules};

/// Properties of a model, under the name that calls use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelProfile {
    pub name: String,
    pub provider: Provider,
    pub tokenizer: TokenizerKind,
    pub budget: Budget,
}

/// Provider, which determines the rules for messages and media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    OpenAi,
    Anthropic,
    Google,
    /// A model with open weights, on any server.
    Open,
}

/// Token counter of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// OpenAI's `o200k_base`: GPT-4o and later.
    O200k,
    /// OpenAI's `cl100k_base`: GPT-4 and GPT-3.5.
    Cl100k,
    /// An estimate, for providers whose tokenizer is not public.
    Estimate,
    /// A HuggingFace `tokenizer.json`.
    File(PathBuf),
}

/// Name of the profile used by calls that name no model.
pub const DEFAULT_MODEL: &str = "default";

/// Returns the built-in profiles. The first is [`DEFAULT_MODEL`].
pub fn catalogue() -> Vec<ModelProfile> {
    let lines = include_str!("model/catalogue.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| profile(line).unwrap_or_else(|| panic!("catalogue.txt: {line}")))
        .collect()
}

fn profile(line: &'static str) -> Option<ModelProfile> {
    let mut fields = line.split_whitespace();
    Some(ModelProfile {
        name: fields.next()?.to_owned(),
        provider: by_name(fields.next()?).ok()?,
        tokenizer: by_name(fields.next()?).ok()?,
        budget: Budget::of_window(fields.next()?.parse().ok()?),
    })
}

impl ModelProfile {
    /// Returns the rules of the model with this name, which is this profile's or a relative.
    pub fn rules_of(&self, model: &str, format: Option<MessageFormat>) -> MessageRules {
        let name = if model.is_empty() { &self.name } else { model };
        let mut rules = MessageRules::for_model(self.provider, name);
        if format == Some(MessageFormat::Anthropic) && self.provider == Provider::OpenAi {
            // Anthropic has no such model: the call did not say which model receives the request.
            rules.images = ImageLimits::ANTHROPIC;
        }
        rules
    }

    /// Whether usage that a provider reports under this name belongs to this model.
    ///
    /// The name may have a path before it (`models/…`, `openai/…`), and a date, `@…` or `:…` after
    /// it. Case is ignored. `gpt-4o-2024-08-06` is `gpt-4o`; `gpt-4o-mini-2024-07-18` is not.
    pub fn answers_to(&self, provider_model_name: &str) -> bool {
        let reported = provider_model_name.trim();
        let without_path = reported.rsplit('/').next().unwrap_or_default();
        !self.name.is_empty()
            && [reported, without_path].iter().any(|reported| {
                let start = reported.get(..self.name.len());
                start.is_some_and(|start| start.eq_ignore_ascii_case(&self.name))
                    && is_version(&reported[self.name.len()..])
            })
    }
}

/// Profile of the closest relative of a model without one; `None` for an unknown family.
///
/// Relatives share leading parts of the name. Of those that share the most, the closest version
/// that is not newer is chosen, since windows have grown from version to version. If all are newer
/// or other variants, the one with the smallest window is.
pub fn closest_relative<'a>(
    model: &str,
    profiles: impl Iterator<Item = &'a ModelProfile>,
) -> Option<&'a ModelProfile> {
    let named = profiles.map(|profile| (name_parts(&profile.name), profile));
    let named: Vec<_> = named.collect();
    let model = without_host(model);
    let closest = |model: &str| {
        let parts = name_parts(model);
        let wanted = from_family(&parts, &named)?;
        let candidates = named
            .iter()
            .filter_map(|(parts, profile)| Some((kinship(wanted, parts, profile)?, *profile)));
        candidates.min_by(|(one, _), (other, _)| one.cmp(other))
    };
    // Amazon Bedrock names some models only with the vendor: `deepseek.r1-v1:0`.
    let (_, profile) = closest(without_vendor(model)).or_else(|| closest(model))?;
    Some(profile)
}

/// Maximum digits of a version number. A date has more.
const VERSION_DIGITS_MAX: usize = 3;

/// Minimum length of a family's name that may follow other parts, as in `meta-llama-3.1-8b`.
const FAMILY_BYTES_MIN: usize = 3;

/// Splits a model's name into lower-case parts: `claude`, `sonnet`, `4`, `5`.
///
/// A number that follows letters is a part too: `qwen3:8b` has the parts `qwen`, `3`, `8b`.
fn name_parts(model: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_after_letter = false;
    for character in model.to_ascii_lowercase().chars() {
        let is_separator = matches!(character, '-' | '.' | ':' | '@' | '_' | ' ' | '/');
        if is_separator || is_after_letter && character.is_ascii_digit() {
            parts.push(String::new());
        }
        if !is_separator {
            parts.last_mut().expect("never empty").push(character);
        }
        is_after_letter = character.is_ascii_alphabetic();
    }
    parts
}

/// Returns the parts from the first that begins the name of a profile.
fn from_family<'a>(
    wanted: &'a [String],
    named: &[(Vec<String>, &ModelProfile)],
) -> Option<&'a [String]> {
    let begins = |part: &String| named.iter().any(|(parts, _)| parts[0] == *part);
    let found = wanted
        .iter()
        .enumerate()
        .position(|(index, part)| (index == 0 || part.len() >= FAMILY_BYTES_MIN) && begins(part));
    found.map(|start| &wanted[start..])
}

/// Rank of a profile as a relative of a name. The lowest is the closest.
///
/// `None` if they have no leading part in common.
fn kinship<'a>(
    wanted: &[String],
    parts: &[String],
    profile: &'a ModelProfile,
) -> Option<impl Ord + use<'a>> {
    let pairs = wanted.iter().zip(parts);
    let shared = pairs.take_while(|(one, other)| one == other).count();
    if shared == 0 {
        return None;
    }
    let version = |part: &String| {
        let is_version = part.len() <= VERSION_DIGITS_MAX;
        is_version.then(|| part.parse::<u32>().ok())?
    };
    let wanted_version = wanted.get(shared).and_then(version).unwrap_or(0);
    let found_version = parts.get(shared).map_or(Some(0), version);
    let distance = found_version.map_or(u32::MAX, |found| found.abs_diff(wanted_version));
    let is_older = found_version.is_some_and(|found| found <= wanted_version);
    let window = profile.budget.context_window;
    // Names of variants: `mini`, `flash`.
    let variants = parts[shared..]
        .iter()
        .filter(|part| version(part).is_none());
    let (same, other): (Vec<_>, Vec<_>) = variants.partition(|part| wanted.contains(part));
    Some((
        Reverse(shared),
        !is_older,
        if is_older { 0 } else { window },
        distance,
        other.len(),
        Reverse(same.len()),
        window,
        &profile.name,
    ))
}

/// Returns a model's name without the prefixes of hosts and vendors.
pub(crate) fn base_name(model: &str) -> &str {
    without_vendor(without_host(model))
}

/// Strips a path (`models/…`, `openai/…`) and OpenAI's mark of a fine-tuned model (`ft:…`).
fn without_host(model: &str) -> &str {
    let name = model.trim().rsplit('/').next().unwrap_or_default();
    name.strip_prefix("ft:").unwrap_or(name)
}

/// Strips the region and vendor of Amazon Bedrock (`us.anthropic.…`).
fn without_vendor(mut name: &str) -> &str {
    while let Some((vendor, rest)) = name.split_once('.') {
        let is_vendor = !vendor.is_empty() && vendor.bytes().all(|byte| byte.is_ascii_alphabetic());
        if !is_vendor || rest.is_empty() {
            break;
        }
        name = rest;
    }
    name
}

/// Whether `rest` may follow a model's name without naming another model.
fn is_version(rest: &str) -> bool {
    match rest.as_bytes().first() {
        None | Some(b'@' | b':') => true,
        Some(b'-') => is_date(&rest[1..]),
        Some(_) => false,
    }
}

/// Whether the text is a date, or a date followed by a variant, as in `20250929:free`.
///
/// Dates are `2024-08-06`, `20250929`, `250828`, `0613` and `08-2025`. A single `5` is a version.
fn is_date(text: &str) -> bool {
    let date = text.split(['@', ':']).next().unwrap_or_default();
    let is_number = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    let groups: Vec<&str> = date.splitn(4, '-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    groups.into_iter().all(is_number) && matches!(lengths[..], [4, 2, 2] | [2, 4] | [8] | [6] | [4])
}

#[cfg(test)]
mod catalogue_tests {
    use std::collections::BTreeSet;

    use super::Provider::OpenAi;
    use super::TokenizerKind::{Estimate, O200k};
    use super::*;

    #[test]
    fn first_profile_is_the_default() {
        let first = catalogue().remove(0);
        assert_eq!(first.name, DEFAULT_MODEL);
        assert_eq!(first.budget.input(0), Ok(185_664));
        assert_eq!((first.provider, first.tokenizer), (OpenAi, O200k));
    }

    #[test]
    fn every_profile_has_unique_name_and_room_for_a_window() {
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
    fn unknown_model_uses_profile_of_closest_relative() {
        let profiles = catalogue();
        let closest = |model: &str| {
            let named = profiles
                .iter()
                .filter(|profile| profile.name != DEFAULT_MODEL);
            closest_relative(model, named).map(|profile| &*profile.name)
        };
        let cases = [
            ("gpt-4.1-2025-04-14", "gpt-4.1"),
            ("gpt-4.1-nano", "gpt-4.1"),
            ("gpt-4o-audio-preview", "gpt-4o"),
            ("gpt-4-32k", "gpt-4"),
            ("gpt-3.5-turbo-0125", "gpt-3.5-turbo"),
            ("ft:gpt-4o-mini-2024-07-18:acme::abc", "gpt-4o-mini"),
            ("chatgpt-4o-latest", "chatgpt-4o"),
            ("gpt-5-chat-latest", "gpt-5-chat"),
            ("openai/gpt-5", "gpt-5"),
            ("gpt-5-pro-2025-10-06", "gpt-5"),
            ("gpt-5.3-codex-2026", "gpt-5.3-codex"),
            ("gpt-6", "gpt-6.1-sol"),
            ("o3", "o3"),
            ("o3-pro", "o3"),
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            (
                "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
                "claude-sonnet-4-5",
            ),
            ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
            ("claude-sonnet-4-20250514", "claude-sonnet-4-5"),
            ("claude-opus-4-1-20250805", "claude-opus-4-1"),
            ("claude-opus-4-9", "claude-opus-4-8"),
            ("claude-3-5-sonnet-latest", "claude-3"),
            ("gemini-3-pro-preview", "gemini-3.5-flash-lite"),
            (
                "models/gemini-2.5-flash-preview-09-2025",
                "gemini-2.5-flash",
            ),
            ("gpt-oss-20b", "gpt-oss-120b"),
            ("mistral-small-2506", "mistral-small"),
            ("mistral:7b", "mistral-7b"),
            ("ministral-8b-latest", "ministral"),
            ("open-mixtral-8x7b", "mixtral"),
            ("glm-4.7", "glm-4.6"),
            ("deepseek-v3.1", "deepseek-v3"),
            ("deepseek.r1-v1:0", "deepseek-r1"),
            ("kimi-k2-0905", "kimi-k2"),
            ("kimi-k2.7-code", "kimi-k2.5"),
            ("gemma-3-27b-it", "gemma-3"),
            ("gemma3:12b", "gemma-3"),
            ("gemma3n", "gemma-3n"),
            ("ollama/gemma2:9b", "gemma-2"),
            ("llama3.1:8b", "llama-3.1"),
            ("llama3.2", "llama-3.1"),
            ("Meta-Llama-3-8B-Instruct", "llama-3"),
            ("meta.llama3-1-70b-instruct-v1:0", "llama-3.1"),
            ("qwen2.5-72b-instruct", "qwen2.5"),
            ("qwen3:32b", "qwen3"),
            ("qwen-max-latest", "qwen-max"),
            ("moonshot-v1-auto", "moonshot-v1"),
            ("databricks-claude-sonnet-4-5", "claude-sonnet-4-5"),
        ];
        for (model, profile) in cases {
            assert_eq!(closest(model), Some(profile), "{model}");
        }
        for model in ["", "psychic", "nobody", "4", "-", "defaults"] {
            assert_eq!(closest(model), None, "{model:?}");
        }
    }

    #[test]
    fn profile_name_matches_only_itself() {
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
    fn only_openai_and_gpt_oss_use_openai_encodings() {
        for profile in catalogue() {
            let is_theirs = profile.provider == OpenAi || profile.name.starts_with("gpt-oss");
            assert_eq!(profile.tokenizer != Estimate, is_theirs, "{}", profile.name);
        }
    }
}

#[cfg(test)]
mod name_tests {
    use memoird_core::budget::Budget;

    use super::*;

    fn profile(name: &str) -> ModelProfile {
        ModelProfile {
            name: name.into(),
            provider: Provider::Open,
            tokenizer: TokenizerKind::Estimate,
            budget: Budget::of_window(200_000),
        }
    }

    #[test]
    fn profile_matches_its_name_and_dated_versions_only() {
        let cases = [
            ("gpt-4o", "gpt-4o", true),
            ("gpt-4o", "gpt-4o-2024-08-06", true),
            ("gpt-4o", "openai/gpt-4o-2024-08-06", true),
            ("gpt-4o", "gpt-4o-mini-2024-07-18", false),
            ("gpt-4o", "gpt-4o-mini", false),
            ("gpt-4o", "gpt-4o-", false),
            ("gpt-4", "gpt-4-0613", true),
            ("gpt-4", "gpt-4-32k", false),
            ("gpt-4", "gpt-4o", false),
            ("gpt-4", "gpt-4.1", false),
            ("gpt-4-turbo", "gpt-4", false),
            ("claude-opus-5", "claude-opus-5-5", false),
            ("claude-opus-5", "claude-opus-5-5-20261001", false),
            ("claude-opus-5", "claude-opus-5-20260801", true),
            ("claude-sonnet-4-5", "claude-sonnet-4-5@20250929", true),
            ("claude-sonnet-4-5", "anthropic.claude-sonnet-4-5", false),
            ("gemini-2.5-flash", "models/gemini-2.5-flash", true),
            ("gemini-2.5-flash", "gemini-2.5-flash-lite", false),
            ("gemini-2.5-flash", "gemini-2.5-flash-08-2025", true),
            ("kimi-k2", "moonshotai/Kimi-K2-0905:free", true),
            ("moonshotai/kimi-k2", "moonshotai/kimi-k2:free", true),
            ("kimi-k2", "kimi-k2-250905", true),
            ("qwen3", "qwen3:32b", true),
            ("llama", "llama-日本", false),
            ("日本", "日本-2024-08-06", true),
            ("ab", "日本", false),
            ("gpt-4o", "", false),
            ("", "", false),
            ("", "2024-08-06", false),
        ];
        for (name, reported, expected) in cases {
            assert_eq!(
                profile(name).answers_to(reported),
                expected,
                "{name} / {reported}"
            );
        }
    }
}
