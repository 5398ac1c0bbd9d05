//! Compaction end to end.
//!
//! Covers every kind of summarizer, failures, crashes, commands, and a daemon without
//! configuration.

mod bot;
mod breakers;
mod caps;
mod command_line;
mod commands;
mod counting;
mod crashes;
mod ending;
mod provider_failures;
mod providers;
mod reloading;
mod secrets;
mod unconfigured;
