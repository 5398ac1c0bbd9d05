//! Output of compactions, and `memoird sessions compact` and `undo-compaction`.

use clap::Args;
use memoird_proto::v1::{
    BreakerState, CompactSessionRequest, CompactSessionResponse, CompactionInfo, SummaryInfo,
    SummaryMaker, UndoCompactionRequest, UndoCompactionResponse,
};
use serde::Serialize;

use super::choice::request;
use super::connect::Target;
use super::json::short_name;
use super::{clock, output};
use crate::exit::CliError;

/// Maximum characters of a line of a summary, or of an error.
const LINE_CHARS_MAX: usize = 400;

#[derive(Args, Serialize)]
pub struct CompactArgs {
    /// Session id, chosen by the bot
    #[arg(value_name = "ID")]
    session_id: String,
    /// Number of newest exchanges to keep verbatim; 0 keeps none [default: 5, or fewer if they need
    /// over 30 % of the window]
    #[arg(long = "keep", value_name = "N")]
    keep_exchanges: Option<u32>,
}

pub(super) async fn compact(target: &Target, args: &CompactArgs) -> Result<(), CliError> {
    let request: CompactSessionRequest = request(args)?;
    target.show(&request, compacted).await
}

/// Reverts the last summary.
pub(super) async fn undo(target: &Target, session_id: String) -> Result<(), CliError> {
    let request = UndoCompactionRequest { session_id };
    target.show(&request, undone).await
}

fn undone(reply: &UndoCompactionResponse) -> String {
    let turns = output::counted(reply.restored_turns, "turn", "turns");
    let session = reply.session.as_ref();
    let now = if session.is_some_and(|session| session.has_summary) {
        "the previous summary applies again"
    } else {
        "there is no summary any more"
    };
    format!("taken back: windows show {turns} again, and {now}")
}

/// Describes which turns a summary covers, in one line.
pub(super) fn stands_for(summary: &SummaryInfo) -> String {
    format!(
        "no. {}, of {} ({}-{} newly), by {}, {} ago",
        summary.number,
        output::counted(summary.turns, "turn", "turns"),
        summary.first_seq,
        summary.through_seq,
        made_by(summary),
        clock::age(summary.made_at.as_ref()),
    )
}

/// What made a summary.
pub(super) fn made_by(summary: &SummaryInfo) -> String {
    match summary.made_by() {
        SummaryMaker::Extractive => "extractive".to_owned(),
        _ => output::one_line(&summary.model, 60),
    }
}

/// Describes the state of compaction of a session. Empty if there is nothing to report.
pub(super) fn health(info: &CompactionInfo) -> String {
    let mut words = Vec::new();
    if info.running {
        words.push("one is being made".to_owned());
    }
    if matches!(info.breaker(), BreakerState::Open | BreakerState::HalfOpen) {
        let breaker = short_name("BreakerState", info.breaker).replace('_', " ");
        words.push(format!("breaker {breaker}"));
    }
    match info.consecutive_failures {
        0 => {}
        1 => words.push("failed once".to_owned()),
        times => words.push(format!("failed {times} times in a row")),
    }
    if !info.last_error.is_empty() {
        words.push(output::one_line(&info.last_error, LINE_CHARS_MAX));
    }
    words.join(", ")
}

/// Returns the non-blank lines of a summary's text.
pub(super) fn text_lines(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| output::one_line(line, LINE_CHARS_MAX))
}

fn compacted(reply: &CompactSessionResponse) -> String {
    let Some(summary) = &reply.summary_info else {
        return "nothing to summarize".to_owned();
    };
    let stands_for = stands_for(summary);
    if !reply.is_new {
        return format!("nothing new to summarize; the summary stays: {stands_for}");
    }
    let mut lines = vec![
        format!("summary {stands_for}"),
        format!(
            "{} → {} tokens",
            output::count(reply.tokens_before),
            output::count(reply.tokens_after)
        ),
        String::new(),
    ];
    lines.extend(text_lines(&reply.summary));
    lines.join("\n")
}

#[cfg(test)]
mod tests;
