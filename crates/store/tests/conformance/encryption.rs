//! Encrypted files: unreadable without the key, and unchanged if opened with a wrong one.
//!
//! Conversions work in both directions despite interruptions.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use memoird_store::conversion::{
    self, ConversionOutcome, ConversionStep, ConversionTarget, check_finished, convert,
};
use memoird_store::data_key::FileForm;
use memoird_store::verify::check_journal;
use memoird_store::{DataKey, SqliteOptions, SqliteStore, Store, StoreError, snapshot};
use rusqlite::Connection;

use crate::chat::begun;
use crate::erase::{no_byte_is_left, says};
use crate::faults::{after_a_crash, at_rest, bytes, copy, must_work, talk, try_open};
use crate::kit::*;

/// A distinct key per number.
pub(crate) fn key(number: u8) -> DataKey {
    DataKey::parse(&hex(number)).unwrap()
}

fn hex(number: u8) -> String {
    format!("{number:02x}").repeat(32)
}

fn options(key: DataKey) -> SqliteOptions {
    SqliteOptions {
        key: Some(key),
        ..SqliteOptions::default()
    }
}

fn open(dir: &Path) -> SqliteStore {
    SqliteStore::open(dir, options(key(1))).unwrap()
}

/// Opening must fail without changing the files. Returns the error.
fn refusal(dir: &Path, key: Option<DataKey>) -> StoreError {
    let before = bytes(dir);
    let options = SqliteOptions {
        key,
        ..SqliteOptions::default()
    };
    let error = SqliteStore::open(dir, options).expect_err("it must not open");
    assert!(bytes(dir) == before, "it was changed: {error}");
    error
}

/// Creates an encrypted journal with a log, as after a crash.
fn encrypted_after_a_crash(dir: &Path) {
    let living = tempfile::tempdir().unwrap();
    let store = open(living.path());
    talk(&store, "first", 1);
    drop(store);
    let store = open(living.path());
    talk(&store, "in the log", 50);
    copy(living.path(), dir);
    assert!(!bytes(dir).1.is_empty());
}

/// Returns where the decrypted pages of the journal contain this text.
fn places(dir: &Path, text: &str) -> Vec<String> {
    let connection = Connection::open(dir.join("journal.db")).unwrap();
    let spec = format!("x'{}'", hex(1));
    connection.pragma_update(None, "key", spec).unwrap();
    let mut statement = connection
        .prepare("SELECT pgno, data FROM sqlite_dbpage")
        .unwrap();
    let mut pages = statement.query([]).unwrap();
    let mut places = Vec::new();
    while let Some(row) = pages.next().unwrap() {
        let page = row.get_ref(1).unwrap().as_blob().unwrap();
        if holds(page, text) {
            places.push(format!("page {}", row.get::<_, i64>(0).unwrap()));
        }
    }
    places
}

fn holds(bytes: &[u8], text: &str) -> bool {
    let mut windows = bytes.windows(text.len());
    windows.any(|window| window == text.as_bytes())
}

/// Returns all sessions and turns of a journal.
fn content(store: &SqliteStore) -> BTreeSet<String> {
    let rows = live_heads(store);
    let describe = |entry| format!("{entry:?}");
    let heads = rows.into_iter().map(describe).collect::<Vec<_>>();
    let turns = store
        .written_after(0, usize::MAX, usize::MAX)
        .unwrap()
        .turns
        .into_iter()
        .map(|turn| format!("{turn:?}"));
    heads.into_iter().chain(turns).collect()
}

#[test]
fn file_and_wal_are_unreadable_without_key() {
    let dir = tempfile::tempdir().unwrap();
    encrypted_after_a_crash(dir.path());
    let (file, log) = bytes(dir.path());
    for bytes in [&file, &log] {
        for text in ["first", "in the log", "CREATE TABLE", "SQLite format"] {
            assert!(!holds(bytes, text), "{text}");
        }
    }
    assert!(matches!(
        FileForm::of(&dir.path().join("journal.db")).unwrap(),
        FileForm::Encrypted(_)
    ));
    assert!(!places(dir.path(), "in the log").is_empty());
    let store = open(dir.path());
    assert_eq!(live_heads(&store).len(), 2);
    must_work(&store);
}

#[test]
fn files_with_the_same_key_have_different_salts() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let heads = dirs.each_ref().map(|dir| {
        drop(open(dir.path()));
        bytes(dir.path()).0[..16].to_vec()
    });
    assert_eq!(heads[0][..10], heads[1][..10], "the key is the same");
    assert_ne!(heads[0][10..], heads[1][10..]);
}

#[test]
fn mismatched_or_missing_key_is_refused_and_changes_nothing() {
    let (plain, encrypted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    after_a_crash(plain.path());
    encrypted_after_a_crash(encrypted.path());
    let error = refusal(plain.path(), Some(key(1)));
    assert!(matches!(error, StoreError::NotEncrypted { .. }), "{error}");
    assert!(error.to_string().contains("memoird encrypt"), "{error}");
    let error = refusal(encrypted.path(), None);
    assert!(matches!(error, StoreError::Encrypted { .. }), "{error}");
    assert!(error.to_string().contains("server.data_key"), "{error}");
    let error = refusal(encrypted.path(), Some(key(2)));
    assert!(matches!(error, StoreError::WrongKey { .. }), "{error}");
}

#[test]
fn damaged_page_is_distinguished_from_wrong_key() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    talk(&store, "long", 1);
    drop(store);
    let path = dir.path().join("journal.db");
    let whole = fs::read(&path).unwrap();
    for at in [100, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, damaged).unwrap();
        let error = refusal(dir.path(), Some(key(1)));
        assert!(matches!(error, StoreError::Corrupt { .. }), "{at}: {error}");
    }
    fs::write(&path, &whole[..whole.len() - 4_096]).unwrap();
    let error = refusal(dir.path(), Some(key(1)));
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[test]
fn snapshot_is_encrypted_with_the_same_key() {
    let (dir, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = open(dir.path());
    talk(&store, "copied", 1);
    let (from, copied) = (dir.path().join("journal.db"), to.path().join("journal.db"));
    let key = key(1);
    assert!(snapshot::copy(&from, &copied, Some(&key), || false).unwrap());
    assert!(!holds(&fs::read(&copied).unwrap(), "copied"));
    let check = check_journal(&copied, Some(&key)).unwrap();
    assert_eq!(check.damages_total, 0, "{check:?}");
    assert!(check.turns.whole > 0);
    let copy = open(to.path());
    assert_eq!(content(&copy), content(&store));
    must_work(&copy);
}

#[test]
fn erased_text_is_gone_from_decrypted_pages() {
    no_byte_is_left(Some(key(1)), places);
}

#[test]
fn journal_survives_encryption_and_decryption() {
    let dir = tempfile::tempdir().unwrap();
    after_a_crash(dir.path());
    let store = try_open(dir.path()).unwrap();
    let before = content(&store);
    drop(store);
    let path = dir.path().join("journal.db");
    let all = |target| convert(&path, &key(1), target, |_| false).unwrap();
    assert_eq!(
        all(ConversionTarget::Encrypted),
        ConversionOutcome::Converted
    );
    assert_eq!(
        all(ConversionTarget::Encrypted),
        ConversionOutcome::AlreadyConverted
    );
    assert!(!holds(&bytes(dir.path()).0, "in the log"));
    let store = open(dir.path());
    assert_eq!(content(&store), before);
    must_work(&store);
    let with_more = content(&store);
    drop(store);
    assert_eq!(all(ConversionTarget::Plain), ConversionOutcome::Converted);
    let store = try_open(dir.path()).unwrap();
    assert_eq!(content(&store), with_more);
    talk(&store, "plain again", 2_000);
}

/// Interrupts a conversion after any step, or halfway through copying or overwriting.
///
/// Then runs it again.
#[test]
fn interrupted_conversion_is_finished_by_the_next_one() {
    let model = tempfile::tempdir().unwrap();
    after_a_crash(model.path());
    let before = {
        let opened = tempfile::tempdir().unwrap();
        copy(model.path(), opened.path());
        content(&try_open(opened.path()).unwrap())
    };
    for target in [ConversionTarget::Encrypted, ConversionTarget::Plain] {
        for step in [
            ConversionStep::Copied,
            ConversionStep::OldRenamed,
            ConversionStep::Replaced,
        ] {
            let dir = tempfile::tempdir().unwrap();
            copy(model.path(), dir.path());
            let path = dir.path().join("journal.db");
            let convert = |target, stop: Option<ConversionStep>| {
                convert(&path, &key(1), target, |at| Some(at) == stop).unwrap()
            };
            if target == ConversionTarget::Plain {
                convert(ConversionTarget::Encrypted, None);
            }
            let what = format!("{target:?} {step:?}");
            assert_eq!(convert(target, Some(step)), ConversionOutcome::Stopped);
            let error = check_finished(dir.path()).unwrap_err();
            assert!(
                matches!(error, StoreError::ConversionUnfinished { .. }),
                "{what}: {error}"
            );
            match step {
                // Half of the copy is written.
                ConversionStep::Copied => {
                    fs::write(path.with_extension("db.converted"), [7; 5_000]).unwrap();
                }
                // A part of the old file is overwritten.
                ConversionStep::Replaced => {
                    let old = path.with_extension("db.replaced");
                    let mut bytes = fs::read(&old).unwrap();
                    bytes[..4_096].fill(0);
                    fs::write(&old, bytes).unwrap();
                }
                ConversionStep::OldRenamed => {}
            }
            let outcome = convert(target, None);
            let expected = match step {
                ConversionStep::Replaced => ConversionOutcome::AlreadyConverted,
                _ => ConversionOutcome::Converted,
            };
            assert_eq!(outcome, expected, "{what}");
            check_finished(dir.path()).unwrap();
            let names: Vec<_> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(names, ["journal.db"], "{what}");
            let store = match target {
                ConversionTarget::Encrypted => open(dir.path()),
                ConversionTarget::Plain => try_open(dir.path()).unwrap(),
            };
            assert_eq!(content(&store), before, "{what}");
        }
    }
}

/// Memories and the search index have kinds of tables that a journal does not have.
#[test]
fn conversion_preserves_full_text_tables_and_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let plain = Connection::open(&path).unwrap();
    plain
        .execute_batch(
            "PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA application_id = 77;
             PRAGMA user_version = 3;
             CREATE TABLE facts (no INTEGER PRIMARY KEY, content TEXT) STRICT;
             CREATE TABLE named (name TEXT PRIMARY KEY, no INTEGER REFERENCES facts) WITHOUT ROWID;
             CREATE VIEW current AS SELECT no, content FROM facts;
             CREATE VIRTUAL TABLE words USING
                 fts5(content, content = 'current', content_rowid = 'no');
             CREATE VIRTUAL TABLE stems USING fts5(text, content = '', contentless_delete = 1);
             INSERT INTO words (words, rank) VALUES ('pgsz', 512);
             INSERT INTO facts VALUES (5, 'likes green tea'), (900, 'drinks coffee');
             INSERT INTO named VALUES ('a', 900);
             INSERT INTO words (rowid, content) SELECT no, content FROM facts;
             INSERT INTO stems (rowid, text) SELECT no, content FROM facts;
             DELETE FROM stems WHERE rowid = 900;
             ANALYZE;",
        )
        .unwrap();
    drop(plain);
    let number = |connection: &Connection, sql: &str| {
        connection
            .query_row(sql, [], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    for target in [ConversionTarget::Encrypted, ConversionTarget::Plain] {
        convert(&path, &key(1), target, |_| false).unwrap();
        let connection = Connection::open(&path).unwrap();
        if target == ConversionTarget::Encrypted {
            let spec = format!("x'{}'", hex(1));
            connection.pragma_update(None, "key", spec).unwrap();
        }
        for (sql, expected) in [
            ("PRAGMA auto_vacuum", 2),
            ("PRAGMA application_id", 77),
            ("PRAGMA user_version", 3),
            ("SELECT rowid FROM words WHERE words MATCH 'tea'", 5),
            ("SELECT rowid FROM stems WHERE stems MATCH 'green'", 5),
            ("SELECT count(*) FROM stems WHERE stems MATCH 'coffee'", 0),
            ("SELECT no FROM named", 900),
            ("SELECT count(*) > 0 FROM sqlite_stat1", 1),
        ] {
            assert_eq!(number(&connection, sql), expected, "{target:?}: {sql}");
        }
        let check = "INSERT INTO words (words, rank) VALUES ('integrity-check', 1)";
        connection.execute(check, []).unwrap();
    }
}

/// The key is checked before anything is changed.
#[test]
fn conversion_with_wrong_key_or_corrupt_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    at_rest(dir.path());
    let path = dir.path().join("journal.db");
    convert(&path, &key(1), ConversionTarget::Encrypted, |_| false).unwrap();
    let before = bytes(dir.path());
    for target in [ConversionTarget::Encrypted, ConversionTarget::Plain] {
        let error = convert(&path, &key(2), target, |_| false).unwrap_err();
        assert!(matches!(error, StoreError::WrongKey { .. }), "{error}");
    }
    fs::write(&path, [7; 8_192]).unwrap();
    let error = conversion::check_convertible(&path, &key(1)).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    fs::write(&path, before.0).unwrap();
    must_work(&open(dir.path()));
}

#[test]
fn conversion_of_journal_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = try_open(dir.path()).unwrap();
    talk(&store, "s", 1);
    let reader = Connection::open(dir.path().join("journal.db")).unwrap();
    reader
        .execute_batch("BEGIN; SELECT count(*) FROM turns;")
        .unwrap();
    talk(&store, "more", 50);
    let before = content(&store);
    drop(store);
    let path = dir.path().join("journal.db");
    let error = convert(&path, &key(1), ConversionTarget::Encrypted, |_| false).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    drop(reader);
    convert(&path, &key(1), ConversionTarget::Encrypted, |_| false).unwrap();
    assert_eq!(content(&open(dir.path())), before);
}

/// Measures CPU time of the committing thread for 64 appends of 200 bytes per commit.
///
/// Run with `cargo test --release -p memoird-store --features encryption --test conformance --
/// --ignored --nocapture measure_commit_cpu`.
#[test]
#[ignore = "it measures"]
fn measure_commit_cpu_with_encryption() {
    let mut ratios: Vec<f64> = (0..7)
        .map(|_| commit_cpu_ns(Some(key(1))) / commit_cpu_ns(None))
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "CPU per commit, encrypted to plain: {:.2} ({:.2} to {:.2})",
        ratios[3], ratios[0], ratios[6]
    );
}

fn commit_cpu_ns(key: Option<DataKey>) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        key,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(dir.path(), options).unwrap();
    let mut chats: Vec<_> = (1..=64)
        .map(|at| begun(&store, &format!("s{at}"), at))
        .collect();
    let text = says(&"x".repeat(200));
    let mut spent = 0.0;
    for at in 100..600 {
        let appends = chats.iter_mut().map(|chat| chat.append_command(&text, at));
        let sets: Vec<_> = appends.map(|append| set([append])).collect();
        let before = thread_cpu_ns();
        let written = store.commit(&clock(at), &sets).unwrap();
        spent += thread_cpu_ns() - before;
        assert!(written.iter().all(Result::is_ok));
    }
    spent
}

/// Returns the CPU time of this thread in nanoseconds, the first number in the file.
fn thread_cpu_ns() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
