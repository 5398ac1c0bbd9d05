//! Full-text search over transcripts, including ended generations until their retention is over.
//!
//! The index is a separate file derived only from the journal. A worker follows the journal and
//! updates it. A lost or damaged index is rebuilt. The index only locates turns: hits are read from
//! the journal, through the tenant's own sessions.

mod config;
mod counters;
mod erase;
mod error;
mod follower;
mod index;
mod request;
mod search;
mod session;
mod turn_text;
mod words;

use memoird_store::lock;

pub use config::SearchConfig;
pub use counters::SearchSnapshot;
pub use error::{IndexError, SearchError};
pub use request::{Hit, PageToken, SearchPage, SearchRequest};
pub use search::{Search, index_file};
