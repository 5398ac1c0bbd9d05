//! Flushing in steps: no commit does all the work, and the pending table is bounded.
//!
//! After a crash in any step, all acknowledged commits are there.

use memoird_core::session::AppendCommand;

use super::*;
use crate::chat::named;
use crate::seeds::seeds_factor;

const INTAKE_CHANGES: usize = 320;
/// Changes per commit of these tests: a begin and two turns, or a turn with its key.
const COMMIT_CHANGES: i64 = 4;

fn open_small(dir: &Path) -> SqliteStore {
    let options = SqliteOptions {
        pending_changes_max: INTAKE_CHANGES,
        ..SqliteOptions::default()
    };
    SqliteStore::open(dir, options).unwrap()
}

/// Counts the rows of the indexed tables, and those in the pending table.
fn indexed_and_pending_rows(raw: &Connection) -> (i64, i64) {
    let indexed = "SELECT (SELECT count(*) FROM turn_places)
        + (SELECT count(*) FROM generations) + (SELECT count(*) FROM idempotency)";
    let waiting = "SELECT (SELECT count(*) FROM intake_heads)
        + (SELECT count(*) FROM turns WHERE id > (SELECT placed FROM progress))";
    (number(raw, indexed), number(raw, waiting))
}

fn keyed(at: u64) -> AppendCommand {
    named("u", at, 1)
}

/// Uses many sessions in turn, one commit per use.
fn commit_in_turn(store: &dyn Store, commits: u64, mut after_each: impl FnMut(&[Chat])) {
    let mut chats: Vec<Chat> = Vec::new();
    for at in 1..=commits {
        let number = usize::try_from(at * 7 % 40).unwrap();
        match chats.get_mut(number) {
            None => {
                let session = key("t", &format!("s{}", chats.len()));
                let (mut chat, begin) = Chat::begin(&session, Generation::new(1, at.into()), at);
                must_write(store, [begin, chat.append("u a", at)]);
                chats.push(chat);
            }
            Some(chat) if at % 11 == 0 => {
                must_write(store, [chat.end(at)]);
                let session = key("t", &format!("again{at}"));
                let (fresh, begin) = Chat::begin(&session, Generation::new(2, at.into()), at);
                must_write(store, [begin]);
                *chat = fresh;
            }
            Some(chat) => must_write(store, [chat.append_command(&keyed(at), at)]),
        }
        after_each(&chats);
    }
}

#[test]
fn flush_per_commit_and_pending_rows_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_small(dir.path());
    let raw = raw(dir.path());
    let (mut indexed, mut waiting_most, mut steps) = (0, 0, 0);
    commit_in_turn(&store, 2_000, |_| {
        let (now, waiting) = indexed_and_pending_rows(&raw);
        // A 64th of the pending table plus this commit's changes, and half of that again. The last
        // row of a step may be an end, with a weight of 12.
        let step = INTAKE_CHANGES as i64 / 64 + COMMIT_CHANGES;
        assert!(
            now - indexed <= step * 3 / 2 + 12,
            "{indexed} to {now} rows"
        );
        steps += i64::from(now > indexed);
        (indexed, waiting_most) = (now, waiting_most.max(waiting));
    });
    assert!(steps > 200, "{steps} commits flushed");
    let waiting_max = INTAKE_CHANGES as i64 + 2 * COMMIT_CHANGES;
    assert!(waiting_most <= waiting_max, "{waiting_most} rows waited");
    assert!(waiting_most > INTAKE_CHANGES as i64 / 4);
}

#[test]
fn crash_during_flush_keeps_everything_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_small(dir.path());
    let mut commits = 0;
    commit_in_turn(&store, 300 * seeds_factor(), |chats| {
        commits += 1;
        if commits % 4 > 0 {
            return;
        }
        let crashed = tempfile::tempdir().unwrap();
        copy(dir.path(), crashed.path());
        let recovered = open_small(crashed.path());
        assert_eq!(indexed_and_pending_rows(&raw(crashed.path())).1, 0);
        assert_eq!(live_heads(&recovered), live_heads(&store));
        for chat in chats {
            let found = known(&store, &chat.key);
            assert_eq!(found.as_ref().unwrap().head, *chat.session.head());
            assert_eq!(known(&recovered, &chat.key), found, "{:?}", chat.key);
            let said = seqs(&store, &chat.key, None);
            assert_eq!(said, Some((1..=chat.session.head().last_seq).collect()));
            assert_eq!(seqs(&recovered, &chat.key, None), said);
        }
    });
}
