//! Hooks at the end of a session, with real programs, git repositories and a web service.

mod crash;
mod exec;
mod exec_bad_days;
mod git;
mod git_bad_days;
mod git_many;
mod outbox;
mod webhook;
