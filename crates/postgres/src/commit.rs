//! The one statement that commits, and what became of one whose answer did not come. See
//! `docs/cluster.md` for why it is as it is.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::time::Duration;

use memoird_core::ids::{Generation, HookName, Subject};
use memoird_core::seq_ranges::SeqRanges;
use memoird_store::checksum::{TurnPlace, protect};
use memoird_store::{ClockAnchor, StoreError, options, summaries};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::connect::{Arg, Database, change, first};
use crate::decide::{Before, Part};
use crate::error::{failed, is_partial, is_passing, is_refused};
use crate::values::{Ulid, get, whole};

/// How often a statement is sent that was, for certain, not done.
const TRIES_MAX: usize = 3;
/// Between two looks at what became of a commit.
const RESOLVE_PAUSE_MIN: Duration = Duration::from_millis(20);
const RESOLVE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// The old statement may run for a while before the look gets the row.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(30);

/// Which rows of a part were written, by their places; `None`: none, and none will be.
pub(crate) type Applied = Option<BTreeSet<usize>>;

/// The committer's row in the database, as this process knows it, and its connection.
pub(crate) struct Lane {
    node: Ulid,
    lane: i16,
    epoch: i64,
    /// The last commit that was done.
    number: i64,
    client: Option<Client>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("epoch", &self.epoch)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// A statement in the making.
#[derive(Default)]
struct Statement<'a> {
    text: String,
    args: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
}

impl<'a> Statement<'a> {
    /// Takes a parameter; its place in the text.
    fn put(&mut self, value: impl ToSql + Sync + Send + 'a, of: Type) -> String {
        let name = of.name().trim_start_matches('_').to_owned();
        let array = matches!(of.kind(), tokio_postgres::types::Kind::Array(_));
        self.args.push((Box::new(value), of));
        let brackets = if array { "[]" } else { "" };
        format!("${}::{name}{brackets}", self.args.len())
    }

    fn say(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(text);
    }
}

/// Rows of a part that also have something in another table: their places, and that.
struct Beside<T> {
    places: Vec<i32>,
    values: Vec<T>,
}

impl Lane {
    /// Makes the row of a process that starts, and removes those of processes that have ended
    /// long ago; not the one that has the clock.
    pub(crate) async fn begin(client: Client, node: Ulid) -> Result<Self, StoreError> {
        let sql = "DELETE FROM memoird.lanes WHERE seen < now() - interval '7 days'
                       AND steady IS DISTINCT FROM (SELECT max(steady) FROM memoird.lanes)
                   RETURNING 1";
        change(&client, sql, &[]).await?;
        let sql = "INSERT INTO memoird.lanes (node, lane, epoch, number) VALUES ($1, 0, 0, 0)
                   RETURNING 1";
        change(&client, sql, &[(&node, Type::UUID)]).await?;
        Ok(Self {
            node,
            lane: 0,
            epoch: 0,
            number: 0,
            client: Some(client),
        })
    }

    /// Writes a part, and the clock.
    ///
    /// # Errors
    /// When nothing of it was written; never while it may still be.
    pub(crate) async fn write(
        &mut self,
        database: &Database,
        clock: &ClockAnchor,
        part: &Part,
    ) -> Result<Applied, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let statement = self.statement(clock, part);
            let client = match self.client.take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => database.connect().await?,
            };
            let args: Vec<Arg<'_>> = statement
                .args
                .iter()
                .map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone()))
                .collect();
            let sent = client.query_typed(&statement.text, &args);
            let problem = match timeout(database.options().commit_time_max, sent).await {
                Ok(Ok(rows)) => {
                    self.client = Some(client);
                    if let Some(applied) = answered(&rows)? {
                        self.number += 1;
                        return Ok(Some(applied));
                    }
                    // Nothing was written: the row is not what this process thinks.
                    "its lane had another epoch or number".to_owned()
                }
                Ok(Err(error)) if is_refused(&error) => {
                    self.client = Some(client);
                    if part.is_whole && is_partial(&error) {
                        return Ok(None);
                    }
                    if tries < TRIES_MAX && is_passing(&error) {
                        continue;
                    }
                    return Err(failed(error));
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer came in time".to_owned(),
            };
            let Some(found) = self.resolve(database, &problem).await? else {
                match tries < TRIES_MAX {
                    true => continue,
                    false => return Err(StoreError::Unavailable { detail: problem }),
                }
            };
            return Ok(Some(found));
        }
    }

    /// Finds out what became of the last statement, and keeps it from being done later: what was
    /// written of it, or `None` where nothing was. Tries until it knows.
    ///
    /// # Errors
    /// When the database has lost commits, or the row: then nobody knows.
    async fn resolve(
        &mut self,
        database: &Database,
        problem: &str,
    ) -> Result<Option<BTreeSet<usize>>, StoreError> {
        tracing::warn!(problem, "what became of a commit is unknown; looking it up");
        let mut pause = RESOLVE_PAUSE_MIN;
        let row = loop {
            match timeout(RESOLVE_TIME_MAX, self.look_up(database)).await {
                Ok(Ok(row)) => break row,
                Ok(Err(error)) => tracing::debug!(%error, "what became of it is still unknown"),
                Err(_) => tracing::debug!("what became of it is still unknown"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(RESOLVE_PAUSE_MAX);
        };
        let Some((epoch, number, applied)) = row else {
            return self.begin_again(database).await;
        };
        let mine = self.number + 1;
        (self.epoch, self.number) = (epoch, number);
        tracing::info!(
            was_written = number == mine,
            "what became of the commit is known"
        );
        if number < mine - 1 {
            let detail = "it has gone back in time, as after a failover that lost commits; what \
                          was built on these is refused, and read again"
                .to_owned();
            tracing::error!(detail);
            return Err(StoreError::Database { detail });
        }
        Ok((number == mine).then_some(applied))
    }

    async fn look_up(
        &mut self,
        database: &Database,
    ) -> Result<Option<(i64, i64, BTreeSet<usize>)>, StoreError> {
        let client = database.connect().await?;
        let sql = match database.options().has_fence {
            true => {
                "UPDATE memoird.lanes SET epoch = epoch + 1 WHERE node = $1 AND lane = $2
                 RETURNING epoch, number, applied"
            }
            false => {
                "SELECT epoch, number, applied FROM memoird.lanes WHERE node = $1 AND lane = $2"
            }
        };
        let args: [Arg<'_>; 2] = [(&self.node, Type::UUID), (&self.lane, Type::INT2)];
        let row = first(&client, sql, &args).await?;
        self.client = Some(client);
        let Some(row) = row else { return Ok(None) };
        let applied: Vec<i32> = get(&row, 2)?;
        let applied = applied.into_iter().filter_map(|ord| ord.try_into().ok());
        Ok(Some((get(&row, 0)?, get(&row, 1)?, applied.collect())))
    }

    /// The row is gone, as after a restore from a backup. What becomes of a statement that is
    /// still under way is certain: it finds no row of its epoch.
    async fn begin_again(
        &mut self,
        database: &Database,
    ) -> Result<Option<BTreeSet<usize>>, StoreError> {
        let client = database.connect().await?;
        self.epoch += 1;
        let sql = "INSERT INTO memoird.lanes (node, lane, epoch, number) VALUES ($1, $2, $3, $4)
                   ON CONFLICT DO NOTHING RETURNING 1";
        let args: [Arg<'_>; 4] = [
            (&self.node, Type::UUID),
            (&self.lane, Type::INT2),
            (&self.epoch, Type::INT8),
            (&self.number, Type::INT8),
        ];
        change(&client, sql, &args).await?;
        self.client = Some(client);
        let detail =
            "the row of this process is gone from memoird.lanes, as after a restore; what \
                      became of the commit is unknown"
                .to_owned();
        tracing::error!(detail);
        Err(StoreError::Database { detail })
    }

    /// The statement that writes a part.
    fn statement<'a>(&self, clock: &'a ClockAnchor, part: &'a Part) -> Statement<'a> {
        let mut made = Statement::default();
        let node = made.put(self.node, Type::UUID);
        let lane = made.put(self.lane, Type::INT2);
        let epoch = made.put(self.epoch, Type::INT8);
        let before = made.put(self.number, Type::INT8);
        made.say(format_args!(
            "WITH settings AS MATERIALIZED (
                SELECT set_config('lock_timeout', '2s', true) AS waits,
                    CASE current_setting('synchronous_commit') WHEN 'off'
                        THEN set_config('synchronous_commit', 'on', true) END AS syncs),
            held AS MATERIALIZED (
                SELECT 1 AS is_held FROM memoird.lanes
                WHERE (SELECT count(waits) + count(syncs) FROM settings) > 0
                    AND node = {node} AND lane = {lane} AND epoch = {epoch} AND number = {before}
                FOR UPDATE)"
        ));
        if part.rows.is_empty() {
            made.say(format_args!(
                ", applied AS MATERIALIZED (
                    SELECT 0 AS ord, NULL::uuid AS generation WHERE false)"
            ));
        } else {
            rows(&mut made, part);
            contents(&mut made, part);
        }
        let is_whole = match part.is_whole {
            true => {
                made.say(format_args!(
                    ", complete AS MATERIALIZED (
                        SELECT 1 / CASE WHEN (SELECT count(*) FROM applied) = (SELECT count(*) FROM a)
                            THEN 1 ELSE 0 END AS is_complete FROM held)"
                ));
                ", complete"
            }
            false => "",
        };
        let number = made.put(self.number + 1, Type::INT8);
        let steady = made.put(whole(clock.steady.0), Type::INT8);
        let wall = made.put(clock.wall.as_ms(), Type::INT8);
        let boot_id = made.put(clock.boot_id.as_str(), Type::TEXT);
        let boot_ms = made.put(whole(clock.boot_ms), Type::INT8);
        made.say(format_args!(
            ", told AS (
                UPDATE memoird.lanes SET number = {number}, applied = ARRAY(SELECT ord FROM applied),
                    steady = {steady}, wall = {wall}, boot_id = {boot_id}, boot_ms = {boot_ms},
                    seen = now()
                FROM held{is_whole} WHERE node = {node} AND lane = {lane})
            SELECT -1 AS ord FROM held UNION ALL SELECT ord FROM applied"
        ));
        made
    }
}

/// The places of what was written; `None` where the lane was not held.
fn answered(rows: &[Row]) -> Result<Applied, StoreError> {
    let (mut applied, mut is_held) = (BTreeSet::new(), false);
    for row in rows {
        match usize::try_from(get::<i32>(row, 0)?) {
            Ok(ord) => drop(applied.insert(ord)),
            Err(_) => is_held = true,
        }
    }
    Ok(is_held.then_some(applied))
}

/// The swap of rows, and new ones.
///
/// The names stand twice, so that rows are found by them and never by reading the table: what the
/// planner thinks of a join with `a` depends on statistics. That a row is of a life that goes on
/// follows from its version: its end has one of its own, on which nothing is built.
fn rows<'a>(made: &mut Statement<'a>, part: &'a Part) {
    let rows = || part.rows.values();
    let befores = rows().map(|row| match row.before {
        Before::Nothing { created_ms } => (true, 0, 0, created_ms),
        Before::Version { revision, stamp } => (false, whole(revision), stamp, 0),
    });
    let befores: Vec<(bool, i64, i64, i64)> = befores.collect();
    let has_new = befores.iter().any(|before| before.0);
    let ords: Vec<i32> = (0..).take(part.rows.len()).collect();
    let names: Vec<Ulid> = part.rows.keys().map(|name| Ulid::from(*name)).collect();
    let ends = || rows().map(|row| row.ended.as_ref());
    let names = made.put(names, Type::UUID_ARRAY);
    let columns = [
        made.put(ords, Type::INT4_ARRAY),
        names.clone(),
        made.put(
            befores.iter().map(|of| of.0).collect::<Vec<_>>(),
            Type::BOOL_ARRAY,
        ),
        made.put(
            befores.iter().map(|of| of.1).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            befores.iter().map(|of| of.2).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            befores.iter().map(|of| of.3).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(part.stamps.clone(), Type::INT8_ARRAY),
        made.put(
            rows().map(|row| whole(row.revision)).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows().map(|row| whole(row.last_seq)).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.last_access.map(|at| whole(at.0)))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.totals.map(|totals| whole(totals.turns)))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.totals.map(|totals| whole(totals.bytes)))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.totals.map(|totals| whole(totals.tokens)))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows().map(|row| row.partial).collect::<Vec<_>>(),
            Type::BOOL_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.state_version.map(whole))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows().map(|row| whole(row.added_bytes)).collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.subject.as_ref().map(Subject::as_str).map(str::as_bytes))
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            rows()
                .map(crate::decide::RowChange::kept_bytes)
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.compaction.as_deref().map(summaries::encode_status))
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            ends()
                .map(|end| end.map(|(at, ..)| at.wall.as_ms()))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            ends()
                .map(|end| end.map(|(at, ..)| whole(at.steady.0)))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            ends()
                .map(|end| end.map(|(_, reason, _)| reason.name()))
                .collect::<Vec<_>>(),
            Type::TEXT_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.key.tenant.as_str().as_bytes())
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.key.session.as_str().as_bytes())
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.newest_seq.map(whole))
                .collect::<Vec<_>>(),
            Type::INT8_ARRAY,
        ),
        made.put(
            rows()
                .map(|row| row.options.as_deref().map(options::encode))
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
    ];
    let grown = match replaced(made, part) {
        true => "+ coalesce((SELECT sum(grown) FROM replaced WHERE replaced.ord = a.ord), 0)",
        false => "",
    };
    made.say(format_args!(
        ", a AS MATERIALIZED (
            SELECT a.* FROM held, unnest({}) AS a(ord, generation, is_new, was_revision, was_stamp,
                created_ms, stamp, revision, last_seq, last_access, turns, bytes, tokens, partial,
                state_version, added_bytes, subject, kept, compaction, ended_ms, ended_at, reason,
                tenant, session, newest_seq, options)),
        changed AS (
            UPDATE memoird.generations AS g SET revision = a.revision, stamp = a.stamp,
                last_seq = a.last_seq, newest_seq = coalesce(a.newest_seq, g.newest_seq),
                last_access = coalesce(a.last_access, g.last_access),
                turns = coalesce(a.turns, g.turns), bytes = coalesce(a.bytes, g.bytes),
                tokens = coalesce(a.tokens, g.tokens), partial = coalesce(a.partial, g.partial),
                state_version = coalesce(a.state_version, g.state_version),
                journal_bytes = g.journal_bytes + a.added_bytes {grown},
                subject = coalesce(a.subject, g.subject), kept = coalesce(a.kept, g.kept),
                compaction = coalesce(a.compaction, g.compaction),
                options = coalesce(a.options, g.options), ended_ms = a.ended_ms,
                ended_at = a.ended_at, reason = a.reason
            FROM a WHERE NOT a.is_new AND g.generation = ANY({names}) AND g.generation = a.generation
                AND g.revision = a.was_revision AND g.stamp = a.was_stamp
            RETURNING a.ord, g.generation)",
        columns.join(", ")
    ));
    if !has_new {
        made.say(format_args!(
            ", applied AS MATERIALIZED (SELECT ord, generation FROM changed)"
        ));
        return;
    }
    // A life that begins and ends in one batch is in no index that would refuse it.
    made.say(format_args!(
        ", begun AS (
            INSERT INTO memoird.generations (generation, revision, stamp, last_seq, last_access,
                turns, bytes, tokens, state_version, journal_bytes, created_ms, ended_ms, ended_at,
                partial, reason, tenant, session, subject, kept, compaction, newest_seq, options)
            SELECT generation, revision, stamp, last_seq, coalesce(last_access, 0),
                coalesce(turns, 0), coalesce(bytes, 0), coalesce(tokens, 0),
                coalesce(state_version, 0), added_bytes, created_ms, ended_ms, ended_at,
                coalesce(partial, false), reason, tenant, session, subject, kept, compaction,
                coalesce(newest_seq, 0), options
            FROM a WHERE is_new AND (SELECT count(*) FROM changed) >= 0
                AND (ended_at IS NULL OR NOT EXISTS (SELECT 1 FROM memoird.generations AS other
                    WHERE other.tenant = a.tenant AND other.session = a.session
                        AND other.ended_at IS NULL
                        AND other.generation NOT IN (SELECT generation FROM changed)))
            ON CONFLICT DO NOTHING
            RETURNING generation),
        applied AS MATERIALIZED (
            SELECT ord, generation FROM changed
            UNION ALL SELECT a.ord, a.generation FROM a JOIN begun USING (generation))"
    ));
}

/// What changes hold beside the rows, of what was written only.
fn contents<'a>(made: &mut Statement<'a>, part: &'a Part) {
    turns(made, part);
    keys(made, part);
    replacements(made, part);
    let states = beside(part, |row| row.state.as_deref().map(str::as_bytes));
    if let Some([ord, value]) = states.put(made, Type::BYTEA_ARRAY) {
        made.say(format_args!(
            ", put_states AS (
                INSERT INTO memoird.states AS t (generation, json)
                SELECT generation, json FROM unnest({ord}, {value}) AS u(ord, json)
                    JOIN applied USING (ord)
                ON CONFLICT (generation) DO UPDATE SET json = excluded.json)"
        ));
    }
    let cuts = beside(part, |row| row.cuts.as_deref());
    if let Some([ord, value]) = cuts.put(made, Type::BYTEA_ARRAY) {
        made.say(format_args!(
            ", put_windows AS (
                INSERT INTO memoird.windows AS t (generation, cuts)
                SELECT generation, cuts FROM unnest({ord}, {value}) AS u(ord, cuts)
                    JOIN applied USING (ord)
                ON CONFLICT (generation) DO UPDATE SET cuts = excluded.cuts)"
        ));
    }
    let rewound = beside(part, |row| {
        (!row.rewound.is_empty()).then(|| runs(&row.rewound))
    });
    if let Some([ord, value]) = rewound.put(made, Type::TEXT_ARRAY) {
        made.say(format_args!(
            ", put_rewound AS (
                INSERT INTO memoird.rewound AS t (generation, runs)
                SELECT generation, runs::int8multirange FROM unnest({ord}, {value}) AS u(ord, runs)
                    JOIN applied USING (ord)
                ON CONFLICT (generation) DO UPDATE SET runs = t.runs + excluded.runs)"
        ));
    }
    let names = beside_each(part, |row| {
        row.rewinds.keys().map(|name| &name[..]).collect()
    });
    let taken = beside_each(part, |row| row.rewinds.values().map(runs).collect());
    if let Some([ord, name]) = names.put(made, Type::BYTEA_ARRAY) {
        let taken = made.put(taken.values, Type::TEXT_ARRAY);
        made.say(format_args!(
            ", put_rewinds AS (
                INSERT INTO memoird.rewinds (generation, key, runs)
                SELECT generation, key, runs::int8multirange
                FROM unnest({ord}, {name}, {taken}) AS u(ord, key, runs) JOIN applied USING (ord)
                ON CONFLICT (generation, key) DO UPDATE SET runs = excluded.runs)"
        ));
    }
    summary_rows(made, part);
    let owed = beside_each(part, |row| {
        let owed = row.ended.iter().flat_map(|(_, _, owed)| owed.iter());
        owed.map(HookName::as_str).collect()
    });
    if let Some([ord, value]) = owed.put(made, Type::TEXT_ARRAY) {
        made.say(format_args!(
            ", put_outbox AS (
                INSERT INTO memoird.outbox (due, generation, hook, tenant, session, reason)
                SELECT a.ended_at, a.generation, u.hook, a.tenant, a.session, a.reason
                FROM unnest({ord}, {value}) AS u(ord, hook) JOIN applied USING (ord)
                    JOIN a USING (ord)
                ON CONFLICT DO NOTHING)"
        ));
    }
}

fn turns<'a>(made: &mut Statement<'a>, part: &'a Part) {
    if part.turns.is_empty() {
        return;
    }
    let (mut headers, mut checksums) = (Vec::new(), Vec::new());
    for turn in &part.turns {
        let place = TurnPlace {
            generation: turn.generation,
            seq: turn.seq,
        };
        let protection = protect(place, &turn.content);
        headers.push(protection.header);
        checksums.push(protection.checksum);
    }
    let places = places(part);
    let of_turns = || part.turns.iter();
    let ords: Vec<Option<i32>> = of_turns()
        .map(|turn| places.get(&turn.generation).copied())
        .collect();
    let seqs: Vec<i64> = of_turns().map(|turn| whole(turn.seq)).collect();
    let contents: Vec<&[u8]> = of_turns().map(|turn| &*turn.content).collect();
    let columns = [
        made.put(ords, Type::INT4_ARRAY),
        made.put(seqs, Type::INT8_ARRAY),
        made.put(contents, Type::BYTEA_ARRAY),
        made.put(headers, Type::BYTEA_ARRAY),
        made.put(checksums, Type::INT8_ARRAY),
    ];
    // Numbers are drawn in the order in which the turns were said.
    made.say(format_args!(
        ", put_turns AS (
            INSERT INTO memoird.turns (generation, seq, number, content, header, checksum)
            SELECT generation, seq, nextval('memoird.turn_numbers'), content, header, checksum
            FROM (SELECT generation, seq, content, header, checksum
                FROM unnest({}) WITH ORDINALITY
                    AS u(ord, seq, content, header, checksum, place) JOIN applied USING (ord)
                ORDER BY place) AS said)",
        columns.join(", ")
    ));
}

/// Turns that say something else, with the bytes that each grows by; false where there are none.
///
/// Names and seqs stand twice, as those of [`rows`]. A turn cannot change between this look and the
/// swap: who changes it gives its generation another version.
fn replaced<'a>(made: &mut Statement<'a>, part: &'a Part) -> bool {
    let of_rows = (0_i32..).zip(part.rows.values());
    let replaced = of_rows.flat_map(|(ord, row)| {
        let turns = row.replaced.iter();
        turns.map(move |(seq, content)| (ord, row.generation, *seq, content))
    });
    let replaced: Vec<_> = replaced.collect();
    if replaced.is_empty() {
        return false;
    }
    let (mut headers, mut checksums) = (Vec::new(), Vec::new());
    for (_, generation, seq, content) in &replaced {
        let place = TurnPlace {
            generation: *generation,
            seq: *seq,
        };
        let protection = protect(place, content);
        headers.push(protection.header);
        checksums.push(protection.checksum);
    }
    let of_turns = || replaced.iter();
    let ords: Vec<i32> = of_turns().map(|turn| turn.0).collect();
    let names: Vec<Ulid> = of_turns().map(|turn| turn.1.into()).collect();
    let seqs: Vec<i64> = of_turns().map(|turn| whole(turn.2)).collect();
    let contents: Vec<&[u8]> = of_turns().map(|turn| &**turn.3).collect();
    let (names, seqs) = (
        made.put(names, Type::UUID_ARRAY),
        made.put(seqs, Type::INT8_ARRAY),
    );
    let columns = [
        made.put(ords, Type::INT4_ARRAY),
        names.clone(),
        seqs.clone(),
        made.put(contents, Type::BYTEA_ARRAY),
        made.put(headers, Type::BYTEA_ARRAY),
        made.put(checksums, Type::INT8_ARRAY),
    ];
    made.say(format_args!(
        ", replaced AS MATERIALIZED (
            SELECT u.*, octet_length(u.content) - octet_length(t.content) AS grown
            FROM held, unnest({}) AS u(ord, generation, seq, content, header, checksum)
                JOIN memoird.turns AS t USING (generation, seq)
            WHERE t.generation = ANY({names}) AND t.seq = ANY({seqs}))",
        columns.join(", ")
    ));
    true
}

/// Writes them, and notes them for who follows the journal.
fn replacements(made: &mut Statement<'_>, part: &Part) {
    if part.rows.values().all(|row| row.replaced.is_empty()) {
        return;
    }
    made.say(format_args!(
        ", put_replaced AS (
            UPDATE memoird.turns AS t SET content = u.content, header = u.header,
                checksum = u.checksum
            FROM replaced AS u JOIN applied USING (ord)
            WHERE t.generation = u.generation AND t.seq = u.seq
            RETURNING t.generation, t.number),
        put_changes AS (
            INSERT INTO memoird.turn_changes (change, generation, number)
            SELECT nextval('memoird.change_numbers'), generation, number FROM put_replaced)"
    ));
}

fn keys<'a>(made: &mut Statement<'a>, part: &'a Part) {
    if part.keys.is_empty() {
        return;
    }
    let places = places(part);
    let of_keys = || part.keys.iter();
    let numbers = |of: fn(&memoird_core::idempotency::KeyRecord) -> u64| -> Vec<i64> {
        part.keys.iter().map(|key| whole(of(&key.record))).collect()
    };
    let columns = [
        made.put(
            of_keys()
                .map(|key| places.get(&key.generation).copied())
                .collect::<Vec<_>>(),
            Type::INT4_ARRAY,
        ),
        made.put(
            of_keys()
                .map(|key| key.session.tenant.as_str().as_bytes())
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            of_keys()
                .map(|key| key.session.session.as_str().as_bytes())
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            of_keys().map(|key| &key.name[..]).collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            of_keys()
                .map(|key| &key.record.content[..])
                .collect::<Vec<_>>(),
            Type::BYTEA_ARRAY,
        ),
        made.put(
            of_keys()
                .map(|key| Ulid::from(key.record.generation))
                .collect::<Vec<_>>(),
            Type::UUID_ARRAY,
        ),
        made.put(numbers(|record| record.first_seq), Type::INT8_ARRAY),
        made.put(numbers(|record| record.last_seq), Type::INT8_ARRAY),
        made.put(numbers(|record| record.dropped_turns), Type::INT8_ARRAY),
        made.put(numbers(|record| record.at.0), Type::INT8_ARRAY),
    ];
    made.say(format_args!(
        ", put_keys AS (
            INSERT INTO memoird.idempotency
                (tenant, session, key, content, generation, first_seq, last_seq, dropped, at)
            SELECT u.tenant, u.session, u.key, u.content, u.generation, u.first_seq, u.last_seq,
                u.dropped, u.at
            FROM unnest({}) AS u(ord, tenant, session, key, content, generation, first_seq,
                last_seq, dropped, at) JOIN applied USING (ord)
            ON CONFLICT (tenant, session, key) DO UPDATE SET content = excluded.content,
                generation = excluded.generation, first_seq = excluded.first_seq,
                last_seq = excluded.last_seq, dropped = excluded.dropped, at = excluded.at)",
        columns.join(", ")
    ));
}

fn summary_rows<'a>(made: &mut Statement<'a>, part: &'a Part) {
    let numbers = beside_each(part, |row| {
        let numbers = row.summaries_made.keys();
        numbers.map(|number| i64::from(*number)).collect()
    });
    let bodies = beside_each(part, |row| {
        row.summaries_made.values().map(|body| &body[..]).collect()
    });
    if let Some([ord, number]) = numbers.put(made, Type::INT8_ARRAY) {
        let body = made.put(bodies.values, Type::BYTEA_ARRAY);
        made.say(format_args!(
            ", put_summaries AS (
                INSERT INTO memoird.summaries (generation, number, body)
                SELECT generation, number, body
                FROM unnest({ord}, {number}, {body}) AS u(ord, number, body)
                    JOIN applied USING (ord)
                ON CONFLICT (generation, number) DO UPDATE SET body = excluded.body)"
        ));
    }
    let gone = beside_each(part, |row| {
        let numbers = row.summaries_gone.iter();
        numbers.map(|number| i64::from(*number)).collect()
    });
    if let Some([ord, number]) = gone.put(made, Type::INT8_ARRAY) {
        made.say(format_args!(
            ", drop_summaries AS (
                DELETE FROM memoird.summaries AS t
                USING unnest({ord}, {number}) AS u(ord, number), applied
                WHERE applied.ord = u.ord AND t.generation = applied.generation
                    AND t.number = u.number)"
        ));
    }
}

/// The places of generations among the rows of their part.
fn places(part: &Part) -> HashMap<Generation, i32> {
    part.rows.keys().copied().zip(0..).collect()
}

fn beside<'a, T>(
    part: &'a Part,
    of: impl Fn(&'a crate::decide::RowChange) -> Option<T>,
) -> Beside<T> {
    beside_each(part, |row| of(row).into_iter().collect())
}

fn beside_each<'a, T>(
    part: &'a Part,
    of: impl Fn(&'a crate::decide::RowChange) -> Vec<T>,
) -> Beside<T> {
    let (mut places, mut values) = (Vec::new(), Vec::new());
    for (ord, row) in (0..).zip(part.rows.values()) {
        for value in of(row) {
            places.push(ord);
            values.push(value);
        }
    }
    Beside { places, values }
}

impl<T: ToSql + Sync + Send> Beside<T> {
    /// Takes both as parameters; `None` where there are none.
    fn put<'a>(self, made: &mut Statement<'a>, of: Type) -> Option<[String; 2]>
    where
        T: 'a,
    {
        (!self.places.is_empty()).then(|| {
            [
                made.put(self.places, Type::INT4_ARRAY),
                made.put(self.values, of),
            ]
        })
    }
}

/// Runs of seqs as PostgreSQL writes a multirange.
fn runs(ranges: &SeqRanges) -> String {
    let runs = ranges
        .iter()
        .map(|(first, last)| format!("[{first},{last}]"));
    let runs: Vec<String> = runs.collect();
    format!("{{{}}}", runs.join(","))
}
