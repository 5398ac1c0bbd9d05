//! Recalled memories in a window.
//!
//! They form a block after the turns, within the budget, and without memories that the window
//! already contains. The query is the bot's, or the current exchange. Memories below the floor of
//! relevance are dropped.

use std::sync::{Arc, OnceLock};

use memoird_core::ids::SessionId;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_core::window::Window;
use memoird_engine::{
    EngineError, HistoryQuery, HistoryScope, JournalRange, MemoryBlock, RecallResult,
    RecalledMemories, SessionPoint, Tenant, WindowMemories, WindowRecall, WindowRoom,
};
use memoird_formats::tokens::Scale;
use memoird_store::encoding;

use super::recall::Recall;
use super::sources::text_of;
use crate::error::MemoryError;
use crate::requests::{RecallHit, RecallRequest};
use crate::rules::block::{Block, block};
use crate::rules::exchange::{self, ExchangeMessage};
use crate::rules::floor::Floor;

/// Maximum share of a window's budget for memories, in percent.
const SHARE_PERCENT: u64 = 10;
/// Maximum turns that are searched for the current exchange.
const EXCHANGE_TURNS_MAX: usize = 64;
/// Maximum bytes of these turns.
const EXCHANGE_BYTES_MAX: usize = 1 << 20;
/// Minimum words of a memory to look for its text in the window's turns.
const WORDS_MIN: usize = 3;

/// A recall for one window. The engine runs it; afterwards it contains the hits.
#[derive(Debug)]
pub struct RecallForWindow {
    recall: Arc<Recall>,
    tenant: Arc<Tenant>,
    request: RecallRequest,
    hits: OnceLock<Arc<[RecallHit]>>,
}

/// The hits of a recall, for a window that is being built.
#[derive(Debug)]
struct WindowHits {
    hits: Arc<[RecallHit]>,
    /// Block of all hits that fit.
    whole: Block,
    now: Timestamp,
}

impl Recall {
    /// Prepares a recall for a window. With an empty query, the current exchange is the query.
    ///
    /// # Errors
    /// The errors of [`Recall::find`] about invalid requests.
    pub fn for_window(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        request: RecallRequest,
    ) -> Result<Arc<RecallForWindow>, MemoryError> {
        Ok(Arc::new(RecallForWindow {
            recall: Arc::clone(self),
            tenant: Arc::clone(tenant),
            request: self.checked_recall(request)?,
            hits: OnceLock::new(),
        }))
    }
}

impl RecallForWindow {
    /// Memories that a window shows, best first.
    pub fn shown<'a>(&'a self, block: &'a MemoryBlock) -> impl Iterator<Item = &'a RecallHit> {
        let hits = self.hits.get().map_or(&[][..], |hits| hits);
        block.shown.iter().filter_map(|&index| hits.get(index))
    }

    /// Whether the response contains the components of the scores.
    pub fn explains(&self) -> bool {
        self.request.explain
    }

    async fn recalled(&self, room: WindowRoom<'_>) -> RecallResult {
        let mut request = self.request.clone();
        request.session = Some(room.session.clone());
        if request.query.trim().is_empty() {
            request.query = match self.exchange(room.session).await {
                Ok(query) => query,
                Err(error) => return failed(&error),
            };
        }
        // A courtesy asks for nothing, and an empty session has no query yet.
        if exchange::telling_words(&request.query) == 0 {
            return RecallResult::default();
        }
        let config = self.recall.storage.config();
        let is_recorded = !room.peek && !request.explain;
        let outcome = self
            .recall
            .recall_checked(&self.tenant, request, is_recorded, Floor::Window)
            .await;
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return failed(&error),
        };
        let tokens_max = config
            .window_tokens
            .min(room.input_budget / 100 * SHARE_PERCENT);
        let now = self.recall.storage.now();
        let hits: Arc<[RecallHit]> = outcome.hits.into();
        let whole = block_of(hits.iter(), now, tokens_max, room.scale);
        let mut notes = outcome.notes;
        if whole.taken < hits.len() {
            let (taken, found) = (whole.taken, hits.len());
            notes.push(format!(
                "{taken} of {found} recalled memories fit into {tokens_max} tokens"
            ));
        }
        let hits = Arc::clone(self.hits.get_or_init(|| hits));
        RecallResult {
            memories: Some(Box::new(WindowHits { hits, whole, now })),
            notes,
        }
    }
}

/// Continues without memories: a window without them is better than none.
fn failed(error: &MemoryError) -> RecallResult {
    tracing::warn!(?error, "a window goes without memories");
    RecallResult {
        memories: None,
        notes: vec![format!("memories could not be recalled: {error}")],
    }
}

impl RecallForWindow {
    /// The default query: the current exchange.
    async fn exchange(&self, session: &SessionId) -> Result<String, MemoryError> {
        let query = HistoryQuery {
            scope: HistoryScope::Live,
            generation: None,
            range: JournalRange {
                last: true,
                turns_max: EXCHANGE_TURNS_MAX,
                bytes_max: EXCHANGE_BYTES_MAX,
                ..JournalRange::ALL
            },
        };
        let commands = &self.recall.storage.engine.commands;
        let page = match commands.history(&self.tenant, session, query).await {
            Ok(page) => page,
            Err(EngineError::SessionNotFound { .. }) => return Ok(String::new()),
            Err(error) => return Err(error.into()),
        };
        let turns = page
            .turns
            .iter()
            .filter_map(|content| encoding::open_with_seq(content));
        let said: Vec<ExchangeMessage> = turns
            .map(|(_, turn)| ExchangeMessage {
                is_request: turn.role == Role::User && turn.links().results.is_empty(),
                text: text_of(&turn),
            })
            .collect();
        Ok(exchange::query(&said))
    }
}

impl WindowMemories for RecallForWindow {
    fn recall<'a>(&'a self, room: WindowRoom<'a>) -> WindowRecall<'a> {
        Box::pin(self.recalled(room))
    }
}

impl RecalledMemories for WindowHits {
    fn tokens(&self) -> u64 {
        self.whole.tokens
    }

    /// Renders the hits that the window lacks, judged by their source turns and their text.
    fn block(&self, window: &Window, point: SessionPoint<'_>, scale: &Scale) -> MemoryBlock {
        let is_held = |hit: &RecallHit| {
            let source = hit.memory.source.as_ref().filter(|source| {
                source.session == *point.session && source.generation == Some(point.generation)
            });
            source.is_some_and(|source| window.holds(&source.seqs, point.last_seq, point.rewound))
                || states(window, &hit.memory.content)
        };
        let new = (0..self.hits.len()).filter(|&index| !is_held(&self.hits[index]));
        let mut shown: Vec<usize> = new.collect();
        let block = if shown.len() == self.hits.len() {
            self.whole.clone()
        } else {
            // The window reserved only the room that all hits need.
            let hits = shown.iter().map(|&index| &self.hits[index]);
            block_of(hits, self.now, self.whole.tokens, scale)
        };
        shown.truncate(block.taken);
        MemoryBlock {
            text: block.text(point.nonce),
            tokens: block.tokens,
            shown,
        }
    }
}

fn block_of<'a>(
    hits: impl Iterator<Item = &'a RecallHit>,
    now: Timestamp,
    tokens_max: u64,
    scale: &Scale,
) -> Block {
    let weigh = |text: &str| {
        scale.turn(&Turn::new(
            Role::User,
            vec![PartKind::Text(text.into()).into()],
        ))
    };
    let memories: Vec<_> = hits.map(|hit| &hit.memory).collect();
    block(&memories, now, tokens_max, &weigh)
}

/// Whether a turn of the window contains this text.
///
/// Encoded turns contain their text verbatim, so nothing is decoded. One or two words are not
/// enough: they may occur in any sentence.
fn states(window: &Window, content: &str) -> bool {
    if content.split_whitespace().nth(WORDS_MIN - 1).is_none() {
        return false;
    }
    let finder = memchr::memmem::Finder::new(content);
    window
        .turns
        .iter()
        .any(|turn| finder.find(&turn.content).is_some())
}
