//! After an erasure, no object contains the text, and everything else is unchanged.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_core::turn::PartKind;
use memoird_engine::{EraseRequest, EraseTarget, ErasedElsewhere, Hook, HookCall, SessionContent};
use memoird_hooks::git::EraseMode;

use crate::kit::*;

/// A session with this text.
fn says(number: u64, text: &str) -> Arc<SessionContent> {
    let mut ended = session(number);
    ended.turns[0].1.parts = vec![part(PartKind::Text(text.to_owned()))];
    Arc::new(ended)
}

async fn erase(
    house: &House,
    target: EraseTarget,
    known: &[&Arc<SessionContent>],
) -> ErasedElsewhere {
    let request = EraseRequest {
        tenant: TenantId::parse("acme").unwrap(),
        target,
        generations: known
            .iter()
            .map(|ended| (ended.generation, ended.session.clone()))
            .collect(),
    };
    let erasing = house.hook.erase(request).expect("it can");
    erasing.await.expect("erased")
}

fn all_of(ended: &SessionContent) -> EraseTarget {
    EraseTarget::Session {
        session: ended.session.clone(),
        generation: None,
    }
}

/// All objects of a repository, including unreachable ones, as git reads them.
fn objects(repository: &Path) -> String {
    let all = ["cat-file", "--batch-all-objects", "--unordered", "--batch"];
    let output = git_may_fail(repository, &all);
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn is_gone(repository: &Path, texts: &[&str]) {
    is_clean(repository);
    let objects = objects(repository);
    for text in texts {
        assert!(!objects.contains(text), "{text} is still in an object");
    }
}

#[tokio::test]
async fn erased_session_is_gone_from_commits_and_packs() {
    let house = House::new();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 30);
    // Alone in a commit and with others, in merged packs and in separate ones.
    for part in other[..20].chunks(5) {
        house.deliver(part).await.unwrap();
    }
    let mut second = session(40);
    second.generation = session(41).generation;
    second.turns[0].1.parts = vec![part(PartKind::Text("zq-marked-qz again".to_owned()))];
    let second = Arc::new(second);
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    let mixed = [&other[20..25], std::slice::from_ref(&second)].concat();
    house.deliver(&mixed).await.unwrap();
    house.deliver(&other[25..]).await.unwrap();
    assert!(objects(&house.bare()).contains("zq-marked-qz"));
    let before = commits(&house.bare());
    let erased = erase(&house, all_of(&marked), &[&marked, &second]).await;
    assert_eq!(erased.outside, Vec::<String>::new());
    assert_eq!(
        erased.commits, 3,
        "that of the session alone, and those behind it"
    );
    is_gone(
        &house.bare(),
        &["zq-marked-qz", "telegram:40", "telegram%3A40"],
    );
    exactly_once(&house.bare(), &other);
    assert_eq!(commits(&house.bare()), before - 1, "one was empty then");
    assert!(packs(&house.bare()) <= 3, "the new history is in one pack");
    // Deliveries continue on the new history. A second erasure finds nothing.
    let more = sessions(50, 3);
    house.deliver(&more).await.unwrap();
    let again = erase(&house, all_of(&marked), &[]).await;
    assert_eq!(again, ErasedElsewhere::default());
    exactly_once(&house.bare(), &[&other[..], &more[..]].concat());
}

#[tokio::test]
async fn pruned_generations_are_erased_by_session_and_subject() {
    let house = House::new();
    let mut eve = session(3);
    eve.subject = Some(memoird_core::ids::Subject::parse("eve").unwrap());
    eve.turns[0].1.parts = vec![part(PartKind::Text("zq-eve-qz".to_owned()))];
    let marked = says(1, "zq-marked-qz");
    let batch = [
        session(0).into(),
        Arc::clone(&marked),
        Arc::new(eve.clone()),
    ];
    house.deliver(&batch).await.unwrap();
    assert_eq!(erase(&house, all_of(&marked), &[]).await.commits, 1);
    is_gone(&house.bare(), &["zq-marked-qz"]);
    assert!(objects(&house.bare()).contains("zq-eve-qz"));
    let target = EraseTarget::Subject(eve.subject.unwrap());
    assert_eq!(erase(&house, target, &[]).await.commits, 1);
    is_gone(&house.bare(), &["zq-marked-qz", "zq-eve-qz"]);
    // No commit message contains their ids.
    is_gone(&house.bare(), &["telegram:1:", "telegram:3:"]);
    assert_eq!(files(&house.bare()).len(), 1);
}

/// Its objects are in a pack, but on no branch.
#[tokio::test]
async fn objects_of_failed_delivery_are_erased() {
    let house = House::new();
    house.deliver(&sessions(0, 3)).await.unwrap();
    let lock = house.bare().join("refs/heads/main.lock");
    std::fs::write(&lock, "").unwrap();
    let marked = says(40, "zq-marked-qz");
    {
        let batch = [Arc::clone(&marked)];
        let mut delivery = std::pin::pin!(house.deliver(&batch));
        while !house.bare().join("memoird.claim").exists() {
            let soon = tokio::time::timeout(Duration::from_millis(1), &mut delivery).await;
            assert!(soon.is_err(), "{soon:?}");
        }
    }
    std::fs::remove_file(&lock).unwrap();
    assert!(objects(&house.bare()).contains("zq-marked-qz"));
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&house.bare(), &["zq-marked-qz", "telegram:40"]);
    exactly_once(&house.bare(), &sessions(0, 3));
}

#[tokio::test]
async fn only_commit_becomes_empty_after_erasure() {
    let house = House::new();
    let marked = says(1, "zq-marked-qz");
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&house.bare(), &["zq-marked-qz", "telegram:1:"]);
    assert_eq!((commits(&house.bare()), files(&house.bare()).len()), (1, 0));
    house.deliver(&sessions(5, 2)).await.unwrap();
    assert_eq!(files(&house.bare()).len(), 2);
    is_clean(&house.bare());
}

#[tokio::test]
async fn erasure_covers_foreign_refs_and_git_packs() {
    let house = House::new();
    let repository = house.bare();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 12);
    house.deliver(&other[..6]).await.unwrap();
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    git(&repository, &["branch", "kept/here", "main"]);
    git(&repository, &["tag", "light", "main"]);
    git(&repository, &["tag", "-a", "-m", "a note", "heavy", "main"]);
    git(&repository, &["config", "core.logAllRefUpdates", "always"]);
    git(
        &repository,
        &["update-ref", "--create-reflog", "refs/heads/noted", "main"],
    );
    house.deliver(&other[6..]).await.unwrap();
    // Git's deltas, a multi-pack index, a commit graph, a bitmap, and loose objects.
    let repack = [
        "repack",
        "-a",
        "-d",
        "-f",
        "--depth=50",
        "--write-midx",
        "-b",
    ];
    git(&repository, &repack);
    git(&repository, &["pack-refs", "--all"]);
    git(&repository, &["commit-graph", "write", "--reachable"]);
    let blob = git(&repository, &["rev-parse", "main:sessions"]);
    git(&repository, &["cat-file", "-t", blob.trim()]);
    std::fs::write(repository.join("loose"), "zq-marked-qz in a file").unwrap();
    git(&repository, &["hash-object", "-w", "loose"]);
    std::fs::remove_file(repository.join("loose")).unwrap();
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&repository, &["zq-marked-qz", "telegram%3A40"]);
    for name in ["kept/here", "light", "heavy", "noted"] {
        let shown = git(&repository, &["ls-tree", "-r", "--name-only", name]);
        assert_eq!(shown.lines().count(), 12, "{name}");
    }
    let note = git(&repository, &["cat-file", "-p", "heavy"]);
    assert!(note.contains("a note"), "{note}");
    exactly_once(&repository, &other);
}

/// Commits a directory, as a user would.
fn add_folder(repository: &Path, name: &str, entries: &str) {
    let list = repository.join("list");
    std::fs::write(&list, entries).unwrap();
    let mktree = |list: &Path| {
        let mut mktree = Command::new("git");
        mktree
            .arg("-C")
            .arg(repository)
            .args(["mktree", "--missing"]);
        mktree.stdin(File::open(list).unwrap());
        let output = mktree.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = mktree(&list);
    let sessions = git(repository, &["ls-tree", "main"]);
    let line = format!("040000 tree {}\t{name}\n", folder.trim());
    std::fs::write(&list, sessions + &line).unwrap();
    let root = mktree(&list);
    std::fs::remove_file(&list).unwrap();
    let arguments = ["commit-tree", root.trim(), "-p", "main", "-m", "a folder"];
    let commit = git(repository, &arguments);
    git(
        repository,
        &["update-ref", "refs/heads/main", commit.trim()],
    );
}

#[tokio::test]
async fn git_packs_are_copied_in_parts() {
    let house = House::new();
    let repository = house.bare();
    let marked = says(40, "zq-marked-qz");
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    std::fs::write(repository.join("empty"), "").unwrap();
    let output = git(&repository, &["hash-object", "-w", "empty"]);
    let empty = output.trim();
    std::fs::remove_file(repository.join("empty")).unwrap();
    for folder in 0..3 {
        // 18 MiB, uncompressed.
        let names = (0..4_600).map(|number| format!("{number:0>4000}-{folder}"));
        let entries = names.map(|name| format!("100644 blob {empty}\t{name}\n"));
        add_folder(
            &repository,
            &format!("folder-{folder}"),
            &entries.collect::<String>(),
        );
    }
    git(&repository, &["branch", "kept", "main"]);
    git(&repository, &["repack", "-a", "-d", "-q"]);
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&repository, &["zq-marked-qz"]);
    assert_eq!(
        packs(&repository),
        3,
        "the new history, and two of what was there"
    );
}

#[tokio::test]
async fn pack_larger_than_two_gibibytes_is_rewritten() {
    let house = House::new();
    let repository = house.bare();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 6);
    house.deliver(&other).await.unwrap();
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    git(&repository, &["repack", "-a", "-d", "-q"]);
    // Use an index with 64-bit offsets, as for a large pack.
    let folder = repository.join("objects/pack");
    let names = std::fs::read_dir(&folder).unwrap();
    let pack = names
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ending| ending == "pack"))
        .unwrap();
    let index = pack.with_extension("idx");
    std::fs::remove_file(&index).unwrap();
    let large = [
        "index-pack",
        "--index-version=2,0x10",
        pack.to_str().unwrap(),
    ];
    git(&repository, &large);
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&repository, &["zq-marked-qz"]);
    exactly_once(&repository, &other);
}

#[tokio::test]
async fn leftovers_of_crash_are_swept_by_next_erasure() {
    let house = House::new();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 6);
    house.deliver(&other[..3]).await.unwrap();
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    house.deliver(&other[3..]).await.unwrap();
    // As if the daemon died after refs were moved to a history without it.
    let old = git(&house.bare(), &["rev-parse", "main~2"]);
    git(
        &house.bare(),
        &["update-ref", "refs/heads/main", old.trim()],
    );
    std::fs::write(house.bare().join("memoird.sweep"), "").unwrap();
    erase(&house, all_of(&marked), &[&marked]).await;
    is_gone(&house.bare(), &["zq-marked-qz"]);
    assert!(!house.bare().join("memoird.sweep").exists());
    exactly_once(&house.bare(), &other[..3]);
}

#[tokio::test]
async fn tombstone_keeps_history_and_names_commits() {
    let house = House::with(|config| config.erase = EraseMode::Tombstone);
    let marked = says(40, "zq-marked-qz");
    house.deliver(&sessions(0, 3)).await.unwrap();
    house.deliver(&[Arc::clone(&marked)]).await.unwrap();
    let commit = git(&house.bare(), &["rev-parse", "main"]);
    house.deliver(&sessions(5, 3)).await.unwrap();
    for _ in 0..2 {
        let erased = erase(&house, all_of(&marked), &[&marked]).await;
        let line = format!("commit {} still has it", commit.trim());
        assert_eq!((erased.commits, erased.outside), (0, vec![line]));
        is_clean(&house.bare());
        assert_eq!((files(&house.bare()).len(), commits(&house.bare())), (6, 4));
    }
}

/// Delivers with a clock that was reset to 1970.
async fn deliver_in_1970(house: &House, ended: &Arc<SessionContent>) {
    let call = HookCall {
        at: at(0),
        ..call(ended)
    };
    let answers = house.hook.deliver(vec![call]).await;
    assert_eq!(answers, [Ok(())]);
}

#[tokio::test]
async fn session_committed_with_wrong_clock_is_erased() {
    for later in [0, 3] {
        let house = House::new();
        let marked = says(40, "zq-marked-qz");
        house.deliver(&sessions(0, 3)).await.unwrap();
        deliver_in_1970(&house, &marked).await;
        if later > 0 {
            house.deliver(&sessions(5, later)).await.unwrap();
        }
        let erased = erase(&house, all_of(&marked), &[&marked]).await;
        is_gone(&house.bare(), &["zq-marked-qz", "telegram%3A40"]);
        assert_eq!(erased.commits, 1 + later.min(1));
    }
}

#[tokio::test]
async fn tombstone_names_commits_with_wrong_clock() {
    let house = House::with(|config| config.erase = EraseMode::Tombstone);
    let marked = says(40, "zq-marked-qz");
    deliver_in_1970(&house, &marked).await;
    let commit = git(&house.bare(), &["rev-parse", "main"]);
    house.deliver(&sessions(5, 3)).await.unwrap();
    let erased = erase(&house, all_of(&marked), &[&marked]).await;
    let line = format!("commit {} still has it", commit.trim());
    assert_eq!(erased.outside, [line]);
    assert_eq!(files(&house.bare()).len(), 3);
}

#[tokio::test]
async fn erasure_without_repository_creates_none() {
    let house = House::new();
    let marked = says(1, "zq-marked-qz");
    let erased = erase(&house, all_of(&marked), &[&marked]).await;
    assert_eq!(erased, ErasedElsewhere::default());
    assert!(!house.bare().exists());
}
