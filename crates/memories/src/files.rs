//! Long-term memory at rest: one SQLite file for each tenant, so that no question can reach
//! another tenant's memories, and whoever deletes a tenant deletes a file.

mod commands;
mod consolidation;
mod content_hash;
mod directory;
mod embedding;
mod extraction;
mod forget;
mod index;
mod names;
mod open;
mod reader;
mod recall;
mod remember;
mod requests;
mod row;
mod schema;
mod sql;
mod tenant;
pub(crate) mod time;
mod update;
mod vectors;
mod writer;

pub use commands::{Embedding, ForgetProgress, Hit, Imported, RecallEvent, RememberCommand};
pub use directory::{MemoryFiles, tenant_files};
pub use reader::MemoryReader;
pub use requests::{Due, ExtractionCursor, Lease, ManifestRows, RecallLists, Search};
pub use tenant::{TenantFile, WriteJob};
pub use writer::MemoryWriter;

/// How tenants' files are kept.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Files that stay open when nobody uses them. One that is in use is never closed, so
    /// there may be more for as long as more are used at once.
    pub files_open_max: usize,
    /// Reading connections of each file; who comes when all are taken waits for one.
    pub readers_max: usize,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            files_open_max: 64,
            readers_max: 2,
            pages_max: None,
        }
    }
}
