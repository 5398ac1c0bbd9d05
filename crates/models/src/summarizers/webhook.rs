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
//! | `notes` | `files`, `last_error`, `decisions`, `pending_questions` |
//! | `tokens_max` | tokens that the summary may have |
//! | `system`, `prompt` | all of that as a prompt, for a service that asks a model itself |
//!
//! It answers 200 with JSON: `session_intent` and `narrative`, which are texts, and
//! `files_touched`, `decisions`, `pending_questions`, `next_steps` and `identifiers`, which
//! are lists of texts. Or it answers 413 when the turns are too many: they come again in
//! pieces. 429 and 5xx are tried again, `Retry-After` is heeded; 400 and 422 refuse the
//! turns.

use std::sync::Arc;

use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::spoken::Spoken;
use memoird_core::compaction::{Body, Summary, prompt};
use memoird_core::turn::Role;
use memoird_engine::{Answer, Stop, Summaries, SummarizeError, Summarizer, SummaryAsk};
use serde_json::{Value, json};

use super::WebhookSummarizerConfig;
use crate::error::ModelError;
use crate::http::{self, ApiKey, Fault, Provider, Question, Site, TimeLimit, Tries};

/// Asks the bot's own service for summaries.
#[derive(Debug)]
pub struct WebhookSummarizer {
    provider: Provider,
    input_tokens_max: u64,
}

const VERSION: u32 = 1;

impl WebhookSummarizer {
    /// Nothing is sent yet. The key is what [`WebhookSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(
        config: &WebhookSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let provider = Provider::new(Site {
            what: "summaries",
            base: &http::base(&config.url)?,
            path: "",
            headers: http::bearer(api_key.as_ref()),
            api_key,
            tries: Tries {
                max: config.tries_max,
                limit: TimeLimit::All(config.timeout),
            },
        })?;
        Ok(Self {
            provider,
            input_tokens_max: config.input_tokens_max,
        })
    }

    async fn answer(&self, ask: &SummaryAsk) -> Result<Answer, SummarizeError> {
        let prompt = super::prompt(ask);
        let question = Question {
            body: body(ask, &prompt).to_string(),
            private: &super::private(ask, &prompt),
            bytes_max: super::ANSWER_BYTES_MAX,
        };
        Ok(self.provider.ask(&question, read).await?)
    }
}

impl Summarizer for WebhookSummarizer {
    fn name(&self) -> &str {
        "webhook"
    }

    fn input_tokens_max(&self) -> u64 {
        self.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn summarize(&self, ask: Arc<SummaryAsk>) -> Summaries<'_> {
        Box::pin(async move { self.answer(&ask).await })
    }
}

fn body(ask: &SummaryAsk, prompt: &str) -> Value {
    json!({
        "version": VERSION,
        "tenant": ask.tenant.as_str(),
        "session_id": ask.session.as_str(),
        "generation": ask.generation.to_string(),
        "previous": ask.previous.as_deref().map(previous),
        "pieces": ask.pieces.iter().map(fields).collect::<Vec<_>>(),
        "turns": ask.turns.iter().map(turn).collect::<Vec<_>>(),
        "notes": notes(&ask.notes),
        "tokens_max": ask.tokens_max,
        "system": prompt::system(),
        "prompt": prompt,
    })
}

fn previous(summary: &Summary) -> Value {
    let mut previous = fields(&summary.body);
    previous["text"] = json!(&*summary.text);
    previous
}

fn fields(body: &Body) -> Value {
    json!({
        "session_intent": body.session_intent,
        "files_touched": body.files_touched,
        "decisions": body.decisions,
        "pending_questions": body.pending_questions,
        "next_steps": body.next_steps,
        "narrative": body.narrative,
        "identifiers": body.identifiers,
    })
}

fn turn(turn: &Spoken) -> Value {
    let role = match turn.role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::System => "system",
    };
    json!({"seq": turn.seq, "role": role, "text": turn.text})
}

fn notes(notes: &Notes) -> Value {
    json!({
        "files": notes.files,
        "last_error": notes.last_error,
        "decisions": notes.decisions,
        "pending_questions": notes.pending_questions,
    })
}

/// Text: who reads what models answer reads and checks this, too.
fn read(body: &[u8]) -> Result<Answer, Fault> {
    match str::from_utf8(body) {
        Ok(text) => Ok(Answer::Text {
            text: text.to_owned(),
            stop: Stop::Complete,
        }),
        Err(_) => Err(Fault::Strange {
            problem: "the answer is no text; it takes JSON".to_owned(),
        }),
    }
}
