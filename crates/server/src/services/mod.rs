//! The services of the contract: each call is read, done by the engine, answered.

mod admin;
mod memory;
mod session;
mod watch;

use tonic::{Request, Status};

use crate::auth::Caller;
use crate::wire::status;

pub(crate) use admin::AdminApi;
pub(crate) use memory::MemoryApi;
pub(crate) use session::SessionApi;
pub(crate) use watch::Watching;

/// A request's message and who sent it.
fn split<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let (_, mut extensions, message) = request.into_parts();
    let caller = extensions
        .remove::<Caller>()
        .ok_or_else(status::no_caller)?;
    Ok((caller, message))
}
