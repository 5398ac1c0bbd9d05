//! A turn in memory: its bytes as they were encoded when it arrived, and beside them
//! the little that planning needs.

use std::sync::Arc;

use crate::change::Totals;
use crate::mark::Mark;
use crate::quote;
use crate::time::Timestamp;
use crate::turn::{NewTurn, Role, estimate_tokens};

/// A turn in memory.
#[derive(Clone, Debug)]
pub struct TurnRecord {
    /// Its encoded content, seq included.
    pub content: Arc<[u8]>,
    /// Its place in the generation, from 1.
    pub seq: u64,
    /// Its tokens, estimated.
    pub tokens: u32,
    /// Who contributed it.
    pub role: Role,
    /// Its time in seconds since 1970; 0 if unknown.
    pub(crate) said_at: i64,
    /// True when a text of it looks like memoird's own words, or has the mark of its session.
    pub(crate) is_marked: bool,
    /// True when the bot pinned it.
    pub pinned: bool,
    /// True when it belongs to a unit with a pinned turn, and so never leaves.
    pub(super) held: bool,
    /// True when it may answer a call that nobody knows.
    pub(super) takes_orphans: bool,
    /// True when the assistant's next turn belongs to it.
    pub(super) leads_on: bool,
    ties: Option<Box<Ties>>,
}

/// What ties a turn to the others of its unit.
#[derive(Clone, Debug, Default)]
struct Ties {
    /// Its calls, and the turns that answered them.
    uses: Vec<(Box<str>, Option<u64>)>,
    /// Seqs of the turns whose calls it answers; its own seq for an unknown call.
    answers: Vec<u64>,
    /// Ids under which later turns may name parts of it, and ids that its parts name.
    names: Vec<Box<str>>,
    refs: Vec<Box<str>>,
    /// The turns that it names, and those that name it.
    joined: Vec<u64>,
}

impl TurnRecord {
    /// The record of a new turn whose encoded content, with its seq, is `content`.
    pub fn new(turn: &NewTurn, seq: u64, content: Arc<[u8]>) -> Self {
        let ties = (!turn.links.is_empty()).then(|| {
            let uses = turn.links.uses.iter();
            Box::new(Ties {
                uses: uses.map(|id| (id.clone(), None)).collect(),
                answers: Vec::new(),
                names: turn.links.names.clone(),
                refs: turn.links.refs.clone(),
                joined: Vec::new(),
            })
        });
        Self {
            tokens: estimate_tokens(content.len().saturating_sub(turn.client_bytes)),
            is_marked: quote::has_marks(&content),
            content,
            seq,
            role: turn.role,
            said_at: turn.timestamp.map_or(0, Timestamp::seconds),
            pinned: turn.pinned,
            held: false,
            takes_orphans: turn.links.takes_orphans,
            leads_on: turn.links.leads_on,
            ties,
        }
    }

    /// Says something else from now on.
    pub(super) fn set_content(&mut self, content: Arc<[u8]>) {
        self.tokens = estimate_tokens(content.len());
        self.is_marked = quote::has_marks(&content);
        self.content = content;
    }

    /// Notes whether it has the mark of its session.
    pub(crate) fn note_mark(&mut self, mark: Mark) {
        self.is_marked |= mark.is_in(&self.content);
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// True when it is tied to no other turn.
    pub(crate) fn stands_alone(&self) -> bool {
        self.ties.is_none()
    }

    /// True for a user's words: with all that follows them up to the next ones they are an
    /// exchange.
    pub(crate) fn begins_exchange(&self) -> bool {
        self.role == Role::User && self.answers().is_empty()
    }

    /// The ids of all its calls.
    pub(super) fn uses(&self) -> impl Iterator<Item = &Box<str>> {
        self.calls().map(|(id, _)| id)
    }

    /// Its calls, and the turns that answered them.
    fn calls(&self) -> impl Iterator<Item = &(Box<str>, Option<u64>)> {
        self.ties.iter().flat_map(|ties| &ties.uses)
    }

    /// The ids of its calls that have no result yet.
    pub(crate) fn open_uses(&self) -> impl Iterator<Item = &Box<str>> {
        let open = self.calls().filter(|(_, answer)| answer.is_none());
        open.map(|(id, _)| id)
    }

    /// The seqs of the turns of its unit that it is tied to directly.
    pub(crate) fn mates(&self) -> impl Iterator<Item = u64> {
        self.close_mates().chain(self.joined())
    }

    /// Of these the ones that it is never shown without: its calls and results.
    pub(crate) fn close_mates(&self) -> impl Iterator<Item = u64> {
        let answers = self.answers().iter().copied();
        let others = answers.filter(|seq| *seq != self.seq);
        others.chain(self.answered_by())
    }

    /// The others: they leave together, but a unit that is too large is split between them.
    pub(crate) fn joined(&self) -> impl Iterator<Item = u64> {
        let joined = self.ties.iter().flat_map(|ties| &ties.joined);
        joined.copied()
    }

    /// True where later turns may name a part of it so.
    pub(super) fn is_named(&self, id: &str) -> bool {
        let mut names = self.ties.iter().flat_map(|ties| &ties.names);
        names.any(|name| **name == *id) || self.uses().any(|used| **used == *id)
    }

    /// The ids under which later turns may name parts of it.
    #[cfg(test)]
    pub(super) fn names(&self) -> &[Box<str>] {
        self.ties.as_ref().map_or(&[], |ties| &ties.names)
    }

    /// The ids of earlier parts that its parts name.
    pub(super) fn refs(&self) -> &[Box<str>] {
        self.ties.as_ref().map_or(&[], |ties| &ties.refs)
    }

    /// Notes that it travels with this turn.
    pub(super) fn join(&mut self, seq: u64) {
        self.ties.get_or_insert_default().joined.push(seq);
    }

    /// Notes that this turn has left without it.
    pub(super) fn unjoin(&mut self, seq: u64) {
        let ties = self.ties.iter_mut();
        ties.for_each(|ties| ties.joined.retain(|joined| *joined != seq));
    }

    /// For each of its results, the seq of the turn whose call it answers; its own seq for an
    /// unknown call.
    pub(crate) fn answers(&self) -> &[u64] {
        self.ties.as_ref().map_or(&[], |ties| &ties.answers)
    }

    /// The seqs of the turns that answered its calls; one may come more than once.
    pub(crate) fn answered_by(&self) -> impl Iterator<Item = u64> {
        self.calls().filter_map(|(_, answer)| *answer)
    }

    /// Notes that it answers a call of the turn `use_seq`.
    pub(super) fn note_answers(&mut self, use_seq: u64) {
        self.ties.get_or_insert_default().answers.push(use_seq);
    }

    /// Notes that its call `id` was answered by the turn `result_seq`.
    pub(super) fn note_answered(&mut self, id: &str, result_seq: u64) {
        let mut uses = self.ties.iter_mut().flat_map(|ties| &mut ties.uses);
        let is_meant =
            |(use_id, answer): &&mut (Box<str>, Option<u64>)| **use_id == *id && answer.is_none();
        if let Some((_, answer)) = uses.find(is_meant) {
            *answer = Some(result_seq);
        }
    }

    /// The ids of its calls that the turn `result_seq` answered.
    #[cfg(test)]
    pub(super) fn calls_answered_by(&self, result_seq: u64) -> impl Iterator<Item = &Box<str>> {
        self.calls()
            .filter(move |(_, answer)| *answer == Some(result_seq))
            .map(|(id, _)| id)
    }

    /// What it adds to a history.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            turns: 1,
            bytes: self.content.len() as u64,
            tokens: u64::from(self.tokens),
        }
    }
}
