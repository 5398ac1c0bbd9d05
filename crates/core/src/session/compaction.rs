//! When a session is to be compacted, and what a compaction of it starts from.

use std::sync::Arc;

use super::Session;
use crate::breaker::BreakerState;
use crate::change::Totals;
use crate::compaction::notes::Notes;
use crate::compaction::{
    CompactionPolicy, CompactionStatus, Keep, Span, Summary, Trigger, choose, is_apart,
    is_summarized, is_waiting,
};
use crate::history::{TurnRecord, View};
use crate::ids::Generation;
use crate::limits::Limits;
use crate::mark::Mark;
use crate::time::Steady;
use crate::window::{Policy, ScaleId, Window, percent};

/// A smaller summary would say too little.
const SUMMARY_TOKENS_MIN: u64 = 256;

/// A summary may have one part in so many of what the rest of a window leaves.
const SUMMARY_SHARE: u64 = 8;

/// Of a full history one part in so many stays as it was said, as far as the floor leaves room.
const HISTORY_SHARE: u64 = 2;

/// What a session knows of its compaction beside its status.
#[derive(Clone, Debug, Default)]
pub(super) struct Compacting {
    pub(super) summary: Option<Arc<Summary>>,
    /// Those before it, newest last, where no store keeps them.
    pub(super) earlier: Vec<Arc<Summary>>,
    /// Since when one is wanted that has to wait for a result, or for the end of a reply.
    wanted_since: Option<Steady>,
    /// What the last window was built for.
    target: Option<WindowTokens>,
    /// The newest turn that it leaves out and that no summary stands for; 0 where there is none.
    left_out_seq: u64,
    /// What was noted when somebody last looked, so that each turn is noted once.
    notes: Option<Box<Notes>>,
}

impl Compacting {
    pub(super) fn with(summary: Arc<Summary>) -> Self {
        Self {
            summary: Some(summary),
            ..Self::default()
        }
    }

    /// What was noted of turns after this one is forgotten.
    pub(super) fn forget_after(&mut self, seq: u64) {
        self.notes.take_if(|notes| notes.through_seq > seq);
        self.wanted_since = None;
        if self.left_out_seq > seq {
            self.left_out_seq = 0;
        }
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
    /// The contents of what windows go on showing.
    pub shown: Vec<Arc<[u8]>>,
    /// Tokens that the summary should have, at most.
    pub tokens_max: u64,
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

    /// What was noted so far: when somebody last looked, or for its summary.
    pub fn notes(&self) -> Notes {
        let noted = self
            .compacting
            .as_ref()
            .and_then(|kept| kept.notes.as_deref());
        let of_summary = self.summary().map(|summary| &summary.notes);
        let newest = noted.into_iter().chain(of_summary);
        let newest = newest.max_by_key(|notes| notes.through_seq);
        newest.cloned().unwrap_or_default()
    }

    /// Keeps what was noted, in memory only.
    pub fn keep_notes(&mut self, notes: Notes) {
        self.compacting.get_or_insert_default().notes = Some(Box::new(notes));
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
        let omissions = window.report.omissions.iter();
        let left_out = omissions.filter(|omission| omission.is_left_out());
        let left_out_seq = left_out.map(|omission| omission.last_seq).max();
        let compacting = self.compacting.get_or_insert_default();
        compacting.target = Some(target);
        compacting.left_out_seq = left_out_seq.unwrap_or(0);
        let soft = percent(target.budget, policy.soft_watermark_percent);
        // What is ready, or cheaper, will make room.
        let counted = window.counted.saturating_sub(window.ready_saves);
        let is_due = counted >= soft && !window.is_reword_enough;
        let trigger = match left_out_seq {
            Some(_) => Some(Trigger::Reactive),
            None => is_due.then_some(Trigger::Preemptive),
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
        let keep = self.keep(trigger, policy, limits);
        self.span(&keep).map(|_| trigger)
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
        let mut keep = self.keep(trigger, policy, Some(limits));
        if let Some(exchanges) = exchanges {
            keep.exchanges = exchanges;
            keep.is_exact = true;
        }
        let span = self.span(&keep).ok_or(CompactionBlocked::Nothing)?;
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
        let apart = view.apart.iter().copied();
        let apart = apart.chain(older().filter(|record| !is_summarized(&view, record)));
        let mut apart: Vec<u64> = apart.map(|record| record.seq).collect();
        apart.sort_unstable();
        apart.dedup();
        // A request that first in, first out has passed leaves with the next one.
        let passed = view.passed_request();
        apart.retain(|&seq| Some(seq) != passed);
        let passed = passed.and_then(|seq| view.record(seq));
        let passed = passed.filter(|passed| passed.seq >= span.first_seq && in_span(passed));
        let turns = older().filter(|record| is_summarized(&view, record));
        let turns: Vec<&TurnRecord> = passed.into_iter().chain(turns).collect();
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
        let left = |share: u8| {
            target.map_or(u64::MAX, |target| {
                let left = percent(self.beside_fixed(target, &view), share);
                left.saturating_sub(span.tail_tokens)
            })
        };
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
            shown: shown.map(|record| Arc::clone(&record.content)).collect(),
            apart,
            // Beside a long exchange under way the floor leaves nothing: a part of the rest then.
            tokens_max: left(policy.floor_percent)
                .max(left(100) / SUMMARY_SHARE)
                .min(policy.summary_tokens_max)
                .max(SUMMARY_TOKENS_MIN),
            room: left(100).max(SUMMARY_TOKENS_MIN),
            scale: target.map(|target| target.scale),
            mark: self.mark,
            is_needed: false,
        }
    }

    /// What may stay as it was said.
    fn keep(&self, trigger: Trigger, policy: &CompactionPolicy, limits: Option<&Limits>) -> Keep {
        let view = self.history.view(self.head.last_seq);
        let tokens = self.target().map_or(u64::MAX, |target| {
            let left = percent(self.beside_fixed(target, &view), policy.floor_percent);
            // The summary gets its share of what may stay, and never all of it.
            left - policy.summary_tokens_max.min(left / 2)
        });
        let all = Keep {
            exchanges: policy.keep_exchanges.max(1),
            is_exact: false,
            tokens,
            turns: u64::MAX,
            bytes: u64::MAX,
            splits_exchange: self.splits_exchange(trigger, &view),
        };
        match limits.map(|limits| self.limits(limits)) {
            // The history is full, not the budget: no more turns leave than necessary.
            Some(limits) if self.is_of_history(trigger, policy, &view) => Keep {
                exchanges: u32::MAX,
                turns: (limits.max_history_turns as u64 / HISTORY_SHARE).max(1),
                bytes: (limits.max_history_bytes as u64 / HISTORY_SHARE).max(1),
                ..all
            },
            _ => all,
        }
    }

    /// True where the history has no room, and a window has room for all that is left of it.
    fn is_of_history(&self, trigger: Trigger, policy: &CompactionPolicy, view: &View<'_>) -> bool {
        let fits = |target: WindowTokens| {
            let room = self.beside_fixed(target, view);
            let tail = view.tail_from(self.compaction().through_seq + 1);
            let shown = tail.filter(|record| !is_apart(view, record));
            let tokens: u64 = shown.map(|record| self.tokens_of(record)).sum();
            tokens < percent(room, policy.soft_watermark_percent)
        };
        match trigger {
            Trigger::History => true,
            Trigger::Reactive => self.target().is_some_and(fits),
            Trigger::Preemptive | Trigger::Command => false,
        }
    }

    /// True where the exchange under way is what has to be summarized: windows or the history have
    /// no room for all of it.
    fn splits_exchange(&self, trigger: Trigger, view: &View<'_>) -> bool {
        let Some(request) = view.request_under_way() else {
            return true;
        };
        match trigger {
            Trigger::Preemptive | Trigger::Command => false,
            Trigger::Reactive => {
                let compacting = self.compacting.as_ref();
                compacting.is_some_and(|it| it.left_out_seq > request.seq)
            }
            Trigger::History => {
                let next = (self.compaction().through_seq + 1).max(view.front_seq());
                next >= request.seq
            }
        }
    }

    fn span(&self, keep: &Keep) -> Option<Span> {
        let view = self.history.view(self.head.last_seq);
        let after_seq = self.compaction().through_seq;
        choose(&view, after_seq, keep, |record| self.tokens_of(record))
    }

    /// Tokens that a window leaves beside what all of them show: what a floor is a share of. A
    /// system prompt that comes as a message, and the anchor, are no less fixed than one that
    /// comes with the call.
    fn beside_fixed(&self, target: WindowTokens, view: &View<'_>) -> u64 {
        let fixed = target.fixed.saturating_add(self.apart_tokens(view));
        target.budget.saturating_sub(fixed)
    }

    /// Tokens of what windows show whatever a summary stands for.
    fn apart_tokens(&self, view: &View<'_>) -> u64 {
        let in_tail = view.tail_from(0).filter(|record| is_apart(view, record));
        let all = in_tail.chain(view.apart.iter().copied());
        all.map(|record| self.tokens_of(record)).sum()
    }

    fn tokens_of(&self, record: &TurnRecord) -> u64 {
        let target = self.target();
        let counted = target.zip(self.windows.as_ref());
        let counted =
            counted.and_then(|(target, windows)| windows.tokens(target.scale, record.seq));
        counted.unwrap_or(record.tokens).into()
    }
}
