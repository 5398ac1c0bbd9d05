//! Checkpoint repositories that are in use by people, removed, or on a full disk.
//!
//! Checkpoints wait, and no other work is lost.

use std::path::Path;
use std::process::Command;

use memoird_proto::v1::{DeliveryState, HookDelivery};

use super::git::{HOOK, repository};
use crate::harness::{
    Daemon, Namespace, Setup, all_delivered, deliveries, each_once, end, eventually, fsck, git,
    in_state, say, stats,
};

/// A daemon whose repository has one checkpoint.
async fn with_one(hook: &str) -> (Daemon, Vec<String>) {
    let daemon = Daemon::with(Setup::default().section(hook)).await;
    let mut generations = Vec::new();
    more(&daemon, &mut generations).await;
    all_delivered(&mut daemon.admin()).await;
    (daemon, generations)
}

/// Ends one more session.
async fn more(daemon: &Daemon, generations: &mut Vec<String>) {
    let mut client = daemon.sessions();
    let session = format!("s{}", generations.len());
    say(&mut client, &session, "hi").await;
    generations.push(end(&mut client, &session).await);
}

/// Waits until a delivery has failed for this reason and is still pending.
async fn fails(daemon: &Daemon, problem: &str) -> HookDelivery {
    let mut admin = daemon.admin();
    let found = eventually("a delivery fails", async || {
        let pending = deliveries(&mut admin, in_state(DeliveryState::Pending)).await;
        pending
            .into_iter()
            .find(|delivery| !delivery.last_error.is_empty())
    })
    .await;
    assert!(found.last_error.contains(problem), "{}", found.last_error);
    found
}

/// Commits a file with plumbing commands, as a script would.
fn foreign_commit(dir: &Path, file: &str) -> String {
    let blob = dir.join("scratch");
    std::fs::write(&blob, "a person's\n").expect("a file");
    let id = git(dir, &["hash-object", "-w", blob.to_str().expect("UTF-8")]);
    std::fs::remove_file(&blob).expect("it was there");
    let index = dir.join("person.index");
    let run = |args: &[&str]| {
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(dir)
            .env("GIT_INDEX_FILE", &index)
            .args(args);
        let output = command.output().expect("git runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .expect("UTF-8")
            .trim()
            .to_owned()
    };
    run(&["read-tree", "main"]);
    run(&[
        "update-index",
        "--add",
        "--cacheinfo",
        &format!("100644,{},{file}", id.trim()),
    ]);
    let tree = run(&["write-tree"]);
    std::fs::remove_file(&index).expect("it was there");
    let commit = git(
        dir,
        &["commit-tree", &tree, "-p", "main", "-m", "by a person"],
    );
    git(dir, &["update-ref", "refs/heads/main", commit.trim()]);
    commit.trim().to_owned()
}

#[tokio::test]
async fn foreign_lock_is_waited_for_and_never_broken() {
    let (daemon, mut generations) = with_one(HOOK).await;
    let dir = repository(&daemon, "default");
    let lock = dir.join("refs/heads/main.lock");
    std::fs::write(&lock, "a person's").expect("a lock");
    more(&daemon, &mut generations).await;
    let mut admin = daemon.admin();
    // The hook waits for the lock while everything else continues.
    say(&mut daemon.sessions(), "other", "calls go on").await;
    let failed = fails(&daemon, "main.lock is locked by another git").await;
    assert_eq!(failed.generation, generations[1]);
    assert_eq!(
        std::fs::read_to_string(&lock).expect("it is there"),
        "a person's"
    );
    std::fs::remove_file(&lock).expect("it is there");
    all_delivered(&mut admin).await;
    each_once(&dir, &generations, "after the lock");
    fsck(&dir);
}

#[tokio::test]
async fn briefly_held_lock_costs_no_retry() {
    let (daemon, mut generations) = with_one(HOOK).await;
    let dir = repository(&daemon, "default");
    let lock = dir.join("refs/heads/main.lock");
    std::fs::write(&lock, "a person's").expect("a lock");
    more(&daemon, &mut generations).await;
    eventually("it waits for the lock", async || {
        dir.join("memoird.claim").exists().then_some(())
    })
    .await;
    std::fs::remove_file(&lock).expect("it is there");
    let mut admin = daemon.admin();
    all_delivered(&mut admin).await;
    let done = deliveries(&mut admin, in_state(DeliveryState::Done)).await;
    assert!(done.iter().all(|delivery| delivery.tries == 1), "{done:?}");
    each_once(&dir, &generations, "after the lock");
}

#[tokio::test]
async fn foreign_commits_are_built_upon() {
    let (daemon, mut generations) = with_one(HOOK).await;
    let mut admin = daemon.admin();
    let dir = repository(&daemon, "default");
    let first = foreign_commit(&dir, "notes.txt");
    more(&daemon, &mut generations).await;
    all_delivered(&mut admin).await;

    // The same by clone and push, after git has packed refs and objects.
    let clone = daemon.path("clone");
    git(&dir, &["clone", "-q", ".", clone.to_str().expect("UTF-8")]);
    std::fs::write(clone.join("sessions/README"), "a person's\n").expect("a file");
    git(&clone, &["add", "-A"]);
    git(&clone, &["commit", "-q", "-m", "a readme"]);
    git(&clone, &["push", "-q", "origin", "HEAD:main"]);
    let second = git(&clone, &["rev-parse", "HEAD"]);
    git(&dir, &["gc", "-q", "--prune=now"]);
    git(&dir, &["pack-refs", "--all"]);
    more(&daemon, &mut generations).await;
    all_delivered(&mut admin).await;
    git(&dir, &["merge-base", "--is-ancestor", &first, "main"]);
    git(
        &dir,
        &["merge-base", "--is-ancestor", second.trim(), "main"],
    );
    assert_eq!(git(&dir, &["show", "main:notes.txt"]), "a person's\n");
    assert_eq!(git(&dir, &["show", "main:sessions/README"]), "a person's\n");
    assert_eq!(
        git(&dir, &["rev-list", "--count", "--merges", "main"]).trim(),
        "0"
    );
    each_once(&dir, &generations, "among others'");
    fsck(&dir);
}

#[tokio::test]
async fn checkpoint_branch_grows_whatever_head_is() {
    let (daemon, mut generations) = with_one(HOOK).await;
    let mut admin = daemon.admin();
    let dir = repository(&daemon, "default");
    git(&dir, &["branch", "mine", "main"]);
    let mine = git(&dir, &["rev-parse", "mine"]);
    git(&dir, &["symbolic-ref", "HEAD", "refs/heads/mine"]);
    more(&daemon, &mut generations).await;
    all_delivered(&mut admin).await;
    let tip = git(&dir, &["rev-parse", "main"]);
    git(&dir, &["update-ref", "--no-deref", "HEAD", tip.trim()]);
    more(&daemon, &mut generations).await;
    all_delivered(&mut admin).await;
    assert_eq!(git(&dir, &["rev-parse", "mine"]), mine);
    assert_eq!(
        git(&dir, &["rev-parse", "HEAD"]),
        tip,
        "a detached HEAD stays"
    );
    each_once(&dir, &generations, "HEAD is elsewhere");
    fsck(&dir);
}

#[tokio::test]
async fn deleted_repository_is_recreated() {
    let (daemon, generations) = with_one(HOOK).await;
    let mut admin = daemon.admin();
    let dir = repository(&daemon, "default");
    std::fs::remove_dir_all(&dir).expect("it was there");
    let mut later = generations.clone();
    more(&daemon, &mut later).await;
    all_delivered(&mut admin).await;
    each_once(&dir, &later[1..], "anew");
    fsck(&dir);
    std::fs::remove_dir_all(daemon.path("checkpoints")).expect("it was there");
    more(&daemon, &mut later).await;
    all_delivered(&mut admin).await;
    each_once(&dir, &later[2..], "with the folder around it");

    // A directory that is not a repository is reported and left untouched.
    std::fs::remove_dir_all(&dir).expect("it was there");
    std::fs::create_dir_all(&dir).expect("a folder");
    std::fs::write(dir.join("diary"), "a person's").expect("a file");
    more(&daemon, &mut later).await;
    fails(&daemon, "is not a git repository").await;
    assert_eq!(std::fs::read_dir(&dir).expect("a folder").count(), 1);
    std::fs::remove_dir_all(&dir).expect("it was there");
    all_delivered(&mut admin).await;
    each_once(&dir, &later[3..], "once the place is free");
}

#[tokio::test]
async fn full_disk_keeps_checkpoints_pending_until_there_is_room() {
    let mount = "mkdir -p HOME/checkpoints && mount -t tmpfs -o size=4m tmpfs HOME/checkpoints";
    let probe_dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &probe_dir.path().display().to_string());
    let test = "hooks::git_failures::full_disk_keeps_checkpoints_pending_until_there_is_room";
    if !Namespace::Mount.allows(&probe, test) {
        return;
    }
    let fill = "head -c 4194304 /dev/zero > HOME/checkpoints/ballast";
    let script = format!("{mount}; {fill}; exec \"$@\"");
    let setup = Setup::default().section(HOOK);
    let daemon = Daemon::with(setup.wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"])).await;
    let mut admin = daemon.admin();
    let mut generations = Vec::new();
    for _ in 0..20 {
        more(&daemon, &mut generations).await;
    }
    fails(&daemon, "the disk is full").await;
    assert_eq!(stats(&mut admin).await.hooks_pending, 20, "none is lost");
    more(&daemon, &mut generations).await;
    std::fs::remove_file(daemon.path("checkpoints/ballast")).expect("it was there");
    all_delivered(&mut admin).await;
    // git cannot read through another process's mounts, so check a copy.
    let mut copied = Command::new("cp");
    copied.arg("-r").arg(repository(&daemon, "default"));
    let dir = probe_dir.path().join("copy.git");
    assert!(copied.arg(&dir).status().expect("cp runs").success());
    each_once(&dir, &generations, "when there is room");
    fsck(&dir);
}
