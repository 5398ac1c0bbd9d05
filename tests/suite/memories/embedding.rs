//! Embedding in the background.
//!
//! The queue is durable and survives crashes and provider outages. Without vectors, recall is
//! lexical.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{ForgetRequest, RecallMode, RecallRequest, ReindexMemoriesRequest};

use crate::harness::{
    Daemon, Embeddings, Setup, all_embedded, eventually, fact, memory_stats, query_of, recall,
    recalled, remember, remember_new,
};

fn by_meaning(query: &str) -> RecallRequest {
    RecallRequest {
        mode: RecallMode::Vector.into(),
        limit: 1,
        ..query_of("ann", query)
    }
}

#[tokio::test]
async fn vector_recall_finds_synonyms() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    for content in [
        "Her automobile is red",
        "The physician is in Oslo",
        "A feline named Tom",
    ] {
        remember_new(&mut client, fact("ann", content)).await;
    }
    let stats = all_embedded(&mut client).await;
    assert_eq!((stats.embedded, stats.memories), (3, 3));
    assert!(stats.embedding_model.contains('m'), "{stats:?}");
    for (question, found) in [
        ("which car", "Her automobile is red"),
        ("doctor", "The physician is in Oslo"),
        ("cat", "A feline named Tom"),
    ] {
        assert_eq!(recalled(&mut client, by_meaning(question)).await, [found]);
        let any = recall(
            &mut client,
            RecallRequest {
                limit: 1,
                ..query_of("ann", question)
            },
        )
        .await;
        assert_eq!(
            (any.mode(), any.degraded),
            (RecallMode::Hybrid, false),
            "{:?}",
            any.notes
        );
        let hit = &any.hits[0];
        assert_eq!((hit.vector_rank, hit.lexical_rank), (1, 0), "{question}");
        assert_eq!(hit.memory.as_ref().expect("a memory").content, found);
        let words = RecallRequest {
            mode: RecallMode::Lexical.into(),
            ..query_of("ann", question)
        };
        assert!(recalled(&mut client, words).await.is_empty(), "{question}");
    }
    // Vector recall respects subjects just as lexical recall does.
    let others = RecallRequest {
        subjects: vec!["bob".into()],
        ..by_meaning("car")
    };
    assert!(recalled(&mut client, others).await.is_empty());
}

#[tokio::test]
async fn recall_falls_back_to_lexical_while_provider_is_down() {
    let provider = Embeddings::start().await;
    provider.set_down(true);
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    remember_new(&mut client, fact("ann", "Her automobile is red")).await;
    let found = recall(&mut client, query_of("ann", "red")).await;
    assert_eq!(
        (found.hits.len(), found.mode(), found.degraded),
        (1, RecallMode::Lexical, true)
    );
    assert!(!found.notes.is_empty(), "it says why");
    let lexical = RecallRequest {
        mode: RecallMode::Lexical.into(),
        ..query_of("ann", "red")
    };
    assert!(
        !recall(&mut client, lexical).await.degraded,
        "that is what was asked for"
    );
    let stats = memory_stats(&mut client).await;
    assert_eq!(
        (stats.embedding_queued, stats.embedding_failed),
        (1, 0),
        "it waits: {stats:?}"
    );

    provider.set_down(false);
    all_embedded(&mut client).await;
    let found = eventually("recalls go by meaning again", async || {
        let found = recall(&mut client, query_of("ann", "car")).await;
        (!found.degraded).then_some(found)
    });
    assert_eq!(found.await.hits.len(), 1);
}

#[tokio::test]
async fn hanging_provider_does_not_delay_recall() {
    let provider = Embeddings::holding().await;
    let hasty = provider
        .section("m")
        .replace("query_wait: 10s", "query_wait: 50ms");
    let daemon = Daemon::with(Setup::default().section(hasty)).await;
    let mut client = daemon.memories();
    remember_new(&mut client, fact("ann", "Her automobile is red")).await;
    // Each returns long before the provider's timeout of thirty seconds.
    for _ in 0..3 {
        let found = recall(&mut client, query_of("ann", "red")).await;
        assert_eq!(
            (found.hits.len(), found.degraded),
            (1, true),
            "{:?}",
            found.notes
        );
    }
}

#[tokio::test]
async fn kill_9_amid_embedding_loses_no_queued_text() {
    const COUNT: usize = 60;
    let provider = Embeddings::holding().await;
    let mut daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    for number in 0..COUNT {
        remember(
            &mut client,
            fact("ann", &format!("Fact number{number} of the automobile")),
        )
        .await;
    }
    for calls in [3, 5] {
        let before = memory_stats(&mut client).await.embedded;
        provider.let_through(calls);
        let stats = eventually("some are embedded, and some wait", async || {
            let stats = memory_stats(&mut client).await;
            (stats.embedded > before && stats.embedding_queued > 0).then_some(stats)
        });
        assert_eq!(stats.await.memories, COUNT as u64);
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.memories();
        let stats = memory_stats(&mut client).await;
        assert!(stats.embedded > before, "what was done is done: {stats:?}");
        assert_eq!(
            stats.embedded + stats.embedding_queued,
            COUNT as u64,
            "{stats:?}"
        );
    }
    provider.let_through(1_000);
    let stats = all_embedded(&mut client).await;
    assert_eq!(stats.embedded, COUNT as u64);
    let exact = "Fact number37 of the automobile";
    assert_eq!(recalled(&mut client, by_meaning(exact)).await, [exact]);
    // Memories embedded before a crash are not embedded again, so few calls are wasted.
    let texts = provider.calls().concat().len();
    assert!(texts < COUNT * 2, "{texts} texts were sent for {COUNT}");
}

#[tokio::test]
async fn embedder_enabled_later_embeds_all_and_new_model_reembeds() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let content = "Her automobile is red";
    for number in 0..10 {
        remember_new(
            &mut client,
            fact("ann", &format!("{content} number{number}")),
        )
        .await;
    }
    let stats = memory_stats(&mut client).await;
    assert_eq!(
        (
            &*stats.embedding_model,
            stats.embedded,
            stats.embedding_queued
        ),
        ("", 0, 0)
    );
    daemon.stop().await;

    let provider = Embeddings::start().await;
    let mut models = Vec::new();
    for model in ["first", "second"] {
        daemon
            .restart_with(Setup::default().section(provider.section(model)))
            .await;
        client = daemon.memories();
        let stats = all_embedded(&mut client).await;
        assert_eq!((stats.embedded, stats.embedding_failed), (10, 0), "{model}");
        models.push(stats.embedding_model);
        let texts = provider.calls().concat();
        assert_eq!(
            texts.iter().filter(|text| text.contains(content)).count(),
            models.len() * 10
        );
        assert_eq!(
            recalled(&mut client, by_meaning("car number7")).await.len(),
            1
        );
        daemon.stop().await;
    }
    assert_ne!(models[0], models[1]);
    // Without an embedder, lexical recall still works.
    daemon.restart_with(Setup::default()).await;
    client = daemon.memories();
    let found = recall(&mut client, query_of("ann", "automobile")).await;
    assert_eq!((found.hits.len(), found.mode()), (10, RecallMode::Lexical));
}

#[tokio::test]
async fn reindex_embeds_everything_again() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    for number in 0..25 {
        remember_new(
            &mut client,
            fact("ann", &format!("Fact number{number} of the automobile")),
        )
        .await;
    }
    all_embedded(&mut client).await;
    let before = provider.calls().concat().len();
    let queued = daemon
        .admin()
        .reindex_memories(ReindexMemoriesRequest::default())
        .await
        .expect("started");
    assert_eq!(queued.into_inner().queued, 25);
    assert_eq!(all_embedded(&mut client).await.embedded, 25);
    let texts = provider.calls().concat().len() - before;
    assert!(texts >= 25, "only {texts} texts were embedded anew");
    let words = RecallRequest {
        mode: RecallMode::Lexical.into(),
        ..query_of("ann", "automobile")
    };
    assert_eq!(recalled(&mut client, words).await.len(), 25);
    let exact = "Fact number11 of the automobile";
    assert_eq!(recalled(&mut client, by_meaning(exact)).await, [exact]);
}

#[tokio::test]
async fn forgotten_memories_in_queue_are_never_embedded() {
    let provider = Embeddings::holding().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    let first = remember_new(&mut client, fact("ann", "The first holds the queue up")).await;
    eventually("it is on its way", async || {
        (!provider.calls().is_empty()).then_some(())
    })
    .await;
    for number in 0..6 {
        remember_new(&mut client, fact("eve", &format!("Secret{number} of eve"))).await;
    }
    let forget = |target| ForgetRequest {
        target: Some(target),
        dry_run: false,
    };
    let gone = client
        .forget(forget(Target::Subject("eve".into())))
        .await
        .expect("forgotten");
    let gone = gone.into_inner();
    assert_eq!(
        (gone.memories, gone.queued_embeddings, gone.vectors),
        (6, 6, 0)
    );
    // A memory whose embedding is in flight does not get a vector after it is forgotten.
    let gone = client
        .forget(forget(Target::Id(first.id)))
        .await
        .expect("forgotten")
        .into_inner();
    assert_eq!((gone.memories, gone.vectors), (1, 0));
    remember_new(&mut client, fact("ann", "The last automobile")).await;
    provider.let_through(1_000);
    let stats = all_embedded(&mut client).await;
    assert_eq!((stats.memories, stats.embedded), (1, 1));
    let texts = provider.calls().concat();
    assert!(
        !texts.iter().any(|text| text.contains("Secret")),
        "{texts:?}"
    );
    assert_eq!(
        recalled(&mut client, by_meaning("car")).await,
        ["The last automobile"]
    );
}
