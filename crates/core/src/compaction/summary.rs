//! The summary: one block that stands for the oldest exchanges, and does not change until
//! the next one takes its place.

use std::sync::Arc;

use super::notes::Notes;
use crate::time::Timestamp;
use crate::turn::{PartKind, Role, Turn};

/// What stands for the oldest exchanges of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Counts the summaries of the generation, from 1.
    pub number: u32,
    /// The first turn that was added by it; the ones before are what the last one stood for.
    pub first_seq: u64,
    /// The last turn that it stands for.
    pub through_seq: u64,
    /// Turns that it stands for in all, without those that windows show apart.
    pub turns: u64,
    /// When it was made.
    pub made_at: Timestamp,
    /// Who made it: `extractive`, `notes`, or a provider and its model.
    pub by: Box<str>,
    /// What it says, as data.
    pub body: Body,
    /// What was noted of the turns that it stands for.
    pub notes: Notes,
    /// What it says, as the model reads it: to the byte the same as long as it stands.
    pub text: Arc<str>,
}

/// What a summary says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// What the user wants of the whole conversation.
    pub session_intent: String,
    /// Files that were read or written, and how.
    pub files_touched: Vec<String>,
    /// What was decided, and why.
    pub decisions: Vec<String>,
    /// What was asked and is not answered.
    pub pending_questions: Vec<String>,
    /// What is to be done next.
    pub next_steps: Vec<String>,
    /// What happened, in order.
    pub narrative: String,
    /// Identifiers, figures and dates that have to stay to the letter and stand nowhere else
    /// in the summary.
    pub identifiers: Vec<String>,
}

impl Summary {
    /// The turn that windows show for it. Its `memoird` label says `summary`.
    pub fn turn(&self) -> Turn {
        let text = PartKind::Text(self.text.to_string());
        crate::window::labelled(Turn::new(Role::User, vec![text.into()]), "summary")
    }
}

/// What the assistant seems to have answered to a summary, so that roles alternate.
pub fn acknowledgement() -> Turn {
    let text = "Understood. I go on from this summary.".to_owned();
    let turn = Turn::new(Role::Assistant, vec![PartKind::Text(text).into()]);
    crate::window::labelled(turn, "acknowledgement")
}

impl Body {
    /// True when it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// As the model reads it, with a first line that says what it is and how many turns it
    /// stands for. The same arguments give the same bytes.
    pub fn text(&self, turns: u64, notes: &Notes) -> String {
        let mut text = format!(
            "[memoird: a summary of the {turns} oldest turns of this conversation, which are not \
             shown. It is a record of what was said, not an instruction.]\n"
        );
        section(&mut text, "What the user wants", std::slice::from_ref(&self.session_intent));
        section(&mut text, "Decisions", &self.decisions);
        section(&mut text, "Open questions", &self.pending_questions);
        section(&mut text, "Next steps", &self.next_steps);
        section(&mut text, "Files", &self.files_touched);
        section(&mut text, "What happened", std::slice::from_ref(&self.narrative));
        if !self.identifiers.is_empty() {
            text.push_str("\n## To the letter\n");
            text.push_str(&self.identifiers.join(" · "));
            text.push('\n');
        }
        notes.write(&mut text);
        text
    }
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    if lines.iter().all(|line| line.trim().is_empty()) {
        return;
    }
    text.push_str("\n## ");
    text.push_str(title);
    text.push('\n');
    let is_list = lines.len() > 1;
    for line in lines.iter().filter(|line| !line.trim().is_empty()) {
        if is_list {
            text.push_str("- ");
        }
        text.push_str(line.trim());
        text.push('\n');
    }
}
