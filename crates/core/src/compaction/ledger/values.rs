//! Arguments and results as lines: `label=value`, with the labels that they came with.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::calls::{COMMANDS, command};
use super::failed::{Caller, lines_of_ends};
use super::{Entry, FAILED};
use crate::compaction::identifiers::{is_code, is_path};
use crate::quote::one_line;

/// Characters of a value.
const VALUE_CHARS_MAX: usize = 160;
/// Values of one result, and pairs of one record.
const VALUES_MAX: usize = 2_000;
const PAIRS_MAX: usize = 24;
/// Records of one result.
const RECORDS_MAX: usize = 64;
/// JSON of more bytes, and lines behind so many, are not read.
const JSON_BYTES_MAX: usize = 256 * 1024;
const LINES_MAX: usize = 400;
/// Characters of a line of a result that is no JSON, and of a text that is kept whole.
const LINE_CHARS_MAX: usize = 140;
const SHORT_BYTES_MAX: usize = 200;
/// Lines with a label that are kept of such a result.
const LABELLED_MAX: usize = 12;
/// Digits of a number that is noted wherever it stands; a shorter one needs a record.
const DIGITS_MIN: usize = 4;

/// A label and a value.
type Pair = (String, String);

/// `tool(label=value, …)`, not longer than `bytes_max` and some: the last arguments are left out.
pub(super) fn call_line(name: &str, input: &str, bytes_max: usize) -> String {
    let mut line = format!("{name}(");
    match serde_json::from_str::<Value>(input) {
        Ok(mut value) => {
            let (mut pairs, mut records) = (Vec::new(), Vec::new());
            for (_, value) in value
                .as_object_mut()
                .into_iter()
                .flatten()
                .filter(|(key, _)| COMMANDS.contains(&key.as_str()))
            {
                if let Some(script) = command(value) {
                    *value = Value::String(script.into_owned());
                }
            }
            flatten("", &value, &mut pairs, &mut records);
            pairs.extend(records.into_iter().flatten());
            // A command stands before all, and what names a thing before what describes it.
            let place = |(label, value): &Pair| match COMMANDS.contains(&label.as_str()) {
                true => 0,
                false => 1 + u8::from(!names_thing(value)),
            };
            pairs.sort_by_key(&place);
            for (at, pair) in pairs.iter().enumerate() {
                // A command says itself what it is.
                let pair = match place(pair) {
                    0 => pair.1.clone(),
                    _ => written(pair),
                };
                if line.len() + pair.len() > bytes_max {
                    line.push('…');
                    break;
                }
                line.push_str(if at > 0 { ", " } else { "" });
                line.push_str(&pair);
            }
        }
        Err(_) => line.push_str(&one_line(input, VALUE_CHARS_MAX)),
    }
    line.push(')');
    line
}

/// True of a value that names one thing: letters and digits, a code, a path, a number of some digits.
fn names_thing(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    !value.contains(' ') && (digits >= 3 || is_code(value) || is_path(value))
}

fn written((label, value): &Pair) -> String {
    match label.as_str() {
        "" => value.clone(),
        label => format!("{label}={value}"),
    }
}

/// A value in one line, without what parts records.
fn scalar(value: &Value) -> Option<String> {
    let text = match value {
        Value::Null => return None,
        Value::Bool(is) => is.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => one_line(text, VALUE_CHARS_MAX).replace("; ", ", "),
        Value::Array(_) | Value::Object(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// The scalars of a value in their order; lists of objects, and objects of objects, become
/// records of their own.
fn flatten(label: &str, value: &Value, pairs: &mut Vec<Pair>, records: &mut Vec<Vec<Pair>>) {
    if pairs.len() + records.len() >= VALUES_MAX {
        return;
    }
    match value {
        Value::Object(fields) if is_table(fields) => {
            for (key, inner) in fields {
                record(label, Some(key), inner, records);
            }
        }
        Value::Object(fields) => {
            let mut parent = (!label.is_empty()).then_some(label);
            for (key, inner) in fields {
                // A label that says whose labels these are stands before the first of them.
                let label = match parent.filter(|_| scalar(inner).is_some()) {
                    Some(name) => format!("{name} {key}"),
                    None => key.clone(),
                };
                if scalar(inner).is_some() {
                    parent = None;
                }
                flatten(&label, inner, pairs, records);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for item in items {
                match item {
                    Value::Array(_) => flatten(label, item, pairs, records),
                    item => record(label, None, item, records),
                }
            }
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter_map(scalar).take(PAIRS_MAX).collect();
            if !items.is_empty() {
                pairs.push((label.to_owned(), items.join(" ")));
            }
        }
        scalar_value => pairs.extend(scalar(scalar_value).map(|value| (label.to_owned(), value))),
    }
}

/// True of an object whose values are objects: its keys name them.
fn is_table(fields: &Map<String, Value>) -> bool {
    !fields.is_empty()
        && fields.values().all(Value::is_object)
        && fields.keys().all(|key| names_thing(key))
}

fn record(label: &str, key: Option<&String>, value: &Value, records: &mut Vec<Vec<Pair>>) {
    let (mut pairs, mut inner) = (Vec::new(), Vec::new());
    let name = key.map(String::as_str);
    if let Some(name) = name {
        pairs.push((label.to_owned(), name.to_owned()));
    }
    flatten("", value, &mut pairs, &mut inner);
    // The name is said once.
    let mut seen = HashSet::new();
    let is_name = |value: &str| Some(value) == name;
    pairs.retain(|(_, value)| !is_name(value) || seen.insert(value.clone()));
    if records.len() < RECORDS_MAX {
        records.push(pairs);
    }
    records.append(&mut inner);
    records.truncate(RECORDS_MAX);
}

/// Takes the longest text of some lines out of a result that is an object, or of an object in it:
/// what a program wrote is read as such.
fn take_lines(value: &mut Value) -> Option<String> {
    let fields = value.as_object_mut()?;
    let inner = fields.values_mut().flat_map(|value| match value {
        Value::Object(inner) => inner.values_mut().collect(),
        value => vec![value],
    });
    let texts = inner.filter_map(|value| match value {
        Value::String(text) if text.trim().contains('\n') => Some(text),
        _ => None,
    });
    texts.max_by_key(|text| text.len()).map(std::mem::take)
}

/// What a result says.
pub(super) struct Result<'a> {
    /// All of it; of JSON with a long text in it that text.
    text: Cow<'a, str>,
    json: Option<Value>,
    /// Of JSON: first what stands in no record.
    records: Option<Vec<Vec<Pair>>>,
}

impl<'a> Result<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let text = text.trim();
        let is_json = text.starts_with(['{', '[']) && text.len() <= JSON_BYTES_MAX;
        let mut json = is_json
            .then(|| serde_json::from_str::<Value>(text).ok())
            .flatten();
        let lines = json.as_mut().and_then(take_lines);
        let records = json.as_ref().map(|value| {
            let (mut pairs, mut records) = (Vec::new(), Vec::new());
            flatten("", value, &mut pairs, &mut records);
            records.insert(0, pairs);
            records
        });
        Self {
            text: lines.map_or(Cow::Borrowed(text), Cow::Owned),
            json,
            records,
        }
    }

    /// True where it says that its call failed.
    pub(super) fn is_failed(&self, caller: Caller<'_>) -> bool {
        self.json
            .as_ref()
            .is_some_and(|json| caller.failed_with(json))
            || self.has_lines() && caller.failed_with_text(&self.text)
    }

    /// True where it is a text, or has one.
    fn has_lines(&self) -> bool {
        self.json.is_none() || matches!(self.text, Cow::Owned(_))
    }

    /// The records: of a list those values that differ from the record before.
    pub(super) fn records(&self) -> Vec<String> {
        let mut lines = match self.has_lines() {
            true => text_records(&self.text),
            false => Vec::new(),
        };
        let Some(records) = &self.records else {
            return lines;
        };
        let mut before: &[Pair] = &[];
        for (at, record) in records.iter().enumerate() {
            let is_new =
                |(place, pair): &(usize, &Pair)| *place == 0 || at == 0 || !before.contains(pair);
            for chunk in record
                .iter()
                .enumerate()
                .filter(is_new)
                .collect::<Vec<_>>()
                .chunks(PAIRS_MAX)
            {
                let pairs: Vec<String> = chunk.iter().map(|(_, pair)| written(pair)).collect();
                lines.push(pairs.join(", "));
            }
            if at > 0 {
                before = record;
            }
        }
        lines
    }

    /// The line that the result ends with, where it is no JSON.
    pub(super) fn last_line(&self) -> Option<&str> {
        let text = self.has_lines().then_some(&self.text)?;
        lines(text).filter(|line| !is_frame(line)).last()
    }

    /// What came of a call in one line: what neither the call nor an earlier result said, and where
    /// that is nothing, what the result says.
    pub(super) fn outcome(
        &self,
        entry: &Entry,
        known: &HashSet<String>,
        bytes_max: usize,
    ) -> String {
        let mut line = if entry.is_failed {
            FAILED.to_owned()
        } else {
            String::new()
        };
        if self.has_lines() {
            line.push_str(&self.told(entry, known));
        }
        let pairs = self.records.iter().flatten().flatten().map(written);
        let mut pairs: Vec<String> = pairs.collect();
        let is_new = |pair: &String| !known.contains(pair) && !entry.call.contains(pair.as_str());
        if pairs.iter().any(is_new) {
            pairs.retain(is_new);
        }
        for pair in pairs {
            if line.len() + pair.len() > bytes_max {
                continue;
            }
            let is_first = line.is_empty() || line == FAILED;
            line.push_str(if is_first { "" } else { ", " });
            line.push_str(&pair);
        }
        if line.is_empty() {
            line.push_str("ok");
        }
        line
    }

    /// The lines of a text that tell most: the first, the one with the error, the last; and the
    /// file that it is about.
    fn told(&self, entry: &Entry, known: &HashSet<String>) -> String {
        let lines: Vec<&str> = lines(&self.text).filter(|line| !is_frame(line)).collect();
        let Some(first) = lines.first() else {
            return String::new();
        };
        let mut told = vec![one_line(first, LINE_CHARS_MAX)];
        let caller = entry.caller();
        let is_error = |line: &&&str| {
            line.contains("rror:") || line.contains("xception:") || caller.is_failing_line(line)
        };
        let error = lines.iter().rfind(is_error).filter(|_| entry.is_failed);
        // What every result of a tool ends with, and code, tell nothing.
        let tells = |line: &&&str| !known.contains(**line) && !line.ends_with(['{', '}', ';']);
        let last = lines.last().filter(tells);
        if let Some(line) = error.or(last).filter(|line| *line != first) {
            told.push(one_line(line, LINE_CHARS_MAX));
        }
        let has_file = |text: &str| text.split([' ', '(', ')', '=', ',', ']']).any(is_path);
        if !has_file(&entry.call) && !told.iter().any(|line| has_file(line)) {
            let words = lines_of_ends(&self.text)
                .flat_map(|line| line.split([' ', '[', ']', '(', ')', '"', '\'']));
            told.extend(
                words
                    .map(|word| word.trim_end_matches([':', ',']))
                    .find(|word| is_path(word))
                    .map(str::to_owned),
            );
        }
        told.join("; ")
    }
}

/// The lines of a text that have something in them: the first ones.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().take(LINES_MAX).map(str::trim);
    lines.filter(|line| line.contains(char::is_alphanumeric))
}

/// True of what a shell writes around every result: where it is, and its prompt.
fn is_frame(line: &str) -> bool {
    line.starts_with('(') && line.ends_with(')')
        || line.len() <= 16 && line.ends_with(['$', '#', '>'])
}

/// Of a result that is no JSON: all of a short one; else its first line and those that give a
/// label and a number.
fn text_records(text: &str) -> Vec<String> {
    let mut told = lines(text).filter(|line| !is_frame(line));
    if text.len() <= SHORT_BYTES_MAX {
        let all: Vec<&str> = told.collect();
        let all = one_line(&all.join(" / "), SHORT_BYTES_MAX).replace("; ", ", ");
        return Vec::from_iter((!all.is_empty()).then_some(all));
    }
    let first = told
        .next()
        .map(|line| one_line(line, LINE_CHARS_MAX).replace("; ", ", "));
    let labelled =
        told.filter(|line| line.len() <= LINE_CHARS_MAX && labelled_number(line).is_some());
    let labelled = labelled
        .take(LABELLED_MAX)
        .map(|line| line.replace("; ", ", "));
    first.into_iter().chain(labelled).collect()
}

/// The label and the number of a line that gives one: `value = 15838`, `Invoice: 39595`.
fn labelled_number(line: &str) -> Option<(&str, &str)> {
    let (label, number) = line.split_once([':', '='])?;
    let (label, number) = (label.trim().trim_matches('"'), number.trim());
    let number = number.split([' ', ',', ';']).next()?.trim_matches('"');
    let is_label = !label.is_empty() && label.len() <= 40 && label.starts_with(char::is_alphabetic);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && number
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'.' | b'-' | b'x'));
    (is_label && is_number).then_some((label, number))
}

/// The numbers of a result that a label says something of, with that label, each of at least four
/// digits: `{"invoice": 39595}`, `value = 15838`.
pub fn labelled_numbers(text: &str) -> Vec<(String, String)> {
    let is_long = |number: &str| number.bytes().filter(u8::is_ascii_digit).count() >= DIGITS_MIN;
    match Result::of(text).records {
        Some(records) => {
            let pairs = records.into_iter().flatten();
            let is_number = |(label, value): &Pair| {
                let is_plain = value
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
                !label.is_empty() && is_plain && is_long(value)
            };
            pairs.filter(is_number).collect()
        }
        None => {
            let found = lines(text)
                .filter_map(labelled_number)
                .filter(|(_, number)| is_long(number));
            let found = found.take(LABELLED_MAX);
            found
                .map(|(label, number)| (label.to_owned(), number.to_owned()))
                .collect()
        }
    }
}
