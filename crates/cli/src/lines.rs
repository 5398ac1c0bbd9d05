//! Reads a file or stdin line by line. Errors include the line number.

use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use tokio::sync::mpsc::{self, Receiver, Sender};

use super::progress::Progress;
use crate::exit::{CliError, Exit};

/// The UTF-8 byte order mark, which some Windows programs write.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads stdin to its end. Blocks.
///
/// # Errors
/// If it is larger than `what` may be.
pub(crate) fn read_stdin(bytes_max: u64, what: &str) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let read = io::stdin()
        .lock()
        .take(bytes_max + 1)
        .read_to_end(&mut bytes);
    if read.map_err(CliError::io("cannot read stdin"))? as u64 > bytes_max {
        let problem = format!(
            "stdin: exceeds {} MiB, the maximum of {what}",
            bytes_max >> 20
        );
        return Err(CliError::failed(Exit::Data, problem));
    }
    Ok(bytes)
}

pub(crate) struct Lines {
    name: String,
    bytes: Option<u64>,
    reader: Box<dyn BufRead + Send>,
    /// Maximum length of a line in bytes.
    line_bytes_max: u64,
    /// Number of the last line that was read, from 1.
    line: usize,
}

pub(crate) struct Line<'a> {
    /// Line number, from 1.
    pub(crate) number: usize,
    pub(crate) text: &'a [u8],
}

/// A parsed line.
#[derive(Debug)]
pub struct ParsedLine<T> {
    pub item: T,
    /// Line number, from 1.
    pub(crate) line: usize,
    /// Length of the line in bytes.
    pub(crate) bytes: u64,
}

/// Parsed lines, up to the first error.
pub type ParsedLines<T> = Receiver<Result<ParsedLine<T>, CliError>>;

impl Lines {
    /// Opens a file, or stdin for `-`.
    pub(crate) fn open(path: &Path, line_bytes_max: u64) -> Result<Self, CliError> {
        if path == Path::new("-") {
            let stdin = BufReader::new(io::stdin());
            return Ok(Self::new("stdin", stdin, line_bytes_max));
        }
        let file = File::open(path).map_err(CliError::no_input(path))?;
        let metadata = file.metadata().ok().filter(Metadata::is_file);
        let bytes = metadata.map(|data| data.len());
        let name = path.display().to_string();
        Ok(Self {
            bytes,
            ..Self::new(&name, BufReader::new(file), line_bytes_max)
        })
    }

    pub(crate) fn new(
        name: &str,
        reader: impl BufRead + Send + 'static,
        line_bytes_max: u64,
    ) -> Self {
        Self {
            name: name.to_owned(),
            bytes: None,
            reader: Box::new(reader),
            line_bytes_max,
            line: 0,
        }
    }

    /// The name for error messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A progress line for the bytes read.
    pub(crate) fn progress(&self) -> Progress {
        Progress::new(self.bytes)
    }

    /// Parses the lines on another thread, at most `ahead` in advance, until the first error.
    pub(crate) fn parse<T: Send + 'static>(
        self,
        ahead: usize,
        parse: impl FnMut(&Self, &Line<'_>) -> Result<T, CliError> + Send + 'static,
    ) -> ParsedLines<T> {
        let (to, items) = mpsc::channel(ahead);
        // Not awaited: it may be blocked on a line of stdin that is no longer needed.
        drop(tokio::task::spawn_blocking(move || self.each(&to, parse)));
        items
    }

    fn each<T>(
        mut self,
        to: &Sender<Result<ParsedLine<T>, CliError>>,
        mut parse: impl FnMut(&Self, &Line<'_>) -> Result<T, CliError>,
    ) {
        let mut text = Vec::new();
        loop {
            let item = match self.next(&mut text) {
                Ok(None) => return,
                Ok(Some(number)) => {
                    let text = &text;
                    parse(&self, &Line { number, text }).map(|item| ParsedLine {
                        item,
                        line: number,
                        bytes: text.len() as u64,
                    })
                }
                Err(error) => Err(error),
            };
            let is_last = item.is_err();
            if to.blocking_send(item).is_err() || is_last {
                return;
            }
        }
    }

    /// Reads the next non-blank line and returns its number. `None` at the end.
    fn next(&mut self, text: &mut Vec<u8>) -> Result<Option<usize>, CliError> {
        loop {
            text.clear();
            self.line += 1;
            let mut bounded = self.reader.by_ref().take(self.line_bytes_max + 1);
            let read = bounded
                .read_until(b'\n', text)
                .map_err(CliError::io(format!("cannot read {}", self.name)))?;
            if read as u64 > self.line_bytes_max {
                let limit = self.line_bytes_max >> 20;
                return Err(self.bad(self.line, &format!("the line is longer than {limit} MiB")));
            }
            if self.line == 1 && text.starts_with(BYTE_ORDER_MARK) {
                text.drain(..BYTE_ORDER_MARK.len());
            }
            match read {
                0 => return Ok(None),
                _ if text.trim_ascii().is_empty() => {}
                _ => return Ok(Some(self.line)),
            }
        }
    }

    pub(crate) fn bad(&self, line: usize, problem: &str) -> CliError {
        CliError::failed(Exit::Data, format!("{}, line {line}: {problem}", self.name))
    }

    /// The error for a line that is not JSON. Omits the parser's line number, always 1.
    pub(crate) fn no_json(&self, line: usize, error: &serde_json::Error) -> CliError {
        let text = error.to_string();
        let problem = text.split(" at line ").next().unwrap_or(&text);
        match error.column() {
            0 => self.bad(line, problem),
            column => self.bad(line, &format!("{problem} at column {column}")),
        }
    }
}
