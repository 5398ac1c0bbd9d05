//! Manifests are asked for at every turn, and made anew only when a memory changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashlink::LruCache;
use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;

use super::Touch;
use crate::rules::manifest::Manifest;

/// Manifests of a tenant that are kept, of at most 25,000 bytes each.
const KEPT_MAX: usize = 256;

/// A subject's manifest under these caps of lines and bytes.
pub(super) type ManifestKey = (Subject, usize, usize);

/// The manifests of one tenant.
pub(super) struct Manifests(Mutex<Kept>);

struct Kept {
    /// Counts what made manifests old, so that one which was read before is not kept.
    version: u64,
    cache: LruCache<ManifestKey, (Arc<Manifest>, Option<Timestamp>)>,
}

impl std::fmt::Debug for Manifests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Manifests")
    }
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
        let mut kept = self.kept();
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
        let mut kept = self.kept();
        if kept.version == version {
            kept.cache.insert(key, (manifest, until));
        }
    }

    /// Forgets what is old now.
    pub(super) fn forget(&self, touch: &Touch) {
        let mut kept = self.kept();
        match touch {
            Touch::Nothing => return,
            Touch::One(subject) => {
                let old: Vec<ManifestKey> = kept
                    .cache
                    .iter()
                    .map(|(key, _)| key.clone())
                    .filter(|key| key.0 == *subject)
                    .collect();
                for key in old {
                    kept.cache.remove(&key);
                }
            }
            Touch::All => kept.cache.clear(),
        }
        kept.version += 1;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
