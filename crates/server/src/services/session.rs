//! SessionService: the calls that a bot makes for each message.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::ids::Generation;
use memoird_engine::{
    Commands, ContextOutcome, EngineError, RecallTool, SessionView, Tenant, TranscriptSearch,
};
use memoird_proto::spliced;
use memoird_proto::v1::{
    AppendRequest, AppendResponse, BuildContextRequest, CompactSessionRequest,
    CompactSessionResponse, CopySessionRequest, CopySessionResponse, EndSessionRequest,
    EndSessionResponse, EraseSessionRequest, EraseSessionResponse, EraseSubjectRequest,
    EraseSubjectResponse, Erasure, GetErasureRequest, GetErasureResponse, GetHistoryRequest,
    GetSessionRequest, GetSessionResponse, ListSessionsRequest, ListSessionsResponse,
    ResetSessionRequest, ResetSessionResponse, ResolveRecallToolRequest, ResolveRecallToolResponse,
    RewindSessionRequest, RewindSessionResponse, SearchTranscriptsRequest, SessionInfo,
    UndoCompactionRequest, UndoCompactionResponse, UpdateSessionRequest, UpdateSessionResponse,
    UpdateTurnRequest, UpdateTurnResponse, WatchEventsRequest,
};
use memoird_store::EraseTarget;
use prost::Message;

use super::watch::EventStream;
use super::{Api, ApiCall, Reply};
use crate::heavy::HEAVY_BYTES;
use crate::layers::reply_limit;
use crate::wire::refusal::{Names, Refusal};
use crate::wire::{
    PAGE_BYTES_MAX, compaction, context, erasure, from, history, recall_tool, search,
    session_token, status, to,
};

/// Maximum number of sessions per read of states. A page fits as many of the default maximum size.
const STATES_PER_READ: usize = 32;

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

pub(crate) async fn append(call: ApiCall<AppendRequest>) -> Reply<AppendResponse> {
    let (caller, mut request) = (call.caller, call.message);
    let tenant = caller.tenant;
    let session_id = std::mem::take(&mut request.session_id);
    let session = from::session_id(&session_id)?;
    let (bytes, policy) = (from::append_bytes(&request), tenant.policy());
    let names = from::append_names(&request.messages_json);
    let read = move || from::append(request, &policy.limits);
    let command = call.api.heavy.run(&tenant.id, bytes, read).await?;
    caller.key.check()?;
    let appended = call.api.engine.commands.append(&tenant, &session, command);
    let outcome = appended.await;
    let outcome = outcome.map_err(|error| status::engine_named(&error, names))?;
    Ok(to::appended(session_id, &outcome))
}

pub(crate) async fn build_context(
    call: ApiCall<BuildContextRequest>,
) -> Reply<spliced::BuildContextResponse> {
    let (caller, permit, request) = (call.caller, call.permit, call.message);
    let tenant = caller.tenant;
    let session = from::session_id(&request.session_id)?;
    let policy = tenant.policy();
    let bytes = context::bytes_to_parse(&request);
    permit.allow_reply(reply_limit::for_budget(request.budget.as_ref()));
    let names = context::names(&request);
    let has_search = call.api.search.is_enabled();
    let read = move || context::parse(request, &policy.limits, has_search);
    let mut asked = call.api.heavy.run(&tenant.id, bytes, read).await?;
    // Before the append, so that a client that does not read is rejected first.
    permit.reserve_response(HEAVY_BYTES as u64).await?;
    let recall = asked.memories.map(|request| {
        let recall = call.api.memories.recall.for_window(&tenant, request);
        recall.map_err(|error| Refusal::from(error).under("memories"))
    });
    let recall = recall.transpose()?;
    if let Some(recall) = &recall {
        asked.request.memories = Some(recall.clone());
    }
    if asked.options.has_recall_tool() {
        asked.request.recall_tool = Some(call.api.recall_tool());
    }
    caller.key.check()?;
    let commands = &call.api.engine.commands;
    let window = commands.context(&tenant, &session, asked.request).await;
    let window = window.map_err(|error| status::engine_named(&error, names))?;
    permit.reserve_response(window_bytes(&window)).await?;
    let (tenant, heavy) = (&tenant.id, &call.api.heavy);
    context::reply(window, recall.as_deref(), asked.options, tenant, heavy).await
}

pub(crate) async fn resolve_recall_tool(
    call: ApiCall<ResolveRecallToolRequest>,
) -> Reply<ResolveRecallToolResponse> {
    let session = from::session_id(&call.message.session_id)?;
    let (tool_call, to_answer) = recall_tool::call(call.message)?;
    call.permit
        .reserve_response(recall_tool::CALL_BYTES)
        .await?;
    call.caller.key.check()?;
    let (commands, tenant) = (&call.api.engine.commands, &call.caller.tenant);
    let tool = call.api.recall_tool();
    let reply = commands.resolve_recall_tool(tenant, &session, &tool, &tool_call);
    Ok(recall_tool::resolved(reply.await?, to_answer))
}

pub(crate) async fn get_history(
    call: ApiCall<GetHistoryRequest>,
) -> Reply<spliced::GetHistoryResponse> {
    let (tenant, request) = (&call.caller.tenant, &call.message);
    let session = from::session_id(&request.session_id)?;
    let query = from::history(request)?;
    let format = history::format(request.format)?;
    // The turns, and possibly the same as messages.
    let times = if format.is_some() { 3 } else { 1 };
    call.reserve(times * query.range.bytes_max as u64).await?;
    let page = call
        .api
        .engine
        .commands
        .history(tenant, &session, query)
        .await?;
    if format.is_none() {
        return history::fitting_reply(page, (query.scope, query.range), None);
    }
    let bytes = page.turns.iter().map(|turn| turn.len()).sum();
    let render = move || history::fitting_reply(page, (query.scope, query.range), format);
    call.api.heavy.run(&tenant.id, bytes, render).await
}

pub(crate) async fn get_session(call: ApiCall<GetSessionRequest>) -> Reply<GetSessionResponse> {
    let (tenant, role) = (&call.caller.tenant, call.caller.role);
    let session = from::session_id(&call.message.session_id)?;
    let detail = call
        .api
        .engine
        .compaction
        .session_detail(tenant, &session)
        .await?;
    let mut reply = compaction::detail(&detail, role);
    if call.message.include_state {
        let state = call.api.engine.commands.state(tenant, &session).await?;
        if let Some(session) = &mut reply.session {
            session.state_json = state.json.to_string();
        }
    }
    Ok(reply)
}

pub(crate) async fn list_sessions(
    call: ApiCall<ListSessionsRequest>,
) -> Reply<ListSessionsResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let size = from::page_size(request.page_size);
    let (include_state, token) = (request.include_state, request.page_token.clone());
    let query = from::session_query(request)?;
    let after = session_token::parse(&token, query.order)?;
    let commands = &api.engine.commands;
    let listed = commands.sessions(&tenant, &query, after.as_ref(), size);
    let mut page = listed.await?;
    let (mut sessions, mut bytes) = (Vec::with_capacity(page.sessions.len()), 0);
    'page: for views in page.sessions.chunks(STATES_PER_READ) {
        let states = if include_state {
            states(commands, &tenant, views).await?
        } else {
            HashMap::new()
        };
        for view in views {
            let state = states.get(&view.head.generation);
            let info = SessionInfo {
                state_json: state.map(ToString::to_string).unwrap_or_default(),
                ..to::session_info(view)
            };
            bytes += info.encoded_len();
            if bytes > PAGE_BYTES_MAX && !sessions.is_empty() {
                break 'page;
            }
            sessions.push(info);
        }
    }
    page.cut(sessions.len());
    Ok(to::sessions(sessions, page.next.as_ref(), query.order))
}

/// Reads the states of listed sessions. Those of live ones that have ended since are missing.
async fn states(
    commands: &Commands,
    tenant: &Arc<Tenant>,
    views: &[SessionView],
) -> Result<HashMap<Generation, Arc<str>>, Refusal> {
    let mut states = HashMap::new();
    let (ended, live): (Vec<_>, Vec<_>) = views.iter().partition(|view| view.ended.is_some());
    for view in live {
        match commands.state(tenant, &view.session).await {
            Ok(state) => drop(states.insert(view.head.generation, state.json)),
            Err(EngineError::SessionNotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !ended.is_empty() {
        let ended: Vec<_> = ended.iter().map(|view| view.head.generation).collect();
        let mut stored = commands.states_of_ended(tenant, ended.clone()).await?;
        // A generation without patches has no stored state.
        let state = |name| (name, stored.remove(&name).unwrap_or_else(|| "{}".into()));
        states.extend(ended.into_iter().map(state));
    }
    Ok(states)
}

pub(crate) async fn search_transcripts(
    call: ApiCall<SearchTranscriptsRequest>,
) -> Reply<spliced::SearchTranscriptsResponse> {
    let (api, tenant, request) = call.into_parts_for_page().await?;
    let request = search::request(request)?;
    Ok(search::found(api.search.search(&tenant, request).await?))
}

pub(crate) async fn update_session(
    call: ApiCall<UpdateSessionRequest>,
) -> Reply<UpdateSessionResponse> {
    let (api, tenant, mut request) = call.into_parts();
    let session_id = std::mem::take(&mut request.session_id);
    let session = from::session_id(&session_id)?;
    let command = from::session_update(request)?;
    let names = match &command.state {
        Some(state) if state.replaces => Names::ReplaceState,
        _ => Names::Common,
    };
    let commands = &api.engine.commands;
    let outcome = commands.patch_state(&tenant, &session, &command).await;
    let outcome = outcome.map_err(|error| status::engine_named(&error, names))?;
    Ok(to::session_updated(session_id, &outcome))
}

pub(crate) async fn reset_session(
    call: ApiCall<ResetSessionRequest>,
) -> Reply<ResetSessionResponse> {
    let (api, tenant, request) = call.into_parts();
    let session = from::session_id(&request.session_id)?;
    let command = from::reset(&request)?;
    let commands = &api.engine.commands;
    let reset = commands.reset_session(&tenant, &session, request.run_hooks, command);
    Ok(to::reset(request.session_id, &reset.await?))
}

pub(crate) async fn end_session(call: ApiCall<EndSessionRequest>) -> Reply<EndSessionResponse> {
    let (api, tenant, request) = call.into_parts();
    let session = from::session_id(&request.session_id)?;
    let command = from::end(&request)?;
    let commands = &api.engine.commands;
    let ended = commands.end_session(&tenant, &session, command).await?;
    Ok(to::ended(request.session_id, &ended))
}

pub(crate) async fn erase_session(
    call: ApiCall<EraseSessionRequest>,
) -> Reply<EraseSessionResponse> {
    let (api, tenant, request) = call.into_parts();
    let erasure = erase(&api, &tenant, erasure::session(&request)?).await?;
    Ok(EraseSessionResponse { erasure })
}

pub(crate) async fn erase_subject(
    call: ApiCall<EraseSubjectRequest>,
) -> Reply<EraseSubjectResponse> {
    let (api, tenant, request) = call.into_parts();
    let erasure = erase(&api, &tenant, erasure::subject(&request)?).await?;
    Ok(EraseSubjectResponse { erasure })
}

async fn erase(api: &Api, tenant: &Arc<Tenant>, target: EraseTarget) -> Reply<Option<Erasure>> {
    let erasures = &api.engine.erasures;
    let begun = erasures.erase(tenant, target).await?;
    let waits_for = erasures.waits_for(begun.id);
    Ok(Some(erasure::erasure(begun, waits_for)))
}

pub(crate) async fn get_erasure(call: ApiCall<GetErasureRequest>) -> Reply<GetErasureResponse> {
    let (api, tenant, request) = call.into_parts();
    let id = request.id.parse()?;
    let erasures = &api.engine.erasures;
    let found = erasures.get(&tenant.id, id).await?;
    let erasure = Some(erasure::erasure(found, erasures.waits_for(id)));
    Ok(GetErasureResponse { erasure })
}

pub(crate) async fn compact_session(
    call: ApiCall<CompactSessionRequest>,
) -> Reply<CompactSessionResponse> {
    let (tenant, role) = (&call.caller.tenant, call.caller.role);
    let session = from::session_id(&call.message.session_id)?;
    let keep = compaction::keep_exchanges(call.message.keep_exchanges)?;
    let compaction = &call.api.engine.compaction;
    let outcome = compaction.compact_session(tenant, &session, keep).await;
    let outcome = outcome.map_err(|error| compaction::failure(error, role))?;
    Ok(compaction::compacted(&outcome))
}

pub(crate) async fn rewind_session(
    call: ApiCall<RewindSessionRequest>,
) -> Reply<RewindSessionResponse> {
    let (caller, permit, mut request) = (call.caller, call.permit, call.message);
    let tenant = caller.tenant;
    let session_id = std::mem::take(&mut request.session_id);
    let session = from::session_id(&session_id)?;
    let (bytes, policy) = (from::rewind_bytes(&request), tenant.policy());
    let names = from::append_names(&request.messages_json);
    let read = move || from::rewind(request, &policy.limits);
    let command = call.api.heavy.run(&tenant.id, bytes, read).await?;
    // Before the rewind, so that a client that does not read is rejected first.
    permit.reserve_response(PAGE_BYTES_MAX as u64).await?;
    caller.key.check()?;
    let outcome = call
        .api
        .engine
        .commands
        .rewind(&tenant, &session, command)
        .await;
    let outcome = outcome.map_err(|error| status::engine_named(&error, names))?;
    let bytes = outcome.removed.newest.iter().map(|turn| turn.len()).sum();
    let write = move || to::rewound(session_id, &outcome);
    call.api.heavy.run(&tenant.id, bytes, write).await
}

pub(crate) async fn copy_session(call: ApiCall<CopySessionRequest>) -> Reply<CopySessionResponse> {
    let (api, tenant, request) = call.into_parts();
    let session = from::session_id(&request.session_id)?;
    let command = from::copy(&request)?;
    let commands = &api.engine.commands;
    let outcome = commands.copy_session(&tenant, &session, command).await?;
    Ok(to::copied(request.target_session_id, &outcome))
}

pub(crate) async fn update_turn(call: ApiCall<UpdateTurnRequest>) -> Reply<UpdateTurnResponse> {
    let (caller, mut request) = (call.caller, call.message);
    let tenant = caller.tenant;
    let session_id = std::mem::take(&mut request.session_id);
    let session = from::session_id(&session_id)?;
    let turn_bytes = request.turn.as_ref().map_or(0, Message::encoded_len);
    let bytes = turn_bytes + request.messages_json.len();
    let names = Names::UpdateTurn {
        has_messages: !request.messages_json.is_empty(),
    };
    let read = move || from::turn_update(request);
    let command = call.api.heavy.run(&tenant.id, bytes, read).await?;
    caller.key.check()?;
    let commands = &call.api.engine.commands;
    let outcome = commands.update_turn(&tenant, &session, command).await;
    let outcome = outcome.map_err(|error| status::engine_named(&error, names))?;
    to::turn_updated(session_id, &outcome)
}

pub(crate) async fn undo_compaction(
    call: ApiCall<UndoCompactionRequest>,
) -> Reply<UndoCompactionResponse> {
    let (api, tenant, request) = call.into_parts();
    let session = from::session_id(&request.session_id)?;
    let compaction = &api.engine.compaction;
    let (view, restored_turns) = compaction.undo_compaction(&tenant, &session).await?;
    Ok(UndoCompactionResponse {
        session: Some(to::session_info(&view)),
        restored_turns,
    })
}

pub(crate) async fn watch_events(call: ApiCall<WatchEventsRequest>) -> Reply<EventStream> {
    call.api.watching.watch(&call.caller, &call.message)
}
