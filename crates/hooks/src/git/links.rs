//! Neutralizes links and HTML in message text for Markdown.
//!
//! Links with other schemes than those of the web are deactivated, and tags are shown as text.
//! Everything else is unchanged.

/// Schemes of links that stay active.
const KNOWN: [&str; 3] = ["http:", "https:", "mailto:"];

/// Whether a link target may have another scheme, however it is encoded.
pub(super) fn has_unsafe_scheme(target: &str) -> bool {
    let ends = [' ', '\t', '\n', '\r', ')', '>', '/', '?', '#', '"', '\''];
    let head = target.split(ends).next().unwrap_or_default();
    // An entity or an escape may encode the colon.
    let has_scheme = head.contains([':', '&', '\\']);
    let is = |known: &&str| {
        let start = head.get(..known.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(known))
    };
    has_scheme && !KNOWN.iter().any(is)
}

/// Makes links with other schemes relative, so that they lead nowhere, and escapes HTML.
///
/// Lines end with `\n` only.
pub(super) fn neutralize_links(input: &str) -> String {
    let input = with_relative_links(input);
    let mut text = String::with_capacity(input.len());
    let mut code = Code::default();
    for line in input.split_inclusive('\n') {
        code.put(&mut text, line);
    }
    text
}

fn with_relative_links(input: &str) -> String {
    let mut text = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find(']') {
        let (before, here) = rest.split_at(at);
        text.push_str(before);
        if here.starts_with("](") || here.starts_with("]:") {
            // The target may be on the next line, or within brackets.
            let is_gap = |c: char| c.is_ascii_whitespace() || matches!(c, '>' | '<');
            let target = here[2..].trim_start_matches(is_gap);
            let start = here.len() - target.len();
            text.push_str(&here[..start]);
            if has_unsafe_scheme(target) {
                text.push_str("./");
            }
            rest = target;
        } else {
            text.push(']');
            rest = &here[1..];
        }
    }
    text + rest
}

/// Detects code in a text, line by line (CommonMark 0.31, 4.5 and 6.1).
///
/// Tags stay unescaped only in code. Anything that a renderer could read differently does not count
/// as code: indented fences, and spans that may start on an earlier line or end at a table cell.
#[derive(Debug, Default)]
struct Code {
    /// Character and length of the open fence.
    fence: Option<(char, usize)>,
    /// Whether a fence is open is ambiguous from here on.
    has_other_fence: bool,
    /// A code span may have started in this paragraph and continue on the next line.
    has_open_span: bool,
}

impl Code {
    fn put(&mut self, text: &mut String, line: &str) {
        let start = line.trim_start();
        let is_at_start = start.len() == line.len();
        let mark = start
            .chars()
            .next()
            .filter(|mark| matches!(mark, '`' | '~'));
        let info = mark.map_or(start, |mark| start.trim_start_matches(mark));
        let marks = start.len() - info.len();
        let fence = mark.filter(|_| marks >= 3);
        let is_blank = info.trim_matches([' ', '\t', '\n']).is_empty();
        match (self.fence, fence) {
            _ if self.has_other_fence => {}
            (Some((of, least)), Some(mark)) if mark == of && marks >= least => {
                self.fence = None;
                self.has_other_fence = !(is_at_start && is_blank);
            }
            (Some(_), _) => return text.push_str(line),
            (None, Some(mark)) if is_at_start && !info.contains('`') => {
                self.fence = Some((mark, marks));
            }
            (None, _) => self.has_other_fence = line.contains("```") || line.contains("~~~"),
        }
        self.put_text(text, line);
        // These end a paragraph.
        let is_fence = fence.is_some() && !self.has_other_fence;
        if is_fence || line.trim_matches([' ', '\t', '\n']).is_empty() {
            self.has_open_span = false;
        }
    }

    /// Adds a line outside a fence.
    fn put_text(&mut self, text: &mut String, line: &str) {
        let mut rest = line;
        while let Some(at) = rest.find(['<', '`']) {
            let (before, here) = rest.split_at(at);
            text.push_str(before);
            let kept = match here.strip_prefix('<') {
                Some(after) if !is_tag(after) => 1,
                Some(_) => {
                    text.push_str("&lt;");
                    rest = &here[1..];
                    continue;
                }
                None => {
                    let may_begin = !self.has_open_span && !text.ends_with('\\');
                    let span = may_begin.then(|| span(here)).flatten();
                    self.has_open_span = span.is_none();
                    span.unwrap_or(here.len() - here.trim_start_matches('`').len())
                }
            };
            text.push_str(&here[..kept]);
            rest = &here[kept..];
        }
        text.push_str(rest);
    }
}

/// Length of the code span that starts here, if it ends on this line and in this table cell.
fn span(here: &str) -> Option<usize> {
    let ticks = here.len() - here.trim_start_matches('`').len();
    let mut at = ticks;
    loop {
        at += here[at..].find('`')?;
        let run = here[at..].len() - here[at..].trim_start_matches('`').len();
        at += run;
        if run == ticks {
            return Some(at).filter(|end| !here[..*end].contains('|'));
        }
    }
}

/// Whether a `<` before `after` may start a tag, a comment or a link with an unknown scheme.
fn is_tag(after: &str) -> bool {
    let ends = |char: char| char.is_whitespace() || matches!(char, '<' | '>' | '`');
    let target = after.split(ends).next().unwrap_or_default();
    let is_closed = after[target.len()..].starts_with('>');
    let is_link = is_closed && target.contains(':') && !has_unsafe_scheme(target);
    !is_link
        && after.starts_with(|first: char| first.is_ascii_alphabetic() || "/!?".contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_with_unknown_schemes_are_neutralized() {
        for (input, shown) in [
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
            ("[a](<javascript:x>)<b>", "[a](<./javascript:x>)&lt;b>"),
        ] {
            assert_eq!(neutralize_links(input), shown);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for input in [
            "",
            "a < b, 1 <2, <- and a[0](x), list[i]: 5 and [x]: note",
            "[a](https://a.example/b:c) <http://a.example> [b](HTTP://x)",
            "[a](/b:c) [b](#c:d) [c](mailto:a@b.example)",
            "`Vec<String>` and ``a ` <b>``, <mailto:a@b.example>",
            "so:\n```html\n<b>\n  ```x\n```\nand",
            "~~~\n<b>\n```\n<i>\n~~~~\n",
            "````\n```\n<b>\n````\n`<b>`",
        ] {
            assert_eq!(neutralize_links(input), input);
        }
    }

    #[test]
    fn html_is_escaped() {
        for (input, shown) in [
            (
                "<script>alert(1)</script>",
                "&lt;script>alert(1)&lt;/script>",
            ),
            ("<!-- a", "&lt;!-- a"),
            ("<?php", "&lt;?php"),
            (
                "<a href=\"https://a.example\">x</a>",
                "&lt;a href=\"https://a.example\">x&lt;/a>",
            ),
            ("std::vector<int> x; a<b", "std::vector&lt;int> x; a&lt;b"),
            (
                "<https://a.example onclick=x>",
                "&lt;https://a.example onclick=x>",
            ),
            ("<https://a", "&lt;https://a"),
            ("<details open ontoggle=x>", "&lt;details open ontoggle=x>"),
        ] {
            assert_eq!(neutralize_links(input), shown);
        }
    }

    #[test]
    fn tags_outside_certain_code_are_escaped() {
        for input in [
            "an open ` here\n`<b>`",
            "\\`<b>`",
            "``<b>`",
            "a|b\n-|-\n`<b>|`",
            // A fence in a list item ends with the item.
            "- a\n  ```\n<b>\n  ```",
            "  ```\n```\n<b>\n```",
            "> ```\n```\n<b>\n```",
            "```\n   ```\n<b>\n```",
            "```\n\t```\n<b>\n```",
            "```\n```\n<b>",
            "```a`\n<b>\n```",
            "~~~`\n~~~\n<b>",
            "``~ x\n``<b>``",
            "```~\n<i>\n```\n<b>",
        ] {
            let shown = neutralize_links(input);
            assert!(!shown.contains("<b>"), "{input:?} is {shown:?}");
            assert_eq!(shown.replace("&lt;", "<"), input);
        }
        assert_eq!(neutralize_links("`<i>` `<b>|`"), "`<i>` `&lt;b>|`");
        let next = "an open ` here\n\n`<b>`";
        assert_eq!(
            neutralize_links(next),
            next,
            "a paragraph ends what was open in it"
        );
    }
}
