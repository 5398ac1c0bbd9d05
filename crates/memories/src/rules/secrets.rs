//! Detects secrets in a text before it is stored or sent to an embedder.
//!
//! Detects keys and tokens of providers, private keys, named passwords, and card numbers. The
//! patterns of provider keys come from gitleaks' default rules (MIT), whose names are given next to
//! ours. Names, addresses, phone numbers and account numbers (IBAN) are not secrets: they give no
//! access to anything.
//!
//! Time is linear in the length of any text. The `regex` crate guarantees it for one search, and a
//! search that resumes after a match or a rejected match rescans only a bounded part.

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretPolicy {
    #[default]
    Block,
    /// Store it with a marker in place of each secret.
    Redact,
    Allow,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Byte range in the text, on character boundaries.
    pub range: Range<usize>,
    /// Kind of secret, such as `GitHub token`.
    pub what: &'static str,
}

/// Finds the secrets in a text, in order and without overlaps.
pub fn find(text: &str) -> Vec<Finding> {
    let mut found = find_in(text);
    let normalized = Plain::normalized(text);
    if let Some(plain) = &normalized {
        let more = find_in(&plain.text).into_iter();
        found.extend(more.map(|finding| finding.in_text(plain)));
    }
    // In the joined text the end of a token is uncertain. A finding that overlaps a known one would
    // redact more than the token.
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

/// Finds the secrets in a text as it is written.
fn find_in(text: &str) -> Vec<Finding> {
    // From the most to the least certain detector. Overlapping findings are named by the first one.
    let mut found = Vec::new();
    key_block::find(text, &mut found);
    rules::find(text, &mut found);
    card::find(text, &mut found);
    assigned::find(text, &mut found);
    apart(found)
}

impl Finding {
    /// Maps the finding back to the text that `plain` was derived from.
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

/// Replaces each finding of this text by a marker. A marker may be longer than its secret.
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

/// Applies the policy to the text of a field.
///
/// Returns the text to store and the number of redactions.
///
/// # Errors
/// [`MemoryError::SecretFound`] under [`SecretPolicy::Block`]. It names the kind of the first
/// finding, never the secret.
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

/// Merges overlapping findings. The one found first provides the name.
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

/// Shannon entropy in bits per byte. Words have less than keys.
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

/// Whether the text is a placeholder, as in instructions, examples and templates.
fn is_placeholder(text: &str) -> bool {
    const WORDS: &str = "example placeholder changeme change_me change-me your xxxx **** .... \
                         redacted";
    let lower = text.to_ascii_lowercase();
    WORDS.split(' ').any(|word| lower.contains(word)) || text.starts_with(['<', '$', '{', '%', '['])
}
