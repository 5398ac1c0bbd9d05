//! Memories that may contradict each other: of one matter, with another number, a "not", or another
//! word in the same place. It is for people who look: what it shows may both be so.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use memoird_core::words::{is_stop_word, numbers_and_negations, stem, telling_signs, tokens};

/// From which likeness on two texts are of one matter, by their words and by meaning.
const WORDS_MIN: f64 = 0.5;
const COSINE_MIN: f64 = 0.75;
/// Pairs that have less than this of their words in common are not looked at.
const LOOKED_AT_MIN: f64 = 0.25;
/// So many words of each side at most may be other ones: with more they are two matters.
const OTHER_WORDS_MAX: usize = 2;
/// The same where their meaning is near.
const OTHER_WORDS_NEAR_MAX: usize = 4;

/// In what two texts of one matter differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Numbers, amounts or dates.
    Numbers,
    /// One of them denies.
    Negation,
    /// A word in the place of another.
    Words,
}

/// Two texts that may contradict each other, by their places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The first of them, and the second.
    pub places: (usize, usize),
    /// How alike they are, from 0 to 1.
    pub likeness: f64,
    /// In what they differ.
    pub difference: Difference,
}

/// What is compared of a text.
struct Told {
    /// Its telling words, each once, sorted; no numbers and no negations.
    words: Vec<String>,
    /// All of them, in their order, with their places in the text.
    placed: Vec<(String, Range<usize>)>,
    numbers: Vec<String>,
    negations: usize,
}

/// The pairs among these texts that may contradict each other, the most alike first. `cosine` says
/// how near two of them are by meaning, where that is known; it is asked of those only that have
/// words in common. At most `count_max`, and whether there are more.
pub fn conflicts(
    texts: &[&str],
    count_max: usize,
    cosine: impl Fn(usize, usize) -> Option<f64>,
) -> (Vec<Pair>, bool) {
    let told: Vec<Told> = texts.iter().map(|text| Told::of(text)).collect();
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

/// The most alike first; of two the later ones.
fn keep_best(found: &mut Vec<Pair>, count_max: usize) {
    found.sort_by(|one, other| {
        let by_likeness = other.likeness.total_cmp(&one.likeness);
        by_likeness.then(other.places.cmp(&one.places))
    });
    found.truncate(count_max);
}

fn compare(
    one: &Told,
    other: &Told,
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
        // A number on one side only is more said of the same.
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

impl Told {
    /// How many words the other one does not have. Pairs of characters that overlap are of one.
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

    fn of(text: &str) -> Self {
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
                // "May" and "Will" are names where they are written so.
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

    fn of(one: &str, other: &str) -> Option<Difference> {
        let (found, _) = conflicts(&[one, other], 10, |_, _| None);
        found.first().map(|pair| pair.difference)
    }

    #[test]
    fn another_value_in_the_same_place_is_shown() {
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
            assert_eq!(of(one, other), Some(expected), "{one} / {other}");
            assert_eq!(of(other, one), Some(expected), "{other} / {one}");
        }
    }

    #[test]
    fn what_is_of_another_matter_or_says_the_same_is_not() {
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
            assert_eq!(of(one, other), None, "{one} / {other}");
        }
    }

    #[test]
    fn meaning_brings_what_words_alone_do_not() {
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
    fn the_most_alike_come_first() {
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
