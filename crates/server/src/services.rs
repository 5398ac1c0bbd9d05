//! The gRPC services. Handlers convert messages with `wire`, and call the engine or memories.

mod admin;
mod backup;
mod document;
mod maintenance;
mod memory;
mod session;
mod watch;

use std::sync::Arc;

use memoird_core::time::Timestamp;
use memoird_engine::{Engine, Tenant};
use memoird_memories::{Memories, MemoryError};
use memoird_search::Search;
use tonic::{Request, Response, Status};

use crate::heavy::HeavyWork;
use crate::journal_location::Members;
use crate::keyring::Caller;
use crate::layers::limits::CallPermit;
use crate::layers::limits::rates::Rates;
use crate::reload::Reloader;
use crate::wire::{PAGE_BYTES_MAX, status};

pub(crate) use maintenance::Maintenance;
pub(crate) use watch::Watchers;

#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) engine: Engine,
    pub(crate) memories: Memories,
    pub(crate) search: Search,
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) members: Members,
    pub(crate) watching: Watchers,
    pub(crate) maintenance: Maintenance,
    pub(crate) heavy: HeavyWork,
    pub(crate) rates: Rates,
    pub(crate) started_at: Timestamp,
}

type RpcResult<T> = Result<Response<T>, Status>;

/// Converts the outcome of a call. [`MemoryError`] covers errors of the engine and core as well.
fn rpc_result<T, R>(
    outcome: Result<T, impl Into<MemoryError>>,
    reply: impl FnOnce(T) -> R,
) -> RpcResult<R> {
    match outcome {
        Ok(done) => Ok(Response::new(reply(done))),
        Err(error) => Err(status::memory(&error.into()).into()),
    }
}

/// Splits a request into tenant and message, after checking the key.
///
/// Handlers that wait before their command use [`caller`], and check the key again.
fn tenant_and_message<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    caller(request).map(|(caller, message)| (caller.tenant, message))
}

fn call_permit<T>(request: &Request<T>) -> Result<Arc<CallPermit>, Status> {
    let permit = request.extensions().get::<Arc<CallPermit>>();
    Ok(permit.map(Arc::clone).ok_or_else(status::no_caller)?)
}

/// Like [`tenant_and_message`], after reserving room for a page.
async fn tenant_and_message_for_page<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    call_permit(&request)?
        .reserve_response(PAGE_BYTES_MAX as u64)
        .await?;
    tenant_and_message(request)
}

/// Returns the message of an operator's request, after checking the key.
fn operator<T>(request: Request<T>) -> Result<T, Status> {
    caller(request).map(|(_, message)| message)
}

/// Splits a request into caller and message, after checking the key.
fn caller<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller: Caller = extensions.remove().ok_or_else(status::no_caller)?;
    caller.key.check()?;
    Ok((caller, message))
}
