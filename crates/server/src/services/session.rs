//! SessionService: the calls that a bot makes for each message.

use std::sync::Arc;

use memoird_engine::{ContextOutcome, EngineError, RecallTool, TranscriptSearch};
use memoird_proto::spliced::session_service_server::SessionService;
use memoird_proto::{spliced, v1};
use prost::Message;
use tonic::{Request, Response, async_trait};

use super::watch::EventStream;
use super::{
    Api, RpcResult, call_permit, caller, rpc_result, tenant_and_message,
    tenant_and_message_for_page,
};
use crate::heavy::HEAVY_BYTES;
use crate::layers::reply_limit::RequestedBytes;
use crate::wire::context::{ContextNames, Writer};
use crate::wire::from::{AppendNames, UpdateNames};
use crate::wire::{
    PAGE_BYTES_MAX, compaction, context, erasure, from, history, recall_tool, status, to,
};

/// Peak size of a window in bytes: turns and messages, and both encoded.
fn window_bytes(window: &ContextOutcome) -> u64 {
    let turns = window.turns.iter().map(|turn| turn.content.len() as u64);
    4 * turns.sum::<u64>()
}

impl Api {
    /// Returns the tool `read_earlier_turns`, with search if available.
    fn recall_tool(&self) -> RecallTool {
        let is_enabled = self.search.is_enabled();
        let search = is_enabled.then(|| Arc::new(self.search.clone()) as Arc<dyn TranscriptSearch>);
        RecallTool { search }
    }
}

#[async_trait]
impl SessionService for Api {
    type WatchEventsStream = EventStream;

    async fn append(&self, request: Request<v1::AppendRequest>) -> RpcResult<v1::AppendResponse> {
        let (caller, mut request) = caller(request)?;
        let tenant = caller.tenant;
        let session_id = std::mem::take(&mut request.session_id);
        let session = from::session_id(&session_id)?;
        let (bytes, policy) = (from::append_bytes(&request), tenant.policy());
        let names = AppendNames::new(&request.messages_json);
        let read = move || from::append(request, &policy.limits);
        let command = self.heavy.run(&tenant.id, bytes, read).await?;
        caller.key.check()?;
        let outcome = self
            .engine
            .commands
            .append(&tenant, &session, command)
            .await
            .map_err(|error| status::engine_named(&error, &names))?;
        Ok(Response::new(to::appended(session_id, &outcome)))
    }

    async fn get_context(
        &self,
        request: Request<v1::GetContextRequest>,
    ) -> RpcResult<spliced::GetContextResponse> {
        let permit = call_permit(&request)?;
        let (caller, request) = caller(request)?;
        let tenant = caller.tenant;
        let session = from::session_id(&request.session_id)?;
        let policy = tenant.policy();
        let bytes = context::bytes_to_parse(&request);
        let reply_bytes = RequestedBytes::for_budget(request.budget.as_ref());
        let names = request
            .append
            .as_ref()
            .map(|append| AppendNames::new(&append.messages_json));
        let has_search = self.search.is_enabled();
        let read = move || context::parse(request, &policy.limits, has_search);
        let mut asked = self.heavy.run(&tenant.id, bytes, read).await?;
        // Before the append, so that a client that does not read is rejected first.
        permit.reserve_response(HEAVY_BYTES as u64).await?;
        let recall = asked
            .memories
            .map(|request| self.memories.recall.for_window(&tenant, request))
            .transpose()
            .map_err(|error| status::memory(&error).under("memories"))?;
        if let Some(recall) = &recall {
            asked.request.memories = Some(recall.clone());
        }
        if asked.options.has_recall_tool() {
            asked.request.recall_tool = Some(self.recall_tool());
        }
        caller.key.check()?;
        let window = self
            .engine
            .commands
            .context(&tenant, &session, asked.request)
            .await
            .map_err(|error| status::engine_named(&error, &ContextNames(names)))?;
        permit.reserve_response(window_bytes(&window)).await?;
        let writer = Writer {
            tenant: &tenant.id,
            heavy: &self.heavy,
        };
        let answer = context::reply(window, recall.as_deref(), asked.options, writer);
        let mut response = Response::new(answer.await?);
        response.extensions_mut().insert(reply_bytes);
        Ok(response)
    }

    async fn resolve_recall_tool(
        &self,
        request: Request<v1::ResolveRecallToolRequest>,
    ) -> RpcResult<v1::ResolveRecallToolResponse> {
        let permit = call_permit(&request)?;
        let (caller, request) = caller(request)?;
        let session = from::session_id(&request.session_id)?;
        let (call, to_answer) = recall_tool::call(request)?;
        permit.reserve_response(recall_tool::CALL_BYTES).await?;
        caller.key.check()?;
        let commands = &self.engine.commands;
        let tool = self.recall_tool();
        let reply = commands.resolve_recall_tool(&caller.tenant, &session, &tool, &call);
        rpc_result(reply.await, |reply| recall_tool::resolved(reply, to_answer))
    }

    async fn get_history(
        &self,
        request: Request<v1::GetHistoryRequest>,
    ) -> RpcResult<spliced::GetHistoryResponse> {
        let permit = call_permit(&request)?;
        let (caller, request) = caller(request)?;
        let tenant = caller.tenant;
        let session = from::session_id(&request.session_id)?;
        let query = from::history(&request)?;
        let format = history::format(request.format)?;
        // The turns, and possibly the same as messages.
        let times = if format.is_some() { 3 } else { 1 };
        let bytes_max = query.range.bytes_max as u64;
        permit.reserve_response(times * bytes_max).await?;
        caller.key.check()?;
        let page = self
            .engine
            .commands
            .history(&tenant, &session, query)
            .await
            .map_err(|error| status::engine(&error))?;
        if format.is_none() {
            let answer = history::fitting_reply(page, (query.scope, query.range), None);
            return Ok(Response::new(answer?));
        }
        let bytes = page.turns.iter().map(|turn| turn.len()).sum();
        let render = move || history::fitting_reply(page, (query.scope, query.range), format);
        let written = self.heavy.run(&tenant.id, bytes, render).await?;
        Ok(Response::new(written))
    }

    async fn get_session(
        &self,
        request: Request<v1::GetSessionRequest>,
    ) -> RpcResult<v1::GetSessionResponse> {
        let (caller, request) = caller(request)?;
        let (tenant, role) = (caller.tenant, caller.role);
        let session = from::session_id(&request.session_id)?;
        let detail = self
            .engine
            .compaction
            .session_detail(&tenant, &session)
            .await
            .map_err(|error| status::engine(&error))?;
        let mut reply = compaction::detail(&detail, role);
        if request.include_state {
            let state = self
                .engine
                .commands
                .state(&tenant, &session)
                .await
                .map_err(|error| status::engine(&error))?;
            reply.state_json = state.json.to_string();
        }
        Ok(Response::new(reply))
    }

    async fn list_sessions(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> RpcResult<v1::ListSessionsResponse> {
        let (tenant, request) = tenant_and_message_for_page(request).await?;
        let size = from::page_size(request.page_size);
        let (include_state, token) = (request.include_state, request.page_token.clone());
        let query = from::session_query(request)?;
        let after = from::session_page_token(&token, query.order)?;
        let commands = &self.engine.commands;
        let mut page = commands
            .sessions(&tenant, &query, after.as_ref(), size)
            .await
            .map_err(|error| status::engine(&error))?;
        let (mut sessions, mut bytes) = (Vec::with_capacity(page.sessions.len()), 0);
        for view in &page.sessions {
            let mut info = to::session_info(view);
            if include_state {
                info.state_json = match commands.state(&tenant, &view.session).await {
                    Ok(state) => state.json.to_string(),
                    // It ended after it was listed.
                    Err(EngineError::SessionNotFound { .. }) => String::new(),
                    Err(error) => return Err(status::engine(&error).into()),
                };
            }
            bytes += info.encoded_len();
            if bytes > PAGE_BYTES_MAX && !sessions.is_empty() {
                break;
            }
            sessions.push(info);
        }
        page.cut(sessions.len());
        Ok(Response::new(to::sessions(
            sessions,
            page.next.as_ref(),
            query.order,
        )))
    }

    async fn patch_state(
        &self,
        request: Request<v1::PatchStateRequest>,
    ) -> RpcResult<v1::PatchStateResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let session = from::session_id(&request.session_id)?;
        let command = from::patch(request)?;
        let commands = &self.engine.commands;
        let outcome = commands.patch_state(&tenant, &session, &command).await;
        rpc_result(outcome, |outcome| to::patched(&outcome))
    }

    async fn reset_session(
        &self,
        request: Request<v1::ResetSessionRequest>,
    ) -> RpcResult<v1::ResetSessionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let session = from::session_id(&request.session_id)?;
        let reset = self
            .engine
            .commands
            .reset_session(&tenant, &session, request.run_hooks);
        rpc_result(reset.await, |(view, ended)| v1::ResetSessionResponse {
            session: Some(to::session_info(&view)),
            ended_generation: ended.to_string(),
        })
    }

    async fn end_session(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> RpcResult<v1::EndSessionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let session = from::session_id(&request.session_id)?;
        let view = self.engine.commands.end_session(&tenant, &session).await;
        rpc_result(view, |view| v1::EndSessionResponse {
            session: Some(to::session_info(&view)),
        })
    }

    async fn erase_session(
        &self,
        request: Request<v1::EraseSessionRequest>,
    ) -> RpcResult<v1::EraseSessionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let target = erasure::session(&request)?;
        let erased = self.engine.erasures.erase(&tenant, target).await;
        rpc_result(erased, erasure::session_erased)
    }

    async fn erase_subject(
        &self,
        request: Request<v1::EraseSubjectRequest>,
    ) -> RpcResult<v1::EraseSubjectResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let target = erasure::subject(&request)?;
        let erased = self.engine.erasures.erase(&tenant, target).await;
        rpc_result(erased, erasure::subject_erased)
    }

    async fn get_erasure(
        &self,
        request: Request<v1::GetErasureRequest>,
    ) -> RpcResult<v1::GetErasureResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let id = erasure::job_id(&request.job_id)?;
        let found = self.engine.erasures.get(&tenant.id, id).await;
        let waits_for = self.engine.erasures.waits_for(id);
        rpc_result(found, |found| erasure::found(found, waits_for))
    }

    async fn compact_session(
        &self,
        request: Request<v1::CompactSessionRequest>,
    ) -> RpcResult<v1::CompactSessionResponse> {
        let (caller, request) = caller(request)?;
        let (tenant, role) = (caller.tenant, caller.role);
        let session = from::session_id(&request.session_id)?;
        let keep = compaction::keep_exchanges(request.keep_exchanges)?;
        let outcome = self
            .engine
            .compaction
            .compact_session(&tenant, &session, keep)
            .await
            .map_err(|error| compaction::failure(error, role));
        rpc_result(outcome, |outcome| compaction::compacted(&outcome))
    }

    async fn rewind_session(
        &self,
        request: Request<v1::RewindSessionRequest>,
    ) -> RpcResult<v1::RewindSessionResponse> {
        let permit = call_permit(&request)?;
        let (caller, mut request) = caller(request)?;
        let tenant = caller.tenant;
        let session_id = std::mem::take(&mut request.session_id);
        let session = from::session_id(&session_id)?;
        let (bytes, policy) = (from::rewind_bytes(&request), tenant.policy());
        let names = AppendNames::new(&request.messages_json);
        let read = move || from::rewind(request, &policy.limits);
        let command = self.heavy.run(&tenant.id, bytes, read).await?;
        // Before the rewind, so that a client that does not read is rejected first.
        permit.reserve_response(PAGE_BYTES_MAX as u64).await?;
        caller.key.check()?;
        let commands = &self.engine.commands;
        let outcome = commands
            .rewind(&tenant, &session, command)
            .await
            .map_err(|error| status::engine_named(&error, &names))?;
        let bytes = outcome.removed.newest.iter().map(|turn| turn.len()).sum();
        let write = move || to::rewound(session_id, &outcome);
        let written = self.heavy.run(&tenant.id, bytes, write).await?;
        Ok(Response::new(written))
    }

    async fn copy_session(
        &self,
        request: Request<v1::CopySessionRequest>,
    ) -> RpcResult<v1::CopySessionResponse> {
        let (caller, request) = caller(request)?;
        let tenant = caller.tenant;
        let session = from::session_id(&request.session_id)?;
        let command = from::copy(&request)?;
        let commands = &self.engine.commands;
        let outcome = commands.copy_session(&tenant, &session, command).await;
        rpc_result(outcome, |outcome| {
            to::copied(request.target_session_id, &outcome)
        })
    }

    async fn update_turn(
        &self,
        request: Request<v1::UpdateTurnRequest>,
    ) -> RpcResult<v1::UpdateTurnResponse> {
        let (caller, request) = caller(request)?;
        let tenant = caller.tenant;
        let session = from::session_id(&request.session_id)?;
        let bytes = request.turn.as_ref().map_or(0, Message::encoded_len);
        let read = move || from::turn_update(request);
        let command = self.heavy.run(&tenant.id, bytes, read).await?;
        caller.key.check()?;
        let commands = &self.engine.commands;
        let outcome = commands
            .update_turn(&tenant, &session, command)
            .await
            .map_err(|error| status::engine_named(&error, &UpdateNames))?;
        Ok(Response::new(to::turn_updated(&outcome)?))
    }

    async fn undo_compaction(
        &self,
        request: Request<v1::UndoCompactionRequest>,
    ) -> RpcResult<v1::UndoCompactionResponse> {
        let (tenant, request) = tenant_and_message(request)?;
        let session = from::session_id(&request.session_id)?;
        let undone = self
            .engine
            .compaction
            .undo_compaction(&tenant, &session)
            .await;
        rpc_result(undone, |(view, restored_turns)| {
            v1::UndoCompactionResponse {
                session: Some(to::session_info(&view)),
                restored_turns,
            }
        })
    }

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> RpcResult<Self::WatchEventsStream> {
        let (caller, request) = caller(request)?;
        Ok(Response::new(self.watching.watch(&caller, &request)?))
    }
}
