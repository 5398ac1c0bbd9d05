//! End-to-end tests with the real binary on free ports, and tests of the repository itself.

mod harness;

mod cli;
mod compaction;
mod data;
mod hooks;
mod memories;
mod repo;
mod server;
mod sessions;
mod windows;
