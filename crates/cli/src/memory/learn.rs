//! `memoird memory learn`: extracts facts from a session and prints their outcome.

use std::fmt::Write as _;

use clap::Args;
use memoird_proto::v1::{LearnSessionRequest, LearnSessionResponse, LearnedFact};
use serde::Serialize;

use crate::choice::{kind_name, request};
use crate::connect::Target;
use crate::exit::CliError;
use crate::json::short_name;
use crate::output;

#[derive(Args, Serialize)]
pub struct LearnArgs {
    /// Session id
    #[arg(value_name = "SESSION")]
    session_id: String,
    /// Generation of the session [default: the live one, or else the newest]
    #[arg(long, value_name = "ID")]
    generation: Option<String>,
    /// Subject for the new memories [default: the subject of the session]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Report what would be remembered and why, without storing it; still calls the model
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(target: &Target, args: &LearnArgs) -> Result<(), CliError> {
    let request: LearnSessionRequest = request(args)?;
    target
        .show(&request, |reply| readable(reply, args.dry_run))
        .await
}

/// Formats a reply: a line for each fact, followed by its notes.
fn readable(reply: &LearnSessionResponse, dry_run: bool) -> String {
    if reply.first_seq == 0 {
        return format!(
            "nothing to extract from: all turns up to {} were processed already\n",
            reply.cursor_seq
        );
    }
    let mut text = format!(
        "turns {} to {}, {} tokens in, {} out, by {}\n",
        reply.first_seq,
        reply.through_seq,
        reply.prompt_tokens,
        reply.answer_tokens,
        output::printable(&reply.model),
    );
    for fact in &reply.facts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", line(fact, dry_run));
        for note in &fact.notes {
            let _ = writeln!(text, "    {}", output::printable(note));
        }
    }
    if reply.facts.is_empty() {
        text.push_str("nothing worth remembering\n");
    }
    text
}

fn line(fact: &LearnedFact, dry_run: bool) -> String {
    let seqs: Vec<String> = fact.seqs.iter().map(u64::to_string).collect();
    let memory = fact.result.as_ref().and_then(|it| it.memory.as_ref());
    let content = memory.map_or(&fact.content, |memory| &memory.content);
    let said = format!(
        "[{}] {} (turns {})",
        kind_name(fact.kind),
        output::printable(content),
        seqs.join(", ")
    );
    let Some(result) = &fact.result else {
        let why = short_name("FactRejection", fact.rejection);
        return format!("- refused, {why}: {said}");
    };
    let became = short_name("RememberOutcome", result.outcome);
    let would = if dry_run { "would be " } else { "" };
    let replaces = match fact.supersedes_id.as_str() {
        "" => String::new(),
        id => format!(", in the place of {}", output::printable(id)),
    };
    format!("- {would}{became}{replaces}: {said}")
}
