//! A directory with a file for each tenant, of which the last used ones stay open.

use std::path::Path;
use std::sync::Arc;

use memoird_core::ids::TenantId;

use super::{LongTermOptions, TenantMemories};
use crate::StoreError;

/// The memories of all tenants.
#[derive(Debug)]
pub struct LongTermStore {}

impl LongTermStore {
    /// Takes a directory, which is made where it is missing. The caller sees to it that
    /// nobody else has it: the journal's lock does.
    ///
    /// # Errors
    /// [`StoreError::DirUnusable`].
    pub fn open(_dir: &Path, _options: &LongTermOptions) -> Result<Self, StoreError> {
        unimplemented!("…")
    }

    /// A tenant's memories; makes the file where it is missing.
    ///
    /// # Errors
    /// When the file is damaged, not this tenant's or too new, or no room is left.
    pub fn tenant(&self, _tenant: &TenantId) -> Result<Arc<TenantMemories>, StoreError> {
        unimplemented!("…")
    }

    /// A tenant's memories; `None` when it never had any.
    ///
    /// # Errors
    /// When the file is damaged, not this tenant's or too new.
    pub fn existing(&self, _tenant: &TenantId) -> Result<Option<Arc<TenantMemories>>, StoreError> {
        unimplemented!("…")
    }

    /// The tenants that have a file, in order.
    ///
    /// # Errors
    /// When the directory, or one of the files, cannot be read.
    pub fn tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        unimplemented!("…")
    }

    /// Deletes a tenant's file. Whoever still holds its memories is refused everything from
    /// then on. False when there is none.
    ///
    /// # Errors
    /// When the file cannot be deleted.
    pub fn delete(&self, _tenant: &TenantId) -> Result<bool, StoreError> {
        unimplemented!("…")
    }
}
