//! The gRPC services. Each handler reads the request with `wire`, calls the engine or the
//! memories, and writes the reply with `wire`.

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

use crate::admission::CallPlace;
use crate::auth::Caller;
use crate::heavy::HeavyWork;
use crate::journal_place::Members;
use crate::rates::Rates;
use crate::reload::Reloader;
use crate::wire::status;

pub(crate) use maintenance::{Maintenance, MaintenanceError};
pub(crate) use watch::{EventView, Watching};

/// Bytes of the largest page of hits, memories or sessions, and about what a recall gives at most.
const PAGE_BYTES_MAX: u64 = 2 << 20;

/// The implementation of all services.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) engine: Engine,
    pub(crate) memories: Memories,
    pub(crate) search: Search,
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) members: Members,
    pub(crate) watching: Watching,
    pub(crate) maintenance: Maintenance,
    pub(crate) heavy: HeavyWork,
    pub(crate) rates: Rates,
    /// When the daemon started.
    pub(crate) started_at: Timestamp,
}

/// The result of a call.
type Answer<T> = Result<Response<T>, Status>;

/// Makes a reply of the outcome of a call, or a status of its error. A [`MemoryError`] can hold
/// the errors of the engine and of the core as well.
fn answer<T, R>(
    outcome: Result<T, impl Into<MemoryError>>,
    reply: impl FnOnce(T) -> R,
) -> Answer<R> {
    match outcome {
        Ok(done) => Ok(Response::new(reply(done))),
        Err(error) => Err(status::memory(&error.into())),
    }
}

/// Splits a request into the caller's tenant and the message, where the caller's key still
/// applies. What waits before its command takes [`caller`], and checks the key again.
fn split<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    caller(request).map(|(caller, message)| (caller.tenant, message))
}

/// The place of a request's call.
fn place<T>(request: &Request<T>) -> Result<Arc<CallPlace>, Status> {
    let place = request.extensions().get::<Arc<CallPlace>>();
    place.map(Arc::clone).ok_or_else(status::no_caller)
}

/// Splits a request for a page, and waits for room for the answer.
async fn split_for_page<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    place(&request)?.reserve_answer(PAGE_BYTES_MAX).await?;
    split(request)
}

/// The message of an operator's request, where the caller's key still applies.
fn operator<T>(request: Request<T>) -> Result<T, Status> {
    caller(request).map(|(_, message)| message)
}

/// Splits a request into the caller, which the auth layer found, and the message, where the
/// caller's key still applies.
fn caller<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller: Caller = extensions.remove().ok_or_else(status::no_caller)?;
    caller.key.check()?;
    Ok((caller, message))
}
