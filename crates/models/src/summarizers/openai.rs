//! OpenAI's chat completions, also offered by Ollama, vLLM, llama.cpp and most gateways.

use std::sync::atomic::{AtomicBool, Ordering};

use memoird_engine::{ModelFault, TextEnd};
use reqwest::Url;
use serde_json::{Value, json};

use super::{ModelReply, ModelRequest, OpenAiSummarizerConfig, Protocol, TokenLimit};
use crate::http;

/// `POST /chat/completions` with this model.
#[derive(Debug)]
pub(super) struct ChatCompletions {
    model: String,
    /// Index in [`LIMITS`] of the name that the provider accepts.
    is_limit_new: AtomicBool,
    thinking_tokens: u64,
    json_object: bool,
}

/// Older and newer name of the field that limits the reply.
const LIMITS: [&str; 2] = ["max_tokens", "max_completion_tokens"];
const API: &str = "an OpenAI-compatible server";
/// Tags around a model's reasoning, which some servers leave in the reply.
const REASONING_TAGS: [&str; 2] = ["<think>", "</think>"];

impl ChatCompletions {
    pub(super) fn new(config: &OpenAiSummarizerConfig, base: &Url) -> Self {
        Self {
            model: config.model.clone(),
            is_limit_new: AtomicBool::new(is_limit_new(config.token_limit, base)),
            thinking_tokens: config.thinking_tokens,
            json_object: config.json_object,
        }
    }
}

impl ChatCompletions {
    fn limit(&self) -> &'static str {
        LIMITS[usize::from(self.is_limit_new.load(Ordering::Relaxed))]
    }
}

impl Protocol for ChatCompletions {
    fn limit_field(&self) -> Option<&'static str> {
        Some(self.limit())
    }

    fn switch_limit_field(&self, field: &'static str) {
        self.is_limit_new
            .store(field == LIMITS[0], Ordering::Relaxed);
    }

    fn body(&self, ask: &ModelRequest<'_>) -> Value {
        let tokens = super::reply_tokens(ask.tokens_max);
        let system = ask.system.iter();
        let mut messages: Vec<Value> = system
            .map(|system| json!({"role": "system", "content": system}))
            .collect();
        messages.push(json!({"role": "user", "content": ask.prompt}));
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            self.limit(): tokens.saturating_add(self.thinking_tokens),
        });
        if self.json_object {
            body["response_format"] = json!({"type": "json_object"});
        }
        body
    }

    fn read(&self, body: &[u8]) -> Result<ModelReply, ModelFault> {
        let answer = super::object(body, API)?;
        let choice = &answer["choices"][0];
        let message = &choice["message"];
        if !message.is_object() {
            return Err(super::unexpected("has no choice with a message", API));
        }
        let refusal = message["refusal"].as_str().unwrap_or_default();
        // For an unknown or missing reason, the text decides.
        let end = match choice["finish_reason"].as_str() {
            _ if !refusal.is_empty() => TextEnd::Refused,
            Some("content_filter") => TextEnd::Refused,
            Some("length") => TextEnd::CutOff,
            _ => TextEnd::Complete,
        };
        let text = match &message["content"] {
            Value::Null => refusal.to_owned(),
            content => without_reasoning(super::texts(content)),
        };
        let tokens = super::tokens(&answer["usage"], "prompt_tokens", "completion_tokens");
        Ok(ModelReply { text, end, tokens })
    }
}

fn is_limit_new(configured: TokenLimit, base: &Url) -> bool {
    match configured {
        TokenLimit::Auto => http::is_openai(base),
        TokenLimit::MaxTokens => false,
        TokenLimit::MaxCompletionTokens => true,
    }
}

/// The text after a model's reasoning. Empty if the reasoning does not end.
///
/// With a chat template that adds the opening tag to the prompt, the reply has only the closing
/// one.
fn without_reasoning(text: String) -> String {
    let [begin, end] = REASONING_TAGS;
    let said = text.trim_start();
    let begins = said.starts_with(begin);
    let is_answer = said.starts_with(['{', '[', '`']);
    match said.split_once(end) {
        Some((thoughts, said)) if begins || !(is_answer || thoughts.contains(begin)) => {
            said.trim_start().to_owned()
        }
        None if begins => String::new(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_limit_uses_field_of_provider() {
        let at = |configured, url: &str| {
            LIMITS[usize::from(is_limit_new(configured, &http::base(url).expect(url)))]
        };
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
    fn reasoning_is_removed_from_reply() {
        for (text, expected) in [
            ("{}", "{}"),
            ("<think>\nwell {} </think>\n\n{\"a\":1}", "{\"a\":1}"),
            (" <think>never ending", ""),
            ("see <think>x</think>", "see <think>x</think>"),
            ("Well, {\"a\":2}? No.\n</think>\n\n{\"a\":1}", "{\"a\":1}"),
            ("{\"a\":\"</think>\"}", "{\"a\":\"</think>\"}"),
        ] {
            assert_eq!(without_reasoning(text.to_owned()), expected);
        }
    }
}
