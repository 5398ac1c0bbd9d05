//! Read-only integrity check of SQLite files and of the turns of a journal.
//!
//! A daemon may use the files concurrently. Rows are read in batches, each in its own read
//! transaction, so that the log can be truncated in between. A store without a file implements
//! [`TurnScan`] for its turns.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memoird_core::ids::Generation;
use rusqlite::{Connection, ErrorCode, OptionalExtension};

use crate::checksum::{StoredTurn, TurnKey, Verdict, examine};
use crate::rows::StoredRow;
use crate::sqlite::{CONTENT, of_version};
use crate::sqlite_file::{damaged, open_for_inspection};
use crate::{DataKey, StoreError};

/// Maximum number of damages described for one file. Further ones are only counted.
const DAMAGES_MAX: usize = 100;
/// Rows per read transaction, which blocks truncation of the journal's log, and maximum number of
/// turns read one by one in a damaged range.
pub const BATCH_TURNS: i64 = 1_000;
/// Problem reported for a page whose rows are out of order.
const OUT_OF_ORDER: &str = "its page has another row in its place";
/// First schema with checksums.
const CHECKSUMS_SINCE: i64 = 5;
/// First schema with a separate table of contents of turns.
const CONTENTS_SINCE: i64 = 9;

/// Findings of a check of a file or a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileCheck {
    /// File, or servers and name of a database.
    pub path: PathBuf,
    /// Size of the file without its log, or of the turns in a database.
    pub bytes: u64,
    /// Zeros unless the file is a journal.
    pub turns: TurnCheckCounts,
    /// Descriptions of the first 100 damages.
    pub damages: Vec<String>,
    pub damages_total: u64,
}

/// Reads the turns of a journal by number.
pub trait TurnScan {
    /// Checks a batch of turns with this number or a higher one.
    fn check_batch(&self, check: &mut FileCheck, from: i64) -> Result<BatchEnd, StoreError>;

    /// Checks the turn with this number, if there is one. Returns why it cannot be read.
    fn check_one(&self, check: &mut FileCheck, number: i64) -> Result<Option<String>, StoreError>;

    /// Whether the next turn from this number on can be found.
    fn is_readable_from(&self, number: i64) -> Result<bool, StoreError>;

    /// Generation and seq of an unreadable turn, if they can still be read.
    fn turn_of(&self, number: i64) -> Option<TurnKey>;

    /// Returns tenant and session of a generation, if they can still be read.
    fn session_of(&self, generation: Generation) -> Option<(String, String)>;
}

/// How a batch of turns ended.
#[derive(Clone, Debug)]
pub enum BatchEnd {
    /// There are no further turns.
    End,
    /// Turns before this number are checked.
    Before(i64),
    /// Turns before this number are checked, and the next one cannot be read.
    Damage { from: i64, problem: String },
}

/// Number of turns by the result of their check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCheckCounts {
    /// Match their checksum.
    pub whole: u64,
    /// No checksum: written by an older memoird.
    pub unchecked: u64,
    /// Do not match their checksum, or cannot be read.
    pub damaged: u64,
}

/// Creates an empty file of a version in memory. `None` if the version is newer than this build.
pub type SchemaOfVersion = fn(version: i64) -> rusqlite::Result<Option<Connection>>;

/// The schema of journals.
pub const JOURNAL_SCHEMA: SchemaOfVersion = of_version;

/// Checks the journal of a data directory.
///
/// # Errors
/// If the file cannot be opened or read for a reason other than damage.
pub fn check_journal(path: &Path, key: Option<&DataKey>) -> Result<FileCheck, StoreError> {
    check_file(path, key, JOURNAL_SCHEMA, |connection, check| {
        check.turns(&SqliteScan::new(connection)?)
    })
}

/// Rejects a file with a part of the schema that memoird did not create, such as a trigger.
///
/// # Errors
/// [`StoreError::ForeignSchema`], or if the file cannot be read.
pub fn check_schema(
    path: &Path,
    key: Option<&DataKey>,
    schema: SchemaOfVersion,
) -> Result<(), StoreError> {
    let failed = |error| damaged(path, error);
    let connection = open_for_inspection(path, key).map_err(failed)?;
    let foreign = foreign_objects(&connection, schema).map_err(failed)?;
    match foreign.into_iter().next() {
        Some(object) => Err(StoreError::ForeignSchema {
            path: path.to_owned(),
            object,
        }),
        None => Ok(()),
    }
}

/// Describes the parts of the schema that the empty file of the same version lacks.
fn foreign_objects(
    connection: &Connection,
    schema: SchemaOfVersion,
) -> rusqlite::Result<Vec<String>> {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let Some(own) = schema(version)? else {
        return Ok(Vec::new());
    };
    let own: HashSet<SchemaObject> = schema_objects(&own)?.into_iter().collect();
    let objects = schema_objects(connection)?.into_iter();
    let foreign = objects.filter(|object| !own.contains(object));
    Ok(foreign
        .map(|(kind, name, _)| format!("{kind} {name:?}"))
        .collect())
}

/// Kind, name and definition.
type SchemaObject = (String, String, String);

/// Reads the schema, without the tables and indexes that SQLite creates itself.
fn schema_objects(connection: &Connection) -> rusqlite::Result<Vec<SchemaObject>> {
    let sql = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema
               WHERE type NOT IN ('table', 'index') OR name NOT GLOB 'sqlite_*'";
    let mut statement = connection.prepare(sql)?;
    let objects = statement.query_map([], |row| {
        let definition: String = row.get(2)?;
        // A migration may have changed the white space.
        let words: Vec<&str> = definition.split_whitespace().collect();
        let definition = words.join(" ").replace(" ,", ",").replace(" )", ")");
        Ok((row.get(0)?, row.get(1)?, definition))
    })?;
    objects.collect()
}

/// Checks the pages of a SQLite file, and then its rows by `more`.
///
/// # Errors
/// As for [`check_journal`].
pub fn check_file(
    path: &Path,
    key: Option<&DataKey>,
    schema: SchemaOfVersion,
    more: impl FnOnce(&Connection, &mut FileCheck) -> Result<(), StoreError>,
) -> Result<FileCheck, StoreError> {
    let bytes = std::fs::metadata(path).map_err(|source| StoreError::DirUnusable {
        dir: path.to_owned(),
        source,
    })?;
    let mut check = FileCheck {
        path: path.to_owned(),
        bytes: bytes.len(),
        ..FileCheck::default()
    };
    let connection = open_for_inspection(path, key)?;
    let foreign = foreign_objects(&connection, schema);
    // A view or a generated column could show anything instead of what is stored.
    let is_own = foreign.as_ref().is_ok_and(Vec::is_empty);
    let steps = [
        check.foreign(foreign),
        check.pages(&connection),
        if is_own {
            more(&connection, &mut check)
        } else {
            Ok(())
        },
    ];
    for step in steps {
        match step {
            Err(StoreError::Sqlite { source }) if is_damage(&source) => {
                check.add(source.to_string());
            }
            other => other?,
        }
    }
    Ok(check)
}

impl FileCheck {
    fn foreign(&mut self, found: rusqlite::Result<Vec<String>>) -> Result<(), StoreError> {
        for object in found? {
            self.add(format!(
                "it has a foreign {object}; restore a backup without it, or remove it with sqlite3"
            ));
        }
        Ok(())
    }

    fn pages(&mut self, connection: &Connection) -> Result<(), StoreError> {
        let mut statement =
            connection.prepare(&format!("PRAGMA integrity_check({DAMAGES_MAX})"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            match row.get::<_, String>(0)? {
                fine if fine == "ok" => {}
                damage => self.add(damage),
            }
        }
        Ok(())
    }

    /// Checks all turns, also those after damage.
    pub fn turns(&mut self, scan: &dyn TurnScan) -> Result<(), StoreError> {
        let mut next = 0;
        loop {
            match scan.check_batch(self, next)? {
                BatchEnd::End => return Ok(()),
                BatchEnd::Before(number) => next = number,
                BatchEnd::Damage { from, problem } => {
                    let until = readable_from(scan, from)?;
                    self.one_by_one(scan, from..until.unwrap_or(i64::MAX), &problem)?;
                    match until {
                        Some(until) => next = until,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    /// Reads the turns of a damaged range one by one, at most [`BATCH_TURNS`].
    ///
    /// A damaged page does not reveal which turns it holds.
    fn one_by_one(
        &mut self,
        scan: &dyn TurnScan,
        numbers: Range<i64>,
        problem: &str,
    ) -> Result<(), StoreError> {
        let asked_until = numbers.end.min(numbers.start.saturating_add(BATCH_TURNS));
        if asked_until < numbers.end {
            let last = numbers.end - 1;
            self.add(format!(
                "the turns with numbers {asked_until} to {last} cannot be read: {problem}"
            ));
        }
        for number in numbers.start..asked_until {
            let Some(problem) = scan.check_one(self, number)? else {
                continue;
            };
            self.turns.damaged += 1;
            let turn = match scan.turn_of(number) {
                Some(key) => described(key, scan.session_of(key.generation)),
                None => format!("the turn with number {number}"),
            };
            self.add(format!("{turn} cannot be read: {problem}"));
        }
        Ok(())
    }

    /// Checks a row with number, generation, seq, content, header and checksum.
    pub fn turn(&mut self, row: &impl StoredRow, scan: &dyn TurnScan) {
        let verdict = stored_turn(row).map(|(key, turn)| (key, examine(key, &turn)));
        match verdict {
            Ok((_, Verdict::Whole)) => self.turns.whole += 1,
            Ok((_, Verdict::Unchecked)) => self.turns.unchecked += 1,
            Ok((key, Verdict::Damaged { .. })) => {
                self.turns.damaged += 1;
                let turn = described(key, scan.session_of(key.generation));
                self.add(format!("{turn} does not match its checksum"));
            }
            Err(error) => {
                self.turns.damaged += 1;
                self.add(format!("a turn cannot be read: {error}"));
            }
        }
    }

    /// Counts a damage, and describes it unless there are too many.
    pub fn add(&mut self, damage: String) {
        self.damages_total += 1;
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(damage);
        }
    }
}

fn described(key: TurnKey, session: Option<(String, String)>) -> String {
    let TurnKey { generation, seq } = key;
    let whose = session
        .map(|(tenant, session)| format!(" (tenant {tenant}, session {session})"))
        .unwrap_or_default();
    format!("turn {seq} of generation {generation}{whose}")
}

fn stored_turn(row: &impl StoredRow) -> Result<(TurnKey, StoredTurn<'_>), StoreError> {
    let key = TurnKey {
        generation: row.generation(1)?,
        seq: row.count(2)?,
    };
    let turn = StoredTurn {
        content: row.bytes(3)?,
        header: row.bytes_or_null(4)?,
        checksum: row.int_or_null(5)?,
    };
    Ok((key, turn))
}

/// Returns the number of the first readable turn after `damaged`. `None` if there is none.
fn readable_from(scan: &dyn TurnScan, damaged: i64) -> Result<Option<i64>, StoreError> {
    let (mut bad, mut step) = (damaged, 1_i64);
    let mut good = loop {
        let Some(from) = damaged.checked_add(step) else {
            return Ok(None);
        };
        if scan.is_readable_from(from)? {
            break from;
        }
        bad = from;
        step = step.saturating_mul(2);
    };
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        if scan.is_readable_from(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
}

/// The turns of a journal in a file. Their numbers are the rows.
struct SqliteScan<'a> {
    connection: &'a Connection,
    select: String,
}

impl<'a> SqliteScan<'a> {
    fn new(connection: &'a Connection) -> Result<Self, StoreError> {
        let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let columns = if version >= CHECKSUMS_SINCE {
            "header, checksum"
        } else {
            "NULL, NULL"
        };
        let content = if version >= CONTENTS_SINCE {
            CONTENT
        } else {
            "content"
        };
        let select = format!("SELECT id, generation, seq, {content}, {columns} FROM turns");
        Ok(Self { connection, select })
    }
}

impl TurnScan for SqliteScan<'_> {
    fn check_batch(&self, check: &mut FileCheck, from: i64) -> Result<BatchEnd, StoreError> {
        let sql = format!(
            "{} WHERE id >= ? ORDER BY id LIMIT {BATCH_TURNS}",
            self.select
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([from])?;
        let mut next = from;
        let problem = loop {
            match rows.next() {
                Ok(Some(row)) => match row.get(0)? {
                    id if id < next => break OUT_OF_ORDER.to_owned(),
                    id => {
                        next = i64::saturating_add(id, 1);
                        check.turn(row, self);
                    }
                },
                // The batch is full, or the table ended. An empty next batch means the latter.
                Ok(None) if next > from => return Ok(BatchEnd::Before(next)),
                Ok(None) => return Ok(BatchEnd::End),
                Err(error) if is_damage(&error) => break error.to_string(),
                Err(error) => return Err(error.into()),
            }
        };
        Ok(BatchEnd::Damage {
            from: next,
            problem,
        })
    }

    fn check_one(&self, check: &mut FileCheck, number: i64) -> Result<Option<String>, StoreError> {
        let sql = format!("{} WHERE id = ?", self.select);
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([number])?;
        Ok(match rows.next() {
            Ok(Some(row)) if row.get::<_, i64>(0)? == number => {
                check.turn(row, self);
                None
            }
            Ok(Some(_)) => Some(OUT_OF_ORDER.to_owned()),
            Ok(None) => None,
            Err(error) if is_damage(&error) => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        })
    }

    fn is_readable_from(&self, number: i64) -> Result<bool, StoreError> {
        let sql = "SELECT id FROM turns WHERE id >= ? ORDER BY id LIMIT 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        match statement.query_row([number], |row| row.get::<_, i64>(0)) {
            Ok(id) => Ok(id >= number),
            Err(rusqlite::Error::QueryReturnedNoRows) => Ok(true),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn turn_of(&self, number: i64) -> Option<TurnKey> {
        let sql = "SELECT generation, seq FROM turns WHERE id = ?";
        let mut statement = self.connection.prepare_cached(sql).ok()?;
        let mut rows = statement.query([number]).ok()?;
        let row = rows.next().ok()??;
        Some(TurnKey {
            generation: row.generation(0).ok()?,
            seq: row.count(1).ok()?,
        })
    }

    fn session_of(&self, generation: Generation) -> Option<(String, String)> {
        let sql = "SELECT tenant, session FROM generations WHERE generation = ?1
                   UNION ALL SELECT tenant, session FROM intake_heads WHERE generation = ?1 LIMIT 1";
        let named = self
            .connection
            .query_row(sql, [generation.to_bytes()], |row| {
                Ok((row.get(0)?, row.get(1)?))
            });
        named.optional().ok().flatten()
    }
}

/// Whether the error is caused by a damaged file or disk.
fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::Utf8Error(..) => true,
        other => matches!(
            other.sqlite_error_code(),
            Some(
                ErrorCode::DatabaseCorrupt
                    | ErrorCode::NotADatabase
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::Unknown
            )
        ),
    }
}
