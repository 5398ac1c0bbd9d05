//! The daemons that share the database: names, timelines, settings and shared secrets.
//!
//! The safety of sessions does not depend on this table.

use memoird_core::time::{Steady, Timestamp};
use memoird_store::StoreError;
use memoird_store::rows::{StoredRow, damaged};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, PgOptions, change, first, query};
use crate::events::RETENTION;
use crate::policy::{self, StoredPolicy};
use crate::transactions::ResultRow;
use crate::values::{Ulid, get, whole};

/// Time since its last heartbeat after which a member counts as gone.
pub(crate) const EXPIRED_AFTER: &str = "interval '5 seconds'";
/// Whether a member whose last heartbeat is in this column is live, as SQL.
///
/// A heartbeat in the future is from before a step back of the database's clock. A live member sends
/// the next heartbeat within half a second.
pub(crate) fn is_here(seen: &str) -> String {
    format!("{seen} BETWEEN now() - {EXPIRED_AFTER} AND now() + {EXPIRED_AFTER}")
}

/// Statement that shortens another daemon's lease if the database's clock stepped back.
///
/// If that daemon is gone, its lease would expire only once the clock has caught up. `$1` is this
/// process. `lease` is the duration as an SQL interval.
pub(crate) fn shorten_lease(lease: &str) -> String {
    format!(
        "UPDATE memoird.owner SET expires_at = now() + {lease}
         WHERE node <> $1 AND expires_at > now() + 2 * {lease}"
    )
}

/// Maximum advance of a member's timeline, in milliseconds, between two heartbeats.
const STEP_MAX_MS: u32 = 5_000;
/// Time since its last heartbeat after which a member's row is deleted.
const DELETED_AFTER: &str = "interval '1 minute'";

/// The members of a cluster, and its due deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Sorted by name.
    pub members: Vec<Member>,
    /// Expiry of the leader's lease unless it is renewed. `None` without a leader.
    pub lease_until: Option<Timestamp>,
    pub deliveries_due: u64,
    /// Due time of the oldest due delivery, on the shared timeline.
    pub due_since: Option<Steady>,
    pub schema_version: u32,
    /// `None` before the first daemon has stored one.
    pub policy: Option<StoredPolicy>,
}

/// A daemon that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: u128,
    pub name: String,
    pub version: String,
    pub leads: bool,
    /// Last heartbeat, by the database's clock.
    pub seen_at: Timestamp,
    /// Whether that was at most 5 seconds ago.
    pub is_here: bool,
    /// Its settings ([`PgOptions::settings`](crate::PgOptions::settings)).
    pub settings: Vec<u8>,
    /// Total number of its commits.
    pub commits: u64,
    /// Number of commits it had to resolve because there was no reply.
    pub commits_in_doubt: u64,
    /// Time of its last commit, by the database's clock.
    pub committed_at: Option<Timestamp>,
}

/// Publishes a member's timeline. Returns the most advanced position of all members.
pub(crate) async fn sync_clock(
    client: &Client,
    node: Ulid,
    steady: Steady,
) -> Result<Steady, StoreError> {
    let own = i64::try_from(steady.0).unwrap_or(i64::MAX);
    // A process without a row is not a member.
    let sql = "UPDATE memoird.members SET steady = $2, seen = now() WHERE node = $1 RETURNING 1";
    change(client, sql, &[(&node, Type::UUID), (&own, Type::INT8)]).await?;
    let others = self::steady(client, node).await?;
    Ok(others.map_or(steady, |others| others.max(steady)))
}

/// The most advanced timeline of the other live members, by the database's clock.
pub(crate) async fn steady(client: &Client, node: Ulid) -> Result<Option<Steady>, StoreError> {
    let sql = format!(
        "SELECT max(steady
             + greatest((extract(epoch FROM clock_timestamp() - seen) * 1000)::int8, 0))
         FROM memoird.members WHERE node <> $1 AND seen > now() - {EXPIRED_AFTER}"
    );
    let row = first(client, &sql, &[(&node, Type::UUID)]).await?;
    let furthest = row
        .map(|row| get::<Option<i64>>(&row, 0))
        .transpose()?
        .flatten();
    Ok(furthest.map(|at| Steady(at.max(0).unsigned_abs())))
}

/// The timeline of the newest commit, advanced to now.
pub(crate) async fn steady_of_commits(client: &Client) -> Result<Option<Steady>, StoreError> {
    let sql =
        "SELECT steady + greatest((extract(epoch FROM clock_timestamp() - seen) * 1000)::int8, 0)
               FROM memoird.lanes WHERE steady IS NOT NULL ORDER BY steady DESC LIMIT 1";
    let row = first(client, sql, &[]).await?;
    row.map(|row| Ok(Steady(row.count(0)?))).transpose()
}

/// Returns the members seen in the last minute, and the deliveries due at `now`.
pub(crate) async fn all(client: &Client, now: Steady) -> Result<Membership, StoreError> {
    let sql = format!(
        "SELECT m.node, m.name, m.version, EXISTS (SELECT FROM memoird.owner o WHERE o.node = m.node
                 AND o.is_shared AND o.expires_at > now()), (extract(epoch FROM m.seen) * 1000)::int8,
             {}, m.config, coalesce(l.number, 0), coalesce(l.epoch, 1),
             CASE WHEN l.number > 0 THEN (extract(epoch FROM l.seen) * 1000)::int8 END
         FROM memoird.members m LEFT JOIN LATERAL (SELECT * FROM memoird.lanes AS of_member
             WHERE of_member.node = m.node AND of_member.lane = 0
             ORDER BY step DESC LIMIT 1) AS l ON true
         WHERE m.seen > now() - {DELETED_AFTER} ORDER BY m.name, m.node",
        is_here("m.seen")
    );
    let rows = query(client, &sql, &[]).await?;
    let members = rows.iter().map(member).collect::<Result<_, _>>()?;
    let sql = "SELECT (SELECT (extract(epoch FROM expires_at) * 1000)::int8 FROM memoird.owner),
                   count(*), min(due), (SELECT version FROM memoird.schema_version)
               FROM memoird.outbox WHERE state = 'pending' AND due <= $1";
    let now = whole(now.0);
    let row = first(client, sql, &[(&now, Type::INT8)])
        .await?
        .ok_or(damaged("schema version"))?;
    let lease_until: Option<i64> = get(&row, 0)?;
    let due_since: Option<i64> = get(&row, 2)?;
    Ok(Membership {
        members,
        lease_until: lease_until.map(Timestamp::from_ms),
        deliveries_due: row.count(1)?,
        due_since: due_since.map(|since| Steady(since.max(0).unsigned_abs())),
        schema_version: get::<i32>(&row, 3)?.unsigned_abs(),
        policy: policy::read(client).await?,
    })
}

fn member(row: &ResultRow) -> Result<Member, StoreError> {
    let node: Ulid = get(row, 0)?;
    let committed_at: Option<i64> = get(row, 9)?;
    Ok(Member {
        node: u128::from_be_bytes(node.0),
        name: get(row, 1)?,
        version: get(row, 2)?,
        leads: get(row, 3)?,
        seen_at: Timestamp::from_ms(get(row, 4)?),
        is_here: get(row, 5)?,
        settings: get(row, 6)?,
        commits: row.count(7)?,
        // Each resolution of an unknown outcome starts an epoch.
        commits_in_doubt: row.count(8)?.saturating_sub(1),
        committed_at: committed_at.map(Timestamp::from_ms),
    })
}

/// Reply to a heartbeat.
pub(crate) struct HeartbeatReply {
    /// Whether this member is the leader.
    pub(crate) leads: bool,
    /// Whether another daemon has the database exclusively.
    pub(crate) is_taken: bool,
}

/// Records a heartbeat, and acquires or renews the leader's lease unless another daemon has it.
///
/// `lease` is its duration as an SQL interval. A lease held by another daemon is read without
/// locking its row. Otherwise all members would wait for each other's commits on a slow disk.
pub(crate) async fn heartbeat(
    client: &Client,
    node: Ulid,
    options: &PgOptions,
    lease: &str,
) -> Result<HeartbeatReply, StoreError> {
    let sql = format!(
        "WITH lead AS (
             INSERT INTO memoird.owner AS o (id, node, name, is_shared, expires_at)
             SELECT 1, $1, $2, true, now() + {lease} WHERE NOT EXISTS
                 (SELECT FROM memoird.owner WHERE node <> $1 AND expires_at >= now())
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, name = excluded.name,
                 is_shared = true, expires_at = excluded.expires_at
             WHERE o.node = $1 OR o.expires_at < now()
             RETURNING 1),
         shortened AS ({}),
         gone AS (DELETE FROM memoird.members
             WHERE node <> $1 AND seen < now() - {DELETED_AFTER}),
         old AS (DELETE FROM memoird.events WHERE at < now() - {RETENTION}
             AND EXISTS (SELECT FROM lead)),
         beat AS (
             INSERT INTO memoird.members AS m (node, name, version, config, leads, seen)
             VALUES ($1, $2, $3, $4, EXISTS (SELECT FROM lead), now())
             ON CONFLICT (node) DO UPDATE SET leads = excluded.leads,
                 config = CASE WHEN m.config = excluded.config THEN m.config ELSE excluded.config END,
                 -- A step of the database's clock is no time.
                 steady = m.steady + least((extract(epoch FROM now() - m.seen) * 1000)::int8, {STEP_MAX_MS}),
                 seen = now()
             RETURNING leads)
         SELECT beat.leads, EXISTS (SELECT FROM memoird.owner
             WHERE NOT is_shared AND node <> $1 AND expires_at > now()) FROM beat",
        shorten_lease(lease)
    );
    let settings = options.settings.borrow().clone();
    let args: [Arg<'_>; 4] = [
        (&node, Type::UUID),
        (&options.name, Type::TEXT),
        (&options.version, Type::TEXT),
        (&settings, Type::BYTEA),
    ];
    let row = first(client, &sql, &args)
        .await?
        .ok_or_else(|| StoreError::Database {
            detail: "memoird.members did not accept a row".to_owned(),
        })?;
    let leads: bool = get(&row, 0)?;
    Ok(HeartbeatReply {
        leads,
        // The query sees the state before this statement: the new leader had no lease yet.
        is_taken: !leads && get(&row, 1)?,
    })
}

/// Deregisters a member and releases its lease.
pub(crate) async fn deregister(client: &Client, node: Ulid) -> Result<(), StoreError> {
    let sql = "WITH lease AS (DELETE FROM memoird.owner WHERE node = $1)
               DELETE FROM memoird.members WHERE node = $1 RETURNING 1";
    change(client, sql, &[(&node, Type::UUID)]).await?;
    Ok(())
}

/// Returns a secret, after storing `offered` if there is none.
pub(crate) async fn secret(
    client: &Client,
    name: &str,
    offered: &[u8],
) -> Result<Vec<u8>, StoreError> {
    let sql = "INSERT INTO memoird.secrets (name, value) VALUES ($1, $2)
               ON CONFLICT (name) DO NOTHING RETURNING 1";
    let args: [Arg<'_>; 2] = [(&name, Type::TEXT), (&offered, Type::BYTEA)];
    change(client, sql, &args).await?;
    let sql = "SELECT value FROM memoird.secrets WHERE name = $1";
    let row = first(client, sql, &[(&name, Type::TEXT)])
        .await?
        .ok_or_else(|| StoreError::Database {
            detail: "memoird.secrets did not accept a row".to_owned(),
        })?;
    get(&row, 0)
}
