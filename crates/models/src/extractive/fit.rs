//! What fits into a summary's tokens.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{is_code, is_path};
use memoird_core::compaction::ledger::{FAILED, GAVE};
use memoird_engine::SummaryRequest;
use memoird_formats::tokens::{Estimate, Tokenizer};

use super::material::{BETWEEN, Fact, Material, SAYS, TakenFact};

/// Stands for the number of turns, which is not known here: as long as any.
const TURNS: u64 = 9_999_999;
/// The title of a section, in tokens.
const TITLE_TOKENS: usize = 4;
/// Of all tokens, what intent, decisions, files and steps may have; in percent.
const FIXED_PERCENT_MAX: usize = 32;
/// Calls whose lines stay whole; and bytes of a folded line before and behind what came of it.
const WHOLE: usize = 6;
const FOLDED_CALL_BYTES: usize = 72;
const FOLDED_OUTCOME_BYTES: usize = 48;
/// The same of a call with few words of what came of it; and of a word that is not torn apart.
const BARE_CALL_BYTES: usize = 48;
const BARE_OUTCOME_BYTES: usize = 24;
/// Bytes of what an old call was about, beside others of its tool; of a longer path the name stays.
const ABOUT_BYTES: usize = 40;
const WORD_BYTES_MAX: usize = 120;
/// Bytes of the same where there is no room for more, and no thing is named.
const NAME_BYTES: usize = 24;
/// Letters of a label's noun that the name of a tool may have.
const NOUN_BYTES_MIN: usize = 3;
/// Ends what is told of an old call that failed.
const DID_FAIL: &str = "failed";
/// Of more tokens for calls the oldest are left out, so that the others keep what came of them.
const NAMES_TOKENS_MAX: usize = 400;
/// Bytes of the names that stay of what is left out of a folded call.
const NAMED_BYTES_MAX: usize = 48;

/// The tokens of a summary.
pub(super) struct Room<'a> {
    counter: &'a Estimate,
    request: &'a SummaryRequest,
    tokens_max: usize,
}

impl<'a> Room<'a> {
    pub(super) fn new(counter: &'a Estimate, request: &'a SummaryRequest) -> Self {
        let tokens_max = usize::try_from(request.tokens_max).unwrap_or(usize::MAX / 256);
        Self {
            counter,
            request,
            tokens_max: tokens_max.min(usize::MAX / 256),
        }
    }

    /// Tokens of a body as windows show it.
    fn tokens(&self, body: &Body) -> usize {
        self.counter.count(&body.text(TURNS, &self.request.notes))
    }

    /// True when it fits.
    pub(super) fn holds(&self, body: &Body) -> bool {
        self.tokens(body) <= self.tokens_max
    }

    /// The fields that come before all others, the oldest entries left out where they are too
    /// many.
    pub(super) fn fixed(&self, material: &Material) -> Body {
        let mut body = Body {
            session_intent: material.intent(),
            files_touched: material.files.clone(),
            decisions: material.decisions.clone(),
            pending_questions: self.request.notes.pending_questions.clone(),
            next_steps: material.next_steps.clone(),
            ..Body::default()
        };
        let mut wants = material.wants.clone();
        let bare = self.tokens(&Body::default());
        let most = bare + self.tokens_max.saturating_sub(bare) * FIXED_PERCENT_MAX / 100;
        while self.tokens(&body) > most {
            let lists = [
                &mut body.next_steps,
                &mut body.files_touched,
                &mut body.decisions,
            ];
            let longest = lists.into_iter().max_by_key(|list| list.len());
            match longest.filter(|list| !list.is_empty()) {
                Some(longest) => drop(longest.drain(..longest.len().div_ceil(4))),
                None if body.session_intent.is_empty() => break,
                None => {
                    wants.shorten();
                    body.session_intent = wants.text();
                }
            }
        }
        body
    }

    /// Tokens that are left beside a body, and beside the titles that it may have and does not
    /// have yet.
    pub(super) fn free(&self, body: &Body, material: &Material) -> usize {
        let are_missing = [
            body.actions.is_empty() && !material.actions.is_empty(),
            body.facts.is_empty() && !material.facts.is_empty(),
            body.narrative.is_empty(),
            body.identifiers.is_empty() && !material.listed.is_empty(),
        ];
        let titles = are_missing.map(usize::from).iter().sum::<usize>() * TITLE_TOKENS;
        self.tokens_max.saturating_sub(self.tokens(body) + titles)
    }

    fn line_tokens(&self, line: &str) -> usize {
        self.counter.count(line) + 3
    }

    /// The calls that fit: the newest whole, older ones folded, of still older ones what they were
    /// about, in one line for each tool; the oldest left out.
    /// Those of the last kind may have `merged_max` tokens with the others.
    pub(super) fn actions(
        &self,
        actions: &[String],
        tokens_max: usize,
        merged_max: usize,
    ) -> Vec<String> {
        let mut lines: Vec<String> = actions.iter().map(|line| folded(line)).collect();
        let mut tokens: Vec<usize> = lines.iter().map(|line| self.line_tokens(line)).collect();
        let newest = lines.len().saturating_sub(WHOLE);
        // What comes of the last one is told by the next summary, which has to know it again.
        let is_open = actions.last().is_some_and(|line| is_open(line));
        let through = lines.len() - usize::from(is_open);
        let mut used: usize = tokens.iter().sum();
        let mut merged = Merged::default();
        let mut first = 0;
        // The newest only where that is not enough.
        for (end, most) in [(newest, tokens_max), (lines.len(), merged_max)] {
            for index in first..end {
                if used <= most {
                    break;
                }
                lines[index] = bare(&lines[index]);
                used -= tokens[index];
                tokens[index] = self.line_tokens(&lines[index]);
                used += tokens[index];
            }
            while used > most && first < end.min(through) {
                used -= tokens[first];
                used += merged.add(self, &actions[first]);
                first += 1;
            }
        }
        if used > merged_max && merged_max <= NAMES_TOKENS_MAX {
            used -= merged.name_only(self, used - merged_max);
        }
        while used > merged_max
            && let Some(dropped) = merged.drop_oldest()
        {
            used -= dropped;
        }
        let others = used - tokens[first..].iter().sum::<usize>();
        let left = tokens_max.saturating_sub(others);
        self.lengthen(newest.max(first), actions, &mut lines, &mut tokens, left);
        lines.splice(..first, merged.lines());
        lines
    }

    /// Tells the lines from the index on in full, the newest first, while these have so many tokens
    /// at most.
    fn lengthen(
        &self,
        first: usize,
        actions: &[String],
        lines: &mut [String],
        tokens: &mut [usize],
        tokens_max: usize,
    ) {
        let mut used: usize = tokens[first..].iter().sum();
        for index in (first..lines.len()).rev() {
            let whole = self.line_tokens(&actions[index]);
            if used + whole <= tokens_max + tokens[index] {
                used = used + whole - tokens[index];
                tokens[index] = whole;
                lines[index].clone_from(&actions[index]);
            }
        }
    }

    /// The newest identifiers of a list that stand nowhere else, as many as fit.
    pub(super) fn listed(&self, listed: &[String], body: &Body, tokens_max: usize) -> Vec<String> {
        if listed.is_empty() {
            return Vec::new();
        }
        let said = body.text(TURNS, &self.request.notes);
        let mut left = tokens_max;
        let newest = listed
            .iter()
            .rev()
            .filter(|one| !stands_in(&said, one.trim_start_matches('$')));
        let mut taken: Vec<String> = newest
            .take_while(|one| {
                let tokens = self.counter.count(one) + 1;
                let fits = tokens <= left;
                left = left.saturating_sub(tokens);
                fits
            })
            .cloned()
            .collect();
        taken.reverse();
        taken
    }

    /// The facts that fit, the newest first, each with those of its values that name something or
    /// count something and that no newer line says: what is known of the most things.
    pub(super) fn facts(
        &self,
        facts: &[Fact],
        lines: &[String],
        tokens_max: usize,
    ) -> Vec<TakenFact> {
        let mut said: HashSet<&str> = lines.iter().flat_map(|line| values(line)).collect();
        let mut left = tokens_max;
        let mut taken = Vec::new();
        let mut calls = HashSet::new();
        for (index, fact) in facts.iter().enumerate().rev() {
            let Some(text) = slim(fact, &said) else {
                continue;
            };
            let tokens = self.fact_tokens(fact, &text, &calls);
            if tokens > left {
                break;
            }
            left -= tokens;
            calls.insert(fact.call.as_str());
            said.extend(values(&fact.text));
            taken.push(TakenFact { index, text });
        }
        taken
    }

    /// The same with what more fits: all of each fact, first of those that somebody mentioned.
    pub(super) fn more_facts(&self, facts: &[Fact], taken: &mut Vec<TakenFact>, tokens_max: usize) {
        let mut order: Vec<usize> = (0..facts.len()).collect();
        order.sort_by_key(|&index| (!facts[index].is_mentioned, facts.len() - index));
        let mut place: HashMap<usize, usize> = taken
            .iter()
            .enumerate()
            .map(|(at, fact)| (fact.index, at))
            .collect();
        let mut calls: HashSet<&str> = taken
            .iter()
            .map(|it| facts[it.index].call.as_str())
            .collect();
        let mut left = tokens_max;
        for index in order {
            let fact = &facts[index];
            let at = place.get(&index).copied();
            let before = at.map_or(0, |at| self.counter.count(&taken[at].text));
            let tokens = self
                .fact_tokens(fact, &fact.text, &calls)
                .saturating_sub(before);
            if tokens > left {
                continue;
            }
            left -= tokens;
            calls.insert(&fact.call);
            let text = fact.text.clone();
            match at {
                Some(at) => taken[at].text = text,
                None => {
                    place.insert(index, taken.len());
                    taken.push(TakenFact { index, text });
                }
            }
        }
    }

    /// Tokens of a fact, with its call where no other fact of it is taken.
    fn fact_tokens(&self, fact: &Fact, text: &str, calls: &HashSet<&str>) -> usize {
        let call = match calls.contains(fact.call.as_str()) {
            true => 0,
            false => self.line_tokens(&fact.call) + 1,
        };
        call + self.counter.count(text) + 1
    }
}

/// The oldest calls: of each tool a line with what its calls were about, oldest first.
#[derive(Default)]
struct Merged<'a> {
    calls: VecDeque<MergedCall<'a>>,
    /// How many calls of a tool there are, and the tokens of its name.
    tools: HashMap<&'a str, (usize, usize)>,
}

struct MergedCall<'a> {
    tool: &'a str,
    /// What it was about.
    about: Cow<'a, str>,
    tokens: usize,
}

impl<'a> Merged<'a> {
    /// Takes a call in, or a line that has some; gives the tokens that it adds.
    fn add(&mut self, room: &Room<'_>, line: &'a str) -> usize {
        let (tool, calls) = match merged(line) {
            Some((tool, calls)) => (tool, calls.split(BETWEEN).map(Cow::Borrowed).collect()),
            None => (tool_of(line), vec![Cow::Owned(about(line))]),
        };
        let mut added = 0;
        for about in calls {
            let is_known = |call: &MergedCall<'_>| call.tool == tool && call.about == about;
            if self.calls.iter().any(is_known) {
                continue;
            }
            let (count, name) = self.tools.entry(tool).or_default();
            if *count == 0 {
                *name = room.line_tokens(tool) + 1;
                added += *name;
            }
            *count += 1;
            let tokens = room.counter.count(&about) + 1;
            added += tokens;
            self.calls.push_back(MergedCall {
                tool,
                about,
                tokens,
            });
        }
        added
    }

    /// Leaves of the oldest calls no more than the first thing that each named, once of those
    /// that are the same then, until so many tokens are saved; gives those that are.
    fn name_only(&mut self, room: &Room<'_>, tokens_min: usize) -> usize {
        let mut saved = 0;
        let mut calls = std::mem::take(&mut self.calls);
        while let Some(mut call) = calls.pop_front() {
            if saved < tokens_min {
                let name = name_of(&call.about);
                if name.len() < call.about.len() {
                    call.about = Cow::Owned(name);
                    let tokens = room.counter.count(&call.about) + 1;
                    saved += call.tokens.saturating_sub(tokens);
                    call.tokens = tokens;
                }
            }
            let is_same =
                |other: &MergedCall<'_>| other.tool == call.tool && other.about == call.about;
            if self.calls.iter().any(is_same) {
                saved += call.tokens;
                if let Some((count, _)) = self.tools.get_mut(call.tool) {
                    *count -= 1;
                }
                continue;
            }
            self.calls.push_back(call);
        }
        saved
    }

    /// Leaves the oldest call out; gives the tokens that are saved.
    fn drop_oldest(&mut self) -> Option<usize> {
        let oldest = self.calls.pop_front()?;
        let (count, name) = self.tools.get_mut(oldest.tool)?;
        *count -= 1;
        Some(oldest.tokens + if *count == 0 { *name } else { 0 })
    }

    /// A line for each tool, in the order of their first calls.
    fn lines(&self) -> Vec<String> {
        let mut lines: Vec<(&str, String)> = Vec::new();
        for call in &self.calls {
            match lines.iter_mut().find(|(tool, _)| *tool == call.tool) {
                Some((_, line)) => line.push_str(&format!("{BETWEEN}{}", call.about)),
                None => lines.push((call.tool, format!("{}{SAYS}{}", call.tool, call.about))),
            }
        }
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

/// The tool and the calls of a line that [`Merged`] wrote.
fn merged(line: &str) -> Option<(&str, &str)> {
    let (tool, calls) = line.split_once(SAYS)?;
    (!tool.is_empty() && !tool.contains(['(', ' '])).then_some((tool, calls))
}

/// True of a call of which nothing came yet.
pub(super) fn is_open(line: &str) -> bool {
    !line.contains(GAVE) && merged(line).is_none()
}

fn tool_of(line: &str) -> &str {
    line.split(['(', ' ']).next().unwrap_or(line)
}

/// What a call was about, in few words: the beginning of a command, the file, the first things
/// that it named, one that came of it, and whether it failed.
fn about(line: &str) -> String {
    let (call, outcome) = line.split_once(GAVE).unwrap_or((line, ""));
    let inside = arguments(call);
    let path = pieces(inside)
        .chain(pieces(outcome))
        .find(|piece| is_path(piece));
    let path = path.map_or("", short_path);
    let mut about = Few::default();
    let first = inside.split(", ").next().unwrap_or_default();
    let is_labelled = label(first).is_some();
    if !is_labelled || things(inside).next().is_none() {
        let value = label(first).map_or(first, |label| &first[label.len() + 1..]);
        about.add(cut(value, ABOUT_BYTES.saturating_sub(path.len())));
    }
    about.add_always(path);
    about.add(subject(call));
    things(inside).for_each(|thing| about.add(thing));
    if outcome.starts_with(FAILED) {
        return format!("{} {DID_FAIL}", about.text).trim().to_owned();
    }
    let before = about.text.len();
    if let Some(thing) = things(outcome).find(|thing| !call.contains(*thing)) {
        about.add(thing);
    }
    // It may tell of a failure in words that are not known.
    let is_short = (1..ABOUT_BYTES).contains(&outcome.len()) && !outcome.contains('=');
    if about.text.len() == before && is_short {
        about.text.push_str(&format!(" ({outcome})"));
    }
    about.text.trim().replace(BETWEEN, ", ")
}

/// The thing that the name of the tool speaks of: `cancel_order(user=…, order_id=…)`.
fn subject(call: &str) -> &str {
    let tool = tool_of(call).to_lowercase();
    let is_subject = |label: &str| {
        let noun = label.split(['_', ' ', '-']).next().unwrap_or_default();
        noun.len() >= NOUN_BYTES_MIN && tool.contains(&noun.to_lowercase())
    };
    let pairs = arguments(call).split(", ");
    let mut pairs = pairs.filter_map(|pair| pair.split_once('='));
    let of_subject = |(label, value)| things(value).next().filter(|_| is_subject(label));
    pairs.find_map(of_subject).unwrap_or_default()
}

/// Of what a call was about the first thing that it named, behind the program that a command
/// begins with, and whether it failed.
fn name_of(about: &str) -> String {
    let is_failed = about.ends_with(DID_FAIL);
    let program = about.split(' ').next().unwrap_or_default();
    let is_program = program.bytes().all(|byte| byte.is_ascii_lowercase());
    let path = pieces(about).find(|piece| is_path(piece));
    let name = path.map(short_path).or_else(|| things(about).next());
    let mut text = match name {
        Some(name) if is_program && name != program => format!("{program} {name}"),
        Some(name) => name.to_owned(),
        None => cut(about, NAME_BYTES).to_owned(),
    };
    if is_failed && !text.ends_with(DID_FAIL) {
        text.push_str(&format!(" {DID_FAIL}"));
    }
    text
}

/// Some words, no more than a line has room for.
#[derive(Default)]
struct Few {
    text: String,
}

impl Few {
    fn add(&mut self, word: &str) {
        if self.text.is_empty() || self.text.len() + word.len() < ABOUT_BYTES {
            self.add_always(word);
        }
    }

    fn add_always(&mut self, word: &str) {
        if !word.is_empty() && !self.text.contains(word) {
            self.text
                .push_str(if self.text.is_empty() { "" } else { " " });
            self.text.push_str(word);
        }
    }
}

/// What stands between the parentheses of a call.
fn arguments(call: &str) -> &str {
    let inside = &call[tool_of(call).len()..];
    let inside = inside.strip_prefix('(').unwrap_or(inside);
    inside.strip_suffix(')').unwrap_or(inside)
}

/// The label of a pair.
fn label(pair: &str) -> Option<&str> {
    let (label, _) = pair.split_once('=')?;
    let is_label = label.starts_with(char::is_alphabetic)
        && label
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '_' | ' ' | '-'));
    is_label.then_some(label)
}

/// A path, or of a long one the name.
fn short_path(path: &str) -> &str {
    let name = path.rsplit('/').find(|part| !part.is_empty());
    name.filter(|_| path.len() > ABOUT_BYTES).unwrap_or(path)
}

/// The values of a line that name one thing: ids, addresses, and paths, of a long one its name.
fn things(line: &str) -> impl Iterator<Item = &str> {
    let words =
        pieces(line).map(|word| word.trim_matches(['.', ':', '!', '?', '"', '\'', '…', '`', '#']));
    let words = words.filter(|word| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        let is_constant = word.len() >= 5 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_id = digits >= 2 && word.len() >= 4 || is_code(word);
        is_id || is_constant || is_path(word) || word.contains('@')
    });
    words.map(|word| {
        if is_path(word) {
            short_path(word)
        } else {
            word
        }
    })
}

/// The values of a fact that name or count something and that are not said yet, with their labels
/// and with what the fact is about; `None` where nothing is left.
fn slim(fact: &Fact, said: &HashSet<&str>) -> Option<String> {
    let is_new = |value: &str| !said.contains(value) && !fact.call.contains(value);
    let mut slim = String::new();
    let mut has_new = false;
    for (at, pair) in fact.text.split(", ").enumerate() {
        let mut told = values(pair).peekable();
        let tells = told.peek().is_some();
        let is_told = told.any(is_new);
        let is_name = at == 0 && tells && !fact.call.contains(pair);
        if is_told || is_name {
            slim.push_str(if slim.is_empty() { "" } else { ", " });
            slim.push_str(pair);
            has_new |= is_told;
        }
    }
    has_new.then_some(slim)
}

/// The words of a line with two digits or four capitals at least, without their labels.
fn values(line: &str) -> impl Iterator<Item = &str> {
    let words = line
        .split(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | ';' | '(' | ')' | '$' | '"'));
    let words = words.map(|word| word.trim_matches(['.', ':', '!', '?']));
    words.filter(|word| {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        digits >= 2 || word.len() >= 4 && word.bytes().all(|byte| byte.is_ascii_uppercase())
    })
}

/// True where a value stands in a text, and not as a piece of a longer one.
fn stands_in(text: &str, value: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    text.match_indices(value).any(|(at, _)| {
        let (before, behind) = (&text[..at], &text[at + value.len()..]);
        !is_inside(before.chars().next_back()) && !is_inside(behind.chars().next())
    })
}

/// A call's line in less: its first arguments, and the beginning of what came of it.
fn folded(line: &str) -> String {
    if merged(line).is_some() {
        return line.to_owned();
    }
    let (call, outcome) = line.split_once(GAVE).unwrap_or((line, ""));
    let most = match outcome.starts_with(FAILED) {
        true => FOLDED_OUTCOME_BYTES * 2,
        false => FOLDED_OUTCOME_BYTES,
    };
    shorter(call, FOLDED_CALL_BYTES, outcome, most)
}

/// The call with few words of what came of it.
fn bare(line: &str) -> String {
    if merged(line).is_some() {
        return line.to_owned();
    }
    let (call, outcome) = line.split_once(GAVE).unwrap_or((line, ""));
    if outcome.starts_with(FAILED) {
        return shorter(call, BARE_CALL_BYTES, outcome, FOLDED_OUTCOME_BYTES);
    }
    // What names a thing that the call does not.
    let is_new = |part: &&str| things(part).any(|thing| !call.contains(thing));
    let mut parts = outcome.split(", ").flat_map(|part| part.split(BETWEEN));
    let told = parts.find(is_new).unwrap_or(outcome);
    shorter(call, BARE_CALL_BYTES, told, BARE_OUTCOME_BYTES)
}

/// A call and what came of it, its arguments and that in at most so many bytes and the names that
/// stand behind.
fn shorter(call: &str, call_bytes_max: usize, outcome: &str, bytes_max: usize) -> String {
    let tool = tool_of(call).len() + 1;
    let mut line = match call.strip_suffix(')') {
        Some(open) if call.len() > tool + call_bytes_max => {
            let (tool, arguments) = open.split_at(tool.min(open.len()));
            let begun = cut(arguments, call_bytes_max);
            let left = named(&arguments[begun.len()..], begun);
            format!("{tool}{begun}{left})")
        }
        _ => call.to_owned(),
    };
    // The file that a change was about may stand in its result only.
    let file = match pieces(&line).any(is_path) {
        true => None,
        false => pieces(outcome).find(|piece| is_path(piece)),
    };
    let begun = cut(outcome, bytes_max).trim_end_matches([':', ';', '[']);
    let begun = if begun.ends_with("[File") { "" } else { begun };
    let long = pieces(begun).find(|piece| is_path(piece) && piece.len() > ABOUT_BYTES);
    let begun = match long {
        Some(path) => Cow::Owned(begun.replace(path, short_path(path))),
        None => Cow::Borrowed(begun),
    };
    if !begun.is_empty() || file.is_some() {
        line.push_str(GAVE);
        line.push_str(&begun);
    }
    if let Some(file) = file.map(short_path).filter(|file| !begun.contains(*file)) {
        line.push_str(if begun.is_empty() { "" } else { "; " });
        line.push_str(file);
    }
    line
}

/// The words of a line, without what parts values.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    line.split([' ', ';', '[', ']', '(', ')', ',', '=', '"'])
}

/// The names in what is left out, which `begun` does not have: as many as fit.
fn named(left_out: &str, begun: &str) -> String {
    let mut line = String::new();
    for name in things(left_out).filter(|name| !begun.contains(name)) {
        if line.len() + name.len() > NAMED_BYTES_MAX {
            break;
        }
        if !line.contains(name) {
            line.push_str(if line.is_empty() && !begun.ends_with('…') {
                "… "
            } else {
                " "
            });
            line.push_str(name);
        }
    }
    line
}

/// The beginning of a line, up to the end of a pair or a word.
fn cut(line: &str, bytes_max: usize) -> &str {
    if line.len() <= bytes_max {
        return line;
    }
    let beginning = &line[..line.floor_char_boundary(bytes_max)];
    let end = beginning.rfind(", ").or_else(|| beginning.rfind(' '));
    // An identifier is kept whole, and the first word.
    let start = end.map_or(0, |end| {
        end + 1 + usize::from(line[end..].starts_with(", "))
    });
    let word_end = line[start..]
        .find([' ', ',', ';'])
        .unwrap_or(line.len() - start);
    let is_long = end.is_none() || word_end > bytes_max / 2;
    match end {
        _ if is_long && word_end <= WORD_BYTES_MAX => &line[..start + word_end],
        Some(end) => &line[..end],
        None => beginning,
    }
}
