//! An erasure takes steps, and continues after errors, kills and changes by users.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

use memoird_engine::{ErasedElsewhere, Hook, SessionContent};
use memoird_hooks::git::{EraseStep, GitHook};

use crate::bad_days::SmallFileSystem;
use crate::erasing::{all_of, erase, is_gone, objects, request, says};
use crate::kit::*;
use crate::skip::skip;

const COMMITS: u64 = 40;
/// Number of the erased session, and words of it that no object may contain afterwards.
const ERASED: u64 = 5;
const WORDS: [&str; 3] = ["zq-marked-qz", "telegram:5:", "telegram%3A5-"];
const STEP: usize = 4;

/// Sessions in order of their commits, two of them in each fifth commit.
fn history() -> Vec<Vec<Arc<SessionContent>>> {
    let commit = |number| {
        let first = if number == ERASED {
            says(number, "zq-marked-qz")
        } else {
            session(number).into()
        };
        let second = (number % 5 == 0).then(|| Arc::new(session(100 + number)));
        [first].into_iter().chain(second).collect()
    };
    (0..COMMITS).map(commit).collect()
}

fn erased() -> Arc<SessionContent> {
    Arc::clone(&history()[usize::try_from(ERASED).unwrap()][0])
}

/// A repository with the history, and a tag on each side of the erased session.
async fn delivered() -> GitFixture {
    let fixture = GitFixture::new();
    for (commit, number) in history().iter().zip(0..) {
        fixture.deliver(commit).await.unwrap();
        match number {
            2 => _ = git(&fixture.bare(), &["tag", "early"]),
            12 => _ = git(&fixture.bare(), &["tag", "-a", "-m", "a note", "late"]),
            20 => _ = git(&fixture.bare(), &["branch", "kept"]),
            _ => {}
        }
    }
    fixture
}

/// Refs and their commits. An annotated tag also has a date.
fn refs(repository: &Path) -> String {
    let commit = "%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)";
    let format = format!("--format=%(refname) {commit}");
    git(repository, &["for-each-ref", &format])
}

fn copy(fixture: &GitFixture) -> GitFixture {
    let copy = GitFixture::new();
    copy_to(&copy.config.dir, fixture);
    copy
}

fn copy_to(dir: &Path, fixture: &GitFixture) {
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(&fixture.config.dir).arg(dir);
    assert!(copy.status().unwrap().success());
}

/// The refs that an erasure leaves that is not interrupted.
async fn uninterrupted(fixture: &GitFixture) -> String {
    let fixture = copy(fixture);
    let all = erase(&fixture, all_of(&erased()), &[]).await;
    assert_eq!(all.commits, COMMITS - ERASED);
    refs(&fixture.bare())
}

/// The hook of a restarted daemon, with the shortest steps.
fn stepping(fixture: &GitFixture) -> GitHook {
    let step = EraseStep {
        commits: STEP,
        saves: 1,
        swept_objects: 1,
    };
    GitHook::with_erase_step(fixture.config.clone(), step)
}

async fn try_step(fixture: &GitFixture) -> Result<ErasedElsewhere, String> {
    let asked = request(all_of(&erased()), &[&erased()]);
    stepping(fixture).erase(asked).expect("it can").await
}

async fn step(fixture: &GitFixture) -> ErasedElsewhere {
    try_step(fixture).await.expect("a step")
}

/// Takes the remaining steps. Returns their number, and how many commits they replaced.
async fn finish(fixture: &GitFixture) -> (u64, u64) {
    let (mut steps, mut commits) = (0, 0);
    loop {
        let erased = step(fixture).await;
        steps += 1;
        commits += erased.commits;
        if !erased.has_more {
            return (steps, commits);
        }
        assert!(steps < 10 * COMMITS, "it does not end");
    }
}

fn progress(repository: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.to_string_lossy().contains("memoird.rewrite"))
        .collect()
}

/// Asserts that the erasure left nothing else, and that no file has a word of the session.
#[track_caller]
fn is_finished(repository: &Path, expected: &str) {
    assert_eq!(refs(repository), expected);
    is_gone(repository, &WORDS);
    no_file_contains_words(repository);
    let (_, unreachable) = fsck(repository);
    assert_eq!(unreachable, "", "unreachable objects are left");
    let left = names(repository);
    let left: Vec<&String> = left
        .iter()
        .filter(|name| name.starts_with("memoird."))
        .collect();
    assert_eq!(left, ["memoird.lock"]);
}

fn fsck(repository: &Path) -> (bool, String) {
    let output = git_may_fail(repository, &["fsck", "--full", "--unreachable"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

fn no_file_contains_words(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            no_file_contains_words(&path);
            continue;
        }
        let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
        for word in WORDS {
            let name = path.to_string_lossy();
            assert!(!content.contains(word) && !name.contains(word), "{path:?}");
        }
    }
}

#[tokio::test]
async fn erasure_in_steps_rewrites_each_commit_once() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let (before, mut steps) = (refs(&fixture.bare()), 0);
    while refs(&fixture.bare()) == before {
        let erased = step(&fixture).await;
        steps += 1;
        assert_eq!(erased.commits > 0, refs(&fixture.bare()) != before);
        is_clean(&fixture.bare());
        assert!(steps <= COMMITS.div_ceil(STEP as u64), "{steps} steps");
    }
    let (swept, commits) = finish(&fixture).await;
    assert_eq!(commits, 0, "they were counted");
    assert!(swept > 1, "packs are swept in steps");
    is_finished(&fixture.bare(), &expected);
}

#[tokio::test]
async fn deliveries_between_steps_stay_on_branch() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let more = sessions(200, 10);
    let mut more_sessions = more.iter();
    let (mut steps, mut replaced) = (0, 0);
    loop {
        let erased = step(&fixture).await;
        (steps, replaced) = (steps + 1, replaced + erased.commits);
        if !erased.has_more {
            break;
        }
        if let Some(one) = more_sessions.next() {
            fixture.deliver(&[Arc::clone(one)]).await.unwrap();
            is_clean(&fixture.bare());
        }
    }
    assert!(more_sessions.next().is_none(), "{steps} steps");
    is_gone(&fixture.bare(), &WORDS);
    let mut all = history().concat();
    all.retain(|ended| ended.generation != erased().generation);
    exactly_once(&fixture.bare(), &[all, more].concat());
    // The history that there was is the same as without deliveries.
    let main = git(&fixture.bare(), &["rev-parse", "main~10"]);
    assert!(expected.contains(main.trim()), "{main}");
    assert_eq!(commits(&fixture.bare()) as u64, COMMITS + 10);
    assert!(replaced >= COMMITS - ERASED);
}

/// They stay in the repository if the erasure never ends.
#[tokio::test]
async fn objects_of_unfinished_erasure_have_no_erased_words() {
    let fixture = delivered().await;
    let pack_dir = fixture.bare().join("objects/pack");
    let before = names(&pack_dir);
    for _ in 0..6 {
        assert!(step(&fixture).await.has_more);
    }
    let new = names(&pack_dir);
    let new = new
        .difference(&before)
        .filter(|name| name.ends_with(".idx"));
    let mut count = 0;
    for index in new {
        let path = pack_dir.join(index);
        let listed = git(
            &fixture.bare(),
            &["verify-pack", "-v", path.to_str().unwrap()],
        );
        for line in listed.lines().filter(|line| line.len() > 40) {
            let id = line.split(' ').next().unwrap();
            if id.len() == 40 {
                let object = git(&fixture.bare(), &["cat-file", "-p", id]);
                assert!(WORDS.iter().all(|word| !object.contains(word)), "{object}");
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count} objects");
    assert_eq!(progress(&fixture.bare()).len(), 1);
    // The record itself does not name the session either.
    for path in progress(&fixture.bare()) {
        let record = fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&record);
        assert!(!text.contains("telegram") && !text.contains("zq-"));
    }
}

#[tokio::test]
async fn erasure_that_is_overtaken_by_another_leaves_nothing() {
    let fixture = delivered().await;
    let one_by_one = copy(&fixture);
    for _ in 0..6 {
        assert!(step(&fixture).await.has_more);
    }
    let other = &history()[3][0];
    erase(&fixture, all_of(other), &[other]).await;
    assert_eq!(progress(&fixture.bare()), Vec::<PathBuf>::new());
    finish(&fixture).await;
    let after = refs(&fixture.bare());
    is_finished(&fixture.bare(), &after);
    is_gone(&fixture.bare(), &["telegram:3:", "telegram%3A3-"]);
    erase(&one_by_one, all_of(other), &[other]).await;
    erase(&one_by_one, all_of(&erased()), &[]).await;
    assert_eq!(refs(&one_by_one.bare()), after);
}

/// Among the commits that were saved for fewer targets, and at the end of the branch.
#[tokio::test]
async fn erasure_with_more_targets_starts_over() {
    let fixture = delivered().await;
    for _ in 0..6 {
        assert!(step(&fixture).await.has_more);
    }
    let early = &history()[7][0];
    let mut late = session(300);
    late.session = erased().session.clone();
    let late = Arc::new(late);
    fixture.deliver(&[Arc::clone(&late)]).await.unwrap();
    let all = [&erased(), early, &late];
    erase(&fixture, all_of(&erased()), &all).await;
    let after = refs(&fixture.bare());
    is_finished(&fixture.bare(), &after);
    let objects = objects(&fixture.bare());
    for ended in all {
        assert!(!objects.contains(&ended.generation.to_string()));
    }
}

/// Nothing is left to rewrite, but new objects are left from the steps before.
#[tokio::test]
async fn objects_of_steps_are_swept_after_user_removed_session() {
    let fixture = delivered().await;
    let repository = fixture.bare();
    for _ in 0..6 {
        assert!(step(&fixture).await.has_more);
    }
    git(&repository, &["update-ref", "refs/heads/main", "early"]);
    git(&repository, &["branch", "-D", "kept"]);
    git(&repository, &["tag", "-d", "late"]);
    let before = refs(&repository);
    assert_eq!(finish(&fixture).await.1, 0);
    is_finished(&repository, &before);
}

#[tokio::test]
async fn damaged_progress_is_not_used() {
    let stopped = delivered().await;
    let expected = uninterrupted(&stopped).await;
    for _ in 0..5 {
        assert!(step(&stopped).await.has_more);
    }
    let size = 4 + STEP * 20 + 32;
    type Damage = fn(&mut Vec<u8>, usize);
    let damages: [(&str, Damage); 9] = [
        ("empty", |record, _| record.clear()),
        ("garbage", |record, _| record.fill(0x5a)),
        ("zeros", |record, _| record.fill(0)),
        ("torn", |record, size| record.truncate(3 * size - 1)),
        ("torn in a count", |record, size| {
            record.truncate(2 * size + 2);
        }),
        ("a flipped bit of an id", |record, size| {
            record[size + 10] ^= 1;
        }),
        ("a flipped bit of a digest", |record, size| {
            record[2 * size - 1] ^= 1;
        }),
        ("a block twice", |record, size| {
            let block = record[..size].to_vec();
            record.splice(..0, block);
        }),
        ("text after the end", |record, _| {
            record.extend_from_slice(b"more text");
        }),
    ];
    for (what, damage) in damages {
        let fixture = copy(&stopped);
        let path = progress(&fixture.bare()).remove(0);
        let mut record = fs::read(&path).unwrap();
        assert_eq!(record.len(), 5 * size);
        damage(&mut record, size);
        fs::write(&path, record).unwrap();
        let (_, commits) = finish(&fixture).await;
        assert_eq!(commits, COMMITS - ERASED, "{what}");
        is_finished(&fixture.bare(), &expected);
    }
}

/// The objects on which the record relies are gone.
#[tokio::test]
async fn pruned_objects_of_unfinished_erasure_are_written_again() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    for _ in 0..6 {
        assert!(step(&fixture).await.has_more);
    }
    git(&fixture.bare(), &["gc", "-q", "--prune=now"]);
    let refused = try_step(&fixture).await;
    assert!(refused.unwrap_err().contains("is damaged"));
    finish(&fixture).await;
    is_finished(&fixture.bare(), &expected);
}

/// Only old objects are missing, which the next steps do not read.
#[tokio::test]
async fn refs_do_not_move_to_incomplete_history() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let pack_dir = fixture.bare().join("objects/pack");
    for _ in 0..2 {
        assert!(step(&fixture).await.has_more);
    }
    let (before, old) = (refs(&fixture.bare()), names(&pack_dir));
    assert!(step(&fixture).await.has_more);
    let now = names(&pack_dir);
    let lost: Vec<&String> = now.difference(&old).collect();
    assert!(!lost.is_empty());
    for _ in 0..2 {
        assert!(step(&fixture).await.has_more);
    }
    for name in lost {
        fs::remove_file(pack_dir.join(name)).unwrap();
    }
    let refused = loop {
        match try_step(&fixture).await {
            Ok(erased) => assert!(erased.has_more),
            Err(refused) => break refused,
        }
    };
    assert!(refused.contains("is damaged"), "{refused}");
    assert_eq!(refs(&fixture.bare()), before);
    finish(&fixture).await;
    is_finished(&fixture.bare(), &expected);
}

#[tokio::test]
async fn history_that_user_rewrote_between_steps_is_erased() {
    let fixture = delivered().await;
    for _ in 0..7 {
        assert!(step(&fixture).await.has_more);
    }
    // A shorter history with a merge, and new branches at commits that were already rewritten.
    let repository = fixture.bare();
    git(&repository, &["branch", "middle", "main~25"]);
    git(&repository, &["branch", "aside", "main~30"]);
    let tree = git(&repository, &["rev-parse", "main~10^{tree}"]);
    let merge = [
        "commit-tree",
        tree.trim(),
        "-p",
        "main~10",
        "-p",
        "main~22",
        "-m",
        "a merge",
    ];
    let merge = git(&repository, &merge);
    git(
        &repository,
        &["update-ref", "refs/heads/main", merge.trim()],
    );
    finish(&fixture).await;
    let after = refs(&repository);
    is_finished(&repository, &after);
    for name in ["main", "middle", "aside", "kept", "late"] {
        let shown = git(&repository, &["ls-tree", "-r", "--name-only", name]);
        assert!(!shown.contains("telegram%3A5-"), "{name}");
    }
    assert_eq!(
        git(&repository, &["rev-list", "--merges", "--count", "main"]).trim(),
        "1"
    );
}

/// The branch moves last, because targets that were pruned from the journal are found on it.
#[tokio::test]
async fn erasure_that_moved_some_refs_moves_others_later() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let lock = fixture.bare().join("refs/tags/late.lock");
    fs::write(&lock, "").unwrap();
    let asked = request(all_of(&erased()), &[]);
    let refused = fixture.hook.erase(asked).expect("it can").await;
    assert!(refused.unwrap_err().contains("is locked by another git"));
    fs::remove_file(&lock).unwrap();
    erase(&fixture, all_of(&erased()), &[]).await;
    is_finished(&fixture.bare(), &expected);
}

/// It stops at packs, its progress, the list of reachable objects or while it sweeps.
#[tokio::test]
async fn erasure_continues_after_full_disk() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let dir = tempfile::tempdir().unwrap();
    let Some(small) = SmallFileSystem::mounted(dir.path(), 8) else {
        skip(
            "erasing_steps::erasure_continues_after_full_disk",
            "mount-rights",
        );
        return;
    };
    let mut stopped_after = BTreeSet::new();
    for pages in (0..40).step_by(3) {
        let full = GitFixture::at(&dir.path().join("checkpoints"));
        copy_to(&full.config.dir, &fixture);
        let ballast = small.fill();
        let file = fs::OpenOptions::new().write(true).open(&ballast).unwrap();
        let size = file.metadata().unwrap().len();
        file.set_len(size.saturating_sub(pages * 4_096)).unwrap();
        // A deleted file takes room until it is closed.
        drop(file);
        let mut steps = 0;
        loop {
            match try_step(&full).await {
                Ok(erased) if erased.has_more => steps += 1,
                Ok(_) => break,
                Err(error) => {
                    assert!(error.contains("the disk is full; make room"), "{error}");
                    stopped_after.insert(steps);
                    break;
                }
            }
        }
        fs::remove_file(&ballast).unwrap();
        finish(&full).await;
        is_finished(&full.bare(), &expected);
        fs::remove_dir_all(&full.config.dir).unwrap();
    }
    assert!(stopped_after.len() > 5, "{stopped_after:?}");
}

/// The child process of the next test.
#[tokio::test]
#[ignore = "started by the next one, which kills it"]
#[allow(clippy::disallowed_methods, reason = "the parent sets it")]
async fn erasure_in_process() {
    let dir = std::env::var_os(CHILD_DIR).expect("a directory");
    let fixture = GitFixture::at(Path::new(&dir));
    finish(&fixture).await;
}

const CHILD_DIR: &str = "MEMOIRD_TEST_ERASURE_DIR";

/// The names and sizes of files that an erasure changes.
fn state(repository: &Path) -> Vec<(PathBuf, u64, Option<SystemTime>)> {
    let mut state = Vec::new();
    for folder in ["", "objects/pack", "refs/heads", "refs/tags", "memoird.new"] {
        // Entries disappear while they are listed.
        let entries = fs::read_dir(repository.join(folder)).into_iter().flatten();
        for entry in entries.flatten() {
            if let Ok(data) = entry.metadata() {
                let size = if data.is_file() { data.len() } else { 0 };
                state.push((entry.path(), size, data.modified().ok()));
            }
        }
    }
    state.sort();
    state
}

#[tokio::test]
async fn erasure_continues_after_each_kill() {
    let fixture = delivered().await;
    let expected = uninterrupted(&fixture).await;
    let repository = fixture.bare();
    let mut random = u64::from(std::process::id());
    println!("seed {random}");
    let mut kills = 0;
    loop {
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new(this)
            .args(["--exact", "erasing_steps::erasure_in_process", "--ignored"])
            .env(CHILD_DIR, &fixture.config.dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Number of changes of its files before it is killed.
        let mut changes = random % 60 + 3;
        let mut last = state(&repository);
        let ended = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break Some(ended);
            }
            let now = state(&repository);
            if now != last {
                (last, changes) = (now, changes - 1);
            }
            if changes == 0 {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
        };
        match ended {
            Some(ended) => {
                assert!(ended.success());
                break;
            }
            None => kills += 1,
        }
        // Readers see a complete history at any time.
        assert!(fsck(&repository).0);
        assert!(kills < 200, "it does not end");
    }
    assert!(kills > 3, "{kills} kills");
    is_finished(&repository, &expected);
}
