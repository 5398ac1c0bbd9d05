//! The `ResolveRecallTool` command: answers calls of the tool `read_earlier_turns`.

use std::collections::HashSet;
use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::budget::BudgetOverride;
use memoird_core::ids::{Generation, SessionId};
use memoird_core::nonce::Nonce;
use memoird_core::recall_tool::{EarlierTurns, EarlierTurnsQuery, NAME};
use memoird_core::session::{AppendCommand, Session};
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_store::{JournalRange, encoding};

use super::handle::Commands;
use crate::error::EngineError;
use crate::sessions::SessionRef;
use crate::tenants::Tenant;
use crate::transcript_search::{TranscriptQuery, TranscriptSearch, TranscriptSearchError};

/// Limits of a result in bytes.
///
/// The default is half a byte per token of the input budget: about an eighth of the window.
const RESULT_BYTES_MIN: usize = 1 << 10;
const RESULT_BYTES_MAX: usize = 32 << 10;
const TOKENS_PER_BYTE: u64 = 2;
/// Maximum encoded bytes read per call. Media and reasoning count here, but not in the result.
const READ_BYTES_MAX: usize = 4 << 20;
/// Turns and encoded bytes read at once.
const PAGE_TURNS: usize = 256;
const PAGE_BYTES: usize = 256 << 10;
/// Maximum number of turns that a search returns.
const FOUND_MAX: usize = 50;
/// Each turn found by a search may use a quarter of the result.
const FOUND_SHARE: usize = 4;
/// Number of newest turns that are searched for open calls and their results.
const UNIT_TURNS_MAX: u64 = 64;
/// Attempts to append results while clients append concurrently.
const ATTEMPTS_MAX: usize = 3;

#[derive(Clone, Debug, Default)]
pub struct RecallCall {
    /// Arguments as written by the model.
    pub arguments_json: String,
    /// Maximum size of the result in bytes.
    ///
    /// `None`, or a larger value, means the default, which depends on the budget.
    pub bytes_max: Option<usize>,
    /// The model that reads the result. Empty means the default model.
    pub model: String,
    pub budget: BudgetOverride,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecallReply {
    pub text: String,
    /// Whether the call failed. The text then explains how to correct it.
    pub is_error: bool,
}

/// The tool as offered in a window.
#[derive(Clone, Debug, Default)]
pub struct RecallTool {
    /// Full-text search, if the daemon has an index.
    pub search: Option<Arc<dyn TranscriptSearch>>,
}

#[derive(Clone, Copy)]
struct RecallPoint {
    generation: Generation,
    newest_seq: u64,
    nonce: Nonce,
}

impl RecallPoint {
    fn new(session: &Session) -> Self {
        let head = session.head();
        Self {
            generation: head.generation,
            newest_seq: head.newest_seq,
            nonce: session.nonce(),
        }
    }
}

impl RecallReply {
    fn read(text: String) -> Self {
        Self {
            text,
            is_error: false,
        }
    }

    fn refused(problem: impl Into<String>) -> Self {
        Self {
            text: problem.into(),
            is_error: true,
        }
    }
}

impl Commands {
    /// Answers a call of `read_earlier_turns` from the live generation of a session.
    ///
    /// Does not count as a use of the session. Invalid arguments are explained to the model in the
    /// reply.
    ///
    /// # Errors
    /// If the session is not live, the model is unknown, the budget has no room, or the journal
    /// cannot be read.
    pub async fn resolve_recall_tool(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        tool: &RecallTool,
        call: &RecallCall,
    ) -> Result<RecallReply, EngineError> {
        let model = self.shared.models.current().get(&call.model)?;
        let input_budget = model.profile.budget.overridden(call.budget).input(0)?;
        let bytes_allowed = result_bytes(input_budget);
        let bytes_max = call.bytes_max.map_or(bytes_allowed, |lower| {
            lower.clamp(RESULT_BYTES_MIN, bytes_allowed)
        });
        let session = SessionRef::new(tenant, session);
        let read = |session: &Session, _| RecallPoint::new(session);
        let point = self.shared.sessions.view(&session, read).await?;
        self.read_earlier_turns(&session, point, tool, &call.arguments_json, bytes_max)
            .await
    }

    /// Appends results for the open calls of `read_earlier_turns`.
    ///
    /// Does nothing if the assistant's newest turn has other open calls: the client answers its own
    /// calls first. After several concurrent appends, the calls stay open.
    pub(super) async fn answer_recall_calls(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        tool: &RecallTool,
        input_budget: u64,
    ) -> Result<(), EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let answered = self.try_answer_recall_calls(tenant, session, tool, input_budget);
            match answered.await {
                Err(EngineError::Core(
                    CoreError::StaleSeq { .. } | CoreError::StaleGeneration { .. },
                )) => {}
                answered => return answered,
            }
        }
        Ok(())
    }

    async fn try_answer_recall_calls(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        tool: &RecallTool,
        input_budget: u64,
    ) -> Result<(), EngineError> {
        let session_ref = SessionRef::new(tenant, session);
        let newest = |session: &Session, _| {
            let before = session.head().newest_seq.saturating_sub(UNIT_TURNS_MAX);
            let turns = session.history().turns_after(before);
            let contents: Vec<Arc<[u8]>> = turns.map(|turn| Arc::clone(&turn.content)).collect();
            let is_partial = session.head().partial;
            (!is_partial).then(|| (RecallPoint::new(session), contents))
        };
        let Some((point, turns)) = self.shared.sessions.view(&session_ref, newest).await? else {
            return Ok(());
        };
        let calls = open_calls(&turns);
        if calls.is_empty() {
            return Ok(());
        }
        let bytes_max = result_bytes(input_budget)
            .min(tenant.policy().limits.turn_bytes_effective() / 2)
            / calls.len();
        let mut results = Vec::with_capacity(calls.len());
        for (id, arguments_json) in calls {
            let reply = self
                .read_earlier_turns(
                    &session_ref,
                    point,
                    tool,
                    &arguments_json,
                    bytes_max.max(RESULT_BYTES_MIN),
                )
                .await?;
            let result = PartKind::ToolResult {
                tool_use_id: id,
                content: reply.text,
                parts: Vec::new(),
                is_error: reply.is_error,
            };
            results.push(encoding::encode(Turn::new(Role::Tool, vec![result.into()])));
        }
        let command = AppendCommand {
            turns: results,
            expected_seq: Some(point.newest_seq),
            expected_generation: Some(point.generation),
            ..AppendCommand::default()
        };
        self.append(tenant, session, command).await.map(drop)
    }

    async fn read_earlier_turns(
        &self,
        session: &SessionRef,
        point: RecallPoint,
        tool: &RecallTool,
        arguments_json: &str,
        bytes_max: usize,
    ) -> Result<RecallReply, EngineError> {
        let search = tool.search.as_deref();
        let query = match EarlierTurnsQuery::parse(arguments_json, search.is_some()) {
            Ok(query) => query,
            Err(problem) => return Ok(RecallReply::refused(problem)),
        };
        if query.from_seq > point.newest_seq {
            let (from, newest) = (query.from_seq, point.newest_seq);
            let problem = format!("there is no turn {from}; the newest turn is {newest}");
            return Ok(RecallReply::refused(problem));
        }
        match (search, query.words.as_deref()) {
            (Some(search), Some(words)) => {
                let seqs = (query.from_seq, query.to_seq);
                self.search_turns(session, point, search, words, seqs, bytes_max)
                    .await
            }
            _ => self.read_range(session, point, &query, bytes_max).await,
        }
    }

    async fn read_range(
        &self,
        session: &SessionRef,
        point: RecallPoint,
        query: &EarlierTurnsQuery,
        bytes_max: usize,
    ) -> Result<RecallReply, EngineError> {
        let to_seq = query.to_seq.min(point.newest_seq);
        let mut text = EarlierTurns::new(bytes_max, point.nonce, query.from_seq, "");
        let mut bytes_left = READ_BYTES_MAX;
        let mut range = JournalRange {
            after_seq: query.from_seq - 1,
            before_seq: to_seq + 1,
            turns_max: PAGE_TURNS,
            bytes_max: PAGE_BYTES,
            ..JournalRange::ALL
        };
        loop {
            let page = self.earlier_turns(session, point.generation, range).await?;
            let next_after_seq = page.next_after_seq();
            let bytes: usize = page.turns.iter().map(|turn| turn.len()).sum();
            let write = move || {
                let opened = page
                    .turns
                    .iter()
                    .filter_map(|turn| encoding::open_with_seq(turn));
                let mut is_full = false;
                for (seq, turn) in opened {
                    if !text.push(seq, &turn) {
                        is_full = true;
                        break;
                    }
                }
                (text, is_full)
            };
            let counting = &self.shared.counting;
            let (written, is_full) = counting.count(&session.tenant, bytes, write).await?;
            text = written;
            bytes_left = bytes_left.saturating_sub(bytes);
            if is_full {
                break;
            }
            // Do not read turns again that could not be decoded.
            text.expect_through(if next_after_seq > 0 {
                next_after_seq
            } else {
                to_seq
            });
            if next_after_seq == 0 || bytes_left == 0 {
                break;
            }
            range.after_seq = next_after_seq;
        }
        if text.is_empty() && text.next_seq() > to_seq {
            let problem = format!(
                "no turn from {} to {to_seq} is stored: they were taken back, or left the history \
                 of a daemon without a journal",
                query.from_seq
            );
            return Ok(RecallReply::refused(problem));
        }
        if query.to_seq > point.newest_seq {
            text.note(&format!("The newest turn is {}.", point.newest_seq));
        }
        Ok(RecallReply::read(text.finish(to_seq)))
    }

    async fn search_turns(
        &self,
        session: &SessionRef,
        point: RecallPoint,
        search: &dyn TranscriptSearch,
        words: &str,
        seqs: (u64, u64),
        bytes_max: usize,
    ) -> Result<RecallReply, EngineError> {
        let query = TranscriptQuery {
            tenant: &session.tenant,
            session: &session.key.session,
            generation: point.generation,
            words,
            seqs,
            without_tool: NAME,
            limit: FOUND_MAX,
        };
        let found = match search.find(query).await {
            Ok(found) => found,
            Err(TranscriptSearchError::NoWords) => {
                return Ok(RecallReply::refused("query has no words to search for"));
            }
            Err(TranscriptSearchError::NotReady) => {
                let problem = "the search is not available at the moment; read turns by from_seq \
                               and to_seq, or try again later";
                return Ok(RecallReply::refused(problem));
            }
            Err(TranscriptSearchError::Engine(error)) => return Err(error),
        };
        let count = found.turns.len();
        let turn_bytes_max = bytes_max / FOUND_SHARE;
        // Show the best matches that fit, in the order of the conversation.
        let mut bytes = 0;
        let fits = |(_, content): &(u64, Arc<[u8]>)| {
            bytes += content.len().min(turn_bytes_max);
            bytes <= bytes_max
        };
        let mut shown: Vec<_> = found.turns.into_iter().take_while(fits).collect();
        shown.sort_by_key(|(seq, _)| *seq);
        let bytes = shown.iter().map(|(_, content)| content.len()).sum();
        let mut text = EarlierTurns::new(bytes_max, point.nonce, 1, words);
        let write = move || {
            let mut written = 0;
            for (seq, content) in shown {
                let turn = encoding::open(&content);
                let is_written =
                    turn.is_some_and(|turn| text.push_within(seq, &turn, turn_bytes_max));
                written += usize::from(is_written);
            }
            (text, written)
        };
        let counting = &self.shared.counting;
        let (mut text, written) = counting.count(&session.tenant, bytes, write).await?;
        if count == 0 {
            text.note("No turn matches the query. Try other words, or read turns by seq.");
        } else {
            let of = if found.has_more { "more than " } else { "" };
            text.note(&format!(
                "{written} of {of}{count} matching turns are shown. To read what was said around \
                 one, call {NAME} with from_seq and to_seq."
            ));
        }
        if found.is_incomplete {
            text.note("The newest turns may be missing from the search.");
        }
        Ok(RecallReply::read(text.into_text()))
    }
}

/// The default size limit of a result for a model with this input budget, in bytes.
fn result_bytes(input_budget: u64) -> usize {
    let bytes = usize::try_from(input_budget / TOKENS_PER_BYTE).unwrap_or(usize::MAX);
    bytes.clamp(RESULT_BYTES_MIN, RESULT_BYTES_MAX)
}

/// Open calls in the assistant's newest turn, as ids and arguments.
///
/// Empty unless all of them call [`NAME`] and only results follow the turn.
fn open_calls(turns: &[Arc<[u8]>]) -> Vec<(String, String)> {
    let mut answered = HashSet::new();
    for content in turns.iter().rev() {
        let Some(turn) = encoding::open(content) else {
            break;
        };
        if turn.role == Role::Assistant {
            let calls = turn.parts.into_iter().filter_map(|part| match part.kind {
                PartKind::ToolUse {
                    id,
                    name,
                    input_json,
                } => Some((id, name, input_json)),
                _ => None,
            });
            let open: Vec<_> = calls
                .filter(|(id, ..)| !answered.contains(id.as_str()))
                .collect();
            if open.iter().any(|(_, name, _)| name != NAME) {
                break;
            }
            return open.into_iter().map(|(id, _, input)| (id, input)).collect();
        }
        let results = turn.links().results;
        if results.is_empty() {
            break;
        }
        answered.extend(results);
    }
    Vec::new()
}
