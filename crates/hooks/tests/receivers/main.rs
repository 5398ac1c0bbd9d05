//! Tests of programs and webhooks. Each test has its own receiver, a shell script or a socket.

mod exec;
mod exec_ends;
mod kit;
mod payload;
mod service;
mod tls;
mod webhook;
mod webhook_failures;
