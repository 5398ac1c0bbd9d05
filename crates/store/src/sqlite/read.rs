//! Reading the journal back.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, params};

use memoird_core::change::{LiveSet, Totals};
use memoird_core::idempotency::{KeyRecord, Keys};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::{Head, SavedSession, SavedTurn};
use memoird_core::state::State;
use memoird_core::time::{Steady, Timestamp};

use crate::{ClockAnchor, JournalPage, JournalRange, KEYS_MAX, StoreError, encoding};

/// The columns that [`head_of`] reads, in its order.
const HEAD: &str = "generation, subject, created_ms, last_access, last_seq, revision, \
                    state_version, turns, bytes, tokens, partial";
const HEAD_COLUMNS: usize = 11;

pub(super) fn clock(connection: &Connection) -> Result<Option<ClockAnchor>, StoreError> {
    let clock = connection
        .query_row("SELECT steady, wall, boot_id, boot FROM clock", [], |row| {
            Ok(ClockAnchor {
                steady: Steady(count(row, 0)?),
                wall: Timestamp::from_ms(row.get(1)?),
                boot_id: row.get(2)?,
                boot_ms: count(row, 3)?,
            })
        })
        .optional()?;
    Ok(clock)
}

pub(super) fn live_heads(
    connection: &Connection,
    visit: &mut dyn FnMut(SessionKey, Head),
) -> Result<(), StoreError> {
    let sql = format!("SELECT {HEAD}, tenant, session FROM generations WHERE ended_at IS NULL");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let key = SessionKey {
            tenant: id(row, HEAD_COLUMNS, TenantId::parse)?,
            session: id(row, HEAD_COLUMNS + 1, SessionId::parse)?,
        };
        visit(key, head_of(row)?);
    }
    Ok(())
}

pub(super) fn load(
    connection: &Connection,
    key: &SessionKey,
    keys_since: Steady,
) -> Result<Option<SavedSession>, StoreError> {
    // One view of everything, whatever the writer does meanwhile.
    let view = connection.unchecked_transaction()?;
    let sql = format!(
        "SELECT {HEAD}, kept FROM generations
         WHERE tenant = ? AND session = ? AND ended_at IS NULL"
    );
    let found = view
        .prepare_cached(&sql)?
        .query_row([key.tenant.as_str(), key.session.as_str()], |row| {
            Ok((head_of(row)?, row.get::<_, Vec<u8>>(HEAD_COLUMNS)?))
        })
        .optional()?;
    let Some((head, kept)) = found else {
        return Ok(None);
    };
    let kept = encoding::decode_live_set(&kept).unwrap_or_default();
    let state = view
        .prepare_cached("SELECT json FROM states WHERE generation = ?")?
        .query_row([head.generation.to_bytes()], |row| row.get::<_, String>(0))
        .optional()?;
    Ok(Some(SavedSession {
        turns: kept_turns(&view, head.generation, &kept)?,
        state: state.map(|json| State { json: json.into(), version: head.state_version }),
        keys: keys(&view, key, keys_since)?,
        head,
        kept,
    }))
}

fn kept_turns(
    connection: &Connection,
    generation: Generation,
    kept: &LiveSet,
) -> Result<Vec<SavedTurn>, StoreError> {
    let mut turns = Vec::new();
    let mut take = |seq: u64, content: Vec<u8>| {
        let damaged = || StoreError::TurnDamaged { generation: generation.to_string(), seq };
        turns.push(encoding::read_back(seq, content.into()).ok_or_else(damaged)?);
        Ok::<_, StoreError>(())
    };
    let mut one =
        connection.prepare_cached("SELECT content FROM turns WHERE generation = ? AND seq = ?")?;
    for &seq in kept.pinned.iter().chain(&kept.anchor).filter(|seq| **seq < kept.floor) {
        let seq_sql = i64::try_from(seq).unwrap_or(i64::MAX);
        take(seq, one.query_row(params![generation.to_bytes(), seq_sql], |row| row.get(0))?)?;
    }
    let mut rest = connection.prepare_cached(
        "SELECT seq, content FROM turns WHERE generation = ? AND seq >= ? ORDER BY seq",
    )?;
    let floor = i64::try_from(kept.floor).unwrap_or(i64::MAX);
    let mut rows = rest.query(params![generation.to_bytes(), floor])?;
    while let Some(row) = rows.next()? {
        let seq = count(row, 0)?;
        if kept.holes.binary_search(&seq).is_err() {
            take(seq, row.get(1)?)?;
        }
    }
    turns.sort_by_key(|(record, _)| record.seq);
    Ok(turns)
}

pub(super) fn keys(
    connection: &Connection,
    key: &SessionKey,
    since: Steady,
) -> Result<Keys, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT key, content, generation, first_seq, last_seq, dropped, at FROM idempotency
         WHERE tenant = ? AND session = ? AND at >= ?
         ORDER BY at DESC, generation DESC, last_seq DESC LIMIT ?",
    )?;
    let since = i64::try_from(since.0).unwrap_or(i64::MAX);
    let parameters = params![key.tenant.as_str(), key.session.as_str(), since, KEYS_MAX as i64];
    let records = statement.query_map(parameters, |row| {
        let record = KeyRecord {
            content: row.get(1)?,
            generation: Generation::from_bytes(row.get(2)?),
            first_seq: count(row, 3)?,
            last_seq: count(row, 4)?,
            dropped_turns: count(row, 5)?,
            at: Steady(count(row, 6)?),
        };
        Ok((row.get(0)?, record))
    })?;
    let newest_first = records.collect::<Result<Vec<_>, _>>()?;
    Ok(Keys::restore(newest_first.into_iter().rev()))
}

pub(super) fn journal(
    connection: &Connection,
    key: &SessionKey,
    generation: Option<Generation>,
    range: JournalRange,
) -> Result<Option<JournalPage>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let Some(generation) = find_generation(&view, key, generation)? else {
        return Ok(None);
    };
    let mut statement = view.prepare_cached(
        "SELECT seq, content FROM turns WHERE generation = ? AND seq > ? ORDER BY seq",
    )?;
    let after = i64::try_from(range.after_seq).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![generation, after])?;
    let (mut page, mut bytes) = (JournalPage::default(), 0);
    while let Some(row) = rows.next()? {
        if page.turns.len() >= range.turns_max || bytes >= range.bytes_max {
            page.more = true;
            break;
        }
        let content: Arc<[u8]> = row.get::<_, Vec<u8>>(1)?.into();
        bytes += content.len();
        page.turns.push((count(row, 0)?, content));
    }
    Ok(Some(page))
}

/// The generation, if it is one of this session; without one, the newest.
fn find_generation(
    connection: &Connection,
    key: &SessionKey,
    generation: Option<Generation>,
) -> Result<Option<[u8; 16]>, StoreError> {
    let session = [key.tenant.as_str(), key.session.as_str()];
    if let Some(generation) = generation {
        let sql = "SELECT generation FROM generations
                   WHERE generation = ? AND tenant = ? AND session = ?";
        let parameters = params![generation.to_bytes(), session[0], session[1]];
        let found = connection.prepare_cached(sql)?.query_row(parameters, |row| row.get(0));
        return Ok(found.optional()?);
    }
    let newest = [
        "SELECT generation FROM generations WHERE tenant = ? AND session = ? AND ended_at IS NULL",
        "SELECT generation FROM generations
         WHERE tenant = ? AND session = ? AND ended_at IS NOT NULL
         ORDER BY generation DESC LIMIT 1",
    ];
    for sql in newest {
        let found = connection.prepare_cached(sql)?.query_row(session, |row| row.get(0));
        if let Some(found) = found.optional()? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn head_of(row: &Row<'_>) -> rusqlite::Result<Head> {
    let subject: Option<String> = row.get(1)?;
    Ok(Head {
        generation: Generation::from_bytes(row.get(0)?),
        subject: subject.and_then(|subject| Subject::parse(&subject).ok()),
        created_at: Timestamp::from_ms(row.get(2)?),
        last_access: Steady(count(row, 3)?),
        last_seq: count(row, 4)?,
        revision: count(row, 5)?,
        state_version: count(row, 6)?,
        totals: Totals { turns: count(row, 7)?, bytes: count(row, 8)?, tokens: count(row, 9)? },
        partial: row.get(10)?,
    })
}

fn id<T>(
    row: &Row<'_>,
    column: usize,
    parse: impl FnOnce(&str) -> Result<T, memoird_core::CoreError>,
) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    parse(text).map_err(|error| {
        let kind = rusqlite::types::Type::Text;
        rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(error))
    })
}

/// Counts are never negative.
fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}
