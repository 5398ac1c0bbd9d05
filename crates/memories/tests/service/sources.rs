//! Sources of facts: they determine subject, text and time of a memory.

use memoird_core::session::AppendCommand;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::Durability;
use memoird_memories::{MemoryError, RememberRequest};
use memoird_store::encoding;

use super::{ANN, BOB, acme, fact, from, subject, world};
use crate::world::{Folder, World, unswept};

fn nameless(content: &str) -> RememberRequest {
    RememberRequest {
        subject: None,
        ..fact(ANN, content)
    }
}

fn is_missing(answer: &Result<memoird_memories::RememberOutcome, MemoryError>) -> bool {
    matches!(answer, Err(MemoryError::SourceNotFound { .. }))
}

#[tokio::test(start_paused = true)]
async fn fact_without_subject_belongs_to_subject_of_session() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", BOB, "I like tea").await;
    let ask = RememberRequest {
        source: from("s", &[]),
        ..nameless("likes tea")
    };
    let memory = bot.remember(ask).await.unwrap().memory;
    assert_eq!(memory.subject, subject(BOB));
    let source = memory.source.unwrap();
    assert_eq!(
        source.generation,
        Some(bot.view("s").await.unwrap().head.generation)
    );
    for ask in [
        nameless("likes tea"),
        RememberRequest {
            source: from("nobody", &[]),
            ..nameless("likes tea")
        },
    ] {
        match bot.remember(ask).await {
            Err(MemoryError::Invalid { field, .. }) => {
                assert_eq!(field, "subject");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn content_and_time_come_from_source_turns() {
    let world = world();
    let bot = acme(&world.open().await);
    let said = |text: &str, second| {
        let mut turn = Turn::new(Role::User, vec![PartKind::Text(text.to_owned()).into()]);
        turn.timestamp = Timestamp::new(second, 0);
        encoding::encode(turn)
    };
    let turns = vec![
        said("I like tea.", 100),
        said("And", 200),
        said("also coffee.", 300),
    ];
    let command = AppendCommand {
        turns,
        subject: Some(subject(ANN)),
        ..AppendCommand::default()
    };
    bot.append("s", command).await.unwrap();
    let generation = bot.view("s").await.unwrap().head.generation;

    let ask = RememberRequest {
        source: from("s", &[3, 1, 3]),
        ..nameless("")
    };
    let memory = bot.remember(ask.clone()).await.unwrap().memory;
    assert_eq!(memory.content, "I like tea.\nalso coffee.");
    assert_eq!(memory.observed_at, Timestamp::new(300, 0).unwrap());
    assert_eq!(memory.source.as_ref().unwrap().seqs, [1, 3]);
    let own = RememberRequest {
        observed_at: Timestamp::new(7, 0),
        ..ask.clone()
    };
    let own = RememberRequest {
        content: "likes two drinks".to_owned(),
        ..own
    };
    let memory = bot.remember(own).await.unwrap().memory;
    assert_eq!(
        (memory.content.as_str(), memory.observed_at.seconds()),
        ("likes two drinks", 7)
    );

    assert!(is_missing(
        &bot.remember(RememberRequest {
            source: from("s", &[1, 4]),
            ..ask
        })
        .await
    ));
    let ask = RememberRequest {
        source: from("nobody", &[1]),
        ..fact(ANN, "")
    };
    assert!(is_missing(&bot.remember(ask).await));

    // The journal still contains ended sessions.
    bot.end("s").await.unwrap();
    let mut ended = RememberRequest {
        source: from("s", &[2]),
        ..fact(ANN, "")
    };
    let memory = bot.remember(ended.clone()).await.unwrap().memory;
    assert_eq!(memory.content, "And");
    assert_eq!(
        memory.source.unwrap().generation,
        Some(generation),
        "it is known which life it was"
    );
    bot.tell("s", ANN, "a new life").await;
    assert!(
        is_missing(&bot.remember(ended.clone()).await),
        "the live one has only one turn"
    );
    ended.source.as_mut().unwrap().generation = Some(generation);
    assert_eq!(bot.remember(ended).await.unwrap().memory.content, "And");
}

#[tokio::test(start_paused = true)]
async fn invalid_source_is_rejected() {
    let mut world = world();
    world.config.long_term.limits.source_seqs = 3;
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "hello").await;
    for seqs in [&[1, 2, 3, 4][..], &[0, 1]] {
        match bot
            .remember(RememberRequest {
                source: from("s", seqs),
                ..fact(ANN, "x")
            })
            .await
        {
            Err(MemoryError::Invalid { field, .. }) => {
                assert_eq!(field, "source.seqs");
            }
            other => panic!("{other:?}"),
        }
    }
    let twice = RememberRequest {
        source: from("s", &[1, 1, 1, 1]),
        ..fact(ANN, "x")
    };
    bot.remember(twice).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_journal_source_is_live_history() {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    config.limits.max_history_turns = 2;
    let world = World {
        memories: Some(Folder::new()),
        ..World::new(config)
    };
    let bot = acme(&world.open().await);
    for text in ["the anchor", "one", "two", "three"] {
        bot.tell("s", ANN, text).await;
    }
    let of = |seq: u64| RememberRequest {
        source: from("s", &[seq]),
        ..nameless("")
    };
    assert_eq!(bot.remember(of(4)).await.unwrap().memory.content, "three");
    assert!(
        is_missing(&bot.remember(of(2)).await),
        "it left the history"
    );
    bot.end("s").await.unwrap();
    let ended = RememberRequest {
        subject: Some(subject(ANN)),
        ..of(4)
    };
    assert!(is_missing(&bot.remember(ended).await));
}
