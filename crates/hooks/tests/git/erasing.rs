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
pub(crate) fn says(number: u64, text: &str) -> Arc<SessionContent> {
    let mut ended = session(number);
    ended.turns[0].1.parts = vec![part(PartKind::Text(text.to_owned()))];
    Arc::new(ended)
}

pub(crate) async fn erase(
    fixture: &GitFixture,
    target: EraseTarget,
    known: &[&Arc<SessionContent>],
) -> ErasedElsewhere {
    let mut all = ErasedElsewhere::default();
    loop {
        let asked = request(target.clone(), known);
        let step = fixture.hook.erase(asked).expect("it can");
        let step = step.await.expect("erased");
        all.commits += step.commits;
        all.outside.extend(step.outside);
        if !step.has_more {
            return all;
        }
    }
}

pub(crate) fn request(target: EraseTarget, known: &[&Arc<SessionContent>]) -> EraseRequest {
    EraseRequest {
        tenant: TenantId::parse("acme").unwrap(),
        target,
        generations: known
            .iter()
            .map(|ended| (ended.generation, ended.session.clone()))
            .collect(),
    }
}

pub(crate) fn all_of(ended: &SessionContent) -> EraseTarget {
    EraseTarget::Session {
        session: ended.session.clone(),
        generation: None,
    }
}

/// All objects of a repository, including unreachable ones, as git reads them.
pub(crate) fn objects(repository: &Path) -> String {
    let all = ["cat-file", "--batch-all-objects", "--unordered", "--batch"];
    let output = git_may_fail(repository, &all);
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub(crate) fn is_gone(repository: &Path, texts: &[&str]) {
    is_clean(repository);
    let objects = objects(repository);
    for text in texts {
        assert!(!objects.contains(text), "{text} is still in an object");
    }
}

#[tokio::test]
async fn erased_session_is_gone_from_commits_and_packs() {
    let fixture = GitFixture::new();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 30);
    // Alone in a commit and with others, in merged packs and in separate ones.
    for part in other[..20].chunks(5) {
        fixture.deliver(part).await.unwrap();
    }
    let mut second = session(40);
    second.generation = session(41).generation;
    second.turns[0].1.parts = vec![part(PartKind::Text("zq-marked-qz again".to_owned()))];
    let second = Arc::new(second);
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
    let mixed = [&other[20..25], std::slice::from_ref(&second)].concat();
    fixture.deliver(&mixed).await.unwrap();
    fixture.deliver(&other[25..]).await.unwrap();
    assert!(objects(&fixture.bare()).contains("zq-marked-qz"));
    let before = commits(&fixture.bare());
    let erased = erase(&fixture, all_of(&marked), &[&marked, &second]).await;
    assert_eq!(erased.outside, Vec::<String>::new());
    assert_eq!(
        erased.commits, 3,
        "that of the session alone, and those behind it"
    );
    is_gone(
        &fixture.bare(),
        &["zq-marked-qz", "telegram:40", "telegram%3A40"],
    );
    exactly_once(&fixture.bare(), &other);
    assert_eq!(commits(&fixture.bare()), before - 1, "one was empty then");
    assert_eq!(
        packs(&fixture.bare()),
        4 + 2 * 2 + 1,
        "two packs are rewritten, blobs apart from trees, and the new history is in one"
    );
    // Deliveries continue on the new history. A second erasure finds nothing.
    let more = sessions(50, 3);
    fixture.deliver(&more).await.unwrap();
    let again = erase(&fixture, all_of(&marked), &[]).await;
    assert_eq!(again, ErasedElsewhere::default());
    exactly_once(&fixture.bare(), &[&other[..], &more[..]].concat());
}

#[tokio::test]
async fn pruned_generations_are_erased_by_session_and_subject() {
    let fixture = GitFixture::new();
    let mut eve = session(3);
    eve.subject = Some(memoird_core::ids::Subject::parse("eve").unwrap());
    eve.turns[0].1.parts = vec![part(PartKind::Text("zq-eve-qz".to_owned()))];
    let marked = says(1, "zq-marked-qz");
    let batch = [
        session(0).into(),
        Arc::clone(&marked),
        Arc::new(eve.clone()),
    ];
    fixture.deliver(&batch).await.unwrap();
    assert_eq!(erase(&fixture, all_of(&marked), &[]).await.commits, 1);
    is_gone(&fixture.bare(), &["zq-marked-qz"]);
    assert!(objects(&fixture.bare()).contains("zq-eve-qz"));
    let target = EraseTarget::Subject(eve.subject.unwrap());
    assert_eq!(erase(&fixture, target, &[]).await.commits, 1);
    is_gone(&fixture.bare(), &["zq-marked-qz", "zq-eve-qz"]);
    // No commit message contains their ids.
    is_gone(&fixture.bare(), &["telegram:1:", "telegram:3:"]);
    assert_eq!(files(&fixture.bare()).len(), 1);
}

/// Its objects are in a pack, but on no branch.
#[tokio::test]
async fn objects_of_failed_delivery_are_erased() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 3)).await.unwrap();
    let lock = fixture.bare().join("refs/heads/main.lock");
    std::fs::write(&lock, "").unwrap();
    let marked = says(40, "zq-marked-qz");
    {
        let batch = [Arc::clone(&marked)];
        let mut delivery = std::pin::pin!(fixture.deliver(&batch));
        while !fixture.bare().join("memoird.claim").exists() {
            let soon = tokio::time::timeout(Duration::from_millis(1), &mut delivery).await;
            assert!(soon.is_err(), "{soon:?}");
        }
    }
    std::fs::remove_file(&lock).unwrap();
    assert!(objects(&fixture.bare()).contains("zq-marked-qz"));
    erase(&fixture, all_of(&marked), &[&marked]).await;
    is_gone(&fixture.bare(), &["zq-marked-qz", "telegram:40"]);
    exactly_once(&fixture.bare(), &sessions(0, 3));
}

#[tokio::test]
async fn large_files_are_written_piecewise_and_erased() {
    let fixture = GitFixture::new();
    let repository = fixture.bare();
    let other = sessions(0, 2);
    fixture.deliver(&other).await.unwrap();
    let mut large = session(40);
    let text = format!("zq-marked-qz {}", "word ".repeat(100_000));
    let turn = large.turns[0].1.clone();
    large.turns = (1..=10)
        .map(|seq| {
            let mut turn = turn.clone();
            turn.parts = vec![part(PartKind::Text(format!("{seq} {text}")))];
            (seq, turn)
        })
        .collect();
    let large = Arc::new(large);
    fixture.deliver(&[Arc::clone(&large)]).await.unwrap();
    is_clean(&repository);
    let loose = git(&repository, &["count-objects"]);
    assert!(loose.starts_with("2 objects"), "{loose}");
    let lines = git(&repository, &["show", "main:sessions/2026/11/22/10/02"]);
    let name = lines.lines().find(|name| name.ends_with(".jsonl")).unwrap();
    let path = format!("main:sessions/2026/11/22/10/02/{name}");
    let lines = git(&repository, &["show", &path]);
    for (line, seq) in lines.lines().zip(1..) {
        assert!(line.contains(&format!("{seq} {text}")), "turn {seq}");
    }
    assert_eq!(lines.lines().count(), 10);
    assert_eq!(erase(&fixture, all_of(&large), &[&large]).await.commits, 1);
    is_gone(&repository, &["zq-marked-qz"]);
    exactly_once(&repository, &other);
}

#[tokio::test]
async fn only_commit_becomes_empty_after_erasure() {
    let fixture = GitFixture::new();
    let marked = says(1, "zq-marked-qz");
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
    erase(&fixture, all_of(&marked), &[&marked]).await;
    is_gone(&fixture.bare(), &["zq-marked-qz", "telegram:1:"]);
    assert_eq!(
        (commits(&fixture.bare()), files(&fixture.bare()).len()),
        (1, 0)
    );
    fixture.deliver(&sessions(5, 2)).await.unwrap();
    assert_eq!(files(&fixture.bare()).len(), 2);
    is_clean(&fixture.bare());
}

#[tokio::test]
async fn erasure_covers_foreign_refs_and_git_packs() {
    let fixture = GitFixture::new();
    let repository = fixture.bare();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 12);
    fixture.deliver(&other[..6]).await.unwrap();
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
    git(&repository, &["branch", "kept/here", "main"]);
    git(&repository, &["tag", "light", "main"]);
    git(&repository, &["tag", "-a", "-m", "a note", "heavy", "main"]);
    git(&repository, &["config", "core.logAllRefUpdates", "always"]);
    git(
        &repository,
        &["update-ref", "--create-reflog", "refs/heads/noted", "main"],
    );
    fixture.deliver(&other[6..]).await.unwrap();
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
    erase(&fixture, all_of(&marked), &[&marked]).await;
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
    let fixture = GitFixture::new();
    let repository = fixture.bare();
    let marked = says(40, "zq-marked-qz");
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
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
    erase(&fixture, all_of(&marked), &[&marked]).await;
    is_gone(&repository, &["zq-marked-qz"]);
    assert_eq!(
        packs(&repository),
        5,
        "the new history, three of trees that were there, and one blob"
    );
}

#[tokio::test]
async fn pack_larger_than_two_gibibytes_is_rewritten() {
    let fixture = GitFixture::new();
    let repository = fixture.bare();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 6);
    fixture.deliver(&other).await.unwrap();
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
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
    erase(&fixture, all_of(&marked), &[&marked]).await;
    is_gone(&repository, &["zq-marked-qz"]);
    exactly_once(&repository, &other);
}

#[tokio::test]
async fn leftovers_of_crash_are_swept_by_next_erasure() {
    let fixture = GitFixture::new();
    let marked = says(40, "zq-marked-qz");
    let other = sessions(0, 6);
    fixture.deliver(&other[..3]).await.unwrap();
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
    fixture.deliver(&other[3..]).await.unwrap();
    // As if the daemon died after refs were moved to a history without it.
    let old = git(&fixture.bare(), &["rev-parse", "main~2"]);
    git(
        &fixture.bare(),
        &["update-ref", "refs/heads/main", old.trim()],
    );
    std::fs::write(fixture.bare().join("memoird.sweep"), "").unwrap();
    erase(&fixture, all_of(&marked), &[&marked]).await;
    is_gone(&fixture.bare(), &["zq-marked-qz"]);
    assert!(!fixture.bare().join("memoird.sweep").exists());
    exactly_once(&fixture.bare(), &other[..3]);
}

#[tokio::test]
async fn tombstone_keeps_history_and_names_commits() {
    let fixture = GitFixture::with(|config| config.erase = EraseMode::Tombstone);
    let marked = says(40, "zq-marked-qz");
    fixture.deliver(&sessions(0, 3)).await.unwrap();
    fixture.deliver(&[Arc::clone(&marked)]).await.unwrap();
    let commit = git(&fixture.bare(), &["rev-parse", "main"]);
    fixture.deliver(&sessions(5, 3)).await.unwrap();
    for _ in 0..2 {
        let erased = erase(&fixture, all_of(&marked), &[&marked]).await;
        let line = format!("commit {} still has it", commit.trim());
        assert_eq!((erased.commits, erased.outside), (0, vec![line]));
        is_clean(&fixture.bare());
        assert_eq!(
            (files(&fixture.bare()).len(), commits(&fixture.bare())),
            (6, 4)
        );
    }
}

/// Delivers with a clock that was reset to 1970.
async fn deliver_in_1970(fixture: &GitFixture, ended: &Arc<SessionContent>) {
    let call = HookCall {
        at: at(0),
        ..call(ended)
    };
    let answers = fixture.hook.deliver(vec![call]).await;
    assert_eq!(answers, [Ok(())]);
}

#[tokio::test]
async fn session_committed_with_wrong_clock_is_erased() {
    for later in [0, 3] {
        let fixture = GitFixture::new();
        let marked = says(40, "zq-marked-qz");
        fixture.deliver(&sessions(0, 3)).await.unwrap();
        deliver_in_1970(&fixture, &marked).await;
        if later > 0 {
            fixture.deliver(&sessions(5, later)).await.unwrap();
        }
        let erased = erase(&fixture, all_of(&marked), &[&marked]).await;
        is_gone(&fixture.bare(), &["zq-marked-qz", "telegram%3A40"]);
        assert_eq!(erased.commits, 1 + later.min(1));
    }
}

#[tokio::test]
async fn tombstone_names_commits_with_wrong_clock() {
    let fixture = GitFixture::with(|config| config.erase = EraseMode::Tombstone);
    let marked = says(40, "zq-marked-qz");
    deliver_in_1970(&fixture, &marked).await;
    let commit = git(&fixture.bare(), &["rev-parse", "main"]);
    fixture.deliver(&sessions(5, 3)).await.unwrap();
    let erased = erase(&fixture, all_of(&marked), &[&marked]).await;
    let line = format!("commit {} still has it", commit.trim());
    assert_eq!(erased.outside, [line]);
    assert_eq!(files(&fixture.bare()).len(), 3);
}

#[tokio::test]
async fn erasure_without_repository_creates_none() {
    let fixture = GitFixture::new();
    let marked = says(1, "zq-marked-qz");
    let erased = erase(&fixture, all_of(&marked), &[&marked]).await;
    assert_eq!(erased, ErasedElsewhere::default());
    assert!(!fixture.bare().exists());
}
