//! Plays one conversation into one session, strictly in order, each message once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memoird_proto::v1::{AppendRequest, AppendResponse, MessageFormat};
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic_types::StatusExt;

use super::input::Conversation;
use super::retry::Patience;
use crate::cli::clock;
use crate::cli::connect::{Sessions, Target};
use crate::cli::exit::CliError;
use crate::cli::progress::Progress;

/// A call that takes longer is tried again: its key makes that harmless.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// The daemon remembers the newest 1,024 keys of a session. Of so many that follow
/// each other, every thousandth is at least one.
const PROBE_EVERY: usize = 1_000;

/// What all conversations of a replay share.
pub(super) struct Player {
    /// The daemon.
    pub(super) target: Target,
    /// The format of the messages.
    pub(super) format: MessageFormat,
    /// Put before each conversation's id.
    pub(super) session_prefix: String,
    /// How long a message is tried.
    pub(super) retry_for: Duration,
    /// What was done.
    pub(super) tally: Tally,
    /// Shows it.
    pub(super) progress: Progress,
}

/// Counts of what was done, as it goes on.
#[derive(Default)]
pub(super) struct Tally(Mutex<Counts>);

/// The counts at one instant.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Conversations played to their end.
    pub(super) conversations: u64,
    /// Messages that are in their sessions now.
    pub(super) messages: u64,
    /// Those of them that were there before.
    pub(super) duplicates: u64,
    /// Turns that left a history to make room.
    pub(super) dropped_turns: u64,
    /// Calls made again.
    pub(super) retries: u64,
}

impl Tally {
    /// The counts now.
    pub(super) fn counts(&self) -> Counts {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Nothing panics while it counts.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Player {
    /// Plays a conversation to its end.
    pub(super) async fn play(self: Arc<Self>, conversation: Conversation) -> Result<(), CliError> {
        let mut client = self.target.sessions();
        let mut next = self.played_before(&mut client, &conversation).await?;
        let share = conversation.bytes / conversation.messages.len().max(1) as u64;
        self.progress.add(share * next as u64);
        self.tally.lock().messages += next as u64;
        self.tally.lock().duplicates += next as u64;
        while next < conversation.messages.len() {
            let request = self.request(&conversation, next);
            let reply = self.append(&mut client, &request).await;
            self.count(&reply.map_err(|status| self.failed(&conversation, next, status))?);
            self.progress.add(share);
            next += 1;
        }
        self.tally.lock().conversations += 1;
        self.progress
            .add(conversation.bytes - share * conversation.messages.len() as u64);
        Ok(())
    }

    /// How many messages of a long conversation an earlier replay has played. For a
    /// short one the keys themselves tell; of a long one the daemon has forgotten the
    /// first keys, and would take those messages a second time.
    async fn played_before(
        &self,
        client: &mut Sessions,
        conversation: &Conversation,
    ) -> Result<usize, CliError> {
        if conversation.messages.len() <= PROBE_EVERY {
            return Ok(0);
        }
        for index in (0..conversation.messages.len()).step_by(PROBE_EVERY).rev() {
            // A key that is known is answered first; any other append is refused,
            // because no session is that long.
            let request = AppendRequest {
                expected_seq: Some(u64::MAX),
                ..self.request(conversation, index)
            };
            match self.append(client, &request).await {
                Ok(_) => return Ok(index + 1),
                Err(status) if has_reason(&status, "STALE_SEQ") => {}
                Err(status) => return Err(self.failed(conversation, index, status)),
            }
        }
        Ok(0)
    }

    fn request(&self, conversation: &Conversation, index: usize) -> AppendRequest {
        AppendRequest {
            session_id: format!("{}{}", self.session_prefix, conversation.id),
            messages_json: conversation.messages[index].clone(),
            format: self.format as i32,
            idempotency_key: format!("replay:{index}"),
            ..AppendRequest::default()
        }
    }

    /// One append, tried for as long as patience lasts.
    async fn append(
        &self,
        client: &mut Sessions,
        request: &AppendRequest,
    ) -> Result<AppendResponse, Status> {
        let mut patience = Patience::new(self.retry_for);
        loop {
            let call = timeout(CALL_TIME_MAX, client.append(request.clone())).await;
            let status = match call {
                Ok(Ok(reply)) => return Ok(reply.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::unavailable("no answer within 30 s"),
            };
            let Some(wait) = patience.wait(&status, clock::monotonic()) else {
                return Err(status);
            };
            self.tally.lock().retries += 1;
            self.show();
            sleep(wait).await;
        }
    }

    fn count(&self, reply: &AppendResponse) {
        let mut counts = self.tally.lock();
        counts.messages += 1;
        if reply.duplicate {
            counts.duplicates += 1;
        } else {
            counts.dropped_turns += reply.dropped_turns;
        }
        drop(counts);
        self.show();
    }

    fn show(&self) {
        self.progress.show(|| {
            let counts = self.tally.counts();
            match counts.retries {
                0 => format!("{} messages", counts.messages),
                retries => format!("{} messages, {retries} retries", counts.messages),
            }
        });
    }

    fn failed(&self, conversation: &Conversation, index: usize, status: Status) -> CliError {
        let place = format!(
            "line {}, message {} of session {}{}",
            conversation.line,
            index + 1,
            self.session_prefix,
            conversation.id
        );
        self.target.explain(status).at(&place)
    }
}

fn has_reason(status: &Status, reason: &str) -> bool {
    status
        .get_details_error_info()
        .is_some_and(|info| info.reason == reason)
}
