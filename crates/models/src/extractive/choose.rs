//! Which sentences say most of what no line says yet.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use memoird_core::compaction::Body;
use memoird_core::compaction::identifiers::{Kind, identifiers};
use memoird_formats::tokens::{Estimate, Tokenizer};

use super::material::{Sentence, Tells};
use super::wants::is_polite;

/// Sentences that are looked at: the newest.
const SENTENCES_MAX: usize = 4_096;
/// What an identifier is worth, in words; a name, and a time of day, is worth less.
const IDENTIFIER: f64 = 12.0;
const NAME: f64 = 1.0;
/// What a word is worth that was said once, by what its sentence tells.
const CHANGE: f64 = 5.0;
const KEPT: f64 = 2.5;
const SOMETHING: f64 = 0.7;
const REST: f64 = 0.5;
/// How many times that where the assistant begins with it: what is said first tells what came of
/// it, the rest explains and offers.
const BEGINNING: f64 = 4.0;
/// Behind so many sentences of a turn one is worth half: a long text says less with each.
const LONG_TURN: f64 = 6.0;
/// Of that, what is left in a question: what was answered is no news.
const ASKED: f64 = 0.5;
/// What the oldest sentence is worth of the newest.
const OLDEST: f64 = 0.35;
/// A sentence that is worth less for each of its tokens is filler.
const WORTH_MIN: f64 = 0.02;
/// Bytes of a sentence by which it is known again where it was cut.
const REPEATED_BYTES: usize = 80;
/// Tokens of a line beside its sentence.
const LINE_TOKENS: usize = 4;
/// Letters of a word with content.
const LETTERS_MIN: usize = 4;

/// A choice of sentences.
pub(super) struct Choice<'a> {
    sentences: &'a [Sentence],
    candidates: Vec<Candidate>,
    /// The words and identifiers that some line says.
    covered: Vec<bool>,
    numbers: HashMap<String, u32>,
    queue: BinaryHeap<Ranked>,
    taken: Vec<usize>,
}

struct Candidate {
    /// What it says, and what each is worth.
    items: Vec<(u32, f64)>,
    tokens: usize,
    worth: f64,
}

/// A candidate by what it was worth for its tokens when it was last looked at.
#[derive(PartialEq)]
struct Ranked {
    worth: f64,
    index: usize,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of equal ones the newest.
        self.worth
            .total_cmp(&other.worth)
            .then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Choice<'a> {
    pub(super) fn new(counter: &Estimate, sentences: &'a [Sentence]) -> Self {
        let skipped = sentences.len().saturating_sub(SENTENCES_MAX);
        let mut choice = Self {
            sentences,
            candidates: Vec::with_capacity(sentences.len() - skipped),
            covered: Vec::new(),
            numbers: HashMap::new(),
            queue: BinaryHeap::new(),
            taken: Vec::new(),
        };
        let sentences = &sentences[skipped..];
        let words: Vec<Vec<u32>> = sentences
            .iter()
            .map(|one| choice.words(&one.text))
            .collect();
        let mut counts = vec![0.0_f64; choice.numbers.len()];
        for word in words.iter().flatten() {
            counts[*word as usize] += 1.0;
        }
        let newest = sentences.len().max(2) as f64 - 1.0;
        for (at, (sentence, words)) in sentences.iter().zip(words).enumerate() {
            let recency = OLDEST + (1.0 - OLDEST) * at as f64 / newest;
            let word_worth = word_worth(sentence);
            let rare = |word: u32| word_worth / counts[word as usize].sqrt();
            let mut items: Vec<(u32, f64)> =
                words.into_iter().map(|word| (word, rare(word))).collect();
            items.sort_unstable_by_key(|(word, _)| *word);
            items.dedup_by_key(|(word, _)| *word);
            let found = sentence.found.iter();
            let found = found.map(|(range, kind)| (&sentence.text[range.clone()], *kind));
            choice.identifiers(found, &mut items);
            let tokens = counter.count(&sentence.text) + LINE_TOKENS;
            let worth = recency / long(tokens);
            choice.candidates.push(Candidate {
                items,
                tokens,
                worth,
            });
        }
        for index in 0..choice.candidates.len() {
            let worth = choice.worth(index);
            choice.queue.push(Ranked { worth, index });
        }
        choice.sentences = sentences;
        choice
    }

    /// Takes note of what the lines of a body say. Words that stand there already are no news.
    pub(super) fn cover_lines(&mut self, body: &Body) {
        for (candidate, sentence) in self.candidates.iter_mut().zip(self.sentences) {
            let end = sentence.text.floor_char_boundary(REPEATED_BYTES);
            let mut said = body.pending_questions.iter().chain([&body.session_intent]);
            if said.any(|said| said.contains(&sentence.text[..end])) {
                candidate.items.clear();
            }
        }
        let lines = body
            .actions
            .iter()
            .chain(&body.facts)
            .chain([&body.session_intent]);
        for line in lines {
            let mut items = Vec::new();
            let found = identifiers(line).into_iter();
            self.identifiers(found.map(|found| (found.text, found.kind)), &mut items);
            self.cover(items.iter().map(|(item, _)| *item));
        }
    }

    /// Takes the best sentences that fit into so many tokens more.
    pub(super) fn take(&mut self, tokens_max: usize) {
        let mut left = tokens_max;
        let mut too_long = Vec::new();
        while let Some(Ranked { worth, index }) = self.queue.pop() {
            let now = self.worth(index);
            if now < WORTH_MIN {
                continue;
            }
            // Others were taken since it was looked at.
            let is_best = self.queue.peek().is_none_or(|next| now >= next.worth);
            if now < worth && !is_best {
                self.queue.push(Ranked { worth: now, index });
                continue;
            }
            let tokens = self.candidates[index].tokens;
            if tokens > left {
                too_long.push(Ranked { worth: now, index });
                continue;
            }
            left -= tokens;
            let items = std::mem::take(&mut self.candidates[index].items);
            self.cover(items.into_iter().map(|(item, _)| item));
            self.taken.push(index);
        }
        self.queue.extend(too_long);
    }

    fn cover(&mut self, items: impl Iterator<Item = u32>) {
        self.covered.resize(self.numbers.len(), false);
        items.for_each(|item| self.covered[item as usize] = true);
    }

    fn is_covered(&self, item: u32) -> bool {
        self.covered.get(item as usize) == Some(&true)
    }

    /// Gives the one up that was taken last; false where there is none.
    pub(super) fn drop_last(&mut self) -> bool {
        self.taken.pop().is_some()
    }

    /// The sentences that were taken, oldest first; those of one turn in one line. Who speaks is
    /// named where that changes.
    pub(super) fn narrative(&self) -> String {
        let mut taken = self.taken.clone();
        taken.sort_unstable();
        let mut text = String::new();
        let (mut group, mut speaker) = (None, "");
        for sentence in taken.into_iter().map(|index| &self.sentences[index]) {
            if group == Some(sentence.group) {
                text.push(' ');
            } else {
                text.push_str(if text.is_empty() { "" } else { "\n" });
                if sentence.who != speaker {
                    text.push_str(sentence.who);
                }
            }
            text.push_str(&sentence.text);
            (group, speaker) = (Some(sentence.group), sentence.who);
        }
        text
    }

    /// What a sentence is worth for its tokens: of what no line says yet.
    fn worth(&self, index: usize) -> f64 {
        let candidate = &self.candidates[index];
        let new = candidate
            .items
            .iter()
            .filter(|(item, _)| !self.is_covered(*item));
        new.map(|(_, worth)| worth).sum::<f64>() * candidate.worth
    }

    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        self.numbers.insert(text.to_owned(), next);
        next
    }

    /// The words with content, by their beginnings: endings differ. In scripts without blanks
    /// between words each character is one.
    fn words(&mut self, text: &str) -> Vec<u32> {
        let mut words = Vec::new();
        let mut lower = String::new();
        for word in text
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
        {
            if word.is_ascii() {
                let has_content = word.len() >= LETTERS_MIN || word.as_bytes()[0].is_ascii_digit();
                if !has_content {
                    continue;
                }
                lower.clear();
                lower.push_str(word);
                lower.make_ascii_lowercase();
                if !is_polite(&lower) {
                    words.push(self.number(&lower[..lower.len().min(6)]));
                }
                continue;
            }
            let count = word.chars().count();
            if count >= LETTERS_MIN && word.chars().all(|c| (c as u32) < 0x0e00) {
                let word: String = word.chars().take(6).flat_map(char::to_lowercase).collect();
                words.push(self.number(&word));
            } else if word.chars().any(|c| c as u32 >= 0x0e00) {
                words.extend(
                    word.chars()
                        .map(|c| self.number(c.encode_utf8(&mut [0; 4]))),
                );
            }
        }
        words
    }

    fn identifiers<'t>(
        &mut self,
        found: impl Iterator<Item = (&'t str, Kind)>,
        items: &mut Vec<(u32, f64)>,
    ) {
        for (text, kind) in found {
            let worth = match kind {
                Kind::Name => NAME,
                Kind::Date if text.contains(':') => NAME,
                _ => IDENTIFIER,
            };
            let number = self.number(text);
            if !items
                .iter()
                .any(|(item, worth)| *item == number && *worth >= NAME)
            {
                items.push((number, worth));
            }
        }
    }
}

/// How much a sentence of so many tokens takes: less than twice as much where it is twice as long,
/// because short ones say little by themselves. To the power of three quarters, as every machine
/// computes it.
fn long(tokens: usize) -> f64 {
    let root = (tokens as f64).sqrt();
    root * root.sqrt()
}

/// What a word of this sentence is worth.
fn word_worth(sentence: &Sentence) -> f64 {
    let text = sentence.text.as_str();
    // What is cheered says little.
    if text.ends_with(['!', '！']) && !text.contains(|c: char| c.is_ascii_digit()) {
        return REST * ASKED;
    }
    let worth = match sentence.tells {
        Tells::Change => CHANGE,
        Tells::Kept => KEPT,
        Tells::Something => SOMETHING,
        Tells::Rest => REST,
    };
    let worth = match sentence.begins {
        true => worth * BEGINNING,
        false => worth / (1.0 + sentence.place as f64 / LONG_TURN),
    };
    match text.ends_with(['?', '？', '؟']) {
        true => worth * ASKED,
        false => worth,
    }
}
