//! `memoird memory reindex`: new indexes, and the embeddings that come with them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use memoird_proto::v1::{GetMemoryStatsRequest, GetMemoryStatsResponse, ReindexMemoriesRequest};
use serde_json::json;
use tokio::time::sleep;

use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::output;

/// How often it is asked how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(target: &Target, json: bool) -> Result<(), CliError> {
    let reply = target
        .memories()
        .reindex_memories(ReindexMemoriesRequest {})
        .await;
    let queued = reply.map_err(|e| target.explain(e))?.into_inner().queued;
    let bar = progress_bar(queued);
    let stats = embedded(target, &bar).await;
    bar.finish_and_clear();
    let stats = stats?;
    if json {
        output::print_json(&json!({
            "memories": stats.memories,
            "embedding_model": stats.embedding_model,
            "embedded": stats.embedded,
            "embedding_failed": stats.embedding_failed,
        }))?;
    } else {
        output::print(&told(&stats))?;
    }
    match stats.embedding_failed {
        0 => Ok(()),
        failed => Err(CliError::Refused {
            message: format!(
                "{} could not be embedded; the daemon's log says why",
                output::count(failed)
            ),
            reason: None,
        }),
    }
}

/// Waits until nothing is queued any more.
async fn embedded(target: &Target, bar: &ProgressBar) -> Result<GetMemoryStatsResponse, CliError> {
    loop {
        let reply = target
            .memories()
            .get_memory_stats(GetMemoryStatsRequest {})
            .await;
        let stats = reply.map_err(|e| target.explain(e))?.into_inner();
        if stats.embedding_queued == 0 {
            return Ok(stats);
        }
        // What is remembered meanwhile is queued as well.
        bar.set_length(bar.length().unwrap_or(0).max(stats.embedding_queued));
        bar.set_position(bar.length().unwrap_or(0) - stats.embedding_queued);
        sleep(LOOK_EVERY).await;
    }
}

fn told(stats: &GetMemoryStatsResponse) -> String {
    let memories = output::count(stats.memories + stats.superseded);
    match &*stats.embedding_model {
        "" => format!("indexed {memories} by words; no embedder is configured"),
        model => format!(
            "indexed {memories} by words, {} by meaning ({})",
            output::count(stats.embedded),
            output::printable(model)
        ),
    }
}

/// Invisible unless stderr is a terminal.
fn progress_bar(queued: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} embedded  {elapsed_precise}");
    ProgressBar::new(queued).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
