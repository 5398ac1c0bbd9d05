//! The HTTP client for the requests that memoird makes itself, to providers of models and to
//! webhooks: TLS with the system's certificates, time limits, which addresses may be
//! connected to, and what callers need of a response.

mod address;
mod client;
mod response;

pub use address::{UrlInvalid, is_private_host, is_public, parse_url};
pub use client::{ClientConfig, TlsUnavailable};
pub use response::{excerpt, retry_after, root_cause, status_text};
