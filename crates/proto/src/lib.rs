//! Bindings of the contract in `proto/memoird/v1`, generated when this crate is built.
//!
//! Clients use [`v1`]. The server implements the services of [`spliced`], whose
//! replies carry turns as the bytes they were stored as; on the wire both are the same.

/// The contract as it is written: every message, and a client of every service.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic
)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/plain/memoird.v1.rs"));
}

/// The contract as the server speaks it: a trait of every service, and the same
/// messages but for replies whose turns are bytes that were encoded when they arrived.
#[cfg(feature = "server")]
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic
)]
pub mod spliced {
    pub use super::v1::*;

    include!(concat!(env!("OUT_DIR"), "/spliced/memoird.v1.rs"));
}

/// The contract's encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
