//! A scripted embedder. Its vectors count words, some of which are synonyms.

use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::{Embedder, Embeddings, Purpose};

/// Words with the meaning of the first one.
const ALIKE: [&[&str]; 3] = [
    &["likes", "like", "liked", "enjoys", "loves"],
    &["tea", "infusion"],
    &["city", "town"],
];

/// Behavior of the embedder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// Works.
    Fine,
    /// Its vectors point in much the same direction: unrelated texts have a cosine of 0.8.
    Narrow,
    /// Unavailable, possibly with a time to retry after.
    Away(Option<Duration>),
    /// Its key is invalid.
    Misconfigured,
    /// Never replies.
    Hangs,
    /// Returns one vector for all texts.
    Constant,
}

#[derive(Debug)]
pub(super) struct ScriptedEmbedder {
    model: String,
    batch_max: usize,
    dimension: AtomicUsize,
    mood: Mutex<Mood>,
    asked: Mutex<Vec<(Purpose, Vec<String>)>>,
}

impl ScriptedEmbedder {
    pub(super) fn new(model: &str) -> Self {
        Self {
            model: model.to_owned(),
            batch_max: 4,
            dimension: AtomicUsize::new(256),
            mood: Mutex::new(Mood::Fine),
            asked: Mutex::default(),
        }
    }

    pub(super) fn feels(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(super) fn set_dimension(&self, dimension: usize) {
        self.dimension.store(dimension, Ordering::Relaxed);
    }

    pub(super) fn calls(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// Index of the first call with this text, from 0.
    pub(super) fn first_call_with(&self, text: &str) -> Option<usize> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .position(|(_, texts)| texts.iter().any(|asked| asked == text))
    }

    /// Number of times that this text was embedded as a memory.
    pub(super) fn times(&self, text: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        let of_memories = asked
            .iter()
            .filter(|(purpose, _)| *purpose == Purpose::Memory);
        of_memories
            .flat_map(|(_, texts)| texts)
            .filter(|asked| *asked == text)
            .count()
    }

    /// Whether any text passed to the embedder contains this.
    pub(super) fn saw(&self, piece: &str) -> bool {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .flat_map(|(_, texts)| texts)
            .any(|text| text.contains(piece))
    }

    fn vector(&self, text: &str) -> Vec<f32> {
        let dimension = self.dimension.load(Ordering::Relaxed);
        let mut vector = vec![0.0_f32; dimension];
        if text.contains("meaningless") {
            return vector;
        }
        for word in text.to_lowercase().split(|c: char| !c.is_alphanumeric()) {
            if word.is_empty() {
                continue;
            }
            let alike = ALIKE.iter().find(|alike| alike.contains(&word));
            vector[place(alike.map_or(word, |alike| alike[0]), dimension)] += 1.0;
        }
        let length = vector
            .iter()
            .map(|value| value * value)
            .sum::<f32>()
            .sqrt()
            .max(1.0);
        vector.iter().map(|value| value / length).collect()
    }
}

/// FNV-1a, because it never changes.
fn place(word: &str, dimension: usize) -> usize {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = word.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
    usize::try_from(hash % dimension as u64).unwrap()
}

impl Embedder for ScriptedEmbedder {
    fn model(&self) -> &str {
        &self.model
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }

    fn embed(&self, purpose: Purpose, texts: Vec<String>) -> Embeddings<'_> {
        self.asked.lock().unwrap().push((purpose, texts.clone()));
        let mood = self.mood.lock().unwrap().clone();
        Box::pin(async move {
            let fault = |kind| ModelFault::new(kind, "it was told to");
            match mood {
                Mood::Fine => {}
                Mood::Narrow => {
                    let narrow = |text: &String| {
                        let mut vector = self.vector(text);
                        vector.iter_mut().for_each(|value| *value *= 0.2_f32.sqrt());
                        vector[0] += 0.8_f32.sqrt();
                        vector
                    };
                    return Ok(texts.iter().map(narrow).collect());
                }
                Mood::Constant => {
                    let mut vector = vec![0.0; self.dimension.load(Ordering::Relaxed)];
                    vector[0] = 1.0;
                    return Ok(vec![vector; texts.len()]);
                }
                Mood::Away(after) => {
                    return Err(ModelFault {
                        after,
                        ..fault(FaultKind::Later)
                    });
                }
                Mood::Misconfigured => return Err(fault(FaultKind::Misconfigured)),
                Mood::Hangs => pending().await,
            }
            if texts.iter().any(|text| text.contains("poison")) {
                return Err(fault(FaultKind::Later));
            }
            if texts.iter().any(|text| text.contains("unspeakable")) {
                return Err(fault(FaultKind::Refused));
            }
            Ok(texts.iter().map(|text| self.vector(text)).collect())
        })
    }
}
