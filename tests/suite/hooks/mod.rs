//! What is done when a session ends, by real programs, real repositories and a real web
//! service.

mod crash;
mod exec;
mod exec_bad_days;
mod git;
mod git_bad_days;
mod git_many;
mod outbox;
mod webhook;
