//! Asking the summarizer: at once, or in pieces where the span is more than it takes, which
//! are then summarized together, as deep as it needs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use memoird_core::breaker::BreakerPolicy;
use memoird_core::compaction::check::Rejection;
use memoird_core::compaction::prompt::parse_answer;
use memoird_core::compaction::spoken::Spoken;
use memoird_core::compaction::{Body, Failure};
use memoird_core::session::Snapshot;
use memoird_core::turn::{Role, estimate_tokens};
use tokio::task::JoinSet;

use super::attempt::Ended;
use super::ladder::{Material, rejected};
use super::stats::Outcome;
use crate::cell::SessionCell;
use crate::engine::{Blocking, Engine};
use crate::summarizer::{Answer, Stop, SummarizeError, Summarizer, SummaryAsk};

/// Calls for one summary, and how often a call that is too long is halved.
const CALLS_MAX: u32 = 64;
const DEPTH_MAX: u32 = 6;
/// Tokens of a piece, at least.
const PIECE_TOKENS_MIN: u64 = 500;

/// Asks a summarizer for the summary of a snapshot.
pub(super) struct Summarizing<'a> {
    pub(super) engine: &'a Engine,
    pub(super) cell: &'a SessionCell,
    pub(super) snapshot: &'a Snapshot,
    pub(super) summarizer: &'a Arc<dyn Summarizer>,
}

/// What is left of the calls.
struct Left {
    calls: u32,
    depth: u32,
    tokens_max: u64,
}

/// Why there is no body.
enum Missing {
    Ended(Ended),
    TooLong(String),
}

type Bodies<'a> = Pin<Box<dyn Future<Output = Result<Body, Missing>> + Send + 'a>>;

impl Summarizing<'_> {
    /// The summary of this material.
    pub(super) async fn body(&self, material: &Material) -> Result<Body, Ended> {
        let tokens_max = self.summarizer.input_tokens_max();
        let mut left = Left {
            calls: CALLS_MAX,
            depth: DEPTH_MAX,
            tokens_max,
        };
        let body = self
            .whole(Arc::clone(&material.turns), material, &mut left)
            .await;
        body.map_err(|missing| match missing {
            Missing::Ended(ended) => ended,
            Missing::TooLong(problem) => failed("too_long", problem),
        })
    }

    /// Of these turns, which may be too many for one call.
    fn whole<'a>(
        &'a self,
        turns: Arc<[Spoken]>,
        material: &'a Material,
        left: &'a mut Left,
    ) -> Bodies<'a> {
        Box::pin(async move {
            let previous = self.snapshot.previous.as_ref();
            let said = previous.map_or(0, |last| tokens(&last.text));
            let room = left.tokens_max.saturating_sub(said).max(PIECE_TOKENS_MIN);
            let pieces = split(&turns, room);
            if pieces.len() == 1 {
                let ask = self.ask(material, turns.clone(), Vec::new(), true);
                match self.call(ask, left).await {
                    Err(Missing::TooLong(problem)) => {
                        return self.smaller(turns, material, left, problem).await;
                    }
                    answered => return answered,
                }
            }
            let mut bodies = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let mut ask = self.ask(material, piece.into(), Vec::new(), false);
                // So that several of them fit into one call.
                ask.tokens_max = ask
                    .tokens_max
                    .min((left.tokens_max / 4).max(PIECE_TOKENS_MIN));
                match self.call(ask, left).await {
                    Err(Missing::TooLong(problem)) => {
                        return self.smaller(turns, material, left, problem).await;
                    }
                    answered => bodies.push(answered?),
                }
            }
            self.merge(bodies, material, left).await
        })
    }

    /// The same in smaller pieces.
    async fn smaller(
        &self,
        turns: Arc<[Spoken]>,
        material: &Material,
        left: &mut Left,
        problem: String,
    ) -> Result<Body, Missing> {
        if left.depth == 0 {
            return Err(Missing::TooLong(problem));
        }
        left.depth -= 1;
        let said: u64 = turns.iter().map(|turn| tokens(&turn.text)).sum();
        left.tokens_max = (left.tokens_max.min(said.saturating_mul(2)) / 2).max(PIECE_TOKENS_MIN);
        self.whole(turns, material, left).await
    }

    /// One summary of the summaries of pieces.
    async fn merge(
        &self,
        mut bodies: Vec<Body>,
        material: &Material,
        left: &mut Left,
    ) -> Result<Body, Missing> {
        let said = self
            .snapshot
            .previous
            .as_ref()
            .map_or(0, |last| tokens(&last.text));
        let room = left.tokens_max.saturating_sub(said).max(PIECE_TOKENS_MIN);
        while bodies.len() > 1 {
            let groups = grouped(bodies, room);
            let is_last = groups.len() == 1;
            let mut merged = Vec::with_capacity(groups.len());
            for group in groups {
                let ask = self.ask(material, Arc::from([]), group, is_last);
                merged.push(self.call(ask, left).await?);
            }
            bodies = merged;
        }
        bodies.pop().ok_or(Missing::Ended(Ended::Nothing))
    }

    fn ask(
        &self,
        material: &Material,
        turns: Arc<[Spoken]>,
        pieces: Vec<Body>,
        is_last: bool,
    ) -> SummaryAsk {
        let key = &self.cell.key;
        let tokens_max = self.tokens_max(&turns);
        SummaryAsk {
            tenant: key.tenant.clone(),
            session: key.session.clone(),
            generation: self.snapshot.generation,
            // Once is enough: where all comes together.
            previous: self.snapshot.previous.clone().filter(|_| is_last),
            pieces,
            turns,
            notes: material.notes.clone(),
            tokens_max,
        }
    }

    /// Tokens of a summary of these turns. What computes here writes as much as it may, so it
    /// is told to write less than it was given; a model would only be cut off.
    fn tokens_max(&self, turns: &[Spoken]) -> u64 {
        let most = self.snapshot.tokens_max;
        if self.summarizer.is_remote() {
            return most;
        }
        let said: u64 = turns.iter().map(|turn| tokens(&turn.text)).sum();
        let before = self
            .snapshot
            .previous
            .as_ref()
            .map_or(0, |last| tokens(&last.text));
        most.min(before + said / 4 * 3)
    }

    async fn call(&self, ask: SummaryAsk, left: &mut Left) -> Result<Body, Missing> {
        if left.calls == 0 {
            let problem = format!("the span takes more than {CALLS_MAX} calls");
            return Err(Missing::TooLong(problem));
        }
        left.calls -= 1;
        if !self.may_call() {
            return Err(Missing::Ended(Ended::ProviderDown));
        }
        let Some(answered) = self.in_a_task(Arc::new(ask)).await else {
            self.note_provider(false);
            let problem = "the summarizer panicked".to_owned();
            return Err(Missing::Ended(failed("panicked", problem)));
        };
        self.note_provider(!matches!(
            answered,
            Err(SummarizeError::Later { .. } | SummarizeError::Misconfigured { .. })
        ));
        let rejected =
            |why: Rejection| Missing::Ended(Ended::Failed(rejected(&why), Outcome::Rejected));
        match answered {
            Ok(Answer::Body(body)) => Ok(body),
            Ok(Answer::Text {
                stop: Stop::CutOff, ..
            }) => Err(rejected(Rejection::CutOff)),
            Ok(Answer::Text {
                stop: Stop::Refused,
                ..
            }) => Err(rejected(Rejection::Refusal)),
            Ok(Answer::Text {
                text,
                stop: Stop::Complete,
            }) => parse_answer(&text).map_err(rejected),
            Err(SummarizeError::TooLong { problem }) => Err(Missing::TooLong(problem)),
            Err(error) => {
                let reason = match error {
                    SummarizeError::Later { .. } => "provider_failed",
                    SummarizeError::Misconfigured { .. } => "provider_misconfigured",
                    _ => "provider_refused",
                };
                Err(Missing::Ended(failed(reason, error.to_string())))
            }
        }
    }

    /// Asks in a task of its own, so that a panic ends nothing else: `None` for one. What
    /// computes in this process does so where it holds up nobody.
    async fn in_a_task(&self, ask: Arc<SummaryAsk>) -> Option<Result<Answer, SummarizeError>> {
        let summarizer = Arc::clone(self.summarizer);
        let may_hold_up = summarizer.is_remote() || self.engine.shared.blocking == Blocking::Inline;
        // Dropped with this call, and the task with it.
        let mut task = JoinSet::new();
        match may_hold_up {
            true => task.spawn(async move { summarizer.summarize(ask).await }),
            false => {
                let handle = tokio::runtime::Handle::current();
                task.spawn_blocking(move || handle.block_on(summarizer.summarize(ask)))
            }
        };
        task.join_next().await?.ok()
    }

    fn may_call(&self) -> bool {
        let shared = &self.engine.shared;
        !self.summarizer.is_remote()
            || shared
                .compactions
                .breaker()
                .admits(shared.machine.now().steady, &self.policy())
    }

    /// Notes whether the provider is there.
    pub(super) fn note_provider(&self, is_there: bool) {
        if !self.summarizer.is_remote() {
            return;
        }
        let shared = &self.engine.shared;
        let mut breaker = shared.compactions.breaker();
        match is_there {
            true => breaker.succeeded(),
            false => breaker.failed(shared.machine.now().steady, &self.policy()),
        }
    }

    fn policy(&self) -> BreakerPolicy {
        self.engine.provider_policy()
    }
}

impl Engine {
    /// When calls of a remote summarizer stop for all sessions.
    pub(super) fn provider_policy(&self) -> BreakerPolicy {
        let config = self.shared.config.load();
        config.compaction.provider_breaker.policy()
    }
}

fn failed(reason: &'static str, problem: String) -> Ended {
    Ended::Failed(Failure { reason, problem }, Outcome::Failed)
}

fn tokens(text: &str) -> u64 {
    estimate_tokens(text.len()).into()
}

/// Pieces of at most so many tokens each: of whole exchanges, else of whole turns, and where
/// one turn is too long of parts of it.
fn split(turns: &[Spoken], tokens_max: u64) -> Vec<Vec<Spoken>> {
    let (mut pieces, mut piece, mut used) = (Vec::new(), Vec::new(), 0);
    let mut exchange_at = 0;
    for turn in turns.iter().flat_map(|turn| short(turn, tokens_max)) {
        let weight = tokens(&turn.text) + 8;
        if turn.role == Role::User {
            exchange_at = piece.len();
        }
        if used + weight > tokens_max && !piece.is_empty() {
            let rest = match exchange_at {
                0 => Vec::new(),
                place => piece.split_off(place),
            };
            pieces.push(std::mem::replace(&mut piece, rest));
            used = piece
                .iter()
                .map(|turn: &Spoken| tokens(&turn.text) + 8)
                .sum();
            exchange_at = 0;
        }
        used += weight;
        piece.push(turn);
    }
    pieces.push(piece);
    pieces
}

/// A turn in parts of at most so many tokens.
fn short(turn: &Spoken, tokens_max: u64) -> Vec<Spoken> {
    if tokens(&turn.text) + 8 <= tokens_max {
        return vec![turn.clone()];
    }
    let bytes = usize::try_from(tokens_max.saturating_mul(2))
        .unwrap_or(usize::MAX)
        .max(64);
    let (mut parts, mut rest) = (Vec::new(), turn.text.as_str());
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(bytes.min(rest.len())));
        parts.push(Spoken {
            text: part.to_owned(),
            ..turn.clone()
        });
        rest = after;
    }
    parts
}

/// Groups of bodies, each of at most so many tokens but of two at least.
fn grouped(bodies: Vec<Body>, tokens_max: u64) -> Vec<Vec<Body>> {
    let weigh = |body: &Body| tokens(&body.text(0, &Default::default()));
    let (mut groups, mut group, mut used): (Vec<Vec<Body>>, Vec<Body>, u64) =
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
