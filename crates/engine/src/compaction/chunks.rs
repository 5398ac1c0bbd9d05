//! Calls to the summarizer, in chunks if the span exceeds its input limit.
//!
//! The summaries of chunks are then summarized together, in as many rounds as needed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::compaction::check::Rejection;
use memoird_core::compaction::prompt::{as_json, parse_answer};
use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{CoveredTurns, ModelSections, Summary, SummaryRoom, merge};
use memoird_core::ids::SessionKey;
use memoird_core::session::Snapshot;
use memoird_core::turn::{Role, estimate_tokens};
use tokio::task::JoinSet;

use super::Compaction;
use super::attempt::CompactionError;
use super::summarize::{SummaryInput, failed, failure_of};
use super::summarizer::{Summarizer, SummarizerReply, SummaryRequest, TextEnd};
use crate::model_fault::{FaultKind, ModelFault};
use crate::stats::CompactionResult;

/// Maximum calls per summary, and how often the chunk size may be halved.
const CALLS_MAX: u32 = 64;
const DEPTH_MAX: u32 = 6;
const CHUNK_TOKENS_MIN: u64 = 500;
/// Bytes per token when shortening a summary for a call.
const BYTES_PER_TOKEN: u64 = 4;

/// Requests the summary of a snapshot from a summarizer.
pub(super) struct SummarizerCalls<'a> {
    pub(super) compaction: &'a Compaction,
    pub(super) key: &'a SessionKey,
    pub(super) snapshot: &'a Snapshot,
    pub(super) summarizer: &'a Arc<dyn Summarizer>,
}

/// Remaining budget of calls, halvings and tokens per call.
struct CallBudget {
    calls: u32,
    depth: u32,
    tokens_max: u64,
}

type SummaryFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ModelSections, CompactionError>> + Send + 'a>>;

/// Reason of a failure if a call had too much input.
const TOO_LONG: &str = "too_long";

fn is_too_long(error: &CompactionError) -> bool {
    matches!(error, CompactionError::Failed(failure, _) if failure.reason == TOO_LONG)
}

impl SummarizerCalls<'_> {
    pub(super) async fn request_summary(
        &self,
        input: &SummaryInput,
    ) -> Result<ModelSections, CompactionError> {
        let tokens_max = self.summarizer.input_tokens_max();
        let mut budget = CallBudget {
            calls: CALLS_MAX,
            depth: DEPTH_MAX,
            tokens_max,
        };
        self.summarize_turns(Arc::clone(&input.turns), &mut budget)
            .await
    }

    /// Summarizes these turns, in chunks if they exceed one call.
    fn summarize_turns<'a>(
        &'a self,
        turns: Arc<[TranscriptTurn]>,
        budget: &'a mut CallBudget,
    ) -> SummaryFuture<'a> {
        Box::pin(async move {
            let (previous, room) = self.previous(budget);
            if chunk_tokens(&turns) <= room {
                let request = self.request(turns.clone(), Vec::new(), previous);
                match self.call(request, budget).await {
                    Err(error) if is_too_long(&error) => {
                        let refused = chunk_tokens(&turns);
                        return self.summarize_smaller(turns, refused, budget, error).await;
                    }
                    answered => return answered,
                }
            }
            let mut bodies = Vec::new();
            for chunk in split(&turns, budget.tokens_max.max(CHUNK_TOKENS_MIN)) {
                let refused = chunk_tokens(&chunk);
                let mut request = self.request(chunk.into(), Vec::new(), None);
                // Limit the size, so that several of them fit into one call.
                request.tokens_max = request
                    .tokens_max
                    .min((budget.tokens_max / 4).max(CHUNK_TOKENS_MIN));
                match self.call(request, budget).await {
                    Err(error) if is_too_long(&error) => {
                        return self.summarize_smaller(turns, refused, budget, error).await;
                    }
                    answered => bodies.push(answered?),
                }
            }
            self.merge(bodies, budget).await
        })
    }

    /// Summarizes again, in smaller chunks than the rejected one of `refused` tokens.
    ///
    /// Fails if chunks cannot become smaller.
    async fn summarize_smaller(
        &self,
        turns: Arc<[TranscriptTurn]>,
        refused: u64,
        budget: &mut CallBudget,
        error: CompactionError,
    ) -> Result<ModelSections, CompactionError> {
        if budget.depth == 0 || refused <= CHUNK_TOKENS_MIN {
            return Err(error);
        }
        budget.depth -= 1;
        budget.tokens_max = (refused / 2).max(CHUNK_TOKENS_MIN);
        self.summarize_turns(turns, budget).await
    }

    async fn merge(
        &self,
        mut bodies: Vec<ModelSections>,
        budget: &mut CallBudget,
    ) -> Result<ModelSections, CompactionError> {
        let (previous, room) = self.previous(budget);
        while bodies.len() > 1 {
            let groups = grouped(bodies, room);
            let is_last = groups.len() == 1;
            let mut merged = Vec::with_capacity(groups.len());
            for group in groups {
                // Include the previous summary only in the final merge.
                let previous = previous.clone().filter(|_| is_last);
                let request = self.request(Arc::from([]), group, previous);
                merged.push(self.call(request, budget).await?);
            }
            bodies = merged;
        }
        bodies.pop().ok_or(CompactionError::Nothing)
    }

    /// The previous summary for one call, and the tokens left for turns or chunks.
    ///
    /// A summary made for a large window may exceed a small model's input limit. It is shortened to
    /// half of that limit. The merge restores what is left out here.
    fn previous(&self, budget: &CallBudget) -> (Option<Arc<Summary>>, u64) {
        let previous = self.snapshot.previous.as_ref().map(|last| {
            let tokens_max = budget.tokens_max / 2;
            if tokens(&last.text) <= tokens_max {
                return Arc::clone(last);
            }
            Arc::new(shortened(last, tokens_max))
        });
        let used = previous.as_ref().map_or(0, |last| tokens(&last.text));
        let room = budget.tokens_max.saturating_sub(used).max(CHUNK_TOKENS_MIN);
        (previous, room)
    }

    fn request(
        &self,
        turns: Arc<[TranscriptTurn]>,
        chunks: Vec<ModelSections>,
        previous: Option<Arc<Summary>>,
    ) -> SummaryRequest {
        let (key, snapshot) = (self.key, self.snapshot);
        // The merge with the previous summary uses the other half.
        let tokens_max = snapshot.budget.summary / 2;
        let sessions = self.compaction.sessions();
        let nonce = sessions.prompt_nonce(snapshot.generation, snapshot.span.through_seq);
        SummaryRequest {
            tenant: key.tenant.clone(),
            session: key.session.clone(),
            generation: snapshot.generation,
            previous,
            chunks,
            turns,
            tokens_max,
            nonce,
        }
    }

    async fn call(
        &self,
        request: SummaryRequest,
        budget: &mut CallBudget,
    ) -> Result<ModelSections, CompactionError> {
        if budget.calls == 0 {
            let problem = format!("the span takes more than {CALLS_MAX} calls");
            return Err(failed(TOO_LONG, problem));
        }
        budget.calls -= 1;
        if !self.may_call() {
            return Err(CompactionError::ProviderDown);
        }
        let Some(answered) = self.call_in_task(Arc::new(request)).await else {
            let fault = ModelFault::new(FaultKind::Later, "the summarizer panicked");
            self.note_provider(Some(&fault));
            return Err(failed("panicked", fault.problem));
        };
        self.note_provider(answered.as_ref().err());
        let rejected =
            |why: Rejection| CompactionError::Failed(failure_of(&why), CompactionResult::Rejected);
        match answered {
            Ok(SummarizerReply::Written(written)) => Ok(written),
            Ok(SummarizerReply::Text {
                end: TextEnd::CutOff,
                ..
            }) => Err(rejected(Rejection::CutOff)),
            Ok(SummarizerReply::Text {
                end: TextEnd::Refused,
                ..
            }) => Err(rejected(Rejection::Refusal)),
            Ok(SummarizerReply::Text {
                text,
                end: TextEnd::Complete,
            }) => parse_answer(&text).map_err(rejected),
            Err(fault) => {
                let reason = match fault.kind {
                    FaultKind::TooLong => TOO_LONG,
                    FaultKind::Later | FaultKind::Unusable => "provider_failed",
                    FaultKind::Misconfigured => "provider_misconfigured",
                    FaultKind::Refused => "provider_refused",
                };
                Err(failed(reason, fault.problem))
            }
        }
    }

    /// Calls the summarizer in a separate task, to contain panics. Returns `None` if it panicked.
    async fn call_in_task(
        &self,
        request: Arc<SummaryRequest>,
    ) -> Option<Result<SummarizerReply, ModelFault>> {
        let summarizer = Arc::clone(self.summarizer);
        // Dropping the set aborts the task.
        let mut task = JoinSet::new();
        task.spawn(async move { summarizer.summarize(request).await });
        task.join_next().await?.ok()
    }

    fn may_call(&self) -> bool {
        let compaction = self.compaction;
        let now = compaction.sessions().now().steady;
        let policy = compaction.provider_policy();
        !self.summarizer.is_remote()
            || compaction
                .shared
                .provider_breaker
                .lock()
                .admits(now, &policy)
    }

    pub(super) fn note_provider(&self, fault: Option<&ModelFault>) {
        if !self.summarizer.is_remote() {
            return;
        }
        let now = self.compaction.sessions().now().steady;
        let policy = self.compaction.provider_policy();
        let mut breaker = self.compaction.shared.provider_breaker.lock();
        match fault {
            None => breaker.succeeded(),
            Some(fault) => fault.note(&mut breaker, now, &policy),
        }
    }
}

/// Shortens a summary to about `tokens_max` tokens, a quarter of them for the user's requests.
fn shortened(summary: &Summary, tokens_max: u64) -> Summary {
    let bytes = usize::try_from(tokens_max.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX);
    let room = SummaryRoom {
        summary: bytes / 2,
        opening: bytes / 8,
        user_turns: bytes / 8,
    };
    let body = merge(Some(&summary.body), &[], &[]).fit(room);
    let covered = CoveredTurns {
        through_seq: summary.through_seq,
        turns: summary.turns,
    };
    Summary {
        text: body.text(covered).into(),
        body,
        ..summary.clone()
    }
}

fn tokens(text: &str) -> u64 {
    estimate_tokens(text.len()).into()
}

/// Tokens of a chunk, as counted by [`split`].
fn chunk_tokens(turns: &[TranscriptTurn]) -> u64 {
    turns.iter().map(|turn| tokens(&turn.text) + 8).sum()
}

/// Splits turns into chunks of at most `tokens_max` tokens.
///
/// Splits between exchanges if possible, else between turns, and within a turn that is too long.
fn split(turns: &[TranscriptTurn], tokens_max: u64) -> Vec<Vec<TranscriptTurn>> {
    let (mut chunks, mut chunk, mut used) = (Vec::new(), Vec::new(), 0);
    let mut exchange_at = 0;
    for turn in turns.iter().flat_map(|turn| short(turn, tokens_max)) {
        let weight = tokens(&turn.text) + 8;
        if turn.role == Role::User {
            exchange_at = chunk.len();
        }
        if used + weight > tokens_max && !chunk.is_empty() {
            let rest = match exchange_at {
                0 => Vec::new(),
                place => chunk.split_off(place),
            };
            chunks.push(std::mem::replace(&mut chunk, rest));
            used = chunk_tokens(&chunk);
            exchange_at = 0;
        }
        used += weight;
        chunk.push(turn);
    }
    chunks.push(chunk);
    chunks
}

fn short(turn: &TranscriptTurn, tokens_max: u64) -> Vec<TranscriptTurn> {
    if tokens(&turn.text) + 8 <= tokens_max {
        return vec![turn.clone()];
    }
    let bytes = usize::try_from(tokens_max.saturating_mul(2))
        .unwrap_or(usize::MAX)
        .max(64);
    let (mut parts, mut rest) = (Vec::new(), turn.text.as_str());
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(bytes.min(rest.len())));
        parts.push(turn.with_text(part));
        rest = after;
    }
    parts
}

/// Groups bodies so that each group has at most `tokens_max` tokens, but at least two bodies.
fn grouped(bodies: Vec<ModelSections>, tokens_max: u64) -> Vec<Vec<ModelSections>> {
    let weigh = |body: &ModelSections| tokens(&as_json(body).to_string());
    let (mut groups, mut group, mut used): (Vec<Vec<ModelSections>>, Vec<ModelSections>, u64) =
        (Vec::new(), Vec::new(), 0);
    for body in bodies {
        let weight = weigh(&body);
        if used + weight > tokens_max && group.len() >= 2 {
            groups.push(std::mem::take(&mut group));
            used = 0;
        }
        used += weight;
        group.push(body);
    }
    match groups.last_mut() {
        Some(last) if group.len() == 1 => last.append(&mut group),
        _ => groups.push(group),
    }
    groups
}
