//! The journal in one SQLite file: one writer, and readers that never wait for it.
//!
//! What a call waits for goes to the end of three tables (`turns`, `intake_heads`, `intake_keys`),
//! so a commit of a hundred appends writes a few pages; [`fold`] moves it, sorted, to the tables by
//! which things are found. Reads look into both. A layout in which an append goes straight to its
//! place was measured: durability cost twice the CPU.
//!
//! From time to time the log is moved into the file beside the commits that go on (`settle_log`),
//! so that no commit has to move all of it. A file up to 1 GiB is checked (`quick_check`) before it
//! is written to.

mod ahead;
mod compaction;
mod ended;
mod erase;
mod fold;
mod intake;
mod open;
mod outbox;
mod prune;
mod read;
mod rewound;
mod row;
mod schema;
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
use memoird_core::ids::{DeliveryId, ErasureId, Generation, HookName, SessionKey, TenantId};
use memoird_core::outbox::Delivery;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;

pub(crate) use ahead::CONTENT;
use intake::Unfolded;
use read::Reach;
use row::GenerationRow;
pub use transfer::SqliteTransfer;
use write::Writer;

use crate::checksum::TurnCounters;
use crate::lock::DirLock;
use crate::sqlite_file::{empty_log, look_only};
use crate::sqlite_gaps;
use crate::{
    ClockAnchor, DataKey, DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries,
    EndedRecord, ErasedRows, Erasure, ErasureScope, GenerationOwner, JournalPage, JournalRange,
    PruneBefore, PruneBounds, READERS_MAX, Refused, Store, StoreError, TurnChange, TurnCounts,
    TurnsAhead, Unclean, Unpruned, WrittenTurn, WrittenTurns, locked,
};

/// How the journal is kept.
#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// A file up to this size is checked whole when it is opened; of a larger one
    /// only the header and the schema. In bytes.
    pub check_bytes_max: u64,
    /// Changes that are in the intake at most, but for keys and for those of two transactions:
    /// once half of them are there, the commits that follow fold it step by step.
    pub intake_changes: usize,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
    /// Bytes of pages that its connections keep in memory, all together.
    pub cache_bytes: u64,
    /// What the file is encrypted with; `None`: nothing.
    pub key: Option<DataKey>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            check_bytes_max: 1 << 30,
            intake_changes: 16_384,
            pages_max: None,
            cache_bytes: 32 << 20,
            key: None,
        }
    }
}

/// The name of the file in its directory.
const JOURNAL: &str = "journal.db";

/// How long emptying the log waits for readers; commits wait meanwhile.
const EMPTY_LOG_WAIT: Duration = Duration::from_millis(100);

/// How often old turns that are forgotten are overwritten in the unused space of pages as well.
const GAPS_EVERY_MS: u64 = 60 * 60 * 1_000;

/// The journal in `journal.db` of a data directory.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    options: SqliteOptions,
    /// Taken and given back by reads; up to [`READERS_MAX`] are kept. Closed before the
    /// writer: only the last connection moves the log into the file, and these cannot.
    readers: Mutex<Vec<Connection>>,
    /// Moves the log into the file beside the writer.
    settler: Mutex<Option<Connection>>,
    writer: Mutex<Writer>,
    counters: TurnCounters,
    unfolded: Arc<Unfolded>,
    /// True while the log may have turns that were forgotten.
    is_log_stale: AtomicBool,
    /// When the unused space of pages is looked through again, on the time line of prunings.
    gaps_due: AtomicU64,
    /// Last, so that the connections are closed first.
    _lock: DirLock,
}

impl SqliteStore {
    /// Opens the journal of `dir`, or makes an empty one, and takes the directory for
    /// this process.
    ///
    /// # Errors
    /// When the directory cannot be used or is in use, or the file is damaged, some
    /// other program's or too new. Then nothing was changed.
    pub fn open(dir: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let lock = DirLock::take(dir)?;
        transfer::check_finished(dir)?;
        let path = dir.join(JOURNAL);
        let unfolded = Arc::new(Unfolded::default());
        let writer = Writer::open(
            open::writer(&path, options)?,
            options.intake_changes,
            Arc::clone(&unfolded),
        )?;
        Ok(Self {
            path,
            options,
            writer: Mutex::new(writer),
            counters: TurnCounters::default(),
            unfolded,
            readers: Mutex::default(),
            settler: Mutex::default(),
            // A crash may have left anything.
            is_log_stale: AtomicBool::new(true),
            gaps_due: AtomicU64::new(0),
            _lock: lock,
        })
    }

    /// A transaction that was cut off by a panic was rolled back when it was dropped.
    fn writer(&self) -> MutexGuard<'_, Writer> {
        locked(&self.writer)
    }

    /// Notes whether sets that were written replaced what turns said before.
    fn note_old_content(&self, sets: &[ChangeSet]) {
        let has_old = |change: &Change| matches!(change.kind, ChangeKind::UpdateTurn(_));
        if sets.iter().flat_map(|set| &set.changes).any(has_old) {
            // The log and unused space may have what the turn said before: the next round of
            // retention clears both.
            self.is_log_stale.store(true, Ordering::Relaxed);
            self.gaps_due.store(0, Ordering::Relaxed);
        }
    }

    /// Empties the log. Most of it is moved into the file beside the commits, which then wait
    /// for the rest only. False while somebody reads an older moment.
    fn empty_log(&self) -> Result<bool, StoreError> {
        self.settle_log()?;
        Ok(empty_log(self.writer().connection(), EMPTY_LOG_WAIT)?)
    }

    /// Overwrites the unused space of pages. False while somebody reads an older moment.
    fn clear_gaps(&self) -> Result<bool, StoreError> {
        let key = self.options.key.as_ref();
        let pages = sqlite_gaps::find(&self.path, key)?;
        sqlite_gaps::clear(&self.path, key, &pages, EMPTY_LOG_WAIT, || {
            WriterConnection(self.writer())
        })
    }

    /// The same, unless that was done within the last hour on the steady time line: it reads the
    /// whole file.
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

    /// Where a session's rows have to be looked for.
    fn reach(&self, key: &SessionKey) -> Reach {
        match self.unfolded.contains(key) {
            true => Reach::IntakeToo,
            false => Reach::Folded,
        }
    }

    fn read<T>(
        &self,
        action: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let kept = locked(&self.readers).pop();
        let connection = match kept {
            Some(connection) => connection,
            None => open::reader(&self.path, self.options)?,
        };
        let outcome = action(&connection);
        let mut readers = locked(&self.readers);
        if readers.len() < READERS_MAX {
            readers.push(connection);
        }
        outcome
    }
}

/// The one connection that writes, for as long as nobody else may.
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
    ) -> Result<Vec<Result<(), Refused>>, StoreError> {
        let (answers, _) = self.writer().commit(clock, sets, None)?;
        self.note_old_content(sets);
        Ok(answers)
    }

    fn writes_ahead(&self) -> bool {
        true
    }

    fn commit_beside(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
        ahead: &TurnsAhead,
    ) -> Result<(Vec<Result<(), Refused>>, usize), StoreError> {
        let committed = self.writer().commit(clock, sets, Some(ahead))?;
        self.note_old_content(sets);
        Ok(committed)
    }

    fn settle_log(&self) -> Result<(), StoreError> {
        let mut settler = locked(&self.settler);
        let connection = match settler.take() {
            Some(connection) => connection,
            None => look_only(&self.path, self.options.key.as_ref())?,
        };
        let connection = settler.insert(connection);
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        Ok(())
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        self.read(read::clock)
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        let newer: Vec<GenerationRow> = self.writer().intake_rows().cloned().collect();
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

    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError> {
        let reach = self.reach(key);
        self.read(|connection| read::load(connection, reach, key, keys_since, &self.counters))
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        let reach = self.reach(key);
        self.read(|connection| read::keys(connection, reach, key, since))
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
        let reach = self.reach(key);
        let counters = &self.counters;
        self.read(|connection| read::journal(connection, reach, key, generation, range, counters))
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

    fn changed_after(&self, change: u64, max: usize) -> Result<Vec<TurnChange>, StoreError> {
        self.read(|connection| written::changed_after(connection, change, max))
    }

    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        self.read(|connection| written::at(connection, numbers, &self.counters))
    }

    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        // First the intake: what is folded meanwhile is then found in its place.
        let newer = {
            let writer = self.writer();
            let rows = generations
                .iter()
                .filter_map(|name| writer.in_intake(*name).0);
            rows.map(GenerationRow::into_owner).collect()
        };
        self.read(|connection| written::owners(connection, generations, newer))
    }

    fn deliveries(
        &self,
        filter: &DeliveryFilter,
        after: Option<&DeliveryId>,
        max: usize,
    ) -> Result<Vec<Delivery>, StoreError> {
        self.read(|connection| outbox::deliveries(connection, filter, after, max))
    }

    fn delivery(&self, id: &DeliveryId) -> Result<Option<Delivery>, StoreError> {
        self.read(|connection| outbox::delivery(connection, id))
    }

    fn due(
        &self,
        hook: &HookName,
        after: Option<&TenantId>,
        now: Steady,
        max: usize,
    ) -> Result<DueDeliveries, StoreError> {
        self.read(|connection| outbox::due(connection, hook, after, now, max))
    }

    fn open_deliveries(&self) -> Result<Vec<DeliveryCount>, StoreError> {
        self.read(outbox::open_deliveries)
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        self.read(read::turn_bytes)
    }

    fn record_outcomes(&self, outcomes: &[DeliveryOutcome]) -> Result<(), StoreError> {
        outbox::record_outcomes(self.writer().connection(), outcomes)
    }

    fn drop_delivery(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        outbox::drop_delivery(self.writer().connection(), id)
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        let wanted = {
            let writer = self.writer();
            let wanted = wanted.iter().map(|(_, generation)| {
                let (row, turns) = writer.in_intake(*generation);
                ended::Wanted {
                    generation: *generation,
                    row,
                    turns,
                }
            });
            wanted.collect::<Vec<_>>()
        };
        self.read(|connection| ended::ended(connection, wanted, bytes_max, &self.counters))
    }

    fn prune(&self, before: PruneBefore, bounds: PruneBounds) -> Result<Unpruned, StoreError> {
        let pruned = self.writer().prune(before, bounds)?;
        let is_stale = &self.is_log_stale;
        is_stale.fetch_or(pruned.has_forgotten, Ordering::Relaxed);
        if !pruned.unpruned.rows && is_stale.swap(false, Ordering::Relaxed) {
            let is_clean = self.empty_log()? && self.clear_gaps_when_due(before.ended)?;
            is_stale.fetch_or(!is_clean, Ordering::Relaxed);
        }
        Ok(pruned.unpruned)
    }

    fn save_erasure(&self, erasure: &Erasure) -> Result<(), StoreError> {
        erase::save(self.writer().connection(), erasure)
    }

    fn erasure(&self, id: ErasureId) -> Result<Option<Erasure>, StoreError> {
        self.read(|connection| erase::erasure(connection, id))
    }

    fn open_erasures(&self, max: usize) -> Result<Vec<Erasure>, StoreError> {
        self.read(|connection| erase::open_erasures(connection, max))
    }

    fn collect_erased(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        let mut writer = self.writer();
        writer.fold_all()?;
        erase::collect(writer.connection(), id, rows_max)
    }

    fn erasure_scope(&self, id: ErasureId) -> Result<ErasureScope, StoreError> {
        self.read(|connection| erase::scope(connection, id))
    }

    fn erase_rows(&self, id: ErasureId, rows_max: usize) -> Result<ErasedRows, StoreError> {
        let mut writer = self.writer();
        if erase::is_any_unfolded(&mut writer, id)? {
            writer.fold_all()?;
        }
        erase::rows(writer.connection(), id, rows_max)
    }

    fn forget_erasure_names(&self, id: ErasureId, rows_max: usize) -> Result<bool, StoreError> {
        erase::forget_names(self.writer().connection(), id, rows_max)
    }

    fn clean_pages(&self, pages_max: usize) -> Result<Unclean, StoreError> {
        let pages = {
            let mut writer = self.writer();
            writer.remove_leftovers()?;
            prune::give_back_pages(writer.connection(), pages_max)?
        };
        let is_clean = pages || (self.empty_log()? && self.clear_gaps()?);
        Ok(Unclean {
            pages,
            log: !is_clean,
        })
    }

    fn turn_counts(&self) -> TurnCounts {
        self.counters.counts()
    }
}
