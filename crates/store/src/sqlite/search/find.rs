//! Lookup of a tenant's turns by words and filters.

use std::fmt::Write as _;

use memoird_core::words::Languages;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::add::DAY_MS;
use super::{TenantRange, TenantRow, find_tenant, generation_word, quoted, whole};
use crate::{SearchCandidate, SearchFilter, SearchMatches, StoreError, role_word, tool_word};

/// Maximum number of generations matched by index words.
///
/// Beyond it, each turn's generation is compared instead.
const GENERATIONS_MAX: usize = 256;

/// The filters as rows, index words and SQL conditions.
struct Plan {
    range: TenantRange,
    first: i64,
    last: i64,
    /// Index words required in addition to the query's, joined by AND.
    marks: Vec<String>,
    /// SQL conditions on the turn's row.
    conditions: Vec<String>,
    parameters: Vec<Value>,
}

/// Returns at most `max` candidates.
pub(super) fn find(
    connection: &Connection,
    filter: &SearchFilter,
    query: &str,
    max: usize,
) -> Result<SearchMatches, StoreError> {
    let tenant = find_tenant(connection, filter.tenant.as_str())?;
    let languages = tenant.map_or(Languages::default(), |tenant| tenant.languages);
    let mut matches = SearchMatches::new(query, languages);
    let Some(TenantRow { range, next, .. }) = tenant else {
        return Ok(matches);
    };
    matches.turns = filter.turns.unwrap_or(u64::MAX).min(next - 1);
    if let Some(plan) = Plan::new(connection, filter, range, matches.turns)? {
        let turns = TenantRange::number(plan.first)..=TenantRange::number(plan.last);
        let look_up = |forms: Option<&[String]>, max| plan.rows(connection, forms, max);
        matches.add_candidates(&turns, max, look_up)?;
        plan.put_numbers(connection, &mut matches.candidates)?;
    }
    Ok(matches)
}

impl Plan {
    /// `None` if no turn can match.
    fn new(
        connection: &Connection,
        filter: &SearchFilter,
        range: TenantRange,
        turns: u64,
    ) -> Result<Option<Self>, StoreError> {
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
    fn put_time(
        &mut self,
        connection: &Connection,
        filter: &SearchFilter,
    ) -> Result<bool, StoreError> {
        if filter.after.is_none() && filter.before.is_none() {
            return Ok(true);
        }
        let (after, before) = filter.times();
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
        self.conditions.push("turns.at BETWEEN ? AND ?".to_owned());
        self.parameters.extend([after.into(), before.into()]);
        Ok(true)
    }

    /// Adds the filters by session and subject. Returns false if there are no generations.
    fn put_lives(
        &mut self,
        connection: &Connection,
        filter: &SearchFilter,
    ) -> Result<bool, StoreError> {
        let mut condition = "tenant = ?".to_owned();
        let mut parameters: Vec<Value> = vec![self.range.tenant.into()];
        if let Some(session) = &filter.session {
            condition += " AND session = ?";
            parameters.push(session.as_str().to_owned().into());
        }
        if let Some(subject) = &filter.subject {
            condition += " AND subject = ?";
            parameters.push(subject.as_str().to_owned().into());
        }
        if parameters.len() == 1 {
            return Ok(true);
        }
        let sql = format!("SELECT no FROM generations WHERE {condition} LIMIT ?");
        let limit = Value::from(whole(GENERATIONS_MAX as u64 + 1));
        let limited = params_from_iter(parameters.iter().chain([&limit]));
        let mut statement = connection.prepare_cached(&sql)?;
        let generations = statement
            .query_map(limited, |row| row.get::<_, i64>(0))?
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
        self.parameters.extend(parameters);
        Ok(true)
    }

    /// Returns the matching turns, newest first, for a word or for all turns.
    ///
    /// Their journal numbers are not known yet.
    fn rows(
        &self,
        connection: &Connection,
        forms: Option<&[String]>,
        max: usize,
    ) -> Result<Vec<SearchCandidate>, StoreError> {
        let word = forms.map(|forms| any_of(forms.iter().cloned()));
        let asked: Vec<String> = self.marks.iter().cloned().chain(word).collect();
        let mut parameters: Vec<Value> = Vec::new();
        let words = asked.join(" AND ");
        let (from, row) = match (words.is_empty(), self.conditions.is_empty()) {
            (true, _) => ("turns WHERE", "turns.no"),
            (false, true) => ("words WHERE words MATCH ? AND", "words.rowid"),
            (false, false) => (
                "words CROSS JOIN turns ON turns.no = words.rowid WHERE words MATCH ? AND",
                "words.rowid",
            ),
        };
        let mut sql = format!("SELECT {row} FROM {from} {row} BETWEEN ? AND ?");
        if !words.is_empty() {
            parameters.push(words.into());
        }
        parameters.extend([self.first.into(), self.last.into()]);
        for condition in &self.conditions {
            let _ = write!(sql, " AND {condition}");
        }
        parameters.extend(self.parameters.iter().cloned());
        let _ = write!(sql, " ORDER BY {row} DESC LIMIT ?");
        parameters.push(whole(max as u64).into());
        let mut statement = connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params_from_iter(parameters), |row| {
            Ok(SearchCandidate {
                turn: TenantRange::number(row.get(0)?),
                number: 0,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Looks up the candidates' journal numbers.
    fn put_numbers(
        &self,
        connection: &Connection,
        candidates: &mut Vec<SearchCandidate>,
    ) -> Result<(), StoreError> {
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

fn any_of(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.map(|word| quoted(&word)).collect();
    format!("({})", words.join(" OR "))
}
