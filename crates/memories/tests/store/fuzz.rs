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
        let found = kit.recall(&ask(&["ann"], query));
        for hit in found.list.iter().filter(|one| one.is_lexical) {
            let score = hit.words.score;
            assert!(score.is_finite() && score > 0.0, "{score}");
        }
        let hits = by_words(&found);
        let sought = Query::new(query, Languages::default());
        for (number, fact) in (1..).zip(FACTS.lines()) {
            let mut has_one = false;
            for token in tokens(fact) {
                token.forms(Languages::default(), |form| {
                    let mut forms = sought.terms().iter().flat_map(Term::forms);
                    has_one |= forms.any(|own| own == form);
                });
            }
            let is_found = hits.contains(&number);
            assert!(is_found || !has_one, "{fact:?}");
        }
    });
}
