//! Writing change sets: one transaction for all that wait, each set whole or not at all.

use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use memoird_core::change::{Appended, Change, ChangeSet, EndReason};
use memoird_core::ids::{Generation, SessionKey, Subject};
use memoird_core::time::{Steady, Timestamp};

use crate::{ClockAnchor, PruneBefore, Refused, StoreError, encoding};

/// The encoding that this memoird writes.
const FORMAT: i64 = 1;

/// Why one change was not written.
enum Fault {
    /// It was built on something that is not so.
    Refused(Refused),
    /// The transaction is lost.
    Store(StoreError),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

pub(super) fn commit(
    connection: &mut Connection,
    clock: &ClockAnchor,
    sets: &[ChangeSet],
) -> Result<Vec<Result<(), Refused>>, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut answers = Vec::with_capacity(sets.len());
    for set in sets {
        answers.push(match apply_set(&transaction, set) {
            Ok(()) => Ok(()),
            Err(Fault::Refused(refused)) => Err(refused),
            Err(Fault::Store(error)) => return Err(error),
        });
    }
    save_clock(&transaction, clock)?;
    transaction.commit()?;
    Ok(answers)
}

/// The first statement of every change is the one that may refuse it, and a statement
/// that refuses writes nothing; so only a set of several changes needs a savepoint.
fn apply_set(transaction: &Transaction<'_>, set: &ChangeSet) -> Result<(), Fault> {
    if let [change] = &set.changes[..] {
        return apply(transaction, change);
    }
    transaction.execute_batch("SAVEPOINT change_set")?;
    let outcome = set.changes.iter().try_for_each(|change| apply(transaction, change));
    match &outcome {
        Ok(()) => {}
        Err(Fault::Refused(_)) => transaction.execute_batch("ROLLBACK TO change_set")?,
        // SQLite may have rolled all of it back already, the savepoint included.
        Err(Fault::Store(_)) => return outcome,
    }
    transaction.execute_batch("RELEASE change_set")?;
    outcome
}

fn apply(transaction: &Transaction<'_>, change: &Change) -> Result<(), Fault> {
    match change {
        Change::Begin { key, generation, created_at, last_access } => {
            begin(transaction, key, *generation, *created_at, *last_access)
        }
        Change::Append(appended) => append(transaction, appended),
        Change::PatchState { generation, expected_revision, state_json, version, last_access } => {
            let guarded = transaction
                .prepare_cached(
                    "UPDATE generations
                     SET state_version = ?, last_access = ?, revision = revision + 1
                     WHERE generation = ? AND revision = ? AND ended_at IS NULL",
                )?
                .execute(params![
                    whole(*version),
                    whole(last_access.0),
                    generation.to_bytes(),
                    whole(*expected_revision),
                ])?;
            unless_refused(guarded, *generation)?;
            transaction
                .prepare_cached("INSERT OR REPLACE INTO states (generation, json) VALUES (?, ?)")?
                .execute(params![generation.to_bytes(), &**state_json])?;
            Ok(())
        }
        Change::Touch { generation, expected_revision, last_access } => {
            let guarded = transaction
                .prepare_cached(
                    "UPDATE generations SET last_access = ?, revision = revision + 1
                     WHERE generation = ? AND revision = ? AND ended_at IS NULL",
                )?
                .execute(params![
                    whole(last_access.0),
                    generation.to_bytes(),
                    whole(*expected_revision),
                ])?;
            unless_refused(guarded, *generation)
        }
        Change::End { generation, expected_revision, reason, at } => {
            let guarded = transaction
                .prepare_cached(
                    "UPDATE generations
                     SET ended_ms = ?, ended_at = ?, reason = ?, revision = revision + 1
                     WHERE generation = ? AND revision = ? AND ended_at IS NULL",
                )?
                .execute(params![
                    at.wall.as_ms(),
                    whole(at.steady.0),
                    reason_name(*reason),
                    generation.to_bytes(),
                    whole(*expected_revision),
                ])?;
            unless_refused(guarded, *generation)
        }
    }
}

fn begin(
    transaction: &Transaction<'_>,
    key: &SessionKey,
    generation: Generation,
    created_at: Timestamp,
    last_access: Steady,
) -> Result<(), Fault> {
    let inserted = transaction
        .prepare_cached(
            "INSERT INTO generations (generation, format, tenant, session, created_ms,
                 last_access, revision, last_seq, kept, turns, bytes, tokens, partial,
                 state_version)
             VALUES (?, ?, ?, ?, ?, ?, 0, 0, x'', 0, 0, 0, 0, 0)",
        )?
        .execute(params![
            generation.to_bytes(),
            FORMAT,
            key.tenant.as_str(),
            key.session.as_str(),
            created_at.as_ms(),
            whole(last_access.0),
        ]);
    match inserted {
        // Another generation of the session is live.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Err(Fault::Refused(Refused { generation }))
        }
        other => Ok(other.map(drop)?),
    }
}

fn append(transaction: &Transaction<'_>, appended: &Appended) -> Result<(), Fault> {
    let generation = appended.generation.to_bytes();
    // The turns must follow the last one: a seq that is taken would fail the whole batch.
    let before = appended.turns.first().map(|(seq, _)| whole(seq.saturating_sub(1)));
    let last_seq = appended.turns.last().map(|(seq, _)| whole(*seq));
    let guarded = transaction
        .prepare_cached(
            "UPDATE generations
             SET last_seq = COALESCE(?, last_seq), kept = ?, turns = ?, bytes = ?, tokens = ?, partial = ?,
                 subject = COALESCE(?, subject), last_access = ?, revision = revision + 1
             WHERE generation = ? AND revision = ? AND last_seq = COALESCE(?, last_seq)
                 AND ended_at IS NULL",
        )?
        .execute(params![
            last_seq,
            encoding::encode_live_set(&appended.kept),
            whole(appended.totals.turns),
            whole(appended.totals.bytes),
            whole(appended.totals.tokens),
            appended.partial,
            appended.subject.as_ref().map(Subject::as_str),
            whole(appended.last_access.0),
            generation,
            whole(appended.expected_revision),
            before,
        ])?;
    unless_refused(guarded, appended.generation)?;

    let mut insert = transaction
        .prepare_cached("INSERT INTO turns (generation, seq, content) VALUES (?, ?, ?)")?;
    for (seq, content) in &appended.turns {
        insert.execute(params![generation, whole(*seq), &**content])?;
    }
    if let Some((key, record)) = &appended.idempotency {
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO idempotency
                     (tenant, session, key, content, generation, first_seq, last_seq, dropped, at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                appended.key.tenant.as_str(),
                appended.key.session.as_str(),
                key,
                record.content,
                generation,
                whole(record.first_seq),
                whole(record.last_seq),
                whole(record.dropped_turns),
                whole(record.at.0),
            ])?;
    }
    Ok(())
}

fn save_clock(transaction: &Transaction<'_>, clock: &ClockAnchor) -> Result<(), StoreError> {
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO clock (id, steady, wall, boot_id, boot) VALUES (1, ?, ?, ?, ?)",
        )?
        .execute(params![
            whole(clock.steady.0),
            clock.wall.as_ms(),
            clock.boot_id,
            whole(clock.boot_ms)
        ])?;
    Ok(())
}

/// Forgets the oldest first, so that a run that was cut off goes on where it was. A
/// generation goes once its turns are gone.
pub(super) fn prune(
    connection: &mut Connection,
    before: PruneBefore,
    rows_max: usize,
) -> Result<bool, StoreError> {
    let rows_max_sql = Value::Integer(rows_max as i64);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let keys = transaction.execute(
        "DELETE FROM idempotency WHERE (tenant, session, key) IN
             (SELECT tenant, session, key FROM idempotency WHERE at < ? ORDER BY at LIMIT ?)",
        params![whole(before.keys.0), rows_max_sql],
    )?;
    let mut oldest = transaction.prepare_cached(
        "SELECT generation FROM generations WHERE ended_at < ? ORDER BY ended_at LIMIT ?",
    )?;
    let generations = oldest
        .query_map(params![whole(before.ended.0), rows_max_sql], |row| row.get::<_, [u8; 16]>(0))?
        .collect::<Result<Vec<_>, _>>()?;
    drop(oldest);
    let mut rows = keys;
    for generation in generations {
        if rows >= rows_max {
            break;
        }
        let turns = transaction
            .prepare_cached(
                "DELETE FROM turns WHERE generation = ?1 AND seq IN
                     (SELECT seq FROM turns WHERE generation = ?1 ORDER BY seq LIMIT ?2)",
            )?
            .execute(params![generation, (rows_max - rows) as i64])?;
        rows += turns + 1;
        if rows <= rows_max {
            transaction
                .prepare_cached("DELETE FROM states WHERE generation = ?")?
                .execute([generation])?;
            transaction
                .prepare_cached("DELETE FROM generations WHERE generation = ?")?
                .execute([generation])?;
        }
    }
    transaction.commit()?;
    // Each row of the answer is one page that was given back.
    let mut vacuum = connection.prepare_cached("PRAGMA incremental_vacuum(256)")?;
    let mut pages = vacuum.query([])?;
    while pages.next()?.is_some() {}
    Ok(rows >= rows_max)
}

fn unless_refused(rows: usize, generation: Generation) -> Result<(), Fault> {
    match rows {
        0 => Err(Fault::Refused(Refused { generation })),
        _ => Ok(()),
    }
}

fn reason_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "expired",
        EndReason::Evicted => "evicted",
        EndReason::Ended => "ended",
        EndReason::Reset => "reset",
        EndReason::Shutdown => "shutdown",
    }
}

/// SQLite's integers have a sign; no count of ours comes near it.
fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
