//! LRU list of sessions, with skip pointers (marks) for seeking to a point in time.
//!
//! Moving a session to the back takes constant time. A seek is a lookup among the skip pointers
//! plus a walk of about [`MARK_EVERY`] entries.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use hashlink::linked_hash_map::{CursorMut, RawEntryMut};
use hashlink::{DefaultHashBuilder, LinkedHashMap};
use memoird_core::ids::SessionId;
use memoird_core::time::Steady;

use super::slot::Slot;

/// Every 256th appended session becomes a skip pointer.
const MARK_EVERY: usize = 256;

#[derive(Debug, Default)]
pub(super) struct UseList {
    sessions: LinkedHashMap<SessionId, Node>,
    /// Skip pointers by time of last use. When a session moves, its skip pointer passes to a
    /// neighbor, so gaps stay close to [`MARK_EVERY`] entries.
    marks: BTreeMap<Steady, SessionId>,
    /// Sessions appended since the last skip pointer was added.
    unmarked: usize,
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
    is_marked: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PageStart<'a> {
    First,
    /// After this session, last used at this time. If it has been used since or has ended, the page
    /// starts with the sessions last used at that time, and may repeat some of them.
    Behind(&'a SessionId, Steady),
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
        self.hand_mark_on(&id);
        let is_marked = self.gives_mark(&id, entry.last_access);
        self.sessions.insert(id, Node { entry, is_marked });
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
        if node.is_marked {
            self.hand_mark_on(id);
        }
        let is_marked = self.gives_mark(id, last_access);
        if let Some(node) = self.sessions.to_back(id) {
            node.entry.last_access = last_access;
            node.is_marked = is_marked;
        }
    }

    /// Inserts a session by its last use, replacing any entry with the same id.
    pub(super) fn insert(&mut self, entry: Entry) {
        let id = entry.slot.key.session.clone();
        self.remove(&id);
        let last_access = entry.last_access;
        let node = Node {
            entry,
            is_marked: false,
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
        self.hand_mark_on(id);
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
            PageStart::Behind(id, at) if is_there(id, at) => {
                let mut cursor = self.cursor_at(id)?;
                step(&mut cursor, direction);
                return Some(cursor);
            }
            PageStart::Behind(_, at) | PageStart::From(at) => at,
        };
        match direction {
            Direction::Newest => self.newest_until(at),
            Direction::Oldest => self.oldest_from(at),
        }
    }

    /// Returns a cursor at the most recent session last used at or before `at`.
    fn newest_until(&mut self, at: Steady) -> Option<Cursor<'_>> {
        let mark = self
            .marks
            .range((Excluded(at), Unbounded))
            .next()
            .map(|(_, id)| id.clone());
        let mut cursor = match mark {
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
        let mark = self.marks.range(..at).next_back().map(|(_, id)| id.clone());
        let mut cursor = match mark {
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
    fn gives_mark(&mut self, id: &SessionId, at: Steady) -> bool {
        self.unmarked += 1;
        let gives = self.unmarked >= MARK_EVERY && !self.marks.contains_key(&at);
        if gives {
            self.unmarked = 0;
            self.marks.insert(at, id.clone());
        }
        gives
    }

    /// Moves the skip pointer of a session that is about to move, if it has one, to a neighbor.
    ///
    /// Drops it if the neighbor's time already has one: the map holds one per time.
    fn hand_mark_on(&mut self, id: &SessionId) {
        let RawEntryMut::Occupied(mut known) = self.sessions.raw_entry_mut().from_key(id) else {
            return;
        };
        let node = known.get_mut();
        if !std::mem::take(&mut node.is_marked) {
            return;
        }
        self.marks.remove(&node.entry.last_access);
        let mut cursor = known.cursor_mut();
        if cursor.peek_next().is_some() {
            cursor.move_next();
        } else {
            cursor.move_prev();
        }
        if let Some((id, node)) = cursor.current()
            && !self.marks.contains_key(&node.entry.last_access)
        {
            node.is_marked = true;
            self.marks.insert(node.entry.last_access, id.clone());
        }
    }
}

#[cfg(test)]
impl UseList {
    pub(super) const MARK_EVERY: usize = MARK_EVERY;

    pub(super) fn marked(&self) -> impl Iterator<Item = (&Entry, bool)> {
        let nodes = self.sessions.values();
        nodes.map(|node| (&node.entry, node.is_marked))
    }

    pub(super) fn has_mark(&self, entry: &Entry) -> bool {
        self.marks.get(&entry.last_access) == Some(&entry.slot.key.session)
    }

    pub(super) fn marks(&self) -> usize {
        self.marks.len()
    }
}

fn step(cursor: &mut Cursor<'_>, direction: Direction) {
    match direction {
        Direction::Newest => cursor.move_prev(),
        Direction::Oldest => cursor.move_next(),
    }
}
