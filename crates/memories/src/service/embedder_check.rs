//! Measures the cosine of unrelated texts, which differs by embedder: 0.05 for MiniLM, 0.7 for E5.
//!
//! The same measurement detects a collapsed embedder, which returns one vector for all texts. Every
//! text would be the nearest neighbor of every query, so the embedder is ignored until it
//! distinguishes texts again.
//!
//! A check starts when two texts of different words have the same vector. The model may just not
//! know the words, so it counts as collapsed only if sentences on unrelated subjects have the same
//! vector, too.

use std::sync::Mutex;
use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_engine::{FaultKind, ModelFault};
use tracing::{info, warn};

use super::vectors::TextVectors;
use crate::embedder::{Embedder, Purpose};
use crate::lock;
use crate::rules::wording::is_near;
use crate::store::cosine;
use crate::store::time::after;

/// Vectors with at least this cosine are considered equal.
const ONE_VECTOR_COSINE: f64 = 0.98;

/// Minimum time between two checks, collapsed or not.
const CHECK_PAUSE: Duration = Duration::from_secs(60);

/// Sentences on unrelated subjects.
const PROBES: [&str; 8] = [
    "The cat sleeps on the warm roof.",
    "Invoices are due within thirty days.",
    "Green plants turn sunlight into sugar.",
    "Der Zug nach Wien hat Verspätung.",
    "What did the goalkeeper say after the match?",
    "Restart the server if the disk is full.",
    "Thank you, that is all for today.",
    "My sister plays the violin in an orchestra.",
];

/// Maximum of [`EmbedderCheck::unrelated`].
const UNRELATED_MAX: f64 = 0.95;

/// Properties of the embedder in use, measured with [`PROBES`].
#[derive(Debug, Default)]
pub(crate) struct EmbedderCheck(Mutex<Measurements>);

#[derive(Debug, Default)]
struct Measurements {
    /// A text with its vector, to compare with the next ones.
    last: Option<(String, Vec<f32>)>,
    checked_at: Option<Timestamp>,
    is_collapsed: bool,
    /// Name of the measured model, and the mean cosine of its probes.
    unrelated: Option<(String, f64)>,
}

impl EmbedderCheck {
    /// Whether the embedder is ignored.
    pub(crate) fn is_collapsed(&self) -> bool {
        lock(&self.0).is_collapsed
    }

    /// Cosine of unrelated texts for this model, from 0 to [`UNRELATED_MAX`].
    ///
    /// 0 until it is measured.
    pub(crate) fn unrelated(&self, model: &str) -> f64 {
        let known = lock(&self.0);
        let measured = known.unrelated.as_ref().filter(|(of, _)| of == model);
        measured.map_or(0.0, |(_, unrelated)| *unrelated)
    }

    fn usable(&self) -> Result<(), ModelFault> {
        if self.is_collapsed() {
            Err(ModelFault {
                after: Some(CHECK_PAUSE),
                ..ModelFault::new(
                    FaultKind::Later,
                    "the embedder returns one vector for all texts",
                )
            })
        } else {
            Ok(())
        }
    }

    fn is_measured(&self, model: &str) -> bool {
        let known = lock(&self.0);
        known.unrelated.as_ref().is_some_and(|(of, _)| of == model)
    }

    /// Time of the next check of a collapsed embedder. `None` if it may be used now.
    pub(crate) fn next_check(&self, now: Timestamp) -> Option<Timestamp> {
        let known = lock(&self.0);
        let next = after(known.checked_at?, CHECK_PAUSE);
        (known.is_collapsed && now < next).then_some(next)
    }

    /// Sets the vector to compare the first new one with, from an earlier run.
    pub(crate) fn remember(&self, text: String, vector: Vec<f32>) {
        lock(&self.0).last.get_or_insert((text, vector));
    }

    fn was_checked_lately(&self, now: Timestamp) -> bool {
        let checked_at = lock(&self.0).checked_at;
        checked_at.is_some_and(|at| at <= now && now < after(at, CHECK_PAUSE))
    }

    /// Records vectors. Returns whether two texts of different words have the same vector.
    fn note(&self, texts: &[String], vectors: &[Vec<f32>]) -> bool {
        let mut known = lock(&self.0);
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

impl TextVectors {
    /// Embeds texts, unless the embedder is collapsed.
    ///
    /// # Errors
    /// Those of the embedder, and [`FaultKind::Later`] while it is collapsed.
    pub(crate) async fn embed(
        &self,
        embedder: &dyn Embedder,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<f32>>, ModelFault> {
        let state = &self.check;
        if state.is_collapsed() {
            self.check_embedder(embedder).await?;
        }
        let vectors = embedder.embed(purpose, texts.clone()).await?;
        if state.note(&texts, &vectors) {
            self.check_embedder(embedder).await?;
        } else if !state.is_measured(embedder.model()) {
            // The vectors are usable without a measurement. The next call tries it again.
            let measured = self.probe(embedder).await;
            measured.or(Ok(())).and_then(|()| state.usable())?;
        }
        Ok(vectors)
    }

    /// Checks whether the embedder is collapsed, at most once per [`CHECK_PAUSE`].
    async fn check_embedder(&self, embedder: &dyn Embedder) -> Result<(), ModelFault> {
        let state = &self.check;
        let now = self.storage.now();
        if !state.was_checked_lately(now) {
            self.probe(embedder).await?;
            lock(&state.0).checked_at = Some(now);
        }
        state.usable()
    }

    /// Embeds the probes and records the result.
    async fn probe(&self, embedder: &dyn Embedder) -> Result<(), ModelFault> {
        let mut vectors = Vec::with_capacity(PROBES.len());
        for batch in PROBES.chunks(embedder.batch_max().max(1)) {
            let texts = batch.iter().map(|&text| text.to_owned()).collect();
            vectors.extend(embedder.embed(Purpose::Memory, texts).await?);
        }
        let is_collapsed = vectors.len() == PROBES.len()
            && vectors.windows(2).all(|pair| is_one(&pair[0], &pair[1]));
        let model = embedder.model();
        let mut known = lock(&self.check.0);
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
        known.unrelated = Some((model.to_owned(), mean_cosine(&vectors)));
        drop(known);
        if is_collapsed {
            lock(&self.cache).clear();
        }
        Ok(())
    }
}

fn mean_cosine(vectors: &[Vec<f32>]) -> f64 {
    let pairs = vectors.iter().enumerate().flat_map(|(place, one)| {
        let others = vectors[place + 1..].iter();
        others.map(|other| cosine(one, other))
    });
    let cosines: Vec<f64> = pairs.filter(|cosine| cosine.is_finite()).collect();
    let mean = cosines.iter().sum::<f64>() / cosines.len().max(1) as f64;
    mean.clamp(0.0, UNRELATED_MAX)
}
