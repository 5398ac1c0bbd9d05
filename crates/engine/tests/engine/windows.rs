//! Windows while other things happen to their session.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use memoird_core::model::{Budget, DEFAULT_MODEL, ModelProfile, Provider, TokenizerKind};
use memoird_core::tokens::Tokenizer;
use memoird_engine::{ContextConfig, ContextModel, ContextRequest};

use crate::bot::Bot;
use crate::kit::{World, config, session_id};

/// Counts bytes; where a text says `wait`, not before it is told to.
#[derive(Debug)]
struct Patient {
    waits: SyncSender<()>,
    go_on: Mutex<Receiver<()>>,
}

impl Tokenizer for Patient {
    fn count(&self, text: &str) -> usize {
        if text.contains("wait") {
            self.waits.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
        }
        text.len()
    }

    fn margin(&self) -> f64 {
        0.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_of_one_life_of_a_session_is_not_taken_for_the_next() {
    let ((waits, is_waiting), (go, go_on)) = (sync_channel(0), sync_channel(0));
    let profile = ModelProfile {
        name: DEFAULT_MODEL.into(),
        provider: Provider::OpenAi,
        tokenizer: TokenizerKind::O200k,
        budget: Budget::of_window(200_000),
    };
    let tokenizer = Arc::new(Patient { waits, go_on: Mutex::new(go_on) });
    let context = ContextConfig {
        models: vec![ContextModel { profile, tokenizer }],
        default_model: DEFAULT_MODEL.into(),
        ..ContextConfig::default()
    };
    let world = World::with_pool(memoird_engine::EngineConfig { context, ..config() });
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let window = |bot: Bot| async move {
        bot.engine.context(&bot.tenant, &session_id("a"), ContextRequest::default()).await
    };
    // Long enough to be counted elsewhere.
    bot.say("a", &format!("wait {}", "x".repeat(40_000))).await.unwrap();
    bot.say("a", &"y".repeat(30_000)).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    calls.spawn(window(bot.clone()));
    tokio::task::spawn_blocking(move || is_waiting.recv().unwrap()).await.unwrap();
    engine.reset_session(&bot.tenant, &session_id("a"), false).await.unwrap();
    bot.say("a", "hello").await.unwrap();
    let new = window(bot.clone()).await.unwrap();
    tokio::task::spawn_blocking(move || go.send(()).unwrap()).await.unwrap();
    let found = calls.join_next().await.unwrap().unwrap().unwrap();
    let counted = |turns: &[memoird_engine::WindowTurn]| -> Vec<u64> {
        turns.iter().map(|turn| turn.tokens).collect()
    };
    assert_eq!(counted(&found.turns), counted(&new.turns));
    bot.say("a", &"z".repeat(10_000)).await.unwrap();
    let last = window(bot).await.unwrap();
    let tokens = counted(&last.turns);
    assert_eq!(tokens[0], counted(&new.turns)[0]);
    assert!(tokens[1] > 10_000 && tokens[1] < 11_000, "{tokens:?}");
}
