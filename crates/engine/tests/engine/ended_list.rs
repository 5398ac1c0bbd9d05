//! Lists of ended generations, alone and merged with the live sessions.

use std::collections::BTreeSet;

use memoird_core::change::EndReason;
use memoird_core::ids::{Generation, Subject};
use memoird_core::session::AppendCommand;
use memoird_engine::{
    Durability, EngineError, SessionListPosition, SessionOrder, SessionPage, SessionQuery,
    SessionState, SessionView,
};
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::kit::{ACME, Dice, TTL, World, capped, poll_once, settle, unswept};
use crate::listing::all;

const ORDERS: [SessionOrder; 3] = [SessionOrder::Newest, SessionOrder::Oldest, SessionOrder::Id];

fn ended() -> SessionQuery {
    SessionQuery {
        state: SessionState::Ended,
        ..all()
    }
}

fn any(order: SessionOrder) -> SessionQuery {
    SessionQuery {
        state: SessionState::Any,
        order,
        ..all()
    }
}

fn ids(views: &[SessionView]) -> Vec<&str> {
    views.iter().map(|view| view.session.as_str()).collect()
}

fn generations(views: &[SessionView]) -> Vec<Generation> {
    views.iter().map(|view| view.head.generation).collect()
}

async fn page(
    bot: &Bot,
    query: &SessionQuery,
    after: Option<&SessionListPosition>,
    count: usize,
) -> SessionPage {
    let commands = &bot.engine.commands;
    let page = commands.sessions(&bot.tenant, query, after, count);
    page.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_end_is_listed_with_its_reason() {
    let mut config = unswept();
    config.tenants = vec![capped(ACME, 3)];
    let world = World::new(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for id in ["evicted", "reset", "ended", "expired"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    bot.patch("reset", r#"{"a":1}"#, None).await.unwrap();
    settle().await;
    bot.reset("reset").await.unwrap();
    settle().await;
    let before = bot.view("ended").await.unwrap();
    bot.end("ended").await.unwrap();
    let end = engine.machine.now().wall;
    sleep(TTL).await;
    engine.sessions.sweep(None).await.unwrap();
    let views = bot.views_of(&ended(), 2).await;
    let reasons: Vec<_> = views
        .iter()
        .map(|view| (view.session.as_str(), view.ended.unwrap().1))
        .collect();
    // Both sessions expired in the same sweep.
    assert_eq!(
        reasons[2..],
        [
            ("ended", EndReason::Ended),
            ("reset", EndReason::Reset),
            ("evicted", EndReason::Evicted),
        ]
    );
    let mut expired = reasons[..2].to_vec();
    expired.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(
        expired,
        [
            ("expired", EndReason::Expired),
            ("reset", EndReason::Expired)
        ]
    );
    let view = &views[2];
    assert_eq!(view.head.generation, before.head.generation);
    assert_eq!(view.head.totals, before.head.totals);
    assert_eq!((view.ended.unwrap().0, view.expires_at), (end, None));
    assert_eq!(bot.list().await, Vec::<String>::new());
    let states = engine
        .commands
        .states_of_ended(&bot.tenant, generations(&views))
        .await;
    let states: Vec<_> = states.unwrap().into_iter().collect();
    assert_eq!(states, [(views[3].head.generation, r#"{"a":1}"#.into())]);
}

#[tokio::test(start_paused = true)]
async fn any_list_matches_sorted_union() {
    for seed in 1..=4 {
        println!("seed {seed}");
        let world = World::new(unswept());
        let mut bot = Bot::acme(&world.open().await);
        let mut dice = Dice(seed);
        for round in 0..150 {
            if dice.once_in(2) {
                settle().await;
            }
            let id = format!("{}{}", dice.one_of(&["a", "ab", "b"]), dice.below(9));
            match dice.below(6) {
                0 | 1 => drop(bot.end(&id).await),
                2 => drop(bot.reset(&id).await),
                3 => drop(bot.label(&id, "app", "x").await.unwrap()),
                _ => {
                    let command = AppendCommand {
                        subject: Subject::parse(dice.one_of::<&str>(&["ann", "bob"])).ok(),
                        ..saying(&["hello"])
                    };
                    bot.append(&id, command).await.unwrap();
                }
            }
            if round == 100 {
                bot.engine.close().await;
                bot = Bot::acme(&world.open().await);
            }
        }
        for _ in 0..40 {
            let order = *dice.one_of(&ORDERS);
            let mut query = SessionQuery {
                id_prefix: (*dice.one_of(&["", "a", "ab1"])).into(),
                ..any(order)
            };
            if dice.once_in(3) {
                query.subject = Subject::parse("ann").ok();
            }
            if dice.once_in(3) {
                query.labels.insert("app".into(), "x".into());
            }
            let of_state = async |state| {
                let query = SessionQuery {
                    state,
                    ..query.clone()
                };
                bot.views_of(&query, 1_000).await
            };
            let live = of_state(SessionState::Live).await;
            let ended = of_state(SessionState::Ended).await;
            assert!(live.iter().all(|view| view.ended.is_none()));
            assert!(ended.iter().all(|view| view.ended.is_some()));
            let both: BTreeSet<_> = [generations(&live), generations(&ended)]
                .concat()
                .into_iter()
                .collect();
            for page_size in [1, 3, 1_000] {
                let found = bot.views_of(&query, page_size).await;
                let context = format!("seed {seed}: {query:?} in pages of {page_size}");
                assert_eq!(found.len(), both.len(), "{context}");
                let names: BTreeSet<_> = generations(&found).into_iter().collect();
                assert_eq!(names, both, "{context}");
                let at = |view: &SessionView| view.ended.map_or(view.last_access, |(at, _)| at);
                let is_sorted = match order {
                    SessionOrder::Newest => found.is_sorted_by(|one, two| at(one) >= at(two)),
                    SessionOrder::Oldest => found.is_sorted_by_key(at),
                    SessionOrder::Id => found.is_sorted_by_key(|view| {
                        (
                            view.session.clone(),
                            view.ended.is_none(),
                            view.ended.map(|(at, _)| at),
                        )
                    }),
                };
                assert!(is_sorted, "{context}");
                // Each part is in its own order.
                let (ended_found, live_found): (Vec<_>, Vec<_>) =
                    found.into_iter().partition(|view| view.ended.is_some());
                assert_eq!(generations(&ended_found), generations(&ended), "{context}");
                assert_eq!(generations(&live_found), generations(&live), "{context}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_that_ends_between_pages_is_not_missed() {
    for order in ORDERS {
        let engine = World::new(unswept()).open().await;
        let bot = Bot::acme(&engine);
        for id in ["a", "b", "c", "d", "e", "f"] {
            settle().await;
            bot.say(id, "hello").await.unwrap();
        }
        settle().await;
        bot.end("b").await.unwrap();
        bot.end("e").await.unwrap();
        let query = any(order);
        let first = page(&bot, &query, None, 3).await;
        settle().await;
        // One that was listed, and one that was not.
        for id in ["a", "f"] {
            bot.end(id).await.unwrap();
        }
        let rest = page(&bot, &query, first.next.as_ref(), 100).await;
        assert_eq!(rest.next, None);
        let mut found = [ids(&first.sessions), ids(&rest.sessions)].concat();
        match order {
            // What ends now is before the first page.
            SessionOrder::Newest => assert_eq!(found, ["e", "b", "f", "d", "c"]),
            // What ends now is after the last page, also if it was listed as live before.
            SessionOrder::Oldest => assert_eq!(found, ["a", "c", "d", "b", "e", "a", "f"]),
            SessionOrder::Id => {
                found.dedup();
                assert_eq!(found, ["a", "b", "c", "d", "e", "f"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_that_ends_during_a_call_is_listed_once() {
    let world = World::with_pool(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    bot.say("b", "hello").await.unwrap();
    // The live sessions are read, and then the list waits for the journal.
    let commits = world.store.commits();
    world.store.hold_journals();
    let query = any(SessionOrder::Id);
    let mut listed = Box::pin(bot.views_of(&query, 10));
    assert!(poll_once(&mut listed).await.is_none());
    world.store.journal_begun(1).await;
    bot.end("a").await.unwrap();
    assert_eq!(world.store.commits(), commits + 1);
    world.store.let_journals_go();
    let listed = listed.await;
    assert_eq!(ids(&listed), ["a", "b"]);
    assert!(listed[0].ended.is_some() && listed[1].ended.is_none());
}

#[tokio::test(start_paused = true)]
async fn cut_page_continues_in_both_parts() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    for id in ["a", "b", "c", "d", "e", "f"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
        if id < "d" {
            bot.end(id).await.unwrap();
            bot.say(id, "again").await.unwrap();
        }
    }
    for order in ORDERS {
        let query = any(order);
        let whole = page(&bot, &query, None, 20).await.sessions;
        assert_eq!(whole.len(), 9);
        for count in 1..9 {
            let mut first = page(&bot, &query, None, 8).await;
            first.cut(count);
            let rest = page(&bot, &query, first.next.as_ref(), 20).await;
            assert_eq!(rest.next, None);
            let found = [generations(&first.sessions), generations(&rest.sessions)].concat();
            assert_eq!(found, generations(&whole), "{order:?} cut to {count}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn other_tenants_generations_are_not_listed() {
    let mut config = unswept();
    config.tenants.push(capped("umbrella", 9));
    let engine = World::new(config).open().await;
    let (acme, other) = (Bot::acme(&engine), Bot::new(&engine, "umbrella"));
    acme.say("a", "hello").await.unwrap();
    acme.end("a").await.unwrap();
    assert_eq!(acme.list_of(&ended(), 3).await, ["a"]);
    assert_eq!(other.list_of(&ended(), 3).await, Vec::<String>::new());
    assert_eq!(
        other.list_of(&any(SessionOrder::Id), 3).await,
        Vec::<String>::new()
    );
}

#[tokio::test(start_paused = true)]
async fn list_of_ended_generations_fails_without_journal() {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    for state in [SessionState::Ended, SessionState::Any] {
        let query = SessionQuery { state, ..all() };
        let listed = engine.commands.sessions(&bot.tenant, &query, None, 10);
        assert!(matches!(listed.await, Err(EngineError::JournalOff)));
    }
    assert_eq!(bot.list().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn end_under_interval_durability_is_listed_at_once() {
    let mut config = unswept();
    config.journal.durability = Durability::Interval;
    let engine = World::with_pool(config).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    bot.end("a").await.unwrap();
    assert_eq!(bot.list_of(&ended(), 3).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn list_waits_for_end_being_written() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    let mut end = Box::pin(bot.end("a"));
    assert!(poll_once(&mut end).await.is_none());
    let query = any(SessionOrder::Newest);
    let mut listed = Box::pin(bot.views_of(&query, 10));
    assert!(poll_once(&mut listed).await.is_none());
    end.await.unwrap();
    let listed = listed.await;
    assert_eq!(ids(&listed), ["a"]);
    assert!(listed[0].ended.is_some());
}
