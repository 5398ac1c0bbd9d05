//! Pending and finished hook deliveries.
//!
//! They are written by the commit that ends the generation, and queried by hook, tenant and due
//! time.

use std::collections::HashMap;

use memoird_core::ids::{DeliveryId, HookName, TenantId};
use memoird_core::outbox::{Delivery, DeliveryState};
use memoird_core::time::Steady;
use memoird_store::{DeliveryCount, DeliveryFilter, DeliveryOutcome, DueDeliveries, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::connect::{Arg, change, first, query};
use crate::values::{Ulid, count, damaged, generation, get, id, key, limit, reason, whole};

const COLUMNS: &str = "generation, hook, tenant, session, reason, state, tries, last_error, due";

const STATES: [(DeliveryState, &str); 3] = [
    (DeliveryState::Pending, "pending"),
    (DeliveryState::Done, "done"),
    (DeliveryState::Dead, "dead"),
];

pub(crate) async fn deliveries(
    client: &Client,
    filter: &DeliveryFilter,
    after: Option<&DeliveryId>,
    max: usize,
) -> Result<Vec<Delivery>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM memoird.outbox
         WHERE ($1::uuid IS NULL OR (generation, hook) > ($1, $2))
             AND ($3::bytea IS NULL OR tenant = $3) AND ($4::text IS NULL OR hook = $4)
             AND ($5::text IS NULL OR state = $5)
         ORDER BY generation, hook LIMIT $6"
    );
    let name = after.map(|after| Ulid::from(after.generation));
    let hook = after.map(|after| after.hook.as_str());
    let tenant = filter.tenant.as_ref().map(|of| of.as_str().as_bytes());
    let only = filter.hook.as_ref().map(HookName::as_str);
    let args: [Arg<'_>; 6] = [
        (&name, Type::UUID),
        (&hook, Type::TEXT),
        (&tenant, Type::BYTEA),
        (&only, Type::TEXT),
        (&filter.state.map(state_name), Type::TEXT),
        (&limit(max), Type::INT8),
    ];
    let rows = query(client, &sql, &args).await?;
    rows.iter().map(read).collect()
}

pub(crate) async fn delivery(
    client: &Client,
    id: &DeliveryId,
) -> Result<Option<Delivery>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM memoird.outbox WHERE generation = $1 AND hook = $2");
    let name = Ulid::from(id.generation);
    let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&id.hook.as_str(), Type::TEXT)];
    let row = first(client, &sql, &args).await?;
    row.as_ref().map(read).transpose()
}

pub(crate) async fn due(
    client: &Client,
    hook: &HookName,
    after: Option<&TenantId>,
    now: Steady,
    max: usize,
) -> Result<DueDeliveries, StoreError> {
    // Loose index scan over the tenants with pending deliveries; at most `max` rows of each.
    let pending = "FROM memoird.outbox WHERE state = 'pending' AND hook = $1";
    let waiting = format!(
        "WITH RECURSIVE waiting (tenant) AS (
             (SELECT tenant {pending} ORDER BY tenant LIMIT 1)
             UNION ALL
             SELECT (SELECT tenant {pending} AND tenant > waiting.tenant ORDER BY tenant LIMIT 1)
             FROM waiting WHERE waiting.tenant IS NOT NULL)"
    );
    let sql = format!(
        "{waiting} SELECT {COLUMNS} FROM waiting CROSS JOIN LATERAL (
             SELECT {COLUMNS}, row_number() OVER (ORDER BY due, generation) AS turn
             {pending} AND tenant = waiting.tenant AND due <= $2
             ORDER BY due, generation LIMIT $3) AS owed
             (generation, hook, tenant_of, session, reason, state, tries, last_error, due, turn)
         WHERE waiting.tenant IS NOT NULL
         ORDER BY turn, coalesce(waiting.tenant <= $4, false), waiting.tenant LIMIT $3"
    );
    let after = after.map(|tenant| tenant.as_str().as_bytes());
    let args: [Arg<'_>; 4] = [
        (&hook.as_str(), Type::TEXT),
        (&whole(now.0), Type::INT8),
        (&limit(max), Type::INT8),
        (&after, Type::BYTEA),
    ];
    let rows = query(client, &sql, &args).await?;
    let sql = format!(
        "{waiting} SELECT min((SELECT due {pending} AND tenant = waiting.tenant AND due > $2
             ORDER BY due LIMIT 1)) FROM waiting WHERE tenant IS NOT NULL"
    );
    let row = first(client, &sql, &args[..2]).await?;
    let next = row.map(|row| get::<Option<i64>>(&row, 0)).transpose()?;
    Ok(DueDeliveries {
        due: rows.iter().map(read).collect::<Result<_, _>>()?,
        next: next.flatten().map(|due| Steady(due.unsigned_abs())),
    })
}

pub(crate) async fn open_deliveries(client: &Client) -> Result<Vec<DeliveryCount>, StoreError> {
    let sql = "SELECT tenant, hook, state, count(*) FROM memoird.outbox WHERE state <> 'done'
               GROUP BY tenant, hook, state";
    let rows = query(client, sql, &[]).await?;
    let of = |row: &Row| {
        Ok(DeliveryCount {
            tenant: id(row, 0, TenantId::parse)?,
            hook: hook(row, 1)?,
            state: state(row, 2)?,
            count: count(row, 3)?,
        })
    };
    rows.iter().map(of).collect()
}

/// Writes outcomes, releases generations to the pruner, and updates erasures.
///
/// [`DeliveryOutcome::changes`] decides whether a state may change; here it is a condition of the
/// update. If the row was deleted by an erasure while the hook ran, the erasure records that the
/// hook received the generation.
///
/// Generations are released whether they are held or not. A pruner may be about to hold one, and
/// this statement waits for its transaction.
pub(crate) async fn record_outcomes(
    client: &Client,
    outcomes: &[DeliveryOutcome],
) -> Result<(), StoreError> {
    // If a delivery occurs more than once, the last outcome wins.
    let last: HashMap<&DeliveryId, &DeliveryOutcome> = outcomes
        .iter()
        .map(|outcome| (&outcome.id, outcome))
        .collect();
    if last.is_empty() {
        return Ok(());
    }
    let of = || last.values();
    let names: Vec<Ulid> = of().map(|outcome| outcome.id.generation.into()).collect();
    let hooks: Vec<&str> = of().map(|outcome| outcome.id.hook.as_str()).collect();
    let states: Vec<&str> = of().map(|outcome| state_name(outcome.state)).collect();
    let tries: Vec<i64> = of().map(|outcome| i64::from(outcome.tries)).collect();
    let errors: Vec<&[u8]> = of().map(|outcome| outcome.last_error.as_bytes()).collect();
    let dues: Vec<i64> = of().map(|outcome| whole(outcome.due.0)).collect();
    let sql = "WITH told AS MATERIALIZED (
                   SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int8[],
                       $5::bytea[], $6::int8[])
                       AS told(generation, hook, state, tries, last_error, due)),
               changed AS (
                   UPDATE memoird.outbox AS o SET state = told.state, tries = told.tries,
                       last_error = told.last_error, due = told.due
                   FROM told WHERE o.generation = told.generation AND o.hook = told.hook
                       AND (o.state = 'pending' OR told.state = 'done' OR told.tries = 0)
                   RETURNING o.generation, o.hook),
               settled AS (
                   SELECT o.generation, o.hook FROM told JOIN memoird.outbox AS o
                       ON o.generation = told.generation AND o.hook = told.hook
                   WHERE o.state <> 'pending'),
               released AS (
                   UPDATE memoird.generations AS g SET held = false
                   WHERE g.generation IN (SELECT generation FROM told WHERE state = 'done')),
               given AS (
                   INSERT INTO memoird.erasure_given (job, generation, hook)
                   SELECT e.job, e.generation, told.hook
                   FROM told JOIN memoird.erasure_generations AS e USING (generation)
                   WHERE NOT EXISTS (
                       SELECT 1 FROM (TABLE changed UNION ALL TABLE settled) AS there
                       WHERE there.generation = told.generation AND there.hook = told.hook)
                   ON CONFLICT DO NOTHING)
               SELECT 1 FROM changed";
    let args: [Arg<'_>; 6] = [
        (&names, Type::UUID_ARRAY),
        (&hooks, Type::TEXT_ARRAY),
        (&states, Type::TEXT_ARRAY),
        (&tries, Type::INT8_ARRAY),
        (&errors, Type::BYTEA_ARRAY),
        (&dues, Type::INT8_ARRAY),
    ];
    change(client, sql, &args).await?;
    Ok(())
}

pub(crate) async fn drop_delivery(client: &Client, id: &DeliveryId) -> Result<bool, StoreError> {
    let sql = "WITH dropped AS (
                   DELETE FROM memoird.outbox WHERE generation = $1 AND hook = $2
                   RETURNING generation),
               released AS (
                   UPDATE memoird.generations SET held = false WHERE generation = $1)
               SELECT 1 FROM dropped";
    let name = Ulid::from(id.generation);
    let args: [Arg<'_>; 2] = [(&name, Type::UUID), (&id.hook.as_str(), Type::TEXT)];
    Ok(change(client, sql, &args).await? > 0)
}

fn read(row: &Row) -> Result<Delivery, StoreError> {
    let error: &[u8] = get(row, 7)?;
    Ok(Delivery {
        id: DeliveryId {
            generation: generation(row, 0)?,
            hook: hook(row, 1)?,
        },
        key: key(row, 2, 3)?,
        reason: reason(get(row, 4)?).ok_or_else(|| damaged("reason"))?,
        state: state(row, 5)?,
        tries: u32::try_from(get::<i64>(row, 6)?).unwrap_or(u32::MAX),
        last_error: String::from_utf8_lossy(error).into_owned(),
        due: Steady(count(row, 8)?),
    })
}

fn hook(row: &Row, column: usize) -> Result<HookName, StoreError> {
    HookName::parse(get(row, column)?).map_err(|_| damaged("name of a hook"))
}

fn state(row: &Row, column: usize) -> Result<DeliveryState, StoreError> {
    let name: &str = get(row, column)?;
    let known = STATES.iter().find(|(_, known)| *known == name);
    known
        .map(|(state, _)| *state)
        .ok_or_else(|| damaged("delivery state"))
}

fn state_name(state: DeliveryState) -> &'static str {
    STATES
        .iter()
        .find(|(known, _)| *known == state)
        .map_or("pending", |(_, name)| name)
}
