//! A cache of manifests: bots request one at every turn, and memories change rarely.

use std::sync::{Arc, Mutex};

use hashlink::LruCache;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;

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

    /// Drops the manifests that this makes old.
    pub(super) fn forget(&self, touch: &Touch) {
        let mut kept = locked(&self.0);
        match touch {
            Touch::Nothing => return,
            Touch::One(subject) => {
                kept.cache.retain(|key, _| key.0 != *subject);
            }
            Touch::All => kept.cache.clear(),
        }
        kept.version += 1;
    }
}
