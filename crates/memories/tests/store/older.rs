//! Files of older memoirds with other word rules: searches work while they are reindexed.

use memoird_memories::ForgetRequest;
use memoird_memories::rules::Patch;

use crate::kit::*;

/// Turns a current file into one of an older memoird.
const AS_OF_SCHEMA_2: &str = "
DROP TABLE extractions;
DELETE FROM meta WHERE name = 'words';
DROP TABLE terms;
DROP TABLE places;
ALTER TABLE partitions DROP COLUMN languages;
CREATE VIEW current_words AS SELECT no, content FROM memories WHERE superseded_by IS NULL;
CREATE VIRTUAL TABLE words USING fts5(
    content, content = 'current_words', content_rowid = 'no', detail = none, columnsize = 0,
    tokenize = 'porter unicode61 remove_diacritics 2'
);
INSERT INTO words (words) VALUES ('rebuild');
DROP TABLE namespaces;
DROP TABLE documents;
DROP TABLE document_state;
DROP INDEX memories_external;
DROP INDEX memories_metadata;
ALTER TABLE memories DROP COLUMN external_key;
ALTER TABLE memories DROP COLUMN metadata;
DROP INDEX memories_unchecked;
ALTER TABLE memories DROP COLUMN checksum;
ALTER TABLE keys DROP COLUMN version;
ALTER TABLE keys DROP COLUMN created;
PRAGMA user_version = 2;
";

/// The tables of SQLite's own word index.
const OLD_TABLES: &str = "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%words%'";

fn as_of_schema_2(kit: Kit) -> Kit {
    let connection = rusqlite::Connection::open(kit.place.path()).unwrap();
    connection.execute_batch(AS_OF_SCHEMA_2).unwrap();
    drop(connection);
    kit.reopened()
}

/// A file of an older memoird with this number of memories.
fn old_file(memories: u64) -> Kit {
    let kit = Kit::new();
    for number in 1..=memories {
        kit.say(number, "ann", &format!("dog number {number}"));
    }
    as_of_schema_2(kit)
}

#[test]
fn older_file_is_searchable_while_reindexing() {
    let kit = Kit::new();
    kit.say(1, "ann", "my first dog is Rex");
    kit.say(2, "bob", "the second dog is Toby");
    kit.say(3, "ann", "私の犬の名前は太郎です");
    kit.say(4, "ann", "a dog for each season");
    let kit = as_of_schema_2(kit);
    // Before the first step, between steps and after the last: nothing is missing in the meantime.
    for step in 5.. {
        assert!(kit.found("ann", "dogs").contains(&1), "{step}");
        assert!(kit.found("ann", "season").contains(&4), "{step}");
        kit.say(step, "ann", &format!("dog number {step}"));
        assert!(kit.found("ann", "dogs").contains(&step), "{step}");
        if kit.write(|writer| writer.words_step(2)) == 0 {
            break;
        }
    }
    assert_eq!(kit.found("ann", "太郎"), [3]);
    assert_eq!(kit.peek(OLD_TABLES), 0);
    kit.check_indexes();
}

#[test]
fn words_of_other_rules_are_reindexed() {
    let kit = Kit::new();
    for number in 1..=5 {
        kit.say(number, "ann", &format!("dog number {number}"));
    }
    let connection = rusqlite::Connection::open(kit.place.path()).unwrap();
    let older = "UPDATE meta SET value = value - 1 WHERE name = 'words';
        INSERT INTO terms (rowid, forms) SELECT no, 'stale' FROM memories";
    connection.execute_batch(older).unwrap();
    drop(connection);
    let kit = kit.reopened();
    let mut steps = 0;
    loop {
        assert_eq!(kit.found("ann", "dogs").len(), 5);
        let stale = "SELECT count(*) FROM terms WHERE terms MATCH 'stale'";
        assert_eq!(kit.peek(stale), 0);
        if kit.write(|writer| writer.words_step(2)) == 0 {
            break;
        }
        steps += 1;
    }
    assert_eq!((steps, kit.found("ann", "dogs").len()), (2, 5));
    let kit = kit.reopened();
    assert_eq!(kit.write(|writer| writer.words_step(2)), 0, "once");
    kit.check_indexes();
}

#[test]
fn memory_forgotten_while_reindexing_is_in_no_index() {
    let kit = old_file(6);
    kit.write(|writer| writer.words_step(2));
    kit.forget(100, &ForgetRequest::One(id(1)));
    assert_eq!(kit.found("ann", "dog").len(), 5);
    assert_eq!(kit.peek(OLD_TABLES), 0);
    kit.check_indexes();
}

#[test]
fn memory_changed_while_reindexing_is_found_once() {
    let kit = old_file(6);
    assert!(kit.write(|writer| writer.words_step(2)) > 0);
    // A memory that was reindexed, one that was not, and a new one.
    for number in [1, 5] {
        let patch = Patch {
            content: Some(format!("cat number {number}")),
            ..Patch::default()
        };
        kit.write(move |writer| writer.update(id(number), None, &patch, at(2), &limits()));
    }
    kit.say(7, "ann", "dog number 7");
    let mut dogs = kit.found("ann", "dog");
    dogs.sort_unstable();
    assert_eq!(dogs, [2, 3, 4, 6, 7]);
    let mut cats = kit.found("ann", "cats");
    cats.sort_unstable();
    assert_eq!(cats, [1, 5]);
    while kit.write(|writer| writer.words_step(2)) > 0 {}
    kit.check_indexes();
    let mut cats = kit.found("ann", "cats");
    cats.sort_unstable();
    assert_eq!(cats, [1, 5]);
}
