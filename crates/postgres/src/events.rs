//! Exchange of session events between the daemons that share the database.

use std::collections::HashMap;

use memoird_core::ids::TenantId;
use memoird_store::rows::StoredRow;
use memoird_store::{EventExchange, EventSubscription, ExchangedEvents, PostedEvent, StoreError};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, change, first, query};
use crate::members::EXPIRED_AFTER;
use crate::transactions::ResultRow;
use crate::values::{Ulid, get, limit, whole};

/// Retention of events.
///
/// Watching daemons poll several times a second, and a disconnected one is back within minutes.
pub(crate) const RETENTION: &str = "interval '10 minutes'";
/// Maximum number of events retained per daemon.
const EVENTS_PER_DAEMON_MAX: i64 = 1 << 16;
const EVENTS_READ_MAX: usize = 1_024;

/// Position of this process in the exchange.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExchangePosition {
    /// Number of the last event it posted.
    posted: i64,
    /// Number of the last event it read from each other daemon.
    received: HashMap<Ulid, i64>,
}

impl ExchangePosition {
    /// Skips numbers that may have been used, so that new events always sort after older ones.
    pub(crate) fn skip(&mut self, exchange: &EventExchange) {
        self.posted += whole(exchange.posted.len() as u64);
    }
}

/// Publishes and receives events. Returns the new position of this process.
pub(crate) async fn exchange(
    client: &Client,
    node: Ulid,
    mut progress: ExchangePosition,
    exchange: &EventExchange,
) -> Result<(ExchangePosition, ExchangedEvents), StoreError> {
    let mut answer = ExchangedEvents {
        watched: publish_subscription(client, node, &exchange.watched).await?,
        ..ExchangedEvents::default()
    };
    if !exchange.posted.is_empty() {
        post(client, node, progress.posted, &exchange.posted).await?;
        progress.skip(exchange);
    }
    if !exchange.watched.is_empty() {
        receive(client, node, &mut progress, &mut answer).await?;
    }
    Ok((progress, answer))
}

/// Publishes which tenants are watched here. Returns what other members watch.
async fn publish_subscription(
    client: &Client,
    node: Ulid,
    watched: &EventSubscription,
) -> Result<EventSubscription, StoreError> {
    let sql = format!(
        "WITH told AS (UPDATE memoird.members SET watches_all = $2, watches = $3
             WHERE node = $1 AND (watches_all, watches) IS DISTINCT FROM ($2, $3))
         SELECT coalesce(bool_or(m.watches_all), false), coalesce(array_agg(DISTINCT t)
             FILTER (WHERE t IS NOT NULL), '{{}}')
         FROM memoird.members m LEFT JOIN LATERAL unnest(m.watches) t ON true
         WHERE m.node <> $1 AND m.seen > now() - {EXPIRED_AFTER}"
    );
    let tenants: Vec<&[u8]> = watched
        .tenants
        .iter()
        .map(|tenant| tenant.as_str().as_bytes())
        .collect();
    let args: [Arg<'_>; 3] = [
        (&node, Type::UUID),
        (&watched.all, Type::BOOL),
        (&tenants, Type::BYTEA_ARRAY),
    ];
    let Some(row) = first(client, &sql, &args).await? else {
        return Ok(EventSubscription::default());
    };
    let names: Vec<&[u8]> = get(&row, 1)?;
    let tenants = names
        .into_iter()
        .filter_map(|name| TenantId::parse(str::from_utf8(name).ok()?).ok());
    Ok(EventSubscription {
        all: get(&row, 0)?,
        tenants: tenants.collect(),
    })
}

async fn post(
    client: &Client,
    node: Ulid,
    before: i64,
    posted: &[PostedEvent],
) -> Result<(), StoreError> {
    let sql = "WITH old AS (DELETE FROM memoird.events WHERE node = $1 AND number <= $2 - $3)
               INSERT INTO memoird.events (node, number, at, tenant, body)
               SELECT $1, $2 + t.number, now() - t.age_ms * interval '1 millisecond', t.tenant, t.body
               FROM unnest($4::int8[], $5::bytea[], $6::bytea[])
                   WITH ORDINALITY AS t (age_ms, tenant, body, number)
               RETURNING 1";
    let ages = posted.iter().map(|event| event.age_ms.cast_signed());
    let tenants = posted.iter().map(|event| event.tenant.as_str().as_bytes());
    let bodies = posted.iter().map(|event| event.body.as_slice());
    let args: [Arg<'_>; 6] = [
        (&node, Type::UUID),
        (&before, Type::INT8),
        (&EVENTS_PER_DAEMON_MAX, Type::INT8),
        (&ages.collect::<Vec<_>>(), Type::INT8_ARRAY),
        (&tenants.collect::<Vec<_>>(), Type::BYTEA_ARRAY),
        (&bodies.collect::<Vec<_>>(), Type::BYTEA_ARRAY),
    ];
    change(client, sql, &args).await?;
    Ok(())
}

/// Reads the events that other daemons posted since the last exchange.
async fn receive(
    client: &Client,
    node: Ulid,
    progress: &mut ExchangePosition,
    answer: &mut ExchangedEvents,
) -> Result<(), StoreError> {
    let (known, numbers): (Vec<Ulid>, Vec<i64>) = progress.received.iter().unzip();
    let sql = "SELECT m.node, e.number, e.tenant,
                   greatest(0, extract(epoch FROM clock_timestamp() - e.at) * 1000)::int8, e.body
               FROM memoird.members m
               LEFT JOIN unnest($2::uuid[], $3::int8[]) AS k (node, number) USING (node)
               CROSS JOIN LATERAL (SELECT * FROM memoird.events e
                   WHERE e.node = m.node AND e.number > coalesce(k.number, 0)
                   ORDER BY e.number LIMIT $4) e
               WHERE m.node <> $1 ORDER BY m.node, e.number";
    let args: [Arg<'_>; 4] = [
        (&node, Type::UUID),
        (&known, Type::UUID_ARRAY),
        (&numbers, Type::INT8_ARRAY),
        (&limit(EVENTS_READ_MAX), Type::INT8),
    ];
    let rows = query(client, sql, &args).await?;
    let mut counts = HashMap::<Ulid, usize>::new();
    for row in &rows {
        let of: Ulid = get(row, 0)?;
        answer
            .received
            .push((u128::from_be_bytes(of.0), read(row)?));
        progress.received.insert(of, get(row, 1)?);
        *counts.entry(of).or_default() += 1;
    }
    answer.is_more = counts.values().any(|count| *count >= EVENTS_READ_MAX);
    // Drop the entries of daemons that no longer exist.
    if progress.received.len() > 256 {
        progress.received.retain(|of, _| counts.contains_key(of));
    }
    Ok(())
}

fn read(row: &ResultRow) -> Result<PostedEvent, StoreError> {
    Ok(PostedEvent {
        tenant: row.id(2, TenantId::parse)?,
        age_ms: row.count(3)?,
        body: row.bytes(4)?.to_vec(),
    })
}
