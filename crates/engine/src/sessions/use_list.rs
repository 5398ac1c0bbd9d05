//! LRU list of sessions, with skip pointers for seeking to a point in time.
//!
//! Moving a session to the back takes constant time. A seek is a lookup among the skip pointers
//! plus a walk of about [`SKIP_POINTER_EVERY`] entries.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use hashlink::linked_hash_map::{CursorMut, RawEntryMut};
use hashlink::{DefaultHashBuilder, LinkedHashMap};
use memoird_core::ids::SessionId;
use memoird_core::time::Steady;

use super::slot::Slot;

/// Every 256th appended session becomes a skip pointer.
const SKIP_POINTER_EVERY: usize = 256;

#[derive(Debug, Default)]
pub(super) struct UseList {
    sessions: LinkedHashMap<SessionId, Node>,
    /// Skip pointers by time of last use. When a session moves, its skip pointer passes to a
    /// neighbor, so gaps stay close to [`SKIP_POINTER_EVERY`] entries.
    skip_pointers: BTreeMap<Steady, SessionId>,
    /// Sessions appended since the last skip pointer was added.
    since_skip_pointer: usize,
}

/// A session in a list, with its last use. Changed only under the session's lock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) slot: Arc<Slot>,
    pub(super) last_access: Steady,
    /// TTL class, if the client selected one.
    pub(super) class: Option<Arc<str>>,
}

type Cursor<'a> = CursorMut<'a, SessionId, Node, DefaultHashBuilder>;

#[derive(Debug)]
struct Node {
    entry: Entry,
    is_skip_pointer: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PageStart<'a> {
    First,
    /// After this session, last used at this time. If it has been used since or has ended, the page
    /// starts with the sessions last used at that time, and may repeat some of them.
    After(&'a SessionId, Steady),
    /// At this time, or at the next one in page order.
    From(Steady),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Newest,
    Oldest,
}

impl UseList {
    /// Appends a session as the most recently used, replacing any entry with the same id.
    pub(super) fn push(&mut self, entry: Entry) {
        let id = entry.slot.key.session.clone();
        self.move_skip_pointer_to_neighbor(&id);
        let is_skip_pointer = self.add_skip_pointer_if_due(&id, entry.last_access);
        self.sessions.insert(
            id,
            Node {
                entry,
                is_skip_pointer,
            },
        );
    }

    /// Moves a session to the back after a use. Does nothing if it is not in the list.
    ///
    /// Uses may be reported out of order. If the back is newer than `last_access`, the session is
    /// inserted at its position by time.
    pub(super) fn touch(&mut self, slot: &Arc<Slot>, last_access: Steady) {
        let id = &slot.key.session;
        let newest = self.sessions.back();
        let is_newest = newest.is_none_or(|(_, node)| node.entry.last_access <= last_access);
        let Some(node) = self.sessions.get(id) else {
            return;
        };
        if !is_newest {
            let entry = Entry {
                last_access,
                ..node.entry.clone()
            };
            self.insert(entry);
            return;
        }
        if node.is_skip_pointer {
            self.move_skip_pointer_to_neighbor(id);
        }
        let is_skip_pointer = self.add_skip_pointer_if_due(id, last_access);
        if let Some(node) = self.sessions.to_back(id) {
            node.entry.last_access = last_access;
            node.is_skip_pointer = is_skip_pointer;
        }
    }

    /// Inserts a session by its last use, replacing any entry with the same id.
    pub(super) fn insert(&mut self, entry: Entry) {
        let id = entry.slot.key.session.clone();
        self.remove(&id);
        let last_access = entry.last_access;
        let node = Node {
            entry,
            is_skip_pointer: false,
        };
        let has_none_before = self
            .newest_until(last_access)
            .is_none_or(|mut cursor| cursor.current().is_none());
        if has_none_before {
            self.sessions.insert_front(id, node);
        } else if let Some(mut cursor) = self.newest_until(last_access) {
            cursor.insert_after(id, node);
        }
    }

    pub(super) fn get(&self, id: &SessionId) -> Option<&Entry> {
        self.sessions.get(id).map(|node| &node.entry)
    }

    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Entry> {
        self.move_skip_pointer_to_neighbor(id);
        self.sessions.remove(id).map(|node| node.entry)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.sessions.values().map(|node| &node.entry)
    }

    pub(super) fn oldest(&self) -> Option<&Entry> {
        self.sessions.front().map(|(_, node)| &node.entry)
    }

    /// Returns up to `count` sessions in one direction.
    pub(super) fn page(
        &mut self,
        start: PageStart<'_>,
        direction: Direction,
        count: usize,
    ) -> Vec<Entry> {
        let mut page = Vec::new();
        let Some(mut cursor) = self.start(start, direction) else {
            return page;
        };
        while page.len() < count
            && let Some((_, node)) = cursor.current()
        {
            page.push(node.entry.clone());
            step(&mut cursor, direction);
        }
        page
    }

    fn start(&mut self, start: PageStart<'_>, direction: Direction) -> Option<Cursor<'_>> {
        let is_there =
            |id: &SessionId, at: Steady| self.get(id).is_some_and(|known| known.last_access == at);
        let at = match start {
            PageStart::First => {
                return Some(match direction {
                    Direction::Newest => self.sessions.cursor_back_mut(),
                    Direction::Oldest => self.sessions.cursor_front_mut(),
                });
            }
            PageStart::After(id, at) if is_there(id, at) => {
                let mut cursor = self.cursor_at(id)?;
                step(&mut cursor, direction);
                return Some(cursor);
            }
            PageStart::After(_, at) | PageStart::From(at) => at,
        };
        match direction {
            Direction::Newest => self.newest_until(at),
            Direction::Oldest => self.oldest_from(at),
        }
    }

    /// Returns a cursor at the most recent session last used at or before `at`.
    fn newest_until(&mut self, at: Steady) -> Option<Cursor<'_>> {
        let skip_pointer = self
            .skip_pointers
            .range((Excluded(at), Unbounded))
            .next()
            .map(|(_, id)| id.clone());
        let mut cursor = match skip_pointer {
            Some(id) => self.cursor_at(&id)?,
            None => self.sessions.cursor_back_mut(),
        };
        let is_newer = |(_, node): (&SessionId, &mut Node)| node.entry.last_access > at;
        while cursor.current().is_some_and(is_newer) {
            cursor.move_prev();
        }
        Some(cursor)
    }

    /// Returns a cursor at the longest idle session last used at or after `at`.
    fn oldest_from(&mut self, at: Steady) -> Option<Cursor<'_>> {
        let skip_pointer = self
            .skip_pointers
            .range(..at)
            .next_back()
            .map(|(_, id)| id.clone());
        let mut cursor = match skip_pointer {
            Some(id) => self.cursor_at(&id)?,
            None => self.sessions.cursor_front_mut(),
        };
        let is_older = |(_, node): (&SessionId, &mut Node)| node.entry.last_access < at;
        while cursor.current().is_some_and(is_older) {
            cursor.move_next();
        }
        Some(cursor)
    }

    fn cursor_at(&mut self, id: &SessionId) -> Option<Cursor<'_>> {
        match self.sessions.raw_entry_mut().from_key(id) {
            RawEntryMut::Occupied(known) => Some(known.cursor_mut()),
            RawEntryMut::Vacant(_) => None,
        }
    }

    /// Adds a skip pointer for a session appended at this time, if one is due.
    fn add_skip_pointer_if_due(&mut self, id: &SessionId, at: Steady) -> bool {
        self.since_skip_pointer += 1;
        let is_due =
            self.since_skip_pointer >= SKIP_POINTER_EVERY && !self.skip_pointers.contains_key(&at);
        if is_due {
            self.since_skip_pointer = 0;
            self.skip_pointers.insert(at, id.clone());
        }
        is_due
    }

    /// Moves the skip pointer of a session that is about to move, if it has one, to a neighbor.
    ///
    /// Drops it if the neighbor's time already has one: the map holds one per time.
    fn move_skip_pointer_to_neighbor(&mut self, id: &SessionId) {
        let RawEntryMut::Occupied(mut known) = self.sessions.raw_entry_mut().from_key(id) else {
            return;
        };
        let node = known.get_mut();
        if !std::mem::take(&mut node.is_skip_pointer) {
            return;
        }
        self.skip_pointers.remove(&node.entry.last_access);
        let mut cursor = known.cursor_mut();
        if cursor.peek_next().is_some() {
            cursor.move_next();
        } else {
            cursor.move_prev();
        }
        if let Some((id, node)) = cursor.current()
            && !self.skip_pointers.contains_key(&node.entry.last_access)
        {
            node.is_skip_pointer = true;
            self.skip_pointers
                .insert(node.entry.last_access, id.clone());
        }
    }
}

#[cfg(test)]
impl UseList {
    pub(super) const SKIP_POINTER_EVERY: usize = SKIP_POINTER_EVERY;

    pub(super) fn nodes(&self) -> impl Iterator<Item = (&Entry, bool)> {
        let nodes = self.sessions.values();
        nodes.map(|node| (&node.entry, node.is_skip_pointer))
    }

    pub(super) fn has_skip_pointer(&self, entry: &Entry) -> bool {
        self.skip_pointers.get(&entry.last_access) == Some(&entry.slot.key.session)
    }

    pub(super) fn skip_pointers(&self) -> usize {
        self.skip_pointers.len()
    }
}

fn step(cursor: &mut Cursor<'_>, direction: Direction) {
    match direction {
        Direction::Newest => cursor.move_prev(),
        Direction::Oldest => cursor.move_next(),
    }
}
