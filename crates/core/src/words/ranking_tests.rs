//! Tests of the terms of a query and the ranking of memories.

use proptest::prelude::*;

use super::super::fold::is_picture;
use super::*;

fn words(text: &str) -> Vec<String> {
    Query::new(text, Languages::default())
        .terms
        .into_iter()
        .map(|term| term.word)
        .collect()
}

/// Endings of many languages, often with short stems.
const ENDINGS: [&str; 30] = [
    "", "s", "ed", "y", "ly", "ies", "ing", "ation", "ational", "bility", "en", "heid", "lich",
    "ement", "ication", "yal", "llyal", "amos", "idad", "enza", "issa", "lla", "iie", "sel",
    "iste", "ler", "ma", "me", "yor", "sin",
];

/// Endings that the English stemmer removes or changes.
const ENGLISH_ENDINGS: [&str; 58] = [
    "", "'s", "s", "sses", "ied", "ies", "us", "ss", "eed", "eedly", "ed", "edly", "ing", "ingly",
    "at", "bl", "iz", "y", "tional", "enci", "anci", "abli", "entli", "izer", "ization", "ational",
    "ation", "ator", "alism", "aliti", "alli", "fulness", "ousli", "ousness", "iveness", "iviti",
    "biliti", "bli", "logi", "fulli", "lessli", "li", "alize", "icate", "iciti", "ical", "ful",
    "ness", "ative", "ability", "ement", "ment", "ent", "ion", "e", "ll", "ly", "ying",
];

/// Scores all contents as if the index used the same stemming.
fn scores(query: &str, contents: &[&str]) -> Vec<f64> {
    let query = Query::new(query, Languages::default());
    let all = Statistics {
        memories: 1,
        ..Statistics::default()
    };
    let found_by = |statistics: &Statistics| -> Vec<Found> {
        let found = contents.iter().map(|content| {
            let mut found = Found::default();
            let hits = Scorer::new(&query, statistics).hits(content).0;
            hits.iter().for_each(|hit| found.insert(hit.term));
            found
        });
        found.collect()
    };
    let count = |found: &[Found], term| found.iter().filter(|it| it.contains(term)).count() as u64;
    let exact = found_by(&all);
    let mut alike = Found::default();
    let missing = (0..query.terms.len()).filter(|term| count(&exact, *term) == 0);
    missing.for_each(|term| alike.insert(term));
    let found = found_by(&Statistics {
        alike,
        ..all.clone()
    });
    let statistics = Statistics {
        memories: contents.len() as u64,
        found_in: (0..query.terms.len())
            .map(|term| count(&found, term))
            .collect(),
        alike,
    };
    let scorer = Scorer::new(&query, &statistics);
    contents
        .iter()
        .map(|content| scorer.score(content))
        .collect()
}

fn best(query: &str, contents: &[&str]) -> usize {
    let scores = scores(query, contents);
    (0..scores.len())
        .max_by(|a, b| scores[*a].total_cmp(&scores[*b]))
        .unwrap()
}

#[test]
fn query_terms_exclude_stop_words_and_duplicates() {
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
fn rare_word_scores_higher_than_common_one() {
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
fn words_close_together_score_higher() {
    let filler = "and so the long day went by with this and that for them all ".repeat(5);
    let apart = format!("The garage is new. {filler} The code came by post.");
    let together = format!("{filler} The code of the garage is on the note. {filler}");
    assert_eq!(best("garage code", &[&apart, &together]), 1);
    assert_eq!(best("garage code", &[&together, &apart]), 0);
}

#[test]
fn long_memory_with_more_matches_ranks_first() {
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
        "a short text with only the word ranks first"
    );
}

#[test]
fn text_without_query_terms_scores_zero() {
    let query = Query::new("weekly news ขนม", Languages::default());
    assert_eq!(query.terms().len(), 3);
    let statistics = Statistics {
        memories: 10,
        found_in: vec![0, 2, 1],
        ..Statistics::default()
    };
    let scorer = Scorer::new(&query, &statistics);
    let mut news = Found::default();
    news.insert(1);
    assert_eq!(scorer.coverage(Found::default()), 0.0);
    assert!(scorer.coverage(news) > 0.0);
    assert_eq!(scorer.score("something new"), 0.0, "no query term matches");
    assert!(scorer.score("every week") > 0.0);
    assert!(scorer.score("ของขนมไทย") > 0.0);
}

#[test]
fn words_of_many_scripts_are_found_within_sentences() {
    for (query, content, other) in [
        ("太郎", "私の名前は太郎です", "私の名前は次郎です"),
        ("猫はいますか", "猫を飼っている", "犬を飼っている"),
        ("python", "我用Python写代码", "我用Rust写代码"),
        ("서울", "서울에 살아요", "부산에 살아요"),
        (
            "\u{1109}\u{1165}\u{110b}\u{116e}\u{11af}",
            "서울에 살아요",
            "부산에 살아요",
        ),
        ("ขนม", "ฉันชอบกินขนมไทย", "ฉันชอบกินข้าวไทย"),
        ("चाय", "मुझे चाय पसंद है", "मुझे कॉफ़ी पसंद है"),
        ("Москва", "живёт в Москве", "живёт в Минске"),
        ("grösse", "trägt Größe 42", "trägt Schuhe"),
        ("ירושלים", "הוא גר בירושלים", "הוא גר בחיפה"),
        ("كتاب", "قرأت الكِتَابَ أمس", "قرأت الجريدة أمس"),
        ("நாய்", "என் நாய் பெயர் டாமி", "என் பூனை பெயர் டாமி"),
    ] {
        let found = scores(query, &[content, other]);
        assert!(found[0] > found[1], "{query}: {content}");
    }
}

#[test]
fn other_endings_match_if_no_text_has_the_word() {
    for (query, content, other) in [
        ("बहनें", "मेरी बहन पुणे में रहती है", "मेरा भाई पुणे में रहता है"),
        ("কুকুর", "আমার কুকুরের নাম ভুলু", "আমার বিড়ালের নাম পুষি"),
        ("ಬೆಂಗಳೂರು", "ಅಕ್ಕ ಬೆಂಗಳೂರಿನಲ್ಲಿ ಇದ್ದಾಳೆ", "ತಮ್ಮ ಮೈಸೂರಿನಲ್ಲಿ ಇದ್ದಾನೆ"),
        ("പുസ്തകം", "മൂന്ന് പുസ്തകങ്ങൾ വാങ്ങി", "മൂന്ന് പേന വാങ്ങി"),
        ("Երևան", "Երևանում է աշխատում", "Գյումրիում է աշխատում"),
        ("ძმას", "ჩემი ძმა ექიმია", "ჩემი მამა ექიმია"),
        ("ድመት", "ድመቴ ሉሉ", "ውሻዬ ሬክስ"),
        ("מכוניות", "קניתי את המכונית", "קניתי את הבית"),
        ("кішки", "мою кішку звати Мурка", "мого собаку звати Рекс"),
        ("książek", "mam trzy książki", "mam trzy koty"),
        (
            "opettaja",
            "sisko on opettajana Turussa",
            "veli on lääkärinä Oulussa",
        ),
        ("Kraków", "mieszka w Krakowie", "mieszka w Gdańsku"),
        ("kucingku", "kucing saya Manis", "anjing saya Bleki"),
        ("ཁྱི", "ངའི་ཁྱིའི་མིང་ལ་སེང་གེ་ཟེར", "ངའི་ཞི་མིའི་མིང་ལ་པདྨ་ཟེར"),
    ] {
        let found = scores(query, &[content, other]);
        assert!(found[0] > found[1], "{query}: {content}: {found:?}");
    }
    for (query, content) in [
        ("cat", "a caterpillar company"),
        ("2018", "in 2019"),
        ("milk", "a million"),
        ("猫", "犬を飼っている"),
    ] {
        assert_eq!(scores(query, &[content]), [0.0], "{query}: {content}");
    }
    // English has a stemmer.
    assert_eq!(scores("professor", &["it is for the profession"]), [0.0]);
    let both = scores("kota", &["ma koty", "ma kota"]);
    assert!(both[0] < both[1] && both[0] == 0.0, "{both:?}");
}

#[test]
fn exact_word_scores_higher_than_same_stem() {
    let spanish = Languages::detect("Mi perro se llama Toby y vive con nosotros");
    let vietnamese = Languages::default();
    for (languages, query, content, other) in [
        (
            spanish,
            "hermana",
            "mi hermana vive en Lugo",
            "mi hermano vive en Lugo",
        ),
        (vietnamese, "bơ", "bị dị ứng với bơ", "bị dị ứng với bò"),
        (vietnamese, "bò", "bị dị ứng với bò", "bị dị ứng với bơ"),
    ] {
        let query = Query::new(query, languages);
        let scorer = Scorer::new(&query, &Statistics::default());
        assert!(scorer.score(content) > scorer.score(other), "{content}");
        assert!(scorer.score(other) > 0.0, "{other}");
    }
}

#[test]
fn stemming_matches_with_and_without_diacritics() {
    let turkish = Languages::detect("Köpeğimin adı Karabaş");
    let german = Languages::detect("Mein Bruder wohnt nicht in der Stadt");
    for (languages, query, content) in [
        (turkish, "köpekler", "Köpeğimin adı Karabaş"),
        (turkish, "kopek", "Köpeğimin adı Karabaş"),
        (german, "muenchen", "wohnt in München"),
        (german, "Ärzte", "ist Arzt"),
        (Languages::default(), "شاي", "أحب الشاي بالنعناع"),
        (Languages::default(), "سيارة", "اشتريت سيارتي"),
        (Languages::default(), "2018", "गाड़ी २०१८ में खरीदी"),
        (Languages::default(), "गाड़ी २०१८", "in 2018"),
        (Languages::default(), "soeur", "ma sœur"),
        (Languages::default(), "🍕", "heute Pizza 🍕!"),
    ] {
        let query = Query::new(query, languages);
        let score = Scorer::new(&query, &Statistics::default()).score(content);
        assert!(score > 0.0, "{query:?}: {content}");
    }
}

#[test]
fn stemming_uses_only_languages_of_query() {
    let german = Languages::detect("Der Hund und die Katze sind im Haus");
    let statistics = Statistics::default();
    for (languages, is_found) in [(Languages::default(), false), (german, true)] {
        let query = Query::new("Hunden", languages);
        let score = Scorer::new(&query, &statistics).score("Ein Hund");
        assert_eq!(score > 0.0, is_found);
    }
}

#[test]
fn words_match_in_any_case_and_inflection() {
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
fn found_never_contains_terms_beyond_maximum() {
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
    fn any_score_is_finite_and_not_negative(
        query in ".{0,80}",
        content in ".{0,200}",
        memories in any::<u64>(),
        found_in in proptest::collection::vec(any::<u64>(), 0..40),
        alike in any::<u32>().prop_map(Found),
    ) {
        let query = Query::new(&query, Languages::default());
        prop_assert!(query.terms.len() <= TERMS_MAX);
        for term in &query.terms {
            let first = term.word.chars().next();
            prop_assert!(first.is_some_and(|c| c.is_alphanumeric() || is_picture(c)));
            prop_assert!(!term.word.contains(['"', '*', '\0']));
        }
        let statistics = Statistics { memories, found_in, alike };
        let scorer = Scorer::new(&query, &statistics);
        let score = scorer.score(&content);
        prop_assert!(score.is_finite() && score >= 0.0);
    }

    #[test]
    fn prefiltered_hits_equal_full_comparison(
        stems in proptest::collection::vec("[a-z]{1,5}|(kk|ll|d|l|t|ç)[aeiouy]{0,2}[a-zé]?", 1..5),
        query_endings in proptest::collection::vec(0..ENDINGS.len(), 5),
        content_endings in proptest::collection::vec((0..5_usize, 0..ENDINGS.len()), 0..20),
        languages in prop_oneof![Just(0_i64), any::<i64>(), (0..14_i64).prop_map(|bit| 1 << bit)],
    ) {
        let languages = Languages::from_bits(languages);
        let word = |stem: usize, ending: usize| stems[stem % stems.len()].clone() + ENDINGS[ending];
        let query_words: Vec<String> =
            (0..stems.len()).map(|stem| word(stem, query_endings[stem])).collect();
        let content: Vec<String> =
            content_endings.iter().map(|(stem, ending)| word(*stem, *ending)).collect();
        let (query_text, content) = (query_words.join(" "), content.join(" "));
        let query = Query::new(&query_text, languages);
        let scorer = Scorer::new(&query, &Statistics::default());
        let mut hits = Vec::new();
        let mut all = 0;
        for (position, token) in crate::words::tokens(&content).enumerate() {
            let mut forms = Vec::new();
            token.forms(languages, |form| forms.push(form.to_owned()));
            let has_form = |term: &Term| term.forms.iter().any(|own| forms.contains(own));
            let found = query.terms.iter().enumerate().filter(|(_, term)| has_form(term));
            hits.extend(found.map(|(term, _)| (position, term)));
            all += 1;
        }
        let (found, words) = scorer.hits(&content);
        let found: Vec<_> = found.iter().map(|hit| (hit.place, hit.term)).collect();
        prop_assert_eq!((found, words), (hits, all), "{} in {}", query_text, content);
    }

    #[test]
    fn english_stem_without_last_two_letters_is_prefix_of_word(
        stem in "[a-z]{1,6}",
        endings in proptest::collection::vec(0..ENGLISH_ENDINGS.len(), 1..4),
    ) {
        let endings: String = endings.iter().map(|ending| ENGLISH_ENDINGS[*ending]).collect();
        let word = stem + &endings;
        let stemmed = crate::words::stem(&word).into_owned();
        let kept = &stemmed[..stemmed.len().saturating_sub(2)];
        prop_assert!(word.starts_with(kept), "{} has the stem {}", word, stemmed);
    }

    #[test]
    fn additional_query_word_never_lowers_score(
        words in proptest::collection::vec("[b-d]{1,2}", 1..60),
        position in 0_usize..60,
    ) {
        let query = Query::new("bb zebra", Languages::default());
        let scorer = Scorer::new(&query, &Statistics { memories: 9, found_in: vec![3, 1], ..Statistics::default() });
        let mut more = words.clone();
        more[position % words.len()] = "zebra".into();
        if words[position % words.len()] != "bb" {
            let score = |words: &[String]| scorer.score(&words.join(" "));
            prop_assert!(score(&more) >= score(&words));
        }
    }
}

#[test]
fn long_query_in_unspaced_script_includes_its_last_words() {
    let long = "先週の日曜日にみんなで行った海の近くの新しいレストランのことはもういいので、私の猫の名前を教えてください";
    let query = Query::new(long, Languages::default());
    for word in ["猫", "名前"] {
        assert!(query.terms().iter().any(|term| term.word == word), "{word}");
    }
}
