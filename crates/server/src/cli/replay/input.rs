//! The file of a replay: JSON lines, read one by one, with the line to blame for
//! what is wrong. The text of a message stays what it is in the file, byte by byte.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;

use crate::cli::exit::CliError;

/// A line longer than this is not a line.
const LINE_BYTES_MAX: u64 = 256 << 20;

/// Where conversations come from.
pub(super) struct Input {
    name: String,
    bytes: Option<u64>,
    reader: Box<dyn BufRead + Send>,
}

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
        if path == Path::new("-") {
            let reader = Box::new(BufReader::new(io::stdin()));
            return Ok(Self { name: "stdin".to_owned(), bytes: None, reader });
        }
        let file = File::open(path)
            .map_err(|source| CliError::NoInput { path: path.to_owned(), source })?;
        let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
        let reader = Box::new(BufReader::new(file));
        Ok(Self { name: path.display().to_string(), bytes, reader })
    }

    /// How long it is, where that is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Hands over line after line, up to the first that is wrong. Blocks.
    pub(super) fn read(mut self, to: &Sender<Result<Conversation, CliError>>) {
        let mut ids = HashSet::new();
        let mut text = Vec::new();
        for line in 1.. {
            let read = self.read_line(line, &mut text).and_then(|more| match more {
                false => Ok(None),
                true if text.trim_ascii().is_empty() => Ok(Some(None)),
                true => self.parse(line, &text, &mut ids).map(|parsed| Some(Some(parsed))),
            });
            let item = match read {
                Ok(None) => return,
                Ok(Some(None)) => continue,
                Ok(Some(Some(conversation))) => Ok(conversation),
                Err(error) => Err(error),
            };
            let last = item.is_err();
            if to.blocking_send(item).is_err() || last {
                return;
            }
        }
    }

    /// Reads the next line; false at the end.
    fn read_line(&mut self, line: usize, text: &mut Vec<u8>) -> Result<bool, CliError> {
        text.clear();
        let mut bounded = self.reader.by_ref().take(LINE_BYTES_MAX + 1);
        let read = bounded.read_until(b'\n', text).map_err(|source| CliError::Io {
            what: format!("cannot read {}", self.name),
            source,
        })?;
        if read as u64 > LINE_BYTES_MAX {
            return Err(self.bad(line, "the line is longer than 256 MiB".to_owned()));
        }
        Ok(read > 0)
    }

    fn parse(
        &self,
        line: usize,
        text: &[u8],
        ids: &mut HashSet<String>,
    ) -> Result<Conversation, CliError> {
        let parsed: Line<'_> =
            serde_json::from_slice(text).map_err(|error| self.bad(line, json_problem(&error)))?;
        let id = parsed.id.into_owned();
        if !ids.insert(id.clone()) {
            // Both would have the same session and the same keys.
            return Err(self.bad(line, format!("the id {id:?} was there before")));
        }
        let messages = parsed.messages.iter().map(|message| format!("[{message}]")).collect();
        Ok(Conversation { line, bytes: text.len() as u64, id, messages })
    }

    fn bad(&self, line: usize, problem: String) -> CliError {
        CliError::Data { place: format!("{}, line {line}", self.name), problem }
    }
}

/// What the parser said; its own line number would be 1, always.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let problem = text.split(" at line ").next().unwrap_or(&text);
    format!("{problem} at column {}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn read(text: &'static str) -> Vec<Result<Conversation, CliError>> {
        let input = Input {
            name: "f".to_owned(),
            bytes: None,
            reader: Box::new(BufReader::new(text.as_bytes())),
        };
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
            ("{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"b\"}\n{}", "f, line 2: missing field"),
            ("\n\nnot json\n", "f, line 3: expected ident at column 2"),
            ("{\"id\":7,\"messages\":[]}", "f, line 1: invalid type: "),
            ("{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"a\",\"messages\":[]}", "f, line 2: the id"),
        ];
        for (text, expected) in cases {
            let last = read(text).pop().expect("an item");
            let error = last.expect_err("an error").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
