//! One idempotency key at several daemons, while generations of its session start and end.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{Blocking, EndCommand, EndOutcome};
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use crate::bot::named;
use crate::cluster::Daemons;
use crate::kit::{Dice, World, paused_runtime, soon, unswept};
use crate::seeds::seeds;

thread_local! {
    /// Delays of the next reads of the store. Others have none.
    static DELAYS: RefCell<VecDeque<Duration>> = const { RefCell::new(VecDeque::new()) };
}

fn next_delay() -> Duration {
    let delay = DELAYS.with_borrow_mut(VecDeque::pop_front);
    delay.unwrap_or_default()
}

async fn daemons(count: usize) -> Daemons {
    let world = World {
        blocking: Blocking::InlineWithReadDelay(next_delay),
        ..World::new(unswept())
    };
    Daemons::open_in(&world, count).await
}

/// The keys of a session are read before its start is written.
#[tokio::test(start_paused = true)]
async fn key_used_while_another_daemon_starts_the_session_is_a_duplicate_there() {
    const DELAY: Duration = Duration::from_millis(100);
    let daemons = daemons(2).await;
    let [a, b] = &daemons.bots[..] else {
        panic!("two were asked for")
    };
    for delayed_read in 0..3 {
        let session = format!("s{delayed_read}");
        let mut delays = VecDeque::from(vec![Duration::ZERO; delayed_read]);
        delays.push_back(DELAY);
        DELAYS.set(delays);
        let mut start = JoinSet::new();
        start.spawn({
            let (b, session) = (b.clone(), session.clone());
            async move { b.append(&session, named("k2", &["2"])).await.unwrap() }
        });
        sleep(DELAY / 2).await;
        DELAYS.set(VecDeque::new());
        let first = a.append(&session, named("k1", &["1"])).await.unwrap();
        assert!(!first.duplicate);
        a.end(&session).await.unwrap();
        start.join_all().await;
        let again = b.append(&session, named("k1", &["1"])).await.unwrap();
        assert!(again.duplicate, "read {delayed_read} was late");
        assert_eq!(again.record.generation, first.record.generation);
    }
}

#[test]
fn key_at_several_daemons_is_applied_once_while_generations_start_and_end() {
    for seed in seeds(30) {
        println!("seed {seed}");
        paused_runtime().block_on(contend(seed));
    }
}

async fn contend(seed: u64) {
    const DAEMONS: usize = 3;
    let daemons = daemons(DAEMONS).await;
    let mut dice = Dice(seed);
    for round in 0..20 {
        let delay = |dice: &mut Dice| Duration::from_millis(dice.below(3));
        DELAYS.set((0..40).map(|_| delay(&mut dice)).collect());
        let session = format!("s{}", round / 4);
        let key = format!("k{round}");
        let end = EndCommand {
            idempotency: named(&format!("{key} end"), &["end"]).idempotency,
            ..EndCommand::default()
        };
        let begin = Arc::new(Barrier::new(DAEMONS * 3));
        let (mut contenders, mut others, mut ends) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        for (place, bot) in daemons.bots.iter().enumerate() {
            let commands = [
                named(&key, &[&key]),
                named(&format!("{key} {place}"), &["other"]),
            ];
            for (command, tasks) in commands.into_iter().zip([&mut contenders, &mut others]) {
                let (bot, session, begin) = (bot.clone(), session.clone(), Arc::clone(&begin));
                let yields = dice.below(4);
                tasks.spawn(async move {
                    begin.wait().await;
                    for _ in 0..yields {
                        yield_now().await;
                    }
                    bot.append(&session, command).await.unwrap()
                });
            }
            let (bot, session, begin) = (bot.clone(), session.clone(), Arc::clone(&begin));
            let wait = delay(&mut dice);
            ends.spawn(async move {
                begin.wait().await;
                sleep(wait).await;
                // It may not have started yet.
                bot.end_by(&session, end).await.ok()
            });
        }
        let mut outcomes = soon(contenders.join_all()).await;
        soon(others.join_all()).await;
        let ended = soon(ends.join_all()).await.into_iter().flatten();
        let mut ends: Vec<EndOutcome> = ended.collect();
        // A call that is retried later.
        for bot in &daemons.bots {
            let again = bot.append(&session, named(&key, &[&key])).await.unwrap();
            assert!(again.duplicate, "seed {seed}, round {round}");
            outcomes.push(again);
        }
        if !ends.is_empty() {
            let started = named(&format!("{key} started"), &["other"]);
            daemons.bots[0].append(&session, started).await.unwrap();
            let live = daemons.bots[0]
                .view(&session)
                .await
                .unwrap()
                .head
                .generation;
            for bot in &daemons.bots {
                ends.push(bot.end_by(&session, end).await.unwrap());
                assert_eq!(bot.view(&session).await.unwrap().head.generation, live);
            }
            let applied = ends.iter().filter(|ended| !ended.duplicate);
            assert_eq!(applied.count(), 1, "seed {seed}, round {round}");
            let of_first = |it: &EndOutcome| it.ended_generation == ends[0].ended_generation;
            assert!(ends.iter().all(of_first));
        }
        let applied = outcomes.iter().filter(|outcome| !outcome.duplicate);
        assert_eq!(applied.count(), 1, "seed {seed}, round {round}");
        let place = |at: usize| {
            let record = &outcomes[at].record;
            (record.generation, record.last_seq)
        };
        assert!((1..outcomes.len()).all(|at| place(at) == place(0)));
    }
}
