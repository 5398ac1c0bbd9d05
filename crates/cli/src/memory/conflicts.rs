//! `memoird memory conflicts`: lists memories that may contradict each other.

use clap::Args;
use memoird_proto::prost_reflect::DynamicMessage;
use memoird_proto::v1::{
    ListConflictsRequest, ListSubjectsRequest, MemoryConflict, SubjectMemories,
};
use serde_json::json;

use crate::connect::Target;
use crate::exit::CliError;
use crate::list::{self, Age, Line, ListColumn, Name, Text, With};
use crate::pages::Pages;
use crate::{json as written, output};

#[derive(Args)]
pub struct ConflictsArgs {
    /// Only memories of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Maximum number of pairs per subject, up to 100 [default: 20]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: u32,
}

pub(super) async fn run(target: &Target, args: ConflictsArgs) -> Result<(), CliError> {
    let subjects = match args.subject {
        Some(subject) => vec![subject],
        None => {
            let all = Pages::new(target, &ListSubjectsRequest::default())
                .first(0)
                .await?;
            let subjects = all.iter().map(list::typed::<SubjectMemories>);
            subjects.map(|found| found.subject).collect()
        }
    };
    let mut found = Vec::new();
    for subject in subjects {
        let request = ListConflictsRequest {
            subject: subject.clone(),
            page_size: args.limit,
            page_token: String::new(),
        };
        let reply = target.call(&request).await?;
        if reply.incomplete || !reply.next_page_token.is_empty() {
            output::note(&format!("note: {subject} has more"));
        }
        found.extend(reply.conflicts);
    }
    let value = json!({ "conflicts": written::all(&found) });
    output::print_as(target.json, &value, &readable(&found))
}

const CONFLICTS: &[ListColumn] = &[
    ("LIKENESS", "", With(likeness)),
    ("DIFFERENCE", "difference", Name),
    ("SUBJECT", "older.subject", Text),
    ("AGE", "older.observed_at", Age),
    ("ID", "older.id", Text),
    ("CONTENT", "older.content", Line),
];

fn likeness(conflict: &DynamicMessage) -> String {
    match list::typed(conflict) {
        MemoryConflict { newer: None, .. } => String::new(),
        MemoryConflict { likeness, .. } => output::figure(likeness, 2),
    }
}

/// Formats each pair in two lines, the older memory first.
fn readable(found: &[MemoryConflict]) -> String {
    let second = |conflict: &MemoryConflict| MemoryConflict {
        older: conflict.newer.clone(),
        ..MemoryConflict::default()
    };
    let lines: Vec<_> = found
        .iter()
        .flat_map(|first| [first.clone(), second(first)])
        .collect();
    match found {
        [] => String::new(),
        _ => list::table(CONFLICTS, &lines),
    }
}
