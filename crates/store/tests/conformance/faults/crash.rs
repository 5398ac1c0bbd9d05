//! Crashes: acknowledged sets are there, whole, and no other set is there in part.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::ids::Generation;
use memoird_core::session::AppendCommand;

use super::*;
use crate::chat::{command, large};
use crate::seeds::seeds_factor;

/// Each set of these tests begins a session with two turns.
fn one_set(number: u64) -> memoird_core::change::ChangeSet {
    let key = key("t", &format!("s{number}"));
    let (mut chat, begin) = Chat::begin(&key, Generation::new(1, number.into()), number);
    set([begin, chat.append("u a", number)])
}

/// Returns the number of sets in the journal, which must be whole and the first ones.
fn sets_in(store: &dyn Store) -> u64 {
    let mut numbers: Vec<u64> = Vec::new();
    for (key, head) in live_heads(store) {
        assert_eq!((head.last_seq, head.revision), (2, 1), "a set is whole");
        assert_eq!(known(store, &key).unwrap().turns.len(), 2);
        numbers.push(key.session.as_str()[1..].parse().unwrap());
    }
    numbers.sort_unstable();
    assert!(
        numbers.iter().copied().eq(1..=numbers.len() as u64),
        "{numbers:?}"
    );
    numbers.len() as u64
}

#[test]
fn copy_between_commits_has_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for number in 1..=24 {
        assert_eq!(write(&store, &[one_set(number)]), [Ok(())]);
        if number % 3 == 0 {
            let crashed = tempfile::tempdir().unwrap();
            copy(dir.path(), crashed.path());
            let recovered = open(crashed.path());
            assert_eq!(sets_in(&recovered), number);
            must_work(&recovered);
        }
    }
}

#[test]
fn copy_during_commits_has_everything_acknowledged_before() {
    const BATCH: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for batch in 0..100 * seeds_factor() {
                let numbers = batch * BATCH + 1..=(batch + 1) * BATCH;
                let sets: Vec<_> = numbers.map(one_set).collect();
                assert!(write(&store, &sets).iter().all(Result::is_ok));
                acknowledged.fetch_add(BATCH, Ordering::SeqCst);
            }
        });
        while !writer.is_finished() {
            let crashed = tempfile::tempdir().unwrap();
            let before = acknowledged.load(Ordering::SeqCst);
            copy(dir.path(), crashed.path());
            let after = acknowledged.load(Ordering::SeqCst) + BATCH;
            let found = sets_in(&open(crashed.path()));
            assert!(
                (before..=after).contains(&found),
                "{before} <= {found} <= {after}"
            );
            assert_eq!(found % BATCH, 0, "a batch is one transaction");
        }
        writer.join().unwrap();
    });
}

/// Runs `find` on the journal with its log truncated at 41 positions, and returns the results.
///
/// None of the positions is on a frame boundary. Each journal must accept writes.
pub(super) fn with_log_cut_off<T>(
    dir: &Path,
    mut find: impl FnMut(&Path, &SqliteStore) -> T,
) -> Vec<T> {
    let (file, log) = bytes(dir);
    let cut_off = |part: usize| {
        let cut = (log.len() * part / 40 + part % 2).min(log.len());
        let crashed = tempfile::tempdir().unwrap();
        fs::write(crashed.path().join("journal.db"), &file).unwrap();
        fs::write(crashed.path().join("journal.db-wal"), &log[..cut]).unwrap();
        let recovered = open(crashed.path());
        let found = find(crashed.path(), &recovered);
        must_work(&recovered);
        found
    };
    (0..=40).map(cut_off).collect()
}

#[test]
fn truncated_wal_has_whole_sets_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for number in 1..=12 {
        assert_eq!(write(&store, &[one_set(number)]), [Ok(())]);
    }
    let found = with_log_cut_off(dir.path(), |_, recovered| sets_in(recovered));
    assert!(found.is_sorted(), "{found:?}");
    assert_eq!((found[0], found[40]), (0, 12));
}

/// The log is checkpointed and restarted. File and log together are complete at any time.
#[test]
fn copy_after_wal_restart_has_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut chat = begun(&store, "s", 1);
    let mut log_bytes = 0;
    for at in 2..=40 {
        let append = AppendCommand {
            turns: vec![large(1 << 20)],
            ..command("a")
        };
        must_write(&store, [chat.append_command(&append, at)]);
        let file = dir.path().join("journal.db-wal");
        log_bytes = log_bytes.max(fs::metadata(file).unwrap().len());
    }
    assert!(
        log_bytes < 40 << 20,
        "the log is bounded, not {log_bytes} bytes"
    );
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    let recovered = open(crashed.path());
    assert_eq!(
        known(&recovered, &chat.key).unwrap().head,
        *chat.session.head()
    );
    assert_eq!(seqs(&recovered, &chat.key, None), Some((1..=39).collect()));
}

/// Without its log, a journal is as old as the last checkpoint.
#[test]
fn journal_without_wal_opens_with_last_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    assert_eq!(write(&store, &[one_set(1), one_set(2)]), [Ok(()); 2]);
    drop(store);
    let store = open(dir.path());
    assert_eq!(write(&store, &[one_set(3)]), [Ok(())]);
    let crashed = tempfile::tempdir().unwrap();
    fs::write(crashed.path().join("journal.db"), bytes(dir.path()).0).unwrap();
    let recovered = open(crashed.path());
    assert_eq!(sets_in(&recovered), 2);
    must_work(&recovered);
}
