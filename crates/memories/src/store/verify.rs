//! Compares all memories and documents of a tenant with their checksums.
//!
//! Each batch has a read transaction of its own, so that a log can be truncated, and a table
//! vacuumed, in between. Memories without an owner are being forgotten, and are not checked.

use std::path::Path;
use std::sync::Arc;

use memoird_store::verify::{BATCH_TURNS, FileCheck, check_file};
use memoird_store::{DataKey, StoreError};
use rusqlite::params;

use super::checksum::DamageLog;
use super::reader::MemoryReader;
use super::row::MemoryRow;
use super::sql::{Sql, StoreResult};
use super::{documents, sqlite};
use crate::{FileError, MemoryError};

/// Checks the pages of a tenant's file, and its memories and documents. A daemon may use the file.
///
/// # Errors
/// If the file cannot be opened or read for a reason other than damage.
pub fn check_tenant_file(path: &Path, key: Option<&DataKey>) -> Result<FileCheck, StoreError> {
    check_file(path, key, sqlite::schema_of_version, |connection, check| {
        if !sqlite::has_checksums(connection)? {
            return Ok(());
        }
        let damage = DamageLog::default();
        let reader = MemoryReader::new(connection, None, &damage, None);
        let mut positions = Positions::default();
        while reader
            .check_batch(&mut positions, |problem| check.add(problem))
            .map_err(cause)?
        {}
        Ok(())
    })
}

/// Numbers of the last memory and the last document that were checked. `None` for a table that is
/// done.
pub(super) struct Positions {
    memories: Option<i64>,
    documents: Option<i64>,
}

impl Default for Positions {
    fn default() -> Self {
        Self {
            memories: Some(-1),
            documents: Some(-1),
        }
    }
}

impl MemoryReader<'_> {
    /// Checks the next rows, and passes the damages to `report`. Returns `false` if none are left.
    pub(super) fn check_batch(
        &self,
        positions: &mut Positions,
        mut report: impl FnMut(String),
    ) -> StoreResult<bool> {
        if let Some(after) = positions.memories {
            let rest = "WHERE memories.no > ? ORDER BY memories.no LIMIT ?";
            let rows = MemoryRow::all_checked(self, rest, params![after, BATCH_TURNS])?;
            let numbers = rows.iter().map(|row| match row {
                Ok(row) => row.no,
                Err(damaged) => damaged.no,
            });
            positions.memories = numbers.max().filter(|last| *last > after);
            for damaged in rows.into_iter().filter_map(Result::err) {
                report(format!("{} {MISMATCH}", damaged.name()));
            }
        } else if let Some(after) = positions.documents {
            let sql = format!(
                "{} WHERE documents.no > ? ORDER BY documents.no LIMIT ?",
                documents::SELECT
            );
            let (parameters, mut last) = (params![after, BATCH_TURNS], after);
            self.each(&sql, parameters, documents::VALUES_AT_ONCE, |row| {
                last = last.max(row.get(documents::NO)?);
                if let Err(name) = documents::read(row)? {
                    report(format!(
                        "{} {MISMATCH}",
                        documents::described(name.as_ref())
                    ));
                }
                Ok(true)
            })?;
            positions.documents = Some(last).filter(|last| *last > after);
        }
        Ok(positions.memories.is_some() || positions.documents.is_some())
    }
}

const MISMATCH: &str = "does not match its checksum";

/// The error of the storage, which tells damage from a file that cannot be read.
pub(super) fn cause(error: MemoryError) -> StoreError {
    let detail = error.to_string();
    match error {
        MemoryError::Failed { cause } => match Arc::into_inner(cause) {
            Some(FileError::Store(error)) => error,
            _ => StoreError::Database { detail },
        },
        MemoryError::DiskFull => StoreError::Full,
        _ => StoreError::Database { detail },
    }
}
