//! Output of commands: tables, JSON, and the formatting of numbers, sizes and untrusted text.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use bytesize::ByteSize;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets};
pub use memoird_core::quote::printable;
use prost::Name;
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::json;
use crate::exit::CliError;

/// Minimum width of a table's last column in terminal columns, if its content is that long.
const LAST_COLUMN_MIN: u16 = 32;
/// Interval for checking whether stdout still has a reader.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Writes text and a final newline to stdout.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .map_err(CliError::of_output)?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n").map_err(CliError::of_output)?;
    }
    stdout.flush().map_err(CliError::of_output)
}

/// Asks for confirmation on the terminal, unless `is_confirmed` already.
///
/// # Errors
/// If there is no terminal. The error names what to do instead.
pub(crate) async fn confirm(
    is_confirmed: bool,
    notes: &str,
    question: &'static str,
    instead: &str,
) -> Result<bool, CliError> {
    if is_confirmed {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::usage(format!(
            "no terminal to confirm on; {instead}"
        )));
    }
    notes.lines().for_each(note);
    let confirmed = blocking(|| ask(question)).await?;
    if !confirmed {
        note("nothing was changed");
    }
    Ok(confirmed)
}

/// Asks on the terminal. Blocks until a line is entered.
fn ask(question: &str) -> Result<bool, CliError> {
    let failed = CliError::io("cannot ask on the terminal");
    let mut stderr = io::stderr().lock();
    write!(stderr, "{question} [y/N] ")
        .and_then(|()| stderr.flush())
        .map_err(&failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Runs a function that blocks, so that Ctrl-C works in the meantime.
pub async fn blocking<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let done = tokio::task::spawn_blocking(run).await;
    // It is never cancelled, so the error is a panic.
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// Waits until stdout has no reader, which a command would otherwise notice only at its next line.
pub(crate) async fn reader_gone() {
    loop {
        // Without requested events, poll still reports a pipe without a reader.
        let descriptor = rustix::stdio::stdout();
        let mut stdout = [PollFd::from_borrowed_fd(descriptor, PollFlags::empty())];
        let polled = rustix::event::poll(&mut stdout, Some(&Timespec::default()));
        if polled.is_ok() && stdout[0].revents().contains(PollFlags::ERR) {
            return;
        }
        sleep(POLL_INTERVAL).await;
    }
}

pub fn note(text: &str) {
    // If stderr is closed, the note is lost.
    let _ = writeln!(io::stderr().lock(), "{}", printable(text));
}

/// Prints a JSON value, indented.
pub fn print_json(value: &Value) -> Result<(), CliError> {
    print(&format!("{value:#}"))
}

/// Prints a value as JSON, or else as text, unless the text is empty.
pub fn print_as(is_json: bool, value: &Value, text: &str) -> Result<(), CliError> {
    if is_json {
        print_json(value)
    } else {
        print_unless_empty(text)
    }
}

/// Prints the counts of an import.
pub(crate) fn imported(is_json: bool, imported: u64, skipped: u64) -> Result<(), CliError> {
    let value = json!({ "imported": imported, "skipped": skipped });
    let [imported, skipped] = [imported, skipped].map(count);
    let text = format!("imported {imported}, there already {skipped}");
    print_as(is_json, &value, &text)
}

/// Prints a reply as JSON, or as the text that `words` returns, unless it is empty.
pub fn show<M: Name>(
    is_json: bool,
    reply: &M,
    words: impl FnOnce(&M) -> String,
) -> Result<(), CliError> {
    if is_json {
        return print_json(&json::of(reply));
    }
    print_unless_empty(&words(reply))
}

pub(crate) fn print_unless_empty(text: &str) -> Result<(), CliError> {
    if text.is_empty() { Ok(()) } else { print(text) }
}

/// Formats names and values, one pair per line. Pairs without a value are omitted.
pub fn rows<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows = rows.map(|(name, value)| [name.into(), value]);
    table(&[], rows, &[], None)
}

/// Formats a table without borders, one line per row. The header may be empty.
///
/// The columns in `numbers` are right-aligned. With a `width`, the last column is cut so that lines
/// fit. If it would be too narrow, lines are wider, and the terminal wraps them.
pub fn table(
    header: &[&str],
    rows: impl IntoIterator<Item = impl Into<Row>>,
    numbers: &[usize],
    width: Option<u16>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header);
    }
    for row in rows {
        let mut row: Row = row.into();
        row.max_height(1);
        table.add_row(row);
    }
    if let Some(width) = width {
        table
            .set_width(width.max(least_width(&table)))
            .set_truncation_indicator("…")
            .set_content_arrangement(ContentArrangement::Dynamic);
    }
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        if index == 0 {
            // Lines start without indentation.
            column.set_padding((0, 1));
        }
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        if width.is_some() && index < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt()
}

/// Minimum width of the table in columns, with at least some of the last column.
fn least_width(table: &Table) -> u16 {
    let widths = table.column_max_content_widths();
    let Some((last, others)) = widths.split_last() else {
        return 0;
    };
    // Each column has a blank on both sides, except before the first one.
    let blanks = u16::try_from(2 * widths.len() - 1).unwrap_or(u16::MAX);
    let others = others
        .iter()
        .fold(blanks, |sum, width| sum.saturating_add(*width));
    others.saturating_add(*last.min(&LAST_COLUMN_MIN))
}

/// Width of the terminal in columns, if stdout is one.
pub(crate) fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok()?;
    Some(size.ws_col).filter(|width| *width > 0)
}

/// Formats an integer with thousands separators.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun, such as `1 turn` or `1,028 turns`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// Formats a size in the largest unit in which it is at least 1, such as `1.5 KiB`.
pub fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

/// Formats a number with this many decimals. A dash if it is not finite.
pub fn figure(value: f64, decimals: usize) -> String {
    if value.is_finite() {
        format!("{value:.decimals$}")
    } else {
        "-".to_owned()
    }
}

/// Joins a text into one line, with single blanks between words.
///
/// Reads only the first `chars_max` characters, because a text may have a megabyte.
pub fn flat(text: &str, chars_max: usize) -> String {
    let end = text
        .char_indices()
        .nth(chars_max)
        .map_or(text.len(), |(end, _)| end);
    let words: Vec<&str> = text[..end].split_whitespace().collect();
    printable(&words.join(" "))
}

/// Truncates a text to `chars_max` characters, with `…` at the end.
pub fn shorten(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some(_) => {
            let kept = text.chars().take(chars_max.saturating_sub(1));
            kept.chain(['…']).collect()
        }
    }
}

/// Formats the beginning of a text on one line.
pub fn one_line(text: &str, chars_max: usize) -> String {
    shorten(&flat(text, 2 * chars_max), chars_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_separators() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1_023), "1023 B");
        assert_eq!(size(1_536), "1.5 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(figure(1.25, 1), "1.2");
        assert_eq!(figure(f64::NAN, 1), "-");
    }

    #[test]
    fn long_texts_are_truncated_by_characters() {
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("abcd", 3), "ab…");
        assert_eq!(shorten("ääää", 3), "ää…");
        assert_eq!(shorten("", 0), "");
        assert_eq!(one_line(" a\n\nb\tc ", 9), "a b c");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("häuser 家 🙂"), "häuser 家 🙂");
        assert_eq!(printable("x\u{202e}y"), "x\\u{202e}y");
    }

    #[test]
    fn last_column_has_minimum_width() {
        let row = |text: &str| ["01M8BN7D23ZQ6GV0KW9AYA2RCJ".to_owned(), text.to_owned()];
        let drawn = |text: &str, width| table(&["ID", "CONTENT"], [row(text)], &[], Some(width));
        let whole = "ID                          CONTENT\n\
                     01M8BN7D23ZQ6GV0KW9AYA2RCJ  Ann likes black tea";
        for width in [1, 30, 40, 60] {
            assert_eq!(drawn("Ann likes black tea", width), whole, "{width}");
        }
        let long = "x".repeat(200);
        let columns = |width| {
            drawn(&long, width)
                .lines()
                .map(|line| line.chars().count())
                .max()
        };
        assert_eq!((columns(100), columns(30)), (Some(99), Some(28 + 32)));
    }

    #[test]
    fn table_lines_have_no_trailing_spaces() {
        let row = ["a", "1"].map(str::to_owned);
        let table = table(&["NAME", "TURNS"], [row], &[1], None);
        assert_eq!(table, "NAME  TURNS\na         1");
    }
}
