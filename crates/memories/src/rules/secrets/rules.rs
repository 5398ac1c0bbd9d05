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
    /// What a text must hold for the rule to be tried, in any case of letters.
    near: &'static str,
    /// Its looks; where it has a group, the group is the secret.
    pattern: &'static str,
    regex: OnceLock<Option<Regex>>,
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| lines().filter_map(Rule::parse).collect());

/// The lines of the table that hold a rule.
fn lines() -> impl Iterator<Item = &'static str> {
    let lines = TABLE.lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Which rules may find something, by their key words.
static NEAR: LazyLock<Option<RegexSet>> = LazyLock::new(|| {
    let near = RULES.iter().map(|rule| rule.near);
    RegexSetBuilder::new(near)
        .unicode(false)
        .case_insensitive(true)
        .build()
        .ok()
});

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    // Without the key words, which always compile, every rule would be tried.
    let near = NEAR.as_ref().map(|set| set.matches(text));
    for (place, rule) in RULES.iter().enumerate() {
        if near.as_ref().is_none_or(|near| near.matched(place)) {
            rule.find(text, found);
        }
    }
}

impl Rule {
    /// `None` for a line that lacks a column; the table has none.
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
        let Some(regex) = self.regex() else { return };
        for captures in regex.captures_iter(text) {
            let Some(secret) = captures.get(1).or_else(|| captures.get(0)) else {
                continue;
            };
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

    fn regex(&self) -> Option<&Regex> {
        self.regex.get_or_init(|| compiled(self.pattern)).as_ref()
    }
}

/// Compiles a pattern of ASCII; its cache of states is kept small, since each thread that
/// looks for secrets has one.
pub(super) fn compiled(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(pattern)
        .unicode(false)
        .dfa_size_limit(256 << 10)
        .build()
        .ok()
}

/// True for what stands for a password in documentation.
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
        assert!(NEAR.is_some());
        assert_eq!(RULES.len(), lines().count(), "each line is a rule");
        for rule in RULES.iter() {
            assert!(rule.regex().is_some(), "{}: {}", rule.what, rule.pattern);
        }
    }

    /// The names of all rules.
    pub(in super::super) fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().map(|rule| rule.what)
    }
}
