//! `memoird`: a session daemon for chat bots.

mod admin;
mod allocator;
mod app;
mod blocks;
mod cli;
mod cluster;
mod config;
mod connect;
mod connections;
mod conversations;
mod data_files;
mod exit;
mod health;
mod heavy;
mod journal_location;
mod json;
mod keyring;
mod layers;
mod learnt_charges;
mod logging;
mod metrics;
mod nonce_secret;
mod notify;
mod process;
mod reload;
mod request_codec;
mod rpc;
mod runtime;
mod serve;
mod services;
mod tls;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(&cli::run(cli::parse()))
}
