//! `memoird sessions erase` and `erase-subject`: permanently remove data.

use std::time::Duration;

use clap::Args;
use memoird_proto::v1::{EraseSessionRequest, EraseSubjectRequest, Erasure, GetErasureRequest};
use tokio::time::sleep;

use super::connect::Target;
use super::list::{self, Count, ListColumn};
use super::output;
use super::progress::Progress;
use crate::exit::CliError;

/// Interval for polling the erasure job.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub struct EraseArgs {
    /// Session id, chosen by the bot
    id: String,
    /// Generation to erase [default: all generations of the session]
    #[arg(long, value_name = "ULID")]
    generation: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
pub struct EraseSubjectArgs {
    /// Id of the end user
    subject: String,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn session(target: &Target, args: EraseArgs) -> Result<(), CliError> {
    let id = output::printable(&args.id);
    let what = match &args.generation {
        Some(generation) => format!("generation {generation} of session {id}"),
        None => format!("session {id} with all its generations"),
    };
    if !may_go(&what, args.yes).await? {
        return Ok(());
    }
    let request = EraseSessionRequest {
        session_id: args.id,
        generation: args.generation.unwrap_or_default(),
    };
    let begun = target.call(&request).await?;
    wait(target, begun.erasure).await
}

pub(crate) async fn subject(target: &Target, args: EraseSubjectArgs) -> Result<(), CliError> {
    let subject = output::printable(&args.subject);
    let what = format!("all sessions and memories of subject {subject}");
    if !may_go(&what, args.yes).await? {
        return Ok(());
    }
    let request = EraseSubjectRequest {
        subject: args.subject,
    };
    let begun = target.call(&request).await?;
    wait(target, begun.erasure).await
}

async fn may_go(what: &str, yes: bool) -> Result<bool, CliError> {
    let note = format!("This would go for good, and no hook is called for it: {what}");
    output::confirm(yes, &note, "Erase it?", "use --yes").await
}

/// Waits until a job is done and prints its result. Interrupting the wait does not stop the job.
async fn wait(target: &Target, begun: Option<Erasure>) -> Result<(), CliError> {
    let Erasure { id, .. } = begun.unwrap_or_default();
    let progress = Progress::new(None);
    let erasure = loop {
        let request = GetErasureRequest { id: id.clone() };
        let erasure = target.call(&request).await?.erasure.unwrap_or_default();
        if erasure.done {
            break erasure;
        }
        let turns = erasure.erased.map_or(0, |erased| erased.turns);
        progress.show(|| {
            let waits_for = match erasure.waits_for.as_str() {
                "" => String::new(),
                what => format!("; {}", output::printable(what)),
            };
            let turns = output::count(turns);
            format!("job {id}: {turns} turns erased{waits_for}")
        });
        sleep(POLL_INTERVAL).await;
    };
    drop(progress);
    output::show(target.json, &erasure, described)
}

const ERASED: &[ListColumn] = &[
    ("turns", "erased.turns", Count),
    ("summaries", "erased.summaries", Count),
    ("idempotency keys", "erased.keys", Count),
    ("memories", "erased.memories", Count),
    ("owed deliveries", "erased.deliveries", Count),
    ("commits", "erased.commits", Count),
];

fn described(erasure: &Erasure) -> String {
    let counts = list::record(ERASED, erasure);
    if erasure.outside.is_empty() {
        return counts;
    }
    let lines: Vec<String> = erasure
        .outside
        .iter()
        .map(|line| format!("\n  {}", output::printable(line)))
        .collect();
    format!(
        "{counts}\nout of reach, to be erased by hand:{}",
        lines.concat()
    )
}
