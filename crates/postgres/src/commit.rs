//! Commits a part of a batch in one statement, and resolves commits without a reply.
//!
//! The statement calls the function `commit_batch` in `commit.sql`. `docs/cluster.md` explains the
//! design.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::history::LiveSet;
use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::{Generation, HookName};
use memoird_core::seq_ranges::SeqRanges;
use memoird_store::checksum::{TurnKey, protect};
use memoird_store::plan::{NewKey, RowBefore, RowChange};
use memoird_store::{
    ClockAnchor, InDoubtCommits, StoreError, encoding, lock, options, summaries, windows,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::base::Version;
use crate::connect::{Arg, Database, change, first};
use crate::error::{failed, is_aborted, is_partial, is_read_only, is_transient};
use crate::parts::{PartRow, WritePart};
use crate::transactions::ResultRow;
use crate::values::{Ulid, get, whole};

/// Maximum number of attempts for a statement that is known not to have been executed.
const TRIES_MAX: usize = 3;
/// Shortest pause between two attempts to resolve the outcome of a commit.
const RESOLVE_PAUSE_MIN: Duration = Duration::from_millis(20);
const RESOLVE_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Timeout of one attempt to resolve a commit. The original statement may hold the row's lock.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(30);

/// Positions in the part of the rows that were not written. `None` if nothing was written.
///
/// With `None`, nothing of the part will be written later either.
pub(crate) type UnwrittenRows = Option<BTreeSet<usize>>;

/// The committer's row in `lanes` as this process knows it, and its connection.
pub(crate) struct Lane {
    node: Ulid,
    lane: i16,
    epoch: i64,
    /// Number of the last commit that succeeded.
    number: i64,
    client: Option<Client>,
    /// Notifies when connections went silent. The client must not be used after that.
    silence: watch::Receiver<u64>,
    in_doubt: Arc<Mutex<InDoubtCommits>>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane")
            .field("epoch", &self.epoch)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Name of an argument, and the function that reads it from a row.
type Column<R, T> = (&'static str, fn(&R) -> T);
type BytesColumn<R> = (&'static str, fn(&R) -> &[u8]);

/// Builds the call of `commit_batch` with named arguments.
#[derive(Default)]
struct Call<'a> {
    names: Vec<Cow<'static, str>>,
    args: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
}

impl<'a> Call<'a> {
    fn put(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl ToSql + Sync + Send + 'a,
        of: Type,
    ) {
        self.names.push(name.into());
        self.args.push((Box::new(value), of));
    }

    /// Adds an array with the value of each row, unless all values are `None`.
    fn put_some<T: ToSql + Sync + Send + 'a>(
        &mut self,
        name: &'static str,
        values: impl Iterator<Item = Option<T>>,
        of: Type,
    ) {
        let values: Vec<Option<T>> = values.collect();
        if values.iter().any(Option::is_some) {
            self.put(name, values, of);
        }
    }

    fn text(&self) -> String {
        let names = self.names.iter().zip(1..);
        let args: Vec<String> = names.map(|(name, at)| format!("{name} => ${at}")).collect();
        format!("SELECT memoird.commit_batch({})", args.join(", "))
    }
}

/// Values for another table, each with the position of the row that it belongs to.
struct RelatedValues<T> {
    row_positions: Vec<i32>,
    values: Vec<T>,
}

impl Lane {
    /// Inserts the row of this process and deletes rows unused for 7 days.
    ///
    /// The row with the newest clock is never deleted.
    pub(crate) async fn begin(
        database: &Database,
        client: Client,
        node: Ulid,
        in_doubt: Arc<Mutex<InDoubtCommits>>,
    ) -> Result<Self, StoreError> {
        let silence = database.silence();
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
            silence,
            in_doubt,
        })
    }

    /// Writes a part, and the clock.
    ///
    /// # Errors
    /// If nothing of the part was written, or it is impossible to determine whether it was. Never
    /// returns an error while the statement may still be executed.
    pub(crate) async fn write(
        &mut self,
        database: &Database,
        clock: &ClockAnchor,
        part: &WritePart<'_>,
    ) -> Result<UnwrittenRows, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let call = self.call(clock, part);
            let is_silent = self.silence.has_changed().unwrap_or(false);
            self.silence.mark_unchanged();
            let pooled = self.client.take();
            let client = match pooled.filter(|client| !client.is_closed() && !is_silent) {
                Some(client) => client,
                None => database.connect().await?,
            };
            let text = call.text();
            let args: Vec<Arg<'_>> = call
                .args
                .iter()
                .map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone()))
                .collect();
            let sent = client.query_typed(&text, &args);
            let mut is_unwritten = false;
            let time_max = database.options().commit_time_max;
            let problem = match database
                .wait_for_reply(time_max, &mut self.silence, sent)
                .await
            {
                Ok(Ok(rows)) => {
                    self.client = Some(client);
                    if let Some(missed) = unwritten_rows(rows)? {
                        self.number += 1;
                        return Ok(Some(missed));
                    }
                    // The epoch or number in the database is not the expected one.
                    is_unwritten = true;
                    "the epoch or number of its lane has changed".to_owned()
                }
                Ok(Err(error)) if is_aborted(&error) => {
                    // A read-only server may have been demoted: reconnecting can find the new
                    // primary.
                    self.client = (!is_read_only(&error)).then_some(client);
                    if part.is_whole && is_partial(&error) {
                        return Ok(None);
                    }
                    if tries < TRIES_MAX && is_transient(&error) {
                        continue;
                    }
                    return Err(failed(error));
                }
                Ok(Err(error)) => error.to_string(),
                Err(none) => StoreError::from(none).to_string(),
            };
            let Some(found) = self.resolve(database, &problem, is_unwritten).await? else {
                if tries < TRIES_MAX {
                    continue;
                }
                return Err(StoreError::Unavailable { detail: problem });
            };
            return Ok(Some(found));
        }
    }

    /// Resolves the outcome of the last statement, and fences it off so that it cannot run later.
    ///
    /// Returns the positions that were not written, or `None` if nothing was. Retries until the
    /// database replies.
    ///
    /// # Errors
    /// If the database lost commits, or the row is gone. Then the outcome stays unknown, unless the
    /// statement `is_unwritten`.
    async fn resolve(
        &mut self,
        database: &Database,
        problem: &str,
        is_unwritten: bool,
    ) -> Result<Option<BTreeSet<usize>>, StoreError> {
        tracing::warn!(problem, "the outcome of a commit is unknown; looking it up");
        let mut pause = RESOLVE_PAUSE_MIN;
        let row = loop {
            match timeout(RESOLVE_TIME_MAX, self.look_up(database)).await {
                Ok(Ok(row)) => break row,
                Ok(Err(error)) => tracing::debug!(%error, "the outcome is still unknown"),
                Err(_) => tracing::debug!("the outcome is still unknown"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(RESOLVE_PAUSE_MAX);
        };
        let Some((epoch, number, missed)) = row else {
            self.insert_again(database).await?;
            if is_unwritten {
                return Ok(None);
            }
            let detail = "the row of this process is gone from memoird.lanes, as after a restore; \
                          the outcome of the commit is unknown"
                .to_owned();
            tracing::error!(detail);
            lock(&self.in_doubt).unknown += 1;
            return Err(StoreError::Database { detail });
        };
        let mine = self.number + 1;
        (self.epoch, self.number) = (epoch, number);
        tracing::info!(
            was_written = number == mine,
            "the outcome of a commit without a reply is known"
        );
        if !is_unwritten {
            let mut in_doubt = lock(&self.in_doubt);
            match number {
                number if number == mine => in_doubt.written += 1,
                number if number == mine - 1 => in_doubt.unwritten += 1,
                _ => in_doubt.unknown += 1,
            }
        }
        if number < mine - 1 {
            lock(&self.in_doubt).set_back += 1;
            let detail = "it has gone back in time, as after a failover that lost commits; \
                          changes based on these are rejected, and their sessions reloaded"
                .to_owned();
            tracing::error!(detail);
            return Err(StoreError::Database { detail });
        }
        Ok((number == mine).then_some(missed))
    }

    async fn look_up(
        &mut self,
        database: &Database,
    ) -> Result<Option<(i64, i64, BTreeSet<usize>)>, StoreError> {
        let client = database.connect().await?;
        let sql = if database.options().has_fence {
            "UPDATE memoird.lanes SET epoch = epoch + 1 WHERE node = $1 AND lane = $2
                 RETURNING epoch, number, missed"
        } else {
            "SELECT epoch, number, missed FROM memoird.lanes WHERE node = $1 AND lane = $2"
        };
        let args: [Arg<'_>; 2] = [(&self.node, Type::UUID), (&self.lane, Type::INT2)];
        let row = first(&client, sql, &args).await?;
        self.client = Some(client);
        let Some(row) = row else { return Ok(None) };
        Ok(Some((
            get(&row, 0)?,
            get(&row, 1)?,
            from_sql_positions(get(&row, 2)?),
        )))
    }

    /// Inserts the row again after a restore from a backup or a week without commits.
    ///
    /// A statement that is still in flight cannot succeed: no row has its epoch any longer.
    async fn insert_again(&mut self, database: &Database) -> Result<(), StoreError> {
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
        Ok(())
    }

    fn call<'a>(&self, clock: &'a ClockAnchor, part: &'a WritePart<'_>) -> Call<'a> {
        let mut call = Call::default();
        call.put("of_node", self.node, Type::UUID);
        call.put("of_lane", self.lane, Type::INT2);
        call.put("of_epoch", self.epoch, Type::INT8);
        call.put("of_number", self.number, Type::INT8);
        call.put("clock_steady", whole(clock.steady.0), Type::INT8);
        call.put("clock_wall", clock.wall.as_ms(), Type::INT8);
        call.put("clock_boot_id", clock.boot_id.as_str(), Type::TEXT);
        call.put("clock_boot_ms", whole(clock.boot_ms), Type::INT8);
        call.put("is_whole", part.is_whole, Type::BOOL);
        if !part.rows.is_empty() {
            versions(&mut call, part);
            heads(&mut call, part);
            contents(&mut call, part);
        }
        call
    }
}

/// Positions of the rows that were not written. `None` if the lane did not match.
fn unwritten_rows(rows: Vec<Row>) -> Result<UnwrittenRows, StoreError> {
    let missed: Option<Vec<i32>> = match rows.into_iter().next() {
        Some(row) => get(&ResultRow(row), 0)?,
        None => None,
    };
    Ok(missed.map(from_sql_positions))
}

/// Converts PostgreSQL's array positions, which count from 1.
fn from_sql_positions(positions: Vec<i32>) -> BTreeSet<usize> {
    positions
        .into_iter()
        .filter_map(|place| usize::try_from(place).ok()?.checked_sub(1))
        .collect()
}

/// Adds the expected and the new version of each row.
fn versions<'a>(call: &mut Call<'a>, part: &'a WritePart<'_>) {
    let rows = || part.rows.values();
    let names: Vec<Ulid> = part.rows.keys().map(|name| Ulid::from(*name)).collect();
    let is_new: Vec<bool> = rows().map(|row| row.change.is_new()).collect();
    let befores = rows().map(|row| match row.change.before {
        RowBefore::Nothing { .. } => (0, 0),
        RowBefore::Row(version) => (whole(version.revision), version.stamp),
    });
    let (revisions, was_stamps): (Vec<i64>, Vec<i64>) = befores.unzip();
    let stamps: Vec<i64> = rows().map(|row| row.stamp).collect();
    call.put("row_generation", names, Type::UUID_ARRAY);
    if is_new.contains(&true) {
        call.put("row_is_new", is_new, Type::BOOL_ARRAY);
    }
    call.put("row_was_revision", revisions, Type::INT8_ARRAY);
    call.put("row_was_stamp", was_stamps, Type::INT8_ARRAY);
    call.put("row_stamp", stamps, Type::INT8_ARRAY);
    let numbers_of: [Column<PartRow<'_>, u64>; 3] = [
        ("row_revision", |row| row.change.revision),
        ("row_last_seq", |row| row.change.last_seq),
        ("row_added_bytes", |row| row.added_bytes),
    ];
    for (name, of) in numbers_of {
        let values: Vec<i64> = rows().map(|row| whole(of(row))).collect();
        call.put(name, values, Type::INT8_ARRAY);
    }
}

/// Adds the other columns of `generations`.
fn heads<'a>(call: &mut Call<'a>, part: &'a WritePart<'_>) {
    let rows = || part.rows.values().map(|row| &row.change);
    let numbers_of: [Column<RowChange<'_, Version>, Option<u64>>; 7] = [
        ("row_newest_seq", |row| row.newest_seq),
        ("row_last_access", |row| row.last_access.map(|at| at.0)),
        ("row_turns", |row| row.totals.map(|totals| totals.turns)),
        ("row_bytes", |row| row.totals.map(|totals| totals.bytes)),
        ("row_tokens", |row| row.totals.map(|totals| totals.tokens)),
        ("row_state_version", |row| {
            row.patched.map(|patched| patched.version)
        }),
        ("row_ended_at", |row| row.ended.map(|(at, ..)| at.steady.0)),
    ];
    for (name, of) in numbers_of {
        let values = rows().map(|row| of(row).map(whole));
        call.put_some(name, values, Type::INT8_ARRAY);
    }
    let ends = || rows().map(|row| row.ended);
    let ended_ms = ends().map(|end| end.map(|(at, ..)| at.wall.as_ms()));
    call.put_some("row_ended_ms", ended_ms, Type::INT8_ARRAY);
    let reasons = ends().map(|end| end.map(|(_, reason, _)| reason.name()));
    call.put_some("row_reason", reasons, Type::TEXT_ARRAY);
    let created = rows().map(|row| match row.before {
        RowBefore::Nothing { created_at } => Some(created_at.as_ms()),
        RowBefore::Row(_) => None,
    });
    call.put_some("row_created_ms", created, Type::INT8_ARRAY);
    let partial = rows().map(|row| row.partial);
    call.put_some("row_partial", partial, Type::BOOL_ARRAY);
    let subjects = rows().map(|row| row.subject.map(|subject| subject.as_str().as_bytes()));
    call.put_some("row_subject", subjects, Type::BYTEA_ARRAY);
    // A new generation that has no live set yet gets the default.
    let empty = LiveSet::default();
    let live_sets = rows().map(|row| {
        let live_set = row.live_set.or(row.is_new().then_some(&empty));
        live_set.map(encoding::encode_live_set)
    });
    call.put_some("row_kept", live_sets, Type::BYTEA_ARRAY);
    let status = rows().map(|row| row.compaction.as_deref().map(summaries::encode_status));
    call.put_some("row_compaction", status, Type::BYTEA_ARRAY);
    let decided = rows().map(|row| row.options.map(|options| options::encode(options)));
    call.put_some("row_options", decided, Type::BYTEA_ARRAY);
    let keys = || rows().map(|row| (row.is_new() || row.ended.is_some()).then_some(row.key));
    let tenants = keys().map(|key| key.map(|key| key.tenant.as_str().as_bytes()));
    call.put_some("row_tenant", tenants, Type::BYTEA_ARRAY);
    let sessions = keys().map(|key| key.map(|key| key.session.as_str().as_bytes()));
    call.put_some("row_session", sessions, Type::BYTEA_ARRAY);
}

/// Adds the contents of other tables: turns, keys, states, summaries and so on.
fn contents<'a>(call: &mut Call<'a>, part: &'a WritePart<'_>) {
    turns(call, part);
    keys(call, part);
    let states = related_values(part, |row| {
        row.patched.map(|patched| patched.state_json.as_bytes())
    });
    states.put(call, ["state_row", "state_json"], Type::BYTEA_ARRAY);
    let cuts = related_values(part, |row| row.cuts.map(windows::encode));
    cuts.put(call, ["window_row", "window_cuts"], Type::BYTEA_ARRAY);
    let rewound = related_values(part, |row| {
        (!row.rewound.is_empty()).then(|| runs(&row.rewound))
    });
    rewound.put(call, ["rewound_row", "rewound_runs"], Type::TEXT_ARRAY);
    let names = related_values_of_each(part, |row| {
        row.rewinds.keys().map(|name| &name[..]).collect()
    });
    if names.put(call, ["rewind_row", "rewind_key"], Type::BYTEA_ARRAY) {
        let taken = related_values_of_each(part, |row| {
            row.rewinds.values().map(|seqs| runs(seqs)).collect()
        });
        call.put("rewind_runs", taken.values, Type::TEXT_ARRAY);
    }
    let numbers = related_values_of_each(part, |row| {
        let numbers = row.summaries_made.keys();
        numbers.map(|number| i64::from(*number)).collect()
    });
    if numbers.put(call, ["summary_row", "summary_number"], Type::INT8_ARRAY) {
        let bodies = related_values_of_each(part, |row| {
            let made = row.summaries_made.values();
            made.map(|summary| summaries::encode(summary)).collect()
        });
        call.put("summary_body", bodies.values, Type::BYTEA_ARRAY);
    }
    let gone = related_values_of_each(part, |row| {
        let numbers = row.summaries_gone.iter();
        numbers.map(|number| i64::from(*number)).collect()
    });
    gone.put(call, ["gone_row", "gone_number"], Type::INT8_ARRAY);
    let owed = related_values_of_each(part, |row| {
        let owed = row.ended.iter().flat_map(|(_, _, owed)| owed.iter());
        owed.map(HookName::as_str).collect()
    });
    owed.put(call, ["owed_row", "owed_hook"], Type::TEXT_ARRAY);
    let sources = related_values(part, |row| row.copied_from.map(Ulid::from));
    sources.put(call, ["copy_row", "copy_source"], Type::UUID_ARRAY);
    let former = related_values_of_each(part, |row| {
        let former = row.former_subjects.iter();
        former.map(|subject| subject.as_str().as_bytes()).collect()
    });
    former.put(call, ["former_row", "former_subject"], Type::BYTEA_ARRAY);
}

fn turns<'a>(call: &mut Call<'a>, part: &'a WritePart<'_>) {
    let new = part.turns.iter();
    let new = new.map(|turn| (turn.generation, turn.seq, turn.content));
    put_turns(call, part, "turn", new.collect());
    let replaced = part.replaced.iter();
    let replaced = replaced.map(|((generation, seq), content)| (*generation, *seq, *content));
    put_turns(call, part, "replaced", replaced.collect());
}

/// Adds arrays of turns, each given by its generation, seq and content, unless there is none.
fn put_turns<'a>(
    call: &mut Call<'a>,
    part: &WritePart<'_>,
    prefix: &str,
    turns: Vec<(Generation, u64, &'a [u8])>,
) {
    if turns.is_empty() {
        return;
    }
    let positions = row_positions(part);
    let (mut rows, mut seqs, mut contents) = (Vec::new(), Vec::new(), Vec::new());
    let (mut headers, mut checksums) = (Vec::new(), Vec::new());
    for (generation, seq, content) in turns {
        let protection = protect(TurnKey { generation, seq }, content);
        rows.push(positions.get(&generation).copied());
        seqs.push(whole(seq));
        contents.push(content);
        headers.push(protection.header);
        checksums.push(protection.checksum);
    }
    call.put(format!("{prefix}_row"), rows, Type::INT4_ARRAY);
    call.put(format!("{prefix}_seq"), seqs, Type::INT8_ARRAY);
    call.put(format!("{prefix}_content"), contents, Type::BYTEA_ARRAY);
    call.put(format!("{prefix}_header"), headers, Type::BYTEA_ARRAY);
    call.put(format!("{prefix}_checksum"), checksums, Type::INT8_ARRAY);
}

fn keys<'a>(call: &mut Call<'a>, part: &'a WritePart<'_>) {
    if part.keys.is_empty() {
        return;
    }
    let positions = row_positions(part);
    let of_keys = || part.keys.iter();
    let rows: Vec<Option<i32>> = of_keys()
        .map(|key| positions.get(&key.generation).copied())
        .collect();
    call.put("key_row", rows, Type::INT4_ARRAY);
    let bytes_of: [BytesColumn<NewKey<'_>>; 4] = [
        ("key_tenant", |key| key.session.tenant.as_str().as_bytes()),
        ("key_session", |key| key.session.session.as_str().as_bytes()),
        ("key_name", |key| &key.name[..]),
        ("key_content", |key| &key.record.content[..]),
    ];
    for (name, of) in bytes_of {
        let values: Vec<&[u8]> = of_keys().map(of).collect();
        call.put(name, values, Type::BYTEA_ARRAY);
    }
    let generations: Vec<Ulid> = of_keys()
        .map(|key| Ulid::from(key.record.generation))
        .collect();
    call.put("key_generation", generations, Type::UUID_ARRAY);
    let numbers_of: [Column<KeyRecord, u64>; 4] = [
        ("key_first_seq", |record| record.first_seq),
        ("key_last_seq", |record| record.last_seq),
        ("key_dropped", |record| record.dropped_turns),
        ("key_at", |record| record.at.0),
    ];
    for (name, of) in numbers_of {
        let values: Vec<i64> = of_keys().map(|key| whole(of(key.record))).collect();
        call.put(name, values, Type::INT8_ARRAY);
    }
}

/// Positions of generations among the rows of their part, from 1.
fn row_positions(part: &WritePart<'_>) -> HashMap<Generation, i32> {
    part.rows.keys().copied().zip(1..).collect()
}

fn related_values<'a, T>(
    part: &'a WritePart<'_>,
    of: impl Fn(&'a RowChange<'_, Version>) -> Option<T>,
) -> RelatedValues<T> {
    related_values_of_each(part, |row| of(row).into_iter().collect())
}

fn related_values_of_each<'a, T>(
    part: &'a WritePart<'_>,
    of: impl Fn(&'a RowChange<'_, Version>) -> Vec<T>,
) -> RelatedValues<T> {
    let (mut row_positions, mut values) = (Vec::new(), Vec::new());
    for (place, row) in (1..).zip(part.rows.values()) {
        for value in of(&row.change) {
            row_positions.push(place);
            values.push(value);
        }
    }
    RelatedValues {
        row_positions,
        values,
    }
}

impl<T: ToSql + Sync + Send> RelatedValues<T> {
    /// Adds both arrays under these names. Returns false if they are empty.
    fn put<'a>(self, call: &mut Call<'a>, names: [&'static str; 2], of: Type) -> bool
    where
        T: 'a,
    {
        let is_any = !self.row_positions.is_empty();
        if is_any {
            call.put(names[0], self.row_positions, Type::INT4_ARRAY);
            call.put(names[1], self.values, of);
        }
        is_any
    }
}

/// Formats ranges of seqs as a PostgreSQL multirange.
fn runs(ranges: &SeqRanges) -> String {
    let runs: Vec<String> = ranges
        .iter()
        .map(|(first, last)| format!("[{first},{last}]"))
        .collect();
    format!("{{{}}}", runs.join(","))
}
