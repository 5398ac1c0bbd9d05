//! Remember: once per key, once per fact, in groups, and without effects of one call on another.

use std::sync::mpsc;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::idempotency::IdempotencyKey;
use memoird_engine::Blocking;
use memoird_memories::rules::{MemoryKind, MemoryLimits, NearDuplicate, Outcome, Visibility};
use memoird_memories::{MemoryError, RecallRequest, RememberRequest};
use tokio::task::JoinSet;

use super::{ANN, BOB, acme, fact, from, query, query_in, subject, team, told, world};
use crate::kit::{poll_once, session_id, soon};
use crate::world::Bot;
use crate::world::World;

fn keyed(key: u8, content: &str) -> RememberRequest {
    let digest = content
        .bytes()
        .fold(7, |sum: u8, byte| sum.rotate_left(3) ^ byte);
    let key = Some(IdempotencyKey {
        key: [key; 16],
        content: [digest; 16],
    });
    RememberRequest {
        key,
        ..fact(ANN, content)
    }
}

fn bytes(world: &World) -> u64 {
    let dir = world.memories.as_ref().unwrap().dir.path();
    let sizes = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap());
    sizes.map(|meta| meta.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn counts_of_an_import_are_bounded() {
    let world = world();
    let bot = acme(&world.open().await);
    let first = bot.remember(keyed(1, "likes tea")).await.unwrap();
    let mut memory = first.memory;
    memory.id = "01M834QB4SVSSV8V3VS1JPQNB1".parse().unwrap();
    memory.content = "likes coffee".to_owned();
    (memory.recalls, memory.reinforced) = (u64::MAX, u64::MAX);
    let id = memory.id;
    let imported = bot.memories.facts.import(&bot.tenant, vec![memory]).await;
    assert_eq!(imported.unwrap().added, 1);
    let kept = bot.memory(id).await.unwrap();
    assert_eq!(kept.recalls, MemoryLimits::COUNTED);
    assert_eq!(kept.reinforced, MemoryLimits::COUNTED);
}

#[tokio::test(start_paused = true)]
async fn idempotency_key_applies_once_and_to_one_fact() {
    let world = world();
    let bot = acme(&world.open().await);
    let first = bot.remember(keyed(1, "likes tea")).await.unwrap();
    let again = bot.remember(keyed(1, "likes tea")).await.unwrap();
    assert_eq!(
        (again.memory.id, again.outcome),
        (first.memory.id, Outcome::Created)
    );
    assert_eq!(bot.memory(first.memory.id).await.unwrap().reinforced, 0);
    let other = bot.remember(keyed(1, "likes coffee")).await;
    assert!(matches!(
        other,
        Err(MemoryError::Core(CoreError::IdempotencyKeyReused))
    ));
    assert_eq!(bot.listed(ANN).await, ["likes tea"]);
    let counted = bot.memories.counts(&bot.tenant.id);
    assert_eq!(
        (counted.created, counted.reinforced),
        (1, 0),
        "what was repeated counts once"
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_fact_is_stored_once() {
    let world = world();
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "Likes green tea").await;
    let said = |content: &str, near_duplicate| RememberRequest {
        near_duplicate,
        ..fact(ANN, content)
    };
    let letter = bot
        .remember(said("Likes green tea", NearDuplicate::Refuse))
        .await
        .unwrap();
    assert_eq!(
        (letter.outcome, letter.memory.id),
        (Outcome::Reinforced, id)
    );
    let words = bot
        .remember(said("likes GREEN tea!", NearDuplicate::Merge))
        .await
        .unwrap();
    assert_eq!((words.outcome, words.memory.id), (Outcome::Merged, id));
    let refused = bot
        .remember(said("LIKES green tea", NearDuplicate::Refuse))
        .await;
    match refused {
        Err(MemoryError::Duplicate { id: known }) => assert_eq!(known, id),
        other => panic!("{other:?}"),
    }
    let kept = bot
        .remember(said("LIKES green tea", NearDuplicate::Keep))
        .await
        .unwrap();
    assert_eq!(kept.outcome, Outcome::Created);
    // Another subject, and another kind.
    bot.learn(BOB, "Likes green tea").await;
    bot.learn_so(RememberRequest {
        kind: MemoryKind::User,
        ..fact(ANN, "Likes green tea")
    })
    .await;
    assert_eq!(bot.listed(ANN).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn unmeasurable_vector_is_rejected() {
    let world = world();
    let bot = acme(&world.open().await);
    let with = |content: &str, vector: [f32; 2]| RememberRequest {
        vector: vector.to_vec(),
        ..fact(ANN, content)
    };
    bot.learn_so(with("the dog is brown", [1.0, 0.2])).await;
    for vector in [[1e-30, 0.0], [0.0, 1e-30], [1e30, 1.0]] {
        let refused = bot.remember(with("the boat is blue", vector)).await;
        let is_named = |error: &MemoryError| error.to_string().starts_with("vector: ");
        assert!(refused.as_ref().is_err_and(is_named), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn superseded_memory_becomes_history() {
    let world = world();
    let bot = acme(&world.open().await);
    let old = bot.learn(ANN, "lives in Rome").await;
    let ask = RememberRequest {
        supersedes: Some(old),
        ..fact(ANN, "lives in Oslo")
    };
    let new = bot.learn_so(ask.clone()).await;
    assert_eq!(bot.finds(ANN, "lives where").await, ["lives in Oslo"]);
    assert_eq!(bot.listed(ANN).await, ["lives in Oslo"]);
    assert_eq!(bot.memory(old).await.unwrap().superseded_by, Some(new));
    assert_eq!(bot.list_of(Some(ANN), true).await.len(), 2);
    let stale = RememberRequest {
        content: "lives in Bern".to_owned(),
        ..ask.clone()
    };
    match bot.remember(stale).await {
        Err(MemoryError::Superseded { by, .. }) => assert_eq!(by, new),
        other => panic!("{other:?}"),
    }
    let foreign = RememberRequest {
        supersedes: Some(new),
        ..fact(BOB, "lives in Oslo")
    };
    let refused = bot.remember(foreign).await;
    assert!(matches!(refused, Err(MemoryError::NotFound { .. })));
}

#[tokio::test(start_paused = true)]
async fn recalled_memory_is_no_new_fact_in_the_session() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "what do I drink?").await;
    let id = bot.learn(ANN, "Ann likes green tea with honey").await;
    // No wait in between: the recall event is queued before the fact.
    assert_eq!(
        bot.recall(query_in("s", "tea")).await.unwrap().hits.len(),
        1
    );
    let ask = |session: &str, content: &str| RememberRequest {
        source: from(session, &[]),
        ..fact(ANN, content)
    };
    for said in ["Ann likes green tea with honey", "likes green tea!"] {
        let echo = bot.remember(ask("s", said)).await.unwrap();
        assert_eq!(
            (echo.outcome, echo.memory.id),
            (Outcome::Recalled, id),
            "{said}"
        );
    }
    assert_eq!(bot.memories.counts(&bot.tenant.id).echoed, 2);
    bot.tell("other", ANN, "hello").await;
    let elsewhere = bot
        .remember(ask("other", "likes green tea!"))
        .await
        .unwrap();
    assert_eq!(
        elsewhere.outcome,
        Outcome::Created,
        "that session was told nothing"
    );
    let fresh = bot.remember(ask("s", "likes black coffee")).await.unwrap();
    assert_eq!(fresh.outcome, Outcome::Created);
}

#[tokio::test(start_paused = true)]
async fn piece_that_negates_recalled_memory_is_a_new_fact() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "hello").await;
    bot.learn(ANN, "Ann no longer likes tea").await;
    bot.recall(query_in("s", "tea")).await.unwrap();
    let ask = RememberRequest {
        source: from("s", &[]),
        ..fact(ANN, "likes tea")
    };
    assert_eq!(bot.remember(ask).await.unwrap().outcome, Outcome::Created);
}

#[tokio::test(start_paused = true)]
async fn recalled_memory_superseded_since_can_be_remembered() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "hello").await;
    let tea = bot.learn(ANN, "Ann drinks tea").await;
    bot.recall(query_in("s", "tea")).await.unwrap();
    bot.learn_so(RememberRequest {
        supersedes: Some(tea),
        ..fact(ANN, "Ann drinks coffee")
    })
    .await;
    let ask = RememberRequest {
        source: from("s", &[]),
        ..fact(ANN, "Ann drinks tea")
    };
    assert_eq!(bot.remember(ask).await.unwrap().outcome, Outcome::Created);
    assert_eq!(bot.listed(ANN).await.len(), 2);
}

/// A commit writes each changed page once, so many facts in one group write little.
#[tokio::test(start_paused = true)]
async fn concurrent_facts_are_written_in_groups() {
    const FACTS: usize = 64;
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let bot = acme(&world.open().await);
    bot.learn(ANN, "the first one makes the file").await;
    let grown = async |prefix: &str, at_once: bool| {
        let before = bytes(&world);
        let mut calls = JoinSet::new();
        for number in 0..FACTS {
            let (bot, content) = (bot.clone(), format!("{prefix} fact {number}"));
            calls.spawn(async move { bot.learn(ANN, &content).await });
            if !at_once {
                calls.join_next().await.unwrap().unwrap();
            }
        }
        while let Some(done) = calls.join_next().await {
            done.unwrap();
        }
        bytes(&world) - before
    };
    let (alone, together) = (grown("alone", false).await, grown("together", true).await);
    assert!(
        together * 4 < alone,
        "{together} bytes at once, {alone} one by one"
    );
    assert_eq!(bot.listed(ANN).await.len(), 1 + 2 * FACTS);
}

#[tokio::test(start_paused = true)]
async fn rejected_fact_fails_alone() {
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let bot = acme(&world.open().await);
    let known = bot.learn(ANN, "likes tea").await;
    let mut calls = JoinSet::new();
    for number in 0..32_u32 {
        let bot = bot.clone();
        calls.spawn(async move {
            let refused = number % 3 == 0;
            let ask = if refused {
                RememberRequest {
                    near_duplicate: NearDuplicate::Refuse,
                    ..fact(ANN, "Likes TEA")
                }
            } else {
                fact(ANN, &format!("fact {number}"))
            };
            (refused, bot.remember(ask).await)
        });
    }
    let mut stored = 1;
    while let Some(done) = calls.join_next().await {
        let (refused, answer) = done.unwrap();
        assert_eq!(refused, answer.is_err(), "{answer:?}");
        stored += usize::from(!refused);
    }
    assert_eq!(bot.listed(ANN).await.len(), stored);
    assert_eq!(bot.memory(known).await.unwrap().reinforced, 0);
}

#[tokio::test(start_paused = true)]
async fn cancelled_write_does_not_block_others() {
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let bot = acme(&world.open().await);
    let call = |content: &'static str| {
        let bot = bot.clone();
        Box::pin(async move { bot.remember(fact(ANN, content)).await })
    };
    let (mut leader, mut second) = (call("leader"), call("second"));
    let (mut third, mut last) = (call("third"), call("last"));
    for call in [&mut leader, &mut second, &mut third, &mut last] {
        assert!(poll_once(call).await.is_none());
    }
    drop(leader);
    drop(second);
    soon(third).await.unwrap();
    drop(last);
    soon(bot.remember(fact(ANN, "after all"))).await.unwrap();
    // Jobs queued before their caller left are written, since they might already have been.
    let mut listed = bot.listed(ANN).await;
    listed.sort();
    assert_eq!(listed, ["after all", "last", "leader", "second", "third"]);
}

/// More calls than one transaction takes. Only the first one stays.
#[tokio::test(start_paused = true)]
async fn writes_of_cancelled_calls_are_completed_by_maintenance() {
    const CALLS: usize = 600;
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let bot = acme(&world.open().await);
    bot.learn(
        BOB,
        "is there so that no worker has anything to write later",
    )
    .await;
    // The maintenance worker's first round is over.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let store = world
        .memories
        .as_ref()
        .unwrap()
        .files
        .tenant(&bot.tenant.id)
        .unwrap();
    let (let_go, held) = mpsc::channel::<()>();
    let (begin, begun_to_hold) = mpsc::channel();
    let holder = std::thread::spawn(move || {
        store.write_one(move |_| {
            begin.send(()).unwrap();
            // Dropped if the test fails.
            let _ = held.recv();
            Ok(())
        })
    });
    begun_to_hold.recv().unwrap();
    let mut calls = Vec::new();
    for number in 0..CALLS {
        let bot = bot.clone();
        let ask = fact(ANN, &format!("fact {number}"));
        let mut call = Box::pin(async move { bot.remember(ask).await });
        assert!(poll_once(&mut call).await.is_none());
        calls.push(call);
    }
    let leader = calls.swap_remove(0);
    drop(calls);
    let_go.send(()).unwrap();
    holder.join().unwrap().unwrap();
    soon(leader).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(bot.listed(ANN).await.len(), CALLS);
}

#[tokio::test(start_paused = true)]
async fn disabled_memories_reject_every_call() {
    let world = World {
        memories: None,
        ..world()
    };
    let bot = acme(&world.open().await);
    let off = |error: MemoryError| matches!(error, MemoryError::Off);
    assert!(off(bot.remember(fact(ANN, "x")).await.unwrap_err()));
    assert!(off(bot.recall(query(ANN, "x")).await.unwrap_err()));
    let forget = memoird_memories::ForgetRequest::Subject(subject(ANN));
    assert!(off(bot.forget(forget).await.unwrap_err()));
    bot.engine.close().await;
}

#[tokio::test(start_paused = true)]
async fn tenants_are_isolated() {
    let mut world = world();
    world
        .config
        .tenants
        .push(crate::kit::tenant("other", Default::default()));
    let engine = world.open().await;
    let (bot, other) = (acme(&engine), Bot::new(&engine, "other"));
    let ask = RememberRequest {
        visibility: Visibility::Team,
        ..keyed(1, "likes tea")
    };
    let mine = bot.learn_so(ask.clone()).await;
    let theirs = other
        .learn_so(RememberRequest {
            content: "likes tea, too".to_owned(),
            ..ask
        })
        .await;
    assert_eq!(bot.finds(ANN, "tea").await, ["likes tea"]);
    assert_eq!(other.finds(ANN, "tea").await, ["likes tea, too"]);
    assert!(super::is_not_found(&bot.memory(theirs).await));
    assert!(
        other
            .forget(memoird_memories::ForgetRequest::One(mine))
            .await
            .is_err()
    );
    let supersedes = RememberRequest {
        supersedes: Some(mine),
        ..fact(ANN, "x")
    };
    assert!(other.remember(supersedes).await.is_err());
    assert_eq!(
        told(&bot.recall(query(ANN, "tea")).await.unwrap()),
        ["likes tea"]
    );
}

#[tokio::test(start_paused = true)]
async fn memories_of_one_moment_are_listed_in_order() {
    let world = world();
    let engine = world.open().await;
    let bot = acme(&engine);
    let facts: Vec<String> = (0..20).map(|number| format!("fact {number}")).collect();
    let mut ids = Vec::new();
    for fact in &facts {
        world.machine.step_wall(-1);
        ids.push(bot.learn(ANN, fact).await);
    }
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!(bot.listed(ANN).await, facts);
}

#[tokio::test(start_paused = true)]
async fn scattered_word_index_is_merged_in_maintenance() {
    let world = world();
    let files = world.memories.clone().expect("a folder").files;
    let house = world.open().await;
    let bot = acme(&house);
    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method's path names one lifetime, `read` asks for all"
    )]
    let segments = || {
        let tenant = files.tenant(&bot.tenant.id).unwrap();
        tenant.read(|reader| reader.word_segments()).unwrap()
    };
    let mut number = 0;
    while number < 100 && (number == 0 || segments() <= 6) {
        number += 1;
        bot.learn(
            ANN,
            &format!("fact{number} of tulip{number} and rose{number}"),
        )
        .await;
    }
    assert!(segments() > 6, "{} after {number}", segments());
    tokio::time::sleep(Duration::from_secs(1_300)).await;
    assert!(segments() <= 6, "{}", segments());
}

#[tokio::test(start_paused = true)]
async fn recall_of_another_subject_is_no_echo() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "what do we drink?").await;
    bot.learn(BOB, "likes green tea").await;
    bot.learn_so(team(BOB, "The kitchen has green tea")).await;
    let both = RecallRequest {
        subjects: vec![subject(ANN), subject(BOB)],
        ..query_in("s", "green tea")
    };
    assert_eq!(bot.recall(both).await.unwrap().hits.len(), 2);
    let said = |content: &str, kind| RememberRequest {
        source: from("s", &[]),
        kind,
        ..fact(ANN, content)
    };
    let of_bob = said("likes green tea", MemoryKind::Project);
    bot.learn_so(of_bob).await;
    let of_team = said("The kitchen has green tea", MemoryKind::Project);
    let echo = bot.remember(of_team).await.unwrap();
    assert_eq!(echo.outcome, Outcome::Recalled);
    bot.learn_so(said("The kitchen has green tea", MemoryKind::User))
        .await;
    bot.tell("s", ANN, "and what do you drink?").await;
    let lease = bot
        .memories
        .learning
        .lease(&bot.tenant, &session_id("s"), None, Some(subject(ANN)))
        .await
        .unwrap();
    let recalled = lease.prompt.split("\n<recalled ").nth(1).unwrap();
    assert!(recalled.contains("The kitchen has green tea"));
    assert!(!recalled.contains("likes green tea"), "{recalled}");
}
