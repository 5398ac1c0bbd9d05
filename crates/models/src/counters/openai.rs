//! Tokens as OpenAI or vLLM counts them. Chat completions have no endpoint that counts:
//! OpenAI counts items of its Responses API, and vLLM has `/tokenize`.

use memoird_core::formats::MessageFormat;
use memoird_engine::{CountAsk, Counting, TokenCounter};
use reqwest::Url;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{CountEndpoint, Object, OpenAiCounterConfig, put, put_text};
use crate::error::ModelError;
use crate::http::{self, ApiKey, Fault, Provider, Site, TimeLimit, Tries};

/// Asks OpenAI, or a server of vLLM, how many tokens a request has.
///
/// OpenAI is asked in the format of its Responses API, and so are its tools written;
/// vLLM in that of chat completions.
#[derive(Debug)]
pub struct OpenAiCounter {
    provider: Provider,
    name: String,
    model: String,
    is_responses: bool,
}

impl OpenAiCounter {
    /// Nothing is sent yet. The key is what [`OpenAiCounterConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(config: &OpenAiCounterConfig, api_key: Option<ApiKey>) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let is_responses = is_responses(config.endpoint, &base);
        let (base, path) = match is_responses {
            true => (base, "/responses/input_tokens"),
            false => (http::above_v1(base), "/tokenize"),
        };
        let provider = Provider::new(Site {
            what: "counts",
            base: &base,
            path,
            headers: http::bearer(api_key.as_ref()),
            api_key,
            tries: Tries {
                max: 1,
                limit: TimeLimit::All(config.timeout),
            },
        })?;
        let model = config.model.clone().unwrap_or_default();
        let name = format!("openai:{model}");
        Ok(Self {
            provider,
            name,
            model,
            is_responses,
        })
    }

    async fn tokens(&self, ask: &CountAsk) -> Result<u64, Fault> {
        let mut request = Object::new();
        put_text(&mut request, "model", &self.model)?;
        if !ask.tools_json.is_empty() {
            put(&mut request, "tools", &self.tools(&ask.tools_json)?)?;
        }
        if self.is_responses {
            if !ask.system.is_empty() {
                put_text(&mut request, "instructions", &ask.system)?;
            }
            put(&mut request, "input", &ask.messages_json)?;
            return super::count(&self.provider, ask, &request, "input_tokens").await;
        }
        put(&mut request, "messages", &messages(ask)?)?;
        super::count(&self.provider, ask, &request, "count").await
    }

    /// The tools as this endpoint takes them, whichever of OpenAI's two ways they are
    /// written in: with what describes a function inside of it, or beside its type.
    fn tools(&self, tools_json: &str) -> Result<String, Fault> {
        let tools: Vec<Value> = serde_json::from_str(tools_json).map_err(|_| no_list("tools"))?;
        let tools = tools.into_iter().map(|tool| match self.is_responses {
            true => flat(tool),
            false => nested(tool),
        });
        Ok(Value::Array(tools.collect()).to_string())
    }
}

impl TokenCounter for OpenAiCounter {
    fn name(&self) -> &str {
        &self.name
    }

    fn format(&self) -> MessageFormat {
        match self.is_responses {
            true => MessageFormat::OpenAiResponses,
            false => MessageFormat::OpenAi,
        }
    }

    fn count(&self, ask: CountAsk) -> Counting<'_> {
        Box::pin(async move { Ok(self.tokens(&ask).await?) })
    }
}

fn is_responses(endpoint: CountEndpoint, base: &Url) -> bool {
    match endpoint {
        CountEndpoint::Auto => http::is_openai(base),
        CountEndpoint::ResponsesInputTokens => true,
        CountEndpoint::Tokenize => false,
    }
}

/// The messages, the system prompt as the first of them.
fn messages(ask: &CountAsk) -> Result<String, Fault> {
    if ask.system.is_empty() {
        return Ok(ask.messages_json.clone());
    }
    let messages: Vec<&RawValue> =
        serde_json::from_str(&ask.messages_json).map_err(|_| no_list("messages"))?;
    let system = json!({"role": "system", "content": ask.system}).to_string();
    let messages = messages.iter().map(|message| message.get());
    let messages: Vec<&str> = std::iter::once(system.as_str()).chain(messages).collect();
    Ok(format!("[{}]", messages.join(",")))
}

fn flat(mut tool: Value) -> Value {
    match tool.get_mut("function").map(Value::take) {
        Some(Value::Object(mut function)) => {
            function.insert("type".to_owned(), json!("function"));
            Value::Object(function)
        }
        Some(other) => {
            tool["function"] = other;
            tool
        }
        None => tool,
    }
}

fn nested(tool: Value) -> Value {
    match tool {
        Value::Object(mut function)
            if function.get("type") == Some(&json!("function"))
                && !function.contains_key("function") =>
        {
            function.remove("type");
            json!({"type": "function", "function": function})
        }
        other => other,
    }
}

fn no_list(name: &str) -> Fault {
    Fault::Refused {
        problem: format!("{name} of the request are no JSON list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_counts_where_depends_on_the_host() {
        let at = |endpoint, url: &str| is_responses(endpoint, &http::base(url).expect(url));
        assert!(at(CountEndpoint::Auto, "https://api.openai.com/v1"));
        assert!(!at(CountEndpoint::Auto, "http://127.0.0.1:8000/v1"));
        assert!(at(
            CountEndpoint::ResponsesInputTokens,
            "http://127.0.0.1:8000/v1"
        ));
        assert!(!at(CountEndpoint::Tokenize, "https://api.openai.com/v1"));
    }

    #[test]
    fn tools_are_written_either_way() {
        let inside = json!({"type": "function", "function": {"name": "f", "strict": true}});
        let beside = json!({"name": "f", "strict": true, "type": "function"});
        assert_eq!(flat(inside.clone()), beside);
        assert_eq!(flat(beside.clone()), beside);
        assert_eq!(nested(beside), inside);
        assert_eq!(nested(inside.clone()), inside);
        for odd in [
            json!({"type": "web_search"}),
            json!(1),
            json!({"function": 1}),
        ] {
            assert_eq!((flat(odd.clone()), nested(odd.clone())), (odd.clone(), odd));
        }
    }
}
