//! Making a cut: what a window holds from now on.
//!
//! Cheapest first: results in other words, then turns that leave from the front of the
//! tail, or, by salience, the least important ones. A cut goes down to the floor, so that
//! the next one is far away.

use crate::error::CoreError;
use crate::history::TurnRecord;
use crate::turn::Role;

use super::cut::{Cut, Excerpt};
use super::items::{Composer, Item};
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

/// What a tail that begins at `seq` makes of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) seq: u64,
    /// Tokens of the window.
    pub(super) tokens: u64,
    /// Of these, tokens reserved for lines where turns are left out.
    pub(super) lines: u64,
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
    let target = target(ask);
    let unit = composer.current_unit();
    if ask.fixed + composer.compose(&made).tokens > target.tokens {
        reduce::reduce(composer, &mut made, &unit, ask);
    }
    made.excerpt = ahead(composer, &made, &unit, ask);
    let unthinned = made.clone();
    if ask.policy == Policy::Salience {
        let least = smallest(composer, &made, &unit, ask);
        keep(composer, &mut made, &unit);
        salience::thin_out(composer, &mut made, (least, &unit), target, ask);
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
    let mut made = Cut { budget: ask.budget, made_at: composer.view.last_seq, ..Cut::default() };
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
    let before = composer.view.tail_from(made.seq).take_while(|record| record.seq < seq);
    let held = before.filter(|record| composer.view.is_kept(record)).map(|record| record.seq);
    made.kept.extend(held);
    made.seq = seq;
    made.holes.retain(|&(_, last)| last >= seq);
    keep(composer, made, unit);
    let kept = &made.kept;
    made.reduced.retain(|&turn, _| turn >= seq || kept.binary_search(&turn).is_ok());
}

/// Keeps the current unit, and of what was kept before only what is never left out.
fn keep(composer: &Composer<'_>, made: &mut Cut, unit: &[u64]) {
    let record = |seq: &u64| composer.view.record(*seq);
    made.kept.retain(|seq| record(seq).is_some_and(|record| composer.view.is_kept(record)));
    made.kept.extend(unit);
    made.kept.sort_unstable();
    made.kept.dedup();
}

/// The excerpt of an anchor that fits beside nothing: it leaves half of the floor to the
/// tail, which would have to leave for it otherwise.
fn ahead(composer: &Composer<'_>, made: &Cut, unit: &[u64], ask: &Ask<'_>) -> Option<Excerpt> {
    let least = smallest(composer, made, unit, ask)?;
    let anchor = composer.view.anchor().filter(|anchor| !unit.contains(&anchor.seq))?;
    if least.tokens <= ask.budget {
        return None;
    }
    let others = least.tokens.saturating_sub(composer.tokens(anchor));
    let wanted = ask.floor().saturating_sub(others) / 2;
    excerpt(anchor, composer.tokens(anchor), wanted.max(EXCERPT_TOKENS_MIN), ask)
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
        all.items.iter().any(|item| item.is_stored() && item.seq == anchor.seq)
            && anchor.seq != composer.view.last_seq
    });
    let Some(anchor) = anchor else { return Err(too_large(composer, made, unit, total, ask)) };
    let others = total - composer.tokens(anchor);
    let room = ask.budget.saturating_sub(others);
    if room < EXCERPT_TOKENS_MIN {
        return Err(too_large(composer, made, unit, others + EXCERPT_TOKENS_MIN, ask));
    }
    let wanted = ask.floor().saturating_sub(others).clamp(EXCERPT_TOKENS_MIN, room);
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
            return Some(Excerpt { bytes: size, shown: Some(shown) });
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
    let is_current = |item: &&Item| item.is_stored() && unit.contains(&item.seq);
    let turn = items.iter().filter(is_current).map(|item| item.tokens).sum();
    let pinned = tokens.saturating_sub(ask.fixed + turn);
    CoreError::CurrentTurnTooLarge {
        budget: ask.input_budget,
        tokens: ask.at_most(tokens),
        system: ask.at_most(ask.fixed),
        pinned: ask.at_most(pinned),
        turn: ask.at_most(turn),
    }
}

/// The places at which a tail may begin without tearing a unit apart, from the end on.
pub(super) struct Places<'a, I> {
    composer: &'a Composer<'a>,
    made: &'a Cut,
    /// The turn that is said now, with what it must travel with.
    unit: &'a [u64],
    tail: I,
    tokens: u64,
    lines: u64,
    /// The oldest turn that some turn so far must travel with.
    oldest_mate: u64,
    /// Turns and encoded bytes that the caps count, at the last place.
    pub(super) turns: u64,
    pub(super) bytes: u64,
    /// True when an exchange begins at the last place.
    pub(super) at_exchange: bool,
}

impl<'a> Places<'a, ()> {
    pub(super) fn new(
        composer: &'a Composer<'a>,
        made: &'a Cut,
        unit: &'a [u64],
        ask: &Ask<'_>,
    ) -> Places<'a, impl Iterator<Item = &'a TurnRecord> + use<'a>> {
        let view = composer.view;
        let tail = view.tail_from(made.seq);
        let anchor = view.anchor().map(|anchor| anchor.seq);
        // Where it does not outlive the cut, the anchor is a turn like any other.
        let plain = view.anchor().filter(|_| !composer.with_anchor);
        let plain_seq = plain.map_or(0, |anchor| anchor.seq);
        let older = tail.clone().filter(move |record| record.seq < plain_seq);
        let newer = view.tail_from(made.seq.max(plain_seq)).rev();
        let mut places = Places {
            composer,
            made,
            unit,
            tail: newer.chain(plain).chain(older.rev()),
            tokens: ask.fixed,
            lines: 0,
            oldest_mate: u64::MAX,
            turns: 0,
            bytes: 0,
            at_exchange: false,
        };
        let held = tail.filter(|record| view.is_kept(record)).map(|record| record.seq);
        let apart = composer.apart(made);
        let apart = apart.iter().filter(|record| {
            let stays =
                view.is_kept(record) || view.apart.iter().any(|apart| apart.seq == record.seq);
            stays && plain.is_none_or(|anchor| anchor.seq != record.seq || view.is_kept(anchor))
        });
        let mut always: Vec<u64> = apart.map(|record| record.seq).chain(held).collect();
        always.extend(unit);
        always.sort_unstable();
        always.dedup();
        places.lines = composer.overheads.elision * (always.len() as u64 + 1);
        places.tokens += places.lines;
        for record in always.iter().filter_map(|&seq| view.record(seq)) {
            places.tokens += places.shown_tokens(record);
            if Some(record.seq) != anchor {
                places.turns += 1;
                places.bytes += record.content.len() as u64;
            }
        }
        places
    }
}

impl<'a, I: Iterator<Item = &'a TurnRecord>> Places<'a, I> {
    /// The next place, with the tail from there to the end.
    pub(super) fn next(&mut self) -> Option<Place> {
        loop {
            let record = self.tail.next()?;
            let is_always = self.composer.view.is_kept(record) || self.unit.contains(&record.seq);
            if !is_always && self.made.leaves_out(record.seq) {
                continue;
            }
            if !is_always {
                self.tokens += self.shown_tokens(record);
                self.turns += 1;
                self.bytes += record.content.len() as u64;
                if let Some(oldest) = record.mates().min() {
                    self.oldest_mate = self.oldest_mate.min(oldest);
                }
            }
            if self.oldest_mate >= record.seq {
                self.at_exchange = record.role == Role::User && record.answers().is_empty();
                let (tokens, lines) = (self.tokens, self.lines);
                return Some(Place { seq: record.seq, tokens, lines });
            }
        }
    }

    fn shown_tokens(&self, record: &TurnRecord) -> u64 {
        let anchor = self.composer.view.anchor().map(|anchor| anchor.seq);
        let excerpt = self.made.excerpt.as_ref().filter(|_| anchor == Some(record.seq));
        let reduced = self.made.reduced.get(&record.seq);
        let shown = match excerpt {
            Some(excerpt) => excerpt.shown.as_ref(),
            None => reduced.and_then(|reduced| reduced.shown.as_ref()),
        };
        let tokens = shown.map_or_else(|| self.composer.tokens(record), |shown| shown.tokens);
        match self.composer.abandoned_since(record) {
            Some(_) => tokens + self.composer.abandoned_tokens(record),
            None => tokens,
        }
    }
}
