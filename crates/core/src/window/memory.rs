//! What a session remembers of its windows: counts, and a cut for each model profile and
//! policy.

use std::sync::Arc;

use crate::compaction::Summary;
use crate::error::CoreError;
use crate::history::{History, TurnRecord};
use crate::time::Steady;

use super::block::Block;
use super::counts::{Counts, ScaleId};
use super::cut::{Cut, CutKey};
use super::items::Composer;
use super::kept::Kept;
use super::plan::{Last, NextCut, Planned, Sent, Summaries, Window, next_cut, plan};
use super::{Ask, Policy};

/// Cuts that a session remembers; the one used longest ago is forgotten for another.
const CUTS_MAX: usize = 8;
/// Scales whose counts it remembers.
const SCALES_MAX: usize = 4;

/// What a session remembers of its windows.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// The one used last is last.
    cuts: Vec<Entry>,
    counts: Vec<Counts>,
    /// The newest summary as windows show it, and those that windows still show, for each scale.
    blocks: Vec<Arc<Block>>,
    /// Number, scale and tokens of a summary that was weighed when it was made.
    weighed: Option<(u32, ScaleId, u64)>,
    /// The number of the newest summary; 0 for none.
    newest: u32,
    /// Summaries up to this number are shown at once, because a call asked for the last of them.
    due: u32,
    /// Summaries before the newest that restored cuts show.
    earlier: Vec<Arc<Summary>>,
    /// True when a store does not know the cuts as they are.
    is_changed: bool,
    /// What a store knows of when the session was used.
    pub(crate) saved_access: Steady,
    /// How far ahead of its use a session's last access is written, in milliseconds: so that
    /// not every look has to be, and a restart never makes a session older than it is.
    pub(crate) grain_ms: u64,
}

/// A cut as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCut {
    /// Whose it is.
    pub key: CutKey,
    /// The cut.
    pub cut: Cut,
}

#[derive(Clone, Debug)]
struct Entry {
    key: CutKey,
    cut: Cut,
    sent: Option<Sent>,
    /// The newest summary when that was built, whether there was room to show it or not.
    newest: u32,
    /// The front of that window, where the next one can go on from it.
    kept: Option<Kept>,
    /// The cut before and what was sent of it, where the last window was cut.
    before: Option<(Cut, Option<Sent>)>,
    /// Tokens of the last window as counted, until what it was charged is known.
    uncharged: Option<u64>,
    /// The last window that a charge is known of: its tokens as counted, and as charged.
    charged: Option<(u64, u64)>,
}

impl Windows {
    /// The cuts that a store remembers, in the order of their use; the number of the newest
    /// summary, and those before it that one of the cuts shows.
    pub fn restore(saved: Vec<SavedCut>, newest: u32, earlier: Vec<Arc<Summary>>) -> Self {
        let entry = |saved: SavedCut| Entry {
            key: saved.key,
            cut: saved.cut,
            sent: None,
            newest: 0,
            kept: None,
            before: None,
            uncharged: None,
            charged: None,
        };
        Self {
            cuts: saved.into_iter().map(entry).collect(),
            newest,
            earlier,
            ..Self::default()
        }
    }

    /// Turns have left that nothing but an operator makes leave: what was sent is not known
    /// any more.
    pub(crate) fn forget_sent(&mut self) {
        for entry in &mut self.cuts {
            (entry.sent, entry.kept) = (None, None);
        }
    }

    /// Turns have left the history: what windows keep of them leaves memory.
    pub(crate) fn release(&mut self, history: &History, last_seq: u64) {
        let view = history.view(last_seq);
        for entry in &mut self.cuts {
            let cut = &entry.cut;
            entry.kept.take_if(|kept| !kept.basis.has_all(&view, cut));
        }
    }

    /// The turns after `after_seq` are gone, of `last_seq` that there were. What was decided when
    /// they were there is decided anew.
    pub(crate) fn rewind(&mut self, after_seq: u64, last_seq: u64) {
        let known = self.cuts.len();
        self.cuts.retain(|entry| {
            let cut = &entry.cut;
            cut.made_at <= after_seq && cut.through_seq <= after_seq && cut.seq <= after_seq + 1
        });
        self.is_changed |= self.cuts.len() < known;
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

    /// A turn says something else: what windows knew of it is forgotten, and all that was decided
    /// when it said something else.
    pub(crate) fn forget_turns(&mut self) {
        self.is_changed |= !self.cuts.is_empty();
        self.cuts.clear();
        self.counts.clear();
        self.blocks.clear();
        self.earlier.clear();
        self.weighed = None;
    }

    /// Bytes of memory of what windows keep, beside the turns themselves.
    pub(crate) fn kept_bytes(&self) -> usize {
        let kept = self.cuts.iter().filter_map(|entry| entry.kept.as_ref());
        kept.map(Kept::bytes).sum()
    }

    /// The cuts to be written, where a store does not know them; from then on it does.
    pub fn take_changes(&mut self) -> Option<Arc<[SavedCut]>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let saved = |entry: &Entry| SavedCut {
            key: entry.key.clone(),
            cut: entry.cut.clone(),
        };
        let lasting = self.cuts.iter().filter(|entry| self.lasts(entry));
        Some(lasting.map(saved).collect())
    }

    /// True when a store does not know the cuts as they are.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The turns that were not counted on this scale and that a window of so many tokens may
    /// look at, ascending: to be counted before it is planned.
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

    /// What was kept with counts on this scale does not hold with others.
    fn forget_kept(&mut self, scale: ScaleId) {
        for entry in &mut self.cuts {
            entry.kept.take_if(|kept| kept.basis.is_on(scale));
        }
    }

    /// What a store is told of a use at this moment.
    pub(crate) fn written_access(&mut self, now: Steady) -> Steady {
        self.saved_access = Steady(now.0.saturating_add(self.grain_ms));
        self.saved_access
    }

    /// Notes the tokens of turns.
    pub fn note_counts(&mut self, scale: ScaleId, counted: impl IntoIterator<Item = (u64, u64)>) {
        let mut counts = self.counts.iter_mut();
        if let Some(counts) = counts.find(|counts| counts.scale == scale) {
            for (seq, tokens) in counted {
                counts.put(seq, tokens);
            }
        }
    }

    /// Notes a new summary. It `is_due` where the next window of each model shows it, else it waits
    /// for the next cut of each: also where nothing was cut before, which a store then has to know.
    pub(crate) fn note_summary_made(&mut self, number: u32, is_due: bool) {
        self.newest = number;
        if is_due {
            self.due = number;
        }
        self.is_changed |= !self.cuts.is_empty();
    }

    /// Notes that the newest summary was taken back, and the number of the one before; 0 for none.
    pub(crate) fn note_summary_undone(&mut self, newest: u32) {
        self.newest = newest;
    }

    /// Bytes of the summaries that are kept because a cut still shows them.
    pub(crate) fn earlier_bytes(&self) -> usize {
        self.earlier.iter().map(|summary| summary.text.len()).sum()
    }

    /// Notes what a summary's turn weighs, so that no window has to.
    pub(crate) fn note_summary(&mut self, number: u32, scale: ScaleId, tokens: u64) {
        self.weighed = Some((number, scale, tokens));
    }

    /// A turn's tokens on a scale, where they were counted.
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
        ask: &Ask<'_>,
    ) -> Result<Window, CoreError> {
        let kept = self.take_kept(ask);
        let planned = self.look(
            history,
            last_seq,
            summary,
            ask,
            |composer, summaries, last| {
                let planned = plan(composer, summaries, last, kept, ask);
                if summaries.newest.is_none() {
                    return planned;
                }
                // There may be no room for it. What is said now, and what that answers, matter more.
                let is_request_out =
                    |planned: &Planned| planned.is_request_out(composer.view, ask.policy);
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
                let other = plan(composer, without, last, None, ask);
                // Where there is no room for the request in any case, the summary stays.
                let mut other = match (planned, other) {
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
        if ask.keep {
            self.remember(cut, kept, last_seq, &window, ask);
        }
        Ok(window)
    }

    /// The front of the window before. It is taken where it will be replaced, so that it grows
    /// where it is.
    fn take_kept(&mut self, ask: &Ask<'_>) -> Option<Kept> {
        let index = self.index(ask)?;
        let kept = &mut self.cuts[index].kept;
        if ask.keep { kept.take() } else { kept.clone() }
    }

    /// What the next cut would do if it were made now; `None` where windows slide.
    ///
    /// # Errors
    /// [`CoreError::CurrentTurnTooLarge`].
    pub fn next_cut(
        &mut self,
        history: &History,
        last_seq: u64,
        summary: Option<&Arc<Summary>>,
        ask: &Ask<'_>,
    ) -> Result<Option<NextCut>, CoreError> {
        self.look(
            history,
            last_seq,
            summary,
            ask,
            |composer, summaries, last| next_cut(composer, summaries, last, ask),
        )
    }

    /// Plans something with what is known of the session's windows.
    fn look<T>(
        &mut self,
        history: &History,
        last_seq: u64,
        summary: Option<&Arc<Summary>>,
        ask: &Ask<'_>,
        plan: impl FnOnce(&Composer<'_>, Summaries<'_>, Last<'_>) -> T,
    ) -> T {
        let view = history.view(last_seq);
        // The plain last turns, and nothing else.
        let summary = summary.filter(|_| !matches!(ask.policy, Policy::SlidingWindow { .. }));
        let block = summary.map(|summary| self.block(summary, ask));
        let index = self.index(ask);
        let shown = index.map_or(0, |index| self.cuts[index].cut.summary);
        let mut earlier = self.earlier.iter();
        if let Some(earlier) = earlier.find(|earlier| earlier.number == shown).cloned() {
            self.block(&earlier, ask);
        }
        let entry = index.map(|index| &self.cuts[index]);
        let mut known = self.blocks.iter();
        let shown = known.find(|block| block.is_on(ask.scale) && block.summary.number == shown);
        let unknown = Counts::new(ask.scale, &view);
        let composer = Composer {
            view: &view,
            counts: self.counts_on(ask.scale).unwrap_or(&unknown),
            overheads: ask.overheads,
            open: ask.codec.open,
            with_anchor: !matches!(ask.policy, Policy::SlidingWindow { .. }),
            pause_s: ask.settings.time_marks.map_or(0, |pause| {
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
        let last = Last {
            cut: entry.map_or(&whole, |entry| &entry.cut),
            sent: entry.and_then(|entry| entry.sent),
            is_known: entry.is_some(),
        };
        plan(&composer, summaries, last)
    }

    fn index(&self, ask: &Ask<'_>) -> Option<usize> {
        let mut keys = self.cuts.iter().map(|entry| &entry.key);
        keys.position(|key| key.is(ask.model, ask.policy))
    }

    /// The summary, encoded and weighed once.
    fn block(&mut self, summary: &Arc<Summary>, ask: &Ask<'_>) -> Arc<Block> {
        let mut known = self.blocks.iter();
        if let Some(block) = known.find(|block| block.is(summary, ask.scale)) {
            return Arc::clone(block);
        }
        let known = self
            .weighed
            .filter(|(number, scale, _)| (*number, *scale) == (summary.number, ask.scale));
        let made = Arc::new(Block::new(summary, known.map(|(_, _, tokens)| tokens), ask));
        let is_shown = |block: &Arc<Block>| {
            let number = block.summary.number;
            self.cuts.iter().any(|entry| entry.cut.summary == number)
        };
        self.blocks
            .retain(|block| !block.is_on(ask.scale) || is_shown(block));
        if self.blocks.len() >= SCALES_MAX + CUTS_MAX {
            self.blocks.remove(0);
        }
        self.blocks.push(Arc::clone(&made));
        made
    }

    fn remember(
        &mut self,
        cut: Cut,
        kept: Option<Kept>,
        last_seq: u64,
        window: &Window,
        ask: &Ask<'_>,
    ) {
        let index = self.index(ask);
        if self.cuts.len() >= CUTS_MAX && index.is_none() {
            // A cut that is forgotten here must not come back with a restart.
            let forgotten = self.cuts.remove(0);
            self.is_changed |= self.lasts(&forgotten);
        }
        let mut before = None;
        let (key, charged) = match index {
            Some(index) => {
                let entry = self.cuts.remove(index);
                before = Some((entry.cut, entry.sent)).filter(|_| window.has_new_cut);
                (entry.key, entry.charged)
            }
            None => {
                let key = CutKey {
                    model: ask.model.into(),
                    policy: ask.policy,
                };
                (key, self.last_charge(ask.model))
            }
        };
        self.is_changed |= window.has_new_cut;
        self.cuts.push(Entry {
            key,
            cut,
            sent: Some(Sent {
                last_seq,
                fixed_digest: ask.fixed_digest,
            }),
            newest: self.newest,
            kept,
            before,
            uncharged: None,
            charged,
        });
        let cuts = &self.cuts;
        let is_shown = |number| cuts.iter().any(|entry| entry.cut.summary == number);
        self.earlier.retain(|earlier| is_shown(earlier.number));
    }

    /// The last window of this model and policy is not sent: where it was cut, the one before it is
    /// the last one again.
    pub fn take_back(&mut self, model: &str, policy: Policy) {
        let mut entries = self.cuts.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.key.is(model, policy)) {
            entry.kept = None;
            match entry.before.take() {
                Some((cut, sent)) => (entry.cut, entry.sent) = (cut, sent),
                None => entry.sent = None,
            }
        }
    }

    /// True for an entry that a store has to know.
    fn lasts(&self, entry: &Entry) -> bool {
        let is_behind = entry.cut.summary < self.newest;
        // What a restart does not know shows the newest summary at once.
        let is_due = is_behind && self.newest <= self.due && entry.newest < self.newest;
        let says_something = !entry.cut.is_whole() || is_behind;
        says_something && !is_due && !matches!(entry.key.policy, Policy::SlidingWindow { .. })
    }

    /// From now on no window goes on from the one before.
    #[cfg(test)]
    pub(super) fn forget_all_kept(&mut self) {
        self.cuts.iter_mut().for_each(|entry| entry.kept = None);
    }

    /// How many turns of the last window the next one goes on from.
    #[cfg(test)]
    pub(super) fn kept_turns(&self) -> usize {
        let kept = self.cuts.last().and_then(|entry| entry.kept.as_ref());
        kept.map_or(0, |kept| kept.sums.turns)
    }

    /// True when it has a cut for these, whole or not.
    #[cfg(test)]
    pub(super) fn knows(&self, model: &str, policy: Policy) -> bool {
        self.cuts.iter().any(|entry| entry.key.is(model, policy))
    }

    /// Notes the tokens of a window with its memories, for what the provider will charge.
    pub fn note_sent(&mut self, model: &str, policy: Policy, counted: u64) {
        let mut entries = self.cuts.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.key.is(model, policy)) {
            entry.uncharged = Some(counted);
        }
    }

    /// The last window of a model that a charge is known of: its tokens as counted, and as
    /// charged.
    pub fn last_charge(&self, model: &str) -> Option<(u64, u64)> {
        let mut entries = self.cuts.iter().rev();
        entries.find_map(|entry| entry.charged.filter(|_| *entry.key.model == *model))
    }

    /// Notes what was charged for a window of a model that was counted so.
    pub fn note_charge(&mut self, model: &str, counted: u64, charged: u64) {
        let mut entries = self.cuts.iter_mut().rev();
        if let Some(entry) = entries.find(|entry| *entry.key.model == *model) {
            entry.charged = Some((counted, charged));
        }
    }

    /// The last window of a model that `is_meant`, with its tokens as counted: once, when
    /// the provider's charge for it is known.
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
