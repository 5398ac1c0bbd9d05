//! What happens, as the demo's own watcher hears it.

use std::time::Duration;

use memoird_proto::v1::{Event, WatchEventsRequest, WatchEventsResponse};
use serde_json::Value;
use tokio::time::timeout;
use tonic::Streaming;

use super::stage::Stage;
use crate::cli::connect::Target;
use crate::cli::events::{self, Columns};
use crate::cli::exit::{CliError, Exit};

/// Longer than anything takes on a machine that is busy with other things.
const STEP_TIME_MAX: Duration = Duration::from_secs(30);

/// What is shown of what a watcher hears.
pub(super) const SHOWN: [&str; 6] = [
    "created",
    "expired",
    "evicted",
    "ended",
    "hook_delivered",
    "hook_failed",
];

/// The stream of events, and what it told so far: some dozens.
pub(super) struct Feed {
    target: Target,
    stage: Stage,
    stream: Streaming<WatchEventsResponse>,
    told: Vec<Event>,
}

impl Feed {
    /// Watches from now on.
    pub(super) async fn open(target: Target, stage: Stage) -> Result<Self, CliError> {
        let request = WatchEventsRequest::default();
        let stream = target.done(target.sessions().watch_events(request).await)?;
        Ok(Self {
            target,
            stage,
            stream,
            told: Vec::new(),
        })
    }

    /// Waits for an event, if it has not come yet, and shows what comes meanwhile of these
    /// kinds. Losing the wait loses no event.
    pub(super) async fn seek(
        &mut self,
        kinds: &[&str],
        is_it: impl Fn(&Event) -> bool,
    ) -> Result<Event, CliError> {
        if let Some(event) = self.told.iter().find(|event| is_it(event)) {
            return Ok(event.clone());
        }
        loop {
            let told = self.stream.message().await;
            let told = told.map_err(|status| self.target.explain(status))?;
            let problem = "the daemon ended the stream of events";
            let told = told.ok_or_else(|| CliError::failed(Exit::Unavailable, problem))?;
            let is_wanted = |event: &Event| kinds.contains(&&*event.kind);
            if told.event.as_ref().is_none_or(is_wanted) {
                self.stage.show(&events::line(&told, Columns::default()))?;
            }
            if let Some(event) = told.event {
                self.told.push(event.clone());
                if is_it(&event) {
                    return Ok(event);
                }
            }
        }
    }

    /// Waits for an event of this kind about this generation.
    pub(super) async fn until(&mut self, kind: &str, generation: &str) -> Result<Event, CliError> {
        let is_it = |event: &Event| event.kind == kind && event.generation == generation;
        in_time(kind, self.seek(&SHOWN, is_it)).await
    }

    /// Hears, and does not show, all up to the append of this turn.
    pub(super) async fn catch_up(&mut self, generation: &str, seq: u64) -> Result<(), CliError> {
        let is_it = |event: &Event| {
            let detail: Value = serde_json::from_str(&event.detail_json).unwrap_or_default();
            event.generation == generation && detail["last_seq"] == seq
        };
        let append = in_time("the word of an append", self.seek(&[], is_it));
        append.await.map(drop)
    }
}

/// Waits, but not for ever.
pub(super) async fn in_time<T>(
    what: &str,
    waiting: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let late = |_| {
        let within = STEP_TIME_MAX.as_secs();
        let problem = format!("{what} did not happen within {within} s");
        CliError::failed(Exit::Unavailable, problem)
    };
    timeout(STEP_TIME_MAX, waiting).await.map_err(late)?
}
