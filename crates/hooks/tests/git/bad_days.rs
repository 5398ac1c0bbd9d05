//! Crashes at every step, users working in the repository, and full disks.
//!
//! A crash is simulated by recreating exactly the files that it leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use memoird_engine::{Hook, Retry};

use crate::kit::*;
use crate::skip::skip;

/// A repository with ten sessions in two commits.
async fn begun() -> GitFixture {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 5)).await.unwrap();
    fixture.deliver(&sessions(5, 5)).await.unwrap();
    fixture
}

fn age(path: &Path, by: Duration) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let now = file.metadata().unwrap().modified().unwrap();
    file.set_modified(now - by).unwrap();
}

/// Asserts that nothing of an unfinished delivery is left.
fn is_tidy(repository: &Path) {
    let pack_dir = repository.join("objects/pack");
    let all = fs::read_dir(&pack_dir)
        .unwrap()
        .chain(fs::read_dir(repository).unwrap());
    for entry in all {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let is_unfinished = name.contains("_git2_") || name == "memoird.new";
        assert!(!is_unfinished && name != "memoird.claim", "{name}");
    }
    assert!(!repository.join("refs/heads/main.lock").exists());
    let counted = git(repository, &["count-objects", "-v"]);
    assert!(counted.contains("garbage: 0\n"), "{counted}");
}

#[tokio::test]
async fn crash_while_writing_pack_leaves_no_unfinished_pack() {
    let fixture = begun().await;
    let pack_dir = fixture.bare().join("objects/pack");
    // Donates a pack that no branch of this repository needs.
    let donor = GitFixture::new();
    donor.deliver(&sessions(10, 5)).await.unwrap();
    let of_donor = |ending: &str| {
        let entries = fs::read_dir(donor.bare().join("objects/pack")).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let path = paths
            .find(|path| path.to_string_lossy().ends_with(ending))
            .unwrap();
        (
            path.file_name().unwrap().to_string_lossy().into_owned(),
            fs::read(path).unwrap(),
        )
    };
    let ((pack, pack_bytes), (index, index_bytes)) = (of_donor(".pack"), of_donor(".idx"));
    let unfinished = fixture.bare().join("memoird.new");
    let half = &pack_bytes[..pack_bytes.len() / 2];
    let mut next = 10;
    for step in 0..6 {
        fs::create_dir_all(&unfinished).unwrap();
        match step {
            // During the pack; during the index; after both; with the pack moved; with both moved.
            0 => fs::write(unfinished.join("pack_git2_a1b2"), half).unwrap(),
            1 => {
                fs::write(unfinished.join("pack_git2_a1b2"), &pack_bytes).unwrap();
                fs::write(unfinished.join("pack_git2_a1b2.idx"), &index_bytes[..99]).unwrap();
            }
            2 => {
                fs::write(unfinished.join("pack_git2_a1b2"), &pack_bytes).unwrap();
                fs::write(unfinished.join(&index), &index_bytes).unwrap();
            }
            3 => {
                fs::write(unfinished.join(&pack), &pack_bytes).unwrap();
                fs::write(unfinished.join(&index), &index_bytes).unwrap();
            }
            4 => {
                fs::write(pack_dir.join(&pack), &pack_bytes).unwrap();
                fs::write(unfinished.join(&index), &index_bytes).unwrap();
            }
            _ => {
                fs::write(pack_dir.join(&pack), &pack_bytes).unwrap();
                fs::write(pack_dir.join(&index), &index_bytes).unwrap();
            }
        }
        deliver(&fixture.restarted(), &sessions(next, 5))
            .await
            .unwrap();
        next += 5;
        exactly_once(&fixture.bare(), &sessions(0, next));
        is_tidy(&fixture.bare());
    }
}

#[tokio::test]
async fn crash_while_writing_large_file_leaves_no_content() {
    let fixture = GitFixture::new();
    fixture.deliver(&sessions(0, 1)).await.unwrap();
    let unfinished = fixture.bare().join("memoird.new");
    fs::create_dir(&unfinished).unwrap();
    let left = [
        unfinished.join("file"),
        fixture.bare().join("objects/tmp_object_git2_1"),
    ];
    for path in &left {
        fs::write(path, "content").unwrap();
    }
    deliver(&fixture.restarted(), &sessions(1, 1))
        .await
        .unwrap();
    assert!(left.iter().all(|path| !path.exists()));
    exactly_once(&fixture.bare(), &sessions(0, 2));
}

#[tokio::test]
async fn crash_with_locked_branch_is_recovered_immediately() {
    let fixture = begun().await;
    let [claim, lock] = ["memoird.claim", "refs/heads/main.lock"].map(|it| fixture.bare().join(it));
    let id = format!("{}\n", "7".repeat(40));
    fs::write(&claim, &id).unwrap();
    // Before the lock was acquired, and after.
    fixture
        .restarted()
        .deliver(vec![call(&sessions(10, 1)[0])])
        .await[0]
        .clone()
        .unwrap();
    fs::write(&claim, &id).unwrap();
    fs::hard_link(&claim, &lock).unwrap();
    deliver(&fixture.restarted(), &sessions(11, 4))
        .await
        .unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 15));
    is_tidy(&fixture.bare());
    // After the branch moved: the claim is a hard link to the branch's file.
    fs::hard_link(fixture.bare().join("refs/heads/main"), &claim).unwrap();
    let tip = git(&fixture.bare(), &["rev-parse", "main"]);
    deliver(&fixture.restarted(), &sessions(10, 5))
        .await
        .unwrap();
    assert_eq!(git(&fixture.bare(), &["rev-parse", "main"]), tip);
    deliver(&fixture.restarted(), &sessions(15, 1))
        .await
        .unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 16));
    is_tidy(&fixture.bare());
}

#[tokio::test]
async fn crash_while_merging_packs_is_recovered() {
    let fixture = GitFixture::new();
    for one in sessions(0, 31).chunks(1) {
        fixture.deliver(one).await.unwrap();
    }
    let pack_dir = fixture.bare().join("objects/pack");
    let before = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&pack_dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), before.path().join(entry.file_name())).unwrap();
    }
    fixture.deliver(&sessions(31, 1)).await.unwrap();
    assert_eq!(packs(&fixture.bare()), 2);
    // The old packs are still there. The index of one of them was moved away.
    let unfinished = fixture.bare().join("memoird.new");
    fs::create_dir_all(&unfinished).unwrap();
    let mut is_first = true;
    for entry in fs::read_dir(before.path()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let is_index = name.to_string_lossy().ends_with(".idx");
        let is_doomed = is_index && std::mem::take(&mut is_first);
        let folder = if is_doomed { &unfinished } else { &pack_dir };
        fs::copy(entry.path(), folder.join(name)).unwrap();
    }
    deliver(&fixture.restarted(), &sessions(32, 1))
        .await
        .unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 33));
    is_tidy(&fixture.bare());
    deliver(&fixture.restarted(), &sessions(33, 1))
        .await
        .unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 34));
    assert!(packs(&fixture.bare()) <= 4, "{}", packs(&fixture.bare()));
}

#[tokio::test]
async fn crash_while_creating_repository_leaves_none() {
    let fixture = GitFixture::new();
    let new = fixture.config.dir.join(".new-acme.git");
    fs::create_dir_all(new.join("objects/pack")).unwrap();
    fs::write(new.join("HEAD"), "re").unwrap();
    fixture.deliver(&sessions(0, 2)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 2));
    assert!(!new.exists());
}

#[tokio::test]
async fn delivery_waits_for_git_lock() {
    let fixture = begun().await;
    let lock = fixture.bare().join("refs/heads/main.lock");
    fs::write(&lock, "").unwrap();
    let batch = sessions(10, 3);
    let delivery = fixture.deliver(&batch);
    let person = async {
        // The delivery waits: the pack is written, and the branch does not move.
        while !fixture.bare().join("memoird.claim").exists() {
            tokio::task::yield_now().await;
        }
        assert_eq!(commits(&fixture.bare()), 2);
        assert!(lock.exists());
        fs::remove_file(&lock).unwrap();
    };
    let (delivered, ()) = tokio::join!(delivery, person);
    delivered.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 13));
}

#[tokio::test]
async fn held_lock_is_reported_and_stale_lock_is_removed() {
    let fixture = begun().await;
    let lock = fixture.bare().join("refs/heads/main.lock");
    fs::write(&lock, "").unwrap();
    let error = fixture.deliver(&sessions(10, 3)).await.unwrap_err();
    assert_eq!(error.retry, Retry::Later);
    let told = format!(
        "{} is locked by another git; remove it if no git runs",
        lock.display()
    );
    assert_eq!(error.problem, told);
    assert!(lock.exists() && commits(&fixture.bare()) == 2);
    age(&lock, Duration::from_secs(11 * 60));
    fixture.deliver(&sessions(10, 3)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 13));
    is_tidy(&fixture.bare());
}

#[tokio::test]
async fn commits_of_users_are_preserved() {
    let fixture = begun().await;
    let home = tempfile::tempdir().unwrap();
    let clone = home.path().join("clone");
    git(
        home.path(),
        &["clone", "-q", fixture.bare().to_str().unwrap(), "clone"],
    );
    fs::write(clone.join("README.md"), "Ours.\n").unwrap();
    fs::create_dir_all(clone.join("sessions/2026/11/notes")).unwrap();
    fs::write(clone.join("sessions/2026/11/notes/a.txt"), "Mine.\n").unwrap();
    git(&clone, &["add", "."]);
    git(&clone, &["commit", "-qm", "A note"]);
    git(&clone, &["push", "-q", "origin", "main"]);
    git(&fixture.bare(), &["pack-refs", "--all"]);
    fixture.deliver(&sessions(10, 5)).await.unwrap();
    is_clean(&fixture.bare());
    assert_eq!(commits(&fixture.bare()), 4);
    assert_eq!(git(&fixture.bare(), &["show", "main:README.md"]), "Ours.\n");
    assert_eq!(
        git(
            &fixture.bare(),
            &["show", "main:sessions/2026/11/notes/a.txt"]
        ),
        "Mine.\n"
    );
    assert_eq!(
        git(&fixture.bare(), &["log", "-1", "--format=%s", "main~1"]).trim(),
        "A note"
    );
    // Another branch is checked out, and the checkpoint branch was deleted.
    git(&fixture.bare(), &["branch", "work", "main"]);
    git(
        &fixture.bare(),
        &["symbolic-ref", "HEAD", "refs/heads/work"],
    );
    fixture.deliver(&sessions(15, 5)).await.unwrap();
    assert_eq!(commits(&fixture.bare()), 5);
    assert_eq!(
        git(&fixture.bare(), &["rev-list", "--count", "work"]).trim(),
        "4"
    );
    git(&fixture.bare(), &["branch", "-q", "-D", "main"]);
    fixture.deliver(&sessions(20, 5)).await.unwrap();
    assert_eq!(commits(&fixture.bare()), 1);
    is_clean(&fixture.bare());
}

#[tokio::test]
async fn blocking_path_is_named_in_error() {
    let fixture = begun().await;
    let home = tempfile::tempdir().unwrap();
    git(
        home.path(),
        &["clone", "-q", fixture.bare().to_str().unwrap(), "."],
    );
    git(home.path(), &["rm", "-rq", "sessions"]);
    fs::write(home.path().join("sessions"), "A file.\n").unwrap();
    git(home.path(), &["add", "."]);
    git(home.path(), &["commit", "-qm", "No folder"]);
    git(home.path(), &["push", "-q", "origin", "main"]);
    let error = fixture.deliver(&sessions(10, 1)).await.unwrap_err();
    assert!(
        error
            .problem
            .starts_with("sessions on branch main blocks a path"),
        "{error}"
    );
}

#[tokio::test]
async fn deleted_repository_is_created_again() {
    let fixture = begun().await;
    fs::remove_dir_all(fixture.bare()).unwrap();
    fixture.deliver(&sessions(0, 3)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 3));
    fs::remove_dir_all(&fixture.config.dir).unwrap();
    fixture.deliver(&sessions(0, 4)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 4));
}

type Damage = fn(&Path);

#[tokio::test]
async fn non_repository_is_unchanged_and_named_in_error() {
    let damages: [(&str, Damage); 5] = [
        ("is not a git repository", |bare| {
            fs::remove_file(bare.join("HEAD")).unwrap();
        }),
        ("is not a git repository", |bare| {
            fs::remove_dir_all(bare).unwrap();
            fs::create_dir_all(bare).unwrap();
            fs::write(bare.join("notes.txt"), "mine").unwrap();
        }),
        ("a file has its name", |bare| {
            fs::remove_dir_all(bare).unwrap();
            fs::write(bare, "mine").unwrap();
        }),
        ("is damaged", |bare| {
            fs::write(bare.join("refs/heads/main"), "").unwrap();
        }),
        ("is damaged", |bare| {
            fs::write(
                bare.join("refs/heads/main"),
                format!("{}\n", "7".repeat(40)),
            )
            .unwrap();
        }),
    ];
    for (told, damage) in damages {
        let fixture = begun().await;
        damage(&fixture.bare());
        let error = fixture.deliver(&sessions(10, 1)).await.unwrap_err();
        assert_eq!(error.retry, Retry::Later);
        assert!(error.problem.contains(told), "{told}: {error}");
        assert!(error.problem.contains("acme.git"), "{error}");
    }
}

#[tokio::test]
async fn concurrent_daemons_take_turns() {
    let fixture = GitFixture::new();
    let other = fixture.restarted();
    let (ours, theirs) = (sessions(0, 200), sessions(100, 200));
    let both = async |hook: &memoird_hooks::git::GitHook, batch: &[_]| {
        for part in batch.chunks(10) {
            deliver(hook, part).await.unwrap();
        }
    };
    tokio::join!(both(&fixture.hook, &ours), both(&other, &theirs));
    exactly_once(&fixture.bare(), &sessions(0, 300));
    is_tidy(&fixture.bare());
}

#[tokio::test]
async fn cancelled_delivery_stops_and_next_one_commits() {
    let fixture = begun().await;
    let lock = fixture.bare().join("refs/heads/main.lock");
    fs::write(&lock, "").unwrap();
    let batch = sessions(10, 5);
    {
        let mut delivery = std::pin::pin!(fixture.deliver(&batch));
        while !fixture.bare().join("memoird.claim").exists() {
            let soon = tokio::time::timeout(Duration::from_millis(1), &mut delivery).await;
            assert!(soon.is_err(), "{soon:?}");
        }
    }
    fs::remove_file(&lock).unwrap();
    fixture.deliver(&batch).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 15));
    assert_eq!(commits(&fixture.bare()), 3);
}

/// A directory on a small file system, if mounting is permitted. Unmounted on drop.
pub(crate) struct SmallFileSystem(PathBuf);

impl SmallFileSystem {
    pub(crate) fn mounted(at: &Path, mebibytes: u32) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={mebibytes}m");
        let mount = ["-t", "tmpfs", "-o", &size, "tmpfs"];
        let done = Command::new("mount").args(mount).arg(at).output();
        done.is_ok_and(|output| output.status.success())
            .then(|| Self(at.to_owned()))
    }

    /// Leaves less than a page free. Returns the file to remove.
    pub(crate) fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut room = 1 << 21;
        let mut content = Vec::new();
        while room >= 1 {
            content.resize(content.len() + room, 7);
            if fs::write(&ballast, &content).is_err() {
                content.truncate(content.len() - room);
                room /= 2;
            }
        }
        let _ = fs::write(&ballast, &content);
        ballast
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[tokio::test]
async fn full_disk_is_reported_and_delivery_succeeds_later() {
    let fixture = GitFixture::new();
    let Some(small) = SmallFileSystem::mounted(&fixture.config.dir, 2) else {
        skip(
            "bad_days::full_disk_is_reported_and_delivery_succeeds_later",
            "mount-rights",
        );
        return;
    };
    fixture.deliver(&sessions(0, 20)).await.unwrap();
    let ballast = small.fill();
    for _ in 0..2 {
        let error = fixture.deliver(&sessions(20, 20)).await.unwrap_err();
        assert_eq!(error.retry, Retry::Later);
        assert!(
            error.problem.contains("the disk is full; make room"),
            "{error}"
        );
        exactly_once(&fixture.bare(), &sessions(0, 20));
        assert_eq!(packs(&fixture.bare()), 1);
    }
    fs::remove_file(&ballast).unwrap();
    fixture.deliver(&sessions(20, 20)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 40));
    is_tidy(&fixture.bare());
}

#[tokio::test]
async fn leftover_clock_files_are_ignored() {
    let fixture = begun().await;
    let lock = fixture.bare().join("memoird.lock");
    let file = fs::File::options().write(true).open(lock).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fixture.deliver(&sessions(10, 1)).await.unwrap();
    exactly_once(&fixture.bare(), &sessions(0, 11));
}
