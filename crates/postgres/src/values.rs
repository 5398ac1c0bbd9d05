//! Conversions between column values and memoird's types.

use std::error::Error;
use std::sync::Arc;

use bytes::BytesMut;
use memoird_core::CoreError;
use memoird_core::change::EndReason;
use memoird_core::history::{LiveSet, Totals};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_store::{GenerationOwner, StoreError, encoding, options, summaries};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::error::failed;

/// A ULID in a column of type `uuid`: 16 bytes, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ulid(pub(crate) [u8; 16]);

impl From<Generation> for Ulid {
    fn from(generation: Generation) -> Self {
        Self(generation.to_bytes())
    }
}

impl From<Ulid> for Generation {
    fn from(ulid: Ulid) -> Self {
        Self::from_bytes(ulid.0)
    }
}

impl ToSql for Ulid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl FromSql<'_> for Ulid {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

/// Converts a count to PostgreSQL's signed `bigint`. Real counts are far below the limit.
pub(crate) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a maximum number of rows for `LIMIT`.
pub(crate) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(failed)
}

/// Reads a count, which is never negative.
pub(crate) fn count(row: &Row, column: usize) -> Result<u64, StoreError> {
    get::<i64>(row, column).map(i64::unsigned_abs)
}

pub(crate) fn generation(row: &Row, column: usize) -> Result<Generation, StoreError> {
    get::<Ulid>(row, column).map(Generation::from)
}

/// Reads an id chosen by a client.
pub(crate) fn id<T>(
    row: &Row,
    column: usize,
    parse: impl FnOnce(&str) -> Result<T, CoreError>,
) -> Result<T, StoreError> {
    let text = std::str::from_utf8(get(row, column)?).map_err(|_| damaged("id"))?;
    parse(text).map_err(|_| damaged("id"))
}

/// Reads a session's key from the columns of its tenant and of its id.
pub(crate) fn key(row: &Row, tenant: usize, session: usize) -> Result<SessionKey, StoreError> {
    Ok(SessionKey {
        tenant: id(row, tenant, TenantId::parse)?,
        session: id(row, session, SessionId::parse)?,
    })
}

pub(crate) fn subject(row: &Row, column: usize) -> Result<Option<Subject>, StoreError> {
    let bytes: Option<&[u8]> = get(row, column)?;
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    Ok(text.and_then(|text| Subject::parse(text).ok()))
}

pub(crate) fn damaged(what: &str) -> StoreError {
    let detail = format!("a {what} that does not decode; restore the database from a backup");
    StoreError::Database { detail }
}

pub(crate) fn reason(name: &str) -> Option<EndReason> {
    EndReason::ALL
        .into_iter()
        .find(|reason| reason.name() == name)
}

/// The row of a generation: everything but its turns and rarely written data.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRow {
    pub(crate) key: SessionKey,
    pub(crate) head: Head,
    pub(crate) live_set: LiveSet,
    pub(crate) ended: Option<(Now, EndReason)>,
    pub(crate) stamp: i64,
}

impl GenerationRow {
    /// Columns read by [`Self::read`].
    pub(crate) const COLUMNS: &str = "generation, tenant, session, subject, created_ms, \
        last_access, revision, last_seq, turns, bytes, tokens, partial, state_version, kept, \
        compaction, ended_ms, ended_at, reason, stamp, newest_seq, options";
    pub(crate) const COUNT: usize = 21;

    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        let live_set = encoding::decode_live_set(get(row, 13)?);
        // If it does not decode, the session compacts as if it had never been compacted.
        let encoded: Option<&[u8]> = get(row, 14)?;
        let status = encoded.and_then(summaries::decode_status);
        let decided: Option<&[u8]> = get(row, 20)?;
        let ended = match (get(row, 15)?, get::<Option<i64>>(row, 16)?) {
            (Some(wall), Some(steady)) => {
                let name: &str = get(row, 17)?;
                let at = Now {
                    wall: Timestamp::from_ms(wall),
                    steady: Steady(steady.unsigned_abs()),
                };
                Some((at, reason(name).ok_or_else(|| damaged("reason"))?))
            }
            _ => None,
        };
        Ok(Self {
            key: key(row, 1, 2)?,
            live_set: live_set.ok_or_else(|| damaged("live set"))?,
            ended,
            stamp: get(row, 18)?,
            head: Head {
                generation: generation(row, 0)?,
                subject: subject(row, 3)?,
                created_at: Timestamp::from_ms(get(row, 4)?),
                last_access: Steady(count(row, 5)?),
                revision: count(row, 6)?,
                last_seq: count(row, 7)?,
                newest_seq: count(row, 19)?,
                totals: Totals {
                    turns: count(row, 8)?,
                    bytes: count(row, 9)?,
                    tokens: count(row, 10)?,
                },
                partial: get(row, 11)?,
                state_version: count(row, 12)?,
                compaction: status.map(Arc::new),
                options: decided.and_then(options::decode).map(Arc::new),
            },
        })
    }
}

/// Reads the owner of a generation from the columns generation, tenant, session, subject.
pub(crate) fn owner(row: &Row) -> Result<GenerationOwner, StoreError> {
    Ok(GenerationOwner {
        generation: generation(row, 0)?,
        key: key(row, 1, 2)?,
        subject: subject(row, 3)?,
    })
}
