//! Repositories with a work tree, as older versions created them on request.
//!
//! They still receive commits, and users' changes in them are preserved.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_engine::SessionContent;
use memoird_hooks::git::Checkpoints;

use crate::kit::*;

struct Desk {
    house: House,
    dir: PathBuf,
}

impl Desk {
    /// Creates a repository with three sessions and checked-out files.
    async fn new() -> Self {
        let house = House::new();
        house.deliver(&sessions(0, 3)).await.unwrap();
        let dir = house.config.dir.join("acme");
        let bare = house.bare();
        git(&house.config.dir, &["clone", "-q", "acme.git", "acme"]);
        git(&dir, &["remote", "remove", "origin"]);
        fs::remove_dir_all(bare).unwrap();
        Self { house, dir }
    }

    async fn deliver(&self, batch: &[Arc<SessionContent>]) {
        self.house.deliver(batch).await.unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(&self.dir, arguments)
    }

    fn status(&self) -> String {
        self.git(&["status", "--porcelain"])
    }

    fn file(&self, ended: &SessionContent) -> PathBuf {
        let name = ended.session.as_str().replace(':', "%3A");
        self.dir.join(format!(
            "sessions/2026/11/22/{name}-{}.md",
            ended.generation
        ))
    }
}

#[tokio::test]
async fn checked_out_files_stay_while_branch_moves() {
    let desk = Desk::new().await;
    let shown = desk.git(&["rev-parse", "HEAD"]);
    desk.deliver(&sessions(3, 20)).await;
    desk.deliver(&sessions(0, 23)).await;
    assert_eq!(desk.status(), "");
    assert_eq!(desk.git(&["rev-parse", "HEAD"]), shown);
    assert!(!desk.file(&session(3)).exists());
    assert!(!desk.house.bare().exists());
    exactly_once(&desk.dir, &sessions(0, 23));
    let reflog = desk.git(&["reflog", "main"]);
    assert_eq!(reflog.lines().count(), 2, "{reflog}");
    let tenant = TenantId::parse("acme").unwrap();
    let checkpoints = Checkpoints::open(&desk.house.config, &tenant).unwrap();
    assert_eq!(checkpoints.list(99, None).unwrap().len(), 23);
    // A user checks out the files and commits.
    desk.git(&["checkout", "-q", "main"]);
    assert_eq!(desk.status(), "");
    let document = fs::read_to_string(desk.file(&session(22))).unwrap();
    assert!(document.contains("Good day."));
    fs::write(desk.dir.join("README.md"), "Ours.\n").unwrap();
    desk.git(&["add", "."]);
    desk.git(&["commit", "-qm", "A note"]);
    desk.deliver(&sessions(23, 2)).await;
    assert_eq!(desk.status(), "");
    // A user's commit contains only that user's changes.
    fs::write(desk.dir.join("README.md"), "Theirs.\n").unwrap();
    desk.git(&["commit", "-qam", "Another note"]);
    let changed = desk.git(&["show", "--format=", "--name-only"]);
    assert_eq!(changed.trim(), "README.md");
    exactly_once(&desk.dir, &sessions(0, 25));
}

#[tokio::test]
async fn local_and_staged_changes_are_preserved() {
    let desk = Desk::new().await;
    let [first, _, third] = &sessions(0, 3)[..] else {
        panic!("three")
    };
    fs::write(desk.file(first), "changed").unwrap();
    fs::write(desk.dir.join("staged.txt"), "staged").unwrap();
    desk.git(&["add", "staged.txt"]);
    fs::remove_file(desk.file(third)).unwrap();
    let in_the_way = desk.file(&sessions(3, 1)[0]);
    fs::write(&in_the_way, "mine").unwrap();
    desk.deliver(&sessions(0, 6)).await;
    assert_eq!(fs::read_to_string(desk.file(first)).unwrap(), "changed");
    assert_eq!(fs::read_to_string(&in_the_way).unwrap(), "mine");
    assert!(!desk.file(third).exists());
    let status = desk.status();
    let mut kinds: Vec<&str> = status.lines().map(|line| &line[..2]).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [" D", " M", "??", "A "], "{status}");
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn other_checked_out_branch_is_unchanged() {
    let desk = Desk::new().await;
    desk.git(&["checkout", "-q", "-b", "work"]);
    desk.deliver(&sessions(3, 3)).await;
    assert_eq!(desk.status(), "");
    assert_eq!(
        desk.git(&["symbolic-ref", "HEAD"]).trim(),
        "refs/heads/work"
    );
    assert!(!desk.file(&sessions(3, 1)[0]).exists());
    desk.git(&["checkout", "-q", "main"]);
    assert_eq!(desk.status(), "");
    assert!(desk.file(&sessions(3, 1)[0]).exists());
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn locks_left_by_older_version_are_removed() {
    let desk = Desk::new().await;
    let of_git = |name: &str| desk.dir.join(".git").join(name);
    let (claim, lock) = (of_git("memoird.claim"), of_git("index.lock"));
    fs::write(&claim, format!("{}\n", "7".repeat(40))).unwrap();
    fs::hard_link(&claim, &lock).unwrap();
    deliver(&desk.house.restarted(), &sessions(3, 3))
        .await
        .unwrap();
    assert_eq!(desk.status(), "");
    assert!(!lock.exists() && !claim.exists());
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn locked_head_is_named_in_error() {
    let desk = Desk::new().await;
    let lock = desk.dir.join(".git/HEAD.lock");
    fs::write(&lock, "").unwrap();
    let error = desk.house.deliver(&sessions(3, 3)).await.unwrap_err();
    assert!(error.problem.contains("HEAD.lock is locked"), "{error}");
    assert_eq!(commits(&desk.dir), 1);
    fs::remove_file(&lock).unwrap();
    desk.deliver(&sessions(3, 3)).await;
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn symlink_cannot_write_outside_work_tree() {
    let desk = Desk::new().await;
    let outside = tempfile::tempdir().unwrap();
    fs::remove_dir_all(desk.dir.join("sessions")).unwrap();
    std::os::unix::fs::symlink(outside.path(), desk.dir.join("sessions")).unwrap();
    desk.deliver(&sessions(3, 3)).await;
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    exactly_once(&desk.dir, &sessions(0, 6));
}
