//! Hooks at the end of a session, with real programs, git repositories and a web service.

mod command_line;
mod crash;
mod exec;
mod exec_failures;
mod git;
mod git_failures;
mod git_load;
mod outbox;
mod webhook;
