//! How a summary is made, cheapest first: from the session's notes where they cover the span,
//! else by the summarizer, whose answer is validated.

use std::sync::Arc;

use memoird_core::compaction::check::{Facts, Rejection, check};
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::probe::Probe;
use memoird_core::compaction::transcript::{TranscriptTurn, transcript_turn};
use memoird_core::compaction::{Body, CompactionPolicy, Failure, Summary, acknowledgement};
use memoird_core::ids::TenantId;
use memoird_core::session::Snapshot;
use memoird_core::time::Timestamp;
use memoird_core::turn::{Role, Turn, estimate_tokens};
use memoird_formats::tokens::Scale;
use memoird_store::encoding;

use super::Compaction;
use super::attempt::{CompactionError, NewSummary};
use super::chunks::SummarizerCalls;
use crate::blocking::Executor;
use crate::machine::Stopwatch;
use crate::model_fault::{FaultKind, ModelFault};
use crate::sessions::SessionRef;
use crate::stats::CompactionResult;

/// Bytes that are quoted of the user's first words, where no summarizer states the intent.
const INTENT_BYTES_MAX: usize = 300;
/// Bytes of a span for each token that the summarizer takes at once: about twenty calls, so
/// that their number is never reached. The rest comes with the next summary.
const SPAN_BYTES_PER_TOKEN: u64 = 80;

/// Tokens that a summary may always have where turns leave without it, however short they are.
pub(super) const NEEDED_TOKENS: u64 = 512;

/// Bytes of the shortest span that is summarized where nothing leaves without: a summary of a
/// shorter one would be longer than the span.
const SPAN_BYTES_MIN: usize = 200;

/// What a summary is made of.
pub(super) struct Material {
    pub(super) turns: Arc<[TranscriptTurn]>,
    /// What windows go on showing, for the probe.
    shown: Vec<TranscriptTurn>,
    /// What was noted up to the end of the span.
    pub(super) notes: Notes,
    /// The last turn of the span: less than was wanted where there was too much to read.
    through_seq: u64,
}

impl Compaction {
    /// Makes a summary of a snapshot.
    pub(super) async fn summarize(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
    ) -> Result<NewSummary, CompactionError> {
        let material = Arc::new(self.read_material(session, snapshot).await?);
        let bytes: usize = material.turns.iter().map(|turn| turn.text.len()).sum();
        let is_too_short =
            snapshot.previous.is_none() && bytes < SPAN_BYTES_MIN && !snapshot.is_needed;
        if material.turns.is_empty() || is_too_short {
            return Err(CompactionError::Nothing);
        }
        let scale = snapshot.scale;
        let validator = Validator {
            snapshot: Arc::new(snapshot.clone()),
            material: Arc::clone(&material),
            scale: scale.and_then(|id| self.shared.models.current().scale(id)),
            policy: session.tenant.policy().compaction,
            now: self.sessions().now().wall,
            threads: self.shared.threads.clone(),
            tenant: session.tenant.id.clone(),
        };
        if material.notes.cover(&material.turns) {
            let body = body_of_notes(snapshot, &material);
            if let Ok(made) = validator.validate(body, "notes", false).await? {
                return Ok(made);
            }
        }
        let config = self.config();
        let Some(summarizer) = config.summarizer.clone() else {
            let problem = "compaction.summarizer is none".to_owned();
            return Err(failed("no_summarizer", problem));
        };
        let watch = Stopwatch::start();
        let calls = SummarizerCalls {
            compaction: self,
            key: &session.key,
            snapshot,
            summarizer: &summarizer,
        };
        let answer = tokio::time::timeout(config.timeout, calls.body(&material)).await;
        let stats = &self.shared.stats;
        stats.compaction_seconds.observe(watch.seconds());
        let Ok(body) = answer else {
            let problem = format!("no summary within {:?}", config.timeout);
            let fault = ModelFault::new(FaultKind::Later, problem);
            calls.note_provider(Some(&fault));
            return Err(failed("timeout", fault.problem));
        };
        let validated = validator
            .validate(body?, summarizer.name(), summarizer.is_remote())
            .await?;
        validated.map_err(|rejection| match rejection {
            // What computes here does not lie: so little cannot be said in fewer tokens.
            Rejection::LongerThanTheSpan if !summarizer.is_remote() => CompactionError::Nothing,
            rejection => {
                CompactionError::Failed(failure_of(&rejection), CompactionResult::Rejected)
            }
        })
    }

    /// Reads the turns to be summarized, as text.
    async fn read_material(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
    ) -> Result<Material, CompactionError> {
        let config = self.config();
        let summarizer = config.summarizer.as_ref();
        let tokens_max = summarizer.map_or(u64::MAX, |summarizer| summarizer.input_tokens_max());
        let bytes_max = tokens_max.saturating_mul(SPAN_BYTES_PER_TOKEN);
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let (turns, through_seq) = self.read_span(session, snapshot, bytes_max).await?;
        let shown = snapshot.shown.clone();
        let previous = snapshot.previous.as_ref();
        let mut notes = previous.map(|last| last.notes.clone()).unwrap_or_default();
        let decode = move || {
            let text = |(seq, content): &(u64, Arc<[u8]>)| {
                let turn = encoding::open(content)?;
                Some(transcript_turn(*seq, &turn, content.len()))
            };
            // A damaged turn cannot be read.
            let turns: Arc<[TranscriptTurn]> = turns.iter().filter_map(text).collect();
            turns.iter().for_each(|turn| notes.note(turn));
            let shown = shown
                .iter()
                .filter_map(|content| text(&(0, Arc::clone(content))))
                .collect();
            Material {
                turns,
                shown,
                notes,
                through_seq,
            }
        };
        let material = self
            .shared
            .threads
            .run(Some(&session.tenant.id), decode)
            .await;
        material.map_err(|_| panicked())
    }
}

fn panicked() -> CompactionError {
    failed("panicked", "a computation ended before its time".to_owned())
}

/// A failure that is no fault of the answer.
pub(super) fn failed(reason: &'static str, problem: String) -> CompactionError {
    CompactionError::Failed(Failure { reason, problem }, CompactionResult::Failed)
}

/// How a rejected answer is reported.
pub(super) fn failure_of(rejection: &Rejection) -> Failure {
    let problem = match rejection {
        Rejection::NotTheStructure { problem } => problem.clone(),
        Rejection::FieldMissing { field } => format!("{field} is empty"),
        Rejection::IdentifiersLost { lost, of } => {
            format!("{lost} of {of} identifiers of the last turns are lost")
        }
        Rejection::Empty
        | Rejection::CutOff
        | Rejection::LongerThanTheSpan
        | Rejection::OverBudget
        | Rejection::Refusal => "the summarizer's answer was rejected".to_owned(),
    };
    Failure {
        reason: rejection.reason(),
        problem,
    }
}

/// What notes say, as a summary: what the last summary said is carried on.
fn body_of_notes(snapshot: &Snapshot, material: &Material) -> Body {
    let mut body = snapshot
        .previous
        .as_ref()
        .map(|last| last.body.clone())
        .unwrap_or_default();
    if body.session_intent.is_empty() {
        let asked = material.turns.iter().find(|turn| turn.role == Role::User);
        let asked = asked.map_or("", |turn| turn.text.trim());
        body.session_intent = asked[..asked.floor_char_boundary(INTENT_BYTES_MAX)].to_owned();
    }
    if body.narrative.is_empty() {
        body.narrative = "What was decided stands in the notes, step by step.".to_owned();
    }
    body.decisions.clone_from(&material.notes.decisions);
    body.pending_questions
        .clone_from(&material.notes.pending_questions);
    body.files_touched.clone_from(&material.notes.files);
    body
}

/// Validates an answer, in the background.
#[derive(Clone)]
struct Validator {
    snapshot: Arc<Snapshot>,
    material: Arc<Material>,
    scale: Option<Scale>,
    policy: CompactionPolicy,
    now: Timestamp,
    threads: Executor,
    tenant: TenantId,
}

impl Validator {
    /// Makes a summary of an answer if it is valid, and probes what can still be found.
    async fn validate(
        &self,
        body: Body,
        by: &str,
        is_written: bool,
    ) -> Result<Result<NewSummary, Rejection>, CompactionError> {
        let validator = self.clone();
        let by = Box::from(by);
        let validate = move || validator.validate_now(body, by, is_written);
        let validated = self.threads.run(Some(&self.tenant), validate).await;
        validated.map_err(|_| panicked())
    }

    fn validate_now(
        &self,
        body: Body,
        by: Box<str>,
        is_written: bool,
    ) -> Result<NewSummary, Rejection> {
        let snapshot = &self.snapshot;
        let material = &self.material;
        let previous = snapshot.previous.as_ref();
        let turns = previous.map_or(0, |last| last.turns) + material.turns.len() as u64;
        let text: Arc<str> = body.text(turns, &material.notes).into();
        let summary = Summary {
            number: snapshot.number,
            first_seq: snapshot.span.first_seq,
            through_seq: material.through_seq,
            turns,
            made_at: self.now,
            by,
            body,
            notes: material.notes.clone(),
            text,
        };
        let turn_tokens = |turn: &Turn| self.scale.as_ref().map(|scale| scale.turn(turn));
        let summary_tokens = turn_tokens(&summary.turn(snapshot.mark));
        let overhead = turn_tokens(&acknowledgement()).unwrap_or(16);
        let tokens_after =
            summary_tokens.unwrap_or_else(|| self.text_tokens(&summary.text)) + overhead;
        let turns = material.turns.iter();
        let span_tokens: u64 = turns.map(|turn| self.tokens_of(turn)).sum();
        let previous_tokens = previous.map_or(0, |last| self.text_tokens(&last.text) + overhead);
        let tokens_before = span_tokens + previous_tokens;
        // What the mark costs makes no summary too long: it says nothing of the span.
        let marked = self.text_tokens(&Summary::marked_beginning(snapshot.mark));
        let mark_tokens = marked.saturating_sub(self.text_tokens(Summary::BEGINNING));
        let facts = Facts {
            span: &material.turns,
            previous: previous.map(|last| &**last),
            span_tokens: match snapshot.is_needed {
                // Better longer than they are than none. Who makes it may count otherwise.
                true => (tokens_before + mark_tokens)
                    .max(NEEDED_TOKENS)
                    .max(snapshot.tokens_max.saturating_mul(2)),
                false => tokens_before + mark_tokens,
            },
            tokens: tokens_after,
            room: snapshot.room,
            is_written,
        };
        check(&summary.body, &summary.text, &facts, &self.policy)?;
        let mut left: Vec<&str> = vec![&summary.text];
        left.extend(material.shown.iter().map(|turn| turn.text.as_str()));
        Ok(NewSummary {
            probe: Probe::of(&material.turns, &left),
            summary: Arc::new(summary),
            tokens_before,
            tokens_after,
            turn_tokens: summary_tokens,
        })
    }

    /// Windows have counted most turns.
    fn tokens_of(&self, turn: &TranscriptTurn) -> u64 {
        let counted = &self.snapshot.tokens;
        match counted.binary_search_by_key(&turn.seq, |(seq, _)| *seq) {
            Ok(at) => counted[at].1.into(),
            Err(_) => self.text_tokens(&turn.text),
        }
    }

    fn text_tokens(&self, text: &str) -> u64 {
        match &self.scale {
            Some(scale) => scale.text(text),
            None => estimate_tokens(text.len()).into(),
        }
    }
}
