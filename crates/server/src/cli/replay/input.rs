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
use crate::cli::progress::Progress;

/// A line longer than this is not a line.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Where conversations come from.
pub(super) struct Input(Lines);

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
struct Line<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

impl Input {
    /// Opens a file, or stdin for `-`.
    pub(super) fn open(path: &Path) -> Result<Self, CliError> {
        Ok(Self(Lines::open(path, LINE_BYTES_MAX)?))
    }

    /// How far it is read.
    pub(super) fn progress(&self) -> Progress {
        self.0.progress()
    }

    /// Hands over line after line, up to the first that is wrong. Blocks.
    pub(super) fn read(mut self, to: &Sender<Result<Conversation, CliError>>) {
        let mut ids = HashSet::new();
        let mut text = Vec::new();
        loop {
            let item = match self.0.next(&mut text) {
                Ok(None) => return,
                Ok(Some(line)) => self.parse(line, &text, &mut ids),
                Err(error) => Err(error),
            };
            let last = item.is_err();
            if to.blocking_send(item).is_err() || last {
                return;
            }
        }
    }

    fn parse(
        &self,
        line: usize,
        text: &[u8],
        ids: &mut HashSet<String>,
    ) -> Result<Conversation, CliError> {
        let parsed: Line<'_> =
            serde_json::from_slice(text).map_err(|error| self.0.no_json(line, &error))?;
        let id = parsed.id.into_owned();
        if !ids.insert(id.clone()) {
            // Both would have the same session and the same keys.
            return Err(self.0.bad(line, format!("the id {id:?} was there before")));
        }
        let messages = parsed
            .messages
            .iter()
            .map(|message| format!("[{message}]"))
            .collect();
        Ok(Conversation {
            line,
            bytes: text.len() as u64,
            id,
            messages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn read(text: &'static str) -> Vec<Result<Conversation, CliError>> {
        let input = Input(Lines::of("f", text.as_bytes(), LINE_BYTES_MAX));
        let (to, mut from) = mpsc::channel(16);
        input.read(&to);
        drop(to);
        std::iter::from_fn(|| from.try_recv().ok()).collect()
    }

    #[test]
    fn messages_stay_to_the_byte() {
        let lines = read(
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
            let last = read(text).pop().expect("an item");
            let error = last.expect_err("an error").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
