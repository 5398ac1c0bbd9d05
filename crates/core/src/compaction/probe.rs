//! The probe: how many of a span's identifiers can still be found after its compaction.

use std::collections::{HashMap, HashSet};

use super::identifiers::Kind;
use super::transcript::TranscriptTurn;

/// The result of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Different identifiers of the span.
    pub identifiers: u32,
    /// Of these, how many the remaining texts contain.
    pub found: u32,
}

impl Probe {
    /// Looks for the identifiers of a span in the texts that are left: summary, notes, tail.
    /// Names are among them. Each text is read once.
    pub fn of(span: &[TranscriptTurn], left: &[&str]) -> Self {
        Self::of_kinds(span, left, |_| true)
    }

    /// The same for the identifiers of some kinds.
    pub fn of_kinds(
        span: &[TranscriptTurn],
        left: &[&str],
        is_meant: impl Fn(Kind) -> bool,
    ) -> Self {
        let left = Left::new(left);
        let all = span.iter().flat_map(TranscriptTurn::identifiers);
        let meant = all
            .filter(|found| is_meant(found.kind))
            .map(|found| found.text);
        let mut seen = HashSet::new();
        let mut probe = Self::default();
        for text in meant.filter(|text| seen.insert(*text)) {
            probe.identifiers += 1;
            probe.found += u32::from(left.holds(text));
        }
        probe
    }

    /// True when nothing is lost.
    pub fn is_whole(&self) -> bool {
        self.found == self.identifiers
    }

    /// The share that was found, 0 to 1; 1 where there was nothing to find.
    pub fn score(&self) -> f64 {
        match self.identifiers {
            0 => 1.0,
            all => f64::from(self.found) / f64::from(all),
        }
    }
}

/// An index of the words of texts: each text is read once, and an identifier is looked for
/// only where the rarest of its words stands.
pub(super) struct Left<'a> {
    texts: &'a [&'a str],
    /// For each word the texts and offsets where it stands.
    offsets: HashMap<&'a str, Vec<(usize, usize)>>,
}

impl<'a> Left<'a> {
    pub(super) fn new(texts: &'a [&'a str]) -> Self {
        let mut offsets: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
        for (number, text) in texts.iter().enumerate() {
            for (offset, word) in words(text) {
                offsets.entry(word).or_default().push((number, offset));
            }
        }
        Self { texts, offsets }
    }

    /// True when it stands there to the letter, and not as a piece of a longer word: `152` is
    /// not in `1524`.
    pub(super) fn holds(&self, identifier: &str) -> bool {
        let offsets = |(within, word)| self.offsets.get(word).map(|offsets| (offsets, within));
        // Without one of its words it stands nowhere.
        let Some(offsets) = words(identifier).map(offsets).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let rarest = offsets.into_iter().min_by_key(|(offsets, _)| offsets.len());
        rarest.is_some_and(|(offsets, within)| {
            offsets.iter().any(|(number, offset)| {
                let start = offset.checked_sub(within);
                start.is_some_and(|start| stands_at(self.texts[*number], start, identifier))
            })
        })
    }
}

/// The runs of letters and digits of a text, and where they begin.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let offset = |word: &str| word.as_ptr().addr() - text.as_ptr().addr();
    text.split(is_between)
        .filter(|word| !word.is_empty())
        .map(move |word| (offset(word), word))
}

fn is_between(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// True when the identifier stands at this place and no word goes on at its edges.
fn stands_at(text: &str, start: usize, identifier: &str) -> bool {
    let Some((before, rest)) = text.split_at_checked(start) else {
        return false;
    };
    let Some(behind) = rest.strip_prefix(identifier) else {
        return false;
    };
    let in_word = |c: Option<char>| c.is_some_and(|c| !is_between(c));
    let (first, last) = (identifier.chars().next(), identifier.chars().next_back());
    let begins_inside = in_word(before.chars().next_back()) && in_word(first);
    let ends_inside = in_word(last) && in_word(behind.chars().next());
    !begins_inside && !ends_inside
}

#[cfg(test)]
mod tests {
    use crate::turn::Role;

    use super::*;

    fn said(text: &str) -> TranscriptTurn {
        TranscriptTurn::new(1, Role::User, text)
    }

    #[test]
    fn what_stands_somewhere_is_found() {
        for (span, left, identifiers, found) in [
            ("", "", 0, 0),
            ("HAT170 and HAT170", "flight HAT170.", 1, 1),
            ("HAT170", "HAT1700 XHAT170", 1, 0),
            (r#"{"price":152}"#, "it is $152", 1, 1),
            (r#"{"price":152}"#, "it is 1524 or 21.1525", 1, 0),
            ("$152", "it is 152", 1, 0),
            (
                "2024-05-15 at src/a.rs",
                r#"{"date":"2024-05-15","p":"src/a.rs"}"#,
                2,
                2,
            ),
            ("to New York", "in New York, New Yorker", 1, 1),
            ("to New York", "in New Yorker", 1, 0),
            ("12.5 GB", "12.5 GB", 1, 1),
        ] {
            let probe = Probe::of(&[said(span)], &["", left]);
            assert_eq!(
                (probe.identifiers, probe.found),
                (identifiers, found),
                "{span} in {left}"
            );
        }
        assert_eq!(Probe::default().score(), 1.0);
        assert_eq!(
            Probe {
                identifiers: 4,
                found: 3
            }
            .score(),
            0.75
        );
    }
}
