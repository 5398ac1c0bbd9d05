//! Long-term memory at rest: one SQLite file for each tenant, so that no query can reach another
//! tenant's memories, and a tenant is deleted with its file.

mod conflicts;
mod consolidation;
mod directory;
mod documents;
mod embedding;
mod extraction;
mod forget;
mod index;
mod open;
mod places;
mod reader;
mod recall;
mod remember;
mod requests;
mod row;
mod sql;
mod tenant;
pub(crate) mod time;
mod update;
mod vectors;
mod writer;

use memoird_store::DataKey;

pub use directory::{MemoryFiles, tenant_files};
pub use embedding::CLIENTS;
pub use index::Touch;
pub(crate) use index::is_scattered;
pub use reader::MemoryReader;
pub use remember::Prepared;
pub use requests::{
    Due, Embedding, ExtractionCursor, ForgetProgress, Hit, Imported, Lease, ManifestRows,
    RecallEvent, RecallLists, RememberCommand, Scores,
};
pub use tenant::{TenantFile, WriteJob};
pub use writer::MemoryWriter;

/// How tenants' files are kept.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Unused files that stay open. One that is in use is never closed, so
    /// there may be more for as long as more are used at once.
    pub files_open_max: usize,
    /// Reading connections of each file; when all are taken, a call waits for one.
    pub readers_max: usize,
    /// Pages of 4 KiB after which no more are added: SQLite says that the disk is
    /// full. For tests; `None` otherwise.
    pub pages_max: Option<u32>,
    /// What the files are encrypted with; `None`: nothing.
    pub key: Option<DataKey>,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            files_open_max: 64,
            readers_max: 2,
            pages_max: None,
            key: None,
        }
    }
}
