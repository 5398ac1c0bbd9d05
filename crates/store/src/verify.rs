//! Read-only integrity check of SQLite files and of the turns of a journal.
//!
//! A daemon may use the files concurrently. Rows are read in batches, each in its own read
//! transaction, so that the log can be truncated in between. A store without a file verifies its
//! turns itself, and records the findings in the same [`FileCheck`].

use std::ops::Range;
use std::path::{Path, PathBuf};

use memoird_core::ids::Generation;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Statement, params};

use crate::checksum::{StoredTurn, TurnKey, Verdict, examine};
use crate::sqlite::CONTENT;
use crate::sqlite_file::open_for_inspection;
use crate::{DataKey, StoreError};

/// Maximum number of damages described for one file. Further ones are only counted.
const DAMAGES_MAX: usize = 100;
/// Turns per read transaction, which blocks truncation of the journal's log.
const BATCH_TURNS: i64 = 1_000;
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

/// Why a batch of turns ended.
enum BatchEnd {
    End,
    /// The batch is full, or the table ended. An empty next batch means the latter.
    Batch,
    /// The next turn cannot be read.
    Damage(String),
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

/// Checks the journal of a data directory.
///
/// # Errors
/// If the file cannot be opened or read for a reason other than damage.
pub fn check_journal(path: &Path, key: Option<&DataKey>) -> Result<FileCheck, StoreError> {
    check(path, key, |connection, check| check.turns(connection))
}

/// Checks a SQLite file that is not a journal.
///
/// # Errors
/// As for [`check_journal`].
pub fn check_file(path: &Path, key: Option<&DataKey>) -> Result<FileCheck, StoreError> {
    check(path, key, |_, _| Ok(()))
}

fn check(
    path: &Path,
    key: Option<&DataKey>,
    more: impl FnOnce(&Connection, &mut FileCheck) -> rusqlite::Result<()>,
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
    for step in [check.pages(&connection), more(&connection, &mut check)] {
        match step {
            Err(error) if is_damage(&error) => check.add(error.to_string()),
            other => other?,
        }
    }
    Ok(check)
}

impl FileCheck {
    fn pages(&mut self, connection: &Connection) -> rusqlite::Result<()> {
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

    fn turns(&mut self, connection: &Connection) -> rusqlite::Result<()> {
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
        let mut batch = connection.prepare(&format!(
            "{select} WHERE id >= ? ORDER BY id LIMIT {BATCH_TURNS}"
        ))?;
        let mut one = connection.prepare(&format!("{select} WHERE id = ?"))?;
        let mut seek =
            connection.prepare("SELECT id FROM turns WHERE id >= ? ORDER BY id LIMIT 1")?;
        let mut next = 0;
        loop {
            let first = next;
            let mut rows = batch.query([first])?;
            let end = loop {
                match rows.next() {
                    Ok(Some(row)) => match row.get(0)? {
                        id if id < next => break Ok(BatchEnd::Damage(OUT_OF_ORDER.to_owned())),
                        id => {
                            next = i64::saturating_add(id, 1);
                            self.turn(connection, row);
                        }
                    },
                    Ok(None) if next == first => break Ok(BatchEnd::End),
                    Ok(None) => break Ok(BatchEnd::Batch),
                    Err(error) if is_damage(&error) => {
                        break Ok(BatchEnd::Damage(error.to_string()));
                    }
                    Err(error) => break Err(error),
                }
            };
            drop(rows);
            match end? {
                BatchEnd::End => return Ok(()),
                BatchEnd::Batch => {}
                BatchEnd::Damage(problem) => {
                    let until = readable_from(&mut seek, next)?;
                    self.one_by_one(
                        connection,
                        &mut one,
                        next..until.unwrap_or(i64::MAX),
                        &problem,
                    )?;
                    match until {
                        Some(until) => next = until,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    /// Reads the rows of a damaged range one by one.
    ///
    /// A damaged page does not reveal which rows it holds. At most [`BATCH_TURNS`] are tried.
    fn one_by_one(
        &mut self,
        connection: &Connection,
        one: &mut Statement<'_>,
        ids: Range<i64>,
        problem: &str,
    ) -> rusqlite::Result<()> {
        let last = ids.end - 1;
        let asked = ids.start..ids.end.min(ids.start.saturating_add(BATCH_TURNS));
        if asked.end < ids.end {
            let from = asked.end;
            self.add(format!(
                "the turns in rows {from} to {last} cannot be read: {problem}"
            ));
        }
        for id in asked {
            let mut rows = one.query([id])?;
            let problem = match rows.next() {
                Ok(Some(row)) if row.get::<_, i64>(0)? == id => {
                    self.turn(connection, row);
                    continue;
                }
                Ok(Some(_)) => OUT_OF_ORDER.to_owned(),
                Ok(None) => continue,
                Err(error) if is_damage(&error) => error.to_string(),
                Err(error) => return Err(error),
            };
            self.turns.damaged += 1;
            self.add(format!("the turn in row {id} cannot be read: {problem}"));
        }
        Ok(())
    }

    fn turn(&mut self, connection: &Connection, row: &Row<'_>) {
        match placed_turn(row) {
            Ok((place, turn)) => {
                self.examine(place, &turn, || session_of(connection, place.generation));
            }
            Err(error) => {
                self.turns.damaged += 1;
                self.add(format!("a turn cannot be read: {error}"));
            }
        }
    }

    /// Verifies and counts a turn.
    ///
    /// `session` returns its tenant and session, and is called only for a damaged one.
    pub fn examine(
        &mut self,
        place: TurnKey,
        turn: &StoredTurn<'_>,
        session: impl FnOnce() -> Option<(String, String)>,
    ) {
        match examine(place, turn) {
            Verdict::Whole => self.turns.whole += 1,
            Verdict::Unchecked => self.turns.unchecked += 1,
            Verdict::Damaged { .. } => {
                self.add_turn(place, session(), "does not match its checksum");
            }
        }
    }

    /// Counts a damaged turn and describes the problem.
    pub fn add_turn(&mut self, place: TurnKey, session: Option<(String, String)>, problem: &str) {
        self.turns.damaged += 1;
        let (seq, generation) = (place.seq, place.generation);
        let whose = session
            .map(|(tenant, session)| format!(" (tenant {tenant}, session {session})"))
            .unwrap_or_default();
        self.add(format!(
            "turn {seq} of generation {generation}{whose} {problem}"
        ));
    }

    /// Counts a damage, and describes it unless there are too many.
    pub fn add(&mut self, damage: String) {
        self.damages_total += 1;
        if self.damages.len() < DAMAGES_MAX {
            self.damages.push(damage);
        }
    }
}

fn placed_turn<'a>(row: &'a Row<'_>) -> rusqlite::Result<(TurnKey, StoredTurn<'a>)> {
    let place = TurnKey {
        generation: Generation::from_bytes(row.get(1)?),
        seq: row.get::<_, i64>(2)?.unsigned_abs(),
    };
    let turn = StoredTurn {
        content: row.get_ref(3)?.as_blob()?,
        header: row.get_ref(4)?.as_blob_or_null()?,
        checksum: row.get(5)?,
    };
    Ok((place, turn))
}

/// Returns tenant and session of a generation, if they can still be read.
fn session_of(connection: &Connection, generation: Generation) -> Option<(String, String)> {
    let sql = "SELECT tenant, session FROM generations WHERE generation = ?1
               UNION ALL SELECT tenant, session FROM intake_heads WHERE generation = ?1 LIMIT 1";
    let named = connection.query_row(sql, params![generation.to_bytes()], |row| {
        Ok((row.get(0)?, row.get(1)?))
    });
    named.optional().ok().flatten()
}

/// Returns the first id after `damaged` from which the table can be read again.
///
/// `None` if nothing after it can be read.
fn readable_from(seek: &mut Statement<'_>, damaged: i64) -> rusqlite::Result<Option<i64>> {
    let mut can_be_read = |from: i64| match seek.query_row([from], |row| row.get::<_, i64>(0)) {
        Ok(id) => Ok(id >= from),
        Err(rusqlite::Error::QueryReturnedNoRows) => Ok(true),
        Err(error) if is_damage(&error) => Ok(false),
        Err(error) => Err(error),
    };
    let (mut bad, mut step) = (damaged, 1_i64);
    let mut good = loop {
        let Some(from) = damaged.checked_add(step) else {
            return Ok(None);
        };
        if can_be_read(from)? {
            break from;
        }
        bad = from;
        step = step.saturating_mul(2);
    };
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        if can_be_read(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
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
