//! Erasures: their scope, in steps of any size, and that no erased byte is left in the files.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::ids::{ErasureId, Generation, Subject};
use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_store::{
    DataKey, EraseTarget, ErasedCounts, ErasedRows, Erasure, ErasureStage, SqliteOptions,
    SqliteStore, Store, encoding, sqlite_gaps::GapFile,
};

use crate::chat::{Chat, begun, named};
use crate::kit::*;
use crate::seeds::seeds;

for_every_store!(
    erasing_session_removes_every_generation_and_nothing_else,
    erasing_one_generation_keeps_others,
    live_generation_must_end_before_erasure,
    generations_of_subject_are_collected,
    copies_and_formerly_owned_generations_are_in_scope,
    finished_erasure_is_kept_without_names,
);

/// Creates a job with a unique id.
pub(crate) fn new_job(target: EraseTarget) -> Erasure {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let id = ErasureId::new(1, number.into());
    Erasure::new(id, key("t", "x").tenant, target)
}

fn job(session: &str, generation: Option<Generation>) -> Erasure {
    let target = EraseTarget::Session {
        session: key("t", session).session,
        generation,
    };
    new_job(target)
}

/// Runs the store's part of a job in steps of this size, and returns the counts.
pub(crate) fn erase(store: &dyn Store, erasure: &Erasure, rows_max: usize) -> ErasedCounts {
    let id = erasure.id;
    store.save_erasure(erasure).unwrap();
    while !store.collect_erased(id, rows_max).unwrap() {}
    loop {
        match store.erase_rows(id, rows_max).unwrap() {
            ErasedRows::More => {}
            ErasedRows::AllGone => break,
            ErasedRows::Live => panic!("it was ended"),
        }
    }
    let erased = store.erasure(id).unwrap().unwrap();
    while !store.forget_erasure_names(id, rows_max).unwrap() {}
    while store.clean_pages(16).unwrap().pages {}
    assert!(!store.clean_pages(16).unwrap().log);
    let stage = ErasureStage::Done;
    store
        .save_erasure(&Erasure {
            stage,
            ..erased.clone()
        })
        .unwrap();
    erased.counts
}

/// Creates an ended generation with five turns, a state and a key.
fn ended(store: &dyn Store, session: &str, at: u64) -> Chat {
    let mut chat = begun(store, session, at);
    let keyed = chat.append_command(&named("u a u a u", at, 1), at);
    must_write(store, [keyed, chat.patch(r#"{"a":1}"#, at)]);
    must_write(store, [chat.end(at)]);
    chat
}

fn erasing_session_removes_every_generation_and_nothing_else(store: &dyn Store) {
    for rows_max in [1, 2, 3, 7, 500] {
        let chats = [10, 20, 30].map(|at| ended(store, "a", at));
        let other = ended(store, "b", 40);
        let counts = erase(store, &job("a", None), rows_max);
        assert_eq!((counts.turns, counts.keys), (15, 3), "steps of {rows_max}");
        for chat in chats {
            assert!(page(store, &chat.key, Some(chat.generation()), ALL).is_none());
            assert!(
                store
                    .keys(&chat.key, Default::default())
                    .unwrap()
                    .is_empty()
            );
        }
        assert_eq!(seqs(store, &other.key, None), Some(vec![1, 2, 3, 4, 5]));
        erase(store, &job("b", None), rows_max);
    }
}

fn erasing_one_generation_keeps_others(store: &dyn Store) {
    let [first, second] = [10, 20].map(|at| ended(store, "a", at));
    let counts = erase(store, &job("a", Some(first.generation())), 500);
    assert_eq!((counts.turns, counts.keys), (5, 1));
    assert!(page(store, &first.key, Some(first.generation()), ALL).is_none());
    assert_eq!(
        seqs(store, &second.key, None).map(|seqs| seqs.len()),
        Some(5)
    );
    assert_eq!(
        store.keys(&second.key, Default::default()).unwrap().len(),
        1
    );
}

fn live_generation_must_end_before_erasure(store: &dyn Store) {
    let mut chat = begun(store, "a", 1);
    must_write(store, [chat.append("u", 1)]);
    let job = job("a", None);
    store.save_erasure(&job).unwrap();
    assert!(store.collect_erased(job.id, 10).unwrap());
    assert_eq!(store.erase_rows(job.id, 10).unwrap(), ErasedRows::Live);
    assert_eq!(seqs(store, &chat.key, None), Some(vec![1]));
    must_write(store, [chat.end(2)]);
    assert_eq!(erase(store, &job, 10).turns, 1);
}

fn generations_of_subject_are_collected(store: &dyn Store) {
    let subject = Subject::parse("ann").unwrap();
    for number in 0..70 {
        let mut chat = begun(store, &format!("s{number}"), number + 1);
        let command = AppendCommand {
            subject: (number % 3 == 0).then(|| subject.clone()),
            ..crate::chat::command("u a")
        };
        must_write(store, [chat.append_command(&command, number)]);
        must_write(store, [chat.end(number)]);
    }
    let target = EraseTarget::Subject(subject);
    let job = new_job(target);
    assert_eq!(erase(store, &job, 2).turns, 24 * 2);
    for number in 0..70_u64 {
        let found = seqs(store, &key("t", &format!("s{number}")), None);
        assert_eq!(found.is_none(), number % 3 == 0, "{number}");
    }
}

fn copies_and_formerly_owned_generations_are_in_scope(store: &dyn Store) {
    let subject = |name: &str| Subject::parse(name).unwrap();
    let whose = |name: &str| AppendCommand {
        subject: Some(subject(name)),
        ..crate::chat::command("u a")
    };
    let copy_of = |chat: &Chat| AppendCommand {
        copied_from: Some(chat.generation()),
        ..crate::chat::command("u a u")
    };
    let [mut first, mut fork, mut last, mut other] =
        [("a", 1), ("b", 2), ("c", 3), ("d", 4)].map(|(session, at)| begun(store, session, at));
    // Both changes of the subject are in one batch.
    let appends = ["ann", "bob", "cem"].map(|name| first.append_command(&whose(name), 5));
    must_write(store, appends);
    let append = fork.append_command(&copy_of(&first), 6);
    must_write(store, [append]);
    let append = last.append_command(&copy_of(&fork), 7);
    must_write(store, [append]);
    let append = other.append_command(&whose("bob"), 8);
    must_write(store, [append]);
    let changed = other.append_command(&whose("ann"), 9);
    must_write(store, [changed, first.end(10), fork.end(10), last.end(10)]);
    let scope_of = |job: Erasure| {
        store.save_erasure(&job).unwrap();
        while !store.collect_erased(job.id, 2).unwrap() {}
        let scope = store.erasure_scope(job.id).unwrap();
        (scope.copies, scope.formerly_owned)
    };
    let [first, fork, last, other] = [first, fork, last, other].map(|chat| chat.generation());
    assert_eq!(scope_of(job("a", None)), (vec![fork, last], vec![]));
    assert_eq!(scope_of(job("b", None)), (vec![last], vec![]));
    assert_eq!(scope_of(job("c", None)), (vec![], vec![]));
    let of = |name: &str| new_job(EraseTarget::Subject(subject(name)));
    assert_eq!(scope_of(of("bob")), (vec![], vec![first, other]));
    assert_eq!(scope_of(of("ann")), (vec![], vec![first]));
    assert_eq!(scope_of(of("cem")), (vec![fork, last], vec![]));

    // A copy of a copy is known when the generation in between is gone, and forgotten with its own.
    erase(store, &job("b", None), 500);
    assert_eq!(scope_of(job("a", None)), (vec![last], vec![]));
    erase(store, &job("c", None), 500);
    assert_eq!(scope_of(job("a", None)), (vec![], vec![]));
    erase(store, &job("a", None), 500);
    assert_eq!(scope_of(of("bob")), (vec![], vec![other]));
}

fn finished_erasure_is_kept_without_names(store: &dyn Store) {
    ended(store, "a", 1);
    let job = job("a", None);
    assert_eq!(store.erasure(job.id).unwrap(), None);
    store.save_erasure(&job).unwrap();
    assert_eq!(store.open_erasures(10).unwrap(), std::slice::from_ref(&job));
    let outside = vec!["one".to_owned(), "two".to_owned()];
    store
        .save_erasure(&Erasure {
            outside: outside.clone(),
            ..job.clone()
        })
        .unwrap();
    erase(
        store,
        &Erasure {
            outside: outside.clone(),
            ..job.clone()
        },
        10,
    );
    assert!(store.open_erasures(10).unwrap().is_empty());
    let kept = store.erasure(job.id).unwrap().unwrap();
    assert_eq!(
        (kept.target, kept.stage, kept.outside),
        (None, ErasureStage::Done, outside)
    );
    assert_eq!(store.erasure_scope(job.id).unwrap(), Default::default());
}

pub(crate) fn says(text: &str) -> AppendCommand {
    let turn = Turn::new(Role::User, vec![PartKind::Text(text.to_owned()).into()]);
    AppendCommand {
        turns: vec![encoding::encode(turn)],
        ..AppendCommand::default()
    }
}

#[test]
fn settle_log_checkpoints_wal_into_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path(), SqliteOptions::default()).unwrap();
    let mut chat = begun(&store, "s", 1);
    must_write(
        &store,
        [chat.append_command(&says("the words that are looked for"), 2)],
    );
    let in_file = || {
        let places = places(dir.path(), "the words that are looked for");
        places
            .iter()
            .any(|place| place.starts_with("journal.db page"))
    };
    assert!(!in_file());
    store.checkpoint_log().unwrap();
    assert!(in_file());
    must_write(&store, [chat.append("u", 3)]);
    store.checkpoint_log().unwrap();
    assert_eq!(seqs(&store, &chat.key, None), Some(vec![1, 2]));
}

/// Returns where the files of a journal contain this text: file, page and surrounding text.
fn places(dir: &Path, text: &str) -> Vec<String> {
    let mut places = Vec::new();
    for name in ["journal.db", "journal.db-wal"] {
        let bytes = std::fs::read(dir.join(name)).unwrap_or_default();
        let found = bytes.windows(text.len()).enumerate();
        for (at, _) in found.filter(|(_, window)| *window == text.as_bytes()) {
            let page = at / 4_096;
            let head = &bytes[page * 4_096..page * 4_096 + 12];
            places.push(format!(
                "{name} page {} at {}: {head:?}",
                page + 1,
                at % 4_096
            ));
        }
    }
    places
}

/// Returns the next pseudorandom number.
fn mix(seed: &mut u64) -> u64 {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

#[test]
fn erased_text_is_gone_from_all_files() {
    no_byte_is_left(None, places);
}

/// Writes and erases repeatedly, and searches the files after each erasure.
pub(crate) fn no_byte_is_left(key: Option<DataKey>, places: impl Fn(&Path, &str) -> Vec<String>) {
    for number in seeds(6) {
        let mut seed = number;
        let dir = tempfile::tempdir().unwrap();
        let options = SqliteOptions {
            pending_changes_max: 50,
            key,
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(dir.path(), options).unwrap();
        let mark = |session: u64| format!("zq{session:03}mark{number}qz");
        let mut chats: Vec<Chat> = (0..12)
            .map(|session| begun(&store, &format!("{}-id", mark(session)), session + 1))
            .collect();
        for at in 0..600 {
            let session = mix(&mut seed) % 12;
            let bytes = match mix(&mut seed) % 8 {
                0 => 9_000,
                1 => 2_500,
                other => usize::try_from(other).unwrap() * 40,
            };
            let text = format!("{0} {1} {0}", mark(session), "x".repeat(bytes));
            let chat = &mut chats[session as usize];
            let append = chat.append_command(&says(&text), at);
            must_write(&store, [append]);
            if at % 7 == 0 {
                let patch = format!(r#"{{"{at}":"{}"}}"#, mark(session));
                must_write(&store, [chat.patch(&patch, at)]);
            }
        }
        for session in [3, 4, 9, 0, 11] {
            let chat = &chats[usize::try_from(session).unwrap()];
            must_write(&store, [chat.end(700)]);
            assert!(!places(dir.path(), &mark(session)).is_empty());
            let job = job(&format!("{}-id", mark(session)), None);
            let counts = erase(&store, &job, 20);
            assert_eq!(counts.turns, chat.session.head().last_seq);
            let left = places(dir.path(), &mark(session));
            assert!(
                left.is_empty(),
                "seed {number}, session {session}: {left:#?}"
            );
            // Unused space rarely contains the searched text, so check that it is empty. The
            // completion of the job was written after it was cleared.
            assert!(!store.clean_pages(16).unwrap().log);
            let gaps = GapFile::new(&dir.path().join("journal.db"))
                .find(key.as_ref())
                .unwrap();
            assert!(
                gaps.is_empty(),
                "seed {number}, session {session}: {gaps:?}"
            );
        }
        for session in [1, 2, 5, 6, 7, 8, 10] {
            let chat = &chats[usize::try_from(session).unwrap()];
            let last = chat.session.head().last_seq;
            assert_eq!(seqs(&store, &chat.key, None), Some((1..=last).collect()));
        }
    }
}
