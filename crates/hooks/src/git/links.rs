//! Links in what somebody said: those of schemes that are not the web's are not live. Nothing
//! else of the text changes.

/// Schemes whose links stay live.
const KNOWN: [&str; 3] = ["http:", "https:", "mailto:"];
/// Bytes of a tag that are looked at.
const TAG_BYTES_MAX: usize = 2_048;

/// True for the target of a link that may be of another scheme, in whatever way that is written.
pub(super) fn is_strange(target: &str) -> bool {
    let ends = [' ', '\t', '\n', '\r', ')', '>', '/', '?', '#', '"', '\''];
    let head = target.split(ends).next().unwrap_or_default();
    // An entity or an escape may stand for the colon.
    let has_scheme = head.contains([':', '&', '\\']);
    let is = |known: &&str| {
        let start = head.get(..known.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(known))
    };
    has_scheme && !KNOWN.iter().any(is)
}

/// The text with links of other schemes made relative, which leads nowhere.
pub(super) fn inert(said: &str) -> String {
    let mut text = String::with_capacity(said.len());
    let mut rest = said;
    while let Some(at) = rest.find([']', '<']) {
        let (before, here) = rest.split_at(at);
        text.push_str(before);
        if here.starts_with("](") || here.starts_with("]:") {
            // The target may stand in the next line, or within brackets.
            let is_gap = |c: char| c.is_ascii_whitespace() || matches!(c, '>' | '<');
            let target = here[2..].trim_start_matches(is_gap);
            let start = here.len() - target.len();
            text.push_str(&here[..start]);
            if is_strange(target) {
                text.push_str("./");
            }
            rest = target;
        } else {
            let is_live = here.starts_with('<') && leads_away(&here[1..]);
            text.push_str(if is_live { "&lt;" } else { &here[..1] });
            rest = &here[1..];
        }
    }
    text + rest
}

/// True behind the `<` of a link in brackets, or of a tag with a target, that is of another
/// scheme.
fn leads_away(after: &str) -> bool {
    if !after.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/') {
        return false;
    }
    let tag = &after[..after.floor_char_boundary(TAG_BYTES_MAX)];
    let tag = tag.split('>').next().unwrap_or_default();
    let gap = |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\'');
    let mut values = tag
        .split('=')
        .skip(1)
        .map(|value| value.trim_start_matches(gap));
    let is_autolink = !tag.contains(char::is_whitespace) && is_strange(tag);
    is_autolink || values.any(is_strange)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_unknown_schemes_are_not_live() {
        for (said, shown) in [
            ("[a](javascript:alert(1))", "[a](./javascript:alert(1))"),
            ("[a](<JavaScript:x>)", "[a](<./JavaScript:x>)"),
            ("[a](\n  data:text/html,x)", "[a](\n  ./data:text/html,x)"),
            (
                "[a](java&#115;cript&colon;x)",
                "[a](./java&#115;cript&colon;x)",
            ),
            ("[a](javascript\\:x)", "[a](./javascript\\:x)"),
            ("![a](file:///etc/passwd)", "![a](./file:///etc/passwd)"),
            ("[a]: vbscript:x", "[a]: ./vbscript:x"),
            ("<ssh://host/>", "&lt;ssh://host/>"),
            ("<a href='javascript:x'>", "&lt;a href='javascript:x'>"),
            ("<img src=data:x>", "&lt;img src=data:x>"),
        ] {
            assert_eq!(inert(said), shown);
        }
    }

    #[test]
    fn all_other_text_stays_as_it_was_said() {
        for said in [
            "",
            "a < b, Vec<String>, a[0](x), list[i]: 5 and [x]: note",
            "[a](https://a.example/b:c) <http://a.example> [b](HTTP://x)",
            "[a](/b:c) [b](#c:d) [c](mailto:a@b.example)",
            "<a href=\"https://a.example\">x</a> if a <b && c> d",
            "std::vector<int> x; a<b>c();",
        ] {
            assert_eq!(inert(said), said);
        }
    }
}
