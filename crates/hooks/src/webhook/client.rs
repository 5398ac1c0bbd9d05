//! HTTP client of a webhook, and its headers.

use memoird_http::ClientConfig;
use reqwest::Client;
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};

use super::{ID, SIGNATURE, TIMESTAMP, WebhookConfig};

/// # Errors
/// A message for the operator if a header is invalid or TLS cannot be set up.
pub(super) fn build(
    config: &WebhookConfig,
    more_headers: &[(String, String)],
    is_https: bool,
) -> Result<Client, String> {
    let client = ClientConfig {
        headers: headers(more_headers)?,
        connect_timeout: config.connect_timeout,
        // Redirects keep the scheme, so a webhook without TLS never needs certificates.
        is_https,
        allow_private: config.allow_private,
    };
    client.build().map_err(|error| error.to_string())
}

fn headers(pairs: &[(String, String)]) -> Result<HeaderMap, String> {
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
    for (name, value) in pairs {
        let invalid = || {
            let what = "has invalid characters";
            format!("the name or the value of the header {name:?} {what}")
        };
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        if ours.contains(&header) {
            return Err(format!("the header {name} is set by memoird; leave it out"));
        }
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}
