//! Embeddings in this process, on the CPU. User text is not sent to a provider.

mod folder;
mod model;
mod settings;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::{Embedder, Embeddings, Purpose};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::error::ModelError;
use folder::ModelFolder;
use model::Model;

/// A BERT model in the format of sentence-transformers, such as all-MiniLM-L6-v2.
///
/// One pass runs at a time, on all cores. A pass has at most 1,024 tokens or one text, so that a
/// query does not wait long for memories being embedded. Texts are truncated to the model's maximum
/// input.
pub struct LocalEmbedder {
    name: String,
    model: Arc<Model>,
    /// Held while computing. Calls acquire it in order of arrival.
    turn: Arc<Mutex<()>>,
}

/// Maximum number of texts per call.
const BATCH_MAX: usize = 32;

impl LocalEmbedder {
    /// Reads a model from its directory. Blocks for up to several seconds.
    ///
    /// The files are `model.safetensors`, `tokenizer.json`, `config.json`, and, if they exist,
    /// `modules.json`, `1_Pooling/config.json`, `sentence_bert_config.json` and
    /// `config_sentence_transformers.json`.
    ///
    /// # Errors
    /// [`ModelError`] if the directory has no supported model.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let folder = ModelFolder::read(dir)?;
        let name = format!("local:bert:{}", folder.digest);
        let model = Arc::new(Model::new(folder)?);
        Ok(Self {
            name,
            model,
            turn: Arc::default(),
        })
    }

    async fn vectors(
        &self,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, ModelFault> {
        let mut vectors = vec![Vec::new(); texts.len()];
        let passes = self
            .run_exclusively(move |model| model.passes(purpose, &texts))
            .await?;
        for pass in passes {
            for (index, vector) in self
                .run_exclusively(move |model| model.compute(&pass))
                .await?
            {
                vectors[index] = vector;
            }
        }
        Ok(vectors)
    }

    /// Runs blocking work with exclusive use of the model.
    ///
    /// If the caller is dropped, the lock is held until the work is done, because the CPU is busy
    /// until then.
    async fn run_exclusively<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Model) -> Result<T, ModelFault> + Send + 'static,
    ) -> Result<T, ModelFault> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let model = Arc::clone(&self.model);
        let done = spawn_blocking(move || {
            let _turn = turn;
            work(&model)
        });
        done.await.unwrap_or_else(|_| {
            let problem = "the local model stopped computing";
            Err(ModelFault::new(FaultKind::Later, problem))
        })
    }
}

impl Embedder for LocalEmbedder {
    fn model(&self) -> &str {
        &self.name
    }

    fn batch_max(&self) -> usize {
        BATCH_MAX
    }

    fn embed(&self, purpose: Purpose, texts: Vec<String>) -> Embeddings<'_> {
        Box::pin(self.vectors(purpose, texts))
    }
}

impl fmt::Debug for LocalEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEmbedder")
            .field("model", &self.name)
            .finish_non_exhaustive()
    }
}
