//! Copies a whole journal from one store to another, of the same or a different kind.
//!
//! Tables are copied one after another, each in key order and in pages. A page is written
//! atomically, so an interrupted copy resumes after the last row of each table. At the end both
//! sides are read and compared. Until then a marker in the target keeps daemons from opening it.
//!
//! The tables are logical: the [`Dialect`](crate::Dialect) of a database maps them to its own.

use std::fmt;
use std::ops::Range;

use memoird_core::hex;
use memoird_core::sha256::Sha256;

use crate::checksum::{TurnKey, protect};
use crate::rows::{StoredRow, damaged};
use crate::tables::run;
use crate::{ClockAnchor, Dialect, Param, StoreError, TableBody, Tables};

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
    /// Runs `body` over a snapshot of the tables.
    fn read_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError>;

    /// Returns the counters of the journal.
    fn position(&mut self) -> Result<JournalCounters, StoreError>;

    /// Returns the approximate number of rows of a table.
    ///
    /// Turns are estimated from the metadata of their generations. Counting them would read a large
    /// part of the journal.
    fn rows(&mut self, table: &Table) -> Result<u64, StoreError> {
        run(|body| self.read_tables(body), |tables| count(tables, table))
    }

    /// Returns rows after this key in key order, at least one if there is one.
    fn read(
        &mut self,
        table: &Table,
        after: Option<&Row>,
        bounds: PageBounds,
    ) -> Result<Vec<Row>, StoreError> {
        let read = |tables: &dyn Tables| read_page(tables, table, after, bounds);
        run(|body| self.read_tables(body), read)
    }

    /// Returns the key of the last row of a table.
    fn last(&mut self, table: &Table) -> Result<Option<Row>, StoreError> {
        run(|body| self.read_tables(body), |tables| last(tables, table))
    }

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
    /// Runs `body` in a transaction, which need not be durable before [`Self::finish`].
    fn write_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError>;

    /// Writes rows atomically. Rows that already exist are left unchanged.
    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        self.write_tables(&mut |tables| put(tables, table, rows))
    }

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
pub const TABLES: [Table; 14] = [
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
    table!(copies, 2: generation Id, source Id),
    table!(former_subjects, 3: tenant Text, subject Text, generation Id),
    table!(erasures, 1: job Id, tenant Text, stage Word, session Text, generation Id, subject Text,
        position Id, counts Bytes, outside Text),
    table!(erasure_generations, 2: job Id, generation Id, session Text, is_erased Bool),
    table!(erasure_given, 3: job Id, generation Id, hook Word),
];

impl Column {
    /// Whether the values count in the size of a page.
    fn is_sized(&self) -> bool {
        matches!(self.kind, ColumnKind::Text | ColumnKind::Bytes)
    }
}

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

/// A statement that inserts a row or a part of it.
#[derive(Clone, Debug)]
pub struct RowInsert {
    pub sql: String,
    /// Positions in the logical table of the columns that the statement takes.
    pub columns: Vec<usize>,
}

impl RowInsert {
    /// Inserts a range of a table's columns, under these names.
    pub fn new(into: &str, names: &str, table: &Table, columns: Range<usize>) -> Self {
        let places = places(&table.columns[columns.clone()]);
        Self {
            sql: format!("INSERT INTO {into} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"),
            columns: columns.collect(),
        }
    }

    /// Inserts all columns into a table that has them.
    pub fn whole(table: &Table) -> Self {
        let columns = table.columns;
        Self::new(table.name, &column_list(columns), table, 0..columns.len())
    }
}

fn count(tables: &dyn Tables, table: &Table) -> Result<u64, StoreError> {
    let sql = match table.name {
        "turns" => "SELECT CAST(coalesce(sum(last_seq), 0) AS bigint) FROM generations".to_owned(),
        name => format!("SELECT count(*) FROM {}", (tables.dialect().rows_of)(name)),
    };
    let rows = tables.query(&sql, &[])?;
    rows.first().map_or(Ok(0), |row| row.count(0))
}

fn last(tables: &dyn Tables, table: &Table) -> Result<Option<Row>, StoreError> {
    let dialect = tables.dialect();
    let key = expressions(dialect, table, table.key());
    let sql = format!(
        "SELECT {} FROM {} ORDER BY {} DESC LIMIT 1",
        key.join(", "),
        (dialect.rows_of)(table.name),
        key.join(" DESC, ")
    );
    Ok(tables.query(&sql, &[])?.pop())
}

fn read_page(
    tables: &dyn Tables,
    table: &Table,
    after: Option<&Row>,
    bounds: PageBounds,
) -> Result<Vec<Row>, StoreError> {
    let dialect = tables.dialect();
    let key = expressions(dialect, table, table.key()).join(", ");
    let mut params = Vec::new();
    let mut range = String::new();
    if let Some(after) = after {
        let columns = table.key().iter().zip(after);
        params = columns.map(param).collect::<Result<_, _>>()?;
        range = format!("WHERE ({key}) > ({})", places(table.key()));
    }
    let select = |columns: &str| {
        let limit = table.key_columns * usize::from(after.is_some()) + 1;
        format!(
            "SELECT {columns} FROM {} {range} ORDER BY {key} LIMIT ?{limit}",
            (dialect.rows_of)(table.name)
        )
    };
    // Both databases determine a size without reading the value.
    let sized = table.columns.iter().filter(|column| column.is_sized());
    let sizes = sized.map(|column| match (table.name, column.name) {
        ("turns", "content") => dialect.content_bytes.to_owned(),
        (table, name) => {
            let value = (dialect.expression)(table, name);
            format!("coalesce(octet_length({value}), 0)")
        }
    });
    let size = sizes.fold("0".to_owned(), |sum, size| format!("{sum} + {size}"));
    params.push(bounds.rows_max.max(1).into());
    let (mut rows, mut bytes) = (0_usize, 0_usize);
    for row in tables.query(&select(&size), &params)? {
        if rows > 0 && bytes >= bounds.bytes_max {
            break;
        }
        rows += 1;
        bytes += usize::try_from(row.count(0)?).unwrap_or(usize::MAX);
    }
    params.pop();
    params.push(rows.into());
    let columns = expressions(dialect, table, table.columns).join(", ");
    let mut page = tables.query(&select(&columns), &params)?;
    if table.name == "turns" {
        page.iter_mut().for_each(add_checksum);
    }
    Ok(page)
}

fn put(tables: &dyn Tables, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
    for RowInsert { sql, columns } in (tables.dialect().inserts)(table) {
        for row in rows {
            let values = columns.iter().map(|&at| (&table.columns[at], &row[at]));
            let params = values.map(param).collect::<Result<Vec<_>, _>>()?;
            tables.send(&sql, &params)?;
        }
    }
    Ok(())
}

/// Adds header and checksum to a turn written by an older memoird without them.
fn add_checksum(turn: &mut Row) {
    let (Ok(generation), Ok(seq), Ok(None)) =
        (turn.generation(1), turn.count(2), turn.int_or_null(3))
    else {
        return;
    };
    let content = turn.bytes(5).unwrap_or_default();
    let protection = protect(TurnKey { generation, seq }, content);
    turn[3] = Value::Number(protection.checksum);
    turn[4] = Value::Bytes(protection.header);
}

fn param<'a>((column, value): (&Column, &'a Value)) -> Result<Param<'a>, StoreError> {
    let text = |bytes| str::from_utf8(bytes).map_err(|_| damaged("text"));
    Ok(match (column.kind, value) {
        (_, Value::Nothing) => Param::Null,
        (_, Value::Number(number)) => Param::Int(*number),
        (ColumnKind::Id, Value::Bytes(id)) => {
            Param::Id(id[..].try_into().map_err(|_| damaged("id"))?)
        }
        (ColumnKind::Text, Value::Bytes(bytes)) => Param::Text(text(bytes)?),
        (ColumnKind::Word, Value::Bytes(bytes)) => Param::Word(text(bytes)?),
        (_, Value::Bytes(bytes)) => Param::Bytes(bytes),
    })
}

fn expressions(dialect: &Dialect, table: &Table, columns: &[Column]) -> Vec<&'static str> {
    let expression = |column: &Column| (dialect.expression)(table.name, column.name);
    columns.iter().map(expression).collect()
}

/// Returns numbered placeholders for these columns, separated by commas.
pub fn places(columns: &[Column]) -> String {
    let place = |(column, number): (&Column, usize)| match column.kind {
        ColumnKind::Bool => format!("?{number} <> 0"),
        _ => format!("?{number}"),
    };
    let places: Vec<String> = columns.iter().zip(1..).map(place).collect();
    places.join(", ")
}

/// Returns the column names separated by commas, for a statement.
pub fn column_list(columns: &[Column]) -> String {
    let column_list: Vec<&str> = columns.iter().map(|column| column.name).collect();
    column_list.join(", ")
}
