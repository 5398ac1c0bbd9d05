//! `memoird`: a session daemon for chat bots.

mod admin;
mod admission;
mod app;
mod auth;
mod blocks;
mod call_metrics;
mod cli;
mod cluster;
mod config;
mod connections;
mod data_files;
mod exit;
mod health;
mod heavy;
mod journal_location;
mod keyring;
mod learnt_charges;
mod logging;
mod metrics;
mod nonce_secret;
mod notify;
mod process;
mod rates;
mod reload;
mod reply_limit;
mod routes;
mod rpc;
mod runtime;
mod serve;
mod services;
mod tls;
mod wire;

use std::process::ExitCode;

/// All threads allocate and free turns of all sizes, which mimalloc handles well.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    exit::report(&cli::run(cli::parse()))
}
