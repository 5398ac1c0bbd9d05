//! The same bots on real threads, without deterministic seeds. Acknowledged appends must hold too.

use std::sync::{Arc, Mutex};

use memoird_engine::EngineConfig;
use tokio::task::JoinSet;

use crate::bot::Bot;
use crate::kit::{Dice, World, capped, unswept};
use crate::seeds::seeds_factor;
use crate::store::Fate;
use crate::windows::{model, with_models};

use super::client::{Client, Op};
use super::model::{Model, check_sessions};

const TENANTS: [&str; 3] = ["small", "uncapped", "large"];
const TURNS_MAX: usize = 4;

fn config() -> EngineConfig {
    let mut config = with_models(unswept(), vec![model("m", 1_000, &Arc::default())]);
    config.sessions.max_sessions = 9;
    config.sessions.session_ttl = crate::kit::NEVER;
    config.tenants = vec![
        capped("small", 3),
        capped("uncapped", 0),
        capped("large", 5),
    ];
    config.limits.max_history_turns = TURNS_MAX;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn multithreaded_simulation_keeps_what_was_acknowledged() {
    let seed = rand::random();
    println!("the dice started with {seed}");
    let mut dice = Dice(seed);
    let batches = [1, 2, 1_024].into_iter();
    let times = usize::try_from(3 * seeds_factor()).unwrap();
    for batch_sets in batches.cycle().take(times) {
        let mut world = World::with_threads(config());
        world.config.journal.batch_sets = batch_sets;
        world.config.journal.part_bytes = 1;
        world.store.write_ahead(dice.below(2) == 0);
        let engine = world.open().await;
        let model: Arc<Mutex<Model>> = Arc::default();
        for wave in 0..10 {
            if wave % 2 == 1 {
                world
                    .store
                    .fate((0..8).map(|_| *dice.one_of(&[Fate::Full, Fate::Written])));
            }
            let mut calls = JoinSet::new();
            for _ in 0..100 {
                let bot = Bot::new(&engine, TENANTS[usize::try_from(dice.below(3)).unwrap()]);
                let session = format!("s{}", dice.below(7));
                let (model, store) = (Arc::clone(&model), Arc::clone(&world.store));
                let client = Client::new(bot, session, TURNS_MAX, model, store);
                let op = Op::choose(&mut dice, &client);
                calls.spawn(async move { client.run(op).await });
            }
            calls.join_all().await;
            world.store.forgive();
        }
        engine.close().await;
        model.lock().unwrap().check(&world.store.record());

        let engine = world.open().await;
        // Sessions above the caps are evicted after the start, possibly already by the sweeper.
        engine.enforce_limits().await;
        for tenant in TENANTS {
            let bot = Bot::new(&engine, tenant);
            engine.transcripts.settled(&bot.tenant).await.unwrap();
            check_sessions(&bot, TURNS_MAX, &world.store).await;
            bot.recount().await;
        }
        engine.close().await;
    }
}
