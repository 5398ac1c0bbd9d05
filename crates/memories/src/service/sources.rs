//! The turns that a fact comes from.

use std::sync::Arc;

use memoird_core::ids::{Generation, SessionId, Subject};
use memoird_core::session::Head;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Turn};
use memoird_engine::{EngineError, HistoryPage, HistoryQuery, HistoryScope, JournalRange, Tenant};
use memoird_store::encoding;

use super::storage::MemoryStorage;
use crate::error::MemoryError;
use crate::rules::{Source, checked_seqs};

/// Maximum bytes per read of source turns.
const SOURCE_BYTES_MAX: usize = 4 << 20;
/// Maximum turns per read of source turns.
const SOURCE_TURNS_MAX: usize = 1_000;
/// Maximum reads per source. Seqs that are too far apart are rejected.
const SOURCE_READS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct SourceTurns {
    pub(super) source: Option<Source>,
    pub(super) subject: Option<Subject>,
    /// Text of the turns, if requested.
    pub(super) text: String,
    pub(super) said_at: Option<Timestamp>,
    /// Newest turn of the live session.
    pub(super) at_seq: Option<u64>,
}

impl MemoryStorage {
    /// Returns the head of a live session, if it is of the given generation.
    pub(super) async fn live_head(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
    ) -> Result<Option<Head>, MemoryError> {
        let is_named = |head: &Head| generation.is_none_or(|named| named == head.generation);
        match self.engine.commands.session(tenant, session).await {
            Ok(view) => Ok(Some(view.head).filter(is_named)),
            Err(EngineError::SessionNotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Resolves the source of a fact. Returns its text only with `wants_text`.
    pub(super) async fn find_source(
        &self,
        tenant: &Arc<Tenant>,
        request: &Source,
        wants_text: bool,
    ) -> Result<SourceTurns, MemoryError> {
        let session = &request.session;
        let head = self.live_head(tenant, session, request.generation).await?;
        let live = head.as_ref().map(|head| head.generation);
        let mut generation = request.generation.or(live);
        let subject = match &head {
            Some(head) => head.subject.clone(),
            None if generation.is_none() && request.seqs.is_empty() => None,
            None => {
                let page = self.source_page(tenant, session, generation, 0, 1);
                page.await?.subject
            }
        };
        let mut found = SourceTurns {
            subject,
            at_seq: head.map(|head| head.last_seq),
            ..SourceTurns::default()
        };
        let seqs = checked_seqs(request.seqs.clone(), &self.config().limits)?;
        if !seqs.is_empty() {
            let turns;
            (turns, generation) = self
                .source_turns(tenant, session, generation, &seqs)
                .await?;
            found.said_at = turns.last().and_then(|turn| turn.timestamp);
            if wants_text {
                found.text = turns.iter().map(text_of).collect::<Vec<_>>().join("\n");
            }
        }
        found.source = Some(Source {
            session: session.clone(),
            generation,
            seqs,
        });
        Ok(found)
    }

    /// Reads all of these turns of a generation. Also returns which generation it is.
    async fn source_turns(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut generation: Option<Generation>,
        seqs: &[u64],
    ) -> Result<(Vec<Turn>, Option<Generation>), MemoryError> {
        let missing = |problem: String| Err(MemoryError::SourceNotFound { problem });
        let mut turns = Vec::with_capacity(seqs.len());
        let mut wanted = seqs.iter().copied().peekable();
        for _ in 0..SOURCE_READS_MAX {
            let Some(&next) = wanted.peek() else {
                return Ok((turns, generation));
            };
            let page = self
                .source_page(tenant, session, generation, next - 1, SOURCE_TURNS_MAX)
                .await?;
            generation = page.generation;
            let before = turns.len();
            for content in &page.turns {
                let Some((seq, turn)) = encoding::open_with_seq(content) else {
                    continue;
                };
                if wanted.next_if_eq(&seq).is_some() {
                    turns.push(turn);
                }
            }
            if turns.len() == before {
                return missing(format!("turn {next} of session {session} is not there"));
            }
        }
        match wanted.peek() {
            None => Ok((turns, generation)),
            Some(_) => missing("the turns lie too far apart; name fewer".to_owned()),
        }
    }

    /// Reads turns of a generation, from the journal if there is one.
    pub(super) async fn history(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<HistoryPage, EngineError> {
        let query = HistoryQuery {
            scope: HistoryScope::Longest,
            generation,
            range,
        };
        self.engine.commands.history(tenant, session, query).await
    }

    async fn source_page(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        after_seq: u64,
        turns_max: usize,
    ) -> Result<HistoryPage, MemoryError> {
        let range = JournalRange {
            after_seq,
            turns_max,
            bytes_max: SOURCE_BYTES_MAX,
            ..JournalRange::ALL
        };
        let page = self.history(tenant, session, generation, range);
        page.await.map_err(|error| match error {
            EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. } => {
                let problem = format!("session {session} has no such turns (any more)");
                MemoryError::SourceNotFound { problem }
            }
            other => other.into(),
        })
    }
}

/// Concatenates the text parts of a turn.
pub(super) fn text_of(turn: &Turn) -> String {
    let texts = turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
