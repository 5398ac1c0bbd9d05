//! The material of a summary: the last summary, the summaries of pieces and the turns, oldest
//! first, as sentences and identifiers.

use std::collections::{HashMap, HashSet};

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{Kind, identifiers};
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::transcript::{TranscriptTurn, sentences};
use memoird_core::turn::Role;
use memoird_engine::SummaryRequest;

/// How many times as old as it is a name counts, and a time of day: they are many, and mean
/// little without what they were said of.
const NAME: usize = 10;
const TIME: usize = 6;
/// Entries of a list of the summary; the oldest are left out first.
const ENTRIES_MAX: usize = 64;
/// Bytes of what the user wants, of the whole conversation and lately each.
const INTENT_BYTES_MAX: usize = 240;
/// A shorter text says nothing of what the user wants: "Yes, please."
const INTENT_BYTES_MIN: usize = 48;
/// The intent where the user said nothing.
const NOT_SAID: &str = "(not said)";
/// Stands before what the user wanted last.
pub(super) const LATELY: &str = "Lately: ";

/// The material of a summary.
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

/// A sentence of the user or the assistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// `user: ` or `assistant: `, or empty where it is not known.
    pub(super) who: &'static str,
    pub(super) text: String,
}

impl Found {
    /// How many times as old as it is it counts.
    pub(super) fn weight(&self) -> usize {
        match self.kind {
            Kind::Name => NAME,
            Kind::Date if self.text.contains(':') => TIME,
            _ => 1,
        }
    }
}

/// An identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) text: String,
    pub(super) kind: Kind,
}

const WHO: [&str; 2] = ["user: ", "assistant: "];

impl Material {
    pub(super) fn of(request: &SummaryRequest) -> Self {
        let mut gather = Gather::default();
        let previous = request.previous.as_deref();
        let summarized = previous.map(|summary| &summary.body);
        for body in summarized.into_iter().chain(&request.chunks) {
            gather.body(body);
        }
        if let Some(previous) = previous {
            gather.notes(&previous.notes);
        }
        for turn in request.turns.iter() {
            gather.turn(turn);
        }
        gather.notes(&request.notes);
        gather.finish(&request.turns)
    }

    /// The identifiers by how old they are, those that are forgotten faster counted older.
    pub(super) fn best_first(&self) -> Vec<&str> {
        let newest_first = self.identifiers.iter().rev().enumerate();
        let mut order: Vec<_> = newest_first
            .map(|(age, found)| ((age + 1) * found.weight(), age, found.text.as_str()))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, text)| text).collect()
    }

    /// These identifiers, oldest first.
    pub(super) fn in_order(&self, taken: &[&str]) -> Vec<String> {
        let taken: HashSet<&str> = taken.iter().copied().collect();
        let found = self.identifiers.iter();
        let found = found.filter(|found| taken.contains(&*found.text));
        found.map(|found| found.text.clone()).collect()
    }
}

/// The sentences of these indices, oldest first, one in each line.
pub(super) fn narrative(sentences: &[Sentence], taken: &[usize]) -> String {
    let mut indices = taken.to_vec();
    indices.sort_unstable();
    let lines = indices.into_iter().filter_map(|index| sentences.get(index));
    let lines = lines.map(|line| format!("{}{}", line.who, line.text));
    lines.collect::<Vec<_>>().join("\n")
}

#[derive(Default)]
struct Gather {
    material: Material,
    /// For each identifier: what it is, and where it last stood.
    last: HashMap<String, (Kind, u64)>,
    now: u64,
}

impl Gather {
    /// The notes of turns.
    fn notes(&mut self, notes: &Notes) {
        self.material.files.extend_from_slice(&notes.files);
        self.material.decisions.extend_from_slice(&notes.decisions);
    }

    /// A summary. Its list of identifiers is in the order of their last use.
    fn body(&mut self, body: &Body) {
        if !body.session_intent.trim().is_empty() && self.material.intent.is_empty() {
            self.material.intent = body.session_intent.clone();
        }
        let lists = [
            &body.files_touched,
            &body.decisions,
            &body.pending_questions,
            &body.next_steps,
        ];
        for line in lists.into_iter().flatten().chain([&body.session_intent]) {
            self.identifiers(line);
        }
        let material = &mut self.material;
        material.files.extend_from_slice(&body.files_touched);
        material.decisions.extend_from_slice(&body.decisions);
        material.next_steps.clone_from(&body.next_steps);
        for line in body.narrative.lines() {
            self.line(line);
        }
        for listed in &body.identifiers {
            self.listed(listed);
        }
    }

    /// An identifier of a list, without what stood around it: a bare number was an amount,
    /// capitals alone an id.
    fn listed(&mut self, text: &str) {
        let found = identifiers(text);
        let kind = found.first().filter(|found| found.text == text);
        let kind = kind.map(|found| found.kind);
        let is_code = text.len() >= 5 && text.bytes().all(|b| b.is_ascii_uppercase());
        let kind = match kind {
            Some(Kind::Name) | None if is_code => Kind::Id,
            Some(kind) => kind,
            None if text.starts_with(|c: char| c.is_ascii_digit()) => Kind::Amount,
            None => Kind::Name,
        };
        self.found(text, kind);
    }

    /// A line of a narrative.
    fn line(&mut self, line: &str) {
        let line = line.trim();
        let known = WHO.into_iter().find(|who| line.starts_with(who));
        let who = known.unwrap_or_default();
        for text in sentences(&line[who.len()..]) {
            self.sentence(who, text);
        }
        self.identifiers(&line[who.len()..]);
    }

    fn turn(&mut self, turn: &TranscriptTurn) {
        let who = match turn.role {
            Role::User => WHO[0],
            Role::Assistant => WHO[1],
            Role::Tool | Role::System => return self.identifiers_of(turn),
        };
        let calls = turn.calls.iter().map(|(name, _)| format!("{name}("));
        let calls: Vec<String> = calls.collect();
        let is_call = |line: &str| calls.iter().any(|call| line.starts_with(call.as_str()));
        let is_data = |line: &str| line.starts_with(['{', '[']) || line.starts_with("failed: ");
        let lines = turn.text.lines();
        for line in lines.filter(|line| !is_call(line) && !is_data(line)) {
            sentences(line).for_each(|text| self.sentence(who, text));
        }
        self.identifiers_of(turn);
    }

    fn sentence(&mut self, who: &'static str, text: &str) {
        // Marks of lists and emphasis say nothing here.
        let text = text.trim_start_matches(['-', '*', '•', '#', ' ']);
        let text = text.replace("**", "");
        self.material.sentences.push(Sentence { who, text });
    }

    fn identifiers_of(&mut self, turn: &TranscriptTurn) {
        for found in turn.identifiers() {
            self.found(found.text, found.kind);
        }
    }

    fn identifiers(&mut self, text: &str) {
        for found in identifiers(text) {
            self.found(found.text, found.kind);
        }
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
        // The date of a timestamp is an identifier by itself: people ask for it.
        if let Some((day, _)) = text.split_once('T').filter(|_| kind == Kind::Date) {
            self.found(day, kind);
        }
    }

    fn finish(self, turns: &[TranscriptTurn]) -> Material {
        let mut material = self.material;
        material.intent = intent(&material.intent, turns);
        newest_once(&mut material.files);
        newest_once(&mut material.decisions);
        newest_once(&mut material.next_steps);
        material.identifiers = ordered(self.last);
        material
    }
}

/// In the order of their last use. One that is only the beginning or the number of another is
/// dropped, and its last use counts for the other: `152` for `$152`, `May 20` for `May 20, 2024`.
fn ordered(mut last: HashMap<String, (Kind, u64)>) -> Vec<Found> {
    let parts: Vec<(String, String)> = last
        .keys()
        .filter_map(|whole| part(whole).map(|part| (part.to_owned(), whole.clone())))
        .filter(|(part, _)| last.contains_key(part))
        .collect();
    for (part, whole) in &parts {
        let of_part = last.get(part).map(|(_, last)| *last);
        if let (Some(of_part), Some((_, of_whole))) = (of_part, last.get_mut(whole)) {
            *of_whole = (*of_whole).max(of_part);
        }
    }
    for (part, _) in &parts {
        last.remove(part);
    }
    let mut found: Vec<_> = last.into_iter().collect();
    found.sort_unstable_by(|(a, (_, a_last)), (b, (_, b_last))| (a_last, a).cmp(&(b_last, b)));
    let found = found.into_iter();
    found
        .map(|(text, (kind, _))| Found { text, kind })
        .collect()
}

/// The piece of an identifier that stands for itself elsewhere.
fn part(whole: &str) -> Option<&str> {
    if let Some(number) = whole.strip_prefix(['$', '€', '£']) {
        return Some(number);
    }
    let is_month = whole.starts_with(|c: char| c.is_ascii_uppercase());
    let (date, _) = whole.split_once(", ").filter(|_| is_month)?;
    Some(date)
}

/// Each entry once, where it stands last, and not more than there is room for.
fn newest_once(list: &mut Vec<String>) {
    let mut seen = HashSet::new();
    let mut newest: Vec<String> = std::mem::take(list).into_iter().rev().collect();
    newest.retain(|entry| !entry.trim().is_empty() && seen.insert(entry.clone()));
    newest.truncate(ENTRIES_MAX);
    newest.reverse();
    *list = newest;
}

/// The user's intent: their first request in the conversation, and their last.
fn intent(previous: &str, turns: &[TranscriptTurn]) -> String {
    let is_data = |text: &str| text.starts_with(['{', '[']);
    let users = turns.iter().filter(|turn| turn.role == Role::User);
    let texts = users.map(|turn| turn.text.as_str());
    let texts = texts.filter(|text| !text.is_empty() && !is_data(text));
    let is_long = |text: &str| text.len() >= INTENT_BYTES_MIN;
    let (mut first, mut lately) = match previous.split_once(LATELY) {
        Some((first, lately)) => (first.trim().to_owned(), lately.to_owned()),
        None => (previous.trim().to_owned(), String::new()),
    };
    if first == NOT_SAID {
        first.clear();
    }
    if first.is_empty() {
        let long = texts.clone().find(|text| is_long(text));
        let text = long.or_else(|| texts.clone().next());
        first = text.map(beginning).unwrap_or_default();
    }
    if let Some(last) = texts.rev().map(beginning).find(|text| is_long(text)) {
        lately = last;
    }
    if first.is_empty() && !turns.is_empty() {
        first = NOT_SAID.to_owned();
    }
    if lately.is_empty() || lately == first {
        first
    } else {
        format!("{first} {LATELY}{lately}")
    }
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
