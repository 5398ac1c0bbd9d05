//! Manifests are never older than the last response.

use std::time::Duration;

use memoird_core::time::Timestamp;
use memoird_engine::Machine;
use memoird_memories::rules::{MemoryKind, Patch, Visibility};
use memoird_memories::{ForgetRequest, RememberRequest};
use tokio::time::sleep;

use super::{ANN, BOB, acme, fact, subject, team, world};
use crate::world::Bot;

async fn both(bot: &Bot) -> (String, String) {
    (bot.manifest(ANN).await, bot.manifest(BOB).await)
}

#[tokio::test(start_paused = true)]
async fn manifest_shows_changes_to_affected_subjects() {
    let world = world();
    let bot = acme(&world.open().await);
    assert_eq!(both(&bot).await, (String::new(), String::new()));
    let shared = bot.learn_so(team(ANN, "meets on Monday")).await;
    let (ann, bob) = both(&bot).await;
    assert!(ann.contains("Monday") && bob.contains("Monday"));

    let update = async |patch: Patch| {
        bot.memories
            .facts
            .update(&bot.tenant, shared, None, patch)
            .await
            .unwrap();
    };
    update(Patch {
        content: Some("meets on Friday".to_owned()),
        ..Patch::default()
    })
    .await;
    assert!(both(&bot).await.1.contains("Friday"));
    update(Patch {
        visibility: Some(Visibility::Private),
        ..Patch::default()
    })
    .await;
    let (ann, bob) = both(&bot).await;
    assert!(ann.contains("Friday") && bob.is_empty(), "{bob}");
    update(Patch {
        visibility: Some(Visibility::Team),
        ..Patch::default()
    })
    .await;
    assert!(both(&bot).await.1.contains("Friday"));

    // A private memory supersedes a shared one.
    let ask = RememberRequest {
        supersedes: Some(shared),
        ..fact(ANN, "meets nobody")
    };
    let private = bot.learn_so(ask).await;
    let (ann, bob) = both(&bot).await;
    assert!(ann.contains("meets nobody") && bob.is_empty(), "{bob}");

    let mut foreign = bot.memory(private).await.unwrap();
    bot.forget(ForgetRequest::One(private)).await.unwrap();
    assert_eq!(both(&bot).await, (String::new(), String::new()));
    (foreign.subject, foreign.visibility) = (subject("carl"), Visibility::Team);
    bot.memories
        .facts
        .import(&bot.tenant, vec![foreign])
        .await
        .unwrap();
    assert!(both(&bot).await.1.contains("meets nobody"));
    bot.forget(ForgetRequest::Subject(subject("carl")))
        .await
        .unwrap();
    assert_eq!(both(&bot).await, (String::new(), String::new()));
}

#[tokio::test(start_paused = true)]
async fn expired_memories_are_not_in_a_manifest() {
    let world = world();
    let bot = acme(&world.open().await);
    let now_ms = world.machine.now().wall.as_ms();
    for (content, seconds) in [("first", 10), ("second", 20)] {
        let expires_at = Some(Timestamp::from_ms(now_ms + seconds * 1_000));
        bot.learn_so(RememberRequest {
            expires_at,
            ..fact(ANN, content)
        })
        .await;
    }
    for (seconds, lines) in [(0, 2), (9, 2), (2, 1), (8, 1), (2, 0)] {
        sleep(Duration::from_secs(seconds)).await;
        let manifest = bot
            .memories
            .recall
            .manifest(&bot.tenant, subject(ANN), 0, 0)
            .await
            .unwrap();
        assert_eq!(manifest.lines, lines, "{}", manifest.text);
        assert_eq!(bot.listed(ANN).await.len(), lines);
        assert_eq!(bot.finds(ANN, "first second").await.len(), lines);
    }
}

#[tokio::test(start_paused = true)]
async fn pinned_memories_come_first() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn_so(RememberRequest {
        importance: Some(1.0),
        ..fact(ANN, "important")
    })
    .await;
    let pinned = RememberRequest {
        pinned: true,
        importance: Some(0.0),
        ..fact(ANN, "pinned")
    };
    bot.learn_so(RememberRequest {
        kind: MemoryKind::User,
        ..pinned
    })
    .await;
    let manifest = bot.manifest(ANN).await;
    let lines: Vec<&str> = manifest.lines().collect();
    assert!(
        lines[0].contains("pinned") && lines[1].contains("important"),
        "{manifest}"
    );
}
