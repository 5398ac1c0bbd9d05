//! `memoird memory reindex`: new indexes, and the embeddings that come with them.

use std::time::Duration;

use memoird_proto::v1::{GetMemoryStatsRequest, GetMemoryStatsResponse, ReindexMemoriesRequest};
use tokio::time::sleep;

use crate::cli::connect::Target;
use crate::cli::exit::{CliError, Exit};
use crate::cli::output;
use crate::cli::progress::Progress;

/// How often it is asked how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(target: &Target, json: bool) -> Result<(), CliError> {
    let request = ReindexMemoriesRequest {};
    let queued = target
        .done(target.memories().reindex_memories(request).await)?
        .queued;
    let stats = embedded(target, queued).await?;
    output::show(json, &stats, told)?;
    match stats.embedding_failed {
        0 => Ok(()),
        failed => {
            let failed = output::count(failed);
            let problem = format!("{failed} could not be embedded; the daemon's log says why");
            Err(CliError::failed(Exit::Refused, problem))
        }
    }
}

/// Waits until nothing is queued any more.
async fn embedded(target: &Target, queued: u64) -> Result<GetMemoryStatsResponse, CliError> {
    let progress = Progress::new(None);
    loop {
        let request = GetMemoryStatsRequest {};
        let stats = target.done(target.memories().get_memory_stats(request).await)?;
        // What is remembered meanwhile is queued as well.
        let waiting = stats.embedding_queued;
        if waiting == 0 {
            return Ok(stats);
        }
        progress.show(|| format!("{waiting} of {} wait to be embedded", queued.max(waiting)));
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
