//! Tenant files: private, separate, bounded, and robust against failures.

use std::panic::{AssertUnwindSafe, catch_unwind};

use memoird_memories::rules::{MemoryKind, NearDuplicate};
use memoird_memories::store::{
    FilesOptions, MemoryStore, WriteJob, check_tenant_file, schema_of_version,
};
use memoird_memories::{FileError, ForgetRequest, ListRequest, MemoryError, RememberRequest};
use memoird_store::StoreError;
use memoird_store::verify::check_schema;
use tempfile::TempDir;

use crate::kit::*;
use crate::place::*;

#[test]
fn tenant_files_are_separate_and_private() {
    let kit = Kit::new();
    let ids = ["acme", "Acme", "../acme", "a b/c", &"x".repeat(256)];
    for (number, name) in (1..).zip(ids) {
        let memories = kit.store.tenant(&tenant(name)).unwrap();
        let said = order(number, fact("ann", MemoryKind::User, "the same fact"));
        memories
            .write_one(move |writer| writer.remember(&said, &limits()))
            .unwrap();
        let counts = memories.read(|reader| reader.stats(None, at(0))).unwrap();
        assert_eq!((counts.memories, counts.superseded), (1, 0));
        assert!(counts.file_bytes > 0);
    }
    let mut expected: Vec<_> = ids.iter().map(|name| tenant(name)).collect();
    expected.sort();
    assert_eq!(kit.store.tenants().unwrap(), expected);
    for entry in std::fs::read_dir(kit.place.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.parent(), Some(kit.place.dir.path()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} is {mode:o}", path.display());
        }
    }
}

#[test]
fn file_of_other_tenant_is_rejected_unchanged() {
    let kit = Kit::new();
    kit.say(1, "ann", "a secret of acme");
    let Kit {
        place: Place { dir, .. },
        store,
        memories,
    } = kit;
    drop((store, memories));
    std::fs::rename(dir.path().join("acme.db"), dir.path().join("evil.db")).unwrap();
    let before = bytes(dir.path());
    let store = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
    let refused = store.tenant(&tenant("evil"));
    assert!(
        failed_with(&refused, |cause| matches!(
            cause,
            FileError::NotOfTenant { .. }
        )),
        "{refused:?}"
    );
    assert_eq!(store.tenants().unwrap(), []);
    assert!(bytes(dir.path()) == before, "it was changed");
}

#[test]
fn foreign_schema_object_is_refused() {
    let kit = Kit::new();
    kit.say(1, "ann", "likes tea");
    let path = kit.place.dir.path().join("acme.db");
    check_schema(&path, None, schema_of_version).unwrap();
    assert_eq!(check_tenant_file(&path, None).unwrap().damages, [""; 0]);
    let spy = "CREATE TRIGGER spy AFTER INSERT ON memories BEGIN DELETE FROM memories; END";
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(spy)
        .unwrap();
    let found = check_tenant_file(&path, None).unwrap().damages;
    assert!(found[0].contains("foreign trigger \"spy\""), "{found:?}");
    let error = check_schema(&path, None, schema_of_version).unwrap_err();
    assert!(matches!(error, StoreError::ForeignSchema { .. }), "{error}");
}

#[test]
fn damaged_file_hides_no_other_tenant() {
    let kit = Kit::new();
    kit.say(1, "ann", "a fact");
    std::fs::write(kit.place.dir.path().join("broken.db"), b"not a database").unwrap();
    assert_eq!(kit.store.tenants().unwrap(), [tenant("acme")]);
    assert!(
        kit.store.tenant(&tenant("broken")).is_err(),
        "who asks for it is told"
    );
}

#[test]
fn foreign_file_is_left_unchanged() {
    for content in [&b"not a database"[..], &[0; 4_096]] {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("acme.db"), content).unwrap();
        let store = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
        assert!(failed_with(
            &store.tenant(&tenant("acme")),
            |cause| matches!(cause, FileError::Store(StoreError::Corrupt { .. }))
        ));
        assert_eq!(std::fs::read(dir.path().join("acme.db")).unwrap(), content);
    }
    let kit = Kit::new();
    let path = kit.place.path();
    let Kit {
        place: Place { dir, .. },
        store,
        memories,
    } = kit;
    drop((store, memories));
    let newer = rusqlite::Connection::open(&path).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    drop(newer);
    let store = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
    let refused = store.tenant(&tenant("acme"));
    assert!(
        failed_with(&refused, |cause| matches!(
            cause,
            FileError::Store(StoreError::TooNew { found: 99, .. })
        )),
        "{refused:?}"
    );
}

#[test]
fn full_disk_rolls_back_the_group() {
    let kit = Kit::at(Place::with(&FilesOptions {
        pages_max: Some(92),
        ..FilesOptions::default()
    }));
    kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
    let mut stored = 0;
    let refused = loop {
        let orders = (1..=8).map(|place| {
            let number = stored + place;
            let text = format!("fact {number} {}", "with some more words ".repeat(40));
            let mut said = fact("ann", MemoryKind::Project, &text);
            said.tags = vec![format!("tag {number}")];
            order(number, said)
        });
        let jobs = orders.map(|order| {
            WriteJob::new(move |writer| writer.remember(&order, &limits()).map(|_| ()))
        });
        match kit.memories.write(jobs.collect()) {
            Ok(answers) => assert!(answers.iter().all(Result::is_ok)),
            Err(error) => break error,
        }
        stored += 8;
        assert!(stored < 2_000, "92 pages must be full some time");
    };
    assert!(matches!(refused, MemoryError::DiskFull), "{refused}");
    let counts = kit
        .memories
        .read(|reader| reader.stats(None, at(0)))
        .unwrap();
    assert_eq!(counts.memories, stored);
    assert_eq!(
        kit.found("ann", "fact").len(),
        10.min(usize::try_from(stored).unwrap())
    );
    kit.check_indexes();
    let kit = kit.reopened();
    kit.say(5_000, "ann", "there is room again");
    kit.check_indexes();
}

#[test]
fn panic_in_job_rolls_back_the_group() {
    let kit = Kit::new();
    let said = order(1, fact("ann", MemoryKind::User, "half done"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        kit.memories.write(vec![WriteJob::new(move |writer| {
            writer.remember(&said, &limits())?;
            panic!("a job that panics");
        })])
    }));
    assert!(panicked.is_err());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        kit.memories
            .read(|_| -> Result<(), MemoryError> { panic!("a look that panics") })
    }));
    assert!(panicked.is_err());
    assert_eq!(kit.get(id(1)), None);
    kit.say(2, "ann", "all done");
    assert_eq!(kit.found("ann", "done"), [2]);
    kit.check_indexes();
}

#[test]
fn unused_files_are_closed_and_used_ones_stay_open() {
    let options = FilesOptions {
        files_open_max: 2,
        ..FilesOptions::default()
    };
    let dir = TempDir::new().unwrap();
    let store = MemoryStore::open(dir.path(), &options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..10_u64 {
                    let name = format!("tenant-{}", (round * 7 + thread * 3) % 10);
                    let memories = store.tenant(&tenant(&name)).unwrap();
                    let number = 1 + thread * 100 + round;
                    let text = format!("fact {number} of {name}");
                    let said = order(number, fact("ann", MemoryKind::User, &text));
                    memories
                        .write_one(move |w| w.remember(&said, &limits()))
                        .unwrap();
                    let found = memories.read(|reader| reader.get(id(number))).unwrap();
                    assert_eq!(found.unwrap().content, text);
                }
            });
        }
    });
    // Four files may have been in use at the last check, and were not closed.
    drop(store.tenant(&tenant("tenant-0")).unwrap());
    let open = std::fs::read_dir(dir.path()).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str().unwrap().ends_with(".db-shm")
    });
    assert!(open.count() <= 2, "a closed file has no -shm");
    let all = store.tenants().unwrap();
    let counts = all.iter().map(|tenant| {
        let memories = store.tenant(tenant).unwrap();
        memories
            .read(|reader| reader.stats(None, at(0)))
            .unwrap()
            .memories
    });
    assert_eq!((all.len(), counts.sum::<u64>()), (10, 40));
}

#[test]
fn readers_do_not_wait_for_the_writer() {
    let kit = Kit::new();
    kit.say(1, "ann", "before");
    let said = order(2, fact("ann", MemoryKind::User, "after"));
    let memories = &kit.memories;
    memories
        .write_one({
            let memories = memories.clone();
            move |writer| {
                writer.remember(&said, &limits())?;
                assert_eq!(
                    memories.read(|reader| reader.get(id(2)))?,
                    None,
                    "not yet true"
                );
                Ok(())
            }
        })
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(kit.get(id(2)).is_some()));
        }
    });
}

#[test]
fn stats_count_current_memories() {
    let kit = Kit::new();
    let names = ["ann", "bob", "cid"];
    for (number, text) in (1..=30).zip(["red", "green", "blue"].into_iter().cycle()) {
        let who = names[(number % 3) as usize];
        let said = RememberRequest {
            expires_at: (number % 5 == 0).then(|| at(1 + (number % 3) as i64)),
            supersedes: (number % 7 == 0).then(|| id(number - 3)),
            near_duplicate: NearDuplicate::Apart,
            ..fact(who, MemoryKind::Project, &format!("{text} {number}"))
        };
        kit.remember(order(number, said));
    }
    let check = |kit: &Kit| {
        for hours in [0, 1, 2, 3] {
            let counts = kit.memories.read(|reader| reader.stats(None, at(hours)));
            let counts = counts.unwrap();
            let listed = names.iter().map(|who| {
                let all = ListRequest {
                    subject: Some(subject(who)),
                    count: 100,
                    ..ListRequest::default()
                };
                let page = kit.memories.read(|reader| reader.page_of(&all, at(hours)));
                page.unwrap().memories.len() as u64
            });
            assert_eq!(counts.memories, listed.sum::<u64>(), "after {hours} hours");
            let superseded = "SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL";
            assert_eq!(counts.superseded as i64, kit.peek(superseded));
            let subjects = "SELECT count(DISTINCT owner) FROM memories";
            assert_eq!(counts.subjects as i64, kit.peek(subjects));
        }
    };
    check(&kit);
    assert!(kit.peek("SELECT count(*) FROM memories WHERE superseded_by IS NOT NULL") > 2);
    kit.forget(1, &ForgetRequest::One(id(14)));
    kit.forget(2, &ForgetRequest::Subject(subject("bob")));
    while kit.write(|writer| writer.expire_step(at(2), 3)) > 0 {}
    check(&kit);
    check(&kit.reopened());
}

#[test]
fn scattered_words_are_merged_in_steps() {
    let kit = Kit::new();
    let segments = |kit: &Kit| kit.memories.read(|reader| reader.word_segments()).unwrap();
    assert_eq!(segments(&kit), 0);
    let mut number = 0;
    while number < 250 || segments(&kit) <= 12 {
        number += 1;
        let who = ["ann", "bob"][(number % 2) as usize];
        let others: Vec<String> = (0..40).map(|other| format!("no{number}x{other}")).collect();
        let text = format!("word{} tulip {}", number % 7, others.join(" "));
        let said = RememberRequest {
            near_duplicate: NearDuplicate::Apart,
            ..fact(who, MemoryKind::Project, &text)
        };
        kit.remember(order(number, said));
    }
    let scattered = segments(&kit);
    let found = |kit: &Kit| ["word3", "tulip word5", "nothing"].map(|text| kit.found("ann", text));
    let before = found(&kit);
    assert!(!before[0].is_empty());
    let mut steps = 0;
    while kit.write(|writer| writer.merge_words_step(1)) {
        steps += 1;
        assert_eq!(found(&kit), before, "after {steps} steps");
    }
    assert!(steps > 1, "a step is bounded");
    let merged = segments(&kit);
    assert!(
        merged <= 6 && merged * 2 <= scattered,
        "{merged} of {scattered}"
    );
    kit.forget(1, &ForgetRequest::One(id(9)));
    kit.check_indexes();
    kit.say(1_000, "ann", "something new");
    assert_eq!(kit.found("ann", "new"), [1_000]);
    assert!(!kit.found("ann", "word2").contains(&9));
}
