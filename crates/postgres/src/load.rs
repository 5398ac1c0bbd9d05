//! Loads sessions, several with the same statements.
//!
//! The first statement reads heads, the second one turns. They see different snapshots, so each
//! session's stamp is compared. Turns that the caller has of an older version are compared by
//! number, size and digest, and not transferred again.

use memoird_core::history::{KnownTurns, LiveSet, REWOUND_BEFORE_MAX};
use memoird_core::idempotency::Keys;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::state::State;
use memoird_core::time::Steady;
use memoird_core::window::SavedCut;
use memoird_store::checksum::{TurnCounters, TurnKey, part_checksum};
use memoird_store::rows::{GenerationRow, LiveTurns, StoredRow, TurnReader};
use memoird_store::{KEYS_MAX, SessionToLoad, StoreError, windows};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, query};
use crate::read::{keys_of, newest, newest_summary, numbered_summaries, read_related_columns};
use crate::transactions::ResultRow;
use crate::values::{Ulid, get, limit, whole};

/// Columns of `memoird.load_heads` after those of the head.
const STAMP: usize = GenerationRow::COUNT;
const PLACE: usize = STAMP + 1;
const KEYS: usize = PLACE + 1;
const RELATED: usize = KEYS + 8;
const CUTS: usize = RELATED + 3;

/// A live session without its turns.
#[derive(Clone, Debug)]
pub(crate) struct LoadedHead {
    /// Its position among the sessions to load.
    pub(crate) place: usize,
    pub(crate) stamp: i64,
    pub(crate) head: Head,
    live_set: LiveSet,
    keys: Keys,
    state: Option<State>,
    rewound: SeqRanges,
    cuts: Vec<SavedCut>,
}

/// The turns of a live set that the caller has.
#[derive(Clone, Copy, Debug, Default)]
struct KnownDigest {
    through_seq: u64,
    count: u64,
    bytes: u64,
    /// See [`digest_with`].
    digest: i64,
}

pub(crate) enum SessionRead {
    /// The session, and the stamp of its version.
    Session(Box<SavedSession>, i64),
    /// The session changed or ended between two statements, so the result is inconsistent.
    Changed,
}

/// Reads the heads of those sessions that are live. One that cannot be read is an error of its own.
pub(crate) async fn heads(
    client: &Client,
    keys_since: Steady,
    wanted: &[SessionToLoad],
) -> Result<Vec<Result<LoadedHead, (usize, StoreError)>>, StoreError> {
    let tenants: Vec<&[u8]> = wanted
        .iter()
        .map(|it| it.key.tenant.as_str().as_bytes())
        .collect();
    let sessions: Vec<&[u8]> = wanted
        .iter()
        .map(|it| it.key.session.as_str().as_bytes())
        .collect();
    let have_all_keys: Vec<bool> = wanted.iter().map(|it| it.known.is_none()).collect();
    let names = wanted.iter().map(|it| it.idempotency_key.as_ref());
    let keys: Vec<Option<&[u8]>> = names.map(|key| key.map(|key| &key[..])).collect();
    let args: [Arg<'_>; 6] = [
        (&whole(keys_since.0), Type::INT8),
        (&limit(KEYS_MAX), Type::INT8),
        (&tenants, Type::BYTEA_ARRAY),
        (&sessions, Type::BYTEA_ARRAY),
        (&have_all_keys, Type::BOOL_ARRAY),
        (&keys, Type::BYTEA_ARRAY),
    ];
    let sql = "SELECT * FROM memoird.load_heads($1, $2, $3, $4, $5, $6)";
    let rows = query(client, sql, &args).await?;
    let mut heads = Vec::with_capacity(rows.len());
    for row in &rows {
        let place = place_of(row, PLACE)?;
        heads.push(read_head(row, place, &wanted[place]).map_err(|error| (place, error)));
    }
    Ok(heads)
}

fn read_head(
    row: &ResultRow,
    place: usize,
    wanted: &SessionToLoad,
) -> Result<LoadedHead, StoreError> {
    let GenerationRow { head, live_set, .. } = GenerationRow::read(row)?;
    let (state, mut rewound) = read_related_columns(row, RELATED, head.state_version)?;
    rewound.bound_before(live_set.floor, REWOUND_BEFORE_MAX);
    let keys = keys_of(row, KEYS)?;
    Ok(LoadedHead {
        place,
        stamp: get(row, STAMP)?,
        keys: match &wanted.known {
            None => keys,
            Some(_) => keys.into_lookup(wanted.idempotency_key),
        },
        state,
        rewound,
        // If they are damaged, the next window is planned from scratch.
        cuts: get::<Option<&[u8]>>(row, CUTS)?
            .and_then(windows::decode)
            .unwrap_or_default(),
        head,
        live_set,
    })
}

/// Reads the turns of sessions, in the same order.
pub(crate) async fn turns(
    client: &Client,
    heads: &[LoadedHead],
    wanted: &[SessionToLoad],
    counters: &TurnCounters,
) -> Result<Vec<Result<SessionRead, StoreError>>, StoreError> {
    let known_of = |head: &LoadedHead| {
        let known = wanted[head.place].known.as_ref();
        known.filter(|known| known.generation == head.head.generation)
    };
    let names: Vec<Ulid> = heads.iter().map(|it| it.head.generation.into()).collect();
    let floors: Vec<i64> = heads.iter().map(|it| whole(it.live_set.floor)).collect();
    let apart: Vec<String> = heads.iter().map(LoadedHead::apart).collect();
    let holes: Vec<String> = heads.iter().map(|it| seqs(&it.live_set.holes)).collect();
    let known: Vec<KnownDigest> = heads
        .iter()
        .map(|it| {
            known_of(it)
                .map(|known| it.digest(known))
                .unwrap_or_default()
        })
        .collect();
    let numbers = |of: fn(&KnownDigest) -> u64| -> Vec<i64> {
        known.iter().map(|known| whole(of(known))).collect()
    };
    let through = numbers(|known| known.through_seq);
    let (counts, bytes) = (numbers(|known| known.count), numbers(|known| known.bytes));
    let digests: Vec<i64> = known.iter().map(|known| known.digest).collect();
    let args: [Arg<'_>; 8] = [
        (&names, Type::UUID_ARRAY),
        (&floors, Type::INT8_ARRAY),
        (&apart, Type::TEXT_ARRAY),
        (&holes, Type::TEXT_ARRAY),
        (&through, Type::INT8_ARRAY),
        (&counts, Type::INT8_ARRAY),
        (&bytes, Type::INT8_ARRAY),
        (&digests, Type::INT8_ARRAY),
    ];
    let sql = "SELECT * FROM memoird.load_turns($1, $2, $3, $4, $5, $6, $7, $8)";
    let rows = query(client, sql, &args).await?;
    let mut rows_of: Vec<Vec<&ResultRow>> = vec![Vec::new(); heads.len()];
    for row in &rows {
        rows_of[place_of(row, 4)?].push(row);
    }
    let mut sessions = Vec::with_capacity(heads.len());
    for (head, rows) in heads.iter().zip(rows_of) {
        sessions.push(read_session(client, head, known_of(head), &rows, counters).await);
    }
    Ok(sessions)
}

async fn read_session(
    client: &Client,
    loaded: &LoadedHead,
    known: Option<&KnownTurns>,
    rows: &[&ResultRow],
    counters: &TurnCounters,
) -> Result<SessionRead, StoreError> {
    let Some(first) = rows.first() else {
        return Ok(SessionRead::Changed);
    };
    let LoadedHead { head, cuts, .. } = loaded;
    let mut stamp_then = Some(get(first, 5)?);
    let (mut summary, mut earlier) = (None, Vec::new());
    if head.compaction.is_some() || !cuts.is_empty() {
        summary = newest_summary(client, head.generation).await?;
        let numbers = windows::earlier_summaries(cuts, summary.as_deref());
        earlier = numbered_summaries(client, head.generation, numbers).await?;
    }
    if summary.is_some() {
        let newest = newest(client, &[head.generation]).await?;
        stamp_then = newest.get(&head.generation).map(|(_, stamp)| *stamp);
    }
    if stamp_then != Some(loaded.stamp) {
        return Ok(SessionRead::Changed);
    }
    let mut kept = loaded.live_set.clone();
    let mut turns = LiveTurns::new(TurnReader::new(head.generation, counters), &kept);
    if get(first, 6)? {
        let known = known.iter().flat_map(|known| &known.records);
        for record in known.filter(|record| kept.contains(record.seq, &loaded.rewound)) {
            turns.reuse(record)?;
        }
    }
    for row in rows {
        if row.int_or_null(0)?.is_some() {
            turns.add(*row)?;
        }
    }
    let saved = SavedSession {
        earlier,
        summary,
        cuts: cuts.clone(),
        turns: turns.finish(&mut kept)?,
        rewound: loaded.rewound.clone(),
        state: loaded.state.clone(),
        keys: loaded.keys.clone(),
        head: head.clone(),
        kept,
    };
    Ok(SessionRead::Session(Box::new(saved), loaded.stamp))
}

impl LoadedHead {
    /// Bytes of turns that a load of the session may return.
    pub(crate) fn bytes(&self) -> u64 {
        self.head.totals.bytes
    }

    /// Ascending.
    fn apart(&self) -> String {
        let mut apart: Vec<u64> = self.live_set.seqs_below_floor().collect();
        apart.sort_unstable();
        seqs(&apart)
    }

    fn digest(&self, known: &KnownTurns) -> KnownDigest {
        let through = known.records.last().map_or(0, |record| record.seq);
        let mut all = KnownDigest {
            through_seq: through,
            ..KnownDigest::default()
        };
        let is_live = |seq| self.live_set.contains(seq, &self.rewound);
        for record in known.records.iter().filter(|record| is_live(record.seq)) {
            let key = TurnKey {
                generation: known.generation,
                seq: record.seq,
            };
            all.count += 1;
            all.bytes += record.content.len() as u64;
            all.digest = digest_with(all.digest, record.seq, part_checksum(key, &record.content));
        }
        all
    }
}

/// Adds a turn's checksum to a digest, times a factor that depends on its seq, modulo 2^63.
///
/// CRCs are linear: with XOR, or without factors, the same change of two turns would cancel out.
/// `memoird.load_turns` computes the same.
fn digest_with(digest: i64, seq: u64, checksum: i64) -> i64 {
    const HALF: u64 = 0x7fff_ffff;
    let factor = ((seq & HALF) * 1_103_515_245) & HALF;
    (digest.cast_unsigned() + checksum.cast_unsigned() * factor).cast_signed() & i64::MAX
}

/// Formats seqs as a PostgreSQL array.
fn seqs(seqs: &[u64]) -> String {
    let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
    format!("{{{}}}", seqs.join(","))
}

/// Reads a position, which counts from 1 in PostgreSQL.
fn place_of(row: &ResultRow, column: usize) -> Result<usize, StoreError> {
    let place: i32 = get(row, column)?;
    let place = usize::try_from(place)
        .ok()
        .and_then(|place| place.checked_sub(1));
    place.ok_or(memoird_store::rows::damaged("position"))
}
