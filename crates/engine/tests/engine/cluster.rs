//! Several daemons sharing one journal behave like a single one.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::session::AppendCommand;
use memoird_core::time::Steady;
use memoird_engine::{
    Blocking, Cluster, EVENTS_MAX, Engine, EngineConfig, EngineError, EraseTarget, EventKind,
    SessionQuery, WatchFrom, WatchItem, WatchScope, Watcher,
};
use memoird_store::{ErasureStage, Store};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::bot::{Bot, named, saying};
use crate::hooks::script::ScriptedHook;
use crate::hooks::{deliveries, hooked, with_hooks};
use crate::kit::{
    ACME, Dice, TTL, TestMachine, World, capped, config, paused_runtime, session_id, settle, soon,
    unswept,
};
use crate::seeds::seeds;
use crate::store::FaultyStore;

/// Longer than one pass of the leader's background work takes.
const SOON: Duration = Duration::from_secs(8);

pub(crate) struct Daemons {
    pub(crate) store: Arc<FaultyStore>,
    /// The same as each daemon sees it.
    stores: Vec<Arc<dyn Store>>,
    engines: Vec<Engine>,
    pub(crate) bots: Vec<Bot>,
    leads: Vec<watch::Sender<bool>>,
}

impl Daemons {
    /// Opens `count` daemons. The first is the leader.
    pub(crate) async fn open(config: EngineConfig, count: usize) -> Self {
        Self::open_in(&World::new(config), count).await
    }

    pub(crate) async fn open_in(world: &World, count: usize) -> Self {
        let mut daemons = Self {
            store: Arc::clone(&world.store),
            stores: Vec::new(),
            engines: Vec::new(),
            bots: Vec::new(),
            leads: Vec::new(),
        };
        for place in 0..count {
            let (lead, leads) = watch::channel(place == 0);
            let config = EngineConfig {
                cluster: Some(Cluster::new(place as u128 + 1, leads)),
                ..world.config.clone()
            };
            let machine = Arc::new(TestMachine::new(7 + place as u64));
            let store: Arc<dyn Store> = Arc::new(world.store.shared(place as u128 + 1));
            daemons.stores.push(Arc::clone(&store));
            let engine = Engine::open(config, Some(store), machine, world.blocking)
                .await
                .unwrap();
            daemons.bots.push(Bot::new(&engine, ACME));
            daemons.engines.push(engine);
            daemons.leads.push(lead);
        }
        daemons
    }

    /// Makes this daemon the only leader.
    fn let_lead(&self, leader: usize) {
        for (place, lead) in self.leads.iter().enumerate() {
            lead.send_replace(place == leader);
        }
    }
}

/// A call that was cancelled during its load may have read a newer version than the one in memory.
#[tokio::test(start_paused = true)]
async fn load_without_caller_does_not_hide_change_of_other_daemon() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "1").await.unwrap();
    b.say("s", "2").await.unwrap();
    let key = SessionKey {
        tenant: a.tenant.id.clone(),
        session: session_id("s"),
    };
    daemons.stores[0].load(&key, Steady(0)).unwrap();
    assert_eq!(a.view("s").await.unwrap().head.last_seq, 2);
    assert_eq!(a.live("s").await.unwrap(), ["1", "2"]);
}

fn expecting(seq: u64, text: &str) -> AppendCommand {
    AppendCommand {
        expected_seq: Some(seq),
        ..saying(&[text])
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_one_daemon_are_visible_on_all() {
    let daemons = Daemons::open(unswept(), 3).await;
    let [a, b, c] = &daemons.bots[..] else {
        panic!("three were asked for")
    };
    a.say("s", "1").await.unwrap();
    assert_eq!(b.live("s").await.unwrap(), ["1"]);
    b.say("s", "2").await.unwrap();
    assert_eq!(a.live("s").await.unwrap(), ["1", "2"]);
    assert_eq!(a.view("s").await.unwrap().head.last_seq, 2);
    b.say("s", "3").await.unwrap();
    assert_eq!(a.say("s", "4").await.unwrap().record.last_seq, 4);
    assert_eq!(c.live("s").await.unwrap(), ["1", "2", "3", "4"]);
    assert_eq!(b.live("s").await.unwrap(), ["1", "2", "3", "4"]);
    // The state is shared too.
    a.patch("s", r#"{"n":1}"#, None).await.unwrap();
    let patched = b.patch("s", r#"{"m":2}"#, Some(1)).await.unwrap();
    assert_eq!(&*patched.json, r#"{"n":1,"m":2}"#);
}

/// A lost race is not a commit failure: operators alert on those.
#[tokio::test(start_paused = true)]
async fn lost_race_with_another_daemon_is_no_commit_failure() {
    let daemons = Daemons::open(unswept(), 2).await;
    let turns: Vec<String> = (1..=10).map(|turn| turn.to_string()).collect();
    for (text, bot) in turns.iter().zip(daemons.bots.iter().cycle()) {
        bot.say("s", text).await.unwrap();
    }
    assert_eq!(daemons.bots[0].live("s").await.unwrap(), turns);
    let stats = daemons.engines.iter().map(Engine::stats);
    let counts: Vec<_> = stats
        .map(|stats| (stats.commit_sets > 5, stats.commit_failures))
        .collect();
    assert_eq!(counts, [(true, 0); 2], "some were refused, and none failed");
}

#[tokio::test(start_paused = true)]
async fn call_retried_on_another_daemon_is_applied_once() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    // Load the session in both daemons before the first keyed append.
    a.say("s", "0").await.unwrap();
    b.live("s").await.unwrap();
    let first = a.append("s", named("m1", &["1"])).await.unwrap();
    let again = b.append("s", named("m1", &["1"])).await.unwrap();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(first.record.last_seq, again.record.last_seq);
    // The key still applies after the session has ended.
    b.end("s").await.unwrap();
    assert!(a.append("s", named("m1", &["1"])).await.unwrap().duplicate);
    let other = b.append("s", named("m1", &["2"])).await;
    assert!(other.is_err(), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn precondition_is_checked_against_current_session() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "1").await.unwrap();
    b.say("s", "2").await.unwrap();
    // Daemon `a` has not seen turn 2 yet.
    a.append("s", expecting(2, "3")).await.unwrap();
    b.say("s", "4").await.unwrap();
    let stale = a.append("s", expecting(3, "5")).await;
    assert!(stale.is_err(), "{stale:?}");
    assert_eq!(b.live("s").await.unwrap(), ["1", "2", "3", "4"]);
}

#[tokio::test(start_paused = true)]
async fn end_on_one_daemon_is_visible_on_all() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    let first = a.say("s", "1").await.unwrap().record.generation;
    b.end("s").await.unwrap();
    let gone = a.view("s").await;
    assert!(
        matches!(gone, Err(EngineError::SessionNotFound { .. })),
        "{gone:?}"
    );
    let second = a.say("s", "2").await.unwrap().record.generation;
    assert_ne!(first, second);
    assert_eq!(b.live("s").await.unwrap(), ["2"]);
    // `a` ends the generation that another daemon started after the first end.
    a.end("s").await.unwrap();
    b.say("s", "3").await.unwrap();
    assert_eq!(a.live("s").await.unwrap(), ["3"]);
    a.reset("s").await.unwrap();
    assert!(b.live("s").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn concurrent_starts_on_several_daemons_append_all_turns() {
    let daemons = Daemons::open(unswept(), 3).await;
    let mut calls = JoinSet::new();
    for place in 0..30 {
        let bot = daemons.bots[place % 3].clone();
        calls.spawn(async move {
            bot.say("s", &place.to_string())
                .await
                .unwrap()
                .record
                .last_seq
        });
    }
    let mut seqs = soon(calls.join_all()).await;
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=30).collect::<Vec<u64>>());
    let live = daemons.bots[0].live("s").await.unwrap();
    assert_eq!(live.len(), 30);
    assert_eq!(live, daemons.bots[1].live("s").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn use_on_one_daemon_keeps_session_alive_on_all() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "1").await.unwrap();
    b.live("s").await.unwrap();
    for round in 2..6 {
        sleep(TTL * 2 / 3).await;
        b.say("s", &round.to_string()).await.unwrap();
    }
    // By `a`'s own uses alone, the session would have expired.
    assert_eq!(a.live("s").await.unwrap().len(), 5);
    sleep(TTL).await;
    assert!(a.view("s").await.is_err());
    assert!(b.view("s").await.is_err());
}

/// One daemon unloads the session, and the other uses it afterwards.
#[tokio::test(start_paused = true)]
async fn reloaded_session_has_last_access_of_any_daemon() {
    let config = EngineConfig {
        memory_bytes: 1,
        ..unswept()
    };
    let daemons = Daemons::open(config, 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "1").await.unwrap();
    sleep(TTL * 2 / 3).await;
    b.say("s", "2").await.unwrap();
    sleep(TTL * 2 / 3).await;
    a.say("s", "3").await.unwrap();
    assert_eq!(b.live("s").await.unwrap(), ["1", "2", "3"]);
}

#[tokio::test(start_paused = true)]
async fn leader_expires_sessions_and_delivers_each_once() {
    let hook = ScriptedHook::new([]);
    let daemons = Daemons::open(with_hooks(config(), [hooked("a", &hook)]), 3).await;
    for (place, bot) in daemons.bots.iter().enumerate() {
        bot.say(&format!("s{place}"), "hello").await.unwrap();
    }
    sleep(TTL).await;
    sleep(TTL / 4 + SOON).await;
    assert_eq!(hook.count(), 3);
    assert!(hook.seen().iter().all(|it| it.reason == EndReason::Expired));
    // Fail over to another leader.
    daemons.bots[0].say("t", "hello").await.unwrap();
    daemons.bots[0].end("t").await.unwrap();
    daemons.let_lead(2);
    daemons.bots[1].say("u", "hello").await.unwrap();
    sleep(TTL + TTL / 4 + SOON).await;
    assert_eq!(hook.count(), 5);
    assert_eq!(deliveries(&daemons.engines[1]).await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn caps_apply_across_all_daemons() {
    let hook = ScriptedHook::new([]);
    let config = EngineConfig {
        tenants: vec![capped(ACME, 10)],
        ..with_hooks(unswept(), [hooked("a", &hook)])
    };
    let daemons = Daemons::open(config, 3).await;
    for place in 0..30 {
        let bot = &daemons.bots[place % 3];
        bot.say(&format!("s{place:02}"), "hello").await.unwrap();
        sleep(Duration::from_millis(10)).await;
    }
    sleep(SOON).await;
    // The ten most recently used sessions remain.
    let expected: Vec<String> = (20..30).rev().map(|place| format!("s{place:02}")).collect();
    for (bot, engine) in daemons.bots.iter().zip(&daemons.engines) {
        assert_eq!(bot.list().await, expected);
        assert_eq!(engine.stats().tenants[0].sessions_live, 10);
    }
    assert_eq!(hook.count(), 20);
    assert!(hook.seen().iter().all(|it| it.reason == EndReason::Evicted));
}

thread_local! {
    /// End of a lock that every read of the store waits for.
    static LOCKED_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[allow(clippy::disallowed_methods, reason = "this is the clock of the tests")]
fn now() -> Instant {
    Instant::now()
}

/// Time until the lock ends.
fn lock_wait() -> Duration {
    let until = LOCKED_UNTIL.get();
    until.map_or(Duration::ZERO, |until| {
        until.saturating_duration_since(now())
    })
}

#[tokio::test(start_paused = true)]
async fn locked_tables_delay_eviction_and_expiry_by_no_more_than_the_lock() {
    const LOCK: Duration = Duration::from_secs(6);
    let interval = Duration::from_secs(1);
    let mut config = EngineConfig {
        tenants: vec![capped(ACME, 10)],
        ..config()
    };
    config.sessions.sweep_interval = Some(interval);
    let world = World {
        blocking: Blocking::InlineWithReadDelay(lock_wait),
        ..World::new(config)
    };
    let daemons = Daemons::open_in(&world, 2).await;
    sleep(SOON).await;
    let lock = async || {
        LOCKED_UNTIL.set(Some(now() + LOCK));
        sleep(LOCK).await;
    };
    let mut starts = JoinSet::new();
    for place in 0..30 {
        let bot = daemons.bots[place % 2].clone();
        starts.spawn(async move { bot.say(&format!("s{place}"), "hello").await.unwrap() });
    }
    lock().await;
    soon(starts.join_all()).await;
    sleep(interval * 2).await;
    assert_eq!(daemons.bots[0].list().await.len(), 10);
    sleep(TTL - LOCK).await;
    lock().await;
    sleep(interval * 2).await;
    let expired: u64 = daemons.bots.iter().map(|bot| bot.stats().expired).sum();
    assert_eq!(expired, 10);
}

#[tokio::test(start_paused = true)]
async fn read_at_daemon_with_shorter_ttl_ends_no_session() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    let mut shorter = unswept();
    shorter.sessions.session_ttl = TTL / 4;
    daemons.engines[1].adopt(shorter);
    a.say("s", "1").await.unwrap();
    assert_eq!(b.live("s").await.unwrap(), ["1"]);
    sleep(TTL / 2).await;
    // None of these starts a session.
    assert!(b.view("s").await.is_err());
    assert!(b.live("s").await.is_err());
    assert!(b.patch("s", "{}", None).await.is_err());
    assert!(b.end("s").await.is_err());
    assert_eq!(a.live("s").await.unwrap(), ["1"]);
    assert_eq!(a.say("s", "2").await.unwrap().record.last_seq, 2);
    assert_eq!(b.live("s").await.unwrap(), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn list_includes_sessions_of_all_daemons() {
    let daemons = Daemons::open(unswept(), 2).await;
    for place in 0..8 {
        let id = format!("{}{place}", ["a", "b"][place / 4]);
        daemons.bots[place % 2].say(&id, "hello").await.unwrap();
        sleep(Duration::from_millis(5)).await;
    }
    daemons.bots[0].label("b5", "kind", "x").await.unwrap();
    let newest = daemons.bots[1].list().await;
    assert_eq!(newest, ["b5", "b7", "b6", "b4", "a3", "a2", "a1", "a0"]);
    let query = SessionQuery {
        id_prefix: "a".into(),
        ..SessionQuery::default()
    };
    assert_eq!(daemons.bots[1].list_of(&query, 3).await.len(), 4);
    let query = SessionQuery {
        labels: [("kind".into(), "x".into())].into(),
        ..SessionQuery::default()
    };
    assert_eq!(daemons.bots[1].list_of(&query, 3).await, ["b5"]);
}

#[tokio::test(start_paused = true)]
async fn erasure_requested_on_any_daemon_is_done_by_leader() {
    let daemons = Daemons::open(unswept(), 2).await;
    for engine in &daemons.engines {
        engine.start_erasing(Vec::new());
    }
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "secret").await.unwrap();
    b.live("s").await.unwrap();
    let target = EraseTarget::Session {
        session: session_id("s"),
        generation: None,
    };
    let erased = soon(daemons.engines[1].erasures.erase(&b.tenant, target)).await;
    assert_eq!(erased.unwrap().stage, ErasureStage::Done);
    for bot in &daemons.bots {
        assert!(bot.view("s").await.is_err());
        assert!(bot.journal("s", None).await.is_err());
    }
}

/// The leader has an older generation of the session in memory.
#[tokio::test(start_paused = true)]
async fn generation_started_on_another_daemon_is_erased() {
    let daemons = Daemons::open(unswept(), 2).await;
    for engine in &daemons.engines {
        engine.start_erasing(Vec::new());
    }
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    a.say("s", "kept").await.unwrap();
    b.reset("s").await.unwrap();
    let generation = b.say("s", "secret").await.unwrap().record.generation;
    let target = EraseTarget::Session {
        session: session_id("s"),
        generation: Some(generation),
    };
    let erased = soon(daemons.engines[1].erasures.erase(&b.tenant, target)).await;
    assert_eq!(erased.unwrap().stage, ErasureStage::Done);
    assert!(b.view("s").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_are_unloaded_but_stay_in_journal() {
    let mut config = unswept();
    config.sessions.session_ttl = Duration::from_secs(24 * 60 * 60);
    let daemons = Daemons::open(config, 2).await;
    let bot = &daemons.bots[1];
    for place in 0..50 {
        bot.say(&place.to_string(), "hello").await.unwrap();
    }
    let in_memory = || daemons.engines[1].stats().memory.session_bytes;
    let of_all = in_memory();
    sleep(Duration::from_secs(9 * 60)).await;
    bot.say("7", "again").await.unwrap();
    sleep(Duration::from_secs(2 * 60)).await;
    assert!(in_memory() * 20 < of_all, "{} of {of_all}", in_memory());
    assert_eq!(bot.list().await.len(), 50);
    assert_eq!(bot.live("3").await.unwrap(), ["hello"]);
    assert_eq!(bot.say("7", "more").await.unwrap().record.last_seq, 3);
}

#[tokio::test(start_paused = true)]
async fn concurrent_reads_share_version_checks() {
    let daemons = Daemons::open(unswept(), 2).await;
    let bot = &daemons.bots[0];
    for place in 0..20 {
        bot.say(&place.to_string(), "hello").await.unwrap();
    }
    settle().await;
    let before = daemons.store.version_looks();
    let mut calls = JoinSet::new();
    for place in 0..200 {
        let bot = bot.clone();
        calls.spawn(async move { bot.view(&(place % 20).to_string()).await.unwrap() });
    }
    soon(calls.join_all()).await;
    let looks = daemons.store.version_looks() - before;
    assert!((1..=20).contains(&looks), "{looks}");
}

/// What bots know of a session from acknowledged calls.
#[derive(Clone, Debug, Default)]
struct AcknowledgedTurns {
    /// Acknowledged texts with their generation and seq.
    said: Vec<(String, Generation, u64)>,
}

/// Bots call random daemons, and retry on any other when the outcome is unknown.
#[test]
fn random_calls_on_random_daemons_apply_exactly_once_in_order() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let runtime = paused_runtime();
        runtime.block_on(walk(seed));
    }
}

async fn walk(seed: u64) {
    const SESSIONS: usize = 3;
    let hook = ScriptedHook::new([]);
    let daemons = Daemons::open(with_hooks(config(), [hooked("a", &hook)]), 3).await;
    let told: Arc<Mutex<BTreeMap<String, AcknowledgedTurns>>> = Arc::default();
    let ends = Arc::new(Mutex::new(0_usize));
    let mut walkers = JoinSet::new();
    for walker in 0..6 {
        let bots = daemons.bots.clone();
        let (told, ends) = (Arc::clone(&told), Arc::clone(&ends));
        let mut dice = Dice(seed.wrapping_mul(1_000) + walker);
        walkers.spawn(async move {
            for step in 0..40 {
                let session = format!("s{}", dice.below(SESSIONS as u64));
                let bot = dice.one_of(&bots).clone();
                match dice.below(12) {
                    0 => {
                        if bot.end(&session).await.is_ok() {
                            *ends.lock().unwrap() += 1;
                        }
                    }
                    1 => sleep(Duration::from_millis(dice.below(3_000))).await,
                    2 | 3 => read(&bot, &session, &told).await,
                    4 => drop(bot.patch(&session, r#"{"n":1}"#, None).await),
                    _ => {
                        let text = format!("{walker}/{step}");
                        let command = named(&text, &[&text]);
                        if dice.once_in(3) {
                            // Drop the first call before its reply arrives.
                            let lost = bot.append(&session, command.clone());
                            let wait = Duration::from_millis(dice.below(2));
                            drop(timeout(wait, lost).await);
                        }
                        let bot = dice.one_of(&bots).clone();
                        let outcome = bot.append(&session, command).await.unwrap();
                        let generation = outcome.record.generation;
                        let place = (text, generation, outcome.record.last_seq);
                        let mut told = told.lock().unwrap();
                        told.entry(session).or_default().said.push(place);
                    }
                }
                for _ in 0..dice.below(3) {
                    yield_now().await;
                }
            }
        });
    }
    soon(walkers.join_all()).await;
    let told = told.lock().unwrap().clone();
    for bot in &daemons.bots {
        for (session, told) in &told {
            check(bot, session, told, seed).await;
        }
    }
    for session in 0..SESSIONS {
        if daemons.bots[0].end(&format!("s{session}")).await.is_ok() {
            *ends.lock().unwrap() += 1;
        }
    }
    sleep(SOON).await;
    let delivered = hook.count();
    let owed = deliveries(&daemons.engines[0]).await.len();
    assert_eq!(
        delivered, owed,
        "seed {seed}: each end's hook is called once"
    );
    // An end of a generation without turns creates no delivery.
    assert!(owed <= *ends.lock().unwrap(), "seed {seed}");
}

/// Asserts that a read includes every turn acknowledged before the read began.
async fn read(bot: &Bot, session: &str, told: &Mutex<BTreeMap<String, AcknowledgedTurns>>) {
    let before = told.lock().unwrap().get(session).cloned();
    let Ok(view) = bot.view(session).await else {
        return;
    };
    let generation = view.head.generation;
    for (text, of, seq) in before.unwrap_or_default().said {
        if of == generation {
            assert!(seq <= view.head.last_seq, "{text} at {seq}: {view:?}");
        }
    }
}

/// Asserts that each acknowledged turn is in its generation's journal once, at its seq.
async fn check(bot: &Bot, session: &str, told: &AcknowledgedTurns, seed: u64) {
    let mut by_generation: BTreeMap<Generation, BTreeMap<u64, &str>> = BTreeMap::new();
    for (text, generation, seq) in &told.said {
        let lives = by_generation.entry(*generation).or_default();
        let other = lives.insert(*seq, text);
        assert_eq!(
            other, None,
            "seed {seed}: {text} at {seq} of {session}, too: {told:?}"
        );
    }
    for (generation, said) in by_generation {
        let kept = bot.journal(session, Some(generation)).await.unwrap();
        for (seq, text) in said {
            let at = usize::try_from(seq).unwrap() - 1;
            assert_eq!(kept[at], text, "seed {seed}: {session} at {seq}");
            let times = kept.iter().filter(|kept| *kept == text).count();
            assert_eq!(times, 1, "seed {seed}: {text} in {session}");
        }
    }
}

/// Returns the events a watcher receives until none arrives for [`SOON`].
async fn received_events(watcher: &mut Watcher) -> Vec<String> {
    let mut all = Vec::new();
    while let Ok(seen) = timeout(SOON, watcher.next()).await {
        all.push(match seen {
            WatchItem::Missed { count, .. } => format!("missed {count}"),
            WatchItem::Event { event, .. } => match event.kind {
                EventKind::Created => format!("{} created", event.session),
                EventKind::Appended { last_seq, .. } => format!("{} {last_seq}", event.session),
                EventKind::Ended(reason) => format!("{} {reason:?}", event.session),
                other => format!("{} {other:?}", event.session),
            },
        });
    }
    all
}

fn watching(engine: &Engine, bot: &Bot, from: &WatchFrom) -> Watcher {
    let scope = WatchScope::Tenant(bot.tenant.clone());
    engine.events.watch(scope, from)
}

#[tokio::test(start_paused = true)]
async fn watch_on_one_daemon_reports_events_of_all() {
    let daemons = Daemons::open(unswept(), 3).await;
    let [a, b, c] = &daemons.bots[..] else {
        panic!("three were asked for")
    };
    // Long before the watcher subscribes.
    b.say("s", "1").await.unwrap();
    sleep(TTL / 2).await;
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    let mut all = daemons.engines[2]
        .events
        .watch(WatchScope::All, &WatchFrom::Now);
    // The other daemons do not know of the watcher yet.
    b.say("s", "2").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s 2"]);
    a.say("s", "3").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s 3"]);
    c.end("s").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s Ended"]);
    // A watcher of all tenants may also receive events from just before it subscribed.
    let seen = received_events(&mut all).await;
    assert!(
        seen.ends_with(&["s 2", "s 3", "s Ended"].map(str::to_owned)),
        "{seen:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn watch_cursor_is_valid_on_any_daemon() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    a.say("s", "1").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s created", "s 1"]);
    b.say("s", "2").await.unwrap();
    b.say("s", "3").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s 2", "s 3"]);
    let cursor = watcher.cursor().unwrap().to_string();
    drop(watcher);
    // Both daemons append while there is no watcher.
    sleep(TTL / 2).await;
    a.say("s", "4").await.unwrap();
    b.say("s", "5").await.unwrap();
    let from = WatchFrom::Cursor(cursor.parse().unwrap());
    for (engine, bot) in daemons.engines.iter().zip(&daemons.bots) {
        let mut watcher = watching(engine, bot, &from);
        let mut seen = received_events(&mut watcher).await;
        seen.sort();
        assert_eq!(seen, ["s 4", "s 5"]);
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_without_position_of_daemon_skips_its_past_events() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    for turn in ["1", "2", "3"] {
        b.say("s", turn).await.unwrap();
    }
    sleep(TTL / 2).await;
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    a.say("s", "4").await.unwrap();
    // Daemon `b` does not know of the watcher yet.
    let seen = watcher.next().await;
    assert!(matches!(seen, WatchItem::Event { .. }), "{seen:?}");
    let from = WatchFrom::Cursor(watcher.cursor().unwrap().clone());
    drop(watcher);
    b.say("s", "5").await.unwrap();
    let seen = received_events(&mut watching(&daemons.engines[1], b, &from)).await;
    assert_eq!(seen, ["s 5"]);
}

#[tokio::test(start_paused = true)]
async fn cursor_reports_number_of_missed_events() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    b.say("s", "1").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s created", "s 1"]);
    let from = WatchFrom::Cursor(watcher.cursor().unwrap().clone());
    drop(watcher);
    sleep(TTL / 2).await;
    for turn in 2..=(EVENTS_MAX + 12) {
        b.say("s", &turn.to_string()).await.unwrap();
    }
    let seen = received_events(&mut watching(&daemons.engines[0], a, &from)).await;
    assert_eq!((&*seen[0], &*seen[1]), ("missed 11", "s 13"));
    assert_eq!(seen.len(), 1 + EVENTS_MAX);
}

#[tokio::test(start_paused = true)]
async fn watch_from_now_skips_events_without_watchers() {
    let daemons = Daemons::open(unswept(), 2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    b.say("s", "1").await.unwrap();
    assert_eq!(received_events(&mut watcher).await, ["s created", "s 1"]);
    drop(watcher);
    sleep(TTL / 4).await;
    for turn in 2..=(EVENTS_MAX + 12) {
        b.say("s", &turn.to_string()).await.unwrap();
    }
    sleep(TTL / 4).await;
    let mut watcher = watching(&daemons.engines[0], a, &WatchFrom::Now);
    assert_eq!(
        received_events(&mut watcher).await,
        <[String; 0]>::default()
    );
    b.say("s", "new").await.unwrap();
    let last = EVENTS_MAX + 13;
    assert_eq!(received_events(&mut watcher).await, [format!("s {last}")]);
}
