//! Secrets in a text, found before it is kept or shown to an embedder: keys and tokens of
//! providers, private keys, passwords with their names, card numbers.
//!
//! What providers' keys look like was taken from gitleaks' default rules (MIT), which are
//! named beside ours. Names, addresses, phone numbers and account numbers (IBAN) are not
//! secrets: they give no access to anything.
//!
//! Time is linear in the text, whatever it says: the `regex` crate promises it for one
//! search, and every search that goes on after a match, or after a match that was none,
//! looks at a bounded piece again.

mod assigned;
mod card;
mod key_block;
mod plain;
mod rules;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::MemoryError;
use plain::Plain;

/// How a text with a secret is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretPolicy {
    /// It is refused.
    #[default]
    Block,
    /// It is kept, with a mark where each secret was.
    Redact,
    /// It is kept as it is.
    Allow,
}

/// A secret in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its range in bytes of the text; never inside a character.
    pub range: Range<usize>,
    /// What it looks like, such as `GitHub token`.
    pub what: &'static str,
}

/// The secrets in a text, in their order; none overlap.
pub fn find(text: &str) -> Vec<Finding> {
    let mut found = find_in(text);
    let normalized = Plain::normalized(text);
    if let Some(plain) = &normalized {
        let more = find_in(&plain.text).into_iter();
        found.extend(more.map(|finding| finding.in_text(plain)));
    }
    // A token's end is not known there: of what was found already more would go than it.
    let read = normalized.as_ref().map_or(text, |plain| &plain.text);
    if let Some(joined) = Plain::joined(read) {
        let mut cut = Vec::new();
        rules::find(&joined.text, &mut cut);
        for finding in cut {
            let finding = finding.in_text(&joined);
            let finding = match &normalized {
                Some(plain) => finding.in_text(plain),
                None => finding,
            };
            if !found.iter().any(|known| known.overlaps(&finding)) {
                found.push(finding);
            }
        }
    }
    apart(found)
}

/// The secrets in a text as it is written.
fn find_in(text: &str) -> Vec<Finding> {
    // From the surest to the one that guesses most: of two that overlap, the first names it.
    let mut found = Vec::new();
    key_block::find(text, &mut found);
    rules::find(text, &mut found);
    card::find(text, &mut found);
    assigned::find(text, &mut found);
    apart(found)
}

impl Finding {
    /// The same in the text that this was made of.
    fn in_text(self, plain: &Plain) -> Self {
        Self {
            range: plain.place(&self.range),
            ..self
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.range.start < other.range.end && other.range.start < self.range.end
    }
}

/// The text with a mark in place of each finding; findings are those of this text. The marks
/// may be longer than what they stand for.
pub fn redacted(text: &str, findings: &[Finding]) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut end = 0;
    for Finding { range, what } in findings {
        redacted.push_str(text.get(end..range.start).unwrap_or_default());
        redacted.push_str(&format!("[redacted: {what}]"));
        end = range.end;
    }
    redacted.push_str(text.get(end..).unwrap_or_default());
    redacted
}

/// The text of a field as this policy lets it be kept, and how many secrets were taken out of it.
///
/// # Errors
/// [`MemoryError::SecretFound`] under [`SecretPolicy::Block`]; it says what was found first,
/// never the secret.
pub fn admit(
    field: &'static str,
    text: &str,
    policy: SecretPolicy,
) -> Result<(String, usize), MemoryError> {
    if policy == SecretPolicy::Allow {
        return Ok((text.to_owned(), 0));
    }
    let findings = find(text);
    match findings.first() {
        Some(&Finding { what, .. }) if policy == SecretPolicy::Block => {
            Err(MemoryError::SecretFound { field, what })
        }
        _ => Ok((redacted(text, &findings), findings.len())),
    }
}

/// Joins findings that overlap; the one found first gives the name.
fn apart(found: Vec<Finding>) -> Vec<Finding> {
    let mut ranked: Vec<(usize, Finding)> = found.into_iter().enumerate().collect();
    ranked.sort_by_key(|(rank, finding)| (finding.range.start, *rank));
    let mut apart: Vec<(usize, Finding)> = Vec::with_capacity(ranked.len());
    for (rank, finding) in ranked {
        match apart.last_mut() {
            Some((first, last)) if finding.range.start < last.range.end => {
                last.range.end = last.range.end.max(finding.range.end);
                if rank < *first {
                    (*first, last.what) = (rank, finding.what);
                }
            }
            _ => apart.push((rank, finding)),
        }
    }
    apart.into_iter().map(|(_, finding)| finding).collect()
}

/// Bits of information in each byte, by how often each occurs (C. Shannon, 1948): words have
/// fewer than keys.
fn entropy_bits(text: &str) -> f64 {
    let mut counts = [0_u32; 256];
    text.bytes().for_each(|byte| counts[usize::from(byte)] += 1);
    let total = text.len() as f64;
    let share = |count: u32| f64::from(count) / total;
    -counts
        .iter()
        .filter(|count| **count > 0)
        .map(|c| share(*c) * share(*c).log2())
        .sum::<f64>()
}

/// True for placeholders of secrets in instructions, examples and templates.
fn is_placeholder(text: &str) -> bool {
    const WORDS: &str = "example placeholder changeme change_me change-me your xxxx **** .... \
                         redacted";
    let lower = text.to_ascii_lowercase();
    WORDS.split(' ').any(|word| lower.contains(word)) || text.starts_with(['<', '$', '{', '%', '['])
}
