//! The outbox: pending deliveries and their outcomes.
//!
//! A delivery is written in the transaction of the end that causes it. Outcomes are recorded in
//! batches. Deliveries are indexed by hook, tenant and due time.

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

/// SQL for the pending deliveries of a hook.
const PENDING: &str = "FROM outbox WHERE state <> 'done' AND hook = ?1 AND state = 'pending'";

const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Pending, "pending"),
    (DeliveryState::Done, "done"),
    (DeliveryState::Dead, "dead"),
];

/// Inserts the deliveries caused by the end of a generation.
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
    let mut owned_values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut put = |condition: &str, value: Box<dyn ToSql>| {
        sql.push_str(condition);
        owned_values.push(value);
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
        // Lets SQLite use the partial index of open deliveries. Finished ones have no index.
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
    let values: Vec<&dyn ToSql> = owned_values.iter().map(|value| &**value).collect();
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
    after: Option<&TenantId>,
    now: Steady,
    max: usize,
) -> Result<DueDeliveries, StoreError> {
    let view = connection.unchecked_transaction()?;
    let waiting = waiting_tenants(&view, hook, now)?;
    let next = waiting.iter().filter_map(|waiting| waiting.next).min();
    let with_due = waiting.iter().filter(|waiting| waiting.has_due);
    let (first, behind): (Vec<_>, Vec<_>) =
        with_due.partition(|waiting| after.is_none_or(|after| waiting.tenant > *after));
    let tenants: Vec<_> = first.into_iter().chain(behind).take(max).collect();
    let sql = format!(
        "SELECT {COLUMNS} {PENDING} AND tenant = ?2 AND due <= ?3 ORDER BY due, generation"
    );
    let prepare = |_| view.prepare_cached(&sql);
    let mut statements: Vec<_> = tenants.iter().map(prepare).collect::<Result<_, _>>()?;
    let mut in_turn = Vec::new();
    for (statement, waiting) in statements.iter_mut().zip(&tenants) {
        let parameters = params![hook.as_str(), waiting.tenant.as_str(), whole(now.0)];
        in_turn.push(statement.query(parameters)?);
    }
    let mut due = Vec::new();
    // Round robin over tenants.
    while due.len() < max && !in_turn.is_empty() {
        for mut of_tenant in std::mem::take(&mut in_turn) {
            if due.len() == max {
                break;
            }
            if let Some(row) = of_tenant.next()? {
                due.push(read(row)?);
                in_turn.push(of_tenant);
            }
        }
    }
    Ok(DueDeliveries { due, next })
}

/// A tenant with pending deliveries of a hook.
struct TenantDue {
    tenant: TenantId,
    /// Whether a delivery is due.
    has_due: bool,
    /// When the next delivery that is not yet due becomes due.
    next: Option<Steady>,
}

/// Returns the tenants with pending deliveries of a hook, ordered by name.
///
/// Each costs a few index lookups, however many deliveries it has.
fn waiting_tenants(
    view: &Connection,
    hook: &HookName,
    now: Steady,
) -> Result<Vec<TenantDue>, StoreError> {
    let sql = format!(
        "WITH RECURSIVE waiting (name) AS (
             SELECT min(tenant) {PENDING}
             UNION ALL
             SELECT (SELECT min(tenant) {PENDING} AND tenant > waiting.name)
             FROM waiting WHERE waiting.name IS NOT NULL
         )
         SELECT name,
             (SELECT min(due) {PENDING} AND tenant = waiting.name) <= ?2,
             (SELECT min(due) {PENDING} AND tenant = waiting.name AND due > ?2)
         FROM waiting WHERE name IS NOT NULL"
    );
    let mut statement = view.prepare_cached(&sql)?;
    let rows = statement.query_map(params![hook.as_str(), whole(now.0)], |row| {
        let next: Option<i64> = row.get(2)?;
        Ok(TenantDue {
            tenant: id(row, 0, TenantId::parse)?,
            has_due: row.get(1)?,
            next: next.map(|_| count(row, 2)).transpose()?.map(Steady),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
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
    let sql = "SELECT state FROM outbox WHERE generation = ? AND hook = ?";
    let mut look = transaction.prepare_cached(sql)?;
    let sql = "UPDATE outbox SET state = ?3, tries = ?4, last_error = ?5, due = ?6
               WHERE generation = ?1 AND hook = ?2";
    let mut update = transaction.prepare_cached(sql)?;
    for outcome in outcomes {
        let name = params![outcome.id.generation.to_bytes(), outcome.id.hook.as_str()];
        let Some(known) = look.query_row(name, |row| state(row, 0)).optional()? else {
            erase::note_delivered(&transaction, outcome.id.generation, &outcome.id.hook)?;
            continue;
        };
        if !outcome.changes(known) {
            continue;
        }
        update.execute(params![
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
    }
    drop((look, update));
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

/// Makes the pruner reconsider a generation after one of its deliveries was finished or dropped.
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
