//! The file of a replay: JSON lines, read one by one, with the line to blame for
//! what is wrong. The text of a message stays what it is in the file, byte by byte.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;

use crate::cli::exit::CliError;
use crate::cli::lines::Lines;

/// A line longer than this is not a line.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// One line of the file.
#[derive(Debug)]
pub(super) struct Conversation {
    /// Which line, from 1.
    pub(super) line: usize,
    /// How long the line is.
    pub(super) bytes: u64,
    /// The conversation's own name.
    pub(super) id: String,
    /// Each message as an array of one: what an append takes.
    pub(super) messages: Vec<String>,
}

#[derive(Deserialize)]
struct Parsed<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

/// Opens a file, or stdin for `-`.
pub(super) fn open(path: &Path) -> Result<Lines, CliError> {
    Lines::open(path, LINE_BYTES_MAX)
}

/// Hands over one conversation after the other, up to the first line that is wrong. Blocks.
pub(super) fn read(lines: Lines, to: &Sender<Result<Conversation, CliError>>) {
    let mut ids = HashSet::new();
    lines.each(to, |lines, line| {
        let parsed: Parsed<'_> = serde_json::from_slice(line.text)
            .map_err(|error| lines.no_json(line.number, &error))?;
        let id = parsed.id.into_owned();
        if !ids.insert(id.clone()) {
            // Both would have the same session and the same keys.
            let problem = format!("the id {id:?} was there before");
            return Err(lines.bad(line.number, &problem));
        }
        let messages = parsed.messages.iter();
        Ok(Conversation {
            line: line.number,
            bytes: line.text.len() as u64,
            id,
            messages: messages.map(|message| format!("[{message}]")).collect(),
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn conversations(text: &'static str) -> Vec<Result<Conversation, CliError>> {
        let lines = Lines::of("f", text.as_bytes(), LINE_BYTES_MAX);
        let (to, mut from) = mpsc::channel(16);
        read(lines, &to);
        drop(to);
        std::iter::from_fn(|| from.try_recv().ok()).collect()
    }

    #[test]
    fn messages_stay_to_the_byte() {
        let lines = conversations(
            "\n{\"id\":\"a\\u0062\", \"x\": 1, \
             \"messages\": [ {\"b\" : 1.50,\"a\":\"\\u00e4\"} ,{}]}\r\n\n\
             {\"id\":\"c\",\"messages\":[]}",
        );
        let first = lines[0].as_ref().expect("a conversation");
        assert_eq!((first.line, first.id.as_str()), (2, "ab"));
        assert_eq!(first.messages, [r#"[{"b" : 1.50,"a":"\u00e4"}]"#, "[{}]"]);
        let second = lines[1].as_ref().expect("a conversation");
        assert_eq!((second.line, second.messages.len()), (4, 0));
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn the_wrong_line_is_named_and_is_the_last() {
        let cases = [
            (
                "{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"b\"}\n{}",
                "f, line 2: missing field",
            ),
            ("\n\nnot json\n", "f, line 3: expected ident at column 2"),
            ("{\"id\":7,\"messages\":[]}", "f, line 1: invalid type: "),
            (
                "{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"a\",\"messages\":[]}",
                "f, line 2: the id",
            ),
        ];
        for (text, expected) in cases {
            let last = conversations(text).pop().expect("an item");
            let error = last.expect_err("an error").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
