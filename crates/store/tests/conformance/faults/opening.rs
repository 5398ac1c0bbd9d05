//! Opening creates a journal if there is none, preserves one, and does not touch other files.

use std::fs;

use memoird_store::StoreError;
use rusqlite::Connection;

use super::*;

#[test]
fn reopened_journal_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let chats = [1, 2, 3].map(|at| talk(&store, &format!("s{at}"), at));
    must_write(&store, [chats[1].end(100)]);
    let seen = |store: &dyn Store| {
        let sessions = chats.each_ref().map(|chat| {
            (
                known(store, &chat.key),
                seqs(store, &chat.key, Some(chat.generation())),
            )
        });
        (sessions, live_heads(store), store.clock().unwrap())
    };
    let before = seen(&store);
    drop(store);
    for _ in 0..3 {
        let store = open(dir.path());
        assert_eq!(seen(&store), before);
    }
    let store = open(dir.path());
    let mut reloaded = chats[0].reloaded(&store);
    must_write(&store, [reloaded.append("u", 200)]);
    must_work(&store);
}

/// So a backup of one file is complete, and the next start has nothing to recover.
#[test]
fn closed_journal_is_a_single_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let chat = talk(&store, "s", 1);
    // Pooled read connections must not keep the log alive.
    assert!(load(&store, &chat.key).is_some());
    drop(store);
    let mut files: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["journal.db", "lock"]);
}

#[test]
fn directory_in_use_is_refused_until_released() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let chat = talk(&store, "s", 1);
    let before = bytes(dir.path());
    let error = try_open(dir.path()).unwrap_err();
    assert!(matches!(&error, StoreError::DirInUse { dir: named, .. } if named == dir.path()));
    let text = error.to_string();
    for helpful in [
        &*dir.path().display().to_string(),
        "in use by another memoird",
        "stop",
        "lock",
    ] {
        assert!(text.contains(helpful), "{text}");
    }
    assert!(bytes(dir.path()) == before);
    assert!(load(&store, &chat.key).is_some(), "the first one goes on");
    drop(store);
    open(dir.path());
}

#[test]
fn unusable_directory_is_distinguished_from_corrupt_journal() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    for unusable in ["file/dir", "file"] {
        let path = dir.path().join(unusable);
        let error = try_open(&path).unwrap_err();
        assert!(
            matches!(&error, StoreError::DirUnusable { dir, .. } if *dir == path),
            "{error}"
        );
        assert!(error.to_string().contains("choose another"), "{error}");
    }
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"x");
    // Neither the lock nor the journal can be a directory.
    for taken in ["lock", "journal.db"] {
        let path = dir.path().join(format!("with {taken}"));
        fs::create_dir_all(path.join(taken)).unwrap();
        let error = try_open(&path).unwrap_err();
        assert!(
            matches!(error, StoreError::DirUnusable { .. }),
            "{taken}: {error}"
        );
    }
}

/// Only damage may be reported as damage, because operators move such journals away.
///
/// Here SQLite cannot open the log, because a directory has its name.
#[test]
fn temporarily_unreadable_journal_is_not_reported_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    at_rest(dir.path());
    let log = dir.path().join("journal.db-wal");
    fs::create_dir(&log).unwrap();
    let error = refusal(dir.path());
    assert!(matches!(error, StoreError::Sqlite { .. }), "{error}");
    fs::remove_dir(&log).unwrap();
    must_work(&open(dir.path()));
}

#[test]
fn missing_directories_are_created() {
    let dir = tempfile::tempdir().unwrap();
    must_work(&open(&dir.path().join("a/b \u{1f600}/c")));
}

#[test]
fn empty_file_becomes_journal_and_is_migrated_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal.db"), "").unwrap();
    must_work(&open(dir.path()));
    let look = || {
        let raw = raw(dir.path());
        let mut tables = raw
            .prepare("SELECT name, sql FROM sqlite_schema ORDER BY name")
            .unwrap();
        let rows: Vec<(String, Option<String>)> = tables
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let pragmas = [
            "application_id",
            "user_version",
            "auto_vacuum",
            "schema_version",
        ]
        .map(|name| number(&raw, &format!("PRAGMA {name}")));
        let mode: String = raw
            .query_row("PRAGMA journal_mode", [], |row| row.get(0))
            .unwrap();
        (rows, pragmas, mode)
    };
    let first = look();
    assert_eq!(
        first.1[..3],
        [0x6d65_6d6f, 12, 2],
        "ours, the newest schema, room given back"
    );
    assert_eq!(first.2, "wal");
    for _ in 0..2 {
        must_work_again(&open(dir.path()));
        assert_eq!(look(), first);
    }
}

fn must_work_again(store: &dyn Store) {
    assert_eq!(seqs(store, &key("t", "it works"), None), Some(vec![1, 2]));
}

/// The first start may be interrupted after SQLite wrote a page and before any table exists.
#[test]
fn partially_created_journal_is_completed() {
    for log_mode in ["WAL", "DELETE"] {
        let dir = tempfile::tempdir().unwrap();
        let begun = raw(dir.path());
        begun
            .pragma_update(None, "auto_vacuum", "INCREMENTAL")
            .unwrap();
        begun
            .execute_batch("CREATE TABLE once (a); DROP TABLE once")
            .unwrap();
        begun.pragma_update(None, "journal_mode", log_mode).unwrap();
        drop(begun);
        assert_ne!(bytes(dir.path()).0.len(), 0);
        must_work(&open(dir.path()));
        must_work_again(&open(dir.path()));
    }
}

#[test]
fn file_of_another_program_is_refused_unchanged() {
    let marked = "PRAGMA application_id = 7";
    let ours_by_version_only = "CREATE TABLE theirs (a); PRAGMA user_version = 1";
    let with_data = "CREATE TABLE theirs (a); INSERT INTO theirs VALUES (zeroblob(50000))";
    for content in [marked, ours_by_version_only, with_data] {
        for log_mode in ["DELETE", "WAL"] {
            let (living, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let theirs: Connection = raw(living.path());
            theirs
                .pragma_update(None, "journal_mode", log_mode)
                .unwrap();
            theirs.execute_batch(content).unwrap();
            copy(living.path(), dir.path());
            let error = refusal(dir.path());
            assert!(
                matches!(error, StoreError::NotAJournal { .. }),
                "{content}: {error}"
            );
        }
    }
}

#[test]
fn journal_of_newer_version_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    after_a_crash(dir.path());
    let raw = raw(dir.path());
    raw.pragma_update(None, "user_version", 13).unwrap();
    drop(raw);
    let error = refusal(dir.path());
    assert!(
        matches!(
            error,
            StoreError::TooNew {
                found: 13,
                known: 12,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("Run the newer memoird"),
        "{error}"
    );
}

/// The file has the header of an encrypted one.
#[test]
#[cfg(not(feature = "encryption"))]
fn encrypted_journal_is_refused_without_encryption_support() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = b"memoi\x01abcd123456".to_vec();
    file.resize(8_192, 0xa5);
    fs::write(dir.path().join("journal.db"), file).unwrap();
    let error = refusal(dir.path());
    assert!(
        matches!(error, StoreError::EncryptionNotBuilt { .. }),
        "{error}"
    );
}
