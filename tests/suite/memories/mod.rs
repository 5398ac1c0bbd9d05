//! Long-term memory end to end.
//!
//! Covers every rpc of MemoryService, windows, the command line, and crashes.

mod command_line;
mod descriptors;
mod disk;
mod documents;
mod dreaming;
mod embedding;
mod erasing;
mod external_keys;
mod extraction;
mod extraction_failures;
mod forgetting;
mod learning;
mod manifests;
mod outcomes;
mod recalling;
mod refusals;
mod reranking;
mod restarts;
mod secrets;
mod sources;
mod subjects;
mod tenants;
mod windows;
