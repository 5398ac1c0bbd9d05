//! End-to-end tests with the real binary on free ports, and tests of the repository itself.

mod harness;

mod admin;
mod backup;
#[cfg(feature = "postgres")]
mod chaos;
mod cli_hooks;
mod client_fields;
mod clock;
#[cfg(feature = "postgres")]
mod cluster;
mod command_line;
mod compaction;
mod contract;
mod copies;
mod crash;
mod demo;
mod deploy;
mod disk;
mod documents;
mod durability;
mod erasure;
mod export;
mod flood;
mod histories;
mod hooks;
mod ids;
mod input;
mod keys;
mod layering;
mod lifetime;
mod listing;
mod manual;
mod memories;
#[cfg(feature = "postgres")]
mod migrate;
mod notify;
mod old_data;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod rates;
mod redact;
mod refused_fields;
mod reload;
mod reload_keys;
mod reload_traffic;
mod replay;
mod restart;
mod revocation;
mod rewind;
mod search;
mod secured;
mod start;
mod state;
mod tenants;
mod tidiness;
mod unauthenticated;
mod verify;
mod watch;
mod windows;
