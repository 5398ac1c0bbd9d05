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

struct WorkTreeFixture {
    fixture: GitFixture,
    dir: PathBuf,
}

impl WorkTreeFixture {
    /// Creates a repository with three sessions and checked-out files.
    async fn new() -> Self {
        let fixture = GitFixture::new();
        fixture.deliver(&sessions(0, 3)).await.unwrap();
        let dir = fixture.config.dir.join("acme");
        let bare = fixture.bare();
        git(&fixture.config.dir, &["clone", "-q", "acme.git", "acme"]);
        git(&dir, &["remote", "remove", "origin"]);
        fs::remove_dir_all(bare).unwrap();
        Self { fixture, dir }
    }

    async fn deliver(&self, batch: &[Arc<SessionContent>]) {
        self.fixture.deliver(batch).await.unwrap();
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
            "sessions/2026/11/22/10/{name}-{}.md",
            ended.generation
        ))
    }
}

#[tokio::test]
async fn checked_out_files_stay_while_branch_moves() {
    let worktree = WorkTreeFixture::new().await;
    let shown = worktree.git(&["rev-parse", "HEAD"]);
    worktree.deliver(&sessions(3, 20)).await;
    worktree.deliver(&sessions(0, 23)).await;
    assert_eq!(worktree.status(), "");
    assert_eq!(worktree.git(&["rev-parse", "HEAD"]), shown);
    assert!(!worktree.file(&session(3)).exists());
    assert!(!worktree.fixture.bare().exists());
    exactly_once(&worktree.dir, &sessions(0, 23));
    let reflog = worktree.git(&["reflog", "main"]);
    assert_eq!(reflog.lines().count(), 2, "{reflog}");
    let tenant = TenantId::parse("acme").unwrap();
    let checkpoints = Checkpoints::open(&worktree.fixture.config, &tenant).unwrap();
    assert_eq!(checkpoints.list(99, None).unwrap().len(), 23);
    // A user checks out the files and commits.
    worktree.git(&["checkout", "-q", "main"]);
    assert_eq!(worktree.status(), "");
    let document = fs::read_to_string(worktree.file(&session(22))).unwrap();
    assert!(document.contains("Good day."));
    fs::write(worktree.dir.join("README.md"), "Ours.\n").unwrap();
    worktree.git(&["add", "."]);
    worktree.git(&["commit", "-qm", "A note"]);
    worktree.deliver(&sessions(23, 2)).await;
    assert_eq!(worktree.status(), "");
    // A user's commit contains only that user's changes.
    fs::write(worktree.dir.join("README.md"), "Theirs.\n").unwrap();
    worktree.git(&["commit", "-qam", "Another note"]);
    let changed = worktree.git(&["show", "--format=", "--name-only"]);
    assert_eq!(changed.trim(), "README.md");
    exactly_once(&worktree.dir, &sessions(0, 25));
}

#[tokio::test]
async fn local_and_staged_changes_are_preserved() {
    let worktree = WorkTreeFixture::new().await;
    let [first, _, third] = &sessions(0, 3)[..] else {
        panic!("three")
    };
    fs::write(worktree.file(first), "changed").unwrap();
    fs::write(worktree.dir.join("staged.txt"), "staged").unwrap();
    worktree.git(&["add", "staged.txt"]);
    fs::remove_file(worktree.file(third)).unwrap();
    let in_the_way = worktree.file(&sessions(3, 1)[0]);
    fs::write(&in_the_way, "mine").unwrap();
    worktree.deliver(&sessions(0, 6)).await;
    assert_eq!(fs::read_to_string(worktree.file(first)).unwrap(), "changed");
    assert_eq!(fs::read_to_string(&in_the_way).unwrap(), "mine");
    assert!(!worktree.file(third).exists());
    let status = worktree.status();
    let mut kinds: Vec<&str> = status.lines().map(|line| &line[..2]).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [" D", " M", "??", "A "], "{status}");
    exactly_once(&worktree.dir, &sessions(0, 6));
}

#[tokio::test]
async fn other_checked_out_branch_is_unchanged() {
    let worktree = WorkTreeFixture::new().await;
    worktree.git(&["checkout", "-q", "-b", "work"]);
    worktree.deliver(&sessions(3, 3)).await;
    assert_eq!(worktree.status(), "");
    assert_eq!(
        worktree.git(&["symbolic-ref", "HEAD"]).trim(),
        "refs/heads/work"
    );
    assert!(!worktree.file(&sessions(3, 1)[0]).exists());
    worktree.git(&["checkout", "-q", "main"]);
    assert_eq!(worktree.status(), "");
    assert!(worktree.file(&sessions(3, 1)[0]).exists());
    exactly_once(&worktree.dir, &sessions(0, 6));
}

#[tokio::test]
async fn locks_left_by_older_version_are_removed() {
    let worktree = WorkTreeFixture::new().await;
    let of_git = |name: &str| worktree.dir.join(".git").join(name);
    let (claim, lock) = (of_git("memoird.claim"), of_git("index.lock"));
    fs::write(&claim, format!("{}\n", "7".repeat(40))).unwrap();
    fs::hard_link(&claim, &lock).unwrap();
    deliver(&worktree.fixture.restarted(), &sessions(3, 3))
        .await
        .unwrap();
    assert_eq!(worktree.status(), "");
    assert!(!lock.exists() && !claim.exists());
    exactly_once(&worktree.dir, &sessions(0, 6));
}

#[tokio::test]
async fn locked_head_is_named_in_error() {
    let worktree = WorkTreeFixture::new().await;
    let lock = worktree.dir.join(".git/HEAD.lock");
    fs::write(&lock, "").unwrap();
    let error = worktree.fixture.deliver(&sessions(3, 3)).await.unwrap_err();
    assert!(error.problem.contains("HEAD.lock is locked"), "{error}");
    assert_eq!(commits(&worktree.dir), 1);
    fs::remove_file(&lock).unwrap();
    worktree.deliver(&sessions(3, 3)).await;
    exactly_once(&worktree.dir, &sessions(0, 6));
}

#[tokio::test]
async fn symlink_cannot_write_outside_work_tree() {
    let worktree = WorkTreeFixture::new().await;
    let outside = tempfile::tempdir().unwrap();
    fs::remove_dir_all(worktree.dir.join("sessions")).unwrap();
    std::os::unix::fs::symlink(outside.path(), worktree.dir.join("sessions")).unwrap();
    worktree.deliver(&sessions(3, 3)).await;
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    exactly_once(&worktree.dir, &sessions(0, 6));
}
