//! Names of models as providers report them: with a date, a host's version, a variant.

use super::ModelProfile;

impl ModelProfile {
    /// True when usage that a provider reports under this name is this model's: the name
    /// itself, or it with what providers put around it, which is a path before it
    /// (`models/…`, `openai/…`) and a date, `@…` or `:…` after it. The case does not
    /// matter. `gpt-4o-2024-08-06` is `gpt-4o`; `gpt-4o-mini-2024-07-18` is not.
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

/// True for what may follow a model's name without making it another model's.
fn is_version(rest: &str) -> bool {
    match rest.as_bytes().first() {
        None | Some(b'@' | b':') => true,
        Some(b'-') => is_date(&rest[1..]),
        Some(_) => false,
    }
}

/// `2024-08-06`, `20250929`, `250828`, `0613`, `08-2025`, and one of these before a
/// variant, as in `20250929:free`. A lone `5` is a version and no date.
fn is_date(text: &str) -> bool {
    let date = text.split(['@', ':']).next().unwrap_or_default();
    let is_number = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
    let groups: Vec<&str> = date.splitn(4, '-').collect();
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    groups.into_iter().all(is_number) && matches!(lengths[..], [4, 2, 2] | [2, 4] | [8] | [6] | [4])
}

#[cfg(test)]
mod tests {
    use memoird_core::budget::Budget;

    use super::super::{Provider, TokenizerKind};
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
    fn a_model_answers_to_its_name_and_its_versions_only() {
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
