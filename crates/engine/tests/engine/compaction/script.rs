//! A summarizer that does what it is told, and writes down what it was asked.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::identifiers;
use memoird_core::compaction::notes::Notes;
use memoird_engine::{
    FaultKind, ModelFault, Summarizer, SummarizerAnswer, SummarizerFuture, SummaryRequest, TextEnd,
};
use tokio::sync::Notify;

/// What it does when it is asked.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Repeats all identifiers and what it was given before: as well as can be.
    Well,
    /// The same, once it is allowed to.
    Waits(Arc<Notify>),
    /// Never answers.
    Never,
    /// Writes this.
    Writes(&'static str),
    /// Says something that stops in the middle.
    CutOff,
    /// Gives a body that says this and nothing else.
    Says(String),
    Fails(ModelFault),
    Panics,
}

#[derive(Debug)]
pub(crate) struct Script {
    does: Mutex<VecDeque<Does>>,
    /// What it does once the script is over.
    then: Mutex<Does>,
    pub(crate) asked: Mutex<Vec<Arc<SummaryRequest>>>,
    pub(crate) input_tokens_max: u64,
    /// An ask of more tokens is too long for it.
    pub(crate) too_long_over: u64,
    pub(crate) is_remote: bool,
}

impl Script {
    pub(crate) fn of(does: impl IntoIterator<Item = Does>) -> Arc<Self> {
        Arc::new(Self::then(does, Does::Well))
    }

    pub(crate) fn always(does: Does) -> Arc<Self> {
        Arc::new(Self::then([], does))
    }

    pub(crate) fn then(does: impl IntoIterator<Item = Does>, then: Does) -> Self {
        Self {
            does: Mutex::new(does.into_iter().collect()),
            then: Mutex::new(then),
            asked: Mutex::default(),
            input_tokens_max: u64::MAX,
            too_long_over: u64::MAX,
            is_remote: true,
        }
    }

    /// What it does from now on.
    pub(crate) fn will_now(&self, does: Does) {
        self.does.lock().unwrap().clear();
        *self.then.lock().unwrap() = does;
    }

    /// How often it was asked.
    pub(crate) fn times(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The seqs of the turns of the last ask.
    pub(crate) fn last_seqs(&self) -> Vec<u64> {
        let asked = self.asked.lock().unwrap();
        asked
            .last()
            .map(|ask| ask.turns.iter().map(|turn| turn.seq).collect())
            .unwrap_or_default()
    }
}

/// Tokens of all that is asked, about.
pub(crate) fn weight(ask: &SummaryRequest) -> u64 {
    let texts = ask.previous.iter().map(|last| last.text.len());
    let texts = texts.chain(ask.turns.iter().map(|turn| turn.text.len()));
    let pieces = ask
        .chunks
        .iter()
        .map(|body| body.text(0, &Notes::default()).len());
    (texts.chain(pieces).sum::<usize>() / 4) as u64
}

/// All that was said, in one body.
pub(crate) fn all_of(ask: &SummaryRequest) -> Body {
    let mut identifiers_of: Vec<String> = Vec::new();
    let before = ask
        .previous
        .iter()
        .map(|last| &last.body)
        .chain(&ask.chunks);
    identifiers_of.extend(before.flat_map(|body| body.identifiers.iter().cloned()));
    let found = ask.turns.iter().flat_map(|turn| identifiers(&turn.text));
    identifiers_of.extend(found.map(|found| found.text.to_owned()));
    let words = ask
        .turns
        .iter()
        .flat_map(|turn| turn.text.split([' ', '[', ']', '?']));
    identifiers_of.extend(
        words
            .filter(|word| word.starts_with('#'))
            .map(str::to_owned),
    );
    let mut seen = HashSet::new();
    identifiers_of.retain(|text| seen.insert(text.clone()));
    Body {
        session_intent: "to talk".to_owned(),
        narrative: "They talked.".to_owned(),
        identifiers: identifiers_of,
        ..Body::default()
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
        let does = self
            .does
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
            match does {
                Does::Well => Ok(SummarizerAnswer::Body(all_of(&ask))),
                Does::Waits(allowed) => {
                    allowed.notified().await;
                    Ok(SummarizerAnswer::Body(all_of(&ask)))
                }
                Does::Never => std::future::pending().await,
                Does::Writes(text) => Ok(SummarizerAnswer::Text {
                    text: text.to_owned(),
                    end: TextEnd::Complete,
                }),
                Does::CutOff => Ok(SummarizerAnswer::Text {
                    text: "{\"session".to_owned(),
                    end: TextEnd::CutOff,
                }),
                Does::Says(narrative) => {
                    let session_intent = "to talk".to_owned();
                    Ok(SummarizerAnswer::Body(Body {
                        session_intent,
                        narrative,
                        ..Body::default()
                    }))
                }
                Does::Fails(error) => Err(error),
                Does::Panics => panic!("as it was told"),
            }
        })
    }
}
