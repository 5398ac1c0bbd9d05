//! Pairs of memories that may contradict each other.
//!
//! A pair is about the same subject matter, but has different numbers, a negation on one side, or a
//! different word. The pairs are for people to review: both memories may be true.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use memoird_core::words::{is_stop_word, numbers_and_negations, stem, telling_signs, tokens};

/// Minimum share of common words for two texts to be about the same matter.
const WORDS_MIN: f64 = 0.5;
/// Minimum cosine similarity for the same, if the words alone are too different.
const COSINE_MIN: f64 = 0.75;
/// Pairs with a smaller share of common words are skipped before their cosine is computed.
const LOOKED_AT_MIN: f64 = 0.25;
/// Maximum words of each text that the other lacks. With more, they are about different matters.
const OTHER_WORDS_MAX: usize = 2;
/// The same maximum for texts with a cosine of at least [`COSINE_MIN`].
const OTHER_WORDS_NEAR_MAX: usize = 4;

/// How two texts about the same matter differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Numbers, amounts or dates.
    Numbers,
    /// Only one of them is negated.
    Negation,
    /// Different words in the same position.
    Words,
}

/// Two texts that may contradict each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Indices of the two texts, the lower one first.
    pub places: (usize, usize),
    /// Similarity of the two, from 0 to 1.
    pub likeness: f64,
    pub difference: Difference,
}

/// Features of a text for the comparison.
struct TextFeatures {
    /// Stems of its content words, sorted and deduplicated. Excludes numbers and negations.
    words: Vec<String>,
    /// The same stems in text order, with their byte ranges.
    placed: Vec<(String, Range<usize>)>,
    numbers: Vec<String>,
    negations: usize,
}

/// Finds pairs of texts that may contradict each other, the most similar first.
///
/// Returns at most `count_max` pairs, and whether there are more. `cosine` returns the similarity
/// of two texts' vectors, if known. It is only called for texts that have words in common.
pub fn conflicts(
    texts: &[&str],
    count_max: usize,
    cosine: impl Fn(usize, usize) -> Option<f64>,
) -> (Vec<Pair>, bool) {
    let told: Vec<TextFeatures> = texts.iter().map(|text| TextFeatures::new(text)).collect();
    let mut having: HashMap<&str, Vec<usize>> = HashMap::new();
    let mut found = Vec::new();
    let mut has_more = false;
    for (second, text) in told.iter().enumerate() {
        let mut common: HashMap<usize, usize> = HashMap::new();
        for word in &text.words {
            let having = having.entry(word).or_default();
            for first in having.iter() {
                *common.entry(*first).or_default() += 1;
            }
            having.push(second);
        }
        for (first, common) in common {
            let pair = compare(&told[first], text, common, || cosine(first, second));
            found.extend(pair.map(|(likeness, difference)| Pair {
                places: (first, second),
                likeness,
                difference,
            }));
        }
        if found.len() > 2 * count_max {
            has_more = true;
            keep_best(&mut found, count_max);
        }
    }
    has_more |= found.len() > count_max;
    keep_best(&mut found, count_max);
    (found, has_more)
}

/// Keeps the most similar pairs. Among equally similar ones, the later texts come first.
fn keep_best(found: &mut Vec<Pair>, count_max: usize) {
    found.sort_by(|one, other| {
        let by_likeness = other.likeness.total_cmp(&one.likeness);
        by_likeness.then(other.places.cmp(&one.places))
    });
    found.truncate(count_max);
}

fn compare(
    one: &TextFeatures,
    other: &TextFeatures,
    common: usize,
    cosine: impl Fn() -> Option<f64>,
) -> Option<(f64, Difference)> {
    let words = one.words.len() + other.words.len();
    let share = (2 * common) as f64 / words.max(1) as f64;
    if share < LOOKED_AT_MIN {
        return None;
    }
    let cosine = cosine().unwrap_or(0.0);
    let is_near = cosine >= COSINE_MIN;
    if share < WORDS_MIN && !is_near {
        return None;
    }
    let others = (one.others(other), other.others(one));
    let most = if is_near {
        OTHER_WORDS_NEAR_MAX
    } else {
        OTHER_WORDS_MAX
    };
    if others.0.max(others.1) > most {
        return None;
    }
    let difference = match () {
        () if one.negations != other.negations => Difference::Negation,
        // A number on one side only adds information and contradicts nothing.
        () if one.numbers != other.numbers
            && !one.numbers.is_empty()
            && !other.numbers.is_empty() =>
        {
            Difference::Numbers
        }
        () if others.0 > 0 && others.1 > 0 => Difference::Words,
        () => return None,
    };
    Some((share.max(cosine).min(1.0), difference))
}

impl TextFeatures {
    /// Number of words that the other text lacks. Overlapping character pairs count as one word.
    fn others(&self, other: &Self) -> usize {
        let (mut seen, mut count, mut end) = (HashSet::new(), 0, 0);
        for (word, place) in &self.placed {
            if other.words.binary_search(word).is_ok() || !seen.insert(word) {
                continue;
            }
            count += usize::from(place.start >= end);
            end = place.end;
        }
        count
    }

    fn new(text: &str) -> Self {
        let (numbers, negations): (Vec<String>, Vec<String>) = numbers_and_negations(text)
            .into_iter()
            .partition(|found| found.contains(char::is_numeric));
        let is_counted = |word: &str| {
            word.contains(char::is_numeric) || negations.iter().any(|other| other == word)
        };
        let words = tokens(text).filter(|token| !token.is_part);
        let placed: Vec<(String, Range<usize>)> = words
            .filter_map(|token| {
                let folded = token.folded();
                // Capitalized stop words such as "May" and "Will" are names, except at the start of
                // the text.
                let is_name = token.start > 0 && token.word.starts_with(char::is_uppercase);
                let is_telling = is_name && token.word.len() > 1 || !is_stop_word(&folded);
                let place = token.start..token.start + token.word.len();
                (is_telling && !is_counted(&folded)).then(|| (stem(&folded).into_owned(), place))
            })
            .collect();
        let mut words: Vec<String> = placed.iter().map(|(word, _)| word.clone()).collect();
        words.sort_unstable();
        words.dedup();
        let mut numbers = numbers;
        numbers.extend(Some(telling_signs(text)).filter(|signs| !signs.is_empty()));
        Self {
            words,
            placed,
            numbers,
            negations: negations.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn difference(one: &str, other: &str) -> Option<Difference> {
        let (found, _) = conflicts(&[one, other], 10, |_, _| None);
        found.first().map(|pair| pair.difference)
    }

    #[test]
    fn different_value_in_same_place_is_a_conflict() {
        use Difference::{Negation, Numbers, Words};
        for (one, other, expected) in [
            ("Ann lives in Riga", "Ann lives in Oslo", Words),
            ("The launch is in May", "The launch is in June", Words),
            (
                "Her favourite colour is blue",
                "Her favourite colour is green",
                Words,
            ),
            ("Ann has 2 cats", "Ann has 3 cats", Numbers),
            (
                "The rent is 900 € a month",
                "The rent is 950 € a month",
                Numbers,
            ),
            ("Ann likes tea", "Ann does not like tea", Negation),
            ("Ann isst Fleisch", "Ann isst kein Fleisch", Negation),
            ("Анна живёт в Риге", "Анна живёт в Москве", Words),
            ("私は東京に住んでいます", "私は大阪に住んでいます", Words),
            ("저는 서울에 살아요", "저는 부산에 살아요", Words),
            ("আমি চা খাই", "আমি চা খাই না", Negation),
            ("Saya makan daging", "Saya tidak makan daging", Negation),
            ("मेरी उम्र ३० साल है", "मेरी उम्र 31 साल है", Numbers),
        ] {
            assert_eq!(difference(one, other), Some(expected), "{one} / {other}");
            assert_eq!(difference(other, one), Some(expected), "{other} / {one}");
        }
    }

    #[test]
    fn unrelated_or_equal_texts_are_no_conflict() {
        for (one, other) in [
            ("Ann lives in Riga", "Ann lives in Riga"),
            ("Ann lives in Riga", "ann LIVES in riga!"),
            ("Ann lives in Riga", "Ann lives in Riga with her sister"),
            ("Ann has cats", "Ann has 2 cats"),
            ("Ann lives in Riga", "The launch is in May"),
            (
                "Ann flew to Rome with her brother and saw the Forum",
                "Ann cooked with her brother all of Sunday for the team",
            ),
            ("", ""),
            ("the", "a"),
        ] {
            assert_eq!(difference(one, other), None, "{one} / {other}");
        }
    }

    #[test]
    fn high_cosine_finds_conflict_of_different_words() {
        let texts = [
            "Ann works for the Acme bakery",
            "Ann is employed by Globex Limited",
        ];
        assert_eq!(conflicts(&texts, 10, |_, _| Some(0.6)), (vec![], false));
        let [pair] = conflicts(&texts, 10, |_, _| Some(0.8)).0[..] else {
            panic!("one pair");
        };
        assert_eq!((pair.places, pair.difference), ((0, 1), Difference::Words));
        assert!((pair.likeness - 0.8).abs() < 1e-9);
    }

    #[test]
    fn most_similar_pairs_come_first() {
        let texts = [
            "The launch of the new shop is on 3 May",
            "Ann lives in Riga",
            "The launch of the new shop is on 4 May",
            "Ann lives in Oslo",
        ];
        let places = |count_max| {
            let (found, has_more) = conflicts(&texts, count_max, |_, _| None);
            let places: Vec<_> = found.iter().map(|pair| pair.places).collect();
            (places, has_more)
        };
        assert_eq!(places(2), (vec![(0, 2), (1, 3)], false));
        assert_eq!(places(1), (vec![(0, 2)], true));
        assert_eq!(places(0), (vec![], true));
    }
}
