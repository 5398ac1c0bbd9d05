//! When a session is to be compacted, and what a compaction of it starts from.

use std::sync::Arc;

use super::Session;
use crate::breaker::BreakerState;
use crate::change::Totals;
use crate::compaction::{
    CompactionPolicy, CompactionStatus, Keep, Span, Summary, SummaryBudget, Trigger, before,
    choose, is_apart, is_summarized, is_waiting,
};
use crate::history::{TurnRecord, View};
use crate::ids::Generation;
use crate::limits::Limits;
use crate::mark::Mark;
use crate::time::Steady;
use crate::window::{Omission, Policy, ScaleId, Window, percent};

/// Exchanges that stay verbatim where a call asks for a compaction and names no number.
const KEPT_EXCHANGES: u32 = 5;

/// The share of what system prompt and tools leave that stays verbatim at most where a call asks
/// for a compaction, in percent.
const KEPT_PERCENT: u8 = 30;

/// The summary's budget of a session that was never asked for a window: that of 16,384 tokens.
const UNKNOWN_REST: u64 = 16_384;

/// A history that takes less of a window, in percent, is what makes turns leave, not the window.
const HISTORY_WINDOW_PERCENT: u8 = 80;

/// Of a full history one part in so many stays as it was said, as far as the floor leaves room.
const HISTORY_SHARE: u64 = 2;

/// The state of a session's compaction besides its status.
#[derive(Clone, Debug, Default)]
pub(super) struct Compacting {
    pub(super) summary: Option<Arc<Summary>>,
    /// Those before it, newest last, where no store keeps them.
    pub(super) earlier: Vec<Arc<Summary>>,
    /// Since when one is wanted that has to wait for a result, or for the end of a reply.
    wanted_since: Option<Steady>,
    /// What the last window was built for.
    target: Option<WindowTokens>,
    /// Where its tail begins, or is about to begin, and turns before that have no summary.
    tail_seq: Option<u64>,
}

impl Compacting {
    pub(super) fn with(summary: Arc<Summary>) -> Self {
        Self {
            summary: Some(summary),
            ..Self::default()
        }
    }

    /// Forgets what depends on turns after this one.
    pub(super) fn forget_after(&mut self, seq: u64) {
        self.wanted_since = None;
        self.tail_seq.take_if(|tail_seq| *tail_seq > seq);
    }

    /// Bytes of its summaries.
    pub(super) fn text_bytes(&self) -> usize {
        let summaries = self.summary.iter().chain(&self.earlier);
        summaries.map(|summary| summary.text.len()).sum()
    }
}

/// The token budget of a window, on one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTokens {
    /// What turns are counted on.
    pub scale: ScaleId,
    /// Tokens it may use.
    pub budget: u64,
    /// Tokens it uses beside the turns and the summary.
    pub fixed: u64,
}

/// What a compaction starts from: the session as it was at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which life of the session.
    pub generation: Generation,
    /// The newest turn.
    pub last_seq: u64,
    /// The last summary.
    pub previous: Option<Arc<Summary>>,
    /// The number of the one to be made.
    pub number: u32,
    /// What it newly stands for.
    pub span: Span,
    /// Turns of the span that are not summarized, because windows show them: ascending.
    pub apart: Vec<u64>,
    /// The turns of the span that the history still keeps, without those: seq and content.
    pub turns: Vec<(u64, Arc<[u8]>)>,
    /// Tokens of these, as far as they are counted on `scale`: seq and tokens, ascending.
    pub tokens: Vec<(u64, u32)>,
    /// The turns that windows go on showing: seq and content.
    pub shown: Vec<(u64, Arc<[u8]>)>,
    /// Maximum sizes of the summary's parts.
    pub budget: SummaryBudget,
    /// Tokens that the rest of a window leaves it.
    pub room: u64,
    /// On what these are counted; without one they are estimated.
    pub scale: Option<ScaleId>,
    /// What memoird's own words bear.
    pub mark: Mark,
    /// True where turns of it are not shown any more, or leave the history: then a summary that
    /// is no shorter than they are is better than none.
    pub is_needed: bool,
}

/// Why no compaction starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompactionBlocked {
    /// There is nothing to summarize.
    Nothing,
    /// A call waits for its result, or a reply is streaming.
    Waiting,
    /// One is being made.
    Running,
}

impl Session {
    /// What stands for its oldest turns.
    pub fn summary(&self) -> Option<&Arc<Summary>> {
        self.compacting.as_ref()?.summary.as_ref()
    }

    /// What its last window was built for.
    fn target(&self) -> Option<WindowTokens> {
        self.compacting.as_ref()?.target
    }

    /// How its compaction does.
    pub fn compaction(&self) -> CompactionStatus {
        self.head.compaction.as_deref().cloned().unwrap_or_default()
    }

    /// Notes what a window says, and whether a compaction is wanted now because of it. Where
    /// its tokens are to be counted elsewhere before that `is_sure`, nothing but a window
    /// wants it later.
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
        compacting.target = Some(target);
        compacting.tail_seq = window.tail_seq;
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

    /// Whether a compaction is wanted now that turns were added. Sessions that were never
    /// asked for a window need no summary.
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
            // What it waited for may have come.
            (false, true) => Some(Trigger::Preemptive),
            (false, false) => None,
        };
        trigger?;
        self.consider(trigger, now, policy, Some(limits))
    }

    /// True when first in, first out will soon drop turns that no summary holds: with the
    /// last tenth of its room.
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
        // Turns that the summary covers leave first, and make room.
        let view = self.history.view(self.head.last_seq);
        let covered = view.tail_before(through + 1);
        let covered = covered.filter(|record| !view.is_kept(record));
        let mut left = totals;
        // A tenth of them is enough.
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
            // Turns that nothing stands for do not wait; where it fails, the breaker opens.
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

    /// True while it has to wait for a result, or for the end of a reply, and not for too
    /// long: from now on it is wanted.
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

    /// Nothing is wanted that has to wait: what turns up is considered anew.
    fn stop_wanting(&mut self) {
        if let Some(compacting) = &mut self.compacting {
            compacting.wanted_since = None;
        }
    }

    /// True while a call waits for its result or a reply is streaming.
    pub fn is_waiting(&self) -> bool {
        self.head.partial || is_waiting(&self.history.view(self.head.last_seq))
    }

    /// Starts a compaction. `exchanges`: how many of them the call wants to keep.
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
            // A call may have been made since it was wanted.
            _ => self.is_deferred(now, policy),
        };
        if must_wait {
            return Err(CompactionBlocked::Waiting);
        }
        let span = self.span(trigger, exchanges, Some(limits));
        let span = span.ok_or(CompactionBlocked::Nothing)?;
        let mut snapshot = self.snapshot(span, policy, &status);
        snapshot.is_needed = matches!(trigger, Trigger::History | Trigger::Reactive);
        status.running = true;
        self.head.compaction = Some(Arc::new(status));
        self.stop_wanting();
        Ok(snapshot)
    }

    fn snapshot(
        &self,
        span: Span,
        policy: &CompactionPolicy,
        status: &CompactionStatus,
    ) -> Snapshot {
        let view = self.history.view(self.head.last_seq);
        let in_span = |record: &&TurnRecord| record.seq <= span.through_seq;
        let older = || view.tail_from(span.first_seq).take_while(in_span);
        let passed = view.apart.iter().copied();
        let apart = passed.clone().filter(|record| is_apart(&view, record));
        let apart = apart.chain(older().filter(|record| !is_summarized(&view, record)));
        let mut apart: Vec<u64> = apart.map(|record| record.seq).collect();
        apart.sort_unstable();
        apart.dedup();
        // The first user turn and the request leave with the others, also where first in, first
        // out has passed them.
        let passed = passed.filter(|record| !is_apart(&view, record));
        let passed = passed.filter(|record| record.seq >= span.first_seq && in_span(record));
        let turns = older().filter(|record| is_summarized(&view, record));
        let mut turns: Vec<&TurnRecord> = passed.chain(turns).collect();
        turns.sort_by_key(|record| record.seq);
        turns.dedup_by_key(|record| record.seq);
        let target = self.target();
        let counts = target.zip(self.windows.as_ref());
        let tokens = |seq| counts.and_then(|(target, counts)| counts.tokens(target.scale, seq));
        let counted = turns.iter().map(|record| record.seq);
        let counted = counted.filter_map(|seq| Some((seq, tokens(seq)?)));
        let mut counted: Vec<(u64, u32)> = counted.collect();
        counted.sort_unstable();
        let shown = apart.iter().filter_map(|&seq| view.record(seq));
        let both = |record: &&TurnRecord| is_summarized(&view, record) && is_apart(&view, record);
        let shown = shown.chain(older().filter(both));
        let shown = shown.chain(view.tail_from(span.through_seq + 1));
        let rest = target.map(|target| self.rest(target, &view));
        let room = rest.map_or(u64::MAX, |rest| rest.saturating_sub(span.tail_tokens));
        let budget = rest.unwrap_or(UNKNOWN_REST);
        let budget = SummaryBudget::of_rest(budget, policy.summary_tokens);
        let budget = budget.within(room.saturating_mul(3) / 4);
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
            mark: self.mark,
            is_needed: false,
        }
    }

    /// The turns that a compaction summarizes; `None` where there are none.
    ///
    /// A window that leaves turns out, or is about to, determines them itself. A history that is
    /// about to drop turns keeps half of its room. A call names the exchanges that stay.
    fn span(
        &self,
        trigger: Trigger,
        exchanges: Option<u32>,
        limits: Option<&Limits>,
    ) -> Option<Span> {
        let view = self.history.view(self.head.last_seq);
        let after_seq = self.compaction().through_seq;
        let tokens = |record: &TurnRecord| self.tokens_of(record);
        let all = Keep {
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
                Keep {
                    turns: (limits.max_history_turns as u64 / HISTORY_SHARE).max(1),
                    bytes: (limits.max_history_bytes as u64 / HISTORY_SHARE).max(1),
                    splits_exchange: self.is_request_leaving(&view),
                    ..all
                }
            }
            (Trigger::Preemptive | Trigger::Reactive | Trigger::History, _) => {
                let tail_seq = self.compacting.as_ref()?.tail_seq?;
                return before(&view, after_seq, tail_seq, tokens);
            }
            (Trigger::Command, _) => Keep {
                exchanges: exchanges.unwrap_or(KEPT_EXCHANGES),
                is_exact: exchanges.is_some(),
                tokens: self.target().map_or(u64::MAX, |target| {
                    percent(self.rest(target, &view), KEPT_PERCENT)
                }),
                splits_exchange: view.request_under_way().is_none(),
                ..all
            },
        };
        choose(&view, after_seq, &keep, tokens)
    }

    /// True where the history has no room, and a window has room for all that is left of it: then
    /// half of the history is summarized, so that the next turns drop nothing without a summary.
    fn is_of_history(&self, trigger: Trigger, view: &View<'_>) -> bool {
        let fits = |target: WindowTokens| {
            let tail = view.tail_from(self.compaction().through_seq + 1);
            let shown = tail.filter(|record| !is_apart(view, record));
            let tokens: u64 = shown.map(|record| self.tokens_of(record)).sum();
            tokens < percent(self.rest(target, view), HISTORY_WINDOW_PERCENT)
        };
        // Turns have left that no summary holds.
        let has_dropped = view.front_seq() > self.compaction().through_seq + 1;
        trigger == Trigger::History || has_dropped && self.target().is_some_and(fits)
    }

    /// True where the history is about to drop the exchange under way.
    fn is_request_leaving(&self, view: &View<'_>) -> bool {
        let next = (self.compaction().through_seq + 1).max(view.front_seq());
        view.request_under_way()
            .is_none_or(|request| next >= request.seq)
    }

    /// Tokens that system prompt and tools leave of a window. A system prompt that comes as a turn
    /// is no less fixed than one that comes with the call.
    fn rest(&self, target: WindowTokens, view: &View<'_>) -> u64 {
        let first = view.apart.iter().copied().chain(view.tail_from(0).take(8));
        let leading = first.filter(|record| view.leads(record));
        let leading: u64 = leading.map(|record| self.tokens_of(record)).sum();
        target
            .budget
            .saturating_sub(target.fixed.saturating_add(leading))
    }

    fn tokens_of(&self, record: &TurnRecord) -> u64 {
        let target = self.target();
        let counted = target.zip(self.windows.as_ref());
        let counted =
            counted.and_then(|(target, windows)| windows.tokens(target.scale, record.seq));
        counted.unwrap_or(record.tokens).into()
    }
}
