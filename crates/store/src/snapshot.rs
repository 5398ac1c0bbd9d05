//! Copies a SQLite file as it is at one moment, while others write to it.

use std::path::Path;

use rusqlite::OpenFlags;
use rusqlite::backup::{Backup, StepResult};

use crate::sqlite_file::{damaged, look_only, open};
use crate::{DataKey, StoreError};

/// Pages that are copied between two looks at whether anybody still wants the copy.
const STEP_PAGES: i32 = 1_024;

/// Copies `from` to a new file, which is encrypted with the same key where `from` is. A transaction that only reads is open meanwhile: it holds
/// nobody up, but the log of `from` cannot be cut as long. False when it was stopped: then the
/// copy is not whole.
///
/// # Errors
/// When `from` cannot be read, or there is no room for the copy.
pub fn copy(
    from: &Path,
    to: &Path,
    key: Option<&DataKey>,
    is_stopped: impl Fn() -> bool,
) -> Result<bool, StoreError> {
    let source = look_only(from, key)?;
    let failed = |error| damaged(from, error);
    let moment = source.unchecked_transaction()?;
    // The moment is that of the first read, and the backup keeps to it.
    let tables = "SELECT count(*) FROM sqlite_schema";
    moment
        .query_row(tables, [], |row| row.get::<_, i64>(0))
        .map_err(failed)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut copy = open(to, key, flags)?;
    // A copy that a crash interrupts is thrown away.
    copy.pragma_update(None, "synchronous", "OFF")?;
    copy.pragma_update(None, "journal_mode", "OFF")?;
    let backup = Backup::new(&moment, &mut copy)?;
    loop {
        if is_stopped() {
            return Ok(false);
        }
        match backup.step(STEP_PAGES).map_err(failed)? {
            StepResult::Done => return Ok(true),
            // Nobody else uses the copy, and readers of a log are never locked out.
            _ => std::thread::yield_now(),
        }
    }
}
