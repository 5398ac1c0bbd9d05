//! A position in a tenant's events that is valid at every daemon that shares the journal.

use std::fmt;
use std::str::FromStr;

use hashlink::LinkedHashMap;
use memoird_core::time::Timestamp;

use crate::events::NODES_MAX;

/// The position in the events of each daemon. Its text form is opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventCursor {
    /// Time of the newest event read.
    pub(super) at: Timestamp,
    /// Last event number by daemon, the least recently updated first.
    numbers: LinkedHashMap<u128, u64>,
}

/// Error for a malformed cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursorInvalid;

/// First field of a cursor: the version of its format.
const VERSION: &str = "1";

impl EventCursor {
    /// A cursor before all events after this time.
    pub(super) fn at(at: Timestamp) -> Self {
        Self {
            at,
            numbers: LinkedHashMap::new(),
        }
    }

    pub(super) fn get(&self, node: u128) -> Option<u64> {
        self.numbers.get(&node).copied()
    }

    pub(super) fn set(&mut self, node: u128, number: u64) {
        self.numbers.insert(node, number);
        if self.numbers.len() > NODES_MAX {
            self.numbers.pop_front();
        }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = u128> {
        self.numbers.keys().copied()
    }
}

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION}-{:x}", self.at.as_ms().max(0))?;
        let mut numbers = self.numbers.iter();
        numbers.try_for_each(|(node, number)| write!(f, "-{node:x}.{number:x}"))
    }
}

impl FromStr for EventCursor {
    type Err = CursorInvalid;

    fn from_str(text: &str) -> Result<Self, CursorInvalid> {
        let mut parts = text.split('-');
        if parts.next() != Some(VERSION) {
            return Err(CursorInvalid);
        }
        let at = parts.next().and_then(|at| i64::from_str_radix(at, 16).ok());
        let mut cursor = Self::at(Timestamp::from_ms(at.ok_or(CursorInvalid)?));
        for part in parts {
            let (node_digits, number_digits) = part.split_once('.').ok_or(CursorInvalid)?;
            let node = u128::from_str_radix(node_digits, 16).map_err(|_| CursorInvalid)?;
            let number = u64::from_str_radix(number_digits, 16).map_err(|_| CursorInvalid)?;
            cursor.set(node, number);
        }
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_round_trips_through_text() {
        let mut cursor = EventCursor::at(Timestamp::from_ms(1_800_000_000_000));
        cursor.set(u128::MAX, 7);
        cursor.set(3, u64::MAX);
        let text = cursor.to_string();
        assert_eq!(text.parse(), Ok(cursor));
        for wrong in [
            "", "1", "1-", "2-0", "1-0-3", "1-0-.1", "1-0-x.1", "1-0-1.1-", "1-0-1.-1",
        ] {
            assert_eq!(wrong.parse::<EventCursor>(), Err(CursorInvalid), "{wrong}");
        }
    }

    #[test]
    fn cursor_holds_bounded_number_of_daemons() {
        let mut cursor = EventCursor::at(Timestamp::from_ms(0));
        (0..=NODES_MAX as u128).for_each(|node| cursor.set(node, 1));
        assert_eq!((cursor.get(0), cursor.get(1)), (None, Some(1)));
        assert!(cursor.to_string().len() < 8_192);
    }
}
