//! Several daemons that share a database of memories.

use std::sync::Arc;

use memoird_core::time::Timestamp;
use memoird_memories::rules::fusion::Candidate;
use memoird_memories::rules::{MemoryKind, MemoryLimits, Outcome};
use memoird_memories::store::{Embedding, MemoryStore};
use memoird_memories::{ForgetRequest, MemoryError, RememberRequest};
use memoird_postgres::{PgOptions, PgStore, Transactions};
use memoird_store::StoreError;

use crate::kit::*;
use crate::place::{Place, RUNTIME};

#[test]
fn memory_of_one_daemon_is_found_by_another() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let other = kit.place.open().tenant(&tenant("acme")).unwrap();
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let lists = other
        .read(|reader| reader.recall(&ask(&["ann"], "boat"), None, at(1)))
        .unwrap();
    assert_eq!(by_words(&lists), [1]);
    // Stated again at the other daemon, it is the same fact.
    let again = order(
        2,
        fact("ann", MemoryKind::Project, "the boat is called Zuiderzee"),
    );
    let done = other.write_one(move |writer| writer.remember(&again, &limits()));
    assert_eq!(done.unwrap().outcome, Outcome::Reinforced);
    assert_eq!(kit.get(id(1)).unwrap().reinforced, 1);
    kit.check_indexes();
}

#[test]
fn concurrent_daemons_lose_and_duplicate_nothing() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let (daemons, facts) = (4_u64, 25_u64);
    let start = Arc::new(std::sync::Barrier::new(usize::try_from(daemons).unwrap()));
    let threads: Vec<_> = (0..daemons)
        .map(|daemon| {
            let (store, start) = (kit.place.open(), Arc::clone(&start));
            std::thread::spawn(move || {
                let memories = store.tenant(&tenant("acme")).unwrap();
                start.wait();
                for number in 0..facts {
                    // One fact of its own, and one that all daemons state.
                    for (id, text) in [
                        (
                            1_000 * daemon + number,
                            format!("fact {number} of {daemon}"),
                        ),
                        (
                            10_000 + 1_000 * daemon + number,
                            format!("common fact {number}"),
                        ),
                    ] {
                        let order = order(id, fact("ann", MemoryKind::Project, &text));
                        memories
                            .write_one(move |writer| writer.remember(&order, &limits()))
                            .unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let all = i64::try_from(daemons * facts + facts).unwrap();
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), all);
    let said = i64::try_from((daemons - 1) * facts).unwrap();
    assert_eq!(kit.peek("SELECT sum(reinforced) FROM memories"), said);
    kit.check_indexes();
}

/// Like a dump: a snapshot retains all row versions while it is open.
#[test]
fn writes_do_not_scan_versions_since_an_old_snapshot() {
    let kit = Kit::new();
    let Place::Database(_, words) = &kit.place else {
        return;
    };
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let options = PgOptions::parse(words, None, None).unwrap();
    let looks = Transactions::new(options, RUNTIME.handle(), 1).unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    let looked = looks.read(begin, |open| {
        open.query("SELECT 1 FROM memoird_memories.state", &[])?;
        for (table, change) in [
            ("state", "memories = memories + 1, born = born + 1"),
            ("document_state", "bytes = bytes + 1"),
        ] {
            kit.place.run(&format!(
                "DO $$ BEGIN FOR change IN 1..4000 LOOP UPDATE {table} SET {change};
                 END LOOP; END $$"
            ));
            let plan = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT * FROM {table}");
            let plan = kit.place.run(&plan);
            let pages = plan.split("shared hit=").nth(1).unwrap_or_default();
            let pages = pages.split(|other: char| !other.is_ascii_digit()).next();
            let pages: u64 = pages.unwrap_or_default().parse().unwrap();
            println!("{table}: {pages} pages");
            assert!(pages <= 12, "{plan}");
        }
        Ok::<_, StoreError>(())
    });
    looked.unwrap();
    kit.say(2, "ann", "the dog is called Rex");
    assert_eq!(kit.peek("SELECT memories FROM state"), 4_002);
    assert_eq!(kit.peek("SELECT bytes FROM document_state"), 4_000);
}

/// As when a daemon is suspended, or tables are locked.
#[test]
fn lock_timeout_returns_busy() {
    let kit = Kit::new();
    let Place::Database(_, words) = &kit.place else {
        return;
    };
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let options = PgOptions::parse(words, None, None).unwrap();
    let others = Transactions::new(options, RUNTIME.handle(), 1).unwrap();
    let held = others.transact("BEGIN", |open| {
        open.query("SELECT FROM memoird_memories.tenants FOR UPDATE", &[])?;
        open.change("LOCK TABLE memoird_memories.memories", &[])?;
        let memories = kit.place.open().tenant(&tenant("acme")).unwrap();
        let more = order(2, fact("ann", MemoryKind::Project, "the dog is called Rex"));
        std::thread::scope(|scope| {
            let written = || memories.write_one(move |writer| writer.remember(&more, &limits()));
            let written = scope.spawn(written);
            let read = memories.read(|reader| reader.get(id(1)));
            assert_eq!(read.unwrap_err(), MemoryError::Busy);
            assert_eq!(written.join().unwrap().unwrap_err(), MemoryError::Busy);
        });
        Ok::<_, StoreError>(())
    });
    held.unwrap();
    kit.say(2, "ann", "the dog is called Rex");
    assert_eq!(kit.peek("SELECT memories FROM state"), 2);
}

#[test]
fn tenants_cannot_see_each_others_rows() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "the boat is called Zuiderzee");
    let other = kit.store.tenant(&tenant("other")).unwrap();
    let lists = other
        .read(|reader| reader.recall(&ask(&["ann"], "boat"), None, at(1)))
        .unwrap();
    assert_eq!(by_words(&lists), [0; 0]);
    assert_eq!(other.read(|reader| reader.get(id(1))).unwrap(), None);
    // With the same id, subject and words it is another fact there.
    let same = order(
        1,
        fact("ann", MemoryKind::Project, "the boat is called Zuiderzee"),
    );
    let done = other.write_one(move |writer| writer.remember(&same, &limits()));
    assert_eq!(done.unwrap().outcome, Outcome::Created);
    assert_eq!(
        kit.store.tenants().unwrap(),
        [tenant("acme"), tenant("other")]
    );
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), 1);
}

fn values(number: u64) -> Embedding {
    let mut values = [0.1; 8];
    values[usize::try_from(number % 8).unwrap()] = number as f32;
    vector(values)
}

/// Memories of two subjects, with vectors.
fn say_all(kit: &Kit) {
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    for number in 1..=64 {
        let who = if number % 4 == 0 { "bob" } else { "ann" };
        let mut said = order(
            number,
            fact(who, MemoryKind::Project, &format!("fact {number}")),
        );
        said.vector = Some(values(number));
        kit.remember(said);
    }
}

/// Makes one of the subjects count as very large.
fn enlarge(kit: &Kit) {
    kit.place
        .run("UPDATE partitions SET next = 30000 WHERE subject = 'ann'");
}

/// Counts the valid indexes of large subjects.
const INDEXES: &str = "SET statement_timeout = 0; SELECT count(*) FROM pg_index
    JOIN pg_class ON pg_class.oid = indexrelid WHERE relname LIKE 'near_%' AND indisvalid";

#[test]
fn very_large_subject_gets_its_own_index() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    say_all(&kit);
    let mut ask = ask(&["ann", "bob"], "");
    ask.limit = 20;
    let near = || -> Vec<(u64, f64)> {
        let found = kit.recall_at(at(1), &ask, Some(&values(3)));
        let cosine = |no| {
            let is_it = |one: &&Candidate| number(one.memory.id) == no;
            found.list.iter().find(is_it).unwrap().cosine.unwrap()
        };
        let found = by_vector(&found).into_iter();
        found.map(|no| (no, cosine(no))).collect()
    };
    let exact = near();
    enlarge(&kit);
    // Without an index, and with it.
    assert_eq!(near(), exact);
    kit.store.make_vector_indexes().unwrap();
    assert_eq!(kit.peek(INDEXES), 1);
    kit.place.run("ANALYZE memoird_vectors.vectors");
    assert_eq!(near(), exact);
    kit.store.make_vector_indexes().unwrap();
    assert_eq!(kit.peek(INDEXES), 1);
}

#[test]
fn index_of_removed_model_or_subject_is_dropped() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    say_all(&kit);
    enlarge(&kit);
    let indexes = || {
        kit.store.make_vector_indexes().unwrap();
        kit.peek(INDEXES)
    };
    assert_eq!(indexes(), 1);
    kit.write(|writer| writer.set_embedding_model(Some("another")));
    assert_eq!(indexes(), 0);
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    assert_eq!(indexes(), 1);
    kit.forget(100, &ForgetRequest::Subject(subject("ann")));
    assert_eq!(indexes(), 0);
}

#[test]
fn index_being_created_by_another_daemon_is_kept() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    say_all(&kit);
    enlarge(&kit);
    // The index is not valid until a write that has already started is done.
    let (begin, begun) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let memories = kit.memories.clone();
    let write = std::thread::spawn(move || {
        memories.write_one(move |writer| {
            writer.embedded(id(3), 1, &values(5))?;
            let _ = (begin.send(()), released.recv());
            Ok(())
        })
    });
    begun.recv().unwrap();
    let other = kit.place.open();
    let make = std::thread::spawn(move || other.make_vector_indexes());
    let under_way = "SELECT count(*) FROM pg_stat_progress_create_index
        WHERE datname = current_database() AND index_relid <> 0";
    while kit.peek(under_way) == 0 {
        assert!(!make.is_finished() && !write.is_finished());
    }
    let oid = || kit.peek("SELECT max(oid::bigint) FROM pg_class WHERE relname LIKE 'near_%'");
    let made = oid();
    kit.store.make_vector_indexes().unwrap();
    drop(release);
    write.join().unwrap().unwrap();
    make.join().unwrap().unwrap();
    assert_eq!((kit.peek(INDEXES), oid()), (1, made));
}

#[test]
fn statement_timeout_does_not_abort_index_creation() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    say_all(&kit);
    enlarge(&kit);
    // Enough rows to slow the index creation down.
    kit.place.run(
        "INSERT INTO vectors (no, model, kind, observed, embedding)
         SELECT no + number, model, kind, observed, ARRAY(SELECT random() + number / 1e9
             FROM generate_series(1, 8))::real[]::vector
         FROM generate_series(1, 6000) AS number,
             (SELECT no, model, kind, observed FROM vectors WHERE no IN
                 (SELECT max(no) FROM memories WHERE owner IN
                     (SELECT no FROM partitions WHERE subject = 'ann'))) AS newest",
    );
    kit.place.run(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET statement_timeout = 100',
             current_database()); END $$",
    );
    kit.store.make_vector_indexes().unwrap();
    assert_eq!(kit.peek(INDEXES), 1);
}

#[test]
fn tag_filter_checks_newest_memories() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    for number in 1..=2 {
        let mut said = fact("ann", MemoryKind::Project, &format!("boat {number}"));
        said.tags = vec!["dock".into()];
        kit.remember(order(number, said));
    }
    let mut ask = ask(&["ann"], "boat");
    ask.tags = vec!["dock".into()];
    let found = || by_words(&kit.recall(&ask));
    assert_eq!(found().len(), 2);
    let more = MemoryLimits::FILTERED_LOOKED_AT - 1;
    kit.place.run(&format!(
        "INSERT INTO tags (tag, no) SELECT tag, no + number FROM generate_series(1, {more}) AS number,
         (SELECT tag, max(no) AS no FROM tags GROUP BY tag) AS newest"
    ));
    assert_eq!(found(), [2]);
}

#[test]
fn tenant_lost_by_failover_is_created_again() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "the boat is called Zuiderzee");
    for table in [
        "tenants",
        "state",
        "partitions",
        "document_state",
        "memories",
        "terms",
    ] {
        kit.place
            .run(&format!("DELETE FROM memoird_memories.{table}"));
    }
    let say = |number| {
        let order = order(
            number,
            fact("ann", MemoryKind::Project, "the dog is called Rex"),
        );
        let memories = kit.store.tenant(&tenant("acme")).unwrap();
        memories.write_one(move |writer| writer.remember(&order, &limits()))
    };
    say(2).expect_err("what it counts is lost");
    assert_eq!(say(3).unwrap().outcome, Outcome::Created);
    assert_eq!(kit.peek("SELECT count(*) FROM memories"), 1);
    kit.check_indexes();
}

/// As in a round of maintenance.
#[test]
fn one_statement_lists_tenants_with_work() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    let due = || kit.store.tenants_due(at(100), at(50)).unwrap();
    let with_a_fact = |name: &str, expires_at: Option<Timestamp>| {
        let memories = kit.store.tenant(&tenant(name)).unwrap();
        let rex = fact("bob", MemoryKind::Project, "the dog is called Rex");
        let said = order(2, RememberRequest { expires_at, ..rex });
        let done = memories.write_one(move |writer| writer.remember(&said, &limits()));
        done.unwrap();
        memories
    };
    with_a_fact("rests", None);
    with_a_fact("later", Some(at(60)));
    assert!(due().is_empty(), "{:?}", due());
    with_a_fact("a", Some(at(40)));
    let moves = with_a_fact("b", None);
    moves.write_one(|writer| writer.reindex_begin()).unwrap();
    let embeds = with_a_fact("c", None);
    let set = embeds.write_one(|writer| writer.set_embedding_model(Some(MODEL)));
    assert!(set.unwrap());
    let forgets = with_a_fact("d", None);
    let request = ForgetRequest::Subject(subject("bob"));
    let begun = forgets.write_one(move |writer| writer.forget_begin(id(9), &request, at(1)));
    begun.unwrap();
    assert_eq!(due(), ["a", "b", "c", "d"].map(tenant));
    // Complete all of it.
    moves
        .write_one(|writer| writer.reindex_step(10, at(1)))
        .unwrap();
    moves
        .write_one(|writer| writer.reindex_step(10, at(1)))
        .unwrap();
    forgets
        .write_one(|writer| writer.forget_step(id(9), 100))
        .unwrap();
    assert_eq!(due(), ["a", "c"].map(tenant));
}

/// A dump of memoird's schemas contains no extension.
#[test]
fn pgvector_is_created_outside_memoird_schemas_for_any_role() {
    let Place::Database(server, words) = Place::new() else {
        return;
    };
    let role = "DO $$ BEGIN CREATE ROLE memoird SUPERUSER LOGIN;
                EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    server.run("postgres", role);
    let words = words.replace("user=postgres", "user=memoird");
    let options = PgOptions::parse(&words, None, None).unwrap();
    // Creates the schema of the journal.
    drop(PgStore::open(options.clone(), RUNTIME.handle()).unwrap());
    let store = MemoryStore::in_postgres(options, RUNTIME.handle()).unwrap();
    assert!(store.has_vectors());
    let (_, database) = words.split_once("dbname=").unwrap();
    let schema = "SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'vector'";
    assert_eq!(server.run(database, schema), "public");
}
