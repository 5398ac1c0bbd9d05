//! Damage is detected on open, reported, and not made worse.

use std::fs;
use std::sync::Arc;

use memoird_core::turn::Role;
use memoird_store::{DAMAGED_TEXT, StoreError};

use super::*;

const PAGE: usize = 4_096;

fn is_corrupt(dir: &Path) -> String {
    let error = refusal(dir);
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("nothing was changed") && text.contains("backup"),
        "{text}"
    );
    text
}

#[test]
fn garbage_of_any_length_is_corrupt() {
    for length in [1, 15, 16, 17, 100, PAGE, 3 * PAGE + 5] {
        let dir = tempfile::tempdir().unwrap();
        let garbage: Vec<u8> = (1..=250).cycle().take(length).collect();
        fs::write(dir.path().join("journal.db"), garbage).unwrap();
        is_corrupt(dir.path());
        // The log of a journal next to it must be preserved too.
        fs::write(dir.path().join("journal.db-wal"), vec![7; 5_000]).unwrap();
        is_corrupt(dir.path());
    }
}

#[test]
fn garbage_after_sqlite_magic_is_corrupt() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = b"SQLite format 3\0".to_vec();
    file.resize(2 * PAGE, 0xa5);
    fs::write(dir.path().join("journal.db"), file).unwrap();
    is_corrupt(dir.path());
}

#[test]
fn truncated_file_is_corrupt() {
    let whole = tempfile::tempdir().unwrap();
    at_rest(whole.path());
    let (file, log) = bytes(whole.path());
    assert!(log.is_empty() && file.len() > 20 * PAGE);
    let size = file.len();
    for length in [
        1,
        16,
        50,
        100,
        PAGE,
        PAGE + 1,
        size / 2,
        size - PAGE,
        size - PAGE / 2,
        size - 100,
        size - 1,
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("journal.db"), &file[..length]).unwrap();
        is_corrupt(dir.path());
    }
}

#[test]
fn truncated_file_with_wal_is_corrupt() {
    let whole = tempfile::tempdir().unwrap();
    after_a_crash(whole.path());
    let (file, log) = bytes(whole.path());
    // With nothing or little left of the file, SQLite would discard the log.
    for length in [0, 1, 50, 100, PAGE, 5 * PAGE, file.len() / 2] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("journal.db"), &file[..length]).unwrap();
        fs::write(dir.path().join("journal.db-wal"), &log).unwrap();
        is_corrupt(dir.path());
    }
}

/// If the operator moves only the damaged file away, the log still has the newest turns.
#[test]
fn wal_without_its_file_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    after_a_crash(dir.path());
    fs::remove_file(dir.path().join("journal.db")).unwrap();
    let text = is_corrupt(dir.path());
    assert!(text.contains("-wal"), "it says what to move away: {text}");
    fs::remove_file(dir.path().join("journal.db-wal")).unwrap();
    must_work(&open(dir.path()));
}

#[test]
fn overwritten_pages_are_corrupt() {
    let whole = tempfile::tempdir().unwrap();
    at_rest(whole.path());
    let (file, _) = bytes(whole.path());
    let pages = file.len() / PAGE;
    for page in [2, 5, pages / 3, pages / 2, pages - 3] {
        for filler in [0x00, 0xa5, 0xff] {
            let dir = tempfile::tempdir().unwrap();
            let mut damaged = file.clone();
            // Not on a page boundary, which disks do not know.
            damaged[page * PAGE - 700..(page + 1) * PAGE + 700].fill(filler);
            fs::write(dir.path().join("journal.db"), damaged).unwrap();
            is_corrupt(dir.path());
        }
    }
}

/// SQLite checks little of the first page. A header that it cannot parse is damage, too.
#[test]
fn invalid_header_is_corrupt() {
    let whole = tempfile::tempdir().unwrap();
    at_rest(whole.path());
    let (file, _) = bytes(whole.path());
    // Page size, format version, schema format and text encoding.
    for place in [16, 19, 47, 59] {
        let dir = tempfile::tempdir().unwrap();
        let mut damaged = file.clone();
        damaged[place] = 0x63;
        fs::write(dir.path().join("journal.db"), damaged).unwrap();
        is_corrupt(dir.path());
    }
}

#[test]
fn overwritten_pages_with_wal_are_corrupt() {
    let whole = tempfile::tempdir().unwrap();
    after_a_crash(whole.path());
    let (file, log) = bytes(whole.path());
    // A run of pages, because some of them are also in the log.
    let middle = file.len() / PAGE / 2 * PAGE;
    let mut damaged = file;
    damaged[middle - 8 * PAGE..middle + 8 * PAGE].fill(0xa5);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("journal.db"), damaged).unwrap();
    fs::write(dir.path().join("journal.db-wal"), log).unwrap();
    is_corrupt(dir.path());
}

/// Changes a turn's row without the store.
fn damage(dir: &Path, chat: &Chat, seq: u64, assignment: &str) {
    let sql = format!("UPDATE turns SET {assignment} WHERE generation = ? AND seq = {seq}");
    let changed = raw(dir).execute(&sql, [chat.generation().to_bytes()]);
    assert_eq!(changed, Ok(1));
}

/// Returns the seq of each turn, and whether it is replaced as damaged.
fn marks(turns: &[(u64, Arc<[u8]>)]) -> Vec<(u64, bool)> {
    let is_marked = |content: &[u8]| {
        let turn = memoird_store::encoding::open(content).unwrap();
        format!("{turn:?}").contains(DAMAGED_TEXT)
    };
    let turns = turns.iter();
    turns
        .map(|(seq, content)| (*seq, is_marked(content)))
        .collect()
}

#[test]
fn damaged_content_is_replaced_in_every_read() {
    // In the pending table, and in the indexed tables.
    for pending_changes_max in [1_000, 1] {
        let dir = tempfile::tempdir().unwrap();
        let options = SqliteOptions {
            pending_changes_max,
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(dir.path(), options).unwrap();
        let mut chat = begun(&store, "s", 1);
        must_write(&store, [chat.append("u a+x t-x a", 3)]);
        must_write(&store, [chat.touch(4)]);
        let before = known(&store, &chat.key).unwrap();
        for seq in [2, 3] {
            damage(
                dir.path(),
                &chat,
                seq,
                "content = CAST(x'ff' || content AS BLOB)",
            );
        }
        let after = known(&store, &chat.key).unwrap();
        let shape = |known: &ExpectedSession| {
            let turns = known
                .turns
                .iter()
                .map(|(seq, _, role, _, pinned, results)| (*seq, *role, *pinned, results.clone()));
            turns.collect::<Vec<_>>()
        };
        assert_eq!(shape(&after), shape(&before));
        let expected = [(1, false), (2, true), (3, true), (4, false)];
        let loaded: Vec<_> = after
            .turns
            .iter()
            .map(|(seq, content, ..)| (*seq, Arc::clone(content)))
            .collect();
        assert_eq!(marks(&loaded), expected);
        let page = page(&store, &chat.key, None, ALL).unwrap();
        assert_eq!(marks(&page.turns), expected);
        must_write(&store, [chat.end(5)]);
        let wanted = [(chat.key.clone(), chat.generation())];
        let ended = store.ended(&wanted, usize::MAX).unwrap();
        assert_eq!(marks(&ended[0].turns), expected);
        // Two turns in four reads: `known` loads the session twice.
        let expected = memoird_store::TurnCounts {
            unchecked: 0,
            damaged: 2 * 4,
        };
        assert_eq!(store.turn_counts(), expected);
    }
}

/// Without header or checksum, only generation and seq of a turn are known.
#[test]
fn unreadable_turn_is_marked_and_others_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let [mut old, mut hurt, mut well] =
        [("old", 1), ("hurt", 2), ("well", 3)].map(|(name, at)| begun(&store, name, at));
    must_write(
        &store,
        [
            old.append("u a u", 4),
            hurt.append("u a+x t-x u a+y", 4),
            well.append("u a u", 4),
        ],
    );
    damage(
        dir.path(),
        &old,
        2,
        "content = x'ff', header = NULL, checksum = NULL",
    );
    for seq in [1, 2, 5] {
        damage(dir.path(), &hurt, seq, "content = x'ff', header = x'ff'");
    }
    let roles = |chat: &Chat| {
        let known = known(&store, &chat.key).unwrap();
        let turns = known.turns.iter();
        turns.map(|(_, _, role, ..)| *role).collect::<Vec<_>>()
    };
    assert_eq!(roles(&old), [Role::User, Role::System, Role::User]);
    // The first turn must be the user's, by its position.
    let [user, unknown, result] = [Role::User, Role::System, Role::Tool];
    assert_eq!(roles(&hurt), [user, unknown, result, user, unknown]);
    let page = page(&store, &hurt.key, None, ALL).unwrap();
    let expected = [(1, true), (2, true), (3, false), (4, false), (5, true)];
    assert_eq!(marks(&page.turns), expected);
    // A result without its call stays in the journal but leaves the history. A result for a
    // forgotten call is accepted, and leaves the history as well.
    let mut hurt = hurt.reloaded(&store);
    assert_eq!(hurt.kept(), [1, 2, 4, 5]);
    must_write(&store, [hurt.append("t-y u", 5)]);
    assert_eq!(hurt.kept(), [1, 2, 4, 5, 7]);
    let again = hurt.reloaded(&store);
    assert_eq!(again.kept(), hurt.kept());
    assert!(known(&store, &well.key).is_some());
    assert_eq!(
        seqs(&store, &old.key, None),
        Some(vec![1, 2, 3]),
        "the bytes are given as is"
    );
}
