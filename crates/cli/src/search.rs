//! `memoird search`: searches the transcripts of the key's tenant.

use clap::Args;
use memoird_proto::v1::{Role, SearchTranscriptsRequest, TranscriptHit};
use prost_types::Timestamp;
use serde_json::json;

use super::choice::moment;
use super::choice::{Choices, one_of};
use super::connect;
use super::connect::ClientArgs;
use super::json::short_name;
use super::pages::Pages;
use super::{clock, json, output, transcript};
use crate::exit::CliError;

const ROLES: Choices<Role> = &[
    ("user", Role::User, "Who talks to the bot"),
    ("assistant", Role::Assistant, "The model"),
    ("tool", Role::Tool, "A tool that the model called"),
    ("system", Role::System, "Instructions of the bot's author"),
];

#[derive(Args)]
pub struct SearchArgs {
    /// Query text; if omitted, the filters alone select turns, newest first
    #[arg(default_value = "", hide_default_value = true)]
    query: String,
    /// Only this session, in all its generations
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only sessions of this subject
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only turns with this role; can be repeated
    #[arg(long = "role", value_parser = one_of(ROLES))]
    roles: Vec<Role>,
    /// Only turns that call this tool or contain its result
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only turns at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only turns before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    /// Number of turns to show before and after each hit, up to 10
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    context: u32,
    /// Maximum number of hits; 0 prints all pages
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

pub(crate) async fn run(client: &ClientArgs, args: SearchArgs) -> Result<(), CliError> {
    let target = client.connect.target()?;
    let request = SearchTranscriptsRequest {
        query: args.query,
        session_id: args.session.unwrap_or_default(),
        subject: args.subject.unwrap_or_default(),
        after: args.since,
        before: args.until,
        roles: args.roles.into_iter().map(Into::into).collect(),
        tool_name: args.tool.unwrap_or_default(),
        context_turns: args.context,
        ..SearchTranscriptsRequest::default()
    };
    let mut incomplete = false;
    let pages = Pages::of(async |limit, page_token| {
        let request = SearchTranscriptsRequest {
            limit,
            page_token,
            ..request.clone()
        };
        let of = connect::whose(&request.subject, &request.session_id);
        let mut client = target.memories_of(of);
        let reply = target.done(client.search_transcripts(request).await)?;
        incomplete |= reply.incomplete;
        Ok((reply.hits, reply.next_page_token))
    });
    let hits = pages.first(args.limit).await?;
    if client.json {
        let found = json!({ "hits": json::all(&hits), "incomplete": incomplete });
        return output::print_json(&found);
    }
    if incomplete {
        output::note("note: the index is not up to date yet; search again later");
    }
    if args.context == 0 {
        let header = ["SCORE", "TIME", "SESSION", "SEQ", "ROLE", "WORDS"];
        let rows = hits.iter().map(row);
        return output::print(&output::fitted_table(Some(header), rows));
    }
    for hit in &hits {
        let session = output::printable(&hit.session_id);
        output::print(&format!("{session} {} turn {}", hit.generation, hit.seq))?;
        output::print(&transcript::table(&hit.turns))?;
        output::print("")?;
    }
    Ok(())
}

fn row(hit: &TranscriptHit) -> [String; 6] {
    [
        output::figure(hit.score, 2),
        clock::written(hit.time.as_ref(), transcript::TO_THE_SECOND),
        output::printable(&hit.session_id),
        hit.seq.to_string(),
        short_name("Role", hit.role),
        output::printable(&hit.snippet),
    ]
}
