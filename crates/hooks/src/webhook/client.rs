//! The HTTP client of one webhook, without anything that it does not need.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING, USER_AGENT,
};
use reqwest::redirect::Policy;
use reqwest::{Client, retry};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::address::PublicResolver;
use super::{ID, SIGNATURE, TIMESTAMP, WebhookConfig, WebhookError};

/// Connections that are kept for the next call, and how long.
const IDLE_MAX: usize = 4;
const IDLE_PAUSE: Duration = Duration::from_secs(30);
const NAME: &str = concat!("memoird/", env!("CARGO_PKG_VERSION"));

/// # Errors
/// [`WebhookError`] when a header or the machine's TLS does not do.
pub(super) fn build(
    config: &WebhookConfig,
    more_headers: &[(String, String)],
    is_https: bool,
) -> Result<Client, WebhookError> {
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls(is_https).map_err(no_tls)?)
        .default_headers(headers(more_headers)?)
        .connect_timeout(config.connect_timeout)
        .pool_max_idle_per_host(IDLE_MAX)
        .pool_idle_timeout(IDLE_PAUSE)
        // Redirects are followed, and tries repeated, by rules of our own.
        .redirect(Policy::none())
        .retry(retry::never())
        .referer(false)
        .no_proxy();
    if !config.allow_private {
        client = client.dns_resolver(Arc::new(PublicResolver));
    }
    client.build().map_err(no_tls)
}

/// A webhook without TLS runs on a machine without certificates, too; none can become one
/// with TLS, since redirects keep the scheme.
fn tls(is_https: bool) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(match is_https {
        true => config.with_platform_verifier()?.with_no_client_auth(),
        false => config
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth(),
    })
}

fn no_tls(error: impl std::error::Error) -> WebhookError {
    WebhookError::TlsUnavailable {
        problem: error.to_string(),
    }
}

fn headers(pairs: &[(String, String)]) -> Result<HeaderMap, WebhookError> {
    let ours = [
        ID,
        TIMESTAMP,
        SIGNATURE,
        CONTENT_TYPE,
        CONTENT_LENGTH,
        TRANSFER_ENCODING,
        CONNECTION,
        HOST,
    ];
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
    for (name, value) in pairs {
        let invalid = || WebhookError::HeaderInvalid { name: name.clone() };
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        if ours.contains(&header) {
            return Err(WebhookError::HeaderReserved { name: name.clone() });
        }
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}
