//! Databases created by an older memoird.

use memoird_memories::ForgetRequest;
use memoird_memories::rules::{MemoryKind, Outcome};
use memoird_memories::store::MemoryStore;
use memoird_postgres::PgOptions;

use crate::kit::*;
use crate::place::{Place, RUNTIME};
use crate::start::Server;

/// Words split by other rules.

#[test]
fn words_of_other_rules_are_reindexed() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let (_, database) = words.split_once("dbname=").unwrap();
    let open = || {
        let options = PgOptions::parse(&words, None, None).unwrap();
        let store = MemoryStore::in_postgres(options, RUNTIME.handle()).unwrap();
        store.tenant(&tenant("acme")).unwrap()
    };
    let memories = open();
    for number in 1..=3 {
        let fact = fact("ann", MemoryKind::Project, &format!("boat number {number}"));
        memories
            .write_one(move |writer| writer.remember(&order(number, fact), &limits()))
            .unwrap();
    }
    let older = "UPDATE memoird_memories.meta SET value = '1' WHERE name = 'words';
        DELETE FROM memoird_memories.terms;
        INSERT INTO memoird_memories.terms (tenant, partition, form, no)
        SELECT tenant, partition, 4711, no FROM memoird_memories.memories";
    server.run(database, older);
    let stale = "SELECT count(*) FROM memoird_memories.terms WHERE form = 4711";
    assert_eq!(server.run(database, stale), "3");
    let memories = open();
    let found = || {
        let look = memories.read(|reader| reader.recall(&ask(&["ann"], "boats"), None, at(1)));
        by_words(&look.unwrap()).len()
    };
    let step = || memories.write_one(|writer| writer.words_step(2)).unwrap();
    assert_eq!(found(), 3);
    while step() > 0 {
        assert_eq!(found(), 3);
    }
    assert_eq!((found(), step()), (3, 0));
    assert_eq!(server.run(database, stale), "0");
    let stats = open().read(|reader| reader.stats(None, at(1))).unwrap();
    assert_eq!(stats.words_queued, 0);
}

/// Version 1 had these tables without the columns that are removed here.
#[test]
fn counters_of_version_1_continue_after_migration() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "the boat is called Zuiderzee");
    for table in ["state", "document_state"] {
        kit.place.run(&format!(
            "DROP VIEW memoird_tenant.{table};
             DROP TRIGGER changed ON memoird_memories.{table};
             ALTER TABLE memoird_memories.{table} DROP COLUMN step, DROP COLUMN changes,
                 ADD PRIMARY KEY (tenant);
             CREATE VIEW memoird_tenant.{table} AS SELECT * FROM memoird_memories.{table}
                 WHERE tenant = memoird_memories.tenant()"
        ));
    }
    for table in ["memories", "documents"] {
        kit.place.run(&format!(
            "DROP VIEW memoird_tenant.{table};
             DROP TRIGGER unchecked ON memoird_memories.{table};
             ALTER TABLE memoird_memories.{table} DROP COLUMN checksum;
             CREATE VIEW memoird_tenant.{table} AS SELECT * FROM memoird_memories.{table}
                 WHERE tenant = memoird_memories.tenant()"
        ));
    }
    kit.place.run(
        "DROP VIEW memoird_tenant.keys;
         ALTER TABLE memoird_memories.keys DROP COLUMN version, DROP COLUMN created;
         CREATE VIEW memoird_tenant.keys AS SELECT * FROM memoird_memories.keys
             WHERE tenant = memoird_memories.tenant()",
    );
    kit.place.run(
        "DROP VIEW memoird_tenant.terms;
         ALTER TABLE memoird_memories.terms ALTER COLUMN form TYPE int USING (form << 32 >> 32)::int;
         CREATE VIEW memoird_tenant.terms AS SELECT * FROM memoird_memories.terms
             WHERE tenant = memoird_memories.tenant()",
    );
    kit.place.run(
        "DROP FUNCTION memoird_memories.changed, memoird_memories.unchecked;
         UPDATE memoird_memories.schema_version SET version = 1",
    );
    // A daemon of version 1 keeps running during the migration.
    let older = kit.memories.clone();
    let kit = kit.reopened();
    let version = "SELECT version FROM memoird_memories.schema_version";
    assert_eq!(kit.peek(version), 7);
    assert_eq!(kit.write(|writer| writer.checksums_step(9)), 1);
    kit.say(2, "ann", "the dog is called Rex");
    let fact = order(3, fact("bob", MemoryKind::Project, "the cat is called Tom"));
    let done = older.write_one(move |writer| writer.remember(&fact, &limits()));
    assert_eq!(done.unwrap().outcome, Outcome::Created);
    assert_eq!(kit.peek("SELECT memories FROM state"), 3);
    // Words are indexed again. Until then, memories are found without them.
    assert_eq!(kit.found("ann", "boat"), [1]);
    while kit.write(|writer| writer.words_step(2)) > 0 {}
    assert_eq!(kit.found("ann", "boat"), [1]);
    for table in ["state", "document_state"] {
        let rows = format!("SELECT count(*) FROM memoird_memories.{table}");
        assert_eq!(kit.peek(&rows), 1, "{table}");
    }
    kit.check_indexes();
}

/// A daemon of version 6 has a row for each word and for each beginning of a word.
#[test]
fn words_of_older_daemon_are_found_and_erased() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "das Boot liegt in Veere");
    kit.place.run("TRUNCATE memoird_memories.terms");
    for word in ["boot", "\u{200d}boo", "liegt", "\u{200d}lie"] {
        let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let form = word.bytes().fold(0x811c_9dc5, mix).cast_signed();
        kit.place.run(&format!(
            "INSERT INTO terms (partition, no, form) SELECT partition, no, {form} FROM memories"
        ));
    }
    assert_eq!(kit.found("ann", "Boot"), [1]);
    kit.forget(9, &ForgetRequest::Subject(subject("ann")));
    assert_eq!(kit.peek("SELECT count(*) FROM memoird_memories.terms"), 0);
}

/// A daemon of version 3 knows no checksums.
#[test]
fn change_by_older_daemon_removes_checksum() {
    let kit = Kit::new();
    if let Place::Skipped(_) = kit.place {
        return;
    }
    kit.say(1, "ann", "the boat is called Zuiderzee");
    kit.say(2, "ann", "the dog is called Rex");
    let unchecked = "SELECT count(*) FROM memories WHERE checksum IS NULL";
    kit.place.run("UPDATE memories SET recalls = 3");
    assert_eq!(kit.peek(unchecked), 0, "recalls are not covered");
    kit.place.run(
        "UPDATE memories SET importance = 0.25 WHERE content = 'the boat is called Zuiderzee'",
    );
    assert_eq!(kit.peek(unchecked), 1);
    assert_eq!(kit.get(id(1)).unwrap().importance, 0.25);
    assert_eq!(kit.write(|writer| writer.checksums_step(9)), 1);
    assert_eq!(kit.peek(unchecked), 0);
    assert!(kit.get(id(1)).is_some() && kit.get(id(2)).is_some());
}
