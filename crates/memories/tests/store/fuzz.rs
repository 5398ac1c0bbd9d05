//! Any text as a recall query: it succeeds, and finds memories that share a word with it.

use memoird_core::words::ranking::{Query, Term};
use memoird_core::words::{Languages, tokens};
use memoird_fuzz::Target;

use crate::kit::*;

/// The stored facts.
const FACTS: &str = include_str!("../../corpus/recalls/plain.txt");

#[test]
fn fuzz_recalls() {
    let target = Target {
        name: "recalls",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\"", "*", " OR ", "NEAR(", "^", ":", "-", "\u{301}", "garage", "milk", "4711",
        ],
    };
    let kit = Kit::new();
    for (number, fact) in (1..).zip(FACTS.lines()) {
        kit.say(number, "ann", fact);
    }
    target.check(|input| {
        let query = &*String::from_utf8_lossy(input);
        let lists = kit.recall(&ask(&["ann"], query));
        let hits = &lists.lexical;
        assert!(hits.is_sorted_by(|one, next| one.score >= next.score));
        for hit in hits {
            assert!(hit.score.is_finite() && hit.score > 0.0, "{}", hit.score);
        }
        let sought = Query::new(query, Languages::default());
        for (number, fact) in (1..).zip(FACTS.lines()) {
            let mut has_one = false;
            for token in tokens(fact) {
                token.forms(Languages::default(), |form| {
                    let mut forms = sought.terms().iter().flat_map(Term::forms);
                    has_one |= forms.any(|own| own == form);
                });
            }
            let is_found = hits.iter().any(|hit| hit.id == id(number));
            assert!(is_found || !has_one, "{fact:?}");
        }
    });
}
