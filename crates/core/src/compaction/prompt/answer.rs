//! A model's reply: one JSON object with the fields of [`ModelSections`].

use serde_json::{Map, Value, json};

use crate::compaction::check::{Rejection, is_refusal};
use crate::compaction::merge::ModelSections;

const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const TEXT_BYTES_MAX: usize = 256 * 1024;
const ENTRY_BYTES_MAX: usize = 4 * 1024;
const ENTRIES_MAX: usize = 2_048;

/// Parses a model's reply.
///
/// Accepts the requested JSON object bare or in a code fence, with or without prose around it, if
/// it is the only one. Ignores unknown fields and treats `null` as absent.
///
/// # Errors
/// - [`Rejection::Empty`] if the reply is empty
/// - [`Rejection::Refusal`] for prose that refuses, apologizes or reports an error
/// - [`Rejection::CutOff`] for truncated JSON
/// - [`Rejection::FieldMissing`] for an object without any field of a summary
/// - [`Rejection::NotTheStructure`] for everything else, including more than 1 MiB or 2,048 entries
pub fn parse_answer(answer: &str) -> Result<ModelSections, Rejection> {
    let answer = answer.trim();
    if answer.is_empty() {
        return Err(Rejection::Empty);
    }
    if answer.len() > ANSWER_BYTES_MAX {
        return Err(wrong(format!("the answer has {} bytes", answer.len())));
    }
    let Some(start) = answer.find('{') else {
        return Err(if is_refusal(answer) {
            Rejection::Refusal
        } else {
            wrong("the answer is not a JSON object".to_owned())
        });
    };
    let mut values = serde_json::Deserializer::from_str(&answer[start..]).into_iter::<Value>();
    let value = match values.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) if error.is_eof() => return Err(Rejection::CutOff),
        _ if is_refusal(answer) => return Err(Rejection::Refusal),
        Some(Err(error)) => return Err(wrong(format!("the answer is not JSON: {error}"))),
        None => return Err(wrong("the answer is not a JSON object".to_owned())),
    };
    let rest = &answer[start + values.byte_offset()..];
    if rest.contains('{') {
        return Err(wrong("the answer has more than one JSON object".to_owned()));
    }
    let Value::Object(fields) = value else {
        return Err(wrong("the answer is not a JSON object".to_owned()));
    };
    written(&fields)
}

pub fn as_json(written: &ModelSections) -> Value {
    json!({
        "standing_instructions": written.standing,
        "withdrawn": written.withdrawn,
        "open_questions": written.open_questions,
        "details": written.details,
    })
}

fn written(fields: &Map<String, Value>) -> Result<ModelSections, Rejection> {
    let written = ModelSections {
        standing: list(fields, "standing_instructions")?,
        withdrawn: list(fields, "withdrawn")?,
        open_questions: list(fields, "open_questions")?,
        details: text(fields, "details")?,
    };
    if written != ModelSections::default() {
        return Ok(written);
    }
    // Providers reply with such an object if the model failed.
    if fields.contains_key("error") || fields.contains_key("refusal") {
        return Err(Rejection::Refusal);
    }
    Err(Rejection::FieldMissing { field: "details" })
}

fn wrong(problem: String) -> Rejection {
    Rejection::NotTheStructure { problem }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<String, Rejection> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(text.trim().to_owned()),
        Some(Value::String(text)) => Err(wrong(format!("{name} has {} bytes", text.len()))),
        Some(_) => Err(wrong(format!("{name} is no text"))),
    }
}

fn list(fields: &Map<String, Value>, name: &str) -> Result<Vec<String>, Rejection> {
    let list = match fields.get(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(wrong(format!("{name} is no list"))),
    };
    if list.len() > ENTRIES_MAX {
        return Err(wrong(format!("{name} has {} entries", list.len())));
    }
    let entry = |(index, entry): (usize, &Value)| match entry {
        Value::String(text) if text.len() <= ENTRY_BYTES_MAX => Ok(text.trim().to_owned()),
        Value::String(text) => Err(wrong(format!("{name}[{index}] has {} bytes", text.len()))),
        _ => Err(wrong(format!("{name}[{index}] is no text"))),
    };
    let entries = list.iter().enumerate().map(entry);
    entries
        .filter(|entry| !entry.as_ref().is_ok_and(String::is_empty))
        .collect()
}
