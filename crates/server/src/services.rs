//! The services of the contract: each call is read, done by the engine, answered.

mod admin;
mod memory;
mod session;
mod watch;

use memoird_engine::EngineError;
use tonic::{Request, Response, Status};

use crate::auth::Caller;
use crate::wire::status;

pub(crate) use admin::AdminApi;
pub(crate) use memory::MemoryApi;
pub(crate) use session::SessionApi;
pub(crate) use watch::Watching;

/// What a call is answered with.
type Answer<T> = Result<Response<T>, Status>;

/// Answers with what the engine did.
fn answer<T, R>(outcome: Result<T, EngineError>, reply: impl FnOnce(T) -> R) -> Answer<R> {
    match outcome {
        Ok(done) => Ok(Response::new(reply(done))),
        Err(error) => Err(status::engine(&error)),
    }
}

/// A request's message and who sent it.
fn split<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller = extensions
        .remove::<Caller>()
        .ok_or_else(status::no_caller)?;
    Ok((caller, message))
}
