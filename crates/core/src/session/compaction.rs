//! When a session needs a compaction, and the snapshot that a compaction starts from.

use std::sync::Arc;

use super::Session;
use crate::breaker::BreakerState;
use crate::compaction::{
    CompactionPolicy, CompactionStatus, Summary, SummaryBudget, TailLimits, Trigger, TurnSpan,
    before, choose, is_apart, is_summarized, is_waiting,
};
use crate::history::Totals;
use crate::history::{TurnRecord, View};
use crate::ids::Generation;
use crate::limits::Limits;
use crate::nonce::Nonce;
use crate::time::Steady;
use crate::window::{Omission, Policy, SavedCut, ScaleId, Window, WindowTokens, percent};

/// Exchanges that stay verbatim if a call requests a compaction and sets no number.
const KEPT_EXCHANGES: u32 = 5;

/// Maximum share of verbatim turns if a call requests a compaction, in percent.
///
/// The share is of the tokens that system prompt and tools leave.
const KEPT_PERCENT: u8 = 30;

/// Maximum share of the tail after a cut, in percent of the tokens that system prompt and tools
/// leave. The cut trims a tail that is larger.
const TRIMMED_TAIL_PERCENT: u8 = 70;

/// Window tokens that the summary budget assumes if no window was ever requested.
const UNKNOWN_REST: u64 = 16_384;

/// Maximum share of a window, in percent, that a history uses when its caps cause a compaction.
const HISTORY_WINDOW_PERCENT: u8 = 80;

/// Divisor of a full history's caps. The result stays verbatim, as far as the floor leaves room.
const HISTORY_SHARE: u64 = 2;

/// State of a session's compaction in addition to its status.
#[derive(Clone, Debug, Default)]
pub(super) struct Compacting {
    pub(super) summary: Option<Arc<Summary>>,
    /// Summaries before it, newest last, if no store has them.
    pub(super) earlier: Vec<Arc<Summary>>,
    /// Start of the current wait for a result or for the end of a reply.
    wanted_since: Option<Steady>,
    /// Budget of the last window.
    target: Option<WindowTokens>,
    /// Start of the tail, now or at the next cut, if turns before it have no summary.
    tail_seq: Option<u64>,
}

impl Compacting {
    /// Restores it from the summary and the last window. `None` if there is neither.
    pub(super) fn restore(summary: Option<Arc<Summary>>, cuts: &[SavedCut]) -> Option<Self> {
        let last = cuts
            .iter()
            .rev()
            .find_map(|saved| saved.last?.tokens.and(saved.last));
        (summary.is_some() || last.is_some()).then(|| Self {
            summary,
            target: last.and_then(|last| last.tokens),
            tail_seq: last.and_then(|last| last.tail_seq),
            ..Self::default()
        })
    }

    /// Adds the last window to the cut that it belongs to.
    pub(super) fn save(&self, cuts: &mut [SavedCut]) {
        let mut cuts = cuts.iter_mut().rev();
        let of_window =
            |saved: &&mut SavedCut| !matches!(saved.key.policy, Policy::SlidingWindow { .. });
        if let Some(last) = cuts.find(of_window).and_then(|saved| saved.last.as_mut()) {
            (last.tokens, last.tail_seq) = (self.target, self.tail_seq);
        }
    }

    /// Discards state that depends on turns after `seq`.
    pub(super) fn forget_after(&mut self, seq: u64) {
        self.wanted_since = None;
        self.tail_seq.take_if(|tail_seq| *tail_seq > seq);
    }

    pub(super) fn text_bytes(&self) -> usize {
        let summaries = self.summary.iter().chain(&self.earlier);
        summaries.map(|summary| summary.text.len()).sum()
    }
}

/// Input of a compaction: the session at one point in time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub generation: Generation,
    pub last_seq: u64,
    pub previous: Option<Arc<Summary>>,
    /// Number of the new summary.
    pub number: u32,
    /// Turns that the new summary covers in addition to the previous one.
    pub span: TurnSpan,
    /// Turns of the span that are not summarized because windows show them, ascending.
    pub apart: Vec<u64>,
    /// Seq and content of the summarized turns of the span that are still in the history.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Seq and tokens of those turns that are counted on `scale`, ascending.
    pub tokens: Vec<(u64, u32)>,
    /// Seq and content of the turns that windows continue to show.
    pub shown: Vec<(u64, Arc<[u8]>)>,
    pub budget: SummaryBudget,
    /// Tokens that the rest of a window leaves for the summary.
    pub room: u64,
    /// Scale of the token counts. If `None`, they are estimated.
    pub scale: Option<ScaleId>,
    pub nonce: Nonce,
    /// Whether turns of the span are already left out or leave the history.
    ///
    /// If so, a summary that is not shorter than the turns is better than none.
    pub is_needed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionBlocked {
    Nothing,
    /// A call waits for its result, or a reply is streaming.
    Waiting,
    Running,
}

impl Session {
    pub fn summary(&self) -> Option<&Arc<Summary>> {
        self.compacting.as_ref()?.summary.as_ref()
    }

    fn target(&self) -> Option<WindowTokens> {
        self.compacting.as_ref()?.target
    }

    /// The scale of the last window. `None` before the first one.
    ///
    /// All turns must be counted on it before a compaction begins, so that the summary does not
    /// depend on the windows that were built since the session was loaded.
    pub fn summary_scale(&self) -> Option<ScaleId> {
        Some(self.target()?.scale)
    }

    pub fn compaction(&self) -> CompactionStatus {
        self.head.compaction.as_deref().cloned().unwrap_or_default()
    }

    /// Records a built window and returns the trigger if a compaction should start now.
    ///
    /// If not `is_sure`, the provider has yet to count the tokens. A preemptive compaction that
    /// would have to wait is then left to a later window.
    pub fn consider_window(
        &mut self,
        window: &Window,
        target: WindowTokens,
        now: Steady,
        policy: &CompactionPolicy,
        is_sure: bool,
    ) -> Option<Trigger> {
        if matches!(window.report.policy, Policy::SlidingWindow { .. }) {
            return None;
        }
        let mut omissions = window.report.omissions.iter();
        let is_left_out = omissions.any(Omission::is_left_out);
        let compacting = self.compacting.get_or_insert_default();
        let before = (compacting.target, compacting.tail_seq);
        compacting.target = Some(target);
        compacting.tail_seq = window.tail_seq;
        let is_other = before != (compacting.target, compacting.tail_seq);
        if let Some(windows) = self.windows.as_mut().filter(|_| is_other) {
            windows.note_other_last();
        }
        let trigger = match window.tail_seq {
            _ if is_left_out => Some(Trigger::Reactive),
            Some(_) => Some(Trigger::Preemptive),
            None => None,
        };
        if !is_sure && trigger == Some(Trigger::Preemptive) && self.is_waiting() {
            return None;
        }
        self.consider(trigger, now, policy, None)
    }

    /// Returns the trigger if a compaction should start after an append.
    ///
    /// Sessions for which no window was ever requested need no summary.
    pub fn consider_append(
        &mut self,
        now: Steady,
        policy: &CompactionPolicy,
        limits: &Limits,
    ) -> Option<Trigger> {
        let compacting = self.compacting.as_deref()?;
        let was_wanted = compacting.wanted_since.is_some();
        compacting.target?;
        let is_full = self.is_about_to_drop(limits);
        let trigger = match (is_full, was_wanted) {
            (true, _) => Some(Trigger::History),
            // The pending result or reply may have arrived.
            (false, true) => Some(Trigger::Preemptive),
            (false, false) => None,
        };
        trigger?;
        self.consider(trigger, now, policy, Some(limits))
    }

    /// Whether FIFO soon drops turns that no summary covers: less than a tenth of a cap is left.
    fn is_about_to_drop(&self, limits: &Limits) -> bool {
        let limits = self.limits(limits);
        let status = self.head.compaction.as_ref();
        let through = status.map_or(0, |status| status.through_seq);
        let near = |used: u64, cap: usize| {
            let cap = cap as u64;
            used.saturating_add((cap / 10).max(1)) > cap
        };
        let is_near = |totals: Totals| {
            near(totals.turns, limits.max_history_turns)
                || near(totals.bytes, limits.max_history_bytes)
        };
        let totals = self.head.totals;
        if !is_near(totals) {
            return false;
        }
        // FIFO drops the turns that the summary covers first, which makes room.
        let view = self.history.view(self.head.last_seq);
        let covered = view
            .tail_before(through + 1)
            .filter(|record| !view.is_kept(record));
        let mut left = totals;
        // Stop as soon as a tenth of the cap is free.
        covered.map(TurnRecord::totals).all(|covered| {
            left = left.minus(covered);
            is_near(left)
        })
    }

    fn consider(
        &mut self,
        trigger: Option<Trigger>,
        now: Steady,
        policy: &CompactionPolicy,
        limits: Option<&Limits>,
    ) -> Option<Trigger> {
        let Some(trigger) = trigger.filter(|_| policy.enabled) else {
            self.stop_wanting();
            return None;
        };
        let last_seq = self.head.last_seq;
        let is_held_back = |status: &CompactionStatus| {
            // Turns without a summary do not wait for the minimum distance. Failures open the
            // breaker.
            let is_urgent = trigger != Trigger::Preemptive;
            let is_early = status.at_seq > 0
                && last_seq < status.at_seq.saturating_add(policy.turns_between_min)
                && (!is_urgent || last_seq == status.at_seq);
            let is_open = status.breaker(now, last_seq, policy) == BreakerState::Open;
            status.running || is_early || is_open
        };
        if self.head.compaction.as_deref().is_some_and(is_held_back) {
            return None;
        }
        if self.is_deferred(now, policy) {
            return None;
        }
        self.span(trigger, None, limits).map(|_| trigger)
    }

    /// Whether the compaction must wait for a result or the end of a reply.
    ///
    /// Records when the wait began. It is bounded by `defer_ms_max`.
    fn is_deferred(&mut self, now: Steady, policy: &CompactionPolicy) -> bool {
        let is_waiting = self.is_waiting();
        let compacting = self.compacting.get_or_insert_default();
        if !is_waiting {
            compacting.wanted_since = None;
            return false;
        }
        let since = *compacting.wanted_since.get_or_insert(now);
        now.since(since) < policy.defer_ms_max
    }

    /// Ends the wait. Later triggers are considered from scratch.
    fn stop_wanting(&mut self) {
        if let Some(compacting) = &mut self.compacting {
            compacting.wanted_since = None;
        }
    }

    /// Whether a call waits for its result or a reply is streaming.
    pub fn is_waiting(&self) -> bool {
        self.head.partial || is_waiting(&self.history.view(self.head.last_seq))
    }

    /// Starts a compaction. `exchanges` is the number of exchanges that the call wants verbatim.
    ///
    /// # Errors
    /// [`CompactionBlocked`].
    pub fn begin_compaction(
        &mut self,
        trigger: Trigger,
        exchanges: Option<u32>,
        now: Steady,
        policy: &CompactionPolicy,
        limits: &Limits,
    ) -> Result<Snapshot, CompactionBlocked> {
        let mut status = self.compaction();
        if status.running {
            return Err(CompactionBlocked::Running);
        }
        let must_wait = match trigger {
            Trigger::Command => self.is_waiting(),
            // A tool call may have been appended since the trigger.
            _ => self.is_deferred(now, policy),
        };
        if must_wait {
            return Err(CompactionBlocked::Waiting);
        }
        let span = self
            .span(trigger, exchanges, Some(limits))
            .ok_or(CompactionBlocked::Nothing)?;
        let mut snapshot = self.snapshot(span, policy, &status);
        snapshot.is_needed = matches!(trigger, Trigger::History | Trigger::Reactive);
        status.running = true;
        self.head.compaction = Some(Arc::new(status));
        self.stop_wanting();
        Ok(snapshot)
    }

    fn snapshot(
        &self,
        span: TurnSpan,
        policy: &CompactionPolicy,
        status: &CompactionStatus,
    ) -> Snapshot {
        let view = self.history.view(self.head.last_seq);
        let in_span = |record: &&TurnRecord| record.seq <= span.through_seq;
        let older = || view.tail_from(span.first_seq).take_while(in_span);
        let all_passed = view.apart.iter().copied();
        let mut apart: Vec<u64> = all_passed
            .clone()
            .filter(|record| is_apart(&view, record))
            .chain(older().filter(|record| !is_summarized(&view, record)))
            .map(|record| record.seq)
            .collect();
        apart.sort_unstable();
        apart.dedup();
        // The first user turn and the request are summarized like other turns, even if FIFO has
        // passed them.
        let passed = all_passed
            .filter(|record| !is_apart(&view, record))
            .filter(|record| record.seq >= span.first_seq && in_span(record));
        let mut turns: Vec<&TurnRecord> = passed
            .chain(older().filter(|record| is_summarized(&view, record)))
            .collect();
        turns.sort_by_key(|record| record.seq);
        turns.dedup_by_key(|record| record.seq);
        let target = self.target();
        let counts = target.zip(self.windows.as_ref());
        let tokens = |seq| counts.and_then(|(target, counts)| counts.tokens(target.scale, seq));
        let mut counted: Vec<(u64, u32)> = turns
            .iter()
            .map(|record| record.seq)
            .filter_map(|seq| Some((seq, tokens(seq)?)))
            .collect();
        counted.sort_unstable();
        let shown_apart = apart.iter().filter_map(|&seq| view.record(seq));
        let both = |record: &&TurnRecord| is_summarized(&view, record) && is_apart(&view, record);
        let shown = shown_apart
            .chain(older().filter(both))
            .chain(view.tail_from(span.through_seq + 1));
        let rest = target.map(|target| self.rest(target, &view));
        let room = rest.map_or(u64::MAX, |rest| rest.saturating_sub(span.tail_tokens));
        let rest_tokens = rest.unwrap_or(UNKNOWN_REST);
        let budget = SummaryBudget::of_rest(rest_tokens, policy.summary_tokens)
            .within(room.saturating_mul(3) / 4);
        Snapshot {
            generation: self.head.generation,
            last_seq: self.head.last_seq,
            previous: self.summary().cloned(),
            number: status.summaries + 1,
            span,
            tokens: counted,
            turns: turns
                .iter()
                .map(|record| (record.seq, Arc::clone(&record.content)))
                .collect(),
            shown: shown
                .map(|record| (record.seq, Arc::clone(&record.content)))
                .collect(),
            apart,
            budget,
            room: room.max(budget.summary),
            scale: target.map(|target| target.scale),
            nonce: self.nonce,
            is_needed: false,
        }
    }

    /// Returns the turns that a compaction summarizes, or `None` if there are none.
    ///
    /// - A window that leaves turns out, or is about to, determines them itself.
    /// - A history that is about to drop turns retains half of its caps.
    /// - A call sets the number of exchanges that stay verbatim.
    fn span(
        &self,
        trigger: Trigger,
        exchanges: Option<u32>,
        limits: Option<&Limits>,
    ) -> Option<TurnSpan> {
        let view = self.history.view(self.head.last_seq);
        let after_seq = self.compaction().through_seq;
        let tokens = |record: &TurnRecord| self.tokens_of(record);
        let all = TailLimits {
            exchanges: u32::MAX,
            is_exact: false,
            tokens: u64::MAX,
            turns: u64::MAX,
            bytes: u64::MAX,
            splits_exchange: false,
        };
        let keep = match (trigger, limits.map(|limits| self.limits(limits))) {
            (Trigger::History, Some(limits)) | (Trigger::Reactive, Some(limits))
                if self.is_of_history(trigger, &view) =>
            {
                TailLimits {
                    turns: (limits.max_history_turns as u64 / HISTORY_SHARE).max(1),
                    bytes: (limits.max_history_bytes as u64 / HISTORY_SHARE).max(1),
                    splits_exchange: self.is_request_leaving(&view),
                    ..all
                }
            }
            (Trigger::Preemptive | Trigger::Reactive | Trigger::History, _) => {
                let tail_seq = self.compacting.as_ref()?.tail_seq?;
                let mut span = before(&view, after_seq, tail_seq, tokens)?;
                let request = view.request_under_way();
                // A summary that covers the request would replace it in windows.
                if request.is_none_or(|request| request.seq > span.through_seq) {
                    let rest = self.rest(self.target()?, &view);
                    span.tail_tokens = span.tail_tokens.min(percent(rest, TRIMMED_TAIL_PERCENT));
                }
                return Some(span);
            }
            (Trigger::Command, _) => TailLimits {
                exchanges: exchanges.unwrap_or(KEPT_EXCHANGES),
                is_exact: exchanges.is_some(),
                tokens: self.target().map_or(u64::MAX, |target| {
                    percent(self.rest(target, &view), KEPT_PERCENT)
                }),
                splits_exchange: view.request_under_way().is_none(),
                ..all
            },
        };
        let mut span = choose(&view, after_seq, &keep, tokens)?;
        if let Some(target) = self.target().filter(|_| trigger == Trigger::Command) {
            let rest = self.rest(target, &view);
            span.tail_tokens = span.tail_tokens.min(percent(rest, TRIMMED_TAIL_PERCENT));
        }
        Some(span)
    }

    /// Whether the caps of the history, and not the window, cause the compaction.
    ///
    /// If a window has room for all of the history, half of it is summarized, so that the next
    /// turns drop nothing without a summary.
    fn is_of_history(&self, trigger: Trigger, view: &View<'_>) -> bool {
        let fits = |target: WindowTokens| {
            let tail = view.tail_from(self.compaction().through_seq + 1);
            let shown = tail.filter(|record| !is_apart(view, record));
            let tokens: u64 = shown.map(|record| self.tokens_of(record)).sum();
            tokens < percent(self.rest(target, view), HISTORY_WINDOW_PERCENT)
        };
        // Turns that no summary covers were dropped.
        let has_dropped = view.front_seq() > self.compaction().through_seq + 1;
        trigger == Trigger::History || has_dropped && self.target().is_some_and(fits)
    }

    /// Whether the history is about to drop the exchange in progress.
    fn is_request_leaving(&self, view: &View<'_>) -> bool {
        let next = (self.compaction().through_seq + 1).max(view.front_seq());
        view.request_under_way()
            .is_none_or(|request| next >= request.seq)
    }

    /// Tokens of a window without system prompt and tools.
    ///
    /// A system prompt that is a turn counts as fixed, like one that comes with the call.
    fn rest(&self, target: WindowTokens, view: &View<'_>) -> u64 {
        let first = view.apart.iter().copied().chain(view.tail_from(0).take(8));
        let leading: u64 = first
            .filter(|record| view.leads(record))
            .map(|record| self.tokens_of(record))
            .sum();
        target
            .budget
            .saturating_sub(target.fixed.saturating_add(leading))
    }

    fn tokens_of(&self, record: &TurnRecord) -> u64 {
        let target = self.target();
        let counted = target
            .zip(self.windows.as_ref())
            .and_then(|(target, windows)| windows.tokens(target.scale, record.seq));
        counted.unwrap_or(record.tokens).into()
    }
}
