//! Making a summary: merges turns into the previous one, adds a model's part, and validates it.

use std::sync::Arc;

use memoird_core::compaction::check::{Rejection, Sizes, check_sizes, check_written};
use memoird_core::compaction::transcript::{TranscriptTurn, transcript_turn};
use memoird_core::compaction::{
    CoveredTurns, Failure, ModelSections, Summary, SummaryBody, SummaryBudget, SummaryCandidates,
    SummaryRoom, acknowledgement, merge,
};
use memoird_core::ids::TenantId;
use memoird_core::session::Snapshot;
use memoird_core::time::Timestamp;
use memoird_core::turn::{Turn, estimate_tokens};
use memoird_formats::tokens::Scale;
use memoird_store::encoding;

use super::Compaction;
use super::attempt::{CompactionError, NewSummary};
use super::chunks::SummarizerCalls;
use super::summarizer::Summarizer;
use crate::blocking::Executor;
use crate::machine::Stopwatch;
use crate::model_fault::{FaultKind, ModelFault};
use crate::sessions::SessionRef;
use crate::stats::CompactionResult;

/// Maximum bytes of a span per token of the summarizer's input limit.
///
/// Amounts to about twenty calls, well below the maximum. The next summary covers the rest.
const SPAN_BYTES_PER_TOKEN: u64 = 80;

/// Tokens allowed for any summary without which turns would be left out, however short they are.
const NEEDED_TOKENS: u64 = 512;
/// Initial estimate of bytes per token. Corrected when the summary is counted.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Maximum attempts to shorten a summary until it fits.
const FIT_ATTEMPTS_MAX: usize = 4;

/// Minimum bytes of a span to summarize if no turns would be left out without a summary.
///
/// A summary of a shorter span would be longer than the span.
const SPAN_BYTES_MIN: usize = 200;

pub(super) struct SummaryInput {
    pub(super) turns: Arc<[TranscriptTurn]>,
    /// Turns that windows continue to show.
    following: Arc<[TranscriptTurn]>,
    /// Last turn of the span. Earlier than requested if the span was too large to read.
    through_seq: u64,
}

impl Compaction {
    pub(super) async fn summarize(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
    ) -> Result<NewSummary, CompactionError> {
        let input = Arc::new(self.read_input(session, snapshot).await?);
        let bytes: usize = input.turns.iter().map(|turn| turn.text.len()).sum();
        let is_too_short =
            snapshot.previous.is_none() && bytes < SPAN_BYTES_MIN && !snapshot.is_needed;
        if input.turns.is_empty() || is_too_short {
            return Err(CompactionError::Nothing);
        }
        let scale = snapshot.scale;
        let validator = Validator {
            snapshot: Arc::new(snapshot.clone()),
            input: Arc::clone(&input),
            scale: scale.and_then(|id| self.shared.models.current().scale(id)),
            now: self.sessions().now().wall,
            threads: self.shared.threads.clone(),
            tenant: session.tenant.id.clone(),
        };
        let config = self.config();
        let Some(summarizer) = config.summarizer.clone() else {
            let problem = "compaction.summarizer is none".to_owned();
            return Err(failed("no_summarizer", problem));
        };
        // If even the plain merge is longer than the span, do not pay a model for it.
        if summarizer.is_remote() && !snapshot.is_needed {
            let merged = validator.validate(None, summarizer.name()).await?;
            if matches!(merged, Err(Rejection::LongerThanTheSpan)) {
                return Err(CompactionError::Nothing);
            }
        }
        let watch = Stopwatch::start();
        let written = if summarizer.is_remote() {
            Some(
                self.write_summary(session, snapshot, &summarizer, &input)
                    .await?,
            )
        } else {
            None
        };
        let validated = validator.validate(written, summarizer.name()).await?;
        self.shared
            .stats
            .compaction_seconds
            .observe(watch.seconds());
        validated.map_err(|rejection| match rejection {
            Rejection::LongerThanTheSpan if !summarizer.is_remote() => CompactionError::Nothing,
            rejection => {
                CompactionError::Failed(failure_of(&rejection), CompactionResult::Rejected)
            }
        })
    }

    async fn write_summary(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
        summarizer: &Arc<dyn Summarizer>,
        input: &SummaryInput,
    ) -> Result<ModelSections, CompactionError> {
        let calls = SummarizerCalls {
            compaction: self,
            key: &session.key,
            snapshot,
            summarizer,
        };
        let timeout = self.config().timeout;
        let Ok(written) = tokio::time::timeout(timeout, calls.request_summary(input)).await else {
            let problem = format!("no summary within {timeout:?}");
            let fault = ModelFault::new(FaultKind::Later, problem);
            calls.note_provider(Some(&fault));
            return Err(failed("timeout", fault.problem));
        };
        written
    }

    /// Reads the turns to summarize, as text.
    async fn read_input(
        &self,
        session: &SessionRef,
        snapshot: &Snapshot,
    ) -> Result<SummaryInput, CompactionError> {
        let config = self.config();
        let summarizer = config.summarizer.as_ref();
        let tokens_max = summarizer.map_or(u64::MAX, |summarizer| summarizer.input_tokens_max());
        let bytes_max =
            usize::try_from(tokens_max.saturating_mul(SPAN_BYTES_PER_TOKEN)).unwrap_or(usize::MAX);
        let (turns, through_seq) = self.read_span(session, snapshot, bytes_max).await?;
        let shown = snapshot.shown.clone();
        let decode = move || {
            let text = |(seq, content): &(u64, Arc<[u8]>)| {
                let turn = encoding::open(content)?;
                Some(transcript_turn(*seq, &turn, content.len()))
            };
            // Damaged turns are skipped.
            let turns: Arc<[TranscriptTurn]> = turns.iter().filter_map(text).collect();
            SummaryInput {
                turns,
                following: shown.iter().filter_map(text).collect(),
                through_seq,
            }
        };
        let input = self
            .shared
            .threads
            .run(Some(&session.tenant.id), decode)
            .await;
        input.map_err(|_| panicked())
    }
}

fn panicked() -> CompactionError {
    failed("panicked", "a computation ended before its time".to_owned())
}

/// A failure that is not caused by the content of a reply.
pub(super) fn failed(reason: &'static str, problem: String) -> CompactionError {
    CompactionError::Failed(Failure { reason, problem }, CompactionResult::Failed)
}

pub(super) fn failure_of(rejection: &Rejection) -> Failure {
    let problem = match rejection {
        Rejection::NotTheStructure { problem } => problem.clone(),
        Rejection::FieldMissing { field } => format!("{field} is empty"),
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

/// Divides the tokens of a summary between the user's requests and the other sections.
///
/// The requests get at most half of them, or all beyond the maximum of the other sections. The
/// other sections get what the requests leave.
fn room_within(
    merged: &SummaryCandidates,
    budget: SummaryBudget,
    tokens_max: u64,
    bytes_per_token: f64,
) -> SummaryRoom {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of bytes"
    )]
    let bytes = |tokens: u64| (tokens as f64 * bytes_per_token) as usize;
    let requests_max = (tokens_max / 2).max(tokens_max.saturating_sub(budget.summary));
    let requests = SummaryBudget {
        summary: 0,
        ..budget
    }
    .within(requests_max);
    let room = SummaryRoom {
        summary: 0,
        opening: bytes(requests.opening),
        user_turns: bytes(requests.user_turns),
    };
    let turns = merged.fit(room).user_turns;
    let used: usize = turns.iter().map(|turn| turn.text.len()).sum();
    SummaryRoom {
        summary: bytes(budget.summary).min(bytes(tokens_max).saturating_sub(used)),
        ..room
    }
}

/// Builds and validates a summary, on a background thread.
#[derive(Clone)]
struct Validator {
    snapshot: Arc<Snapshot>,
    input: Arc<SummaryInput>,
    scale: Option<Scale>,
    now: Timestamp,
    threads: Executor,
    tenant: TenantId,
}

impl Validator {
    async fn validate(
        &self,
        written: Option<ModelSections>,
        by: &str,
    ) -> Result<Result<NewSummary, Rejection>, CompactionError> {
        let validator = self.clone();
        let by = Box::from(by);
        let validate = move || validator.validate_now(written.as_ref(), by);
        let validated = self.threads.run(Some(&self.tenant), validate).await;
        validated.map_err(|_| panicked())
    }

    fn validate_now(
        &self,
        written: Option<&ModelSections>,
        by: Box<str>,
    ) -> Result<NewSummary, Rejection> {
        let snapshot = &self.snapshot;
        let input = &self.input;
        let previous = snapshot.previous.as_deref();
        let turns = previous.map_or(0, |last| last.turns) + input.turns.len() as u64;
        if let Some(written) = written {
            check_written(written, turns)?;
        }
        let body = previous.map(|last| &last.body);
        let mut merged = merge(body, &input.turns, &input.following);
        if let Some(written) = written {
            merged = merged.with_written(written, body);
        }
        let covered = CoveredTurns {
            through_seq: input.through_seq,
            turns,
        };
        let spans = input.turns.iter().map(|turn| self.tokens_of(turn));
        let span_tokens: u64 = spans.sum();
        let overhead = self.turn_tokens(&acknowledgement()).unwrap_or(16);
        let previous_tokens = previous.map_or(0, |last| self.text_tokens(&last.text) + overhead);
        let tokens_before = span_tokens + previous_tokens;
        let body = self.fit_to_budget(&merged, covered, tokens_before);
        let summary = Summary {
            number: snapshot.number,
            first_seq: snapshot.span.first_seq,
            through_seq: input.through_seq,
            turns,
            made_at: self.now,
            by,
            text: body.text(covered).into(),
            body,
        };
        let turn_tokens = self.turn_tokens(&summary.turn(snapshot.nonce));
        let tokens_after =
            turn_tokens.unwrap_or_else(|| self.text_tokens(&summary.text)) + overhead;
        // The nonce must not make a summary too long.
        let marked = self.text_tokens(&Summary::marked_beginning(snapshot.nonce));
        let mark_tokens = marked.saturating_sub(self.text_tokens(Summary::BEGINNING));
        let replaced = if snapshot.is_needed {
            // Turns would be left out without it, so it may be longer than the turns.
            (tokens_before + mark_tokens)
                .max(NEEDED_TOKENS)
                .max(snapshot.budget.total().saturating_mul(2))
        } else {
            tokens_before + mark_tokens
        };
        check_sizes(Sizes {
            summary: tokens_after,
            replaced,
            room: snapshot.room,
        })?;
        Ok(NewSummary {
            summary: Arc::new(summary),
            tokens_before,
            tokens_after,
            turn_tokens,
        })
    }

    /// Fits the sections into the summary's budget.
    ///
    /// If no turns would be left out without a summary, it must be shorter than its input.
    fn fit_to_budget(
        &self,
        merged: &SummaryCandidates,
        covered: CoveredTurns,
        tokens_before: u64,
    ) -> SummaryBody {
        let budget = self.snapshot.budget;
        let mut tokens_max = budget.total();
        if !self.snapshot.is_needed {
            let overhead = self.text_tokens(&SummaryBody::default().text(covered));
            let most = (tokens_before / 4 * 3).saturating_sub(overhead);
            tokens_max = tokens_max.min(most.max(tokens_before / 4));
        }
        let mut bytes_per_token = BYTES_PER_TOKEN;
        let mut body = SummaryBody::default();
        for _ in 0..FIT_ATTEMPTS_MAX {
            body = merged.fit(room_within(merged, budget, tokens_max, bytes_per_token));
            let text = body.text(covered);
            let counted = text.len() as f64 / self.text_tokens(&text).max(1) as f64;
            if counted * 1.02 >= bytes_per_token {
                break;
            }
            bytes_per_token = counted;
        }
        body
    }

    fn turn_tokens(&self, turn: &Turn) -> Option<u64> {
        self.scale.as_ref().map(|scale| scale.turn(turn))
    }

    /// Reuses the counts of windows, which cover most turns.
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
