//! Openings: the user turns that start a task.
//!
//! A session often holds several tasks, one after the other. The current request of a window is the
//! newest opening. No words are matched, so this works in any language.

use crate::time::Timestamp;
use crate::turn::Role;

/// Length in characters of the beginning that a harness's template gives its tasks.
const TEMPLATE_CHARS: usize = 24;
/// Maximum number of beginnings that are remembered; the oldest is forgotten first.
const STARTS_MAX: usize = 64;
/// A pause in seconds after which a user turn starts a task.
const PAUSE_S: i64 = 30 * 60;
/// Minimum length in bytes of a user turn that starts a task after a pause. A shorter one mostly
/// takes up the task before it ("ok, go on").
const AFTER_PAUSE_BYTES_MIN: usize = 80;

/// Recognizes openings, turn by turn.
///
/// A user turn is an opening if
/// - it is the first one,
/// - the turn before it is not from the assistant: the exchange before ended without a reply,
/// - it begins like an earlier opening, or
/// - it is at least 80 bytes long and comes 30 minutes or more after the turn before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Openings {
    /// Beginnings of earlier openings, oldest first.
    starts: Vec<String>,
    before: Option<(Role, Option<Timestamp>)>,
}

impl Openings {
    /// Starts from the beginnings of earlier openings.
    pub(crate) fn with_starts(starts: &[String]) -> Self {
        // The turn before a span that was summarized is the end of a unit: mostly a reply.
        let before = (!starts.is_empty()).then_some((Role::Assistant, None));
        Self {
            starts: starts.to_vec(),
            before,
        }
    }

    /// Beginnings of all openings, oldest first.
    pub(crate) fn starts(&self) -> &[String] {
        &self.starts
    }

    /// Reads the next turn and returns whether it is an opening. A user turn that brings tool
    /// results has the role [`Role::Tool`] here. System turns are ignored.
    pub(crate) fn observe(&mut self, role: Role, text: &str, said_at: Option<Timestamp>) -> bool {
        if role == Role::System {
            return false;
        }
        let before = self.before.replace((role, said_at));
        if role != Role::User {
            return false;
        }
        let start = beginning(text);
        let follows_reply = before.is_some_and(|(role, _)| role == Role::Assistant);
        let is_template = start.chars().count() == TEMPLATE_CHARS && self.starts.contains(&start);
        let is_after_pause = before
            .and_then(|(_, before)| Some(said_at?.seconds() - before?.seconds()))
            .is_some_and(|pause| pause >= PAUSE_S);
        let is_opening =
            !follows_reply || is_template || is_after_pause && text.len() >= AFTER_PAUSE_BYTES_MIN;
        if is_opening && !is_template && !start.is_empty() {
            if self.starts.len() >= STARTS_MAX {
                self.starts.remove(0);
            }
            self.starts.push(start);
        }
        is_opening
    }
}

/// The first characters of a text, with single spaces between its words.
fn beginning(text: &str) -> String {
    let mut start = String::new();
    let mut chars = 0;
    for word in text.split_whitespace() {
        if chars > 0 {
            start.push(' ');
            chars += 1;
        }
        for c in word.chars() {
            if chars >= TEMPLATE_CHARS {
                return start;
            }
            start.push(c);
            chars += 1;
        }
        if chars >= TEMPLATE_CHARS {
            break;
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Option<Timestamp> {
        Timestamp::new(minutes * 60, 0)
    }

    #[test]
    fn the_first_user_turn_and_one_without_a_reply_before_it_open_a_task() {
        let mut openings = Openings::default();
        assert!(!openings.observe(Role::System, "Be brief.", at(0)));
        assert!(openings.observe(Role::User, "I want to return a laptop.", at(0)));
        assert!(!openings.observe(Role::Assistant, "Which one?", at(0)));
        assert!(!openings.observe(Role::User, "The grey one.", at(1)));
        assert!(openings.observe(Role::User, "No, forget it: cancel order 7.", at(1)));
    }

    #[test]
    fn a_turn_that_begins_like_an_opening_is_one() {
        let mut openings = Openings::default();
        let task = "We are currently solving the following issue: A";
        assert!(openings.observe(Role::User, task, None));
        openings.observe(Role::Assistant, "ok", None);
        let starts = openings.starts().to_vec();
        let mut later = Openings::with_starts(&starts);
        assert!(later.observe(Role::User, &task.replace('A', "B"), None));
        later.observe(Role::Assistant, "ok", None);
        assert!(!later.observe(
            Role::User,
            "Something else altogether, in other words",
            None
        ));
    }

    #[test]
    fn a_long_turn_after_a_pause_opens_a_task_and_a_short_one_does_not() {
        for (text, opens) in [
            ("ok, go on", false),
            (&*"Please book a room. ".repeat(5), true),
        ] {
            let mut openings = Openings::default();
            openings.observe(Role::User, "first", at(0));
            openings.observe(Role::Assistant, "done", at(1));
            assert_eq!(openings.observe(Role::User, text, at(31)), opens, "{text}");
        }
    }
}
