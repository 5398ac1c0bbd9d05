//! Page tokens of lists of sessions.
//!
//! A token has the order of the list, and the positions in its live and in its ended sessions.

use memoird_core::ids::SessionId;
use memoird_core::time::Steady;
use memoird_engine::{LivePosition, PartPosition, SessionListPosition, SessionOrder};
use memoird_store::EndedPosition;

use super::from::read_page_token;
use super::refusal::Refusal;

const START: &str = "-";
const END: &str = ".";

/// Parses the position after the previous page. `None` at the beginning of the list.
pub(crate) fn parse(
    token: &str,
    order: SessionOrder,
) -> Result<Option<SessionListPosition>, Refusal> {
    read_page_token(token, |token| {
        let (length, parts) = token.strip_prefix(letter(order))?.split_once(':')?;
        let length = usize::from_str_radix(length, 16).ok()?;
        let (live, ended) = parts.split_at_checked(length)?;
        Some(SessionListPosition {
            live: part(live, live_position)?,
            ended: part(ended, ended_position)?,
        })
    })
}

/// Formats a position as a page token.
pub(crate) fn format(position: &SessionListPosition, order: SessionOrder) -> String {
    let live = part_text(&position.live, |live| {
        format!("{:x}:{}", live.at.0, live.session)
    });
    let ended = part_text(&position.ended, |ended| {
        format!("{:x}:{}:{}", ended.at.0, ended.generation, ended.session)
    });
    // An id may contain any character, so the parts are separated by the length of the first one.
    format!("{}{:x}:{live}{ended}", letter(order), live.len())
}

/// A token is valid only in lists of its order.
fn letter(order: SessionOrder) -> char {
    match order {
        SessionOrder::Newest => 'n',
        SessionOrder::Oldest => 'o',
        SessionOrder::Id => 'i',
    }
}

fn part<P>(text: &str, position: impl FnOnce(&str) -> Option<P>) -> Option<PartPosition<P>> {
    match text {
        START => Some(PartPosition::Start),
        END => Some(PartPosition::End),
        text => position(text).map(PartPosition::After),
    }
}

fn part_text<P>(part: &PartPosition<P>, text: impl FnOnce(&P) -> String) -> String {
    match part {
        PartPosition::Start => START.to_owned(),
        PartPosition::End => END.to_owned(),
        PartPosition::After(position) => text(position),
    }
}

fn live_position(text: &str) -> Option<LivePosition> {
    let (at, session) = text.split_once(':')?;
    Some(LivePosition {
        at: time(at)?,
        session: SessionId::parse(session).ok()?,
    })
}

fn ended_position(text: &str) -> Option<EndedPosition> {
    let (at, rest) = text.split_once(':')?;
    let (generation, session) = rest.split_once(':')?;
    Some(EndedPosition {
        at: time(at)?,
        generation: generation.parse().ok()?,
        session: SessionId::parse(session).ok()?,
    })
}

fn time(text: &str) -> Option<Steady> {
    u64::from_str_radix(text, 16).ok().map(Steady)
}

#[cfg(test)]
mod tests {
    use memoird_core::ids::Generation;

    use super::*;

    #[test]
    fn tokens_round_trip_with_any_id() {
        for id in ["a", "é:", "a:b|.-", "\0\n", "01ARYZ6S410000000000000000:x"] {
            let session = SessionId::parse(id).unwrap();
            let live = PartPosition::After(LivePosition {
                session: session.clone(),
                at: Steady(u64::MAX),
            });
            let ended = PartPosition::After(EndedPosition {
                at: Steady(7),
                generation: Generation::new(9, 9),
                session,
            });
            for live in [PartPosition::Start, live, PartPosition::End] {
                for ended in [PartPosition::Start, ended.clone(), PartPosition::End] {
                    let position = SessionListPosition {
                        live: live.clone(),
                        ended,
                    };
                    let token = format(&position, SessionOrder::Oldest);
                    assert_eq!(
                        parse(&token, SessionOrder::Oldest).ok(),
                        Some(Some(position)),
                        "{token}"
                    );
                    assert!(parse(&token, SessionOrder::Id).is_err());
                }
            }
        }
    }
}
