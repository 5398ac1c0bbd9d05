//! The models of the configuration: built-in ones, with the file's changes, and added ones.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::budget::BudgetOverride;
use memoird_core::config::{Environment, Flat, Problem, Problems};
use memoird_engine::ContextModel;
use memoird_formats::model::{DEFAULT_MODEL, ModelProfile, Provider, TokenizerKind, catalogue};
use memoird_formats::tokens::{Tokenizer, built_in};
use memoird_models::{CounterSpec, open_tokenizer};
use serde::{Deserialize, Serialize};

/// Maximum models, and bytes of a name. An error lists all names, and must fit into a header.
const MODELS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 64;

/// Settings of `context` in addition to those of windows.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelsSection {
    /// Model of calls that name none.
    pub(super) default_model: String,
    /// Added models, and changes to built-in models of the same name.
    pub(super) models: BTreeMap<String, Flat<ModelSpec, BudgetOverride>>,
}

/// Settings of a model in addition to its budget.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<Provider>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer: Option<TokenizerKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counter: Option<CounterSpec>,
}

impl Default for ModelsSection {
    fn default() -> Self {
        Self {
            default_model: DEFAULT_MODEL.to_owned(),
            models: BTreeMap::new(),
        }
    }
}

impl ModelsSection {
    /// Builds the models with their tokenizers and counters. Errors are added to `problems`.
    pub(super) fn build(
        &self,
        environment: &dyn Environment,
        problems: &mut Problems,
    ) -> Vec<ContextModel> {
        let profiles = self.profiles(problems);
        let names: Vec<&str> = profiles.iter().map(|profile| &*profile.name).collect();
        if !names.contains(&&*self.default_model) {
            let known = names.join(", ");
            let problem = format!("unknown {:?}; expected one of {known}", self.default_model);
            problems.add("default_model", problem);
        }
        let mut tokenizers = Tokenizers::default();
        let mut models = Vec::with_capacity(profiles.len());
        for profile in profiles {
            let section = format!("models.{}", profile.name);
            let spec = self.models.get(&profile.name);
            let built = spec
                .and_then(|spec| spec.first.counter.as_ref())
                .map(|counter| counter.build(&profile.name, environment));
            let counter = built.and_then(|counter| {
                let counter = counter.map_err(|problem| problem.within("counter"));
                problems.take(&section, counter)
            });
            let tokenizer = tokenizers.get(&profile.tokenizer, profile.provider);
            if let Some(tokenizer) = problems.take(&section, tokenizer) {
                models.push(ContextModel {
                    profile,
                    tokenizer,
                    counter,
                });
            }
        }
        models
    }

    /// Returns the built-in profiles, with the file's changes, and the added ones.
    fn profiles(&self, problems: &mut Problems) -> Vec<ModelProfile> {
        let count = self.models.len();
        if count > MODELS_MAX {
            problems.add(
                "models",
                format!("too many: {count}, the maximum is {MODELS_MAX}"),
            );
        }
        let mut profiles = catalogue();
        for (name, Flat { first, second, .. }) in &self.models {
            let key = format!("models.{name}");
            if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
                problems.add(
                    &key,
                    format!("a name must have 1 to {NAME_BYTES_MAX} bytes"),
                );
            }
            let index = profiles
                .iter()
                .position(|profile| profile.name == *name)
                .unwrap_or_else(|| {
                    let is_complete = second.context_window.is_some();
                    let incomplete = "is not a built-in model: set its context_window";
                    problems.unless(is_complete, &key, incomplete);
                    let base = profiles
                        .iter()
                        .find(|profile| profile.name == DEFAULT_MODEL);
                    // The catalogue always contains it, which a test checks.
                    profiles.extend(base.cloned().map(|base| ModelProfile {
                        name: name.clone(),
                        ..base
                    }));
                    profiles.len() - 1
                });
            let profile = &mut profiles[index];
            profile.budget = profile.budget.overridden(*second);
            if let Some(provider) = first.provider {
                profile.provider = provider;
            }
            if let Some(tokenizer) = &first.tokenizer {
                profile.tokenizer = tokenizer.clone();
            }
            // The same message as in the error of a call.
            if let Err(error) = profile.budget.input(0) {
                problems.add(&key, error);
            }
        }
        profiles
    }
}

/// Tokenizers loaded from files, each once, because one may have many megabytes.
#[derive(Default)]
struct Tokenizers(HashMap<PathBuf, Arc<dyn Tokenizer>>);

impl Tokenizers {
    fn get(
        &mut self,
        kind: &TokenizerKind,
        provider: Provider,
    ) -> Result<Arc<dyn Tokenizer>, Problem> {
        let unusable = |problem: String| Problem::new("tokenizer", problem);
        let TokenizerKind::File(path) = kind else {
            return built_in(kind, provider).ok_or_else(|| unusable("not built in".to_owned()));
        };
        if let Some(known) = self.0.get(path) {
            return Ok(Arc::clone(known));
        }
        let tokenizer = open_tokenizer(path)
            .map_err(|error| unusable(format!("{} cannot be used: {error}", path.display())))?;
        self.0.insert(path.clone(), Arc::clone(&tokenizer));
        Ok(tokenizer)
    }
}

#[cfg(test)]
mod tests;
