//! Reads the journal: the indexed tables, and the pending table for sessions with rows in it.
//!
//! Every read sees one snapshot.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension, params};

use memoird_core::history::LiveSet;
use memoird_core::idempotency::{KeyRecord, Keys};
use memoird_core::ids::{Generation, SessionKey, TenantId};
use memoird_core::session::{SavedSession, SavedTurn};
use memoird_core::state::State;
use memoird_core::time::Steady;

use super::compaction;
use super::prewrite::{CONTENT, CONTENT_BYTES};
use super::rewound::{self, is_key_rewound, is_rewound};
use super::row::{count, find_row, visit_rows, whole};
use crate::checksum::TurnCounters;
use crate::rows::{GenerationRow, LiveTurns, StoredRow, TurnReader};
use crate::{ClockAnchor, JournalPage, JournalRange, KEYS_MAX, StoreError, windows};

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
    let sql = "SELECT steady, wall, boot_id, boot FROM clock";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    rows.next()?.map(StoredRow::clock).transpose()
}

/// Visits the live generations as of the last flush.
pub(super) fn live_rows(
    connection: &Connection,
    visit: &mut dyn FnMut(GenerationRow),
) -> Result<(), StoreError> {
    visit_rows(
        connection,
        "generations",
        "WHERE ended_at IS NULL",
        [],
        visit,
    )
}

pub(super) fn load(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    keys_since: Steady,
    counters: &TurnCounters,
) -> Result<Option<SavedSession>, StoreError> {
    let view = connection.unchecked_transaction()?;
    let Some(GenerationRow {
        head,
        live_set: mut kept,
        ..
    }) = live_row(&view, scope, key)?
    else {
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
    let reader = TurnReader::new(head.generation, counters);
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
    let place = |key: Option<&SessionKey>| match key {
        Some(key) => [
            key.tenant.as_str().to_owned(),
            key.session.as_str().to_owned(),
        ],
        None => Default::default(),
    };
    let sql = "SELECT DISTINCT tenant, session FROM intake_keys WHERE (tenant, session) > (?, ?)";
    let mut keys = BTreeSet::new();
    let mut statement = view.prepare_cached(sql)?;
    let mut rows = statement.query(place(after))?;
    while let Some(row) = rows.next()? {
        keys.insert(row.key(0, 1)?);
    }
    let sql = "SELECT tenant, session FROM idempotency WHERE (tenant, session) > (?, ?)
               ORDER BY tenant, session LIMIT 1";
    let mut next = view.prepare_cached(sql)?;
    let mut last = after.cloned();
    for _ in 0..max {
        let mut rows = next.query(place(last.as_ref()))?;
        let Some(row) = rows.next()? else { break };
        let key = row.key(0, 1)?;
        keys.insert(key.clone());
        last = Some(key);
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
    let Some(GenerationRow { head, .. }) = find_generation(&view, scope, key, generation)? else {
        return Ok(None);
    };
    let generation = head.generation;
    let reader = TurnReader::new(generation, counters);
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
    let mut bytes = 0;
    let mut page = JournalPage {
        generation: Some(generation),
        subject: head.subject,
        ..JournalPage::default()
    };
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
fn kept_turns(
    connection: &Connection,
    scope: ReadScope,
    reader: TurnReader<'_>,
    kept: &mut LiveSet,
) -> Result<Vec<SavedTurn>, StoreError> {
    let generation = reader.generation.to_bytes();
    let sql = both(scope, &indexed_turns(), &pending_turns(), "ORDER BY 1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut turns = LiveTurns::new(reader, kept);
    for seq in kept.seqs_below_floor() {
        let mut rows = statement.query(params![generation, whole(seq)])?;
        if let Some(row) = rows.next()?
            && row.count(0)? == seq
        {
            turns.add(row)?;
        }
    }
    let mut rows = statement.query(params![generation, whole(kept.floor)])?;
    while let Some(row) = rows.next()? {
        if !row.is_true(4)? && kept.holes.binary_search(&row.count(0)?).is_err() {
            turns.add(row)?;
        }
    }
    turns.finish(kept)
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
        let last = "WHERE tenant = ? AND session = ? ORDER BY id DESC LIMIT 1";
        let row = find_row(connection, "intake_heads", last, session)?;
        if row.is_some() {
            return Ok(row.filter(|row| row.ended.is_none()));
        }
    }
    let live = "WHERE tenant = ? AND session = ? AND ended_at IS NULL";
    find_row(connection, "generations", live, session)
}

/// Returns the given generation if it belongs to this session.
///
/// Without one, returns the live generation, or else the one that ended last.
fn find_generation(
    connection: &Connection,
    scope: ReadScope,
    key: &SessionKey,
    generation: Option<Generation>,
) -> Result<Option<GenerationRow>, StoreError> {
    let (tenant, session) = (key.tenant.as_str(), key.session.as_str());
    let has_pending = scope == ReadScope::WithPending;
    if let Some(generation) = generation {
        let parameters = params![generation.to_bytes(), tenant, session];
        let this = "WHERE generation = ? AND tenant = ? AND session = ?";
        if has_pending {
            let newest = format!("{this} ORDER BY id DESC LIMIT 1");
            let row = find_row(connection, "intake_heads", &newest, parameters)?;
            if row.is_some() {
                return Ok(row);
            }
        }
        return find_row(connection, "generations", this, parameters);
    }
    let live = live_row(connection, scope, key)?;
    if live.is_some() {
        return Ok(live);
    }
    let last = "WHERE tenant = ? AND session = ? AND ended_at IS NOT NULL
                ORDER BY ended_at DESC, generation DESC LIMIT 1";
    let indexed = find_row(connection, "generations", last, [tenant, session])?;
    let pending = if has_pending {
        find_row(connection, "intake_heads", last, [tenant, session])?
    } else {
        None
    };
    let ended = indexed.into_iter().chain(pending);
    Ok(ended.max_by_key(|row| (row.ended.map(|(at, _)| at.steady), row.head.generation)))
}

/// Combines the queries of the indexed tables and, if needed, of the pending table.
fn both(scope: ReadScope, indexed: &str, pending: &str, rest: &str) -> String {
    match scope {
        ReadScope::Indexed => format!("{indexed} {rest}"),
        ReadScope::WithPending => format!("{indexed} UNION ALL {pending} {rest}"),
    }
}

/// Sums the bytes of turns per tenant.
pub(super) fn turn_bytes(connection: &Connection) -> Result<Vec<(TenantId, u64)>, StoreError> {
    let sql = format!(
        "SELECT known.tenant, SUM({CONTENT_BYTES}) FROM turns JOIN
             (SELECT generation, tenant FROM generations
              UNION SELECT generation, tenant FROM intake_heads) AS known
             ON known.generation = turns.generation
         GROUP BY known.tenant"
    );
    let mut sums = connection.prepare_cached(&sql)?;
    let (mut rows, mut found) = (sums.query([])?, Vec::new());
    while let Some(row) = rows.next()? {
        found.push((row.id(0, TenantId::parse)?, row.count(1)?));
    }
    Ok(found)
}
