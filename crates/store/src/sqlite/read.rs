//! Reads the journal: the indexed tables, and the pending table for sessions with rows in it.
//!
//! Every read sees one snapshot.

use std::collections::BTreeSet;
use std::sync::Arc;

use memoird_proto::v1;
use rusqlite::{Connection, OptionalExtension, Row, params};

use memoird_core::history::LiveSet;
use memoird_core::idempotency::{KeyRecord, Keys};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::{SavedSession, SavedTurn};
use memoird_core::state::State;
use memoird_core::time::{Steady, Timestamp};

use super::compaction;
use super::prewrite::CONTENT;
use super::rewound::{self, is_key_rewound, is_rewound};
use super::row::{GenerationRow, count, id, select_from, whole};
use crate::checksum::{StoredTurn, TurnCounters, TurnKey, unknown_turn};
use crate::{ClockAnchor, JournalPage, JournalRange, KEYS_MAX, StoreError, encoding, windows};

/// Which tables a read of a session must search.
///
/// The pending table is small, but not indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadScope {
    /// Only the indexed tables.
    Indexed,
    /// The indexed tables and the pending table.
    WithPending,
}

/// SQL for the flushed turns of a generation from a seq on, with a flag for rewound ones.
pub(super) fn indexed_turns() -> String {
    let is_rewound = is_rewound("?1", "place.seq");
    format!(
        "SELECT place.seq, {CONTENT}, turns.header, turns.checksum, {is_rewound}
         FROM turn_places AS place JOIN turns ON turns.id = place.id
         WHERE place.generation = ?1 AND place.seq >= ?2"
    )
}

/// The same for the pending table. During a flush, some of its turns are already indexed.
fn pending_turns() -> String {
    let is_rewound = is_rewound("?1", "turns.seq");
    format!(
        "SELECT seq, {CONTENT}, header, checksum, {is_rewound} FROM turns
         WHERE id > (SELECT placed FROM progress) AND generation = ?1 AND seq >= ?2
             AND NOT EXISTS (SELECT 1 FROM turn_places AS place
                 WHERE place.generation = ?1 AND place.seq = turns.seq AND place.id = turns.id)"
    )
}

/// SQL for the idempotency keys of a session in one of the tables with keys.
fn keys_in(table: &str) -> String {
    let is_rewound = is_key_rewound(table);
    format!(
        "SELECT key, content, generation, first_seq, last_seq, dropped, at, {is_rewound}
         FROM {table} WHERE tenant = ?1 AND session = ?2 AND at >= ?3"
    )
}

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

/// Visits the live generations as of the last flush.
pub(super) fn live_rows(
    connection: &Connection,
    visit: &mut dyn FnMut(GenerationRow),
) -> Result<(), StoreError> {
    let sql = format!("{} WHERE ended_at IS NULL", select_from("generations"));
    let mut statement = connection.prepare_cached(&sql)?;
    for row in statement.query_map([], GenerationRow::read)? {
        visit(row?);
    }
    Ok(())
}

pub(super) fn load(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    keys_since: Steady,
    counters: &TurnCounters,
) -> Result<Option<SavedSession>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let Some(GenerationRow { head, mut kept, .. }) = live_row(&view, scope, key)? else {
        return Ok(None);
    };
    let state = view
        .prepare_cached("SELECT json FROM states WHERE generation = ?")?
        .query_row([head.generation.to_bytes()], |row| row.get::<_, String>(0))
        .optional()?;
    let cut_row = view
        .prepare_cached("SELECT cuts FROM windows WHERE generation = ?")?
        .query_row([head.generation.to_bytes()], |row| row.get::<_, Vec<u8>>(0))
        .optional()?;
    let reader = TurnReader {
        generation: head.generation,
        counters,
    };
    let turns = kept_turns(&view, scope, reader, &mut kept)?;
    let summary = compaction::newest(&view, head.generation)?;
    // A missing or damaged row makes the next window be planned from scratch.
    let cuts = cut_row
        .and_then(|row| windows::decode(&row))
        .unwrap_or_default();
    let earlier = windows::earlier_summaries(&cuts, summary.as_deref());
    Ok(Some(SavedSession {
        earlier: compaction::numbered(&view, head.generation, earlier)?,
        summary,
        cuts,
        turns,
        rewound: rewound::newest(&view, head.generation, kept.floor)?,
        state: state.map(|json| State {
            json: json.into(),
            version: head.state_version,
        }),
        keys: keys(&view, scope, key, keys_since)?,
        head,
        kept,
    }))
}

pub(super) fn keys(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    since: Steady,
) -> Result<Keys, StoreError> {
    let order = "ORDER BY at DESC, generation DESC, last_seq DESC, key DESC LIMIT ?4";
    let (indexed, pending) = (keys_in("idempotency"), keys_in("intake_keys"));
    let sql = both(scope, &indexed, &pending, order);
    let mut statement = connection.prepare_cached(&sql)?;
    let parameters = params![
        key.tenant.as_str(),
        key.session.as_str(),
        whole(since.0),
        KEYS_MAX as i64
    ];
    let records = statement.query_map(parameters, |row| {
        let record = KeyRecord {
            content: row.get(1)?,
            generation: Generation::from_bytes(row.get(2)?),
            first_seq: count(row, 3)?,
            last_seq: count(row, 4)?,
            dropped_turns: count(row, 5)?,
            at: Steady(count(row, 6)?),
            rewound: row.get(7)?,
        };
        Ok((row.get(0)?, record))
    })?;
    let newest_first = records.collect::<Result<Vec<_>, _>>()?;
    Ok(Keys::restore(newest_first.into_iter().rev()))
}

/// Returns the sessions with idempotency keys after this one, ordered.
///
/// Costs an index lookup per session, regardless of the number of keys.
pub(super) fn keyed_sessions(
    connection: &Connection,
    after: Option<&SessionKey>,
    max: usize,
) -> Result<Vec<SessionKey>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let read_key = |row: &Row<'_>| {
        Ok(SessionKey {
            tenant: id(row, 0, TenantId::parse)?,
            session: id(row, 1, SessionId::parse)?,
        })
    };
    let place = |key: Option<&SessionKey>| match key {
        Some(key) => [
            key.tenant.as_str().to_owned(),
            key.session.as_str().to_owned(),
        ],
        None => Default::default(),
    };
    let sql = "SELECT DISTINCT tenant, session FROM intake_keys WHERE (tenant, session) > (?, ?)";
    let mut keys = view
        .prepare_cached(sql)?
        .query_map(place(after), read_key)?
        .collect::<Result<BTreeSet<_>, _>>()?;
    let sql = "SELECT tenant, session FROM idempotency WHERE (tenant, session) > (?, ?)
               ORDER BY tenant, session LIMIT 1";
    let mut next = view.prepare_cached(sql)?;
    let mut last = after.cloned();
    for _ in 0..max {
        last = next.query_row(place(last.as_ref()), read_key).optional()?;
        let Some(key) = &last else { break };
        keys.insert(key.clone());
    }
    Ok(keys.into_iter().take(max).collect())
}

pub(super) fn journal(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    generation: Option<Generation>,
    range: JournalRange,
    counters: &TurnCounters,
) -> Result<Option<JournalPage>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let Some(generation) = find_generation(&view, scope, key, generation)? else {
        return Ok(None);
    };
    let reader = TurnReader {
        generation,
        counters,
    };
    let order = if range.last { "DESC" } else { "ASC" };
    let indexed = indexed_turns();
    let pending = pending_turns();
    // A flush indexes turns in order, so those in the pending table are the newest. Each part can
    // be read in its own order, and only as far as the page needs.
    let mut parts = vec![format!("{indexed} AND place.seq < ?3 ORDER BY 1 {order}")];
    if matches!(scope, ReadScope::WithPending) {
        parts.push(format!("{pending} AND seq < ?3 ORDER BY id {order}"));
    }
    if range.last {
        parts.reverse();
    }
    let from = whole(range.after_seq.saturating_add(1));
    let to = whole(range.before_seq);
    let subject = subject_of(&view, scope, generation)?;
    let page = JournalPage {
        generation: Some(generation),
        subject,
        ..JournalPage::default()
    };
    let (mut page, mut bytes) = (page, 0);
    'parts: for sql in parts {
        let mut statement = view.prepare_cached(&sql)?;
        let mut rows = statement.query(params![generation.to_bytes(), from, to])?;
        while let Some(row) = rows.next()? {
            let is_rewound: bool = row.get(4)?;
            if is_rewound && !range.with_rewound {
                continue;
            }
            if page.turns.len() >= range.turns_max || bytes >= range.bytes_max {
                page.more = true;
                break 'parts;
            }
            let (seq, content) = reader.read(row)?;
            bytes += content.len();
            page.rewound.extend(is_rewound.then_some(seq));
            page.turns.push((seq, content));
        }
    }
    if range.last {
        page.turns.reverse();
        page.rewound.reverse();
    }
    Ok(Some(page))
}

/// Reads the turns of a live set.
///
/// If a turn is unreadable, including its header, its calls are unknown. From then on, a result
/// without a known call is taken for a late one.
fn kept_turns(
    connection: &Connection,
    scope: ReadScope,
    reader: TurnReader<'_>,
    kept: &mut LiveSet,
) -> Result<Vec<SavedTurn>, StoreError> {
    let generation = reader.generation;
    let damaged = |seq| reader.damaged(seq);
    let mut has_unknown = false;
    let mut restore = |seq: u64, content: Option<Arc<[u8]>>| {
        let known = content.and_then(|content| encoding::decode_saved(seq, content));
        let unknown = || {
            has_unknown = true;
            let role = if kept.anchor == Some(seq) {
                v1::Role::User
            } else {
                v1::Role::System
            };
            encoding::decode_saved(seq, unknown_turn(seq, role))
        };
        known.or_else(unknown).ok_or_else(|| damaged(seq))
    };
    let sql = both(scope, &indexed_turns(), &pending_turns(), "ORDER BY 1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut turns = Vec::new();
    let apart = kept.pinned.iter().chain(&kept.anchor).chain(&kept.preamble);
    for &seq in apart.filter(|seq| **seq < kept.floor) {
        let mut rows = statement.query(params![generation.to_bytes(), whole(seq)])?;
        let found = rows
            .next()?
            .map(|row| reader.read_known(row))
            .transpose()?
            .filter(|(found, _)| *found == seq);
        let (seq, content) = found.ok_or_else(|| damaged(seq))?;
        turns.push(restore(seq, content)?);
    }
    let mut rows = statement.query(params![generation.to_bytes(), whole(kept.floor)])?;
    while let Some(row) = rows.next()? {
        let is_rewound: bool = row.get(4)?;
        if is_rewound || kept.holes.binary_search(&count(row, 0)?).is_ok() {
            continue;
        }
        let (seq, content) = reader.read_known(row)?;
        turns.push(restore(seq, content)?);
    }
    kept.departed_overflow |= has_unknown;
    turns.sort_by_key(|(record, _)| record.seq);
    Ok(turns)
}

/// Returns the newest state of a session's live generation.
fn live_row(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
) -> Result<Option<GenerationRow>, StoreError> {
    let session = [key.tenant.as_str(), key.session.as_str()];
    if scope == ReadScope::WithPending {
        // The last row of a session belongs to its live generation, if it has one.
        let sql = format!(
            "{} WHERE tenant = ? AND session = ? ORDER BY id DESC LIMIT 1",
            select_from("intake_heads")
        );
        let mut statement = connection.prepare_cached(&sql)?;
        if let Some(row) = statement
            .query_row(session, GenerationRow::read)
            .optional()?
        {
            return Ok(Some(row).filter(|row| row.ended.is_none()));
        }
    }
    let sql = format!(
        "{} WHERE tenant = ? AND session = ? AND ended_at IS NULL",
        select_from("generations")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    Ok(statement
        .query_row(session, GenerationRow::read)
        .optional()?)
}

/// Returns the given generation if it belongs to this session.
///
/// Without one, returns the live generation, or else the one that ended last.
fn find_generation(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    generation: Option<Generation>,
) -> Result<Option<Generation>, StoreError> {
    let session = [key.tenant.as_str(), key.session.as_str()];
    if let Some(generation) = generation {
        let indexed = "SELECT 1 FROM generations
                      WHERE generation = ?1 AND tenant = ?2 AND session = ?3";
        let pending = "SELECT 1 FROM intake_heads
                      WHERE generation = ?1 AND tenant = ?2 AND session = ?3";
        let sql = both(scope, indexed, pending, "LIMIT 1");
        let parameters = params![generation.to_bytes(), session[0], session[1]];
        let is_known = connection.prepare_cached(&sql)?.exists(parameters)?;
        return Ok(is_known.then_some(generation));
    }
    if let Some(live) = live_row(connection, scope, key)? {
        return Ok(Some(live.head.generation));
    }
    let indexed = "SELECT ended_at, generation FROM generations
                  WHERE tenant = ?1 AND session = ?2 AND ended_at IS NOT NULL";
    let pending = "SELECT ended_at, generation FROM intake_heads
                  WHERE tenant = ?1 AND session = ?2 AND ended_at IS NOT NULL";
    let sql = both(scope, indexed, pending, "ORDER BY 1 DESC, 2 DESC LIMIT 1");
    let newest = connection
        .prepare_cached(&sql)?
        .query_row(session, |row| row.get(1));
    Ok(newest.optional()?.map(Generation::from_bytes))
}

fn subject_of(
    connection: &Connection,
    scope: ReadScope,
    generation: Generation,
) -> Result<Option<Subject>, StoreError> {
    let indexed = "SELECT 0, subject FROM generations WHERE generation = ?1";
    let pending = "SELECT id, subject FROM intake_heads WHERE generation = ?1";
    let sql = both(scope, indexed, pending, "ORDER BY 1 DESC LIMIT 1");
    let mut statement = connection.prepare_cached(&sql)?;
    let subject: Option<String> = statement
        .query_row([generation.to_bytes()], |row| row.get(1))
        .optional()?
        .flatten();
    Ok(subject.and_then(|subject| Subject::parse(&subject).ok()))
}

/// Combines the queries of the indexed tables and, if needed, of the pending table.
fn both(scope: ReadScope, indexed: &str, pending: &str, rest: &str) -> String {
    match scope {
        ReadScope::Indexed => format!("{indexed} {rest}"),
        ReadScope::WithPending => format!("{indexed} UNION ALL {pending} {rest}"),
    }
}

/// A seq with the content of the turn or its replacement. `None` if nothing else is known.
type PlacedContent = (u64, Option<Arc<[u8]>>);

/// Reads and verifies turns of a generation.
#[derive(Clone, Copy)]
pub(super) struct TurnReader<'a> {
    pub(super) generation: Generation,
    pub(super) counters: &'a TurnCounters,
}

impl TurnReader<'_> {
    /// Reads seq, content, header and checksum. A damaged content is replaced.
    pub(super) fn read(self, row: &Row<'_>) -> Result<(u64, Arc<[u8]>), StoreError> {
        let (seq, known) = self.read_known(row)?;
        let content = known.unwrap_or_else(|| unknown_turn(seq, v1::Role::System));
        Ok((seq, content))
    }

    /// As [`Self::read`], but returns no content if the header is damaged as well.
    fn read_known(self, row: &Row<'_>) -> Result<PlacedContent, StoreError> {
        let seq = count(row, 0)?;
        let stored = StoredTurn {
            content: row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?,
            header: row
                .get_ref(2)?
                .as_blob_or_null()
                .map_err(rusqlite::Error::from)?,
            checksum: row.get(3)?,
        };
        let place = TurnKey {
            generation: self.generation,
            seq,
        };
        Ok((seq, self.counters.content(place, &stored)))
    }

    fn damaged(self, seq: u64) -> StoreError {
        StoreError::TurnDamaged {
            generation: self.generation.to_string(),
            seq,
        }
    }
}

/// Sums the bytes of turns per tenant.
///
/// SQLite determines the length of a content without reading it.
pub(super) fn turn_bytes(connection: &Connection) -> Result<Vec<(TenantId, u64)>, StoreError> {
    let mut sums = connection.prepare_cached(
        "SELECT known.tenant, SUM(LENGTH(turns.content) + ifnull(
             (SELECT LENGTH(contents.content) FROM contents
              WHERE contents.id = turns.content_id), 0)) FROM turns JOIN
             (SELECT generation, tenant FROM generations
              UNION SELECT generation, tenant FROM intake_heads) AS known
             ON known.generation = turns.generation
         GROUP BY known.tenant",
    )?;
    let rows = sums.query_map([], |row| {
        let bytes: i64 = row.get(1)?;
        Ok((id(row, 0, TenantId::parse)?, bytes.unsigned_abs()))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
