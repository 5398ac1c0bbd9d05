//! Planning a window: checks whether the last cut is still valid, and composes the window.

use std::sync::Arc;

use crate::error::CoreError;
use crate::history::View;
use crate::nonce::Nonce;
use crate::seq_ranges::SeqRanges;
use crate::turn::{Role, Turn};

use super::block::Block;
use super::cut::{Cut, ReducedTurn};
use super::input::{Overheads, WindowInput, WindowTurn};
use super::items::{Composed, Composer, Item};
use super::kept::{CachedFront, FrontInputs, PrefixTotals, WindowTurns};
use super::policy::Policy;
use super::report::{Blocks, Omission, OmissionReason, Report};
use super::{choose, content, words};

#[derive(Clone, Debug)]
pub struct Window {
    pub turns: WindowTurns,
    /// Indices of turns after which a provider's cache may end, ascending.
    ///
    /// They end the part that a cut does not change, the part that was sent before, and the window.
    pub cache_breakpoints: Vec<usize>,
    pub report: Report,
    /// Whether a cut was made for it.
    pub has_new_cut: bool,
    /// Results that are newly trimmed or superseded by this cut.
    pub newly_reduced: u64,
    /// Estimated tokens of the history's turns that it does not send.
    pub tokens_saved: u64,
    /// Counted tokens of the whole window.
    pub counted: u64,
    /// Start of the tail if turns before it are left out without a summary.
    ///
    /// If the next cut is near and will leave such turns out, the start of the tail in that cut.
    pub tail_seq: Option<u64>,
}

/// The last sent window, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentWindow {
    /// Its newest turn.
    pub last_seq: u64,
    /// Digest of its system prompt and tools, the same in all processes.
    pub fixed_digest: u64,
}

impl Window {
    /// Adds a block of memories after the turns, within the room that `Ask::memories` reserved.
    #[allow(clippy::cast_possible_truncation)]
    pub fn hold_memories(&mut self, tokens: u64) {
        self.counted += tokens;
        self.report.blocks.memories = (tokens as f64 * self.report.token_factor) as u64;
    }

    /// Whether it contains all these turns. `last_seq` is the last assigned seq.
    pub fn holds(&self, seqs: &[u64], last_seq: u64, rewound: Option<&SeqRanges>) -> bool {
        let is_rewound = |seq: u64| rewound.is_some_and(|rewound| rewound.contains(seq));
        let is_out = |seq: &u64| {
            let mut gaps = self.report.omissions.iter();
            gaps.any(|gap| (gap.first_seq..=gap.last_seq).contains(seq))
        };
        let is_in = |seq: &u64| *seq <= last_seq && !is_rewound(*seq) && !is_out(seq);
        !seqs.is_empty() && seqs.iter().all(is_in)
    }
}

/// A planned window, its cut, and the front from which the next one can continue.
pub(super) struct Planned {
    pub(super) window: Window,
    pub(super) cut: Cut,
    pub(super) kept: Option<CachedFront>,
}

/// Counts memoird's own text on a scale.
pub fn overheads(weigh: &dyn Fn(&Turn) -> u64) -> Overheads {
    Overheads {
        elision: weigh(&words::gap(words::LONGEST_GAP, Nonce::default())),
        pause: weigh(&words::pause(
            1_000_000_000,
            1_700_000_000,
            Nonce::default(),
        )),
        abandoned: weigh(&words::abandoned(std::iter::once(""), Nonce::default())),
    }
}

/// The previous window.
#[derive(Clone, Copy)]
pub(super) struct PreviousWindow<'a> {
    pub(super) cut: &'a Cut,
    /// `None` if it was not sent.
    pub(super) sent: Option<SentWindow>,
    /// Whether there was a previous window.
    pub(super) is_known: bool,
}

/// The summaries that a window may show.
#[derive(Clone, Copy)]
pub(super) struct Summaries<'a> {
    pub(super) newest: Option<&'a Block>,
    /// The one that the previous window shows, if that is an older one.
    pub(super) shown: Option<&'a Block>,
    /// Whether the newest must be shown at once.
    pub(super) is_due: bool,
    /// Whether no window was made since the newest became due.
    ///
    /// Then previous cuts are discarded, even if there is no room for the newest summary.
    pub(super) is_newly_due: bool,
}

/// Preview of the next cut. Sizes are in tokens unless noted otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextCut {
    /// A larger window is cut.
    pub at_tokens: u64,
    /// Turns until then at the average length of the last ones. `None` without turns.
    pub in_turns: Option<u64>,
    /// Size of the window after a cut now.
    pub tokens_after: u64,
    /// Whether a summary is ready that replaces turns at the cut.
    pub is_summary_ready: bool,
    /// Turns of the window that a cut now would omit or shorten.
    pub omissions: Vec<Omission>,
}

/// Number of last turns whose average length predicts the next ones.
const LAST_TURNS: usize = 20;

/// Previews the next cut as if it were made now. `None` for sliding windows.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn next_cut(
    composer: &Composer<'_>,
    summaries: Summaries<'_>,
    last: PreviousWindow<'_>,
    input: &WindowInput<'_>,
) -> Result<Option<NextCut>, CoreError> {
    if matches!(input.policy, Policy::SlidingWindow { .. }) {
        return Ok(None);
    }
    let now = decide(*composer, summaries, last, None, input)?;
    let newest = Composer {
        block: summaries.newest,
        ..*composer
    };
    let then = cut_now(newest, &now.cut, input)?;
    let shown = omissions(&now.composer, &now.cut, &now.composed);
    let mut taken = omissions(&then.composer, &then.cut, &then.composed);
    taken.retain(|omission| !shown.contains(omission));
    let tail = composer.view.tail_from(0).rev().take(LAST_TURNS);
    let lengths: Vec<u64> = tail.map(|record| composer.tokens(record)).collect();
    let used = input.fixed + now.composed.tokens;
    let room = input.watermark().saturating_sub(used);
    let all: u64 = lengths.iter().sum();
    let in_turns = (all > 0).then(|| room * lengths.len() as u64 / all);
    Ok(Some(NextCut {
        at_tokens: input.shown(input.watermark()),
        in_turns,
        tokens_after: input.shown(input.fixed + then.composed.tokens),
        is_summary_ready: then.cut.summary != now.cut.summary,
        omissions: taken,
    }))
}

/// The decisions of a window.
struct WindowDecisions<'a> {
    /// Includes the summary that it shows.
    composer: Composer<'a>,
    cut: Cut,
    composed: Composed<'a>,
    /// Whether sent turns may be shown differently.
    is_other: bool,
}

impl<'a> WindowDecisions<'a> {
    fn new(composer: Composer<'a>, (cut, composed): (Cut, Composed<'a>)) -> Self {
        Self {
            composer,
            cut,
            composed,
            is_other: true,
        }
    }
}

/// Plans the next window, reusing the front of the previous one if possible.
///
/// The composer has no summary yet.
///
/// # Errors
/// [`CoreError::CurrentTurnTooLarge`].
pub(super) fn plan(
    composer: &Composer<'_>,
    summaries: Summaries<'_>,
    last: PreviousWindow<'_>,
    kept: Option<CachedFront>,
    input: &WindowInput<'_>,
) -> Result<Planned, CoreError> {
    let decided = decide(*composer, summaries, last, kept, input)?;
    Ok(finish(decided, summaries, last, input))
}

fn decide<'a>(
    composer: Composer<'a>,
    summaries: Summaries<'a>,
    last: PreviousWindow<'_>,
    mut kept: Option<CachedFront>,
    input: &WindowInput<'_>,
) -> Result<WindowDecisions<'a>, CoreError> {
    if let Policy::SlidingWindow { turns } = input.policy {
        let made = choose::slide(&composer, turns, input)?;
        return Ok(WindowDecisions::new(composer, made));
    }
    let newest = Composer {
        block: summaries.newest,
        ..composer
    };
    let mut cut = last.cut.clone();
    // With much more room than at the last cut, left out turns may come back.
    let is_roomy = cut.budget > 0 && input.budget >= cut.budget.saturating_add(cut.budget / 4);
    if is_roomy || summaries.is_newly_due || summaries.must_show_newest(last) {
        cut = fresh(&newest);
        kept = None;
    }
    let is_newest = cut.summary == number(summaries.newest);
    let block = if is_newest {
        summaries.newest
    } else {
        summaries.shown
    };
    let now = Composer { block, ..composer };
    content::remake(&now, &mut cut, input);
    let composed = now.compose_behind(&cut, kept);
    let is_small = input.fixed + composed.tokens <= input.watermark();
    if is_small && holds(now.view, &cut, &composed, input) && (is_newest || !cut.leaves_out_any()) {
        // The request did not fit next to the previous turn. The current turn may be smaller.
        if is_request_out(&now, &cut, &composed)
            && let Ok(other) = cut_from(now, &fresh(&now), input)
            && !is_request_out(&now, &other.cut, &other.composed)
        {
            return Ok(other);
        }
        if is_newest {
            plan_next_cut(&now, &mut cut, &composed, input);
        } else {
            cut.found.tail_seq = None;
        }
        return Ok(WindowDecisions {
            is_other: (cut.made_at, cut.summary) != (last.cut.made_at, last.cut.summary),
            composer: now,
            cut,
            composed,
        });
    }
    cut_now(newest, &cut, input)
}

/// Makes a cut because the window is too large or has lost turns.
fn cut_now<'a>(
    newest: Composer<'a>,
    cut: &Cut,
    input: &WindowInput<'_>,
) -> Result<WindowDecisions<'a>, CoreError> {
    if cut.summary == number(newest.block) {
        cut_from(newest, cut, input)
    } else {
        cut_from(newest, &fresh(&newest), input)
    }
}

/// Makes a cut from the previous cut `from`, or from scratch if that leaves no room.
fn cut_from<'a>(
    composer: Composer<'a>,
    from: &Cut,
    input: &WindowInput<'_>,
) -> Result<WindowDecisions<'a>, CoreError> {
    let made = choose::cut(&composer, from, input).or_else(|refused| {
        let fresh = fresh(&composer);
        choose::cut(&composer, &fresh, input).map_err(|_| refused)
    });
    made.map(|made| WindowDecisions::new(composer, made))
}

/// Plans the next cut above the soft watermark, once per twentieth of the budget.
fn plan_next_cut(
    now: &Composer<'_>,
    cut: &mut Cut,
    composed: &Composed<'_>,
    input: &WindowInput<'_>,
) {
    let tokens = input.fixed + composed.tokens;
    if input.soft().is_none_or(|soft| tokens < soft) {
        cut.found.tail_seq = None;
    } else if cut.found.tried_at == 0 || tokens > cut.found.tried_at + input.budget / 20 {
        let growth = input.watermark().saturating_sub(tokens);
        let next = choose::cut_ahead(now, cut, growth, input).ok();
        cut.found.tried_at = tokens;
        cut.found.tail_seq = next.and_then(|(next, _)| next.left_out_until());
    }
}

fn number(block: Option<&Block>) -> u32 {
    block.map_or(0, |block| block.summary.number)
}

impl Summaries<'_> {
    /// Whether the window must switch to the newest summary now.
    ///
    /// That is so if no window was sent, if the shown summary was undone or is lost, or if the
    /// newest is due.
    fn must_show_newest(&self, last: PreviousWindow<'_>) -> bool {
        let (newest, shown) = (number(self.newest), last.cut.summary);
        let is_lost = shown > 0 && number(self.shown) != shown;
        newest != shown && (!last.is_known || newest < shown || is_lost || self.is_due)
    }
}

/// Whether the cut is still valid.
fn holds(view: &View<'_>, cut: &Cut, composed: &Composed<'_>, input: &WindowInput<'_>) -> bool {
    let is_few = match input.policy {
        Policy::HeadTail { turns } if turns > 0 => {
            composed.tail_turns <= turns.into() || is_exchange_alone(view, cut)
        }
        _ => true,
    };
    is_few
        && composed.is_whole
        && !view.has_lost_since(cut.seq, &cut.holes)
        && cut.kept.iter().all(|&seq| view.record(seq).is_some())
}

/// Whether the window does not show the request that is being answered.
fn is_request_out(composer: &Composer<'_>, cut: &Cut, composed: &Composed<'_>) -> bool {
    let Some(request) = composer.view.request() else {
        return false;
    };
    let is_in_tail = request.seq >= cut.seq && !cut.leaves_out(request.seq);
    !is_in_tail && is_left_out(&omissions(composer, cut, composed), request.seq)
}

fn is_left_out(omissions: &[Omission], seq: u64) -> bool {
    let is_in = |omission: &Omission| (omission.first_seq..=omission.last_seq).contains(&seq);
    let mut left_out = omissions.iter().filter(|omission| omission.is_left_out());
    left_out.any(is_in)
}

impl Planned {
    /// Whether it omits the request that is being answered. Always false for sliding windows.
    pub(super) fn is_request_out(&self, view: &View<'_>, policy: Policy) -> bool {
        let is_sliding = matches!(policy, Policy::SlidingWindow { .. });
        let request = view.request().filter(|_| !is_sliding);
        request.is_some_and(|request| is_left_out(&self.window.report.omissions, request.seq))
    }
}

/// Whether the tail is just the exchange in progress, which stays at any length.
fn is_exchange_alone(view: &View<'_>, cut: &Cut) -> bool {
    let request = view.request();
    let first = request.and_then(|request| view.tail_from(request.seq).next());
    first.is_some_and(|first| cut.seq >= first.seq)
}

fn finish(
    mut decided: WindowDecisions<'_>,
    summaries: Summaries<'_>,
    last: PreviousWindow<'_>,
    input: &WindowInput<'_>,
) -> Planned {
    let kept = decided.composed.kept.take();
    let stable = stable_items(&decided, summaries, last);
    let composer = &decided.composer;
    let laid = LoadedWindow::new(composer, &decided, kept, stable, input);
    // A preview does not have the bot's prompts.
    let has_other_prompts =
        |sent: SentWindow| input.keep && sent.fixed_digest != input.fixed_digest;
    let is_first = last.sent.is_none_or(has_other_prompts);
    let tail_seq = decided.cut.left_out_until().or(decided.cut.found.tail_seq);
    let WindowDecisions { cut, composed, .. } = &decided;
    let included = composed.turns;
    let results = |reduced: &ReducedTurn| reduced.results.len() as u64;
    let mut report = Report {
        model: input.model.to_owned(),
        budget: input.model_budget,
        input_budget: input.input_budget,
        blocks: laid.blocks(input),
        turns_included: small(included),
        turns_omitted: small(composer.view.turns().saturating_sub(included)),
        results_trimmed: small(cut.reduced.values().map(results).sum()),
        stable_prefix_tokens: if is_first {
            0
        } else {
            laid.shown(laid.stable.counted, input)
        },
        token_factor: input.factor,
        token_margin: input.margin,
        policy: input.policy,
        degraded: false,
        notes: Vec::new(),
        omissions: omissions(composer, cut, composed),
        summary: composer.block.map(|block| Arc::clone(&block.summary)),
    };
    let is_sliding = matches!(input.policy, Policy::SlidingWindow { .. });
    if !cut.is_plain() {
        let requests = [composer.view.anchor(), composer.view.request_under_way()];
        let seqs = requests.into_iter().flatten().map(|turn| turn.seq);
        report.note_excerpts(cut, seqs, &choose::newest_results(composer));
    }
    report.explain(input.shown(input.budget));
    let newly = cut
        .reduced
        .iter()
        .filter(|(seq, _)| !last.cut.reduced.contains_key(seq));
    let window = Window {
        cache_breakpoints: laid.breakpoints(),
        turns: WindowTurns {
            turns: Arc::clone(&laid.turns),
            before: laid.before,
            factor: input.factor,
        },
        report,
        has_new_cut: decided.is_other && !is_sliding,
        newly_reduced: newly.map(|(_, reduced)| results(reduced)).sum(),
        tokens_saved: composer.view.tokens().saturating_sub(laid.sums.counted),
        counted: laid.before + laid.sums.counted,
        tail_seq,
    };
    let Composed {
        front,
        mut gaps,
        is_whole,
        lost_at,
        ..
    } = decided.composed;
    gaps.truncate(front.gaps);
    let goes_on = is_whole && lost_at.is_none() && front.has_block && !is_sliding;
    Planned {
        window,
        kept: goes_on.then(|| CachedFront {
            front,
            gaps,
            turns: laid.turns,
            sums: laid.front,
            basis: FrontInputs::new(&decided.composer),
        }),
        cut: decided.cut,
    }
}

struct LoadedWindow {
    turns: Arc<Vec<WindowTurn>>,
    /// Counted tokens before the first turn.
    before: u64,
    sums: PrefixTotals,
    /// Totals of the front from which the next window may continue.
    front: PrefixTotals,
    /// Totals of the front that was sent before.
    stable: PrefixTotals,
}

impl LoadedWindow {
    /// Loads the contents of the items after the cached front. `stable` was sent before.
    fn new(
        composer: &Composer<'_>,
        decided: &WindowDecisions<'_>,
        kept: Option<CachedFront>,
        stable: SentPrefix,
        input: &WindowInput<'_>,
    ) -> Self {
        let WindowDecisions { cut, composed, .. } = decided;
        let anchor = composer.view.anchor().map(|anchor| anchor.seq);
        let block = composer.block.filter(|_| kept.is_none());
        let (mut turns, mut sums) = match kept {
            Some(kept) => (kept.turns, kept.sums),
            None => Default::default(),
        };
        let mut sent = sums;
        let mut front = sums;
        let mut laid = Vec::with_capacity(composed.items.len() + 2);
        let mut put = |content: Arc<[u8]>, tokens: u64, sums: &mut PrefixTotals| {
            let before = sums.counted;
            sums.turns += 1;
            sums.counted += tokens;
            laid.push(WindowTurn { content, tokens });
            (before, sums.counted)
        };
        let items = &composed.items;
        for (place, next) in items.iter().map(Some).chain([None]).enumerate() {
            if let Some(block) = block.filter(|_| place == composed.block_at) {
                sums.summary.0 = sums.counted;
                for turn in block.turns() {
                    sums.summary.1 = put(Arc::clone(&turn.content), turn.tokens, &mut sums).1;
                }
                sums.head_turns = sums.turns;
                if stable.with_block {
                    sent = sums;
                }
            }
            if place == composed.front.items {
                front = sums;
            }
            let Some(item) = next else { break };
            let Some(content) = content::content(cut, item, input) else {
                continue;
            };
            let range = put(content, item.tokens, &mut sums);
            if item.is_stored() && Some(item.seq) == anchor {
                sums.anchor = range;
            }
            if item.seq < cut.seq && item.is_stored() {
                sums.head_turns = sums.turns;
            }
            if place < stable.items {
                sent = sums;
            }
        }
        let kept_turns = sums.turns - laid.len();
        if !laid.is_empty() || kept_turns < turns.len() {
            let turns = Arc::make_mut(&mut turns);
            turns.truncate(kept_turns);
            turns.append(&mut laid);
        }
        Self {
            turns,
            before: input.fixed - input.memories,
            sums,
            front,
            stable: sent,
        }
    }

    /// Charged tokens of everything up to `counted` tokens of turns.
    fn shown(&self, counted: u64, input: &WindowInput<'_>) -> u64 {
        input.shown(self.before + counted)
    }

    /// Charged tokens by block. They add up to the total of the window.
    fn blocks(&self, input: &WindowInput<'_>) -> Blocks {
        let of = |(begin, end)| self.shown(end, input) - self.shown(begin, input);
        let (summary, anchor) = (of(self.sums.summary), of(self.sums.anchor));
        Blocks {
            system: self.shown(0, input),
            summary,
            anchor,
            tail: of((0, self.sums.counted)) - summary - anchor,
            ..Blocks::default()
        }
    }

    fn breakpoints(&self) -> Vec<usize> {
        let ends = [self.sums.head_turns, self.stable.turns, self.turns.len()];
        let mut breakpoints: Vec<usize> =
            ends.into_iter().filter_map(|n| n.checked_sub(1)).collect();
        breakpoints.sort_unstable();
        breakpoints.dedup();
        breakpoints
    }
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The part at the front that was sent before, unchanged.
#[derive(Clone, Copy, Default)]
struct SentPrefix {
    items: usize,
    /// Whether the summary is part of it.
    with_block: bool,
}

fn stable_items(
    decided: &WindowDecisions<'_>,
    summaries: Summaries<'_>,
    last: PreviousWindow<'_>,
) -> SentPrefix {
    let composer = &decided.composer;
    let Some(sent) = last.sent else {
        return SentPrefix::default();
    };
    let WindowDecisions { cut, composed, .. } = decided;
    let before = last.cut;
    let items = &composed.items;
    let was_sent = |item: &&Item<'_>| item.since <= sent.last_seq;
    if !decided.is_other {
        let whole = items.iter().take(composed.whole_items());
        let items = whole.take_while(was_sent).count();
        // A late result may be inserted before the summary.
        return SentPrefix {
            items,
            with_block: items >= composed.block_at,
        };
    }
    // Compose the previous window with the summary it showed.
    let block = summaries
        .shown
        .or(composer.block)
        .filter(|_| before.summary > 0);
    let old = Composer { block, ..*composer }.compose(before);
    let is_same = |(new, old): &(&Item<'_>, &Item<'_>)| {
        (new.seq, new.kind, new.tokens) == (old.seq, old.kind, old.tokens)
            && cut.reduced.get(&new.seq) == before.reduced.get(&new.seq)
    };
    let was_whole = old.items.iter().take(old.whole_items());
    let both = items.iter().zip(was_whole.take_while(was_sent));
    let items = both.take_while(is_same).count();
    if cut.summary == before.summary {
        return SentPrefix {
            items,
            with_block: items >= composed.block_at.max(old.block_at)
                && !has_lost_leading(composer, before),
        };
    }
    // The summary changed, so only the items before it are stable.
    let before_old = match before.summary {
        0 => usize::MAX,
        _ => old.block_at,
    };
    SentPrefix {
        items: items.min(composed.block_at).min(before_old),
        with_block: false,
    }
}

/// Whether a turn before the summary has left the history since.
fn has_lost_leading(composer: &Composer<'_>, before: &Cut) -> bool {
    let mut leading = before
        .kept
        .iter()
        .take_while(|&&seq| seq <= before.through_seq);
    leading.any(|&seq| composer.view.record(seq).is_none())
}

/// Turns that are left out or shortened, in order.
fn omissions(composer: &Composer<'_>, cut: &Cut, composed: &Composed<'_>) -> Vec<Omission> {
    let mut all = Vec::new();
    for &(first, last) in &composed.gaps {
        all.extend(gap(composer, cut, first, last));
    }
    let behind = composed.last + 1;
    if composed.last > 0 {
        let behind = composer
            .view
            .said_between(behind, composer.view.last_seq + 1);
        for (first, end) in behind {
            all.extend(gap(composer, cut, first, end - 1));
        }
    }
    all.extend(cut.reduced.iter().map(|(&seq, reduced)| {
        Omission::new(
            seq,
            if reduced.is_excerpt() {
                OmissionReason::Excerpt
            } else if reduced.is_superseded() {
                OmissionReason::Superseded
            } else {
                OmissionReason::Trimmed
            },
        )
    }));
    all.sort_by_key(|omission| omission.first_seq);
    all
}

/// Splits a run of turns that are not shown by reason.
fn gap(
    composer: &Composer<'_>,
    cut: &Cut,
    first: u64,
    last: u64,
) -> impl Iterator<Item = Omission> {
    use OmissionReason::{Cut as IsCut, Dropped, Salience, Summarized};
    // Each reason applies to the range between the start and end here.
    let summarized = composer.block.map_or(0, Block::through_seq);
    let front = composer.view.front_seq().max(summarized + 1);
    let cut_end = cut.seq.max(front);
    // The first user turn is in the history even if it is before the front.
    let anchor = composer
        .view
        .anchor()
        .map(|anchor| anchor.seq)
        .filter(|seq| (summarized + 1..front).contains(seq));
    let (anchor, behind) = anchor.map_or((front, front), |seq| (seq, seq + 1));
    let anchor_end = if behind == front { cut_end } else { behind };
    let reasons = [
        (Summarized, 0, summarized + 1),
        (Dropped, summarized + 1, anchor),
        (IsCut, anchor, anchor_end),
        (Dropped, behind, front),
        (IsCut, front.max(anchor_end), cut_end),
        (Salience, cut_end, u64::MAX),
    ];
    let parts = reasons.map(|(reason, begin, end)| Omission {
        first_seq: first.max(begin),
        last_seq: last.min(end - 1),
        reason,
    });
    parts
        .into_iter()
        .filter(|part| part.first_seq <= part.last_seq)
}

/// The cut of a window right after its summary changed: everything after the summary, verbatim.
///
/// Turns that are never summarized are included.
fn fresh(composer: &Composer<'_>) -> Cut {
    let Some(block) = composer.block else {
        return Cut::default();
    };
    let through = block.through_seq();
    let view = composer.view;
    let older = view.tail_from(0).take_while(|record| record.seq <= through);
    let mut kept: Vec<u64> = older
        .filter(|record| view.is_kept(record) || record.role == Role::System)
        .map(|record| record.seq)
        .collect();
    kept.sort_unstable();
    Cut {
        seq: through + 1,
        kept,
        summary: block.summary.number,
        through_seq: through,
        ..Cut::default()
    }
}
