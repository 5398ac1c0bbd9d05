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

use crate::admission::CallPermit;
use crate::auth::Caller;
use crate::heavy::HeavyWork;
use crate::journal_location::Members;
use crate::rates::Rates;
use crate::reload::Reloader;
use crate::wire::status;

pub(crate) use maintenance::{Maintenance, MaintenanceError};
pub(crate) use watch::{EventView, Watching};

/// Maximum size in bytes of a page of hits, memories or sessions, and roughly of a recall.
const PAGE_BYTES_MAX: u64 = 2 << 20;

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
    pub(crate) started_at: Timestamp,
}

type Answer<T> = Result<Response<T>, Status>;

/// Converts the outcome of a call. [`MemoryError`] covers errors of the engine and core as well.
fn answer<T, R>(
    outcome: Result<T, impl Into<MemoryError>>,
    reply: impl FnOnce(T) -> R,
) -> Answer<R> {
    match outcome {
        Ok(done) => Ok(Response::new(reply(done))),
        Err(error) => Err(status::memory(&error.into())),
    }
}

/// Splits a request into tenant and message, after checking the key.
///
/// Handlers that wait before their command use [`caller`], and check the key again.
fn split<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    caller(request).map(|(caller, message)| (caller.tenant, message))
}

fn place<T>(request: &Request<T>) -> Result<Arc<CallPermit>, Status> {
    let place = request.extensions().get::<Arc<CallPermit>>();
    place.map(Arc::clone).ok_or_else(status::no_caller)
}

/// Like [`split`], after reserving room for a page.
async fn split_for_page<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    place(&request)?.reserve_response(PAGE_BYTES_MAX).await?;
    split(request)
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
