//! Rewound turns: hidden from bots, kept in the journal, and not appended again by a retried key.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::session::{AppendCommand, RewindCommand};
use memoird_core::time::Steady;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{
    Durability, EngineConfig, EngineError, HistoryQuery, HistoryScope, JournalRange, Machine,
    RewindOutcome,
};
use memoird_store::encoding;

use crate::bot::{Bot, named, saying, text_of};
use crate::compaction::script::Script;
use crate::compaction::talk::Talk;
use crate::kit::{Dice, TestMachine, World, paused_runtime, poll_once, session_id, unswept};
use crate::seeds::seeds;
use crate::store::FaultyStore;
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

    /// Rewinds to `after_seq` and returns the removed texts.
    async fn pop(&self, session: &str, after_seq: u64) -> Vec<String> {
        let popped = self.rewind(session, after_seq, AppendCommand::default());
        removed_texts(&popped.await.unwrap())
    }

    /// The seqs of rewound turns in the journal.
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

fn removed_texts(outcome: &RewindOutcome) -> Vec<String> {
    let removed = outcome.removed.newest.iter();
    removed.map(|turn| text_of(turn)).collect()
}

#[tokio::test(start_paused = true)]
async fn pop_regenerate_and_edit_survive_restart() {
    for durability in [Durability::Sync, Durability::Interval, Durability::Off] {
        let world = World::new(lasting(durability));
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", saying(&["q1", "r1", "q2", "r2"]))
            .await
            .unwrap();
        assert_eq!(bot.pop("a", 3).await, ["r2"]);
        let again = bot.rewind("a", 3, saying(&["r2 again"])).await.unwrap();
        assert_eq!(
            (again.record.first_seq, removed_texts(&again).len()),
            (5, 0)
        );
        let edited = bot
            .rewind("a", 2, saying(&["q2 edited", "r3"]))
            .await
            .unwrap();
        assert_eq!(removed_texts(&edited), ["q2", "r2 again"]);
        assert_eq!(edited.session.unwrap().head.totals.turns, 4);
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
        assert_eq!(removed_texts(&all).len(), 5);
        assert_eq!(bot.live("a").await.unwrap(), ["new"]);
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn key_of_rewound_append_is_refused_and_rewind_is_idempotent() {
    for durability in [Durability::Sync, Durability::Off] {
        let world = World::new(lasting(durability));
        let mut bot = Bot::acme(&world.open().await);
        bot.append("a", named("1", &["x"])).await.unwrap();
        bot.append("a", named("2", &["y"])).await.unwrap();
        let pop = || AppendCommand {
            idempotency: named("pop", &[]).idempotency,
            ..AppendCommand::default()
        };
        assert_eq!(
            removed_texts(&bot.rewind("a", 1, pop()).await.unwrap()),
            ["y"]
        );
        for round in 0..2 {
            let again = bot.rewind("a", 1, pop()).await.unwrap();
            assert!(again.duplicate);
            let is_off = durability == Durability::Off;
            assert_eq!(again.removed.is_forgotten, is_off);
            assert_eq!(
                removed_texts(&again),
                if is_off { vec![] } else { vec!["y"] }
            );
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
async fn rewind_of_missing_session_or_with_stale_seq_is_refused() {
    let bot = Bot::acme(&World::new(unswept()).open().await);
    for (after_seq, append) in [(0, AppendCommand::default()), (1, saying(&["x"]))] {
        let absent = bot.rewind("a", after_seq, append).await.unwrap_err();
        assert!(matches!(absent, EngineError::SessionNotFound { .. }));
    }
    bot.append("a", saying(&["x", "y"])).await.unwrap();
    let stale_rewind = AppendCommand {
        expected_seq: Some(1),
        ..saying(&["z"])
    };
    let stale = bot.rewind("a", 1, stale_rewind).await.unwrap_err();
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
async fn rewind_undoes_summaries_of_rewound_turns() {
    let (_world, bot) = crate::compaction::opened(&Script::new([])).await;
    let mut talk = Talk::new(&bot, "a");
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
    assert!(rewound.removed.count > 0);
    let head = &rewound.session.as_ref().unwrap().head;
    let told = head.compaction.as_ref().unwrap().through_seq;
    let after = talk.status().await;
    assert_eq!(told, after.through_seq);
    assert!(after.through_seq > 0 && after.through_seq < status.through_seq);
    assert_eq!(after.summaries, 3, "numbers are not given again");
    let window = texts(&talk.window().await.turns);
    assert_eq!(window.last().map(String::as_str), Some("edited"));
    for gone in removed_texts(&rewound) {
        assert!(!window.contains(&gone), "{gone} is in {window:?}");
    }
    bot.rewind("a", 1, saying(&["anew"])).await.unwrap();
    assert_eq!(talk.status().await.through_seq, 0);
    assert_eq!(texts(&talk.window().await.turns).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn rewind_to_zero_creates_missing_session() {
    for durability in [Durability::Sync, Durability::Off] {
        let bot = Bot::acme(&World::new(lasting(durability)).open().await);
        let expecting = |seq| AppendCommand {
            expected_seq: Some(seq),
            ..named("set", &["x", "y"])
        };
        let stale = bot.rewind("a", 0, expecting(1)).await.unwrap_err();
        assert!(matches!(
            stale,
            EngineError::Core(CoreError::StaleSeq { .. })
        ));
        let set = bot.rewind("a", 0, expecting(0)).await.unwrap();
        assert_eq!((set.record.first_seq, set.removed.count), (1, 0));
        assert_eq!(bot.live("a").await.unwrap(), ["x", "y"]);
        assert_eq!(bot.stats().sessions_created, 1);
        if durability == Durability::Off {
            continue;
        }
        bot.end("a").await.unwrap();
        let again = bot.rewind("a", 0, expecting(0)).await.unwrap();
        assert!(again.duplicate && again.session.is_none());
        assert_eq!((again.record, bot.list().await.len()), (set.record, 0));
        bot.recount().await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_pop_returns_turns_it_removed_itself() {
    let mut config = lasting(Durability::Sync);
    config.tenants[0].limits.max_history_turns = Some(4);
    let world = World::new(config);
    let mut bot = Bot::acme(&world.open().await);
    let pop = |name: &str, seq| AppendCommand {
        idempotency: named(name, &[]).idempotency,
        expected_seq: Some(seq),
        ..AppendCommand::default()
    };
    bot.append("a", saying(&["1", "2", "3", "4", "5", "6"]))
        .await
        .unwrap();
    let steps: [(&str, u64, u64, &[&str]); 4] = [
        ("p", 6, 5, &["6"]),
        ("q", 5, 4, &["5"]),
        // The history keeps the anchor and the last four.
        ("r", 4, 1, &["3", "4"]),
        ("s", 1, 0, &["1"]),
    ];
    for (name, expected, after_seq, gone) in steps {
        let popped = bot.rewind("a", after_seq, pop(name, expected)).await;
        assert_eq!(removed_texts(&popped.unwrap()), gone);
    }
    for _ in 0..2 {
        for (name, expected, after_seq, gone) in steps {
            let again = bot
                .rewind("a", after_seq, pop(name, expected))
                .await
                .unwrap();
            assert!(again.duplicate && !again.removed.is_forgotten);
            assert_eq!(removed_texts(&again), gone);
            assert_eq!(again.removed.count, gone.len() as u64);
        }
        bot.engine.close().await;
        bot = Bot::acme(&world.open().await);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_pops_with_same_expected_seq_one_is_refused() {
    let bot = Bot::acme(&World::new(lasting(Durability::Sync)).open().await);
    let expecting = |seq, append: AppendCommand| AppendCommand {
        expected_seq: Some(seq),
        ..append
    };
    bot.append("a", saying(&["1", "2", "3"])).await.unwrap();
    let pop = || bot.rewind("a", 2, expecting(3, AppendCommand::default()));
    let (one, two) = tokio::join!(pop(), pop());
    assert_eq!(removed_texts(&one.unwrap()), ["3"]);
    let stale = |error| match error {
        EngineError::Core(CoreError::StaleSeq { expected, actual }) => (expected, actual),
        other => panic!("{other}"),
    };
    assert_eq!(stale(two.unwrap_err()), (3, 2));
    let late = bot.append("a", expecting(3, saying(&["late"]))).await;
    assert_eq!(stale(late.unwrap_err()), (3, 2));
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 2);
    assert_eq!(bot.views(9).await[0].head.newest_seq, 2);
    let said = bot.append("a", expecting(2, saying(&["on"]))).await;
    assert_eq!(said.unwrap().record.first_seq, 4);
    // Rewinding to a seq that was itself rewound goes to the turn before it.
    bot.rewind("a", 3, expecting(4, AppendCommand::default()))
        .await
        .unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 2);
    bot.rewind("a", 0, expecting(2, AppendCommand::default()))
        .await
        .unwrap();
    let said = bot.append("a", expecting(0, saying(&["anew"]))).await;
    assert_eq!(said.unwrap().record.first_seq, 5);
}

/// The calls have been dropped from the history and are only in the journal.
#[tokio::test(start_paused = true)]
async fn rewind_into_dropped_tool_unit_is_refused() {
    let mut config = lasting(Durability::Sync);
    config.tenants[0].limits.max_history_turns = Some(3);
    let world = World::new(config);
    let mut bot = Bot::acme(&world.open().await);
    let of = |role, kind: PartKind| encoding::encode(Turn::new(role, vec![kind.into()]));
    let call = |id: &str| {
        let call = PartKind::ToolUse {
            id: id.into(),
            name: "look".into(),
            input_json: "{}".into(),
        };
        of(Role::Assistant, call)
    };
    let result = |id: &str| {
        let result = PartKind::ToolResult {
            tool_use_id: id.into(),
            content: "seen".into(),
            parts: Vec::new(),
            is_error: false,
        };
        of(Role::Tool, result)
    };
    let turns = AppendCommand {
        turns: vec![call("x"), result("x"), call("y"), result("y")],
        ..AppendCommand::default()
    };
    bot.say("a", "1").await.unwrap();
    bot.append("a", turns).await.unwrap();
    bot.append("a", saying(&["6", "7", "8"])).await.unwrap();
    assert_eq!(bot.live("a").await.unwrap(), ["1", "6", "7", "8"]);
    for _ in 0..2 {
        for (after_seq, call) in [(2, 2), (4, 4)] {
            let split = bot
                .rewind("a", after_seq, AppendCommand::default())
                .await
                .unwrap_err()
                .to_string();
            let expected = CoreError::RewindSplitsUnit {
                after_seq,
                first_seq: call,
                last_seq: call + 1,
            };
            assert_eq!(split, EngineError::Core(expected).to_string());
        }
        bot.engine.close().await;
        bot = Bot::acme(&world.open().await);
    }
    assert_eq!(bot.pop("a", 3).await, ["6", "7", "8"]);
    assert_eq!(bot.live("a").await.unwrap(), ["1"]);
    assert_eq!(bot.rewound("a").await, [4, 5, 6, 7, 8]);
    assert_eq!(bot.pop("a", 1).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn rewind_whose_commit_fails_is_undone() {
    let world = World::new(lasting(Durability::Sync));
    let bot = Bot::acme(&world.open().await);
    bot.append("a", named("1", &["x", "y", "z"])).await.unwrap();
    let edit = || named("edit", &["y again"]);
    world.store.fail_commits(1);
    let failed = bot.rewind("a", 1, edit()).await.unwrap_err();
    assert!(matches!(failed, EngineError::JournalFull));
    assert_eq!(bot.live("a").await.unwrap(), ["x", "y", "z"]);
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 3);
    assert!(
        bot.append("a", named("1", &["x", "y", "z"]))
            .await
            .unwrap()
            .duplicate
    );
    bot.recount().await;
    let edited = bot.rewind("a", 1, edit()).await.unwrap();
    assert!(!edited.duplicate);
    assert_eq!(
        (removed_texts(&edited), edited.record.first_seq),
        (vec!["y".into(), "z".into()], 4)
    );
    assert_eq!(bot.live("a").await.unwrap(), ["x", "y again"]);
    bot.recount().await;
}

/// Each append and rewind is applied once, despite failed commits and crashes.
///
/// The bot retries under the same key until the call is acknowledged.
#[test]
fn every_rewind_applies_once_despite_failures_and_crashes() {
    for seed in seeds(60) {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let store = Arc::<FaultyStore>::default();
        let (mut now, mut model) = (Steady(0), Model::default());
        for life in 0..4 {
            let runtime = paused_runtime();
            let machine = Arc::new(TestMachine::resume(now, seed + life));
            let world = World {
                store: Arc::clone(&store),
                machine: Arc::clone(&machine),
                ..World::new(lasting(Durability::Sync))
            };
            runtime.block_on(model.live(&world, &mut dice));
            // Abort all remaining tasks.
            drop(runtime);
            now = Steady(machine.now().steady.0 + dice.below(1_000));
        }
    }
}

/// Expected turns and rewinds of one session.
#[derive(Default)]
struct Model {
    /// Seq and text.
    said: Vec<(u64, String)>,
    last_seq: u64,
    steps: u64,
    /// The unacknowledged step: its key, the seq to rewind to, and the texts to append.
    open: Option<(String, Option<u64>, Vec<String>)>,
    /// Acknowledged rewinds: the step, and the texts they removed.
    pops: Vec<(String, u64, Vec<String>, Vec<String>)>,
}

impl Model {
    async fn live(&mut self, world: &World, dice: &mut Dice) {
        world.store.forgive();
        let bot = Bot::acme(&world.open().await);
        for _ in 0..1 + dice.below(20) {
            if dice.once_in(3) {
                world.store.fail_commits(1);
            }
            let step = self.open.take().unwrap_or_else(|| self.choose(dice));
            self.open = Some(step.clone());
            let mut call = Box::pin(self.done(&bot, &step));
            if dice.once_in(12) && poll_once(&mut call).await.is_none() {
                // The call is aborted together with the daemon.
                return;
            }
            let removed = call.await;
            if let Some(removed) = removed {
                self.note(step, &removed);
                world.store.forgive();
                self.check(&bot).await;
            }
        }
        world.store.forgive();
        if dice.once_in(2) {
            bot.engine.close().await;
        }
    }

    fn choose(&mut self, dice: &mut Dice) -> (String, Option<u64>, Vec<String>) {
        self.steps += 1;
        let is_rewind = !self.said.is_empty() && dice.once_in(2);
        let after_seq = is_rewind.then(|| {
            let place = dice.below(self.said.len() as u64 + 1);
            let place = usize::try_from(place).unwrap();
            place.checked_sub(1).map_or(0, |place| self.said[place].0)
        });
        let count = if is_rewind {
            dice.below(3)
        } else {
            1 + dice.below(3)
        };
        let texts = (0..count).map(|part| format!("{}.{part}", self.steps));
        (format!("step {}", self.steps), after_seq, texts.collect())
    }

    /// Returns the texts that a step removed, or `None` if it failed.
    async fn done(
        &self,
        bot: &Bot,
        (name, after_seq, texts): &(String, Option<u64>, Vec<String>),
    ) -> Option<Vec<String>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let answer = match after_seq {
            None => bot
                .append("a", named(name, &texts))
                .await
                .map(|_| Vec::new()),
            Some(after_seq) => {
                let mut append = named(name, &texts);
                append.expected_seq = Some(self.said.last().map_or(0, |(seq, _)| *seq));
                let rewound = bot.rewind("a", *after_seq, append).await;
                rewound.map(|rewound| removed_texts(&rewound))
            }
        };
        match answer {
            Ok(removed) => Some(removed),
            Err(EngineError::JournalFull) => None,
            Err(other) => panic!("{name}: {other}"),
        }
    }

    fn note(&mut self, step: (String, Option<u64>, Vec<String>), removed: &[String]) {
        let (name, after_seq, texts) = step;
        self.open = None;
        if let Some(after_seq) = after_seq {
            let stays = self.said.partition_point(|(seq, _)| *seq <= after_seq);
            let gone: Vec<String> = self
                .said
                .split_off(stays)
                .into_iter()
                .map(|(_, text)| text)
                .collect();
            assert_eq!(removed, gone, "{name}");
            if texts.is_empty() {
                self.pops.push((name, after_seq, texts.clone(), gone));
            }
        }
        for text in texts {
            self.last_seq += 1;
            self.said.push((self.last_seq, text));
        }
    }

    async fn check(&self, bot: &Bot) {
        let expected: Vec<&String> = self.said.iter().map(|(_, text)| text).collect();
        let live = bot.live("a").await.unwrap();
        assert_eq!(live.iter().collect::<Vec<_>>(), expected);
        let head = bot.view("a").await.unwrap().head;
        let newest = self.said.last().map_or(0, |(seq, _)| *seq);
        assert_eq!((head.newest_seq, head.last_seq), (newest, self.last_seq));
        let rewound = bot.rewound("a").await;
        let expected =
            (1..=self.last_seq).filter(|seq| self.said.iter().all(|(said, _)| said != seq));
        assert_eq!(rewound, expected.collect::<Vec<_>>());
        if let Some((name, after_seq, texts, gone)) = self.pops.last() {
            let step = (name.clone(), Some(*after_seq), texts.clone());
            assert_eq!(self.done(bot, &step).await.as_ref(), Some(gone), "{name}");
        }
        bot.recount().await;
    }
}
