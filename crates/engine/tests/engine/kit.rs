//! Shared fixtures: engines over a persistent test store, a clock under test control, single polls.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use memoird_core::ids::{SessionId, TenantId};
use memoird_core::nonce::NonceSecret;
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_engine::{
    Blocking, Engine, EngineConfig, JournalConfig, Machine, SessionConfig, TenantConfig,
    TenantLimits,
};
use memoird_store::{ClockAnchor, Store};

use crate::store::FaultyStore;

/// Session TTL in these tests.
pub(crate) const TTL: Duration = Duration::from_secs(60);
/// Longer than any test.
pub(crate) const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
pub(crate) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
/// The tenant of tests that need only one.
pub(crate) const ACME: &str = "acme";

pub(crate) fn session_id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

pub(crate) fn tenant_id(text: &str) -> TenantId {
    TenantId::parse(text).unwrap()
}

pub(crate) fn tenant(id: &str, limits: TenantLimits) -> TenantConfig {
    TenantConfig {
        id: tenant_id(id),
        limits,
    }
}

/// A tenant with its own session cap.
pub(crate) fn capped(id: &str, max_sessions: usize) -> TenantConfig {
    let limits = TenantLimits {
        max_sessions: Some(max_sessions),
        ..TenantLimits::default()
    };
    tenant(id, limits)
}

/// One tenant, no caps, and the default sweep interval, a quarter of [`TTL`].
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        sessions: SessionConfig {
            max_sessions: 0,
            session_ttl: TTL,
            sweep_interval: None,
            ..SessionConfig::default()
        },
        tenants: vec![tenant(ACME, TenantLimits::default())],
        ..EngineConfig::default()
    }
}

/// The default configuration without sweeps.
pub(crate) fn unswept() -> EngineConfig {
    let mut config = config();
    config.sessions.sweep_interval = Some(NEVER);
    config
}

/// `unswept` with a session cap for the tenant.
pub(crate) fn unswept_with_cap(max_sessions: usize) -> EngineConfig {
    EngineConfig {
        tenants: vec![capped(ACME, max_sessions)],
        ..unswept()
    }
}

/// One change set per transaction, so that a failed commit fails only that set.
pub(crate) fn one_by_one() -> JournalConfig {
    JournalConfig {
        batch_sets: 1,
        ..JournalConfig::default()
    }
}

/// State that outlives an engine and is reused when it is reopened.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) config: EngineConfig,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) machine: Arc<TestMachine>,
    pub(crate) blocking: Blocking,
}

impl World {
    /// Commits run inline, as soon as the test yields.
    pub(crate) fn new(config: EngineConfig) -> Self {
        let (store, machine) = (Arc::default(), Arc::new(TestMachine::new(7)));
        Self {
            config,
            store,
            machine,
            blocking: Blocking::Inline,
        }
    }

    /// Commits run on a thread pool, so the store can block: see [`FaultyStore::hold_commits`].
    pub(crate) fn with_pool(config: EngineConfig) -> Self {
        Self {
            blocking: Blocking::Pool,
            ..Self::new(config)
        }
    }

    /// Threads as in the daemon, for tests without a paused clock.
    pub(crate) fn with_threads(config: EngineConfig) -> Self {
        Self {
            blocking: Blocking::Threads,
            ..Self::new(config)
        }
    }

    pub(crate) fn machine_now(&self) -> Steady {
        self.machine.now().steady
    }

    pub(crate) async fn open(&self) -> Engine {
        let store: Arc<dyn Store> = self.store.clone();
        let (base_config, machine) = (self.config.clone(), self.machine.clone());
        let config = EngineConfig {
            // The secret survives restarts, like the journal.
            nonce_secret: Some(NonceSecret::new([7; 32])),
            ..base_config
        };
        Engine::open(config, Some(store), machine, self.blocking)
            .await
            .unwrap()
    }
}

/// A machine with tokio's clock as steady clock and a wall clock that tests can step.
#[derive(Debug)]
pub(crate) struct TestMachine {
    base: Steady,
    started: tokio::time::Instant,
    wall_ahead_ms: AtomicI64,
    dice: Mutex<Dice>,
    stopped: Mutex<Steady>,
}

impl TestMachine {
    pub(crate) fn new(seed: u64) -> Self {
        Self::resume(Steady(0), seed)
    }

    /// A machine whose steady clock continues at `base`.
    #[allow(clippy::disallowed_methods, reason = "this is the clock of the tests")]
    pub(crate) fn resume(base: Steady, seed: u64) -> Self {
        Self {
            base,
            started: tokio::time::Instant::now(),
            wall_ahead_ms: AtomicI64::new(1_700_000_000_000),
            dice: Mutex::new(Dice(seed)),
            stopped: Mutex::new(base),
        }
    }

    /// Records the current time at shutdown, because the runtime's clock ends with the runtime.
    pub(crate) fn stop(&self) {
        *self.stopped.lock().unwrap() = self.now().steady;
    }

    /// The time recorded by [`Self::stop`].
    pub(crate) fn stopped(&self) -> Steady {
        *self.stopped.lock().unwrap()
    }

    pub(crate) fn step_wall(&self, ms: i64) {
        self.wall_ahead_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Machine for TestMachine {
    fn now(&self) -> Now {
        let up_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap();
        let steady = Steady(self.base.0 + up_ms);
        let wall_ms = self.wall_ahead_ms.load(Ordering::Relaxed) + i64::try_from(steady.0).unwrap();
        Now {
            steady,
            wall: Timestamp::from_ms(wall_ms),
        }
    }

    fn anchor(&self) -> ClockAnchor {
        let Now { steady, wall } = self.now();
        ClockAnchor {
            steady,
            wall,
            boot_id: "test".into(),
            boot_ms: steady.0,
        }
    }

    fn random(&self) -> u128 {
        let mut dice = self.dice.lock().unwrap();
        u128::from(dice.roll()) << 64 | u128::from(dice.roll())
    }
}

/// `SplitMix64`: small, and deterministic for a seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..sides`.
    pub(crate) fn below(&mut self, sides: u64) -> u64 {
        self.roll() % sides
    }

    pub(crate) fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[usize::try_from(self.below(things.len() as u64)).unwrap()]
    }

    /// Returns true with a probability of 1 in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A runtime with a paused clock, which advances only when every task is idle.
pub(crate) fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Restarts of a daemon over one journal. Each run ends with its runtime, as by `kill -9`.
pub(crate) struct Daemon {
    config: EngineConfig,
    pub(crate) store: Arc<FaultyStore>,
    now: Steady,
}

impl Daemon {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            store: Arc::default(),
            now: Steady(0),
        }
    }

    pub(crate) fn live<T>(&mut self, life: impl AsyncFnOnce(&Engine) -> T) -> T {
        let runtime = paused_runtime();
        let (outcome, now) = runtime.block_on(async {
            let machine = Arc::new(TestMachine::resume(self.now, self.now.0 + 1));
            let world = World {
                config: self.config.clone(),
                store: Arc::clone(&self.store),
                machine: Arc::clone(&machine),
                blocking: Blocking::Inline,
            };
            let outcome = life(&world.open().await).await;
            (outcome, machine.now().steady)
        });
        self.now = now;
        outcome
    }
}

/// Polls a call once, and returns its output if it is ready.
pub(crate) async fn poll_once<F: Future + ?Sized>(call: &mut Pin<Box<F>>) -> Option<F::Output> {
    poll_fn(|context| {
        Poll::Ready(match call.as_mut().poll(context) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        })
    })
    .await
}

/// Panics if a call takes more than a minute of the paused clock, which none should.
pub(crate) async fn soon<F: Future>(call: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), call)
        .await
        .expect("it hangs")
}

/// Lets background tasks run until they are idle, while the clock advances by one millisecond.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}
