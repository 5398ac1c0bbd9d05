//! Shared helpers: daemons, clients, turns, waiting, and checks of errors.

mod binary;
mod client;
mod daemon;
mod deliveries;
mod embeddings;
mod extraction_provider;
mod faketime;
mod http1;
mod http2;
mod memories;
mod namespaces;
mod raw;
mod refusal;
mod secured;
mod seed;
mod seeds;
mod service;
mod setup;
mod skip;
mod summaries;
mod turns;
mod wait;
mod watcher;

pub(crate) use binary::{Outcome, ask_as, binary, fails, run};
pub(crate) use client::{
    Admin, Documents, Memories, Sessions, channel, http_get, narrow_sessions, reload, stats,
    tenant, try_reload,
};
pub(crate) use daemon::Daemon;
#[cfg(feature = "postgres")]
pub(crate) use deliveries::delivered_before_kill;
pub(crate) use deliveries::{
    RECORDING_HOOK, all_delivered, delivered, deliveries, documents, each_once, end, field, fsck,
    git, in_state,
};
pub(crate) use embeddings::Embeddings;
pub(crate) use extraction_provider::{ExtractionProvider, ExtractionReply};
pub(crate) use faketime::Clock;
pub(crate) use http1::{Http1, HttpReply};
pub(crate) use http2::{Http2, UnreadHttp2, closed, connect_from, framed, many_calls};
#[cfg(feature = "postgres")]
pub(crate) use memories::memories_at;
pub(crate) use memories::{
    all_embedded, contents, fact, files_with, manifest, memories_of, memory_stats, query_of,
    recall, recalled, remember, remember_new,
};
pub(crate) use namespaces::Namespace;
#[cfg(feature = "postgres")]
pub(crate) use raw::raw_call_with_key;
pub(crate) use raw::{SlowCall, SlowReader, raw_call};
pub(crate) use refusal::{has_field, refused, refused_code, refused_field};
pub(crate) use secured::{Authority, sessions_at_socket, sessions_by_tls, tls_stream};
pub(crate) use seed::Seed;
pub(crate) use seeds::{seeds, seeds_factor};
pub(crate) use service::{Answer, Posted, Service, read as read_post};
pub(crate) use setup::Setup;
pub(crate) use skip::skip;
pub(crate) use summaries::{Summaries, SummaryReply, Wire};
pub(crate) use turns::{
    append, assistant, journal, keyed, live, say, text_of, tool_results, tool_uses, turn, user,
    without_nonce,
};
pub(crate) use wait::{eventually, wall_ms};
pub(crate) use watcher::{ALL, Events, detail};
