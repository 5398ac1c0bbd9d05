//! `memoird memory conflicts`: lists memories that may contradict each other.

use clap::Args;
use memoird_proto::v1::{ListConflictsRequest, MemoryConflict};
use serde_json::json;

use super::{content, subjects_with};
use crate::connect::Target;
use crate::exit::CliError;
use crate::json::{self as written, short_name};
use crate::{clock, output};

#[derive(Args)]
pub struct ConflictsArgs {
    /// Only memories of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Maximum number of pairs per subject, up to 100 [default: 20]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: u32,
}

pub(super) async fn run(target: &Target, args: ConflictsArgs, json: bool) -> Result<(), CliError> {
    let subjects = match args.subject {
        Some(subject) => vec![subject],
        None => {
            let all = subjects_with(target, "", 0).await?;
            all.into_iter().map(|of| of.subject).collect()
        }
    };
    let mut found = Vec::new();
    for subject in subjects {
        let request = ListConflictsRequest {
            subject: subject.clone(),
            limit: args.limit,
        };
        let reply = target.done(target.memories_of(&subject).list_conflicts(request).await)?;
        if reply.truncated {
            output::note(&format!("note: {subject} has more"));
        }
        found.extend(reply.conflicts);
    }
    if json {
        return output::print_json(&json!({ "conflicts": written::all(&found) }));
    }
    match &*readable(&found) {
        "" => Ok(()),
        words => output::print(words),
    }
}

/// Formats each pair in two lines, the older memory first.
fn readable(found: &[MemoryConflict]) -> String {
    let header = ["LIKENESS", "DIFFERENCE", "SUBJECT", "AGE", "ID", "CONTENT"];
    let rows = found.iter().flat_map(|conflict| {
        let older = conflict.older.clone().unwrap_or_default();
        let newer = conflict.newer.clone().unwrap_or_default();
        let difference = short_name("ConflictDifference", conflict.difference);
        let likeness = output::figure(conflict.likeness, 2);
        let row = |[likeness, difference]: [String; 2], memory: &memoird_proto::v1::Memory| {
            [
                likeness,
                difference,
                output::printable(&memory.subject),
                clock::age(memory.observed_at.as_ref()),
                output::printable(&memory.id),
                content(memory),
            ]
        };
        [
            row([likeness, difference], &older),
            row([String::new(), String::new()], &newer),
        ]
    });
    match found {
        [] => String::new(),
        _ => output::fitted_table(Some(header), rows),
    }
}
