//! Model registry, and a per-tenant cache of prompt token counts.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use hashlink::LruCache;
use memoird_core::CoreError;
use memoird_core::turn::MessageFormat;
use memoird_core::window::{Overheads, ScaleId, WindowSettings, overheads};
use memoird_formats::model::{DEFAULT_MODEL, ModelProfile, TokenizerKind, closest_relative};
use memoird_formats::tokens::{Dialect, Scale, Tokenizer};
use parking_lot::Mutex;

use crate::token_counter::TokenCounter;

/// Capacity of a tenant's prompt token cache, in entries.
const PROMPTS_MAX: usize = 1_024;
/// Maximum bytes of a model name quoted in an error.
const NAME_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct ContextConfig {
    pub settings: WindowSettings,
    /// Known models, with unique names.
    pub models: Vec<ContextModel>,
    /// Model for calls that do not name one. Must be in `models`.
    pub default_model: String,
}

/// A configured model with its token counters.
#[derive(Clone, Debug)]
pub struct ContextModel {
    pub profile: ModelProfile,
    /// Local tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// The provider's token counting endpoint, called only near the budget limit.
    pub counter: Option<Arc<dyn TokenCounter>>,
}

/// A model, prepared for use.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) profile: ModelProfile,
    pub(crate) scale: Scale,
    pub(crate) scale_id: ScaleId,
    /// Computed on first use, because loading a vocabulary takes several megabytes.
    overheads: OnceLock<Overheads>,
    /// The provider's token counting endpoint.
    pub(crate) counter: Option<Arc<dyn TokenCounter>>,
}

#[derive(Debug, Default)]
pub(crate) struct Models {
    by_name: HashMap<String, Arc<Model>>,
    default: String,
}

/// The id of each pair of tokenizer and dialect.
///
/// Ids survive a reload, so cached token counts of turns stay valid.
type ScaleIds = Mutex<HashMap<(TokenizerKind, Dialect), ScaleId>>;

#[derive(Debug)]
pub(crate) struct ModelRegistry {
    current: ArcSwap<Models>,
    scale_ids: ScaleIds,
}

/// Scale, digest of the texts, and the request's message format.
pub(crate) type PromptKey = (ScaleId, u64, Option<MessageFormat>);

/// LRU cache of token counts for a tenant's system prompts and tool schemas.
///
/// A cache shared by tenants would be a timing side channel: a fast reply would reveal that another
/// tenant sent the same prompt.
#[derive(Debug)]
pub(crate) struct Prompts {
    tokens: Mutex<LruCache<PromptKey, u64>>,
    hasher: RandomState,
}

impl Model {
    /// Token counts of the text that memoird itself adds to windows for this model.
    pub(crate) fn overheads(&self) -> Overheads {
        *self
            .overheads
            .get_or_init(|| overheads(&|turn| self.scale.turn(turn)))
    }
}

impl ModelRegistry {
    pub(crate) fn new(config: &ContextConfig) -> Self {
        let scale_ids = ScaleIds::default();
        Self {
            current: ArcSwap::from_pointee(Models::new(config, &scale_ids)),
            scale_ids,
        }
    }

    pub(crate) fn current(&self) -> Arc<Models> {
        self.current.load_full()
    }

    pub(crate) fn reconfigure(&self, config: &ContextConfig) {
        let models = Models::new(config, &self.scale_ids);
        self.current.store(Arc::new(models));
    }
}

impl Models {
    fn new(config: &ContextConfig, ids: &ScaleIds) -> Self {
        let model = |model: &ContextModel| {
            let profile = model.profile.clone();
            let dialect = Dialect::for_model(profile.provider, &profile.name);
            let scale = Scale::new(Arc::clone(&model.tokenizer), dialect);
            let mut known = ids.lock();
            let next = ScaleId(u32::try_from(known.len()).unwrap_or(u32::MAX));
            let key = (profile.tokenizer.clone(), dialect);
            let scale_id = *known.entry(key).or_insert(next);
            let counter = model.counter.clone();
            let name = profile.name.clone();
            (
                name,
                Arc::new(Model {
                    profile,
                    scale,
                    scale_id,
                    overheads: OnceLock::new(),
                    counter,
                }),
            )
        };
        Self {
            by_name: config.models.iter().map(model).collect(),
            default: config.default_model.clone(),
        }
    }

    /// Returns the model with this name or its closest relative. An empty name selects the default.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Model>, CoreError> {
        let wanted = if name.is_empty() { &self.default } else { name };
        let known = self.by_name.get(wanted).or_else(|| {
            let profiles = self.by_name.values().map(|model| &model.profile);
            let named = profiles.filter(|profile| profile.name != DEFAULT_MODEL);
            self.by_name.get(&closest_relative(wanted, named)?.name)
        });
        known.cloned().ok_or_else(|| {
            let mut known: Vec<String> = self.by_name.keys().cloned().collect();
            known.sort_unstable();
            let end = wanted.floor_char_boundary(NAME_BYTES_MAX);
            CoreError::UnknownModel {
                model: wanted[..end].to_owned(),
                known,
            }
        })
    }

    pub(crate) fn scale(&self, id: ScaleId) -> Option<Scale> {
        let mut models = self.by_name.values();
        Some(models.find(|model| model.scale_id == id)?.scale.clone())
    }

    /// Whether the model name reported by a provider may refer to `profile`.
    ///
    /// An empty name, or one that matches no profile, may refer to any.
    pub(crate) fn may_mean(&self, provider_name: &str, profile: &str) -> bool {
        let answers = |model: &Model| model.profile.answers_to(provider_name);
        provider_name.is_empty()
            || self
                .by_name
                .get(profile)
                .is_some_and(|model| answers(model))
            || !self.by_name.values().any(|model| answers(model))
    }
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            tokens: Mutex::new(LruCache::new(PROMPTS_MAX)),
            hasher: RandomState::new(),
        }
    }
}

impl Prompts {
    /// Process-local hash of a system prompt and tool schemas.
    pub(crate) fn digest(&self, texts: [&str; 2]) -> u64 {
        self.hasher.hash_one(texts)
    }

    pub(crate) fn get(&self, key: PromptKey) -> Option<u64> {
        self.tokens.lock().get(&key).copied()
    }

    pub(crate) fn put(&self, key: PromptKey, tokens: u64) {
        self.tokens.lock().insert(key, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_counts_are_isolated_by_tenant() {
        let [ours, theirs] = [(); 2].map(|()| Prompts::default());
        let prompt = ["be brief", "[]"];
        let scale = ScaleId(1);
        ours.put((scale, ours.digest(prompt), None), 7);
        assert_eq!(ours.get((scale, ours.digest(prompt), None)), Some(7));
        assert_eq!(theirs.get((scale, theirs.digest(prompt), None)), None);
        assert_eq!(theirs.get((scale, ours.digest(prompt), None)), None);
    }
}
