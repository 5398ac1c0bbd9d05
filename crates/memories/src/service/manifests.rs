//! Manifests and their cache. Bots request one with every turn, and memories change rarely.

use std::sync::{Arc, Mutex};

use hashlink::LruCache;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;
use memoird_engine::Tenant;

use super::recall::Recall;
use crate::error::MemoryError;
use crate::lock;
use crate::rules::MemoryLimits;
use crate::rules::manifest::{Caps, Manifest, manifest};
use crate::store::{MemoryReader, TouchedManifests};

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

impl Recall {
    /// Returns the manifest of a subject. 0 lines or bytes select the maximum.
    pub async fn manifest(
        &self,
        tenant: &Tenant,
        subject: Subject,
        lines_max: usize,
        bytes_max: usize,
    ) -> Result<Arc<Manifest>, MemoryError> {
        let at_most =
            |asked: usize, limit: usize| if asked == 0 { limit } else { asked.min(limit) };
        let caps = Caps {
            lines: at_most(lines_max, MemoryLimits::MANIFEST_LINES),
            bytes: at_most(bytes_max, MemoryLimits::MANIFEST_BYTES),
        };
        let key = (subject, caps.lines, caps.bytes);
        let state = self.storage.state(&tenant.id);
        let now = self.storage.now();
        // Writes of other daemons do not invalidate the local cache.
        let version = if self.storage.are_shared() {
            None
        } else {
            match state.manifests.get(&key, now) {
                Ok(known) => return Ok(known),
                Err(version) => Some(version),
            }
        };
        let subject = key.0.clone();
        let read = move |reader: &MemoryReader<'_>| reader.manifest(&subject, now, caps.lines);
        let rows = self.storage.read(&tenant.id, read).await?;
        let made = Arc::new(manifest(&rows.memories, rows.total, caps));
        if let Some(version) = version {
            state
                .manifests
                .keep(version, key, Arc::clone(&made), rows.expires_at);
        }
        Ok(made)
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
