//! All limits change repeatedly under full load.

use std::time::Duration;

use memoird_core::ids::HookName;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::Bot;
use crate::hooks::script::ScriptedHook;
use crate::hooks::{hooked, turn_texts, with_hooks};
use crate::kit::{ACME, Dice, World, capped, config, settle, unswept};
use crate::seeds::seeds;

#[tokio::test(start_paused = true)]
async fn reconfigure_under_traffic_loses_nothing_and_delivers_every_end() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let hook = ScriptedHook::new([]);
        let another = |dice: &mut Dice| {
            let mut config = config();
            config.sessions.max_sessions = usize::try_from(dice.below(12)).unwrap();
            config.limits.max_history_turns = usize::try_from(1 + dice.below(9)).unwrap();
            config.sessions.session_ttl = Duration::from_secs(1 + dice.below(90));
            if dice.once_in(2) {
                config
                    .tenants
                    .push(capped("other", usize::try_from(dice.below(5)).unwrap()));
            }
            with_hooks(config, [hooked("a", &hook)])
        };
        let mut first = another(&mut dice);
        first.tenants = vec![capped(ACME, 4), capped("other", 3)];
        let world = World::new(first);
        let engine = world.open().await;
        let mut calls = JoinSet::new();
        for call in 0..300 {
            let bot = Bot::new(&engine, [ACME, "other"][usize::from(dice.once_in(2))]);
            let (session, wait) = (format!("s{}", dice.below(9)), dice.below(60_000));
            calls.spawn(async move {
                sleep(Duration::from_millis(wait)).await;
                let said = bot.say(&session, &call.to_string()).await.unwrap();
                (call.to_string(), said.record.generation)
            });
        }
        for _ in 0..40 {
            sleep(Duration::from_millis(dice.below(3_000))).await;
            engine.reconfigure(another(&mut dice)).await;
        }
        let said_where = calls.join_all().await;
        let mut last = with_hooks(unswept(), [hooked("a", &hook)]);
        last.sessions.session_ttl = Duration::from_secs(1);
        engine.reconfigure(last).await;
        sleep(Duration::from_secs(2)).await;
        engine.sessions.sweep(None).await.unwrap();
        settle().await;
        for tenant in engine.tenants.all() {
            Bot::new(&engine, tenant.id.as_str()).recount().await;
        }
        let record = world.store.record();
        assert!(record.live.is_empty(), "all have ended");
        let hook_name = HookName::parse("a").unwrap();
        for (text, generation) in said_where {
            let life = &record.lives[&generation];
            assert!(
                life.texts.contains(&text) && life.owed.contains(&hook_name),
                "{life:?}"
            );
        }
        let seen = hook.seen();
        assert_eq!(seen.len(), record.lives.len(), "each once");
        for ended in seen {
            assert_eq!(turn_texts(&ended), record.lives[&ended.generation].texts);
        }
    }
}
