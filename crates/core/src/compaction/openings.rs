//! Openings: the user turns that start a task.
//!
//! A session often contains several tasks in sequence. The current request of a window is the
//! newest opening. Detection does not match words, so it works in any language.

use crate::time::Timestamp;
use crate::turn::Role;

/// Characters at the start of a turn that identify a harness's task template.
const TEMPLATE_CHARS: usize = 24;
/// Maximum number of stored template starts. The oldest is evicted first.
const STARTS_MAX: usize = 64;
/// Pause in seconds after which a user turn starts a task.
const PAUSE_S: i64 = 30 * 60;
/// Minimum bytes of a user turn that starts a task after a pause.
///
/// A shorter one mostly continues the previous task ("ok, go on").
const AFTER_PAUSE_BYTES_MIN: usize = 80;

/// Detects openings, turn by turn.
///
/// A user turn is an opening if
/// - it is the first one,
/// - the previous turn is not from the assistant, so the previous exchange ended without a reply,
/// - it starts like an earlier opening, or
/// - it has at least 80 bytes and follows the previous turn after 30 minutes or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Openings {
    /// First characters of earlier openings, oldest first.
    starts: Vec<String>,
    before: Option<(Role, Option<Timestamp>)>,
}

impl Openings {
    /// Continues after earlier openings.
    pub(crate) fn with_starts(starts: &[String]) -> Self {
        // The turn before a summarized span ends a unit, so it is mostly a reply.
        let before = (!starts.is_empty()).then_some((Role::Assistant, None));
        Self {
            starts: starts.to_vec(),
            before,
        }
    }

    pub(super) fn starts(&self) -> &[String] {
        &self.starts
    }

    /// Processes the next turn and returns whether it is an opening.
    ///
    /// Pass [`Role::Tool`] for a user turn with tool results. System turns are ignored.
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

/// The first characters of a text, with single spaces between words.
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
    fn first_user_turn_and_turn_without_prior_reply_open_task() {
        let mut openings = Openings::default();
        assert!(!openings.observe(Role::System, "Be brief.", at(0)));
        assert!(openings.observe(Role::User, "I want to return a laptop.", at(0)));
        assert!(!openings.observe(Role::Assistant, "Which one?", at(0)));
        assert!(!openings.observe(Role::User, "The grey one.", at(1)));
        assert!(openings.observe(Role::User, "No, forget it: cancel order 7.", at(1)));
    }

    #[test]
    fn turn_starting_like_earlier_opening_opens_task() {
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
    fn only_long_turn_after_pause_opens_task() {
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
