//! Reads the journal. Each read sees one snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use memoird_core::compaction::Summary;
use memoird_core::idempotency::{KeyRecord, Keys};
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::Head;
use memoird_core::state::State;
use memoird_core::time::Steady;
use memoird_store::checksum::TurnCounters;
use memoird_store::plan::Base;
use memoird_store::rows::{GenerationRow, StoredRow, TurnReader, damaged, written_turn};
use memoird_store::{
    ClockAnchor, EndedRecord, JournalPage, JournalRange, KEYS_MAX, LiveQuery, SessionOrder,
    StoreError, WrittenTurns, summaries,
};
use tokio_postgres::Client;
use tokio_postgres::types::{FromSql, Type};

use crate::base::{RequiredReads, Version};
use crate::connect::{Arg, Database, first, query};
use crate::transactions::ResultRow;
use crate::values::{Ulid, get, limit, whole};

/// Seq and content of a turn.
type PlacedTurn = (u64, Arc<[u8]>);

/// Maximum number of turns per query.
const TURNS_PER_QUERY: usize = 256;
/// Maximum number of heads per query.
const HEADS_PER_QUERY: usize = 4_096;

/// Whether the turn `t` was rewound.
pub(crate) const IS_REWOUND: &str = "coalesce((SELECT t.seq <@ run.runs FROM memoird.rewound AS run
    WHERE run.generation = t.generation), false)";

/// The columns that [`GenerationRow::read`] reads, and the stamp.
fn generation_columns() -> String {
    format!("{}, compaction, options, stamp", GenerationRow::COLUMNS)
}

/// The columns that [`TurnReader`] reads.
pub(crate) const TURN: &str = "t.seq, t.content, t.header, t.checksum";

pub(crate) async fn clock(client: &Client) -> Result<Option<ClockAnchor>, StoreError> {
    let sql = "SELECT steady, wall, boot_id, boot_ms FROM memoird.lanes
               WHERE steady IS NOT NULL ORDER BY steady DESC LIMIT 1";
    let row = first(client, sql, &[]).await?;
    row.map(|row| row.clock()).transpose()
}

/// Live generations with an id greater than `after`, in order of id; at most `HEADS_PER_QUERY`.
pub(crate) async fn live_rows(
    client: &Client,
    after: Option<Generation>,
) -> Result<Vec<GenerationRow>, StoreError> {
    let sql = format!(
        "SELECT {} FROM memoird.generations
         WHERE ended_at IS NULL AND ($1::uuid IS NULL OR generation > $1)
         ORDER BY generation LIMIT $2",
        generation_columns()
    );
    let after = after.map(Ulid::from);
    let args: [Arg<'_>; 2] = [(&after, Type::UUID), (&limit(HEADS_PER_QUERY), Type::INT8)];
    let rows = query(client, &sql, &args).await?;
    rows.iter().map(GenerationRow::read).collect()
}

/// A page of a tenant's live sessions.
///
/// By last use, an index finds them in steps of 4 minutes. Each step is sorted.
pub(crate) fn live_page(
    database: &Database,
    live: &LiveQuery,
) -> Result<Vec<(SessionKey, Head)>, StoreError> {
    let (first, order, after_place) = match live.order {
        SessionOrder::Newest => (
            "used DESC",
            "used DESC, last_access DESC, session DESC",
            "(used, last_access, session) < ($6::int8 >> 18, $6, $7)",
        ),
        SessionOrder::Oldest => (
            "used",
            "used, last_access, session",
            "(used, last_access, session) > ($6::int8 >> 18, $6, $7)",
        ),
        SessionOrder::Id => ("session", "session", "session > $7"),
    };
    let behind = match live.after {
        Some(_) => after_place,
        None => "$6::int8 IS NOT NULL AND $7::bytea IS NULL",
    };
    // Upper bound of the prefix: 255 is not a byte of UTF-8. Without a prefix, a condition that
    // matches every id would keep the planner from using the index for the order.
    let prefixed = if live.id_prefix.is_empty() {
        "$2::bytea IS NOT NULL AND $3::bytea IS NOT NULL"
    } else {
        "session >= $2 AND session < $3"
    };
    // The inner order matches an index, so the planner's row estimates do not matter.
    let sql = format!(
        "SELECT * FROM (SELECT {}, used FROM memoird.generations
         WHERE ended_at IS NULL AND tenant = $1 AND {prefixed}
             AND ($4::bytea IS NULL OR subject = $4) AND {behind}
             AND used >= $5::int8 >> 18 AND last_access >= $5
             AND used <= $8::int8 >> 18 AND last_access <= $8
         ORDER BY {first} FETCH FIRST ($9) ROWS WITH TIES) AS found
         ORDER BY {order} LIMIT $9",
        generation_columns()
    );
    let tenant = live.tenant.as_str().as_bytes();
    let prefix = live.id_prefix.as_bytes();
    let above = [prefix, &[u8::MAX]].concat();
    let subject = live.subject.as_ref().map(|it| it.as_str().as_bytes());
    let moment = |at: Steady| i64::try_from(at.0).unwrap_or(i64::MAX);
    let after = live.after.as_ref();
    let after_at = moment(after.map_or(Steady(0), |(at, _)| *at));
    let after_id = after.map(|(_, id)| id.as_str().as_bytes());
    let args: [Arg<'_>; 9] = [
        (&tenant, Type::BYTEA),
        (&prefix, Type::BYTEA),
        (&above, Type::BYTEA),
        (&subject, Type::BYTEA),
        (&moment(live.from), Type::INT8),
        (&after_at, Type::INT8),
        (&after_id, Type::BYTEA),
        (&moment(live.until), Type::INT8),
        (&limit(live.max), Type::INT8),
    ];
    let found = database.query(&sql, &args)?;
    let rows = found.iter().map(GenerationRow::read);
    rows.map(|row| row.map(|row| (row.key, row.head))).collect()
}

/// Revision and stamp of those generations that are live.
pub(crate) async fn newest(
    client: &Client,
    generations: &[Generation],
) -> Result<HashMap<Generation, (u64, i64)>, StoreError> {
    let names: Vec<Ulid> = generations.iter().map(|name| (*name).into()).collect();
    let sql = "SELECT generation, revision, stamp FROM memoird.generations
               WHERE generation = ANY($1) AND ended_at IS NULL";
    let rows = query(client, sql, &[(&names, Type::UUID_ARRAY)]).await?;
    let version = |row: &ResultRow| Ok((row.generation(0)?, (row.count(1)?, get(row, 2)?)));
    rows.iter().map(version).collect()
}

pub(crate) async fn base(
    client: &Client,
    needs: &RequiredReads,
) -> Result<Base<Version>, StoreError> {
    let mut base = Base::default();
    if !needs.versions.is_empty() {
        let names: Vec<Ulid> = needs.versions.keys().map(|name| (*name).into()).collect();
        let sql = "SELECT generation, tenant, session, revision, stamp, last_seq
                   FROM memoird.generations WHERE generation = ANY($1) AND ended_at IS NULL";
        for row in query(client, sql, &[(&names, Type::UUID_ARRAY)]).await? {
            let version = Version {
                key: row.key(1, 2)?,
                revision: row.count(3)?,
                stamp: get(&row, 4)?,
                last_seq: row.count(5)?,
            };
            base.rows.insert(row.generation(0)?, version);
        }
    }
    if !needs.begins.is_empty() {
        let names: Vec<Ulid> = needs
            .begins
            .iter()
            .map(|(_, name)| (*name).into())
            .collect();
        let sql = "SELECT generation FROM memoird.generations WHERE generation = ANY($1)";
        for row in query(client, sql, &[(&names, Type::UUID_ARRAY)]).await? {
            base.taken.insert(row.generation(0)?);
        }
        let keys = || needs.begins.iter().map(|(key, _)| key);
        let tenants: Vec<&[u8]> = keys().map(|key| key.tenant.as_str().as_bytes()).collect();
        let sessions: Vec<&[u8]> = keys().map(|key| key.session.as_str().as_bytes()).collect();
        let sql = "SELECT DISTINCT g.tenant, g.session
                   FROM unnest($1::bytea[], $2::bytea[]) AS k(tenant, session)
                       JOIN memoird.generations AS g USING (tenant, session)
                   WHERE g.ended_at IS NULL";
        let args: [Arg<'_>; 2] = [
            (&tenants, Type::BYTEA_ARRAY),
            (&sessions, Type::BYTEA_ARRAY),
        ];
        for row in query(client, sql, &args).await? {
            base.live.insert(row.key(0, 1)?);
        }
    }
    if !needs.summaries.is_empty() {
        let names: Vec<Ulid> = needs.summaries.keys().map(|name| (*name).into()).collect();
        let rewound: Vec<Ulid> = needs
            .summaries
            .iter()
            .filter(|(_, is_rewound)| **is_rewound)
            .map(|(name, _)| (*name).into())
            .collect();
        let sql = "SELECT generation, number, CASE WHEN generation = ANY($2) THEN body END
                   FROM memoird.summaries WHERE generation = ANY($1)";
        let args: [Arg<'_>; 2] = [(&names, Type::UUID_ARRAY), (&rewound, Type::UUID_ARRAY)];
        for row in query(client, sql, &args).await? {
            let of = base.summaries.entry(row.generation(0)?).or_default();
            let body: Option<&[u8]> = get(&row, 2)?;
            of.insert(number(&row, 1)?, body.and_then(summaries::decode));
        }
    }
    Ok(base)
}

/// Reads the first three columns of `memoird.beside_generation`, starting at a column.
pub(crate) fn read_related_columns(
    row: &ResultRow,
    from: usize,
    version: u64,
) -> Result<(Option<State>, SeqRanges), StoreError> {
    let json = get::<Option<&[u8]>>(row, from)?
        .map(std::str::from_utf8)
        .transpose()
        .map_err(|_| damaged("state"))?;
    let state = json.map(|json| State {
        json: json.into(),
        version,
    });
    let last = array::<i64>(row, from + 2)?;
    let runs = array::<i64>(row, from + 1)?
        .into_iter()
        .zip(last)
        .map(|(first, last)| (first.unsigned_abs(), last.unsigned_abs()));
    Ok((state, SeqRanges::restore(runs)))
}

/// Arguments of `memoird.session_keys`.
pub(crate) struct KeyArgs<'a> {
    tenant: &'a [u8],
    session: &'a [u8],
    since: i64,
    most: i64,
}

impl<'a> KeyArgs<'a> {
    pub(crate) fn of(key: &'a SessionKey, since: Steady) -> Self {
        Self {
            tenant: key.tenant.as_str().as_bytes(),
            session: key.session.as_str().as_bytes(),
            since: whole(since.0),
            most: limit(KEYS_MAX),
        }
    }

    pub(crate) fn all(&self) -> [Arg<'_>; 4] {
        [
            (&self.tenant, Type::BYTEA),
            (&self.session, Type::BYTEA),
            (&self.since, Type::INT8),
            (&self.most, Type::INT8),
        ]
    }
}

pub(crate) fn keys_of(row: &ResultRow, from: usize) -> Result<Keys, StoreError> {
    let (names, contents) = (array::<&[u8]>(row, from)?, array::<&[u8]>(row, from + 1)?);
    let generations = array::<Ulid>(row, from + 2)?;
    let numbers = |column: usize| -> Result<Vec<u64>, StoreError> {
        let numbers = array::<i64>(row, from + column)?.into_iter();
        Ok(numbers.map(i64::unsigned_abs).collect())
    };
    let (first, last) = (numbers(3)?, numbers(4)?);
    let (dropped, at) = (numbers(5)?, numbers(6)?);
    let rewound = array::<bool>(row, from + 7)?;
    // The arrays of one row have the same length. The oldest key comes first.
    let records = (0..names.len()).rev().map(|place| {
        let record = KeyRecord {
            content: fingerprint(contents[place])?,
            generation: generations[place].into(),
            first_seq: first[place],
            last_seq: last[place],
            dropped_turns: dropped[place],
            at: Steady(at[place]),
            rewound: rewound[place],
        };
        Ok((fingerprint(names[place])?, record))
    });
    Ok(Keys::restore(
        records.collect::<Result<Vec<_>, StoreError>>()?,
    ))
}

/// Reads an array. `NULL` becomes an empty one.
fn array<'a, T: FromSql<'a>>(row: &'a ResultRow, column: usize) -> Result<Vec<T>, StoreError> {
    Ok(get::<Option<Vec<T>>>(row, column)?.unwrap_or_default())
}

fn fingerprint(bytes: &[u8]) -> Result<[u8; 16], StoreError> {
    bytes.try_into().map_err(|_| damaged("idempotency key"))
}

pub(crate) async fn journal(
    client: &Client,
    key: &SessionKey,
    generation: Option<Generation>,
    range: JournalRange,
    counters: &TurnCounters,
) -> Result<Option<JournalPage>, StoreError> {
    let Some((generation, subject)) = find_generation(client, key, generation).await? else {
        return Ok(None);
    };
    let reader = TurnReader::new(generation, counters);
    let page = read_page(client, reader, range).await?;
    Ok(Some(JournalPage { subject, ..page }))
}

async fn read_page(
    client: &Client,
    reader: TurnReader<'_>,
    range: JournalRange,
) -> Result<JournalPage, StoreError> {
    let mut page = JournalPage {
        generation: Some(reader.generation),
        ..JournalPage::default()
    };
    let order = if range.last { "DESC" } else { "ASC" };
    let (filter, is_rewound) = if range.with_rewound {
        ("true".to_owned(), IS_REWOUND)
    } else {
        (format!("NOT {IS_REWOUND}"), "false")
    };
    let select = format!(
        "SELECT {TURN}, t.seq AS place, {is_rewound} AS extra FROM memoird.turns AS t
         WHERE t.generation = $1 AND t.seq > $2 AND t.seq < $3 AND {filter}
         ORDER BY t.seq {order} LIMIT $4"
    );
    let sql = chunk_of(&select, order, "$5");
    let (mut after, mut before) = (whole(range.after_seq), whole(range.before_seq));
    let mut bytes = 0;
    'pages: loop {
        let turns_left = range.turns_max.saturating_sub(page.turns.len());
        let rows_max = turns_left.saturating_add(1).min(TURNS_PER_QUERY);
        let bytes_left = range.bytes_max.saturating_sub(bytes);
        let args: [Arg<'_>; 5] = [
            (&Ulid::from(reader.generation), Type::UUID),
            (&after, Type::INT8),
            (&before, Type::INT8),
            (&limit(rows_max), Type::INT8),
            (&limit(bytes_left), Type::INT8),
        ];
        let rows = query(client, &sql, &args).await?;
        for row in &rows {
            let is_full = page.turns.len() >= range.turns_max || bytes >= range.bytes_max;
            let turn = if is_full {
                None
            } else {
                read_turn(reader, row)?
            };
            let Some((seq, content)) = turn else {
                page.more = true;
                break 'pages;
            };
            bytes += content.len();
            let is_rewound: bool = get(row, 5)?;
            page.rewound.extend(is_rewound.then_some(seq));
            page.turns.push((seq, content));
        }
        let last = page.turns.last().map(|(seq, _)| whole(*seq));
        match last.filter(|_| rows.len() == rows_max) {
            Some(last) if range.last => before = last,
            Some(last) => after = last,
            None => break,
        }
    }
    if range.last {
        page.turns.reverse();
        page.rewound.reverse();
    }
    Ok(page)
}

/// Wraps a query of turns so that content is returned until `bytes_max` bytes are reached.
///
/// Later rows have `NULL` instead of content, which saves transferring it.
fn chunk_of(turns: &str, order: &str, bytes_max: &str) -> String {
    format!(
        "SELECT seq, CASE WHEN size - octet_length(content) < {bytes_max} THEN content END,
             header, checksum, place, extra
         FROM (SELECT *, sum(octet_length(content)) OVER (ORDER BY place {order}) AS size
             FROM ({turns}) AS chunk) AS sized ORDER BY place {order}"
    )
}

/// Finds a generation of a session, and its subject.
///
/// Without an id, the live generation, or else the one that ended last.
async fn find_generation(
    client: &Client,
    key: &SessionKey,
    generation: Option<Generation>,
) -> Result<Option<(Generation, Option<memoird_core::ids::Subject>)>, StoreError> {
    let sql = match generation {
        Some(_) => {
            "SELECT generation, subject FROM memoird.generations
             WHERE generation = $3 AND tenant = $1 AND session = $2"
        }
        None => {
            "(SELECT generation, subject, 0 AS rank FROM memoird.generations
              WHERE tenant = $1 AND session = $2 AND ended_at IS NULL AND $3::uuid IS NULL)
             UNION ALL
             (SELECT generation, subject, 1 AS rank FROM memoird.generations
              WHERE tenant = $1 AND session = $2 AND ended_at IS NOT NULL
              ORDER BY ended_at DESC, generation DESC LIMIT 1)
             ORDER BY rank LIMIT 1"
        }
    };
    let tenant = key.tenant.as_str().as_bytes();
    let session = key.session.as_str().as_bytes();
    let name = generation.map(Ulid::from);
    let args: [Arg<'_>; 3] = [
        (&tenant, Type::BYTEA),
        (&session, Type::BYTEA),
        (&name, Type::UUID),
    ];
    let row = first(client, sql, &args).await?;
    row.map(|row| Ok((row.generation(0)?, row.subject(1)?)))
        .transpose()
}

/// The current summary: the newest that decodes.
pub(crate) async fn newest_summary(
    client: &Client,
    generation: Generation,
) -> Result<Option<Arc<Summary>>, StoreError> {
    let sql = "SELECT number, body FROM memoird.summaries
               WHERE generation = $1 AND number < $2 ORDER BY number DESC LIMIT 1";
    let mut before = i64::MAX;
    loop {
        let name = Ulid::from(generation);
        let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&before, Type::INT8)];
        let Some(row) = first(client, sql, &args).await? else {
            return Ok(None);
        };
        if let Some(summary) = summaries::decode(get(&row, 1)?) {
            return Ok(Some(Arc::new(summary)));
        }
        before = get(&row, 0)?;
    }
}

/// The summaries with these numbers, except those that do not decode.
pub(crate) async fn numbered_summaries(
    client: &Client,
    generation: Generation,
    numbers: impl Iterator<Item = u32>,
) -> Result<Vec<Arc<Summary>>, StoreError> {
    let numbers: Vec<i64> = numbers.map(i64::from).collect();
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT body FROM memoird.summaries
               WHERE generation = $1 AND number = ANY($2) ORDER BY number";
    let name = Ulid::from(generation);
    let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&numbers, Type::INT8_ARRAY)];
    let rows = query(client, sql, &args).await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        found.extend(summaries::decode(get(row, 0)?).map(Arc::new));
    }
    Ok(found)
}

fn number(row: &ResultRow, column: usize) -> Result<u32, StoreError> {
    let number = u32::try_from(get::<i64>(row, column)?);
    number.map_err(|_| damaged("number of a summary"))
}

/// The highest number that a sequence has issued.
pub(crate) async fn last_number(client: &Client, sequence: &str) -> Result<i64, StoreError> {
    let sql =
        format!("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM memoird.{sequence}");
    let row = first(client, &sql, &[]).await?;
    row.map_or(Ok(0), |row| get(&row, 0))
}

/// Waits for the commits in flight.
///
/// Numbers come from a sequence, so a commit in flight may still insert a number lower than visible
/// ones. Each commit locks the row of its lane. Locking each row once here ensures that every
/// number issued before is either visible or never will be.
async fn wait_for_commits(client: &Client) -> Result<(), StoreError> {
    // Nothing is written that must be durable, and commits wait for these locks.
    let sql = "SELECT 1 FROM memoird.lanes
               WHERE (SELECT set_config('synchronous_commit', 'off', true)) IS NOT NULL FOR SHARE";
    query(client, sql, &[]).await.map(drop)
}

/// Returns turns with a number greater than `number` that was issued before this call.
pub(crate) async fn written_after(
    client: &Client,
    number: u64,
    turns_max: usize,
    bytes_max: usize,
    counters: &TurnCounters,
) -> Result<WrittenTurns, StoreError> {
    let last = last_number(client, "turn_numbers").await?;
    let mut written = WrittenTurns {
        turns: Vec::new(),
        last_number: last.unsigned_abs(),
    };
    if written.last_number <= number {
        return Ok(written);
    }
    wait_for_commits(client).await?;
    let select = format!(
        "SELECT {TURN}, t.number AS place, t.generation AS extra FROM memoird.turns AS t
         WHERE t.number > $1 AND t.number <= $2 AND NOT {IS_REWOUND}
         ORDER BY t.number LIMIT $3"
    );
    let sql = chunk_of(&select, "ASC", "$4");
    let (mut after, mut bytes) = (whole(number), 0);
    let (turns_max, bytes_max) = (turns_max.max(1), bytes_max.max(1));
    'pages: loop {
        let rows_max = (turns_max - written.turns.len()).min(TURNS_PER_QUERY);
        let args: [Arg<'_>; 4] = [
            (&after, Type::INT8),
            (&last, Type::INT8),
            (&limit(rows_max), Type::INT8),
            (&limit(bytes_max - bytes), Type::INT8),
        ];
        let rows = query(client, &sql, &args).await?;
        for row in &rows {
            if row.bytes_or_null(1)?.is_none() {
                break 'pages;
            }
            let turn = written_turn(row, counters)?;
            bytes += turn.content.len();
            after = whole(turn.number);
            written.turns.push(turn);
            if written.turns.len() >= turns_max || bytes >= bytes_max {
                break 'pages;
            }
        }
        if rows.len() < rows_max {
            break;
        }
    }
    Ok(written)
}

pub(crate) async fn ended(
    client: &Client,
    wanted: &[(SessionKey, Generation)],
    bytes_max: usize,
    counters: &TurnCounters,
) -> Result<Vec<EndedRecord>, StoreError> {
    let sql = format!(
        "SELECT {}, beside.* FROM memoird.generations AS g,
             memoird.beside_generation(g.generation) AS beside
         WHERE g.generation = $1 AND g.ended_at IS NOT NULL",
        generation_columns()
    );
    let (mut records, mut bytes) = (Vec::new(), 0);
    for (_, generation) in wanted {
        if bytes >= bytes_max && !records.is_empty() {
            break;
        }
        let name = Ulid::from(*generation);
        let Some(row) = first(client, &sql, &[(&name, Type::UUID)]).await? else {
            continue;
        };
        let GenerationRow {
            key,
            head,
            ended: Some((at, reason)),
            ..
        } = GenerationRow::read(&row)?
        else {
            continue;
        };
        let reader = TurnReader::new(*generation, counters);
        let turns = newest_turns(client, reader, bytes_max).await?;
        bytes += turns
            .iter()
            .map(|(_, content)| content.len())
            .sum::<usize>();
        let (state, rewound) =
            read_related_columns(&row, GenerationRow::COUNT + 1, head.state_version)?;
        let summary = newest_summary(client, *generation).await?;
        let rewound_turns = rewound.count();
        records.push(EndedRecord {
            key,
            head,
            at,
            reason,
            turns,
            rewound_turns,
            state,
            summary,
        });
    }
    Ok(records)
}

/// Returns the turns of a generation in ascending order.
///
/// If they exceed `bytes_max`, only the newest ones that fit, but at least one.
async fn newest_turns(
    client: &Client,
    reader: TurnReader<'_>,
    bytes_max: usize,
) -> Result<Vec<PlacedTurn>, StoreError> {
    let range = JournalRange {
        last: true,
        bytes_max: bytes_max.max(1),
        ..JournalRange::ALL
    };
    let mut turns = read_page(client, reader, range).await?.turns;
    let bytes: usize = turns.iter().map(|(_, content)| content.len()).sum();
    // The page ends with the turn that fills it.
    if bytes > bytes_max && turns.len() > 1 {
        turns.remove(0);
    }
    Ok(turns)
}

/// Reads a turn. `None` if its content was left out to respect the byte limit.
fn read_turn(reader: TurnReader<'_>, row: &ResultRow) -> Result<Option<PlacedTurn>, StoreError> {
    match row.bytes_or_null(1)? {
        Some(_) => reader.read(row).map(Some),
        None => Ok(None),
    }
}
