//! Cache of token counts by providers, with a circuit breaker per counter.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashlink::LruCache;
use memoird_core::breaker::{Breaker, BreakerPolicy};
use memoird_core::ids::TenantId;
use memoird_core::time::Steady;
use parking_lot::Mutex;
use tracing::warn;

use crate::token_counter::{CountRequest, TokenCounter};

/// Capacity of the cache, in counts.
const COUNTS_MAX: usize = 1_024;

#[derive(Debug)]
pub(super) struct RemoteCounts {
    inner: Mutex<Inner>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Inner {
    known: LruCache<u64, u64>,
    /// By counter name; a configuration has few.
    breakers: HashMap<String, Breaker>,
}

impl Default for RemoteCounts {
    fn default() -> Self {
        let inner = Inner {
            known: LruCache::new(COUNTS_MAX),
            breakers: HashMap::new(),
        };
        Self {
            inner: Mutex::new(inner),
            hasher: RandomState::new(),
        }
    }
}

impl RemoteCounts {
    /// Counts the tokens of a request. Returns `None` if the counter fails or its breaker is open.
    pub(super) async fn count(
        &self,
        tenant: &TenantId,
        counter: &Arc<dyn TokenCounter>,
        request: CountRequest,
        now: impl Fn() -> Steady,
    ) -> Option<u64> {
        // Include the tenant. A shared cache would be a timing side channel between tenants.
        let content = (
            tenant.as_str(),
            counter.name(),
            &request.system,
            &request.tools_json,
            &request.messages_json,
        );
        let digest = self.hasher.hash_one(content);
        let policy = BreakerPolicy::default();
        {
            let mut inner = self.inner.lock();
            if let Some(known) = inner.known.get(&digest) {
                return Some(*known);
            }
            let breaker = inner.breakers.entry(counter.name().to_owned()).or_default();
            if !breaker.admits(now(), &policy) {
                return None;
            }
        }
        let counted = counter.count(request).await;
        let mut inner = self.inner.lock();
        let breaker = inner.breakers.entry(counter.name().to_owned()).or_default();
        match counted {
            Ok(tokens) => {
                breaker.succeeded();
                inner.known.insert(digest, tokens);
                Some(tokens)
            }
            Err(error) => {
                error.note(breaker, now(), &policy);
                warn!(counter = counter.name(), %error, "tokens are estimated");
                None
            }
        }
    }
}
