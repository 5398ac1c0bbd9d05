//! Facts and questions in many languages: the fact that answers a question is the first hit.

use crate::kit::*;

/// Per language (`#`): facts (`+`), questions (`?`), and words that occur in no fact (`-`).
///
/// A question has the position of the fact that answers it.
const CASES: &str = include_str!("languages.txt");

#[test]
fn answering_fact_is_found_first_in_every_language() {
    let kit = Kit::new();
    let mut language = "";
    let mut facts = Vec::new();
    let mut number = 0;
    let mut asked = 0;
    let mut wrong = Vec::new();
    for line in CASES.lines() {
        let (kind, rest) = line.split_once(' ').unwrap();
        match kind {
            "#" => {
                language = rest;
                facts.clear();
            }
            "+" => {
                number += 1;
                kit.say(number, language, rest);
                facts.push(number);
            }
            "?" => {
                let (place, query) = rest.split_once(' ').unwrap();
                let right = facts[place.parse::<usize>().unwrap()];
                asked += 1;
                if kit.found(language, query).first() != Some(&right) {
                    wrong.push((language, query));
                }
            }
            "-" => {
                asked += 1;
                if !kit.found(language, rest).is_empty() {
                    wrong.push((language, rest));
                }
            }
            other => panic!("{other}"),
        }
    }
    assert!(asked > 780 && wrong.is_empty(), "of {asked}: {wrong:#?}");
}
