//! Tests over a real PostgreSQL with pgvector. Skipped with a message if there is no server.
//!
//! They are the tests of `tests/store`, and tests of several daemons that share a database.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on may panic in its helpers, too"
)]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "a method of a reader of one lifetime is none of a reader of any"
)]

#[path = "../store/consolidation.rs"]
mod consolidation;
#[path = "../store/damage.rs"]
mod damage;
#[path = "../store/documents.rs"]
mod documents;
#[path = "../store/embedding.rs"]
mod embedding;
#[path = "../store/extraction.rs"]
mod extraction;
#[path = "../store/forget.rs"]
mod forget;
mod interleavings;
#[path = "../store/kit.rs"]
mod kit;
#[path = "../store/languages.rs"]
mod languages;
#[path = "../store/model.rs"]
mod model;
#[path = "../store/named.rs"]
mod named;
mod older;
mod place;
#[path = "../store/recall.rs"]
mod recall;
#[path = "../store/remember.rs"]
mod remember;
#[path = "../../../../tests/suite/harness/seeds.rs"]
mod seeds;
#[path = "../../../postgres/tests/conformance/start.rs"]
mod start;
mod together;
mod transfer;
#[path = "../store/update.rs"]
mod update;
mod without_vectors;
