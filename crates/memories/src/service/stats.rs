//! Counts of a tenant's memories, and the rebuild of its indexes.

use memoird_engine::Tenant;

use super::{Memories, Unfinished};
use crate::error::MemoryError;
use crate::files::MemoryReader;
use crate::requests::MemoryStats;

impl Memories {
    /// Counts.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub async fn stats(&self, tenant: &Tenant) -> Result<MemoryStats, MemoryError> {
        let (config, now) = (self.config(), self.now());
        let read = move |reader: &MemoryReader<'_>| {
            let model = config.embedder.as_ref().map(|embedder| embedder.model());
            reader.stats(model, now)
        };
        self.read(&tenant.id, read).await
    }

    /// Builds the indexes anew, in the background; says how many wait for an embedding.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub async fn reindex(&self, tenant: &Tenant) -> Result<u64, MemoryError> {
        // Not done here: dropped, also with the call, it is left to the maintenance worker.
        let _unfinished = Unfinished::new(self, &tenant.id, None);
        self.write(&tenant.id, |writer| writer.reindex_begin())
            .await?;
        let stats = self.stats(tenant).await?;
        Ok(if stats.embedding_model.is_some() {
            stats.memories
        } else {
            0
        })
    }
}
