//! Data: what is on disk or in PostgreSQL survives, moves and is erased.

mod backup;
#[cfg(feature = "postgres")]
mod chaos;
#[cfg(feature = "postgres")]
pub(crate) mod cluster;
mod crash;
mod disk;
mod durability;
mod erasure;
mod export;
#[cfg(feature = "postgres")]
mod migrate;
mod old_data;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
mod restart;
mod verify;
