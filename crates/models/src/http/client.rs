//! The HTTP client of one provider, without anything that it does not need.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::redirect::Policy;
use reqwest::{Client, Url, retry};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::ModelError;

/// Connections that are kept for the next call, and how long.
const IDLE_MAX: usize = 4;
const IDLE_PAUSE: Duration = Duration::from_secs(30);
/// For finding the address, connecting and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NAME: &str = concat!("memoird/", env!("CARGO_PKG_VERSION"));
/// Bytes of an address in the configuration.
const URL_BYTES_MAX: usize = 1_024;
/// The ends of OpenAI's hosts.
const OPENAI_HOSTS: [&str; 2] = ["api.openai.com", ".openai.azure.com"];

/// A client that sends these headers with every request.
///
/// # Errors
/// [`ModelError`] when the machine's TLS does not do.
pub(super) fn build(url: &Url, mut headers: HeaderMap) -> Result<Client, ModelError> {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
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
        false => config
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth(),
    })
}

fn no_tls(error: impl std::error::Error) -> ModelError {
    ModelError::TlsUnavailable {
        problem: error.to_string(),
    }
}

/// Where a provider is.
///
/// # Errors
/// [`ModelError`] for what cannot be a provider's address.
pub(crate) fn base(base_url: &str) -> Result<Url, ModelError> {
    let invalid = |problem: String| ModelError::BaseUrlInvalid { problem };
    if base_url.len() > URL_BYTES_MAX {
        return Err(invalid(format!("it has more than {URL_BYTES_MAX} bytes")));
    }
    let mut url = Url::parse(base_url).map_err(|error| invalid(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(format!(
            "it begins with {}; it takes http and https",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            "it has a user or a password; use api_key".to_owned(),
        ));
    }
    url.set_fragment(None);
    Ok(url)
}

/// The same base without `/v1` at its end, where people leave or add it as they like.
pub(crate) fn above_v1(mut base: Url) -> Url {
    let path = base.path().trim_end_matches('/');
    let above = path.strip_suffix("/v1").unwrap_or(path).to_owned();
    base.set_path(&above);
    base
}

/// Whether OpenAI itself is there, or its twin at Azure: what only they have, and what
/// only they refuse, is told by their hosts.
pub(crate) fn is_openai(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default();
    OPENAI_HOSTS.iter().any(|openai| host.ends_with(openai))
}

/// What stands below a base; the base itself for an empty path.
pub(super) fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    if !path.is_empty() {
        url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    }
    url
}

/// Host, port and path of a base. A token may stand in the query.
pub(crate) fn shown(base: &Url) -> String {
    let host = base.host_str().unwrap_or_default();
    let port = base
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{host}{port}{}", base.path().trim_end_matches('/'))
}

/// The same of what stands in a configuration; nothing of what is no address.
pub(crate) fn shown_base(base_url: &str) -> String {
    base(base_url).as_ref().map(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_stands_below_the_base() {
        for (given, expected, seen) in [
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
            let base = base(given).expect(given);
            assert_eq!(below(&base, "/embeddings").as_str(), expected);
            assert_eq!(
                (shown(&base), shown_base(given)),
                (seen.to_owned(), seen.to_owned())
            );
            assert_eq!(below(&base, ""), base);
        }
        for given in [
            "http://a.example/x",
            "http://a.example/x/v1",
            "http://a.example/x/v1/",
        ] {
            let base = above_v1(base(given).expect(given));
            assert_eq!(
                below(&base, "/v1/messages").as_str(),
                "http://a.example/x/v1/messages"
            );
        }
        let long = format!("http://a.example/{}", "x".repeat(URL_BYTES_MAX));
        for bad in [
            "",
            "api.openai.com/v1",
            "ftp://a.example",
            "http://ann:pw@a.example",
            &long,
        ] {
            assert_eq!(shown_base(bad), "");
            let error = base(bad).expect_err(bad);
            assert!(
                matches!(error, ModelError::BaseUrlInvalid { .. }),
                "{error}"
            );
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
