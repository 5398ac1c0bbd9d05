//! Stands in for what other crates will bring under the same names: the rendering of
//! messages, the catalogue of models, and the tokenizers. Gone once they are there.

use std::path::Path;

use memoird_core::formats::MessageFormat;
use memoird_core::model::{Budget, ModelProfile, Provider, TokenizerKind};
use memoird_core::tokens::Tokenizer;
use memoird_core::turn::{PartKind, Role, Turn};
use serde_json::{Value, json};

/// `memoird_core::formats::RenderOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RenderOptions<'a> {
    pub(crate) system: &'a str,
    pub(crate) cache_after: &'a [usize],
}

/// `memoird_core::formats::Rendered`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rendered {
    pub(crate) system: String,
    pub(crate) messages_json: String,
    pub(crate) ends: Vec<usize>,
}

/// `memoird_core::formats::render`: text only.
pub(crate) fn render(
    format: MessageFormat,
    turns: &[Turn],
    options: &RenderOptions<'_>,
) -> Rendered {
    let mut messages = Vec::new();
    if format == MessageFormat::OpenAi && !options.system.is_empty() {
        messages.push(json!({ "role": "system", "content": options.system }));
    }
    let mut ends = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        let role = match turn.role {
            Role::User | Role::Tool => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
        };
        let texts = turn.parts.iter().map(|part| match &part.kind {
            PartKind::Text(text) => text.clone(),
            other => format!("{other:?}"),
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        let mut message = json!({ "role": role, "content": text });
        if options.cache_after.contains(&index) {
            message["cache_control"] = json!({ "type": "ephemeral" });
        }
        messages.push(message);
        ends.push(messages.len());
    }
    Rendered {
        system: options.system.to_owned(),
        messages_json: Value::from(messages).to_string(),
        ends,
    }
}

/// `memoird_core::model::catalogue`.
pub(crate) fn catalogue() -> Vec<ModelProfile> {
    let profile = |name: &str, provider, tokenizer, context_window| ModelProfile {
        name: name.to_owned(),
        provider,
        tokenizer,
        budget: Budget {
            context_window,
            max_reply_tokens: 4_096,
            safety_headroom: 2_048,
            tool_result_headroom: 8_192,
        },
    };
    vec![
        profile("default", Provider::Open, TokenizerKind::Estimate, 200_000),
        profile("gpt-4o", Provider::OpenAi, TokenizerKind::O200k, 128_000),
    ]
}

/// `memoird_core::tokens::{O200k, Cl100k, Estimate}`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimate;

impl Tokenizer for Estimate {
    fn count(&self, text: &str) -> usize {
        text.len().div_ceil(4)
    }

    fn margin(&self) -> f64 {
        0.25
    }
}

/// `memoird_models::HfTokenizer`.
#[derive(Clone, Debug)]
pub(crate) struct HfTokenizer;

impl HfTokenizer {
    pub(crate) fn from_file(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        let value: Result<Value, _> = serde_json::from_slice(&text);
        value.map(|_| Self).map_err(|error| error.to_string())
    }
}

impl Tokenizer for HfTokenizer {
    fn count(&self, text: &str) -> usize {
        Estimate.count(text)
    }

    fn margin(&self) -> f64 {
        0.0
    }
}
