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
use crate::schema;
use crate::values::{Ulid, get};

/// A lease is renewed this often; it is over after four times as long, by the database's clock.
const RENEW_PAUSE: Duration = Duration::from_millis(500);
const LEASE: &str = "interval '2 seconds'";
/// Between two looks at a lease of somebody else that may run out.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
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
    /// Takes the lease. Waits as long as somebody else has it, and says who
    /// ([`PgOptions::waits_for`](crate::PgOptions::waits_for)).
    ///
    /// # Errors
    /// When the database fails before anybody was waited for, or has become too new meanwhile.
    pub(crate) async fn take(
        database: &Database,
        mut client: Client,
        node: Ulid,
    ) -> Result<Self, StoreError> {
        let waits_for = &database.options().waits_for;
        loop {
            match owner_after_offer(database, &client, node).await {
                Ok(None) => break,
                Ok(Some(owner)) => tell(waits_for, Some(owner)),
                Err(error) if waits_for.borrow().is_none() => return Err(error),
                Err(error) => tracing::debug!(%error, "the lease could not be looked at"),
            }
            sleep(LOOK_PAUSE).await;
            if client.is_closed()
                && let Ok(other) = database.connect().await
            {
                client = other;
            }
        }
        if waits_for.borrow().is_some() {
            // The other daemon may have been a newer one.
            schema::prepare(&client).await?;
            tell(waits_for, None);
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

/// Takes the lease, if nobody has one; otherwise gives the name of who has it.
async fn owner_after_offer(
    database: &Database,
    client: &Client,
    node: Ulid,
) -> Result<Option<String>, StoreError> {
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
    if change(client, &take, &args).await? > 0 {
        return Ok(None);
    }
    let owner = first(client, "SELECT name FROM memoird.owner", &[]).await?;
    // Who had it may just have given it back.
    let owner = owner.map(|row| get(&row, 0)).transpose()?;
    Ok(Some(
        owner.unwrap_or_else(|| "one that just ended".to_owned()),
    ))
}

fn tell(waits_for: &watch::Sender<Option<String>>, owner: Option<String>) {
    waits_for.send_if_modified(|told| {
        let is_news = *told != owner;
        *told = owner;
        is_news
    });
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
