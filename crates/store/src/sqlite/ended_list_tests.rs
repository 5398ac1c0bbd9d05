//! Pages of 100,000 ended generations cost the same wherever they are.

use std::cell::Cell;
use std::collections::BTreeMap;

use memoird_core::ids::{Generation, Subject, TenantId};
use memoird_core::time::Steady;
use rusqlite::{Connection, StatementStatus, params, params_from_iter};

use super::schema::{KNOWN, of_version};
use super::tables::SqliteTables;
use crate::ended_list::{EXAMINED_MAX, ROWS_PER_STATEMENT, page};
use crate::transfer::Row;
use crate::{
    DeletedTurns, Dialect, EndedPage, EndedQuery, Param, SessionOrder, StoreError, Tables, encoding,
};

const GENERATIONS: u32 = 100_000;

/// The tables, which count what statements read. A statement that scans or sorts a table panics.
struct WatchedTables<'a> {
    tables: SqliteTables<'a>,
    connection: &'a Connection,
    rows: Cell<usize>,
    steps: Cell<i32>,
}

impl Tables for WatchedTables<'_> {
    fn dialect(&self) -> &'static Dialect {
        self.tables.dialect()
    }

    fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let found = self.tables.query(sql, params)?;
        self.rows.set(self.rows.get() + found.len());
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query(params_from_iter(params))?;
        while rows.next()?.is_some() {}
        drop(rows);
        for status in [StatementStatus::FullscanStep, StatementStatus::Sort] {
            assert_eq!(statement.get_status(status), 0, "{sql}");
        }
        let steps = statement.get_status(StatementStatus::VmStep);
        self.steps.set(self.steps.get() + steps);
        Ok(found)
    }

    fn change(&self, sql: &str, params: &[Param<'_>]) -> Result<usize, StoreError> {
        self.tables.change(sql, params)
    }

    fn delete_turns(
        &self,
        generation: Generation,
        rows_max: usize,
        bytes_max: usize,
    ) -> Result<DeletedTurns, StoreError> {
        self.tables.delete_turns(generation, rows_max, bytes_max)
    }
}

/// Creates ended generations: ten of each session, ten in each millisecond, 1,000 subjects.
fn journal() -> Connection {
    let connection = of_version(KNOWN).unwrap().expect("this version");
    let sql = "INSERT INTO generations (generation, format, tenant, session, subject, created_ms,
            last_access, revision, last_seq, kept, turns, bytes, tokens, partial, state_version,
            ended_ms, ended_at, reason, newest_seq)
        VALUES (?1, 1, 't', ?2, ?3, 1, 1, 1, 1, ?4, 1, 1, 1, 0, 0, 1, ?5, 'ended', 1)";
    let live_set = encoding::encode_live_set(&Default::default());
    let mut insert = connection.prepare(sql).unwrap();
    for number in 0..GENERATIONS {
        let row = params![
            generation(number).to_bytes(),
            format!("chat:{:05}", number % (GENERATIONS / 10)),
            format!("user:{:03}", number % 1_000),
            live_set,
            at(number).0.cast_signed(),
        ];
        insert.execute(row).unwrap();
    }
    drop(insert);
    connection
}

fn generation(number: u32) -> Generation {
    Generation::new(number.into(), number.into())
}

fn at(number: u32) -> Steady {
    Steady(u64::from(number / 10))
}

fn query(order: SessionOrder) -> EndedQuery {
    EndedQuery {
        tenant: TenantId::parse("t").unwrap(),
        id_prefix: "".into(),
        subject: None,
        labels: BTreeMap::new(),
        from: Steady(0),
        until: Steady(u64::MAX),
        order,
        after: None,
        max: 1_000,
    }
}

/// A page, the number of rows read for it, and the steps of SQLite's virtual machine.
fn watched_page(connection: &Connection, query: &EndedQuery) -> (EndedPage, usize, i32) {
    let watched = WatchedTables {
        tables: SqliteTables::new(connection, None),
        connection,
        rows: Cell::new(0),
        steps: Cell::new(0),
    };
    let page = page(&watched, query, &[]).unwrap();
    (page, watched.rows.get(), watched.steps.get())
}

#[test]
fn page_of_100_000_costs_the_same_anywhere() {
    let connection = journal();
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let mut query = query(order);
        let (mut found, mut costs) = (0, Vec::new());
        loop {
            let (page, rows, steps) = watched_page(&connection, &query);
            assert!(rows <= query.max + 1 + ROWS_PER_STATEMENT, "{rows} rows");
            found += page.generations.len();
            costs.push(steps);
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!((found, costs.len()), (100_000, 100), "{order:?}");
        let most = costs.iter().max().unwrap();
        assert!(*most <= costs[0] + costs[0] / 20, "{order:?}: {costs:?}");
    }
}

#[test]
fn filters_with_an_index_read_only_their_generations() {
    let connection = journal();
    let subject = Subject::parse("user:007").unwrap();
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let of_subject = EndedQuery {
            subject: Some(subject.clone()),
            ..query(order)
        };
        let (page, rows, _) = watched_page(&connection, &of_subject);
        assert_eq!((page.generations.len(), page.next), (100, None));
        assert!(rows <= 200, "{order:?}: {rows} rows");
        let of_session = EndedQuery {
            id_prefix: "chat:00123".into(),
            ..query(order)
        };
        let (page, rows, _) = watched_page(&connection, &of_session);
        assert_eq!((page.generations.len(), page.next), (10, None));
        assert!(rows <= 20, "{order:?}: {rows} rows");
        let of_time = EndedQuery {
            from: Steady(500),
            until: Steady(509),
            ..query(order)
        };
        if order != SessionOrder::Id {
            let (page, rows, _) = watched_page(&connection, &of_time);
            assert_eq!((page.generations.len(), rows), (100, 100));
        }
    }
}

#[test]
fn call_examines_bounded_number_of_rows() {
    let connection = journal();
    for order in [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id] {
        let mut query = EndedQuery {
            labels: [("app".into(), "none".into())].into(),
            ..query(order)
        };
        let mut calls = 0;
        loop {
            let (page, rows, _) = watched_page(&connection, &query);
            assert!(rows <= EXAMINED_MAX + ROWS_PER_STATEMENT, "{rows} rows");
            assert!(page.generations.is_empty());
            calls += 1;
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!(calls, 100_000_usize.div_ceil(EXAMINED_MAX), "{order:?}");
    }
    // A prefix of all: more than are sorted.
    let broad = EndedQuery {
        id_prefix: "chat:".into(),
        max: 10,
        ..query(SessionOrder::Newest)
    };
    let (page, rows, _) = watched_page(&connection, &broad);
    assert_eq!((page.generations.len(), rows), (10, 12));
}
