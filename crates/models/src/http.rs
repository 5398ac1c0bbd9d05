//! Asking a provider over HTTP: the one way that all clients of this crate share, with its
//! time limits, tries, bounds and errors.

mod client;
mod key;
mod problem;
mod settings;
mod tries;

use std::fmt;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};
use tokio::time::timeout;

use crate::error::ModelError;
pub(crate) use client::{above_v1, base, is_openai, shown};
pub use key::ApiKey;
#[cfg(test)]
pub(crate) use key::Hunter2;
pub(crate) use key::with_key;
use problem::refusal;
pub(crate) use problem::{Fault, refusal_inside};
pub use settings::BaseUrl;
pub(crate) use settings::{check, model, timeout_limit, tries_limit};
pub(crate) use tries::{TimeLimit, Tries};

/// One endpoint of a provider. It does not show its key.
pub(crate) struct Provider {
    /// Stands before every problem: what for, and where.
    name: String,
    url: Url,
    client: Client,
    api_key: Option<ApiKey>,
    tries: Tries,
}

/// What a provider is made of.
pub(crate) struct Site<'a> {
    /// What is asked for there, such as `embeddings`.
    pub(crate) what: &'a str,
    /// From [`base`].
    pub(crate) base: &'a Url,
    /// Below the base, such as `/embeddings`.
    pub(crate) path: &'a str,
    /// Sent with every request, the key's among them.
    pub(crate) headers: HeaderMap,
    /// For looking whether the provider repeats it.
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) tries: Tries,
}

/// A question.
pub(crate) struct Question<'a> {
    /// JSON.
    pub(crate) body: String,
    /// Texts in it that no problem may repeat.
    pub(crate) private: &'a [&'a str],
    /// Bytes of an answer.
    pub(crate) bytes_max: usize,
}

/// Of Anthropic's contract; not the newest of its models.
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// Bytes read of a refusal, and how long to wait for them.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
const REFUSAL_PAUSE: Duration = Duration::from_secs(1);

impl Provider {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`ModelError::TlsUnavailable`].
    pub(crate) fn new(site: Site<'_>) -> Result<Self, ModelError> {
        let url = client::below(site.base, site.path);
        let client = client::build(&url, site.headers)?;
        let name = format!("{} of {}", site.what, shown(site.base));
        Ok(Self {
            name,
            url,
            client,
            api_key: site.api_key,
            tries: site.tries,
        })
    }

    /// Asks, as often as allowed, and reads the answer.
    ///
    /// # Errors
    /// [`Fault`], with the name of the provider before its problem.
    pub(crate) async fn ask<T>(
        &self,
        question: &Question<'_>,
        read: impl Fn(&[u8]) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let asked = self
            .tries
            .make(|| async { read(&self.exchange(question).await?) })
            .await;
        asked.map_err(|fault| fault.map(|problem| format!("{}: {problem}", self.name)))
    }

    async fn exchange(&self, question: &Question<'_>) -> Result<Vec<u8>, Fault> {
        let request = self
            .client
            .post(self.url.clone())
            .body(question.body.clone());
        let answer = request.send().await.map_err(broken)?;
        let status = answer.status();
        if status.is_success() {
            return body(answer, question.bytes_max).await;
        }
        let headers = answer.headers().clone();
        let said = said(answer).await;
        let key = self.api_key.as_ref().map(ApiKey::as_str);
        let private = key.into_iter().chain(question.private.iter().copied());
        Err(refusal(status, &headers, &said, &private))
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The header of a key as most take it.
pub(crate) fn bearer(api_key: Option<&ApiKey>) -> HeaderMap {
    api_key
        .map(|key| (AUTHORIZATION, key.bearer()))
        .into_iter()
        .collect()
}

/// The headers that Anthropic wants.
pub(crate) fn anthropic(api_key: Option<&ApiKey>) -> HeaderMap {
    let key = api_key.map(|key| (HeaderName::from_static("x-api-key"), key.bare()));
    let version = HeaderValue::from_static(ANTHROPIC_VERSION);
    key.into_iter()
        .chain([(HeaderName::from_static("anthropic-version"), version)])
        .collect()
}

/// The beginning of what a refusal says.
async fn said(mut answer: Response) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = async {
        while bytes.len() < REFUSAL_BYTES_MAX {
            let Ok(Some(chunk)) = answer.chunk().await else {
                break;
            };
            let room = REFUSAL_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    let _ = timeout(REFUSAL_PAUSE, read).await;
    bytes
}

async fn body(mut answer: Response, bytes_max: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > bytes_max {
            let problem = format!("the answer has more than {bytes_max} bytes");
            return Err(Fault::Strange { problem });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The network's own words, which know nothing of what was sent.
fn broken(error: reqwest::Error) -> Fault {
    let error = error.without_url();
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Fault::Later {
        problem: format!("no answer: {cause}"),
        after: None,
    }
}
