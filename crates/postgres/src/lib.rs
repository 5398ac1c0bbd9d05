//! memoird's journal in PostgreSQL.
//!
//! [`PgStore`] implements the same port as the stores of `memoird-store`, and is also safe if
//! several processes write to one database.
//!
//! Each change of a session is one autocommit statement. It compares and swaps the row of the
//! generation, and writes the content only if that succeeds. `docs/cluster.md` describes the
//! design.

mod base;
mod commit;
mod connect;
mod error;
mod events;
mod live_counts;
mod load;
mod members;
mod owner;
mod parts;
mod policy;
mod read;
mod schema;
mod search;
mod tables;
mod tls;
mod transactions;
mod transfer;
mod values;
mod verify;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use hashlink::LruCache;
use memoird_core::change::ChangeSet;
use memoird_core::idempotency::{Fingerprint, Keys};
use memoird_core::ids::{Generation, SessionKey, TenantId};
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::{Head, SavedSession};
use memoird_core::time::Steady;
use memoird_store::checksum::TurnCounters;
use memoird_store::plan::{Base, plan};
use memoird_store::rows::{StoredRow, written_turn};
use memoird_store::verify::FileCheck;
use memoird_store::{
    CleanupPending, ClockAnchor, EndedRecord, EventExchange, ExchangedEvents, GenerationOwner,
    InDoubtCommits, JournalPage, JournalRange, LiveQuery, READERS_MAX, SearchIndex, SessionToLoad,
    StaleBase, Store, StoreError, TableBody, TurnCounts, WrittenTurn, WrittenTurns, lock,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use base::{RequiredReads, Version};
use commit::Lane;
use connect::{Arg, Database};
pub use connect::{DatabaseUse, PgOptions};
use events::ExchangePosition;
use load::{LoadedHead, SessionRead};
pub use members::{Member, Membership};
use owner::Ownership;
use parts::{WritePart, reject, split};
pub use policy::{StoredPolicy, replace_policy};
use read::KeyArgs;
pub use schema::SchemaMigrations;
pub use transactions::{Column, OpenTransaction, ResultRow, Transactions, Value};
pub use transfer::PgTransfer;
use values::{Ulid, limit, whole};

/// Maximum number of generation versions in the LRU cache: about 25 MB.
const VERSIONS_MAX: usize = 1 << 17;

/// Approximate maximum bytes of turns that one statement loads.
const LOAD_BYTES: u64 = 4 << 20;

/// The journal in the schema `memoird` of a database.
///
/// The methods block. Do not call them on a thread of the runtime.
#[derive(Debug)]
pub struct PgStore {
    database: Database,
    lane: Mutex<Lane>,
    in_doubt: Arc<Mutex<InDoubtCommits>>,
    /// Versions that this process loaded or wrote. Its next changes are based on them.
    versions: Mutex<LruCache<Generation, Version>>,
    /// Revision and stamp of the generations in the commit in flight.
    writing: Mutex<HashMap<Generation, (u64, i64)>>,
    counters: TurnCounters,
    node: Ulid,
    ownership: Option<Ownership>,
    events: Mutex<ExchangePosition>,
}

impl PgStore {
    /// Opens the journal of a database, or creates an empty one. Connections run on `runtime`.
    ///
    /// Blocks while another daemon has the database exclusively. Do not call it on a thread of the
    /// runtime.
    ///
    /// # Errors
    /// If the database cannot be reached, or its schema is too new. Nothing was changed then.
    pub fn open(options: PgOptions, runtime: &Handle) -> Result<Self, StoreError> {
        let sharing = options.sharing;
        let database = {
            // The pool needs the runtime's timers.
            let _entered = runtime.enter();
            Database::new(options, runtime.clone(), READERS_MAX)?
        };
        let node = Ulid(rand::random());
        let in_doubt = Arc::<Mutex<InDoubtCommits>>::default();
        let (lane, ownership) = database.wait(async {
            let client = database.connect().await?;
            schema::prepare(&client, &schema::JOURNAL).await?;
            let ownership = match sharing {
                DatabaseUse::Unchecked => None,
                DatabaseUse::Exclusive | DatabaseUse::Cluster => {
                    Some(Ownership::take(&database, client, node).await?)
                }
            };
            let client = database.connect().await?;
            let shown = database.options().shown();
            if let Err(error) = transfer::check_finished(&client, &shown).await {
                if let Some(ownership) = &ownership {
                    ownership.release(&database).await;
                }
                return Err(error);
            }
            let lane = Lane::begin(&database, client, node, Arc::clone(&in_doubt)).await?;
            Ok::<_, StoreError>((lane, ownership))
        })?;
        Ok(Self {
            database,
            lane: Mutex::new(lane),
            in_doubt,
            versions: Mutex::new(LruCache::new(VERSIONS_MAX)),
            writing: Mutex::default(),
            counters: TurnCounters::default(),
            node,
            ownership,
            events: Mutex::default(),
        })
    }

    /// Returns once another daemon has taken over an exclusively used database.
    ///
    /// After that, the sessions cached by this process may be stale. Never returns with
    /// [`DatabaseUse::Unchecked`].
    pub async fn lost(&self) {
        match &self.ownership {
            Some(ownership) => ownership.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Describes the problem while renewing the lease has failed for more than 3 seconds.
    ///
    /// Always `None` with [`DatabaseUse::Unchecked`].
    pub fn away(&self) -> watch::Receiver<Option<String>> {
        match &self.ownership {
            Some(ownership) => ownership.away(),
            None => watch::channel(None).1,
        }
    }

    /// Whether this process is the leader, which runs sweeps and hooks.
    ///
    /// Always true if the process has the database exclusively. While the database is unreachable,
    /// two members may both believe they lead for some seconds. The leader's tasks tolerate that.
    pub fn leads(&self) -> watch::Receiver<bool> {
        match &self.ownership {
            Some(ownership) => ownership.leads(),
            None => watch::channel(true).1,
        }
    }

    /// Returns the current position on the shared timeline. `None` if nothing was written yet.
    ///
    /// This is the most advanced position of the other members. Without members, it is the time of
    /// the last commit plus the time that has passed since. Both use the database's clock, which is
    /// the same for all machines.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn steady(&self) -> Result<Option<Steady>, StoreError> {
        let node = self.node;
        self.database.call(
            async |client: &Client| match members::steady(client, node).await? {
                None => members::steady_of_commits(client).await,
                of_others => Ok(of_others),
            },
        )
    }

    /// Returns the members of the cluster as they were last seen, and the deliveries due at `now`.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub fn membership(&self, now: Steady) -> Result<Membership, StoreError> {
        self.database
            .call(async |client: &Client| members::all(client, now).await)
    }

    /// Returns a secret shared by all daemons of the database. The first call stores `offered`.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn secret(&self, name: &str, offered: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.database
            .call(async |client: &Client| members::secret(client, name, offered).await)
    }

    /// Returns the policy of the cluster. The first call stores `offered`.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn policy(&self, offered: &[u8]) -> Result<StoredPolicy, StoreError> {
        self.database
            .call(async |client: &Client| policy::offer(client, offered).await)
    }

    /// Replaces version `was` of the policy, and returns the one that applies.
    ///
    /// # Errors
    /// If the database cannot be written.
    pub fn replace_policy(&self, was: u64, body: &[u8]) -> Result<StoredPolicy, StoreError> {
        self.database
            .call(async |client: &Client| policy::replace(client, Some(was), body).await)
    }

    /// Returns this process's id among the members.
    pub fn node(&self) -> u128 {
        u128::from_be_bytes(self.node.0)
    }

    /// Releases the lease, so that another daemon need not wait until it expires.
    pub fn release(&self) {
        if let Some(ownership) = &self.ownership {
            self.database.wait(ownership.release(&self.database));
        }
    }

    fn versions(&self) -> MutexGuard<'_, LruCache<Generation, Version>> {
        lock(&self.versions)
    }

    /// Returns the base of a batch, from the cache or the database.
    fn base(&self, mut needs: RequiredReads) -> Result<Base<Version>, StoreError> {
        let mut versions = Vec::new();
        {
            let mut kept = self.versions();
            needs.versions.retain(|generation, expected| {
                let version = kept
                    .get(generation)
                    .filter(|version| version.revision == *expected);
                versions.extend(version.map(|version| (*generation, version.clone())));
                version.is_none()
            });
        }
        let has_all =
            needs.versions.is_empty() && needs.begins.is_empty() && needs.summaries.is_empty();
        let mut base = if has_all {
            Base::default()
        } else {
            self.database
                .call(async |client: &Client| read::base(client, &needs).await)?
        };
        base.rows.extend(versions);
        let live = base.rows.values().map(|version| version.key.clone());
        base.live.extend(live);
        Ok(base)
    }

    /// Writes the parts of a batch.
    ///
    /// Calls `reject` with each generation that lost a race against another process.
    fn write(
        &self,
        clock: &ClockAnchor,
        parts: &[WritePart<'_>],
        mut reject: impl FnMut(Generation),
    ) -> Result<(), StoreError> {
        let mut lane = lock(&self.lane);
        for (place, part) in parts.iter().enumerate() {
            // The first part carries the clock. The others have sets that change several
            // generations.
            if place > 0 && part.rows.is_empty() {
                continue;
            }
            self.note_writing(part);
            let written = self.database.wait(lane.write(&self.database, clock, part));
            let missed = match written {
                Ok(missed) => missed,
                // Earlier parts are written. The callers of this set reload and retry.
                Err(error) if place > 0 => {
                    tracing::warn!(%error, "a change set could not be written and is rejected");
                    None
                }
                Err(error) => {
                    self.forget_versions(part);
                    return Err(error);
                }
            };
            let mut writing = lock(&self.writing);
            let mut versions = self.versions();
            for (at, (generation, row)) in part.rows.iter().enumerate() {
                let change = &row.change;
                if missed.as_ref().is_none_or(|missed| missed.contains(&at)) {
                    versions.remove(generation);
                    reject(*generation);
                } else if change.ended.is_some() {
                    versions.remove(generation);
                } else {
                    let version = Version {
                        key: change.key.clone(),
                        revision: change.revision,
                        stamp: row.stamp,
                        last_seq: change.last_seq,
                    };
                    versions.insert(*generation, version);
                }
            }
            // Both locks are held, so that `current_revisions` finds a version in one of the two maps.
            writing.clear();
        }
        Ok(())
    }

    /// Loads a session in a transaction with one snapshot.
    fn load_snapshot(
        &self,
        wanted: &SessionToLoad,
        keys_since: Steady,
    ) -> Result<Option<(Box<SavedSession>, i64)>, StoreError> {
        let wanted = std::slice::from_ref(wanted);
        let read = self.database.read_snapshot(async |client: &Client| {
            let heads = load::heads(client, keys_since, wanted).await?;
            let Some(head) = heads.into_iter().next() else {
                return Ok(None);
            };
            let head = head.map_err(|(_, error)| error)?;
            let read = load::turns(client, &[head], wanted, &self.counters).await?;
            read.into_iter().next().transpose()
        });
        Ok(match read? {
            Some(SessionRead::Session(saved, stamp)) => Some((saved, stamp)),
            Some(SessionRead::Changed) | None => None,
        })
    }

    /// Notes the version of a loaded session, on which the next changes are based.
    fn note_loaded(&self, key: &SessionKey, head: &Head, stamp: i64) {
        let version = Version {
            key: key.clone(),
            revision: head.revision,
            stamp,
            last_seq: head.last_seq,
        };
        let mut versions = self.versions();
        // A commit may have inserted a newer version in the meantime.
        let newer = versions.get(&head.generation);
        if newer.is_none_or(|newer| newer.revision <= version.revision) {
            versions.insert(head.generation, version);
        }
    }

    fn note_writing(&self, part: &WritePart<'_>) {
        let mut writing = lock(&self.writing);
        let rows = part.rows.iter();
        writing.extend(rows.map(|(name, row)| (*name, (row.change.revision, row.stamp))));
    }

    fn forget_versions(&self, part: &WritePart<'_>) {
        lock(&self.writing).clear();
        let mut versions = self.versions();
        for (generation, row) in &part.rows {
            if !row.change.is_new() {
                versions.remove(generation);
            }
        }
    }
}

impl Store for PgStore {
    fn commit(
        &self,
        clock: &ClockAnchor,
        sets: &[ChangeSet],
    ) -> Result<Vec<Result<(), StaleBase>>, StoreError> {
        let needs = {
            let kept = self.versions();
            RequiredReads::of(sets, |name| kept.contains_key(name))
        };
        let base = self.base(needs)?;
        let has_others = self.database.options().sharing != DatabaseUse::Unchecked;
        let (mut results, parts) = split(sets, plan(sets, &base, has_others));
        self.write(clock, &parts, |generation| {
            reject(sets, &mut results, generation);
        })?;
        Ok(results)
    }

    fn clock(&self) -> Result<Option<ClockAnchor>, StoreError> {
        self.database.call(read::clock)
    }

    fn live_heads(&self, visit: &mut dyn FnMut(SessionKey, Head)) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let rows = self
                .database
                .call(async |client: &Client| read::live_rows(client, after).await)?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            after = Some(last.head.generation);
            // No statement is open here, because the visitor may call the store.
            rows.into_iter().for_each(|row| visit(row.key, row.head));
        }
    }

    fn live_counts(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        self.database.call(live_counts::read)
    }

    fn live_page(&self, query: &LiveQuery) -> Result<Vec<(SessionKey, Head)>, StoreError> {
        read::live_page(&self.database, query)
    }

    fn sync_clock(&self, steady: Steady) -> Result<Steady, StoreError> {
        let node = self.node;
        self.database
            .call(async |client: &Client| members::sync_clock(client, node, steady).await)
    }

    fn exchange_events(&self, exchange: EventExchange) -> Result<ExchangedEvents, StoreError> {
        let mut progress = lock(&self.events);
        let node = self.node;
        let exchanged = self.database.call(async |client: &Client| {
            events::exchange(client, node, progress.clone(), &exchange).await
        });
        match exchanged {
            Ok((reached, reply)) => {
                *progress = reached;
                Ok(reply)
            }
            Err(error) => {
                progress.skip(&exchange);
                Err(error)
            }
        }
    }

    fn current_revisions(
        &self,
        generations: &[Generation],
    ) -> Result<Vec<Option<u64>>, StoreError> {
        let newest = self
            .database
            .call(async |client: &Client| read::newest(client, generations).await)?;
        let writing = lock(&self.writing);
        let mut versions = self.versions();
        let mut revision = |name: &Generation| {
            let newest = newest.get(name)?;
            let known = versions.get(name);
            let is_known = known.is_some_and(|known| (known.revision, known.stamp) == *newest)
                || writing.get(name) == Some(newest);
            if !is_known {
                // A failover may have lost the cached version. Let the next load replace it by an
                // older one.
                versions.remove(name);
            }
            is_known.then_some(newest.0)
        };
        Ok(generations.iter().map(&mut revision).collect())
    }

    fn load(
        &self,
        key: &SessionKey,
        keys_since: Steady,
    ) -> Result<Option<SavedSession>, StoreError> {
        let wanted = SessionToLoad {
            key: key.clone(),
            known: None,
            idempotency_key: None,
        };
        let mut loaded = None;
        self.load_all(&[wanted], keys_since, &mut |_, found| loaded = Some(found))?;
        loaded.transpose()
    }

    fn load_all(
        &self,
        wanted: &[SessionToLoad],
        keys_since: Steady,
        found: &mut dyn FnMut(usize, Result<SavedSession, StoreError>),
    ) -> Result<(), StoreError> {
        let heads = async |client: &Client| load::heads(client, keys_since, wanted).await;
        let mut live = Vec::new();
        for head in self.database.call(heads)? {
            match head {
                Ok(head) => live.push(head),
                Err((place, error)) => found(place, Err(error)),
            }
        }
        let mut rest = &live[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_in_part = |head: &&LoadedHead| {
                let has_room = bytes < LOAD_BYTES;
                bytes += head.bytes();
                has_room
            };
            let (part, others) = rest.split_at(rest.iter().take_while(is_in_part).count());
            rest = others;
            let turns =
                async |client: &Client| load::turns(client, part, wanted, &self.counters).await;
            for (head, read) in part.iter().zip(self.database.call(turns)?) {
                let loaded = match read {
                    Ok(SessionRead::Session(saved, stamp)) => Ok(Some((saved, stamp))),
                    Ok(SessionRead::Changed) => self.load_snapshot(&wanted[head.place], keys_since),
                    Err(error) => Err(error),
                };
                if let Some(loaded) = loaded.transpose() {
                    let key = &wanted[head.place].key;
                    let noted = loaded.map(|(saved, stamp)| {
                        self.note_loaded(key, &saved.head, stamp);
                        *saved
                    });
                    found(head.place, noted);
                }
            }
        }
        Ok(())
    }

    fn keys(&self, key: &SessionKey, since: Steady) -> Result<Keys, StoreError> {
        let sql = "SELECT * FROM memoird.session_keys($1, $2, $3, $4)";
        let rows = self.database.query(sql, &KeyArgs::of(key, since).all())?;
        let row = rows.first();
        row.map_or_else(|| Ok(Keys::default()), |row| read::keys_of(row, 0))
    }

    fn keyed_sessions(
        &self,
        after: Option<&SessionKey>,
        max: usize,
    ) -> Result<Vec<SessionKey>, StoreError> {
        // Loose index scan: one index lookup per session instead of reading all keys.
        let sql = "WITH RECURSIVE keyed AS (
                       (SELECT tenant, session FROM memoird.idempotency
                        WHERE (tenant, session) > ($1, $2) ORDER BY tenant, session LIMIT 1)
                       UNION ALL
                       SELECT next.tenant, next.session FROM keyed CROSS JOIN LATERAL (
                           SELECT k.tenant, k.session FROM memoird.idempotency AS k
                           WHERE (k.tenant, k.session) > (keyed.tenant, keyed.session)
                           ORDER BY k.tenant, k.session LIMIT 1) AS next)
                   SELECT tenant, session FROM keyed LIMIT $3";
        let tenant = after.map_or(&b""[..], |key| key.tenant.as_str().as_bytes());
        let session = after.map_or(&b""[..], |key| key.session.as_str().as_bytes());
        let args: [Arg<'_>; 3] = [
            (&tenant, Type::BYTEA),
            (&session, Type::BYTEA),
            (&limit(max), Type::INT8),
        ];
        let rows = self.database.query(sql, &args)?;
        rows.iter().map(|row| row.key(0, 1)).collect()
    }

    fn journal(
        &self,
        key: &SessionKey,
        generation: Option<Generation>,
        range: JournalRange,
    ) -> Result<Option<JournalPage>, StoreError> {
        self.database.read_snapshot(async |client: &Client| {
            read::journal(client, key, generation, range, &self.counters).await
        })
    }

    fn rewound_by(
        &self,
        generation: Generation,
        key: &Fingerprint,
    ) -> Result<SeqRanges, StoreError> {
        let sql = "SELECT lower(run), upper(run) - 1 FROM memoird.rewinds, unnest(runs) AS run
                   WHERE generation = $1 AND key = $2 ORDER BY 1";
        let of: [Arg<'_>; 2] = [
            (&Ulid::from(generation), Type::UUID),
            (&&key[..], Type::BYTEA),
        ];
        let rows = self.database.query(sql, &of)?;
        let runs = rows.iter().map(|row| Ok((row.count(0)?, row.count(1)?)));
        runs.collect::<Result<Vec<_>, _>>().map(SeqRanges::restore)
    }

    fn written_after(
        &self,
        number: u64,
        turns_max: usize,
        bytes_max: usize,
    ) -> Result<WrittenTurns, StoreError> {
        self.database.call(async |client: &Client| {
            read::written_after(client, number, turns_max, bytes_max, &self.counters).await
        })
    }

    fn written_at(&self, numbers: &[u64]) -> Result<Vec<WrittenTurn>, StoreError> {
        let wanted: Vec<i64> = numbers.iter().map(|number| whole(*number)).collect();
        let sql = format!(
            "SELECT {}, t.number, t.generation FROM memoird.turns AS t
             WHERE t.number = ANY($1) AND NOT {}",
            read::TURN,
            read::IS_REWOUND
        );
        let rows = self.database.query(&sql, &[(&wanted, Type::INT8_ARRAY)])?;
        let mut found = BTreeMap::new();
        for row in &rows {
            let turn = written_turn(row, &self.counters)?;
            found.insert(turn.number, turn);
        }
        let turns = numbers
            .iter()
            .filter_map(|number| found.get(number).cloned());
        Ok(turns.collect())
    }

    fn owners(&self, generations: &[Generation]) -> Result<Vec<GenerationOwner>, StoreError> {
        let names: Vec<Ulid> = generations.iter().map(|name| (*name).into()).collect();
        let sql = "SELECT generation, tenant, session, subject FROM memoird.generations
                   WHERE generation = ANY($1)";
        let rows = self.database.query(sql, &[(&names, Type::UUID_ARRAY)])?;
        let mut known = HashMap::new();
        for row in &rows {
            let owner = GenerationOwner {
                generation: row.generation(0)?,
                key: row.key(1, 2)?,
                subject: row.subject(3)?,
            };
            known.insert(owner.generation, owner);
        }
        let owners = generations
            .iter()
            .filter_map(|name| known.get(name).cloned());
        Ok(owners.collect())
    }

    fn read_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        tables::read(&self.database, body)
    }

    fn write_tables(&self, body: TableBody<'_>) -> Result<(), StoreError> {
        tables::write(&self.database, "", body)
    }

    fn ended(
        &self,
        wanted: &[(SessionKey, Generation)],
        bytes_max: usize,
    ) -> Result<Vec<EndedRecord>, StoreError> {
        self.database.read_snapshot(async |client: &Client| {
            read::ended(client, wanted, bytes_max, &self.counters).await
        })
    }

    fn turn_bytes(&self) -> Result<Vec<(TenantId, u64)>, StoreError> {
        let sql = "SELECT tenant, sum(journal_bytes)::int8 FROM memoird.generations
                   GROUP BY tenant HAVING sum(journal_bytes) > 0";
        let rows = self.database.query(sql, &[])?;
        let sums = rows.iter();
        sums.map(|row| Ok((row.id(0, TenantId::parse)?, row.count(1)?)))
            .collect()
    }

    /// PostgreSQL's pages and WAL cannot be cleaned from here.
    fn clean_pages(&self, _: usize) -> Result<CleanupPending, StoreError> {
        Ok(CleanupPending::default())
    }

    fn turn_counts(&self) -> TurnCounts {
        *lock(&self.counters)
    }

    fn in_doubt_commits(&self) -> InDoubtCommits {
        *lock(&self.in_doubt)
    }

    fn search_index(&self) -> Option<&dyn SearchIndex> {
        Some(self)
    }

    fn check_turns(&self) -> Result<Option<FileCheck>, StoreError> {
        verify::check(&self.database).map(Some)
    }
}
