//! A turn in memory: its encoded bytes and the metadata for planning.

use std::sync::Arc;

use super::Totals;
use crate::nonce::Nonce;
use crate::quote;
use crate::time::Timestamp;
use crate::turn::{NewTurn, Role, estimate_tokens};

#[derive(Clone, Debug)]
pub struct TurnRecord {
    /// Encoded content, including the seq.
    pub content: Arc<[u8]>,
    /// Position in the generation, from 1.
    pub seq: u64,
    /// Estimated tokens.
    pub tokens: u32,
    pub role: Role,
    /// Time in seconds since 1970, or 0 if unknown.
    pub(crate) said_at: i64,
    /// Whether a text imitates memoird's own text or contains the nonce of the session.
    pub(crate) is_marked: bool,
    pub pinned: bool,
    /// Whether its unit contains a pinned turn, which exempts it from being dropped.
    pub(super) held: bool,
    /// Whether its results may belong to unknown calls.
    pub(super) takes_orphans: bool,
    /// Whether the assistant's next turn belongs to its unit.
    pub(super) leads_on: bool,
    ties: Option<Box<UnitLinks>>,
}

/// Relations of a turn to the others of its unit.
#[derive(Clone, Debug, Default)]
struct UnitLinks {
    /// Its calls, and the turns with their results.
    uses: Vec<(Box<str>, Option<u64>)>,
    /// Seqs of the turns whose calls it answers. Its own seq denotes an unknown call.
    answers: Vec<u64>,
    /// Ids by which later turns may reference its parts.
    names: Vec<Box<str>>,
    refs: Vec<Box<str>>,
    /// The turns that it references, and those that reference it.
    joined: Vec<u64>,
}

impl TurnRecord {
    /// Creates the record of a new turn. `content` is encoded and includes the seq.
    pub fn new(turn: &NewTurn, seq: u64, content: Arc<[u8]>) -> Self {
        let ties = (!turn.links.is_empty()).then(|| {
            let uses = turn.links.uses.iter();
            Box::new(UnitLinks {
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

    /// The record as it was on arrival, if it is tied to no other turn.
    pub fn as_arrived(&self) -> Option<Self> {
        self.stands_alone().then(|| Self {
            held: false,
            ..self.clone()
        })
    }

    pub(super) fn set_content(&mut self, content: Arc<[u8]>, client_bytes: usize) {
        self.tokens = estimate_tokens(content.len().saturating_sub(client_bytes));
        self.is_marked = quote::has_marks(&content);
        self.content = content;
    }

    /// Records whether the content contains the nonce of the session.
    pub(crate) fn note_mark(&mut self, nonce: Nonce) {
        self.is_marked |= nonce.is_in(&self.content);
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// Whether the turn is tied to no other turn.
    pub(crate) fn stands_alone(&self) -> bool {
        self.ties.is_none()
    }

    /// Whether the turn is a user message, which starts an exchange.
    ///
    /// The exchange ends before the next such turn.
    pub(crate) fn begins_exchange(&self) -> bool {
        self.role == Role::User && self.answers().is_empty()
    }

    pub(super) fn uses(&self) -> impl Iterator<Item = &Box<str>> {
        self.calls().map(|(id, _)| id)
    }

    fn calls(&self) -> impl Iterator<Item = &(Box<str>, Option<u64>)> {
        self.ties.iter().flat_map(|ties| &ties.uses)
    }

    /// Ids of its calls that have no result yet.
    pub(crate) fn open_uses(&self) -> impl Iterator<Item = &Box<str>> {
        let open = self.calls().filter(|(_, answer)| answer.is_none());
        open.map(|(id, _)| id)
    }

    /// Seqs of the turns of its unit that it is tied to directly.
    pub(crate) fn mates(&self) -> impl Iterator<Item = u64> {
        self.close_mates().chain(self.joined())
    }

    /// The mates that it is never shown without: the turns of its calls and results.
    pub(crate) fn close_mates(&self) -> impl Iterator<Item = u64> {
        let answers = self.answers().iter().copied();
        let others = answers.filter(|seq| *seq != self.seq);
        others.chain(self.answered_by())
    }

    /// The other mates. A unit that is too large can be split between them.
    pub(crate) fn joined(&self) -> impl Iterator<Item = u64> {
        let joined = self.ties.iter().flat_map(|ties| &ties.joined);
        joined.copied()
    }

    /// Whether later turns may reference a part of it by `id`.
    pub(super) fn is_named(&self, id: &str) -> bool {
        let mut names = self.ties.iter().flat_map(|ties| &ties.names);
        names.any(|name| **name == *id) || self.uses().any(|used| **used == *id)
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> &[Box<str>] {
        self.ties.as_ref().map_or(&[], |ties| &ties.names)
    }

    /// Ids of earlier parts that its parts reference.
    pub(super) fn refs(&self) -> &[Box<str>] {
        self.ties.as_ref().map_or(&[], |ties| &ties.refs)
    }

    pub(super) fn join(&mut self, seq: u64) {
        self.ties.get_or_insert_default().joined.push(seq);
    }

    /// Removes the tie to a turn that was dropped.
    pub(super) fn unjoin(&mut self, seq: u64) {
        let ties = self.ties.iter_mut();
        ties.for_each(|ties| ties.joined.retain(|joined| *joined != seq));
    }

    /// For each of its results, the seq of the turn with the call, or its own seq if unknown.
    pub(crate) fn answers(&self) -> &[u64] {
        self.ties.as_ref().map_or(&[], |ties| &ties.answers)
    }

    /// Whether the turn has a result without a call, and may have it because it opens a generation.
    pub(super) fn is_opening_orphan(&self) -> bool {
        !self.takes_orphans && self.answers().contains(&self.seq)
    }

    /// Seqs of the turns with results of its calls, possibly with repetitions.
    pub(crate) fn answered_by(&self) -> impl Iterator<Item = u64> {
        self.calls().filter_map(|(_, answer)| *answer)
    }

    pub(super) fn note_answers(&mut self, use_seq: u64) {
        self.ties.get_or_insert_default().answers.push(use_seq);
    }

    pub(super) fn note_answered(&mut self, id: &str, result_seq: u64) {
        let mut uses = self.ties.iter_mut().flat_map(|ties| &mut ties.uses);
        let is_meant =
            |(use_id, answer): &&mut (Box<str>, Option<u64>)| **use_id == *id && answer.is_none();
        if let Some((_, answer)) = uses.find(is_meant) {
            *answer = Some(result_seq);
        }
    }

    #[cfg(test)]
    pub(super) fn calls_answered_by(&self, result_seq: u64) -> impl Iterator<Item = &Box<str>> {
        self.calls()
            .filter(move |(_, answer)| *answer == Some(result_seq))
            .map(|(id, _)| id)
    }

    /// Its share of the totals of a history.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            turns: 1,
            bytes: self.content.len() as u64,
            tokens: u64::from(self.tokens),
        }
    }
}
