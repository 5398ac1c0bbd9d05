//! Converts between protocol types and those of the inner crates, which do not know the protocol.
//!
//! `from` parses requests, and `to` builds replies. `status` converts errors of the inner crates to
//! refusals, which become gRPC statuses.

pub(crate) mod compaction;
pub(crate) mod context;
pub(crate) mod document;
pub(crate) mod erasure;
pub(crate) mod event;
pub(crate) mod from;
pub(crate) mod history;
pub(crate) mod memory;
pub(crate) mod recall_tool;
pub(crate) mod refusal;
pub(crate) mod search;
pub(crate) mod session_token;
pub(crate) mod status;
pub(crate) mod to;

/// Maximum size in bytes of a page of turns, hits, memories or sessions, and roughly of a recall.
///
/// Clients accept messages of 4 MiB by default.
pub(crate) const PAGE_BYTES_MAX: usize = 2 << 20;

/// Formats a value; empty for `None`, as in the API.
fn text_or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
