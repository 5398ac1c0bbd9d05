//! The command line.

mod command_line;
mod demo;
mod manual;
mod replay;
