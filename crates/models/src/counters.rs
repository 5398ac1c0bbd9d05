//! Token counters that ask the provider. They reply soon or fail: the caller has an estimate.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Environment, Problem, SecretRef, Span};
use memoird_core::turn::MessageFormat;
use memoird_engine::{CountFuture, CountRequest, FaultKind, ModelFault, TokenCounter};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::error::ModelError;
use crate::http::{self, ApiKey, Auth, BaseUrl, Provider, Request, RetryLimits, with_key};

/// Counts tokens by a request to Anthropic, OpenAI or vLLM.
///
/// Chat completions have no counting endpoint. OpenAI counts items of its Responses API, and vLLM
/// has `/tokenize`.
#[derive(Debug)]
pub struct RemoteCounter {
    provider: Provider,
    name: String,
    model: String,
    api: Api,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    /// Anthropic's `/v1/messages/count_tokens`, which is free and has its own rate limit.
    Anthropic,
    /// OpenAI's `/responses/input_tokens`.
    Responses,
    /// vLLM's `/tokenize`.
    Tokenize,
}

/// The body of a request. It is as large as a window, so JSON is copied without being parsed.
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

/// The response. Each API sets one of these fields.
#[derive(Default, Deserialize)]
struct Count {
    input_tokens: Option<u64>,
    count: Option<u64>,
}

/// Maximum bytes of a response. vLLM lists all tokens.
const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;

impl RemoteCounter {
    /// Creates a counter for a model of Anthropic. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`AnthropicCounterConfig::api_key`].
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
        let retry_limits = RetryLimits::within(1, config.timeout);
        let provider = Provider::new(
            "counts",
            &base,
            "/v1/messages/count_tokens",
            auth,
            retry_limits,
        )?;
        let model = config.model.as_deref().unwrap_or_default();
        Ok(Self {
            provider,
            name: format!("anthropic:{model}"),
            model: model.to_owned(),
            api: Api::Anthropic,
        })
    }

    /// Creates a counter for a model of OpenAI or vLLM. Nothing is sent yet.
    ///
    /// `api_key` is the secret named by [`OpenAiCounterConfig::api_key`].
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
        let retry_limits = RetryLimits::within(1, config.timeout);
        let provider = Provider::new("counts", &base, path, auth, retry_limits)?;
        let model = config.model.as_deref().unwrap_or_default();
        Ok(Self {
            provider,
            name: format!("openai:{model}"),
            model: model.to_owned(),
            api,
        })
    }

    async fn tokens(&self, request: &CountRequest) -> Result<u64, ModelFault> {
        let body = serde_json::to_string(&self.body(request)?);
        let post = Request {
            body: body.map_err(|_| malformed("the request"))?,
            private: &[
                request.system.as_str(),
                &request.tools_json,
                &request.messages_json,
            ],
            bytes_max: RESPONSE_BYTES_MAX,
            optional_field: None,
        };
        self.provider.send(&post, |answer| self.read(answer)).await
    }

    fn body<'a>(&'a self, request: &'a CountRequest) -> Result<Body<'a>, ModelFault> {
        let body = Body {
            model: &self.model,
            tools: self.tools(&request.tools_json)?,
            ..Body::default()
        };
        Ok(match self.api {
            Api::Anthropic => Body {
                system: &request.system,
                messages: Some(raw("messages", request.messages_json.clone())?),
                ..body
            },
            Api::Responses => Body {
                instructions: &request.system,
                input: Some(raw("input", request.messages_json.clone())?),
                ..body
            },
            Api::Tokenize => Body {
                messages: Some(raw("messages", messages(request)?)?),
                ..body
            },
        })
    }

    fn read(&self, answer: &[u8]) -> Result<u64, ModelFault> {
        let answer: Count = serde_json::from_slice(answer).unwrap_or_default();
        let (name, number) = match self.api {
            Api::Tokenize => ("count", answer.count),
            _ => ("input_tokens", answer.input_tokens),
        };
        number.ok_or_else(|| {
            let problem = format!("the response has no number named {name}; check base_url");
            ModelFault::new(FaultKind::Unusable, problem)
        })
    }

    /// Converts tools in any provider's format to the format of this API.
    fn tools(&self, tools_json: &str) -> Result<Option<Box<RawValue>>, ModelFault> {
        if tools_json.is_empty() {
            return Ok(None);
        }
        let rewrite = match self.api {
            Api::Anthropic => anthropic_tool,
            Api::Responses => flat_tool,
            Api::Tokenize => nested_tool,
        };
        let given: Vec<Value> =
            serde_json::from_str(tools_json).map_err(|_| malformed("tools of the request"))?;
        let tools: Value = given.into_iter().map(rewrite).collect();
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

    fn count(&self, request: CountRequest) -> CountFuture<'_> {
        Box::pin(async move { self.tokens(&request).await })
    }
}

fn openai_api(endpoint: CountEndpoint, base: &Url) -> Api {
    match endpoint {
        CountEndpoint::Auto if http::is_openai(base) => Api::Responses,
        CountEndpoint::ResponsesInputTokens => Api::Responses,
        CountEndpoint::Auto | CountEndpoint::Tokenize => Api::Tokenize,
    }
}

/// The messages, with the system prompt as the first one.
fn messages(request: &CountRequest) -> Result<String, ModelFault> {
    if request.system.is_empty() {
        return Ok(request.messages_json.clone());
    }
    let raw_messages: Vec<&RawValue> = serde_json::from_str(&request.messages_json)
        .map_err(|_| malformed("messages of the request"))?;
    let system = json!({"role": "system", "content": request.system}).to_string();
    let messages: Vec<&str> = std::iter::once(system.as_str())
        .chain(raw_messages.iter().map(|message| message.get()))
        .collect();
    Ok(format!("[{}]", messages.join(",")))
}

/// Wraps text that is already JSON.
fn raw(name: &str, json: String) -> Result<Box<RawValue>, ModelFault> {
    RawValue::from_string(json).map_err(|_| malformed(&format!("{name} of the request")))
}

fn malformed(what: &str) -> ModelFault {
    ModelFault::new(FaultKind::Refused, format!("{what}: malformed JSON"))
}

/// Configuration of a model's token counter.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CounterSpec {
    Anthropic(AnthropicCounterConfig),
    /// OpenAI's `responses/input_tokens`, or vLLM's `tokenize`.
    OpenAi(OpenAiCounterConfig),
}

impl CounterSpec {
    /// Creates the counter for the model with this name. No request is sent yet.
    ///
    /// # Errors
    /// A [`Problem`] if the configuration is invalid.
    pub fn build(
        &self,
        name: &str,
        environment: &dyn Environment,
    ) -> Result<Arc<dyn TokenCounter>, Problem> {
        Ok(match self.clone() {
            Self::Anthropic(mut config) => {
                config.model.get_or_insert_with(|| name.to_owned());
                let new = |key| RemoteCounter::anthropic(&config, key);
                with_key("anthropic", &config.api_key, environment, new)?
            }
            Self::OpenAi(mut config) => {
                config.model.get_or_insert_with(|| name.to_owned());
                let new = |key| RemoteCounter::openai(&config, key);
                with_key("openai", &config.api_key, environment, new)?
            }
        })
    }
}

/// Configuration of Anthropic's `/v1/messages/count_tokens`, or of a compatible service.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AnthropicCounterConfig {
    /// For example `https://api.anthropic.com`; `/v1/messages/count_tokens` is appended.
    ///
    /// At most 1,024 bytes. A token in its query is never logged or displayed.
    #[serde(default = "BaseUrl::anthropic")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes. Defaults to the name used by bots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sent as `x-api-key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Total timeout of a request, 10 ms to 10 minutes. A window waits for it.
    #[serde(default = "default_timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
}

/// Configuration of a counter for a model of OpenAI or vLLM.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OpenAiCounterConfig {
    /// For example `https://api.openai.com/v1` or `http://127.0.0.1:8000/v1`.
    ///
    /// At most 1,024 bytes. A token in its query is never logged or displayed.
    #[serde(default = "BaseUrl::openai")]
    pub base_url: BaseUrl,
    /// The provider's name of the model, at most 256 bytes. Defaults to the name used by bots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Sent as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<SecretRef>,
    /// Total timeout of a request, 10 ms to 10 minutes. A window waits for it.
    #[serde(default = "default_timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    #[serde(default)]
    pub endpoint: CountEndpoint,
}

/// Counting endpoint of an OpenAI-compatible provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CountEndpoint {
    /// `ResponsesInputTokens` for OpenAI and Azure hosts, otherwise `Tokenize`.
    #[default]
    Auto,
    /// OpenAI's `POST {base_url}/responses/input_tokens`, with items of the Responses API.
    ResponsesInputTokens,
    /// vLLM's `POST /tokenize`, next to `/v1`, with messages of chat completions.
    Tokenize,
}

fn default_timeout() -> Duration {
    Duration::from_secs(2)
}

impl AnthropicCounterConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first invalid setting.
    fn check(&self) -> Result<(), ModelError> {
        check(self.model.as_deref(), self.timeout)
    }
}

impl OpenAiCounterConfig {
    /// # Errors
    /// [`ModelError::SettingOutOfRange`] for the first invalid setting.
    fn check(&self) -> Result<(), ModelError> {
        check(self.model.as_deref(), self.timeout)
    }
}

fn check(model: Option<&str>, timeout: Duration) -> Result<(), ModelError> {
    let model = http::model(model.unwrap_or_default());
    http::check([model, http::timeout_limit(timeout)])
}

/// Converts a tool to the format of the Responses API.
fn flat_tool(mut tool: Value) -> Value {
    if let Some(Value::Object(function)) = tool.get_mut("function") {
        let mut function = std::mem::take(function);
        function.insert("type".to_owned(), json!("function"));
        return Value::Object(function);
    }
    if let Value::Object(tool) = &mut tool
        && let Some(schema) = tool.shift_remove("input_schema")
    {
        tool.shift_remove("cache_control");
        tool.insert("type".to_owned(), json!("function"));
        tool.insert("parameters".to_owned(), schema);
    }
    tool
}

/// Converts a tool to the format of chat completions.
fn nested_tool(tool: Value) -> Value {
    match flat_tool(tool) {
        Value::Object(mut function) if is_function(&function) => {
            function.shift_remove("type");
            json!({"type": "function", "function": function})
        }
        other => other,
    }
}

/// Converts a tool to Anthropic's format.
fn anthropic_tool(tool: Value) -> Value {
    if tool.get("input_schema").is_some() {
        return tool;
    }
    match flat_tool(tool) {
        Value::Object(mut tool) if is_function(&tool) => {
            let parameters = tool.shift_remove("parameters");
            for field in ["type", "strict"] {
                tool.shift_remove(field);
            }
            let schema = parameters.unwrap_or_else(|| json!({"type": "object"}));
            tool.insert("input_schema".to_owned(), schema);
            Value::Object(tool)
        }
        other => other,
    }
}

/// Whether a tool is a function in the flat format.
fn is_function(tool: &Map<String, Value>) -> bool {
    tool.get("type") == Some(&json!("function")) && !tool.contains_key("function")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_endpoint_depends_on_host() {
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

#[cfg(test)]
mod config_tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::http::Hunter2;

    #[test]
    fn settings_out_of_range_are_rejected() {
        let short = Duration::from_millis(9);
        let one: AnthropicCounterConfig = from_value(json!({"model": "m"})).expect("one");
        let two: OpenAiCounterConfig = from_value(json!({"model": "m"})).expect("one");
        assert!(one.check().is_ok() && two.check().is_ok());
        for outcome in [
            AnthropicCounterConfig {
                timeout: short,
                ..one.clone()
            }
            .check(),
            AnthropicCounterConfig {
                model: Some(String::new()),
                ..one
            }
            .check(),
            OpenAiCounterConfig {
                timeout: short,
                ..two.clone()
            }
            .check(),
            OpenAiCounterConfig {
                model: Some(String::new()),
                ..two
            }
            .check(),
        ] {
            assert!(
                matches!(outcome, Err(ModelError::SettingOutOfRange { .. })),
                "{outcome:?}"
            );
        }
    }

    fn built(spec: &Value) -> Result<Arc<dyn TokenCounter>, Problem> {
        let spec: CounterSpec = from_value(spec.clone()).expect("a counter");
        spec.build("ours", &Hunter2)
    }

    #[test]
    fn counter_uses_model_name_by_default() {
        for (spec, name) in [
            (json!({"anthropic": {}}), "ours"),
            (
                json!({"anthropic": {"model": "claude-opus-5-5"}}),
                "claude-opus-5-5",
            ),
            (json!({"openai": {}}), "ours"),
            (
                json!({"openai": {
                    "model": "glm", "base_url": "http://127.0.0.1:8000/v1", "timeout": "1s",
                    "endpoint": "tokenize",
                }}),
                "glm",
            ),
        ] {
            let counter = built(&spec).expect("a counter");
            assert!(counter.name().contains(name), "{counter:?}");
        }
    }

    #[test]
    fn problem_names_the_setting() {
        for (spec, key) in [
            (json!({"anthropic": {"base_url": "nowhere"}}), "anthropic"),
            (json!({"openai": {"timeout": "1h"}}), "openai"),
            (
                json!({"openai": {"api_key": {"file": "/proc/no-such-key"}}}),
                "openai.api_key",
            ),
        ] {
            let problem = built(&spec).expect_err(key);
            assert!(
                problem.key == key && !problem.problem.is_empty(),
                "{problem}"
            );
        }
    }

    #[test]
    fn keys_and_tokens_are_hidden_in_debug() {
        let url = "https://a.example/v1?token=hunter2";
        for kind in ["anthropic", "openai"] {
            let config = json!({kind: {"base_url": url, "api_key": {"env": "KEY"}}});
            let spec: CounterSpec = from_value(config).expect("a counter");
            let counter = spec.build("m", &Hunter2).expect("a good configuration");
            let shown = format!("{spec:?} {counter:?}");
            assert!(
                shown.contains("a.example/v1") && !shown.contains("hunter2"),
                "{shown}"
            );
        }
    }
}

#[cfg(test)]
mod tool_tests {
    use super::*;

    #[test]
    fn tools_convert_between_formats() {
        let inside = json!({"type": "function", "function": {"name": "f", "strict": true}});
        let beside = json!({"name": "f", "strict": true, "type": "function"});
        assert_eq!(flat_tool(inside.clone()), beside);
        assert_eq!(flat_tool(beside.clone()), beside);
        assert_eq!(nested_tool(beside), inside);
        assert_eq!(nested_tool(inside.clone()), inside);
        for odd in [
            json!({"type": "web_search"}),
            json!(1),
            json!({"function": 1}),
        ] {
            for rewrite in [flat_tool, nested_tool, anthropic_tool] {
                assert_eq!(rewrite(odd.clone()), odd);
            }
        }
    }

    #[test]
    fn tools_of_other_providers_are_converted() {
        let schema = json!({"type": "object", "properties": {}});
        let claude = json!({"name": "f", "description": "F.", "input_schema": schema});
        let flat = json!({
            "name": "f", "description": "F.", "type": "function", "parameters": schema,
        });
        let nested = json!({"type": "function", "function": {
            "name": "f", "description": "F.", "parameters": schema, "strict": true,
        }});
        assert_eq!(flat_tool(claude.clone()), flat);
        assert_eq!(anthropic_tool(claude.clone()), claude);
        assert_eq!(anthropic_tool(flat.clone()), claude);
        assert_eq!(anthropic_tool(nested), claude);
        let mut marked = claude.clone();
        marked["cache_control"] = json!({"type": "ephemeral"});
        assert_eq!(flat_tool(marked.clone()), flat);
        assert_eq!(anthropic_tool(marked.clone()), marked);
        assert_eq!(
            nested_tool(claude)["function"]["parameters"],
            flat["parameters"]
        );
        let bare = json!({"type": "function", "name": "f"});
        assert_eq!(
            anthropic_tool(bare)["input_schema"],
            json!({"type": "object"})
        );
    }
}
