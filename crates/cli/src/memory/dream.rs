//! `memoird memory dream`: runs a dream sweep now and prints its report.

use std::fmt::Write as _;

use clap::Args;
use memoird_proto::v1::RunDreamRequest;
use serde::Serialize;
use serde_json::Value;

use crate::choice::request;
use crate::connect::Target;
use crate::exit::CliError;
use crate::output;

#[derive(Args, Serialize)]
pub struct DreamArgs {
    /// Tenant to consolidate [default: all]
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only report what would be done
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(target: &Target, args: &DreamArgs) -> Result<(), CliError> {
    let request: RunDreamRequest = request(args)?;
    let reply = target.call(&request).await?;
    let json_text = reply.report_json;
    let report: Value = serde_json::from_str(&json_text).unwrap_or(Value::String(json_text));
    output::print_as(target.json, &report, &readable(&report))
}

/// Formats a report, one value per line, with nested values indented.
fn readable(report: &Value) -> String {
    let mut text = String::new();
    write(&mut text, report, 0);
    if text.is_empty() {
        "nothing to report\n".to_owned()
    } else {
        text
    }
}

fn write(text: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = output::printable(&name.replace('_', " "));
                let _ = match leaf(value) {
                    Some(leaf) => writeln!(text, "{indent}{name}: {leaf}"),
                    None => {
                        let heading = writeln!(text, "{indent}{name}:");
                        write(text, value, depth + 1);
                        heading
                    }
                };
            }
        }
        Value::Array(items) => {
            for item in items {
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{indent}- {}", inline(item));
            }
        }
        other => {
            let _ = writeln!(text, "{indent}{}", leaf(other).unwrap_or_default());
        }
    }
}

/// Formats a whole value on one line.
fn inline(value: &Value) -> String {
    let field = |(name, value): (&String, &Value)| {
        let name = output::printable(&name.replace('_', " "));
        match value {
            Value::Object(_) | Value::Array(_) => format!("{name} ({})", inline(value)),
            _ => format!("{name} {}", inline(value)),
        }
    };
    leaf(value).unwrap_or_else(|| match value {
        Value::Object(fields) => fields.iter().map(field).collect::<Vec<_>>().join(", "),
        Value::Array(items) => items.iter().map(inline).collect::<Vec<_>>().join(", "),
        _ => String::new(),
    })
}

/// Formats a value that fits after its name. `None` for objects and arrays that are not empty.
fn leaf(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(output::printable(text)),
        Value::Null => Some("-".to_owned()),
        Value::Bool(true) => Some("yes".to_owned()),
        Value::Bool(false) => Some("no".to_owned()),
        Value::Number(number) => Some(number.to_string()),
        Value::Array(items) if items.is_empty() => Some("none".to_owned()),
        Value::Object(fields) if fields.is_empty() => Some("none".to_owned()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_has_one_fact_per_line() {
        let report = json!({
            "acme": {
                "dry_run": true,
                "promoted": [{"id": "x", "score": 0.5, "parts": {"a_b": 1}, "missed": ["c", "d"]}, {"id": "y\u{1b}[2J", "score": 0.4}],
                "deleted": [],
            },
        });
        let expected = "acme:\n  dry run: yes\n  promoted:\n    - id x, score 0.5, parts (a b 1), \
                        missed (c, d)\n    \
                        - id y\\u{1b}[2J, score 0.4\n  deleted: none\n";
        assert_eq!(readable(&report), expected);
        assert_eq!(readable(&json!({})), "nothing to report\n");
    }
}
