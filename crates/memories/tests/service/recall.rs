//! Recall: search modes, visibility, and the traces of a recall.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_engine::{Blocking, Machine};
use memoird_memories::rules::{MemoryKind, Visibility};
use memoird_memories::{MemoryError, RecallMode, RecallRequest, RememberRequest};
use tokio::time::sleep;

use super::embedder::{Mood, ScriptedEmbedder};
use super::{ANN, BOB, acme, fact, query, query_in, team, told, world, world_with};
use crate::kit::settle;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

fn by(mode: RecallMode, words: &str) -> RecallRequest {
    RecallRequest {
        mode,
        ..query(ANN, words)
    }
}

#[tokio::test(start_paused = true)]
async fn recall_without_embedder_uses_words_and_notes_it() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes green tea").await;
    for (mode, notes) in [
        (RecallMode::Auto, 0),
        (RecallMode::Lexical, 0),
        (RecallMode::Hybrid, 1),
    ] {
        let outcome = bot.recall(by(mode, "teas")).await.unwrap();
        assert_eq!(outcome.mode, RecallMode::Lexical);
        assert_eq!(outcome.notes.len(), notes, "{mode:?}");
        assert_eq!(told(&outcome), ["likes green tea"]);
        let hit = &outcome.hits[0];
        assert_eq!((hit.lexical_rank, hit.vector_rank), (1, 0));
        assert!(hit.score > 0.0);
    }
    let refused = bot.recall(by(RecallMode::Vector, "tea")).await;
    assert!(matches!(refused, Err(MemoryError::NoEmbedder)));
}

#[tokio::test(start_paused = true)]
async fn recall_with_embedder_finds_by_meaning() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.learn(ANN, "loves that town").await;
    bot.learn(ANN, "drinks infusion").await;
    settle().await;
    assert!(
        bot.recall(by(RecallMode::Lexical, "likes city"))
            .await
            .unwrap()
            .hits
            .is_empty()
    );
    for mode in [RecallMode::Auto, RecallMode::Hybrid, RecallMode::Vector] {
        let outcome = bot.recall(by(mode, "likes city")).await.unwrap();
        let expected = if mode == RecallMode::Vector {
            mode
        } else {
            RecallMode::Hybrid
        };
        assert_eq!((outcome.mode, outcome.notes.len()), (expected, 0));
        assert_eq!(told(&outcome)[0], "loves that town");
        assert_eq!(
            (outcome.hits[0].lexical_rank, outcome.hits[0].vector_rank),
            (0, 1)
        );
    }
    let counted = bot.memories.counts(&bot.tenant.id);
    assert_eq!((counted.recalls_lexical, counted.recalls_vector), (1, 1));
    assert_eq!(counted.recalls_hybrid, 2);
    assert_eq!(
        embedder.calls(),
        4,
        "one batch of memories, two of the check, and one query that is known since"
    );
}

#[tokio::test(start_paused = true)]
async fn hanging_embedder_delays_recall_by_query_wait_only() {
    for mood in [Mood::Hangs, Mood::Away(None), Mood::Misconfigured] {
        let embedder = Arc::new(ScriptedEmbedder::new("m"));
        let world = world_with(&embedder);
        let bot = acme(&world.open().await);
        bot.learn(ANN, "likes tea").await;
        settle().await;
        embedder.feels(mood.clone());
        let begun_ms = world.machine_now().0;
        let outcome = bot.recall(by(RecallMode::Auto, "tea")).await.unwrap();
        assert_eq!(
            (outcome.mode, outcome.notes.len()),
            (RecallMode::Lexical, 1)
        );
        assert_eq!(told(&outcome), ["likes tea"]);
        let refused = bot.recall(by(RecallMode::Vector, "tea")).await;
        assert!(
            matches!(refused, Err(MemoryError::EmbedderFailed { .. })),
            "{refused:?}"
        );
        let waits = if mood == Mood::Hangs {
            2 * SECOND
        } else {
            Duration::ZERO
        };
        assert_eq!(
            (world.machine_now().0 - begun_ms) / 1_000,
            waits.as_secs(),
            "{mood:?}"
        );
        embedder.feels(Mood::Fine);
        assert_eq!(
            bot.recall(by(RecallMode::Auto, "tea")).await.unwrap().mode,
            RecallMode::Hybrid
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unusable_query_vector_falls_back_to_words() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes tea").await;
    settle().await;
    for words in ["meaningless tea", "tea of another dimension"] {
        let outcome = bot.recall(by(RecallMode::Auto, words)).await.unwrap();
        assert_eq!(
            (outcome.mode, outcome.notes.len()),
            (RecallMode::Lexical, 1),
            "{words}"
        );
        assert_eq!(told(&outcome), ["likes tea"]);
        let refused = bot.recall(by(RecallMode::Vector, words)).await;
        assert!(
            matches!(refused, Err(MemoryError::EmbedderFailed { .. })),
            "{refused:?}"
        );
        embedder.set_dimension(64);
    }
}

#[tokio::test(start_paused = true)]
async fn recall_finds_memories_of_requested_subjects_and_team() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "tea of Ann").await;
    bot.learn(BOB, "tea of Bob").await;
    let shared = bot.learn_so(team(BOB, "tea of all")).await;
    let mut sorted = bot.finds(ANN, "tea").await;
    sorted.sort();
    assert_eq!(sorted, ["tea of Ann", "tea of all"]);
    assert_eq!(
        bot.finds("", "tea").await,
        ["tea of all"],
        "nobody was named"
    );
    bot.tell("s", BOB, "hello").await;
    let mut sorted = told(&bot.recall(query_in("s", "tea")).await.unwrap());
    sorted.sort();
    assert_eq!(
        sorted,
        ["tea of Bob", "tea of all"],
        "the session says whose"
    );
    assert_eq!(
        told(&bot.recall(query_in("nobody", "tea")).await.unwrap()),
        ["tea of all"]
    );
    let ask = RecallRequest {
        session: query_in("s", "").session,
        ..query(ANN, "tea")
    };
    assert_eq!(
        bot.recall(ask).await.unwrap().hits.len(),
        2,
        "who is named counts"
    );

    // Also when read by id.
    let private = bot.list_of(Some(ANN), false).await[0].id;
    let see = async |id, whose: &str| {
        bot.memories
            .facts
            .get(&bot.tenant, id, Some(super::subject(whose)))
            .await
    };
    assert!(see(private, ANN).await.is_ok() && see(shared, ANN).await.is_ok());
    assert!(super::is_not_found(&see(private, BOB).await));
    let mine = RememberRequest {
        kind: MemoryKind::User,
        visibility: Visibility::Team,
        ..fact(ANN, "is tall")
    };
    assert!(
        bot.remember(mine).await.is_err(),
        "what somebody is, is theirs"
    );
}

#[tokio::test(start_paused = true)]
async fn recall_request_is_validated_and_applied() {
    let world = world();
    let bot = acme(&world.open().await);
    for number in 0..20 {
        let ask = RememberRequest {
            kind: if number % 2 == 0 {
                MemoryKind::User
            } else {
                MemoryKind::Project
            },
            tags: vec![format!("t{}", number % 5)],
            observed_at: Timestamp::new(1_000 + number, 0),
            ..fact(ANN, &format!("tea number {number}"))
        };
        bot.learn_so(ask).await;
    }
    let asked = RecallRequest {
        limit: 100,
        ..query(ANN, "tea")
    };
    let count = async |ask: RecallRequest| bot.recall(ask).await.unwrap().hits.len();
    assert_eq!(count(query(ANN, "tea")).await, 8, "as configured");
    assert_eq!(count(asked.clone()).await, 20);
    assert_eq!(
        count(RecallRequest {
            kinds: vec![MemoryKind::User],
            ..asked.clone()
        })
        .await,
        10
    );
    assert_eq!(
        count(RecallRequest {
            after: Timestamp::new(1_015, 0),
            ..asked.clone()
        })
        .await,
        5
    );
    assert_eq!(
        count(RecallRequest {
            before: Timestamp::new(1_015, 0),
            ..asked.clone()
        })
        .await,
        15
    );
    assert_eq!(
        count(RecallRequest {
            tags: vec!["t1".into()],
            ..asked.clone()
        })
        .await,
        4
    );
    let invalid = [
        (
            "query",
            RecallRequest {
                query: " ".into(),
                ..asked.clone()
            },
        ),
        (
            "limit",
            RecallRequest {
                limit: 101,
                ..asked.clone()
            },
        ),
        (
            "subjects",
            RecallRequest {
                subjects: (0..17).map(|n| super::subject(&n.to_string())).collect(),
                ..asked.clone()
            },
        ),
        (
            "tags",
            RecallRequest {
                tags: vec!["t".into(); 33],
                ..asked.clone()
            },
        ),
    ];
    for (name, ask) in invalid {
        match bot.recall(ask).await {
            Err(MemoryError::Invalid { field, .. }) => {
                assert_eq!(field, name);
            }
            other => panic!("{other:?}"),
        }
    }
    let long = RecallRequest {
        query: "tea é".repeat(2_000),
        ..asked
    };
    assert_eq!(count(long).await, 20, "what is too long is cut");
}

/// Tags: the proto requires all requested tags, not just one of them.
#[tokio::test(start_paused = true)]
async fn recall_requires_all_tags() {
    let world = world();
    let bot = acme(&world.open().await);
    for (content, tags) in [("tea one", &["a"][..]), ("tea two", &["a", "b"])] {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        bot.learn_so(RememberRequest {
            tags,
            ..fact(ANN, content)
        })
        .await;
    }
    let ask = RecallRequest {
        tags: vec!["a".into(), "b".into()],
        ..query(ANN, "tea")
    };
    assert_eq!(told(&bot.recall(ask).await.unwrap()), ["tea two"]);
}

#[tokio::test(start_paused = true)]
async fn recall_events_are_written_by_maintenance() {
    let world = world();
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "likes tea").await;
    bot.finds(ANN, "tea").await;
    assert_eq!(
        bot.memory(id).await.unwrap().recalls,
        0,
        "off the caller's path"
    );
    sleep(SECOND).await;
    let memory = bot.memory(id).await.unwrap();
    assert_eq!(memory.recalls, 1);
    assert!(
        memory
            .recalled_at
            .is_some_and(|at| at <= world.machine.now().wall)
    );
    bot.finds(ANN, "coffee").await;
    sleep(SECOND).await;
    assert_eq!(
        bot.memories
            .facts
            .stats(&bot.tenant)
            .await
            .unwrap()
            .recall_events,
        1
    );
}

/// Reads have a bounded number of threads of their own, which serve tenants in turn.
#[test]
fn recall_does_not_wait_for_other_blocking_work() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build();
    runtime.unwrap().block_on(async {
        let world = World {
            blocking: Blocking::Threads,
            ..world()
        };
        let engine = world.open().await;
        let bot = acme(&engine);
        bot.learn(ANN, "likes tea").await;
        let (release, held) = std::sync::mpsc::channel::<()>();
        let other_work = tokio::task::spawn_blocking(move || held.recv());
        let found = tokio::time::timeout(10 * SECOND, bot.finds(ANN, "tea"));
        let found = found.await.expect("it does not wait");
        drop(release);
        assert_eq!(found, ["likes tea"]);
        assert!(other_work.await.unwrap().is_err(), "nobody sent anything");
        engine.close().await;
    });
}

#[tokio::test(start_paused = true)]
async fn last_recall_events_are_written_at_stop() {
    for blocking in [Blocking::Inline, Blocking::Pool] {
        let world = World {
            blocking,
            ..world()
        };
        let engine = world.open().await;
        let bot = acme(&engine);
        let id = bot.learn(ANN, "likes tea").await;
        for _ in 0..3 {
            bot.finds(ANN, "tea").await;
        }
        engine.close().await;
        let bot = acme(&world.open().await);
        assert_eq!(bot.memory(id).await.unwrap().recalls, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn recall_events_leave_queue_room_for_facts() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes tea").await;
    // No other task runs in between, so the maintenance worker cannot write events.
    for _ in 0..6_000 {
        bot.recall(query(ANN, "tea")).await.unwrap();
    }
    let lost = bot.memories.counts(&bot.tenant.id).recalls_lost;
    assert!(lost > 0 && lost < 6_000, "{lost}");
    bot.learn(ANN, "likes coffee").await;
    sleep(SECOND).await;
    let events = bot
        .memories
        .facts
        .stats(&bot.tenant)
        .await
        .unwrap()
        .recall_events;
    assert_eq!(events, 6_000 - lost);
}

#[tokio::test(start_paused = true)]
async fn min_relevance_drops_hits_below_it() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes green tea").await;
    bot.learn(ANN, "likes black coffee").await;
    let floor = |min_relevance| RecallRequest {
        min_relevance,
        ..query(ANN, "green tea")
    };
    let hits = bot.recall(floor(None)).await.unwrap().hits;
    assert_eq!(hits.len(), 1);
    assert!((hits[0].parts.relevance - 1.0).abs() < 1e-9);
    let half = query(ANN, "green coffee");
    let both = bot.recall(half.clone()).await.unwrap().hits;
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|hit| hit.parts.relevance < 0.9));
    let none = RecallRequest {
        min_relevance: Some(0.9),
        ..half
    };
    assert!(bot.recall(none).await.unwrap().hits.is_empty());
    for invalid in [-0.1, 1.1, f64::NAN] {
        let refused = bot.recall(floor(Some(invalid))).await;
        let is_named = |error: &MemoryError| error.to_string().contains("min_relevance");
        assert!(refused.is_err_and(|error| is_named(&error)), "{invalid}");
    }
}

#[tokio::test(start_paused = true)]
async fn relevance_of_unrelated_texts_is_low_whatever_their_cosine() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    embedder.feels(Mood::Narrow);
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.learn(ANN, "loves that town").await;
    bot.learn(ANN, "drinks green infusion").await;
    settle().await;
    let outcome = bot.recall(by(RecallMode::Hybrid, "loves that town"));
    let hits = outcome.await.unwrap().hits;
    let (near, far) = (&hits[0].parts, &hits[1].parts);
    assert!(
        near.cosine > Some(0.99) && near.relevance > 0.99,
        "{near:?}"
    );
    assert!(far.cosine > Some(0.7) && far.relevance < 0.1, "{far:?}");
}
