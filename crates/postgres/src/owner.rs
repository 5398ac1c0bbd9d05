//! Which daemon has the database: alone, or as the one of its members that leads. No session's
//! safety depends on it: it keeps a daemon that shares with nobody from answering out of a memory that
//! is older than the database, and work that is to be done once from being done by all.

use std::time::Duration;

use memoird_store::StoreError;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::connect::{Arg, Database, Sharing, briefly, change, first};
use crate::members;
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
    away: watch::Receiver<Option<String>>,
    leads: watch::Receiver<bool>,
    renewing: JoinHandle<()>,
}

impl Ownership {
    /// Takes the lease, or becomes a member. Waits as long as somebody else has the database, and says
    /// who ([`PgOptions::waits_for`](crate::PgOptions::waits_for)).
    ///
    /// # Errors
    /// When the database fails before anybody was waited for, or has become too new meanwhile.
    pub(crate) async fn take(
        database: &Database,
        mut client: Client,
        node: Ulid,
    ) -> Result<Self, StoreError> {
        let waits_for = &database.options().waits_for;
        let is_watched = !waits_for.is_closed();
        loop {
            let offered = match database.options().sharing {
                Sharing::Members => owner_before_members(database, &client, node).await,
                Sharing::Nobody | Sharing::Unseen => {
                    owner_after_offer(database, &client, node).await
                }
            };
            match offered {
                Ok(None) => break,
                Ok(Some(owner)) => tell(waits_for, Some(owner)),
                Err(error) if waits_for.borrow().is_none() => return Err(error),
                Err(error) => tracing::debug!(%error, "the lease could not be looked at"),
            }
            tokio::select! {
                // Looked at first: the runtime of a daemon that stops has no timers any more.
                biased;
                () = waits_for.closed(), if is_watched => {
                    let detail = "nobody waits for the database any more".to_owned();
                    return Err(StoreError::Unavailable { detail });
                }
                () = sleep(LOOK_PAUSE) => {}
            }
            if client.is_closed()
                && let Ok(other) = database.connect().await
            {
                client = other;
            }
        }
        if waits_for.borrow().is_some() {
            // The other daemon may have been a newer one.
            schema::prepare(&client, &schema::JOURNAL).await?;
            tell(waits_for, None);
        }
        let (lost, is_lost) = watch::channel(false);
        let (away, told_away) = watch::channel(None);
        // Of members the next renewal says which of them it is.
        let (lead, leads) = watch::channel(database.options().sharing == Sharing::Nobody);
        let renewing = Renewing {
            database: database.clone(),
            client: Some(client),
            node,
            problem: None,
            away,
            lead,
        };
        Ok(Self {
            node,
            is_lost,
            away: told_away,
            leads,
            renewing: database.runtime().spawn(renewing.run(lost)),
        })
    }

    /// Ends once somebody else has the lease.
    pub(crate) async fn lost(&self) {
        // It is lost as well where the task has ended.
        let _ = self.is_lost.clone().wait_for(|is_lost| *is_lost).await;
    }

    /// What the database does as long as it does not answer as it should.
    pub(crate) fn away(&self) -> watch::Receiver<Option<String>> {
        self.away.clone()
    }

    /// True as long as this daemon is to do what is to be done once.
    pub(crate) fn leads(&self) -> watch::Receiver<bool> {
        self.leads.clone()
    }

    /// Gives the lease back, if it can be done at once.
    pub(crate) async fn release(&self, database: &Database) {
        self.renewing.abort();
        if let Ok(client) = database.connect().await {
            let _ = members::leave(&client, self.node).await;
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
             is_shared = excluded.is_shared, expires_at = excluded.expires_at
         WHERE o.expires_at < now()
         RETURNING 1"
    );
    // As long as daemons share it, one of them is about to lead.
    let member = "SELECT name FROM memoird.members WHERE seen > now() - interval '5 seconds'
                  ORDER BY leads DESC LIMIT 1";
    if let Some(member) = first(client, member, &[]).await? {
        return Ok(Some(get(&member, 0)?));
    }
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

/// Becomes a member, unless a daemon has the database that shares it with nobody; then gives its
/// name.
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
    members::leave(client, node).await?;
    let owner = first(client, "SELECT name FROM memoird.owner", &[]).await?;
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
    /// Why the last try failed.
    problem: Option<StoreError>,
    away: watch::Sender<Option<String>>,
    lead: watch::Sender<bool>,
}

/// What became of a lease that was to be renewed.
enum Renewed {
    /// The daemon still has the database, or its part in it; it leads, or another one does.
    Held { leads: bool },
    /// Somebody else has the database.
    Lost,
}

impl Renewing {
    async fn run(mut self, lost: watch::Sender<bool>) {
        loop {
            self.problem = None;
            let answer = timeout(AWAY_AFTER, self.answer()).await;
            self.tell(answer.is_err().then(|| self.told_problem()));
            match answer {
                Ok(Renewed::Held { leads }) => self.tell_leads(leads),
                Ok(Renewed::Lost) => {
                    tracing::error!("another memoird has taken the database over");
                    let _ = lost.send(true);
                    return;
                }
                // The lease is over.
                Err(_) => self.tell_leads(false),
            }
        }
    }

    /// Only members change.
    fn tell_leads(&self, leads: bool) {
        if self.database.options().sharing != Sharing::Members {
            return;
        }
        let changes = |known: &mut bool| std::mem::replace(known, leads) != leads;
        match (self.lead.send_if_modified(changes), leads) {
            (false, _) => {}
            (true, true) => tracing::info!("this memoird leads"),
            (true, false) => tracing::info!("another memoird leads, or none"),
        }
    }

    /// Tries until the database has answered.
    async fn answer(&mut self) -> Renewed {
        let mut pause = RENEW_PAUSE;
        if self.database.options().sharing == Sharing::Members && !*self.lead.borrow() {
            // Where nobody leads, this one may as well do so soon.
            pause /= 2;
        }
        loop {
            sleep(pause).await;
            match self.renew().await {
                Ok(renewed) => return renewed,
                // Whether it is lost is known once the database is there again.
                Err(error) => {
                    tracing::debug!(%error, "the lease could not be renewed");
                    self.problem = Some(error);
                }
            }
        }
    }

    /// What the database does.
    fn told_problem(&self) -> String {
        match &self.problem {
            None => format!("does not answer within {AWAY_AFTER:?}"),
            Some(StoreError::Unavailable { detail }) => format!("does not answer: {detail}"),
            Some(StoreError::Database { detail } | StoreError::Locked { detail }) => {
                format!("refuses what a daemon has to write: {detail}")
            }
            Some(other) => format!("cannot be used: {other}"),
        }
    }

    fn tell(&self, problem: Option<String>) {
        let was_away = self.away.borrow().is_some();
        match (&problem, was_away) {
            (Some(problem), false) => tracing::warn!("the database {problem}"),
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
            // This connection is a new one, or the only one that came through.
            let silences = &self.database.options().silences;
            silences.send_modify(|silences| *silences += 1);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, StoreError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.database.connect().await?,
        };
        let renewed = briefly(&client, self.ask_for_renewal(&client)).await?;
        self.client = Some(client);
        Ok(renewed)
    }

    async fn ask_for_renewal(&self, client: &Client) -> Result<Renewed, StoreError> {
        Ok(match self.database.options().sharing {
            Sharing::Members => {
                let options = self.database.options();
                let standing = members::heartbeat(client, self.node, options, LEASE).await?;
                match standing.is_taken {
                    true => Renewed::Lost,
                    false => Renewed::Held {
                        leads: standing.leads,
                    },
                }
            }
            Sharing::Nobody | Sharing::Unseen => {
                let sql = format!(
                    "UPDATE memoird.owner SET expires_at = now() + {LEASE} WHERE node = $1
                     RETURNING 1"
                );
                match change(client, &sql, &[(&self.node, Type::UUID)]).await? {
                    0 => Renewed::Lost,
                    _ => Renewed::Held { leads: true },
                }
            }
        })
    }
}
