//! Counters that request the number of tokens of a request from its provider. They answer soon
//! or fail: the caller has an estimate.

mod config;
mod tools;

use memoird_core::turn::MessageFormat;
use memoird_engine::{CountError, CountFuture, CountRequest, TokenCounter};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, Fault, FaultKind, Provider, Request, Tries};
pub use config::{AnthropicCounterConfig, CountEndpoint, CounterSpec, OpenAiCounterConfig};

/// Requests counts from Anthropic, OpenAI or vLLM. Chat completions have no endpoint that
/// counts: OpenAI counts items of its Responses API, and vLLM has `/tokenize`.
#[derive(Debug)]
pub struct RemoteCounter {
    provider: Provider,
    name: String,
    model: String,
    api: Api,
}

/// The endpoint's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    /// Anthropic's `/v1/messages/count_tokens`, which is free, and has a rate limit of its
    /// own.
    Anthropic,
    /// OpenAI's `/responses/input_tokens`.
    Responses,
    /// vLLM's `/tokenize`.
    Tokenize,
}

/// The body of a request. It is as large as a window, so JSON is copied and not parsed.
#[derive(Default, Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    system: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
}

/// The answer. What it holds beside the number may be long.
#[derive(Deserialize)]
struct Count<'a> {
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    count: Option<&'a RawValue>,
}

/// Bytes of an answer. vLLM lists all tokens.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

impl RemoteCounter {
    /// A model of Anthropic. Nothing is sent yet.
    /// The key is what [`AnthropicCounterConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn anthropic(
        config: &AnthropicCounterConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::above_v1(http::base(&config.base_url)?);
        let auth = Auth::anthropic(api_key);
        let tries = Tries::within(1, config.timeout);
        let provider = Provider::new("counts", &base, "/v1/messages/count_tokens", auth, tries)?;
        let model = config.model.as_deref().unwrap_or_default();
        Ok(Self {
            provider,
            name: format!("anthropic:{model}"),
            model: model.to_owned(),
            api: Api::Anthropic,
        })
    }

    /// A model of OpenAI or vLLM. Nothing is sent yet.
    /// The key is what [`OpenAiCounterConfig::api_key`] names.
    ///
    /// # Errors
    /// The same as [`RemoteCounter::anthropic`].
    pub fn openai(
        config: &OpenAiCounterConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let api = openai_api(config.endpoint, &base);
        let (base, path) = match api {
            Api::Responses => (base, "/responses/input_tokens"),
            _ => (http::above_v1(base), "/tokenize"),
        };
        let auth = Auth::bearer(api_key);
        let tries = Tries::within(1, config.timeout);
        let provider = Provider::new("counts", &base, path, auth, tries)?;
        let model = config.model.as_deref().unwrap_or_default();
        Ok(Self {
            provider,
            name: format!("openai:{model}"),
            model: model.to_owned(),
            api,
        })
    }

    async fn tokens(&self, ask: &CountRequest) -> Result<u64, Fault> {
        let body = serde_json::to_string(&self.body(ask)?);
        let request = Request {
            body: body.map_err(|_| malformed("the request"))?,
            private: &[ask.system.as_str(), &ask.tools_json, &ask.messages_json],
            bytes_max: ANSWER_BYTES_MAX,
        };
        self.provider
            .send(&request, |answer| self.read(answer))
            .await
    }

    fn body<'a>(&'a self, ask: &'a CountRequest) -> Result<Body<'a>, Fault> {
        let body = Body {
            model: &self.model,
            tools: self.tools(&ask.tools_json)?,
            ..Body::default()
        };
        Ok(match self.api {
            Api::Anthropic => Body {
                system: &ask.system,
                messages: Some(raw("messages", ask.messages_json.clone())?),
                ..body
            },
            Api::Responses => Body {
                instructions: &ask.system,
                input: Some(raw("input", ask.messages_json.clone())?),
                ..body
            },
            Api::Tokenize => Body {
                messages: Some(raw("messages", messages(ask)?)?),
                ..body
            },
        })
    }

    fn read(&self, answer: &[u8]) -> Result<u64, Fault> {
        let answer: Option<Count> = serde_json::from_slice(answer).ok();
        let (name, number) = match self.api {
            Api::Tokenize => ("count", answer.and_then(|answer| answer.count)),
            _ => (
                "input_tokens",
                answer.and_then(|answer| answer.input_tokens),
            ),
        };
        let number = number.and_then(|number| serde_json::from_str(number.get()).ok());
        number.ok_or_else(|| {
            let problem = format!("the answer has no number named {name}; check base_url");
            Fault::new(FaultKind::Strange, problem)
        })
    }

    /// The tools as this API takes them, whichever of OpenAI's two forms they have.
    fn tools(&self, tools_json: &str) -> Result<Option<Box<RawValue>>, Fault> {
        if tools_json.is_empty() {
            return Ok(None);
        }
        let rewrite = match self.api {
            Api::Anthropic => return raw("tools", tools_json.to_owned()).map(Some),
            Api::Responses => tools::flat,
            Api::Tokenize => tools::nested,
        };
        let tools: Vec<Value> =
            serde_json::from_str(tools_json).map_err(|_| malformed("tools of the request"))?;
        let tools: Value = tools.into_iter().map(rewrite).collect();
        raw("tools", tools.to_string()).map(Some)
    }
}

impl TokenCounter for RemoteCounter {
    fn name(&self) -> &str {
        &self.name
    }

    fn format(&self) -> MessageFormat {
        match self.api {
            Api::Anthropic => MessageFormat::Anthropic,
            Api::Responses => MessageFormat::OpenAiResponses,
            Api::Tokenize => MessageFormat::OpenAi,
        }
    }

    fn count(&self, ask: CountRequest) -> CountFuture<'_> {
        Box::pin(async move { Ok(self.tokens(&ask).await?) })
    }
}

fn openai_api(endpoint: CountEndpoint, base: &Url) -> Api {
    match endpoint {
        CountEndpoint::Auto if http::is_openai(base) => Api::Responses,
        CountEndpoint::ResponsesInputTokens => Api::Responses,
        CountEndpoint::Auto | CountEndpoint::Tokenize => Api::Tokenize,
    }
}

/// The messages, with the system prompt as the first of them.
fn messages(ask: &CountRequest) -> Result<String, Fault> {
    if ask.system.is_empty() {
        return Ok(ask.messages_json.clone());
    }
    let messages: Vec<&RawValue> = serde_json::from_str(&ask.messages_json)
        .map_err(|_| malformed("messages of the request"))?;
    let system = json!({"role": "system", "content": ask.system}).to_string();
    let messages = messages.iter().map(|message| message.get());
    let messages: Vec<&str> = std::iter::once(system.as_str()).chain(messages).collect();
    Ok(format!("[{}]", messages.join(",")))
}

/// Text that is JSON already.
fn raw(name: &str, json: String) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(json).map_err(|_| malformed(&format!("{name} of the request")))
}

fn malformed(what: &str) -> Fault {
    Fault::new(FaultKind::Refused, format!("{what}: malformed JSON"))
}

impl From<Fault> for CountError {
    fn from(fault: Fault) -> Self {
        Self {
            problem: fault.problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_where_depends_on_the_host() {
        let at = |endpoint, url: &str| {
            openai_api(endpoint, &http::base(url).expect(url)) == Api::Responses
        };
        assert!(at(CountEndpoint::Auto, "https://api.openai.com/v1"));
        assert!(!at(CountEndpoint::Auto, "http://127.0.0.1:8000/v1"));
        assert!(at(
            CountEndpoint::ResponsesInputTokens,
            "http://127.0.0.1:8000/v1"
        ));
        assert!(!at(CountEndpoint::Tokenize, "https://api.openai.com/v1"));
    }
}
