//! Overwrites deleted data that `secure_delete` leaves in the unused space of pages.
//!
//! When SQLite merges pages, it moves rows and does not clear their old location, between a page's
//! cell pointers and its cell content. Copies of rows deleted later can remain there for years.
//!
//! The formats are described in <https://www.sqlite.org/fileformat.html>, sections 1.6 and 1.8.
//! SQLite never reads these bytes, so they are cleared directly in the file, while no other
//! connection may write and the log is empty.
//!
//! Erasures run this, and retention does so once an hour.

#[cfg(feature = "encryption")]
mod encrypted;

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::sqlite_file::{PAGE_BYTES, empty_log, unusable};
use crate::{DataKey, StoreError};

/// Pages per read.
const READ_PAGES: usize = 64;
/// Pages overwritten while other writers are blocked.
const CLEARED_AT_ONCE: usize = 256;
/// Number of pages (128 GiB) from which the pointer map is consulted.
///
/// In such a file, the first byte of an overflow page can look like that of a b-tree page, because
/// it is part of a page number.
const MAPPED_FROM: u64 = 1 << 25;
/// Bytes of the database header, which precedes the b-tree header on the first page.
const FILE_HEADER: usize = 100;
/// Number of the first pointer map page.
const FIRST_MAP: u64 = 2;
/// Bytes of a pointer map entry.
const ENTRY_BYTES: u64 = 5;
/// Offset of the header field that is nonzero if the file has pointer maps.
const HAS_MAPS: u64 = 52;
/// The page with the bytes that processes lock. SQLite does not use it for data.
const LOCK_PAGE: u64 = (1 << 30) / PAGE_BYTES as u64 + 1;

/// Page layout, which differs between plain and encrypted files.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Distance between two pointer map pages, in pages.
    map_every: u64,
}

const PLAIN: Layout = Layout::of(PAGE_BYTES);
/// SQLCipher reserves the last 80 bytes of each page for an initialization vector and a signature.
#[cfg(feature = "encryption")]
const ENCRYPTED: Layout = Layout::of(PAGE_BYTES - 80);

impl Layout {
    const fn of(usable_bytes: usize) -> Self {
        Self {
            map_every: (usable_bytes / 5 + 1) as u64,
        }
    }
}

/// A database file that is read and written next to SQLite.
///
/// SQLite's locks belong to the process: closing any descriptor of a file releases them. Without
/// them, another program that closes the file, like `sqlite3`, deletes the log. So this value must
/// outlive all connections to the file.
#[derive(Debug)]
pub struct GapFile {
    path: PathBuf,
    /// Opened at the first use.
    file: Mutex<Option<Arc<File>>>,
}

impl GapFile {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: Mutex::default(),
        }
    }

    fn open(&self) -> Result<Arc<File>, StoreError> {
        let failed = |error| unusable(&self.path, error);
        let mut opened = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*opened {
            let (held, named) = (file.metadata(), fs::metadata(&self.path));
            let (held, named) = (held.map_err(failed)?, named.map_err(failed)?);
            // The search index may have been replaced.
            if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
                return Ok(Arc::clone(file));
            }
        }
        let file = File::options().read(true).write(true).open(&self.path);
        let file = Arc::new(file.map_err(failed)?);
        *opened = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Returns the numbers (from 1) of pages with data in their unused space.
    ///
    /// The log of a plain file is not searched.
    ///
    /// # Errors
    /// If the file cannot be read, or is a plain file of 128 GiB or more without pointer maps.
    pub fn find(&self, key: Option<&DataKey>) -> Result<Vec<u64>, StoreError> {
        #[cfg(feature = "encryption")]
        if let Some(key) = key {
            return encrypted::find(&self.path, key);
        }
        #[cfg(not(feature = "encryption"))]
        // Keys do not exist without the feature.
        let _ = key;
        find_in(self, MAPPED_FROM)
    }

    /// Clears the unused space of these pages in batches.
    ///
    /// `writer` returns the single write connection; holding it blocks other writers. Returns false
    /// if a reader holds an older snapshot.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn clear<W: std::ops::Deref<Target = Connection>>(
        &self,
        key: Option<&DataKey>,
        pages: &[u64],
        wait: Duration,
        writer: impl FnMut() -> W,
    ) -> Result<bool, StoreError> {
        #[cfg(feature = "encryption")]
        if key.is_some() {
            return encrypted::clear(pages, wait, writer);
        }
        #[cfg(not(feature = "encryption"))]
        // Keys do not exist without the feature.
        let _ = key;
        clear_in(self, pages, wait, writer, MAPPED_FROM)
    }
}

fn find_in(of: &GapFile, mapped_from: u64) -> Result<Vec<u64>, StoreError> {
    let read = |error| unusable(&of.path, error);
    let file = of.open()?;
    let pages = file.metadata().map_err(read)?.len() / PAGE_BYTES as u64;
    let mut found = Vec::new();
    let mut bytes = vec![0; READ_PAGES * PAGE_BYTES];
    let mut first = 1;
    while first <= pages {
        let count = (pages + 1 - first).min(READ_PAGES as u64);
        let length = usize::try_from(count).unwrap_or(READ_PAGES) * PAGE_BYTES;
        let part = &mut bytes[..length];
        match file.read_exact_at(part, (first - 1) * PAGE_BYTES as u64) {
            // The file was truncated concurrently.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            outcome => outcome.map_err(read)?,
        }
        let (part, _) = part.as_chunks::<PAGE_BYTES>();
        let numbered = (first..).zip(part);
        let stale = numbered.filter(|(number, page)| stale_gap(&PLAIN, *number, page).is_some());
        for (number, _) in stale {
            if pages < mapped_from || is_mapped_to_tree(&file, number).map_err(read)? {
                found.push(number);
            }
        }
        first += count;
    }
    Ok(found)
}

fn clear_in<W: std::ops::Deref<Target = Connection>>(
    of: &GapFile,
    pages: &[u64],
    wait: Duration,
    mut writer: impl FnMut() -> W,
    mapped_from: u64,
) -> Result<bool, StoreError> {
    let failed = |error| unusable(&of.path, error);
    let file = of.open()?;
    for part in pages.chunks(CLEARED_AT_ONCE) {
        let connection = writer();
        // Now the file has the newest version of every page, and only this writer may change it.
        if !empty_log(&connection, wait)? {
            return Ok(false);
        }
        // Drop the connection's page cache, which holds the old bytes and could write them back.
        connection.execute_batch("PRAGMA shrink_memory")?;
        let is_mapped = file.metadata().map_err(failed)?.len() / PAGE_BYTES as u64 >= mapped_from;
        for number in part {
            if !is_mapped || is_mapped_to_tree(&file, *number).map_err(failed)? {
                clear_page(&file, *number).map_err(failed)?;
            }
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

/// Whether the pointer map assigns a page to a b-tree.
fn is_mapped_to_tree(file: &File, number: u64) -> io::Result<bool> {
    const ROOT: u8 = 1;
    const BELOW_ROOT: u8 = 5;
    if number == 1 {
        return Ok(true);
    }
    let mut has_maps = [0; 4];
    file.read_exact_at(&mut has_maps, HAS_MAPS)?;
    if has_maps == [0; 4] {
        let problem = "it has 128 GiB and its pages are not listed: deleted data may remain in it";
        return Err(io::Error::other(problem));
    }
    let map = number - (number - FIRST_MAP) % PLAIN.map_every;
    let entry = (map - 1) * PAGE_BYTES as u64 + ENTRY_BYTES * (number - map - 1);
    let mut kind = [0];
    match file.read_exact_at(&mut kind, entry) {
        // The file was truncated concurrently.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        outcome => outcome?,
    }
    Ok(matches!(kind[0], ROOT | BELOW_ROOT))
}

/// Returns the unused space of a b-tree page, if it is not all zeros.
fn stale_gap(layout: &Layout, number: u64, page: &[u8; PAGE_BYTES]) -> Option<Range<usize>> {
    let is_map = number >= FIRST_MAP && (number - FIRST_MAP).is_multiple_of(layout.map_every);
    // Next to the lock page, the pointer map may be one page later.
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
    fn only_free_space_of_btree_pages_is_cleared() {
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

    /// Creates a file with moved and deleted rows. Rows of 10,000 bytes have overflow pages.
    fn used_file(dir: &Path, auto_vacuum: &str) -> (PathBuf, Connection) {
        let path = dir.join(format!("{auto_vacuum}.db"));
        let connection = Connection::open(&path).expect("a file");
        let pragmas = format!(
            "PRAGMA auto_vacuum = {auto_vacuum}; PRAGMA journal_mode = WAL; \
             PRAGMA secure_delete = ON; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT);"
        );
        connection.execute_batch(&pragmas).expect("a table");
        for id in 0..4_000 {
            let length = if id % 40 == 0 { 10_000 } else { 200 };
            let text = format!("marked {id} ").repeat(length / 10);
            connection
                .execute("INSERT INTO t VALUES (?1, ?2)", (id * 7919 % 4_001, text))
                .expect("a row");
        }
        let merges = "DELETE FROM t WHERE id % 3 <> 0; DELETE FROM t WHERE id % 5 <> 0;";
        connection.execute_batch(merges).expect("deleted");
        assert!(empty_log(&connection, Duration::from_secs(5)).expect("emptied"));
        (path, connection)
    }

    #[test]
    fn large_file_is_cleared_using_its_pointer_map() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, connection) = used_file(dir.path(), "INCREMENTAL");
        let by_byte = find_in(&GapFile::new(&path), u64::MAX).expect("read");
        assert!(!by_byte.is_empty(), "or nothing is shown");
        assert_eq!(
            find_in(&GapFile::new(&path), 1).expect("read"),
            by_byte,
            "the map says the same"
        );
        // An overflow page begins with the number of the next one.
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .expect("a file");
        let pages = file.metadata().expect("a file").len() / PAGE_BYTES as u64;
        let is_tree = |number| is_mapped_to_tree(&file, number).expect("a map");
        let long = (3..=pages)
            .find(|number| {
                let mut first = [0];
                let at = (number - 1) * PAGE_BYTES as u64;
                file.read_exact_at(&mut first, at).expect("a page");
                first == [0]
                    && !is_tree(*number)
                    && !(number - FIRST_MAP).is_multiple_of(PLAIN.map_every)
            })
            .expect("a page of a long row");
        let at = (long - 1) * PAGE_BYTES as u64;
        let mut kept = vec![0; PAGE_BYTES];
        file.read_exact_at(&mut kept, at).expect("a page");
        file.write_all_at(&[13, 0, 0, 0, 0, 0x0f, 0], at)
            .expect("written");
        assert!(
            find_in(&GapFile::new(&path), u64::MAX)
                .expect("read")
                .contains(&long)
        );
        assert_eq!(
            find_in(&GapFile::new(&path), 1).expect("read"),
            by_byte,
            "the map knows better"
        );
        file.write_all_at(&kept, at).expect("written back");
        let wait = Duration::from_secs(5);
        assert!(
            clear_in(&GapFile::new(&path), &by_byte, wait, || &connection, 1).expect("cleared")
        );
        assert!(find_in(&GapFile::new(&path), 1).expect("read").is_empty());
        let check: String = connection
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("checked");
        assert_eq!(check, "ok");
    }

    #[test]
    fn large_file_without_pointer_map_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, _connection) = used_file(dir.path(), "NONE");
        let refused = find_in(&GapFile::new(&path), 1).expect_err("it cannot be told");
        assert!(refused.to_string().contains("not listed"), "{refused}");
    }
}
