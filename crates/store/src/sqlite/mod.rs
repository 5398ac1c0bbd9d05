//! The journal in one SQLite file, with a single writer and readers that never wait for it.
//!
//! Commits append to the end of three tables (`turns`, `intake_heads`, `intake_keys`), so a commit
//! of a hundred appends writes a few pages. A flush ([`flush`]) later moves the rows, sorted, to
//! the indexed tables. Reads check both. A layout that writes appends straight to the indexed
//! tables was measured: durability cost twice the CPU.
//!
//! The log is checkpointed regularly, concurrently with commits (`checkpoint_log`), so that no
//! commit has to checkpoint all of it. A file of up to 1 GiB is checked (`quick_check`) before it
//! is written to.

mod compaction;
mod ended;
#[cfg(test)]
mod ended_list_tests;
mod flush;
mod in_place;
mod open;
mod outbox;
mod pending;
mod prewrite;
mod prune;
mod read;
mod retained;
mod rewound;
mod row;
mod schema;
mod search;
mod tables;
mod transfer;
mod write;
mod written;

use std::collections::HashSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rusqlite::Connection;

use memoird_core::change::{Change, ChangeKind, ChangeSet};
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{ErasureId, Generation, SessionKey, TenantId};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;

use in_place::OpenFiles;
use pending::UnflushedSessions;
pub(crate) use prewrite::CONTENT;
use read::ReadScope;
pub use retained::RetainedStore;
pub(crate) use schema::of_version;
use search::SearchFile;
pub use search::index_file;
use tables::SqliteTables;
pub use transfer::SqliteTransfer;
use write::Writer;

use crate::checksum::TurnCounters;
use crate::lock::DirLock;
use crate::rows::GenerationRow;
use crate::sqlite_file::{empty_log, open_for_inspection};
use crate::sqlite_gaps::GapFile;
use crate::{
    CleanupPending, ClockAnchor, DataKey, EndedPage, EndedQuery, EndedRecord, ErasedRows,
    GenerationOwner, JournalPage, JournalRange, PrewritePart, PruneBefore, PruneBounds,
    PruningPending, PurgeStep, READERS_MAX, SearchIndex, StaleBase, Store, StoreError, TableBody,
    TurnCounts, WrittenTurn, WrittenTurns, ended_list, erase, lock,
};

#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// Maximum size in bytes of a file that is checked whole on open.
    ///
    /// Of a larger file, only header and schema are checked.
    pub check_bytes_max: u64,
    /// Maximum number of changes in the pending table. Keys and up to two transactions may exceed
    /// it.
    ///
    /// At half of it, a flush begins.
    pub pending_changes_max: usize,
    /// Maximum size of the file in pages of 4 KiB. Beyond it, SQLite reports a full disk.
    ///
    /// For tests.
    pub pages_max: Option<u32>,
    /// Page cache of all connections together, in bytes.
    pub cache_bytes: u64,
    /// Encryption key. `None` for a plain file.
    pub key: Option<DataKey>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            check_bytes_max: 1 << 30,
            pending_changes_max: 16_384,
            pages_max: None,
            cache_bytes: 32 << 20,
            key: None,
        }
    }
}

const JOURNAL: &str = "journal.db";

/// Maximum time to wait for readers when the log is emptied. Commits are blocked during it.
const EMPTY_LOG_WAIT: Duration = Duration::from_millis(100);

/// Interval in milliseconds at which retention overwrites deleted turns in unused space.
const GAPS_EVERY_MS: u64 = 60 * 60 * 1_000;

/// The journal in `journal.db` of a data directory.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    files: OpenFiles,
    options: SqliteOptions,
    /// Pool of up to [`READERS_MAX`] read connections.
    ///
    /// Dropped before the writer: only the last connection checkpoints the log on close, and read
    /// connections cannot.
    readers: Mutex<Vec<Connection>>,
    /// Connection that checkpoints the log concurrently with the writer.
    checkpointer: Mutex<Option<Connection>>,
    writer: Mutex<Writer>,
    counters: TurnCounters,
    unflushed: Arc<UnflushedSessions>,
    search: SearchFile,
    /// Whether the log may contain deleted turns.
    is_log_stale: AtomicBool,
    /// When the unused space of pages is cleared next, on the timeline of prunings.
    gaps_due: AtomicU64,
    /// Declared after the connections, which it must outlive.
    gaps: GapFile,
    /// Declared last, so that the connections are closed before the lock is released.
    _lock: DirLock,
}

impl SqliteStore {
    /// Locks `dir` for this process and opens its journal, which is created if missing.
    ///
    /// # Errors
    /// If the directory is unusable or in use, or the file is damaged, from another program, or too
    /// new. Nothing was changed then.
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let lock = DirLock::take(dir)?;
        transfer::check_finished(dir)?;
        let path = dir.join(JOURNAL);
        let unflushed = Arc::new(UnflushedSessions::default());
        let writer = Writer::open(
            open::writer(&path, options)?,
            options.pending_changes_max,
            Arc::clone(&unflushed),
        )?;
        Ok(Self {
            files: OpenFiles::new(&path),
            path,
            options,
            writer: Mutex::new(writer),
            counters: TurnCounters::default(),
            unflushed,
            search: SearchFile::new(dir, options.key),
            readers: Mutex::default(),
            checkpointer: Mutex::default(),
            // A crash may have left deleted turns in the log.
            is_log_stale: AtomicBool::new(true),
            gaps_due: AtomicU64::new(0),
            gaps: GapFile::new(&dir.join(JOURNAL)),
            _lock: lock,
        })
    }

    /// Ignores poisoning: a panic rolled back its transaction on drop.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        lock(&self.writer)
    }

    fn write(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        part: Option<&PrewritePart>,
    ) -> Result<(Vec<Result<(), StaleBase>>, usize), StoreError> {
        self.files.check()?;
        let has_old = |change: &Change| matches!(change.kind, ChangeKind::UpdateTurn(_));
        let replaces_turns = sets.iter().flat_map(|set| &set.changes).any(has_old);
        let mut index = replaces_turns.then(|| self.search.lock());
        let committed = self.writer().commit(clock, sets, part, index.as_mut())?;
        if replaces_turns {
            // The log and unused space may contain the old text. The next run of retention clears
            // both.
            self.is_log_stale.store(true, Ordering::Relaxed);
            self.gaps_due.store(0, Ordering::Relaxed);
        }
        Ok(committed)
    }

    /// Empties the log. Returns false if a reader holds an older snapshot.
    ///
    /// Most of it is checkpointed concurrently first, so that commits wait only for the rest.
    fn empty_log(&self) -> Result<bool, StoreError> {
        self.checkpoint_log()?;
        Ok(empty_log(self.writer().connection(), EMPTY_LOG_WAIT)?)
    }

    /// Overwrites the unused space of pages. Returns false if a reader holds an older snapshot.
    fn clear_gaps(&self) -> Result<bool, StoreError> {
        let key = self.options.key.as_ref();
        let pages = self.gaps.find(key)?;
        self.gaps.clear(key, &pages, EMPTY_LOG_WAIT, || {
            WriterConnection(self.writer())
        })
    }

    /// Runs [`Self::clear_gaps`] at most once an hour, since it reads the whole file.
    fn clear_gaps_when_due(&self, moment: Steady) -> Result<bool, StoreError> {
        let due = self.gaps_due.load(Ordering::Relaxed);
        if moment.0 < due {
            return Ok(true);
        }
        let is_clear = self.clear_gaps()?;
        if is_clear {
            let next = moment.0.saturating_add(GAPS_EVERY_MS);
            self.gaps_due.store(next, Ordering::Relaxed);
        }
        Ok(is_clear)
    }

    /// Returns where reads of a session must search.
    fn read_scope(&self, key: &SessionKey) -> ReadScope {
        if self.unflushed.contains(key) {
            ReadScope::WithPending
        } else {
            ReadScope::Indexed
        }
    }

    fn read<T>(
        &self,
        action: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = lock(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open::reader(&self.path, self.options)?,
        };
        let outcome = action(&connection);
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_MAX {
            readers.push(connection);
        }
        outcome
    }
}

/// Exclusive access to the write connection.
struct WriterConnection<'a>(MutexGuard<'a, Writer>);

impl Deref for WriterConnection<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0.shared_connection()
    }
}

impl Store for SqliteStore {
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError> {
        let (answers, _) = self.write(clock, sets, None)?;
        Ok(answers)
    }

    fn can_prewrite(&self) -> bool {
        true
    }

    fn commit_and_prewrite(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        part: &PrewritePart,
    ) -> Result<(Vec<Result<(), StaleBase>>, usize), StoreError> {
        self.write(clock, sets, Some(part))
    }

    fn checkpoint_log(&self) -> Result<(), StoreError> {
        let mut checkpointer = lock(&self.checkpointer);
        let taken = match checkpointer.take() {
            Some(connection) => connection,
            None => open_for_inspection(&self.path, self.options.key.as_ref())?,
        };
        let connection = checkpointer.insert(taken);
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        Ok(())
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        self.read(read::clock)
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        let newer: Vec<GenerationRow> = self.writer().pending_rows().cloned().collect();
        let known: HashSet<Generation> = newer.iter().map(|row| row.head.generation).collect();
        self.read(|connection| {
            read::live_rows(connection, &mut |row| {
                if !known.contains(&row.head.generation) {
                    visit(row.key, row.head);
                }
            })
        })?;
        let live = newer.into_iter().filter(|row| row.ended.is_none());
        live.for_each(|row| visit(row.key, row.head));
        Ok(())
    }

    fn ended_page(&self, query: &EndedQuery) -> Result<EndedPage, StoreError> {
        // Read the pending table first. Rows flushed in the meantime are then in both.
        let newer: Vec<GenerationRow> = {
            let writer = self.writer();
            let rows = writer.pending_ended_rows();
            rows.filter(|row| query.lists(row)).cloned().collect()
        };
        crate::tables::read(self, |tables| ended_list::page(tables, query, &newer))
    }

    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError> {
        let scope = self.read_scope(key);
        self.read(|connection| read::load(connection, scope, key, keys_since, &self.counters))
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        let scope = self.read_scope(key);
        self.read(|connection| read::keys(connection, scope, key, since))
    }

    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError> {
        self.read(|connection| read::keyed_sessions(connection, after, max))
    }

    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        let scope = self.read_scope(key);
        let counters = &self.counters;
        self.read(|connection| read::journal(connection, scope, key, generation, range, counters))
    }

    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError> {
        self.read(|connection| rewound::taken(connection, generation, key))
    }

    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError> {
        self.read(|connection| {
            written::after(connection, number, turns_max, bytes_max, &self.counters)
        })
    }

    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        self.read(|connection| written::at(connection, numbers, &self.counters))
    }

    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        // Read the pending table first. Rows flushed in the meantime are then found in the indexed
        // tables.
        let newer = {
            let writer = self.writer();
            let rows = generations.iter();
            rows.filter_map(|name| Some((*name, writer.pending_state(*name).0?)))
                .collect()
        };
        self.read(|connection| written::owners(connection, generations, newer))
    }

    fn read_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.read(|connection| {
            let view = connection.unchecked_transaction()?;
            body(&SqliteTables::new(&view, None))
        })
    }

    fn write_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.files.check()?;
        self.writer().transact(None, body)
    }

    fn check_in_place(&self) -> Result<(), StoreError> {
        self.files.check()
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        self.read(read::turn_bytes)
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        let wanted = {
            let writer = self.writer();
            let wanted = wanted.iter().map(|(_, generation)| {
                let (row, turns) = writer.pending_state(*generation);
                ended::RequestedGeneration {
                    generation: *generation,
                    row,
                    turns,
                }
            });
            wanted.collect::<Vec<_>>()
        };
        self.read(|connection| ended::ended(connection, wanted, bytes_max, &self.counters))
    }

    fn prune(
        &self,
        before: PruneBefore,
        bounds: PruneBounds,
    ) -> Result<PruningPending, StoreError> {
        let (pruned, pages) = {
            let mut index = self.search.lock();
            let mut writer = self.writer();
            let pruned = writer.prune(before, bounds, &mut index)?;
            let pages = prune::release_pages(writer.connection(), bounds.pages_max)?;
            (pruned, pages)
        };
        let is_stale = &self.is_log_stale;
        is_stale.fetch_or(pruned.has_deleted_content, Ordering::Relaxed);
        if !pruned.has_more && is_stale.swap(false, Ordering::Relaxed) {
            let is_clean = self.empty_log()? && self.clear_gaps_when_due(before.ended)?;
            is_stale.fetch_or(!is_clean, Ordering::Relaxed);
        }
        Ok(PruningPending {
            rows: pruned.has_more,
            pages,
        })
    }

    fn collect_erased(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        let mut writer = self.writer();
        writer.flush_all()?;
        writer.transact(None, |tables| erase::collect(tables, id, rows_max))
    }

    fn erase_rows(&self, id: ErasureId, rows_max: usize) -> Result<ErasedRows, StoreError> {
        let mut index = self.search.lock();
        self.writer().erase_rows(id, rows_max, &mut index)
    }

    fn clean_pages(&self, pages_max: usize) -> Result<CleanupPending, StoreError> {
        let purged = self.purge_step()?;
        if purged != PurgeStep::Done {
            return Ok(CleanupPending {
                pages: purged == PurgeStep::More,
                log: purged == PurgeStep::Blocked,
            });
        }
        let pages = {
            let mut writer = self.writer();
            writer.remove_leftovers()?;
            prune::release_pages(writer.connection(), pages_max)?
        };
        let is_clean = pages || (self.empty_log()? && self.clear_gaps()?);
        Ok(CleanupPending {
            pages,
            log: !is_clean,
        })
    }

    fn turn_counts(&self) -> TurnCounts {
        *lock(&self.counters)
    }

    fn search_index(&self) -> Option<&dyn SearchIndex> {
        Some(self)
    }
}
