//! A directory with a file for each tenant. The files that were used last stay open.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hashlink::LinkedHashMap;
use memoird_core::hex;
use memoird_core::ids::TenantId;
use memoird_core::sha256::Sha256;
use memoird_store::{DirLock, StoreError};

use super::{TenantFile, open};
use crate::store::FilesOptions;
use crate::{MemoryError, locked};

/// A name up to this long says the whole id; of a longer one it says the beginning and a
/// digest. In bytes; file systems take 255, and SQLite adds to it.
const NAME_BYTES_MAX: usize = 160;
/// Bytes that are kept of a longer name.
const STEM_BYTES: usize = 96;
const EXTENSION: &str = ".db";
/// The file that says how far the journal was looked at for facts.
const LEARNT: &str = "learnt";

/// The memories of all tenants.
#[derive(Debug)]
pub(in crate::store) struct MemoryFiles {
    dir: PathBuf,
    options: FilesOptions,
    /// The files that are open, or are being opened or closed; the one used last comes last.
    open: Mutex<LinkedHashMap<TenantId, Arc<Slot>>>,
    _lock: DirLock,
}

/// The slot of a tenant's file. Its lock is held while the file is opened or closed, so that the
/// file is never open twice; the lock of the list of slots is not held meanwhile.
type Slot = Mutex<Option<Arc<TenantFile>>>;

impl MemoryFiles {
    /// Takes a directory, which is made where it is missing, for as long as this lives.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub(in crate::store) fn open(dir: &Path, options: &FilesOptions) -> Result<Self, StoreError> {
        Ok(Self {
            dir: dir.to_owned(),
            options: options.clone(),
            open: Mutex::default(),
            _lock: DirLock::take(dir)?,
        })
    }

    /// A tenant's memories; makes the file where it is missing.
    ///
    /// # Errors
    /// When the file is damaged, not this tenant's or too new, or no room is left.
    pub(in crate::store) fn tenant(
        &self,
        tenant: &TenantId,
    ) -> Result<Arc<TenantFile>, MemoryError> {
        let slot = self.slot(tenant);
        let mut file = locked(&slot);
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

    /// The tenants that have a file, in order. One whose file cannot be read is not among
    /// them: the error is returned to calls of that tenant, and to no others.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(in crate::store) fn tenants(&self) -> Result<Vec<TenantId>, MemoryError> {
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

    /// How far the journal was looked at for facts; `None` where that was never written down, or
    /// cannot be made out.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(in crate::store) fn read_learnt(&self) -> Result<Option<u64>, StoreError> {
        match std::fs::read_to_string(self.dir.join(LEARNT)) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.unusable(source)),
        }
    }

    /// Writes it down.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(in crate::store) fn write_learnt(&self, number: u64) -> Result<(), StoreError> {
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
        write().map_err(|source| self.unusable(source))
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

    /// The slot of a tenant's file, which counts as used.
    fn slot(&self, tenant: &TenantId) -> Arc<Slot> {
        let mut open = locked(&self.open);
        if let Some(slot) = open.to_back(tenant) {
            return Arc::clone(slot);
        }
        let slot = Arc::<Slot>::default();
        open.insert(tenant.clone(), Arc::clone(&slot));
        slot
    }

    /// Closes unused files, least recently used first, until no more than `files_open_max`
    /// are open or all are in use.
    fn close_unused(&self) {
        while let Some((tenant, slot)) = self.least_used() {
            // Closing moves the log into the file. That takes time, and only calls of this
            // tenant wait for it.
            let mut file = locked(&slot);
            if file
                .as_ref()
                .is_some_and(|memories| Arc::strong_count(memories) == 1)
            {
                *file = None;
            }
            let is_closed = file.is_none();
            drop(file);
            let mut open = locked(&self.open);
            // Two references, the map's and this one: no call is about to open it again.
            if is_closed && Arc::strong_count(&slot) == 2 {
                open.remove(&tenant);
            }
        }
    }

    fn least_used(&self) -> Option<(TenantId, Arc<Slot>)> {
        let open = locked(&self.open);
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

/// The name of a tenant's file: `a-z`, `0-9`, `-`, `_` and dots that do not come first stand
/// for themselves, the rest as `%XX`; so no two are one where case does not count.
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

/// True for what may be a tenant's file.
fn is_file_name(name: &str) -> bool {
    name.ends_with(EXTENSION)
}

/// The files of all tenants in a directory of memories, in order; none where there is no such
/// directory.
///
/// # Errors
/// When the directory cannot be read.
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
    fn no_id_leaves_the_directory_and_no_two_share_a_name() {
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
