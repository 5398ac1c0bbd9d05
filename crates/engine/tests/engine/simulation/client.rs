//! A bot of the simulation: issues one call and checks the reply against the current journal.

use std::sync::{Arc, Mutex};

use memoird_core::CoreError;
use memoird_core::budget::BudgetOverride;
use memoird_core::ids::SessionKey;
use memoird_core::session::AppendCommand;
use memoird_core::window::Policy;
use memoird_engine::{AppendOutcome, ContextOutcome, ContextRequest, EngineError};

use crate::bot::{Bot, named, saying};
use crate::kit::{Dice, session_id};
use crate::store::FaultyStore;
use crate::windows::texts as texts_of_window;

use super::JOURNAL_BYTES;
use super::model::{AppendRecord, Model, check_view, kept};

#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Appends an entry of the model, for the first time or as a retry.
    Append {
        say: usize,
        expected: Expected,
    },
    /// Reuses an idempotency key for different content.
    Reuse {
        name: String,
        session: String,
    },
    Patch,
    End,
    Reset {
        run_hooks: bool,
    },
    View,
    Live,
    List,
    Journal,
    Window(WindowCall),
}

/// Parameters of a window request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowCall {
    /// Turns appended in the same call.
    say: Option<(usize, Expected)>,
    policy: Policy,
    tokens: u64,
    attempt: u32,
    peek: bool,
}

/// Preconditions of an append.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    seq: Option<u64>,
    generation: Option<memoird_core::ids::Generation>,
}

pub(crate) struct Client {
    bot: Bot,
    session: String,
    turns_max: usize,
    model: Arc<Mutex<Model>>,
    store: Arc<FaultyStore>,
}

impl Op {
    pub(crate) fn choose(dice: &mut Dice, client: &Client) -> Self {
        match dice.below(30) {
            0..10 => Self::say(dice, client),
            10..13 => Self::say_again(dice, client),
            13 => Self::reuse(dice, client),
            14..16 => Self::Patch,
            16..18 => Self::End,
            18 => Self::Reset {
                run_hooks: dice.once_in(2),
            },
            19 | 20 => Self::View,
            21 => Self::Live,
            22 => Self::List,
            23 => Self::Journal,
            _ => Self::window(dice, client),
        }
    }

    fn say(dice: &mut Dice, client: &Client) -> Self {
        let key = client.key();
        let mut model = client.model.lock().unwrap();
        let number = model.says.len();
        let texts = (0..1 + dice.below(3))
            .map(|part| format!("{number}.{part}"))
            .collect();
        let name = dice.once_in(2).then(|| format!("key {number}"));
        let mut expected = Expected::default();
        let record = client.store.record();
        if let Some(generation) = record.live.get(&key).filter(|_| dice.once_in(3)) {
            expected.generation = Some(*generation);
            let seq = record.lives[generation].texts.len() as u64;
            expected.seq = dice.once_in(2).then_some(seq);
        }
        drop(record);
        model.says.push(AppendRecord {
            key,
            texts,
            name,
            under_way: 1,
            in_doubt: false,
            fresh: 0,
            done: None,
        });
        Self::Append {
            say: number,
            expected,
        }
    }

    /// Retries an earlier keyed append of this session.
    fn say_again(dice: &mut Dice, client: &Client) -> Self {
        let key = client.key();
        let mut model = client.model.lock().unwrap();
        let mine = model
            .says
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, say)| say.name.is_some() && say.key == key)
            .take(4);
        let candidates: Vec<usize> = mine.map(|(number, _)| number).collect();
        if candidates.is_empty() {
            return Self::View;
        }
        let say = *dice.one_of(&candidates);
        model.says[say].under_way += 1;
        Self::Append {
            say,
            expected: Expected::default(),
        }
    }

    fn window(dice: &mut Dice, client: &Client) -> Self {
        let policies = [
            Policy::HeadTail { turns: 0 },
            Policy::HeadTail { turns: 3 },
            Policy::TokenBudget,
            Policy::Salience,
            Policy::SlidingWindow { turns: 2 },
        ];
        let step = match dice.below(6) {
            0 | 1 => Self::say(dice, client),
            2 => Self::say_again(dice, client),
            _ => Self::View,
        };
        let say = match step {
            Self::Append { say, expected } => Some((say, expected)),
            _ => None,
        };
        Self::Window(WindowCall {
            say,
            policy: *dice.one_of(&policies),
            tokens: *dice.one_of(&[10, 40, 50, 60, 80, 120, 1_000]),
            attempt: u32::try_from(dice.below(8)).unwrap().saturating_sub(5),
            peek: dice.once_in(4),
        })
    }

    fn reuse(dice: &mut Dice, client: &Client) -> Self {
        let model = client.model.lock().unwrap();
        let tenant = &client.bot.tenant.id;
        let done: Vec<_> = model
            .says
            .iter()
            .filter(|say| say.name.is_some() && say.done.is_some() && say.key.tenant == *tenant)
            .collect();
        if done.is_empty() {
            return Self::View;
        }
        let say = *dice.one_of(&done);
        let session = say.key.session.as_str().to_owned();
        Self::Reuse {
            name: say.name.clone().unwrap(),
            session,
        }
    }
}

impl Client {
    pub(crate) fn new(
        bot: Bot,
        session: String,
        turns_max: usize,
        model: Arc<Mutex<Model>>,
        store: Arc<FaultyStore>,
    ) -> Self {
        Self {
            bot,
            session,
            turns_max,
            model,
            store,
        }
    }

    fn key(&self) -> SessionKey {
        SessionKey {
            tenant: self.bot.tenant.id.clone(),
            session: session_id(&self.session),
        }
    }

    pub(crate) async fn run(&self, op: Op) {
        match op {
            Op::Append { say, expected } => self.say(say, expected).await,
            Op::Reuse { name, session } => {
                let answer = self.bot.append(&session, named(&name, &["never"])).await;
                assert!(answer.is_err(), "{name} was used before: {answer:?}");
            }
            Op::Patch => self.patch().await,
            Op::End => {
                if let Ok(view) = self.bot.end(&self.session).await {
                    let record = self.store.record();
                    assert!(record.lives[&view.head.generation].ended.is_some());
                }
            }
            Op::Reset { run_hooks } => {
                let reset = if run_hooks {
                    self.bot.reset_with_hooks(&self.session).await
                } else {
                    self.bot.reset(&self.session).await
                };
                if let Ok((view, ended)) = reset {
                    let record = self.store.record();
                    assert!(record.lives[&ended].ended.is_some());
                    assert!(record.lives.contains_key(&view.head.generation));
                }
            }
            Op::View => {
                if let Ok(view) = self.bot.view(&self.session).await {
                    check_view(&self.store.record(), &self.bot, &view);
                }
            }
            Op::Live => self.live().await,
            Op::List => {
                let views = self.bot.views(3).await;
                let record = self.store.record();
                views
                    .iter()
                    .for_each(|view| check_view(&record, &self.bot, view));
            }
            Op::Journal => self.journal().await,
            Op::Window(look) => self.window(look).await,
        }
    }

    async fn window(&self, look: WindowCall) {
        let budget = BudgetOverride::without_reserves(look.tokens);
        let request = ContextRequest {
            append: look
                .say
                .map(|(number, expected)| self.command(number, expected)),
            budget,
            policy: Some(look.policy),
            attempt: look.attempt,
            peek: look.peek,
            ..ContextRequest::default()
        };
        let answer = self.bot.context(&self.session, request).await;
        if let Ok(window) = &answer {
            self.check_window(&look, window);
        }
        match (look.say, answer) {
            (Some((number, expected)), Ok(window)) => {
                self.note(number, expected, Ok(window.appended.unwrap()));
            }
            (Some((number, expected)), Err(error)) => {
                // The append may have succeeded even though the window was refused.
                self.model.lock().unwrap().says[number].in_doubt = true;
                let is_window = matches!(
                    error,
                    EngineError::SessionNotFound { .. }
                        | EngineError::Core(CoreError::CurrentTurnTooLarge { .. })
                );
                if is_window {
                    self.model.lock().unwrap().says[number].under_way -= 1;
                } else {
                    self.note(number, expected, Err(error));
                }
            }
            (None, _) => {}
        }
    }

    /// Asserts that a window shows written turns of the history in order, apart from omissions.
    fn check_window(&self, look: &WindowCall, window: &ContextOutcome) {
        let record = self.store.record();
        let head = &window.session.head;
        let life = &record.lives[&head.generation];
        assert_eq!(life.key, self.key());
        let texts = &life.texts[..usize::try_from(head.last_seq).unwrap()];
        let history = kept(texts, self.turns_max);
        let all_shown = texts_of_window(&window.turns);
        let shown: Vec<&String> = all_shown.iter().filter(|text| *text != "...").collect();
        let mut rest = history.iter();
        let is_so = shown.iter().all(|text| rest.any(|kept| kept == text));
        assert!(is_so, "{shown:?} of {history:?}: {look:?}");
        assert_eq!(shown.last(), history.last(), "what is said now: {look:?}");
        let is_sliding = matches!(look.policy, Policy::SlidingWindow { .. });
        assert!(
            is_sliding || shown.first() == history.first(),
            "the anchor: {look:?}"
        );
        let report = &window.report;
        assert!(report.blocks.total() <= report.input_budget, "{report:?}");
        assert!(report.input_budget <= look.tokens && report.stable_prefix_tokens <= look.tokens);
    }

    fn command(&self, number: usize, expected: Expected) -> AppendCommand {
        let say = self.model.lock().unwrap().says[number].clone();
        let texts: Vec<&str> = say.texts.iter().map(String::as_str).collect();
        let command = match &say.name {
            Some(name) => named(name, &texts),
            None => saying(&texts),
        };
        AppendCommand {
            expected_seq: expected.seq,
            expected_generation: expected.generation,
            ..command
        }
    }

    async fn say(&self, number: usize, expected: Expected) {
        let answer = self
            .bot
            .append(&self.session, self.command(number, expected))
            .await;
        self.note(number, expected, answer);
    }

    fn note(&self, number: usize, expected: Expected, answer: Result<AppendOutcome, EngineError>) {
        let mut model = self.model.lock().unwrap();
        let say = &mut model.says[number];
        say.under_way -= 1;
        match answer {
            Ok(outcome) => self.check_outcome(say, expected, &outcome),
            Err(error) => check_error(say, &error),
        }
    }

    fn check_outcome(&self, say: &mut AppendRecord, expected: Expected, outcome: &AppendOutcome) {
        let done = outcome.record;
        let life = &self.store.record().lives[&done.generation];
        let seqs =
            usize::try_from(done.first_seq - 1).unwrap()..usize::try_from(done.last_seq).unwrap();
        assert_eq!(
            life.texts[seqs], say.texts,
            "acknowledged and not written: {say:?}"
        );
        assert_eq!(life.key, say.key);
        match say.done {
            Some(before) => assert_eq!(before, done, "twice: {say:?}"),
            None if outcome.duplicate => assert!(say.in_doubt || say.under_way > 0, "{say:?}"),
            None => {
                assert!(expected.seq.is_none_or(|seq| seq + 1 == done.first_seq));
                let generation = expected.generation;
                assert!(generation.is_none_or(|generation| generation == done.generation));
            }
        }
        say.done = Some(done);
        say.fresh += u32::from(!outcome.duplicate);
        assert!(say.fresh <= 1, "twice: {say:?}");
    }

    async fn patch(&self) {
        let Ok(state) = self.bot.patch(&self.session, r#"{"a":1}"#, None).await else {
            return;
        };
        let record = self.store.record();
        let mut lives = record.lives.values().filter(|life| life.key == self.key());
        assert!(
            lives.any(|life| life.state_version >= state.version),
            "{state:?}"
        );
    }

    /// Asserts that the history consists of the newest turns at some moment in the journal.
    async fn live(&self) {
        let Ok(live) = self.bot.live(&self.session).await else {
            return;
        };
        let Some(newest) = live.last() else { return };
        let record = self.store.record();
        let mine = record.lives.values().filter(|life| life.key == self.key());
        let found: Vec<_> = mine
            .flat_map(|life| {
                let place = life.texts.iter().position(|text| text == newest)?;
                Some(kept(&life.texts[..=place], self.turns_max))
            })
            .collect();
        assert_eq!(
            found,
            [live.iter().collect::<Vec<_>>()],
            "{live:?} was never so"
        );
    }

    async fn journal(&self) {
        let Ok(turns) = self.bot.journal(&self.session, None).await else {
            return;
        };
        let record = self.store.record();
        let mut mine = record.lives.values().filter(|life| life.key == self.key());
        assert!(
            mine.any(|life| life.texts.starts_with(&turns)),
            "{turns:?} was never so"
        );
    }
}

/// Asserts that the error was caused by an injected fault or a limit.
fn check_error(say: &AppendRecord, error: &EngineError) {
    match error {
        EngineError::JournalFull | EngineError::SessionReloaded => {}
        // An injected read failure.
        EngineError::JournalFailed { .. } => {}
        EngineError::JournalQuota { scope, .. } => {
            assert_eq!(
                (*scope, say.key.tenant.as_str()),
                ("tenant", JOURNAL_BYTES.0)
            );
        }
        EngineError::Core(CoreError::StaleGeneration { .. } | CoreError::StaleSeq { .. }) => {}
        other => panic!("{say:?}: {other}"),
    }
}
