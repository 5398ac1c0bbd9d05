//! What hooks are owed: written with the end that owes it, outcomes are recorded one transaction for
//! many, found by hook and by the time at which it is due.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionId, SessionKey, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;

use super::erase;
use super::row::{GenerationRow, count, damaged, id, reason_name, reason_of, whole};
use crate::{DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries, StoreError};

const COLUMNS: &str = "generation, hook, tenant, session, reason, state, tries, last_error, due";

const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Pending, "pending"),
    (DeliveryState::Done, "done"),
    (DeliveryState::Dead, "dead"),
];

/// Writes what the end of a generation owes.
pub(super) fn owe(
    transaction: &Transaction<'_>,
    row: &GenerationRow,
    reason: EndReason,
    due: Steady,
    owed: &[HookName],
) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO outbox
                   (generation, hook, tenant, session, reason, state, tries, last_error, due)
               VALUES (?, ?, ?, ?, ?, 'pending', 0, '', ?)";
    let mut insert = transaction.prepare_cached(sql)?;
    for hook in owed {
        insert.execute(params![
            row.head.generation.to_bytes(),
            hook.as_str(),
            row.key.tenant.as_str(),
            row.key.session.as_str(),
            reason_name(reason),
            whole(due.0),
        ])?;
    }
    Ok(())
}

pub(super) fn deliveries(
    connection: &Connection,
    filter: &DeliveryFilter,
    after: Option<&DeliveryId>,
    max: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let mut sql = format!("SELECT {COLUMNS} FROM outbox WHERE true");
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut put = |condition: &str, value: Box<dyn ToSql>| {
        sql.push_str(condition);
        values.push(value);
    };
    if let Some(after) = after {
        put(
            " AND (generation, hook) > (?",
            Box::new(after.generation.to_bytes()),
        );
        put(", ?)", Box::new(after.hook.as_str().to_owned()));
    }
    if let Some(tenant) = &filter.tenant {
        put(" AND tenant = ?", Box::new(tenant.as_str().to_owned()));
    }
    if let Some(hook) = &filter.hook {
        put(" AND hook = ?", Box::new(hook.as_str().to_owned()));
    }
    match filter.state {
        // Open deliveries have an index of their own; those that are done do not.
        Some(DeliveryState::Done) => put(" AND state = ?", Box::new("done")),
        Some(state) => put(
            " AND state <> 'done' AND state = ?",
            Box::new(state_name(state)),
        ),
        None => {}
    }
    put(
        " ORDER BY generation, hook LIMIT ?",
        Box::new(i64::try_from(max).unwrap_or(i64::MAX)),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let values: Vec<&dyn ToSql> = values.iter().map(|value| &**value).collect();
    let rows = statement.query_map(&values[..], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn delivery(
    connection: &Connection,
    id: &DeliveryId,
) -> Result<Option<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox WHERE generation = ? AND hook = ?");
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row(params![id.generation.to_bytes(), id.hook.as_str()], read);
    Ok(found.optional()?)
}

pub(super) fn due(
    connection: &Connection,
    hook: &HookName,
    now: Steady,
    max: usize,
) -> Result<DueDeliveries, StoreError> {
    let view = connection.unchecked_transaction()?;
    let pending = "FROM outbox WHERE state <> 'done' AND hook = ?1 AND state = 'pending'";
    let sql = format!("SELECT {COLUMNS} {pending} AND due <= ?2 ORDER BY due LIMIT ?3");
    let mut statement = view.prepare_cached(&sql)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![hook.as_str(), whole(now.0), max], read)?;
    let due = rows.collect::<Result<_, _>>()?;
    let sql = format!("SELECT due {pending} AND due > ?2 ORDER BY due LIMIT 1");
    let mut statement = view.prepare_cached(&sql)?;
    let next = statement.query_row(params![hook.as_str(), whole(now.0)], |row| count(row, 0));
    Ok(DueDeliveries {
        due,
        next: next.optional()?.map(Steady),
    })
}

pub(super) fn open_deliveries(connection: &Connection) -> Result<Vec<DeliveryCount>, StoreError> {
    let sql = "SELECT tenant, hook, state, count(*) FROM outbox WHERE state <> 'done'
               GROUP BY tenant, hook, state";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(DeliveryCount {
            tenant: id(row, 0, TenantId::parse)?,
            hook: id(row, 1, HookName::parse)?,
            state: state(row, 2)?,
            count: count(row, 3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn record_outcomes(
    connection: &mut Connection,
    outcomes: &[DeliveryOutcome],
) -> Result<(), StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let sql = "UPDATE outbox SET state = ?3, tries = ?4, last_error = ?5, due = ?6
               WHERE generation = ?1 AND hook = ?2";
    let mut update = transaction.prepare_cached(sql)?;
    for outcome in outcomes {
        let owed = update.execute(params![
            outcome.id.generation.to_bytes(),
            outcome.id.hook.as_str(),
            state_name(outcome.state),
            outcome.tries,
            outcome.last_error,
            whole(outcome.due.0),
        ])?;
        if outcome.state == DeliveryState::Done {
            release(&transaction, outcome.id.generation)?;
        }
        if owed == 0 {
            erase::note_given(&transaction, outcome.id.generation, &outcome.id.hook)?;
        }
    }
    drop(update);
    Ok(transaction.commit()?)
}

pub(super) fn drop_delivery(
    connection: &mut Connection,
    id: &DeliveryId,
) -> Result<bool, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let dropped = transaction
        .prepare_cached("DELETE FROM outbox WHERE generation = ? AND hook = ?")?
        .execute(params![id.generation.to_bytes(), id.hook.as_str()])?;
    release(&transaction, id.generation)?;
    transaction.commit()?;
    Ok(dropped > 0)
}

/// Has the pruner look again at a generation of which less is owed.
fn release(transaction: &Transaction<'_>, generation: Generation) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("UPDATE generations SET held = 0 WHERE generation = ? AND held = 1")?
        .execute([generation.to_bytes()])?;
    Ok(())
}

fn read(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    Ok(Delivery {
        id: DeliveryId {
            generation: Generation::from_bytes(row.get(0)?),
            hook: id(row, 1, HookName::parse)?,
        },
        key: SessionKey {
            tenant: id(row, 2, TenantId::parse)?,
            session: id(row, 3, SessionId::parse)?,
        },
        reason: reason_of(row.get_ref(4)?.as_str()?).ok_or_else(|| damaged(4, "reason"))?,
        state: state(row, 5)?,
        tries: row.get(6)?,
        last_error: row.get(7)?,
        due: Steady(count(row, 8)?),
    })
}

fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<DeliveryState> {
    let name = row.get_ref(column)?.as_str()?;
    let known = STATES.iter().find(|(_, known)| *known == name);
    known
        .map(|(state, _)| *state)
        .ok_or_else(|| damaged(column, "delivery state"))
}

fn state_name(state: DeliveryState) -> &'static str {
    STATES
        .iter()
        .find(|(known, _)| *known == state)
        .map_or("pending", |(_, name)| name)
}
