//! The search index: one table with stems, filled by the leader in batches.
//!
//! A turn is deleted together with its row. Turns with replaced content are in `turn_changes` until
//! they are indexed again. A deletion of turns holds a shared lock of `search_state`, and an indexing
//! step an exclusive one, so that no step adds a turn that was deleted after it was read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use memoird_core::ids::{Generation, Subject, TenantId};
use memoird_core::words::{self, Languages};
use memoird_store::rows::StoredRow;
use memoird_store::{
    CALL_TURNS, GenerationOwner, IndexBounds, IndexEntry, IndexStep, PurgeStep, SearchCandidate,
    SearchFilter, SearchIndex, SearchMatches, Store, StoreError, index_entries, role_word,
    tool_word,
};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::PgStore;
use crate::connect::{Arg, Database, change, first, query};
use crate::error::failed;
use crate::values::{Ulid, get, limit, whole};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// Maximum bytes of a lexeme in PostgreSQL. Longer words are not indexed.
const WORD_BYTES_MAX: usize = 2_046;

/// A turn with replaced content.
struct TurnChange {
    change: i64,
    generation: Generation,
    number: u64,
}

impl SearchIndex for PgStore {
    fn index_step(&self, bounds: IndexBounds) -> Result<IndexStep, StoreError> {
        let mut mark = self.database.call(mark)?;
        let is_new = mark.is_none();
        if is_new {
            self.database
                .write(async |client: &Client| clear(client, words::VERSION).await)?;
            mark = Some(0);
        }
        let mark = mark.unwrap_or_default();
        // Changes are read before the contents, which are then at least as new.
        let changes = changes(&self.database, bounds.stale_max)?;
        let mut numbers: Vec<u64> = changes.iter().map(|change| change.number).collect();
        numbers.retain(|number| *number <= mark);
        numbers.sort_unstable();
        numbers.dedup();
        let mut written = self.written_at(&numbers)?;
        let next = self.written_after(mark, bounds.turns_max, bounds.bytes_max)?;
        let bytes: usize = next.turns.iter().map(|turn| turn.content.len()).sum();
        let is_all = next.turns.len() < bounds.turns_max && bytes < bounds.bytes_max;
        let last = next.turns.last().filter(|_| !is_all);
        let new_mark = last.map_or(next.last_number.max(mark), |turn| turn.number);
        let last_number = next.last_number;
        written.extend(next.turns);
        let entries = index_entries(self, &written, |generation, before| {
            earlier_turns(&self.database, generation, before)
        })?;
        let batch = Batch {
            changes: &changes,
            entries: &entries,
            mark,
            new_mark,
        };
        let mut done = IndexStep::default();
        if new_mark > mark || !changes.is_empty() {
            done = self
                .database
                .write(async |client: &Client| batch.write(client).await)?;
        }
        done.is_new = is_new;
        done.behind = last_number.saturating_sub(new_mark);
        done.has_more |= done.behind > 0 || changes.len() == bounds.stale_max;
        Ok(done)
    }

    /// PostgreSQL's pages and WAL cannot be cleaned from here.
    fn purge_step(&self) -> Result<PurgeStep, StoreError> {
        Ok(PurgeStep::Done)
    }

    fn remove_index(&self) -> Result<(), StoreError> {
        if self.database.call(mark)?.is_none() {
            return Ok(());
        }
        self.database
            .write(async |client: &Client| clear(client, 0).await)
    }

    fn has_indexed(&self, tenant: &TenantId, number: u64) -> Result<bool, StoreError> {
        let sql = "SELECT words_version = $1 AND indexed >= $2 AND NOT EXISTS
                       (SELECT 1 FROM memoird.turn_changes
                        JOIN memoird.search_generations USING (generation) WHERE tenant = $3)
                   FROM memoird.search_state";
        let args: [Arg<'_>; 3] = [
            (&words::VERSION, Type::INT8),
            (&whole(number), Type::INT8),
            (&tenant.as_str().as_bytes(), Type::BYTEA),
        ];
        let rows = self.database.query(sql, &args)?;
        rows.first().map_or(Ok(false), |row| row.is_true(0))
    }

    fn find(
        &self,
        filter: &SearchFilter,
        text: &str,
        max: usize,
    ) -> Result<Option<SearchMatches>, StoreError> {
        if self.database.call(mark)?.is_none() {
            return Ok(None);
        }
        let of_tenant = self
            .database
            .call(async |client: &Client| tenants(client, &[filter.tenant.as_str()]).await)?;
        let state = of_tenant.get(filter.tenant.as_str()).copied();
        let languages = state.map_or(Languages::default(), |state| state.languages);
        let mut matches = SearchMatches::new(text, languages);
        let Some(state) = state else {
            return Ok(Some(matches));
        };
        matches.turns = filter.turns.unwrap_or(u64::MAX).min(state.next - 1);
        let days = days(&self.database, filter)?;
        let turns = days.map(|(first, last)| first.max(1)..=last.min(matches.turns));
        if let Some(turns) = turns.filter(|turns| !turns.is_empty()) {
            matches.add_candidates(&turns, max, |forms, max| {
                look_up(&self.database, filter, &turns, forms, max)
            })?;
        }
        Ok(Some(matches))
    }
}

/// Number of the last turn indexed. `None` if the index must be built.
async fn mark(client: &Client) -> Result<Option<u64>, StoreError> {
    let sql = "SELECT indexed FROM memoird.search_state WHERE words_version = $1";
    let row = first(client, sql, &[(&words::VERSION, Type::INT8)]).await?;
    row.map(|row| row.count(0)).transpose()
}

/// Empties the index.
async fn clear(client: &Client, words_version: i64) -> Result<(), StoreError> {
    let sql = "UPDATE memoird.search_state SET words_version = $1, indexed = 0";
    query(client, sql, &[(&words_version, Type::INT8)]).await?;
    let tables = "TRUNCATE memoird.search_turns, memoird.search_generations,
                      memoird.search_tenants, memoird.search_days";
    client.batch_execute(tables).await.map_err(failed)
}

fn changes(database: &Database, max: usize) -> Result<Vec<TurnChange>, StoreError> {
    let sql = "SELECT change, generation, number FROM memoird.turn_changes
               ORDER BY change LIMIT $1";
    let rows = database.query(sql, &[(&limit(max), Type::INT8)])?;
    let changes = rows.iter().map(|row| {
        Ok(TurnChange {
            change: get(row, 0)?,
            generation: row.generation(1)?,
            number: row.count(2)?,
        })
    });
    changes.collect()
}

fn earlier_turns(
    database: &Database,
    generation: Generation,
    before: u64,
) -> Result<Vec<u64>, StoreError> {
    let sql = "SELECT number FROM memoird.turns WHERE generation = $1 AND number < $2
               ORDER BY seq DESC LIMIT $3";
    let args: [Arg<'_>; 3] = [
        (&Ulid::from(generation), Type::UUID),
        (&whole(before), Type::INT8),
        (&whole(CALL_TURNS), Type::INT8),
    ];
    let rows = database.query(sql, &args)?;
    rows.iter().map(|row| row.count(0)).collect()
}

/// State of a tenant in the index.
#[derive(Clone, Copy, Debug)]
struct TenantState {
    /// Number of its next turn.
    next: u64,
    languages: Languages,
}

async fn tenants(
    client: &Client,
    names: &[&str],
) -> Result<HashMap<String, TenantState>, StoreError> {
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    let sql = "SELECT tenant, next, languages FROM memoird.search_tenants WHERE tenant = ANY($1)";
    let rows = query(client, sql, &[(&names, Type::BYTEA_ARRAY)]).await?;
    let states = rows.iter().map(|row| {
        let name = String::from_utf8_lossy(get(row, 0)?).into_owned();
        let state = TenantState {
            next: row.count(1)?,
            languages: Languages::from_bits(get(row, 2)?),
        };
        Ok((name, state))
    });
    states.collect()
}

/// The results of reading for one step.
struct Batch<'a> {
    changes: &'a [TurnChange],
    entries: &'a [IndexEntry],
    mark: u64,
    new_mark: u64,
}

/// Columns of the rows to be inserted.
#[derive(Default)]
struct Columns<'a> {
    tenant: Vec<&'a [u8]>,
    turn: Vec<i64>,
    generation: Vec<Ulid>,
    seq: Vec<i64>,
    number: Vec<i64>,
    at: Vec<i64>,
    words: Vec<String>,
}

impl Batch<'_> {
    /// Writes the step, unless another daemon has done so.
    async fn write(&self, client: &Client) -> Result<IndexStep, StoreError> {
        let sql = "SELECT indexed FROM memoird.search_state WHERE words_version = $1 FOR UPDATE";
        let row = first(client, sql, &[(&words::VERSION, Type::INT8)]).await?;
        let indexed = row.map(|row| row.count(0)).transpose()?;
        if indexed != Some(self.mark) {
            return Ok(IndexStep {
                has_more: true,
                ..IndexStep::default()
            });
        }
        let known = self.remove_changed(client).await?;
        let names = self.entries.iter().map(|it| it.owner.key.tenant.as_str());
        let names: BTreeSet<&str> = names.collect();
        let mut states = tenants(client, &Vec::from_iter(names)).await?;
        let mut days: BTreeMap<(&str, i64), (i64, i64)> = BTreeMap::new();
        let mut columns = Columns::default();
        for entry in self.entries {
            let tenant = entry.owner.key.tenant.as_str();
            let state = states.entry(tenant.to_owned()).or_insert(TenantState {
                next: 1,
                languages: Languages::default(),
            });
            state.languages = state.languages.with(entry.language);
            let turn = known.get(&entry.number).copied().unwrap_or_else(|| {
                state.next += 1;
                whole(state.next - 1)
            });
            let day = (tenant, entry.at_ms.div_euclid(DAY_MS));
            let day = days.entry(day).or_insert((turn, turn));
            *day = (day.0.min(turn), day.1.max(turn));
            let words = entry.words.split(' ');
            let words = words.filter(|word| (1..=WORD_BYTES_MAX).contains(&word.len()));
            columns.tenant.push(tenant.as_bytes());
            columns.turn.push(turn);
            columns.generation.push(entry.owner.generation.into());
            columns.seq.push(whole(entry.seq));
            columns.number.push(whole(entry.number));
            columns.at.push(entry.at_ms);
            columns.words.push(words.collect::<Vec<_>>().join(" "));
        }
        let inserted = columns.insert(client).await?;
        self.save_generations(client).await?;
        save_tenants(client, &states).await?;
        save_days(client, &days).await?;
        let changes: Vec<i64> = self.changes.iter().map(|change| change.change).collect();
        let sql = "DELETE FROM memoird.turn_changes WHERE change = ANY($1)";
        query(client, sql, &[(&changes, Type::INT8_ARRAY)]).await?;
        let sql = "UPDATE memoird.search_state SET indexed = $1";
        query(client, sql, &[(&whole(self.new_mark), Type::INT8)]).await?;
        let replaced = self.entries.iter();
        let replaced = replaced.filter(|it| known.contains_key(&it.number)).count();
        Ok(IndexStep {
            indexed: inserted.saturating_sub(replaced) as u64,
            replaced: replaced as u64,
            removed: (known.len() - replaced) as u64,
            ..IndexStep::default()
        })
    }

    /// Deletes the rows of changed turns. Returns their tenant's numbers by journal number.
    async fn remove_changed(&self, client: &Client) -> Result<HashMap<u64, i64>, StoreError> {
        let changes = self.changes.iter();
        let (generations, numbers): (Vec<Ulid>, Vec<i64>) = changes
            .map(|change| (Ulid::from(change.generation), whole(change.number)))
            .unzip();
        let sql = "DELETE FROM memoird.search_turns AS s
                   USING (SELECT DISTINCT * FROM unnest($1, $2) AS c (generation, number)) AS c
                   WHERE s.generation = c.generation AND s.number = c.number
                   RETURNING s.number, s.turn";
        let args: [Arg<'_>; 2] = [
            (&generations, Type::UUID_ARRAY),
            (&numbers, Type::INT8_ARRAY),
        ];
        let rows = query(client, sql, &args).await?;
        let rows = rows.iter().map(|row| Ok((row.count(0)?, get(row, 1)?)));
        rows.collect()
    }

    async fn save_generations(&self, client: &Client) -> Result<(), StoreError> {
        let owners = self.entries.iter().map(|it| &it.owner);
        let owners: BTreeMap<Generation, &GenerationOwner> =
            owners.map(|owner| (owner.generation, owner)).collect();
        let mut generations: Vec<Ulid> = Vec::new();
        let mut columns: [Vec<Option<&[u8]>>; 3] = Default::default();
        for (generation, owner) in owners {
            generations.push(generation.into());
            columns[0].push(Some(owner.key.tenant.as_str().as_bytes()));
            columns[1].push(Some(owner.key.session.as_str().as_bytes()));
            let subject = owner.subject.as_ref().map(Subject::as_str);
            columns[2].push(subject.map(str::as_bytes));
        }
        // The generation may have been deleted since its owner was read.
        let sql = "INSERT INTO memoird.search_generations (generation, tenant, session, subject)
                   SELECT i.* FROM unnest($1, $2, $3, $4) AS i (generation, tenant, session, subject)
                   WHERE EXISTS (SELECT 1 FROM memoird.generations AS g
                       WHERE g.generation = i.generation)
                   ON CONFLICT (generation) DO UPDATE SET subject = excluded.subject
                       WHERE search_generations.subject IS DISTINCT FROM excluded.subject";
        let args: [Arg<'_>; 4] = [
            (&generations, Type::UUID_ARRAY),
            (&columns[0], Type::BYTEA_ARRAY),
            (&columns[1], Type::BYTEA_ARRAY),
            (&columns[2], Type::BYTEA_ARRAY),
        ];
        query(client, sql, &args).await.map(drop)
    }
}

impl Columns<'_> {
    /// Inserts the rows of turns that still exist. Returns their number.
    async fn insert(&self, client: &Client) -> Result<usize, StoreError> {
        let sql = "INSERT INTO memoird.search_turns
                       (tenant, turn, generation, seq, number, at, words)
                   SELECT i.tenant, i.turn, i.generation, i.seq, i.number, i.at,
                       array_to_tsvector(string_to_array(i.words, ' '))
                   FROM unnest($1, $2, $3, $4, $5, $6, $7)
                       AS i (tenant, turn, generation, seq, number, at, words)
                   WHERE EXISTS (SELECT 1 FROM memoird.turns AS t
                       WHERE t.generation = i.generation AND t.seq = i.seq)
                   RETURNING 1";
        let args: [Arg<'_>; 7] = [
            (&self.tenant, Type::BYTEA_ARRAY),
            (&self.turn, Type::INT8_ARRAY),
            (&self.generation, Type::UUID_ARRAY),
            (&self.seq, Type::INT8_ARRAY),
            (&self.number, Type::INT8_ARRAY),
            (&self.at, Type::INT8_ARRAY),
            (&self.words, Type::TEXT_ARRAY),
        ];
        change(client, sql, &args).await
    }
}

async fn save_tenants(
    client: &Client,
    states: &HashMap<String, TenantState>,
) -> Result<(), StoreError> {
    let names: Vec<&[u8]> = states.keys().map(String::as_bytes).collect();
    let next: Vec<i64> = states.values().map(|state| whole(state.next)).collect();
    let languages = states
        .values()
        .map(|state| i64::from(state.languages.bits()));
    let languages: Vec<i64> = languages.collect();
    let sql = "INSERT INTO memoird.search_tenants (tenant, next, languages)
               SELECT * FROM unnest($1, $2, $3)
               ON CONFLICT (tenant) DO UPDATE SET next = excluded.next,
                   languages = excluded.languages";
    let args: [Arg<'_>; 3] = [
        (&names, Type::BYTEA_ARRAY),
        (&next, Type::INT8_ARRAY),
        (&languages, Type::INT8_ARRAY),
    ];
    query(client, sql, &args).await.map(drop)
}

/// Extends the ranges of days.
async fn save_days(
    client: &Client,
    days: &BTreeMap<(&str, i64), (i64, i64)>,
) -> Result<(), StoreError> {
    let names: Vec<&[u8]> = days.keys().map(|(tenant, _)| tenant.as_bytes()).collect();
    let numbers: Vec<i64> = days.keys().map(|(_, day)| *day).collect();
    let (first, last): (Vec<i64>, Vec<i64>) = days.values().copied().unzip();
    let sql = "INSERT INTO memoird.search_days AS known (tenant, day, first, last)
               SELECT * FROM unnest($1, $2, $3, $4)
               ON CONFLICT (tenant, day) DO UPDATE SET first = least(known.first, excluded.first),
                   last = greatest(known.last, excluded.last)";
    let args: [Arg<'_>; 4] = [
        (&names, Type::BYTEA_ARRAY),
        (&numbers, Type::INT8_ARRAY),
        (&first, Type::INT8_ARRAY),
        (&last, Type::INT8_ARRAY),
    ];
    query(client, sql, &args).await.map(drop)
}

/// Returns first and last turn of the days of a filter. `None` if they have no turns.
fn days(database: &Database, filter: &SearchFilter) -> Result<Option<(u64, u64)>, StoreError> {
    if filter.after.is_none() && filter.before.is_none() {
        return Ok(Some((1, u64::MAX)));
    }
    let (after, before) = filter.times();
    let sql = "SELECT min(first), max(last) FROM memoird.search_days
               WHERE tenant = $1 AND day BETWEEN $2 AND $3";
    let args: [Arg<'_>; 3] = [
        (&filter.tenant.as_str().as_bytes(), Type::BYTEA),
        (&after.div_euclid(DAY_MS), Type::INT8),
        (&before.div_euclid(DAY_MS), Type::INT8),
    ];
    let rows = database.query(sql, &args)?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let turns = row.int_or_null(0)?.zip(row.int_or_null(1)?);
    Ok(turns.map(|(first, last)| (first.unsigned_abs(), last.unsigned_abs())))
}

/// Returns the matching turns, newest first, for a word or for all turns.
fn look_up(
    database: &Database,
    filter: &SearchFilter,
    turns: &RangeInclusive<u64>,
    forms: Option<&[String]>,
    max: usize,
) -> Result<Vec<SearchCandidate>, StoreError> {
    let roles = filter.roles.iter().map(|role| role_word(*role));
    let tool = filter.tool.iter().map(|tool| tool_word(tool));
    let words = [
        roles.collect(),
        tool.collect(),
        forms.unwrap_or_default().to_vec(),
    ];
    let words = words
        .iter()
        .filter(|words: &&Vec<String>| !words.is_empty());
    let words = words
        .map(|words| any_of(words))
        .collect::<Vec<_>>()
        .join(" & ");
    let (after, before) = filter.times();
    let tenant = filter.tenant.as_str().as_bytes();
    let session = filter
        .session
        .as_ref()
        .map(|session| session.as_str().as_bytes());
    let subject = filter
        .subject
        .as_ref()
        .map(|subject| subject.as_str().as_bytes());
    let mut sql = "SELECT turn, number FROM memoird.search_turns
                   WHERE tenant = $1 AND turn BETWEEN $2 AND $3 AND at BETWEEN $4 AND $5"
        .to_owned();
    if !words.is_empty() {
        sql += " AND words @@ $6::text::tsquery";
    }
    if session.is_some() || subject.is_some() {
        sql += " AND generation IN (SELECT generation FROM memoird.search_generations
                     WHERE tenant = $1";
        sql += if session.is_some() {
            " AND session = $7"
        } else {
            ""
        };
        sql += if subject.is_some() {
            " AND subject = $8)"
        } else {
            ")"
        };
    }
    sql += " ORDER BY turn DESC LIMIT $9";
    let args: [Arg<'_>; 9] = [
        (&tenant, Type::BYTEA),
        (&whole(*turns.start()), Type::INT8),
        (&whole(*turns.end()), Type::INT8),
        (&after, Type::INT8),
        (&before, Type::INT8),
        (&words, Type::TEXT),
        (&session, Type::BYTEA),
        (&subject, Type::BYTEA),
        (&limit(max), Type::INT8),
    ];
    let rows = database.query(&sql, &args)?;
    let candidates = rows.iter().map(|row| {
        Ok(SearchCandidate {
            turn: row.count(0)?,
            number: row.count(1)?,
        })
    });
    candidates.collect()
}

/// Query that matches any of these words. Words consist of letters, digits and marks.
fn any_of(words: &[String]) -> String {
    let words = words.iter().filter(|word| word.len() <= WORD_BYTES_MAX);
    let mut words: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    if words.is_empty() {
        // In no turn.
        words.push("'\u{e000}'".to_owned());
    }
    format!("({})", words.join(" | "))
}
