//! Sessions in the order of their last use. A use costs the same with a thousand of them and with
//! a million, and so does finding those of a time.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use hashlink::linked_hash_map::{CursorMut, RawEntryMut};
use hashlink::{DefaultHashBuilder, LinkedHashMap};
use memoird_core::ids::SessionId;
use memoird_core::time::Steady;

use super::slot::Slot;

/// Of the sessions that come to the back, each one of so many gets a mark.
const MARK_EVERY: usize = 256;

/// Sessions, longest idle first.
#[derive(Debug, Default)]
pub(super) struct UseList {
    sessions: LinkedHashMap<SessionId, Node>,
    /// Some of them, by which a time is found. A session that leaves its place hands its mark to
    /// the one beside it: so between two marks there are never many more than [`MARK_EVERY`].
    marks: BTreeMap<Steady, SessionId>,
    /// Sessions that came to the back since the last mark was given.
    unmarked: usize,
}

/// A session in a list, with the time of its last use. Both change under the session's lock.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) slot: Arc<Slot>,
    pub(super) last_access: Steady,
    /// The class of its TTL, where its bot chose one.
    pub(super) class: Option<Arc<str>>,
}

type Cursor<'a> = CursorMut<'a, SessionId, Node, DefaultHashBuilder>;

#[derive(Debug)]
struct Node {
    entry: Entry,
    is_marked: bool,
}

/// Where a page begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum PageStart<'a> {
    /// With the first session of the order.
    First,
    /// Behind this session, which was used at this time. Where it was used since, or ended, with
    /// those of its time, of which some may be shown again.
    Behind(&'a SessionId, Steady),
    /// With the first session that was used at this time or further on.
    From(Steady),
}

/// In which direction a page goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Most recently used first.
    Newest,
    /// Longest idle first.
    Oldest,
}

impl UseList {
    /// Puts a session at the back, in place of any other of its id.
    pub(super) fn push(&mut self, entry: Entry) {
        let id = entry.slot.key.session.clone();
        self.hand_mark_on(&id);
        let is_marked = self.gives_mark(&id, entry.last_access);
        self.sessions.insert(id, Node { entry, is_marked });
    }

    /// Moves a session that was just used to the back, if it is in the list. One that was used a
    /// moment later may be there already.
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

    /// Puts a session where it belongs by its last use, in place of any other of its id.
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

    /// The session of this id.
    pub(super) fn get(&self, id: &SessionId) -> Option<&Entry> {
        self.sessions.get(id).map(|node| &node.entry)
    }

    /// Takes a session out.
    pub(super) fn remove(&mut self, id: &SessionId) -> Option<Entry> {
        self.hand_mark_on(id);
        self.sessions.remove(id).map(|node| node.entry)
    }

    /// All of them, longest idle first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.sessions.values().map(|node| &node.entry)
    }

    /// The longest idle one.
    pub(super) fn oldest(&self) -> Option<&Entry> {
        self.sessions.front().map(|(_, node)| &node.entry)
    }

    /// Up to `count` sessions in one direction.
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

    /// At the newest session that was used at this time or before.
    fn newest_until(&mut self, at: Steady) -> Option<Cursor<'_>> {
        let mark = self.marks.range((Excluded(at), Unbounded)).next();
        let mark = mark.map(|(_, id)| id.clone());
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

    /// At the longest idle session that was used at this time or later.
    fn oldest_from(&mut self, at: Steady) -> Option<Cursor<'_>> {
        let mark = self.marks.range(..at).next_back();
        let mark = mark.map(|(_, id)| id.clone());
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

    /// At the session of this id.
    fn cursor_at(&mut self, id: &SessionId) -> Option<Cursor<'_>> {
        match self.sessions.raw_entry_mut().from_key(id) {
            RawEntryMut::Occupied(known) => Some(known.cursor_mut()),
            RawEntryMut::Vacant(_) => None,
        }
    }

    /// Whether a session that comes to the back at this time gets a mark: then it has one.
    fn gives_mark(&mut self, id: &SessionId, at: Steady) -> bool {
        self.unmarked += 1;
        let gives = self.unmarked >= MARK_EVERY && !self.marks.contains_key(&at);
        if gives {
            self.unmarked = 0;
            self.marks.insert(at, id.clone());
        }
        gives
    }

    /// Gives the mark of a session that leaves its place to the one beside it. Of one time a
    /// single session has a mark.
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

    /// Each session, and whether it has a mark; longest idle first.
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
