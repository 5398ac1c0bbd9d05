//! The windows of the file: how they are built, and the models that they are built for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::window::{Policy, WindowSettings};
use memoird_engine::{ContextConfig, ContextModel, TokenCounter};
use memoird_formats::model::{ModelProfile, Provider, TokenizerKind, catalogue};
use serde::{Deserialize, Serialize};

use super::counter::CounterShape;
use super::file::Problems;
use super::tokenizers::{TokenizerShape, Tokenizers};
use super::units::Percent;

/// The model of a call that names none, unless the file says another.
pub(super) const DEFAULT_MODEL: &str = "default";
/// Models of a file, and bytes of the name of each: a refusal names them all, and has to
/// fit into a header.
const MODELS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

/// How windows are built.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ContextShape {
    policy: PolicyShape,
    turns: u32,
    watermark: Percent,
    floor: Percent,
    supersede: bool,
    trim_over_tokens: u32,
    trim_head_tokens: u32,
    trim_tail_tokens: u32,
    default_model: String,
    models: BTreeMap<String, ModelShape>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PolicyShape {
    SlidingWindow,
    HeadTail,
    TokenBudget,
    Salience,
}

/// A model, or where it differs from the one of its name that is built in.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct ModelShape {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<ProviderShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer: Option<TokenizerShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<CounterShape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_reply_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    safety_headroom: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_result_headroom: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum ProviderShape {
    OpenAi,
    Anthropic,
    Google,
    Open,
}

impl ContextShape {
    /// What the engine is told; what is wrong is told to `problems`.
    pub(super) fn engine(&self, problems: &mut Problems) -> ContextConfig {
        let settings = self.settings(problems);
        let profiles = self.profiles(problems);
        if !profiles
            .iter()
            .any(|profile| profile.name == self.default_model)
        {
            let names: Vec<&str> = profiles.iter().map(|profile| &*profile.name).collect();
            let problem = format!(
                "{:?} is not known; known are {}",
                self.default_model,
                names.join(", ")
            );
            problems.add("context.default_model", problem);
        }
        let mut tokenizers = Tokenizers::default();
        let model = |profile: ModelProfile| {
            let at = format!("context.models.{}", profile.name);
            let counter = self.counter(&profile.name, problems);
            match tokenizers.get(&profile.tokenizer, profile.provider) {
                Ok(tokenizer) => Some(ContextModel {
                    profile,
                    tokenizer,
                    counter,
                }),
                Err(problem) => {
                    problems.add(&format!("{at}.tokenizer"), problem);
                    None
                }
            }
        };
        let models = profiles.into_iter().filter_map(model).collect();
        ContextConfig {
            settings,
            models,
            default_model: self.default_model.clone(),
        }
    }

    /// The files that the keys of counters are in.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.models
            .values()
            .filter_map(|shape| shape.counter.as_ref()?.file())
    }

    /// Who counts for the model of this name where its provider does; mostly nobody.
    fn counter(&self, name: &str, problems: &mut Problems) -> Option<Arc<dyn TokenCounter>> {
        let counter = self.models.get(name)?.counter.as_ref()?.build(name);
        let told = |(field, problem)| {
            problems.add(&format!("context.models.{name}.counter{field}"), problem);
        };
        counter.map_err(told).ok()
    }

    fn settings(&self, problems: &mut Problems) -> WindowSettings {
        for (place, percent) in [("watermark", self.watermark), ("floor", self.floor)] {
            let good = (1..=100).contains(&percent.0);
            problems.unless(good, &format!("context.{place}"), "must be 1% to 100%");
        }
        let below = self.floor.0 < self.watermark.0;
        problems.unless(below, "context.floor", "must be less than watermark");
        let kept = self.trim_head_tokens.saturating_add(self.trim_tail_tokens);
        problems.unless(
            self.trim_over_tokens == 0 || kept < self.trim_over_tokens,
            "context.trim_over_tokens",
            "must be 0, or more than trim_head_tokens and trim_tail_tokens together",
        );
        let counts_turns = matches!(
            self.policy,
            PolicyShape::SlidingWindow | PolicyShape::HeadTail
        );
        problems.unless(
            counts_turns || self.turns == 0,
            "context.turns",
            "belongs to the policies sliding_window and head_tail; leave it out",
        );
        problems.unless(
            self.policy != PolicyShape::SlidingWindow || self.turns > 0,
            "context.turns",
            "must be at least 1 for the policy sliding_window",
        );
        WindowSettings {
            policy: self.policy(),
            watermark_percent: self.watermark.0,
            floor_percent: self.floor.0,
            supersede: self.supersede,
            trim_over_tokens: self.trim_over_tokens,
            trim_head_tokens: self.trim_head_tokens,
            trim_tail_tokens: self.trim_tail_tokens,
        }
    }

    fn policy(&self) -> Policy {
        match self.policy {
            PolicyShape::SlidingWindow => Policy::SlidingWindow { turns: self.turns },
            PolicyShape::HeadTail => Policy::HeadTail { turns: self.turns },
            PolicyShape::TokenBudget => Policy::TokenBudget,
            PolicyShape::Salience => Policy::Salience,
        }
    }

    /// The models that are built in, as the file has them, and those that it adds.
    fn profiles(&self, problems: &mut Problems) -> Vec<ModelProfile> {
        let count = self.models.len();
        if count > MODELS_MAX {
            problems.add(
                "context.models",
                format!("are {count}, the limit is {MODELS_MAX}"),
            );
        }
        let mut profiles = catalogue();
        for (name, shape) in &self.models {
            let at = format!("context.models.{name}");
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                problems.add(&at, format!("a name has 1 to {NAME_BYTES_MAX} bytes"));
            }
            let place = profiles.iter().position(|profile| profile.name == *name);
            let place = place.unwrap_or_else(|| {
                let says = shape.context_window.is_some();
                problems.unless(says, &at, "is no built-in model: say its context_window");
                let base = profiles
                    .iter()
                    .find(|profile| profile.name == DEFAULT_MODEL);
                // The catalogue always has it; a test says so.
                profiles.extend(base.cloned().map(|base| ModelProfile {
                    name: name.clone(),
                    ..base
                }));
                profiles.len() - 1
            });
            let profile = &mut profiles[place];
            shape.put_to(profile);
            let budget = profile.budget.input(0);
            // The sentence is the one that a call would be told.
            let _ = budget.map_err(|error| problems.add(&at, error.to_string()));
        }
        profiles
    }
}

impl ModelShape {
    fn put_to(&self, profile: &mut ModelProfile) {
        let put = |to: &mut u64, said: Option<u64>| *to = said.unwrap_or(*to);
        let budget = &mut profile.budget;
        put(&mut budget.context_window, self.context_window);
        put(&mut budget.max_reply_tokens, self.max_reply_tokens);
        put(&mut budget.safety_headroom, self.safety_headroom);
        put(&mut budget.tool_result_headroom, self.tool_result_headroom);
        if let Some(provider) = self.provider {
            profile.provider = provider.provider();
        }
        if let Some(tokenizer) = &self.tokenizer {
            profile.tokenizer = tokenizer.kind();
        }
    }
}

impl ProviderShape {
    fn provider(self) -> Provider {
        match self {
            Self::OpenAi => Provider::OpenAi,
            Self::Anthropic => Provider::Anthropic,
            Self::Google => Provider::Google,
            Self::Open => Provider::Open,
        }
    }
}

impl Default for ContextShape {
    fn default() -> Self {
        let settings = WindowSettings::default();
        let (policy, turns) = match settings.policy {
            Policy::SlidingWindow { turns } => (PolicyShape::SlidingWindow, turns),
            Policy::HeadTail { turns } => (PolicyShape::HeadTail, turns),
            Policy::TokenBudget => (PolicyShape::TokenBudget, 0),
            Policy::Salience => (PolicyShape::Salience, 0),
        };
        Self {
            policy,
            turns,
            watermark: Percent(settings.watermark_percent),
            floor: Percent(settings.floor_percent),
            supersede: settings.supersede,
            trim_over_tokens: settings.trim_over_tokens,
            trim_head_tokens: settings.trim_head_tokens,
            trim_tail_tokens: settings.trim_tail_tokens,
            default_model: DEFAULT_MODEL.to_owned(),
            models: BTreeMap::new(),
        }
    }
}

/// The models that are built in, a line each, as the default file shows them. Each line
/// begins with `start`.
pub(super) fn table_of_models(start: &str) -> String {
    let header = [
        "model",
        "provider",
        "tokenizer",
        "window",
        "reply",
        "safety",
        "results",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(catalogue().into_iter().map(|profile| {
        let budget = profile.budget;
        [
            profile.name,
            provider_word(profile.provider).to_owned(),
            tokenizer_word(&profile.tokenizer).to_owned(),
            budget.context_window.to_string(),
            budget.max_reply_tokens.to_string(),
            budget.safety_headroom.to_string(),
            budget.tool_result_headroom.to_string(),
        ]
    }));
    let widths: [usize; 7] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let line = |row: &[String; 7]| {
        let cell = |(column, text): (usize, &String)| match column {
            0..=2 => format!("{text:<width$}", width = widths[column]),
            _ => format!("{text:>width$}", width = widths[column]),
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        format!("{start}{}", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn provider_word(provider: Provider) -> &'static str {
    match provider {
        Provider::OpenAi => "openai",
        Provider::Anthropic => "anthropic",
        Provider::Google => "google",
        Provider::Open => "open",
    }
}

fn tokenizer_word(kind: &TokenizerKind) -> &'static str {
    match kind {
        TokenizerKind::O200k => "o200k",
        TokenizerKind::Cl100k => "cl100k",
        TokenizerKind::Estimate => "estimate",
        TokenizerKind::File(_) => "file",
    }
}

#[cfg(test)]
mod tests;
