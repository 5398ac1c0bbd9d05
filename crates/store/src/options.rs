//! What a bot decided about a session, as it stands in a row: a byte that says which version of the
//! encoding it is, and a message behind it. What does not decode is as none.

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

/// The bytes of a row.
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

/// What a row says; `None` where it does not decode.
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
