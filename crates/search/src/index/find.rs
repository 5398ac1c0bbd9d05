//! Lookup of a tenant's turns by words and filters.

use std::collections::HashMap;
use std::fmt::Write as _;

use memoird_core::ids::{Generation, SessionId, Subject, TenantId};
use memoird_core::time::Timestamp;
use memoird_core::turn::Role;
use rusqlite::{Connection, ToSql, params};

use super::add::DAY_MS;
use super::{
    Index, IndexResult, TenantRange, TenantRow, find_tenant, generation_word, role_word, tool_word,
    whole,
};
use crate::words::{Found, Languages, QueryWords, Statistics};

/// Maximum number of turns looked up per word, newest first. More would hardly change its weight.
const MATCHES_MAX: usize = 8_192;
/// The same for words that only share a beginning with a word that no turn contains.
const ALIKE_MAX: usize = 1_024;
/// Maximum number of generations matched by index words.
///
/// Beyond it, each turn's generation is compared instead.
const GENERATIONS_MAX: usize = 256;

/// Which turns may be found.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) tenant: TenantId,
    pub(crate) session: Option<SessionId>,
    pub(crate) subject: Option<Subject>,
    pub(crate) after: Option<Timestamp>,
    pub(crate) before: Option<Timestamp>,
    pub(crate) roles: Vec<Role>,
    pub(crate) tool: Option<String>,
    /// Only turns up to this number within the tenant. `None` for all.
    pub(crate) turns: Option<u64>,
}

/// A turn that may be a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Number within the tenant.
    pub(crate) turn: u64,
    /// Number in the journal.
    pub(crate) number: u64,
}

/// Result of a lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matches {
    /// Best candidates by index data, best and newest first.
    pub(crate) candidates: Vec<Candidate>,
    /// Weights of the words.
    pub(crate) statistics: Statistics,
    /// Number of turns the tenant has had.
    pub(crate) turns: u64,
    /// Without words: number of the last turn considered, if older ones may match too.
    pub(crate) more_before: Option<u64>,
}

/// The filters as rows, index words and SQL conditions.
struct Plan {
    range: TenantRange,
    first: i64,
    last: i64,
    /// Index words required in addition to the query's, joined by AND.
    marks: Vec<String>,
    /// SQL conditions on the turn's row.
    conditions: Vec<String>,
    parameters: Vec<Box<dyn ToSql>>,
}

impl Index {
    /// Returns the journal numbers of up to `max` turns of a generation before `before`, newest
    /// first.
    pub(crate) fn newest_turns(
        &self,
        generation: Generation,
        before: u64,
        max: usize,
    ) -> IndexResult<Vec<u64>> {
        self.read(|connection| {
            let sql = "SELECT no FROM generations WHERE generation = ?";
            let mut statement = connection.prepare_cached(sql)?;
            let mut found = statement.query([generation.to_bytes()])?;
            let Some(row) = found.next()? else {
                return Ok(Vec::new());
            };
            let word = quoted(&generation_word(row.get(0)?));
            let sql = "SELECT turns.number FROM words CROSS JOIN turns ON turns.no = words.rowid
                       WHERE words MATCH ? AND turns.number < ?
                       ORDER BY words.rowid DESC LIMIT ?";
            let mut statement = connection.prepare_cached(sql)?;
            let parameters = params![word, whole(before), whole(max as u64)];
            let numbers =
                statement.query_map(parameters, |row| Ok(row.get::<_, i64>(0)?.unsigned_abs()))?;
            Ok(numbers.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the languages of a tenant's turns.
    pub(crate) fn languages(&self, tenant: &TenantId) -> IndexResult<Languages> {
        self.read(|connection| {
            let found = find_tenant(connection, tenant.as_str())?;
            Ok(found.map_or(Languages::default(), |tenant| tenant.languages))
        })
    }

    /// Returns at most `max` candidates.
    pub(crate) fn find(
        &self,
        filter: &Filter,
        words: &QueryWords,
        max: usize,
    ) -> IndexResult<Matches> {
        self.read(|connection| {
            let Some(TenantRow { range, next, .. }) =
                find_tenant(connection, filter.tenant.as_str())?
            else {
                return Ok(Matches::default());
            };
            let turns = filter.turns.unwrap_or(u64::MAX).min(next - 1);
            let Some(plan) = Plan::new(connection, filter, range, turns)? else {
                return Ok(Matches {
                    turns,
                    ..Matches::default()
                });
            };
            let mut matches = if words.is_empty() {
                plan.newest(connection, max)?
            } else {
                plan.with_words(connection, words, max)?
            };
            matches.turns = turns;
            plan.put_numbers(connection, &mut matches.candidates)?;
            Ok(matches)
        })
    }
}

impl Plan {
    /// `None` if no turn can match.
    fn new(
        connection: &Connection,
        filter: &Filter,
        range: TenantRange,
        turns: u64,
    ) -> IndexResult<Option<Self>> {
        let mut plan = Self {
            range,
            first: range.row(1),
            last: range.row(turns),
            marks: Vec::new(),
            conditions: Vec::new(),
            parameters: Vec::new(),
        };
        if let Some(tool) = &filter.tool {
            plan.marks.push(quoted(&tool_word(tool)));
        }
        if !filter.roles.is_empty() {
            let roles = filter.roles.iter().map(|role| role_word(*role));
            plan.marks.push(any_of(roles));
        }
        let is_possible =
            plan.put_time(connection, filter)? && plan.put_lives(connection, filter)?;
        Ok((is_possible && plan.first <= plan.last).then_some(plan))
    }

    /// Adds the time filter. Days limit the range of rows, and each turn's time decides.
    ///
    /// Returns false if no turn can match.
    fn put_time(&mut self, connection: &Connection, filter: &Filter) -> IndexResult<bool> {
        if filter.after.is_none() && filter.before.is_none() {
            return Ok(true);
        }
        let after = filter.after.map_or(i64::MIN, Timestamp::as_ms);
        let before = filter.before.map_or(i64::MAX, Timestamp::as_ms);
        let sql = "SELECT min(first), max(last) FROM days
                   WHERE tenant = ? AND day BETWEEN ? AND ?";
        let days = [
            self.range.tenant,
            after.div_euclid(DAY_MS),
            before.div_euclid(DAY_MS),
        ];
        let (first, last) = connection.prepare_cached(sql)?.query_row(days, |row| {
            Ok((row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?))
        })?;
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(false);
        };
        self.first = self.first.max(first);
        self.last = self.last.min(last);
        // Exact to the millisecond. The check is repeated when the turn is read.
        self.conditions.push("turns.at BETWEEN ? AND ?".to_owned());
        self.parameters.push(Box::new(after));
        self.parameters.push(Box::new(before));
        Ok(true)
    }

    /// Adds the filters by session and subject. Returns false if there are no generations.
    fn put_lives(&mut self, connection: &Connection, filter: &Filter) -> IndexResult<bool> {
        let mut condition = "tenant = ?".to_owned();
        let mut parameters: Vec<String> = Vec::new();
        if let Some(session) = &filter.session {
            condition += " AND session = ?";
            parameters.push(session.as_str().to_owned());
        }
        if let Some(subject) = &filter.subject {
            condition += " AND subject = ?";
            parameters.push(subject.as_str().to_owned());
        }
        if parameters.is_empty() {
            return Ok(true);
        }
        let tenant = self.range.tenant;
        let bound = |limit: Option<i64>| {
            let mut bound: Vec<Box<dyn ToSql>> = vec![Box::new(tenant)];
            bound.extend(parameters.iter().cloned().map(|text| Box::new(text) as _));
            bound.extend(limit.map(|limit| Box::new(limit) as _));
            bound
        };
        let sql = format!("SELECT no FROM generations WHERE {condition} LIMIT ?");
        let limit = whole(GENERATIONS_MAX as u64 + 1);
        let mut statement = connection.prepare_cached(&sql)?;
        let generations = statement
            .query_map(&*refs(&bound(Some(limit))), |row| row.get::<_, i64>(0))?
            .collect::<Result<Vec<_>, _>>()?;
        if generations.len() <= GENERATIONS_MAX {
            let is_any = !generations.is_empty();
            if is_any {
                self.marks
                    .push(any_of(generations.into_iter().map(generation_word)));
            }
            return Ok(is_any);
        }
        let condition =
            format!("turns.generation IN (SELECT no FROM generations WHERE {condition})");
        self.conditions.push(condition);
        self.parameters.extend(bound(None));
        Ok(true)
    }

    /// Without words: returns the newest turns.
    fn newest(&self, connection: &Connection, max: usize) -> IndexResult<Matches> {
        let mut candidates = Vec::new();
        self.rows(connection, None, max, |row| {
            candidates.push(Candidate {
                turn: TenantRange::number(row),
                number: 0,
            });
        })?;
        let last = candidates.last().filter(|_| candidates.len() == max);
        Ok(Matches {
            more_before: last.map(|last| last.turn),
            candidates,
            ..Matches::default()
        })
    }

    /// With words: looks up each word, and returns the turns that contain the most of them.
    fn with_words(
        &self,
        connection: &Connection,
        words: &QueryWords,
        max: usize,
    ) -> IndexResult<Matches> {
        let all = (self.last - self.first + 1).unsigned_abs();
        let mut statistics = Statistics {
            memories: all,
            ..Statistics::default()
        };
        let mut found: HashMap<i64, Found> = HashMap::new();
        for (place, term) in words.terms().iter().enumerate() {
            let mut look = |forms: &[String], noted_max: usize| {
                let (mut count, mut last_seen) = (0, self.first);
                self.rows(connection, Some(forms), noted_max, |row| {
                    found.entry(row).or_default().insert(place);
                    count += 1;
                    last_seen = row;
                })?;
                IndexResult::Ok(if count < noted_max as u64 {
                    count
                } else {
                    // Extrapolates from the rows seen, assuming that the word is spread evenly.

                    let seen = (self.last - last_seen + 1).unsigned_abs().max(1);
                    (count.saturating_mul(all) / seen).min(all)
                })
            };
            let mut count = look(term.forms(), MATCHES_MAX)?;
            // Search for words with a common beginning only if no turn has the word itself.
            if count == 0 && !term.beginnings().is_empty() {
                statistics.alike.insert(place);
                count = look(term.beginnings(), ALIKE_MAX)?;
            }
            statistics.found_in.push(count);
        }
        let scorer = words.scorer(&statistics);
        let mut ranked: Vec<(f64, i64)> = found
            .into_iter()
            .map(|(row, found)| (scorer.coverage(found), row))
            .collect();
        ranked.sort_unstable_by(|(one, row), (other, other_row)| {
            other.total_cmp(one).then(other_row.cmp(row))
        });
        ranked.truncate(max);
        let candidates = ranked.into_iter().map(|(_, row)| Candidate {
            turn: TenantRange::number(row),
            number: 0,
        });
        Ok(Matches {
            candidates: candidates.collect(),
            statistics,
            ..Matches::default()
        })
    }

    /// Visits the matching rows, newest first, for a word or for all turns.
    fn rows(
        &self,
        connection: &Connection,
        forms: Option<&[String]>,
        max: usize,
        mut note: impl FnMut(i64),
    ) -> IndexResult<()> {
        let word = forms.map(|forms| any_of(forms.iter().cloned()));
        let asked: Vec<String> = self.marks.iter().cloned().chain(word).collect();
        let mut parameters: Vec<&dyn ToSql> = Vec::new();
        let words = asked.join(" AND ");
        let (mut sql, row) = match (words.is_empty(), self.conditions.is_empty()) {
            (true, _) => ("SELECT turns.no FROM turns WHERE".to_owned(), "turns.no"),
            (false, true) => (
                "SELECT words.rowid FROM words WHERE words MATCH ? AND".to_owned(),
                "words.rowid",
            ),
            (false, false) => (
                "SELECT words.rowid FROM words CROSS JOIN turns ON turns.no = words.rowid
                 WHERE words MATCH ? AND"
                    .to_owned(),
                "words.rowid",
            ),
        };
        if !words.is_empty() {
            parameters.push(&words);
        }
        let _ = write!(sql, " {row} BETWEEN ? AND ?");
        parameters.extend([&self.first as &dyn ToSql, &self.last]);
        for condition in &self.conditions {
            let _ = write!(sql, " AND {condition}");
        }
        parameters.extend(self.parameters.iter().map(AsRef::as_ref));
        let _ = write!(sql, " ORDER BY {row} DESC LIMIT ?");
        let max = whole(max as u64);
        parameters.push(&max);
        let mut statement = connection.prepare_cached(&sql)?;
        let mut rows = statement.query(&*parameters)?;
        while let Some(row) = rows.next()? {
            note(row.get(0)?);
        }
        Ok(())
    }

    /// Looks up the candidates' journal numbers.
    fn put_numbers(
        &self,
        connection: &Connection,
        candidates: &mut Vec<Candidate>,
    ) -> IndexResult<()> {
        let sql = "SELECT number FROM turns WHERE no = ?";
        let mut statement = connection.prepare_cached(sql)?;
        for candidate in candidates.iter_mut() {
            let mut rows = statement.query([self.range.row(candidate.turn)])?;
            if let Some(row) = rows.next()? {
                candidate.number = row.get::<_, i64>(0)?.unsigned_abs();
            }
        }
        candidates.retain(|candidate| candidate.number > 0);
        Ok(())
    }
}

/// Quotes a word for FTS5. Words contain no quotation marks.
fn quoted(word: &str) -> String {
    format!("\"{word}\"")
}

fn any_of(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    format!("({})", words.join(" OR "))
}

fn refs(parameters: &[Box<dyn ToSql>]) -> Vec<&dyn ToSql> {
    parameters.iter().map(AsRef::as_ref).collect()
}
