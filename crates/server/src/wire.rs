//! The wire: protocol types come in by `from` and go out by `to`; nothing further in
//! knows them. Errors become status codes in `status`, and nowhere else.

pub(crate) mod compaction;
pub(crate) mod context;
pub(crate) mod document;
pub(crate) mod erasure;
pub(crate) mod fields;
pub(crate) mod from;
pub(crate) mod history;
pub(crate) mod memory;
pub(crate) mod recall_tool;
pub(crate) mod search;
pub(crate) mod status;
pub(crate) mod to;

/// A value as text; empty where there is none, as the contract has it.
fn text_or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}
