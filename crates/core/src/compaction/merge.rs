//! Merging the previous summary and the turns that leave the window into the next summary.
//!
//! Lines are retained or dropped, but never rephrased. `tests/eval/after_cut.py` compares this with
//! the verbatim end of the transcript.

use super::changes::{CompletedCall, changes};
use super::details;
use super::openings::Openings;
use super::standing::{self, LINE_OVERHEAD, StandingInstruction};
use super::summary::{SummaryBody, UserTurn};
use super::transcript::TranscriptTurn;
use crate::condense::mostly_head;
use crate::turn::Role;

/// Maximum shares of the summary in percent. Recent details use the rest.
const STANDING_PERCENT: usize = 33;
const DONE_PERCENT: usize = 20;
/// Maximum share of a model's details, in percent of the space that other sections leave free.
const WRITTEN_PERCENT: usize = 50;
/// Maximum bytes of a user turn that is no opening.
const USER_TURN_BYTES: usize = 400;
/// Maximum bytes of an opening that is followed by a later one.
const ANSWERED_BYTES: usize = 1_200;

/// Maximum sizes of a summary's parts in bytes. The parts are those of `SummaryBudget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRoom {
    pub summary: usize,
    pub opening: usize,
    pub user_turns: usize,
}

/// All candidate content of the next summary, before it is fitted into its room.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SummaryCandidates {
    body: SummaryBody,
}

/// Merges turns into the previous summary.
///
/// `following` are the turns that stay. They show which sentences of the user are referred to
/// later. Takes time linear in the text.
pub fn merge(
    previous: Option<&SummaryBody>,
    turns: &[TranscriptTurn],
    following: &[TranscriptTurn],
) -> SummaryCandidates {
    let mut body = previous.cloned().unwrap_or_default();
    standing::collect(&mut body.standing, turns, following);
    let mut openings = Openings::with_starts(&body.starts);
    for turn in turns {
        let spoken = turn.spoken().collect::<Vec<_>>().join("\n");
        let role = spoken_role(turn, &spoken);
        let before = (body.user_turns.last()).is_some_and(|last| last.seq + 1 == turn.seq);
        let opens = openings.observe(role, &spoken, turn.said_at);
        if role != Role::User || !opens && standing::is_output(&spoken) {
            continue;
        }
        if opens
            && before
            && let Some(last) = body.user_turns.last_mut()
        {
            // Consecutive user turns are one opening.
            last.opens = true;
        }
        body.following = if opens { 0 } else { body.following + 1 };
        let text = if spoken.is_empty() {
            turn.text.clone()
        } else {
            spoken
        };
        body.user_turns.push(UserTurn {
            seq: turn.seq,
            said_at: standing::seconds(turn.said_at),
            text,
            opens,
        });
    }
    body.done.extend(changes(turns, &body.recent));
    details::append(&mut body.recent, turns, body.until);
    let said_at = turns.iter().map(|turn| standing::seconds(turn.said_at));
    body.until = said_at.fold(body.until, i64::max);
    body.starts = openings.starts().to_vec();
    body.is_answered = has_opening(openings, turns.last().map_or(0, |last| last.seq), following);
    let decisions = turns.iter().flat_map(|turn| {
        let decided = |text: &String| CompletedCall {
            seq: turn.seq,
            text: format!("decided: {text}"),
        };
        turn.decisions.iter().map(decided)
    });
    body.done.extend(decisions);
    body.done.sort_by_key(|done| done.seq);
    SummaryCandidates { body }
}

/// Whether a later turn starts another task, so that the summary's request is an earlier one.
fn has_opening(mut openings: Openings, last_seq: u64, following: &[TranscriptTurn]) -> bool {
    let later = following.iter().filter(|turn| turn.seq > last_seq);
    later.into_iter().any(|turn| {
        let text = turn.spoken().collect::<Vec<_>>().join("\n");
        openings.observe(spoken_role(turn, &text), &text, turn.said_at)
    })
}

/// Role of a turn, [`Role::Tool`] for a user turn that only has tool results.
fn spoken_role(turn: &TranscriptTurn, text: &str) -> Role {
    match turn.role {
        Role::User if text.is_empty() && !turn.results.is_empty() => Role::Tool,
        role => role,
    }
}

/// Sections of a summary as written by a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSections {
    /// Instructions for the whole conversation, including the earlier ones.
    pub standing: Vec<String>,
    /// Earlier instructions that the user withdrew or changed.
    pub withdrawn: Vec<String>,
    pub open_questions: Vec<String>,
    /// Events and findings.
    pub details: String,
}

impl SummaryCandidates {
    /// Adds a model's reply.
    ///
    /// Mutating calls and the current request stay verbatim. The model's instructions are added,
    /// and earlier ones stay unless it lists them as withdrawn. Sentences of the new turns only
    /// stay if they were acknowledged and nothing else refers to them.
    #[must_use]
    pub fn with_written(mut self, written: &ModelSections, previous: Option<&SummaryBody>) -> Self {
        /// Score of an acknowledged sentence whose words are all rare.
        const CERTAIN: f32 = 1.2;
        let body = &mut self.body;
        let earlier = previous.map_or(&[][..], |body| &body.standing);
        let is_earlier =
            |one: &StandingInstruction| earlier.iter().any(|known| known.text == one.text);
        body.standing
            .retain(|one| is_earlier(one) || one.score >= CERTAIN);
        for text in written.withdrawn.iter().filter(|text| !text.is_empty()) {
            let words = standing::words(text);
            body.standing
                .retain(|one| !standing::is_same(&words, &standing::words(&one.text)));
        }
        for text in written.standing.iter().filter(|text| !text.is_empty()) {
            let words = standing::words(text);
            let mut same = body
                .standing
                .iter_mut()
                .filter(|one| standing::is_same(&words, &standing::words(&one.text)));
            if let Some(known) = same.next() {
                // Keep the user's wording.
                known.score = known.score.max(1.0);
                continue;
            }
            let new = StandingInstruction {
                seq: 0,
                said_at: 0,
                text: text.clone(),
                score: 1.0,
                count: 1,
            };
            body.standing.push(new);
        }
        body.open_questions.clone_from(&written.open_questions);
        body.written.clone_from(&written.details);
        self
    }

    /// Fits the summary into `room`. Each section drops its oldest or least likely lines.
    pub fn fit(&self, room: SummaryRoom) -> SummaryBody {
        let all = &self.body;
        let standing = standing::best(&all.standing, room.summary * STANDING_PERCENT / 100);
        let used: usize = standing
            .iter()
            .map(|one| one.text.len() + LINE_OVERHEAD)
            .sum();
        let mut left = room.summary.saturating_sub(used);
        let lengths = all.done.iter().map(|done| done.text.len() + 3);
        let first = newest(lengths, room.summary * DONE_PERCENT / 100);
        let done = all.done[first..].to_vec();
        left = left.saturating_sub(done.iter().map(|done| done.text.len() + 3).sum());
        let lengths = all.open_questions.iter().map(|text| text.len() + 3);
        let questions = newest(lengths, left / 4);
        let open_questions = all.open_questions[questions..].to_vec();
        left = left.saturating_sub(open_questions.iter().map(|text| text.len() + 3).sum());
        let written = mostly_head(&all.written, left * WRITTEN_PERCENT / 100, " … ");
        let recent = details::last_lines(&all.recent, left.saturating_sub(written.len()));
        SummaryBody {
            user_turns: user_turns(all, &standing, room),
            standing,
            done,
            open_questions,
            written,
            recent,
            until: all.until,
            starts: all.starts.clone(),
            is_answered: all.is_answered,
            following: all.following,
        }
    }
}

/// Index of the first of the newest lines that together have at most `bytes_max` bytes.
fn newest(
    lengths: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator,
    bytes_max: usize,
) -> usize {
    let mut left = bytes_max;
    let mut first = lengths.len();
    for length in lengths.rev() {
        if length > left {
            break;
        }
        left -= length;
        first -= 1;
    }
    first
}

/// Selects the newest opening, the newest other user turns, and the start of the first one.
fn user_turns(
    body: &SummaryBody,
    standing: &[StandingInstruction],
    room: SummaryRoom,
) -> Vec<UserTurn> {
    let all = &body.user_turns;
    let is_standing = |turn: &UserTurn| standing.iter().any(|one| one.text == turn.text.trim());
    let opening_bytes = if body.is_answered {
        room.opening.min(ANSWERED_BYTES)
    } else {
        room.opening
    };
    let shortened = |turn: &UserTurn, bytes_max: usize| UserTurn {
        text: mostly_head(&turn.text, bytes_max, " … "),
        ..turn.clone()
    };
    let opening = all.iter().rfind(|turn| turn.opens);
    let mut kept = Vec::from_iter(opening.map(|turn| shortened(turn, opening_bytes)));
    if let Some(first) = all
        .first()
        .filter(|first| !kept.iter().any(|turn| turn.seq == first.seq))
    {
        kept.push(shortened(first, USER_TURN_BYTES.min(room.user_turns)));
    }
    let mut left = room.user_turns;
    for turn in all.iter().rev() {
        if kept.iter().any(|kept| kept.seq == turn.seq) || is_standing(turn) {
            continue;
        }
        let turn = shortened(turn, USER_TURN_BYTES);
        let bytes = turn.text.len() + LINE_OVERHEAD;
        if bytes > left {
            break;
        }
        left -= bytes;
        kept.push(turn);
    }
    kept.sort_by_key(|turn| turn.seq);
    kept
}
