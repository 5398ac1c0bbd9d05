//! What is looked for in a question, and which of a few memories answers it best.

use proptest::prelude::*;

use super::*;

fn words(text: &str) -> Vec<String> {
    Query::new(text)
        .terms
        .into_iter()
        .map(|term| term.word)
        .collect()
}

/// Scores every content as if the index stemmed as we do.
fn scores(query: &str, contents: &[&str]) -> Vec<f64> {
    let query = Query::new(query);
    let all = Statistics {
        memories: 1,
        found_in: vec![],
    };
    let found: Vec<Found> = contents
        .iter()
        .map(|content| {
            let mut found = Found::default();
            let hits = Scorer::new(&query, &all).hits(content).0;
            hits.iter().for_each(|(_, term)| found.insert(*term));
            found
        })
        .collect();
    let found_in = |term| found.iter().filter(|found| found.contains(term)).count() as u64;
    let statistics = Statistics {
        memories: contents.len() as u64,
        found_in: (0..query.terms.len()).map(found_in).collect(),
    };
    let scorer = Scorer::new(&query, &statistics);
    let score = |(found, content): (&Found, &&str)| scorer.score(*found, content);
    found.iter().zip(contents).map(score).collect()
}

/// Which content is best.
fn best(query: &str, contents: &[&str]) -> usize {
    let scores = scores(query, contents);
    (0..scores.len())
        .max_by(|a, b| scores[*a].total_cmp(&scores[*b]))
        .unwrap()
}

#[test]
fn a_query_is_its_words_without_those_that_say_nothing() {
    for (query, terms) in [
        ("", vec![]),
        ("What's my dog's name?", vec!["dog", "name"]),
        ("I don’t know who’s won", vec!["know", "won"]),
        ("Why won't they? Let's go", vec!["go"]),
        ("Will he, can he?", vec!["Will", "can"]),
        ("who are you", vec!["who", "are", "you"]),
        ("running runs run", vec!["running"]),
        ("CAFÉ cafe", vec!["CAFÉ"]),
        ("order A-17, 9.99 $", vec!["order", "17", "9", "99"]),
        ("\"a\" OR b* NEAR(c) -d", vec!["b", "NEAR", "c", "d"]),
    ] {
        assert_eq!(words(query), terms, "{query}");
    }
    let long: String = (0..100).map(|n| format!("w{n} ")).collect();
    assert_eq!(words(&long).len(), TERMS_MAX);
    let stopped = "who are you ".repeat(1_000);
    assert_eq!(words(&stopped), ["who", "are", "you"]);
}

#[test]
fn a_rare_word_says_more_than_a_common_one() {
    let contents = [
        "likes coffee",
        "coffee with oat milk",
        "coffee at nine",
        "was in Lisbon",
    ];
    assert_eq!(best("coffee in Lisbon", &contents), 3);
    assert_eq!(best("oat milk in the coffee", &contents), 1);
}

#[test]
fn words_count_more_where_they_stand_together() {
    let filler = "and so the long day went by with this and that for them all ".repeat(5);
    let apart = format!("The garage is new. {filler} The code came by post.");
    let together = format!("{filler} The code of the garage is on the note. {filler}");
    assert_eq!(best("garage code", &[&apart, &together]), 1);
    assert_eq!(best("garage code", &[&together, &apart]), 0);
}

#[test]
fn a_long_memory_does_not_lose_for_being_long() {
    let long = format!(
        "{} My flight leaves at nine on Monday.",
        "We talked a lot. ".repeat(50)
    );
    let contents = ["My flight was fine.", &long, "Monday is a holiday."];
    assert_eq!(best("when does my flight leave on Monday", &contents), 1);
    let contents = [
        "the flight and the train and the bus and the car to nowhere",
        "the flight",
    ];
    assert_eq!(
        best("flight", &contents),
        1,
        "a short one that says just that is better"
    );
}

#[test]
fn of_english_words_the_text_decides_and_of_others_the_index_as_well() {
    let query = Query::new("weekly news ขนม");
    assert_eq!(query.terms().len(), 3);
    let statistics = Statistics {
        memories: 10,
        found_in: vec![0, 2, 1],
    };
    let scorer = Scorer::new(&query, &statistics);
    let mut news = Found::default();
    news.insert(1);
    assert_eq!(scorer.coverage(Found::default()), 0.0);
    assert!(scorer.coverage(news) > 0.0);
    assert_eq!(
        scorer.score(news, "something new"),
        0.0,
        "the index takes it for news"
    );
    assert!(
        scorer.score(Found::default(), "every week") > 0.0,
        "the index takes it for another"
    );
    let mut sweets = Found::default();
    sweets.insert(2);
    assert_eq!(scorer.score(sweets, "ของขนมไทย"), scorer.coverage(sweets));
}

#[test]
fn words_are_found_in_any_case_and_form() {
    for (query, content) in [
        ("dying", "it died"),
        ("ties", "a tie"),
        ("Café", "the CAFE"),
        ("москва", "МОСКВА"),
        ("x", "Vitamin X"),
        ("35", "I'm 35."),
        ("weeks", "WEEKLY"),
    ] {
        assert!(scores(query, &[content])[0] > 0.0, "{query}: {content}");
    }
}

#[test]
fn terms_beyond_the_last_are_in_nothing() {
    let mut found = Found::default();
    for term in [32, 33, usize::MAX] {
        found.insert(term);
        assert!(!found.contains(term));
    }
    found.insert(31);
    assert!(found.contains(31) && !found.contains(30));
}

proptest! {
    #[test]
    fn any_query_scores_any_text(
        query in ".{0,80}",
        content in ".{0,200}",
        memories in any::<u64>(),
        found_in in proptest::collection::vec(any::<u64>(), 0..40),
        bits in any::<u32>(),
    ) {
        let query = Query::new(&query);
        prop_assert!(query.terms.len() <= TERMS_MAX);
        for term in &query.terms {
            prop_assert!(term.word.chars().next().is_some_and(char::is_alphanumeric));
            prop_assert!(!term.word.contains(['"', '*', '\0']));
        }
        let statistics = Statistics { memories, found_in };
        let scorer = Scorer::new(&query, &statistics);
        let score = scorer.score(Found(bits), &content);
        prop_assert!(score.is_finite() && score >= 0.0);
    }

    #[test]
    fn looking_only_at_words_that_may_match_misses_none(
        query in "[a-z]{1,8}( [a-zA-Z]{1,5}(s|ed|y|ly|ies|ing|ation|ational|bility)?){0,4}",
        content in "[a-z]{1,8}( [a-zA-Z0-9é]{1,5}(s|ed|y|ly|ies|ing|ation|ational|bility)?){0,20}",
    ) {
        let query = Query::new(&query);
        let scorer = Scorer::new(&query, &Statistics::default());
        let stems: Vec<_> = tokens(&content).map(|token| token.stem()).collect();
        let term = |stem: &_| query.terms.iter().position(|term| term.stem == *stem);
        let hits: Vec<_> =
            (0..).zip(&stems).filter_map(|(n, stem)| Some((n, term(stem)?))).collect();
        prop_assert_eq!(scorer.hits(&content), (hits, stems.len()));
    }

    #[test]
    fn a_word_more_of_the_query_is_never_worse(
        words in proptest::collection::vec("[b-d]{1,2}", 1..60),
        place in 0_usize..60,
    ) {
        let query = Query::new("bb zebra");
        let scorer = Scorer::new(&query, &Statistics { memories: 9, found_in: vec![3, 1] });
        let mut more = words.clone();
        more[place % words.len()] = "zebra".into();
        if words[place % words.len()] != "bb" {
            let score = |words: &[String]| scorer.score(Found::default(), &words.join(" "));
            prop_assert!(score(&more) >= score(&words));
        }
    }
}
