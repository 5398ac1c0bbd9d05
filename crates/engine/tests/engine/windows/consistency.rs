//! A window shows only committed turns, and its decisions persist.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::CoreError;
use memoird_engine::{ContextRequest, EngineError};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{TAIL, asking, long, model, one_model, peeking, texts, with_models};
use crate::bot::{Bot, saying};
use crate::kit::{Dice, TTL, World, one_by_one, poll_once, settle, soon, unswept};
use crate::seeds::seeds;

fn is_not_found<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::SessionNotFound { .. }))
}

#[tokio::test(start_paused = true)]
async fn context_call_appends_and_returns_window() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for (n, text) in ["one", "two"].into_iter().enumerate() {
        let request = ContextRequest {
            append: Some(saying(&[text])),
            ..ContextRequest::default()
        };
        let answer = bot.context("a", request).await.unwrap();
        let appended = answer.appended.unwrap();
        let seq = n as u64 + 1;
        assert_eq!(
            (appended.record.first_seq, answer.session.head.last_seq),
            (seq, seq)
        );
        assert_eq!(texts(&answer.turns), ["one", "two"][..=n]);
        assert_eq!(world.store.record().live.len(), 1, "the append is written");
    }
    let stats = bot.stats();
    assert_eq!((stats.windows.built, stats.turns_appended), (2, 2));
    assert!(is_not_found(&bot.window("nobody").await));
}

#[tokio::test(start_paused = true)]
async fn invalid_window_request_appends_nothing() {
    let engine = World::new(one_model()).open().await;
    let bot = Bot::acme(&engine);
    let append = || Some(saying(&["one"]));
    let unknown = ContextRequest {
        append: append(),
        ..asking("unknown", 9)
    };
    let refused = bot.context("a", unknown).await;
    assert!(matches!(
        refused,
        Err(EngineError::Core(CoreError::UnknownModel { known, .. })) if known == ["large"]
    ));
    let empty = ContextRequest {
        append: append(),
        ..asking("large", 0)
    };
    let refused = bot.context("a", empty).await;
    assert!(matches!(
        refused,
        Err(EngineError::Core(CoreError::BudgetNotPositive { .. }))
    ));
    assert!(bot.list().await.is_empty());
    // The append succeeds although the window is refused as too small.
    let small = ContextRequest {
        append: append(),
        ..asking("large", 5)
    };
    let refused = bot.context("a", small).await;
    assert!(matches!(
        refused,
        Err(EngineError::Core(CoreError::CurrentTurnTooLarge { .. }))
    ));
    assert_eq!(bot.live("a").await.unwrap(), ["one"]);
    assert_eq!(
        (bot.stats().windows.refused, bot.stats().windows.built),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn window_waits_for_uncommitted_turns_and_omits_failed_ones() {
    for fails in [false, true] {
        let world = World::new(one_model());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("a", "old").await.unwrap();
        assert_eq!(bot.window("a").await.unwrap(), ["old"]);
        settle().await;
        world.store.fail_commits(usize::from(fails));
        let mut appends = [Box::pin(bot.say("a", "new")), Box::pin(bot.say("n", "new"))];
        for append in &mut appends {
            assert!(poll_once(append).await.is_none());
        }
        let (mut window, mut new) = (Box::pin(bot.window("a")), Box::pin(bot.window("n")));
        let mut peek = Box::pin(bot.context("a", peeking()));
        assert!(poll_once(&mut window).await.is_none());
        assert!(poll_once(&mut peek).await.is_none());
        assert!(poll_once(&mut new).await.is_none());
        for append in appends {
            assert_eq!(soon(append).await.is_err(), fails);
        }
        let shown: &[&str] = if fails { &["old"] } else { &["old", "new"] };
        assert_eq!(soon(window).await.unwrap(), shown);
        assert_eq!(texts(&soon(peek).await.unwrap().turns), shown);
        if fails {
            assert!(is_not_found(&soon(new).await));
        } else {
            assert_eq!(soon(new).await.unwrap(), ["new"]);
        }
        settle().await;
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn window_error_waits_for_commit_of_oversized_turn() {
    for fails in [false, true] {
        let world = World::new(one_model());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("a", "old").await.unwrap();
        world.store.fail_commits(usize::from(fails));
        let large = long(1);
        let mut append = Box::pin(bot.say("a", &large));
        assert!(poll_once(&mut append).await.is_none());
        let mut pending = Box::pin(bot.context("a", asking("large", 60)));
        assert!(
            poll_once(&mut pending).await.is_none(),
            "it saw what is not written"
        );
        assert_eq!(soon(append).await.is_err(), fails);
        let window = soon(pending).await;
        assert_eq!(window.is_ok(), fails, "{window:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cut_whose_commit_fails_loses_no_turn() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let said: Vec<String> = (0..20).map(long).collect();
    for text in &said {
        bot.say("a", text).await.unwrap();
    }
    sleep(TTL / 2).await;
    world.store.fail_commits(1);
    let request = || ContextRequest {
        policy: Some(TAIL),
        ..asking("large", 900)
    };
    let first = bot.context("a", request()).await.unwrap();
    assert!(texts(&first.turns).contains(&"...".to_owned()));
    settle().await;
    assert_eq!(
        engine.stats().commit_failures,
        1,
        "the touch that carried the cut"
    );
    assert_eq!(bot.live("a").await.unwrap(), said);
    let again = bot.context("a", request()).await.unwrap();
    assert_eq!(
        texts(&again.turns),
        texts(&first.turns),
        "the same is decided again"
    );
    settle().await;
    assert_eq!(bot.say("a", "more").await.unwrap().record.first_seq, 21);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn cut_survives_restarts() {
    let world = World::new(one_model());
    let mut engine = world.open().await;
    for text in (0..20).map(long) {
        Bot::acme(&engine).say("a", &text).await.unwrap();
    }
    let request = || ContextRequest {
        policy: Some(TAIL),
        ..asking("large", 900)
    };
    let mut before: Vec<String> = Vec::new();
    let (mut cuts, mut growths) = (0, 0);
    for number in 20..60 {
        Bot::acme(&engine).say("a", &long(number)).await.unwrap();
        let shown = Bot::acme(&engine).context("a", request()).await.unwrap();
        let now = texts(&shown.turns);
        if now.len() > before.len() {
            assert!(
                now.starts_with(&before),
                "{now:?} is not {before:?} and more"
            );
            growths += 1;
        } else {
            cuts += 1;
        }
        before = now;
        if number % 2 == 0 {
            settle().await;
            engine.close().await;
            engine = world.open().await;
        }
    }
    assert!(
        cuts >= 4 && growths > 2 * cuts,
        "{cuts} cuts and {growths} growths"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_session_has_no_window() {
    let world = World::new(one_model());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    sleep(TTL - Duration::from_millis(1)).await;
    assert!(bot.window("a").await.is_ok());
    sleep(TTL - Duration::from_millis(1)).await;
    assert!(bot.context("a", peeking()).await.is_ok());
    sleep(Duration::from_millis(1)).await;
    assert!(is_not_found(&bot.context("a", peeking()).await));
    assert!(is_not_found(&bot.window("a").await));
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 0));
    // With an append in the same call, a new generation starts.
    let request = ContextRequest {
        append: Some(saying(&["new"])),
        ..ContextRequest::default()
    };
    assert_eq!(
        texts(&bot.context("a", request).await.unwrap().turns),
        ["new"]
    );
}

#[tokio::test(start_paused = true)]
async fn late_token_count_is_not_used_for_another_turn() {
    let tokenizer = Arc::default();
    let mut config = with_models(unswept(), vec![model("large", 1_000_000, &tokenizer)]);
    config.journal = one_by_one();
    let world = World::with_pool(config);
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "old").await.unwrap();
    let large = format!("wait{}", "x".repeat(40_000));
    world.store.hold_commits();
    tokenizer.set_closed(true);
    let mut calls = JoinSet::new();
    let (speaker, looker) = (bot.clone(), bot.clone());
    calls.spawn(async move { speaker.say("a", &large).await.is_ok() });
    world.store.commit_begun(2).await;
    calls.spawn(async move { looker.window("a").await.is_ok() });
    while tokenizer
        .asked
        .lock()
        .unwrap()
        .iter()
        .all(|text| !text.contains("wait"))
    {
        tokio::task::yield_now().await;
    }
    world.store.fail_commits(1);
    world.store.let_commits_go();
    assert!(
        !calls.join_next().await.unwrap().unwrap(),
        "the large turn was never written"
    );
    bot.say("a", "new").await.unwrap();
    let before = bot.context("a", ContextRequest::default()).await.unwrap();
    assert!(before.report.blocks.total() < 100, "{:?}", before.report);
    tokenizer.set_closed(false);
    assert!(calls.join_next().await.unwrap().unwrap());
    let after = bot.context("a", ContextRequest::default()).await.unwrap();
    assert_eq!(after.report.blocks, before.report.blocks);
}

#[tokio::test(start_paused = true)]
async fn models_are_reconfigured_under_traffic() {
    for seed in seeds(10) {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let tokenizer = Arc::default();
        let with = |names: &[&str], size: u64| {
            let models = names
                .iter()
                .map(|name| model(name, size, &tokenizer))
                .collect();
            with_models(unswept(), models)
        };
        let engine = World::new(with(&["m", "n"], 10_000)).open().await;
        let mut calls = JoinSet::new();
        for call in 0..200_u32 {
            let bot = Bot::acme(&engine);
            let name = *dice.one_of(&["m", "n", ""]);
            let (session, wait) = (format!("s{}", dice.below(4)), dice.below(20_000));
            calls.spawn(async move {
                sleep(Duration::from_millis(wait)).await;
                let text = call.to_string();
                let append = Some(saying(&[&text]));
                let request = ContextRequest {
                    append,
                    model: name.into(),
                    ..Default::default()
                };
                match bot.context(&session, request).await {
                    Ok(answer) => {
                        let appended = answer.appended.unwrap().record.last_seq;
                        assert!(answer.session.head.last_seq >= appended);
                        let newest = texts(&answer.turns).pop();
                        assert!(answer.session.head.last_seq > appended || newest == Some(text));
                        assert!(answer.report.blocks.total() <= answer.report.input_budget);
                        assert!(name.is_empty() || answer.report.model == name);
                    }
                    Err(EngineError::Core(CoreError::UnknownModel { model, known })) => {
                        assert_eq!((&*model, known), ("n", vec!["m".to_owned()]));
                    }
                    Err(other) => panic!("{other}"),
                }
            });
        }
        for round in 0..20 {
            sleep(Duration::from_millis(dice.below(2_000))).await;
            let names: &[&str] = if round % 2 == 0 { &["m"] } else { &["n", "m"] };
            engine
                .reconfigure(with(names, *dice.one_of(&[300, 900, 10_000])))
                .await;
        }
        calls.join_all().await;
    }
}
