//! What a summary is made of: the last summary, the summaries of pieces and the turns, oldest
//! first, as sentences and identifiers.

use std::collections::HashMap;

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{Kind, identifiers};
use memoird_core::compaction::spoken::{Spoken, sentences};
use memoird_core::turn::Role;
use memoird_engine::SummaryAsk;

/// Entries of a list of the summary; the oldest are left out first.
const ENTRIES_MAX: usize = 64;
/// Bytes of what the user wants, of the whole conversation and lately each.
const INTENT_BYTES_MAX: usize = 240;
/// A shorter text says nothing of what the user wants: "Yes, please."
const INTENT_BYTES_MIN: usize = 24;
/// Stands before what the user wanted last.
const LATELY: &str = "Lately: ";

/// What a summary is made of.
#[derive(Debug, Default)]
pub(super) struct Material {
    pub(super) intent: String,
    pub(super) files: Vec<String>,
    pub(super) decisions: Vec<String>,
    pub(super) next_steps: Vec<String>,
    /// Oldest first.
    pub(super) sentences: Vec<Sentence>,
    /// Each once, in the order of where it last stands, oldest first.
    pub(super) identifiers: Vec<Found>,
}

/// A sentence that somebody said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// `user: ` or `assistant: `, or empty where it is not known.
    pub(super) who: &'static str,
    pub(super) text: String,
}

/// An identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: String,
    pub(super) kind: Kind,
}

const WHO: [&str; 2] = ["user: ", "assistant: "];

impl Material {
    pub(super) fn of(ask: &SummaryAsk) -> Self {
        let mut gather = Gather::default();
        let previous = ask.previous.as_deref();
        for body in previous.map(|summary| &summary.body).into_iter().chain(&ask.pieces) {
            gather.body(body);
        }
        if let Some(previous) = previous {
            gather.material.files.extend(previous.notes.files.iter().cloned());
            gather.material.decisions.extend(previous.notes.decisions.iter().cloned());
        }
        ask.turns.iter().for_each(|turn| gather.turn(turn));
        gather.material.files.extend(ask.notes.files.iter().cloned());
        gather.material.decisions.extend(ask.notes.decisions.iter().cloned());
        gather.finish(&ask.turns)
    }

    /// These identifiers, oldest first.
    pub(super) fn in_order(&self, taken: &[&str]) -> Vec<String> {
        let taken: std::collections::HashSet<&str> = taken.iter().copied().collect();
        let found = self.identifiers.iter().filter(|found| taken.contains(&*found.text));
        found.map(|found| found.text.clone()).collect()
    }
}

/// The sentences of these places, oldest first, one in each line.
pub(super) fn narrative(sentences: &[Sentence], taken: &[usize]) -> String {
    let mut places = taken.to_vec();
    places.sort_unstable();
    let lines = places.into_iter().filter_map(|place| sentences.get(place));
    lines.map(|line| format!("{}{}", line.who, line.text)).collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct Gather {
    material: Material,
    /// For each identifier: what it is, and where it last stood.
    last: HashMap<String, (Kind, u64)>,
    now: u64,
}

impl Gather {
    /// A summary. Its sentences and its list are both in the order of what was said, so they
    /// are taken by turns.
    fn body(&mut self, body: &Body) {
        if !body.session_intent.trim().is_empty() && self.material.intent.is_empty() {
            self.material.intent = body.session_intent.clone();
        }
        let lists =
            [&body.files_touched, &body.decisions, &body.pending_questions, &body.next_steps];
        lists.into_iter().flatten().for_each(|line| self.identifiers(line));
        self.identifiers(&body.session_intent);
        self.material.files.extend(body.files_touched.iter().cloned());
        self.material.decisions.extend(body.decisions.iter().cloned());
        self.material.next_steps.clone_from(&body.next_steps);
        let lines: Vec<&str> = body.narrative.lines().collect();
        let listed = body.identifiers.len();
        let mut next = 0;
        for (number, line) in lines.iter().enumerate() {
            self.line(line);
            let until = (number + 1) * listed / lines.len();
            body.identifiers[next..until].iter().for_each(|listed| self.listed(listed));
            next = until;
        }
        body.identifiers[next..].iter().for_each(|listed| self.listed(listed));
    }

    /// An identifier of a list: what it is, where it is nothing by itself, is an amount.
    fn listed(&mut self, text: &str) {
        let found = identifiers(text);
        match found.first().filter(|found| found.text == text) {
            Some(found) => self.found(text, found.kind),
            None if text.starts_with(|c: char| c.is_ascii_digit()) => {
                self.found(text, Kind::Amount);
            }
            None => self.found(text, Kind::Name),
        }
    }

    /// A line of a narrative.
    fn line(&mut self, line: &str) {
        let line = line.trim();
        let who = WHO.into_iter().find(|who| line.starts_with(who)).unwrap_or("");
        for text in sentences(&line[who.len()..]) {
            self.sentence(who, text);
        }
        self.identifiers(line);
    }

    fn turn(&mut self, turn: &Spoken) {
        let who = match turn.role {
            Role::User => WHO[0],
            Role::Assistant => WHO[1],
            Role::Tool | Role::System => return self.identifiers(&turn.text),
        };
        let is_call = |line: &str| {
            turn.calls.iter().any(|(name, _)| {
                line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('('))
            })
        };
        let is_data = |line: &str| line.starts_with(['{', '[']) || line.starts_with("failed: ");
        for line in turn.text.lines().filter(|line| !is_call(line) && !is_data(line)) {
            sentences(line).for_each(|text| self.sentence(who, text));
        }
        self.identifiers(&turn.text);
    }

    fn sentence(&mut self, who: &'static str, text: &str) {
        self.material.sentences.push(Sentence { who, text: text.to_owned() });
    }

    fn identifiers(&mut self, text: &str) {
        identifiers(text).into_iter().for_each(|found| self.found(found.text, found.kind));
    }

    fn found(&mut self, text: &str, kind: Kind) {
        self.now += 1;
        match self.last.get_mut(text) {
            // What was once more than a name stays so.
            Some((known, last)) => (*known, *last) = ((*known).min(kind), self.now),
            None => {
                self.last.insert(text.to_owned(), (kind, self.now));
            }
        }
    }

    fn finish(self, turns: &[Spoken]) -> Material {
        let mut material = self.material;
        material.intent = intent(&material.intent, turns);
        let lists = [&mut material.files, &mut material.decisions, &mut material.next_steps];
        lists.into_iter().for_each(newest_once);
        let mut found: Vec<_> = self.last.into_iter().collect();
        found.sort_unstable_by_key(|(_, (_, last))| *last);
        let found = found.into_iter().map(|(text, (kind, _))| Found { text, kind });
        material.identifiers = found.collect();
        material
    }
}

/// Each entry once, where it stands last, and not more than there is room for.
fn newest_once(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    let mut newest: Vec<String> = std::mem::take(list).into_iter().rev().collect();
    newest.retain(|entry| !entry.trim().is_empty() && seen.insert(entry.clone()));
    newest.truncate(ENTRIES_MAX);
    newest.reverse();
    *list = newest;
}

/// What the user wants: what the conversation began with, and what they asked for last.
fn intent(previous: &str, turns: &[Spoken]) -> String {
    let wishes = turns.iter().filter(|turn| turn.role == Role::User && !turn.text.is_empty());
    let wishes = wishes.filter(|turn| !turn.text.starts_with(['{', '[']));
    let is_long = |text: &str| text.len() >= INTENT_BYTES_MIN;
    let (mut first, mut lately) = match previous.split_once(LATELY) {
        Some((first, lately)) => (first.trim().to_owned(), lately.to_owned()),
        None => (previous.trim().to_owned(), String::new()),
    };
    if first.is_empty() {
        let mut texts = wishes.clone().map(|turn| turn.text.as_str());
        let text = texts.clone().find(|text| is_long(text)).or_else(|| texts.next());
        first = text.map(beginning).unwrap_or_default();
    }
    if let Some(last) = wishes.rev().map(|turn| beginning(&turn.text)).find(|text| is_long(text)) {
        lately = last;
    }
    if lately.is_empty() || lately == first { first } else { format!("{first} {LATELY}{lately}") }
}

/// The first sentences of a text, in one line.
fn beginning(text: &str) -> String {
    let mut line = String::new();
    for sentence in sentences(text) {
        let end = sentence.floor_char_boundary(INTENT_BYTES_MAX);
        if !line.is_empty() && line.len() + end >= INTENT_BYTES_MAX {
            break;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&sentence[..end]);
    }
    line
}
