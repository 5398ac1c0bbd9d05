//! Making a cut: what a window holds from now on.
//!
//! Cheapest first: results in other words, then turns that leave from the front of the
//! tail, or, by salience, the least important ones. A cut goes down to the floor, so that
//! the next one is far away.

use crate::error::CoreError;
use crate::history::TurnRecord;

use super::cut::{Cut, Excerpt};
use super::items::{Composer, Item};
use super::reduce;
use super::salience;
use super::tail_starts::{TailStart, TailStarts};
use super::{Ask, Policy};

/// Tokens below which an excerpt says nothing.
const EXCERPT_TOKENS_MIN: u64 = 48;

/// What a window may hold after a cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Tokens of everything.
    pub(super) tokens: u64,
    /// Turns of the tail.
    pub(super) turns: u64,
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
        was_not_enough: false,
        ..from.clone()
    };
    let mut maker = Maker::new(composer, from, ask);
    let target = target(ask);
    if maker.tokens() > target.tokens {
        maker.reduce();
    }
    maker.made.excerpt = maker.excerpt_ahead();
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
    let mut maker = Maker::new(composer, from.clone(), ask);
    maker.reduce();
    let is_less = maker.made.reduced != from.reduced;
    (is_less && maker.tokens() <= floor).then_some(maker.made)
}

/// The last turns and nothing else: decided anew for each window.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn slide(composer: &Composer<'_>, turns: u32, ask: &Ask<'_>) -> Result<Cut, CoreError> {
    let mut maker = Maker::new(composer, Cut::default(), ask);
    if let Some(start) = maker.last_units(turns.into()) {
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
        bytes: of_cap(ask.limits.max_history_bytes),
    }
}

/// A cut while it is made.
pub(super) struct Maker<'a> {
    pub(super) composer: &'a Composer<'a>,
    pub(super) ask: &'a Ask<'a>,
    pub(super) made: Cut,
    /// The turn that is said now, with all it must travel with.
    pub(super) unit: Vec<u64>,
}

impl<'a> Maker<'a> {
    /// Begins with what was decided before.
    fn new(composer: &'a Composer<'a>, from: Cut, ask: &'a Ask<'a>) -> Self {
        Self {
            composer,
            ask,
            made: Cut {
                budget: ask.budget,
                made_at: composer.view.last_seq,
                ..from
            },
            unit: composer.current_unit(),
        }
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
        composed.is_whole && (!is_joined || self.ask.fixed + composed.tokens >= target.tokens / 2)
    }

    /// The longest tail of whole units within the budget and `turns_max` turns; at least the
    /// current unit.
    fn last_units(&self, turns_max: u64) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.ask);
        let mut best = starts.next();
        while let Some(start) = starts.next() {
            if start.tokens > self.ask.budget || starts.turns > turns_max {
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
    /// current unit.
    fn start_within(&self, target: Target) -> Option<TailStart> {
        let mut starts = TailStarts::new(self.composer, &self.made, &self.unit, self.ask);
        let mut exchange = None;
        let mut unit = None;
        let mut current = None;
        while let Some(start) = starts.next() {
            let fits = start.tokens <= target.tokens
                && starts.turns <= target.turns
                && starts.bytes <= target.bytes;
            if fits {
                unit = Some(start);
                if starts.at_exchange {
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
        if self.unit.contains(&anchor.seq) || least.tokens <= self.ask.budget {
            return None;
        }
        let tokens = self.composer.tokens(anchor);
        let others = least.tokens.saturating_sub(tokens);
        let wanted = self.ask.floor().saturating_sub(others) / 2;
        excerpt(anchor, tokens, wanted.max(EXCERPT_TOKENS_MIN), self.ask)
    }

    /// The cut, with an excerpt of the anchor where that is what it takes to fit.
    fn fit(mut self) -> Result<Cut, CoreError> {
        let budget = self.ask.budget;
        if self.tokens() <= budget {
            return Ok(self.made);
        }
        self.made.excerpt = None;
        let all = self.composer.compose(&self.made);
        let total = self.ask.fixed + all.tokens;
        if total <= budget {
            return Ok(self.made);
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
        let left = self.ask.floor().saturating_sub(others);
        let wanted = left.clamp(EXCERPT_TOKENS_MIN, room);
        self.made.excerpt = excerpt(anchor, tokens, wanted, self.ask)
            .or_else(|| excerpt(anchor, tokens, room, self.ask));
        let total = self.tokens();
        match total <= budget && self.made.excerpt.is_some() {
            true => Ok(self.made),
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
    let bytes = anchor.content.len() as u64;
    let mut bytes = bytes.saturating_mul(wanted) / tokens.max(1);
    while bytes > 0 {
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let shown = reduce::excerpt(anchor, size, ask)?;
        if shown.tokens <= wanted {
            return Some(Excerpt {
                bytes: size,
                shown: Some(shown),
            });
        }
        bytes = bytes * 3 / 4;
    }
    None
}
