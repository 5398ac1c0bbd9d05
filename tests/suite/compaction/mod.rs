//! Compaction as bots and operators meet it: summaries by every kind of summarizer, good
//! ones and bad ones, across crashes, by command, and with no configuration at all.

mod bad_days;
mod bot;
mod breakers;
mod command_line;
mod commands;
mod counting;
mod crashes;
mod ending;
mod good_days;
mod reloading;
mod secrets;
mod unconfigured;
