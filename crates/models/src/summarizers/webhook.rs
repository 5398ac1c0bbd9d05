//! Summaries by the bot's own service.
//!
//! It receives `POST url` with JSON:
//!
//! | field | content |
//! |---|---|
//! | `version` | 2, the version of this format |
//! | `tenant`, `session_id`, `generation` | the conversation |
//! | `previous` | the last summary: its sections and its `text`; or null |
//! | `pieces` | summaries of pieces, oldest first |
//! | `turns` | `seq`, `role` (`user`, `assistant`, `tool`, `system`), `said_at` (seconds since 1970, or null) and `text` of each |
//! | `changes` | calls that changed something, each in one line with its outcome |
//! | `tokens_max` | maximum size of the reply in tokens |
//! | `system`, `prompt` | all of the above as a prompt, for a service that uses a model itself |
//!
//! It replies 200 with JSON: `standing_instructions`, `withdrawn` and `open_questions`, which are
//! lists of texts, and `details`, which is a text. The prompt explains them. After 413 the turns
//! are sent again in pieces. After 429 and 5xx the request is retried, respecting `Retry-After`.
//! 400 and 422 reject the turns.

use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{Summary, changes, prompt};
use memoird_core::time::Timestamp;
use memoird_engine::{FaultKind, ModelFault, SummaryRequest, TextEnd};
use serde_json::{Value, json};

use super::{ModelReply, ModelRequest, Protocol};

/// The format above.
#[derive(Debug)]
pub(super) struct Webhook;

const VERSION: u32 = 2;

impl Protocol for Webhook {
    fn body(&self, ask: &ModelRequest<'_>) -> Value {
        (ask.for_service)()
    }

    /// Returns the body as text. It is parsed and validated like a model's reply.
    fn read(&self, body: &[u8]) -> Result<ModelReply, ModelFault> {
        let text = str::from_utf8(body).map_err(|_| {
            ModelFault::new(
                FaultKind::Unusable,
                "the response is not text; expected JSON",
            )
        })?;
        Ok(ModelReply {
            text: text.to_owned(),
            end: TextEnd::Complete,
            tokens: None,
        })
    }
}

/// Formats the body of a request for a summary.
pub(super) fn summary(request: &SummaryRequest, prompt: &str) -> Value {
    let recent = request
        .previous
        .as_deref()
        .map(|summary| summary.body.recent.as_str());
    let changes = changes(&request.turns, recent.unwrap_or_default());
    json!({
        "version": VERSION,
        "tenant": request.tenant.as_str(),
        "session_id": request.session.as_str(),
        "generation": request.generation.to_string(),
        "previous": request.previous.as_deref().map(previous),
        "pieces": request.chunks.iter().map(prompt::as_json).collect::<Vec<_>>(),
        "turns": request.turns.iter().map(turn).collect::<Vec<_>>(),
        "changes": changes.into_iter().map(|done| done.text).collect::<Vec<_>>(),
        "tokens_max": request.tokens_max,
        "system": prompt::system(),
        "prompt": prompt,
    })
}

fn previous(summary: &Summary) -> Value {
    let mut previous = json!(summary.body);
    previous["text"] = json!(&*summary.text);
    previous
}

fn turn(turn: &TranscriptTurn) -> Value {
    let said_at = turn.said_at.map(Timestamp::seconds);
    json!({"seq": turn.seq, "role": turn.role.name(), "said_at": said_at, "text": turn.text})
}
