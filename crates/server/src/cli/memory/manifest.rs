//! `memoird memory manifest`: what an agent is told of a subject.

use clap::Args;
use memoird_proto::v1::GetManifestRequest;
use serde_json::json;

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
    let ManifestArgs {
        subject,
        max_lines,
        max_bytes,
    } = args;
    let request = GetManifestRequest {
        subject,
        max_lines,
        max_bytes,
    };
    let reply = target
        .memories()
        .get_manifest(request)
        .await
        .map_err(|e| target.explain(e))?;
    let manifest = reply.into_inner();
    if json {
        return output::print_json(&json!({
            "text": manifest.text,
            "lines": manifest.lines,
            "truncated": manifest.truncated,
        }));
    }
    manifest
        .text
        .lines()
        .try_for_each(|line| output::print(&output::printable(line)))
}
