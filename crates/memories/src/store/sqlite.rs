//! Memories in files.
//!
//! Each tenant has a SQLite file of its own, so that no query can reach another tenant's memories,
//! and deleting the file deletes the tenant.

mod blocks;
mod dialect;
mod file;
mod files;
mod open;
mod terms;

pub use file::READERS_KEPT;
pub(super) use files::MemoryFiles;
pub use files::{FilesOptions, tenant_files};
pub use open::schema_of_version;
pub(super) use open::{empty_schema, has_checksums};
