//! Stored form of a session's options, as set by its bot.
//!
//! A row is a version byte followed by a protobuf message. A row that does not decode counts as
//! missing.

use std::collections::BTreeMap;

use memoird_core::options::SessionOptions;
use prost::Message;

use crate::summaries::{opened, versioned};

#[derive(Clone, PartialEq, Message)]
struct OptionsRow {
    #[prost(btree_map = "string, string", tag = "1")]
    labels: BTreeMap<String, String>,
    #[prost(string, optional, tag = "2")]
    ttl_class: Option<String>,
    #[prost(bool, tag = "3")]
    keep_all: bool,
}

pub fn encode(options: &SessionOptions) -> Vec<u8> {
    let labels = options.labels.iter();
    versioned(&OptionsRow {
        labels: labels
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        ttl_class: options.ttl_class.as_deref().map(str::to_owned),
        keep_all: options.keep_all,
    })
}

/// Decodes a row. `None` if it is damaged or of an unknown version.
pub fn decode(row: &[u8]) -> Option<SessionOptions> {
    let row: OptionsRow = opened(row)?;
    let labels = row.labels.into_iter();
    Some(SessionOptions {
        labels: labels
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        ttl_class: row.ttl_class.map(Into::into),
        keep_all: row.keep_all,
    })
}
