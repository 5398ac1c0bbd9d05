//! Updates of stored turns, and copies of sessions: both are atomic.

use memoird_core::CoreError;
use memoird_core::idempotency::IdempotencyKey;
use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{
    AppendOutcome, CopyCommand, Durability, EngineConfig, EngineError, TurnRef, TurnUpdateCommand,
    TurnUpdateOutcome,
};
use memoird_store::encoding;
use tokio::task::JoinSet;

use crate::bot::{Bot, named, saying, text_of};
use crate::compaction::script::Script;
use crate::compaction::talk::Talk;
use crate::kit::{World, capped, poll_once, session_id, unswept};
use crate::options::keeping_all;
use crate::windows::texts;

impl Bot {
    async fn update(
        &self,
        session: &str,
        seq: u64,
        text: &str,
    ) -> Result<TurnUpdateOutcome, EngineError> {
        self.update_named(session, TurnRef::Seq(seq), text).await
    }

    async fn update_named(
        &self,
        session: &str,
        turn_name: TurnRef,
        text: &str,
    ) -> Result<TurnUpdateOutcome, EngineError> {
        self.update_by(session, turn_name, text, None).await
    }

    pub(crate) async fn update_by(
        &self,
        session: &str,
        turn_name: TurnRef,
        text: &str,
        idempotency: Option<IdempotencyKey>,
    ) -> Result<TurnUpdateOutcome, EngineError> {
        let part = PartKind::Text(format!("[[{text}]]"));
        let command = TurnUpdateCommand {
            turn_name,
            turn: Turn::new(Role::User, vec![part.into()]),
            expected_generation: None,
            idempotency,
        };
        let commands = &self.engine.commands;
        let session = session_id(session);
        commands.update_turn(&self.tenant, &session, command).await
    }

    pub(crate) async fn copy(
        &self,
        session: &str,
        target: &str,
        replaces: bool,
    ) -> Result<AppendOutcome, EngineError> {
        let command = CopyCommand {
            generation: None,
            through_seq: 0,
            target: session_id(target),
            replaces,
            idempotency: named("copy", &[session]).idempotency,
        };
        let commands = &self.engine.commands;
        let session = session_id(session);
        commands.copy_session(&self.tenant, &session, command).await
    }
}

#[tokio::test(start_paused = true)]
async fn update_survives_restart_and_failed_update_is_undone() {
    let world = World::new(unswept());
    let mut bot = Bot::acme(&world.open().await);
    bot.append("a", named("1", &["x", "y", "z"])).await.unwrap();
    let before = bot.view("a").await.unwrap();
    world.store.fail_commits(1);
    let failed = bot.update("a", 2, "new").await.unwrap_err();
    assert!(matches!(failed, EngineError::JournalFull));
    assert_eq!(bot.live("a").await.unwrap(), ["x", "y", "z"]);
    let updated = bot.update("a", 2, "new and longer").await.unwrap();
    assert_eq!(text_of(&updated.content.unwrap()), "new and longer");
    let session = updated.session.unwrap();
    assert_eq!(session.last_access, before.last_access);
    for _ in 0..2 {
        assert_eq!(bot.live("a").await.unwrap(), ["x", "new and longer", "z"]);
        assert_eq!(
            bot.journal("a", None).await.unwrap(),
            ["x", "new and longer", "z"]
        );
        assert!(
            bot.append("a", named("1", &["x", "y", "z"]))
                .await
                .unwrap()
                .duplicate
        );
        bot.recount().await;
        bot.engine.close().await;
        bot = Bot::acme(&world.open().await);
    }
    let absent = bot.update("a", 4, "new").await.unwrap_err();
    assert!(matches!(absent, EngineError::TurnNotFound { seq: 4, .. }));
}

#[tokio::test(start_paused = true)]
async fn turn_is_found_by_unique_client_id() {
    for durability in [Durability::Sync, Durability::Off] {
        let mut config = unswept();
        config.journal.durability = durability;
        config.tenants[0].limits.max_history_turns = Some(3);
        let bot = Bot::acme(&World::new(config).open().await);
        let ids = ["m0", "m1", "m2", "m1", "m4"];
        let turns = ids.map(|id| {
            let part = PartKind::Text(format!("[[of {id}]]"));
            let mut turn = Turn::new(Role::User, vec![part.into()]);
            turn.client_id = id.into();
            encoding::encode(turn)
        });
        let command = AppendCommand {
            turns: turns.into(),
            ..AppendCommand::default()
        };
        bot.append("a", command).await.unwrap();
        let by_id = |id: &str| TurnRef::ClientId(id.into());
        bot.update_named("a", by_id("m2"), "two").await.unwrap();
        let live = ["of m0", "two", "of m1", "of m4"];
        assert_eq!(bot.live("a").await.unwrap(), live);
        let absent = bot.update_named("a", by_id("m"), "no").await.unwrap_err();
        assert!(matches!(absent, EngineError::ClientIdNotFound { .. }));
        let elsewhere = bot.update_named("b", by_id("m2"), "no").await.unwrap_err();
        assert!(matches!(elsewhere, EngineError::SessionNotFound { .. }));
        let twice = bot.update_named("a", by_id("m1"), "one").await;
        if durability == Durability::Off {
            assert_eq!(
                twice.unwrap().session.unwrap().head.last_seq,
                5,
                "the other one was dropped"
            );
            continue;
        }
        let expected = (2, 4);
        let actual = match twice.unwrap_err() {
            EngineError::ClientIdNotUnique { first, second, .. } => (first, second),
            other => panic!("{other}"),
        };
        assert_eq!(actual, expected);
        // An id matches a rewound turn only if no other turn has it.
        bot.rewind("a", 3, AppendCommand::default()).await.unwrap();
        bot.update_named("a", by_id("m1"), "one").await.unwrap();
        let removed = bot.update_named("a", by_id("m4"), "four").await.unwrap();
        assert!(removed.is_removed);
        assert_eq!(
            bot.journal("a", None).await.unwrap(),
            ["of m0", "one", "two"]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn update_that_grows_turn_drops_older_turns() {
    let mut config = unswept();
    config.tenants[0].limits.max_history_bytes = Some(1_000);
    let bot = Bot::acme(&World::new(config).open().await);
    let long = "x".repeat(300);
    bot.append("a", saying(&["1", &long, "3"])).await.unwrap();
    bot.update("a", 3, &"y".repeat(800)).await.unwrap();
    assert_eq!(bot.live("a").await.unwrap(), ["1", &"y".repeat(800)]);
    bot.recount().await;
    let huge = bot.update("a", 3, &"y".repeat(2_000)).await.unwrap_err();
    let expected = matches!(huge, EngineError::Core(CoreError::TurnTooLarge { .. }));
    assert!(expected, "{huge}");
}

#[tokio::test(start_paused = true)]
async fn update_beyond_keep_all_history_limit_is_refused() {
    let mut config = unswept();
    config.limits.max_history_bytes = 2_000;
    let bot = Bot::acme(&World::new(config).open().await);
    let owned: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    let texts: Vec<&str> = owned.iter().map(String::as_str).collect();
    bot.append("a", keeping_all(true, &texts)).await.unwrap();
    bot.update("a", 1, &"x".repeat(900)).await.unwrap();
    let before = bot.live("a").await.unwrap();
    let refused = bot.update("a", 5, &"y".repeat(900)).await.unwrap_err();
    let is_full = matches!(
        refused,
        EngineError::Core(CoreError::HistoryFull { limit: 2_000, .. })
    );
    assert!(is_full, "{refused}");
    assert_eq!(bot.live("a").await.unwrap(), before);
    // A replacement of the same size fits.
    bot.update("a", 1, &"z".repeat(900)).await.unwrap();
    bot.update("a", 1, "short").await.unwrap();
    bot.update("a", 5, &"y".repeat(900)).await.unwrap();
    let view = bot.view("a").await.unwrap();
    assert!(view.head.totals.bytes <= 2_000);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn updates_count_against_journal_quota() {
    let mut config = unswept();
    config.tenants[0].limits.journal_bytes = Some(50_000);
    let bot = Bot::acme(&World::new(config).open().await);
    bot.append("a", saying(&["short"; 10])).await.unwrap();
    let long = "x".repeat(12_000);
    for seq in 1..=4 {
        bot.update("a", seq, &long).await.unwrap();
    }
    let refused = bot.update("a", 5, &long).await.unwrap_err();
    let is_full = matches!(
        refused,
        EngineError::JournalQuota {
            scope: "tenant",
            ..
        }
    );
    assert!(is_full, "{refused}");
    bot.update("a", 1, "short").await.unwrap();
    bot.update("a", 5, &long).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn update_undoes_summaries_of_the_turn() {
    let (_world, bot) = crate::compaction::opened(&Script::new([])).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(8).await;
    for keep in [6, 4, 2] {
        talk.compact(Some(keep)).await.unwrap();
    }
    let status = talk.status().await;
    // A user turn covered by the last summary, but not by the one before.
    let seq = status.through_seq - 1;
    bot.update("a", seq, "new").await.unwrap();
    let after = talk.status().await;
    assert!(after.through_seq > 0 && after.through_seq < seq);
    assert_eq!(after.summaries, 3, "numbers are not given again");
    let window = texts(&talk.window().await.turns);
    assert!(window.iter().any(|text| text == "new"), "{window:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_copy_leaves_target_unchanged() {
    for durability in [Durability::Sync, Durability::Interval] {
        let mut config = unswept();
        config.journal.durability = durability;
        let world = World::new(config);
        let bot = Bot::acme(&world.open().await);
        bot.append("a", saying(&["1", "2"])).await.unwrap();
        bot.append("b", saying(&["old"])).await.unwrap();
        let lives = bot.copy("a", "b", false).await.unwrap_err();
        assert!(matches!(lives, EngineError::TargetLives { .. }));
        if durability == Durability::Sync {
            world.store.fail_commits(1);
            let failed = bot.copy("a", "b", true).await.unwrap_err();
            assert!(matches!(failed, EngineError::JournalFull));
            assert_eq!(bot.live("b").await.unwrap(), ["old"]);
        }
        let made = bot.copy("a", "b", true).await.unwrap();
        assert!(!made.duplicate);
        assert_eq!(bot.live("b").await.unwrap(), ["1", "2"]);
        let again = bot.copy("a", "b", true).await.unwrap();
        assert!(again.duplicate);
        assert_eq!(again.record, made.record);
        bot.recount().await;
        bot.engine.close().await;
        // Counters include an operation once it is durable.
        let stats = bot.stats();
        assert_eq!((stats.sessions_created, stats.ended), (3, 1));
        let bot = Bot::acme(&world.open().await);
        assert_eq!(bot.live("b").await.unwrap(), ["1", "2"]);
        bot.end("a").await.unwrap();
        bot.end("b").await.unwrap();
        let ended = bot.copy("a", "b", false).await.unwrap();
        assert!(ended.duplicate && ended.session.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_copies_are_limited_per_tenant_and_in_total() {
    let names = ["one", "two", "three"];
    let mut config = unswept();
    config.tenants = names.map(|name| capped(name, 10)).into();
    let engine = World::new(config).open().await;
    let bots = names.map(|name| Bot::new(&engine, name));
    for bot in &bots {
        bot.append("a", saying(&["1", "2"])).await.unwrap();
    }
    let live = || bots.each_ref().map(|bot| bot.stats().sessions_live);
    let mut copies: Vec<_> = bots
        .iter()
        .flat_map(|bot| ["b", "c"].map(|target| (bot, target)))
        .map(|(bot, target)| Box::pin(bot.copy("a", target, false)))
        .collect();
    for copy in &mut copies {
        assert!(poll_once(copy).await.is_none());
    }
    assert_eq!(live(), [2, 2, 1], "one of a tenant, two of all");
    let mut running = JoinSet::new();
    drop(copies);
    for bot in &bots {
        for target in ["b", "c"] {
            let bot = bot.clone();
            running.spawn(async move { bot.copy("a", target, false).await.unwrap() });
        }
    }
    running.join_all().await;
    assert_eq!(live(), [3, 3, 3]);
}

#[tokio::test(start_paused = true)]
async fn copy_counts_as_call_memory_until_done() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let long = "x".repeat(10_000);
    bot.append("a", saying(&[&*long; 10])).await.unwrap();
    let held = || engine.stats().memory.call_bytes;
    let mut copy = Box::pin(bot.copy("a", "b", false));
    assert!(poll_once(&mut copy).await.is_none());
    assert!(held() > 100_000, "{} bytes", held());
    copy.await.unwrap();
    assert_eq!(held(), 0);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn memory_of_concurrent_copies_is_bounded() {
    const MEMORY_BYTES: usize = 4_000_000;
    const COPIES_BYTES_MAX: u64 = MEMORY_BYTES as u64 / 4;
    let names = ["one", "two"];
    let config = EngineConfig {
        memory_bytes: MEMORY_BYTES as u64,
        tenants: names.map(|name| capped(name, 10)).into(),
        ..unswept()
    };
    let engine = World::new(config).open().await;
    let bots = names.map(|name| Bot::new(&engine, name));
    let long = "x".repeat(10_000);
    for bot in &bots {
        bot.append("a", saying(&[&*long; 60])).await.unwrap();
    }
    let mut copies = bots
        .each_ref()
        .map(|bot| Box::pin(bot.copy("a", "b", false)));
    for copy in &mut copies {
        assert!(poll_once(copy).await.is_none());
        let held = engine.stats().memory.call_bytes;
        assert!((600_000..=COPIES_BYTES_MAX).contains(&held), "{held} bytes");
    }
    for copy in copies {
        copy.await.unwrap();
    }
    assert_eq!(engine.stats().memory.call_bytes, 0);
    let [one, two] = &bots;
    assert_eq!(two.live("b").await.unwrap().len(), 60);
    one.append("a", saying(&[&*long; 50])).await.unwrap();
    let refused = one.copy("a", "c", false).await.unwrap_err();
    let EngineError::CopyTooLarge { bytes_max, .. } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(bytes_max as u64, COPIES_BYTES_MAX);
    one.recount().await;
    engine.close().await;
}
