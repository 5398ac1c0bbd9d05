//! Counts of a tenant's memories, and the rebuild of its indexes.

use memoird_engine::Tenant;

use super::{Memories, Touch, Unfinished};
use crate::error::MemoryError;
use crate::files::MemoryReader;
use crate::requests::MemoryStats;

impl Memories {
    /// Counts.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub async fn stats(&self, tenant: &Tenant) -> Result<MemoryStats, MemoryError> {
        let model = self.embedding_model();
        let now = self.now();
        let wanted = model.clone();
        let read = move |reader: &MemoryReader<'_>| {
            let counts = reader.counts(now)?;
            let wanted = wanted.as_deref().unwrap_or_default();
            Ok((counts, reader.embedding_counts(wanted, now)?))
        };
        let (counts, vectors) = self.read(&tenant.id, read).await?;
        Ok(MemoryStats {
            memories: counts.memories - counts.superseded - counts.expired,
            superseded: counts.superseded,
            subjects: counts.subjects,
            recall_events: counts.recall_events,
            embedding_model: model,
            embedded: vectors.embedded,
            embedding_queued: vectors.queued,
            embedding_failed: vectors.failed,
            file_bytes: counts.file_bytes,
        })
    }

    /// Builds the indexes anew, in the background; says how many wait for an embedding.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub async fn reindex(&self, tenant: &Tenant) -> Result<u64, MemoryError> {
        // Not done here: dropped, also with the call, it is left to the maintenance worker.
        let _unfinished = Unfinished::new(self, &tenant.id, None);
        self.write(&tenant.id, |writer| {
            writer.reindex_begin()?;
            Ok(((), Touch::Nothing))
        })
        .await?;
        let stats = self.stats(tenant).await?;
        Ok(if stats.embedding_model.is_some() {
            stats.memories
        } else {
            0
        })
    }

    fn embedding_model(&self) -> Option<String> {
        let config = self.config();
        let embedder = config.embedder.as_ref()?;
        Some(embedder.model().to_owned())
    }
}
