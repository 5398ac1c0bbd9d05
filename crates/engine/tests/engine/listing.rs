//! Lists of live sessions: the order, the pages.

use memoird_core::time::Steady;

use crate::bot::Bot;
use crate::kit::{World, session_id, settle, unswept};

#[tokio::test(start_paused = true)]
async fn a_list_has_every_session_once_most_recently_used_first() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in 0..20 {
        // Pairs are used in the same millisecond.
        if id % 2 == 0 {
            settle().await;
        }
        bot.say(&id.to_string(), "hello").await.unwrap();
    }
    settle().await;
    bot.say("7", "again").await.unwrap();
    bot.patch("3", "{}", None).await.unwrap();
    bot.end("12").await.unwrap();
    let expected = [
        3, 7, 19, 18, 17, 16, 15, 14, 13, 11, 10, 9, 8, 6, 5, 4, 2, 1, 0,
    ];
    for page_size in [1, 2, 3, 5, 18, 19, 20, 1_000] {
        let views = bot.views(page_size).await;
        let ids: Vec<u64> = views
            .iter()
            .map(|v| v.session.as_str().parse().unwrap())
            .collect();
        assert_eq!(ids, expected, "in pages of {page_size}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_where_it_was_although_its_last_session_was_used_or_ended() {
    for change in ["use", "end"] {
        let engine = World::new(unswept()).open().await;
        let bot = Bot::acme(&engine);
        for id in ["a", "b", "c", "d", "e"] {
            settle().await;
            bot.say(id, "hello").await.unwrap();
        }
        let page = engine.commands.sessions(&bot.tenant, None, 2).await;
        let (last, last_access) = page.next.unwrap();
        assert_eq!(last.as_str(), "d");
        settle().await;
        match change {
            "use" => drop(bot.say("d", "again").await.unwrap()),
            _ => drop(bot.end("d").await.unwrap()),
        }
        let rest = engine
            .commands
            .sessions(&bot.tenant, Some((&last, last_access)), 10)
            .await;
        let ids: Vec<_> = rest
            .sessions
            .iter()
            .map(|view| view.session.as_str())
            .collect();
        assert_eq!(ids, ["c", "b", "a"], "after {change}");
        assert!(rest.next.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_misses_nobody_of_the_millisecond_whose_last_session_was_used() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c", "d"] {
        bot.say(id, "hello").await.unwrap();
    }
    let page = engine.commands.sessions(&bot.tenant, None, 2).await;
    let (last, last_access) = page.next.unwrap();
    settle().await;
    bot.say(last.as_str(), "again").await.unwrap();
    let rest = engine
        .commands
        .sessions(&bot.tenant, Some((&last, last_access)), 10)
        .await;
    let ids: Vec<_> = rest
        .sessions
        .iter()
        .map(|view| view.session.as_str())
        .collect();
    assert!(ids.ends_with(&["b", "a"]), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn a_list_behind_the_end_of_time_is_empty() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    settle().await;
    bot.say("a", "hello").await.unwrap();
    let behind = (&session_id("a"), Steady(0));
    assert!(
        engine
            .commands
            .sessions(&bot.tenant, Some(behind), 10)
            .await
            .sessions
            .is_empty()
    );
    assert!(
        engine
            .commands
            .sessions(&bot.tenant, None, 0)
            .await
            .next
            .is_none()
    );
}
