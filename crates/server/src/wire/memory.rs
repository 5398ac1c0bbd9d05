//! Memories on the wire: requests are read by `from`, replies are written by `to`.

pub(crate) mod from;
pub(crate) mod to;

#[cfg(test)]
mod tests;
