//! Keys and tokens that are known by their looks.
//!
//! A rule is tried only on a text that holds one of its key words, which one pass finds for
//! all rules: most texts hold none.

use std::sync::{LazyLock, OnceLock};

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::{Finding, entropy_bits, is_placeholder};

/// The rules as people read and change them.
const TABLE: &str = include_str!("rules.txt");

/// One kind of secret: a line of the table.
struct Rule {
    /// Bits in each of its bytes, at least: less is a sample.
    bits: f64,
    what: &'static str,
    /// The key words: the rule is tried on texts that have one of them, in any case of letters.
    near: &'static str,
    /// Its looks; where it has a group, the group is the secret.
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

/// Which rules may find something, by their key words.
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
    /// `None` for a line that lacks a column.
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

/// Compiles a pattern of ASCII; its cache of states is kept small, since each thread that
/// looks for secrets has one. Patterns are constants: one that does not compile is a mistake in
/// this program, which its tests find.
pub(super) fn compiled(pattern: &str) -> Regex {
    RegexBuilder::new(pattern)
        .unicode(false)
        .dfa_size_limit(256 << 10)
        .build()
        .unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

/// True for placeholders of passwords in documentation.
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
    fn every_rule_compiles_and_its_key_words_too() {
        LazyLock::force(&NEAR);
        for rule in RULES.iter() {
            compiled(rule.pattern);
        }
    }

    /// The names of all rules.
    pub(in super::super) fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.what)
    }
}
