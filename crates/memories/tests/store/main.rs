//! Guarantees of a tenant's memories, and failures that their file must survive.
//!
//! Tests use the public API, and read the file itself if they are about bytes on disk.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of a reader of one lifetime is none of a reader of any"
)]

mod consolidation;
mod damage;
mod documents;
mod embedding;
mod extraction;
mod files;
mod forget;
mod fuzz;
mod kit;
mod languages;
mod model;
mod named;
mod older;
mod place;
mod recall;
mod remember;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
mod traces;
mod update;
