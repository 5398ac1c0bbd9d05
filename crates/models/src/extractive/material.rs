//! The material of a summary: the last summary, the summaries of pieces and the turns, oldest
//! first.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{Identifier, Kind, identifiers};
use memoird_core::compaction::ledger::{Entry, GAVE, Ledger, Said};
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::transcript::sentences;
use memoird_core::turn::Role;
use memoird_engine::SummaryRequest;

use super::fit::is_open;
use super::newest_once;
use super::wants::{NOT_SAID, Wants};

/// Entries of a list of the summary; the oldest are left out first.
const ENTRIES_MAX: usize = 64;
/// Actions and facts that are looked at: the newest.
const ACTIONS_MAX: usize = 512;
const FACTS_MAX: usize = 1_024;
/// Bytes of a line that a list was joined to, and of a record.
const JOINED_BYTES_MAX: usize = 320;
const RECORD_BYTES_MAX: usize = 320;
/// Between the call and its records, and between records.
pub(super) const SAYS: &str = ": ";
pub(super) const BETWEEN: &str = "; ";

/// The material of a summary.
#[derive(Debug, Default)]
pub(super) struct Material {
    pub(super) wants: Wants,
    pub(super) has_turns: bool,
    pub(super) files: Vec<String>,
    pub(super) decisions: Vec<String>,
    pub(super) next_steps: Vec<String>,
    /// Calls that changed something or failed, oldest first.
    pub(super) actions: Vec<String>,
    /// What other calls found out, oldest first.
    pub(super) facts: Vec<Fact>,
    /// Oldest first.
    pub(super) sentences: Vec<Sentence>,
    /// Identifiers in the order of their last use: a summary lists the newest that no line has.
    pub(super) listed: Vec<String>,
}

/// A record of what a call found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    /// The call.
    pub(super) call: String,
    /// `label=value, …`
    pub(super) text: String,
    /// True where somebody named what it is about.
    pub(super) is_mentioned: bool,
}

/// A fact that stands in the summary, or as much of it as this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TakenFact {
    pub(super) index: usize,
    pub(super) text: String,
}

/// A sentence of the user or the assistant, or a list with what stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sentence {
    /// `user: ` or `assistant: `, or empty where it is not known.
    pub(super) who: &'static str,
    pub(super) text: String,
    /// Sentences of one turn have the same.
    pub(super) group: usize,
    /// What it tells.
    pub(super) tells: Tells,
    /// Where its identifiers stand.
    pub(super) found: Vec<(Range<usize>, Kind)>,
    /// How many sentences of its turn stand before it; 0 where that is not known.
    pub(super) place: usize,
    /// True where the assistant begins with it and says more.
    pub(super) begins: bool,
}

/// What a sentence tells, by where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    /// What came of a change.
    Change,
    /// What an earlier summary says in the assistant's words: the best of what it read.
    Kept,
    /// What a call found out, or what the user says.
    Something,
    /// Anything else.
    Rest,
}

const WHO: [&str; 2] = ["user: ", "assistant: "];

impl Material {
    pub(super) fn of(request: &SummaryRequest) -> Self {
        let mut material = Self::default();
        let previous = request.previous.as_deref();
        let summarized = previous.map(|summary| &summary.body);
        for body in summarized.into_iter().chain(&request.chunks) {
            material.body(body);
        }
        if let Some(previous) = previous {
            material.notes(&previous.notes);
        }
        let ledger = Ledger::of(&request.turns);
        ledger.said.iter().for_each(|piece| material.say(piece));
        material.wants.hear(&ledger.said);
        material.has_turns = !request.turns.is_empty();
        ledger
            .entries
            .iter()
            .for_each(|entry| material.entry(entry));
        material.notes(&request.notes);
        material.finish();
        material
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sentences.is_empty()
            && self.actions.is_empty()
            && self.facts.is_empty()
            && self.listed.is_empty()
    }

    /// What the user wants, as the summary has it.
    pub(super) fn intent(&self) -> String {
        match self.wants.text() {
            text if text.is_empty() && self.has_turns => NOT_SAID.to_owned(),
            text => text,
        }
    }

    /// The notes of turns.
    fn notes(&mut self, notes: &Notes) {
        self.files.extend_from_slice(&notes.files);
        self.decisions.extend_from_slice(&notes.decisions);
    }

    /// A summary.
    fn body(&mut self, body: &Body) {
        let wants = Wants::read(&body.session_intent);
        if !wants.text().is_empty() {
            self.wants = wants;
        }
        self.files.extend_from_slice(&body.files_touched);
        self.decisions.extend_from_slice(&body.decisions);
        self.next_steps.clone_from(&body.next_steps);
        self.actions.extend_from_slice(&body.actions);
        for line in &body.facts {
            let (call, records) = fact(line);
            records.for_each(|record| self.fact(call, record));
        }
        let mut who = "";
        for line in body.narrative.lines().map(str::trim) {
            // A line that names nobody is of whom the line before it is.
            let named = WHO.into_iter().find(|who| line.starts_with(who));
            who = named.unwrap_or(who);
            let said = &line[named.map_or(0, str::len)..];
            let tells = match who == WHO[1] {
                true => Tells::Kept,
                false => Tells::Something,
            };
            self.speak(who, said, &identifiers(said), tells);
        }
        self.listed.extend_from_slice(&body.identifiers);
        self.list(&identifiers(&body.narrative));
    }

    /// Takes note of identifiers in what somebody said.
    fn list(&mut self, found: &[Identifier<'_>]) {
        let found = found.iter();
        let found = found.filter(|found| found.kind != Kind::Name && !is_time(found.text));
        self.listed.extend(found.map(|found| found.text.to_owned()));
    }

    fn entry(&mut self, entry: &Entry) {
        if entry.call.is_empty() && entry.is_change {
            // The call is the last one that the last summary tells of.
            let last = self.actions.last_mut().filter(|last| is_open(last));
            if let Some(last) = last {
                last.push_str(&format!("{GAVE}{}", entry.outcome));
            }
        } else if entry.is_change || entry.is_failed {
            self.actions.push(entry.line());
        } else {
            entry
                .records
                .iter()
                .for_each(|record| self.fact(&entry.call, record));
        }
    }

    fn fact(&mut self, call: &str, record: &str) {
        if record.is_empty() {
            return;
        }
        let end = record.floor_char_boundary(RECORD_BYTES_MAX);
        self.facts.push(Fact {
            call: call.to_owned(),
            text: record[..end].to_owned(),
            is_mentioned: false,
        });
    }

    fn say(&mut self, said: &Said<'_>) {
        let (who, tells) = match said.turn.role {
            Role::User => (WHO[0], Tells::Something),
            _ if said.tells_change => (WHO[1], Tells::Change),
            _ if said.tells_result => (WHO[1], Tells::Something),
            _ => (WHO[1], Tells::Rest),
        };
        let found: Vec<_> = said.turn.identifiers_in(said.text).collect();
        self.list(&found);
        let first = self.sentences.len();
        self.speak(who, said.text, &found, tells);
        let turn = &mut self.sentences[first..];
        let begins = turn.len() > 1 && who == WHO[1];
        for (place, sentence) in turn.iter_mut().enumerate() {
            sentence.place = place;
            sentence.begins = begins && place == 0;
        }
    }

    /// Adds the sentences of a text with these identifiers. The items of a list stay with the line
    /// before them.
    fn speak(&mut self, who: &'static str, text: &str, found: &[Identifier<'_>], tells: Tells) {
        let group = self.sentences.last().map_or(0, |last| last.group + 1);
        let mut joins = false;
        let mut is_code = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with("```") {
                is_code = !is_code;
                continue;
            }
            if is_code || line.starts_with(['{', '[']) {
                continue;
            }
            let is_item = is_item(line);
            let line = line.trim_start_matches(['-', '*', '•', '#', ' ']);
            let plain = match line.contains("**") {
                true => Cow::Owned(line.replace("**", "")),
                false => Cow::Borrowed(line),
            };
            // Without the emphasis they stand elsewhere.
            let own = match &plain {
                Cow::Owned(plain) => Some(identifiers(plain)),
                Cow::Borrowed(_) => None,
            };
            let found = own.as_deref().unwrap_or(found);
            let line = &*plain;
            let last = self
                .sentences
                .last_mut()
                .filter(|last| is_item && joins && last.group == group);
            if let Some(last) = last.filter(|last| last.text.len() + line.len() < JOINED_BYTES_MAX)
            {
                last.text.push_str(if last.text.ends_with(':') {
                    " "
                } else {
                    BETWEEN
                });
                let start = last.text.len();
                last.text.push_str(line);
                last.found.extend(found_in(line, found, start));
                continue;
            }
            self.sentences.extend(sentences(line).map(|text| Sentence {
                who,
                text: text.to_owned(),
                group,
                tells,
                found: found_in(text, found, 0).collect(),
                place: 0,
                begins: false,
            }));
            joins = is_item || line.ends_with(':');
        }
    }

    fn finish(&mut self) {
        for list in [&mut self.files, &mut self.decisions, &mut self.next_steps] {
            newest_once(list);
            list.drain(..list.len().saturating_sub(ENTRIES_MAX));
        }
        newest_once(&mut self.actions);
        self.actions
            .drain(..self.actions.len().saturating_sub(ACTIONS_MAX));
        newest_once(&mut self.listed);
        // What a call found out takes the place of what the same call found out before.
        let mut last: HashMap<(&str, &str), usize> = HashMap::new();
        for (at, fact) in self.facts.iter().enumerate() {
            last.insert((&fact.call, &fact.text), at);
        }
        let keep: HashSet<usize> = last.into_values().collect();
        let mut at = 0;
        self.facts.retain(|_| {
            at += 1;
            keep.contains(&(at - 1))
        });
        self.facts
            .drain(..self.facts.len().saturating_sub(FACTS_MAX));
        self.mention();
    }

    /// Marks the facts about what somebody named.
    fn mention(&mut self) {
        if self.facts.is_empty() {
            return;
        }
        let said = self.sentences.iter().map(|sentence| sentence.text.as_str());
        let said = said.chain(self.actions.iter().map(String::as_str));
        let named: HashSet<&str> = said.flat_map(names).collect();
        for fact in &mut self.facts {
            let named = names(&fact.text).any(|name| named.contains(name));
            fact.is_mentioned = named;
        }
    }
}

/// Where those of some identifiers stand, in their order, that a piece of their text holds, if it
/// begins at `start`.
fn found_in(
    piece: &str,
    found: &[Identifier<'_>],
    start: usize,
) -> impl Iterator<Item = (Range<usize>, Kind)> {
    let begin = piece.as_ptr().addr();
    let first = found.partition_point(|one| one.text.as_ptr().addr() < begin);
    let is_inside = move |one: &&Identifier<'_>| {
        one.text.as_ptr().addr() + one.text.len() <= begin + piece.len()
    };
    found[first..].iter().take_while(is_inside).map(move |one| {
        let at = start + one.text.as_ptr().addr() - begin;
        (at..at + one.text.len(), one.kind)
    })
}

/// The words of a text that name one thing: three digits or capitals at least.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '@' | '.'));
    let words = words.map(|word| word.trim_matches(['.', '-']));
    words.filter(|word| {
        let telling = word
            .bytes()
            .filter(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        word.len() >= 4 && telling.count() >= 3
    })
}

/// True of a time of day, alone or behind a date: they are many, and mean little by themselves.
fn is_time(text: &str) -> bool {
    text.contains(':') && text.bytes().any(|byte| byte.is_ascii_digit())
}

/// True of an item of a list.
fn is_item(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['-', '*', '•', '–']) && !line.starts_with("**")
        || digits.len() < line.len() && digits.starts_with(['.', ')'])
}

/// A line of facts: the call, and its records.
fn fact(line: &str) -> (&str, impl Iterator<Item = &str>) {
    let end = line.find(&format!("){SAYS}"));
    let (call, records) = match end {
        Some(end) => (&line[..=end], &line[end + 1 + SAYS.len()..]),
        None => ("", line),
    };
    (call, records.split(BETWEEN))
}

/// The facts that were taken as lines, oldest first: what one call found out in one line.
pub(super) fn fact_lines(facts: &[Fact], taken: &[TakenFact]) -> Vec<String> {
    let mut taken: Vec<&TakenFact> = taken.iter().collect();
    taken.sort_unstable_by_key(|fact| fact.index);
    let mut lines: Vec<String> = Vec::new();
    let mut call = None;
    for TakenFact { index, text } in taken {
        let of = &facts[*index].call;
        match lines.last_mut().filter(|_| call == Some(of)) {
            Some(line) => line.push_str(&format!("{BETWEEN}{text}")),
            None if of.is_empty() => lines.push(text.clone()),
            None => lines.push(format!("{of}{SAYS}{text}")),
        }
        call = Some(of);
    }
    lines
}
