//! `memoird memory add`: a fact, from the command line or from stdin.

use std::io::{self, Read};

use clap::Args;
use memoird_proto::v1::{MemoryKind, NearDuplicate, Polarity, RememberRequest, Visibility};
use prost_types::Timestamp;

use super::list::described;
use super::words;
use crate::cli::choice::{number, one_of};
use crate::cli::connect::Target;
use crate::cli::exit::{CliError, Exit};
use crate::cli::json::short_name;
use crate::cli::{json, output};

/// No fact is so long; the daemon says what it takes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The fact.
#[derive(Args)]
pub(crate) struct AddArgs {
    /// Whose it is
    #[arg(long, value_name = "ID")]
    subject: String,
    /// What it is about
    #[arg(long, value_parser = one_of(words::KINDS))]
    kind: MemoryKind,
    /// The fact, in words; `-` reads stdin
    text: String,
    /// A label; may be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// From 0 to 1 [default: 0.5]
    #[arg(long, value_name = "X")]
    importance: Option<f32>,
    /// Who may recall it [default: private]
    #[arg(long, value_parser = one_of(words::VISIBILITIES))]
    visibility: Option<Visibility>,
    /// Which way it points; for feedback
    #[arg(long, value_parser = one_of(words::POLARITIES))]
    polarity: Option<Polarity>,
    /// Put it first in the manifest
    #[arg(long)]
    pin: bool,
    /// The memory whose place it takes
    #[arg(long, value_name = "ID")]
    supersedes: Option<String>,
    /// What is done when a memory says it already, in other letters [default: merge]
    #[arg(long, value_parser = one_of(words::NEAR_DUPLICATES))]
    near_duplicate: Option<NearDuplicate>,
    /// When it was so, such as 2026-01-31 [default: now]
    #[arg(long, value_name = "TIME", value_parser = words::moment)]
    observed: Option<Timestamp>,
    /// From when on it is not recalled any more [default: never]
    #[arg(long, value_name = "TIME", value_parser = words::moment)]
    expires: Option<Timestamp>,
    /// An idempotency key: the same key with the same fact is done once
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

pub(super) async fn run(target: &Target, args: AddArgs, json: bool) -> Result<(), CliError> {
    let content = match &*args.text {
        "-" => tokio::task::spawn_blocking(stdin)
            .await
            .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?,
        _ => args.text,
    };
    let request = RememberRequest {
        subject: args.subject,
        kind: args.kind.into(),
        content,
        tags: args.tags,
        importance: args.importance,
        source: None,
        observed_at: args.observed,
        expires_at: args.expires,
        supersedes_id: args.supersedes.unwrap_or_default(),
        pinned: args.pin,
        polarity: number(args.polarity),
        idempotency_key: args.key.unwrap_or_default(),
        visibility: number(args.visibility),
        near_duplicate: number(args.near_duplicate),
    };
    let done = target.done(target.memories().remember(request).await)?;
    let outcome = short_name("RememberOutcome", done.outcome);
    if json {
        let mut shown = json::of(&done);
        shown["outcome"] = outcome.into();
        return output::print_json(&shown);
    }
    if done.redacted > 0 {
        let count = done.redacted;
        output::note(&format!(
            "note: taken out before it was stored, as secrets: {count}"
        ));
    }
    output::print(&outcome)?;
    output::print(&described(&done.memory.unwrap_or_default()))
}

fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    let mut stdin = io::stdin().lock().take(TEXT_BYTES_MAX + 1);
    let read = stdin.read_to_string(&mut text);
    let read = read.map_err(CliError::io("cannot read stdin"))?;
    if read as u64 > TEXT_BYTES_MAX {
        let problem = "stdin: is longer than 1 MiB, and no fact";
        return Err(CliError::failed(Exit::Data, problem));
    }
    Ok(text)
}
