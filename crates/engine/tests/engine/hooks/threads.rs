//! Hooks over the journal on disk, on real threads.
//!
//! Ends, flushes, commits and deliveries interleave freely. No delivery is given up, and each end
//! is delivered once and whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::outbox::DeliveryState;
use memoird_engine::{Blocking, Engine, SystemMachine};
use memoird_store::{SqliteOptions, SqliteStore, Store};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::script::ScriptedHook;
use super::{deliveries, hooked, turn_texts, with_hooks};
use crate::bot::{Bot, saying};
use crate::kit::{NEVER, unswept};

const SESSIONS: usize = 600;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_ends_are_each_delivered_once_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions {
        pending_changes_max: 500,
        ..SqliteOptions::default()
    };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir.path(), options).unwrap());
    let hooks = [ScriptedHook::new([]), ScriptedHook::batched(50, [])];
    let mut config = with_hooks(
        unswept(),
        [hooked("one", &hooks[0]), hooked("many", &hooks[1])],
    );
    config.sessions.session_ttl = NEVER;
    config.limits.max_history_turns = 1;
    let machine = Arc::new(SystemMachine::resume(None));
    let engine = Engine::open(config, Some(store), machine, Blocking::Threads)
        .await
        .unwrap();
    let mut calls = JoinSet::new();
    for id in 0..SESSIONS {
        let bot = Bot::acme(&engine);
        calls.spawn(async move {
            let (id, texts) = (
                id.to_string(),
                ["a", "b", "c"].map(|text| format!("{text}{id}")),
            );
            for text in &texts {
                bot.append(&id, saying(&[text])).await.unwrap();
            }
            let ended = bot.end(&id).await.unwrap();
            (ended.head.generation, texts.to_vec())
        });
    }
    let ended: BTreeMap<_, _> = calls.join_all().await.into_iter().collect();
    let all_done = async {
        loop {
            let all = deliveries(&engine).await;
            if all
                .iter()
                .all(|delivery| delivery.state == DeliveryState::Done)
            {
                return all.len();
            }
            let given_up = all
                .iter()
                .find(|delivery| delivery.state == DeliveryState::Dead);
            assert!(given_up.is_none(), "{given_up:?}");
            sleep(Duration::from_millis(10)).await;
        }
    };
    let count = timeout(Duration::from_secs(60), all_done)
        .await
        .expect("they are never done");
    assert_eq!(count, 2 * SESSIONS);
    for hook in hooks {
        let seen: BTreeMap<_, _> = hook
            .seen()
            .iter()
            .map(|ended| (ended.generation, turn_texts(ended)))
            .collect();
        assert_eq!((hook.count(), &seen), (SESSIONS, &ended));
    }
    engine.close().await;
}
