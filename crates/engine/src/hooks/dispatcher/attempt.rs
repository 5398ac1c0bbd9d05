//! An attempt: reads the content of a batch, calls its hook, and maps the results to deliveries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use memoird_core::ids::Generation;
use memoird_core::outbox::Delivery;

use crate::hook::{HookCall, HookConfig, HookError, SessionContent};
use crate::hooks::Hooks;
use crate::machine::Stopwatch;

pub(super) struct Attempt {
    pub(super) hook: HookConfig,
    pub(super) results: Vec<(Delivery, AttemptOutcome)>,
}

/// Result of an attempt for one delivery.
///
/// `None` if its content had no room, or it is no longer pending. Does not count as an attempt.
pub(super) type AttemptOutcome = Option<Result<(), HookError>>;

pub(super) async fn attempt(
    hooks: Hooks,
    hook: HookConfig,
    batch: Vec<Delivery>,
    content_bytes: usize,
) -> Attempt {
    let watch = Stopwatch::start();
    let name = &hook.subscription.hook;
    let contents = hooks.shared.outbox.contents(name, &batch, content_bytes);
    let delivered = match contents.await {
        Err(error) => {
            let problem = HookError::later(format!("the content cannot be read: {error}"));
            vec![Some(Err(problem)); batch.len()]
        }
        Ok((contents, cancelled, _held)) => {
            deliver(&hooks, &hook, &batch, contents, &cancelled).await
        }
    };
    hooks
        .shared
        .stats
        .hooks
        .time(&hook.subscription.hook, watch.seconds());
    Attempt {
        hook,
        results: batch.into_iter().zip(delivered).collect(),
    }
}

/// Calls the hook.
async fn deliver(
    hooks: &Hooks,
    hook: &HookConfig,
    batch: &[Delivery],
    contents: Vec<SessionContent>,
    cancelled: &HashSet<Generation>,
) -> Vec<AttemptOutcome> {
    let at = hooks.shared.sessions.now().wall;
    let last_read = contents.last().map(|content| content.generation);
    let mut contents: HashMap<Generation, _> = contents
        .into_iter()
        .map(|content| (content.generation, Arc::new(content)))
        .collect();
    // A content missing after the last one that was read had no room. One missing before it no
    // longer exists.
    let read = batch
        .iter()
        .position(|d| Some(d.id.generation) == last_read)
        .map_or(0, |i| i + 1);
    let gone = || HookError::never("its content is gone: nothing is left to deliver");
    let mut outcomes: Vec<AttemptOutcome> = vec![None; batch.len()];
    let (mut calls, mut indices) = (Vec::new(), Vec::new());
    for (index, delivery) in batch.iter().enumerate() {
        match contents.remove(&delivery.id.generation) {
            Some(content) => {
                let (delivery, attempt) = (delivery.id.clone(), delivery.tries.saturating_add(1));
                calls.push(HookCall {
                    delivery,
                    attempt,
                    at,
                    content,
                });
                indices.push(index);
            }
            None if cancelled.contains(&delivery.id.generation) => {}
            None if index < read || last_read.is_none() => outcomes[index] = Some(Err(gone())),
            None => {}
        }
    }
    let limit = hook.timeout;
    let delivered = if calls.is_empty() {
        Vec::new()
    } else {
        match tokio::time::timeout(limit, hook.hook.deliver(calls)).await {
            Ok(answers) => answers,
            Err(_) => {
                let problem = format!("not done within {limit:?}");
                vec![Err(HookError::later(problem)); indices.len()]
            }
        }
    };
    let mut answers = delivered.into_iter();
    for index in indices {
        let missing = || Err(HookError::later("the hook gave no answer"));
        outcomes[index] = Some(answers.next().unwrap_or_else(missing));
    }
    outcomes
}
