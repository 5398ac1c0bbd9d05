//! Full-text search over transcripts, including ended generations until their retention is over.
//!
//! The store owns the index ([`memoird_store::SearchIndex`]), and a worker updates it. The index only
//! locates turns: hits are read from the journal, through the tenant's own sessions.

mod config;
mod counters;
mod error;
mod indexer;
mod request;
mod search;
mod session;
mod words;

use memoird_store::lock;

pub use config::SearchConfig;
pub use counters::SearchSnapshot;
pub use error::SearchError;
pub use request::{Hit, PageToken, SearchPage, SearchRequest};
pub use search::Search;
