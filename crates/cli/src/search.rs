//! `memoird search`: searches the transcripts of the key's tenant.

use clap::Args;
use memoird_proto::v1::{SearchTranscriptsRequest, TranscriptHit};
use serde::Serialize;
use serde_json::json;

use super::choice::{moment, one_of, request};
use super::connect::ClientArgs;
use super::list::{self, Figure, Line, ListColumn, Name, Text, Time};
use super::pages::Pages;
use super::{json, output, transcript};
use crate::exit::CliError;

#[derive(Args, Serialize)]
pub struct SearchArgs {
    /// Query text; if omitted, the filters alone select turns, newest first
    #[arg(default_value = "", hide_default_value = true)]
    query: String,
    /// Only this session, in all its generations
    #[arg(long = "session", value_name = "ID")]
    session_id: Option<String>,
    /// Only sessions of this subject
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only turns with this role; can be repeated
    #[arg(long = "role", value_parser = one_of("Role"))]
    roles: Vec<i32>,
    /// Only turns that call this tool or contain its result
    #[arg(long = "tool", value_name = "NAME")]
    tool_name: Option<String>,
    /// Only turns at or after this time, such as 2026-01-31
    #[arg(long = "since", value_name = "TIME", value_parser = moment)]
    after: Option<String>,
    /// Only turns before this time
    #[arg(long = "until", value_name = "TIME", value_parser = moment)]
    before: Option<String>,
    /// Number of turns to show before and after each hit, up to 10
    #[arg(
        long = "context",
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true
    )]
    context_turns: u32,
    /// Maximum number of hits; 0 prints all pages
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[serde(skip)]
    limit: usize,
}

pub(crate) async fn run(client: &ClientArgs, args: SearchArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let request: SearchTranscriptsRequest = request(&args)?;
    let mut pages = Pages::new(&target, &request);
    let hits = pages.first(args.limit).await?;
    if target.json {
        let found = json!({ "hits": json::values(&hits), "incomplete": pages.is_incomplete });
        return output::print_json(&found);
    }
    if pages.is_incomplete {
        output::note("note: the index is not up to date yet; search again later");
    }
    if args.context_turns == 0 {
        return output::print(&list::table_of(HITS, &hits));
    }
    for hit in hits.iter().map(list::typed::<TranscriptHit>) {
        let session = output::printable(&hit.session_id);
        output::print(&format!("{session} {} turn {}", hit.generation, hit.seq))?;
        output::print(&transcript::table(&hit.turns))?;
        output::print("")?;
    }
    Ok(())
}

const HITS: &[ListColumn] = &[
    ("SCORE", "score", Figure(2)),
    ("TIME", "time", Time),
    ("SESSION", "session_id", Text),
    ("SEQ", "seq", Text),
    ("ROLE", "role", Name),
    ("WORDS", "snippet", Line),
];
