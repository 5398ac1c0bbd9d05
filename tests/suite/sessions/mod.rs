//! Sessions: turns, histories, lifetimes, ids and state.

mod clock;
mod contract;
mod copies;
mod histories;
mod ids;
mod lifetime;
mod listing;
mod options;
mod redact;
mod rewind;
pub(crate) mod search;
mod state;
mod watch;
