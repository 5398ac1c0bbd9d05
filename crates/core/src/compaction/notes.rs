//! Structured notes: what an agent must not lose, kept outside the turns by cheap rules, so
//! that a paraphrased path never makes it read the same file twice.
//!
//! They are taken when somebody looks and when a summary is made, of the turns that came since, and
//! kept with the summary and in memory: an append costs nothing for them.

mod files;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::turn::Role;

use super::identifiers::{Identifier, identifiers};
use super::transcript::{TranscriptTurn, sentences};

/// Files that are noted; the one named longest ago is forgotten for another.
pub const FILES_MAX: usize = 64;
/// Decisions that are noted.
pub const DECISIONS_MAX: usize = 32;
/// Open questions that are noted.
pub const QUESTIONS_MAX: usize = 16;
/// Bytes of each note; a longer one is cut and marked.
pub const NOTE_BYTES_MAX: usize = 300;

/// The notes of a conversation. Bounded, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Notes {
    /// The last turn that was noted.
    #[serde(skip)]
    pub through_seq: u64,
    /// Files that calls named, each once, to the letter.
    pub files: Vec<String>,
    /// The last error that a tool gave.
    pub last_error: String,
    /// What the bot marked as decided.
    pub decisions: Vec<String>,
    /// Questions of the user and of the assistant without an answer. Each begins with
    /// who asked: `user: ` or `assistant: `.
    pub pending_questions: Vec<String>,
}

const USER: &str = "user: ";
const ASSISTANT: &str = "assistant: ";
/// Marks the end of a note that was cut.
const CUT: &str = "…";

impl Notes {
    /// Notes a turn, unless it is noted already.
    ///
    /// A question is a sentence that ends with a question mark. One of the user is pending
    /// until the assistant next says something (a call of a tool alone says nothing), one of
    /// the assistant until the user next says something. Whether that was an answer is not
    /// looked at: a rule cannot know.
    pub fn note(&mut self, turn: &TranscriptTurn) {
        if turn.seq <= self.through_seq {
            return;
        }
        self.through_seq = turn.seq;
        for call in &turn.calls {
            files::of(&call.input).for_each(|file| add(&mut self.files, file, FILES_MAX));
        }
        if let Some(error) = turn.errors.last() {
            self.last_error = bounded(error);
        }
        for decision in &turn.decisions {
            add(&mut self.decisions, bounded(decision), DECISIONS_MAX);
        }
        match turn.role {
            Role::User => self.note_questions(turn, USER, ASSISTANT),
            Role::Assistant => self.note_questions(turn, ASSISTANT, USER),
            Role::Tool | Role::System => {}
        }
    }

    fn note_questions(&mut self, turn: &TranscriptTurn, asking: &str, answering: &str) {
        if turn.spoken().next().is_none() {
            return;
        }
        self.pending_questions
            .retain(|question| !question.starts_with(answering));
        let questions = turn
            .spoken()
            .flat_map(sentences)
            .filter(|sentence| is_question(sentence));
        for question in questions {
            let question = bounded(&format!("{asking}{question}"));
            add(&mut self.pending_questions, question, QUESTIONS_MAX);
        }
    }

    /// True when nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.last_error.is_empty()
            && self.decisions.is_empty()
            && self.pending_questions.is_empty()
    }

    /// True when these notes say all that is worth keeping of these turns: then they are the
    /// summary, and no model is asked. That is so when each exchange of the span carries a
    /// decision that the bot marked and that still stands here whole, and all that the
    /// probe looks for in the span is told here as well. Most conversations never do; a bot that marks what it
    /// decides does.
    pub fn cover(&self, span: &[TranscriptTurn]) -> bool {
        let mut exchanges = span.chunk_by(|_, next| next.role != Role::User || is_answer(next));
        let are_decided = !span.is_empty()
            && exchanges.all(|exchange| {
                let mut decisions = exchange.iter().flat_map(|turn| &turn.decisions).peekable();
                decisions.peek().is_some() && decisions.all(|said| self.decisions.contains(said))
            });
        if !are_decided {
            return false;
        }
        let mut text = String::new();
        self.write(&mut text);
        super::probe::Probe::of(span, &[&text]).is_whole()
    }

    /// Writes them as a section of a summary; nothing where there are none. The same notes
    /// give the same bytes.
    pub fn write(&self, text: &mut String) {
        if self.is_empty() {
            return;
        }
        text.push_str("\n## Notes\n");
        list(text, "Files", &self.files, ", ");
        list(text, "Decided", &self.decisions, "; ");
        list(text, "Not answered yet", &self.pending_questions, " ");
        let last_error = std::slice::from_ref(&self.last_error);
        list(text, "Last error", last_error, "");
    }

    /// The identifiers in them.
    pub fn identifiers(&self) -> impl Iterator<Item = Identifier<'_>> {
        let lists = [&self.files, &self.decisions, &self.pending_questions];
        let notes = lists
            .into_iter()
            .flatten()
            .chain(std::iter::once(&self.last_error));
        notes.flat_map(|note| identifiers(note))
    }
}

/// True of a turn that brings results only: some providers send them as the user's.
fn is_answer(turn: &TranscriptTurn) -> bool {
    turn.spoken().next().is_none()
}

/// True of a sentence that asks.
fn is_question(sentence: &str) -> bool {
    let sentence = sentence.trim_end_matches(['"', '\'', ')', '*', '_', '”', '’', ' ']);
    sentence.ends_with(['?', '？', '؟', ';'])
        && !sentence.ends_with(';')
        && sentence.chars().any(char::is_alphabetic)
}

/// Puts a note last, where it stands once.
fn add(notes: &mut Vec<String>, note: String, max: usize) {
    if note.is_empty() {
        return;
    }
    if let Some(index) = notes.iter().position(|known| *known == note) {
        notes.remove(index);
    } else if notes.len() >= max {
        notes.remove(0);
    }
    notes.push(note);
}

/// In one line and not too long.
fn bounded(note: &str) -> String {
    let end = note.floor_char_boundary(NOTE_BYTES_MAX * 2);
    let words: Vec<&str> = note[..end].split_whitespace().collect();
    let mut line = words.join(" ");
    if line.len() > NOTE_BYTES_MAX || end < note.len() {
        line.truncate(line.floor_char_boundary(NOTE_BYTES_MAX - CUT.len()));
        line.push_str(CUT);
    }
    line
}

fn list(text: &mut String, title: &str, notes: &[String], between: &str) {
    if notes.iter().all(String::is_empty) {
        return;
    }
    text.push_str(&format!("- {title}: {}\n", notes.join(between)));
}
