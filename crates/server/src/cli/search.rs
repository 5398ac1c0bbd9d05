//! `memoird search`: what was said, in all sessions of the key's tenant.

use clap::Args;
use memoird_proto::v1::{Role, SearchTranscriptsRequest, TranscriptHit};
use prost_types::Timestamp;
use serde_json::json;

use super::choice::moment;
use super::choice::{Choices, one_of};
use super::connect;
use super::exit::CliError;
use super::json::short_name;
use super::pages::Pages;
use super::{ClientArgs, clock, json, output, transcript};

/// Who may have said it.
const ROLES: Choices<Role> = &[
    ("user", Role::User, "Who talks to the bot"),
    ("assistant", Role::Assistant, "The model"),
    ("tool", Role::Tool, "A tool that the model called"),
    ("system", Role::System, "Instructions of the bot's author"),
];

/// What to look for.
#[derive(Args)]
pub(crate) struct SearchArgs {
    /// What is looked for, in words; without it the filters decide alone, newest first
    #[arg(default_value = "", hide_default_value = true)]
    query: String,
    /// Only in this session, in all of its lives
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only in sessions of this subject
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only by this role; may be given several times
    #[arg(long = "role", value_parser = one_of(ROLES))]
    roles: Vec<Role>,
    /// Only turns that call this tool, or have a result of it
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only what was said at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Timestamp>,
    /// Only what was said before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Timestamp>,
    /// Show so many turns before and after each hit, up to 10
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    context: u32,
    /// At most so many; 0: all that can be paged through
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// Does it.
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
        output::note("note: not all that was said is indexed yet; search again later");
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
