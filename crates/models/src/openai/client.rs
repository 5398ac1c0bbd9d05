//! The HTTP client of one provider, without anything that it does not need.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Client, Url, retry};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::ApiKey;
use crate::error::ModelError;

/// Connections that are kept for the next call, and how long.
const IDLE_MAX: usize = 4;
const IDLE_PAUSE: Duration = Duration::from_secs(30);
/// For finding the address, connecting and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NAME: &str = concat!("memoird/", env!("CARGO_PKG_VERSION"));
/// Bytes of an address in the configuration.
const URL_BYTES_MAX: usize = 1_024;

/// # Errors
/// [`ModelError`] when the machine's TLS does not do.
pub(super) fn build(url: &Url, api_key: Option<&ApiKey>) -> Result<Client, ModelError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
    headers.extend(api_key.map(|key| (AUTHORIZATION, key.bearer())));
    Client::builder()
        .tls_backend_preconfigured(tls(url.scheme() == "https").map_err(no_tls)?)
        .default_headers(headers)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_MAX)
        .pool_idle_timeout(IDLE_PAUSE)
        // Tries are repeated by rules of our own, and a key is not sent on elsewhere.
        .redirect(Policy::none())
        .retry(retry::never())
        .referer(false)
        .no_proxy()
        .build()
        .map_err(no_tls)
}

/// A provider without TLS runs on a machine without certificates, too.
fn tls(is_https: bool) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(match is_https {
        true => config.with_platform_verifier()?.with_no_client_auth(),
        false => config.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    })
}

fn no_tls(error: impl std::error::Error) -> ModelError {
    ModelError::TlsUnavailable { problem: error.to_string() }
}

/// Where embeddings are asked for.
///
/// # Errors
/// [`ModelError`] for what cannot be a provider's address.
pub(super) fn endpoint(base_url: &str) -> Result<Url, ModelError> {
    let invalid = |problem: String| ModelError::BaseUrlInvalid { problem };
    if base_url.len() > URL_BYTES_MAX {
        return Err(invalid(format!("it has more than {URL_BYTES_MAX} bytes")));
    }
    let mut url = Url::parse(base_url).map_err(|error| invalid(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(format!("it begins with {}; it takes http and https", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("it has a user or a password; use api_key".to_owned()));
    }
    let path = format!("{}/embeddings", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

/// Host, port and path of the base of an endpoint. A token may stand in the query.
pub(super) fn shown(endpoint: &Url) -> String {
    let host = endpoint.host_str().unwrap_or_default();
    let port = endpoint.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = endpoint.path().trim_end_matches("/embeddings");
    format!("{host}{port}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_stands_below_the_base() {
        for (base, expected, seen) in [
            (
                "https://api.openai.com/v1",
                "https://api.openai.com/v1/embeddings",
                "api.openai.com/v1",
            ),
            (
                "http://127.0.0.1:11434/v1/",
                "http://127.0.0.1:11434/v1/embeddings",
                "127.0.0.1:11434/v1",
            ),
            ("http://tei", "http://tei/embeddings", "tei"),
            (
                "https://a.example/v1?key=s#x",
                "https://a.example/v1/embeddings?key=s",
                "a.example/v1",
            ),
        ] {
            let url = endpoint(base).expect(base);
            assert_eq!((url.as_str(), &*shown(&url)), (expected, seen));
        }
        let long = format!("http://a.example/{}", "x".repeat(URL_BYTES_MAX));
        for bad in ["", "api.openai.com/v1", "ftp://a.example", "http://ann:pw@a.example", &long] {
            let error = endpoint(bad).expect_err(bad);
            assert!(matches!(error, ModelError::BaseUrlInvalid { .. }), "{error}");
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
