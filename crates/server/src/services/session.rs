//! SessionService: the calls a bot makes per message.

use memoird_engine::{ContextOutcome, Engine};
use memoird_memories::Memories;
use memoird_proto::spliced::session_service_server::SessionService;
use memoird_proto::{spliced, v1};
use tonic::{Request, Response, async_trait};

use super::watch::{EventStream, Watching};
use super::{Answer, answer, caller, place, split};
use crate::heavy::{HEAVY_BYTES, HeavyWork};
use crate::wire::context::Writer;
use crate::wire::{compaction, context, from, status, to};

/// The engine as bots see it.
#[derive(Clone, Debug)]
pub(crate) struct SessionApi {
    engine: Engine,
    memories: Memories,
    watching: Watching,
    heavy: HeavyWork,
}

impl SessionApi {
    pub(crate) fn new(engine: Engine, memories: Memories, watching: Watching) -> Self {
        Self {
            engine,
            memories,
            watching,
            heavy: HeavyWork::default(),
        }
    }
}

/// Bytes that a window has on its way: its turns, the same as messages, and both encoded.
fn window_bytes(window: &ContextOutcome) -> u64 {
    let turns = window.turns.iter().map(|turn| turn.content.len() as u64);
    4 * turns.sum::<u64>()
}

#[async_trait]
impl SessionService for SessionApi {
    type WatchEventsStream = EventStream;

    async fn append(&self, request: Request<v1::AppendRequest>) -> Answer<v1::AppendResponse> {
        let (tenant, mut request) = split(request)?;
        let session_id = std::mem::take(&mut request.session_id);
        let session = from::session_id(&session_id)?;
        let (bytes, policy) = (from::append_bytes(&request), tenant.policy());
        let read = move || from::append(request, &policy.limits);
        let command = self.heavy.run(&tenant.id, bytes, read).await?;
        let commands = &self.engine.commands;
        let outcome = commands.append(&tenant, &session, command).await;
        answer(outcome, |outcome| to::appended(session_id, &outcome))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> Answer<spliced::GetContextResponse> {
        let place = place(&request)?;
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let policy = tenant.policy();
        let bytes = context::asked_bytes(&request);
        let read = move || context::asked(request, &policy.limits);
        let mut asked = self.heavy.run(&tenant.id, bytes, read).await?;
        // Who does not read its answers is refused before anything is appended.
        place.reserve_answer(HEAVY_BYTES as u64).await?;
        let recall = match asked.memories {
            Some(request) => {
                let recall = self.memories.for_window(&tenant, request);
                Some(recall.map_err(|error| status::memory(&error))?)
            }
            None => None,
        };
        if let Some(recall) = &recall {
            asked.request.memories = Some(recall.clone());
        }
        let commands = &self.engine.commands;
        let window = commands.context(&tenant, &session, asked.request).await;
        let window = window.map_err(|error| status::engine(&error))?;
        place.reserve_answer(window_bytes(&window)).await?;
        let writer = Writer {
            tenant: &tenant.id,
            heavy: &self.heavy,
        };
        let answer = context::answered(window, recall.as_deref(), asked.wanted, writer);
        Ok(Response::new(answer.await?))
    }

    async fn get_history(
        &self,
        request: Request<v1::GetHistoryRequest>,
    ) -> Answer<spliced::GetHistoryResponse> {
        let place = place(&request)?;
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let query = from::history(&request)?;
        place.reserve_answer(query.bytes_max as u64).await?;
        let commands = &self.engine.commands;
        let page = commands.history(&tenant, &session, query).await;
        answer(page, to::history)
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> Answer<v1::GetSessionResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let compactions = &self.engine.compaction;
        let detail = compactions.session_detail(&tenant, &session).await;
        answer(detail, compaction::detail)
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Answer<v1::ListSessionsResponse> {
        let (tenant, request) = split(request)?;
        let (size, after) = from::page(&request)?;
        let after = after.as_ref().map(|(session, time)| (session, *time));
        let commands = &self.engine.commands;
        let page = commands.sessions(&tenant, after, size).await;
        Ok(Response::new(to::sessions(&page)))
    }

    async fn patch_state(
        &self,
        request: Request<v1::PatchStateRequest>,
    ) -> Answer<v1::PatchStateResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let (patch, version) = (&request.merge_patch_json, request.expected_version);
        let commands = &self.engine.commands;
        let state = commands.patch_state(&tenant, &session, patch, version);
        answer(state.await, |state| to::state(&state))
    }

    async fn reset_session(
        &self,
        request: Request<v1::ResetSessionRequest>,
    ) -> Answer<v1::ResetSessionResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let commands = &self.engine.commands;
        let reset = commands.reset_session(&tenant, &session, request.run_hooks);
        answer(reset.await, |(view, ended)| v1::ResetSessionResponse {
            session: Some(to::session_info(&view)),
            ended_generation: ended.to_string(),
        })
    }

    async fn end_session(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Answer<v1::EndSessionResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let commands = &self.engine.commands;
        let view = commands.end_session(&tenant, &session).await;
        answer(view, |view| v1::EndSessionResponse {
            session: Some(to::session_info(&view)),
        })
    }

    async fn compact_session(
        &self,
        request: Request<v1::CompactSessionRequest>,
    ) -> Answer<v1::CompactSessionResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let keep = compaction::keep_exchanges(request.keep_exchanges)?;
        let compactions = &self.engine.compaction;
        let outcome = compactions.compact_session(&tenant, &session, keep).await;
        answer(outcome, |outcome| compaction::compacted(&outcome))
    }

    async fn undo_compaction(
        &self,
        request: Request<v1::UndoCompactionRequest>,
    ) -> Answer<v1::UndoCompactionResponse> {
        let (tenant, request) = split(request)?;
        let session = from::session_id(&request.session_id)?;
        let compactions = &self.engine.compaction;
        let undone = compactions.undo_compaction(&tenant, &session).await;
        answer(undone, |(view, restored_turns)| {
            v1::UndoCompactionResponse {
                session: Some(to::session_info(&view)),
                restored_turns,
            }
        })
    }

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Answer<Self::WatchEventsStream> {
        let (caller, request) = caller(request)?;
        Ok(Response::new(self.watching.watch(&caller, &request)?))
    }
}
