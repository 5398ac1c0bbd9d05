//! `memoird sessions`: list, show, compact, end and erase the sessions of the key's tenant.

use std::collections::VecDeque;

use clap::{Args, Subcommand};
use memoird_proto::v1::{
    CopySessionRequest, EndSessionRequest, GetHistoryRequest, GetSessionRequest,
    GetSessionResponse, HistoryScope, ListSessionsRequest, RewindSessionRequest,
    RewindSessionResponse, SessionInfo, SessionState, Turn, UpdateSessionRequest,
};
use serde::Serialize;
use serde_json::{Value, json};
use tonic::Code;

use super::choice::{as_map, moment, one_of, request};
use super::compaction::CompactArgs;
use super::connect::{ClientArgs, Target};
use super::erase::{EraseArgs, EraseSubjectArgs};
use super::list::{self, Age, Ago, Count, ListColumn, Name, Size, Text, Time, Until, with};
use super::pages::PAGE_MAX;
use super::{compaction, erase, json, output, redact, transcript};
use crate::exit::CliError;

#[derive(Subcommand)]
pub enum SessionsCommand {
    /// List live sessions, most recently used first; with --ended, those that ended
    List(ListArgs),
    /// Show a session and its turns
    Show(ShowArgs),
    /// Replace the oldest exchanges of a session by a summary now
    Compact(CompactArgs),
    /// Undo the last summary of a session; windows show the turns it replaced
    UndoCompaction {
        /// Session id, chosen by the bot
        id: String,
    },
    /// Remove the newest turns of a session; the journal keeps them, marked as removed
    Rewind(RewindArgs),
    /// Set labels of a session, for filtering lists
    Label(LabelArgs),
    /// Copy the turns of a session into a new one
    Copy(CopyArgs),
    /// Permanently overwrite the content of a turn
    Redact(redact::RedactArgs),
    /// End a session now; its hooks run
    End(EndArgs),
    /// Permanently erase a session with its turns, memories and checkpoints; no hook is called
    Erase(EraseArgs),
    /// Permanently erase all sessions and memories of a subject
    EraseSubject(EraseSubjectArgs),
}

#[derive(Args, Serialize)]
pub struct ListArgs {
    /// Maximum number to print; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[serde(skip)]
    limit: usize,
    /// Generations that ended, instead of live sessions; needs a journal
    #[arg(long, conflicts_with = "all")]
    #[serde(skip)]
    ended: bool,
    /// Live sessions and generations that ended; needs a journal
    #[arg(long)]
    #[serde(skip)]
    all: bool,
    /// Only sessions with this id prefix
    #[arg(long, value_name = "PREFIX")]
    id_prefix: Option<String>,
    /// Only sessions of this subject
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only sessions with this label; can be repeated to require all of them
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    #[serde(serialize_with = "as_map")]
    labels: Vec<(String, String)>,
    /// Only sessions used, or ended, after this time, such as 2026-01-31
    #[arg(long = "used-after", value_name = "TIME", value_parser = moment)]
    updated_after: Option<String>,
    /// Only sessions used, or ended, before this time
    #[arg(long = "used-before", value_name = "TIME", value_parser = moment)]
    updated_before: Option<String>,
    /// Sort order: most recently used or ended first, longest ago first, or by id
    #[arg(long, value_parser = one_of("SessionOrder"), default_value = "newest")]
    order: i32,
}

#[derive(Args)]
pub struct LabelArgs {
    /// Session id, chosen by the bot
    id: String,
    /// Label to set; an empty value removes it
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

fn label(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Args, Serialize)]
pub struct RewindArgs {
    /// Session id, chosen by the bot
    #[arg(value_name = "ID")]
    session_id: String,
    /// Seq of the newest turn to keep; 0 removes all turns
    #[arg(long = "after", value_name = "SEQ")]
    after_seq: u64,
}

#[derive(Args, Serialize)]
pub struct CopyArgs {
    /// Session id, chosen by the bot
    #[arg(value_name = "ID")]
    session_id: String,
    /// Id of the copy; must not be in use by a live session
    #[arg(value_name = "TARGET")]
    target_session_id: String,
    /// Generation of the session [default: the live one, or else the newest]
    #[arg(long, value_name = "ULID")]
    generation: Option<String>,
    /// Seq of the last turn to copy [default: copy all]
    #[arg(long = "through", value_name = "SEQ")]
    through_seq: Option<u64>,
}

#[derive(Args, Serialize)]
pub struct EndArgs {
    /// Session id, chosen by the bot
    #[arg(value_name = "ID")]
    session_id: String,
    /// Fail unless this is the live generation
    #[arg(long = "generation", value_name = "ULID")]
    expected_generation: Option<String>,
}

#[derive(Args)]
pub struct ShowArgs {
    /// Session id, chosen by the bot
    id: String,
    /// Only the newest N turns [default: all]
    #[arg(long, value_name = "N")]
    turns: Option<usize>,
    /// Show all turns of the generation from the journal, not only those in the history
    #[arg(long)]
    journal: bool,
    /// Generation to show, which may have ended; implies --journal
    #[arg(long, value_name = "ULID")]
    generation: Option<String>,
}

pub(crate) async fn run(client: &ClientArgs, command: SessionsCommand) -> Result<(), CliError> {
    let target = client.target()?;
    match command {
        SessionsCommand::List(args) => {
            let (state, columns) = match (args.ended, args.all) {
                (true, _) => (SessionState::Ended, ENDED),
                (_, true) => (SessionState::Any, ALL),
                _ => (SessionState::Live, SESSIONS),
            };
            let request = ListSessionsRequest {
                state: state.into(),
                ..request(&args)?
            };
            target.list(&request, args.limit, columns).await
        }
        SessionsCommand::Show(args) => show(&target, &args).await,
        SessionsCommand::Compact(args) => compaction::compact(&target, &args).await,
        SessionsCommand::UndoCompaction { id } => compaction::undo(&target, id).await,
        SessionsCommand::Rewind(args) => {
            let request: RewindSessionRequest = request(&args)?;
            target.show(&request, rewound).await
        }
        SessionsCommand::Label(args) => give_labels(&target, args).await,
        SessionsCommand::Copy(args) => copy(&target, &args).await,
        SessionsCommand::Redact(args) => redact::run(&target, args).await,
        SessionsCommand::Erase(args) => erase::session(&target, args).await,
        SessionsCommand::EraseSubject(args) => erase::subject(&target, args).await,
        SessionsCommand::End(args) => end(&target, &args).await,
    }
}

const SESSIONS: &[ListColumn] = &[
    ("SESSION", "session_id", Text),
    ("TURNS", "history_turns", Count),
    ("SIZE", "history_bytes", Size),
    ("TOKENS", "history_tokens", Count),
    ("LAST SEQ", "last_seq", Count),
    ("IDLE", "last_access", Age),
    ("EXPIRES IN", "expires_at", Until),
];

const ENDED: &[ListColumn] = &[
    ("SESSION", "session_id", Text),
    ("GENERATION", "generation", Text),
    ("TURNS", "history_turns", Count),
    ("SIZE", "history_bytes", Size),
    ("LAST SEQ", "last_seq", Count),
    ("ENDED", "ended_at", Time),
    ("REASON", "end_reason", Name),
];

const ALL: &[ListColumn] = &[
    ("SESSION", "session_id", Text),
    ("GENERATION", "generation", Text),
    ("TURNS", "history_turns", Count),
    ("SIZE", "history_bytes", Size),
    ("LAST SEQ", "last_seq", Count),
    ("IDLE", "last_access", Age),
    ("ENDED", "ended_at", Time),
    ("REASON", "end_reason", Name),
];

async fn show(target: &Target, args: &ShowArgs) -> Result<(), CliError> {
    let journal = args.journal || args.generation.is_some();
    let request = GetSessionRequest {
        session_id: args.id.clone(),
        ..Default::default()
    };
    let live = match target.call(&request).await {
        // An ended session is still in the journal.
        Err(error) if journal && error.has_code(Code::NotFound) => None,
        reply => Some(reply?),
    };
    let turns = history(target, args, journal).await?;
    let named = args.generation.as_ref();
    let is_named = |info: &SessionInfo| named.is_none_or(|named| *named == info.generation);
    let detail = live.filter(|detail| detail.session.as_ref().is_some_and(is_named));
    if target.json {
        return output::print_json(&shown_json(detail.as_ref(), &turns));
    }
    match &detail {
        Some(detail) => print_detail(detail)?,
        None => output::print("not live: the turns are from the journal")?,
    }
    output::print("")?;
    output::print(&transcript::table(&turns))
}

fn shown_json(detail: Option<&GetSessionResponse>, turns: &VecDeque<Turn>) -> Value {
    let mut shown = detail.map_or_else(|| json!({ "session": null }), json::of);
    shown["turns"] = json::all(turns);
    shown
}

fn print_detail(detail: &GetSessionResponse) -> Result<(), CliError> {
    output::print(&list::record(SESSION, detail))?;
    if !detail.summary_text.is_empty() {
        let lines: Vec<String> = compaction::text_lines(&detail.summary_text).collect();
        output::print(&format!("\nsummary\n  {}", lines.join("\n  ")))?;
    }
    Ok(())
}

/// Fetches the requested turns, page by page from the newest back.
async fn history(
    target: &Target,
    args: &ShowArgs,
    journal: bool,
) -> Result<VecDeque<Turn>, CliError> {
    let scope = if journal {
        HistoryScope::Journal
    } else {
        HistoryScope::Live
    };
    let wanted = args.turns.unwrap_or(usize::MAX);
    let mut turns = VecDeque::new();
    let mut before_seq = 0;
    while turns.len() < wanted {
        let last = (wanted - turns.len()).min(PAGE_MAX);
        let request = GetHistoryRequest {
            session_id: args.id.clone(),
            generation: args.generation.clone().unwrap_or_default(),
            scope: scope as i32,
            last: u32::try_from(last).unwrap_or(u32::MAX),
            before_seq,
            ..GetHistoryRequest::default()
        };
        let page = target.call(&request).await?;
        for turn in page.turns.into_iter().rev() {
            turns.push_front(turn);
        }
        before_seq = page.previous_before_seq;
        if before_seq == 0 {
            break;
        }
    }
    Ok(turns)
}

fn rewound(reply: &RewindSessionResponse) -> String {
    let turns = output::counted(reply.removed_turns, "turn", "turns");
    let table = transcript::table(&reply.removed);
    if reply.removed.is_empty() {
        format!("taken back: {turns}")
    } else {
        format!("taken back: {turns}\n{table}")
    }
}

async fn give_labels(target: &Target, args: LabelArgs) -> Result<(), CliError> {
    let request = UpdateSessionRequest {
        session_id: args.id.clone(),
        labels: args.labels.into_iter().collect(),
        ..UpdateSessionRequest::default()
    };
    target.call(&request).await?;
    let request = GetSessionRequest {
        session_id: args.id,
        ..GetSessionRequest::default()
    };
    target
        .show(&request, |reply| {
            let info = reply.session.clone().unwrap_or_default();
            let id = output::printable(&info.session_id);
            if info.labels.is_empty() {
                format!("{id} has no labels")
            } else {
                format!("{id}: {}", labels(&info))
            }
        })
        .await
}

fn labels(info: &SessionInfo) -> String {
    let labels = info
        .labels
        .iter()
        .map(|(name, value)| output::printable(&format!("{name}={value}")));
    labels.collect::<Vec<_>>().join(" ")
}

async fn copy(target: &Target, args: &CopyArgs) -> Result<(), CliError> {
    let request: CopySessionRequest = request(args)?;
    target
        .show(&request, |reply| {
            let turns = output::counted(reply.turns, "turn", "turns");
            format!("copied: {turns}")
        })
        .await
}

async fn end(target: &Target, args: &EndArgs) -> Result<(), CliError> {
    let request: EndSessionRequest = request(args)?;
    target
        .show(&request, |reply| {
            let info = reply.session.clone().unwrap_or_default();
            let id = output::printable(&info.session_id);
            format!("ended {id}, generation {}", info.generation)
        })
        .await
}

const SESSION: &[ListColumn] = &[
    ("session", "session.session_id", Text),
    ("generation", "session.generation", Text),
    ("subject", "session.subject", Text),
    ("labels", "session", with!(labels)),
    ("history", "session", with!(history_size)),
    ("last seq", "session.last_seq", Count),
    ("created", "session.created_at", Ago),
    ("last access", "session.last_access", Ago),
    ("expires in", "session.expires_at", Until),
    ("state version", "session.state_version", Count),
    ("keeps", "session", with!(keeps)),
    ("ttl class", "session.ttl_class", Text),
    ("summary", "summary", with!(compaction::stands_for)),
    (
        "compaction",
        "session.compaction",
        with!(compaction::health),
    ),
];

fn history_size(info: &SessionInfo) -> String {
    format!(
        "{} turns, {}, about {} tokens",
        output::count(info.history_turns),
        output::size(info.history_bytes),
        output::count(info.history_tokens)
    )
}

fn keeps(info: &SessionInfo) -> &'static str {
    if info.keep_all {
        "all of its history"
    } else {
        ""
    }
}
