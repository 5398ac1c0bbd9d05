//! Summaries by OpenAI's chat completions, which many servers speak: Ollama, vLLM,
//! llama.cpp and most gateways.

use std::sync::Arc;

use memoird_core::compaction::prompt;
use memoird_engine::{Answer, Stop, Summaries, SummarizeError, Summarizer, SummaryAsk};
use reqwest::Url;
use serde_json::{Value, json};

use super::{OpenAiSummarizerConfig, TokenLimit};
use crate::error::ModelError;
use crate::http::{self, ApiKey, Fault, Provider, Question, Site, TimeLimit, Tries};

/// Asks an OpenAI-compatible provider for summaries.
#[derive(Debug)]
pub struct OpenAiSummarizer {
    provider: Provider,
    name: String,
    config: OpenAiSummarizerConfig,
    /// The field for the limit of the answer.
    limit: &'static str,
}

const WHOSE: &str = "an OpenAI-compatible server";
/// Around what some servers leave of a model's thoughts in its answer.
const THOUGHTS: [&str; 2] = ["<think>", "</think>"];

impl OpenAiSummarizer {
    /// Nothing is sent yet. The key is what [`OpenAiSummarizerConfig::api_key`] names.
    ///
    /// # Errors
    /// [`ModelError::BaseUrlInvalid`], [`ModelError::SettingOutOfRange`],
    /// [`ModelError::TlsUnavailable`].
    pub fn new(
        config: &OpenAiSummarizerConfig,
        api_key: Option<ApiKey>,
    ) -> Result<Self, ModelError> {
        config.check()?;
        let base = http::base(&config.base_url)?;
        let provider = Provider::new(Site {
            what: "summaries",
            base: &base,
            path: "/chat/completions",
            headers: http::bearer(api_key.as_ref()),
            api_key,
            tries: Tries {
                max: config.tries_max,
                limit: TimeLimit::All(config.timeout),
            },
        })?;
        let name = format!("openai:{}", config.model);
        let limit = limit(config.token_limit, &base);
        Ok(Self {
            provider,
            name,
            config: config.clone(),
            limit,
        })
    }

    async fn answer(&self, ask: &SummaryAsk) -> Result<Answer, SummarizeError> {
        let prompt = super::prompt(ask);
        let tokens = super::reply_tokens(ask.tokens_max);
        let mut body = json!({
            "model": self.config.model,
            "messages": [
                {"role": "system", "content": prompt::system()},
                {"role": "user", "content": prompt},
            ],
            self.limit: tokens.saturating_add(self.config.thinking_tokens),
        });
        if self.config.json_object {
            body["response_format"] = json!({"type": "json_object"});
        }
        let question = Question {
            body: body.to_string(),
            private: &super::private(ask, &prompt),
            bytes_max: super::ANSWER_BYTES_MAX,
        };
        Ok(self.provider.ask(&question, read).await?)
    }
}

impl Summarizer for OpenAiSummarizer {
    fn name(&self) -> &str {
        &self.name
    }

    fn input_tokens_max(&self) -> u64 {
        self.config.input_tokens_max
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn summarize(&self, ask: Arc<SummaryAsk>) -> Summaries<'_> {
        Box::pin(async move { self.answer(&ask).await })
    }
}

fn limit(configured: TokenLimit, base: &Url) -> &'static str {
    let is_new = match configured {
        TokenLimit::Auto => http::is_openai(base),
        TokenLimit::MaxTokens => false,
        TokenLimit::MaxCompletionTokens => true,
    };
    if is_new {
        "max_completion_tokens"
    } else {
        "max_tokens"
    }
}

fn read(body: &[u8]) -> Result<Answer, Fault> {
    let answer = super::fields(body, WHOSE)?;
    let choice = answer["choices"]
        .get(0)
        .filter(|choice| choice["message"].is_object());
    let choice = choice.ok_or_else(|| super::strange("has no choice with a message", WHOSE))?;
    let refusal = choice["message"]["refusal"].as_str().unwrap_or_default();
    // A reason that is not known yet, or none, is judged by what was written.
    let stop = match choice["finish_reason"].as_str() {
        _ if !refusal.is_empty() => Stop::Refused,
        Some("content_filter") => Stop::Refused,
        Some("length") => Stop::CutOff,
        _ => Stop::Complete,
    };
    let text = match &choice["message"]["content"] {
        Value::Null => refusal.to_owned(),
        content => without_thoughts(super::texts(content)),
    };
    Ok(Answer::Text { text, stop })
}

/// What follows a model's thoughts; nothing if they do not end.
fn without_thoughts(text: String) -> String {
    let [begin, end] = THOUGHTS;
    match text.trim_start().strip_prefix(begin) {
        None => text,
        Some(rest) => match rest.split_once(end) {
            Some((_, said)) => said.trim_start().to_owned(),
            None => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_stands_where_the_provider_looks() {
        let at = |configured, url: &str| limit(configured, &http::base(url).expect(url));
        for (url, expected) in [
            ("https://api.openai.com/v1", "max_completion_tokens"),
            (
                "https://me.openai.azure.com/openai/v1",
                "max_completion_tokens",
            ),
            ("http://127.0.0.1:11434/v1", "max_tokens"),
            ("https://openrouter.ai/api/v1", "max_tokens"),
        ] {
            assert_eq!(at(TokenLimit::Auto, url), expected, "{url}");
            assert_eq!(at(TokenLimit::MaxTokens, url), "max_tokens");
            assert_eq!(
                at(TokenLimit::MaxCompletionTokens, url),
                "max_completion_tokens"
            );
        }
    }

    #[test]
    fn thoughts_are_no_answer() {
        for (text, expected) in [
            ("{}", "{}"),
            ("<think>\nwell {} </think>\n\n{\"a\":1}", "{\"a\":1}"),
            (" <think>never ending", ""),
            ("see <think>x</think>", "see <think>x</think>"),
        ] {
            assert_eq!(without_thoughts(text.to_owned()), expected);
        }
    }
}
