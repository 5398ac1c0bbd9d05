//! Clears unused space in encrypted files.
//!
//! Pages are read and written through SQLite's `sqlite_dbpage` table, which decrypts, encrypts and
//! signs them.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use super::{CLEARED_AT_ONCE, ENCRYPTED, stale_gap};
use crate::sqlite_file::{PAGE_BYTES, empty_log, open_for_inspection};
use crate::{DataKey, StoreError};

// Fail the build, instead of an operator's erasure that would leave data behind.
const _: () = assert!(
    has_flag("-DSQLITE_ENABLE_DBPAGE_VTAB"),
    "the feature `encryption` needs SQLite's table of pages: build with LIBSQLITE3_FLAGS as in \
     .cargo/config.toml, which is read where cargo is started below the repository's folder"
);

/// Pages per read transaction, which blocks truncation of the log.
const READ_PAGES: u64 = 1_024;

const READ: &str = "SELECT data FROM sqlite_dbpage WHERE pgno = ?";
const WRITE: &str = "UPDATE sqlite_dbpage SET data = ?2 WHERE pgno = ?1";

/// Returns pages whose unused space is not empty, including those in the log.
pub(super) fn find(path: &Path, key: &DataKey) -> Result<Vec<u64>, StoreError> {
    let connection = open_for_inspection(path, Some(key))?;
    let mut found = Vec::new();
    let mut next = 1;
    loop {
        let moment = connection.unchecked_transaction()?;
        let pages = moment
            .pragma_query_value(None, "page_count", |row| row.get::<_, i64>(0))?
            .unsigned_abs();
        if next > pages {
            return Ok(found);
        }
        let mut read = moment.prepare_cached(READ)?;
        for number in next..(next + READ_PAGES).min(pages + 1) {
            let is_stale = read.query_row([number.cast_signed()], |row| {
                let page = row.get_ref(0)?.as_blob()?;
                Ok(page_of(page).is_some_and(|page| stale_gap(&ENCRYPTED, number, page).is_some()))
            });
            if is_stale.optional()? == Some(true) {
                found.push(number);
            }
        }
        next += READ_PAGES;
    }
}

/// Clears the unused space of these pages, one batch per transaction.
///
/// Returns false if a reader holds an older snapshot.
pub(super) fn clear<W: Deref<Target = Connection>>(
    pages: &[u64],
    wait: Duration,
    mut writer: impl FnMut() -> W,
) -> Result<bool, StoreError> {
    for part in pages.chunks(CLEARED_AT_ONCE) {
        let connection = writer();
        let behavior = TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&connection, behavior)?;
        for number in part {
            clear_page(&transaction, *number)?;
        }
        transaction.commit()?;
        // The checkpoint overwrites the old versions of these pages in the file.
        if !empty_log(&connection, wait)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn clear_page(transaction: &Transaction<'_>, number: u64) -> Result<(), StoreError> {
    let mut read = transaction.prepare_cached(READ)?;
    let page = read.query_row([number.cast_signed()], |row| row.get::<_, Vec<u8>>(0));
    // The page may have been released concurrently.
    let Some(mut page) = page.optional()? else {
        return Ok(());
    };
    let gap = page_of(&page).and_then(|page| stale_gap(&ENCRYPTED, number, page));
    if let Some(gap) = gap {
        page[gap].fill(0);
        let mut write = transaction.prepare_cached(WRITE)?;
        write.execute((number.cast_signed(), page))?;
    }
    Ok(())
}

fn page_of(bytes: &[u8]) -> Option<&[u8; PAGE_BYTES]> {
    bytes.try_into().ok()
}

/// Whether SQLite is built with this flag.
const fn has_flag(wanted: &str) -> bool {
    let Some(flags) = option_env!("LIBSQLITE3_FLAGS") else {
        return false;
    };
    let (flags, wanted) = (flags.as_bytes(), wanted.as_bytes());
    let mut start = 0;
    while start + wanted.len() <= flags.len() {
        let mut same = 0;
        while same < wanted.len() && flags[start + same] == wanted[same] {
            same += 1;
        }
        if same == wanted.len() {
            return true;
        }
        start += 1;
    }
    false
}
