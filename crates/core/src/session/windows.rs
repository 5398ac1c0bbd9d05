//! A session as windows use it: turns to be counted, windows, and what a look leaves behind.

use std::sync::Arc;

use super::Session;
use crate::change::Change;
use crate::error::CoreError;
use crate::time::{Now, Steady};
use crate::window::{Ask, NextCut, ScaleId, Window, Windows};

impl Session {
    /// The turns, with their content, that a window may need and that have no count on this scale
    /// yet: of a policy that looks at so many tokens ([`crate::window::Policy::looks_at`]). They
    /// must be counted before the window is built.
    pub fn uncounted(&mut self, scale: ScaleId, budget: u64) -> Vec<(u64, Arc<[u8]>)> {
        let last_seq = self.head.last_seq;
        let windows = self.windows.get_or_insert_default();
        let turns = windows.uncounted(&self.history, last_seq, scale, budget);
        let turns = turns.into_iter();
        turns
            .map(|record| (record.seq, Arc::clone(&record.content)))
            .collect()
    }

    /// Builds the window for a model call.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn window(&mut self, ask: &Ask<'_>) -> Result<Window, CoreError> {
        let windows = self.windows.get_or_insert_default();
        let compacting = self.compacting.as_ref();
        let summary = compacting.and_then(|compacting| compacting.summary.as_ref());
        windows.window(&self.history, self.head.last_seq, summary, ask)
    }

    /// What the next cut of its windows would do if it were made now; `None` where they slide.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn next_cut(&mut self, ask: &Ask<'_>) -> Result<Option<NextCut>, CoreError> {
        let windows = self.windows.get_or_insert_default();
        let compacting = self.compacting.as_ref();
        let summary = compacting.and_then(|compacting| compacting.summary.as_ref());
        windows.next_cut(&self.history, self.head.last_seq, summary, ask)
    }

    /// What it remembers of its windows; `None` before the first.
    pub fn windows_mut(&mut self) -> Option<&mut Windows> {
        self.windows.as_deref_mut()
    }

    /// The last window of a model that a charge is known of: its tokens as counted, and as
    /// charged.
    pub fn last_charge(&self, model: &str) -> Option<(u64, u64)> {
        self.windows.as_deref()?.last_charge(model)
    }

    /// Notes that it was used for a window. Gives what a store must write, which is not
    /// every time: the moment that is written lies `grain_ms` (milliseconds) ahead, so that a
    /// restart never makes a session older than it is. Nothing while it `may_write` nothing.
    pub fn look(&mut self, now: Now, grain_ms: u64, may_write: bool) -> Option<Change> {
        self.head.last_access = now.steady;
        let windows = self.windows.get_or_insert_default();
        windows.grain_ms = grain_ms;
        let is_known = windows.saved_access >= now.steady && !windows.is_changed();
        (may_write && !is_known).then(|| self.touch(now))
    }

    /// Corrects the last access: a store may have one that lies ahead of the last use, or, where
    /// commits failed, before it.
    pub fn used_at(&mut self, moment: Steady) {
        self.head.last_access = moment;
    }

    /// The last access that a store gets for a use at this moment.
    pub(super) fn written_access(&mut self, now: Steady) -> Steady {
        self.windows
            .as_mut()
            .map_or(now, |windows| windows.written_access(now))
    }
}
