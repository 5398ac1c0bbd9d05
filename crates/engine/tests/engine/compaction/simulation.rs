//! Randomized conversations with compaction.
//!
//! A seed decides the order of tool calls, windows of two sizes, summarizers of all kinds, undos,
//! resets, restarts and full disks. After each step every window is valid, and every turn is in the
//! summary, the window or the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::turn::{Role, Turn};
use memoird_core::window::Omission;
use memoird_engine::{ContextOutcome, EngineError, HistoryQuery, HistoryScope};
use memoird_store::encoding;
use tokio::time::sleep;

use super::bad_replies::bad;
use super::compacting;
use super::script::{ModelStep, Script};
use super::talk::{Talk, answering, calling, text_turn};
use crate::bot::{ALL, Bot};
use crate::kit::{Dice, World, poll_once, session_id, settle};
use crate::seeds::seeds;
use crate::windows::model;

const MODELS: [&str; 2] = ["small", "large"];
const STEPS: u64 = 120;

/// The contents of one window: summary number, omissions and turns.
type Shown = (u32, Vec<Omission>, Vec<Arc<[u8]>>);

struct Simulation {
    dice: Dice,
    world: World,
    script: Arc<Script>,
    talk: Talk,
    /// The last window of each model, until its prefix may change.
    shown: BTreeMap<&'static str, Shown>,
    summaries: u32,
}

#[test]
fn seeded_simulation_loses_no_turn_and_windows_stay_valid() {
    let mut summaries = 0;
    for seed in seeds(12) {
        println!("MEMOIRD_SEED={seed}");
        summaries += run(seed);
    }
    assert!(summaries > 25, "{summaries} summaries were made");
}

#[test]
fn random_seed_simulation_loses_no_turn() {
    let seed = option_env!("MEMOIRD_SEED").map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("MEMOIRD_SEED={seed}");
    run(seed);
}

/// Returns the number of summaries that were made.
fn run(seed: u64) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut simulation = Simulation::new(seed).await;
        for _ in 0..STEPS {
            simulation.step().await;
            simulation.check().await;
        }
        simulation.summaries
    })
}

impl Simulation {
    async fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut scripted = Script::then([], ModelStep::Well);
        scripted.is_remote = dice.once_in(2);
        if dice.once_in(2) {
            scripted.input_tokens_max = 300;
            scripted.too_long_over = 400;
        }
        let script = Arc::new(scripted);
        let mut config = compacting(&script);
        config
            .context
            .models
            .push(model("large", 12_000, &Arc::default()));
        config.limits.max_history_turns = *dice.one_of(&[1_000, 30, 12]);
        config.compaction.provider_breaker.failures_max = *dice.one_of(&[3, 1_000]);
        let world = World::new(config);
        let talk = Talk::new(&Bot::acme(&world.open().await), "a");
        Self {
            dice,
            world,
            script,
            talk,
            shown: BTreeMap::new(),
            summaries: 0,
        }
    }

    fn below(&mut self, sides: u64) -> usize {
        usize::try_from(self.dice.below(sides)).unwrap()
    }

    async fn step(&mut self) {
        if self.dice.once_in(12) {
            let count = 1 + self.below(2);
            self.world.store.fail_commits(count);
        }
        if self.dice.once_in(4) {
            let mut bad = bad();
            let step = bad.swap_remove(self.below(bad.len() as u64)).0;
            self.script.will_now(if self.dice.once_in(2) {
                step
            } else {
                ModelStep::Well
            });
        }
        match self.dice.below(14) {
            0..=3 => self.converse().await,
            4..=6 => {
                self.converse().await;
                self.check_window().await;
            }
            7 | 8 => self.command().await,
            9 => match self.talk.undo().await {
                Err(
                    EngineError::JournalOff
                    | EngineError::NoRoomForSession
                    | EngineError::RetriesExhausted,
                ) => panic!("no such thing"),
                _ => self.shown.clear(),
            },
            10 if self.dice.once_in(4) => {
                if self.talk.bot.reset("a").await.is_ok() {
                    self.talk.said.clear();
                    self.shown.clear();
                }
            }
            11 if self.dice.once_in(2) => {
                self.talk.bot.engine.close().await;
                self.world.store.forgive();
                self.talk = self.talk.again(&Bot::acme(&self.world.open().await));
            }
            12 => sleep(Duration::from_secs(self.dice.below(200))).await,
            _ => self.check_window().await,
        }
        settle().await;
    }

    /// Appends an exchange. Turns are not recorded as said if their append fails.
    async fn converse(&mut self) {
        let text = "x".repeat(10 + self.below(150));
        let is_whole = !self.dice.once_in(5);
        let (calls, partial) = (self.below(4), self.below(3));
        let talk = &mut self.talk;
        let number = talk.said.len();
        // Some calls get no result, or not all of theirs.
        let answers = if is_whole { calls } else { partial };
        let ids = talk.ids(calls);
        let mut turns: Vec<Vec<Turn>> =
            vec![vec![text_turn(Role::User, &format!("#{number} {text}"))]];
        if calls > 0 {
            turns.push(vec![calling(&format!("I look {number}"), &ids)]);
        }
        turns.extend(
            ids.iter()
                .take(answers)
                .map(|id| vec![answering(&format!("{id} {text}"), id)]),
        );
        if answers >= calls {
            turns.push(vec![text_turn(
                Role::Assistant,
                &format!("it is {number} {text}"),
            )]);
        }
        if self.dice.once_in(4) {
            turns = vec![turns.concat()];
        }
        for part in turns {
            if talk.try_add(part).await.is_err() {
                return;
            }
            if self.dice.once_in(6) {
                settle().await;
            }
        }
    }

    /// Requests a compaction, and sometimes appends while it runs.
    async fn command(&mut self) {
        let keep = *self
            .dice
            .one_of(&[None, Some(0), Some(1), Some(3), Some(1_000)]);
        let other = self.talk.clone();
        let mut compacting = Box::pin(other.compact(keep));
        let is_done = poll_once(&mut compacting).await.is_some();
        if self.dice.once_in(2) {
            self.converse().await;
        } else if !is_done {
            let _ = compacting.await;
        }
    }

    async fn check_window(&mut self) {
        let name = *self.dice.one_of(&MODELS);
        if self.talk.said.is_empty() {
            return;
        }
        let outcome = self.talk.window_of(name).await;
        let report = &outcome.report;
        let number = report.summary.as_ref().map_or(0, |summary| summary.number);
        let now: Shown = (
            number,
            report.omissions.clone(),
            outcome
                .turns
                .iter()
                .map(|turn| Arc::clone(&turn.content))
                .collect(),
        );
        if let Some(before) = self.shown.get(name)
            && (before.0, &before.1) == (now.0, &now.1)
        {
            let is_same = now.2.len() >= before.2.len() && now.2[..before.2.len()] == before.2[..];
            assert!(
                is_same,
                "{name}: the front changed without a cut: {report:?}"
            );
        }
        self.shown.insert(name, now);
        self.check_account(&outcome).await;
    }

    /// The turns in the journal, in seq order.
    async fn journal(&self) -> Vec<Turn> {
        let query = HistoryQuery {
            scope: HistoryScope::Journal,
            ..ALL
        };
        let (engine, tenant) = (&self.talk.bot.engine, &self.talk.bot.tenant);
        let page = engine
            .commands
            .history(tenant, &session_id("a"), query)
            .await
            .unwrap();
        page.turns
            .iter()
            .map(|turn| encoding::open(turn).unwrap())
            .collect()
    }

    /// Asserts that every turn is shown, summarized or reported as omitted.
    ///
    /// The summary must also end at a unit boundary.
    async fn check_account(&self, outcome: &ContextOutcome) {
        let journal = self.journal().await;
        let report = &outcome.report;
        let through = report
            .summary
            .as_ref()
            .map_or(0, |summary| summary.through_seq);
        let window = super::talk::opened(&outcome.turns);
        let texts: Vec<String> = window
            .iter()
            .map(|turn| format!("{:?}", turn.parts))
            .collect();
        for (seq, turn) in (1..).zip(&journal) {
            let is_told = report
                .omissions
                .iter()
                .any(|gap| (gap.first_seq..=gap.last_seq).contains(&seq));
            let text = format!("{:?}", turn.parts);
            let is_shown = is_told || seq <= through || texts.contains(&text);
            assert!(is_shown, "{seq} is nowhere: {turn:?} {report:?}");
        }
        let mut calls = BTreeMap::new();
        for (seq, turn) in (1..).zip(&journal) {
            let links = turn.links();
            calls.extend(links.uses.into_iter().map(|id| (id, seq)));
            for id in links.results {
                let call = calls[&id];
                assert!(
                    call > through || seq <= through,
                    "{through} tears {call} and {seq} apart"
                );
            }
        }
    }

    async fn check(&mut self) {
        self.world.store.forgive();
        settle().await;
        if self.talk.said.is_empty() {
            return;
        }
        self.talk.check_journal().await;
        let status = self.talk.status().await;
        assert!(
            status.through_seq <= self.talk.said.len() as u64,
            "{status:?}"
        );
        self.summaries = self.summaries.max(status.summaries);
        for name in MODELS {
            let request = memoird_engine::ContextRequest {
                model: name.to_owned(),
                peek: true,
                ..Default::default()
            };
            let outcome = self.talk.bot.context("a", request).await.unwrap();
            super::talk::check_window(&outcome);
            self.check_account(&outcome).await;
        }
        self.talk.bot.recount().await;
    }
}
