//! Builds HTTP clients without redirects, retries, proxies, cookies and compression.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Client, retry};
use rustls::crypto::ring;
use rustls::{RootCertStore, client};
use rustls_platform_verifier::BuilderVerifierExt;
use thiserror::Error;

use crate::address::PublicResolver;

/// Maximum number of idle connections, and how long they are kept.
const IDLE_CONNECTIONS_MAX: usize = 4;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
const USER_AGENT_VALUE: &str = concat!("memoird/", env!("CARGO_PKG_VERSION"));

/// Connection settings of a client, and headers for all requests.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Headers for all requests.
    ///
    /// `content-type: application/json` and `user-agent` are added if missing.
    /// defaults.
    pub headers: HeaderMap,
    /// Timeout for name resolution, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Whether the client needs TLS. If not, it works on a machine without certificates.
    pub is_https: bool,
    /// Whether names may resolve to addresses outside the public internet.
    pub allow_private: bool,
}

/// Certificates cannot be verified on this machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "TLS is unavailable: {problem}; check that the system's certificates (ca-certificates) are \
     installed"
)]
pub struct TlsUnavailable {
    /// The library's message.
    pub problem: String,
}

impl ClientConfig {
    /// Builds the client. Nothing is sent yet.
    ///
    /// # Errors
    /// [`TlsUnavailable`].
    pub fn build(self) -> Result<Client, TlsUnavailable> {
        let mut headers = self.headers;
        headers
            .entry(CONTENT_TYPE)
            .or_insert(HeaderValue::from_static("application/json"));
        headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(USER_AGENT_VALUE));
        let mut client = Client::builder()
            .tls_backend_preconfigured(tls(self.is_https).map_err(unavailable)?)
            .default_headers(headers)
            .connect_timeout(self.connect_timeout)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .pool_idle_timeout(IDLE_TIMEOUT)
            // Callers have their own rules for both, and a key must not be sent to another host.
            .redirect(Policy::none())
            .retry(retry::never())
            .referer(false)
            .no_proxy();
        if !self.allow_private {
            client = client.dns_resolver(Arc::new(PublicResolver));
        }
        client.build().map_err(unavailable)
    }
}

/// TLS with the system's trust store.
fn tls(is_https: bool) -> Result<rustls::ClientConfig, rustls::Error> {
    let builder: rustls::ConfigBuilder<rustls::ClientConfig, _> =
        rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?;
    let config: rustls::ConfigBuilder<rustls::ClientConfig, client::WantsClientCert> = if is_https {
        builder.with_platform_verifier()?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(config.with_no_client_auth())
}

fn unavailable(error: impl std::error::Error) -> TlsUnavailable {
    TlsUnavailable {
        problem: error.to_string(),
    }
}
