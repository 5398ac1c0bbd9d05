//! A summarizer that follows a script and records its requests.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use memoird_core::compaction::ModelSections;
use memoird_core::compaction::prompt::as_json;
use memoird_engine::{
    FaultKind, ModelFault, Summarizer, SummarizerFuture, SummarizerReply, SummaryRequest, TextEnd,
};
use tokio::sync::Notify;

/// Behavior of a [`Script`] for one request.
#[derive(Clone, Debug)]
pub(crate) enum ModelStep {
    /// Lists all names in its input.
    Well,
    /// Like `Well`, after a notification.
    Waits(Arc<Notify>),
    Never,
    Writes(&'static str),
    /// Returns a truncated reply.
    CutOff,
    /// Returns these details and nothing else.
    Details(String),
    Answers(ModelSections),
    Fails(ModelFault),
    Panics,
}

#[derive(Debug)]
pub(crate) struct Script {
    steps: Mutex<VecDeque<ModelStep>>,
    /// Used once the script is exhausted.
    then: Mutex<ModelStep>,
    pub(crate) asked: Mutex<Vec<Arc<SummaryRequest>>>,
    pub(crate) input_tokens_max: u64,
    /// Requests with more tokens fail as too long.
    pub(crate) too_long_over: u64,
    pub(crate) is_remote: bool,
}

impl Script {
    pub(crate) fn new(steps: impl IntoIterator<Item = ModelStep>) -> Arc<Self> {
        Arc::new(Self::then(steps, ModelStep::Well))
    }

    pub(crate) fn always(step: ModelStep) -> Arc<Self> {
        Arc::new(Self::then([], step))
    }

    pub(crate) fn then(steps: impl IntoIterator<Item = ModelStep>, then: ModelStep) -> Self {
        Self {
            steps: Mutex::new(steps.into_iter().collect()),
            then: Mutex::new(then),
            asked: Mutex::default(),
            input_tokens_max: u64::MAX,
            too_long_over: u64::MAX,
            is_remote: true,
        }
    }

    /// Discards the script and does this from now on.
    pub(crate) fn will_now(&self, step: ModelStep) {
        self.steps.lock().unwrap().clear();
        *self.then.lock().unwrap() = step;
    }

    /// Number of recorded requests.
    pub(crate) fn times(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The seqs of the turns in the last request.
    pub(crate) fn last_seqs(&self) -> Vec<u64> {
        let asked = self.asked.lock().unwrap();
        asked
            .last()
            .map(|ask| ask.turns.iter().map(|turn| turn.seq).collect())
            .unwrap_or_default()
    }
}

/// Approximate number of tokens in a request.
pub(crate) fn weight(ask: &SummaryRequest) -> u64 {
    let texts = ask
        .previous
        .iter()
        .map(|last| last.text.len())
        .chain(ask.turns.iter().map(|turn| turn.text.len()));
    let pieces = ask
        .chunks
        .iter()
        .map(|piece| as_json(piece).to_string().len());
    (texts.chain(pieces).sum::<usize>() / 4) as u64
}

/// Returns a reply whose details list all names (`#7`, `call_7`) in the request.
pub(crate) fn all_of(ask: &SummaryRequest) -> ModelSections {
    let before = ask.previous.iter().map(|last| last.body.written.as_str());
    let pieces = ask.chunks.iter().map(|piece| piece.details.as_str());
    let turns = ask.turns.iter().map(|turn| turn.text.as_str());
    let texts = before.chain(pieces).chain(turns);
    let words = texts.flat_map(|text| text.split([' ', '[', ']', '?', '.', '\n']));
    let mut seen = HashSet::new();
    let names: Vec<&str> = words
        .filter(|word| word.starts_with('#') || word.starts_with("call_"))
        .filter(|name| seen.insert(*name))
        .collect();
    ModelSections {
        details: format!("They talked. {}", names.join(" ")),
        ..ModelSections::default()
    }
}

impl Summarizer for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        self.is_remote
    }

    fn summarize(&self, ask: Arc<SummaryRequest>) -> SummarizerFuture<'_> {
        self.asked.lock().unwrap().push(Arc::clone(&ask));
        let step = self
            .steps
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or_else(|| self.then.lock().unwrap().clone());
        let is_too_long = weight(&ask) > self.too_long_over;
        Box::pin(async move {
            if is_too_long {
                return Err(ModelFault::new(
                    FaultKind::TooLong,
                    "context_length_exceeded",
                ));
            }
            match step {
                ModelStep::Well => Ok(SummarizerReply::Written(all_of(&ask))),
                ModelStep::Waits(allowed) => {
                    allowed.notified().await;
                    Ok(SummarizerReply::Written(all_of(&ask)))
                }
                ModelStep::Never => std::future::pending().await,
                ModelStep::Writes(text) => Ok(SummarizerReply::Text {
                    text: text.to_owned(),
                    end: TextEnd::Complete,
                }),
                ModelStep::CutOff => Ok(SummarizerReply::Text {
                    text: "{\"detai".to_owned(),
                    end: TextEnd::CutOff,
                }),
                ModelStep::Details(details) => Ok(SummarizerReply::Written(ModelSections {
                    details,
                    ..ModelSections::default()
                })),
                ModelStep::Answers(written) => Ok(SummarizerReply::Written(written)),
                ModelStep::Fails(error) => Err(error),
                ModelStep::Panics => panic!("as it was told"),
            }
        })
    }
}
