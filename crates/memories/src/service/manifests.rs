//! A cache of manifests: bots request one at every turn, and memories change rarely.

use std::sync::{Arc, Mutex};

use hashlink::LruCache;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;

use crate::error::MemoryError;
use crate::locked;
use crate::rules::manifest::Manifest;
use crate::store::Touch;

/// Manifests of a tenant that are kept, of at most 25,000 bytes each.
const KEPT_MAX: usize = 256;

/// A subject's manifest under these caps of lines and bytes.
pub(super) type ManifestKey = (Subject, usize, usize);

/// The manifests of one tenant.
#[derive(Debug)]
pub(super) struct Manifests(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    /// Counts invalidations, so that a manifest that was read before the last one is not kept.
    version: u64,
    cache: LruCache<ManifestKey, (Arc<Manifest>, Option<Timestamp>)>,
}

impl Default for Manifests {
    fn default() -> Self {
        Self(Mutex::new(Kept {
            version: 0,
            cache: LruCache::new(KEPT_MAX),
        }))
    }
}

impl Manifests {
    /// The manifest, if nothing changed since; else the version to keep the next one by.
    pub(super) fn get(&self, key: &ManifestKey, now: Timestamp) -> Result<Arc<Manifest>, u64> {
        let mut kept = locked(&self.0);
        match kept.cache.get(key) {
            Some((manifest, until)) if until.is_none_or(|until| now < until) => {
                Ok(Arc::clone(manifest))
            }
            _ => Err(kept.version),
        }
    }

    /// Keeps a manifest that holds until a memory of it expires, unless something changed
    /// since that version.
    pub(super) fn keep(
        &self,
        version: u64,
        key: ManifestKey,
        manifest: Arc<Manifest>,
        until: Option<Timestamp>,
    ) {
        let mut kept = locked(&self.0);
        if kept.version == version {
            kept.cache.insert(key, (manifest, until));
        }
    }

    /// Drops the manifests that a write made old, or may have made old.
    pub(super) fn forget(&self, written: &Result<Touch, MemoryError>) {
        let mut kept = locked(&self.0);
        match written {
            Ok(Touch::One(subject)) => {
                kept.cache.retain(|key, _| key.0 != *subject);
            }
            Ok(Touch::All) | Err(MemoryError::InDoubt { .. }) => kept.cache.clear(),
            Ok(Touch::Nothing) | Err(_) => return,
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
