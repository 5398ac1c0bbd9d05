//! Window state of a session: token counts, and a cut for each model profile and policy.

use std::sync::Arc;

use crate::compaction::Summary;
use crate::error::CoreError;
use crate::history::{History, TurnRecord};
use crate::time::Steady;

use super::block::Block;
use super::counts::{Counts, ScaleId};
use super::cut::{Cut, CutKey};
use super::input::WindowInput;
use super::items::Composer;
use super::kept::CachedFront;
use super::plan::{
    NextCut, Planned, PreviousWindow, SentWindow, Summaries, Window, next_cut, plan,
};
use super::policy::Policy;

/// Maximum number of cuts. The least recently used one is evicted.
const CUTS_MAX: usize = 8;
/// Maximum number of scales with counts.
const SCALES_MAX: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// The most recently used one is last.
    cuts: Vec<Entry>,
    counts: Vec<Counts>,
    /// For each scale, the newest summary as a block, and those that windows still show.
    blocks: Vec<Arc<Block>>,
    /// Number, scale and tokens of a summary that was counted when it was made.
    weighed: Option<(u32, ScaleId, u64)>,
    /// Number of the newest summary, or 0 for none.
    newest: u32,
    /// Summaries up to this number are shown at once, because a call requested them.
    due: u32,
    /// Older summaries that restored cuts show.
    earlier: Vec<Arc<Summary>>,
    /// Whether the stored cuts are out of date.
    is_changed: bool,
    /// Whether the last windows are stored with the cuts: other processes continue from them, or
    /// the session is about to be loaded again.
    stores_last: bool,
    /// Stored last access.
    pub(crate) saved_access: Steady,
    /// Milliseconds by which the stored last access is ahead of the use.
    ///
    /// This saves writes, and a restart never shortens the life of a session.
    pub(crate) grain_ms: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SavedCut {
    pub key: CutKey,
    pub cut: Cut,
    /// The last window of this cut, if the next one may be built after the session was loaded.
    pub last: Option<SavedWindow>,
}

/// The last window of a cut, as far as the next window and the next summary depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedWindow {
    /// `None` if it was not sent.
    pub sent: Option<SentWindow>,
    /// Newest summary when it was built, whether or not there was room to show it.
    pub newest: u32,
    /// Summaries of the session up to this number are shown at once.
    pub due: u32,
    /// Of the session's last window, which is that of the last cut.
    pub tokens: Option<WindowTokens>,
    /// Start of its tail, if turns before that have no summary.
    pub tail_seq: Option<u64>,
}

/// Token budget of a window, counted on one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTokens {
    /// Scale on which turns are counted.
    pub scale: ScaleId,
    /// Tokens available to the window.
    pub budget: u64,
    /// Tokens of everything but the turns and the summary.
    pub fixed: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    key: CutKey,
    cut: Cut,
    sent: Option<SentWindow>,
    /// Newest summary when `sent` was built, whether or not there was room to show it.
    newest: u32,
    /// Front of that window, if the next one can continue from it.
    kept: Option<CachedFront>,
    /// Previous cut, if the last window made a cut.
    cut_before: Option<Cut>,
    /// The window sent before the last one.
    sent_before: Option<SentWindow>,
    /// Counted tokens of the last window, until its charge is known.
    uncharged: Option<u64>,
    /// Counted and charged tokens of the last window with a known charge.
    charged: Option<(u64, u64)>,
}

impl Windows {
    /// Restores the stored cuts, least recently used first.
    ///
    /// `newest` is the number of the newest summary, `earlier` are the older summaries that cuts
    /// show.
    pub fn restore(saved: Vec<SavedCut>, newest: u32, earlier: Vec<Arc<Summary>>) -> Self {
        let mut lasts = saved.iter().map(|saved| saved.last);
        let stores_last = lasts.clone().any(|last| last.is_some());
        let due = lasts.find_map(|last| Some(last?.due)).unwrap_or(0);
        let entry = |saved: SavedCut| Entry {
            key: saved.key,
            cut: saved.cut,
            sent: saved.last.and_then(|last| last.sent),
            newest: saved.last.map_or(0, |last| last.newest),
            kept: None,
            cut_before: None,
            sent_before: None,
            uncharged: None,
            charged: None,
        };
        Self {
            cuts: saved.into_iter().map(entry).collect(),
            newest,
            due,
            earlier,
            stores_last,
            ..Self::default()
        }
    }

    /// Invalidates the cached prefixes after an operator removed turns.
    pub(crate) fn forget_sent(&mut self) {
        for entry in &mut self.cuts {
            (entry.sent, entry.kept) = (None, None);
        }
    }

    /// Frees cached window fronts that contain turns dropped from the history.
    pub(crate) fn release(&mut self, history: &History, last_seq: u64) {
        let view = history.view(last_seq);
        for entry in &mut self.cuts {
            let cut = &entry.cut;
            entry.kept.take_if(|kept| !kept.basis.has_all(&view, cut));
        }
    }

    /// Removes the turns after `after_seq`. `last_seq` is the last assigned seq.
    ///
    /// Cuts that were made while these turns existed are discarded.
    pub(crate) fn rewind(&mut self, after_seq: u64, last_seq: u64) {
        let known = self.cuts.len();
        self.cuts.retain(|entry| {
            let cut = &entry.cut;
            cut.made_at <= after_seq && cut.through_seq <= after_seq && cut.seq <= after_seq + 1
        });
        self.is_changed |= self.cuts.len() < known;
        self.store_last();
        for entry in &mut self.cuts {
            entry.kept = None;
            if let Some(sent) = &mut entry.sent {
                sent.last_seq = sent.last_seq.min(after_seq);
            }
        }
        self.earlier
            .retain(|summary| summary.through_seq <= after_seq);
        for counts in &mut self.counts {
            counts.rewind(after_seq, last_seq);
        }
    }

    /// Discards all state that depends on the content of turns, after a turn was updated.
    pub(crate) fn forget_turns(&mut self) {
        self.is_changed |= !self.cuts.is_empty();
        self.cuts.clear();
        self.counts.clear();
        self.blocks.clear();
        self.earlier.clear();
        self.weighed = None;
    }

    /// Memory usage of the cached window fronts in bytes, without the turns themselves.
    pub(crate) fn kept_bytes(&self) -> usize {
        let kept = self.cuts.iter().filter_map(|entry| entry.kept.as_ref());
        kept.map(CachedFront::bytes).sum()
    }

    /// Returns the cuts if they differ from the stored ones, and marks them as stored.
    pub fn take_changes(&mut self) -> Option<Vec<SavedCut>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let saved = |entry: &Entry| SavedCut {
            key: entry.key.clone(),
            cut: entry.cut.clone(),
            last: self.stores_last.then_some(SavedWindow {
                sent: entry.sent,
                newest: entry.newest,
                due: self.due,
                tokens: None,
                tail_seq: None,
            }),
        };
        let lasting = self.cuts.iter().filter(|entry| self.lasts(entry));
        Some(lasting.map(saved).collect())
    }

    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Marks the stored windows as out of date, if the last ones are stored.
    pub(crate) fn note_other_last(&mut self) {
        self.is_changed |= self.stores_last;
    }

    /// Stores the last windows with the next change, after which the session may be loaded again.
    fn store_last(&mut self) {
        self.stores_last = true;
        self.is_changed |= !self.cuts.is_empty();
    }

    /// Returns the turns to count on this scale before a window is planned, ascending.
    ///
    /// These are the uncounted turns that a window with this budget may read.
    pub fn uncounted<'a>(
        &mut self,
        history: &'a History,
        last_seq: u64,
        scale: ScaleId,
        budget: u64,
    ) -> Vec<&'a TurnRecord> {
        let view = history.view(last_seq);
        let index = self.counts.iter().position(|counts| counts.scale == scale);
        match index {
            Some(index) => self.counts[index..].rotate_left(1),
            None => {
                self.forget_kept(scale);
                self.counts.push(Counts::new(scale, &view));
            }
        }
        if self.counts.len() > SCALES_MAX {
            let oldest = self.counts.remove(0);
            self.forget_kept(oldest.scale);
        }
        let Some(counts) = self.counts.last_mut() else {
            return Vec::new();
        };
        counts.forget(&view);
        counts.missing(&view, budget)
    }

    /// Discards fronts with counts of this scale.
    fn forget_kept(&mut self, scale: ScaleId) {
        for entry in &mut self.cuts {
            entry.kept.take_if(|kept| kept.basis.is_on(scale));
        }
    }

    /// Returns the last access to store for a use at `now`.
    pub(crate) fn written_access(&mut self, now: Steady) -> Steady {
        self.saved_access = Steady(now.0.saturating_add(self.grain_ms));
        self.saved_access
    }

    pub fn note_counts(&mut self, scale: ScaleId, counted: impl IntoIterator<Item = (u64, u64)>) {
        let mut counts = self.counts.iter_mut();
        if let Some(counts) = counts.find(|counts| counts.scale == scale) {
            for (seq, tokens) in counted {
                counts.put(seq, tokens);
            }
        }
    }

    /// Records a new summary.
    ///
    /// With `is_due`, the next window of each model shows it. Otherwise each waits for its next
    /// cut. Windows that were never cut wait too, so the store must know them.
    pub(crate) fn note_summary_made(&mut self, number: u32, is_due: bool) {
        self.newest = number;
        if is_due {
            self.due = number;
        }
        self.is_changed |= !self.cuts.is_empty();
    }

    /// Records that the newest summary was undone. `newest` is the previous one, 0 for none.
    pub(crate) fn note_summary_undone(&mut self, newest: u32) {
        self.newest = newest;
        self.store_last();
    }

    /// Size in bytes of the older summaries that a cut still shows.
    pub(crate) fn earlier_bytes(&self) -> usize {
        self.earlier.iter().map(|summary| summary.text.len()).sum()
    }

    /// Records the token count of a summary, so that windows need not count it.
    pub(crate) fn note_summary(&mut self, number: u32, scale: ScaleId, tokens: u64) {
        self.weighed = Some((number, scale, tokens));
    }

    pub(crate) fn tokens(&self, scale: ScaleId, seq: u64) -> Option<u32> {
        self.counts_on(scale)?.get(seq)
    }

    fn counts_on(&self, scale: ScaleId) -> Option<&Counts> {
        self.counts.iter().find(|counts| counts.scale == scale)
    }

    /// Builds a window.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn window(
        &mut self,
        history: &History,
        last_seq: u64,
        summary: Option<&Arc<Summary>>,
        input: &WindowInput<'_>,
    ) -> Result<Window, CoreError> {
        let kept = self.take_kept(input);
        let planned = self.look(
            history,
            last_seq,
            summary,
            input,
            |composer, summaries, last| {
                let planned = plan(composer, summaries, last, kept, input);
                if summaries.newest.is_none() {
                    return planned;
                }
                // The current turn and its request take precedence over a summary that leaves no
                // room.
                let is_request_out =
                    |planned: &Planned| planned.is_request_out(composer.view, input.policy);
                let is_in_the_way = match &planned {
                    Ok(planned) => is_request_out(planned),
                    Err(refused) => matches!(refused, CoreError::CurrentTurnTooLarge { .. }),
                };
                if !is_in_the_way {
                    return planned;
                }
                let without = Summaries {
                    newest: None,
                    ..summaries
                };
                let replanned = plan(composer, without, last, None, input);
                // If the request does not fit without the summary either, keep the summary.
                let mut other = match (planned, replanned) {
                    (Ok(planned), Err(_)) => return Ok(planned),
                    (Ok(planned), Ok(other)) if is_request_out(&other) => return Ok(planned),
                    (_, other) => other?,
                };
                other.window.report.degraded = true;
                let note = "there is no room for the summary of the oldest turns";
                other.window.report.notes.push(note.to_owned());
                Ok(other)
            },
        );
        let Planned { window, cut, kept } = planned?;
        if input.keep {
            self.remember(cut, kept, last_seq, &window, input);
        }
        Ok(window)
    }

    /// The front of the previous window.
    ///
    /// It is moved out if it will be replaced, so that it grows in place.
    fn take_kept(&mut self, input: &WindowInput<'_>) -> Option<CachedFront> {
        let index = self.index(input)?;
        let kept = &mut self.cuts[index].kept;
        if input.keep {
            kept.take()
        } else {
            kept.clone()
        }
    }

    /// Previews the next cut as if it were made now. `None` for sliding windows.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn next_cut(
        &mut self,
        history: &History,
        last_seq: u64,
        summary: Option<&Arc<Summary>>,
        input: &WindowInput<'_>,
    ) -> Result<Option<NextCut>, CoreError> {
        self.look(
            history,
            last_seq,
            summary,
            input,
            |composer, summaries, last| next_cut(composer, summaries, last, input),
        )
    }

    /// Calls `plan` with the window state of the session.
    fn look<T>(
        &mut self,
        history: &History,
        last_seq: u64,
        summary: Option<&Arc<Summary>>,
        input: &WindowInput<'_>,
        plan: impl FnOnce(&Composer<'_>, Summaries<'_>, PreviousWindow<'_>) -> T,
    ) -> T {
        let view = history.view(last_seq);
        // Sliding windows show only the last turns.
        let summary = summary.filter(|_| !matches!(input.policy, Policy::SlidingWindow { .. }));
        let block = summary.map(|summary| self.block(summary, input));
        let index = self.index(input);
        let shown_number = index.map_or(0, |index| self.cuts[index].cut.summary);
        let mut earlier = self.earlier.iter();
        if let Some(earlier) = earlier
            .find(|earlier| earlier.number == shown_number)
            .cloned()
        {
            self.block(&earlier, input);
        }
        let entry = index.map(|index| &self.cuts[index]);
        let mut known = self.blocks.iter();
        let shown =
            known.find(|block| block.is_on(input.scale) && block.summary.number == shown_number);
        let unknown = Counts::new(input.scale, &view);
        let composer = Composer {
            view: &view,
            counts: self.counts_on(input.scale).unwrap_or(&unknown),
            overheads: input.overheads,
            open: input.codec.open,
            with_anchor: !matches!(input.policy, Policy::SlidingWindow { .. }),
            pause_s: input.settings.time_marks.map_or(0, |pause| {
                i64::try_from(pause.as_secs()).unwrap_or(i64::MAX)
            }),
            block: None,
        };
        let is_due = summary.is_some_and(|summary| summary.number <= self.due);
        let summaries = Summaries {
            newest: block.as_deref(),
            shown: shown.map(|block| &**block),
            is_due,
            is_newly_due: is_due && entry.is_some_and(|entry| entry.newest < self.newest),
        };
        let whole = Cut::default();
        let last = PreviousWindow {
            cut: entry.map_or(&whole, |entry| &entry.cut),
            sent: entry.and_then(|entry| entry.sent),
            is_known: entry.is_some(),
        };
        plan(&composer, summaries, last)
    }

    fn index(&self, input: &WindowInput<'_>) -> Option<usize> {
        let mut keys = self.cuts.iter().map(|entry| &entry.key);
        keys.position(|key| key.is(input.model, input.policy))
    }

    /// The encoded and counted block of a summary, cached.
    fn block(&mut self, summary: &Arc<Summary>, input: &WindowInput<'_>) -> Arc<Block> {
        let mut known = self.blocks.iter();
        if let Some(block) = known.find(|block| block.is(summary, input.scale)) {
            return Arc::clone(block);
        }
        let known = self
            .weighed
            .filter(|(number, scale, _)| (*number, *scale) == (summary.number, input.scale));
        let made = Arc::new(Block::new(
            summary,
            known.map(|(_, _, tokens)| tokens),
            input,
        ));
        let is_shown = |block: &Arc<Block>| {
            let number = block.summary.number;
            self.cuts.iter().any(|entry| entry.cut.summary == number)
        };
        self.blocks
            .retain(|block| !block.is_on(input.scale) || is_shown(block));
        if self.blocks.len() >= SCALES_MAX + CUTS_MAX {
            self.blocks.remove(0);
        }
        self.blocks.push(Arc::clone(&made));
        made
    }

    fn remember(
        &mut self,
        cut: Cut,
        kept: Option<CachedFront>,
        last_seq: u64,
        window: &Window,
        input: &WindowInput<'_>,
    ) {
        let index = self.index(input);
        if self.cuts.len() >= CUTS_MAX && index.is_none() {
            // A restart must not bring the evicted cut back.
            let forgotten = self.cuts.remove(0);
            self.is_changed |= self.lasts(&forgotten);
        }
        self.stores_last = input.is_shared;
        self.is_changed |= window.has_new_cut || input.is_shared;
        let sent = Some(SentWindow {
            last_seq,
            fixed_digest: input.fixed_digest,
        });
        if let Some(index) = index {
            let entry = &mut self.cuts[index];
            let cut_before = std::mem::replace(&mut entry.cut, cut);
            entry.cut_before = Some(cut_before).filter(|_| window.has_new_cut);
            entry.sent_before = std::mem::replace(&mut entry.sent, sent);
            entry.newest = self.newest;
            entry.kept = kept;
            entry.uncharged = None;
            self.cuts[index..].rotate_left(1);
        } else {
            let key = CutKey {
                model: input.model.into(),
                policy: input.policy,
            };
            self.cuts.push(Entry {
                key,
                cut,
                sent,
                newest: self.newest,
                kept,
                cut_before: None,
                sent_before: None,
                uncharged: None,
                charged: self.last_charge(input.model),
            });
        }
        let cuts = &self.cuts;
        let is_shown = |number| cuts.iter().any(|entry| entry.cut.summary == number);
        self.earlier.retain(|earlier| is_shown(earlier.number));
    }

    /// Discards the last window of this model and policy because it is not sent.
    ///
    /// If that window made a cut, the previous cut applies again.
    pub fn take_back(&mut self, model: &str, policy: Policy) {
        let mut entries = self.cuts.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.key.is(model, policy)) {
            entry.kept = None;
            entry.sent = entry.sent_before.take();
            if let Some(cut) = entry.cut_before.take() {
                entry.cut = cut;
            }
        }
    }

    fn lasts(&self, entry: &Entry) -> bool {
        if self.stores_last {
            return true;
        }
        let is_behind = entry.cut.summary < self.newest;
        // An entry that is not stored shows the newest summary at once after a restart.
        let is_due = is_behind && self.newest <= self.due && entry.newest < self.newest;
        let says_something = !entry.cut.is_whole() || is_behind;
        says_something && !is_due && !matches!(entry.key.policy, Policy::SlidingWindow { .. })
    }

    #[cfg(test)]
    pub(super) fn forget_all_kept(&mut self) {
        self.cuts.iter_mut().for_each(|entry| entry.kept = None);
    }

    /// Number of turns in the front of the last window.
    #[cfg(test)]
    pub(super) fn kept_turns(&self) -> usize {
        let kept = self.cuts.last().and_then(|entry| entry.kept.as_ref());
        kept.map_or(0, |kept| kept.sums.turns)
    }

    #[cfg(test)]
    pub(super) fn knows(&self, model: &str, policy: Policy) -> bool {
        self.cuts.iter().any(|entry| entry.key.is(model, policy))
    }

    /// Records the tokens of a sent window with its memories, to compare them with the charge.
    pub fn note_sent(&mut self, model: &str, policy: Policy, counted: u64) {
        let mut entries = self.cuts.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.key.is(model, policy)) {
            entry.uncharged = Some(counted);
        }
    }

    /// Counted and charged tokens of the last window of this model with a known charge.
    pub fn last_charge(&self, model: &str) -> Option<(u64, u64)> {
        let mut entries = self.cuts.iter().rev();
        entries.find_map(|entry| entry.charged.filter(|_| *entry.key.model == *model))
    }

    /// Records the charge for a window of a model.
    pub fn note_charge(&mut self, model: &str, counted: u64, charged: u64) {
        let mut entries = self.cuts.iter_mut().rev();
        if let Some(entry) = entries.find(|entry| *entry.key.model == *model) {
            entry.charged = Some((counted, charged));
        }
    }

    /// Takes the counted tokens of the last window of a matching model, to compare with the charge.
    pub fn charged(&mut self, is_meant: impl Fn(&str) -> bool) -> Option<(Box<str>, u64)> {
        let mut entries = self.cuts.iter_mut().rev();
        let entry = entries.find(|entry| is_meant(&entry.key.model))?;
        Some((entry.key.model.clone(), entry.uncharged.take()?))
    }
}

impl CutKey {
    fn is(&self, model: &str, policy: Policy) -> bool {
        *self.model == *model && self.policy == policy
    }
}
