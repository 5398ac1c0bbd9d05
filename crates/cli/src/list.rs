//! Lists, tables and records of API messages, by the descriptors of their fields.

use std::borrow::Cow;

use memoird_proto::UnaryCall;
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
pub type ListColumn = (&'static str, &'static str, Show);

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
    /// The sum of these integers of the message. The path is ignored.
    Sum(&'static [&'static str]),
    /// A text made from the message at the path, or from the whole one. Empty if it is unset.
    With(fn(&DynamicMessage) -> String),
}
pub use Show::*;

/// Shows the text that a function makes from the typed message.
macro_rules! with {
    ($text:expr) => {
        $crate::list::With(|message| ($text)(&$crate::list::typed(message)).into())
    };
}
pub(crate) use with;

impl Target {
    /// Makes a call, and prints the reply as JSON, or as the text that `words` returns.
    pub(crate) async fn show<R: UnaryCall>(
        &self,
        request: &R,
        words: impl FnOnce(&R::Reply) -> String,
    ) -> Result<(), CliError> {
        output::show(self.json, &self.call(request).await?, words)
    }

    /// Prints the first `limit` items of a list; 0 prints all.
    pub(crate) async fn list<R: UnaryCall>(
        &self,
        request: &R,
        limit: usize,
        columns: &[ListColumn],
    ) -> Result<(), CliError> {
        let mut pages = Pages::new(self, request);
        let found = pages.first(limit).await?;
        if self.json {
            return output::print_json(&json!({ pages.items(): json::values(&found) }));
        }
        output::print_unless_empty(&table_of(columns, &found))
    }

    /// Prints all items as JSON lines, page by page: they may not fit into memory.
    pub(crate) async fn export<R: UnaryCall>(&self, request: &R) -> Result<(), CliError> {
        let mut pages = Pages::new(self, request);
        while let Some(page) = pages.next(PAGE_MAX).await? {
            let lines = page.iter().map(|item| format!("{}\n", json::value(item)));
            output::print_unless_empty(&lines.collect::<String>())?;
        }
        Ok(())
    }
}

/// Formats a table of messages.
pub fn table<'a, M: prost::Name + 'a>(
    columns: &[ListColumn],
    messages: impl IntoIterator<Item = &'a M>,
) -> String {
    let messages: Vec<_> = messages.into_iter().map(json::dynamic).collect();
    table_of(columns, &messages)
}

pub(crate) fn table_of(columns: &[ListColumn], messages: &[DynamicMessage]) -> String {
    let row = |message| columns.iter().map(move |column| cell(message, column));
    let is_number = |(_, _, show): &ListColumn| {
        !matches!(show, Text | Line | Ago | Time | Moment | Name | With(_))
    };
    let numbers = (1..columns.len()).filter(|index| is_number(&columns[*index]));
    let numbers: Vec<usize> = numbers.collect();
    let is_cut = matches!(columns.last(), Some((_, _, Line)));
    let header: Vec<&str> = columns.iter().map(|(title, ..)| *title).collect();
    let header = if header == [""] { &[][..] } else { &header };
    let width = output::terminal_width().filter(|_| is_cut);
    output::table(header, messages.iter().map(row), &numbers, width)
}

/// Formats a message, one field per line. Rows without text are omitted.
pub(crate) fn record<M: prost::Name>(rows: &[ListColumn], message: &M) -> String {
    let message = json::dynamic(message);
    output::rows(rows.iter().map(|row| (row.0, cell(&message, row))))
}

/// Decodes a message. An unknown field of a newer daemon is dropped.
pub fn typed<M: Message + Default>(message: &DynamicMessage) -> M {
    message.transcode_to().unwrap_or_default()
}

fn cell(message: &DynamicMessage, (_, path, show): &ListColumn) -> String {
    match show {
        With(text) if path.is_empty() => return text(message),
        Sum(fields) => {
            let fields = fields
                .iter()
                .filter_map(|name| message.get_field_by_name(name));
            return output::count(fields.map(|value| integer(&value)).sum());
        }
        _ => {}
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
        With(text) if is_set => value.as_message().map(text).unwrap_or_default(),
        Sum(_) | With(_) => String::new(),
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

#[cfg(test)]
mod tests {
    use memoird_proto::v1::{Memory, MemoryKind, RecallHit, SessionInfo};

    use super::*;

    #[test]
    fn numbers_are_aligned_and_texts_escaped() {
        let columns: &[ListColumn] = &[
            ("ID", "session_id", Text),
            ("TURNS", "history_turns", Count),
            ("SIZE", "history_bytes", Size),
            ("IDLE", "last_access", Age),
            ("EXPIRES", "expires_at", Until),
        ];
        let session = |id: &str, turns| SessionInfo {
            session_id: id.into(),
            history_turns: turns,
            history_bytes: 1_536,
            ..SessionInfo::default()
        };
        let drawn = table(columns, &[session("a\nb", 1_028), session("c", 2)]);
        let expected = "ID    TURNS     SIZE  IDLE  EXPIRES\n\
                        a\\nb  1,028  1.5 KiB     -    never\n\
                        c         2  1.5 KiB     -    never";
        assert_eq!(drawn, expected);
    }

    #[test]
    fn fields_of_inner_messages_are_found() {
        let columns: &[ListColumn] = &[
            ("RANK", "lexical_rank", Rank),
            ("COSINE", "parts.cosine", Figure(3)),
            ("FORM", "parts.form", Factor),
            ("KIND", "memory.kind", Name),
            ("CONTENT", "memory.content", Line),
        ];
        let memory = Memory {
            kind: MemoryKind::Feedback.into(),
            content: "likes\ntea".into(),
            ..Memory::default()
        };
        let hit = RecallHit {
            memory: Some(memory),
            ..RecallHit::default()
        };
        let drawn = table(columns, [&hit]);
        let cells: Vec<&str> = drawn
            .lines()
            .nth(1)
            .expect("a row")
            .split_whitespace()
            .collect();
        assert_eq!(cells, ["-", "-", "×0.000", "feedback", "likes", "tea"]);
    }

    #[test]
    fn record_omits_empty_fields() {
        let rows: &[ListColumn] = &[
            ("id", "id", Text),
            ("tags", "tags", Text),
            ("polarity", "polarity", Name),
            ("state", "", With(|_| String::new())),
        ];
        let memory = Memory {
            id: "x".into(),
            ..Memory::default()
        };
        assert_eq!(record(rows, &memory), "id  x");
    }
}
