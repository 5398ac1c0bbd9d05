//! The probe: how much of a span can still be found after its compaction, with what it was said
//! of: an id beside a word, a number beside its label, what a call changed beside its tool.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::identifiers::Kind;
use super::ledger::{Entry, Ledger, labelled_numbers};
use super::transcript::TranscriptTurn;

/// The result of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Probe {
    /// Different identifiers of the span, numbers with a label, and calls that changed something.
    pub identifiers: u32,
    /// Of these, how many the remaining texts tell.
    pub found: u32,
}

/// Numbers with a label that are looked for in one result: more are a table, of which a summary
/// keeps what somebody asked for.
const LABELLED_MAX: usize = 12;
/// Bytes around what is found in which its label or its verb stands.
const NEAR_BYTES: usize = 240;

impl Probe {
    /// Looks for what a span says in the texts that are left: summary, notes, tail. Each text is
    /// read once. Found is
    ///
    /// - an id or a code that stands in a line with a word, which says what it is; a path, a date,
    ///   an amount with its unit and a name say it themselves;
    /// - a number of a tool's result, of four digits at least, in a line with its label;
    /// - a call that changed something, where something that it named stands in a line with a word
    ///   of its tool's name.
    pub fn of(span: &[TranscriptTurn], left: &[&str]) -> Self {
        let numbers = numbers(span);
        let changes = Ledger::of(span).entries;
        let changes = changes.iter().filter(|entry| entry.is_change);
        let changes: Vec<(&str, Vec<&str>)> = changes.filter_map(named).collect();
        let wanted = span.iter().flat_map(TranscriptTurn::identifiers);
        let wanted = wanted.map(|found| found.text);
        let wanted = wanted.chain(numbers.iter().map(|(_, number)| number.as_str()));
        let wanted = wanted.chain(changes.iter().flat_map(|(_, named)| named.iter().copied()));
        let left = Left::new(left, wanted);
        let mut probe = Self::default();
        probe.identifiers(span, &left, |_| true, true);
        for (label, number) in &numbers {
            probe.add(left.tells(number, &|near| names(near, label)));
        }
        for (tool, named) in changes {
            let is_told = named
                .iter()
                .any(|name| left.tells(name, &|near| names(near, tool)));
            probe.add(is_told);
        }
        probe
    }

    /// Looks for identifiers of some kinds and for numbers with a label, whatever stands around
    /// them.
    pub(super) fn of_kinds(
        span: &[TranscriptTurn],
        left: &[&str],
        is_meant: impl Fn(Kind) -> bool,
    ) -> Self {
        let numbers = numbers(span);
        let wanted = span.iter().flat_map(TranscriptTurn::identifiers);
        let wanted = wanted.map(|found| found.text);
        let wanted = wanted.chain(numbers.iter().map(|(_, number)| number.as_str()));
        let left = Left::new(left, wanted);
        let mut probe = Self::default();
        probe.identifiers(span, &left, is_meant, false);
        for (_, number) in &numbers {
            probe.add(left.holds(number));
        }
        probe
    }

    fn add(&mut self, is_found: bool) {
        self.identifiers += 1;
        self.found += u32::from(is_found);
    }

    fn identifiers(
        &mut self,
        span: &[TranscriptTurn],
        left: &Left<'_>,
        is_meant: impl Fn(Kind) -> bool,
        needs_word: bool,
    ) {
        let all = span.iter().flat_map(TranscriptTurn::identifiers);
        let mut seen = HashSet::new();
        for found in all.filter(|found| is_meant(found.kind) && seen.insert(found.text)) {
            let is_bare = matches!(found.kind, Kind::Id | Kind::Code);
            self.add(match needs_word && is_bare {
                true => left.tells(found.text, &|near| has_word(near, found.text)),
                false => left.holds(found.text),
            });
        }
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

/// The numbers with a label of a span's results that are no identifiers, each once.
fn numbers(span: &[TranscriptTurn]) -> Vec<(String, String)> {
    let known = span.iter().flat_map(TranscriptTurn::identifiers);
    let mut seen: HashSet<String> = known.map(|found| found.text.to_owned()).collect();
    let results = span.iter().flat_map(TranscriptTurn::result_texts);
    let found = results.flat_map(|result| labelled_numbers(result).into_iter().take(LABELLED_MAX));
    found
        .filter(|(_, number)| seen.insert(number.clone()))
        .collect()
}

/// An index of those words of texts that are wanted: each text is read once, and an identifier is
/// looked for only where the rarest of its words stands.
pub(super) struct Left<'a> {
    texts: &'a [&'a str],
    /// For each word that is wanted the texts and offsets where it stands.
    offsets: HashMap<&'a str, Vec<(usize, usize)>>,
}

impl<'a> Left<'a> {
    pub(super) fn new(texts: &'a [&'a str], wanted: impl Iterator<Item = &'a str>) -> Self {
        let wanted = wanted.flat_map(words).map(|(_, word)| (word, Vec::new()));
        let mut offsets: HashMap<&str, Vec<(usize, usize)>> = wanted.collect();
        // Most words are not wanted, which their first bytes tell.
        let mut begins = [false; 256];
        for word in offsets.keys() {
            begins[usize::from(word.as_bytes()[0])] = true;
        }
        for (number, text) in texts.iter().enumerate() {
            for (offset, word) in words(text) {
                if begins[usize::from(word.as_bytes()[0])]
                    && let Some(offsets) = offsets.get_mut(word)
                {
                    offsets.push((number, offset));
                }
            }
        }
        Self { texts, offsets }
    }

    /// True when it stands there to the letter, and not as a piece of a longer word: `152` is
    /// not in `1524`.
    pub(super) fn holds(&self, identifier: &str) -> bool {
        self.tells(identifier, &|_| true)
    }

    /// The same where what stands around it in its line is as it should be.
    fn tells(&self, identifier: &str, is_near: &dyn Fn(&str) -> bool) -> bool {
        let offsets = |(within, word)| self.offsets.get(word).map(|offsets| (offsets, within));
        // Without one of its words it stands nowhere.
        let Some(offsets) = words(identifier).map(offsets).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let rarest = offsets.into_iter().min_by_key(|(offsets, _)| offsets.len());
        rarest.is_some_and(|(offsets, within)| {
            offsets.iter().any(|(number, offset)| {
                let start = offset.checked_sub(within);
                start.is_some_and(|start| {
                    let text = self.texts[*number];
                    stands_at(text, start, identifier)
                        && is_near(near(text, start, start + identifier.len()))
                })
            })
        })
    }
}

/// What stands around a place in its line.
fn near(text: &str, start: usize, end: usize) -> &str {
    let begin = text.floor_char_boundary(start.saturating_sub(NEAR_BYTES));
    let before = &text[begin..start];
    let behind =
        &text[end..text.floor_char_boundary(end.saturating_add(NEAR_BYTES).min(text.len()))];
    let begin = before.rfind('\n').map_or(begin, |at| begin + at + 1);
    let end = end + behind.find('\n').unwrap_or(behind.len());
    &text[begin..end]
}

/// True where a word stands beside an identifier: letters that are not all capitals.
fn has_word(near: &str, identifier: &str) -> bool {
    let is_word = |word: &str| {
        word.chars().count() >= 2
            && word.chars().all(char::is_alphabetic)
            && !word.chars().all(char::is_uppercase)
    };
    words(near).any(|(_, word)| is_word(word) && !identifier.contains(word))
        // Scripts without blanks between words, and labels such as `user_id`.
        || near.replace(identifier, "").contains('_')
}

/// True where a word of a label or of a tool's name stands there, in any form of at least its
/// first five bytes: "cancelled" for `cancel_reservation`.
fn names(near: &str, label: &str) -> bool {
    let near = near.to_lowercase();
    let label = label.to_lowercase();
    let mut parts = label
        .split(|c: char| !c.is_alphanumeric())
        .filter(|part| !part.is_empty());
    parts.any(|part| near.contains(&part[..part.floor_char_boundary(part.len().min(5))]))
}

/// The tool of a call, and what its line names; `None` where it names nothing.
fn named(entry: &Entry) -> Option<(&str, Vec<&str>)> {
    let (tool, _) = entry.call.split_once('(')?;
    let found = super::identifiers::identifiers(&entry.call).into_iter();
    let found: Vec<&str> = found
        .filter(|one| one.kind != Kind::Name)
        .map(|one| one.text)
        .collect();
    (!found.is_empty()).then_some((tool, found))
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
    use crate::compaction::transcript::Call;
    use crate::turn::Role;

    use super::*;

    fn said(text: &str) -> TranscriptTurn {
        TranscriptTurn::new(1, Role::User, text)
    }

    #[test]
    fn a_change_is_found_where_its_tool_stands_beside_what_it_changed() {
        let called = TranscriptTurn::new(1, Role::Assistant, "").with_call(Call {
            name: "cancel_reservation".into(),
            input: r#"{"reservation_id":"4XK90Q"}"#.into(),
            ..Call::default()
        });
        // The id, the tool's name, and both together.
        for (left, found) in [
            ("The reservation 4XK90Q was cancelled.", 2),
            ("cancel_reservation(reservation_id=4XK90Q)", 3),
            ("They cancelled.\nIds: 4XK90Q", 1),
        ] {
            let probe = Probe::of(std::slice::from_ref(&called), &[left]);
            assert_eq!((probe.identifiers, probe.found), (3, found), "{left}");
        }
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
            // Nothing says what it is.
            ("flight HAT170", "HAT170 HAT171", 1, 0),
            ("flight HAT170", "HAT170 HAT171\nflight HAT172", 1, 0),
            ("flight HAT170", "flight_number=HAT170", 1, 1),
        ] {
            let probe = Probe::of(&[said(span)], &["", left]);
            assert_eq!(
                (probe.identifiers, probe.found),
                (identifiers, found),
                "{span} in {left}"
            );
        }
        let result = |text: &str| TranscriptTurn::new(1, Role::Tool, text);
        for (span, left, identifiers, found) in [
            ("value = 15838", "it gave value=15838", 1, 1),
            ("value = 15838", "15838 other words", 1, 0),
            (
                r#"{"invoice": 39595, "pages": 12}"#,
                "Invoice 39595 was made",
                1,
                1,
            ),
            (r#"{"invoice": 39595}"#, "nothing", 1, 0),
        ] {
            let probe = Probe::of(&[result(span)], &[left]);
            let counts = (probe.identifiers, probe.found);
            assert_eq!(counts, (identifiers, found), "{span} in {left}");
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
