//! Secrets are never stored, whichever way they arrive, and never sent to an embedder.

use std::sync::Arc;

use memoird_memories::rules::Patch;
use memoird_memories::rules::secrets::SecretPolicy;
use memoird_memories::{ExtractedFact, MemoryError, RememberRequest};

use super::embedder::ScriptedEmbedder;
use super::{ANN, acme, fact, query, subject, world, world_with};
use crate::kit::{session_id, settle};
use crate::world::Bot;
use crate::world::World;

/// A token that was never issued.
fn token() -> String {
    format!("ghp_{}", "x7Rk2mQv9LbT4wZs8NcY1hFj6PdG3aKe5UoX")
}

fn telling_a_secret() -> String {
    format!("the deploy token is {}", token())
}

fn tagged() -> RememberRequest {
    RememberRequest {
        tags: vec![token()],
        ..fact(ANN, "has a token")
    }
}

fn under(policy: SecretPolicy) -> World {
    let mut world = world();
    world.config.long_term.secrets = policy;
    world
}

fn is_blocked<T: std::fmt::Debug>(answer: Result<T, MemoryError>) -> bool {
    let answer = answer.map_err(|error| match error {
        // The second item of the list contains the secret.
        MemoryError::InList {
            index: 1, error, ..
        } => *error,
        other => other,
    });
    match answer {
        Err(error @ MemoryError::SecretFound { .. }) => {
            assert!(!error.to_string().contains(&token()));
            true
        }
        other => panic!("{other:?}"),
    }
}

fn content(text: String) -> Patch {
    Patch {
        content: Some(text),
        ..Patch::default()
    }
}

fn tags(tag: String) -> Patch {
    Patch {
        tags: Some(vec![tag]),
        ..Patch::default()
    }
}

fn extracted(content: String, tags: Vec<String>) -> ExtractedFact {
    let fact = RememberRequest {
        content,
        tags,
        ..fact(ANN, "")
    };
    ExtractedFact {
        fact,
        seqs: Vec::new(),
    }
}

async fn lease(bot: &Bot) -> memoird_core::ids::LeaseId {
    let session = session_id("s");
    let lease = bot
        .memories
        .learning
        .lease(&bot.tenant, &session, None, None)
        .await
        .unwrap();
    lease.lease.unwrap()
}

#[tokio::test(start_paused = true)]
async fn blocked_secrets_are_rejected_by_every_call() {
    let world = under(SecretPolicy::Block);
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "has a token").await;
    assert!(is_blocked(
        bot.remember(fact(ANN, &telling_a_secret())).await
    ));
    assert!(is_blocked(bot.remember(tagged()).await));
    for patch in [content(telling_a_secret()), tags(token())] {
        assert!(is_blocked(
            bot.memories
                .facts
                .update(&bot.tenant, id, None, patch)
                .await
        ));
    }
    bot.tell("s", ANN, &telling_a_secret()).await;
    let turn = RememberRequest {
        source: super::from("s", &[1]),
        ..fact(ANN, "")
    };
    assert!(
        is_blocked(bot.remember(turn).await),
        "also in what a turn says"
    );
    let lease = lease(&bot).await;
    for fact in [
        extracted(telling_a_secret(), Vec::new()),
        extracted("x".into(), vec![token()]),
    ] {
        let facts = vec![extracted("a good one".to_owned(), Vec::new()), fact];
        assert!(is_blocked(
            bot.memories
                .learning
                .commit(&bot.tenant, lease, facts)
                .await
        ));
    }
    assert_eq!(
        bot.listed(ANN).await,
        ["has a token"],
        "nothing of a commit that is refused"
    );
}

#[tokio::test(start_paused = true)]
async fn redacted_secrets_are_counted_and_removed() {
    let world = under(SecretPolicy::Redact);
    let bot = acme(&world.open().await);
    let done = bot.remember(fact(ANN, &telling_a_secret())).await.unwrap();
    assert_eq!(done.redacted, 1);
    assert!(
        done.memory
            .content
            .starts_with("the deploy token is [redacted"),
        "{done:?}"
    );
    let id = done.memory.id;
    let done = bot.remember(tagged()).await.unwrap();
    assert_eq!(
        (done.redacted, done.memory.tags[0].contains("[redacted")),
        (1, true)
    );
    for patch in [content(telling_a_secret()), tags(token())] {
        let (_, found) = bot
            .memories
            .facts
            .update(&bot.tenant, id, None, patch)
            .await
            .unwrap();
        assert_eq!(found, 1);
    }
    bot.tell("s", ANN, "hello").await;
    let facts = vec![extracted(telling_a_secret() + " today", vec![token()])];
    let commit = bot
        .memories
        .learning
        .commit(&bot.tenant, lease(&bot).await, facts)
        .await;
    assert_eq!(commit.unwrap().results[0].redacted, 2);
    let dump = format!("{:?}", bot.list_of(None, true).await);
    assert!(!dump.contains(&token()), "{dump}");
    let counted = bot.memories.counts(&bot.tenant.id).redacted;
    assert_eq!(counted, 6, "of updates as well");
}

#[tokio::test(start_paused = true)]
async fn import_with_secret_is_rejected_and_without_is_exact() {
    let world = under(SecretPolicy::Redact);
    let bot = acme(&world.open().await);
    bot.remember(fact(ANN, &telling_a_secret())).await.unwrap();
    bot.remember(tagged()).await.unwrap();
    let exported = bot.list_of(None, true).await;
    let forget = memoird_memories::ForgetRequest::Subject(subject(ANN));
    bot.forget(forget).await.unwrap();
    let import = async |memories: Vec<_>| bot.memories.facts.import(&bot.tenant, memories).await;
    for spoilt in 0..2 {
        let mut memories = exported.clone();
        match spoilt {
            0 => memories[1].content = telling_a_secret(),
            _ => memories[1].tags = vec![token()],
        }
        assert!(is_blocked(import(memories).await));
        assert!(bot.list_of(None, true).await.is_empty());
    }
    let first = import(exported.clone()).await.unwrap();
    assert_eq!((first.added, first.skipped), (2, 0));
    assert_eq!(bot.list_of(None, true).await, exported);
    let again = import(exported).await.unwrap();
    assert_eq!((again.added, again.skipped), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn allowed_secrets_are_stored_unchanged() {
    let world = under(SecretPolicy::Allow);
    let bot = acme(&world.open().await);
    bot.learn(ANN, &telling_a_secret()).await;
    assert_eq!(bot.listed(ANN).await, [telling_a_secret()]);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_not_sent_to_embedder() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.remember(fact(ANN, &telling_a_secret())).await.unwrap();
    bot.recall(query(ANN, &telling_a_secret())).await.unwrap();
    settle().await;
    assert!(embedder.calls() >= 2 && !embedder.saw(&token()));
}
