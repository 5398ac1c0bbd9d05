//! The models that are known without being configured.

use memoird_core::budget::Budget;
use memoird_core::config::by_name;

use super::ModelProfile;

/// The name of the profile that a call gets which names none.
pub const DEFAULT_MODEL: &str = "default";

/// The models that are known without being configured; the first is [`DEFAULT_MODEL`].
pub fn catalogue() -> Vec<ModelProfile> {
    let lines = include_str!("catalogue.txt").lines();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::Provider::OpenAi;
    use crate::model::TokenizerKind::{Estimate, O200k};

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
