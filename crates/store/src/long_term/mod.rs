//! Long-term memory at rest: one SQLite file for each tenant, so that no question can reach
//! another tenant's memories, and whoever deletes a tenant deletes a file.

mod asks;
mod dream;
mod embedding;
mod extraction;
mod forget;
mod index;
mod names;
mod open;
mod orders;
mod reader;
mod recall;
mod remember;
mod row;
mod schema;
mod store;
mod tenant;
mod time;
mod update;
mod vectors;
mod words;
mod writer;

pub use asks::{
    Counts, DreamRow, Due, EmbeddingCounts, ExtractionCursor, ForgetCounts, ForgetFilter,
    ForgetJob, Lease, ListFilter, ManifestRows, RecallAsk, RecallLists, Scored,
};
pub use orders::{
    Embedding, ForgetProgress, Hit, Imported, LeaseAsk, RecallEvent, Remembered, Remembering,
};
pub use reader::MemoryReader;
pub use store::LongTermStore;
pub use tenant::{TenantMemories, WriteJob};
pub use writer::MemoryWriter;

/// How tenants' files are kept.
#[derive(Clone, Debug)]
pub struct LongTermOptions {
    /// Files that stay open when nobody uses them. One that is in use is never closed, so
    /// there may be more for as long as more are used at once.
    pub files_open_max: usize,
    /// Reading connections of each file; who comes when all are taken waits for one.
    pub readers_max: usize,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
}

impl Default for LongTermOptions {
    fn default() -> Self {
        Self {
            files_open_max: 64,
            readers_max: 2,
            pages_max: None,
        }
    }
}
