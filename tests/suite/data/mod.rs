//! Durability, crashes, backups, migrations, erasure, and journals in PostgreSQL.

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
mod repeats;
mod restart;
#[cfg(feature = "postgres")]
mod same_answers;
mod verify;
