//! A directory with one file per tenant. The most recently used files stay open.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hashlink::LinkedHashMap;
use memoird_core::hex;
use memoird_core::ids::TenantId;
use memoird_core::sha256::Sha256;
use memoird_store::{DataKey, DirLock, StoreError};

use super::file::TenantFile;
use super::open;
use crate::lock;
use crate::store::backend::{Backend, TenantBackend};
use crate::store::sql::StoreResult;

/// Maximum bytes of a file name that contains the whole tenant id.
///
/// A longer one contains the start of the id and a digest.
///
/// File systems allow 255 bytes, and SQLite adds suffixes.
const NAME_BYTES_MAX: usize = 160;
/// Bytes of the id in a shortened name.
const STEM_BYTES: usize = 96;
const EXTENSION: &str = ".db";
/// File that contains the journal position up to which extraction is done.
const LEARNT: &str = "learnt";

#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Maximum unused files that stay open.
    ///
    /// Files in use are never closed, so more may be open at a time.
    pub files_open_max: usize,
    /// Maximum pages of 4 KiB, after which SQLite reports a full disk. For tests; otherwise `None`.
    pub pages_max: Option<u32>,
    /// Encryption key. `None` stores the files unencrypted.
    pub key: Option<DataKey>,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            files_open_max: 64,
            pages_max: None,
            key: None,
        }
    }
}

#[derive(Debug)]
pub(in crate::store) struct MemoryFiles {
    dir: PathBuf,
    options: FilesOptions,
    /// Files that are open, or being opened or closed, least recently used first.
    open: Mutex<LinkedHashMap<TenantId, Arc<Slot>>>,
    _lock: DirLock,
}

/// The slot of a tenant's file.
///
/// Its lock is held while the file is opened or closed, so that the file is never open twice. The
/// lock of the map of slots is not held during that time.
type Slot = Mutex<Option<Arc<TenantFile>>>;

impl MemoryFiles {
    /// See [`MemoryStore::open`](crate::store::MemoryStore::open).
    pub(in crate::store) fn open(dir: &Path, options: &FilesOptions) -> Result<Self, StoreError> {
        Ok(Self {
            dir: dir.to_owned(),
            options: options.clone(),
            open: Mutex::default(),
            _lock: DirLock::take(dir)?,
        })
    }

    fn unusable(&self, source: std::io::Error) -> StoreError {
        StoreError::DirUnusable {
            dir: self.dir.clone(),
            source,
        }
    }

    fn path(&self, tenant: &TenantId) -> PathBuf {
        self.dir.join(file_name(tenant))
    }

    fn files(&self) -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(&self.dir)?
            .map(|entry| Ok(entry?.path()))
            .collect()
    }

    /// Returns the slot of a tenant's file, and marks it as used.
    fn slot(&self, tenant: &TenantId) -> Arc<Slot> {
        let mut open = lock(&self.open);
        if let Some(slot) = open.to_back(tenant) {
            return Arc::clone(slot);
        }
        let slot = Arc::<Slot>::default();
        open.insert(tenant.clone(), Arc::clone(&slot));
        slot
    }

    /// Closes unused files, least recently used first.
    ///
    /// Stops when at most `files_open_max` files are open, or all are in use.
    fn close_unused(&self) {
        while let Some((tenant, slot)) = self.least_used() {
            // Closing checkpoints the WAL, which takes time. Only calls of this tenant wait for it.
            let mut file = lock(&slot);
            if file
                .as_ref()
                .is_some_and(|memories| Arc::strong_count(memories) == 1)
            {
                *file = None;
            }
            let is_closed = file.is_none();
            drop(file);
            let mut open = lock(&self.open);
            // Two references are the map's and this one, so no call is about to reopen the file.
            if is_closed && Arc::strong_count(&slot) == 2 {
                open.remove(&tenant);
            }
        }
    }

    fn least_used(&self) -> Option<(TenantId, Arc<Slot>)> {
        let open = lock(&self.open);
        if open.len() <= self.options.files_open_max {
            return None;
        }
        let is_idle = |slot: &Arc<Slot>| {
            let is_unused = |file: &Arc<TenantFile>| Arc::strong_count(file) == 1;
            Arc::strong_count(slot) == 1
                && slot
                    .try_lock()
                    .is_ok_and(|file| file.as_ref().is_none_or(is_unused))
        };
        let (tenant, slot) = open.iter().find(|(_, slot)| is_idle(slot))?;
        Some((tenant.clone(), Arc::clone(slot)))
    }
}

impl Backend for MemoryFiles {
    fn tenant(&self, tenant: &TenantId) -> StoreResult<Arc<dyn TenantBackend>> {
        let slot = self.slot(tenant);
        let mut file = lock(&slot);
        let memories = match &*file {
            Some(memories) => memories.clone(),
            None => {
                let opened = TenantFile::open(&self.path(tenant), tenant, &self.options)?;
                file.insert(Arc::new(opened)).clone()
            }
        };
        drop(file);
        drop(slot);
        self.close_unused();
        Ok(memories)
    }

    fn tenants(&self) -> StoreResult<Vec<TenantId>> {
        let mut tenants = Vec::new();
        for path in self.files().map_err(|source| self.unusable(source))? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if is_file_name(name)
                && let Ok(Some(tenant)) = open::tenant_of(&path, self.options.key.as_ref())
                && let Ok(tenant) = TenantId::parse(&tenant)
                && file_name(&tenant) == name
            {
                tenants.push(tenant);
            }
        }
        tenants.sort();
        Ok(tenants)
    }

    fn read_learnt(&self) -> StoreResult<Option<u64>> {
        match std::fs::read_to_string(self.dir.join(LEARNT)) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.unusable(source).into()),
        }
    }

    /// Stores the position atomically.
    fn write_learnt(&self, number: u64) -> StoreResult<()> {
        let new = self.dir.join(format!("{LEARNT}.new"));
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            options.write(true).create(true).truncate(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let mut file = options.open(&new)?;
            file.write_all(format!("{number}\n").as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, self.dir.join(LEARNT))
        };
        Ok(write().map_err(|source| self.unusable(source))?)
    }
}

/// Name of a tenant's file.
///
/// `a-z`, `0-9`, `-`, `_` and dots except a leading one are literal, everything else is `%XX`.
/// Names are therefore distinct even on a case-insensitive file system.
fn file_name(tenant: &TenantId) -> String {
    let mut name = String::new();
    for (index, byte) in tenant.as_str().bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if index > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(STEM_BYTES);
        name.push('~');
        let digest = Sha256::digest(tenant.as_str().as_bytes());
        name.push_str(&hex::encode(&digest[..16]));
    }
    name + EXTENSION
}

/// Whether this may be the name of a tenant's file.
fn is_file_name(name: &str) -> bool {
    name.ends_with(EXTENSION)
}

/// Lists the files of all tenants in a memory directory, in order.
///
/// Empty if there is no such directory.
///
/// # Errors
/// If the directory cannot be read.
pub fn tenant_files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<Vec<_>>>()?,
    };
    files.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(is_file_name)
    });
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_distinct_and_stay_in_the_directory() {
        let long = "x".repeat(256);
        let wide = "\u{1f600}".repeat(64);
        let ids = [
            "a",
            "A",
            "..",
            "../a",
            "a/b",
            "a%2Fb",
            ".a",
            "a.b",
            &long,
            &long[1..],
            &wide,
        ];
        let names: Vec<String> = ids
            .iter()
            .map(|id| file_name(&TenantId::parse(id).unwrap()))
            .collect();
        for (place, name) in names.iter().enumerate() {
            assert!(
                name.len() <= 200 && !name.contains('/') && !name.starts_with('.'),
                "{name}"
            );
            let lower = name.to_lowercase();
            let twin = names[..place]
                .iter()
                .find(|other| other.to_lowercase() == lower);
            assert_eq!(twin, None, "{name}");
        }
        assert_eq!(names[0], "a.db");
    }
}
