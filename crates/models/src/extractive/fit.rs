//! What fits into a summary's tokens.

use std::collections::{HashMap, HashSet};

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::is_path;
use memoird_core::compaction::ledger::{FAILED, GAVE};
use memoird_engine::SummaryRequest;
use memoird_formats::tokens::{Estimate, Tokenizer};

use super::material::{Fact, Material, TakenFact, names};

/// Stands for the number of turns, which is not known here: as long as any.
const TURNS: u64 = 9_999_999;
/// Titles of the sections, in tokens; and what a piece may count less alone than beside others.
const TITLES_TOKENS: usize = 16;
/// Of all tokens, what intent, decisions, files and steps may have; in percent.
const FIXED_PERCENT_MAX: usize = 40;
/// Calls whose lines stay whole; and bytes of a folded line before and behind what came of it.
const WHOLE: usize = 6;
const FOLDED_CALL_BYTES: usize = 72;
const FOLDED_OUTCOME_BYTES: usize = 48;
/// The same of a call alone; and of a word that is not torn apart.
const BARE_CALL_BYTES: usize = 48;
const WORD_BYTES_MAX: usize = 120;
/// Bytes of the names that stay of what is left out of a folded call.
const NAMED_BYTES_MAX: usize = 48;
/// Bytes of a file's path in a folded line; of a longer one the name stays.
const FILE_BYTES_MAX: usize = 64;

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

    /// Tokens that are left beside a body.
    pub(super) fn free(&self, body: &Body) -> usize {
        self.tokens_max
            .saturating_sub(self.tokens(body) + TITLES_TOKENS)
    }

    fn line_tokens(&self, line: &str) -> usize {
        self.counter.count(line) + 3
    }

    /// The calls that fit: the newest whole, older ones folded, the oldest left out.
    pub(super) fn actions(&self, actions: &[String], tokens_max: usize) -> Vec<String> {
        let mut lines: Vec<String> = actions.iter().map(|line| folded(line)).collect();
        let mut tokens: Vec<usize> = lines.iter().map(|line| self.line_tokens(line)).collect();
        let mut used: usize = tokens.iter().sum();
        for index in 0..lines.len() {
            if used <= tokens_max {
                break;
            }
            lines[index] = bare(&lines[index]);
            used -= tokens[index];
            tokens[index] = self.line_tokens(&lines[index]);
            used += tokens[index];
        }
        let mut first = 0;
        while used > tokens_max && first < lines.len() {
            used -= tokens[first];
            first += 1;
        }
        for index in (first..lines.len()).rev().take(WHOLE) {
            let whole = self.line_tokens(&actions[index]);
            if used - tokens[index] + whole <= tokens_max {
                used = used - tokens[index] + whole;
                tokens[index] = whole;
                lines[index].clone_from(&actions[index]);
            }
        }
        lines.drain(..first);
        lines
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
    let (call, outcome) = line.split_once(GAVE).unwrap_or((line, ""));
    let most = match outcome.starts_with(FAILED) {
        true => FOLDED_OUTCOME_BYTES * 2,
        false => FOLDED_OUTCOME_BYTES,
    };
    shorter(call, FOLDED_CALL_BYTES, outcome, most)
}

/// The call alone: what it was about, and whether it failed.
fn bare(line: &str) -> String {
    let (call, outcome) = line.split_once(GAVE).unwrap_or((line, ""));
    let most = match outcome.starts_with(FAILED) {
        true => FOLDED_OUTCOME_BYTES,
        false => 0,
    };
    shorter(call, BARE_CALL_BYTES, outcome, most)
}

/// A call and what came of it, each in at most so many bytes and the names that stand behind.
fn shorter(call: &str, call_bytes_max: usize, outcome: &str, bytes_max: usize) -> String {
    let mut line = match call.strip_suffix(')') {
        Some(open) if call.len() > call_bytes_max => {
            let begun = cut(open, call_bytes_max);
            let left = named(&open[begun.len()..], begun);
            format!("{begun}{left})")
        }
        _ => call.to_owned(),
    };
    // The file that a change was about may stand in its result only.
    let words = |text| str::split(text, [' ', ';', '[', ']', '(', ')', ',', '=']);
    let file = match words(call).any(is_path) {
        true => None,
        false => words(outcome).find(|word| is_path(word)),
    };
    let begun = cut(outcome, bytes_max).trim_end_matches([':', ';', '[']);
    let begun = if begun.ends_with("[File") { "" } else { begun };
    if !begun.is_empty() || file.is_some() {
        line.push_str(GAVE);
        line.push_str(begun);
    }
    if let Some(file) = file.filter(|file| !begun.contains(*file)) {
        line.push_str(if begun.is_empty() { "" } else { "; " });
        // A long path by its name.
        let name = file.rsplit('/').find(|part| !part.is_empty());
        let is_long = file.len() > FILE_BYTES_MAX || bytes_max == 0;
        line.push_str(name.filter(|_| is_long).unwrap_or(file));
    }
    line
}

/// The names in what is left out, which `begun` does not have: as many as fit.
fn named(left_out: &str, begun: &str) -> String {
    let mut line = String::new();
    for name in names(left_out).filter(|name| !begun.contains(name)) {
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
    let end = end.unwrap_or(beginning.len());
    // An identifier is kept whole.
    let word = line[end..].trim_start_matches([' ', ',']);
    let start = line.len() - word.len();
    let word_end = word.find([' ', ',', ';']).unwrap_or(word.len());
    let is_long = word_end > bytes_max / 2 && word_end <= WORD_BYTES_MAX;
    &line[..if is_long { start + word_end } else { end }]
}
