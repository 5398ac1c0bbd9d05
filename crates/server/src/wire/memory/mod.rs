//! Memories on the wire: what a bot asks of them, and what it is told.

pub(crate) mod from;
pub(crate) mod to;
mod whole;

#[cfg(test)]
mod tests;
