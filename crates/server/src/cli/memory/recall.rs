//! `memoird memory recall`: what a bot would find.

use clap::Args;
use memoird_proto::v1::{MemoryKind, RecallHit, RecallMode, RecallRequest};
use prost_types::Timestamp;

use super::list::content;
use super::words::{self, kind_name, kinds, moment};
use crate::cli::choice::{number, one_of};
use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::{clock, output};

/// What to look for.
#[derive(Args)]
pub(crate) struct RecallArgs {
    /// What is looked for, in words
    query: String,
    /// Whose memories; may be given several times [default: only what all may recall]
    #[arg(long = "subject", value_name = "ID")]
    subjects: Vec<String>,
    /// Only of this kind; may be given several times
    #[arg(long = "kind", value_parser = one_of(words::KINDS))]
    kinds: Vec<MemoryKind>,
    /// Only those with this label; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// How to search [default: hybrid where an embedder is configured]
    #[arg(long, value_parser = one_of(words::MODES))]
    mode: Option<RecallMode>,
    /// At most so many, up to 100 [default: as configured]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: u32,
    /// Only those observed at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    after: Option<Timestamp>,
    /// Only those observed before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    before: Option<Timestamp>,
}

pub(super) async fn run(target: &Target, args: RecallArgs, json: bool) -> Result<(), CliError> {
    let request = RecallRequest {
        query: args.query,
        subjects: args.subjects,
        kinds: kinds(args.kinds),
        tags: args.tags,
        after: args.after,
        before: args.before,
        limit: args.limit,
        mode: number(args.mode),
        session_id: String::new(),
    };
    let found = target.done(target.memories().recall(request).await)?;
    if !json {
        for note in &found.notes {
            output::note(&format!("note: {note}"));
        }
    }
    output::show(json, &found, |found| {
        let header = [
            "SCORE", "WORDS", "MEANING", "AGE", "KIND", "SUBJECT", "ID", "CONTENT",
        ];
        output::fitted_table(Some(header), found.hits.iter().map(row))
    })
}

fn row(hit: &RecallHit) -> [String; 8] {
    let memory = hit.memory.clone().unwrap_or_default();
    let rank = |rank: u32| match rank {
        0 => "-".to_owned(),
        rank => rank.to_string(),
    };
    [
        output::figure(hit.score, 4),
        rank(hit.lexical_rank),
        rank(hit.vector_rank),
        clock::age(memory.observed_at.as_ref(), clock::now()),
        kind_name(memory.kind),
        output::printable(&memory.subject),
        output::printable(&memory.id),
        content(&memory),
    ]
}
