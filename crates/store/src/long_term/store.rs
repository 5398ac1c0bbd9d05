//! A directory with a file for each tenant, of which the last used ones stay open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use memoird_core::ids::TenantId;

use super::names::{file_name, is_file_name};
use super::tenant::relock;
use super::{LongTermOptions, TenantMemories, open};
use crate::StoreError;
use crate::lock::DirLock;

/// The memories of all tenants.
#[derive(Debug)]
pub struct LongTermStore {
    dir: PathBuf,
    options: LongTermOptions,
    open: Mutex<OpenFiles>,
    _lock: DirLock,
}

/// The files that are open, or are being opened or closed.
#[derive(Debug, Default)]
struct OpenFiles {
    slots: HashMap<TenantId, (Arc<Slot>, u64)>,
    /// Counts uses: the slot with the lowest one was used least recently.
    uses: u64,
}

/// The place of a tenant's file. Whoever opens or closes the file holds its lock, so that it
/// is open once; the lock of all places is never waited for meanwhile.
type Slot = Mutex<Option<Arc<TenantMemories>>>;

/// A file on its way out; what a crash left of it goes when the directory is opened.
const DELETED: &str = "deleted";

impl LongTermStore {
    /// Takes a directory, which is made where it is missing, for as long as this lives.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`], [`StoreError::DirInUse`].
    pub fn open(dir: &Path, options: &LongTermOptions) -> Result<Self, StoreError> {
        let unusable = |source| StoreError::DirUnusable {
            dir: dir.to_owned(),
            source,
        };
        let lock = DirLock::take(dir)?;
        let (dir, open) = (dir.to_owned(), Mutex::default());
        let store = Self {
            dir,
            options: options.clone(),
            open,
            _lock: lock,
        };
        for path in store.files().map_err(unusable)? {
            if path
                .extension()
                .is_some_and(|extension| extension == DELETED)
            {
                remove_rest(&path.with_extension("db"), &path).map_err(unusable)?;
            }
        }
        Ok(store)
    }

    /// A tenant's memories; makes the file where it is missing.
    ///
    /// # Errors
    /// When the file is damaged, not this tenant's or too new, or no room is left.
    pub fn tenant(&self, tenant: &TenantId) -> Result<Arc<TenantMemories>, StoreError> {
        let slot = self.slot(tenant);
        let mut file = relock(&slot);
        let memories = match &*file {
            Some(memories) => memories.clone(),
            None => {
                let opened = TenantMemories::open(&self.path(tenant), tenant, &self.options)?;
                file.insert(Arc::new(opened)).clone()
            }
        };
        drop(file);
        drop(slot);
        self.close_unused();
        Ok(memories)
    }

    /// A tenant's memories; `None` when it never had any.
    ///
    /// # Errors
    /// When the file is damaged, not this tenant's or too new.
    pub fn existing(&self, tenant: &TenantId) -> Result<Option<Arc<TenantMemories>>, StoreError> {
        match self.path(tenant).exists() {
            true => self.tenant(tenant).map(Some),
            false => Ok(None),
        }
    }

    /// The tenants that have a file, in order. One whose file cannot be read is not among
    /// them: what is wrong with it is told to whoever asks for it, and is nobody else's.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        let unusable = |source| StoreError::DirUnusable {
            dir: self.dir.clone(),
            source,
        };
        let mut tenants = Vec::new();
        for path in self.files().map_err(unusable)? {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if is_file_name(name)
                && let Ok(Some(tenant)) = open::tenant_of(&path)
                && let Ok(tenant) = TenantId::parse(&tenant)
                && file_name(&tenant) == name
            {
                tenants.push(tenant);
            }
        }
        tenants.sort();
        Ok(tenants)
    }

    /// Deletes a tenant's file. Whoever still holds its memories is refused everything from
    /// then on. False when there is none.
    ///
    /// # Errors
    /// When the file cannot be deleted.
    pub fn delete(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        let unusable = |source| StoreError::DirUnusable {
            dir: self.dir.clone(),
            source,
        };
        let slot = self.slot(tenant);
        let mut file = relock(&slot);
        if let Some(memories) = file.take() {
            memories.close_for_good();
        }
        let path = self.path(tenant);
        let leaving = path.with_extension(DELETED);
        match std::fs::rename(&path, &leaving) {
            Ok(()) => remove_rest(&path, &leaving)
                .map(|()| true)
                .map_err(unusable),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(unusable(error)),
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

    /// The place of a tenant's file, which counts as used.
    fn slot(&self, tenant: &TenantId) -> Arc<Slot> {
        let mut open = relock(&self.open);
        open.uses += 1;
        let use_no = open.uses;
        let (slot, last_use) = open.slots.entry(tenant.clone()).or_default();
        *last_use = use_no;
        slot.clone()
    }

    /// Closes files that nobody uses, those used least recently first, until no more are
    /// open than should be or all are in use.
    fn close_unused(&self) {
        while let Some((tenant, slot)) = self.least_used() {
            // Closing moves the log into the file: that takes time, and holds up only who
            // wants this very file.
            let mut file = relock(&slot);
            if file
                .as_ref()
                .is_some_and(|memories| Arc::strong_count(memories) == 1)
            {
                *file = None;
            }
            let is_closed = file.is_none();
            drop(file);
            let mut open = relock(&self.open);
            // Two are the map's and ours: nobody else is about to open it again.
            if is_closed && Arc::strong_count(&slot) == 2 {
                open.slots.remove(&tenant);
            }
        }
    }

    fn least_used(&self) -> Option<(TenantId, Arc<Slot>)> {
        let open = relock(&self.open);
        if open.slots.len() <= self.options.files_open_max {
            return None;
        }
        let idle = open.slots.iter().filter(|(_, (slot, _))| {
            Arc::strong_count(slot) == 1
                && slot.try_lock().is_ok_and(|file| {
                    file.as_ref()
                        .is_none_or(|memories| Arc::strong_count(memories) == 1)
                })
        });
        let least = idle.min_by_key(|(_, (_, last_use))| *last_use)?;
        Some((least.0.clone(), least.1.0.clone()))
    }
}

/// Removes what belongs to a file, the renamed file itself last.
fn remove_rest(path: &Path, leaving: &Path) -> std::io::Result<()> {
    let rest = [path.with_extension("db-wal"), path.with_extension("db-shm")];
    for file in rest.iter().map(PathBuf::as_path).chain([leaving]) {
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
