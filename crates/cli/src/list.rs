//! Lists, tables and records of API messages, by the descriptors of their fields.

use std::borrow::Cow;

use memoird_proto::Rpc;
use memoird_proto::prost_reflect::{DynamicMessage, Kind, ReflectMessage, Value};
use prost::Message;
use serde_json::json;

use crate::connect::Target;
use crate::exit::CliError;
use crate::pages::{PAGE_MAX, Pages};
use crate::transcript::TO_THE_SECOND;
use crate::{clock, json, output};

/// Maximum characters of a text in a table. `--json` prints all of it.
const LINE_CHARS_MAX: usize = 400;

/// A column of a table, or a row of a record: its title, the path of its field, and its format.
pub type Column = (&'static str, &'static str, Show);

/// The format of a field.
pub enum Show {
    /// Text with control characters escaped, a list of texts, or a number as it is.
    Text,
    /// The beginning of a text on one line. As the last column it is cut to the terminal's width.
    Line,
    /// An integer with thousands separators.
    Count,
    /// A size in bytes.
    Size,
    /// The age of a timestamp.
    Age,
    /// The age of a timestamp, with "ago".
    Ago,
    /// A timestamp to the second.
    Time,
    /// A timestamp and its age.
    Moment,
    /// The time until a timestamp.
    Until,
    /// The name of an enum value without its prefix. Empty if it is unspecified.
    Name,
    /// A number with this many decimals. A dash if it is unset.
    Figure(usize),
    /// A factor with three decimals.
    Factor,
    /// A position from 1. A dash for 0.
    Rank,
    /// A text made from the whole message. The path is ignored.
    With(fn(&DynamicMessage) -> String),
}
pub use Show::*;

/// Prints the first `limit` items of a list; 0 prints all.
pub(crate) async fn list<R: Rpc>(
    target: &Target,
    request: &R,
    limit: usize,
    columns: &[Column],
    json: bool,
) -> Result<(), CliError> {
    let mut pages = Pages::of(target, request);
    let found = pages.first(limit).await?;
    if json {
        return output::print_json(&json!({ pages.items(): json::values(&found) }));
    }
    output::print_unless_empty(&table_of(columns, &found))
}

/// Prints all items as JSON lines, page by page: they may not fit into memory.
pub(crate) async fn export<R: Rpc>(target: &Target, request: &R) -> Result<(), CliError> {
    let mut pages = Pages::of(target, request);
    while let Some(page) = pages.next(PAGE_MAX).await? {
        let lines = page.iter().map(|item| format!("{}\n", json::value(item)));
        let lines: String = lines.collect();
        if !lines.is_empty() {
            output::print(&lines)?;
        }
    }
    Ok(())
}

/// Formats a table of messages.
pub fn table<'a, M: prost::Name + 'a>(
    columns: &[Column],
    messages: impl IntoIterator<Item = &'a M>,
) -> String {
    let messages: Vec<_> = messages.into_iter().map(json::dynamic).collect();
    table_of(columns, &messages)
}

pub(crate) fn table_of(columns: &[Column], messages: &[DynamicMessage]) -> String {
    let row = |message| columns.iter().map(move |column| cell(message, column));
    let is_number =
        |(_, _, show): &Column| !matches!(show, Text | Line | Ago | Time | Moment | Name | With(_));
    let numbers = (1..columns.len()).filter(|index| is_number(&columns[*index]));
    let numbers: Vec<usize> = numbers.collect();
    let is_cut = matches!(columns.last(), Some((_, _, Line)));
    let header: Vec<&str> = columns.iter().map(|(title, ..)| *title).collect();
    let header = if header == [""] { &[][..] } else { &header };
    let width = output::terminal_width().filter(|_| is_cut);
    output::table(header, messages.iter().map(row), &numbers, width)
}

/// Formats a message, one field per line. Rows without text are omitted.
pub(crate) fn record<M: prost::Name>(rows: &[Column], message: &M) -> String {
    let message = json::dynamic(message);
    output::rows(rows.iter().map(|row| (row.0, cell(&message, row))))
}

/// Decodes a message. An unknown field of a newer daemon is dropped.
pub fn typed<M: Message + Default>(message: &DynamicMessage) -> M {
    message.transcode_to().unwrap_or_default()
}

fn cell(message: &DynamicMessage, (_, path, show): &Column) -> String {
    if let With(text) = show {
        return text(message);
    }
    let (mut message, mut name) = (Cow::Borrowed(message), *path);
    while let Some((outer, rest)) = name.split_once('.') {
        let inner = message.get_field_by_name(outer);
        let inner = inner.and_then(|value| value.as_message().cloned());
        message = Cow::Owned(inner.expect("the contract has the message"));
        name = rest;
    }
    let field = message.descriptor().get_field_by_name(name);
    let field = field.expect("the contract has the field");
    let is_set = !field.supports_presence() || message.has_field(&field);
    let value = message.get_field(&field);
    let moment = || is_set.then(|| value.as_message().map(typed)).flatten();
    match show {
        Text => text(&value),
        Line => output::one_line(value.as_str().unwrap_or_default(), LINE_CHARS_MAX),
        Count => output::count(integer(&value)),
        Size => output::size(integer(&value)),
        Age => clock::age(moment().as_ref()),
        Ago => moment().map_or("-".to_owned(), |at| {
            format!("{} ago", clock::age(Some(&at)))
        }),
        Time => clock::written(moment().as_ref(), TO_THE_SECOND),
        Moment => moment().map_or("-".to_owned(), |at| {
            format!("{at}, {} ago", clock::age(Some(&at)))
        }),
        Until => clock::left(moment().as_ref()),
        Name => match (field.kind(), value.as_enum_number()) {
            (Kind::Enum(values), Some(number)) if number != 0 => json::value_name(&values, number),
            _ => String::new(),
        },
        Figure(_) | Factor if !is_set => "-".to_owned(),
        Figure(decimals) => output::figure(number(&value), *decimals),
        Factor => format!("×{}", output::figure(number(&value), 3)),
        Rank => match integer(&value) {
            0 => "-".to_owned(),
            rank => rank.to_string(),
        },
        With(_) => String::new(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => output::printable(text),
        Value::List(items) => items.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::F32(number) => number.to_string(),
        Value::F64(number) => number.to_string(),
        value => integer(value).to_string(),
    }
}

fn integer(value: &Value) -> u64 {
    let small = value.as_u32().map(u64::from);
    value.as_u64().or(small).unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    let single = value.as_f32().map(f64::from);
    value.as_f64().or(single).unwrap_or_default()
}
