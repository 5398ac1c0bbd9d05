//! Copies a SQLite file as of one point in time, while others write to it.

use std::path::Path;

use rusqlite::OpenFlags;
use rusqlite::backup::{Backup, StepResult};

use crate::sqlite_file::{damaged, open, open_for_inspection};
use crate::{DataKey, StoreError};

/// Pages copied between two checks whether the copy was cancelled.
const STEP_PAGES: i32 = 1_024;

/// Copies `from` to a new file, encrypted with the same key if `from` is encrypted.
///
/// A read transaction stays open during the copy. It blocks no writer, but the log of `from` cannot
/// be truncated until it ends. Returns false if `is_stopped` returned true; the copy is then
/// incomplete.
///
/// # Errors
/// If `from` cannot be read, or there is no room for the copy.
pub fn copy(
    from: &Path,
    to: &Path,
    key: Option<&DataKey>,
    is_stopped: impl Fn() -> bool,
) -> Result<bool, StoreError> {
    let source = open_for_inspection(from, key)?;
    let failed = |error| damaged(from, error);
    let moment = source.unchecked_transaction()?;
    // The first read fixes the snapshot, which the backup uses.
    let tables = "SELECT count(*) FROM sqlite_schema";
    moment
        .query_row(tables, [], |row| row.get::<_, i64>(0))
        .map_err(failed)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut copy = open(to, key, flags)?;
    // A copy interrupted by a crash is discarded, so it needs no durability.
    copy.pragma_update(None, "synchronous", "OFF")?;
    copy.pragma_update(None, "journal_mode", "OFF")?;
    let backup = Backup::new(&moment, &mut copy)?;
    loop {
        if is_stopped() {
            return Ok(false);
        }
        match backup.step(STEP_PAGES).map_err(failed)? {
            StepResult::Done => return Ok(true),
            // `Busy` is transient: the copy has no other user, and WAL readers are never locked
            // out.
            _ => std::thread::yield_now(),
        }
    }
}
