//! Transcripts on a terminal: one line per turn, cut to the width of the terminal.

use memoird_proto::v1::media::Source;
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{Part, Turn};

use super::json::short_name;
use super::{clock, output};

/// `strftime` format of times in tables, which are in UTC.
pub const TO_THE_SECOND: &str = "%Y-%m-%d %H:%M:%S";
/// Maximum characters of a line if the terminal width is unknown.
const LINE_CHARS_MAX: usize = 400;

/// Formats turns as lines: seq, role, time, text.
pub fn table<'a>(turns: impl IntoIterator<Item = &'a Turn>) -> String {
    let row = |turn: &Turn| {
        [
            turn.seq.to_string(),
            short_name("Role", turn.role),
            clock::written(turn.timestamp.as_ref(), TO_THE_SECOND),
            output::shorten(&one_line(turn), LINE_CHARS_MAX),
        ]
    };
    output::table(
        &[],
        turns.into_iter().map(row),
        &[],
        output::terminal_width(),
    )
}

/// Formats the parts of a turn as one line.
pub(super) fn one_line(turn: &Turn) -> String {
    let mut words: Vec<String> = turn.parts.iter().map(part).collect();
    if turn.pinned {
        words.insert(0, "[pinned]".to_owned());
    }
    if turn.removed {
        words.insert(0, "[removed]".to_owned());
    }
    words.join(" ")
}

fn part(part: &Part) -> String {
    match &part.part {
        None => "[empty part]".to_owned(),
        Some(Kind::Text(text)) => flat(text),
        Some(Kind::ToolUse(call)) => {
            format!("→ {}({})", flat(&call.name), flat(&call.input_json))
        }
        Some(Kind::ToolResult(result)) => {
            let mark = if result.is_error { "← error:" } else { "←" };
            let rich = result.parts.iter().map(self::part);
            let texts: Vec<String> = [flat(&result.content)].into_iter().chain(rich).collect();
            format!("{mark} {}", texts.join(" ").trim())
        }
        Some(Kind::Media(media)) => {
            let what = match &media.source {
                Some(Source::Data(data)) => output::size(data.len() as u64),
                Some(Source::Uri(uri)) => flat(uri),
                None => "nothing".to_owned(),
            };
            format!("[{} {what}]", flat(&media.media_type))
        }
        Some(Kind::Thinking(thinking)) if thinking.redacted => "(hidden thinking)".to_owned(),
        Some(Kind::Thinking(thinking)) => format!("({})", flat(&thinking.text)),
    }
}

/// Joins a text into one line of bounded length.
fn flat(text: &str) -> String {
    output::flat(text, 2 * LINE_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memoird_proto::v1::{Role, ToolResult, ToolUse};

    fn turn(seq: u64, role: Role, parts: Vec<Kind>) -> Turn {
        let parts = parts
            .into_iter()
            .map(|part| Part {
                part: Some(part),
                extra_json: String::new(),
            })
            .collect();
        Turn {
            seq,
            role: role as i32,
            parts,
            ..Turn::default()
        }
    }

    #[test]
    fn turns_become_lines() {
        let call = ToolUse {
            id: "1".into(),
            name: "book".into(),
            input_json: "{\n}".into(),
        };
        let result = ToolResult {
            content: "no\tseat".into(),
            is_error: true,
            ..Default::default()
        };
        let cases = [
            (
                turn(1, Role::User, vec![Kind::Text(" Hi\n\nthere ".into())]),
                "Hi there",
            ),
            (
                turn(2, Role::Assistant, vec![Kind::ToolUse(call)]),
                "→ book({ })",
            ),
            (
                turn(3, Role::Tool, vec![Kind::ToolResult(result)]),
                "← error: no seat",
            ),
            (
                turn(4, Role::User, vec![Kind::Text("\u{1b}[31mred".into())]),
                "\\u{1b}[31mred",
            ),
        ];
        for (turn, expected) in cases {
            assert_eq!(one_line(&turn), expected);
        }
    }

    #[test]
    fn megabyte_of_text_stays_one_line() {
        let long = turn(1, Role::User, vec![Kind::Text("word ".repeat(200_000))]);
        let line = table([&long]);
        assert!(line.chars().count() < LINE_CHARS_MAX + 40);
        assert_eq!(line.lines().count(), 1);
    }
}
