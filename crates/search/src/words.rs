//! Snippets of hits.

use memoird_core::words::ranking::{Query, Scorer, Statistics};

/// Maximum bytes of a snippet.
const SNIPPET_BYTES: usize = 240;
/// Maximum bytes of a snippet before its first match.
const SNIPPET_LEAD_BYTES: usize = 60;

/// Returns the passage of a text with the most matches, on one line.
///
/// Without any, its beginning.
pub(crate) fn snippet(query: &Query, text: &str, statistics: &Statistics) -> String {
    let places = Scorer::new(query, statistics).places(text);
    let wanted = densest(&places).map_or(0, |place| place.saturating_sub(SNIPPET_LEAD_BYTES));
    let boundary = text.ceil_char_boundary(wanted);
    // Skip a truncated first word.
    let start = if text[..boundary].ends_with(char::is_whitespace) || boundary == 0 {
        boundary
    } else {
        text[boundary..]
            .find(char::is_whitespace)
            .filter(|blank| *blank < SNIPPET_LEAD_BYTES)
            .map_or(boundary, |blank| boundary + blank)
    };
    let end = text.floor_char_boundary(start + SNIPPET_BYTES);
    let words: Vec<&str> = text[start..end].split_whitespace().collect();
    let mark = |is_cut: bool| if is_cut { "…" } else { "" };
    let (before, behind) = (mark(start > 0), mark(end < text.len()));
    format!("{before}{}{behind}", words.join(" "))
}

/// Returns the start of the first passage of snippet length with the most distinct words.
fn densest(places: &[(usize, usize)]) -> Option<usize> {
    let reach = SNIPPET_BYTES - SNIPPET_LEAD_BYTES;
    let mut best: Option<(u32, usize)> = None;
    for (index, (start, _)) in places.iter().enumerate() {
        let near = places[index..]
            .iter()
            .take_while(|(place, _)| *place < start + reach);
        let found = near.fold(0_u64, |found, (_, term)| found | 1 << (term % 64));
        let words = found.count_ones();
        if best.is_none_or(|(most, _)| words > most) {
            best = Some((words, *start));
        }
    }
    best.map(|(_, start)| start)
}

#[cfg(test)]
mod tests {
    use memoird_core::words::{Languages, add_index_words};

    use super::*;

    fn snippet(query: &str, text: &str) -> String {
        let query = Query::new(query, Languages::default());
        super::snippet(&query, text, &Statistics::default())
    }

    #[test]
    fn query_and_index_tokenize_alike() {
        for (said, asked) in [
            ("We refunded the Crème brûlée", "refunds creme"),
            ("Ёлка 東京", "елка 東京"),
            ("私の名前は太郎です", "太郎"),
            ("我用Python写代码", "python"),
            ("snake_case_names", "name"),
            ("बिल्ली कहाँ है", "बिल्ली"),
        ] {
            let mut index_words = String::new();
            let language = add_index_words(said, &mut index_words);
            let words: Vec<&str> = index_words.split(' ').collect();
            for term in Query::new(asked, language).terms() {
                let forms = term.forms();
                let is_found = forms.iter().any(|form| words.contains(&form.as_str()));
                assert!(is_found, "{forms:?} in {words:?}");
            }
        }
        assert!(Query::new(" …!", Languages::default()).terms().is_empty());
    }

    #[test]
    fn snippet_shows_passage_with_most_query_words() {
        let filler = "nothing to see here ".repeat(40);
        let text = format!("A refund. {filler}The refund of invoice 17\nwas late. {filler}");
        let shown = snippet("late refunds of invoices", &text);
        assert!(
            shown.contains("The refund of invoice 17 was late."),
            "{shown}"
        );
        assert!(shown.starts_with('…') && shown.ends_with('…'), "{shown}");
        assert!(shown.len() <= SNIPPET_BYTES + 2 * '…'.len_utf8());
        assert_eq!(snippet("absent", "short text"), "short text");
        assert_eq!(snippet("x", ""), "");
    }

    #[test]
    fn snippet_is_cut_at_char_boundaries() {
        let text = "ä€家🙂".repeat(100);
        let with = format!("{text} refund {text}");
        assert!(snippet("refund", &with).contains("refund"));
        assert!(!snippet("absent", &with).is_empty());
    }
}
