//! The HTTP client for requests to model providers and webhooks.
//!
//! It has TLS with the system's certificates, timeouts, address restrictions, and helpers for
//! reading responses.

mod address;
mod client;
mod response;

pub use address::{UrlInvalid, is_private_host, is_public, parse_url};
pub use client::{ClientConfig, TlsUnavailable};
pub use response::{excerpt, retry_after, root_cause, status_text};
