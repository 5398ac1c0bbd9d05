//! Durability `interval` with a disk that is sometimes full and a daemon that is killed.
//!
//! Acknowledged appends are written once and in order. A kill loses only appends accepted within
//! the last `flush_interval` before it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::time::Steady;
use memoird_engine::{Blocking, Durability, EngineConfig, EngineError, Machine};
use tokio::time::sleep;

use super::{READS, read_delay};
use crate::bot::{Bot, named};
use crate::kit::{Dice, TestMachine, World, capped, paused_runtime, unswept};
use crate::seeds::seeds;
use crate::store::FaultyStore;

const TENANTS: [(&str, usize); 2] = [("small", 3), ("uncapped", 0)];
const FLUSH_MS: u64 = 1_000;
const LIVES: u64 = 3;
const STEPS: u64 = 80;

/// Acknowledged appends not yet found in the journal, by tenant and session.
type Acknowledged = BTreeMap<(String, String), Vec<(Steady, String)>>;

#[test]
fn interval_loses_only_the_promised_window_and_only_on_kill() {
    for seed in seeds(30) {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let store = Arc::<FaultyStore>::default();
        let (mut now, mut written) = (Steady(0), BTreeMap::new());
        for life in 1..=LIVES {
            let runtime = paused_runtime();
            let is_killed = life < LIVES && dice.once_in(2);
            let config = config(&mut dice);
            let (acknowledged, until) = runtime.block_on(async {
                let machine = Arc::new(TestMachine::resume(now, seed));
                let world = World {
                    config,
                    store: Arc::clone(&store),
                    machine,
                    blocking: Blocking::InlineWithReadDelay(read_delay),
                };
                live(world, &mut dice, is_killed).await
            });
            // Abort all remaining tasks.
            drop(runtime);
            now = Steady(until.0 + dice.below(30_000));
            compare(&store, acknowledged, &mut written, is_killed);
        }
    }
}

fn config(dice: &mut Dice) -> EngineConfig {
    let mut config = unswept();
    config.sessions.session_ttl = Duration::from_secs(20);
    config.tenants = TENANTS.map(|(id, cap)| capped(id, cap)).to_vec();
    config.journal.durability = Durability::Interval;
    config.journal.flush_interval = Duration::from_millis(FLUSH_MS);
    config.journal.batch_sets = *dice.one_of(&[1, 2, 1_024]);
    config.journal.part_bytes = *dice.one_of(&[1, 512 << 10]);
    config
}

/// Runs the daemon once. Returns the acknowledged appends and the time of its end.
async fn live(world: World, dice: &mut Dice, is_killed: bool) -> (Acknowledged, Steady) {
    let store = Arc::clone(&world.store);
    store.forgive();
    store.write_ahead(true);
    READS.set(None);
    let engine = world.open().await;
    let mut acknowledged = Acknowledged::new();
    for number in 0..STEPS {
        let (tenant, _) = *dice.one_of(&TENANTS);
        let bot = Bot::new(&engine, tenant);
        let id = format!("s{}", dice.below(5));
        match dice.below(13) {
            0..6 => {
                // A unique text.
                let text = format!("{} {number}", world.machine_now().0);
                let said = if dice.once_in(2) {
                    bot.append(&id, named(&text, &[&text])).await
                } else {
                    bot.say(&id, &text).await
                };
                match said {
                    Ok(_) => {
                        let of_session = acknowledged.entry((tenant.into(), id)).or_default();
                        of_session.push((world.machine_now(), text));
                    }
                    Err(EngineError::JournalFull | EngineError::JournalFailed { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            6 => drop(bot.end(&id).await),
            7 => drop(bot.patch(&id, r#"{"a":1}"#, None).await),
            8 => drop(bot.journal(&id, None).await),
            9 => store.fail_all_commits(),
            10 => store.forgive(),
            11 => {
                let is_slow = dice.once_in(2);
                READS.set(is_slow.then(|| Dice(dice.roll())));
                store.fail_reads(dice.below(3));
            }
            _ => sleep(Duration::from_millis(dice.below(4_000))).await,
        }
    }
    if !is_killed {
        store.forgive();
        READS.set(None);
        // Longer than any pause between retries.
        sleep(Duration::from_secs(20)).await;
        engine.sessions.sweep(None).await.unwrap();
        sleep(Duration::from_millis(2 * FLUSH_MS)).await;
        for (tenant, _) in TENANTS {
            Bot::new(&engine, tenant).recount().await;
        }
        engine.close().await;
    }
    (acknowledged, world.machine.now().steady)
}

/// Asserts that this run wrote all it acknowledged, except for the end if it was killed.
fn compare(
    store: &FaultyStore,
    acknowledged: Acknowledged,
    written_before: &mut BTreeMap<(String, String), usize>,
    is_killed: bool,
) {
    let mut written: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for life in store.record().lives.values() {
        let borrowed = (life.key.tenant.as_str(), life.key.session.as_str());
        let session = (borrowed.0.to_owned(), borrowed.1.to_owned());
        written
            .entry(session)
            .or_default()
            .extend(life.texts.clone());
    }
    let mut lost = Vec::new();
    for (session, said) in acknowledged {
        let all = written.get(&session).map_or(&[][..], Vec::as_slice);
        let known = written_before.get(&session).copied().unwrap_or(0);
        let (these, missing) = said.split_at(said.len().min(all.len() - known));
        let found: Vec<&String> = these.iter().map(|(_, text)| text).collect();
        assert_eq!(
            all[known..].iter().collect::<Vec<_>>(),
            found,
            "{session:?}"
        );
        lost.extend(missing.iter().map(|(at, _)| at.0));
    }
    *written_before = written
        .into_iter()
        .map(|(session, texts)| (session, texts.len()))
        .collect();
    assert!(is_killed || lost.is_empty(), "{lost:?} lost without a kill");
    let (first, last) = (lost.iter().min(), lost.iter().max());
    if let (Some(first), Some(last)) = (first, last) {
        assert!(last - first <= FLUSH_MS, "{first} to {last} are lost");
    }
}
