//! Requests and replies of summary providers, valid and invalid, in each of their formats.

use serde_json::{Value, json};

use super::super::service::Posted;
use super::SummaryReply;

/// The API of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Anthropic,
    OpenAi,
    Webhook,
}

/// Low estimate of bytes per token.
const TOKEN_BYTES: usize = 2;
/// Identifiers in these tests are not shorter.
const IDENTIFIER_BYTES_MIN: usize = 4;

impl Wire {
    pub(crate) const ALL: [Self; 3] = [Self::Anthropic, Self::OpenAi, Self::Webhook];

    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Anthropic),
            "/v1/chat/completions" => Some(Self::OpenAi),
            "/summarize" => Some(Self::Webhook),
            _ => None,
        }
    }

    pub(super) fn summarizer(self, port: u16, key: &str, own: &str) -> String {
        let (name, what) = match self {
            Self::Anthropic => (
                "anthropic",
                "model: small, base_url: 'http://127.0.0.1:PORT',",
            ),
            Self::OpenAi => (
                "openai",
                "model: small, base_url: 'http://127.0.0.1:PORT/v1',",
            ),
            Self::Webhook => ("webhook", "url: 'http://127.0.0.1:PORT/summarize',"),
        };
        let what = what.replace("PORT", &port.to_string());
        format!("{{ {name}: {{ {what} {own} api_key: {key} }} }}")
    }

    pub(crate) fn made_by(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic:small",
            Self::OpenAi => "openai:small",
            Self::Webhook => "webhook",
        }
    }

    /// Whether the request has this key in the header that the API defines.
    pub(super) fn has_key(self, posted: &Posted, key: &str) -> bool {
        match self {
            Self::Anthropic => posted.header("x-api-key") == key,
            Self::OpenAi | Self::Webhook => {
                posted.header("authorization") == format!("Bearer {key}")
            }
        }
    }

    #[track_caller]
    pub(crate) fn prompt(self, body: &Value) -> &str {
        let prompt = match self {
            Self::Anthropic => &body["messages"][0]["content"],
            Self::OpenAi => &body["messages"][1]["content"],
            Self::Webhook => &body["prompt"],
        };
        prompt
            .as_str()
            .unwrap_or_else(|| panic!("no prompt in {body}"))
    }

    pub(super) fn answer(self, kind: SummaryReply, body: &Value, key: &str) -> Vec<u8> {
        let prompt = self.prompt(body);
        let summary = summary(prompt).to_string();
        match kind {
            SummaryReply::Well | SummaryReply::Held | SummaryReply::Never => self.good(&summary),
            SummaryReply::Busy(seconds) => {
                let body = self.error_body("rate_limit_error", "Slow down");
                let header = format!("retry-after: {seconds}\r\n");
                reply("429 Too Many Requests", &header, &body)
            }
            SummaryReply::Broken => reply(
                "500 Internal Server Error",
                "",
                "<html>Internal Server Error</html>",
            ),
            SummaryReply::Echoes => {
                self.error("400 Bad Request", key, &format!("{key} said {prompt}"))
            }
            SummaryReply::HalfSummary => self.good(&summary[..summary.len() / 2]),
            SummaryReply::HalfAnswer => {
                let whole = self.good_body(&summary);
                reply("200 OK", "", &whole[..whole.len() / 2])
            }
            SummaryReply::Braces => self.good("{}"),
            SummaryReply::Apology => {
                self.good("I'm sorry, but I can't help with that conversation.")
            }
            SummaryReply::Narrow(bytes_max) if prompt.len() > bytes_max => self.too_long(),
            SummaryReply::Narrow(_) => self.good(&summary),
            SummaryReply::Closes => b"HTTP/1.1 200 OK\r\ncontent-le".to_vec(),
        }
    }

    fn good(self, text: &str) -> Vec<u8> {
        reply("200 OK", "", &self.good_body(text))
    }

    fn good_body(self, text: &str) -> String {
        match self {
            Self::Anthropic => json!({
                "id": "msg_01", "type": "message", "role": "assistant", "model": "small",
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            })
            .to_string(),
            Self::OpenAi => json!({
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "small",
                "choices": [{
                    "index": 0, "finish_reason": "stop", "logprobs": null,
                    "message": {"role": "assistant", "content": text, "refusal": null},
                }],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            })
            .to_string(),
            Self::Webhook => text.to_owned(),
        }
    }

    pub(super) fn error(self, status: &str, code: &str, message: &str) -> Vec<u8> {
        reply(status, "", &self.error_body(code, message))
    }

    fn error_body(self, code: &str, message: &str) -> String {
        let error = match self {
            Self::Anthropic => {
                json!({"type": "error", "error": {"type": code, "message": message}})
            }
            Self::OpenAi => json!({"error": {
                "message": message, "type": "invalid_request_error", "param": null, "code": code,
            }}),
            Self::Webhook => json!({"error": message}),
        };
        error.to_string()
    }

    fn too_long(self) -> Vec<u8> {
        let bad = "400 Bad Request";
        match self {
            Self::Anthropic => {
                let message = "prompt is too long: 213462 tokens > 200000 maximum";
                self.error(bad, "invalid_request_error", message)
            }
            Self::OpenAi => {
                let message = "This model's maximum context length is 8192 tokens.";
                self.error(bad, "context_length_exceeded", message)
            }
            Self::Webhook => reply("413 Content Too Large", "", ""),
        }
    }
}

/// The field of the count in replies, if this is a path for counts.
pub(super) fn count_field(path: &str) -> Option<&'static str> {
    match path {
        "/v1/messages/count_tokens" | "/v1/responses/input_tokens" => Some("input_tokens"),
        "/tokenize" => Some("count"),
        _ => None,
    }
}

pub(super) fn reply(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}");
    format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// Distinct words with a digit, the newest ones that fit into the token limit.
fn identifiers(prompt: &str) -> Vec<&str> {
    let tokens = prompt
        .rsplit("at most ")
        .next()
        .and_then(|rest| rest.split(' ').next());
    let tokens: usize = tokens
        .and_then(|tokens| tokens.parse().ok())
        .expect("its limit");
    let mut left = tokens * TOKEN_BYTES;
    let mut found: Vec<&str> = Vec::new();
    let given = prompt
        .rsplit_once("Summarize all")
        .map_or("", |(given, _)| given);
    for word in given.rsplit(|c: char| !(c.is_alphanumeric() || c == '-')) {
        let is_one = word.len() >= IDENTIFIER_BYTES_MIN && word.contains(|c: char| c.is_numeric());
        if !is_one || found.contains(&word) {
            continue;
        }
        let Some(rest) = left.checked_sub(word.len() + "- order \n".len()) else {
            break;
        };
        left = rest;
        found.push(word);
    }
    found.reverse();
    found
}

fn summary(prompt: &str) -> Value {
    // Prefix each identifier with its type.
    let facts: Vec<String> = identifiers(prompt)
        .iter()
        .map(|id| format!("order {id}"))
        .collect();
    json!({
        "standing_instructions": [],
        "withdrawn": [],
        "open_questions": [],
        "details": format!("The assistant looked orders up.\n{}", facts.join("\n")),
    })
}
