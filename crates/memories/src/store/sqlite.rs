//! Memories in files: one SQLite file for each tenant, so that no query can reach another tenant's
//! memories, and a tenant is deleted with its file.

pub(super) mod blocks;
mod file;
mod files;
mod open;
pub(super) mod terms;

pub(super) use file::TenantFile;
pub(super) use files::MemoryFiles;
pub use files::tenant_files;
