//! Detects an embedder that returns one vector for all texts. Its vectors would make every text the
//! nearest of every query, so it is ignored until it tells texts apart again.
//!
//! If two texts of different words have one vector, the embedder is checked: a model may just not know
//! the words. It is collapsed if sentences on unrelated subjects have one vector, too.

use std::sync::Mutex;
use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_engine::{FaultKind, ModelFault};
use tracing::{info, warn};

use super::Memories;
use crate::embedder::{Embedder, Purpose};
use crate::locked;
use crate::rules::wording::is_near;
use crate::store::cosine;
use crate::store::time::after;

/// Vectors with at least this cosine are considered equal.
const ONE_VECTOR_COSINE: f64 = 0.98;

/// The shortest time between two checks, in both states.
const CHECK_PAUSE: Duration = Duration::from_secs(60);

/// Sentences on unrelated subjects.
const PROBES: [&str; 4] = [
    "The cat sleeps on the warm roof.",
    "Invoices are due within thirty days.",
    "Green plants turn sunlight into sugar.",
    "Der Zug nach Wien hat Verspätung.",
];

/// Whether the embedder in use is collapsed.
#[derive(Debug, Default)]
pub(crate) struct CollapseState(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// A text with its vector, which the next ones are compared with.
    last: Option<(String, Vec<f32>)>,
    checked_at: Option<Timestamp>,
    is_collapsed: bool,
}

impl CollapseState {
    /// True while the embedder is ignored.
    pub(crate) fn is_collapsed(&self) -> bool {
        locked(&self.0).is_collapsed
    }

    /// When a collapsed embedder is checked again; `None` if it may be used now.
    pub(crate) fn next_check(&self, now: Timestamp) -> Option<Timestamp> {
        let known = locked(&self.0);
        let next = after(known.checked_at?, CHECK_PAUSE);
        (known.is_collapsed && now < next).then_some(next)
    }

    /// Compares the next vector with this one, which was stored earlier.
    pub(crate) fn remember(&self, text: String, vector: Vec<f32>) {
        locked(&self.0).last.get_or_insert((text, vector));
    }

    fn was_checked_lately(&self, now: Timestamp) -> bool {
        let checked_at = locked(&self.0).checked_at;
        checked_at.is_some_and(|at| at <= now && now < after(at, CHECK_PAUSE))
    }

    /// Records vectors. True if two texts of different words have one vector.
    fn note(&self, texts: &[String], vectors: &[Vec<f32>]) -> bool {
        let mut known = locked(&self.0);
        let mut is_suspicious = false;
        for (text, vector) in texts.iter().zip(vectors) {
            is_suspicious |= known.last.as_ref().is_some_and(|(last, of_last)| {
                is_one(of_last, vector) && last != text && !is_near(last, text)
            });
            known.last = Some((text.clone(), vector.clone()));
        }
        is_suspicious
    }
}

fn is_one(one: &[f32], other: &[f32]) -> bool {
    one.len() == other.len() && cosine(one, other) >= ONE_VECTOR_COSINE
}

impl Memories {
    /// The vectors of texts, from an embedder that tells texts apart.
    ///
    /// # Errors
    /// The embedder's; [`FaultKind::Later`] while it returns one vector for all texts.
    pub(crate) async fn embed(
        &self,
        embedder: &dyn Embedder,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, ModelFault> {
        let state = &self.shared.collapse;
        if state.is_collapsed() {
            self.check_embedder(embedder).await?;
        }
        let vectors = embedder.embed(purpose, texts.clone()).await?;
        if state.note(&texts, &vectors) {
            self.check_embedder(embedder).await?;
        }
        Ok(vectors)
    }

    /// Checks whether the embedder is collapsed, at most once in [`CHECK_PAUSE`].
    async fn check_embedder(&self, embedder: &dyn Embedder) -> Result<(), ModelFault> {
        let state = &self.shared.collapse;
        let now = self.now();
        if !state.was_checked_lately(now) {
            let mut vectors = Vec::with_capacity(PROBES.len());
            for batch in PROBES.chunks(embedder.batch_max().max(1)) {
                let texts = batch.iter().map(|&text| text.to_owned()).collect();
                vectors.extend(embedder.embed(Purpose::Memory, texts).await?);
            }
            let is_collapsed = vectors.len() == PROBES.len()
                && vectors.windows(2).all(|pair| is_one(&pair[0], &pair[1]));
            let model = embedder.model();
            let mut known = locked(&state.0);
            match (known.is_collapsed, is_collapsed) {
                (false, true) => warn!(
                    model,
                    "the embedder returns one vector for all texts and is ignored: memories are \
                     found and merged by words; repair it, then run `memoird memory reindex`"
                ),
                (true, false) => info!(model, "the embedder tells texts apart again"),
                _ => {}
            }
            known.is_collapsed = is_collapsed;
            known.checked_at = Some(now);
            drop(known);
            if is_collapsed {
                locked(&self.shared.query_vectors.0).clear();
            }
        }
        match state.is_collapsed() {
            false => Ok(()),
            true => Err(ModelFault {
                after: Some(CHECK_PAUSE),
                ..ModelFault::new(
                    FaultKind::Later,
                    "the embedder returns one vector for all texts",
                )
            }),
        }
    }
}
