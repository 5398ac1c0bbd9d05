//! Fuzzes queries: any text is answered, or rejected for having no words.
//!
//! A turn that contains a word of the query is found.

use memoird_core::words::ranking::{Query, Term};
use memoird_core::words::{add_index_words, tokens};
use memoird_fuzz::Target;
use tokio::runtime::Builder;

use super::*;

/// Text of one session per line.
const SAID: &str = include_str!("../../corpus/searches/plain.txt");

#[test]
fn fuzz_searches() {
    let target = Target {
        name: "searches",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\"", "*", " OR ", "NEAR(", "^", ":", "-", "\u{301}", "1f600", "refunds", "coffee",
        ],
    };
    let dir = tempfile::tempdir().unwrap();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let fixture = runtime.block_on(async {
        let fixture = open(dir.path(), SearchConfig::default()).await;
        for (line, said) in SAID.lines().enumerate() {
            fixture.say("acme", &format!("s{line}"), &[said]).await;
        }
        // Wait for the index once, so that it is not polled for each query.
        fixture.found("coffee").await;
        fixture
    });
    target.check(|input| {
        let query = &*String::from_utf8_lossy(input);
        runtime.block_on(check_query(&fixture, query));
    });
    runtime.block_on(fixture.close());
}

async fn check_query(fixture: &Fixture, query: &str) {
    let asked = words(query);
    let limit = asked.limit;
    let page = match fixture
        .search
        .search(&tenant(&fixture.engine, "acme"), asked)
        .await
    {
        Ok(page) => page,
        Err(SearchError::QueryEmpty) => return,
        Err(error) => panic!("{error:?}"),
    };
    assert!(page.hits.len() <= limit);
    assert!(
        page.hits.is_sorted_by(|one, next| one.score >= next.score),
        "{:?}",
        page.hits
    );
    for hit in &page.hits {
        assert!(hit.score.is_finite() && hit.score > 0.0, "{hit:?}");
    }
    let seen = &query[..query.floor_char_boundary(QUERY_BYTES_MAX)];
    let languages = SAID.lines().fold(Languages::default(), |all, said| {
        all.with(add_index_words(said, &mut String::new()))
    });
    let words = Query::new(seen, languages);
    for (line, said) in SAID.lines().enumerate() {
        let mut has_one = false;
        for token in tokens(said) {
            token.forms(languages, |form| {
                let mut forms = words.terms().iter().flat_map(Term::forms);
                has_one |= forms.any(|own| own == form);
            });
        }
        let session = session_id(&format!("s{line}"));
        let is_found = page.hits.iter().any(|hit| hit.session == session);
        // If no turn has a word, turns with a common beginning are found too.
        assert!(is_found || !has_one, "{said:?}");
    }
}
