//! Windows of a session: counting turns, building windows, and recording a read as a use.

use std::sync::Arc;

use super::Session;
use crate::change::Change;
use crate::error::CoreError;
use crate::time::{Now, Steady};
use crate::window::{NextCut, ScaleId, Window, WindowInput, Windows};

impl Session {
    /// Returns the turns that a window may need and that are not counted on this scale yet.
    ///
    /// They must be counted before the window is built. `budget` is the number of tokens the policy
    /// reads ([`crate::window::Policy::looks_at`]).
    pub fn uncounted(&mut self, scale: ScaleId, budget: u64) -> Vec<(u64, Arc<[u8]>)> {
        let last_seq = self.head.last_seq;
        let windows = self.windows.get_or_insert_default();
        let turns = windows
            .uncounted(&self.history, last_seq, scale, budget)
            .into_iter();
        turns
            .map(|record| (record.seq, Arc::clone(&record.content)))
            .collect()
    }

    /// Builds the window for a model call.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn window(&mut self, input: &WindowInput<'_>) -> Result<Window, CoreError> {
        let windows = self.windows.get_or_insert_default();
        let compacting = self.compacting.as_ref();
        let summary = compacting.and_then(|compacting| compacting.summary.as_ref());
        windows.window(&self.history, self.head.last_seq, summary, input)
    }

    /// Previews the next cut as if it were made now. `None` for sliding windows.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn next_cut(&mut self, input: &WindowInput<'_>) -> Result<Option<NextCut>, CoreError> {
        let windows = self.windows.get_or_insert_default();
        let compacting = self.compacting.as_ref();
        let summary = compacting.and_then(|compacting| compacting.summary.as_ref());
        windows.next_cut(&self.history, self.head.last_seq, summary, input)
    }

    /// State of its windows, or `None` before the first window.
    pub fn windows_mut(&mut self) -> Option<&mut Windows> {
        self.windows.as_deref_mut()
    }

    /// Counted and charged tokens of the last window of this model for which a charge is known.
    pub fn last_charge(&self, model: &str) -> Option<(u64, u64)> {
        self.windows.as_deref()?.last_charge(model)
    }

    /// Records a use for a window. Returns the change to store, which is not needed every time.
    ///
    /// The stored last access is `grain_ms` milliseconds ahead, so that a restart never shortens
    /// the life of a session. Returns `None` if `may_write` is false.
    pub fn look(&mut self, now: Now, grain_ms: u64, may_write: bool) -> Option<Change> {
        self.head.last_access = now.steady;
        let windows = self.windows.get_or_insert_default();
        windows.grain_ms = grain_ms;
        let is_known = windows.saved_access >= now.steady && !windows.is_changed();
        (may_write && !is_known).then(|| self.touch(now))
    }

    /// Corrects the last access.
    ///
    /// The stored value may be ahead of the last use or, after failed commits, before it.
    pub fn used_at(&mut self, moment: Steady) {
        self.head.last_access = moment;
    }

    /// The last access to store for a use at `now`.
    pub(super) fn written_access(&mut self, now: Steady) -> Steady {
        self.windows
            .as_mut()
            .map_or(now, |windows| windows.written_access(now))
    }
}
