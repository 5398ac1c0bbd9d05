//! What has to stay to the letter, and what is only a word.

use proptest::prelude::*;

use super::Kind::{Amount, Code, Date, Id, Name, Path};
use super::*;

fn found(text: &str) -> Vec<(Kind, &str)> {
    identifiers(text)
        .into_iter()
        .map(|found| (found.kind, found.text))
        .collect()
}

fn check(cases: &[(&str, &[(Kind, &str)])]) {
    let wrong = cases
        .iter()
        .filter(|(text, expected)| found(text) != *expected);
    let wrong: Vec<_> = wrong
        .map(|(text, expected)| (text, found(text), expected))
        .collect();
    assert!(wrong.is_empty(), "text, found, expected: {wrong:#?}");
}

#[test]
fn paths_and_ids_are_found_to_the_letter() {
    let cases: &[(&str, &[(Kind, &str)])] = &[
        ("", &[]),
        (
            "Nothing to see here, and/or there. It is a one-way trip for he/she.",
            &[],
        ),
        (
            "see src/main.rs:12 and ./a or ../b/c",
            &[(Path, "src/main.rs"), (Path, "./a"), (Path, "../b/c")],
        ),
        (
            "open /etc/hosts, ~/notes.md and config.yaml.",
            &[
                (Path, "/etc/hosts"),
                (Path, "~/notes.md"),
                (Path, "config.yaml"),
            ],
        ),
        (
            r"in C:\Users\ann\new.txt today",
            &[(Path, r"C:\Users\ann\new.txt")],
        ),
        (
            "at https://example.com/a?b=1&c=2#d. Yes (http://x.org/y)",
            &[
                (Path, "https://example.com/a?b=1&c=2#d"),
                (Path, "http://x.org/y"),
            ],
        ),
        (
            "a .env in the folder target/ here",
            &[(Path, ".env"), (Path, "target/")],
        ),
        (
            "flight HAT170, reservation 4WQ150, order #W123",
            &[(Id, "HAT170"), (Id, "4WQ150"), (Id, "#W123")],
        ),
        (
            "user mia_li_3668 pays with credit_card_4421486",
            &[(Id, "mia_li_3668"), (Id, "credit_card_4421486")],
        ),
        (
            "commit 94fb3ce fixes ABC-123",
            &[(Id, "94fb3ce"), (Id, "ABC-123")],
        ),
        (
            "id 0197f0a2-58f1-7c3e-9d35-5b1f6f0f8a11 done",
            &[(Id, "0197f0a2-58f1-7c3e-9d35-5b1f6f0f8a11")],
        ),
        (
            "mail ann.b@example.com from 10.0.0.1, v1.2.3",
            &[(Id, "ann.b@example.com"), (Id, "10.0.0.1"), (Id, "v1.2.3")],
        ),
        (
            "call 5551234567 for ticket #42",
            &[(Id, "5551234567"), (Id, "#42")],
        ),
    ];
    check(cases);
}

#[test]
fn amounts_dates_codes_and_names_are_found_to_the_letter() {
    let cases: &[(&str, &[(Kind, &str)])] = &[
        (
            "it costs $1,234.56 or 350 USD, **$121**",
            &[(Amount, "$1,234.56"), (Amount, "350 USD"), (Amount, "$121")],
        ),
        (
            "12.5 GB in 30s at 99.9 % or 99% of EUR 5",
            &[
                (Amount, "12.5 GB"),
                (Amount, "30s"),
                (Amount, "99.9 %"),
                (Amount, "99%"),
                (Amount, "EUR 5"),
            ],
        ),
        (
            "wait 24 hours or 5 minutes, 50 dollars",
            &[
                (Amount, "24 hours"),
                (Amount, "5 minutes"),
                (Amount, "50 dollars"),
            ],
        ),
        (
            "a 24-hour stay, 2-bag limit, 3 bags",
            &[(Amount, "24-hour")],
        ),
        (
            "on 2024-05-15 at 15:00 or 06:00 AM or 3pm",
            &[
                (Date, "2024-05-15"),
                (Date, "15:00"),
                (Date, "06:00 AM"),
                (Date, "3pm"),
            ],
        ),
        (
            "on May 15, May 15th, 2024 or 15 May 2024",
            &[
                (Date, "May 15"),
                (Date, "May 15th, 2024"),
                (Date, "15 May 2024"),
            ],
        ),
        (
            "2024-05-15T15:00:00.5+02:00, 15.5.2024, 5/15/2024",
            &[
                (Date, "2024-05-15T15:00:00.5+02:00"),
                (Date, "15.5.2024"),
                (Date, "5/15/2024"),
            ],
        ),
        (
            "until 03:00:00+1 in May 2024",
            &[(Date, "03:00:00+1"), (Date, "May 2024")],
        ),
        (
            "got ECONNREFUSED and E0308, HTTP 503",
            &[(Code, "ECONNREFUSED"), (Code, "E0308"), (Code, "HTTP 503")],
        ),
        (
            "ended with exit code 101: a KeyError, SIGSEGV",
            &[
                (Code, "exit code 101"),
                (Code, "KeyError"),
                (Code, "SIGSEGV"),
            ],
        ),
        (
            "set MAX_RETRIES, not RESOURCE_EXHAUSTED",
            &[(Code, "MAX_RETRIES"), (Code, "RESOURCE_EXHAUSTED")],
        ),
        (
            "Yes, I flew to New York with Mia Li. Thanks",
            &[(Name, "New York"), (Name, "Mia Li")],
        ),
        (
            "Mia said hello. Mia Li said so. From JFK to SEA",
            &[(Name, "Mia Li"), (Name, "JFK"), (Name, "SEA")],
        ),
        (
            "the fn parse_answer in toolUse of std::fmt",
            &[
                (Name, "parse_answer"),
                (Name, "toolUse"),
                (Name, "std::fmt"),
            ],
        ),
        ("run `cargo` now", &[(Name, "cargo")]),
        (
            "der Flug nach Zürich kostet 350€",
            &[(Name, "Flug"), (Name, "Zürich"), (Amount, "350€")],
        ),
    ];
    check(cases);
}

#[test]
fn values_of_json_are_found_and_keys_are_not() {
    let cases: &[(&str, &[(Kind, &str)])] = &[
        (r#"{"price":152,"seats":7}"#, &[(Amount, "152")]),
        (r#"{"price": 152.50, "n": 7}"#, &[(Amount, "152.50")]),
        (
            r#"{"prices":{"basic_economy":51,"economy":121},"available_seats":{"economy":9}}"#,
            &[(Amount, "51"), (Amount, "121")],
        ),
        (
            r#"[{"flight_number":"HAT123","date":"2024-05-20"}]"#,
            &[(Id, "HAT123"), (Date, "2024-05-20")],
        ),
        (
            r#"{"total_baggages":2,"total":90,"order_id":7}"#,
            &[(Amount, "90"), (Id, "7")],
        ),
        (
            r#"{"credit_card_4421486":{"last_four":"7447"}}"#,
            &[(Id, "credit_card_4421486"), (Id, "7447")],
        ),
        (
            r#"{"first_name":"Mia","city":"New York","cabin":"economy"}"#,
            &[(Name, "Mia"), (Name, "New York")],
        ),
        (
            r#"{"reservations":["IFOYYZ","NQNU5R"],"origin":"JFK"}"#,
            &[(Id, "IFOYYZ"), (Id, "NQNU5R"), (Name, "JFK")],
        ),
        (
            r#"{"log":"line one\nHAT123 \"4WQ150\"","n":[1,200,300]}"#,
            &[(Id, "HAT123"), (Id, "4WQ150")],
        ),
        (
            r#"{\"path\":\"src/a.rs\",\"price\":12}"#,
            &[(Path, "src/a.rs"), (Amount, "12")],
        ),
        (
            "read({\"path\":\"a b/c.rs\"})\nTotal: 152",
            &[(Path, "b/c.rs"), (Amount, "152")],
        ),
    ];
    check(cases);
}

#[test]
fn paths_are_told_from_words() {
    for (text, expected) in [
        ("src/main.rs", true),
        ("README.md", true),
        ("/", false),
        ("/etc", true),
        ("crates/core/src", true),
        (r"C:\a", true),
        ("https://example.com/a.rs", false),
        ("yes/no", false),
        ("hello", false),
        ("a sentence with main.rs", false),
        ("", false),
    ] {
        assert_eq!(is_path(text), expected, "{text:?}");
    }
}

#[test]
fn monotonous_text_takes_no_longer_than_other_text() {
    // Each of these is half a megabyte; were the scan not linear, the test would not end.
    for piece in [
        "a", "a-", "1,", "a/", "//", "\"", "a::", "\\u0041", "{", "é", "A ", "http://", ".", "1:",
    ] {
        let text = piece.repeat(500_000 / piece.len());
        let found = identifiers(&text);
        assert!(
            found
                .iter()
                .all(|found| found.text.len() <= IDENTIFIER_BYTES_MAX),
            "{piece:?}"
        );
    }
}

proptest! {
    #[test]
    fn any_text_gives_pieces_of_itself_in_order(text in "(?s)[a-c1-2é \"'`{}:,./\\\\$%#@&+~_°€-]{0,80}") {
        let mut end = 0;
        for found in identifiers(&text) {
            let place = found.text.as_ptr() as usize - text.as_ptr() as usize;
            prop_assert!(place >= end, "{found:?} in {text:?}");
            prop_assert_eq!(&text[place..place + found.text.len()], found.text);
            end = place + found.text.len();
        }
    }
}
