//! The ledger of turns: which calls changed something, with what they were about and what came
//! of it; what the others found out; and what was said, apart from both.
//!
//! Results say nothing for the user, whoever's turn brings them: some agents write a command at
//! the end of a text, and are answered by a user's turn that holds its output.
//!
//! It depends on the form of texts and on the names of tools, not on the language of the
//! conversation. In doubt a call is a change. Four read it: the extractive summarizer, the prompt
//! for models, what webhooks are sent, and the probe, which asks whether a change is still beside
//! what it changed.

mod calls;
mod commands;
mod failed;
#[cfg(test)]
mod tests;
mod values;

use std::collections::{HashMap, HashSet};

use super::transcript::{CallResult, TranscriptTurn};
use crate::turn::Role;

pub use calls::is_change;
pub use values::labelled_numbers;

use commands::{command, is_framed, is_output};
use failed::Caller;

/// Bytes of a line about a call, and of what came of it.
const CALL_BYTES_MAX: usize = 240;
const OUTCOME_BYTES_MAX: usize = 200;
/// Stands between a call and what came of it.
pub const GAVE: &str = " → ";
/// Begins what came of a call that failed.
pub const FAILED: &str = "failed: ";

/// A call of a tool and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// `tool(label=value, …)`: the tool's name as it is, long values cut; of a command its text
    /// without a label, first. Empty where the call stands before the turns.
    pub call: String,
    /// What came of it, in one line; empty while there is no result.
    pub outcome: String,
    /// What a result says, in records of `label=value`; none of a change.
    pub records: Vec<String>,
    /// True unless the call only looks at something.
    pub is_change: bool,
    /// True where the result says that it failed.
    pub is_failed: bool,
}

/// A piece of what the user or the assistant said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    /// The turn.
    pub turn: &'a TranscriptTurn,
    /// The piece.
    pub text: &'a str,
    /// True where it is the first thing that the assistant says after a call that changed
    /// something.
    pub tells_change: bool,
    /// The same after any call.
    pub tells_result: bool,
}

/// The ledger of some turns, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger<'a> {
    /// The calls.
    pub entries: Vec<Entry>,
    /// What was said.
    pub said: Vec<Said<'a>>,
}

impl Entry {
    /// The call and what came of it, in one line.
    pub fn line(&self) -> String {
        match self.outcome.as_str() {
            "" => self.call.clone(),
            outcome if self.call.is_empty() => outcome.to_owned(),
            outcome => format!("{}{GAVE}{outcome}", self.call),
        }
    }

    fn caller(&self) -> Caller<'_> {
        Caller {
            name: self.call.split('(').next().unwrap_or_default(),
            is_change: self.is_change,
        }
    }
}

impl<'a> Ledger<'a> {
    /// Reads turns. Linear in their text; of a long result the beginning and the end are looked
    /// at, and so many records are kept.
    pub fn of(turns: &'a [TranscriptTurn]) -> Self {
        let mut reading = Reading::default();
        turns.iter().for_each(|turn| reading.turn(turn));
        Self {
            entries: reading.entries,
            said: reading.said,
        }
    }

    /// The lines of all calls that changed something or failed, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let told = |entry: &&Entry| entry.is_change || entry.is_failed;
        self.entries.iter().filter(told).map(Entry::line)
    }
}

#[derive(Default)]
struct Reading<'a> {
    entries: Vec<Entry>,
    said: Vec<Said<'a>>,
    /// The entries whose result has not come, by the id of the call; and the last of them, for a
    /// result without an id.
    open: HashMap<&'a str, usize>,
    last_open: Option<usize>,
    /// The entry of a command that stands at the end of the turn before.
    asked: Option<usize>,
    /// True where the command before it was answered by its output.
    was_output: bool,
    /// What was found out before, as `label=value`: what is new of a result tells more.
    known: HashSet<String>,
    tells_change: bool,
    tells_result: bool,
    /// False before the first turn, which may answer a command from before it.
    has_begun: bool,
}

impl<'a> Reading<'a> {
    fn turn(&mut self, turn: &'a TranscriptTurn) {
        let asked = self.asked.take();
        if !std::mem::replace(&mut self.has_begun, true)
            && turn.role == Role::User
            && turn.results.is_empty()
            && is_framed(&turn.text)
        {
            let entry = self.called(String::new(), true);
            self.result(entry, &turn.text, false);
            return;
        }
        if let Some(entry) = asked
            && turn.role == Role::User
            && turn.results.is_empty()
        {
            self.was_output = is_output(&turn.text, self.was_output);
            if self.was_output {
                self.result(entry, &turn.text, false);
                return;
            }
        }
        for result in &turn.results {
            self.answer(turn, result);
        }
        match turn.role {
            Role::Assistant => self.assistant(turn),
            Role::User => turn.spoken().for_each(|text| self.say(turn, text)),
            Role::Tool | Role::System => {}
        }
    }

    fn assistant(&mut self, turn: &'a TranscriptTurn) {
        let mut pieces = turn.spoken().peekable();
        while let Some(piece) = pieces.next() {
            let is_last = pieces.peek().is_none() && turn.calls.is_empty();
            match command(piece).filter(|_| is_last) {
                None => self.say(turn, piece),
                Some(command) => {
                    self.say(turn, command.said);
                    let entry = self.called(command.call(), command.is_change());
                    self.asked = Some(entry);
                }
            }
        }
        for call in &turn.calls {
            let line = values::call_line(&call.name, &call.input, CALL_BYTES_MAX);
            let entry = self.called(line, is_change(&call.name, &call.input));
            self.open.insert(&call.id, entry);
            self.last_open = Some(entry);
        }
    }

    fn called(&mut self, call: String, is_change: bool) -> usize {
        self.entries.push(Entry {
            call,
            is_change,
            ..Entry::default()
        });
        self.entries.len() - 1
    }

    fn answer(&mut self, turn: &'a TranscriptTurn, result: &'a CallResult) {
        let entry = match result.call_id.as_str() {
            "" => self.last_open,
            id => self.open.remove(id),
        };
        self.last_open.take_if(|last| Some(*last) == entry);
        // The call may stand before the turns.
        let entry = entry.unwrap_or_else(|| self.called(String::new(), false));
        let text = turn.text.get(result.range.clone()).unwrap_or_default();
        self.result(entry, text, result.is_error);
    }

    fn result(&mut self, entry: usize, text: &str, is_error: bool) {
        let Some(entry) = self.entries.get_mut(entry) else {
            return;
        };
        let read = values::Result::of(text);
        entry.is_failed = is_error || read.is_failed(entry.caller());
        entry.outcome = read.outcome(entry, &self.known, OUTCOME_BYTES_MAX);
        if !entry.is_change {
            entry.records = read.records();
            for record in &entry.records {
                let pairs = record.split(", ").filter(|pair| pair.contains('='));
                self.known.extend(pairs.map(str::to_owned));
            }
        }
        self.known.extend(read.last_line().map(str::to_owned));
        self.tells_change |= entry.is_change;
        self.tells_result = true;
    }

    fn say(&mut self, turn: &'a TranscriptTurn, text: &'a str) {
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let is_assistant = turn.role == Role::Assistant;
        self.said.push(Said {
            turn,
            text,
            tells_change: is_assistant && std::mem::take(&mut self.tells_change),
            tells_result: is_assistant && std::mem::take(&mut self.tells_result),
        });
    }
}
