//! Migrations between data directories and databases.
//!
//! A journal arrives completely despite interruptions, missing rows are detected, and a partial
//! journal is never used.

use std::collections::BTreeSet;
use std::path::Path;

use memoird_core::ids::{ErasureId, Generation, Subject};
use memoird_core::outbox::DeliveryState;
use memoird_core::session::AppendCommand;
use memoird_core::time::{Steady, Timestamp};
use memoird_postgres::{DatabaseUse, PgStore, PgTransfer};
use memoird_store::transfer::{
    JournalCounters, PageBounds, Row, SourceId, TABLES, Table, TableComparison, TransferSource,
    TransferTarget, copy_and_compare, identify,
};
use memoird_store::{
    ClockAnchor, DeliveryFilter, DeliveryOutcome, EraseTarget, Erasure, JournalRange,
    SqliteTransfer, Store, StoreError, TableBody,
};

use crate::chat::{begun, command, named};
use crate::compaction::{compact, made, status_of};
use crate::cuts::{cuts_of, with_cuts};
use crate::faults::open;
use crate::kit::*;
use crate::outbox::{id, owing};
use crate::rewind;
use crate::seeds::seeds;
use crate::server::{Database, RUNTIME, database};
use crate::update;
use crate::walk::{Random, walk_beside_memory};

/// Location of a journal.
enum Side<'a> {
    Dir(&'a Path),
    Database(&'a Database),
}

impl Side<'_> {
    fn source(&self) -> Result<Box<dyn TransferSource>, StoreError> {
        Ok(match self {
            Self::Dir(dir) => Box::new(SqliteTransfer::source(dir, None)?),
            Self::Database(database) => {
                Box::new(PgTransfer::source(database.options(), RUNTIME.handle())?)
            }
        })
    }

    fn target(&self, source: &SourceId) -> Result<Box<dyn TransferTarget>, StoreError> {
        Ok(match self {
            Self::Dir(dir) => Box::new(SqliteTransfer::target(dir, None, source)?),
            Self::Database(database) => {
                let (options, runtime) = (database.options(), RUNTIME.handle());
                Box::new(PgTransfer::target(options, runtime, source)?)
            }
        })
    }

    fn store(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(match self {
            Self::Dir(dir) => Box::new(memoird_store::SqliteStore::open(
                dir,
                memoird_store::SqliteOptions::default(),
            )?),
            Self::Database(database) => {
                Box::new(PgStore::open(database.options(), RUNTIME.handle())?)
            }
        })
    }
}

/// Creates a journal that has everything a journal can contain.
fn rich(dir: &Path, seed: u64) {
    walk_beside_memory(seed, || Box::new(open(dir)));
    let store = open(dir);
    let hooks = ["crm", "git"];
    let chats = [500, 600, 700].map(|at| owing(&store, "owes", at, &hooks));
    let outcome = |chat: usize, hook, state| DeliveryOutcome {
        id: id(chats[chat].generation(), hook),
        state,
        tries: 3,
        last_error: "a\0 b\u{1f512}".to_owned(),
        due: Steady(900),
    };
    let outcomes = [
        outcome(0, "git", DeliveryState::Done),
        outcome(1, "git", DeliveryState::Dead),
        outcome(1, "crm", DeliveryState::Pending),
    ];
    store.record_outcomes(&outcomes).unwrap();
    let mut chat = begun(&store, "has all", 710);
    must_write(&store, [chat.append("u a u a", 710)]);
    let touch = with_cuts(chat.touch(711), Some(cuts_of(1)));
    must_write(&store, [touch, chat.patch(r#"{"a":1}"#, 712)]);
    must_write(&store, [chat.label("a", "b")]);
    let decision = rewind::decide(&mut chat, 2, named("u", 1, 1), 713);
    must_write(&store, decision.unwrap().changes);
    let mut chat = chat.reloaded(&store);
    must_write(
        &store,
        update::decide(&mut chat, 1, "other", None, 714).changes,
    );
    let chat = chat.reloaded(&store);
    must_write(&store, [compact(&chat, status_of(1), made(1))]);
    let mut copy = begun(&store, "a copy", 720);
    let owned = |name: &str| AppendCommand {
        subject: Some(Subject::parse(name).unwrap()),
        copied_from: Some(chat.generation()),
        ..command("u a")
    };
    let appends = ["ann", "bob"].map(|name| copy.append_command(&owned(name), 721));
    must_write(&store, appends);
    // One erasure is deleting rows, and one is still collecting those of a subject.
    let tenant = key("t", "x").tenant;
    let whole = EraseTarget::Session {
        session: key("t", "gone").session,
        generation: None,
    };
    let gone = [800, 810].map(|at| owing(&store, "gone", at, &hooks));
    let rows = Erasure::new(ErasureId::new(1, 1), tenant.clone(), whole);
    store
        .record_outcomes(&[DeliveryOutcome {
            id: id(gone[0].generation(), "git"),
            ..outcome(0, "git", DeliveryState::Done)
        }])
        .unwrap();
    store.save_erasure(&rows).unwrap();
    assert!(store.collect_erased(rows.id, 9).unwrap());
    store.erase_rows(rows.id, 1).unwrap();
    let subject = Subject::parse("user:7").unwrap();
    for at in 820..840 {
        let mut chat = begun(&store, &format!("of a subject {at}"), at);
        let said = AppendCommand {
            subject: Some(subject.clone()),
            ..command("u a")
        };
        must_write(&store, [chat.append_command(&said, at)]);
    }
    let of_subject = Erasure {
        outside: vec!["backups".to_owned(), "logs".to_owned()],
        ..Erasure::new(ErasureId::new(1, 2), tenant, EraseTarget::Subject(subject))
    };
    store.save_erasure(&of_subject).unwrap();
    assert!(!store.collect_erased(of_subject.id, 1).unwrap());
    store.commit(&clock(5_000), &[]).unwrap();
}

/// Everything that can be read from a store.
fn all_of(store: &dyn Store) -> Vec<String> {
    let heads = live_heads(store);
    let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
    let generations = heads.iter().map(|(_, head)| head.generation);
    let names: BTreeSet<Generation> = generations
        .chain(written.turns.iter().map(|turn| turn.generation))
        .collect();
    let names: Vec<Generation> = names.into_iter().collect();
    let mut told = vec![
        format!("{:?}", store.clock().unwrap()),
        format!("{heads:?}"),
        format!("{written:?}"),
        format!("{:?}", store.keyed_sessions(None, usize::MAX).unwrap()),
        format!("{:?}", {
            let mut bytes = store.turn_bytes().unwrap();
            bytes.sort();
            bytes
        }),
    ];
    let deliveries = store.deliveries(&DeliveryFilter::default(), None, usize::MAX);
    told.push(format!("{:?}", deliveries.unwrap()));
    for erasure in store.open_erasures(usize::MAX).unwrap() {
        let scope = store.erasure_scope(erasure.id).unwrap();
        told.push(format!("{erasure:?} {scope:?}"));
    }
    for owner in store.owners(&names).unwrap() {
        let (key, name) = (&owner.key, owner.generation);
        let range = JournalRange {
            with_rewound: true,
            ..ALL
        };
        let ended = store.ended(&[(key.clone(), name)], usize::MAX).unwrap();
        let rewinds: Vec<_> = (0..12_u128)
            .map(|number| store.rewound_by(name, &number.to_be_bytes()).unwrap())
            .collect();
        told.push(format!(
            "{owner:?} {:?}",
            page(store, key, Some(name), range)
        ));
        told.push(format!("{ended:?} {rewinds:?}"));
        told.push(format!("{:?}", known(store, key)));
        told.push(format!("{:?}", store.keys(key, Steady(0)).unwrap()));
    }
    told
}

fn bounds(rows_max: usize) -> PageBounds {
    PageBounds {
        rows_max,
        bytes_max: 3_000,
    }
}

fn migrate(from: &Side<'_>, to: &Side<'_>) -> Vec<TableComparison> {
    let mut source = from.source().unwrap();
    let (id, rows) = identify(&mut *source).unwrap();
    let mut target = to.target(&id).unwrap();
    let mut told = 0;
    let mut count = |_: &Table, rows| told += rows;
    let compared = copy_and_compare(&mut *source, &mut *target, bounds(17), &mut count).unwrap();
    let carried: u64 = compared.iter().map(|table| table.source.rows).sum();
    // Some of the turns may be erased.
    assert!(
        told == 3 * (carried - 1) && told <= 3 * rows,
        "{told} of {rows}"
    );
    compared
}

#[test]
fn journal_migrates_to_database_and_back() {
    for seed in seeds(2) {
        println!("seed {seed}");
        let Some(database) = database() else { return };
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        rich(first.path(), seed);
        let before = all_of(&open(first.path()));
        let places = [
            Side::Dir(first.path()),
            Side::Database(&database),
            Side::Dir(second.path()),
        ];
        for pair in places.windows(2) {
            let compared = migrate(&pair[0], &pair[1]);
            assert_eq!(compared.len(), TABLES.len() + 1);
            for table in compared {
                assert!(table.is_same() && table.source.rows > 0, "{table:?}");
            }
            let store = pair[1].store().unwrap();
            let after = all_of(&*store);
            for (before, after) in before.iter().zip(&after) {
                assert_eq!(before, after);
            }
            assert_eq!(before.len(), after.len());
        }
        assert_eq!(all_of(&open(first.path())), before);
        // New sessions, numbers and jobs continue after the existing ones.
        for place in &places[1..] {
            let store = place.store().unwrap();
            let last = store
                .written_after(u64::MAX >> 1, 1, 1)
                .unwrap()
                .last_number;
            let mut chat = begun(&*store, "new", 6_000);
            must_write(&*store, [chat.append("u a", 6_000)]);
            let written = store.written_after(last, 9, 999).unwrap();
            let numbers: Vec<u64> = written.turns.iter().map(|turn| turn.number).collect();
            assert_eq!(numbers, [last + 1, last + 2]);
            while !store.collect_erased(ErasureId::new(1, 2), 3).unwrap() {}
            let scope = store.erasure_scope(ErasureId::new(1, 2)).unwrap();
            assert_eq!(scope.generations.len(), 20);
        }
    }
}

/// Fails a write, before or after it takes effect, or silently loses rows.
struct Failing<'a> {
    inner: &'a mut dyn TransferTarget,
    calls_left: u64,
    is_done: bool,
    /// Table that loses the first row of each page.
    loses: &'static str,
}

impl<'a> Failing<'a> {
    fn never(inner: &'a mut dyn TransferTarget) -> Self {
        Self {
            inner,
            calls_left: u64::MAX,
            is_done: false,
            loses: "",
        }
    }

    fn call(
        &mut self,
        call: impl FnOnce(&mut dyn TransferTarget) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.calls_left == 0 {
            if self.is_done {
                call(self.inner)?;
            }
            return Err(StoreError::Full);
        }
        self.calls_left -= 1;
        call(self.inner)
    }
}

impl TransferSource for Failing<'_> {
    fn read_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.inner.read_tables(body)
    }

    fn position(&mut self) -> Result<JournalCounters, StoreError> {
        self.inner.position()
    }
}

impl TransferTarget for Failing<'_> {
    fn write_tables(&mut self, body: TableBody<'_>) -> Result<(), StoreError> {
        self.inner.write_tables(body)
    }

    fn put(&mut self, table: &Table, rows: &[Row]) -> Result<(), StoreError> {
        let lost = usize::from(table.name == self.loses);
        self.call(|inner| inner.put(table, &rows[lost..]))
    }

    fn set_position(&mut self, position: &JournalCounters) -> Result<(), StoreError> {
        self.call(|inner| inner.set_position(position))
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        self.inner.finish()
    }
}

/// Sessions live as long as they would have, however long the daemon is stopped for the migration.
#[test]
fn timeline_continues_during_migration() {
    const HOUR_MS: u32 = 60 * 60 * 1_000;
    let Some(database) = database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let now_ms = database.number("SELECT (extract(epoch FROM now()) * 1000)::int8");
    let last = ClockAnchor {
        wall: Timestamp::from_ms(now_ms - i64::from(HOUR_MS)),
        ..clock(50)
    };
    let store = open(dir.path());
    begun(&store, "s", 1);
    store.commit(&last, &[]).unwrap();
    drop(store);
    migrate(&Side::Dir(dir.path()), &Side::Database(&database));
    let store = database.store();
    assert_eq!(store.clock().unwrap(), Some(last));
    let steady = store.steady().unwrap().unwrap().0;
    let hour = u64::from(HOUR_MS);
    assert!((50 + hour..50 + 2 * hour).contains(&steady), "{steady}");
}

fn with_interruptions(from: &Side<'_>, to: &Side<'_>, random: &mut Random) -> usize {
    for tries in 0.. {
        let mut source = from.source().unwrap();
        let (id, _) = identify(&mut *source).unwrap();
        let mut target = to.target(&id).unwrap();
        let mut failing = Failing {
            calls_left: random.below(8),
            is_done: random.below(2) == 0,
            ..Failing::never(&mut *target)
        };
        let rows_max = usize::try_from(1 + random.below(40)).unwrap();
        let carried =
            copy_and_compare(&mut *source, &mut failing, bounds(rows_max), &mut |_, _| {});
        drop((source, target));
        match carried {
            Ok(compared) => {
                assert!(
                    compared.iter().all(TableComparison::is_same),
                    "{compared:?}"
                );
                return tries;
            }
            Err(StoreError::Full) => {}
            Err(error) => panic!("{error}"),
        }
        is_unfinished(to);
    }
    unreachable!("it ends")
}

/// Asserts that the location can be neither opened as a journal nor used as a source.
fn is_unfinished(place: &Side<'_>) {
    for refused in [place.store().err(), place.source().err()] {
        let is_told = matches!(refused, Some(StoreError::MigrationUnfinished { .. }));
        assert!(is_told, "{refused:?}");
    }
}

#[test]
fn interrupted_migration_resumes() {
    let mut interruptions = 0;
    for seed in seeds(2) {
        println!("seed {seed}");
        let Some(database) = database() else { return };
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        rich(first.path(), 100 + seed);
        let before = all_of(&open(first.path()));
        let places = [
            Side::Dir(first.path()),
            Side::Database(&database),
            Side::Dir(second.path()),
        ];
        let mut random = Random(seed);
        for pair in places.windows(2) {
            interruptions += with_interruptions(&pair[0], &pair[1], &mut random);
            assert_eq!(all_of(&*pair[1].store().unwrap()), before);
        }
    }
    assert!(interruptions > 5, "only {interruptions}");
}

#[test]
fn foreign_target_is_rejected_unchanged() {
    let Some(database) = database() else { return };
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, other, dir] = [0, 1, 2].map(|place: usize| dirs[place].path());
    for (dir, at) in [(one, 10), (other, 20)] {
        let store = open(dir);
        owing(&store, "chat", at, &["git"]);
    }
    let id_of = |dir| identify(&mut *Side::Dir(dir).source().unwrap()).unwrap().0;
    for target in [Side::Database(&database), Side::Dir(dir)] {
        drop(target.target(&id_of(one)).unwrap());
        is_unfinished(&target);
        let refused = target.target(&id_of(other)).err();
        let is_told = matches!(refused, Some(StoreError::OtherMigration { .. }));
        assert!(is_told, "{refused:?}");
        migrate(&Side::Dir(one), &target);
        let refused = target.target(&id_of(one)).err();
        let is_told = matches!(refused, Some(StoreError::TargetNotEmpty { .. }));
        assert!(is_told, "{refused:?}");
        assert_eq!(all_of(&*target.store().unwrap()), all_of(&open(one)));
    }
}

#[test]
fn database_used_by_daemon_is_rejected() {
    let Some(database) = database() else { return };
    let dir = tempfile::tempdir().unwrap();
    let place = Side::Dir(dir.path());
    let store = open(dir.path());
    owing(&store, "chat", 10, &[]);
    let refused = place.source().err();
    assert!(
        matches!(refused, Some(StoreError::DirInUse { .. })),
        "{refused:?}"
    );
    drop(store);
    let (id, _) = identify(&mut *place.source().unwrap()).unwrap();
    let mut options = database.options();
    options.sharing = DatabaseUse::Exclusive;
    options.name = "the daemon".to_owned();
    let _daemon = database.store_with(options);
    let refused = Side::Database(&database).target(&id).err();
    let problem = refused.expect("it is refused").to_string();
    assert!(
        problem.contains("another memoird is using it (the daemon)"),
        "{problem}"
    );
}

#[test]
fn migration_stops_after_losing_database_lease() {
    let Some(database) = database() else { return };
    let dir = tempfile::tempdir().unwrap();
    rich(dir.path(), 1);
    let mut source = Side::Dir(dir.path()).source().unwrap();
    let (id, _) = identify(&mut *source).unwrap();
    let mut target = Side::Database(&database).target(&id).unwrap();
    database.run("UPDATE memoird.owner SET node = gen_random_uuid()");
    let refused = copy_and_compare(&mut *source, &mut *target, bounds(9), &mut |_, _| {});
    let problem = refused.expect_err("it is lost").to_string();
    assert!(
        problem.contains("another memoird took it over"),
        "{problem}"
    );
    assert_eq!(database.number("SELECT count(*) FROM memoird.turns"), 0);
}

#[test]
fn missing_rows_are_found_by_comparison() {
    let dir = tempfile::tempdir().unwrap();
    rich(dir.path(), 1);
    for table in TABLES.map(|table| table.name) {
        let Some(database) = database() else { return };
        let place = Side::Database(&database);
        let mut source = Side::Dir(dir.path()).source().unwrap();
        let (id, _) = identify(&mut *source).unwrap();
        let mut target = place.target(&id).unwrap();
        let mut losing = Failing {
            loses: table,
            ..Failing::never(&mut *target)
        };
        let compared =
            copy_and_compare(&mut *source, &mut losing, bounds(999), &mut |_, _| {}).unwrap();
        drop(target);
        let differing: Vec<&str> = compared
            .iter()
            .filter(|table| !table.is_same())
            .map(|table| table.name)
            .collect();
        assert_eq!(differing, [table]);
        is_unfinished(&place);
    }
}
