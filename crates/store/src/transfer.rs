//! Copies a whole journal from one store to another, of the same or a different kind.
//!
//! Tables are copied one after another, each in key order and in pages. A page is written
//! atomically, so an interrupted copy resumes after the last row of each table. At the end both
//! sides are read and compared. Until then a marker in the target keeps daemons from opening it.
//!
//! The tables are logical: each store maps them to its own columns.

use std::fmt;

use memoird_core::hex;
use memoird_core::sha256::Sha256;

use crate::{ClockAnchor, StoreError};

/// Type of a column. Columns outside the key are nullable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// A ULID, 16 bytes.
    Id,
    /// UTF-8 from clients, with any character including NUL.
    Text,
    /// UTF-8 defined by memoird or its configuration, without NUL.
    Word,
    Bytes,
    Int,
    /// 0 or 1.
    Bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: ColumnKind,
}

/// A logical table of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub name: &'static str,
    pub columns: &'static [Column],
    /// Length of the primary key: the first columns.
    pub key_columns: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Nothing,
    /// For [`ColumnKind::Int`] and [`ColumnKind::Bool`].
    Number(i64),
    /// For all other kinds.
    Bytes(Vec<u8>),
}

/// A row with a value per column, or a key with a value per key column.
pub type Row = Vec<Value>;

/// Counters that a journal continues from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalCounters {
    /// `None` before the first commit.
    pub clock: Option<ClockAnchor>,
    /// Highest number assigned to a turn.
    pub last_turn: u64,
}

/// Limits of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Maximum number of rows. At least one is read.
    pub rows_max: usize,
    /// Stop reading once the rows read have at least this many bytes.
    pub bytes_max: usize,
}

impl Default for PageBounds {
    fn default() -> Self {
        Self {
            rows_max: 2_000,
            bytes_max: 4 << 20,
        }
    }
}

/// Fingerprint of a source journal. It changes once a daemon has served the journal.
///
/// A migration can be resumed only with the same source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId([u8; 32]);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// A journal opened for reading. It is locked against other users while this value exists.
///
/// Every method fails if the journal cannot be read.
pub trait TransferSource {
    /// Returns the counters of the journal.
    fn position(&mut self) -> Result<JournalCounters, StoreError>;

    /// Returns the approximate number of rows of a table.
    ///
    /// Turns are estimated from the metadata of their generations. Counting them would read a large
    /// part of the journal.
    fn rows(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// Returns rows after this key in key order, at least one if there is one.
    fn read(
        &mut self,
        table: &Table,
        after: Option<&Row>,
        bounds: PageBounds,
    ) -> Result<Vec<Row>, StoreError>;

    /// Returns the key of the last row of a table.
    fn last(&mut self, table: &Table) -> Result<Option<Row>, StoreError>;

    /// Fails if the lock on the journal may have been lost in the meantime.
    ///
    /// # Errors
    /// If the lock was lost, or cannot be checked.
    fn check_held(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A journal being written. A marker keeps daemons from opening it.
///
/// Every method fails if the journal cannot be written.
pub trait TransferTarget: TransferSource {
    /// Writes rows atomically. Rows that already exist are left unchanged.
    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError>;

    /// Stores the counters of the source.
    fn set_position(&mut self, position: &JournalCounters) -> Result<(), StoreError>;

    /// Makes the journal durable and removes the marker.
    ///
    /// # Errors
    /// If the journal cannot be written. The marker may remain; everything else is complete.
    fn finish(&mut self) -> Result<(), StoreError>;
}

/// Digests of one table on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableComparison {
    pub name: &'static str,
    pub source: TableDigest,
    pub target: TableDigest,
}

/// Digest of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    pub rows: u64,
    /// Hash over all values in key order.
    pub sha256: [u8; 32],
}

impl TableComparison {
    pub fn is_same(&self) -> bool {
        self.source == self.target
    }
}

/// Defines a table: name, number of key columns, and columns.
macro_rules! table {
    ($name:ident, $key:literal: $($column:ident $kind:ident),+) => {
        Table {
            name: stringify!($name),
            columns: &[$(Column { name: stringify!($column), kind: ColumnKind::$kind }),+],
            key_columns: $key,
        }
    };
}

/// All tables of a journal, in the order in which they are copied.
///
/// Turns come first, because the size of a generation is derived from them.
pub const TABLES: [Table; 12] = [
    table!(turns, 1: number Int, generation Id, seq Int, checksum Int, header Bytes, content Bytes),
    table!(generations, 1: generation Id, format Int, tenant Text, session Text, subject Text,
        created_ms Int, last_access Int, revision Int, last_seq Int, newest_seq Int, kept Bytes,
        turns Int, bytes Int, tokens Int, partial Bool, state_version Int, ended_ms Int,
        ended_at Int, reason Word, compaction Bytes, options Bytes),
    table!(states, 1: generation Id, json Text),
    table!(windows, 1: generation Id, cuts Bytes),
    table!(summaries, 2: generation Id, number Int, body Bytes),
    table!(rewound, 2: generation Id, first_seq Int, last_seq Int),
    table!(rewinds, 3: generation Id, key Bytes, first_seq Int, last_seq Int),
    table!(idempotency, 3: tenant Text, session Text, key Bytes, content Bytes, generation Id,
        first_seq Int, last_seq Int, dropped Int, at Int),
    table!(outbox, 2: generation Id, hook Word, tenant Text, session Text, reason Word, state Word,
        tries Int, last_error Text, due Int),
    table!(erasures, 1: job Id, tenant Text, stage Word, session Text, generation Id, subject Text,
        position Id, counts Bytes, outside Text),
    table!(erasure_generations, 2: job Id, generation Id, session Text, is_erased Bool),
    table!(erasure_given, 3: job Id, generation Id, hook Word),
];

impl Table {
    pub fn key(&self) -> &'static [Column] {
        &self.columns[..self.key_columns]
    }

    fn key_of(&self, row: &Row) -> Row {
        row[..self.key_columns].to_vec()
    }
}

impl JournalCounters {
    fn row(&self) -> Row {
        let number = |count: u64| Value::Number(count.cast_signed());
        let clock = self.clock.iter().flat_map(|clock| {
            [
                number(clock.steady.0),
                Value::Number(clock.wall.as_ms()),
                Value::Bytes(clock.boot_id.clone().into_bytes()),
                number(clock.boot_ms),
            ]
        });
        clock.chain([number(self.last_turn)]).collect()
    }
}

/// Incremental digest of rows.
#[derive(Default)]
struct Hashing {
    rows: u64,
    hasher: Sha256,
}

impl Hashing {
    fn add(&mut self, row: &Row) {
        self.rows += 1;
        for value in row {
            match value {
                Value::Nothing => self.hasher.update([0]),
                Value::Number(number) => {
                    self.hasher.update([1]);
                    self.hasher.update(number.to_le_bytes());
                }
                Value::Bytes(bytes) => {
                    self.hasher.update([2]);
                    self.hasher.update((bytes.len() as u64).to_le_bytes());
                    self.hasher.update(bytes);
                }
            }
        }
    }

    fn end(self) -> TableDigest {
        TableDigest {
            rows: self.rows,
            sha256: self.hasher.finalize(),
        }
    }
}

/// Returns the fingerprint of a source and its approximate number of rows.
///
/// The fingerprint does not cover changes made without a commit, such as recorded deliveries. The
/// final comparison detects those.
///
/// # Errors
/// If the source cannot be read.
pub fn identify(source: &mut dyn TransferSource) -> Result<(SourceId, u64), StoreError> {
    let mut row = source.position()?.row();
    let mut rows = 0;
    for table in &TABLES {
        row.extend(source.last(table)?.into_iter().flatten());
        rows += source.rows(table)?;
    }
    let mut hashing = Hashing::default();
    hashing.add(&row);
    Ok((SourceId(hashing.end().sha256), rows))
}

/// Copies all rows missing in the target, and compares both sides.
///
/// If they are equal, the target is finished; otherwise its marker remains. `report_rows` is called
/// with the number of further rows of a table copied or read. For an empty target the total is
/// three times the rows of the source.
///
/// # Errors
/// If a side cannot be read or written. The copy can be resumed.
pub fn copy_and_compare(
    source: &mut dyn TransferSource,
    target: &mut dyn TransferTarget,
    bounds: PageBounds,
    report_rows: &mut dyn FnMut(&Table, u64),
) -> Result<Vec<TableComparison>, StoreError> {
    for table in &TABLES {
        let mut after = target.last(table)?;
        loop {
            let rows = source.read(table, after.as_ref(), bounds)?;
            let Some(last) = rows.last() else { break };
            target.put(table, &rows)?;
            report_rows(table, rows.len() as u64);
            after = Some(table.key_of(last));
        }
    }
    target.set_position(&source.position()?)?;
    let sources = digests(source, bounds, report_rows)?;
    let targets = digests(target, bounds, report_rows)?;
    let column_list = TABLES.iter().map(|table| table.name).chain(["clock"]);
    let pairs = sources.into_iter().zip(targets);
    let compared: Vec<TableComparison> = column_list
        .zip(pairs)
        .map(|(name, (source, target))| TableComparison {
            name,
            source,
            target,
        })
        .collect();
    source.check_held()?;
    if compared.iter().all(TableComparison::is_same) {
        target.finish()?;
    }
    Ok(compared)
}

/// Returns the digest of each table, followed by that of the position.
fn digests<S: TransferSource + ?Sized>(
    side: &mut S,
    bounds: PageBounds,
    report_rows: &mut dyn FnMut(&Table, u64),
) -> Result<Vec<TableDigest>, StoreError> {
    let mut digests = Vec::new();
    for table in &TABLES {
        let (mut hashing, mut after) = (Hashing::default(), None);
        loop {
            let rows = side.read(table, after.as_ref(), bounds)?;
            let Some(last) = rows.last() else { break };
            after = Some(table.key_of(last));
            rows.iter().for_each(|row| hashing.add(row));
            report_rows(table, rows.len() as u64);
        }
        digests.push(hashing.end());
    }
    let mut hashing = Hashing::default();
    hashing.add(&side.position()?.row());
    digests.push(hashing.end());
    Ok(digests)
}

/// Returns the column names separated by commas, for a statement.
pub fn column_list(columns: &[Column]) -> String {
    let column_list: Vec<&str> = columns.iter().map(|column| column.name).collect();
    column_list.join(", ")
}
