//! Random commands of two tenants and three subjects, checked against a naive model.
//!
//! Memories that are forgotten, expired, superseded, private to another subject or of another
//! tenant are never shown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::MemoryId;
use memoird_core::time::Timestamp;
use memoird_engine::Machine;
use memoird_memories::rules::{Memory, Outcome, Patch, Visibility};
use memoird_memories::{ForgetRequest, MemoryFilter, RecallRequest, RememberRequest};
use tokio::time::sleep;

use super::embedder::{Mood, ScriptedEmbedder};
use super::{fact, query, subject, world, world_with};
use crate::kit::{ACME, Dice, tenant};
use crate::seeds::seeds;
use crate::world::{Bot, House, World};

const SUBJECTS: [&str; 3] = ["ann", "bob", "carl"];
const TENANTS: [&str; 2] = [ACME, "other"];
/// Each content contains one of these. Each is recalled after each step.
const WORDS: [&str; 4] = ["tea", "chess", "rain", "music"];

/// Expected state of one tenant: everything remembered and not forgotten.
type Known = BTreeMap<MemoryId, Memory>;

/// Selects the memories that a command refers to.
type Meant = Box<dyn Fn(&Memory) -> bool>;

struct Simulation {
    dice: Dice,
    world: World,
    engine: House,
    embedder: Option<Arc<ScriptedEmbedder>>,
    known: [Known; 2],
    /// Makes every content unique.
    count: u64,
}

impl Simulation {
    async fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let embedder = dice
            .once_in(2)
            .then(|| Arc::new(ScriptedEmbedder::new("m")));
        let mut world = match &embedder {
            Some(embedder) => world_with(embedder),
            None => world(),
        };
        // An embedder that hangs times out at once. Otherwise expiry in the meantime would make
        // results random.
        world.config.long_term.query_wait = Duration::ZERO;
        // Nothing is merged by meaning, because the model would have to know the meaning of words.
        world.config.long_term.near_duplicate_cosine = 1.1;
        world
            .config
            .tenants
            .push(tenant(TENANTS[1], Default::default()));
        let engine = world.open().await;
        Self {
            dice,
            world,
            engine,
            embedder,
            known: Default::default(),
            count: 0,
        }
    }

    fn now(&self) -> Timestamp {
        self.world.machine.now().wall
    }

    fn bot(&self, place: usize) -> Bot {
        Bot::new(&self.engine, TENANTS[place])
    }

    fn ask(&mut self) -> RememberRequest {
        self.count += 1;
        let word = *self.dice.one_of(&WORDS);
        let whose = *self.dice.one_of(&SUBJECTS);
        let is_team = self.dice.once_in(3);
        let expires = self.dice.once_in(4).then(|| self.dice.below(120_000));
        let expires_ms = expires.map(|ms| self.now().as_ms() + i64::try_from(ms).unwrap());
        RememberRequest {
            visibility: if is_team {
                Visibility::Team
            } else {
                Visibility::Private
            },
            expires_at: expires_ms.map(Timestamp::from_ms),
            tags: vec![word.to_owned()],
            pinned: self.dice.once_in(8),
            ..fact(whose, &format!("{word} item{}", self.count))
        }
    }

    fn any(&mut self, place: usize) -> Option<Memory> {
        let known: Vec<Memory> = self.known[place].values().cloned().collect();
        (!known.is_empty()).then(|| self.dice.one_of(&known).clone())
    }

    async fn step(&mut self) {
        let place = usize::from(self.dice.once_in(2));
        match self.dice.below(16) {
            0..=5 => self.remember(place).await,
            6 | 7 => self.supersede(place).await,
            8 | 9 => self.update(place).await,
            10 | 11 => self.forget(place).await,
            12 => sleep(Duration::from_secs(self.dice.below(40))).await,
            13 => self.restart().await,
            14 => self.trouble(),
            _ => drop(
                self.bot(place)
                    .memories
                    .consolidation
                    .run(None, false)
                    .await
                    .unwrap(),
            ),
        }
    }

    async fn remember(&mut self, place: usize) {
        let ask = self.ask();
        let done = self.bot(place).remember(ask).await.unwrap();
        assert_eq!(done.outcome, Outcome::Created);
        self.known[place].insert(done.memory.id, done.memory);
    }

    async fn supersede(&mut self, place: usize) {
        let Some(old) = self.any(place) else { return };
        let ask = RememberRequest {
            supersedes: Some(old.id),
            ..self.ask()
        };
        let may = ask.subject.as_ref() == Some(&old.subject) && old.superseded_by.is_none();
        let done = self.bot(place).remember(ask).await;
        assert_eq!(done.is_ok(), may, "{done:?}");
        if let Ok(done) = done {
            let known = &mut self.known[place];
            known.get_mut(&old.id).unwrap().superseded_by = Some(done.memory.id);
            known.insert(done.memory.id, done.memory);
        }
    }

    async fn update(&mut self, place: usize) {
        let Some(old) = self.any(place) else { return };
        let other = self.ask();
        let patch = match self.dice.below(3) {
            0 => Patch {
                content: Some(other.content),
                ..Patch::default()
            },
            1 => Patch {
                visibility: Some(other.visibility),
                ..Patch::default()
            },
            _ => Patch {
                expires_at: Some(other.expires_at),
                ..Patch::default()
            },
        };
        let bot = self.bot(place);
        let done = bot
            .memories
            .facts
            .update(&bot.tenant, old.id, other.subject.clone(), patch)
            .await;
        let may = other.subject == Some(old.subject) && old.superseded_by.is_none();
        assert_eq!(done.is_ok(), may, "{done:?}");
        if let Ok((memory, _)) = done {
            self.known[place].insert(memory.id, memory);
        }
    }

    async fn forget(&mut self, place: usize) {
        let whose = subject(SUBJECTS[usize::try_from(self.dice.below(3)).unwrap()]);
        let word = (*self.dice.one_of(&WORDS)).to_owned();
        let Some(one) = self.any(place) else { return };
        let (ask, is_meant): (_, Meant) = match self.dice.below(6) {
            0 => (
                ForgetRequest::Subject(whose.clone()),
                Box::new(move |m| m.subject == whose),
            ),
            1 => {
                let (subject, tags) = (Some(whose.clone()), vec![word.clone()]);
                let filter = MemoryFilter {
                    subject,
                    tags,
                    ..MemoryFilter::default()
                };
                let fits = move |m: &Memory| m.subject == whose && m.tags.contains(&word);
                (ForgetRequest::Filter(filter), Box::new(fits))
            }
            _ => (
                ForgetRequest::One(one.id),
                Box::new(move |m| m.id == one.id),
            ),
        };
        let bot = self.bot(place);
        let dry = bot
            .memories
            .forgetting
            .forget(&bot.tenant, ask.clone(), true)
            .await
            .unwrap();
        let real = bot.forget(ask).await.unwrap();
        assert_eq!(
            (dry.memories, dry.superseded),
            (real.memories, real.superseded)
        );
        let known = &mut self.known[place];
        let before = known.len();
        let mut doomed: Vec<MemoryId> = known
            .values()
            .filter(|m| is_meant(m))
            .map(|m| m.id)
            .collect();
        while let Some(id) = doomed.pop() {
            if known.remove(&id).is_some() {
                doomed.extend(
                    known
                        .values()
                        .filter(|m| m.superseded_by == Some(id))
                        .map(|m| m.id),
                );
            }
        }
        assert_eq!(
            real.memories + real.superseded,
            (before - known.len()) as u64
        );
    }

    async fn restart(&mut self) {
        self.engine.close().await;
        self.engine = self.world.open().await;
    }

    fn trouble(&mut self) {
        let moods = [
            Mood::Fine,
            Mood::Fine,
            Mood::Away(None),
            Mood::Hangs,
            Mood::Misconfigured,
        ];
        let mood = self.dice.one_of(&moods).clone();
        self.embedder
            .iter()
            .for_each(|embedder| embedder.feels(mood.clone()));
    }

    async fn check(&self) {
        for place in 0..TENANTS.len() {
            let (bot, known, now) = (self.bot(place), &self.known[place], self.now());
            let mut all: Vec<_> = bot.list_of(None, true).await.iter().map(|m| m.id).collect();
            all.sort();
            assert_eq!(all, known.keys().copied().collect::<Vec<_>>(), "{place}");
            for whose in SUBJECTS {
                let may_see = |m: &&Memory| m.is_current(now) && m.is_visible_to(&subject(whose));
                let seen: Vec<&Memory> = known.values().filter(may_see).collect();
                let mut own: Vec<_> = seen
                    .iter()
                    .filter(|m| m.subject == subject(whose))
                    .collect();
                own.sort_by_key(|m| m.id);
                let own: Vec<_> = own.iter().map(|m| m.content.clone()).collect();
                assert_eq!(bot.listed(whose).await, own);
                let manifest = bot.manifest(whose).await;
                assert_eq!(manifest.lines().count(), seen.len(), "{manifest}");
                assert!(seen.iter().all(|m| manifest.contains(&m.id.to_string())));
                for word in WORDS {
                    let ask = RecallRequest {
                        limit: 100,
                        ..query(whose, word)
                    };
                    let found = bot.recall(ask).await.unwrap();
                    let mut ids: Vec<_> = found.hits.iter().map(|hit| hit.memory.id).collect();
                    ids.sort();
                    let is_told = |m: &&&Memory| m.content.split(' ').next() == Some(word);
                    let must: Vec<_> = seen.iter().filter(is_told).map(|m| m.id).collect();
                    assert!(must.iter().all(|id| ids.contains(id)), "{word} of {whose}");
                    assert!(
                        ids.iter().all(|id| seen.iter().any(|m| m.id == *id)),
                        "{ids:?}"
                    );
                }
                for (id, memory) in known {
                    let answer = bot
                        .memories
                        .facts
                        .get(&bot.tenant, *id, Some(subject(whose)))
                        .await;
                    assert_eq!(answer.is_ok(), memory.is_visible_to(&subject(whose)));
                }
            }
        }
    }
}

#[test]
fn random_operations_show_only_permitted_memories() {
    for seed in seeds(12) {
        println!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut simulation = Simulation::new(seed).await;
            for _ in 0..60 {
                simulation.step().await;
                simulation.check().await;
            }
        });
    }
}
