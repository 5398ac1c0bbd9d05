//! Durability `off` under a memory limit that is reached repeatedly.
//!
//! Appends without room are refused, and acknowledged ones stay as long as their session lives.

use std::collections::BTreeMap;

use memoird_engine::{Blocking, Durability, EngineError, TenantLimits};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::Bot;
use crate::kit::{Dice, NEVER, World, paused_runtime, settle, tenant, unswept};
use crate::seeds::seeds;

const TENANTS: [&str; 3] = ["one", "two", "three"];
const MEMORY_BYTES: u64 = 64 << 10;
/// How far calls in flight may exceed the limit.
const UNDER_WAY_BYTES: u64 = 8 * 6_000;

#[test]
fn durability_off_keeps_acknowledged_turns_within_memory_limit() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let runtime = paused_runtime();
        let refused = runtime.block_on(live(Dice(seed)));
        assert!(refused > 0, "seed {seed} never came to the limit");
    }
}

/// Returns the number of appends refused for lack of room.
async fn live(mut dice: Dice) -> usize {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    config.memory_bytes = MEMORY_BYTES;
    config.sessions.session_ttl = NEVER;
    config.tenants = TENANTS
        .map(|id| tenant(id, TenantLimits::default()))
        .to_vec();
    let world = World {
        blocking: Blocking::Inline,
        ..World::new(config)
    };
    let engine = world.open().await;
    // The acknowledged texts of each session's current generation.
    let mut kept: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    let mut refused = 0;
    for round in 0..120 {
        let mut calls = JoinSet::new();
        // One call per session at a time, so that its expected history is known.
        let mut busy = Vec::new();
        for number in 0..1 + dice.below(8) {
            let session = (*dice.one_of(&TENANTS), format!("s{}", dice.below(6)));
            if busy.contains(&session) {
                continue;
            }
            busy.push(session.clone());
            let bot = Bot::new(&engine, session.0);
            let ends = dice.once_in(12);
            let bytes = usize::try_from(dice.below(6_000)).unwrap();
            let text = format!("{round}.{number} {}", "x".repeat(bytes));
            calls.spawn(async move {
                let answer = if ends {
                    bot.end(&session.1).await.map(|_| None)
                } else {
                    bot.say(&session.1, &text).await.map(|_| Some(text))
                };
                (session, answer)
            });
        }
        while let Some(done) = calls.join_next().await {
            match done.unwrap() {
                (session, Ok(Some(text))) => kept.entry(session).or_default().push(text),
                (session, Ok(None)) => drop(kept.remove(&session)),
                (_, Err(EngineError::MemoryFull { .. })) => refused += 1,
                (session, Err(EngineError::SessionNotFound { .. })) => {
                    assert!(!kept.contains_key(&session), "{session:?} is gone");
                }
                (session, Err(error)) => panic!("{session:?}: {error}"),
            }
        }
        let memory = engine.stats().memory;
        assert!(
            memory.used_bytes() <= MEMORY_BYTES + UNDER_WAY_BYTES,
            "{memory:?}"
        );
        if dice.once_in(6) {
            sleep(std::time::Duration::from_secs(dice.below(100))).await;
            for ((tenant, session), texts) in &kept {
                let bot = Bot::new(&engine, tenant);
                assert_eq!(
                    bot.live(session).await.as_ref(),
                    Ok(texts),
                    "{tenant} {session}"
                );
            }
        }
    }
    settle().await;
    for id in TENANTS {
        let bot = Bot::new(&engine, id);
        bot.recount().await;
        let sessions = kept.keys().filter(|(tenant, _)| *tenant == id).count();
        assert_eq!(bot.stats().sessions_live, sessions as u64);
    }
    engine.close().await;
    refused
}
