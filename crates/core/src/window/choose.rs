//! Making a cut: what a window holds from now on.
//!
//! Cheapest first: results in other words, then turns that leave from the front of the
//! tail, or, by salience, the least important ones. A cut goes down to the floor, so that
//! the next one is far away.
//!
//! The exchange under way, from the last user turn on, stays: where it alone is too large, its
//! older results are shortened, then what its older turns say, then the request; only after that
//! do its oldest steps leave, and never the request.
//!
//! Where a cap of turns or bytes makes the cut, it goes down to 80 % of the cap and not to the
//! floor. `turns` of a policy do not cut the exchange under way.

use crate::error::CoreError;
use crate::history::TurnRecord;

use super::cut::{Cut, Excerpt, Found};
use super::items::{Composer, Item};
use super::reduce;
use super::salience;
use super::tail_starts::{TailStart, TailStarts};
use super::{Ask, Policy};

/// Tokens below which an excerpt says nothing.
const EXCERPT_TOKENS_MIN: u64 = 48;
/// How the older steps of the exchange under way are shortened, one after the other: tokens of a
/// turn's results, or of all that it says.
const SHORTENED: [(u32, bool); 3] = [(384, false), (96, false), (96, true)];

/// How often the size of an excerpt is chosen by that of the last one.
const CLOSE_TRIES_MAX: u32 = 4;

/// What a window may hold after a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Tokens of everything.
    pub(super) tokens: u64,
    /// Turns of the tail.
    pub(super) turns: u64,
    /// The same where the exchange under way is all of it.
    pub(super) exchange_turns: u64,
    /// Encoded bytes of those turns.
    pub(super) bytes: u64,
}

/// Makes a cut of a window that was decided to be `from`.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn cut(composer: &Composer<'_>, from: &Cut, ask: &Ask<'_>) -> Result<Cut, CoreError> {
    let from = Cut {
        excerpt: None,
        found: Found::default(),
        ..from.clone()
    };
    let mut maker = Maker::new(composer, from, ask);
    salience::leave_torn(&mut maker);
    let mut target = target(ask);
    if maker.tokens() > target.tokens {
        maker.reduce();
    }
    maker.made.excerpt = maker.excerpt_ahead();
    if maker.made.excerpt.is_some() {
        target.tokens = ask.midway();
    }
    let unthinned = maker.made.clone();
    if ask.policy == Policy::Salience {
        // What first in, first out is about to take leaves first, however important it is.
        maker.begin_within(Target {
            tokens: u64::MAX,
            ..target
        });
        if let Some(least) = maker.smallest() {
            salience::thin_out(&mut maker, &least, target.tokens);
        }
    }
    if ask.policy != Policy::Salience || !maker.is_worth_it(target) {
        maker.made = unthinned;
        maker.begin_within(target);
    }
    maker.lengthen_excerpt(ask.ahead());
    maker.shorten_exchange();
    maker.fit()
}

/// Shows results in other words and nothing else: the cheapest way to the floor. `None` where
/// it does not lead there.
pub(super) fn reword(
    composer: &Composer<'_>,
    from: &Cut,
    floor: u64,
    ask: &Ask<'_>,
) -> Option<Cut> {
    let fresh = Cut {
        found: Found::default(),
        ..from.clone()
    };
    let mut maker = Maker::new(composer, fresh, ask);
    maker.reduce();
    let is_less = maker.made.reduced != from.reduced;
    (is_less && maker.tokens() <= floor).then_some(maker.made)
}

/// Shows results in other words, and where that is not enough less of the older steps of the
/// exchange under way. No turn leaves while there is room for all of them.
pub(super) fn shorten(composer: &Composer<'_>, from: &Cut, ask: &Ask<'_>) -> Cut {
    let mut maker = Maker::new(composer, from.clone(), ask);
    maker.reduce();
    if maker.tokens() <= ask.watermark() {
        maker.shorten_exchange();
    }
    maker.made
}

/// The last turns and nothing else: decided anew for each window.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn slide(composer: &Composer<'_>, turns: u32, ask: &Ask<'_>) -> Result<Cut, CoreError> {
    let mut maker = Maker::new(composer, Cut::default(), ask);
    maker.forget_request();
    if let Some(start) = maker.last_units(ask.budget, turns.into()) {
        maker.begin_at(start.seq);
    }
    maker.fit()
}

/// What a cut has to come down to.
fn target(ask: &Ask<'_>) -> Target {
    let of_cap = |cap: usize| (cap as u64).saturating_mul(4) / 5;
    let turns = of_cap(ask.limits.max_history_turns);
    Target {
        tokens: ask.floor(),
        turns: match ask.policy {
            Policy::HeadTail { turns: asked } if asked > 0 => turns.min(of_cap(asked as usize)),
            _ => turns,
        },
        exchange_turns: turns,
        bytes: of_cap(ask.limits.max_history_bytes),
    }
}

/// A cut while it is made.
pub(super) struct Maker<'a> {
    pub(super) composer: &'a Composer<'a>,
    pub(super) ask: &'a Ask<'a>,
    pub(super) made: Cut,
    /// What always stays: the turn that is said now, with all it must travel with, and the
    /// request that is being answered.
    pub(super) unit: Vec<u64>,
    /// That request.
    request: Option<&'a TurnRecord>,
    /// The turn that is said now, with all it must travel with.
    current: Vec<u64>,
}

impl<'a> Maker<'a> {
    /// Begins with what was decided before.
    fn new(composer: &'a Composer<'a>, from: Cut, ask: &'a Ask<'a>) -> Self {
        let current = composer.view.current_unit();
        let request = match composer.view.request_under_way() {
            Some(request) => Some(request),
            // Answered: it stays until the next one, unless a summary stands for it.
            None => composer
                .view
                .request()
                .filter(|request| request.seq > composer.through_seq()),
        };
        let mut unit = current.clone();
        unit.extend(request.map(|request| request.seq));
        unit.sort_unstable();
        unit.dedup();
        Self {
            composer,
            ask,
            made: Cut {
                budget: ask.budget,
                made_at: composer.view.last_seq,
                ..from
            },
            unit,
            request,
            current,
        }
    }

    /// From now on the request is a turn like any other.
    fn forget_request(&mut self) {
        self.request = None;
        self.unit.clone_from(&self.current);
    }

    /// The first turn of the tail that belongs to the exchange under way; `u64::MAX` where none
    /// is.
    pub(super) fn exchange_seq(&self) -> u64 {
        let first = self.request.map(|request| request.seq.max(self.made.seq));
        let first = first.and_then(|seq| self.composer.view.tail_from(seq).next());
        first.map_or(u64::MAX, |first| first.seq)
    }

    /// Tokens of the window that it makes.
    fn tokens(&self) -> u64 {
        self.ask.fixed + self.composer.compose(&self.made).tokens
    }

    fn reduce(&mut self) {
        reduce::reduce(self.composer, &mut self.made, &self.unit, self.ask);
    }

    /// Joined runs may tear a unit apart, or in a long history leave next to nothing; then the
    /// front leaves after all.
    fn is_worth_it(&self, target: Target) -> bool {
        let composed = self.composer.compose(&self.made);
        let is_joined = self.made.holes.len() >= salience::HOLES_MAX;
        let tokens = self.ask.fixed + composed.tokens;
        let is_enough = tokens <= self.ask.watermark().max(target.tokens);
        composed.is_whole && is_enough && (!is_joined || tokens >= target.tokens / 2)
    }

    /// The longest tail of whole units within so many tokens and turns; at least the current unit.
    fn last_units(&self, tokens_max: u64, turns_max: u64) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.ask);
        let mut best = starts.next();
        while let Some(start) = starts.next() {
            if start.tokens > tokens_max || starts.turns > turns_max {
                break;
            }
            best = Some(start);
        }
        best
    }

    /// The smallest tail: the current turn, and what it must travel with.
    fn smallest(&self) -> Option<TailStart> {
        TailStarts::new(self.composer, &self.made, &self.unit, self.ask).next()
    }

    /// Lets the tail begin where it is small enough.
    fn begin_within(&mut self, target: Target) {
        if let Some(start) = self.start_within(target) {
            self.begin_at(start.seq);
        }
    }

    /// The longest tail of whole exchanges that is small enough, else of whole units, else the
    /// exchange under way, as far as the caps on turns have room for it.
    fn start_within(&self, target: Target) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.ask);
        let mut exchange = None;
        let mut unit = None;
        let mut current = None;
        let exchange_seq = self.exchange_seq();
        let mut is_inside = true;
        while let Some(start) = starts.next() {
            let is_first = std::mem::replace(&mut is_inside, start.seq > exchange_seq);
            let turns_max = match is_first {
                true => target.exchange_turns,
                false => target.turns,
            };
            let has_place = starts.turns <= turns_max && starts.bytes <= target.bytes;
            if is_first && has_place {
                current = Some(start);
                if is_inside {
                    continue;
                }
            }
            if has_place && start.tokens <= target.tokens {
                unit = Some(start);
                if starts.at_exchange || is_first {
                    exchange = Some(start);
                }
            } else if current.is_some() {
                return exchange.or(unit).or(current);
            }
            current = current.or(Some(start));
        }
        // No turn has to leave: trimming results was enough.
        unit.or(current)
    }

    /// Lets the tail begin at `seq`; turns that are never left out are still shown.
    fn begin_at(&mut self, seq: u64) {
        let view = self.composer.view;
        let made = &mut self.made;
        // The current unit stays; of the turns kept before, those that are never left out.
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
        made.reduced
            .retain(|turn, _| *turn >= seq || kept.binary_search(turn).is_ok());
    }

    /// The excerpt of an anchor that fits beside nothing: it leaves half of the floor to the
    /// tail, which would have to leave for it otherwise.
    fn excerpt_ahead(&self) -> Option<Excerpt> {
        let least = self.smallest()?;
        let anchor = self.composer.view.anchor()?;
        if self.current.contains(&anchor.seq) || least.tokens <= self.ask.budget {
            return None;
        }
        let tokens = self.composer.tokens(anchor);
        let others = least.tokens.saturating_sub(tokens);
        let wanted = self.ask.midway().saturating_sub(others) / 2;
        let wanted = wanted.max(EXCERPT_TOKENS_MIN);
        // A short one stays as it is.
        (tokens > wanted).then(|| excerpt(anchor, tokens, wanted, self.ask))?
    }

    /// Gives the anchor's excerpt the room that the tail has left.
    fn lengthen_excerpt(&mut self, tokens_max: u64) {
        let anchor = self.composer.view.anchor();
        let shown = self
            .made
            .excerpt
            .as_ref()
            .and_then(|made| made.shown.as_ref());
        let (Some(anchor), Some(shown)) = (anchor, shown) else {
            return;
        };
        let room = tokens_max.saturating_sub(self.tokens());
        if room < EXCERPT_TOKENS_MIN {
            return;
        }
        let tokens = self.composer.tokens(anchor);
        let longer = excerpt(anchor, tokens, shown.tokens + room, self.ask);
        self.made.excerpt = longer.or(self.made.excerpt.take());
    }

    /// Where the exchange under way is all that is left of the tail and too much: shortens its
    /// older steps, then the request, and lets its oldest steps leave where that is not enough.
    /// Long results are shortened before all the room is used, so that the next cut is not at once.
    fn shorten_exchange(&mut self) {
        let Some(request) = self.request else { return };
        let enough = self.ask.midway();
        if self.tokens() <= enough {
            return;
        }
        for (place, (size, is_whole)) in SHORTENED.into_iter().enumerate() {
            if place > 0 && self.tokens() <= self.ask.watermark() {
                return;
            }
            // No further than it has to be.
            let goal = if place > 0 { enough } else { self.ask.floor() };
            self.shorten_steps(request.seq, size, is_whole, goal);
            if self.tokens() <= enough {
                return;
            }
        }
        if self.tokens() <= self.ask.watermark() {
            return;
        }
        self.shorten_request(enough, enough / 4);
        if self.tokens() > enough {
            self.leave_steps(enough);
        }
        self.shorten_request(self.ask.budget, EXCERPT_TOKENS_MIN);
        if self.tokens() > self.ask.budget
            && self
                .composer
                .view
                .anchor()
                .is_none_or(|anchor| anchor.seq != request.seq)
        {
            let before = self.made.excerpt.clone();
            let shortened = self.shorten_anchor();
            if shortened.is_err() || self.tokens() > self.ask.budget {
                self.made.excerpt = before;
                self.shorten_mates();
            }
            if self.tokens() > self.ask.budget {
                // There is no room even for an excerpt of it beside the turn that is said now.
                self.forget_request();
                self.leave_steps(enough);
            }
        }
    }

    /// Shows the older steps with at most about so many tokens each, the oldest first, until the
    /// window has come down to the goal.
    fn shorten_steps(&mut self, request_seq: u64, size: u32, is_whole: bool, goal: u64) {
        let (composer, ask) = (self.composer, self.ask);
        let view = composer.view;
        let mut tokens = self.tokens();
        for record in view.tail_from(self.made.seq.max(request_seq + 1)) {
            if tokens <= goal {
                return;
            }
            let stays = view.is_kept(record) || self.current.contains(&record.seq);
            let is_meant = is_whole || !record.answers().is_empty();
            if is_meant && !stays && !self.made.leaves_out(record.seq) {
                tokens -= reduce::shrink(composer, &mut self.made, record, size, is_whole, ask);
            }
        }
    }

    /// Trims the longest results beside the turn that is said now, which stays whole, no further
    /// than the window needs.
    fn shorten_mates(&mut self) {
        let (composer, ask) = (self.composer, self.ask);
        let newest = self.current.last().copied();
        for _ in 0..=self.current.len() {
            let excess = self.tokens().saturating_sub(ask.budget);
            let mates = self.current.iter().filter(|seq| Some(**seq) != newest);
            let mates = mates.filter_map(|&seq| composer.view.record(seq));
            let results = mates.filter(|it| !it.answers().is_empty() && !composer.view.is_kept(it));
            let tokens = |record: &&TurnRecord| composer.shown_tokens(&self.made, record);
            let longest = results.max_by_key(tokens).filter(|_| excess > 0);
            let Some(longest) = longest else { return };
            // The line that says what is left out has tokens as well.
            let size = tokens(&longest).saturating_sub(excess + EXCERPT_TOKENS_MIN);
            let size = size.max(EXCERPT_TOKENS_MIN);
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            if reduce::shrink(composer, &mut self.made, longest, size, false, ask) == 0 {
                return;
            }
        }
    }

    /// Shows an excerpt of the request, of at least so many tokens, where the window has more than
    /// `enough`.
    fn shorten_request(&mut self, enough: u64, tokens_min: u64) {
        let (composer, ask) = (self.composer, self.ask);
        let total = self.tokens();
        let Some(request) = self.request.filter(|_| total > enough) else {
            return;
        };
        if self.current.contains(&request.seq) || composer.view.is_kept(request) {
            return;
        }
        let shown = composer.shown_tokens(&self.made, request);
        let room = enough.saturating_sub(total - shown);
        let wanted = room.max(tokens_min).max(EXCERPT_TOKENS_MIN);
        if composer
            .view
            .anchor()
            .is_some_and(|anchor| anchor.seq == request.seq)
        {
            if shown > wanted {
                let made = excerpt(request, composer.tokens(request), wanted, ask);
                self.made.excerpt = made.or(self.made.excerpt.take());
            }
            return;
        }
        let mut size = u32::try_from(wanted).unwrap_or(u32::MAX);
        while size > 8 && composer.shown_tokens(&self.made, request) > wanted {
            reduce::shrink(composer, &mut self.made, request, size, true, ask);
            size = size / 4 * 3;
        }
    }

    /// Lets the oldest steps leave until the window has so many tokens.
    fn leave_steps(&mut self, enough: u64) {
        if let Some(start) = self.last_units(enough, u64::MAX) {
            self.begin_at(start.seq);
        }
    }

    /// The cut, with an excerpt of the anchor where that is what it takes to fit.
    fn fit(mut self) -> Result<Cut, CoreError> {
        if self.tokens() > self.ask.budget {
            self.shorten_anchor()?;
        }
        let total = self.tokens();
        match total <= self.ask.budget {
            true => Ok(self.made),
            false => Err(self.too_large(total)),
        }
    }

    /// Shows as much of the anchor as there is room for.
    fn shorten_anchor(&mut self) -> Result<(), CoreError> {
        let budget = self.ask.budget;
        self.made.excerpt = None;
        let all = self.composer.compose(&self.made);
        let total = self.ask.fixed + all.tokens;
        if total <= budget {
            return Ok(());
        }
        let view = self.composer.view;
        let is_shown = |anchor: &&TurnRecord| {
            let mut items = all.items.iter().filter(|item| item.is_stored());
            anchor.seq != view.last_seq && items.any(|item| item.seq == anchor.seq)
        };
        let anchor = view.anchor().filter(is_shown);
        let anchor = anchor.ok_or_else(|| self.too_large(total))?;
        let tokens = self.composer.tokens(anchor);
        let others = total - tokens;
        let room = budget.saturating_sub(others);
        if room < EXCERPT_TOKENS_MIN {
            return Err(self.too_large(others + EXCERPT_TOKENS_MIN));
        }
        // All the room but some for what is said next.
        let left = self.ask.ahead().saturating_sub(others).max(room / 2);
        let wanted = left.clamp(EXCERPT_TOKENS_MIN, room);
        self.made.excerpt = excerpt(anchor, tokens, wanted, self.ask)
            .or_else(|| excerpt(anchor, tokens, room, self.ask));
        match self.made.excerpt.is_some() {
            true => Ok(()),
            false => Err(self.too_large(total)),
        }
    }

    fn too_large(&self, tokens: u64) -> CoreError {
        let ask = self.ask;
        let items = self.composer.compose(&self.made).items;
        let is_current = |item: &&Item<'_>| item.is_stored() && self.unit.contains(&item.seq);
        let current = items.iter().filter(is_current);
        let turn = current.map(|item| item.tokens).sum();
        let pinned = tokens.saturating_sub(ask.fixed + turn);
        CoreError::CurrentTurnTooLarge {
            budget: ask.input_budget,
            tokens: ask.at_most(tokens),
            system: ask.at_most(ask.fixed),
            pinned: ask.at_most(pinned),
            turn: ask.at_most(turn),
        }
    }
}

/// An excerpt of at most `wanted` tokens: its bytes shrink until it fits.
fn excerpt(anchor: &TurnRecord, tokens: u64, wanted: u64, ask: &Ask<'_>) -> Option<Excerpt> {
    let bytes = reduce::text_bytes(anchor, ask);
    let tokens = reduce::text_tokens(anchor, tokens, ask);
    // What has no words, such as an image, becomes a line.
    let mut bytes = (bytes.saturating_mul(wanted) / tokens.max(1)).max(1);
    let mut tries = 0;
    while bytes > 0 {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let shown = reduce::excerpt(anchor, size, ask)?;
        if shown.tokens <= wanted {
            return Some(Excerpt {
                bytes: size,
                shown: Some(shown),
            });
        }
        // Nearly all the room is used; what does not come down so is shortened in large steps.
        let close = bytes.saturating_mul(wanted) / shown.tokens;
        bytes = match tries < CLOSE_TRIES_MAX {
            true => close.min(bytes * 31 / 32),
            false => bytes * 3 / 4,
        };
        tries += 1;
    }
    None
}
