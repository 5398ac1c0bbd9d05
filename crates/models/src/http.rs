//! Sends requests of all clients in this crate, with timeouts, retries, size limits and errors.

mod base;
mod key;
mod problem;
mod retry_limits;
mod settings;

use std::fmt;
use std::time::Duration;

use memoird_engine::{FaultKind, ModelFault};
use memoird_http::{ClientConfig, excerpt, root_cause};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};

use crate::error::ModelError;
pub(crate) use base::{above_v1, base, is_openai, shown};
pub use key::ApiKey;
#[cfg(test)]
pub(crate) use key::Hunter2;
pub(crate) use key::with_key;
pub(crate) use problem::error_in_success_body;
use problem::{error_response, is_unknown_field};
pub(crate) use retry_limits::{RetryLimits, TimeLimit};
pub use settings::BaseUrl;
pub(crate) use settings::{check, model, timeout_limit, tries_limit};

/// One endpoint of a provider. `Debug` does not print its key.
pub(crate) struct Provider {
    /// Prefix of every error message: the purpose of the request, and the host.
    name: String,
    url: Url,
    client: Client,
    api_key: Option<ApiKey>,
    retry_limits: RetryLimits,
}

/// Authentication of requests.
pub(crate) struct Auth {
    /// Sent with every request.
    headers: HeaderMap,
    /// Redacted from the provider's error messages.
    api_key: Option<ApiKey>,
}

pub(crate) struct Request<'a> {
    /// JSON.
    pub(crate) body: String,
    /// Texts in the body that no error message may repeat.
    pub(crate) private: &'a [&'a str],
    pub(crate) bytes_max: usize,
    /// A field that some providers reject.
    pub(crate) optional_field: Option<&'static str>,
}

pub(crate) enum SendOutcome<T> {
    Response(T),
    /// The provider rejects [`Request::optional_field`].
    UnknownField(ModelFault),
}

/// The version of Anthropic's API, not of its models.
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// Maximum bytes to read of an error response.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Timeout for name resolution, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl Auth {
    /// The header that most providers use.
    pub(crate) fn bearer(api_key: Option<ApiKey>) -> Self {
        let header = api_key.iter().map(|key| (AUTHORIZATION, key.bearer()));
        let headers = header.collect();
        Self { headers, api_key }
    }

    /// The headers that Anthropic requires.
    pub(crate) fn anthropic(api_key: Option<ApiKey>) -> Self {
        let name = HeaderName::from_static;
        let key = api_key.iter().map(|key| (name("x-api-key"), key.bare()));
        let version = HeaderValue::from_static(ANTHROPIC_VERSION);
        let headers = key.chain([(name("anthropic-version"), version)]).collect();
        Self { headers, api_key }
    }
}

impl Provider {
    /// Creates a client for the endpoint at `path` below `base`. Nothing is sent yet.
    ///
    /// `what` names the purpose in error messages.
    ///
    /// # Errors
    /// [`ModelError::TlsUnavailable`].
    pub(crate) fn new(
        what: &str,
        base: &Url,
        path: &str,
        auth: Auth,
        retry_limits: RetryLimits,
    ) -> Result<Self, ModelError> {
        let url = base::below(base, path);
        let client = ClientConfig {
            headers: auth.headers,
            connect_timeout: CONNECT_TIMEOUT,
            is_https: url.scheme() == "https",
            // Many models run on the operator's own machines.
            allow_private: true,
        };
        Ok(Self {
            name: format!("{what} of {}", shown(base)),
            url,
            client: client.build()?,
            api_key: auth.api_key,
            retry_limits,
        })
    }

    /// Sends a request, with retries, and reads the response.
    ///
    /// # Errors
    /// A [`ModelFault`]. Its message starts with the name of the provider.
    pub(crate) async fn send<T>(
        &self,
        request: &Request<'_>,
        read: impl Fn(&[u8]) -> Result<T, ModelFault>,
    ) -> Result<T, ModelFault> {
        match self.try_send(request, read).await? {
            SendOutcome::Response(answer) => Ok(answer),
            SendOutcome::UnknownField(fault) => Err(fault),
        }
    }

    /// Like `send`, but distinguishes a rejected optional field from other errors.
    ///
    /// # Errors
    /// As [`Provider::send`].
    pub(crate) async fn try_send<T>(
        &self,
        request: &Request<'_>,
        read: impl Fn(&[u8]) -> Result<T, ModelFault>,
    ) -> Result<SendOutcome<T>, ModelFault> {
        let named = |fault: ModelFault| ModelFault {
            problem: format!("{}: {}", self.name, fault.problem),
            ..fault
        };
        let attempt = || async {
            Ok(match self.exchange(request).await? {
                SendOutcome::Response(body) => SendOutcome::Response(read(&body)?),
                SendOutcome::UnknownField(fault) => SendOutcome::UnknownField(named(fault)),
            })
        };
        self.retry_limits.make(attempt).await.map_err(named)
    }

    async fn exchange(&self, request: &Request<'_>) -> Result<SendOutcome<Vec<u8>>, ModelFault> {
        let post = self.client.post(self.url.clone());
        let sent = post.body(request.body.clone()).send().await;
        let answer = sent.map_err(broken)?;
        let status = answer.status();
        if status.is_success() {
            return Ok(SendOutcome::Response(
                body(answer, request.bytes_max).await?,
            ));
        }
        let headers = answer.headers().clone();
        let excerpt = excerpt(answer, ERROR_BYTES_MAX).await;
        let key = self.api_key.as_ref().map(ApiKey::as_str);
        let private = key.into_iter().chain(request.private.iter().copied());
        let fault = error_response(status, &headers, &excerpt, &private);
        let is_unknown = |field| is_unknown_field(status, &excerpt, field);
        if request.optional_field.is_some_and(is_unknown) {
            Ok(SendOutcome::UnknownField(fault))
        } else {
            Err(fault)
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

async fn body(mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, ModelFault> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > bytes_max {
            let problem = format!("the response has more than {bytes_max} bytes");
            return Err(ModelFault::new(FaultKind::Unusable, problem));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn broken(error: reqwest::Error) -> ModelFault {
    ModelFault::new(
        FaultKind::Later,
        format!("no answer: {}", root_cause(error)),
    )
}
