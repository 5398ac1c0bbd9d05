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

#[cfg(feature = "server")]
mod context;

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
    pub use super::context::{EncodedTurns, GetContextResponse};
    pub use super::v1::*;

    include!(concat!(env!("OUT_DIR"), "/spliced/memoird.v1.rs"));
}

/// The contract's encoded `FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The contract's package: what the full names of its messages begin with.
pub const PACKAGE: &str = "memoird.v1";

/// The contract's descriptors, read once.
#[cfg(feature = "reflection")]
pub static DESCRIPTOR_POOL: std::sync::LazyLock<prost_reflect::DescriptorPool> =
    std::sync::LazyLock::new(|| {
        prost_reflect::DescriptorPool::decode(DESCRIPTORS)
            .expect("the descriptors are made when this crate is built")
    });

#[cfg(feature = "reflection")]
pub use prost_reflect;
