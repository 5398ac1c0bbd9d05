//! The daemons that share the database: who they are, where their time lines are, and what they have
//! in common. No session's safety depends on it.

use memoird_core::time::{Steady, Timestamp};
use memoird_store::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use crate::connect::{Arg, PgOptions, change, first, query};
use crate::events::KEPT_FOR;
use crate::values::{Ulid, count, damaged, get, whole};

/// A member that was not seen for so long is gone. Its time line went on meanwhile.
pub(crate) const GONE_AFTER: &str = "interval '5 seconds'";
/// A member's time line goes on by so much at most where nothing is heard of it.
const STEP_MAX_MS: u32 = 5_000;
/// Its row goes after so long.
const FORGOTTEN_AFTER: &str = "interval '1 minute'";

/// The daemons that share the database, and what is left for them to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The daemons, by name.
    pub members: Vec<Member>,
    /// Until when the one that leads does so unless it renews its lease; `None` without one.
    pub lease_until: Option<Timestamp>,
    /// Deliveries of hooks that are due.
    pub deliveries_due: u64,
    /// Since when the first of them is, on the line of time that the daemons have in common.
    pub due_since: Option<Steady>,
    /// The version of the schema.
    pub schema_version: u32,
}

/// A daemon that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number, which no other one has.
    pub node: u128,
    /// Its name, for people.
    pub name: String,
    /// Which memoird it is.
    pub version: String,
    /// True for the one that does what is to be done once.
    pub leads: bool,
    /// When it was last seen, by the clock of the database.
    pub seen_at: Timestamp,
    /// False where that was some seconds ago.
    pub is_here: bool,
    /// What it said of its configuration ([`PgOptions::settings`](crate::PgOptions::settings)).
    pub settings: Vec<u8>,
    /// Its commits so far.
    pub commits: u64,
    /// How often it had to find out what became of one.
    pub commits_in_doubt: u64,
    /// When it wrote last, by the clock of the database.
    pub committed_at: Option<Timestamp>,
}

/// Says where the time line of a member is; gives the one that is the furthest.
pub(crate) async fn sync_clock(
    client: &Client,
    node: Ulid,
    steady: Steady,
) -> Result<Steady, StoreError> {
    let own = i64::try_from(steady.0).unwrap_or(i64::MAX);
    // Without a row it is not seen, and is none.
    let sql = "UPDATE memoird.members SET steady = $2, seen = now() WHERE node = $1 RETURNING 1";
    change(client, sql, &[(&node, Type::UUID), (&own, Type::INT8)]).await?;
    let others = self::steady(client, node).await?;
    Ok(others.map_or(steady, |others| others.max(steady)))
}

/// The furthest time line of the others that are there, by the database's clock.
pub(crate) async fn steady(client: &Client, node: Ulid) -> Result<Option<Steady>, StoreError> {
    let sql = format!(
        "SELECT max(steady + (extract(epoch FROM clock_timestamp() - seen) * 1000)::int8)
         FROM memoird.members WHERE node <> $1 AND seen > now() - {GONE_AFTER}"
    );
    let row = first(client, &sql, &[(&node, Type::UUID)]).await?;
    let furthest = row.map(|row| get::<Option<i64>>(&row, 0)).transpose()?;
    let furthest = furthest.flatten();
    Ok(furthest.map(|at| Steady(at.max(0).unsigned_abs())))
}

/// Where the time line is that the last commit tells of.
pub(crate) async fn steady_of_commits(client: &Client) -> Result<Option<Steady>, StoreError> {
    let sql =
        "SELECT steady + greatest((extract(epoch FROM clock_timestamp() - seen) * 1000)::int8, 0)
               FROM memoird.lanes WHERE steady IS NOT NULL ORDER BY steady DESC LIMIT 1";
    let row = first(client, sql, &[]).await?;
    row.map(|row| Ok(Steady(count(&row, 0)?))).transpose()
}

/// Those that were seen in the last minute, and what is due at `now`.
pub(crate) async fn all(client: &Client, now: Steady) -> Result<Membership, StoreError> {
    let sql = format!(
        "SELECT m.node, m.name, m.version, EXISTS (SELECT FROM memoird.owner o WHERE o.node = m.node
                 AND o.is_shared AND o.expires_at > now()), (extract(epoch FROM m.seen) * 1000)::int8,
             m.seen > now() - {GONE_AFTER}, m.config, coalesce(l.number, 0), coalesce(l.epoch, 1),
             CASE WHEN l.number > 0 THEN (extract(epoch FROM l.seen) * 1000)::int8 END
         FROM memoird.members m LEFT JOIN LATERAL (SELECT * FROM memoird.lanes AS of_member
             WHERE of_member.node = m.node AND of_member.lane = 0
             ORDER BY step DESC LIMIT 1) AS l ON true
         WHERE m.seen > now() - {FORGOTTEN_AFTER} ORDER BY m.name, m.node"
    );
    let rows = query(client, &sql, &[]).await?;
    let members = rows.iter().map(member).collect::<Result<_, _>>()?;
    let sql = "SELECT (SELECT (extract(epoch FROM expires_at) * 1000)::int8 FROM memoird.owner),
                   count(*), min(due), (SELECT version FROM memoird.schema_version)
               FROM memoird.outbox WHERE state = 'pending' AND due <= $1";
    let now = whole(now.0);
    let row = first(client, sql, &[(&now, Type::INT8)]).await?;
    let row = row.ok_or_else(|| damaged("schema version"))?;
    let lease_until: Option<i64> = get(&row, 0)?;
    let due_since: Option<i64> = get(&row, 2)?;
    Ok(Membership {
        members,
        lease_until: lease_until.map(Timestamp::from_ms),
        deliveries_due: count(&row, 1)?,
        due_since: due_since.map(|since| Steady(since.max(0).unsigned_abs())),
        schema_version: get::<i32>(&row, 3)?.unsigned_abs(),
    })
}

fn member(row: &Row) -> Result<Member, StoreError> {
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
        commits: count(row, 7)?,
        // An epoch begins with each question.
        commits_in_doubt: count(row, 8)?.saturating_sub(1),
        committed_at: committed_at.map(Timestamp::from_ms),
    })
}

/// What a member is told when it says that it is there.
pub(crate) struct Standing {
    /// It does what is to be done once.
    pub(crate) leads: bool,
    /// A daemon that shares with nobody has the database.
    pub(crate) is_taken: bool,
}

/// Says that a member is there, and takes or keeps the lease of the one that leads, where nobody
/// else has it. `lease`: how long it is. Where somebody has it, that row is read and not locked: on a slow disk
/// all would wait for each other's commits.
pub(crate) async fn heartbeat(
    client: &Client,
    node: Ulid,
    options: &PgOptions,
    lease: &str,
) -> Result<Standing, StoreError> {
    let sql = format!(
        "WITH lead AS (
             INSERT INTO memoird.owner AS o (id, node, name, is_shared, expires_at)
             SELECT 1, $1, $2, true, now() + {lease} WHERE NOT EXISTS
                 (SELECT FROM memoird.owner WHERE node <> $1 AND expires_at >= now())
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, name = excluded.name,
                 is_shared = true, expires_at = excluded.expires_at
             WHERE o.node = $1 OR o.expires_at < now()
             RETURNING 1),
         gone AS (DELETE FROM memoird.members
             WHERE node <> $1 AND seen < now() - {FORGOTTEN_AFTER}),
         old AS (DELETE FROM memoird.events WHERE at < now() - {KEPT_FOR}
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
             WHERE NOT is_shared AND node <> $1 AND expires_at > now()) FROM beat"
    );
    let settings = options.settings.borrow().clone();
    let args: [Arg<'_>; 4] = [
        (&node, Type::UUID),
        (&options.name, Type::TEXT),
        (&options.version, Type::TEXT),
        (&settings, Type::BYTEA),
    ];
    let row = first(client, &sql, &args).await?;
    let row = row.ok_or_else(|| StoreError::Database {
        detail: "memoird.members did not take a row".to_owned(),
    })?;
    let leads: bool = get(&row, 0)?;
    Ok(Standing {
        leads,
        // What is seen is the moment before: who leads has just taken the lease.
        is_taken: !leads && get(&row, 1)?,
    })
}

/// A member goes.
pub(crate) async fn leave(client: &Client, node: Ulid) -> Result<(), StoreError> {
    let sql = "WITH lease AS (DELETE FROM memoird.owner WHERE node = $1)
               DELETE FROM memoird.members WHERE node = $1 RETURNING 1";
    change(client, sql, &[(&node, Type::UUID)]).await?;
    Ok(())
}

/// A secret, or the one that is offered where there is none.
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
    let row = first(client, sql, &[(&name, Type::TEXT)]).await?;
    let row = row.ok_or_else(|| StoreError::Database {
        detail: "memoird.secrets did not take a row".to_owned(),
    })?;
    get(&row, 0)
}
