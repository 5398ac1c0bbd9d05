//! Which sessions are in memory. The map's guards never leave this file.

use std::sync::Arc;

use dashmap::DashMap;
use memoird_core::ids::SessionKey;

use crate::cell::SessionCell;

/// All sessions of the process, by tenant and session id.
#[derive(Debug, Default)]
pub(crate) struct Table {
    cells: DashMap<SessionKey, Arc<SessionCell>>,
}

impl Table {
    pub(crate) fn get(&self, key: &SessionKey) -> Option<Arc<SessionCell>> {
        self.cells.get(key).map(|cell| Arc::clone(&cell))
    }

    /// Puts a cell in its place, whatever was there.
    pub(crate) fn insert(&self, cell: &Arc<SessionCell>) {
        self.cells.insert(cell.key.clone(), Arc::clone(cell));
    }

    /// True when another cell has the place of this one.
    pub(crate) fn has_other(&self, cell: &Arc<SessionCell>) -> bool {
        self.get(&cell.key)
            .is_some_and(|there| !Arc::ptr_eq(&there, cell))
    }

    /// Takes this very cell out; another one of the same key stays.
    pub(crate) fn remove(&self, cell: &Arc<SessionCell>) {
        self.cells
            .remove_if(&cell.key, |_, there| Arc::ptr_eq(there, cell));
    }
}
