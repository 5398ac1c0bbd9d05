//! `memoird memory manifest`: what an agent is told of a subject.

use clap::Args;
use memoird_proto::v1::GetManifestRequest;

use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::output;

/// Whose manifest, and how much of it.
#[derive(Args)]
pub(crate) struct ManifestArgs {
    /// Whose
    subject: String,
    /// At most so many lines [default: 200, which is the most]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_lines: u32,
    /// At most so many bytes [default: 25,000, which is the most]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_bytes: u32,
}

pub(super) async fn run(target: &Target, args: ManifestArgs, json: bool) -> Result<(), CliError> {
    let request = GetManifestRequest {
        subject: args.subject,
        max_lines: args.max_lines,
        max_bytes: args.max_bytes,
    };
    let manifest = target.done(target.memories().get_manifest(request).await)?;
    output::show(json, &manifest, |manifest| {
        let lines = manifest.text.lines().map(output::printable);
        lines.collect::<Vec<_>>().join("\n")
    })
}
