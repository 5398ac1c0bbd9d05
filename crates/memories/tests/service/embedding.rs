//! Background embedding: the queue survives a restart, whatever the provider does.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_memories::rules::{NearDuplicate, Outcome};
use memoird_memories::{ForgetRequest, MemoryStats, RecallMode, RememberRequest};
use tokio::time::sleep;

use super::embedder::{Mood, ScriptedEmbedder};
use super::{ANN, BOB, Daemon, acme, fact, query, told, with_embedder, world_with};
use crate::kit::{settle, soon, tenant};
use crate::world::Bot;
use crate::world::{World, unswept};

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

fn embedder(model: &str) -> Arc<ScriptedEmbedder> {
    Arc::new(ScriptedEmbedder::new(model))
}

async fn stats(bot: &Bot) -> MemoryStats {
    bot.memories.facts.stats(&bot.tenant).await.unwrap()
}

/// Numbers of memories with a vector, queued, and given up.
async fn progress(bot: &Bot) -> (u64, u64, u64) {
    let stats = stats(bot).await;
    (
        stats.embedded,
        stats.embedding_queued,
        stats.embedding_failed,
    )
}

async fn learn(bot: &Bot, count: usize) {
    for number in 0..count {
        bot.learn(ANN, &format!("fact number{number} of all")).await;
    }
}

async fn by_meaning(bot: &Bot, words: &str) -> Vec<String> {
    let ask = memoird_memories::RecallRequest {
        mode: RecallMode::Vector,
        ..query(ANN, words)
    };
    told(&bot.recall(ask).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn new_memory_is_embedded_once() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    learn(&bot, 10).await;
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (10, 0, 0));
    assert_eq!(stats(&bot).await.embedding_model.as_deref(), Some("m"));
    let calls = embedder.calls();
    sleep(HOUR).await;
    assert_eq!(embedder.calls(), calls, "there is nothing to do");
    for number in 0..10 {
        assert_eq!(embedder.times(&format!("fact number{number} of all")), 1);
    }
}

/// Written by a clock that was ahead, or imported like that.
#[tokio::test(start_paused = true)]
async fn memory_observed_in_future_is_embedded_now() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "likes tea").await;
    sleep(MINUTE).await;
    let mut memory = bot.memory(id).await.unwrap();
    bot.forget(ForgetRequest::One(id)).await.unwrap();
    memory.updated_at = Timestamp::from_ms(4_102_444_800_000);
    let imported = bot.memories.facts.import(&bot.tenant, vec![memory]).await;
    assert_eq!(imported.unwrap().added, 1);
    sleep(HOUR).await;
    assert_eq!(progress(&bot).await, (1, 0, 0));
}

#[test]
fn embedding_queue_survives_restart() {
    let embedder = embedder("m");
    let mut daemon = Daemon::new(with_embedder(unswept(), &embedder));
    embedder.feels(Mood::Hangs);
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        learn(&bot, 10).await;
        settle().await;
        assert_eq!(progress(&bot).await, (0, 10, 0));
    });
    embedder.feels(Mood::Fine);
    daemon.live(async |engine, _| {
        sleep(MINUTE).await;
        assert_eq!(progress(&acme(engine)).await, (10, 0, 0));
    });
}

#[tokio::test(start_paused = true)]
async fn embedding_resumes_after_provider_outage() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    embedder.feels(Mood::Away(Some(Duration::from_secs(20))));
    learn(&bot, 10).await;
    sleep(HOUR).await;
    assert_eq!(progress(&bot).await, (0, 10, 0));
    let calls = embedder.calls();
    assert!(
        (5..=200).contains(&calls),
        "{calls} calls of a provider that is away"
    );
    embedder.feels(Mood::Fine);
    // The maximum pause and a bit more.
    sleep(11 * MINUTE).await;
    assert_eq!(progress(&bot).await, (10, 0, 0));
    bot.learn(ANN, "and one more").await;
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await.0, 11, "no pause is left over");
}

#[tokio::test(start_paused = true)]
async fn refused_text_is_given_up_alone() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    embedder.feels(Mood::Hangs);
    for content in [
        "one",
        "two unspeakable",
        "three",
        "four meaningless",
        "five",
        "six",
    ] {
        bot.learn(ANN, content).await;
    }
    embedder.feels(Mood::Fine);
    sleep(10 * MINUTE).await;
    assert_eq!(progress(&bot).await, (4, 0, 2));
    assert_eq!(bot.memories.counts(&bot.tenant.id).embedding_failed, 2);
    assert_eq!(
        bot.finds(ANN, "unspeakable").await,
        ["two unspeakable"],
        "by its words"
    );
    let calls = embedder.calls();
    sleep(HOUR).await;
    assert_eq!(embedder.calls(), calls, "and not asked again");
    // An explicit reindex retries it.
    bot.memories.facts.reindex(&bot.tenant).await.unwrap();
    sleep(10 * MINUTE).await;
    assert!(embedder.times("two unspeakable") > 2);
    assert_eq!(progress(&bot).await, (4, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn wrong_key_counts_no_tries() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    embedder.feels(Mood::Misconfigured);
    learn(&bot, 10).await;
    sleep(24 * HOUR).await;
    let calls = embedder.calls();
    assert!(calls <= 24 * 60 * 2 + 20, "{calls}: one each half minute");
    embedder.feels(Mood::Fine);
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (10, 0, 0), "as soon as it is right");
}

#[test]
fn new_model_recomputes_vectors_without_mixing_models() {
    let (one, two) = (embedder("one"), embedder("two"));
    let mut daemon = Daemon::new(with_embedder(unswept(), &one));
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        learn(&bot, 10).await;
        bot.learn(ANN, "loves that town").await;
        sleep(MINUTE).await;
        assert_eq!(progress(&bot).await, (11, 0, 0));
        assert_eq!(by_meaning(&bot, "likes city").await[0], "loves that town");
    });
    two.set_dimension(64);
    daemon.config = with_embedder(unswept(), &two);
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        // Nothing is embedded yet, and vectors of the other model are useless.
        assert!(by_meaning(&bot, "likes city").await.is_empty());
        assert_eq!(bot.finds(ANN, "loves").await, ["loves that town"]);
        sleep(MINUTE).await;
        assert_eq!(progress(&bot).await, (11, 0, 0));
        assert_eq!(by_meaning(&bot, "likes city").await[0], "loves that town");
    });
    assert_eq!(
        (one.times("loves that town"), two.times("loves that town")),
        (1, 1)
    );
}

#[test]
fn new_embedder_embeds_existing_memories() {
    let embedder = embedder("m");
    let mut daemon = Daemon::new(unswept());
    daemon.live(async |engine, _| {
        learn(&acme(engine), 30).await;
        acme(engine).learn(BOB, "loves that town").await;
    });
    daemon.config = with_embedder(unswept(), &embedder);
    daemon.live(async |engine, _| {
        sleep(MINUTE).await;
        assert_eq!(progress(&acme(engine)).await, (31, 0, 0));
    });
    daemon.config = unswept();
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        bot.learn(ANN, "said without an embedder").await;
        assert_eq!(
            bot.recall(query(ANN, "fact")).await.unwrap().mode,
            RecallMode::Lexical
        );
        sleep(MINUTE).await;
    });
    daemon.config = with_embedder(unswept(), &embedder);
    daemon.live(async |engine, _| {
        sleep(MINUTE).await;
        assert_eq!(progress(&acme(engine)).await, (32, 0, 0));
    });
    assert_eq!(
        embedder.times("loves that town"),
        1,
        "its vector was good all the time"
    );
}

#[tokio::test(start_paused = true)]
async fn near_duplicate_merges_only_with_almost_same_words() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    for content in [
        "Ann likes tea",
        "Ann enjoys infusion",
        "Ann liked tea",
        "Ann does not like rain",
        "Ann does like rain",
        "pays 5 dollars",
        "pays 50 dollars",
    ] {
        bot.learn(ANN, content).await;
    }
    bot.learn(BOB, "Ann liked tea").await;
    bot.manifest(ANN).await;
    sleep(MINUTE).await;
    let mut listed = bot.listed(ANN).await;
    listed.sort();
    let expected = [
        "Ann does like rain",
        "Ann does not like rain",
        "Ann enjoys infusion",
        "Ann liked tea",
        "pays 5 dollars",
        "pays 50 dollars",
    ];
    assert_eq!(listed, expected);
    assert_eq!(bot.listed(BOB).await.len(), 1, "no other subject's");
    assert_eq!(bot.memories.counts(&bot.tenant.id).merged, 1);
    let kept = bot.list_of(Some(ANN), false).await;
    let kept = kept
        .iter()
        .find(|memory| memory.content == "Ann liked tea")
        .unwrap();
    assert_eq!(kept.reinforced, 1);
    assert!(
        !bot.manifest(ANN).await.contains("Ann likes tea\n"),
        "it was in the cache"
    );
    // A request that rejects duplicates waits for the vector.
    let ask = RememberRequest {
        near_duplicate: NearDuplicate::Refuse,
        ..fact(ANN, "Ann like tea")
    };
    assert!(bot.remember(ask).await.is_err());
}

const UNRELATED: [&str; 5] = [
    "Ann is allergic to peanuts",
    "Ann lives in Riga",
    "Ann's dog is called Rex",
    "The launch is on 3 May",
    "Prefers short answers",
];

/// Checks that all facts exist, and each is the first hit of its own words.
async fn finds_each(bot: &Bot) {
    assert_eq!(bot.listed(ANN).await.len(), UNRELATED.len());
    for (words, fact) in [
        ("peanuts", UNRELATED[0]),
        ("Riga", UNRELATED[1]),
        ("dog", UNRELATED[2]),
        ("launch", UNRELATED[3]),
        ("answers", UNRELATED[4]),
    ] {
        let found = bot.recall(query(ANN, words)).await.unwrap();
        assert_eq!(found.mode, RecallMode::Lexical, "{words}");
        assert_eq!(told(&found), [fact], "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn collapsed_embedder_is_ignored_until_repaired() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    embedder.feels(Mood::Constant);
    for fact in UNRELATED {
        bot.learn(ANN, fact).await;
        sleep(MINUTE).await;
    }
    assert_eq!(bot.memories.counts(&bot.tenant.id).merged, 0);
    finds_each(&bot).await;
    let calls = embedder.calls();
    sleep(HOUR).await;
    finds_each(&bot).await;
    let calls = embedder.calls() - calls;
    // A check takes two batches of this embedder.
    assert!(calls <= 2 * 61, "{calls} calls in an hour");
    embedder.feels(Mood::Fine);
    sleep(HOUR).await;
    assert_eq!(progress(&bot).await, (5, 0, 0), "its texts waited");
    assert_eq!(by_meaning(&bot, "called Rex").await[0], UNRELATED[2]);
}

#[test]
fn collapse_is_detected_from_vectors_of_earlier_start() {
    let embedder = embedder("m");
    let mut daemon = Daemon::new(with_embedder(unswept(), &embedder));
    daemon.live(async |engine, _| {
        let bot = acme(engine);
        // The model is in use from the first memory on.
        let first = bot.learn(ANN, "forgotten soon").await;
        sleep(MINUTE).await;
        bot.forget(ForgetRequest::One(first)).await.unwrap();
        for content in UNRELATED {
            // Treated like a vector of the embedder.
            let with_vector = RememberRequest {
                vector: [vec![1.0], vec![0.0; 255]].concat(),
                ..fact(ANN, content)
            };
            bot.learn_so(with_vector).await;
        }
        assert_eq!(progress(&bot).await, (5, 0, 0));
    });
    embedder.feels(Mood::Constant);
    daemon.live(async |engine, _| {
        sleep(MINUTE).await;
        finds_each(&acme(engine)).await;
    });
}

#[tokio::test(start_paused = true)]
async fn equal_vectors_of_unknown_words_are_no_collapse() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    // These words have the same meaning to it.
    bot.learn(ANN, "loves town").await;
    bot.learn(ANN, "likes city").await;
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (2, 0, 0));
    assert_eq!(
        bot.recall(query(ANN, "town")).await.unwrap().mode,
        RecallMode::Hybrid
    );
}

#[tokio::test(start_paused = true)]
async fn apart_memory_is_never_merged() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.learn(ANN, "Ann likes tea").await;
    sleep(MINUTE).await;
    let keep = RememberRequest {
        near_duplicate: NearDuplicate::Keep,
        ..fact(ANN, "Ann liked tea")
    };
    assert_eq!(bot.remember(keep).await.unwrap().outcome, Outcome::Created);
    sleep(MINUTE).await;
    assert_eq!(bot.listed(ANN).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn changed_text_is_embedded_again() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "likes tea").await;
    settle().await;
    let patch = memoird_memories::rules::Patch {
        content: Some("loves that town".to_owned()),
        ..Default::default()
    };
    bot.memories
        .facts
        .update(&bot.tenant, id, None, patch)
        .await
        .unwrap();
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (1, 0, 0));
    assert_eq!(by_meaning(&bot, "likes city").await, ["loves that town"]);
}

#[tokio::test(start_paused = true)]
async fn daemon_stops_while_embedder_hangs() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let engine = world.open().await;
    let bot = acme(&engine);
    embedder.feels(Mood::Hangs);
    learn(&bot, 10).await;
    settle().await;
    let begun_ms = world.machine_now().0;
    engine.close().await;
    let took_ms = world.machine_now().0 - begun_ms;
    assert!(took_ms < 1_000, "{took_ms} ms");
    embedder.feels(Mood::Fine);
    let bot = acme(&world.open().await);
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (10, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn long_embedding_queue_does_not_delay_other_tenants() {
    let embedder = embedder("m");
    let mut world = world_with(&embedder);
    world
        .config
        .tenants
        .push(tenant("zebra", Default::default()));
    let engine = world.open().await;
    let (heap, zebra) = (acme(&engine), Bot::new(&engine, "zebra"));
    embedder.feels(Mood::Hangs);
    learn(&heap, 400).await;
    settle().await;
    zebra.learn(ANN, "only one").await;
    embedder.feels(Mood::Fine);
    // The call that hangs times out in between.
    sleep(10 * MINUTE).await;
    assert_eq!(
        (progress(&heap).await.0, progress(&zebra).await.0),
        (400, 1)
    );
    let place = embedder.first_call_with("only one").unwrap();
    assert!(place < 10, "zebra waited for {place} calls");
}

#[tokio::test(start_paused = true)]
async fn changed_dimension_fails_no_other_write() {
    let embedder = embedder("m");
    let world = World {
        blocking: memoird_engine::Blocking::Pool,
        ..world_with(&embedder)
    };
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes tea").await;
    sleep(MINUTE).await;
    embedder.set_dimension(64);
    for round in 0..20 {
        let refuse = RememberRequest {
            near_duplicate: NearDuplicate::Refuse,
            ..fact(ANN, &format!("carefully {round}"))
        };
        let plain = fact(ANN, &format!("plainly {round}"));
        let (refuse, plain) = tokio::join!(bot.remember(refuse), bot.remember(plain));
        refuse.unwrap();
        plain.unwrap();
    }
    soon(bot.engine.close()).await;
}

#[tokio::test(start_paused = true)]
async fn reindex_continues_in_background() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    learn(&bot, 10).await;
    sleep(MINUTE).await;
    assert_eq!(bot.memories.facts.reindex(&bot.tenant).await.unwrap(), 10);
    sleep(MINUTE).await;
    assert_eq!(progress(&bot).await, (10, 0, 0));
    assert_eq!(embedder.times("fact number3 of all"), 2);
    assert_eq!(bot.finds(ANN, "number3").await[0], "fact number3 of all");
    let world = super::world();
    let bot = acme(&world.open().await);
    assert_eq!(bot.memories.facts.reindex(&bot.tenant).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn text_that_always_fails_is_isolated() {
    let embedder = embedder("m");
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    for content in ["two of poison", "one", "three"] {
        bot.learn(ANN, content).await;
    }
    sleep(24 * HOUR).await;
    assert_eq!(progress(&bot).await, (2, 1, 0));
    let calls = embedder.calls();
    assert!(calls <= 24 * 6 * 2 + 40, "{calls} in a day");
}
