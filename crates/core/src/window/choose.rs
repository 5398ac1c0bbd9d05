//! Making a cut: selects the contents of a window until the next cut.
//!
//! A cut reduces the window until it reaches the floor, in this order:
//!
//! 1. Results superseded by a later call become a marker.
//! 2. Old results are trimmed. The newest results stay whole if they fit at all.
//!    Other results stay whole if they are in the newest half of the room.
//! 3. The oldest turns leave, in whole exchanges if that costs little, otherwise in whole units. A
//!    summary replaces them.
//! 4. Trimmed results get the remaining room, newest first.
//!
//! If a cap on turns or bytes causes the cut, the target is 80 % of the cap. The parameters were
//! tuned on recorded conversations with `tests/eval/after_cut.py`.

use crate::compaction::{Openings, SummaryBudget};
use crate::error::CoreError;
use crate::history::TurnRecord;
use crate::turn::{PartKind, Role, Turn};

use super::block::Block;
use super::cut::{CachedPlan, Cut};
use super::input::{WindowInput, percent};
use super::items::{Composed, Composer, Item};
use super::policy::Policy;
use super::reduce;
use super::salience;
use super::tail_starts::{TailStart, TailStarts};

/// Maximum bytes of a trimmed result.
///
/// In a small window it is a sixteenth of what system prompt and tools leave.
const RESULT_BYTES_MAX: usize = 480;
/// Newest share of the room in which turns stay whole, in percent.
const WHOLE_PERCENT: u8 = 50;
/// Minimum room of the tail, as a percentage of what system prompt and tools leave.
const TAIL_PERCENT_MIN: u8 = 15;
/// Percentage of the same that the tail may lose to start with an exchange.
const EXCHANGE_PERCENT: u8 = 5;
/// Minimum tokens of a useful excerpt.
const EXCERPT_TOKENS_MIN: u64 = 48;
/// Minimum free tokens that are used to extend an excerpt.
const SPARE_TOKENS_MIN: u64 = 64;
/// Approximate bytes per token, for texts that were not counted.
const BYTES_PER_TOKEN: u64 = 4;
/// Tokens of a summary in addition to its sections: first line, titles and acknowledgement.
const SUMMARY_OVERHEAD: u64 = 120;
/// Maximum attempts to shorten an excerpt until it fits.
const TRIES_MAX: u32 = 8;

/// Maximum size of a window after a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Tokens of the whole window.
    pub(super) tokens: u64,
    /// Maximum turns of the tail, and the maximum if the tail is all in the current exchange.
    pub(super) turns: u64,
    pub(super) exchange_turns: u64,
    /// Encoded bytes of those turns.
    pub(super) bytes: u64,
}

/// Makes a cut of a window, starting from its previous cut `from`. Returns it with its window.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn cut<'a>(
    composer: &Composer<'a>,
    from: &Cut,
    input: &WindowInput<'_>,
) -> Result<(Cut, Composed<'a>), CoreError> {
    cut_ahead(composer, from, 0, input)
}

/// Like [`cut`], but for a future cut when the window has grown by `growth` tokens.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn cut_ahead<'a>(
    composer: &Composer<'a>,
    from: &Cut,
    growth: u64,
    input: &WindowInput<'_>,
) -> Result<(Cut, Composed<'a>), CoreError> {
    // Nothing was left out after a new summary yet, and nothing should be.
    let is_fresh = from.made_at == 0 && composer.block.is_some();
    let mut maker = CutBuilder::new(composer, from, input);
    salience::leave_torn(&mut maker);
    if input.settings.supersede {
        reduce::supersede(composer, &mut maker.made, &maker.unit, input);
    }
    maker.trim_request();
    maker.fit_newest_results();
    let whole = maker.made.clone();
    let caps = maker.caps();
    let goal = maker.floor(input.settings.floor_percent);
    let least = maker.floor(TAIL_PERCENT_MIN);
    let floor = goal.saturating_sub(growth).max(least);
    maker.trim_older(floor);
    let least = maker.tokens_of_newest().min(maker.most());
    let enough = if is_fresh {
        maker.most()
    } else {
        floor.max(least)
    };
    if maker.holds(Target {
        tokens: enough,
        ..caps
    }) {
        maker.untrim(floor);
        return maker.fit();
    }
    maker.made = whole;
    let target = maker.target_beside_summary(floor, least, caps);
    maker.trim_older(target.tokens);
    let unthinned = maker.made.clone();
    if input.policy == Policy::Salience {
        // Turns that the history is about to drop leave first, regardless of importance.
        maker.begin_within(Target {
            tokens: u64::MAX,
            ..target
        });
        if let Some(least) = maker.smallest() {
            salience::thin_out(&mut maker, &least, target.tokens);
        }
    }
    if input.policy != Policy::Salience || !maker.is_worth_it(target) {
        maker.made = unthinned;
        maker.begin_within(target);
    }
    maker.untrim(target.tokens);
    maker.fit()
}

/// Selects only the last turns, from scratch for each window.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn slide<'a>(
    composer: &Composer<'a>,
    turns: u32,
    input: &WindowInput<'_>,
) -> Result<(Cut, Composed<'a>), CoreError> {
    let mut maker = CutBuilder::new(composer, &Cut::default(), input);
    maker.forget_request();
    if let Some(start) = maker.last_units(input.budget, turns.into()) {
        maker.begin_at(start.seq);
    }
    maker.checked()
}

/// A cut in progress.
pub(super) struct CutBuilder<'m, 'a> {
    pub(super) composer: &'m Composer<'a>,
    pub(super) input: &'m WindowInput<'m>,
    pub(super) made: Cut,
    /// Turns that always stay: `current`, and the request that is being answered.
    pub(super) unit: Vec<u64>,
    /// That request, unless a summary covers it.
    request: Option<&'a TurnRecord>,
    /// Tokens of system prompt and tools, including a system prompt that consists of turns.
    fixed: u64,
    /// The newest turn and its unit.
    current: Vec<u64>,
    /// Turns with the results that the model reads next, or read last.
    newest_results: Vec<u64>,
    /// Maximum sizes of a summary's parts, in tokens.
    summary: SummaryBudget,
}

impl<'m, 'a> CutBuilder<'m, 'a> {
    /// Starts from the previous cut. How turns are shown is decided again.
    fn new(composer: &'m Composer<'a>, from: &Cut, input: &'m WindowInput<'m>) -> Self {
        let view = composer.view;
        let apart = view.apart.iter().copied().chain(view.tail_from(0).take(8));
        let leading = apart.filter(|record| view.leads(record));
        let leading_tokens: u64 = leading.map(|record| composer.tokens(record)).sum();
        let current = view.current_unit();
        let request = view
            .request_under_way()
            .or_else(|| view.request())
            .filter(|request| request.seq > composer.through_seq());
        let mut maker = Self {
            composer,
            input,
            made: Cut {
                budget: input.budget,
                made_at: view.last_seq,
                reduced: Default::default(),
                found: CachedPlan::default(),
                ..from.clone()
            },
            unit: Vec::new(),
            request,
            fixed: input.fixed + leading_tokens,
            current,
            newest_results: newest_results(composer),
            summary: SummaryBudget::default(),
        };
        // Remove turns that have left the history since.
        maker.made.kept.retain(|&seq| view.record(seq).is_some());
        let summary = input.summary_tokens.unwrap_or_default();
        maker.summary = SummaryBudget::of_rest(maker.rest(), summary);
        maker.set_unit();
        maker
    }

    fn set_unit(&mut self) {
        self.unit.clone_from(&self.current);
        self.unit.extend(self.request.map(|request| request.seq));
        self.unit.sort_unstable();
        self.unit.dedup();
    }

    /// Treats the request like any other turn from now on.
    fn forget_request(&mut self) {
        self.request = None;
        self.set_unit();
    }

    /// Tokens that system prompt and tools leave.
    fn rest(&self) -> u64 {
        self.input.budget.saturating_sub(self.fixed)
    }

    /// Tokens of a window that uses `share` percent of what system prompt and tools leave.
    fn floor(&self, share: u8) -> u64 {
        self.fixed + percent(self.rest(), share)
    }

    /// Maximum tokens after a cut, however large the newest result is.
    ///
    /// A sixth of what system prompt and tools leave stays free for the next turns.
    fn most(&self) -> u64 {
        (self.fixed + self.rest() * 5 / 6).min(self.input.watermark())
    }

    /// First turn of the tail that belongs to the exchange in progress, or `u64::MAX`.
    pub(super) fn exchange_seq(&self) -> u64 {
        let first = self
            .request
            .map(|request| request.seq.max(self.made.seq))
            .and_then(|seq| self.composer.view.tail_from(seq).next());
        first.map_or(u64::MAX, |first| first.seq)
    }

    /// Tokens of the resulting window.
    fn tokens(&self) -> u64 {
        self.input.fixed + self.composer.compose(&self.made).tokens
    }

    /// The caps on turns and bytes, without a token limit.
    fn caps(&self) -> Target {
        let of_cap = |cap: usize| (cap as u64).saturating_mul(4) / 5;
        let limits = self.input.limits;
        let turns = of_cap(limits.max_history_turns);
        Target {
            tokens: u64::MAX,
            turns: match self.input.policy {
                Policy::HeadTail { turns: asked } if asked > 0 => turns.min(of_cap(asked as usize)),
                _ => turns,
            },
            exchange_turns: turns,
            bytes: of_cap(limits.max_history_bytes),
        }
    }

    /// Whether all turns fit into `target`.
    fn holds(&self, target: Target) -> bool {
        let view = self.composer.view;
        let composed = self.composer.compose(&self.made);
        let is_small = self.input.fixed + composed.tokens <= target.tokens;
        let first = view.tail_from(self.made.seq).next().map(|first| first.seq);
        is_small
            && composed.is_whole
            && !view.has_lost_since(self.made.seq, &self.made.holes)
            && self
                .start_within(Target {
                    tokens: u64::MAX,
                    ..target
                })
                .map(|start| start.seq)
                == first
    }

    /// Tokens of a window with only the turns that always stay.
    fn least(&self) -> u64 {
        self.smallest()
            .map_or(self.input.fixed, |least| least.tokens)
    }

    /// Tokens of a window with a tail that starts with the call of the newest results.
    fn tokens_of_newest(&self) -> u64 {
        let view = self.composer.view;
        let results = self
            .newest_results
            .iter()
            .filter_map(|&seq| view.record(seq));
        let calls = results.flat_map(|record| record.answers().iter().copied());
        let first = calls.min().filter(|seq| *seq >= self.made.seq);
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.input);
        let mut tokens = self.input.fixed;
        while let Some(start) = starts.next() {
            tokens = start.tokens;
            if first.is_none_or(|first| start.seq <= first) {
                break;
            }
        }
        tokens
    }

    /// The target if turns leave. Their summary uses a part of the floor.
    fn target_beside_summary(&self, floor: u64, newest: u64, caps: Target) -> Target {
        let shown = self.composer.block.map_or(0, Block::tokens);
        let least = self.least();
        let tail_min = newest.max(least + percent(self.rest(), TAIL_PERCENT_MIN));
        let target = |opening: u64| {
            let summary = match self.input.summary_tokens {
                Some(_) => {
                    let sections = self.summary.summary + self.summary.user_turns / 2;
                    sections + opening + SUMMARY_OVERHEAD
                }
                None => shown,
            };
            let most = (self.most() + shown).saturating_sub(summary);
            let tokens = (floor + shown)
                .saturating_sub(summary)
                .max(tail_min)
                .min(most.max(least));
            Target { tokens, ..caps }
        };
        if self.input.summary_tokens.is_none() {
            return target(0);
        }
        // The summary includes the request that leaves, which depends on where the tail starts.
        let (opening_seq, opening) = self.last_opening();
        let guess = target(opening);
        match self.start_within(guess) {
            // The window shows the request itself.
            Some(start) if start.seq <= opening_seq => target(0),
            _ => guess,
        }
    }

    /// The seq of the newest opening, or 0 if it is summarized, and its tokens in the next summary.
    fn last_opening(&self) -> (u64, u64) {
        let (composer, view) = (self.composer, self.composer.view);
        let summarized = composer.block.map(|block| &block.summary.body);
        let mut openings = summarized.map_or_else(Openings::default, |body| {
            Openings::with_starts(&body.starts)
        });
        let known = summarized.and_then(|body| body.user_turns.iter().rfind(|turn| turn.opens));
        let mut tokens = known.map_or(0, |turn| turn.text.len() as u64 / BYTES_PER_TOKEN);
        let mut seq = 0;
        for record in view.tail_from(composer.through_seq() + 1) {
            let is_opening = if record.begins_exchange() {
                openings.observe(Role::User, &self.text(record), None)
            } else {
                openings.observe(
                    if record.role == Role::User {
                        Role::Tool
                    } else {
                        record.role
                    },
                    "",
                    None,
                )
            };
            if is_opening {
                seq = record.seq;
                let is_request = self
                    .request
                    .is_some_and(|request| request.seq == record.seq);
                tokens = if is_request {
                    0
                } else {
                    composer.tokens(record)
                };
            }
        }
        (seq, tokens.min(self.summary.opening))
    }

    fn has_media(&self, record: &TurnRecord) -> bool {
        let turn = (self.input.codec.open)(&record.content);
        turn.is_some_and(|turn| {
            let mut parts = turn.parts.iter();
            parts.any(|part| matches!(part.kind, PartKind::Media { .. }))
        })
    }

    /// The text of a turn, without calls and results.
    fn text(&self, record: &TurnRecord) -> String {
        let turn: Option<Turn> = (self.input.codec.open)(&record.content);
        let texts = turn
            .iter()
            .flat_map(|turn| &turn.parts)
            .filter_map(|part| match &part.kind {
                PartKind::Text(text) => Some(text.as_str()),
                _ => None,
            });
        texts.collect::<Vec<_>>().join("\n")
    }

    /// Trims the newest results if they do not fit.
    ///
    /// Each gets an equal share of the room. The unused part of a share goes to the others.
    fn fit_newest_results(&mut self) {
        let view = self.composer.view;
        let newest = self.newest_results.clone();
        let mut records: Vec<&TurnRecord> =
            newest.iter().filter_map(|&seq| view.record(seq)).collect();
        records.retain(|record| !view.is_kept(record) && record.seq >= self.made.seq);
        let tokens = |record: &&TurnRecord| self.composer.shown_tokens(&self.made, record);
        let sum: u64 = records.iter().map(tokens).sum();
        let in_unit = records
            .iter()
            .filter(|record| self.unit.contains(&record.seq));
        let others = self.least() - in_unit.map(tokens).sum::<u64>();
        let shown = self.composer.block.map_or(0, Block::tokens);
        let summary = match self.input.summary_tokens {
            Some(_) => (self.summary.summary + SUMMARY_OVERHEAD).saturating_sub(shown),
            None => 0,
        };
        let mut room = self.most().saturating_sub(others + summary);
        if sum <= room {
            return;
        }
        records.sort_by_key(tokens);
        for (place, record) in records.iter().enumerate() {
            let share = room / (records.len() - place) as u64;
            let whole = self.composer.shown_tokens(&self.made, record);
            let used = if whole <= share {
                whole
            } else {
                self.shorten_to(record, share.max(EXCERPT_TOKENS_MIN))
            };
            room = room.saturating_sub(used);
        }
    }

    /// Shortens a turn to about `tokens` tokens and returns its resulting size in tokens.
    fn shorten_to(&mut self, record: &TurnRecord, tokens: u64) -> u64 {
        let (composer, input) = (self.composer, self.input);
        let whole = composer.tokens(record).max(1);
        let bytes = reduce::text_bytes(record, input) as u64;
        // Media are dropped before text.
        let mut wanted = if self.has_media(record) {
            bytes
        } else {
            bytes.saturating_mul(tokens) / whole
        };
        let mut shown = composer.shown_tokens(&self.made, record);
        for _ in 0..TRIES_MAX {
            shown = reduce::trim(composer, &mut self.made, record, small(wanted), input);
            if shown <= tokens || wanted == 0 {
                break;
            }
            // The marker has bytes too, so a short text must lose much to get smaller.
            let less = if shown >= whole {
                wanted * 2 / 3
            } else {
                wanted * 15 / 16
            };
            wanted = (wanted.saturating_mul(tokens) / shown.max(1)).min(less);
        }
        shown
    }

    /// Trims the results that are older than the newest half of the room.
    fn trim_older(&mut self, target: u64) {
        let (composer, input) = (self.composer, self.input);
        let view = composer.view;
        let room = target.saturating_sub(self.least());
        let whole = percent(room, WHOLE_PERCENT);
        let mut used = 0;
        for record in view.tail_from(self.made.seq).rev() {
            let stays = view.is_kept(record) || self.current.contains(&record.seq);
            if stays || self.made.leaves_out(record.seq) {
                continue;
            }
            let mut tokens = composer.shown_tokens(&self.made, record);
            let is_newest = self.newest_results.contains(&record.seq);
            if !is_newest
                && used + tokens > whole
                && let Some(bytes) = self.trimmed_bytes(record)
            {
                tokens = reduce::trim(composer, &mut self.made, record, bytes, input);
            }
            if !self.unit.contains(&record.seq) {
                used += tokens;
            }
            // Even older turns leave.
            if used > room + room / 4 {
                break;
            }
        }
    }

    /// Shortens the request and, if it is shown, the first user turn.
    ///
    /// The request is only shortened if it does not fit next to the current turn, the first user
    /// turn to the share of an opening.
    fn trim_request(&mut self) {
        let shown_anchor =
            self.composer.view.anchor().filter(|anchor| {
                self.composer.with_anchor && anchor.seq > self.composer.through_seq()
            });
        let is_request = |anchor: &&TurnRecord| {
            self.request
                .is_some_and(|request| request.seq == anchor.seq)
        };
        let opening = self.summary.opening.max(EXCERPT_TOKENS_MIN);
        let anchor = shown_anchor
            .filter(|anchor| !is_request(anchor))
            .map(|anchor| (anchor, opening));
        let request = self.request.map(|request| {
            let shown = self.composer.shown_tokens(&self.made, request);
            let fits = self.least() <= self.most();
            (request, if fits { shown } else { opening })
        });
        for (record, most) in [anchor, request].into_iter().flatten() {
            let stays = self.current.contains(&record.seq) || self.composer.view.is_kept(record);
            if !stays && self.composer.shown_tokens(&self.made, record) > most {
                self.shorten_to(record, most);
            }
        }
    }

    /// Maximum bytes of a turn's results once it is old, or `None` if the turn stays whole.
    fn trimmed_bytes(&self, record: &TurnRecord) -> Option<usize> {
        let result_bytes = small(self.rest() * BYTES_PER_TOKEN / 16).min(RESULT_BYTES_MAX);
        let bytes = result_bytes * record.answers().len();
        let is_longer = self.composer.tokens(record) * BYTES_PER_TOKEN > bytes as u64;
        (bytes > 0 && is_longer).then_some(bytes)
    }

    /// Extends trimmed turns of the tail into the remaining room, newest first.
    fn untrim(&mut self, target: u64) {
        if self.made.is_plain() {
            return;
        }
        let composer = self.composer;
        let mut spare = target.saturating_sub(self.tokens());
        let trimmed: Vec<u64> = self.made.reduced.keys().rev().copied().collect();
        for seq in trimmed {
            let reduced = self.made.reduced.get(&seq);
            let is_superseded = reduced.is_none_or(super::cut::ReducedTurn::is_superseded);
            let record = composer.view.record(seq).filter(|_| !is_superseded);
            let Some(record) = record.filter(|record| !self.newest_results.contains(&record.seq))
            else {
                continue;
            };
            if spare < SPARE_TOKENS_MIN {
                return;
            }
            let shown = composer.shown_tokens(&self.made, record);
            let whole = composer.tokens(record);
            if whole - shown <= spare {
                self.made.reduced.remove(&seq);
                spare -= whole - shown;
                continue;
            }
            let before = self.made.reduced.get(&seq).cloned();
            let now = self.shorten_to(record, shown + spare);
            if now > shown + spare || now < shown {
                self.made.reduced.extend(before.map(|before| (seq, before)));
                continue;
            }
            spare -= now - shown;
        }
    }

    /// Whether thinning out the middle was worthwhile.
    ///
    /// Joining runs of dropped turns may split a unit, or leave almost nothing of a long history.
    fn is_worth_it(&self, target: Target) -> bool {
        let composed = self.composer.compose(&self.made);
        let is_joined = self.made.holes.len() >= salience::HOLES_MAX;
        let tokens = self.input.fixed + composed.tokens;
        let is_enough = tokens <= self.input.watermark().max(target.tokens);
        composed.is_whole && is_enough && (!is_joined || tokens >= target.tokens / 2)
    }

    /// The longest tail of whole units within these limits, at least the current unit.
    fn last_units(&self, tokens_max: u64, turns_max: u64) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.input);
        let first = starts.next();
        let (mut whole, mut split) = (first.filter(|start| !start.splits_unit), first);
        while let Some(start) = starts.next() {
            if start.tokens > tokens_max || starts.turns > turns_max {
                break;
            }
            let best = if start.splits_unit {
                &mut split
            } else {
                &mut whole
            };
            *best = Some(start);
        }
        whole.or(split)
    }

    /// The smallest tail: the current turn and its unit.
    fn smallest(&self) -> Option<TailStart> {
        TailStarts::new(self.composer, &self.made, &self.unit, self.input).next()
    }

    /// Starts the tail so that the window fits the target.
    fn begin_within(&mut self, target: Target) {
        if let Some(start) = self.start_within(target) {
            self.begin_at(start.seq);
        }
    }

    /// The start of the longest tail of whole units that fits the target.
    ///
    /// Prefers the start of an exchange if that costs little. If nothing fits, returns the exchange
    /// in progress, as far as the caps on turns allow.
    fn start_within(&self, target: Target) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.input);
        let (mut exchange, mut unit, mut current) = (None::<TailStart>, None::<TailStart>, None);
        // A unit in progress that is too large is split between its calls.
        let mut split = None;
        let exchange_seq = self.exchange_seq();
        let mut is_inside = true;
        while let Some(start) = starts.next() {
            let is_first = std::mem::replace(&mut is_inside, start.seq > exchange_seq);
            let turns_max = if is_first {
                target.exchange_turns
            } else {
                target.turns
            };
            let has_place = starts.turns <= turns_max && starts.bytes <= target.bytes;
            if has_place && start.tokens <= target.tokens && start.splits_unit {
                split = Some(start);
            } else if has_place && start.tokens <= target.tokens {
                unit = Some(start);
                if starts.at_exchange {
                    exchange = Some(start);
                }
            } else if current.is_some() {
                let little = percent(self.rest(), EXCHANGE_PERCENT);
                let is_near = |exchange: &TailStart| {
                    unit.is_some_and(|unit| unit.tokens - exchange.tokens <= little)
                };
                return exchange.filter(is_near).or(unit).or(split).or(current);
            }
            current = current.or(Some(start));
        }
        unit.or(split).or(current)
    }

    /// Starts the tail at `seq`. Turns that are never left out are still shown.
    fn begin_at(&mut self, seq: u64) {
        let view = self.composer.view;
        let anchor = view.anchor().map(|anchor| anchor.seq);
        let made = &mut self.made;
        // The current unit stays, and the kept turns that are never left out.
        let earlier = made.kept.iter().filter_map(|&seq| view.record(seq));
        let passed = view
            .tail_from(made.seq)
            .take_while(|record| record.seq < seq);
        let held = earlier.chain(passed).filter(|record| view.is_kept(record));
        let mut kept: Vec<u64> = held.map(|record| record.seq).collect();
        kept.extend(&self.unit);
        kept.sort_unstable();
        kept.dedup();
        made.kept = kept;
        made.seq = seq;
        made.holes.retain(|&(_, last)| last >= seq);
        let kept = &made.kept;
        made.reduced.retain(|turn, _| {
            *turn >= seq || kept.binary_search(turn).is_ok() || Some(*turn) == anchor
        });
    }

    /// Finishes the cut, shrinking the turns that always stay if nothing else helps.
    fn fit(mut self) -> Result<(Cut, Composed<'a>), CoreError> {
        let budget = self.input.budget;
        let composed = self.composer.compose(&self.made);
        if self.input.fixed + composed.tokens <= budget {
            return Ok((self.made, composed));
        }
        if let Some(least) = self.smallest() {
            self.begin_at(least.seq);
        }
        let view = self.composer.view;
        let anchor = view.anchor();
        let results = self
            .newest_results
            .iter()
            .filter_map(|&seq| view.record(seq));
        let mut shrinkable: Vec<&TurnRecord> = results.collect();
        // Results first, then the request and the first user turn.
        shrinkable.sort_by_key(|record| std::cmp::Reverse(self.composer.tokens(record)));
        shrinkable.extend(self.request.into_iter().chain(anchor));
        for record in shrinkable {
            let excess = self.tokens().saturating_sub(budget);
            let is_newest_words = record.answers().is_empty() && self.current.contains(&record.seq);
            if excess == 0 || is_newest_words || view.is_kept(record) {
                continue;
            }
            let shown = self.composer.shown_tokens(&self.made, record);
            self.shorten_to(record, shown.saturating_sub(excess).max(EXCERPT_TOKENS_MIN));
        }
        if self.tokens() > budget {
            // Not even an excerpt of the request fits.
            self.forget_request();
            if let Some(least) = self.smallest() {
                self.begin_at(least.seq);
            }
        }
        self.checked()
    }

    fn checked(self) -> Result<(Cut, Composed<'a>), CoreError> {
        let input = self.input;
        let composed = self.composer.compose(&self.made);
        let total = input.fixed + composed.tokens;
        if total <= input.budget {
            return Ok((self.made, composed));
        }
        let is_current = |item: &&Item<'_>| item.is_stored() && self.unit.contains(&item.seq);
        let turn = composed
            .items
            .iter()
            .filter(is_current)
            .map(|item| item.tokens)
            .sum();
        let pinned = total.saturating_sub(input.fixed + turn);
        Err(CoreError::CurrentTurnTooLarge {
            budget: input.input_budget,
            tokens: input.at_most(total),
            system: input.at_most(input.fixed),
            pinned: input.at_most(pinned),
            turn: input.at_most(turn),
        })
    }
}

/// Turns with unread results, which come after the assistant's newest turn.
///
/// If there are none, the last turn with results.
pub(super) fn newest_results(composer: &Composer<'_>) -> Vec<u64> {
    let mut newest = Vec::new();
    let mut is_read = false;
    for record in composer.view.tail_from(0).rev() {
        if !record.answers().is_empty() {
            newest.push(record.seq);
            if is_read {
                break;
            }
        } else if record.role == Role::Assistant {
            if !newest.is_empty() {
                break;
            }
            is_read = true;
        }
    }
    newest.sort_unstable();
    newest
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
