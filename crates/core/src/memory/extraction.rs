//! The cursor of an extraction: which turns are handed out next, and which never.

use crate::time::Timestamp;

/// What is known of a generation when its turns are to be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The last turn whose facts were found; `None` when none was looked at.
    pub cursor: Option<u64>,
    /// The first turn that the journal still has; 0 when it has none.
    pub first_seq: u64,
    /// The last one.
    pub last_seq: u64,
    /// The newest turns at which the bot itself remembered something, in any order; those
    /// before the cursor need not be among them.
    pub remembered: &'a [u64],
    /// No turns before this moment: the pause after a round that failed.
    pub not_before: Option<Timestamp>,
    /// Turns of one lease. At least 1.
    pub turns_max: u64,
}

/// What an extraction does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It looks at these turns; a commit moves the cursor to `to_seq`.
    Span {
        /// The first.
        from_seq: u64,
        /// The last; the same or later.
        to_seq: u64,
    },
    /// There is nothing to look at.
    Nothing {
        /// Where the cursor goes all the same, over turns whose facts the bot found itself;
        /// `None`: it stays.
        move_cursor_to: Option<u64>,
    },
}

/// Which turns come next.
///
/// Turns up to the newest at which the bot itself remembered something are skipped: it has
/// found what there was. Where the cursor's turn is gone, all visible turns are looked at:
/// that may find a fact again, which reinforces it, and never loses one.
pub fn next(progress: &Progress<'_>, now: Timestamp) -> Next {
    let &Progress { cursor, first_seq, last_seq, .. } = progress;
    let is_early = progress.not_before.is_some_and(|not_before| now < not_before);
    if is_early || first_seq == 0 || first_seq > last_seq {
        return Next::Nothing { move_cursor_to: None };
    }
    let visible = first_seq..=last_seq;
    let own = progress.remembered.iter().copied();
    let done = own.chain(cursor).filter(|seq| visible.contains(seq)).max();
    if done == Some(last_seq) {
        let is_moved = cursor != Some(last_seq);
        return Next::Nothing { move_cursor_to: is_moved.then_some(last_seq) };
    }
    let from_seq = done.map_or(first_seq, |done| done + 1);
    let to_seq = from_seq.saturating_add(progress.turns_max.max(1) - 1).min(last_seq);
    Next::Span { from_seq, to_seq }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn progress(cursor: Option<u64>, first_seq: u64, last_seq: u64) -> Progress<'static> {
        Progress { cursor, first_seq, last_seq, remembered: &[], not_before: None, turns_max: 200 }
    }

    fn next_of(progress: Progress<'_>) -> Next {
        next(&progress, Timestamp::from_ms(1_000))
    }

    const STAYS: Next = Next::Nothing { move_cursor_to: None };

    #[test]
    fn turns_after_the_cursor_come_next_and_all_of_them_where_its_turn_is_gone() {
        let span = |from_seq, to_seq| Next::Span { from_seq, to_seq };
        for (cursor, first, last, expected) in [
            (None, 1, 9, span(1, 9)),
            (None, 4, 9, span(4, 9)),
            (Some(4), 1, 9, span(5, 9)),
            (Some(8), 1, 9, span(9, 9)),
            (Some(9), 1, 9, STAYS),
            (Some(2), 5, 9, span(5, 9)),
            (Some(4), 5, 9, span(5, 9)),
            (Some(10), 1, 9, span(1, 9)),
            (Some(0), 1, 9, span(1, 9)),
            (None, 0, 0, STAYS),
            (Some(3), 0, 0, STAYS),
            (None, 9, 8, STAYS),
            (Some(u64::MAX), u64::MAX, u64::MAX, STAYS),
        ] {
            assert_eq!(next_of(progress(cursor, first, last)), expected, "{cursor:?} {first}");
        }
        let short = Progress { turns_max: 3, ..progress(Some(2), 1, 9) };
        assert_eq!(next_of(short), span(3, 5));
        assert_eq!(next_of(Progress { turns_max: 0, ..short }), span(3, 3));
    }

    #[test]
    fn what_the_bot_found_itself_is_skipped_and_the_cursor_moves_on() {
        let own = |cursor, remembered| next_of(Progress { remembered, ..progress(cursor, 1, 9) });
        assert_eq!(own(Some(2), &[6, 4]), Next::Span { from_seq: 7, to_seq: 9 });
        assert_eq!(own(Some(7), &[6, 4]), Next::Span { from_seq: 8, to_seq: 9 });
        assert_eq!(own(Some(2), &[9]), Next::Nothing { move_cursor_to: Some(9) });
        assert_eq!(own(None, &[9]), Next::Nothing { move_cursor_to: Some(9) });
        assert_eq!(own(Some(9), &[9]), STAYS);
        // Of another life of the session.
        assert_eq!(own(Some(2), &[12]), Next::Span { from_seq: 3, to_seq: 9 });
        assert_eq!(own(Some(12), &[9]), Next::Nothing { move_cursor_to: Some(9) });
    }

    #[test]
    fn after_a_failed_round_it_waits_and_then_goes_on() {
        let waiting =
            |ms| Progress { not_before: Some(Timestamp::from_ms(ms)), ..progress(None, 1, 9) };
        assert_eq!(next_of(waiting(1_001)), STAYS);
        assert_eq!(next_of(waiting(1_000)), Next::Span { from_seq: 1, to_seq: 9 });
    }

    proptest! {
        #[test]
        fn spans_are_visible_and_every_round_comes_to_an_end(
            cursor in proptest::option::of(0..30_u64),
            first_seq in 0..20_u64,
            length in 0..20_u64,
            remembered in proptest::collection::vec(0..40_u64, 0..4),
            turns_max in 0..8_u64,
        ) {
            let last_seq = (first_seq + length).saturating_sub(1);
            let mut progress = Progress {
                remembered: &remembered, turns_max, ..progress(cursor, first_seq, last_seq)
            };
            for _ in 0..=length {
                match next_of(progress) {
                    Next::Span { from_seq, to_seq } => {
                        prop_assert!(first_seq <= from_seq && from_seq <= to_seq);
                        prop_assert!(to_seq <= last_seq);
                        prop_assert!(to_seq - from_seq < turns_max.max(1));
                        progress.cursor = Some(to_seq);
                    }
                    Next::Nothing { move_cursor_to: Some(seq) } => {
                        prop_assert_eq!(seq, last_seq);
                        progress.cursor = Some(seq);
                    }
                    Next::Nothing { move_cursor_to: None } => return Ok(()),
                }
            }
            prop_assert_eq!(next_of(progress), STAYS);
        }
    }
}
