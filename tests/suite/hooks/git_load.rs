//! Many ends at once, and crashes during commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memoird_proto::v1::SweepNowRequest;
use tokio::task::JoinSet;

use super::git::{HOOK, repository};
use crate::harness::{
    Daemon, Seed, Sessions, Setup, all_delivered, append, each_once, end, eventually, fsck, git,
    say, seeds_factor, stats, user,
};

/// Creates sessions with many calls in flight, and returns their generations.
async fn create(daemon: &Daemon, names: impl Iterator<Item = String>) -> Vec<String> {
    const IN_FLIGHT: usize = 64;
    let mut names = names.into_iter();
    let client = daemon.sessions();
    let mut calls = JoinSet::new();
    let mut generations = Vec::new();
    loop {
        while calls.len() < IN_FLIGHT
            && let Some(name) = names.next()
        {
            let mut client: Sessions = client.clone();
            calls.spawn(async move {
                let turns = [user(&format!("I am {name}"))];
                let answer = client.append(append(&name, turns)).await.expect("done");
                answer.into_inner().session.expect("a session").generation
            });
        }
        match calls.join_next().await {
            Some(generation) => generations.push(generation.expect("no panic")),
            None => return generations,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sweep_of_2000_sessions_makes_few_commits() {
    const SESSIONS: usize = 2_000;
    let mut daemon = Daemon::with(Setup::default().section(HOOK)).await;
    let names = (0..SESSIONS).map(|number| format!("chat:{number}"));
    let generations = create(&daemon, names).await;
    daemon.stop().await;
    let quick = "short_term: { session_ttl: 1s, sweep_interval: 1h }";
    daemon
        .restart_with(Setup::default().section(quick).section(HOOK))
        .await;
    let mut admin = daemon.admin();
    eventually("all have expired", async || {
        // The daemon's own sweeper may have run before.
        admin
            .sweep_now(SweepNowRequest::default())
            .await
            .expect("swept");
        (stats(&mut admin).await.sessions_live == 0).then_some(())
    })
    .await;
    assert_eq!(stats(&mut admin).await.expired, SESSIONS as u64);
    say(&mut daemon.sessions(), "meanwhile", "calls go on").await;
    all_delivered(&mut admin).await;
    let dir = repository(&daemon, "default");
    let commits = git(&dir, &["rev-list", "--count", "main"]);
    let commits: usize = commits.trim().parse().expect("a number");
    assert!((1..=8).contains(&commits), "{commits} commits");
    each_once(&dir, &generations, "after the sweep");
    fsck(&dir);
}

/// Ends sessions until the daemon is gone.
///
/// Returns the sessions whose end is uncertain, and the generations whose end was acknowledged.
async fn end_until_killed(
    mut client: Sessions,
    round: usize,
    done: Arc<AtomicUsize>,
) -> (Vec<String>, Vec<String>) {
    let (mut maybe, mut sure) = (Vec::new(), Vec::new());
    for number in 0.. {
        let session = format!("r{round} s{number}");
        let Ok(answer) = client.append(append(&session, [user("hi")])).await else {
            break;
        };
        let generation = answer.into_inner().session.expect("a session").generation;
        maybe.push(session.clone());
        let request = memoird_proto::v1::EndSessionRequest {
            session_id: session,
            ..memoird_proto::v1::EndSessionRequest::default()
        };
        if client.end_session(request).await.is_err() {
            break;
        }
        maybe.pop();
        sure.push(generation);
        done.fetch_add(1, Ordering::Relaxed);
    }
    (maybe, sure)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_kills_amid_commits_lose_and_duplicate_no_checkpoint() {
    const SEED: u64 = 20_261_122;
    let mut random = Seed::new(SEED);
    let mut daemon = Daemon::with(Setup::default().section(HOOK)).await;
    let (mut maybe, mut sure) = (Vec::new(), Vec::new());
    for round in 0..10 * usize::try_from(seeds_factor()).expect("a small number") {
        let mut ending = JoinSet::new();
        let done = Arc::new(AtomicUsize::new(0));
        ending.spawn(end_until_killed(
            daemon.sessions(),
            round,
            Arc::clone(&done),
        ));
        let pack_dir = repository(&daemon, "default").join("objects/pack");
        let count = || std::fs::read_dir(&pack_dir).map_or(0, Iterator::count);
        let before = count();
        eventually("a commit is under way", async || {
            (count() != before).then_some(())
        })
        .await;
        // After a few more ends, the kill falls into that commit or the next one.
        let enough = done.load(Ordering::Relaxed) + random.below(40);
        eventually("some more have ended", async || {
            (done.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
        daemon.kill9().await;
        for (doubtful, certain) in ending.join_all().await {
            maybe.extend(doubtful);
            sure.extend(certain);
        }
        daemon.restart().await;
    }
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    for session in &maybe {
        // If the end is uncertain, end the session now, whether or not it is a new generation.
        let answer = say(&mut client, session, "now").await;
        let generation = end(&mut client, session).await;
        assert_eq!(answer.session.expect("a session").generation, generation);
    }
    all_delivered(&mut admin).await;
    let dir = repository(&daemon, "default");
    let listed = crate::harness::deliveries(&mut admin, Default::default()).await;
    let ended: Vec<String> = listed
        .into_iter()
        .map(|delivery| delivery.generation)
        .collect();
    let lost: Vec<&String> = sure.iter().filter(|one| !ended.contains(one)).collect();
    assert!(lost.is_empty(), "seed {SEED}: owed nothing for {lost:?}");
    each_once(&dir, &ended, &format!("seed {SEED}"));
    fsck(&dir);
    assert!(
        git(&dir, &["count-objects", "-v"]).contains("garbage: 0"),
        "seed {SEED}"
    );
}
