//! Repositories with files for people: `git status` stays clean, and what people do stays.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use memoird_engine::Ended;

use crate::kit::*;

struct Desk {
    house: House,
    dir: PathBuf,
}

impl Desk {
    async fn new() -> Self {
        let house = House::with(|config| config.worktree = true);
        let dir = house.config.dir.join("acme");
        let desk = Self { house, dir };
        desk.deliver(&sessions(0, 3)).await;
        desk
    }

    async fn deliver(&self, batch: &[Arc<Ended>]) {
        self.house.deliver(batch).await.unwrap();
    }

    fn status(&self) -> String {
        git(&self.dir, &["status", "--porcelain"])
    }

    fn file(&self, ended: &Ended) -> PathBuf {
        let name = ended.session.as_str().replace(':', "%3A");
        self.dir.join(format!(
            "sessions/2026/11/22/{name}-{}.md",
            ended.generation
        ))
    }
}

#[tokio::test]
async fn files_are_there_and_git_finds_nothing_to_say() {
    let desk = Desk::new().await;
    assert_eq!(desk.status(), "");
    for ended in sessions(0, 3) {
        assert!(
            fs::read_to_string(desk.file(&ended))
                .unwrap()
                .contains("Good day.")
        );
    }
    desk.deliver(&sessions(3, 20)).await;
    desk.deliver(&sessions(0, 23)).await;
    assert_eq!(desk.status(), "");
    exactly_once(&desk.dir, &sessions(0, 23));
    let reflog = git(&desk.dir, &["reflog", "main"]);
    assert_eq!(reflog.lines().count(), 2, "{reflog}");
    fs::write(desk.dir.join("README.md"), "Ours.\n").unwrap();
    git(&desk.dir, &["add", "."]);
    git(&desk.dir, &["commit", "-qm", "A note"]);
    desk.deliver(&sessions(23, 2)).await;
    assert_eq!(desk.status(), "");
    // A commit of a person has what memoird added to the index, and nothing else.
    fs::write(desk.dir.join("README.md"), "Theirs.\n").unwrap();
    git(&desk.dir, &["commit", "-qam", "Another note"]);
    assert_eq!(
        git(&desk.dir, &["show", "--format=", "--name-only"]).trim(),
        "README.md"
    );
    exactly_once(&desk.dir, &sessions(0, 25));
}

#[tokio::test]
async fn what_a_person_changed_or_staged_stays() {
    let desk = Desk::new().await;
    let [first, _, third] = &sessions(0, 3)[..] else {
        panic!("three")
    };
    fs::write(desk.file(first), "changed").unwrap();
    fs::write(desk.dir.join("staged.txt"), "staged").unwrap();
    git(&desk.dir, &["add", "staged.txt"]);
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
    assert_eq!(kinds, [" D", " M", " M", "A "], "{status}");
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn another_branch_that_is_checked_out_is_not_touched() {
    let desk = Desk::new().await;
    git(&desk.dir, &["checkout", "-q", "-b", "work"]);
    desk.deliver(&sessions(3, 3)).await;
    assert_eq!(desk.status(), "");
    assert!(!desk.file(&sessions(3, 1)[0]).exists());
    git(&desk.dir, &["checkout", "-q", "main"]);
    assert_eq!(desk.status(), "");
    assert!(desk.file(&sessions(3, 1)[0]).exists());
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn a_crash_before_the_index_was_written_is_mended_when_it_is_delivered_again() {
    let desk = Desk::new().await;
    let index = desk.dir.join(".git/index");
    let before = fs::read(&index).unwrap();
    desk.deliver(&sessions(3, 3)).await;
    // The branch has moved; one file is there, the index is locked and still the old one.
    fs::write(&index, before).unwrap();
    for lost in sessions(4, 2) {
        fs::remove_file(desk.file(&lost)).unwrap();
    }
    let [claim, lock] =
        ["memoird.claim", "index.lock"].map(|name| desk.dir.join(".git").join(name));
    fs::write(&claim, format!("{}\n", "7".repeat(40))).unwrap();
    fs::hard_link(&claim, &lock).unwrap();
    deliver(&desk.house.restarted(), &sessions(3, 3))
        .await
        .unwrap();
    assert_eq!(desk.status(), "");
    assert!(!lock.exists());
    exactly_once(&desk.dir, &sessions(0, 6));
}

#[tokio::test]
async fn a_link_does_not_lead_files_out_of_the_work_tree() {
    let desk = Desk::new().await;
    let outside = tempfile::tempdir().unwrap();
    fs::remove_dir_all(desk.dir.join("sessions")).unwrap();
    std::os::unix::fs::symlink(outside.path(), desk.dir.join("sessions")).unwrap();
    desk.deliver(&sessions(3, 3)).await;
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    exactly_once(&desk.dir, &sessions(0, 6));
}
