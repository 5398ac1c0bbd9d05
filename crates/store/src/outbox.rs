//! The outbox: pending deliveries and their outcomes.
//!
//! A delivery is written in the transaction of the end that causes it. Outcomes are recorded in
//! batches. Deliveries are indexed by hook, tenant and due time.

use std::collections::HashMap;

use memoird_core::ids::{DeliveryId, HookName, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;

use crate::rows::{StoredRow, damaged};
use crate::tables::{Param, Tables};
use crate::transfer::Row;
use crate::{DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries, StoreError};

const COLUMNS: &str = "generation, hook, tenant, session, reason, state, tries, last_error, due";

/// SQL for the pending deliveries of a hook. Matches the partial index of each database.
const PENDING: &str = "FROM outbox WHERE state <> 'done' AND state = 'pending' AND hook = ?1";

const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Pending, "pending"),
    (DeliveryState::Done, "done"),
    (DeliveryState::Dead, "dead"),
];

/// Maximum number of tenants per statement.
const TENANTS_PER_QUERY: usize = 100;
/// Maximum number of outcomes per statement.
const OUTCOMES_PER_STATEMENT: usize = 256;

pub(crate) fn deliveries(
    tables: &dyn Tables,
    filter: &DeliveryFilter,
    after: Option<&DeliveryId>,
    max: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let mut sql = format!("SELECT {COLUMNS} FROM outbox WHERE ");
    match filter.state {
        // Finished deliveries have no index.
        Some(DeliveryState::Done) => sql.push_str("state = 'done'"),
        Some(state) => sql += &format!("state <> 'done' AND state = '{}'", state_name(state)),
        None => sql.push_str("true"),
    }
    let mut params = vec![Param::from(max)];
    if let Some(after) = after {
        params.extend(key(after));
        sql.push_str(" AND (generation, hook) > (?2, ?3)");
    }
    let tenant = filter
        .tenant
        .as_ref()
        .map(|tenant| ("tenant", tenant.into()));
    let hook = filter.hook.as_ref().map(|hook| ("hook", hook.into()));
    for (column, param) in tenant.into_iter().chain(hook) {
        params.push(param);
        sql += &format!(" AND {column} = ?{}", params.len());
    }
    sql.push_str(" ORDER BY generation, hook LIMIT ?1");
    read_all(tables, &sql, &params)
}

pub(crate) fn delivery(
    tables: &dyn Tables,
    id: &DeliveryId,
) -> Result<Option<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM outbox WHERE generation = ?1 AND hook = ?2");
    Ok(read_all(tables, &sql, &key(id))?.pop())
}

pub(crate) fn due(
    tables: &dyn Tables,
    hook: &HookName,
    after: Option<&TenantId>,
    now: Steady,
    max: usize,
) -> Result<DueDeliveries, StoreError> {
    let waiting = waiting_tenants(tables, hook, now)?;
    let next = waiting.iter().filter_map(|waiting| waiting.next).min();
    let with_due = waiting.iter().filter(|waiting| waiting.has_due);
    let (first, behind): (Vec<_>, Vec<_>) =
        with_due.partition(|waiting| after.is_none_or(|after| waiting.tenant > *after));
    let tenants: Vec<_> = first.into_iter().chain(behind).take(max).collect();
    let mut of_each = max.div_ceil(tenants.len().max(1));
    let mut by_tenant;
    // Tenants with fewer deliveries leave room for others.
    loop {
        by_tenant = first_due(tables, hook, &tenants, now, of_each)?;
        let found: usize = by_tenant.iter().map(Vec::len).sum();
        if found >= max || by_tenant.iter().all(|of| of.len() < of_each) {
            break;
        }
        of_each = of_each.saturating_mul(2).min(max);
    }
    // Round robin over tenants.
    let longest = by_tenant.iter().map(Vec::len).max().unwrap_or(0);
    let mut in_turn: Vec<_> = by_tenant.into_iter().map(Vec::into_iter).collect();
    let mut due = Vec::new();
    for _ in 0..longest {
        due.extend(in_turn.iter_mut().filter_map(Iterator::next));
    }
    due.truncate(max);
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
    tables: &dyn Tables,
    hook: &HookName,
    now: Steady,
) -> Result<Vec<TenantDue>, StoreError> {
    let due = |range| {
        format!(
            "(SELECT due {PENDING} AND tenant = waiting.name AND due {range} ?2 ORDER BY due LIMIT 1)"
        )
    };
    let sql = format!(
        "WITH RECURSIVE waiting (name) AS (
             SELECT (SELECT tenant {PENDING} ORDER BY tenant LIMIT 1)
             UNION ALL
             SELECT (SELECT tenant {PENDING} AND tenant > waiting.name ORDER BY tenant LIMIT 1)
             FROM waiting WHERE waiting.name IS NOT NULL
         )
         SELECT name, {}, {} FROM waiting WHERE name IS NOT NULL ORDER BY name",
        due("<="),
        due(">")
    );
    let rows = tables.query(&sql, &[hook.into(), now.into()])?;
    let tenants = rows.iter().map(|row| {
        let next = row.int_or_null(2)?;
        Ok(TenantDue {
            tenant: row.id(0, TenantId::parse)?,
            has_due: row.int_or_null(1)?.is_some(),
            next: next.map(|due| Steady(due.unsigned_abs())),
        })
    });
    tenants.collect()
}

/// Returns up to `of_each` due deliveries of each tenant, the longest due first.
fn first_due(
    tables: &dyn Tables,
    hook: &HookName,
    tenants: &[&TenantDue],
    now: Steady,
    of_each: usize,
) -> Result<Vec<Vec<Delivery>>, StoreError> {
    let mut by_tenant = Vec::with_capacity(tenants.len());
    for some in tenants.chunks(TENANTS_PER_QUERY) {
        let mut params = vec![hook.into(), now.into(), of_each.into()];
        let of_tenant = |place: usize| {
            format!(
                "SELECT * FROM (SELECT {COLUMNS} {PENDING} AND tenant = ?{place} AND due <= ?2
                     ORDER BY due, generation LIMIT ?3) AS of_{place}"
            )
        };
        let parts: Vec<String> = (4..4 + some.len()).map(of_tenant).collect();
        params.extend(some.iter().map(|waiting| Param::from(&waiting.tenant)));
        let mut found = read_all(tables, &parts.join(" UNION ALL "), &params)?;
        found.sort_by_key(|delivery| (delivery.due, delivery.id.generation));
        let mut of: HashMap<TenantId, Vec<Delivery>> = HashMap::new();
        for delivery in found {
            let tenant = delivery.key.tenant.clone();
            of.entry(tenant).or_default().push(delivery);
        }
        by_tenant.extend(some.iter().filter_map(|waiting| of.remove(&waiting.tenant)));
    }
    Ok(by_tenant)
}

pub(crate) fn open_deliveries(tables: &dyn Tables) -> Result<Vec<DeliveryCount>, StoreError> {
    let sql = "SELECT tenant, hook, state, count(*) FROM outbox WHERE state <> 'done'
               GROUP BY tenant, hook, state";
    let rows = tables.query(sql, &[])?;
    let counts = rows.iter().map(|row| {
        Ok(DeliveryCount {
            tenant: row.id(0, TenantId::parse)?,
            hook: row.id(1, HookName::parse)?,
            state: state(row.text(2)?)?,
            count: row.count(3)?,
        })
    });
    counts.collect()
}

/// Writes outcomes, makes the pruner reconsider generations, and updates erasures.
///
/// If an erasure deleted the row while the hook ran, it records that the hook received the
/// generation.
pub(crate) fn record_outcomes(
    tables: &dyn Tables,
    outcomes: &[DeliveryOutcome],
) -> Result<(), StoreError> {
    // If a delivery occurs more than once, the last outcome wins.
    let last: HashMap<&DeliveryId, &DeliveryOutcome> = outcomes
        .iter()
        .map(|outcome| (&outcome.id, outcome))
        .collect();
    let last: Vec<&DeliveryOutcome> = last.into_values().collect();
    for outcomes in last.chunks(OUTCOMES_PER_STATEMENT) {
        let params: Vec<Param<'_>> = outcomes.iter().copied().flat_map(outcome_params).collect();
        let rows: Vec<String> = (0..outcomes.len())
            .map(|row| placeholders(row * 6, 6))
            .collect();
        let told = format!(
            "WITH told (generation, hook, state, tries, last_error, due) AS (VALUES {})",
            rows.join(", ")
        );
        // The condition is `DeliveryOutcome::changes`.
        let sql = format!(
            "{told} UPDATE outbox SET state = told.state, tries = told.tries,
                 last_error = told.last_error, due = told.due
             FROM told WHERE outbox.generation = told.generation AND outbox.hook = told.hook
                 AND (outbox.state = 'pending' OR told.state = 'done' OR told.tries = 0)"
        );
        tables.change(&sql, &params)?;
        let sql = format!(
            "{told} INSERT INTO erasure_given (job, generation, hook)
             SELECT e.job, e.generation, told.hook
             FROM told JOIN erasure_generations AS e ON e.generation = told.generation
             WHERE NOT EXISTS (SELECT 1 FROM outbox AS o
                 WHERE o.generation = told.generation AND o.hook = told.hook)
             ON CONFLICT DO NOTHING"
        );
        tables.change(&sql, &params)?;
        let done = outcomes
            .iter()
            .filter(|outcome| outcome.state == DeliveryState::Done);
        release(tables, done.map(|outcome| &outcome.id))?;
    }
    Ok(())
}

pub(crate) fn drop_delivery(tables: &dyn Tables, id: &DeliveryId) -> Result<bool, StoreError> {
    let sql = "DELETE FROM outbox WHERE generation = ?1 AND hook = ?2";
    let dropped = tables.change(sql, &key(id))?;
    release(tables, std::iter::once(id))?;
    Ok(dropped > 0)
}

/// Makes the pruner reconsider generations after one of their deliveries was finished or dropped.
fn release<'a>(
    tables: &dyn Tables,
    ids: impl Iterator<Item = &'a DeliveryId>,
) -> Result<(), StoreError> {
    let params: Vec<Param<'_>> = ids.map(|id| id.generation.into()).collect();
    if !params.is_empty() {
        let (dialect, generations) = (tables.dialect(), placeholders(0, params.len()));
        let sql = format!(
            "UPDATE generations SET held = {} WHERE generation IN {generations} {}",
            dialect.no, dialect.if_held
        );
        tables.change(&sql, &params)?;
    }
    Ok(())
}

/// Returns `(?1, ?2)` and so on for `count` parameters after the first `skipped`.
fn placeholders(skipped: usize, count: usize) -> String {
    let places: Vec<String> = (1..=count)
        .map(|place| format!("?{}", skipped + place))
        .collect();
    format!("({})", places.join(", "))
}

fn outcome_params(outcome: &DeliveryOutcome) -> [Param<'_>; 6] {
    let [generation, hook] = key(&outcome.id);
    [
        generation,
        hook,
        Param::Word(state_name(outcome.state)),
        Param::Int(outcome.tries.into()),
        Param::Text(&outcome.last_error),
        outcome.due.into(),
    ]
}

fn key(id: &DeliveryId) -> [Param<'_>; 2] {
    [id.generation.into(), (&id.hook).into()]
}

fn read_all(
    tables: &dyn Tables,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Delivery>, StoreError> {
    tables.query(sql, params)?.iter().map(read).collect()
}

fn read(row: &Row) -> Result<Delivery, StoreError> {
    Ok(Delivery {
        id: DeliveryId {
            generation: row.generation(0)?,
            hook: row.id(1, HookName::parse)?,
        },
        key: row.key(2, 3)?,
        reason: row.reason(4)?,
        state: state(row.text(5)?)?,
        tries: u32::try_from(row.count(6)?).unwrap_or(u32::MAX),
        last_error: row.text(7)?.to_owned(),
        due: Steady(row.count(8)?),
    })
}

fn state(name: &str) -> Result<DeliveryState, StoreError> {
    let known = STATES.iter().find(|(_, known)| *known == name);
    known
        .map(|(state, _)| *state)
        .ok_or_else(|| damaged("delivery state"))
}

fn state_name(state: DeliveryState) -> &'static str {
    let known = STATES.iter().find(|(known, _)| *known == state);
    known.map_or("pending", |(_, name)| name)
}
