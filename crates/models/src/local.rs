//! Embeddings in this process, on the CPU: no provider, no network, and what a user says
//! stays here.

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
use folder::Folder;
use model::Model;

/// A model of the BERT family as sentence-transformers has it, such as all-MiniLM-L6-v2.
///
/// One pass is computed at a time, on all cores; a pass is of at most 1,024 tokens or one
/// text, so that a query does not wait long behind memories. A text is cut after as many
/// tokens as the model reads.
pub struct LocalEmbedder {
    name: String,
    model: Arc<Model>,
    /// Held while computing; calls get it in the order in which they came.
    turn: Arc<Mutex<()>>,
}

/// Texts of a call.
const BATCH_MAX: usize = 32;

impl LocalEmbedder {
    /// Reads a model from its folder: `model.safetensors`, `tokenizer.json`, `config.json`,
    /// and, where they are, `modules.json`, `1_Pooling/config.json`,
    /// `sentence_bert_config.json` and `config_sentence_transformers.json`. It takes up to
    /// some seconds; do it where blocking is allowed.
    ///
    /// # Errors
    /// [`ModelError`] for a folder without a model of this family.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        let folder = Folder::read(dir)?;
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
            .aside(move |model| model.passes(purpose, &texts))
            .await?;
        for pass in passes {
            for (index, vector) in self.aside(move |model| model.compute(&pass)).await? {
                vectors[index] = vector;
            }
        }
        Ok(vectors)
    }

    /// Does something that blocks when it is its turn. Who stops waiting for it gives the
    /// turn on only when it is done: the machine is busy until then.
    async fn aside<T: Send + 'static>(
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
