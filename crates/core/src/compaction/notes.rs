//! Structured notes: what an agent must not lose, kept outside the turns by cheap rules, so
//! that a paraphrased path never makes it read the same file twice.

use super::spoken::Spoken;

/// What was noted of a conversation. Bounded, newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// The last turn that was noted.
    pub through_seq: u64,
    /// Files that calls named, each once, to the letter.
    pub files: Vec<String>,
    /// The last error that a tool gave.
    pub last_error: String,
    /// What the bot marked as decided.
    pub decisions: Vec<String>,
    /// Questions of the user that nobody answered yet, and of the assistant.
    pub pending_questions: Vec<String>,
}

impl Notes {
    /// Notes a turn, unless it is noted already.
    pub fn note(&mut self, turn: &Spoken) {
        self.through_seq = self.through_seq.max(turn.seq);
    }

    /// True when nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.last_error.is_empty()
            && self.decisions.is_empty()
            && self.pending_questions.is_empty()
    }

    /// True when these notes say all that is worth keeping of these turns: then they are the
    /// summary, and no model is asked.
    pub fn cover(&self, _span: &[Spoken]) -> bool {
        false
    }

    /// Writes them as a section of a summary; nothing where there are none.
    pub fn write(&self, _text: &mut String) {}
}
