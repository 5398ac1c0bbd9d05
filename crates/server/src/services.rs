//! The services of the contract: each call is read, done by the engine, answered.

mod admin;
mod memory;
mod session;
mod watch;

use std::sync::Arc;

use memoird_engine::{EngineError, Tenant};
use memoird_memories::MemoryError;
use tonic::{Request, Response, Status};

use crate::admission::CallPlace;
use crate::auth::Caller;
use crate::wire::status;

pub(crate) use admin::AdminApi;
pub(crate) use memory::MemoryApi;
pub(crate) use session::SessionApi;
pub(crate) use watch::{Epoch, Watching};

/// What a call is answered with.
type Answer<T> = Result<Response<T>, Status>;

/// An error that a client sees as a status.
trait Refusal {
    fn status(&self) -> Status;
}

impl Refusal for EngineError {
    fn status(&self) -> Status {
        status::engine(self)
    }
}

impl Refusal for MemoryError {
    fn status(&self) -> Status {
        status::memory(self)
    }
}

/// Answers with what was done.
fn answer<T, R>(outcome: Result<T, impl Refusal>, reply: impl FnOnce(T) -> R) -> Answer<R> {
    match outcome {
        Ok(done) => Ok(Response::new(reply(done))),
        Err(error) => Err(error.status()),
    }
}

/// A request's tenant and its message.
fn split<T>(request: Request<T>) -> Result<(Arc<Tenant>, T), Status> {
    caller(request).map(|(caller, message)| (caller.tenant, message))
}

/// The place of a request's call.
fn place<T>(request: &Request<T>) -> Result<Arc<CallPlace>, Status> {
    let place = request.extensions().get::<Arc<CallPlace>>();
    place.map(Arc::clone).ok_or_else(status::no_caller)
}

/// A request's caller and its message.
fn caller<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller = extensions
        .remove::<Caller>()
        .ok_or_else(status::no_caller)?;
    Ok((caller, message))
}
