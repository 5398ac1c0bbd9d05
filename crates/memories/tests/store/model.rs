//! Random operations, checked against a naive model.
//!
//! Searches find exactly the current and visible memories, and every index contains exactly these.

use std::collections::{BTreeMap, BTreeSet};

use memoird_core::time::Timestamp;
use memoird_memories::MemoryFilter;
use memoird_memories::RecallRequest;
use memoird_memories::rules::{Memory, MemoryKind, NearDuplicate, Outcome, Patch, Visibility};
use memoird_memories::store::RememberCommand;
use memoird_memories::{ForgetRequest, ListRequest, RememberOutcome};
use memoird_memories::{MemoryError, RememberRequest};
use proptest::prelude::*;

use crate::kit::*;
use crate::seeds::seeds_factor;

const WHO: [&str; 3] = ["ann", "bob", "cid"];
const TEXTS: [&str; 6] = [
    "fact of tea",
    "Fact of  TEA!",
    "fact of coffee",
    "fact of 5 cups",
    "FACT OF 50 cups",
    "fact of no cups",
];
const KINDS: [MemoryKind; 2] = [MemoryKind::Project, MemoryKind::Reference];

#[derive(Clone, Debug)]
struct Saying {
    who: usize,
    text: usize,
    kind: usize,
    is_team: bool,
    expires_in: Option<i64>,
    supersedes: Option<usize>,
    keeps: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Say(Saying),
    Change {
        place: usize,
        text: Option<usize>,
        is_team: Option<bool>,
        expires_in: Option<i64>,
    },
    Merge(usize, usize),
    ForgetOne(usize),
    ForgetSubject(usize),
    ForgetKind(usize, usize),
    Expire,
    Wait(i64),
    Embed,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let hours = || proptest::option::weighted(0.2, 1..5_i64);
    let place = 0..64_usize;
    let say = (
        0..WHO.len(),
        0..TEXTS.len(),
        0..KINDS.len(),
        proptest::bool::weighted(0.3),
        hours(),
        proptest::option::weighted(0.2, place.clone()),
        any::<bool>(),
    );
    let say = say.prop_map(
        |(who, text, kind, is_team, expires_in, supersedes, keeps)| {
            Step::Say(Saying {
                who,
                text,
                kind,
                is_team,
                expires_in,
                supersedes,
                keeps,
            })
        },
    );
    let change = (
        place.clone(),
        proptest::option::of(0..TEXTS.len()),
        proptest::option::of(any::<bool>()),
        hours(),
    );
    let change = change.prop_map(|(place, text, is_team, expires_in)| Step::Change {
        place,
        text,
        is_team,
        expires_in,
    });
    prop_oneof![
        12 => say,
        4 => change,
        2 => (place.clone(), place.clone()).prop_map(|(one, other)| Step::Merge(one, other)),
        2 => place.prop_map(Step::ForgetOne),
        1 => (0..WHO.len()).prop_map(Step::ForgetSubject),
        1 => (0..WHO.len(), 0..KINDS.len()).prop_map(|(who, kind)| Step::ForgetKind(who, kind)),
        1 => Just(Step::Expire),
        2 => (1..3_i64).prop_map(Step::Wait),
        3 => Just(Step::Embed),
        1 => Just(Step::Restart),
    ]
}

/// A file, and its expected contents.
struct Both {
    kit: Option<Kit>,
    known: BTreeMap<u64, Memory>,
    hours: i64,
    next: u64,
    is_embedded: bool,
}

impl Both {
    fn kit(&self) -> &Kit {
        self.kit.as_ref().unwrap()
    }

    fn now(&self) -> Timestamp {
        at(self.hours)
    }

    fn pick(&self, place: usize) -> Option<u64> {
        self.known
            .keys()
            .nth(place % self.known.len().max(1))
            .copied()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Say(saying) => self.say(&saying),
            Step::Change {
                place,
                text,
                is_team,
                expires_in,
            } => {
                if let Some(place) = self.pick(place) {
                    let patch = Patch {
                        content: text.map(|text| TEXTS[text].to_owned()),
                        visibility: is_team.map(visibility),
                        expires_at: expires_in.map(|hours| Some(at(self.hours + hours))),
                        ..Patch::default()
                    };
                    self.change(place, patch);
                }
            }
            Step::Merge(older, newer) => {
                if let (Some(older), Some(newer)) = (self.pick(older), self.pick(newer)) {
                    self.merge(older, newer);
                }
            }
            Step::ForgetOne(place) => {
                if let Some(place) = self.pick(place) {
                    self.forget(&ForgetRequest::One(id(place)), |memory| {
                        number(memory.id) == place
                    });
                }
            }
            Step::ForgetSubject(who) => {
                let who = subject(WHO[who]);
                self.forget(&ForgetRequest::Subject(who.clone()), |memory| {
                    memory.subject == who
                });
            }
            Step::ForgetKind(who, kind) => {
                let (who, kind) = (subject(WHO[who]), KINDS[kind]);
                let filter = ForgetRequest::Filter(MemoryFilter {
                    subject: Some(who.clone()),
                    kinds: vec![kind],
                    tags: vec![],
                    after: None,
                    before: None,
                });
                self.forget(&filter, |memory| {
                    memory.subject == who && memory.kind == kind
                });
            }
            Step::Expire => {
                let now = self.now();
                self.kit()
                    .write(move |writer| writer.expire_step(now, 1_000));
                self.remove(|memory| memory.expires_at.is_some_and(|expires| expires < now));
            }
            Step::Wait(hours) => self.hours += hours,
            Step::Embed => self.embed(),
            Step::Restart => self.kit = self.kit.take().map(Kit::reopened),
        }
    }

    fn say(&mut self, saying: &Saying) {
        let mut said = fact(WHO[saying.who], KINDS[saying.kind], TEXTS[saying.text]);
        said.visibility = visibility(saying.is_team);
        said.expires_at = saying.expires_in.map(|hours| at(self.hours + hours));
        said.supersedes = saying.supersedes.and_then(|place| self.pick(place)).map(id);
        if saying.keeps {
            said.near_duplicate = NearDuplicate::Keep;
        }
        let order = order_at(self.now(), self.next, said.clone());
        self.next += 1;
        match self.try_remember(order) {
            Err(MemoryError::NotFound { id }) => {
                assert_ne!(
                    Some(&self.known[&number(id)].subject),
                    said.subject.as_ref()
                );
            }
            Err(MemoryError::Superseded { id, by }) => {
                assert_eq!(self.known[&number(id)].superseded_by, Some(by));
            }
            Err(refusal) => panic!("{refusal}"),
            Ok(done) => self.learn(&said, done),
        }
    }

    fn try_remember(&self, order: RememberCommand) -> Result<RememberOutcome, MemoryError> {
        self.kit()
            .memories
            .write_one(move |w| w.remember(&order, &limits()))
    }

    fn learn(&mut self, said: &RememberRequest, done: RememberOutcome) {
        let now = self.now();
        let twin = self.known.values().find(|memory| {
            memory.is_current(now)
                && memory.content == said.content
                && (Some(&memory.subject), memory.kind, memory.visibility)
                    == (said.subject.as_ref(), said.kind, said.visibility)
        });
        match done.outcome {
            Outcome::Created => assert_eq!(twin, None, "it was said already"),
            Outcome::Reinforced => assert!(twin.is_some()),
            Outcome::Merged => assert!(twin.is_none()),
            Outcome::Recalled => panic!("nobody recalled anything"),
            Outcome::Replaced => panic!("nobody named anything"),
        }
        self.is_embedded = false;
        let new = done.memory.id;
        let was = self.known.insert(number(new), done.memory);
        if let Some(was) = was.filter(|was| was.content != said.content) {
            self.keep_spelling(was);
        }
        if let Some(old) = said.supersedes.filter(|old| *old != new) {
            self.supersede(number(old), number(new));
        }
    }

    /// Stores the replaced spelling of a memory as history, each spelling once.
    fn keep_spelling(&mut self, was: Memory) {
        let leads = |memory: &&Memory| memory.superseded_by == Some(was.id);
        let mut history = self.known.values().filter(leads);
        if !history.any(|memory| memory.content == was.content) {
            let kept = Memory {
                id: id(self.next - 1),
                superseded_by: Some(was.id),
                ..was
            };
            self.known.insert(self.next - 1, kept);
        }
    }

    fn supersede(&mut self, old: u64, new: u64) {
        let now = self.now();
        let old = self.known.get_mut(&old).unwrap();
        (old.superseded_by, old.updated_at) = (Some(id(new)), now);
    }

    fn change(&mut self, place: u64, patch: Patch) {
        let now = self.now();
        let changed = self
            .kit()
            .memories
            .write_one(move |writer| writer.update(id(place), None, &patch, now, &limits()));
        match changed {
            Ok(memory) => {
                self.is_embedded = false;
                self.known.insert(place, memory);
            }
            Err(MemoryError::Superseded { by, .. }) => {
                assert_eq!(self.known[&place].superseded_by, Some(by));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn merge(&mut self, older: u64, newer: u64) {
        let now = self.now();
        let done = self
            .kit()
            .write(move |w| w.merge(id(older), id(newer), now));
        let (one, other) = (&self.known[&older], &self.known[&newer]);
        let may = older != newer && one.is_current(now) && other.is_current(now);
        assert_eq!(
            done,
            may && (&one.subject, one.kind) == (&other.subject, other.kind)
        );
        if done {
            self.supersede(older, newer);
            let merged = self.kit().get(id(newer)).unwrap();
            self.known.insert(newer, merged);
        }
    }

    fn forget(&mut self, filter: &ForgetRequest, covers: impl Fn(&Memory) -> bool) {
        let before = self.known.len() as u64;
        let planned = self
            .kit()
            .memories
            .read(|reader| reader.forget_count(filter))
            .unwrap();
        let counts = self.kit().forget(1_000_000 + self.next, filter);
        self.next += 1;
        assert_eq!(counts, planned);
        self.remove(covers);
        assert_eq!(
            before - self.known.len() as u64,
            counts.memories + counts.superseded
        );
    }

    /// Deletes memories with the versions they superseded.
    fn remove(&mut self, covers: impl Fn(&Memory) -> bool) {
        let mut gone: BTreeSet<u64> = self
            .known
            .values()
            .filter(|memory| covers(memory))
            .map(|m| number(m.id))
            .collect();
        loop {
            let leads = self.known.values().filter(|memory| {
                memory
                    .superseded_by
                    .is_some_and(|by| gone.contains(&number(by)))
            });
            let leads: Vec<u64> = leads.map(|memory| number(memory.id)).collect();
            let count = gone.len();
            gone.extend(leads);
            if gone.len() == count {
                break;
            }
        }
        self.known.retain(|known, _| !gone.contains(known));
    }

    fn embed(&mut self) {
        let now = self.now();
        self.kit().write(move |writer| {
            for due in writer.embeddings_due(MODEL, now, 1_000)? {
                let mut values = [1.0; 8];
                values[usize::try_from(number(due.id) % 8).unwrap()] = 0.3;
                assert!(writer.embedded(due.id, due.revision, &vector(values))?);
            }
            Ok(())
        });
        self.is_embedded = true;
    }

    fn check(&self) {
        let (kit, now) = (self.kit(), self.now());
        let filter = ListRequest {
            include_history: true,
            ..Default::default()
        };
        let listed = kit
            .memories
            .read(|reader| reader.list(&filter, 10_000, now))
            .unwrap();
        assert_eq!(listed, self.known.values().cloned().collect::<Vec<_>>());
        for who in WHO.map(subject) {
            let expected: BTreeSet<u64> = self
                .known
                .values()
                .filter(|memory| memory.is_current(now) && memory.is_visible_to(&who))
                .map(|memory| number(memory.id))
                .collect();
            let ask = RecallRequest {
                limit: 1_000,
                ..ask(&[who.as_str()], "fact")
            };
            let lists = kit.recall_at(now, &ask, Some(&vector([1.0; 8])));
            let found: BTreeSet<u64> = by_words(&lists).into_iter().collect();
            assert_eq!(found, expected, "{who} by words");
            let near: BTreeSet<u64> = by_vector(&lists).into_iter().collect();
            if self.is_embedded {
                assert_eq!(near, expected, "{who} by meaning");
            } else {
                assert!(near.is_subset(&expected), "{who} by meaning");
            }
            let (memories, total) = kit
                .memories
                .read(|reader| reader.manifest(&who, now, 1_000))
                .unwrap();
            let told: BTreeSet<u64> = memories.iter().map(|m| number(m.id)).collect();
            assert_eq!((told, total), (expected.clone(), expected.len() as u64));
        }
        kit.check_indexes();
    }
}

fn visibility(is_team: bool) -> Visibility {
    if is_team {
        Visibility::Team
    } else {
        Visibility::Private
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24 * u32::try_from(seeds_factor()).unwrap(), ..ProptestConfig::default() })]

    #[test]
    fn recall_finds_exactly_current_visible_memories(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let kit = Kit::new();
        kit.write(|writer| writer.set_embedding_model(Some(MODEL)));
        let mut both =
            Both { kit: Some(kit), known: BTreeMap::new(), hours: 0, next: 1, is_embedded: true };
        for step in steps {
            both.take(step);
            both.check();
        }
    }
}
