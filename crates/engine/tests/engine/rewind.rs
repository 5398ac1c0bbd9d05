//! Turns that are taken back: gone for bots, kept in the journal, and never said again by a key.

use memoird_core::CoreError;
use memoird_core::session::{AppendCommand, RewindCommand};
use memoird_engine::{
    Durability, EngineConfig, EngineError, HistoryQuery, HistoryScope, JournalRange, RewindOutcome,
};

use crate::bot::{Bot, named, saying, text_of};
use crate::compaction::script::Script;
use crate::compaction::talk::Talk;
use crate::kit::{World, session_id, unswept};
use crate::windows::texts;

fn lasting(durability: Durability) -> EngineConfig {
    let mut config = unswept();
    config.journal.durability = durability;
    config
}

impl Bot {
    pub(crate) async fn rewind(
        &self,
        session: &str,
        after_seq: u64,
        append: AppendCommand,
    ) -> Result<RewindOutcome, EngineError> {
        let command = RewindCommand { after_seq, append };
        self.engine
            .commands
            .rewind(&self.tenant, &session_id(session), command)
            .await
    }

    /// Takes the newest turns back.
    async fn pop(&self, session: &str, after_seq: u64) -> Vec<String> {
        let popped = self.rewind(session, after_seq, AppendCommand::default());
        said(&popped.await.unwrap())
    }

    /// The seqs of the journal that were rewound.
    async fn rewound(&self, session: &str) -> Vec<u64> {
        let query = HistoryQuery {
            scope: HistoryScope::Journal,
            generation: None,
            range: JournalRange {
                with_rewound: true,
                ..JournalRange::ALL
            },
        };
        let (commands, session) = (&self.engine.commands, session_id(session));
        let page = commands.history(&self.tenant, &session, query);
        page.await.unwrap().rewound
    }
}

fn said(outcome: &RewindOutcome) -> Vec<String> {
    outcome.removed.iter().map(|turn| text_of(turn)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_popped_regenerated_and_edited_is_so_after_a_restart() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let world = World::new(lasting(durability));
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", saying(&["q1", "r1", "q2", "r2"]))
            .await
            .unwrap();
        assert_eq!(bot.pop("a", 3).await, ["r2"]);
        let again = bot.rewind("a", 3, saying(&["r2 again"])).await.unwrap();
        assert_eq!((again.record.first_seq, said(&again).len()), (5, 0));
        let edited = bot
            .rewind("a", 2, saying(&["q2 edited", "r3"]))
            .await
            .unwrap();
        assert_eq!(said(&edited), ["q2", "r2 again"]);
        assert_eq!(edited.session.head.totals.turns, 4);
        bot.recount().await;
        let expected = ["q1", "r1", "q2 edited", "r3"];
        assert_eq!(bot.live("a").await.unwrap(), expected);
        if durability == Durability::Off {
            continue;
        }
        for _ in 0..2 {
            assert_eq!(bot.live("a").await.unwrap(), expected);
            assert_eq!(bot.journal("a", None).await.unwrap(), expected);
            assert_eq!(bot.rewound("a").await, [3, 4, 5]);
            bot.engine.close().await;
            bot = Bot::acme(&world.open().await);
        }
        let next = bot.say("a", "on").await.unwrap();
        assert_eq!(next.record.first_seq, 8);
        let all = bot.rewind("a", 0, saying(&["new"])).await.unwrap();
        assert_eq!(said(&all).len(), 5);
        assert_eq!(bot.live("a").await.unwrap(), ["new"]);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_what_was_rewound_says_so_and_a_rewind_can_be_repeated() {
    for durability in [Durability::Sync, Durability::Off] {
        let world = World::new(lasting(durability));
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", named("1", &["x"])).await.unwrap();
        bot.append("a", named("2", &["y"])).await.unwrap();
        let pop = || AppendCommand {
            idempotency: named("pop", &[]).idempotency,
            ..AppendCommand::default()
        };
        assert_eq!(said(&bot.rewind("a", 1, pop()).await.unwrap()), ["y"]);
        for round in 0..2 {
            let again = bot.rewind("a", 1, pop()).await.unwrap();
            assert!(again.duplicate && again.removed.is_empty());
            let rewound = bot.append("a", named("2", &["y"])).await.unwrap_err();
            let expected = EngineError::Core(CoreError::IdempotencyKeyRewound);
            assert_eq!(rewound.to_string(), expected.to_string());
            assert!(bot.append("a", named("1", &["x"])).await.unwrap().duplicate);
            assert_eq!(bot.live("a").await.unwrap(), ["x"]);
            if durability == Durability::Sync && round == 0 {
                bot.engine.close().await;
                bot = Bot::acme(&world.open().await);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rewind_needs_a_session_that_lives_and_what_it_expects() {
    let bot = Bot::acme(&World::new(unswept()).open().await);
    let absent = bot.rewind("a", 0, saying(&["x"])).await.unwrap_err();
    assert!(matches!(absent, EngineError::SessionNotFound { .. }));
    bot.append("a", saying(&["x", "y"])).await.unwrap();
    let stale = AppendCommand {
        expected_seq: Some(1),
        ..saying(&["z"])
    };
    let stale = bot.rewind("a", 1, stale).await.unwrap_err();
    assert!(matches!(
        stale,
        EngineError::Core(CoreError::StaleSeq { .. })
    ));
    let beyond = bot.rewind("a", 3, saying(&["z"])).await.unwrap_err();
    assert!(matches!(
        beyond,
        EngineError::Core(CoreError::RewindBeyondEnd { .. })
    ));
    assert_eq!(bot.live("a").await.unwrap(), ["x", "y"]);
    bot.recount().await;
}

#[tokio::test(start_paused = true)]
async fn a_rewind_behind_summaries_takes_them_back() {
    let (_world, bot) = crate::compaction::opened(&Script::of([])).await;
    let mut talk = Talk::of(&bot, "a");
    talk.exchanges(8).await;
    for (keep, number) in [(6, 1), (4, 2), (2, 3)] {
        let made = talk.compact(Some(keep)).await.unwrap().summary.unwrap();
        assert_eq!(made.number, number);
    }
    let status = talk.status().await;
    let rewound = bot
        .rewind("a", status.through_seq - 1, saying(&["edited"]))
        .await
        .unwrap();
    assert!(!rewound.removed.is_empty());
    let told = rewound
        .session
        .head
        .compaction
        .as_ref()
        .unwrap()
        .through_seq;
    let after = talk.status().await;
    assert_eq!(told, after.through_seq);
    assert!(after.through_seq > 0 && after.through_seq < status.through_seq);
    assert_eq!(after.summaries, 3, "numbers are not given again");
    let window = texts(&talk.window().await.turns);
    assert_eq!(window.last().map(String::as_str), Some("edited"));
    for gone in &rewound.removed {
        let gone = text_of(gone);
        assert!(!window.contains(&gone), "{gone} is in {window:?}");
    }
    bot.rewind("a", 1, saying(&["anew"])).await.unwrap();
    assert_eq!(talk.status().await.through_seq, 0);
    assert_eq!(texts(&talk.window().await.turns).len(), 2);
}
