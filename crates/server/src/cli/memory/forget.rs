//! `memoird memory forget`: counts what would go, asks, and lets it go.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;
use memoird_proto::v1::forget_request::Target as What;
use memoird_proto::v1::{ForgetRequest, ForgetResponse, MemoryFilter, MemoryKind};
use prost_types::Timestamp;

use super::words::{self, kinds, moment};
use crate::cli::choice::one_of;
use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::output;

/// What to forget.
#[derive(Args)]
pub(crate) struct ForgetArgs {
    /// The memory of this id, with what it superseded
    #[arg(long, conflicts_with_all = ["subject", "kinds", "tags", "after", "before"])]
    id: Option<String>,
    /// All of this subject; with a filter, only what fits
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Filter: only of this kind; may be given several times
    #[arg(long = "kind", id = "kinds", value_parser = one_of(words::KINDS))]
    kinds: Vec<MemoryKind>,
    /// Filter: only those with this label; may be given several times
    #[arg(long = "tag", id = "tags", value_name = "TAG")]
    tags: Vec<String>,
    /// Filter: only those observed at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    after: Option<Timestamp>,
    /// Filter: only those observed before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    before: Option<Timestamp>,
    /// Only count
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(target: &Target, args: ForgetArgs, json: bool) -> Result<(), CliError> {
    let (dry_run, yes) = (args.dry_run, args.yes);
    let what = args.what()?;
    if dry_run || !yes {
        let counted = call(target, what.clone(), true).await?;
        if dry_run {
            return output::show(json, &counted, readable);
        }
        if !io::stdin().is_terminal() {
            let problem = "nobody can be asked here; look with --dry-run, then say --yes";
            return Err(CliError::usage(problem));
        }
        output::note("This would go for good:");
        readable(&counted).lines().for_each(output::note);
        let asked = tokio::task::spawn_blocking(is_wanted).await;
        if !asked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))? {
            output::note("nothing was forgotten");
            return Ok(());
        }
    }
    let gone = call(target, what, false).await?;
    if !gone.erased && !json {
        output::note("note: gone from every answer; the disk's pages are erased in a while");
    }
    output::show(json, &gone, readable)
}

impl ForgetArgs {
    fn what(self) -> Result<What, CliError> {
        let filters = !self.kinds.is_empty()
            || !self.tags.is_empty()
            || self.after.is_some()
            || self.before.is_some();
        match (self.id, self.subject) {
            (Some(id), _) => Ok(What::Id(id)),
            (None, Some(subject)) if !filters => Ok(What::Subject(subject)),
            (None, subject) if filters => Ok(What::Filter(MemoryFilter {
                subject: subject.unwrap_or_default(),
                kinds: kinds(self.kinds),
                tags: self.tags,
                after: self.after,
                before: self.before,
            })),
            (None, _) => Err(CliError::usage("say what: --id, --subject, or a filter")),
        }
    }
}

async fn call(target: &Target, what: What, dry_run: bool) -> Result<ForgetResponse, CliError> {
    let request = ForgetRequest {
        target: Some(what),
        dry_run,
    };
    target.done(target.memories().forget(request).await)
}

/// Asks on the terminal. Blocks until there is a line.
fn is_wanted() -> Result<bool, CliError> {
    let failed = CliError::io("cannot ask on the terminal");
    let mut stderr = io::stderr().lock();
    write!(stderr, "Forget it? [y/N] ")
        .and_then(|()| stderr.flush())
        .map_err(&failed)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn readable(counts: &ForgetResponse) -> String {
    let rows = [
        ("memories", counts.memories),
        ("superseded", counts.superseded),
        ("vectors", counts.vectors),
        ("recall events", counts.recall_events),
        ("queued embeddings", counts.queued_embeddings),
        ("cursors", counts.cursors),
    ];
    output::rows(rows.map(|(name, count)| (name, output::count(count))))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ForgetArgs,
    }

    fn what(args: &str) -> Result<What, String> {
        let line = Line::try_parse_from(["forget"].into_iter().chain(args.split_whitespace()));
        line.map_err(|error| error.to_string())?
            .args
            .what()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_forgotten_is_what_was_said() {
        assert_eq!(what("--id x"), Ok(What::Id("x".into())));
        assert_eq!(what("--subject ann"), Ok(What::Subject("ann".into())));
        let filter = |subject: &str| {
            What::Filter(MemoryFilter {
                subject: subject.into(),
                kinds: vec![3],
                tags: vec!["t".into()],
                ..MemoryFilter::default()
            })
        };
        assert_eq!(
            what("--subject ann --kind project --tag t"),
            Ok(filter("ann"))
        );
        assert_eq!(what("--kind project --tag t"), Ok(filter("")));
        assert!(what("--before 2026-01-31").is_ok());
        for bad in [
            "",
            "--yes",
            "--id x --subject ann",
            "--id x --tag t",
            "--after soon",
        ] {
            assert!(what(bad).is_err(), "{bad}");
        }
    }
}
