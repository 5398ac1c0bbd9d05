//! The lease on a database: exclusive ownership, or leadership among the members of a cluster.
//!
//! The safety of sessions does not depend on it. It prevents an exclusive daemon from replying from
//! a stale cache, and work that must run once from running on all members.

use std::time::Duration;

use memoird_store::StoreError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, Database, DatabaseUse, change, first, with_lock_timeout};
use crate::live_counts;
use crate::members;
use crate::schema;
use crate::values::{Ulid, get};

/// Pause between two renewals. The lease expires after four times as long, by the database's clock.
const RENEW_PAUSE: Duration = Duration::from_millis(500);
const LEASE: &str = "interval '2 seconds'";
/// Pause between two checks of a lease held by another daemon.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// Time without a reply after which the database counts as unreachable.
const AWAY_AFTER: Duration = Duration::from_secs(3);

/// The lease or membership of this process, and the task that renews it.
#[derive(Debug)]
pub(crate) struct Ownership {
    node: Ulid,
    is_lost: watch::Receiver<bool>,
    away: watch::Receiver<Option<String>>,
    leads: watch::Receiver<bool>,
    renewer: JoinHandle<()>,
    /// Adds up the counters of live sessions.
    folder: JoinHandle<()>,
}

impl Ownership {
    /// Acquires the lease, or joins as a member.
    ///
    /// Waits while another daemon has the database, and reports its name in
    /// [`PgOptions::waits_for`](crate::PgOptions::waits_for).
    ///
    /// # Errors
    /// If the database fails before there was anything to wait for, or its schema became too new
    /// during the wait.
    pub(crate) async fn take(
        database: &Database,
        mut client: Client,
        node: Ulid,
    ) -> Result<Self, StoreError> {
        let waits_for = &database.options().waits_for;
        let is_watched = !waits_for.is_closed();
        loop {
            let offered = match database.options().sharing {
                DatabaseUse::Cluster => owner_before_members(database, &client, node).await,
                DatabaseUse::Exclusive | DatabaseUse::Unchecked => {
                    owner_after_offer(database, &client, node).await
                }
            };
            match offered {
                Ok(None) => break,
                Ok(Some(owner)) => publish_owner(waits_for, Some(owner)),
                Err(error) if waits_for.borrow().is_none() => return Err(error),
                Err(error) => tracing::debug!(%error, "the lease could not be read"),
            }
            tokio::select! {
                // Checked first: the runtime of a stopping daemon has no timers left.
                biased;
                () = waits_for.closed(), if is_watched => {
                    let detail = "the caller stopped waiting for the database".to_owned();
                    return Err(StoreError::Unavailable { detail });
                }
                () = sleep(POLL_PAUSE) => {}
            }
            if client.is_closed()
                && let Ok(other) = database.connect().await
            {
                client = other;
            }
        }
        if waits_for.borrow().is_some() {
            // The other daemon may have been a newer version.
            schema::prepare(&client, &schema::JOURNAL).await?;
            publish_owner(waits_for, None);
        }
        let (lost, is_lost) = watch::channel(false);
        let (away, told_away) = watch::channel(None);
        // In a cluster, the next renewal decides who leads.
        let (lead, leads) = watch::channel(database.options().sharing == DatabaseUse::Exclusive);
        let renewer = LeaseRenewer {
            database: database.clone(),
            client: Some(client),
            node,
            problem: None,
            away,
            lead,
        };
        let folding = live_counts::keep_folded(database.clone(), leads.clone());
        Ok(Self {
            node,
            is_lost,
            away: told_away,
            leads,
            renewer: database.runtime().spawn(renewer.run(lost)),
            folder: database.runtime().spawn(folding),
        })
    }

    pub(crate) async fn lost(&self) {
        // The lease also counts as lost if the task has ended.
        let _ = self.is_lost.clone().wait_for(|is_lost| *is_lost).await;
    }

    pub(crate) fn away(&self) -> watch::Receiver<Option<String>> {
        self.away.clone()
    }

    pub(crate) fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    /// Releases the lease, if the database can be reached.
    pub(crate) async fn release(&self, database: &Database) {
        self.renewer.abort();
        self.folder.abort();
        if let Ok(client) = database.connect().await {
            let _ = members::deregister(&client, self.node).await;
        }
    }
}

/// Acquires the lease if it is free. Otherwise returns the name of the owner.
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
             is_shared = excluded.is_shared, expires_at = excluded.expires_at
         WHERE o.expires_at < now()
         RETURNING 1"
    );
    // While there are members, one of them is about to become the leader.
    let member = format!(
        "SELECT name FROM memoird.members WHERE {} ORDER BY leads DESC LIMIT 1",
        members::is_here("seen")
    );
    if let Some(member) = first(client, &member, &[]).await? {
        return Ok(Some(get(&member, 0)?));
    }
    let shorten = format!("{} RETURNING 1", members::shorten_lease(LEASE));
    change(client, &shorten, &[(&node, Type::UUID)]).await?;
    let args: [Arg<'_>; 2] = [(&node, Type::UUID), (&name, Type::TEXT)];
    if change(client, &take, &args).await? > 0 {
        return Ok(None);
    }
    owner_name(client).await.map(Some)
}

/// Joins as a member, unless a daemon has the database exclusively. Then returns its name.
async fn owner_before_members(
    database: &Database,
    client: &Client,
    node: Ulid,
) -> Result<Option<String>, StoreError> {
    if !members::heartbeat(client, node, database.options(), LEASE)
        .await?
        .is_taken
    {
        return Ok(None);
    }
    members::deregister(client, node).await?;
    owner_name(client).await.map(Some)
}

async fn owner_name(client: &Client) -> Result<String, StoreError> {
    match first(client, "SELECT name FROM memoird.owner", &[]).await? {
        Some(row) => get(&row, 0),
        // The owner has released it since.
        None => Ok("one that just ended".to_owned()),
    }
}

fn publish_owner(waits_for: &watch::Sender<Option<String>>, owner: Option<String>) {
    waits_for.send_if_modified(|told| {
        let is_news = *told != owner;
        *told = owner;
        is_news
    });
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.renewer.abort();
        self.folder.abort();
    }
}

struct LeaseRenewer {
    database: Database,
    client: Option<Client>,
    node: Ulid,
    problem: Option<StoreError>,
    away: watch::Sender<Option<String>>,
    lead: watch::Sender<bool>,
}

enum RenewalOutcome {
    /// This process still is the owner or a member. `leads`: whether it is the leader.
    Held { leads: bool },
    /// Another daemon is the owner.
    Lost,
}

impl LeaseRenewer {
    async fn run(mut self, lost: watch::Sender<bool>) {
        loop {
            self.problem = None;
            let reply = timeout(AWAY_AFTER, self.renew_until_reply()).await;
            self.publish_problem(reply.is_err().then(|| self.problem_text()));
            match reply {
                Ok(RenewalOutcome::Held { leads }) => self.publish_leadership(leads),
                Ok(RenewalOutcome::Lost) => {
                    tracing::error!("another daemon took over the database");
                    let _ = lost.send(true);
                    return;
                }
                // The lease has expired.
                Err(_) => self.publish_leadership(false),
            }
        }
    }

    /// Publishes leadership. Only members change it.
    fn publish_leadership(&self, leads: bool) {
        if self.database.options().sharing != DatabaseUse::Cluster {
            return;
        }
        let changes = |known: &mut bool| std::mem::replace(known, leads) != leads;
        match (self.lead.send_if_modified(changes), leads) {
            (false, _) => {}
            (true, true) => tracing::info!("this daemon is the leader now"),
            (true, false) => tracing::info!("this daemon is not the leader any more"),
        }
    }

    /// Renews until the database replies.
    async fn renew_until_reply(&mut self) -> RenewalOutcome {
        let mut pause = RENEW_PAUSE;
        if self.database.options().sharing == DatabaseUse::Cluster && !*self.lead.borrow() {
            // Without a leader, take over sooner.
            pause /= 2;
        }
        loop {
            sleep(pause).await;
            match self.renew().await {
                Ok(renewed) => return renewed,
                // Whether the lease is lost is unknown until the database is reachable again.
                Err(error) => {
                    tracing::debug!(%error, "the lease could not be renewed");
                    self.problem = Some(error);
                }
            }
        }
    }

    /// Describes the last error for the operator.
    fn problem_text(&self) -> String {
        let problem = match &self.problem {
            None => format!("does not answer within {AWAY_AFTER:?}"),
            Some(StoreError::Unavailable { detail }) => format!("does not answer: {detail}"),
            Some(StoreError::Database { detail } | StoreError::Locked { detail }) => {
                format!("rejects writes: {detail}")
            }
            Some(other) => format!("cannot be used: {other}"),
        };
        format!("the database of journal.postgres.url {problem}")
    }

    fn publish_problem(&self, problem: Option<String>) {
        let was_away = self.away.borrow().is_some();
        match (&problem, was_away) {
            (Some(problem), false) => tracing::warn!("{problem}"),
            (None, true) => tracing::info!("the database answers again"),
            _ => {}
        }
        let is_back = problem.is_none() && was_away;
        self.away.send_if_modified(|told| {
            let is_news = *told != problem;
            *told = problem;
            is_news
        });
        if is_back {
            // A new connection works, or only this one does. Older ones are presumed dead.
            let silences = &self.database.options().silences;
            silences.send_modify(|silences| *silences += 1);
        }
    }

    async fn renew(&mut self) -> Result<RenewalOutcome, StoreError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.database.connect().await?,
        };
        let renewed = with_lock_timeout(&client, self.send_renewal(&client)).await?;
        self.client = Some(client);
        Ok(renewed)
    }

    async fn send_renewal(&self, client: &Client) -> Result<RenewalOutcome, StoreError> {
        Ok(match self.database.options().sharing {
            DatabaseUse::Cluster => {
                let options = self.database.options();
                let standing = members::heartbeat(client, self.node, options, LEASE).await?;
                if standing.is_taken {
                    RenewalOutcome::Lost
                } else {
                    RenewalOutcome::Held {
                        leads: standing.leads,
                    }
                }
            }
            DatabaseUse::Exclusive | DatabaseUse::Unchecked => {
                let sql = format!(
                    "UPDATE memoird.owner SET expires_at = now() + {LEASE} WHERE node = $1
                     RETURNING 1"
                );
                match change(client, &sql, &[(&self.node, Type::UUID)]).await? {
                    0 => RenewalOutcome::Lost,
                    _ => RenewalOutcome::Held { leads: true },
                }
            }
        })
    }
}
