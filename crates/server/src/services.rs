//! The gRPC services. Handlers convert messages with `wire`, and call the engine or memories.

pub(crate) mod admin;
mod backup;
pub(crate) mod document;
mod maintenance;
pub(crate) mod memory;
pub(crate) mod session;
mod watch;

use std::sync::Arc;

use memoird_core::time::Timestamp;
use memoird_engine::{Engine, Tenant};
use memoird_memories::Memories;
use memoird_search::Search;

use crate::heavy::HeavyWork;
use crate::journal_location::Members;
use crate::keyring::Caller;
use crate::layers::limits::CallPermit;
use crate::layers::limits::rates::Rates;
use crate::reload::Reloader;
use crate::wire::PAGE_BYTES_MAX;
use crate::wire::refusal::Refusal;
pub(crate) use maintenance::Maintenance;
pub(crate) use watch::Watchers;

#[derive(Debug)]
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
    /// Maximum size of a request in bytes.
    pub(crate) request_bytes: usize,
    pub(crate) started_at: Timestamp,
}

/// An admitted call with a valid key.
///
/// Handlers that wait before their command check the key again.
#[derive(Clone)]
pub(crate) struct ApiCall<Q> {
    pub(crate) api: Arc<Api>,
    pub(crate) caller: Caller,
    pub(crate) permit: Arc<CallPermit>,
    pub(crate) message: Q,
}

type Reply<T> = Result<T, Refusal>;

impl ApiCall<()> {
    /// The same call with a message.
    pub(crate) fn with<Q>(&self, message: Q) -> ApiCall<Q> {
        ApiCall {
            api: Arc::clone(&self.api),
            caller: self.caller.clone(),
            permit: Arc::clone(&self.permit),
            message,
        }
    }
}

impl<Q> ApiCall<Q> {
    /// Splits it, if neither the role of the caller nor its permit matters.
    fn into_parts(self) -> (Arc<Api>, Arc<Tenant>, Q) {
        (self.api, self.caller.tenant, self.message)
    }

    /// Like [`Self::into_parts`], after reserving room for a page.
    async fn into_parts_for_page(self) -> Reply<(Arc<Api>, Arc<Tenant>, Q)> {
        self.reserve(PAGE_BYTES_MAX as u64).await?;
        Ok(self.into_parts())
    }

    /// Reserves room for a response of up to this many bytes, and checks the key again.
    async fn reserve(&self, bytes_max: u64) -> Reply<()> {
        self.permit.reserve_response(bytes_max).await?;
        self.caller.key.check()
    }
}
