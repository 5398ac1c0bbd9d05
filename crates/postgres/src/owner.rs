//! Which daemon has the database, as long as daemons do not share one. No session's safety depends
//! on it: it keeps a daemon from answering out of a memory that is older than the database.

use std::time::Duration;

use memoird_store::StoreError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, Database, change, first};
use crate::values::{Ulid, get};

/// A lease is renewed this often; it is over after five times as long, by the database's clock.
const RENEW_PAUSE: Duration = Duration::from_secs(1);
const LEASE: &str = "interval '5 seconds'";
/// Between two looks at a lease of somebody else that may run out.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// The database is away when it has not answered for so long.
const AWAY_AFTER: Duration = Duration::from_secs(3);

/// The lease, and the task that renews it.
#[derive(Debug)]
pub(crate) struct Ownership {
    node: Ulid,
    is_lost: watch::Receiver<bool>,
    is_away: watch::Receiver<bool>,
    renewing: JoinHandle<()>,
}

impl Ownership {
    /// Takes the lease. Waits for one that nobody renews.
    ///
    /// # Errors
    /// When somebody renews it.
    pub(crate) async fn take(
        database: &Database,
        client: Client,
        node: Ulid,
    ) -> Result<Self, StoreError> {
        let name = database.options().name.as_str();
        let take = format!(
            "INSERT INTO memoird.owner AS o (id, node, name, expires_at)
             VALUES (1, $1, $2, now() + {LEASE})
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, name = excluded.name,
                 expires_at = excluded.expires_at
             WHERE o.expires_at < now()
             RETURNING 1"
        );
        let args: [Arg<'_>; 2] = [(&node, Type::UUID), (&name, Type::TEXT)];
        let mut seen: Option<String> = None;
        while change(&client, &take, &args).await? == 0 {
            let sql = "SELECT node::text || expires_at::text, name FROM memoird.owner";
            if let Some(row) = first(&client, sql, &[]).await? {
                let lease: String = get(&row, 0)?;
                if seen.as_ref().is_some_and(|seen| *seen != lease) {
                    let detail = format!(
                        "another memoird ({}) has it; stop that one, or name another database in \
                         journal.postgres.url",
                        get::<&str>(&row, 1)?
                    );
                    return Err(StoreError::Database { detail });
                }
                if seen.is_none() {
                    tracing::info!("another memoird had the database; waiting for its lease");
                }
                seen = Some(lease);
            }
            sleep(LOOK_PAUSE).await;
        }
        let (lost, is_lost) = watch::channel(false);
        let (away, is_away) = watch::channel(false);
        let renewing = Renewing {
            database: database.clone(),
            client: Some(client),
            node,
            away,
        };
        Ok(Self {
            node,
            is_lost,
            is_away,
            renewing: database.runtime().spawn(renewing.run(lost)),
        })
    }

    /// Ends once somebody else has the lease.
    pub(crate) async fn lost(&self) {
        // It is lost as well where the task has ended.
        let _ = self.is_lost.clone().wait_for(|is_lost| *is_lost).await;
    }

    /// True as long as the database does not answer.
    pub(crate) fn away(&self) -> watch::Receiver<bool> {
        self.is_away.clone()
    }

    /// Gives the lease back, if it can be done at once.
    pub(crate) async fn release(&self, database: &Database) {
        self.renewing.abort();
        if let Ok(client) = database.connect().await {
            let sql = "DELETE FROM memoird.owner WHERE node = $1 RETURNING 1";
            let _ = change(&client, sql, &[(&self.node, Type::UUID)]).await;
        }
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

struct Renewing {
    database: Database,
    client: Option<Client>,
    node: Ulid,
    away: watch::Sender<bool>,
}

impl Renewing {
    async fn run(mut self, lost: watch::Sender<bool>) {
        loop {
            let answer = timeout(AWAY_AFTER, self.answer()).await;
            self.tell(answer.is_err());
            if answer == Ok(false) {
                tracing::error!("another memoird has taken the database over");
                let _ = lost.send(true);
                return;
            }
        }
    }

    /// Tries until the database has answered: whether the lease was renewed.
    async fn answer(&mut self) -> bool {
        loop {
            sleep(RENEW_PAUSE).await;
            match self.renew().await {
                Ok(is_renewed) => return is_renewed,
                // Whether it is lost is known once the database is there again.
                Err(error) => tracing::debug!(%error, "the lease could not be renewed"),
            }
        }
    }

    fn tell(&self, is_away: bool) {
        let changes = |away: &mut bool| std::mem::replace(away, is_away) != is_away;
        match (self.away.send_if_modified(changes), is_away) {
            (false, _) => {}
            (true, true) => tracing::warn!("the database does not answer"),
            (true, false) => tracing::info!("the database answers again"),
        }
    }

    async fn renew(&mut self) -> Result<bool, StoreError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.database.connect().await?,
        };
        let sql = format!(
            "UPDATE memoird.owner SET expires_at = now() + {LEASE} WHERE node = $1 RETURNING 1"
        );
        let renewed = change(&client, &sql, &[(&self.node, Type::UUID)]).await?;
        self.client = Some(client);
        Ok(renewed > 0)
    }
}
