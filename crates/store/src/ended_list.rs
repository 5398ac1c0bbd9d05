//! Lists of ended generations.
//!
//! A call examines a bounded number of rows, whatever the query and however many generations have
//! ended. A page may therefore be short, and contains the position of the next one.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::Head;
use memoird_core::time::{Now, Steady};

use crate::rows::{GenerationRow, StoredRow, damaged};
use crate::tables::{Param, Tables};
use crate::transfer::Row;
use crate::{SessionOrder, StoreError};

/// Maximum number of generations of an id prefix or a subject that one call sorts by time.
///
/// For more, all generations of the tenant are walked in the order of the list.
const SORTED_MAX: usize = 4_096;
/// Maximum number of rows examined per call.
pub(crate) const EXAMINED_MAX: usize = 8_192;
/// Maximum number of rows per statement.
pub(crate) const ROWS_PER_STATEMENT: usize = 256;

/// Filter, order and limit for listing ended generations.
#[derive(Clone, Debug)]
pub struct EndedQuery {
    pub tenant: TenantId,
    pub id_prefix: Arc<str>,
    pub subject: Option<Subject>,
    /// Labels that a generation must have had at its end.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// Earliest time of the end, inclusive.
    pub from: Steady,
    /// Latest time of the end, inclusive.
    pub until: Steady,
    /// By time of the end, or by id and then the oldest end first.
    pub order: SessionOrder,
    /// Position of the last generation that an earlier page examined.
    pub after: Option<EndedPosition>,
    pub max: usize,
}

/// Position of an ended generation in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedPosition {
    pub at: Steady,
    pub generation: Generation,
    pub session: SessionId,
}

/// An ended generation without its content.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedGeneration {
    pub key: SessionKey,
    /// Metadata at the end.
    pub head: Head,
    pub at: Now,
    pub reason: EndReason,
}

/// A page of a list of ended generations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndedPage {
    pub generations: Vec<EndedGeneration>,
    /// Position of the last generation examined. `None` on the last page.
    pub next: Option<EndedPosition>,
}

impl EndedPosition {
    /// The values of `ended_at` and `generation`.
    fn end(&self) -> [Param<'static>; 2] {
        [self.at.into(), self.generation.into()]
    }

    /// Compares two positions in a list of this order.
    pub fn cmp_in(&self, other: &Self, order: SessionOrder) -> Ordering {
        let by_end = (self.at, self.generation).cmp(&(other.at, other.generation));
        match order {
            SessionOrder::Newest => by_end.reverse(),
            SessionOrder::Oldest => by_end,
            SessionOrder::Id => self.session.cmp(&other.session).then(by_end),
        }
    }
}

impl EndedGeneration {
    pub fn position(&self) -> EndedPosition {
        EndedPosition {
            at: self.at.steady,
            generation: self.head.generation,
            session: self.key.session.clone(),
        }
    }
}

impl EndedQuery {
    /// Whether a row is an ended generation that a page can list.
    pub(crate) fn lists(&self, row: &GenerationRow) -> bool {
        row.key.tenant == self.tenant
            && row
                .ended
                .is_some_and(|(at, _)| (self.from..=self.until).contains(&at.steady))
            && row.key.session.as_str().starts_with(&*self.id_prefix)
            && (self.subject.is_none() || self.subject == row.head.subject)
            && self
                .labels
                .iter()
                .all(|(name, value)| row.head.label(name) == Some(value))
    }

    fn is_after_cursor(&self, position: &EndedPosition) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|after| position.cmp_in(after, self.order) == Ordering::Greater)
    }
}

/// Returns a page of the tables, merged with `newer` rows, which may not be in them yet.
///
/// The query lists all newer rows ([`EndedQuery::lists`]).
pub(crate) fn page(
    tables: &dyn Tables,
    query: &EndedQuery,
    newer: &[GenerationRow],
) -> Result<EndedPage, StoreError> {
    let newer = newer.iter().cloned().filter_map(into_listed);
    let newer = newer.filter(|(position, _)| query.is_after_cursor(position));
    let mut newer: Vec<Listed> = newer.collect();
    newer.sort_by(|(one, _), (other, _)| one.cmp_in(other, query.order));
    let mut newer = newer.into_iter().peekable();
    tables.plan_by_index_order()?;
    let mut indexed = IndexedRows::open(tables, query)?;
    let (mut page, mut examined) = (EndedPage::default(), 0);
    let mut last = None;
    loop {
        let first = match (newer.peek(), indexed.peek()?) {
            (None, None) => return Ok(page),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((one, _)), Some((other, _))) => one.cmp_in(other, query.order),
        };
        if page.generations.len() == query.max || examined == EXAMINED_MAX {
            page.next = last;
            return Ok(page);
        }
        // A row that was flushed since is in both.
        let from_index = first.is_ge().then(|| indexed.rows.pop_front()).flatten();
        let from_newer = first.is_le().then(|| newer.next()).flatten();
        let Some((position, row)) = from_newer.or(from_index) else {
            return Ok(page);
        };
        examined += 1;
        last = Some(position);
        if query.lists(&row) {
            page.generations.extend(into_ended(row));
        }
    }
}

/// Returns the states of those generations that have one.
pub(crate) fn states(
    tables: &dyn Tables,
    generations: &[Generation],
) -> Result<BTreeMap<Generation, Arc<str>>, StoreError> {
    let mut states = BTreeMap::new();
    for some in generations.chunks(ROWS_PER_STATEMENT) {
        let params: Vec<Param<'_>> = some.iter().map(|name| (*name).into()).collect();
        let places = places(1, params.len());
        let sql = format!("SELECT generation, json FROM states WHERE generation IN ({places})");
        for row in tables.query(&sql, &params)? {
            states.insert(row.generation(0)?, row.text(1)?.into());
        }
    }
    Ok(states)
}

type Listed = (EndedPosition, GenerationRow);

fn into_listed(row: GenerationRow) -> Option<Listed> {
    let (at, _) = row.ended?;
    let position = EndedPosition {
        at: at.steady,
        generation: row.head.generation,
        session: row.key.session.clone(),
    };
    Some((position, row))
}

fn into_ended(row: GenerationRow) -> Option<EndedGeneration> {
    let (at, reason) = row.ended?;
    Some(EndedGeneration {
        key: row.key,
        head: row.head,
        at,
        reason,
    })
}

/// Rows of a list in its order, read in batches. They may include rows that the query filters out.
struct IndexedRows<'a> {
    tables: &'a dyn Tables,
    query: &'a EndedQuery,
    source: RowSource,
    rows: VecDeque<Listed>,
    /// Number of rows in the next batch.
    batch: usize,
}

enum RowSource {
    /// The sorted generations of an id prefix or a subject.
    Sorted(VecDeque<EndedPosition>),
    /// All generations of the tenant after this position, by the index of the order.
    Walked(Option<EndedPosition>),
    Exhausted,
}

impl<'a> IndexedRows<'a> {
    fn open(tables: &'a dyn Tables, query: &'a EndedQuery) -> Result<Self, StoreError> {
        let source = match sorted(tables, query)? {
            None => RowSource::Walked(query.after.clone()),
            Some(sorted) if sorted.is_empty() => RowSource::Exhausted,
            Some(sorted) => RowSource::Sorted(sorted.into()),
        };
        Ok(Self {
            tables,
            query,
            source,
            rows: VecDeque::new(),
            // One more row reveals whether there is another page.
            batch: ROWS_PER_STATEMENT.min(query.max.saturating_add(1)),
        })
    }

    fn peek(&mut self) -> Result<Option<&Listed>, StoreError> {
        while self.rows.is_empty() && !matches!(self.source, RowSource::Exhausted) {
            self.read_batch()?;
        }
        Ok(self.rows.front())
    }

    fn read_batch(&mut self) -> Result<(), StoreError> {
        let (tables, query, max) = (self.tables, self.query, self.batch);
        let source = std::mem::replace(&mut self.source, RowSource::Exhausted);
        let rows = match source {
            RowSource::Exhausted => return Ok(()),
            RowSource::Walked(after) => {
                let rows = walk(tables, query, after.as_ref(), max)?;
                if let (true, Some((last, _))) = (rows.len() == max, rows.last()) {
                    self.source = RowSource::Walked(Some(last.clone()));
                }
                rows
            }
            RowSource::Sorted(mut positions) => {
                let some: Vec<_> = positions.drain(..max.min(positions.len())).collect();
                if !positions.is_empty() {
                    self.source = RowSource::Sorted(positions);
                }
                find(tables, query, &some)?
            }
        };
        self.rows.extend(rows);
        self.batch = ROWS_PER_STATEMENT.min(2 * max);
        Ok(())
    }
}

/// Columns of a row that [`GenerationRow::read`] decodes.
fn columns(tables: &dyn Tables) -> String {
    let expression = tables.dialect().expression;
    format!(
        "{}, {}, {}",
        GenerationRow::COLUMNS,
        expression("generations", "compaction"),
        expression("generations", "options")
    )
}

fn read_rows(rows: &[Row]) -> Result<Vec<Listed>, StoreError> {
    let rows = rows.iter().map(|row| {
        let row = GenerationRow::read(row)?;
        into_listed(row).ok_or(damaged("end"))
    });
    rows.collect()
}

/// Reads the next rows in the order of the list, by the index of the order.
///
/// An index has one lower and one upper bound, so that a page costs the same wherever it is.
fn walk(
    tables: &dyn Tables,
    query: &EndedQuery,
    after: Option<&EndedPosition>,
    max: usize,
) -> Result<Vec<Listed>, StoreError> {
    let end = prefix_end(&query.id_prefix);
    let mut conditions = Conditions::of_tenant(query);
    let order = match query.order {
        SessionOrder::Newest => {
            conditions.add_subject(query);
            conditions.add("ended_at >=", [query.from.into()]);
            match after.filter(|after| after.at <= query.until) {
                Some(after) => conditions.add("(ended_at, generation) <", after.end()),
                None => conditions.add("ended_at <=", [query.until.into()]),
            }
            "ended_at DESC, generation DESC"
        }
        SessionOrder::Oldest => {
            conditions.add_subject(query);
            conditions.add("ended_at <=", [query.until.into()]);
            match after.filter(|after| after.at >= query.from) {
                Some(after) => conditions.add("(ended_at, generation) >", after.end()),
                None => conditions.add("ended_at >=", [query.from.into()]),
            }
            "ended_at, generation"
        }
        SessionOrder::Id => {
            let is_within = |after: &&EndedPosition| after.session.as_str() >= &*query.id_prefix;
            match after.filter(is_within) {
                Some(after) => {
                    let [at, generation] = after.end();
                    let values = [(&after.session).into(), at, generation];
                    conditions.add("(session, ended_at, generation) >", values);
                }
                None => conditions.add("session >=", [Param::Text(&query.id_prefix)]),
            }
            conditions.add_prefix_end(&end);
            "session, ended_at, generation"
        }
    };
    read_rows(&conditions.select(tables, &columns(tables), order, (0, max))?)
}

/// Returns the sorted generations that a narrow filter without an index in this order selects.
///
/// `None` if the filter selects too many or the walk needs no other filter.
fn sorted(
    tables: &dyn Tables,
    query: &EndedQuery,
) -> Result<Option<Vec<EndedPosition>>, StoreError> {
    let end = prefix_end(&query.id_prefix);
    let mut conditions = Conditions::of_tenant(query);
    let order = match query.order {
        SessionOrder::Id if query.subject.is_some() => {
            conditions.add_subject(query);
            "ended_at"
        }
        SessionOrder::Newest | SessionOrder::Oldest
            if query.subject.is_none() && !query.id_prefix.is_empty() =>
        {
            conditions.add("session >=", [Param::Text(&query.id_prefix)]);
            conditions.add_prefix_end(&end);
            "session"
        }
        _ => return Ok(None),
    };
    let surplus = conditions.select(tables, "ended_at", order, (SORTED_MAX, 1))?;
    if !surplus.is_empty() {
        return Ok(None);
    }
    let columns = "ended_at, generation, session";
    let mut positions = Vec::new();
    for row in conditions.select(tables, columns, order, (0, SORTED_MAX))? {
        let position = EndedPosition {
            at: Steady(row.count(0)?),
            generation: row.generation(1)?,
            session: row.id(2, SessionId::parse)?,
        };
        let is_within = (query.from..=query.until).contains(&position.at)
            && position.session.as_str().starts_with(&*query.id_prefix);
        if is_within && query.is_after_cursor(&position) {
            positions.push(position);
        }
    }
    positions.sort_by(|one, other| one.cmp_in(other, query.order));
    Ok(Some(positions))
}

/// Reads the rows of these generations in the order of the list.
fn find(
    tables: &dyn Tables,
    query: &EndedQuery,
    positions: &[EndedPosition],
) -> Result<Vec<Listed>, StoreError> {
    let params: Vec<Param<'_>> = positions.iter().map(|it| it.generation.into()).collect();
    let sql = format!(
        "SELECT {} FROM generations WHERE generation IN ({})",
        columns(tables),
        places(1, params.len())
    );
    let mut rows = read_rows(&tables.query(&sql, &params)?)?;
    rows.sort_by(|(one, _), (other, _)| one.cmp_in(other, query.order));
    Ok(rows)
}

/// Returns the first text after all texts with a prefix. `None` if there is none.
fn prefix_end(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // `char` skips the surrogates, and the order of UTF-8 is that of the characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Conditions on the ended generations of a tenant.
struct Conditions<'a> {
    sql: String,
    params: Vec<Param<'a>>,
}

impl<'a> Conditions<'a> {
    fn of_tenant(query: &'a EndedQuery) -> Self {
        Self {
            sql: "tenant = ?1 AND ended_at IS NOT NULL".to_owned(),
            params: vec![(&query.tenant).into()],
        }
    }

    /// Adds a comparison of a column, or of several in brackets, with as many values.
    fn add<const N: usize>(&mut self, comparison: &str, values: [Param<'a>; N]) {
        let places = places(self.params.len() + 1, N);
        self.sql += &format!(" AND {comparison} ({places})");
        self.params.extend(values);
    }

    fn add_subject(&mut self, query: &'a EndedQuery) {
        if let Some(subject) = &query.subject {
            self.add("subject =", [subject.into()]);
        }
    }

    fn add_prefix_end(&mut self, end: &'a Option<String>) {
        if let Some(end) = end {
            self.add("session <", [Param::Text(end)]);
        }
    }

    /// Selects columns of up to `max` rows after the first `skipped`.
    fn select(
        &self,
        tables: &dyn Tables,
        columns: &str,
        order: &str,
        (skipped, max): (usize, usize),
    ) -> Result<Vec<Row>, StoreError> {
        let next = self.params.len() + 1;
        let sql = format!(
            "SELECT {columns} FROM generations WHERE {} ORDER BY {order} LIMIT ?{next} OFFSET ?{}",
            self.sql,
            next + 1
        );
        let bounds = [max.into(), skipped.into()];
        tables.query(&sql, &[&self.params[..], &bounds].concat())
    }
}

/// Returns `count` places of parameters, beginning with the place `first`.
fn places(first: usize, count: usize) -> String {
    let places: Vec<String> = (first..first + count).map(|at| format!("?{at}")).collect();
    places.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_end_is_first_text_without_the_prefix() {
        let end = |prefix| prefix_end(prefix);
        assert_eq!(end("chat:"), Some("chat;".to_owned()));
        assert_eq!(end("a\u{d7ff}"), Some("a\u{e000}".to_owned()));
        assert_eq!(end("a\u{10ffff}"), Some("b".to_owned()));
        assert_eq!(end("\u{10ffff}"), None);
        assert_eq!(end(""), None);
    }
}
