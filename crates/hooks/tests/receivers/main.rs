//! Programs and web services as hooks, good ones and bad ones: each test has a receiver of
//! its own, a shell script or a socket.

mod exec;
mod exec_ends;
mod kit;
mod payload;
mod service;
mod tls;
mod webhook;
mod webhook_failures;
