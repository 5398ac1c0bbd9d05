//! Summaries by the bot's own service.
//!
//! It gets `POST url` with JSON:
//!
//! | field | says |
//! |---|---|
//! | `version` | 1, the version of this table |
//! | `tenant`, `session_id`, `generation` | whose conversation it is |
//! | `previous` | the last summary, with the fields of an answer and its `text`; or null |
//! | `pieces` | summaries of pieces, oldest first, with the fields of an answer |
//! | `turns` | `seq`, `role` (`user`, `assistant`, `tool`, `system`) and `text` of each |
//! | `ledger` | calls that changed something or failed, each in one line with what came of it |
//! | `notes` | `files`, `last_error`, `decisions`, `pending_questions` |
//! | `tokens_max` | tokens that the summary may have |
//! | `system`, `prompt` | all of that as a prompt, for a service that asks a model itself |
//!
//! It answers 200 with JSON: `session_intent` and `narrative`, which are texts, and
//! `actions`, `facts`, `files_touched`, `decisions`, `pending_questions`, `next_steps` and `identifiers`, which
//! are lists of texts. Or it answers 413 when the turns are too many: they come again in
//! pieces. 429 and 5xx are tried again, `Retry-After` is heeded; 400 and 422 refuse the
//! turns.

use memoird_core::compaction::ledger::Ledger;
use memoird_core::compaction::transcript::TranscriptTurn;
use memoird_core::compaction::{Summary, prompt};
use memoird_engine::{FaultKind, ModelFault, SummaryRequest, TextEnd};
use serde_json::{Value, json};

use super::{Ask, Protocol, Reply};

/// The contract above.
#[derive(Debug)]
pub(super) struct Webhook;

const VERSION: u32 = 1;

impl Protocol for Webhook {
    fn body(&self, ask: &Ask<'_>) -> Value {
        (ask.for_service)()
    }

    /// The text of the answer: it is parsed and checked like that of a model.
    fn read(&self, body: &[u8]) -> Result<Reply, ModelFault> {
        let text = str::from_utf8(body).map_err(|_| {
            ModelFault::new(FaultKind::Unusable, "the answer is no text; it takes JSON")
        })?;
        Ok(Reply {
            text: text.to_owned(),
            end: TextEnd::Complete,
            tokens: None,
        })
    }
}

/// The body of a request for a summary.
pub(super) fn summary(request: &SummaryRequest, prompt: &str) -> Value {
    json!({
        "version": VERSION,
        "tenant": request.tenant.as_str(),
        "session_id": request.session.as_str(),
        "generation": request.generation.to_string(),
        "previous": request.previous.as_deref().map(previous),
        "pieces": request.chunks,
        "turns": request.turns.iter().map(turn).collect::<Vec<_>>(),
        "ledger": Ledger::of(&request.turns).lines().collect::<Vec<_>>(),
        "notes": request.notes,
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
    json!({"seq": turn.seq, "role": turn.role.name(), "text": turn.text})
}
