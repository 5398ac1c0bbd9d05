//! Concurrent bots over a failing journal, stepping clocks and a killed daemon.
//!
//! After each round the engine must agree with a simple model. A seed is deterministic: the store
//! runs inline, the clock advances only when every task is idle, and every choice comes from the
//! seeded generator. Each run of the daemon has its own runtime, and dropping it kills the daemon.
//! `MEMOIRD_SEED=… cargo test` runs one more seed.

mod client;
mod durability_off;
mod flaky;
mod interval;
mod model;
mod threads;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::time::Steady;
use memoird_engine::{Blocking, Engine, EngineConfig, Machine, TenantLimits};
use memoird_store::Store;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use crate::bot::Bot;
use crate::kit::{DAY_MS, Dice, TestMachine, World, paused_runtime, tenant, tenant_id, unswept};
use crate::record::{Counts, Rules};
use crate::seeds::seeds;
use crate::store::{Fate, FaultyStore};
use crate::windows::{model, with_models};
use client::{Client, Op};
use flaky::{FlakyHook, flaky_hooks};
use model::Model;

/// Id, session cap, TTL in seconds, turns in a history.
const TENANTS: [(&str, usize, u64, usize); 3] = [
    ("small", 3, 60, 3),
    ("uncapped", 0, 100, 5),
    ("large", 5, 150, 8),
];
const MAX_SESSIONS: usize = 9;
/// Enough for the heads of all sessions, but not for all their turns.
const MEMORY_BYTES: u64 = 16 << 10;
/// Journal quota in bytes of one tenant. Calls in flight when it is reached may exceed it.
const JOURNAL_BYTES: (&str, u64) = ("large", 4_000);
const JOURNAL_BYTES_UNDER_WAY: u64 = 12 * 3 * 64;
const RETENTION: Duration = Duration::from_secs(200);
/// Maximum delay of a read from the store.
const READ_DELAY_MS_MAX: u64 = 5_000;
const LIVES: u64 = 6;
const ROUNDS: u64 = 25;

#[test]
fn seeded_simulation_keeps_exactly_what_was_acknowledged() {
    for seed in seeds(40) {
        println!("MEMOIRD_SEED={seed}");
        Simulation::new(seed).run();
    }
}

#[test]
fn random_seed_simulation_keeps_what_was_acknowledged() {
    let seed = option_env!("MEMOIRD_SEED").map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("MEMOIRD_SEED={seed}");
    Simulation::new(seed).run();
}

#[test]
fn same_seed_repeats_exactly() {
    let run = || {
        let mut simulation = Simulation::new(4_711);
        simulation.run();
        let record = simulation.store.record();
        let calls = simulation
            .hooks
            .iter()
            .map(|hook| hook.log().calls.clone())
            .collect::<Vec<_>>();
        (
            format!("{:?}", record.lives),
            record.set_sizes.clone(),
            record.failures,
            calls,
        )
    };
    let (lives, sizes, failures, calls) = run();
    assert_eq!((lives, sizes, failures, calls), run());
    assert!(failures > 10, "the journal failed {failures} times");
}

thread_local! {
    /// Source of read delays. `None` disables them.
    static READS: RefCell<Option<Dice>> = const { RefCell::new(None) };
}

/// Most reads return at once, some after a short delay, and a few take seconds.
fn read_delay() -> Duration {
    let ms = READS.with_borrow_mut(|dice| {
        let dice = dice.as_mut()?;
        Some(match dice.below(16) {
            0 => dice.below(READ_DELAY_MS_MAX),
            1..5 => dice.below(4),
            _ => 0,
        })
    });
    Duration::from_millis(ms.unwrap_or(0))
}

struct Simulation {
    dice: Dice,
    config: EngineConfig,
    store: Arc<FaultyStore>,
    model: Arc<Mutex<Model>>,
    hooks: Vec<Arc<FlakyHook>>,
    /// Where the steady clock continues in the next run.
    now: Steady,
}

fn config() -> EngineConfig {
    let mut config = with_models(unswept(), vec![model("m", 1_000, &Arc::default())]);
    config.sessions.max_sessions = MAX_SESSIONS;
    config.sessions.sweep_interval = None;
    config.memory_bytes = MEMORY_BYTES;
    config.journal.retention = RETENTION;
    config.tenants = TENANTS
        .iter()
        .map(|(id, max_sessions, ttl, turns)| {
            let limits = TenantLimits {
                max_sessions: Some(*max_sessions),
                session_ttl: Some(Duration::from_secs(*ttl)),
                max_history_turns: Some(*turns),
                max_history_bytes: None,
                journal_bytes: (*id == JOURNAL_BYTES.0)
                    .then_some(usize::try_from(JOURNAL_BYTES.1).unwrap()),
                ..TenantLimits::default()
            };
            tenant(id, limits)
        })
        .collect();
    config
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let store = Arc::<FaultyStore>::default();
        let tenants = TENANTS
            .iter()
            .map(|(id, cap, ttl, _)| (tenant_id(id), (*cap, ttl * 1_000)));
        let rules = Rules {
            max_sessions: MAX_SESSIONS,
            tenants: tenants.collect(),
            strict: true,
        };
        store.record().rules = Some(rules);
        let (mut config, model) = (config(), Arc::default());
        let hooks = flaky_hooks(seed, &store);
        config.hooks.hooks = hooks.iter().map(FlakyHook::config).collect();
        config.hooks.concurrency = 4;
        Self {
            dice: Dice(seed),
            config,
            store,
            model,
            hooks,
            now: Steady(0),
        }
    }

    fn run(&mut self) {
        for life in 1..=LIVES {
            let runtime = paused_runtime();
            runtime.block_on(self.live(life == LIVES));
            self.model.lock().unwrap().note_kill();
            // Abort all remaining tasks.
            drop(runtime);
            self.now.0 += self.dice.below(120_000);
        }
        self.hooks.iter().for_each(|hook| hook.check());
    }

    /// Randomizes whether appends of several turns are written in parts.
    fn write_in_parts(&mut self) {
        self.store.write_ahead(self.dice.below(2) == 0);
        self.config.journal.part_bytes = *self.dice.one_of(&[1, 30, 512 << 10]);
    }

    /// Runs the daemon once, to a clean shutdown or a kill.
    async fn live(&mut self, is_last: bool) {
        let machine = Arc::new(TestMachine::resume(self.now, self.dice.roll()));
        machine.step_wall(self.wall_step());
        self.store.forgive();
        // Batch size: with 1, each change set is its own transaction.
        self.config.journal.batch_sets = *self.dice.one_of(&[1, 2, 1_024]);
        self.write_in_parts();
        let before = self.store.record().counts.clone();
        let world = World {
            config: self.config.clone(),
            store: Arc::clone(&self.store),
            machine: Arc::clone(&machine),
            blocking: Blocking::InlineWithReadDelay(read_delay),
        };
        READS.set(None);
        let engine = world.open().await;
        self.check(&engine, &before).await;
        let kill = !is_last && self.dice.once_in(2);
        for _ in 0..1 + self.dice.below(ROUNDS) {
            machine.step_wall(self.wall_step());
            self.arm();
            let mut calls = self.start_calls(&engine);
            while let Some(done) = calls.join_next().await {
                done.unwrap();
            }
            sleep(Duration::from_millis(self.dice.below(40_000))).await;
            // A check also sweeps. Without one, calls meet sessions past their TTL.
            if self.dice.once_in(2) {
                self.check(&engine, &before).await;
            }
        }
        self.check(&engine, &before).await;
        if is_last {
            flaky::deliver_all(&engine, &self.hooks).await;
        }
        if kill {
            self.arm();
            let calls = self.start_calls(&engine);
            for _ in 0..self.dice.below(12) {
                yield_now().await;
            }
            // The calls are aborted together with the engine.
            drop(calls);
        } else {
            engine.close().await;
        }
        self.now = machine.now().steady;
    }

    fn wall_step(&mut self) -> i64 {
        let steps = [0, 0, 0, DAY_MS, -DAY_MS, 3_600_000, -3_600_000];
        *self.dice.one_of(&steps)
    }

    /// Decides which of the next commits fail.
    fn arm(&mut self) {
        if self.dice.once_in(3) {
            let fates = (0..1 + self.dice.below(4)).map(|_| {
                if self.dice.once_in(2) {
                    Fate::Full
                } else {
                    Fate::Written
                }
            });
            self.store.fate(fates.collect::<Vec<_>>());
        }
        if self.dice.once_in(4) {
            self.store.fail_outcomes(1 + self.dice.below(3));
        }
        if self.dice.once_in(5) {
            self.store.fail_reads(1 + self.dice.below(3));
        }
        let is_slow = self.dice.once_in(3);
        READS.set(is_slow.then(|| Dice(self.dice.roll())));
    }

    fn start_calls(&mut self, engine: &Engine) -> JoinSet<()> {
        let mut calls = JoinSet::new();
        for _ in 0..1 + self.dice.below(12) {
            let (id, _, _, turns) = *self.dice.one_of(&TENANTS);
            let bot = Bot::new(engine, id);
            let session = self.choose_session(&bot);
            let client = Client::new(
                bot,
                session,
                turns,
                Arc::clone(&self.model),
                Arc::clone(&self.store),
            );
            let op = Op::choose(&mut self.dice, &client);
            let (yields, wait_ms) = (self.dice.below(4), self.dice.below(3));
            calls.spawn(async move {
                sleep(Duration::from_millis(wait_ms)).await;
                for _ in 0..yields {
                    yield_now().await;
                }
                client.run(op).await;
            });
        }
        calls
    }

    /// Returns a live session in about half of the cases.
    fn choose_session(&mut self, bot: &Bot) -> String {
        let record = self.store.record();
        let live: Vec<_> = record.live_of(&bot.tenant.id).collect();
        if live.is_empty() || self.dice.once_in(2) {
            return format!("s{}", self.dice.below(8));
        }
        self.dice.one_of(&live).key.session.as_str().to_owned()
    }

    /// With no calls in flight, asserts that the engine agrees with the journal and the model.
    async fn check(&self, engine: &Engine, before: &BTreeMap<memoird_core::ids::TenantId, Counts>) {
        self.store.forgive();
        READS.set(None);
        // Longer than any retry pause of a worker at this point, plus any read.
        sleep(Duration::from_millis(4_000 + READ_DELAY_MS_MAX)).await;
        engine.sessions.sweep(None).await.unwrap();
        self.model.lock().unwrap().check(&self.store.record());
        assert_eq!(self.store.record().violations, Vec::<String>::new());
        let mut total = 0;
        for (id, cap, _, turns) in TENANTS {
            let bot = Bot::new(engine, id);
            model::check_sessions(&bot, turns, &self.store).await;
            bot.recount().await;
            let stats = bot.stats();
            total += stats.sessions_live;
            assert!(cap == 0 || stats.sessions_live <= cap as u64, "{stats:?}");
            let now = self
                .store
                .record()
                .counts
                .get(&bot.tenant.id)
                .copied()
                .unwrap_or_default();
            let before = before.get(&bot.tenant.id).copied().unwrap_or_default();
            assert_eq!(model::counted(&stats), now.since(before), "{stats:?}");
        }
        assert!(total <= MAX_SESSIONS as u64);
        // The check loaded all sessions. Some are unloaded again once commits succeed.
        loop {
            let was_failing = self.is_failing();
            sleep(Duration::from_secs(2)).await;
            if !was_failing || self.is_failing() {
                break;
            }
        }
        self.check_limits(engine);
        // The effects of failed commits are over.
        self.store
            .record()
            .rules
            .iter_mut()
            .for_each(|rules| rules.strict = true);
    }

    /// Whether the last commit failed.
    fn is_failing(&self) -> bool {
        self.store.record().unnoted_until == Steady(u64::MAX)
    }

    /// Asserts that the memory limit and the journal quota hold.
    fn check_limits(&self, engine: &Engine) {
        let memory = engine.stats().memory;
        // Sessions are not unloaded while commits fail.
        assert!(
            self.is_failing() || memory.used_bytes() <= memory.limit_bytes,
            "{memory:?}"
        );
        let (id, limit) = JOURNAL_BYTES;
        let of_all = self.store.turn_bytes().unwrap();
        let of_it = of_all.iter().find(|(tenant, _)| tenant.as_str() == id);
        let bytes = of_it.map_or(0, |(_, bytes)| *bytes);
        assert!(bytes <= limit + JOURNAL_BYTES_UNDER_WAY, "{bytes} of {id}");
    }
}
