//! The tool `read_earlier_turns` lets a model read turns that its window omits.
//!
//! This module describes the tool, parses the arguments of a call, and writes the text of its
//! result. The caller reads the turns.
//!
//! In a result only memoird's own lines start at the first column. Content of turns is indented and
//! escaped by [`quote::within`], so that it cannot imitate those lines or the markers of a window.

mod text;

use serde_json::{Map, Value, json};

use crate::quote;

pub use text::EarlierTurns;

/// Name of the tool.
pub const NAME: &str = "read_earlier_turns";

/// Maximum characters of an unknown argument's name that an error repeats.
const ARGUMENT_CHARS_MAX: usize = 40;

/// The parsed arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierTurnsQuery {
    /// First seq, at least 1.
    pub from_seq: u64,
    /// Last seq, not less than `from_seq`. [`u64::MAX`] means the newest turn.
    pub to_seq: u64,
    /// Words to search for in these turns.
    pub words: Option<String>,
}

/// Returns the description of the tool for the model.
///
/// It is the same for all sessions, so that the provider's prompt cache stays valid.
pub fn description(has_search: bool) -> String {
    let by_words = if has_search {
        " With `query`, returns only the turns that match these words; `from_seq` and `to_seq` are \
         optional then."
    } else {
        ""
    };
    format!(
        "Reads earlier turns of this conversation that you cannot see, or see only shortened or \
         summarized. Notes such as \"[memoird 123456789: turns 12-48 are not shown here]\", and the \
         first line of a summary, contain their numbers. Returns the turns \
         verbatim, with number, role and time (UTC).{by_words} If the turns do not fit into one \
         result, it ends with the numbers of the rest."
    )
}

/// Returns the JSON schema of the tool's arguments.
pub fn parameters(has_search: bool) -> Value {
    let seq = |description: &str| json!({ "type": "integer", "description": description });
    let mut properties = Map::new();
    properties.insert("from_seq".into(), seq("Number of the first turn to read."));
    properties.insert(
        "to_seq".into(),
        seq("Number of the last turn to read, inclusive."),
    );
    let mut required = json!(["from_seq", "to_seq"]);
    if has_search {
        let query = "Words to search for, instead of or within a range of turns.";
        properties.insert(
            "query".into(),
            json!({ "type": "string", "description": query }),
        );
        required = json!([]);
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

impl EarlierTurnsQuery {
    /// Parses the arguments as a model wrote them.
    ///
    /// Lenient where the meaning is clear: numbers may be strings, null means absent, and a range
    /// with one end is a single turn.
    ///
    /// # Errors
    /// A sentence for the model about what to correct.
    pub fn parse(arguments_json: &str, has_search: bool) -> Result<Self, String> {
        let arguments = match serde_json::from_str(arguments_json) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(_) => return Err(corrected("the arguments are not a JSON object", has_search)),
            Err(_) if arguments_json.trim().is_empty() => Map::new(),
            Err(error) => {
                let (line, column) = (error.line(), error.column());
                let problem =
                    format!("the arguments are not valid JSON at line {line} column {column}");
                return Err(corrected(&problem, has_search));
            }
        };
        Self::from_object(arguments, has_search).map_err(|problem| corrected(&problem, has_search))
    }

    fn from_object(arguments: Map<String, Value>, has_search: bool) -> Result<Self, String> {
        let (mut from, mut to, mut words) = (None, None, None);
        for (name, value) in arguments.into_iter().filter(|(_, value)| !value.is_null()) {
            match name.as_str() {
                "from_seq" => from = Some(seq(&name, &value)?),
                "to_seq" => to = Some(seq(&name, &value)?),
                "query" if has_search => {
                    let text = value.as_str().ok_or("query is not a string")?.trim();
                    words = Some(text.to_owned()).filter(|text| !text.is_empty());
                }
                _ => {
                    let name = quote::one_line(&name, ARGUMENT_CHARS_MAX);
                    return Err(format!("unknown argument {name:?}"));
                }
            }
        }
        let (from_seq, to_seq) = match (from, to) {
            (Some(from), Some(to)) => (from, to),
            (from, to) if words.is_some() => (from.unwrap_or(1), to.unwrap_or(u64::MAX)),
            (Some(single), None) | (None, Some(single)) => (single, single),
            (None, None) if has_search => {
                return Err("from_seq and to_seq, or query, are missing".into());
            }
            (None, None) => return Err("from_seq and to_seq are missing".into()),
        };
        if from_seq > to_seq {
            return Err(format!(
                "from_seq {from_seq} is greater than to_seq {to_seq}"
            ));
        }
        Ok(Self {
            from_seq,
            to_seq,
            words,
        })
    }
}

/// Adds an example of a valid call to a problem.
fn corrected(problem: &str, has_search: bool) -> String {
    let by_words = if has_search {
        " or {\"query\": \"invoice number\"}"
    } else {
        ""
    };
    format!(
        "{problem}; call {NAME} with arguments such as {{\"from_seq\": 12, \"to_seq\": \
         48}}{by_words}"
    )
}

/// Reads a seq, which models also write as a string or as `12.0`.
fn seq(name: &str, value: &Value) -> Result<u64, String> {
    let parsed = match value {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_u64().or_else(|| whole(number.as_f64()?)),
        _ => None,
    };
    let number = parsed.ok_or_else(|| format!("{name} is not a turn number"))?;
    if number == 0 {
        return Err(format!("{name} is 0, and turns are numbered from 1"));
    }
    Ok(number)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked"
)]
fn whole(number: f64) -> Option<u64> {
    const EXACT_MAX: f64 = (1_u64 << 53) as f64;
    (number.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&number)).then_some(number as u64)
}

#[cfg(test)]
mod tests;
