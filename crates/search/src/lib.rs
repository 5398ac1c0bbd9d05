//! Search: full text over what was said, ended generations included until retention.
//!
//! The index is a file of its own, made of the journal and nothing else. A worker follows the
//! journal and keeps it up; where it is lost or damaged it is built anew. What a search shows
//! is read from the journal, by the tenant's own sessions: the index only says where to look.

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

use memoird_store::locked;

pub use config::SearchConfig;
pub use counters::SearchSnapshot;
pub use error::{IndexError, SearchError};
pub use request::{Hit, PageToken, SearchPage, SearchRequest};
pub use search::{Search, index_file};
