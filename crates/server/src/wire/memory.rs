//! Memories on the wire: `from` parses requests, and `to` builds replies.

pub(crate) mod from;
pub(crate) mod to;

#[cfg(test)]
mod tests;
