//! Compaction end to end.
//!
//! Covers every kind of summarizer, failures, crashes, commands, and a daemon without
//! configuration.

mod bad_days;
mod bot;
mod breakers;
mod caps;
mod command_line;
mod commands;
mod counting;
mod crashes;
mod ending;
mod good_days;
mod reloading;
mod secrets;
mod unconfigured;
