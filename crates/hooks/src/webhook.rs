//! Sends ended sessions to a web service by POST, as JSON.
//!
//! The body is the [payload](crate::payload). The headers are those of Standard Webhooks. The
//! signature requires a secret.
//!
//! | header | content |
//! |---|---|
//! | `webhook-id` | the delivery, the same for every retry |
//! | `webhook-timestamp` | time of this attempt, in seconds since 1970 |
//! | `webhook-signature` | `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64; verified as below |
//!
//! ```python
//! import base64, hashlib, hmac
//! def is_genuine(key: bytes, headers, body: bytes) -> bool:  # of whsec_..., the decoded rest
//!     signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
//!     mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
//!     given = headers["webhook-signature"].split()
//!     return any(hmac.compare_digest(one, "v1," + mac) for one in given)
//! ```
//!
//! A receiver should also reject a timestamp that differs by minutes from its own clock, and ignore
//! an id that it has already processed.
//!
//! | response | delivery |
//! |---|---|
//! | 2xx | succeeded, whatever follows the status and the headers |
//! | 408, 425, 429, 5xx | is retried, at the earliest after `Retry-After` or `retry.pause_max`, whichever is shorter |
//! | 307, 308 to the same scheme, host and port | follows the redirect, at most three times |
//! | another redirect | is retried: it is not followed, to keep the conversation from other hosts, but a gateway that redirects everything for a minute must not cost a delivery |
//! | anything else | fails permanently |
//! | none: unreachable, timeout, connection closed | is retried |
//!
//! Only public internet addresses are contacted unless `allow_private` is set. There are no
//! proxies, cookies or compression. TLS uses the system's trust store: an organization installs its
//! own CA once for all programs, and revocations arrive with the system's updates.

mod client;
mod redirect;
mod response;
mod sign;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use memoird_core::config::{AsText, Environment, SecretRef, Span};
use memoird_engine::{Hook, HookCall, HookError, HookFuture};
use memoird_http::{is_private_host, parse_url, root_cause};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use serde::{Deserialize, Serialize};

use crate::payload::payload_on_blocking_thread;
use crate::text::line;
use redirect::{redirect, shown};
pub use sign::WebhookSecret;

/// URL, credentials and limits of a webhook.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// An `http` or `https` URL. A token in its query is never logged or displayed.
    pub url: String,
    /// Key for signing bodies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
    /// Additional headers. Their values are never logged or displayed.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Additional headers with secret values.
    #[serde(default)]
    pub secret_headers: BTreeMap<String, SecretRef>,
    /// Also allow addresses outside the public internet.
    #[serde(default)]
    pub allow_private: bool,
    /// Timeout for DNS lookup, connecting and the TLS handshake together.
    #[serde(default = "connect_timeout", with = "AsText::<Span>")]
    pub connect_timeout: Duration,
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

/// Sends each delivery to a web service.
pub struct WebhookHook {
    url: Url,
    secret: Option<WebhookSecret>,
    client: Client,
}

/// Maximum number of redirects per attempt.
const REDIRECTS_MAX: usize = 3;
/// Maximum characters of an address or a network error in an error message.
const CHARS_MAX: usize = 200;
const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

impl WebhookConfig {
    fn headers(&self, environment: &dyn Environment) -> Result<Vec<(String, String)>, String> {
        let mut headers = Vec::from_iter(self.headers.clone());
        for (name, reference) in &self.secret_headers {
            let key = format!("secret_headers.{name}");
            headers.push((name.clone(), read(&key, reference, environment)?));
        }
        Ok(headers)
    }
}

/// Reads the secret configured under `key`.
fn read(key: &str, reference: &SecretRef, environment: &dyn Environment) -> Result<String, String> {
    let secret = reference.read(environment);
    secret.map_err(|problem| format!("{key}: {problem}"))
}

impl WebhookHook {
    /// Reads the configured secrets. Nothing is sent yet.
    ///
    /// # Errors
    /// A message for the operator if the configuration is invalid.
    pub fn new(config: &WebhookConfig, environment: &dyn Environment) -> Result<Self, String> {
        let url = parse_url(&config.url)
            .map_err(|problem| format!("the URL of the webhook {problem}"))?;
        let host = url.host_str().unwrap_or_default();
        if !config.allow_private && is_private_host(host) {
            let advice = "set allow_private: true if that is meant";
            return Err(format!("{host} is a private address; {advice}"));
        }
        let secret_text = config
            .secret
            .as_ref()
            .map(|reference| read("secret", reference, environment))
            .transpose()?;
        let secret = secret_text
            .map(|text| WebhookSecret::parse(&text))
            .transpose()?;
        let headers = config.headers(environment)?;
        let client = client::build(config, &headers, url.scheme() == "https")?;
        Ok(Self {
            url,
            secret,
            client,
        })
    }

    async fn post(&self, call: &HookCall) -> Result<(), HookError> {
        let (id, timestamp) = (call.delivery.to_string(), call.at.seconds());
        let (secret, signed_id) = (self.secret.clone(), id.clone());
        let signed = payload_on_blocking_thread(call, move |body| {
            let sign =
                |secret: WebhookSecret| secret.signature(&signed_id, timestamp, body.as_bytes());
            (secret.map(sign), Bytes::from(body))
        });
        let (signature, body) = signed.await?;
        let mut headers = HeaderMap::new();
        headers.insert(TIMESTAMP, timestamp.into());
        let texts = [(ID, Some(id)), (SIGNATURE, signature)];
        for (name, text) in texts {
            let value = text.and_then(|text| HeaderValue::try_from(text).ok());
            headers.extend(value.map(|value| (name, value)));
        }
        let mut url = self.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let request = self
                .client
                .post(url.clone())
                .headers(headers.clone())
                .body(body.clone());
            let answer = request
                .send()
                .await
                .map_err(|error| unreachable(&url, error))?;
            match redirect(&url, &answer)? {
                Some(next) => url = next,
                None => return response::check_response(answer, call.at).await,
            }
        }
        Err(HookError::later(format!(
            "redirects more than {REDIRECTS_MAX} times"
        )))
    }
}

impl Hook for WebhookHook {
    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(calls.len());
            for call in &calls {
                answers.push(self.post(call).await);
            }
            answers
        })
    }
}

impl fmt::Debug for WebhookHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookHook")
            .field("url", &shown(&self.url))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WebhookConfig {
    /// Omits everything that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = Url::parse(&self.url).map(|url| shown(&url));
        let names: Vec<&String> = self.headers.keys().collect();
        f.debug_struct("WebhookConfig")
            .field("url", &url.unwrap_or_default())
            .field("secret", &self.secret)
            .field("headers", &names)
            .field("secret_headers", &self.secret_headers)
            .field("allow_private", &self.allow_private)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

fn unreachable(url: &Url, error: reqwest::Error) -> HookError {
    let cause = line(root_cause(error).as_bytes(), CHARS_MAX);
    HookError::later(format!("no answer from {}: {cause}", shown(url)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bypasses [`WebhookHook::new`], which rejects this host name.
    #[tokio::test]
    async fn host_resolving_to_private_address_is_rejected() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "http://localhost:{}/a?token=b",
            listener.local_addr().unwrap().port()
        );
        let config = serde_json::from_value(serde_json::json!({"url": url})).unwrap();
        let client = client::build(&config, &[], false).unwrap();
        let sent = tokio::select! {
            sent = client.post(&url).send() => sent,
            _ = listener.accept() => panic!("it came"),
        };
        let error = unreachable(&Url::parse(&url).unwrap(), sent.unwrap_err());
        assert_eq!(error.retry, memoird_engine::Retry::Later);
        let problem = error.problem.replace(char::is_numeric, "");
        assert_eq!(
            problem,
            "no answer from http://localhost:/a: localhost resolves to a private address; \
             set allow_private: true if that is meant"
        );
    }
}
