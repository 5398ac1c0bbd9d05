//! Replies based on uncommitted changes wait for the commit, and fail if it fails.

use memoird_engine::EngineError;
use tokio::task::JoinSet;
use tokio::time::advance;

use crate::bot::{Bot, named};
use crate::kit::{TTL, World, one_by_one, poll_once, settle, soon, unswept};

fn is_not_found<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::SessionNotFound { .. }))
}

#[tokio::test(start_paused = true)]
async fn read_that_saw_uncommitted_append_waits_for_commit() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "old").await.unwrap();
    bot.say("b", "old").await.unwrap();
    let mut append = Box::pin(bot.say("a", "new"));
    assert!(poll_once(&mut append).await.is_none());

    let (mut view, mut live) = (Box::pin(bot.view("a")), Box::pin(bot.live("a")));
    let (mut journal, mut list) = (Box::pin(bot.journal("a", None)), Box::pin(bot.views(10)));
    assert!(poll_once(&mut view).await.is_none());
    assert!(poll_once(&mut live).await.is_none());
    assert!(poll_once(&mut journal).await.is_none());
    assert!(poll_once(&mut list).await.is_none());
    assert!(
        poll_once(&mut Box::pin(bot.view("b"))).await.is_some(),
        "it saw nothing of it"
    );
    assert_eq!(world.store.commits(), 2);

    append.await.unwrap();
    assert_eq!(view.await.unwrap().head.last_seq, 2);
    assert_eq!(live.await.unwrap(), ["old", "new"]);
    assert_eq!(journal.await.unwrap(), ["old", "new"]);
    assert_eq!(list.await[0].head.last_seq, 2);
    assert!(
        poll_once(&mut Box::pin(bot.view("a"))).await.is_some(),
        "there is nothing to wait for"
    );
}

#[tokio::test(start_paused = true)]
async fn read_never_returns_append_that_failed() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "old").await.unwrap();
    world.store.fail_commits(1);
    let mut appends = [Box::pin(bot.say("a", "new")), Box::pin(bot.say("n", "new"))];
    for append in &mut appends {
        assert!(poll_once(append).await.is_none());
    }
    let (mut view, mut live) = (Box::pin(bot.view("a")), Box::pin(bot.live("a")));
    let (mut new, mut listing) = (Box::pin(bot.view("n")), Box::pin(bot.views(10)));
    assert!(poll_once(&mut view).await.is_none());
    assert!(poll_once(&mut live).await.is_none());
    assert!(poll_once(&mut new).await.is_none());
    assert!(poll_once(&mut listing).await.is_none());
    for append in appends {
        assert!(matches!(append.await, Err(EngineError::JournalFull)));
    }
    assert_eq!(view.await.unwrap().head.last_seq, 1);
    assert_eq!(live.await.unwrap(), ["old"]);
    assert!(is_not_found(&new.await));
    let list = listing.await;
    let seen: Vec<_> = list
        .iter()
        .map(|v| (v.session.as_str(), v.head.last_seq))
        .collect();
    assert_eq!(seen, [("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn not_found_waits_for_uncommitted_end() {
    for fails in [false, true] {
        let world = World::new(unswept());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("a", "hello").await.unwrap();
        world.store.fail_commits(usize::from(fails));
        let mut end = Box::pin(bot.end("a"));
        assert!(poll_once(&mut end).await.is_none());
        let (mut view, mut live) = (Box::pin(bot.view("a")), Box::pin(bot.live("a")));
        let (mut patch, mut again) = (Box::pin(bot.patch("a", "{}", None)), Box::pin(bot.end("a")));
        let mut reset = Box::pin(bot.reset("a"));
        assert!(poll_once(&mut view).await.is_none());
        assert!(poll_once(&mut live).await.is_none());
        assert!(poll_once(&mut patch).await.is_none());
        assert!(poll_once(&mut reset).await.is_none());
        assert!(poll_once(&mut again).await.is_none());
        assert_eq!(soon(end).await.is_err(), fails);
        assert_eq!(is_not_found(&soon(view).await), !fails);
        assert_eq!(is_not_found(&soon(live).await), !fails);
        assert_eq!(is_not_found(&soon(patch).await), !fails);
        assert_eq!(is_not_found(&soon(reset).await), !fails);
        assert_eq!(is_not_found(&soon(again).await), !fails);
        settle().await;
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_for_original_and_fails_with_it() {
    for fails in [false, true] {
        let world = World::new(unswept());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("live", "old").await.unwrap();
        for id in ["live", "new"] {
            world.store.fail_commits(usize::from(fails));
            let mut first = Box::pin(bot.append(id, named("key", &["x"])));
            // A start first looks up its key in the journal, which does not block.
            assert!(poll_once(&mut first).await.is_none());
            let mut again = Box::pin(bot.append(id, named("key", &["x"])));
            assert!(poll_once(&mut again).await.is_none());
            assert_eq!(first.await.is_ok(), !fails);
            assert_eq!(again.await.is_ok_and(|again| again.duplicate), !fails);
            let later = bot.append(id, named("key", &["x"])).await.unwrap();
            assert_eq!(later.duplicate, !fails);
        }
        assert_eq!(bot.live("live").await.unwrap(), ["old", "x"]);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn duplicate_to_ended_session_waits_for_append_and_end() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "old").await.unwrap();
    let mut first = Box::pin(bot.append("a", named("key", &["x"])));
    let mut end = Box::pin(bot.end("a"));
    let mut again = Box::pin(bot.append("a", named("key", &["x"])));
    assert!(poll_once(&mut first).await.is_none());
    assert!(poll_once(&mut end).await.is_none());
    assert!(poll_once(&mut again).await.is_none());
    assert!(again.await.unwrap().duplicate);
    assert!(bot.list().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn duplicate_waits_although_session_expires_before_commit() {
    for fails in [false, true] {
        let mut config = unswept();
        config.journal = one_by_one();
        let world = World::with_pool(config);
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("a", "old").await.unwrap();
        world.store.hold_commits();
        let mut calls = JoinSet::new();
        let first = bot.clone();
        calls.spawn(async move { first.append("a", named("key", &["x"])).await });
        world.store.commit_begun(2).await;
        advance(TTL).await;
        let mut appending = Box::pin(bot.append("a", named("key", &["x"])));
        assert!(
            poll_once(&mut appending).await.is_none(),
            "it saw what is not written"
        );
        world.store.fail_commits(usize::from(fails));
        world.store.let_commits_go();
        assert_eq!(calls.join_next().await.unwrap().unwrap().is_ok(), !fails);
        let again = soon(appending).await;
        assert_eq!(again.is_ok_and(|again| again.duplicate), !fails);
    }
}
