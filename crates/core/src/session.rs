//! A session: how commands change it, and which changes a store must write.

mod compaction;
mod rewind;
mod summary;
mod update;
mod windows;

use std::borrow::Cow;
use std::sync::Arc;

use crate::change::{Appended, Change, ChangeKind, EndReason, PatchedState};
use crate::compaction::{CompactionStatus, Summary};
use crate::error::CoreError;
use crate::history::{Arrival, History, TurnRecord};
use crate::history::{KnownTurns, LiveSet, Totals};
use crate::idempotency::{Fingerprint, IdempotencyKey, KeyRecord, Keys};
use crate::ids::{Generation, HookName, SessionKey, Subject};
use crate::limits::Limits;
use crate::nonce::Nonce;
use crate::options::{OptionsPatch, SessionOptions};
use crate::seq_ranges::SeqRanges;
use crate::state::{State, StatePatch};
use crate::time::{Now, Steady, Timestamp};
use crate::turn::NewTurn;
use crate::window::{SavedCut, Windows};

use compaction::Compacting;
pub use compaction::{CompactionBlocked, Snapshot};
pub use rewind::{RewindCommand, RewindDecision};
pub use update::{TurnUpdate, UpdateDecision};

/// Finishes the encoding of a turn once its seq and time are assigned.
pub type Seal<'a> = &'a dyn Fn(&NewTurn, u64, Timestamp) -> Arc<[u8]>;

/// One generation of a session in memory.
#[derive(Clone, Debug)]
pub struct Session {
    head: Head,
    history: History,
    state: Option<Box<State>>,
    keys: Option<Box<Keys>>,
    windows: Option<Box<Windows>>,
    compacting: Option<Box<Compacting>>,
    nonce: Nonce,
}

/// The metadata of a session, without its turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub generation: Generation,
    /// Subject that its memories belong to.
    pub subject: Option<Subject>,
    pub created_at: Timestamp,
    pub last_access: Steady,
    /// Last assigned seq, 0 before the first.
    pub last_seq: u64,
    /// Newest turn that was not rewound, 0 if there is none.
    pub newest_seq: u64,
    /// Number of changes.
    pub revision: u64,
    pub state_version: u64,
    pub totals: Totals,
    /// Whether a reply is still streaming.
    pub partial: bool,
    /// Compaction status. `None` before the first compaction.
    pub compaction: Option<Arc<CompactionStatus>>,
    /// Options set by the bot. `None` if it set none.
    pub options: Option<Arc<SessionOptions>>,
}

/// A turn with the ids of the calls it answers.
pub type SavedTurn = (TurnRecord, Vec<Box<str>>);

#[derive(Clone, Debug)]
pub struct SavedSession {
    pub head: Head,
    pub kept: LiveSet,
    /// Those turns, ascending.
    pub turns: Vec<SavedTurn>,
    /// Seqs of rewound turns: all from the floor of the live set on, and the newest before it.
    pub rewound: SeqRanges,
    pub state: Option<State>,
    pub keys: Keys,
    pub cuts: Vec<SavedCut>,
    /// Summary of its oldest exchanges.
    pub summary: Option<Arc<Summary>>,
    /// Earlier summaries that one of the cuts shows.
    pub earlier: Vec<Arc<Summary>>,
}

/// The `Append` command: turns to add to a session.
#[derive(Clone, Debug, Default)]
pub struct AppendCommand {
    pub turns: Vec<NewTurn>,
    /// Subject of the session's memories. `None` leaves it unchanged.
    pub subject: Option<Subject>,
    /// Generation that the turns are a copy of.
    pub copied_from: Option<Generation>,
    pub idempotency: Option<IdempotencyKey>,
    /// Reject the command unless this is the newest turn.
    pub expected_seq: Option<u64>,
    /// Reject the command unless this is the live generation.
    pub expected_generation: Option<Generation>,
    pub partial: bool,
    pub usage: Option<ModelUsage>,
    /// Applied atomically with the turns.
    pub state: Option<StatePatch>,
    /// Applied atomically with the turns.
    pub options: OptionsPatch,
}

/// Token usage of a model call as charged by the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// The provider's name of the model or a profile's name, possibly empty.
    pub model: String,
    /// Request tokens as reported by the provider.
    pub input_tokens: u64,
    /// Reply tokens.
    pub output_tokens: u64,
    /// Request tokens read from the provider's cache, not included in `input_tokens`.
    pub cache_read_tokens: u64,
    /// Request tokens written to the provider's cache, not included in `input_tokens`.
    pub cache_creation_tokens: u64,
}

impl ModelUsage {
    /// All request tokens, whether cached or not.
    pub fn request_tokens(&self) -> u64 {
        self.input_tokens
            .saturating_add(self.cache_read_tokens)
            .saturating_add(self.cache_creation_tokens)
    }
}

#[derive(Clone, Debug)]
pub struct AppendDecision {
    /// Response to this command and to its repetitions.
    pub record: KeyRecord,
    /// Changes to write atomically. Empty for a repetition.
    pub changes: Vec<Change>,
}

impl Session {
    /// Starts a generation. The returned change must be the first of its change set.
    pub fn begin(key: &SessionKey, generation: Generation, now: Now) -> (Self, Change) {
        let head = Head::begin(generation, now.wall, now.steady);
        let begin = ChangeKind::Begin {
            key: key.clone(),
            created_at: now.wall,
            last_access: now.steady,
        };
        let change = Change {
            generation,
            expected_revision: 0,
            kind: begin,
        };
        let session = Self {
            head,
            history: History::default(),
            state: None,
            keys: None,
            windows: None,
            compacting: None,
            nonce: Nonce::default(),
        };
        (session, change)
    }

    pub fn restore(saved: SavedSession) -> Self {
        let turns = saved.turns.iter();
        let arrivals: Vec<Arrival<'_>> = turns
            .map(|(record, results)| (record.clone(), &results[..]))
            .collect();
        let history = History::restore(&saved.kept, saved.rewound, arrivals);
        let has_cuts = !saved.cuts.is_empty();
        let compacting = Compacting::restore(saved.summary.clone(), &saved.cuts);
        let newest = saved.summary.as_ref().map_or(0, |summary| summary.number);
        let windows = || Windows::restore(saved.cuts, newest, saved.earlier);
        Self {
            head: Head {
                totals: history.totals(),
                ..saved.head
            },
            history,
            state: saved.state.map(Box::new),
            keys: Some(Box::new(saved.keys)),
            windows: has_cuts.then(windows).map(Box::new),
            compacting: compacting.map(Box::new),
            nonce: Nonce::default(),
        }
    }

    /// Reduces an outdated session to its turns up to `through_seq`.
    pub fn into_known_turns(self, through_seq: u64) -> KnownTurns {
        KnownTurns {
            generation: self.head.generation,
            records: self.history.into_records(through_seq),
        }
    }

    /// Sets the nonce of the generation.
    ///
    /// Must be called before turns are added or windows are built.
    pub fn set_nonce(&mut self, nonce: Nonce) {
        self.nonce = nonce;
        self.history.note_mark(nonce);
    }

    /// Nonce of memoird's own text in its windows.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Approximate memory usage in bytes, without the head.
    ///
    /// It is freed when the session is evicted from memory and only the store has it.
    pub fn content_bytes(&self) -> u64 {
        /// Overhead of a history entry in addition to the turn's bytes.
        const TURN_BYTES: u64 = size_of::<TurnRecord>() as u64 + 64;
        /// Size of an idempotency key with its record.
        const KEY_BYTES: u64 = 128;
        let totals = self.history.totals();
        let keys = self.keys.as_ref().map_or(0, |keys| keys.len());
        let state = self.state.as_ref().map_or(0, |state| state.json.len());
        let summary = self.compacting.as_ref().map_or(0, |it| it.text_bytes());
        let windows = self
            .windows
            .as_ref()
            .map_or(0, |it| it.kept_bytes() + it.earlier_bytes());
        let beside = keys as u64 * KEY_BYTES + (state + summary + windows) as u64;
        totals.bytes + totals.turns * TURN_BYTES + beside
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// The session's state. `{}` at version 0 before the first patch.
    pub fn state(&self) -> State {
        self.state.as_deref().cloned().unwrap_or_default()
    }

    /// Whether it is known if this idempotency key was used.
    pub fn covers_key(&self, key: &Fingerprint) -> bool {
        self.keys.as_ref().is_some_and(|keys| keys.covers(key))
    }

    /// Idempotency keys, or `None` if they are not loaded yet.
    pub fn keys(&self) -> Option<&Keys> {
        self.keys.as_deref()
    }

    /// Sets the loaded idempotency keys of the session id. Those used since are retained.
    pub fn set_keys(&mut self, mut keys: Keys) {
        if let Some(known) = self.keys.take() {
            keys.merge(*known);
        }
        self.keys = Some(Box::new(keys));
    }

    /// Takes the idempotency keys, to pass them to the next generation.
    pub fn take_keys(&mut self) -> Option<Keys> {
        self.keys.take().map(|keys| *keys)
    }

    /// The tenant's limits as they apply to this session.
    pub fn limits<'a>(&self, limits: &'a Limits) -> Cow<'a, Limits> {
        limits.of_session(self.head.options.as_deref())
    }

    /// Appends turns atomically.
    ///
    /// # Errors
    /// If an expectation is stale, a key was reused, a result has no call, or there are too many
    /// pins.
    pub fn append(
        &mut self,
        key: &SessionKey,
        command: &AppendCommand,
        limits: &Limits,
        now: Now,
        seal: Seal<'_>,
    ) -> Result<AppendDecision, CoreError> {
        if let Some(record) = self.known_record(command.idempotency, limits, now)? {
            self.head.last_access = now.steady;
            let changes = Vec::new();
            return Ok(AppendDecision { record, changes });
        }
        check_expectations(command, Some(&self.head))?;
        self.add_turns(key, command, limits, now, seal)
    }

    /// Whether the command was done before or must be rejected because of its idempotency key.
    pub fn knows(&self, named: Option<IdempotencyKey>, limits: &Limits, now: Now) -> bool {
        !matches!(self.known_record(named, limits, now), Ok(None))
    }

    /// Returns the record of an earlier command with this idempotency key.
    ///
    /// # Errors
    /// [`CoreError::IdempotencyKeyReused`], [`CoreError::IdempotencyKeyRewound`].
    pub fn known_record(
        &self,
        named: Option<IdempotencyKey>,
        limits: &Limits,
        now: Now,
    ) -> Result<Option<KeyRecord>, CoreError> {
        match (named, &self.keys) {
            (Some(named), Some(keys)) => keys.find(named, limits, now.steady),
            _ => Ok(None),
        }
    }

    /// Appends turns after the checks for repetition and expectations.
    fn add_turns(
        &mut self,
        key: &SessionKey,
        command: &AppendCommand,
        limits: &Limits,
        now: Now,
        seal: Seal<'_>,
    ) -> Result<AppendDecision, CoreError> {
        let state = command
            .state
            .as_ref()
            .map(|patch| self.state().patched(patch, limits))
            .transpose()?;
        let options = self.patched_options(&command.options, limits)?;
        let decided = options.as_ref().or(self.head.options.as_ref());
        let own = limits.of_session(decided.map(|decided| &**decided));
        let (tenants, limits) = (limits, &*own);

        let first_seq = self.head.last_seq + 1;
        let mut turns = Vec::with_capacity(command.turns.len());
        let mut arrivals: Vec<Arrival<'_>> = Vec::with_capacity(command.turns.len());
        for (seq, turn) in (first_seq..).zip(&command.turns) {
            let said_at = turn.timestamp.unwrap_or(now.wall);
            let content = seal(turn, seq, said_at);
            turns.push((seq, Arc::clone(&content)));
            let mut record = TurnRecord::new(turn, seq, content);
            record.said_at = said_at.seconds();
            record.note_mark(self.nonce);
            arrivals.push((record, &turn.links.results[..]));
        }
        let added = arrivals.iter().map(|(record, _)| record.content.len());
        self.check_room(limits, tenants, 0, added.sum())?;
        let dropped_turns = self.history.append(arrivals, limits)?;

        self.head.last_access = now.steady;
        self.head.last_seq += turns.len() as u64;
        self.head.newest_seq = self.head.last_seq;
        if let Some(windows) = self.windows.as_mut().filter(|_| dropped_turns > 0) {
            windows.release(&self.history, self.head.last_seq);
        }
        self.head.totals = self.history.totals();
        self.head.partial = command.partial;
        let subject = command
            .subject
            .clone()
            .filter(|new| self.head.subject.as_ref() != Some(new));
        let former_subject = subject.as_ref().and(self.head.subject.clone());
        self.head.subject = subject.clone().or(self.head.subject.take());
        let record = KeyRecord {
            content: command.idempotency.map_or([0; 16], |named| named.content),
            generation: self.head.generation,
            first_seq,
            last_seq: self.head.last_seq,
            dropped_turns,
            at: now.steady,
            rewound: false,
        };
        let idempotency = command.idempotency.map(|named| (named.key, record));
        if let Some((key, record)) = idempotency {
            let keys = self.keys.get_or_insert_default();
            keys.remember(key, record, limits);
        }
        let appended = ChangeKind::Append(Box::new(Appended {
            key: key.clone(),
            turns,
            client_ids: told_client_ids(&command.turns),
            dropped_turns,
            kept: self.history.live_set(self.head.last_seq),
            totals: self.head.totals,
            subject,
            former_subject,
            copied_from: command.copied_from,
            partial: command.partial,
            last_access: self.written_access(now.steady),
            idempotency,
            cuts: self.take_changed_cuts(),
        }));
        let mut changes = vec![self.head.change(appended)];
        changes.extend(state.map(|state| self.set_state(key, &state, None, now)));
        changes.extend(options.map(|options| self.set_options(options)));
        Ok(AppendDecision { record, changes })
    }

    /// Checks that a history with `keep_all` has room if `bytes` replace `bytes_before`.
    ///
    /// Such a session is recognized by `own` limits above those of its tenant.
    fn check_room(
        &self,
        own: &Limits,
        tenants: &Limits,
        bytes_before: usize,
        bytes: usize,
    ) -> Result<(), CoreError> {
        let is_bounded = own.max_history_bytes > tenants.max_history_bytes;
        let more = bytes.saturating_sub(bytes_before) as u64;
        let (actual, limit) = (
            self.history.totals().bytes + more,
            tenants.max_history_bytes as u64,
        );
        if is_bounded && more > 0 && actual > limit {
            Err(CoreError::HistoryFull { actual, limit })
        } else {
            Ok(())
        }
    }

    /// Returns the patched options, or `None` if the patch changes nothing.
    ///
    /// # Errors
    /// See [`SessionOptions::patched`].
    pub fn patched_options(
        &self,
        patch: &OptionsPatch,
        limits: &Limits,
    ) -> Result<Option<Arc<SessionOptions>>, CoreError> {
        if patch.is_empty() {
            return Ok(None);
        }
        let patched = match &self.head.options {
            Some(options) => options.patched(patch, limits)?,
            None => SessionOptions::default().patched(patch, limits)?,
        };
        Ok(patched.map(Arc::new))
    }

    pub fn set_options(&mut self, options: Arc<SessionOptions>) -> Change {
        self.head.options = Some(Arc::clone(&options));
        self.head.change(ChangeKind::SetOptions(options))
    }

    /// Patches the state. Without a patch, the change only records the idempotency key.
    ///
    /// # Errors
    /// See [`State::patched`].
    pub fn patch_state(
        &mut self,
        key: &SessionKey,
        patch: Option<&StatePatch>,
        idempotency: Option<IdempotencyKey>,
        limits: &Limits,
        now: Now,
    ) -> Result<(State, Change), CoreError> {
        let state = match patch {
            Some(patch) => self.state().patched(patch, limits)?,
            None => self.state(),
        };
        let named = self.use_key(idempotency, self.head.last_seq, limits, now);
        let change = self.set_state(key, &state, named, now);
        Ok((state, change))
    }

    /// Records the idempotency key of a command that appends no turns. Its change must contain it.
    ///
    /// The record has `last_seq`, and no turns.
    pub fn use_key(
        &mut self,
        idempotency: Option<IdempotencyKey>,
        last_seq: u64,
        limits: &Limits,
        now: Now,
    ) -> Option<(Fingerprint, KeyRecord)> {
        let named = idempotency?;
        let record = self.record_of(named, last_seq, now);
        let keys = self.keys.get_or_insert_default();
        keys.remember(named.key, record, limits);
        Some((named.key, record))
    }

    /// Creates the record of a command that appends no turns.
    fn record_of(&self, named: IdempotencyKey, last_seq: u64, now: Now) -> KeyRecord {
        KeyRecord {
            content: named.content,
            generation: self.head.generation,
            first_seq: last_seq + 1,
            last_seq,
            dropped_turns: 0,
            at: now.steady,
            rewound: false,
        }
    }

    fn set_state(
        &mut self,
        key: &SessionKey,
        state: &State,
        idempotency: Option<(Fingerprint, KeyRecord)>,
        now: Now,
    ) -> Change {
        self.head.last_access = now.steady;
        self.head.state_version = state.version;
        self.state = Some(Box::new(state.clone()));
        let patched = ChangeKind::PatchState(Box::new(PatchedState {
            key: key.clone(),
            state_json: Arc::clone(&state.json),
            version: state.version,
            last_access: self.written_access(now.steady),
            idempotency,
        }));
        self.head.change(patched)
    }

    /// Records a use of the session and returns the change to store.
    pub fn touch(&mut self, now: Now) -> Change {
        self.head.last_access = now.steady;
        let touch = ChangeKind::Touch {
            last_access: self.written_access(now.steady),
            cuts: self.take_changed_cuts(),
        };
        self.head.change(touch)
    }

    /// The cuts to write, if they differ from the stored ones.
    fn take_changed_cuts(&mut self) -> Option<Arc<[SavedCut]>> {
        let mut cuts = self.windows.as_mut()?.take_changes()?;
        if let Some(compacting) = &self.compacting {
            compacting.save(&mut cuts);
        }
        Some(cuts.into())
    }

    /// Drops the turns that exceed lowered limits. Returns their number.
    pub fn trim(&mut self, limits: &Limits) -> u64 {
        let dropped = self.history.trim(&self.limits(limits));
        if let Some(windows) = self.windows.as_mut().filter(|_| dropped > 0) {
            windows.forget_sent();
        }
        self.head.totals = self.history.totals();
        dropped
    }
}

impl Head {
    pub fn begin(generation: Generation, created_at: Timestamp, last_access: Steady) -> Self {
        Self {
            generation,
            subject: None,
            created_at,
            last_access,
            last_seq: 0,
            newest_seq: 0,
            revision: 0,
            state_version: 0,
            totals: Totals::default(),
            partial: false,
            compaction: None,
            options: None,
        }
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        let labels = &self.options.as_ref()?.labels;
        labels.get(name).map(|value| &**value)
    }

    /// Whether the session was not used for `ttl_ms` milliseconds.
    pub fn is_expired(&self, now: Steady, ttl_ms: u64) -> bool {
        now.since(self.last_access) >= ttl_ms
    }

    /// Creates the change that ends this generation and enqueues deliveries to the hooks in `owed`.
    pub fn end(
        &self,
        reason: EndReason,
        at: Now,
        owed: Arc<[HookName]>,
        idempotency: Option<(Fingerprint, KeyRecord)>,
    ) -> Change {
        Change {
            generation: self.generation,
            expected_revision: self.revision,
            kind: ChangeKind::End {
                reason,
                at,
                owed,
                idempotency: idempotency.map(Box::new),
            },
        }
    }

    /// Checks that this is the generation a command expects, if it expects one.
    ///
    /// # Errors
    /// [`CoreError::StaleGeneration`].
    pub fn check_generation(&self, expected: Option<Generation>) -> Result<(), CoreError> {
        let actual = Some(self.generation);
        match expected {
            Some(expected) if actual != Some(expected) => {
                Err(CoreError::StaleGeneration { expected, actual })
            }
            _ => Ok(()),
        }
    }

    /// Creates a change based on the current revision and increments the revision.
    fn change(&mut self, kind: ChangeKind) -> Change {
        self.revision += 1;
        Change {
            generation: self.generation,
            expected_revision: self.revision - 1,
            kind,
        }
    }
}

/// Checks the expectations of a command against the live generation, if there is one.
///
/// # Errors
/// [`CoreError::StaleGeneration`] or [`CoreError::StaleSeq`].
pub fn check_expectations(command: &AppendCommand, live: Option<&Head>) -> Result<(), CoreError> {
    let actual = live.map(|head| head.generation);
    if let Some(expected) = command.expected_generation
        && actual != Some(expected)
    {
        return Err(CoreError::StaleGeneration { expected, actual });
    }
    let actual = live.map_or(0, |head| head.newest_seq);
    match command.expected_seq {
        Some(expected) if expected != actual => Err(CoreError::StaleSeq { expected, actual }),
        _ => Ok(()),
    }
}

/// Maximum total bytes of client ids in the event of one append.
const CLIENT_IDS_BYTES_MAX: usize = 1 << 10;

/// The client ids of the first turns that fit in an event.
fn told_client_ids(turns: &[NewTurn]) -> Vec<Box<str>> {
    let named = turns.iter().map(|turn| &turn.client_id);
    let mut room = CLIENT_IDS_BYTES_MAX;
    let told = named.filter(|id| !id.is_empty()).take_while(|id| {
        let fits = id.len() <= room;
        room = room.saturating_sub(id.len());
        fits
    });
    told.cloned().collect()
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
