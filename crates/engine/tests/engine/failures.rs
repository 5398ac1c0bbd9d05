//! Failed commits: which calls fail, and the state afterwards.

use std::time::Duration;

use memoird_core::change::{Change, ChangeKind, ChangeSet, PatchedState};
use memoird_core::ids::SessionKey;
use memoird_core::time::Steady;
use memoird_engine::{EngineError, SessionQuery};
use memoird_store::Store;
use tokio::time::sleep;

use crate::bot::{Bot, named};
use crate::kit::{
    TTL, World, config, one_by_one, poll_once, session_id, settle, soon, unswept, unswept_with_cap,
};
use crate::store::Fate;

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn next_call_after_failed_append_sees_journal_state() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "one").await.unwrap();
    world.store.fail_commits(1);
    assert!(matches!(
        bot.say("a", "lost").await,
        Err(EngineError::JournalFull)
    ));
    assert_eq!(bot.say("a", "two").await.unwrap().record.first_seq, 2);
    assert_eq!(bot.live("a").await.unwrap(), ["one", "two"]);
    assert_eq!(bot.journal("a", None).await.unwrap(), ["one", "two"]);
    assert_eq!(
        (bot.stats().turns_appended, bot.stats().sessions_created),
        (2, 1)
    );
    assert_eq!(engine.stats().commit_failures, 1);
    bot.recount().await;
}

/// Another process takes over the database and commits the version that failed here.
#[tokio::test(start_paused = true)]
async fn change_built_on_failed_commit_is_rebased_on_other_process() {
    let mut config = unswept();
    config.journal = one_by_one();
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "one").await.unwrap();
    let before = bot.view("a").await.unwrap().head;
    world.store.hold_commits();
    let mut failed = Box::pin(bot.patch("a", r#"{"lost":1}"#, None));
    assert!(poll_once(&mut failed).await.is_none());
    world.store.commit_begun(2).await;
    let mut built_on = Box::pin(bot.patch("a", r#"{"mine":1}"#, None));
    assert!(poll_once(&mut built_on).await.is_none());
    world.store.fail_commits(1);
    world.store.let_one_commit_go();
    assert!(matches!(failed.await, Err(EngineError::JournalFull)));
    world.store.commit_begun(3).await;
    let theirs = PatchedState {
        key: SessionKey {
            tenant: bot.tenant.id.clone(),
            session: session_id("a"),
        },
        state_json: r#"{"theirs":1}"#.into(),
        version: 1,
        last_access: before.last_access,
        idempotency: None,
    };
    let set = ChangeSet {
        changes: vec![Change {
            generation: before.generation,
            expected_revision: before.revision,
            kind: ChangeKind::PatchState(Box::new(theirs)),
        }],
    };
    let elsewhere = world.store.elsewhere(9);
    let written = elsewhere.commit(&engine.machine.anchor(), &[set]).unwrap();
    assert_eq!(written, [Ok(())]);
    world.store.let_commits_go();
    let state = soon(built_on).await.unwrap();
    assert_eq!(&*state.json, r#"{"theirs":1,"mine":1}"#);
}

#[tokio::test(start_paused = true)]
async fn changes_built_on_failed_commit_are_retried() {
    let mut config = unswept();
    config.journal = one_by_one();
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        bot.say(id, "one").await.unwrap();
    }
    world.store.fail_commits(1);
    let mut failed = Box::pin(bot.say("a", "lost"));
    let mut built_on = Box::pin(bot.say("a", "two"));
    let mut patched = Box::pin(bot.patch("a", r#"{"a":1}"#, None));
    let mut ended = Box::pin(bot.end("a"));
    let mut restarted = Box::pin(bot.say("a", "anew"));
    let mut other = Box::pin(bot.say("b", "two"));
    assert!(poll_once(&mut failed).await.is_none());
    assert!(poll_once(&mut built_on).await.is_none());
    assert!(poll_once(&mut patched).await.is_none());
    assert!(poll_once(&mut ended).await.is_none());
    assert!(poll_once(&mut restarted).await.is_none());
    assert!(poll_once(&mut other).await.is_none());
    assert!(matches!(failed.await, Err(EngineError::JournalFull)));
    assert_eq!(built_on.await.unwrap().record.first_seq, 2);
    assert_eq!(patched.await.unwrap().version, 1);
    assert_eq!(ended.await.unwrap().head.last_seq, 2);
    assert_eq!(restarted.await.unwrap().record.first_seq, 1);
    assert!(other.await.is_ok());
    settle().await;
    assert_eq!(bot.live("a").await.unwrap(), ["anew"]);
    let stats = bot.stats();
    assert_eq!(
        (stats.sessions_created, stats.ended, stats.turns_appended),
        (3, 1, 5)
    );
    assert_eq!(bot.list().await, ["a", "b"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn end_whose_commit_fails_is_undone() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    settle().await;
    world.store.fail_commits(1);
    assert!(matches!(bot.end("b").await, Err(EngineError::JournalFull)));
    settle().await;
    assert_eq!(bot.list().await, ["c", "b", "a"], "in its old place");
    let stats = bot.stats();
    assert_eq!(
        (stats.ended, stats.sessions_live, stats.turns_live),
        (0, 3, 3)
    );
    assert_eq!(bot.say("b", "again").await.unwrap().record.first_seq, 2);
    bot.recount().await;
    bot.end("b").await.unwrap();
    assert_eq!((bot.stats().ended, bot.stats().sessions_live), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn reset_and_patch_whose_commit_fails_are_undone() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    bot.patch("a", r#"{"a":1}"#, None).await.unwrap();
    world.store.fail_commits(2);
    assert!(bot.reset("a").await.is_err());
    assert!(bot.patch("a", r#"{"a":2}"#, None).await.is_err());
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    assert_eq!(
        &*bot.patch("a", "{}", Some(1)).await.unwrap().json,
        r#"{"a":1}"#
    );
    assert_eq!((bot.stats().sessions_created, bot.stats().ended), (1, 0));
    bot.recount().await;
}

/// The end fails while the next generation is already starting.
///
/// A start with an idempotency key first reads the journal, one without a key goes straight on.
#[tokio::test(start_paused = true)]
async fn failed_end_during_next_start_keeps_session_whole() {
    for named_start in [false, true] {
        for batch_sets in [1, 100] {
            let mut config = config();
            config.journal.batch_sets = batch_sets;
            let world = World::new(config);
            let engine = world.open().await;
            let bot = Bot::acme(&engine);
            let said = bot.append("a", named("earlier", &["old"])).await.unwrap();
            world.store.fail_commits(1);
            let command = if named_start {
                named("key", &["x"])
            } else {
                crate::bot::saying(&["x"])
            };
            let mut end = Box::pin(bot.end("a"));
            let mut start = Box::pin(bot.append("a", command));
            assert!(poll_once(&mut end).await.is_none());
            assert!(poll_once(&mut start).await.is_none());
            assert!(end.await.is_err());
            // A start in the same transaction as the end fails with it. Otherwise it is retried,
            // and continues the generation whose end failed.
            let started = soon(start).await.is_ok();
            assert_eq!(started, named_start || batch_sets == 1);
            settle().await;

            let view = bot.view("a").await.unwrap();
            assert_eq!(view.head.generation, said.record.generation);
            assert_eq!(
                bot.list().await,
                ["a"],
                "named: {named_start}, batch: {batch_sets}"
            );
            let turns: &[&str] = if started { &["old", "x"] } else { &["old"] };
            assert_eq!(bot.live("a").await.unwrap(), turns);
            bot.recount().await;
            assert_eq!(bot.stats().sessions_live, 1);
            sleep(TTL + TTL / 4).await;
            assert_eq!(
                (bot.stats().sessions_live, bot.stats().expired),
                (0, 1),
                "it lives for ever"
            );
            assert_eq!((bot.stats().turns_live, bot.stats().bytes_live), (0, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn failed_sweep_is_retried() {
    let world = World::new(config());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    world.store.fail_commits(1);
    sleep(TTL + MS).await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (0, 1));
    sleep(TTL / 4 + 200 * MS).await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_starts_do_not_count_against_cap() {
    let world = World::new(unswept_with_cap(2));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    world.store.fail_commits(5);
    for id in ["a", "b", "c", "d", "e"] {
        assert!(matches!(
            bot.say(id, "lost").await,
            Err(EngineError::JournalFull)
        ));
    }
    settle().await;
    let stats = bot.stats();
    assert_eq!(
        (stats.sessions_live, stats.turns_live, stats.bytes_live),
        (0, 0, 0)
    );
    assert_eq!(
        (stats.sessions_created, stats.evicted, stats.turns_appended),
        (0, 0, 0)
    );
    assert!(bot.list().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn session_over_cap_after_failed_end_is_evicted() {
    let mut config = unswept_with_cap(2);
    config.journal = one_by_one();
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    world.store.fail_commits(1);
    let mut end = Box::pin(bot.end("a"));
    let mut start = Box::pin(bot.say("c", "hello"));
    assert!(poll_once(&mut end).await.is_none());
    assert!(poll_once(&mut start).await.is_none());
    assert!(end.await.is_err());
    start.await.unwrap();
    settle().await;
    assert_eq!(
        bot.list().await,
        ["c", "b"],
        "over the cap the longest idle has to go"
    );
    assert_eq!((bot.stats().sessions_live, bot.stats().evicted), (2, 1));
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn eviction_over_cap_is_retried_with_backoff_while_disk_is_full() {
    let mut config = unswept_with_cap(2);
    config.journal = one_by_one();
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        bot.say(id, "hello").await.unwrap();
    }
    world.store.fate([Fate::Full, Fate::Written]);
    world.store.fail_commits(8);
    let before = world.store.commits();
    let mut end = Box::pin(bot.end("a"));
    let mut start = Box::pin(bot.say("c", "hello"));
    assert!(poll_once(&mut end).await.is_none());
    assert!(poll_once(&mut start).await.is_none());
    sleep(Duration::from_secs(1)).await;
    assert!(world.store.commits() - before < 8, "not in a hot loop");
    sleep(Duration::from_secs(55)).await;
    assert_eq!(bot.stats().sessions_live, 2);
}

#[tokio::test(start_paused = true)]
async fn unreadable_session_is_retried_until_readable() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    world.store.fail_commits(1);
    world.store.fail_loads(3);
    assert!(bot.end("a").await.is_err());
    assert!(matches!(
        bot.say("a", "x").await,
        Err(EngineError::JournalFailed { .. })
    ));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bot.list().await, ["b", "a"]);
    assert_eq!(bot.live("a").await.unwrap(), ["hello"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn daemon_starts_with_full_disk() {
    let mut world = World::new(config());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("expired", "hello").await.unwrap();
    sleep(TTL / 2).await;
    for id in ["a", "b", "c"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    engine.close().await;
    sleep(TTL / 2).await;

    world.config.tenants = vec![crate::kit::capped("acme", 2)];
    world.store.fail_commits(4);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    assert_eq!(bot.live("c").await.unwrap(), ["hello"]);
    assert!(bot.view("expired").await.is_err());
    sleep(TTL / 4 + Duration::from_secs(1)).await;
    assert_eq!(bot.list().await, ["c", "b"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn list_during_session_reload_is_complete() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    world.store.fail_commits(1);
    let mut append = Box::pin(bot.say("b", "lost"));
    assert!(poll_once(&mut append).await.is_none());
    let page = engine
        .commands
        .sessions(&bot.tenant, &SessionQuery::default(), None, 10)
        .await
        .unwrap();
    let mut ids: Vec<_> = page
        .sessions
        .iter()
        .map(|view| view.session.as_str())
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "b", "c"]);
    assert!(page.sessions.iter().all(|view| view.head.last_seq == 1));
    assert!(
        page.sessions
            .iter()
            .all(|view| view.head.last_access > Steady(0))
    );
}

#[tokio::test(start_paused = true)]
async fn expired_session_is_hidden_although_its_end_cannot_be_written() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL).await;
    world.store.fail_all_commits();
    let is_absent = |error: EngineError| matches!(error, EngineError::SessionNotFound { .. });
    assert!(is_absent(bot.view("a").await.unwrap_err()));
    assert!(is_absent(bot.live("a").await.unwrap_err()));
    assert!(is_absent(bot.patch("a", "{}", None).await.unwrap_err()));
    assert!(is_absent(bot.end("a").await.unwrap_err()));
    assert!(matches!(
        bot.say("a", "new").await,
        Err(EngineError::JournalFull)
    ));
    world.store.forgive();
    assert_eq!(bot.say("a", "new").await.unwrap().record.first_seq, 1);
    assert_eq!(bot.stats().expired, 1);
}
