//! Model registry, and a per-tenant cache of prompt token counts.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use hashlink::LruCache;
use memoird_core::CoreError;
use memoird_core::nonce::Nonce;
use memoird_core::quote;
use memoird_core::turn::{MessageFormat, estimate_tokens};
use memoird_core::window::{Overheads, ScaleId, WindowSettings, overheads};
use memoird_formats::model::{DEFAULT_MODEL, ModelProfile, closest_relative};
use memoird_formats::tokens::{Dialect, Scale, Tokenizer};
use memoird_store::encoding;
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

#[derive(Debug)]
pub(crate) struct ModelRegistry {
    current: ArcSwap<Models>,
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
        Self {
            current: ArcSwap::from_pointee(Models::new(config)),
        }
    }

    pub(crate) fn current(&self) -> Arc<Models> {
        self.current.load_full()
    }

    pub(crate) fn reconfigure(&self, config: &ContextConfig) {
        let models = Models::new(config);
        self.current.store(Arc::new(models));
    }
}

impl Models {
    fn new(config: &ContextConfig) -> Self {
        let model = |model: &ContextModel| {
            let profile = model.profile.clone();
            let dialect = Dialect::for_model(profile.provider, &profile.name);
            let scale = Scale::new(Arc::clone(&model.tokenizer), dialect);
            // The same after a reload, and at other daemons, so token counts stay valid.
            let scale_id = ScaleId(digest(&(&profile.tokenizer, dialect)));
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
        }
    }
}

/// Hash of a system prompt and tool schemas, or of another value, the same in all processes.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

/// Counts the tokens of each turn. Returns pairs of seq and tokens.
pub(crate) fn count_turns(
    scale: &Scale,
    turns: Vec<(u64, Arc<[u8]>)>,
    nonce: Nonce,
) -> Vec<(u64, u64)> {
    let count = |(seq, content): (u64, Arc<[u8]>)| {
        let tokens = match encoding::open(&content) {
            // Count the escaped form that windows show.
            Some(mut turn) if quote::has_marks(&content) || nonce.is_in(&content) => {
                quote::unmark(&mut turn, nonce);
                scale.turn(&turn)
            }
            Some(turn) => scale.turn(&turn),
            // Do not assume that a damaged turn is small.
            None => u64::from(estimate_tokens(content.len())),
        };
        (seq, tokens)
    };
    turns.into_iter().map(count).collect()
}

impl Prompts {
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
        let key = (scale, digest(&prompt), None);
        ours.put(key, 7);
        assert_eq!(ours.get(key), Some(7));
        assert_eq!(theirs.get(key), None);
    }
}
