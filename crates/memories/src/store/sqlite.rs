//! Memories in files.
//!
//! Each tenant has a SQLite file of its own, so that no query can reach another tenant's memories,
//! and deleting the file deletes the tenant.

pub(super) mod blocks;
mod file;
mod files;
mod open;
pub(super) mod terms;

pub(super) use file::TenantFile;
pub(super) use files::MemoryFiles;
pub use files::tenant_files;
