//! Cache of manifests. Bots request one with every turn, and memories change rarely.

use std::sync::{Arc, Mutex};

use hashlink::LruCache;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;

use crate::error::MemoryError;
use crate::lock;
use crate::rules::manifest::Manifest;
use crate::store::TouchedManifests;

/// Maximum cached manifests per tenant, of up to 25,000 bytes each.
const KEPT_MAX: usize = 256;

/// Subject, maximum lines and maximum bytes.
pub(super) type ManifestKey = (Subject, usize, usize);

#[derive(Debug)]
pub(super) struct Manifests(Mutex<ManifestCache>);

#[derive(Debug)]
struct ManifestCache {
    /// Number of invalidations. A manifest read before the last one is not cached.
    version: u64,
    cache: LruCache<ManifestKey, (Arc<Manifest>, Option<Timestamp>)>,
}

impl Default for Manifests {
    fn default() -> Self {
        Self(Mutex::new(ManifestCache {
            version: 0,
            cache: LruCache::new(KEPT_MAX),
        }))
    }
}

impl Manifests {
    /// Returns the cached manifest, or the version to pass to [`keep`](Self::keep) for a new one.
    pub(super) fn get(&self, key: &ManifestKey, now: Timestamp) -> Result<Arc<Manifest>, u64> {
        let mut kept = lock(&self.0);
        match kept.cache.get(key) {
            Some((manifest, until)) if until.is_none_or(|until| now < until) => {
                Ok(Arc::clone(manifest))
            }
            _ => Err(kept.version),
        }
    }

    /// Caches a manifest, unless the cache was invalidated since `version`.
    ///
    /// It is valid until a memory of it expires.
    pub(super) fn keep(
        &self,
        version: u64,
        key: ManifestKey,
        manifest: Arc<Manifest>,
        until: Option<Timestamp>,
    ) {
        let mut kept = lock(&self.0);
        if kept.version == version {
            kept.cache.insert(key, (manifest, until));
        }
    }

    /// Drops the manifests that a write invalidated, or may have invalidated.
    pub(super) fn forget(&self, written: &Result<TouchedManifests, MemoryError>) {
        let mut kept = lock(&self.0);
        match written {
            Ok(TouchedManifests::One(subject)) => {
                kept.cache.retain(|key, _| key.0 != *subject);
            }
            Ok(TouchedManifests::All) | Err(MemoryError::InDoubt { .. }) => kept.cache.clear(),
            Ok(TouchedManifests::Nothing) | Err(_) => return,
        }
        kept.version += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

    use super::*;

    #[test]
    fn what_may_have_been_written_makes_manifests_old() {
        let manifests = Manifests::default();
        let key = (Subject::parse("ann").unwrap(), 1, 1);
        let kept = || manifests.get(&key, Timestamp::from_ms(0)).is_ok();
        let manifest = Arc::new(Manifest {
            text: String::new(),
            lines: 0,
            truncated: false,
        });
        manifests.keep(0, key.clone(), manifest, None);
        manifests.forget(&Err(MemoryError::Busy));
        assert!(kept());
        let detail = "the connection was lost".to_owned();
        manifests.forget(&Err(MemoryError::InDoubt { detail }));
        assert!(!kept());
    }
}
