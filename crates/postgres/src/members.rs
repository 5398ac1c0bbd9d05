//! The daemons that share the database: who they are, where their time lines are, and what they have
//! in common. No session's safety depends on it.

use memoird_core::time::{Steady, Timestamp};
use memoird_store::StoreError;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, change, first, query};
use crate::events::KEPT_FOR;
use crate::values::{Ulid, get};

/// A member that was not seen for so long is gone. Its time line went on meanwhile.
pub(crate) const GONE_AFTER: &str = "interval '5 seconds'";
/// Its row goes after so long.
const FORGOTTEN_AFTER: &str = "interval '1 minute'";

/// A daemon that shares the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
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

/// The furthest time line of the others that are there.
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

/// Those that were seen in the last minute, by their names.
pub(crate) async fn all(client: &Client) -> Result<Vec<Member>, StoreError> {
    let sql = format!(
        "SELECT name, version, leads, (extract(epoch FROM seen) * 1000)::int8,
             seen > now() - {GONE_AFTER}
         FROM memoird.members WHERE seen > now() - {FORGOTTEN_AFTER} ORDER BY name, node"
    );
    let rows = query(client, &sql, &[]).await?;
    let member = |row: &tokio_postgres::Row| {
        Ok(Member {
            name: get(row, 0)?,
            version: get(row, 1)?,
            leads: get(row, 2)?,
            seen_at: Timestamp::from_ms(get(row, 3)?),
            is_here: get(row, 4)?,
        })
    };
    rows.iter().map(member).collect()
}

/// What a member is told when it says that it is there.
pub(crate) struct Standing {
    /// It does what is to be done once.
    pub(crate) leads: bool,
    /// A daemon that shares with nobody has the database.
    pub(crate) is_taken: bool,
}

/// Says that a member is there, and takes or keeps the lease of the one that leads, where nobody
/// else has it. `lease`: how long it is.
pub(crate) async fn heartbeat(
    client: &Client,
    node: Ulid,
    name: &str,
    version: &str,
    lease: &str,
) -> Result<Standing, StoreError> {
    let sql = format!(
        "WITH lead AS (
             INSERT INTO memoird.owner AS o (id, node, name, is_shared, expires_at)
             VALUES (1, $1, $2, true, now() + {lease})
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, name = excluded.name,
                 is_shared = true, expires_at = excluded.expires_at
             WHERE o.node = $1 OR o.expires_at < now()
             RETURNING 1),
         gone AS (DELETE FROM memoird.members
             WHERE node <> $1 AND seen < now() - {FORGOTTEN_AFTER} RETURNING node),
         old AS (DELETE FROM memoird.events WHERE at < now() - {KEPT_FOR}
             OR node IN (SELECT node FROM gone)),
         beat AS (
             INSERT INTO memoird.members AS m (node, name, version, leads, seen)
             VALUES ($1, $2, $3, EXISTS (SELECT FROM lead), now())
             ON CONFLICT (node) DO UPDATE SET leads = excluded.leads,
                 steady = m.steady + (extract(epoch FROM now() - m.seen) * 1000)::int8, seen = now()
             RETURNING leads)
         SELECT beat.leads, EXISTS (SELECT FROM memoird.owner
             WHERE NOT is_shared AND node <> $1 AND expires_at > now()) FROM beat"
    );
    let args: [Arg<'_>; 3] = [
        (&node, Type::UUID),
        (&name, Type::TEXT),
        (&version, Type::TEXT),
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
