//! Protobuf's JSON form of messages, by their descriptors.
//!
//! Both directions go from text to encoded message or back without a tree in between. A tree of
//! many tiny values would be much larger than the request that it comes from.

mod parse;
mod write;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::LazyLock;

use memoird_proto::DESCRIPTOR_POOL;
use memoird_proto::prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};

pub(crate) use parse::parse;
pub(crate) use write::{JsonOptions, write};

/// Package of the messages that have a JSON form of their own, such as timestamps.
const WELL_KNOWN: &str = "google.protobuf";

fn is_well_known(message: &MessageDescriptor) -> bool {
    message.package_name() == WELL_KNOWN
}

/// Whether a string contains JSON, by its option `(memoird.v1.json)`.
fn has_json(field: &FieldDescriptor) -> bool {
    static MARKED: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let Some(option) = DESCRIPTOR_POOL.get_extension_by_name("memoird.v1.json") else {
            return HashSet::new();
        };
        let fields = DESCRIPTOR_POOL
            .all_messages()
            .flat_map(|message| message.fields().collect::<Vec<_>>());
        fields
            .filter(|field| field.options().get_extension(&option).as_bool() == Some(true))
            .map(|field| field.full_name().to_owned())
            .collect()
    });
    field.kind() == Kind::String && MARKED.contains(field.full_name())
}

/// Appends JSON without the whitespace between its tokens. `json` is valid.
fn write_compact(json: &str, out: &mut Vec<u8>) {
    let (mut is_text, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        if !is_text && matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            continue;
        }
        out.push(byte);
        is_text ^= byte == b'"' && !is_escaped;
        is_escaped = is_text && byte == b'\\' && !is_escaped;
    }
}
