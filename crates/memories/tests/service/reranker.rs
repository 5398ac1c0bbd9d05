//! A scripted reranker.

use std::future::pending;
use std::sync::Mutex;

use memoird_engine::{FaultKind, ModelFault};
use memoird_memories::{Reranker, Reranking};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Says {
    /// Ranks this text first.
    Best(&'static str),
    /// Unavailable.
    Away,
    /// Rejects these texts.
    Refuses,
    /// Returns these scores.
    Scores(Vec<f64>),
    /// Never replies.
    Hangs,
}

#[derive(Debug)]
pub(super) struct ScriptedReranker {
    documents_max: usize,
    says: Mutex<Says>,
    asked: Mutex<Vec<(String, Vec<String>)>>,
}

impl ScriptedReranker {
    pub(super) fn new(documents_max: usize, says: Says) -> Self {
        Self {
            documents_max,
            says: Mutex::new(says),
            asked: Mutex::default(),
        }
    }

    pub(super) fn says(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    /// Queries and texts of all calls.
    pub(super) fn asked(&self) -> Vec<(String, Vec<String>)> {
        self.asked.lock().unwrap().clone()
    }
}

impl Reranker for ScriptedReranker {
    fn name(&self) -> &str {
        "scripted"
    }

    fn documents_max(&self) -> usize {
        self.documents_max
    }

    fn rerank(&self, query: String, documents: Vec<String>) -> Reranking<'_> {
        let says = self.says.lock().unwrap().clone();
        self.asked.lock().unwrap().push((query, documents.clone()));
        Box::pin(async move {
            match says {
                Says::Best(best) => {
                    let score = |text: &String| if text == best { 0.9 } else { 0.1 };
                    Ok(documents.iter().map(score).collect())
                }
                Says::Away => Err(ModelFault::new(FaultKind::Later, "it was told to")),
                Says::Refuses => Err(ModelFault::new(FaultKind::TooLong, "it was told to")),
                Says::Scores(scores) => Ok(scores),
                Says::Hangs => pending().await,
            }
        })
    }
}
