//! Rows of generations, with the same columns in the pending table and in the indexed table.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::types::Type;
use rusqlite::{CachedStatement, Row, params};

use memoird_core::change::EndReason;
use memoird_core::history::{LiveSet, Totals};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};

use crate::plan::{BaseRow, RowBefore, RowChange, RowState};
use crate::{GenerationOwner, encoding, options, summaries};

/// Version of the encoding.
const FORMAT: i64 = 1;

/// Columns of a generation, in the order of [`GenerationRow::write`].
pub(super) const COLUMNS: &str = "generation, format, tenant, session, subject, created_ms, \
     last_access, revision, last_seq, kept, turns, bytes, tokens, partial, state_version, \
     ended_ms, ended_at, reason, newest_seq";

pub(super) const PLACES: &str = "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?";

/// State of a generation without its turns and its JSON.
#[derive(Clone, Debug)]
pub(super) struct GenerationRow {
    pub(super) key: SessionKey,
    pub(super) head: Head,
    pub(super) kept: LiveSet,
    pub(super) ended: Option<(Now, EndReason)>,
}

/// SQL that selects the columns of [`GenerationRow::read`] from a table with [`COLUMNS`].
///
/// Compaction status and options are stored in tables of their own, shared by all rows of a
/// generation.
pub(super) fn select_from(table: &str) -> String {
    format!(
        "SELECT {COLUMNS}, (SELECT status FROM compactions AS compacted
             WHERE compacted.generation = {table}.generation),
             (SELECT options FROM options AS decided
             WHERE decided.generation = {table}.generation) FROM {table}"
    )
}

impl BaseRow for Cow<'_, GenerationRow> {
    fn state(&self) -> RowState<'_> {
        RowState {
            key: &self.key,
            revision: self.head.revision,
            last_seq: self.head.last_seq,
            is_live: self.ended.is_none(),
        }
    }
}

impl GenerationRow {
    /// Returns the row after the changes of a batch.
    pub(super) fn changed(change: &RowChange<'_, Cow<'_, Self>>) -> Self {
        let mut row = match change.before {
            RowBefore::Nothing { created_at } => {
                let last_access = change.last_access.unwrap_or_default();
                Self {
                    key: change.key.clone(),
                    head: Head::begin(change.generation, created_at, last_access),
                    kept: LiveSet::default(),
                    ended: None,
                }
            }
            RowBefore::Row(row) => Self::clone(row),
        };
        change.apply_to(&mut row.head);
        if let Some(live_set) = change.live_set {
            row.kept.clone_from(live_set);
        }
        row.ended = change.ended.map(|(at, reason, _)| (at, reason));
        row
    }

    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let subject: Option<String> = row.get(4)?;
        let kept = encoding::decode_live_set(row.get_ref(9)?.as_blob()?);
        let ended = match (
            row.get::<_, Option<i64>>(15)?,
            row.get::<_, Option<i64>>(16)?,
        ) {
            (Some(wall), Some(steady)) => {
                let steady = Steady(steady.unsigned_abs());
                let reason = reason_of(row.get_ref(17)?.as_str()?).ok_or(damaged(17, "reason"))?;
                Some((
                    Now {
                        wall: Timestamp::from_ms(wall),
                        steady,
                    },
                    reason,
                ))
            }
            _ => None,
        };
        // Without a status, the session compacts as if it had never done so.
        let status = row
            .get_ref(19)?
            .as_blob_or_null()?
            .and_then(summaries::decode_status);
        let last_seq = count(row, 8)?;
        let newest_seq = row.get::<_, Option<i64>>(18)?;
        let decided = row.get_ref(20)?.as_blob_or_null()?;
        Ok(Self {
            key: SessionKey {
                tenant: id(row, 2, TenantId::parse)?,
                session: id(row, 3, SessionId::parse)?,
            },
            kept: kept.ok_or(damaged(9, "live set"))?,
            ended,
            head: Head {
                generation: Generation::from_bytes(row.get(0)?),
                subject: subject.and_then(|subject| Subject::parse(&subject).ok()),
                created_at: Timestamp::from_ms(row.get(5)?),
                last_access: Steady(count(row, 6)?),
                revision: count(row, 7)?,
                last_seq,
                newest_seq: newest_seq.map_or(last_seq, i64::unsigned_abs),
                totals: Totals {
                    turns: count(row, 10)?,
                    bytes: count(row, 11)?,
                    tokens: count(row, 12)?,
                },
                partial: row.get(13)?,
                compaction: status.map(Arc::new),
                options: decided.and_then(options::decode).map(Arc::new),
                state_version: count(row, 14)?,
            },
        })
    }

    pub(super) fn into_owner(self) -> GenerationOwner {
        GenerationOwner {
            generation: self.head.generation,
            key: self.key,
            subject: self.head.subject,
        }
    }

    /// Runs a statement with the parameters [`COLUMNS`].
    pub(super) fn write(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        let head = &self.head;
        statement.execute(params![
            head.generation.to_bytes(),
            FORMAT,
            self.key.tenant.as_str(),
            self.key.session.as_str(),
            head.subject.as_ref().map(Subject::as_str),
            head.created_at.as_ms(),
            whole(head.last_access.0),
            whole(head.revision),
            whole(head.last_seq),
            encoding::encode_live_set(&self.kept),
            whole(head.totals.turns),
            whole(head.totals.bytes),
            whole(head.totals.tokens),
            head.partial,
            whole(head.state_version),
            self.ended.map(|(at, _)| at.wall.as_ms()),
            self.ended.map(|(at, _)| whole(at.steady.0)),
            self.ended.map(|(_, reason)| reason_name(reason)),
            whole(head.newest_seq),
        ])?;
        Ok(())
    }
}

/// Converts a count to SQLite's signed integers. No real count reaches the maximum.
pub(super) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Reads a count. Stored counts are never negative.
pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

pub(super) fn id<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Result<T, memoird_core::CoreError>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

pub(super) fn damaged(column: usize, what: &'static str) -> rusqlite::Error {
    let problem = format!("a {what} that does not decode");
    rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, problem.into())
}

const REASONS: [(EndReason, &str); 5] = [
    (EndReason::Expired, "expired"),
    (EndReason::Evicted, "evicted"),
    (EndReason::Ended, "ended"),
    (EndReason::Reset, "reset"),
    (EndReason::Shutdown, "shutdown"),
];

pub(super) fn reason_name(reason: EndReason) -> &'static str {
    REASONS
        .iter()
        .find(|(known, _)| *known == reason)
        .map_or("ended", |(_, name)| name)
}

pub(super) fn reason_of(name: &str) -> Option<EndReason> {
    REASONS
        .iter()
        .find(|(_, known)| *known == name)
        .map(|(reason, _)| *reason)
}
