//! How a session starts, continues and ends.

use std::time::Duration;

use memoird_core::CoreError;
use memoird_core::change::EndReason;
use memoird_core::session::AppendCommand;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{EngineError, HistoryQuery, HistoryScope, JournalRange};
use memoird_store::encoding;
use tokio::time::sleep;

use crate::bot::{ALL, Bot, saying};
use crate::kit::{
    ACME, TTL, World, config, session_id, tenant, tenant_id, unswept, unswept_with_cap,
};

fn is_not_found<T>(answer: &Result<T, EngineError>) -> bool {
    matches!(answer, Err(EngineError::SessionNotFound { .. }))
}

#[tokio::test(start_paused = true)]
async fn first_append_starts_session_and_seqs_continue() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    assert!(is_not_found(&bot.view("a").await));

    let first = bot.append("a", saying(&["one", "two"])).await.unwrap();
    let second = bot.say("a", "three").await.unwrap();
    assert_eq!(
        (
            first.record.first_seq,
            first.record.last_seq,
            first.duplicate
        ),
        (1, 2, false)
    );
    assert_eq!((second.record.first_seq, second.record.last_seq), (3, 3));
    assert_eq!(first.record.generation, second.record.generation);
    let view = second.session.unwrap();
    assert_eq!((view.head.last_seq, view.head.totals.turns), (3, 3));
    assert_eq!(bot.live("a").await.unwrap(), ["one", "two", "three"]);
    assert_eq!(
        bot.journal("a", None).await.unwrap(),
        ["one", "two", "three"]
    );
    let stats = bot.stats();
    assert_eq!(
        (
            stats.sessions_created,
            stats.turns_appended,
            stats.turns_live
        ),
        (1, 3, 3)
    );
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn turn_is_stored_unchanged_with_seq_and_time() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    let mut plain = Turn::new(Role::User, vec![PartKind::Text("[[hello]]".into()).into()]);
    plain.timestamp = Timestamp::new(1_234, 5);
    let turn = encoding::encode(plain);
    let expected = encoding::seal(&turn, 1, Timestamp::default());
    let command = AppendCommand {
        turns: vec![turn],
        ..AppendCommand::default()
    };
    bot.append("a", command).await.unwrap();
    for scope in [HistoryScope::Live, HistoryScope::Journal] {
        let query = HistoryQuery { scope, ..ALL };
        let page = engine
            .commands
            .history(&bot.tenant, &session_id("a"), query)
            .await
            .unwrap();
        assert_eq!(page.turns, std::slice::from_ref(&expected));
    }
}

#[tokio::test(start_paused = true)]
async fn history_keeps_anchor_and_newest_turns_and_pages() {
    let mut config = config();
    config.limits.max_history_turns = 3;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    for text in ["1", "2", "3", "4", "5", "6"] {
        bot.say("a", text).await.unwrap();
    }
    assert_eq!(bot.live("a").await.unwrap(), ["1", "4", "5", "6"]);
    assert_eq!(bot.stats().turns_dropped, 2);

    let pages_of = async |scope| {
        let mut query = HistoryQuery {
            scope,
            range: JournalRange {
                turns_max: 2,
                ..JournalRange::ALL
            },
            ..ALL
        };
        let mut pages = Vec::new();
        loop {
            let (texts, next) = bot.read("a", query).await.unwrap();
            pages.push(texts.concat());
            query.range.after_seq = next;
            if next == 0 {
                return pages;
            }
        }
    };
    assert_eq!(pages_of(HistoryScope::Live).await, ["14", "56"]);
    assert_eq!(pages_of(HistoryScope::Journal).await, ["12", "34", "56"]);
    let one_byte = HistoryQuery {
        range: JournalRange {
            bytes_max: 1,
            ..JournalRange::ALL
        },
        ..ALL
    };
    assert_eq!(
        bot.read("a", one_byte).await.unwrap(),
        (vec!["1".to_owned()], 1)
    );
}

#[tokio::test(start_paused = true)]
async fn session_past_ttl_is_gone_before_the_sweep() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let mut generations = Vec::new();
    for id in [
        "viewed", "appended", "patched", "ended", "reset", "read", "listed",
    ] {
        generations.push(bot.say(id, "old").await.unwrap().record.generation);
    }
    sleep(TTL - Duration::from_millis(1)).await;
    assert!(bot.view("viewed").await.is_ok());
    sleep(Duration::from_millis(1)).await;

    assert!(bot.list().await.is_empty());
    assert!(is_not_found(&bot.view("viewed").await));
    assert!(is_not_found(&bot.patch("patched", "{}", None).await));
    assert!(is_not_found(&bot.end("ended").await));
    assert!(is_not_found(&bot.reset("reset").await));
    assert!(is_not_found(&bot.live("read").await));
    let anew = bot.say("appended", "new").await.unwrap();
    assert_eq!(anew.record.first_seq, 1);
    assert!(!generations.contains(&anew.record.generation));
    assert_eq!(bot.live("appended").await.unwrap(), ["new"]);
    assert_eq!(
        bot.journal("appended", Some(generations[1])).await.unwrap(),
        ["old"]
    );
    let stats = bot.stats();
    assert_eq!((stats.expired, stats.ended, stats.sessions_live), (6, 0, 2));

    let ended = engine.sessions.sweep(Some(&tenant_id(ACME))).await.unwrap();
    let swept: Vec<_> = ended
        .iter()
        .map(|end| (end.session.as_str(), end.reason))
        .collect();
    assert_eq!(swept, [("listed", EndReason::Expired)]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn sweeper_expires_sessions_by_itself() {
    let world = World::new(config());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    sleep(TTL / 8).await;
    bot.say("a", "hello").await.unwrap();
    sleep(TTL + TTL / 4 - Duration::from_millis(1)).await;
    let stats = bot.stats();
    assert_eq!(
        (
            stats.expired,
            stats.sessions_live,
            stats.turns_live,
            stats.bytes_live
        ),
        (1, 0, 0, 0)
    );
    assert!(world.store.record().live.is_empty());
}

#[tokio::test(start_paused = true)]
async fn refused_append_does_not_keep_expired_session() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    sleep(TTL / 8).await;
    bot.say("a", "hello").await.unwrap();
    sleep(TTL).await;
    let stale = AppendCommand {
        expected_seq: Some(7),
        ..saying(&["x"])
    };
    assert!(bot.append("a", stale).await.is_err());
    sleep(TTL / 4).await;
    assert_eq!((bot.stats().expired, bot.stats().sessions_live), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn appends_and_patches_prolong_session_and_reads_do_not() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    for id in ["appended", "patched", "looked at"] {
        bot.say(id, "hello").await.unwrap();
    }
    for _ in 0..3 {
        sleep(TTL * 2 / 5).await;
        bot.say("appended", "again").await.unwrap();
        bot.patch("patched", r#"{"a":1}"#, None).await.unwrap();
        bot.list().await;
        for id in ["appended", "patched", "looked at"] {
            let _ = (
                bot.view(id).await,
                bot.live(id).await,
                bot.journal(id, None).await,
            );
        }
    }
    assert_eq!(bot.list().await, ["patched", "appended"]);
}

#[tokio::test(start_paused = true)]
async fn view_returns_last_access_and_expiry() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let said = bot.say("a", "hello").await.unwrap().session.unwrap();
    sleep(TTL / 2).await;
    let view = bot.view("a").await.unwrap();
    assert_eq!(
        (view.last_access, view.expires_at),
        (said.last_access, said.expires_at)
    );
    let ttl_ms = i64::try_from(TTL.as_millis()).unwrap();
    assert_eq!(
        view.expires_at.unwrap().as_ms() - view.last_access.as_ms(),
        ttl_ms
    );
}

#[tokio::test(start_paused = true)]
async fn reset_clears_history_and_state_and_keeps_session() {
    let engine = World::new(unswept_with_cap(2)).open().await;
    let bot = Bot::acme(&engine);
    let said = bot.say("a", "old").await.unwrap();
    bot.patch("a", r#"{"a":1}"#, None).await.unwrap();
    let (view, ended) = bot.reset("a").await.unwrap();
    assert_eq!(ended, said.record.generation);
    assert_ne!(view.head.generation, ended);
    let head = view.head;
    assert_eq!(
        (head.last_seq, head.state_version, head.totals.turns),
        (0, 0, 0)
    );
    assert!(bot.live("a").await.unwrap().is_empty());
    assert_eq!(bot.patch("a", "{}", Some(0)).await.unwrap().version, 1);
    assert_eq!(bot.say("a", "new").await.unwrap().record.first_seq, 1);
    assert_eq!(bot.journal("a", Some(ended)).await.unwrap(), ["old"]);
    let stats = bot.stats();
    assert_eq!(
        (stats.sessions_created, stats.ended, stats.sessions_live),
        (2, 1, 1)
    );
    bot.recount().await;
    assert!(is_not_found(&bot.reset("nobody").await));
}

#[tokio::test(start_paused = true)]
async fn patch_changes_state_and_increments_version() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    assert!(is_not_found(&bot.patch("a", "{}", None).await));
    bot.say("a", "hello").await.unwrap();
    let first = bot.patch("a", r#"{"a":1,"b":2}"#, Some(0)).await.unwrap();
    let second = bot.patch("a", r#"{"a":null}"#, Some(1)).await.unwrap();
    assert_eq!(
        (first.version, second.version, &*second.json),
        (1, 2, r#"{"b":2}"#)
    );
    let stale = bot.patch("a", r#"{"c":3}"#, Some(1)).await;
    let refused = CoreError::StaleStateVersion {
        expected: 1,
        actual: 2,
    };
    assert!(matches!(stale, Err(EngineError::Core(error)) if error == refused));
    assert_eq!(bot.view("a").await.unwrap().head.state_version, 2);
}

#[tokio::test(start_paused = true)]
async fn end_returns_final_session_and_next_append_starts_generation() {
    let engine = World::new(config()).open().await;
    let bot = Bot::acme(&engine);
    let said = bot.append("a", saying(&["one", "two"])).await.unwrap();
    let view = bot.end("a").await.unwrap();
    assert_eq!(
        (view.head.generation, view.head.last_seq),
        (said.record.generation, 2)
    );
    assert!(is_not_found(&bot.end("a").await));
    assert!(is_not_found(&bot.live("a").await));
    assert!(bot.list().await.is_empty());
    assert_eq!(bot.journal("a", None).await.unwrap(), ["one", "two"]);

    let anew = bot.say("a", "three").await.unwrap();
    assert_eq!(anew.record.first_seq, 1);
    assert_eq!(bot.journal("a", None).await.unwrap(), ["three"]);
    let old = HistoryQuery {
        generation: Some(said.record.generation),
        ..ALL
    };
    assert!(matches!(
        bot.read("a", old).await,
        Err(EngineError::GenerationNotFound { .. })
    ));
    let stats = bot.stats();
    assert_eq!(
        (
            stats.sessions_created,
            stats.ended,
            stats.expired,
            stats.evicted
        ),
        (2, 1, 0, 0)
    );
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn tenants_share_session_id_and_nothing_else() {
    let mut config = config();
    config
        .tenants
        .push(tenant("other", memoird_engine::TenantLimits::default()));
    let engine = World::new(config).open().await;
    let (mine, theirs) = (Bot::acme(&engine), Bot::new(&engine, "other"));
    let said = mine.say("a", "mine").await.unwrap();
    assert!(is_not_found(&theirs.view("a").await));
    assert!(is_not_found(&theirs.end("a").await));
    let named = theirs.journal("a", Some(said.record.generation)).await;
    assert!(matches!(named, Err(EngineError::GenerationNotFound { .. })));
    theirs.say("a", "theirs").await.unwrap();
    assert_eq!(mine.live("a").await.unwrap(), ["mine"]);
    theirs.end("a").await.unwrap();
    assert_eq!((mine.list().await.len(), theirs.list().await.len()), (1, 0));
    assert!(engine.tenants.get(&tenant_id("nobody")).is_none());
}

#[tokio::test(start_paused = true)]
async fn generations_are_ordered_despite_wall_clock_steps() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut last = None;
    for life in 0..20 {
        // The wall clock alternately stops and steps back.
        world.machine.step_wall(-(life % 2));
        let text = format!("life {life}");
        let said = bot.say("a", &text).await.unwrap();
        let generation = Some(said.record.generation);
        assert!(generation > last, "{generation:?} began after {last:?}");
        last = generation;
        bot.end("a").await.unwrap();
        assert_eq!(bot.journal("a", None).await.unwrap(), [text], "the newest");
    }
}
