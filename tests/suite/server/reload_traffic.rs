//! Limits that change under traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memoird_proto::v1::AppendRequest;
use tokio::task::JoinSet;

use crate::harness::{
    Daemon, RECORDING_HOOK, Sessions, Setup, all_delivered, append, delivered, eventually, journal,
    refused_code, reload, stats, text_of, user,
};

fn short_term(limits: &str) -> Setup {
    let hook = format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]");
    Setup::default()
        .section(hook)
        .section(format!("short_term: {{ {limits} }}"))
}

/// Turns that one client knows to be in its session.
#[derive(Debug, Default)]
struct Known {
    /// The live generation.
    generation: String,
    texts: Vec<String>,
    /// Turns of ended generations, by generation.
    past: Vec<(String, Vec<String>)>,
    appended: usize,
}

/// Appends turns until stopped, each expecting to follow the previous one.
async fn talk(mut client: Sessions, session: String, stop: Arc<AtomicBool>) -> (String, Known) {
    let mut known = Known::default();
    while !stop.load(Ordering::Relaxed) {
        let text = format!("{session} {}", known.appended);
        let request = AppendRequest {
            expected_seq: Some(known.texts.len() as u64),
            ..append(&session, [user(&text)])
        };
        match client.append(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                let generation = answer.session.expect("a session").generation;
                if known.generation != generation {
                    assert!(known.texts.is_empty(), "another life with an old seq");
                    known.generation = generation;
                }
                known.texts.push(text);
                known.appended += 1;
                assert_eq!(answer.last_seq, known.texts.len() as u64);
            }
            Err(status) => match refused_code(&status).as_str() {
                // The session was evicted or expired, so the known turns are in the previous
                // generation.
                "STALE_SEQ" => {
                    let life = (
                        std::mem::take(&mut known.generation),
                        std::mem::take(&mut known.texts),
                    );
                    known.past.push(life);
                }
                "NO_PLACE" | "SESSION_RELOADED" => {}
                other => panic!("{other}: {status:?}"),
            },
        }
    }
    (session, known)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_traffic_lose_and_duplicate_nothing() {
    let mut daemon = Daemon::with(short_term("max_sessions: 100")).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut talking = JoinSet::new();
    for number in 0..8 {
        talking.spawn(talk(
            daemon.sessions(),
            format!("s{number}"),
            Arc::clone(&stop),
        ));
    }
    let mut admin = daemon.admin();
    for round in 0..10 {
        let limits = match round % 3 {
            0 => "max_sessions: 4, max_history_turns: 3",
            1 => "max_sessions: 100, session_ttl: 20ms",
            _ => "max_sessions: 6, max_history_turns: 80",
        };
        let before = stats(&mut admin).await.turns_appended;
        daemon.rewrite(short_term(limits));
        reload(&mut admin).await;
        eventually("traffic goes on", async || {
            let now = stats(&mut admin).await.turns_appended;
            assert!(!talking.is_empty());
            (now >= before + 40).then_some(())
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    let all = talking.join_all().await;
    daemon.rewrite(short_term("max_sessions: 100"));
    reload(&mut admin).await;
    let mut client = daemon.sessions();
    let mut lives = 0;
    for (session, mut known) in all {
        known
            .past
            .push((known.generation.clone(), known.texts.clone()));
        for (generation, texts) in known.past.iter().filter(|(_, texts)| !texts.is_empty()) {
            let turns = journal(&mut client, &session, generation).await;
            let found: Vec<&str> = turns.iter().map(text_of).collect();
            assert_eq!(&found, texts, "{session} {generation}");
            lives += 1;
        }
    }
    assert!(lives > 16, "{lives} lives: the limits ended some");
    all_delivered(&mut admin).await;
    let total = stats(&mut admin).await;
    assert_eq!(
        delivered(&daemon).len() as u64,
        total.evicted + total.expired,
        "each end is told once"
    );
}
