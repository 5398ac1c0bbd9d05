//! Making a cut: what a window holds from now on.
//!
//! Cheapest first: results in other words, then turns that leave from the front of the
//! tail, or, by salience, the least important ones. A cut goes down to the floor, so that
//! the next one is far away.

use crate::error::CoreError;
use crate::history::TurnRecord;

use super::cut::{Cut, Excerpt};
use super::items::{Composer, Item};
use super::places::{Place, Places};
use super::reduce;
use super::salience;
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
    let mut made = from.clone();
    made.budget = ask.budget;
    made.made_at = composer.view.last_seq;
    made.excerpt = None;
    made.was_not_enough = false;
    let target = target(ask);
    let unit = composer.current_unit();
    if ask.fixed + composer.compose(&made).tokens > target.tokens {
        reduce::reduce(composer, &mut made, &unit, ask);
    }
    made.excerpt = ahead(composer, &made, &unit, ask);
    let unthinned = made.clone();
    if ask.policy == Policy::Salience {
        // What first in, first out is about to take leaves first, however important it is.
        let by_caps = Target {
            tokens: u64::MAX,
            ..target
        };
        if let Some(place) = place(composer, &made, &unit, by_caps, ask) {
            begin_at(composer, &mut made, place.seq, &unit);
        }
        let least = smallest(composer, &made, &unit, ask);
        salience::thin_out(composer, &mut made, (least, &unit), target.tokens, ask);
    }
    if ask.policy != Policy::Salience || !is_worth_it(composer, &made, target, ask) {
        made = unthinned;
        if let Some(place) = place(composer, &made, &unit, target, ask) {
            begin_at(composer, &mut made, place.seq, &unit);
        }
    }
    fit(composer, &mut made, &unit, ask)?;
    Ok(made)
}

/// Shows results in other words and nothing else: the cheapest way to the floor. `None` where
/// it does not lead there.
pub(super) fn reword(
    composer: &Composer<'_>,
    from: &Cut,
    floor: u64,
    ask: &Ask<'_>,
) -> Option<Cut> {
    let mut made = Cut {
        budget: ask.budget,
        made_at: composer.view.last_seq,
        ..from.clone()
    };
    reduce::reduce(composer, &mut made, &composer.current_unit(), ask);
    let is_less = made.reduced != from.reduced;
    (is_less && ask.fixed + composer.compose(&made).tokens <= floor).then_some(made)
}

/// Joined runs may tear a unit apart, or in a long history leave next to nothing; then the
/// front leaves after all.
fn is_worth_it(composer: &Composer<'_>, thinned: &Cut, target: Target, ask: &Ask<'_>) -> bool {
    let composed = composer.compose(thinned);
    let is_joined = thinned.holes.len() >= salience::HOLES_MAX;
    composed.is_whole && (!is_joined || ask.fixed + composed.tokens >= target.tokens / 2)
}

/// The last turns and nothing else: decided anew for each window.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn slide(composer: &Composer<'_>, turns: u32, ask: &Ask<'_>) -> Result<Cut, CoreError> {
    let made_at = composer.view.last_seq;
    let mut made = Cut {
        budget: ask.budget,
        made_at,
        ..Cut::default()
    };
    let unit = composer.current_unit();
    if let Some(place) = last_units(composer, &made, &unit, (ask.budget, turns.into()), ask) {
        begin_at(composer, &mut made, place.seq, &unit);
    }
    fit(composer, &mut made, &unit, ask)?;
    Ok(made)
}

/// The longest tail of whole units with so many tokens and turns; at least the current unit.
fn last_units(
    composer: &Composer<'_>,
    made: &Cut,
    unit: &[u64],
    (tokens, turns): (u64, u64),
    ask: &Ask<'_>,
) -> Option<Place> {
    let mut places = Places::new(composer, made, unit, ask);
    let mut best = places.next();
    while let Some(place) = places.next() {
        if place.tokens > tokens || places.turns > turns {
            break;
        }
        best = Some(place);
    }
    best
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

/// Where the tail has to begin: at the longest tail of whole exchanges that is small
/// enough, else of whole units, else at the current unit.
fn place(
    composer: &Composer<'_>,
    made: &Cut,
    unit: &[u64],
    target: Target,
    ask: &Ask<'_>,
) -> Option<Place> {
    let mut places = Places::new(composer, made, unit, ask);
    let (mut exchange, mut unit, mut current) = (None, None, None);
    loop {
        let Some(place) = places.next() else {
            // Nothing has to leave: what is shown in other words was enough.
            exchange = unit;
            break;
        };
        let fits = place.tokens <= target.tokens
            && places.turns <= target.turns
            && places.bytes <= target.bytes;
        if fits {
            unit = Some(place);
            if places.at_exchange {
                exchange = Some(place);
            }
        }
        if current.is_none() {
            current = Some(place);
        } else if !fits {
            break;
        }
    }
    exchange.or(unit).or(current)
}

/// The smallest tail: the current turn, and what it must travel with.
fn smallest(composer: &Composer<'_>, made: &Cut, unit: &[u64], ask: &Ask<'_>) -> Option<Place> {
    Places::new(composer, made, unit, ask).next()
}

/// Lets the tail begin at `seq`; what is never left out is shown all the same.
fn begin_at(composer: &Composer<'_>, made: &mut Cut, seq: u64, unit: &[u64]) {
    let before = composer
        .view
        .tail_from(made.seq)
        .take_while(|record| record.seq < seq);
    let held = before
        .filter(|record| composer.view.is_kept(record))
        .map(|record| record.seq);
    made.kept.extend(held);
    made.seq = seq;
    made.holes.retain(|&(_, last)| last >= seq);
    keep(composer, made, unit);
    let kept = &made.kept;
    made.reduced
        .retain(|&turn, _| turn >= seq || kept.binary_search(&turn).is_ok());
}

/// Keeps the current unit, and of what was kept before only what is never left out.
fn keep(composer: &Composer<'_>, made: &mut Cut, unit: &[u64]) {
    let record = |seq: &u64| composer.view.record(*seq);
    made.kept
        .retain(|seq| record(seq).is_some_and(|record| composer.view.is_kept(record)));
    made.kept.extend(unit);
    made.kept.sort_unstable();
    made.kept.dedup();
}

/// The excerpt of an anchor that fits beside nothing: it leaves half of the floor to the
/// tail, which would have to leave for it otherwise.
fn ahead(composer: &Composer<'_>, made: &Cut, unit: &[u64], ask: &Ask<'_>) -> Option<Excerpt> {
    let least = smallest(composer, made, unit, ask)?;
    let anchor = composer
        .view
        .anchor()
        .filter(|anchor| !unit.contains(&anchor.seq))?;
    if least.tokens <= ask.budget {
        return None;
    }
    let others = least.tokens.saturating_sub(composer.tokens(anchor));
    let wanted = ask.floor().saturating_sub(others) / 2;
    excerpt(
        anchor,
        composer.tokens(anchor),
        wanted.max(EXCERPT_TOKENS_MIN),
        ask,
    )
}

/// Makes an excerpt of the anchor where that is what it takes.
fn fit(
    composer: &Composer<'_>,
    made: &mut Cut,
    unit: &[u64],
    ask: &Ask<'_>,
) -> Result<(), CoreError> {
    if ask.fixed + composer.compose(made).tokens <= ask.budget {
        return Ok(());
    }
    made.excerpt = None;
    let all = composer.compose(made);
    let total = ask.fixed + all.tokens;
    if total <= ask.budget {
        return Ok(());
    }
    let anchor = composer.view.anchor().filter(|anchor| {
        all.items
            .iter()
            .any(|item| item.is_stored() && item.seq == anchor.seq)
            && anchor.seq != composer.view.last_seq
    });
    let Some(anchor) = anchor else {
        return Err(too_large(composer, made, unit, total, ask));
    };
    let others = total - composer.tokens(anchor);
    let room = ask.budget.saturating_sub(others);
    if room < EXCERPT_TOKENS_MIN {
        return Err(too_large(
            composer,
            made,
            unit,
            others + EXCERPT_TOKENS_MIN,
            ask,
        ));
    }
    let wanted = ask
        .floor()
        .saturating_sub(others)
        .clamp(EXCERPT_TOKENS_MIN, room);
    made.excerpt = excerpt(anchor, composer.tokens(anchor), wanted, ask)
        .or_else(|| excerpt(anchor, composer.tokens(anchor), room, ask));
    let total = ask.fixed + composer.compose(made).tokens;
    match total <= ask.budget && made.excerpt.is_some() {
        true => Ok(()),
        false => Err(too_large(composer, made, unit, total, ask)),
    }
}

/// An excerpt of at most so many tokens: tried with less and less until it is.
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

fn too_large(
    composer: &Composer<'_>,
    made: &Cut,
    unit: &[u64],
    tokens: u64,
    ask: &Ask<'_>,
) -> CoreError {
    let items = composer.compose(made).items;
    let is_current = |item: &&Item<'_>| item.is_stored() && unit.contains(&item.seq);
    let turn = items
        .iter()
        .filter(is_current)
        .map(|item| item.tokens)
        .sum();
    let pinned = tokens.saturating_sub(ask.fixed + turn);
    CoreError::CurrentTurnTooLarge {
        budget: ask.input_budget,
        tokens: ask.at_most(tokens),
        system: ask.at_most(ask.fixed),
        pinned: ask.at_most(pinned),
        turn: ask.at_most(turn),
    }
}
