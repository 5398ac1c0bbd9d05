//! Keys and tokens that are recognizable by their form.
//!
//! A rule is tried only on texts that contain one of its keywords. One pass finds the keywords of
//! all rules, and most texts contain none.

use std::sync::{LazyLock, OnceLock};

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::{Finding, entropy_bits, is_placeholder};

/// The rules, as a table that is easy to read and edit.
const TABLE: &str = include_str!("rules.txt");

/// One kind of secret: a line of the table.
struct Rule {
    /// Minimum entropy in bits per byte. A sample has less.
    bits: f64,
    what: &'static str,
    /// Keywords, case-insensitive. The rule is tried only on texts that contain one.
    near: &'static str,
    /// The form of the secret. If the pattern has a group, the group is the secret.
    pattern: &'static str,
    regex: OnceLock<Regex>,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let lines = TABLE.lines();
    let rules = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    rules
        .map(|line| Rule::parse(line).unwrap_or_else(|| panic!("rules.txt: {line}")))
        .collect()
});

/// Selects the rules to try, by their keywords.
static NEAR: LazyLock<RegexSet> = LazyLock::new(|| {
    RegexSetBuilder::new(RULES.iter().map(|rule| rule.near))
        .unicode(false)
        .case_insensitive(true)
        .build()
        .unwrap_or_else(|error| panic!("rules.txt: {error}"))
});

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    for index in &NEAR.matches(text) {
        RULES[index].find(text, found);
    }
}

impl Rule {
    /// `None` if a column is missing.
    fn parse(line: &'static str) -> Option<Self> {
        let columns = line.split("  ").map(str::trim);
        let mut columns = columns.filter(|column| !column.is_empty());
        Some(Self {
            bits: columns.next()?.parse().ok()?,
            what: columns.next()?,
            near: columns.next()?,
            pattern: columns.next()?,
            regex: OnceLock::new(),
        })
    }

    fn find(&self, text: &str, found: &mut Vec<Finding>) {
        let regex = self.regex.get_or_init(|| compiled(self.pattern));
        for captures in regex.captures_iter(text) {
            let secret = captures.get(1).unwrap_or_else(|| captures.get_match());
            if self.is_secret(secret.as_str()) {
                found.push(Finding {
                    range: secret.range(),
                    what: self.what,
                });
            }
        }
    }

    fn is_secret(&self, secret: &str) -> bool {
        entropy_bits(secret) >= self.bits && !is_placeholder(secret) && !is_word(secret)
    }
}

/// Compiles an ASCII pattern with a small DFA cache, because each searching thread has its own.
///
/// Patterns are constants. One that does not compile is a bug, which the tests find.
pub(super) fn compiled(pattern: &str) -> Regex {
    RegexBuilder::new(pattern)
        .unicode(false)
        .dfa_size_limit(256 << 10)
        .build()
        .unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

/// Whether the text is a placeholder for a password.
fn is_word(secret: &str) -> bool {
    matches!(
        secret,
        "password" | "pass" | "pwd" | "secret" | "passwd" | "pw" | "xxx"
    )
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn rules_and_keywords_compile() {
        LazyLock::force(&NEAR);
        for rule in RULES.iter() {
            compiled(rule.pattern);
        }
    }

    pub(in super::super) fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.what)
    }
}
