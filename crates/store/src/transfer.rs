//! Carries a whole journal from one store to another, of whatever kind they are: table by table, each
//! in the order of its key, in pages. It can be cut off at any moment and done again, and at last both
//! sides are read and compared.
//!
//! The tables are those that every store has, whatever columns it keeps them in. A page is written
//! whole or not at all, so a table goes on behind its last row; and as long as not all of them are
//! there and compared, a mark in the target keeps every daemon from it.

use std::fmt;

use memoird_core::hex;
use memoird_core::sha256::Sha256;

use crate::{ClockAnchor, StoreError};

/// What a column holds. One that is no part of a key may also hold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A ULID: 16 bytes.
    Id,
    /// Text that somebody else wrote: UTF-8, with any character in it.
    Text,
    /// A word of memoird or of its configuration: UTF-8 without zero bytes.
    Word,
    /// Bytes.
    Bytes,
    /// A whole number.
    Int,
    /// 0 or 1.
    Bool,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// A table of a journal.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [Column],
    /// So many of them, the first ones, are its key, which no two rows share.
    pub key_columns: usize,
}

/// What a row has in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Nothing,
    /// Of [`Kind::Int`] and [`Kind::Bool`].
    Number(i64),
    /// Of all other kinds.
    Bytes(Vec<u8>),
}

/// A row: a value for each column. Or a key: one for each of the first columns.
pub type Row = Vec<Value>;

/// Where a journal stands: what comes next follows from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The time line; `None` before the first commit.
    pub clock: Option<ClockAnchor>,
    /// The highest number that was given to a turn.
    pub last_turn: u64,
    /// The highest number that was given to a change of a turn.
    pub last_change: u64,
}

/// How much is carried at once.
#[derive(Clone, Copy, Debug)]
pub struct PageBounds {
    /// Rows of a page at most; one at least.
    pub rows_max: usize,
    /// No further row is read once this many bytes were.
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

/// Tells a journal from others, and from itself after a daemon has served it: who goes on with a
/// migration must have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId([u8; 32]);

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

/// A journal that nobody else has as long as this value is there, to be read.
pub trait TransferSource {
    /// Where it stands.
    ///
    /// # Errors
    /// When it cannot be read.
    fn position(&mut self) -> Result<Position, StoreError>;

    /// About how many rows a table has. Of turns, what the heads of their generations say: to count them
    /// is to read a large part of the journal.
    ///
    /// # Errors
    /// When it cannot be read.
    fn rows(&mut self, table: &Table) -> Result<u64, StoreError>;

    /// Rows behind this key, in the order of their keys, and at least one where there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(
        &mut self,
        table: &Table,
        after: Option<&Row>,
        bounds: PageBounds,
    ) -> Result<Vec<Row>, StoreError>;

    /// The key of the last row of a table.
    ///
    /// # Errors
    /// When it cannot be read.
    fn last(&mut self, table: &Table) -> Result<Option<Row>, StoreError>;

    /// Fails where somebody else may have had it meanwhile.
    ///
    /// # Errors
    /// When it was lost, or cannot be asked.
    fn check_held(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A journal in the making. It is marked as unfinished: no daemon opens it.
pub trait TransferTarget: TransferSource {
    /// Writes rows, all or none. Those that are there already stay.
    ///
    /// # Errors
    /// When it cannot be written.
    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError>;

    /// Says where it stands.
    ///
    /// # Errors
    /// When it cannot be written.
    fn set_position(&mut self, position: &Position) -> Result<(), StoreError>;

    /// Makes all of it durable, and takes the mark away.
    ///
    /// # Errors
    /// When it cannot be written. Then the mark may be there or not, and all else is.
    fn finish(&mut self) -> Result<(), StoreError>;
}

/// What was carried of a table, as both sides have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The table.
    pub name: &'static str,
    /// As it was read in the source.
    pub source: TableDigest,
    /// As it was read in the target.
    pub target: TableDigest,
}

/// The rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    /// How many.
    pub rows: u64,
    /// Of all their values, in the order of their keys.
    pub sha256: [u8; 32],
}

impl Compared {
    /// True where both sides have the same.
    pub fn is_same(&self) -> bool {
        self.source == self.target
    }
}

/// A table by its name, how many columns are its key, and its columns.
macro_rules! table {
    ($name:ident, $key:literal: $($column:ident $kind:ident),+) => {
        Table {
            name: stringify!($name),
            columns: &[$(Column { name: stringify!($column), kind: Kind::$kind }),+],
            key_columns: $key,
        }
    };
}

/// All of a journal but its position, in the order in which it is carried: what a generation weighs
/// follows from its turns, so these come first.
pub const TABLES: [Table; 13] = [
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
    table!(turn_changes, 1: change Int, generation Id, number Int),
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
    /// The columns of its key.
    pub fn key(&self) -> &'static [Column] {
        &self.columns[..self.key_columns]
    }

    /// The key of a row.
    fn key_of(&self, row: &Row) -> Row {
        row[..self.key_columns].to_vec()
    }
}

impl Position {
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
        clock
            .chain([number(self.last_turn), number(self.last_change)])
            .collect()
    }
}

/// A digest of rows in the making.
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

/// What tells a source from others, and about how many rows it has. What changes in it without a commit,
/// such as what hooks were told, is found at the end, when both sides are compared.
///
/// # Errors
/// When it cannot be read.
pub fn look(source: &mut dyn TransferSource) -> Result<(SourceId, u64), StoreError> {
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

/// Carries all that the target lacks, and reads both sides to compare them. The target is finished
/// where they are the same; where not, it stays marked. `told`: of each table, how many more rows were
/// carried or read, which makes three times what the source has where nothing was there.
///
/// # Errors
/// When one of them cannot be read or written. Then it can be done again.
pub fn carry(
    source: &mut dyn TransferSource,
    target: &mut dyn TransferTarget,
    bounds: PageBounds,
    told: &mut dyn FnMut(&Table, u64),
) -> Result<Vec<Compared>, StoreError> {
    for table in &TABLES {
        let mut after = target.last(table)?;
        loop {
            let rows = source.read(table, after.as_ref(), bounds)?;
            let Some(last) = rows.last() else { break };
            target.put(table, &rows)?;
            told(table, rows.len() as u64);
            after = Some(table.key_of(last));
        }
    }
    target.set_position(&source.position()?)?;
    let sources = digests(source, bounds, told)?;
    let targets = digests(target, bounds, told)?;
    let names = TABLES.iter().map(|table| table.name).chain(["clock"]);
    let pairs = sources.into_iter().zip(targets);
    let compared = names.zip(pairs).map(|(name, (source, target))| Compared {
        name,
        source,
        target,
    });
    let compared: Vec<Compared> = compared.collect();
    source.check_held()?;
    if compared.iter().all(Compared::is_same) {
        target.finish()?;
    }
    Ok(compared)
}

/// Of each table, and at last of the position.
fn digests<S: TransferSource + ?Sized>(
    side: &mut S,
    bounds: PageBounds,
    told: &mut dyn FnMut(&Table, u64),
) -> Result<Vec<TableDigest>, StoreError> {
    let mut digests = Vec::new();
    for table in &TABLES {
        let (mut hashing, mut after) = (Hashing::default(), None);
        loop {
            let rows = side.read(table, after.as_ref(), bounds)?;
            let Some(last) = rows.last() else { break };
            after = Some(table.key_of(last));
            rows.iter().for_each(|row| hashing.add(row));
            told(table, rows.len() as u64);
        }
        digests.push(hashing.end());
    }
    let mut hashing = Hashing::default();
    hashing.add(&side.position()?.row());
    digests.push(hashing.end());
    Ok(digests)
}

/// The names of columns, with commas between them, for a statement.
pub fn names(columns: &[Column]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    names.join(", ")
}
