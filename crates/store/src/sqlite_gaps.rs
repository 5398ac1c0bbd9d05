//! Overwrites what `secure_delete` leaves: when SQLite merges pages it moves rows from one to
//! another and does not clear the place that they came from, between the list of a page's cells
//! and their content. Of a row that is deleted later such copies stay for years.
//!
//! The formats are those of <https://www.sqlite.org/fileformat.html>, 1.6 and 1.8. Nothing ever
//! reads these bytes, so they are cleared in the file itself, while nobody else may write and the
//! log is empty.

#[cfg(feature = "encryption")]
mod encrypted;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;

use crate::sqlite_file::{PAGE_BYTES, empty_log, unusable};
use crate::{DataKey, StoreError};

/// Pages that are read at once.
const READ_PAGES: usize = 64;
/// Pages that are overwritten while nobody else may write.
const CLEARED_AT_ONCE: usize = 256;
/// From here on the first byte of a page that belongs to no tree may be that of one: of a larger
/// file nothing is overwritten.
const PAGES_MAX: u64 = 1 << 25;
/// The header of the file stands before that of its first page.
const FILE_HEADER: usize = 100;
/// The first page that says where other pages belong.
const FIRST_MAP: u64 = 2;
/// The page that has the bytes by which processes lock a file.
const LOCK_PAGE: u64 = (1 << 30) / PAGE_BYTES as u64 + 1;

/// What differs between files.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Pages from one that says where other pages belong to the next one.
    map_every: u64,
}

const PLAIN: Layout = Layout::of(PAGE_BYTES);
/// SQLCipher keeps the last 80 bytes of each page for a random number and a signature.
#[cfg(feature = "encryption")]
const ENCRYPTED: Layout = Layout::of(PAGE_BYTES - 80);

impl Layout {
    const fn of(usable_bytes: usize) -> Self {
        Self {
            map_every: (usable_bytes / 5 + 1) as u64,
        }
    }
}

/// Looks for pages whose unused space is not empty; their numbers, from 1. What is in the log of
/// a plain file is not looked at, and a file of 128 GiB or more has none.
///
/// # Errors
/// When the file cannot be read.
pub fn find(path: &Path, key: Option<&DataKey>) -> Result<Vec<u64>, StoreError> {
    #[cfg(feature = "encryption")]
    if let Some(key) = key {
        return encrypted::find(path, key);
    }
    #[cfg(not(feature = "encryption"))]
    // There is no key without the feature.
    let _ = key;
    let read = |error| unusable(path, error);
    let file = File::open(path).map_err(read)?;
    let pages = file.metadata().map_err(read)?.len() / PAGE_BYTES as u64;
    let mut found = Vec::new();
    if pages >= PAGES_MAX {
        return Ok(found);
    }
    let mut bytes = vec![0; READ_PAGES * PAGE_BYTES];
    let mut first = 1;
    while first <= pages {
        let count = (pages + 1 - first).min(READ_PAGES as u64);
        let length = usize::try_from(count).unwrap_or(READ_PAGES) * PAGE_BYTES;
        let part = &mut bytes[..length];
        match file.read_exact_at(part, (first - 1) * PAGE_BYTES as u64) {
            // Pages were given back meanwhile.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            outcome => outcome.map_err(read)?,
        }
        let (part, _) = part.as_chunks::<PAGE_BYTES>();
        let numbered = (first..).zip(part);
        let stale = numbered.filter(|(number, page)| stale_gap(&PLAIN, *number, page).is_some());
        found.extend(stale.map(|(number, _)| number));
        first += count;
    }
    Ok(found)
}

/// Clears the unused space of these pages, a part of them at a time. `writer` gives the one
/// connection that writes; whoever has it keeps everybody else from writing. False while somebody
/// reads an older moment.
///
/// # Errors
/// When the file cannot be written.
pub fn clear<W: std::ops::Deref<Target = Connection>>(
    path: &Path,
    key: Option<&DataKey>,
    pages: &[u64],
    wait: Duration,
    mut writer: impl FnMut() -> W,
) -> Result<bool, StoreError> {
    #[cfg(feature = "encryption")]
    if key.is_some() {
        return encrypted::clear(pages, wait, writer);
    }
    #[cfg(not(feature = "encryption"))]
    // There is no key without the feature.
    let _ = key;
    let failed = |error| unusable(path, error);
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(failed)?;
    for part in pages.chunks(CLEARED_AT_ONCE) {
        let connection = writer();
        // Then the file has the newest of every page, and nobody but the writer may change it.
        if !empty_log(&connection, wait)? {
            return Ok(false);
        }
        // It must not write back what it remembers of these pages.
        connection.execute_batch("PRAGMA shrink_memory")?;
        for number in part {
            clear_page(&file, *number).map_err(failed)?;
        }
        file.sync_data().map_err(failed)?;
    }
    Ok(true)
}

fn clear_page(file: &File, number: u64) -> io::Result<()> {
    let start = (number - 1) * PAGE_BYTES as u64;
    let mut page = [0; PAGE_BYTES];
    match file.read_exact_at(&mut page, start) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        outcome => outcome?,
    }
    match stale_gap(&PLAIN, number, &page) {
        None => Ok(()),
        Some(gap) => {
            let zeros = vec![0; gap.len()];
            file.write_all_at(&zeros, start + gap.start as u64)
        }
    }
}

/// The unused space of a page of a tree, if there is something in it.
fn stale_gap(layout: &Layout, number: u64, page: &[u8; PAGE_BYTES]) -> Option<Range<usize>> {
    let is_map = number >= FIRST_MAP && (number - FIRST_MAP).is_multiple_of(layout.map_every);
    // Around the lock page a map may stand one further.
    if is_map || (LOCK_PAGE..=LOCK_PAGE + 1).contains(&number) {
        return None;
    }
    let header = if number == 1 { FILE_HEADER } else { 0 };
    let header_bytes = match page[header] {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return None,
    };
    let field = |offset: usize| {
        usize::from(u16::from_be_bytes([
            page[header + offset],
            page[header + offset + 1],
        ]))
    };
    let cells_end = header + header_bytes + 2 * field(3);
    let content = match field(5) {
        0 => 65_536,
        content => content,
    };
    let gap = cells_end..content.min(PAGE_BYTES);
    let is_sound = content <= PAGE_BYTES && gap.start <= gap.end;
    let is_stale = is_sound && page[gap.clone()].iter().any(|byte| *byte != 0);
    is_stale.then_some(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_unused_space_of_trees_is_cleared() {
        let mut leaf = [7; PAGE_BYTES];
        leaf[..8].copy_from_slice(&[13, 0, 0, 0, 2, 0x0f, 0, 0]);
        assert_eq!(stale_gap(&PLAIN, 3, &leaf), Some(12..0x0f00));
        assert_eq!(stale_gap(&PLAIN, 2, &leaf), None, "a map");
        assert_eq!(stale_gap(&PLAIN, 2 + 820, &leaf), None, "a map");
        assert_eq!(stale_gap(&PLAIN, 262_145, &leaf), None, "the page of locks");
        leaf[12..0x0f00].fill(0);
        assert_eq!(stale_gap(&PLAIN, 3, &leaf), None, "it is empty");
        let mut other = [7; PAGE_BYTES];
        for first in [0, 1, 3, 4, 14] {
            other[0] = first;
            assert_eq!(
                stale_gap(&PLAIN, 3, &other),
                None,
                "{first} is no page of a tree"
            );
        }
    }
}
