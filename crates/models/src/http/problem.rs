//! Classifies a provider's error response.
//!
//! Providers repeat keys and texts in their messages, so only their error codes are displayed.

use std::time::Duration;

use memoird_engine::{FaultKind, ModelFault};
use memoird_http::{retry_after, status_text};
use reqwest::StatusCode;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// Maximum accepted `Retry-After`. Longer ones are reduced to it.
const AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum bytes of an error code.
const CODE_BYTES_MAX: usize = 64;
/// Minimum bytes of a private text to search for in an error code.
const PRIVATE_BYTES_MIN: usize = 4;

/// Codes for a request that is too long: of OpenAI and compatible servers, llama.cpp and Anthropic.
const TOO_LONG_CODES: [&str; 4] = [
    "context_length_exceeded",
    "string_above_max_length",
    "exceed_context_size_error",
    "request_too_large",
];
/// The same for errors with only a message.
///
/// OpenAI and vLLM (older and newer), llama.cpp, Ollama, Anthropic (prompt alone, and with its
/// reply), Gemini, Groq, and OpenAI if an account's tokens per minute are exceeded.
const TOO_LONG_WORDS: [&str; 11] = [
    "maximum context length",
    "maximum model length",
    "exceeds the available context size",
    "exceeds the context",
    "too large to process",
    "prompt is too long",
    "exceed context limit",
    "exceeds the maximum number of tokens",
    "reduce the length of the messages",
    "request too large",
    "request_too_large",
];
/// Codes of OpenAI and compatible servers for errors that only configuration or payment can fix.
///
/// Their status is 400 or 429.
const WRONG_CODES: [&str; 8] = [
    "model_not_found",
    "invalid_model",
    "unsupported_parameter",
    "unsupported_value",
    "unknown_parameter",
    "invalid_api_key",
    "billing_error",
    "insufficient_quota",
];
/// Messages for these with status 400: Anthropic without credit, xAI and Gemini for a wrong key.
const WRONG_WORDS: [&str; 2] = ["credit balance is too low", "api key"];

/// Converts an error response to a fault whose message repeats nothing of `private`.
pub(crate) fn error_response<'a>(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    private: &(impl Iterator<Item = &'a str> + Clone),
) -> ModelFault {
    let refusal = ErrorResponse::read(body);
    let mut problem = status_text(status);
    let codes = refusal.shown(private);
    if !codes.is_empty() {
        problem = format!("{problem} ({codes})");
    }
    // The message of a rate limit may mention a key.
    let is_out_of_money = status.as_u16() == 429 && refusal.has(&WRONG_CODES, &[]);
    match status.as_u16() {
        400 | 413 | 422 | 429 | 500 if refusal.is_too_long() => {
            ModelFault::new(FaultKind::TooLong, problem)
        }
        408 | 409 | 425 | 429 | 500..=599 if !is_out_of_money => ModelFault {
            kind: FaultKind::Later,
            problem,
            after: retry_after(headers, None).map(|pause| pause.min(AFTER_MAX)),
        },
        413 => ModelFault::new(FaultKind::TooLong, problem),
        400 | 422 if !refusal.is_wrong() => ModelFault::new(FaultKind::Refused, problem),
        number => {
            let hint = match number {
                401 | 403 => "check api_key, and whether it may use the model",
                404 => "check model (is it there, or pulled?) and base_url (does it lack /v1?)",
                300..=399 => "it redirects; put the target into base_url",
                400 | 422 | 429 => "check model, api_key, the account and the request options",
                _ => "check base_url, model and api_key",
            };
            ModelFault::new(FaultKind::Misconfigured, format!("{problem}; {hint}"))
        }
    }
}

/// How OpenAI, Azure, Groq, Gemini and servers with Pydantic report an unknown field.
const UNKNOWN_WORDS: [&str; 7] = [
    "unsupported",
    "not supported",
    "unrecognized",
    "unknown",
    "cannot find field",
    "extra_forbidden",
    "extra inputs are not permitted",
];

/// Whether a response rejects a field because the provider or the model does not support it.
///
/// A value out of range is another error.
pub(crate) fn is_unknown_field(status: StatusCode, body: &[u8], field: &str) -> bool {
    let text = String::from_utf8_lossy(body).to_lowercase();
    matches!(status.as_u16(), 400 | 422)
        && text.contains(field)
        && UNKNOWN_WORDS.iter().any(|word| text.contains(word))
}

/// Converts an error in the body of a response with status 200, as some gateways send it.
pub(crate) fn error_in_success_body(body: &[u8]) -> ModelFault {
    let kind = if ErrorResponse::read(body).is_too_long() {
        FaultKind::TooLong
    } else {
        FaultKind::Unusable
    };
    ModelFault::new(kind, "the response is an error")
}

/// A parsed error response.
struct ErrorResponse {
    codes: Vec<String>,
    /// In lower case. Only searched, never displayed.
    message: String,
}

impl ErrorResponse {
    /// Parses an error in the format of OpenAI, Anthropic, vLLM, Ollama and TEI, or Gemini's list.
    ///
    /// A body that is not JSON becomes the message.
    fn read(body: &[u8]) -> Self {
        let Ok(answer) = serde_json::from_slice::<Value>(body) else {
            let message = String::from_utf8_lossy(body).to_lowercase();
            return Self {
                codes: Vec::new(),
                message,
            };
        };
        let answer = answer.get(0).unwrap_or(&answer);
        let inner = answer
            .get("error")
            .filter(|error| error.is_object())
            .unwrap_or(answer);
        let word = |name| inner.get(name).and_then(Value::as_str);
        let mut codes: Vec<String> = ["type", "error_type", "code"]
            .into_iter()
            .filter_map(word)
            .filter(|word| is_code(word))
            .map(str::to_owned)
            .collect();
        codes.dedup();
        let message = ["message", "error", "detail"].into_iter().find_map(word);
        Self {
            codes,
            message: message.unwrap_or_default().to_lowercase(),
        }
    }

    /// Its codes, such as `invalid_request_error, model_not_found`, except those with private text.
    fn shown<'a>(&self, private: &(impl Iterator<Item = &'a str> + Clone)) -> String {
        let codes = self.codes.iter().map(String::as_str).filter(|word| {
            !private
                .clone()
                .any(|private| repeats_private_text(private, word))
        });
        codes.collect::<Vec<_>>().join(", ")
    }

    fn is_too_long(&self) -> bool {
        self.has(&TOO_LONG_CODES, &TOO_LONG_WORDS)
    }

    fn is_wrong(&self) -> bool {
        self.has(&WRONG_CODES, &WRONG_WORDS)
    }

    /// Whether it has one of these codes, or its message contains one of these texts.
    fn has(&self, codes: &[&str], words: &[&str]) -> bool {
        let is_known = |code: &String| codes.contains(&code.as_str());
        let stands = |words: &&str| self.message.contains(*words);
        self.codes.iter().any(is_known) || words.iter().any(stands)
    }
}

fn is_code(word: &str) -> bool {
    let is_of_codes = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=CODE_BYTES_MAX).contains(&word.len()) && word.bytes().all(is_of_codes)
}

/// Whether a code repeats private text. Very short texts are ignored, as they occur in every code.
fn repeats_private_text(private: &str, word: &str) -> bool {
    private.contains(word) || (private.len() >= PRIVATE_BYTES_MIN && word.contains(private))
}

#[cfg(test)]
mod tests {
    use reqwest::header::RETRY_AFTER;

    use super::*;

    #[test]
    fn long_retry_after_is_limited_to_a_day() {
        for (value, seconds) in [("20", 20), ("999999999999", 86_400)] {
            let headers = [(RETRY_AFTER, value.parse().expect("a value"))]
                .into_iter()
                .collect();
            let none = std::iter::empty();
            let fault = error_response(StatusCode::TOO_MANY_REQUESTS, &headers, b"", &none);
            assert_eq!(fault.after, Some(Duration::from_secs(seconds)));
        }
    }

    fn refused(number: u16, body: &str) -> ModelFault {
        let status = StatusCode::from_u16(number).expect("a status");
        error_response(
            status,
            &HeaderMap::new(),
            body.as_bytes(),
            &std::iter::empty(),
        )
    }

    fn kind(fault: &ModelFault) -> &'static str {
        match fault.kind {
            FaultKind::Later => "later",
            FaultKind::Unusable => "strange",
            FaultKind::Misconfigured => "misconfigured",
            FaultKind::TooLong => "too long",
            FaultKind::Refused => "refused",
        }
    }

    #[test]
    fn status_determines_whether_to_retry() {
        for (expected, numbers) in [
            ("later", &[408, 409, 425, 429, 500, 502, 503, 504, 529][..]),
            ("refused", &[400, 422]),
            ("too long", &[413]),
            (
                "misconfigured",
                &[101, 301, 308, 401, 402, 403, 404, 405, 410, 600],
            ),
        ] {
            for number in numbers {
                assert_eq!(kind(&refused(*number, "{}")), expected, "{number}");
            }
        }
    }

    #[test]
    fn unknown_field_errors_of_all_providers_are_detected() {
        let is =
            |body: &str, field| is_unknown_field(StatusCode::BAD_REQUEST, body.as_bytes(), field);
        for (body, field) in [
            (
                r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this
                    model. Use 'max_completion_tokens' instead.","type":"invalid_request_error",
                    "param":"max_tokens","code":"unsupported_parameter"}}"#,
                "max_tokens",
            ),
            (
                r#"{"error":{"message":"Unrecognized request argument supplied: max_completion_tokens",
                    "type":"invalid_request_error","param":null,"code":null}}"#,
                "max_completion_tokens",
            ),
            (
                r#"{"error":{"message":"property 'max_completion_tokens' is unsupported"}}"#,
                "max_completion_tokens",
            ),
            (
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],
                    "msg":"Extra inputs are not permitted","input":1000}]}"#,
                "max_completion_tokens",
            ),
        ] {
            assert!(is(body, field), "{body}");
        }
        for (body, field) in [
            (
                r#"{"error":{"message":"max_tokens is too large: 5000","param":"max_tokens",
                    "code":"invalid_value"}}"#,
                "max_tokens",
            ),
            (
                r#"{"error":{"message":"Unsupported parameter: 'temperature'",
                    "param":"temperature","code":"unsupported_parameter"}}"#,
                "max_tokens",
            ),
        ] {
            assert!(!is(body, field), "{body}");
        }
        let body = br#"{"error":{"message":"max_tokens is not supported"}}"#;
        assert!(!is_unknown_field(
            StatusCode::TOO_MANY_REQUESTS,
            body,
            "max_tokens"
        ));
    }

    #[test]
    fn too_long_errors_of_all_providers_are_detected() {
        let message = |words: &str| format!(r#"{{"error":{{"message":"{words}","code":null}}}}"#);
        for (number, body) in [
            (
                400,
                r#"{"error":{"type":"x","code":"context_length_exceeded"}}"#.to_owned(),
            ),
            (
                500,
                r#"{"error":{"code":500,"type":"exceed_context_size_error"}}"#.to_owned(),
            ),
            (
                400,
                message("This model's maximum context length is 8192 tokens. However"),
            ),
            (
                400,
                message("prompt is too long: 213462 tokens > 200000 maximum"),
            ),
            (
                400,
                message("input length and `max_tokens` exceed context limit: 188240 + 21333"),
            ),
            (
                400,
                message("the request exceeds the available context size. try increasing"),
            ),
            (
                400,
                message("The prompt is longer than the maximum model length of 4096"),
            ),
            (
                429,
                message("Request too large for gpt-4o on tokens per min (TPM): Limit 30000"),
            ),
            (
                500,
                message("input is too large to process. increase the physical batch size"),
            ),
            (
                400,
                r#"{"error":"the input length exceeds the context length"}"#.to_owned(),
            ),
            (
                400,
                r#"{"object":"error","message":"maximum context length is 9"}"#.to_owned(),
            ),
            (
                422,
                "The input token count (9) exceeds the maximum number of tokens".to_owned(),
            ),
        ] {
            assert_eq!(kind(&refused(number, &body)), "too long", "{body}");
        }
        let other = message("maximum context length");
        assert_eq!(kind(&refused(401, &other)), "misconfigured");
        assert_eq!(kind(&refused(503, &other)), "later");
        assert_eq!(kind(&refused(429, &message("Rate limit reached"))), "later");
    }

    #[test]
    fn configuration_errors_are_detected_by_code() {
        for body in [
            r#"{"error":{"type":"invalid_request_error","code":"unsupported_parameter"}}"#,
            r#"{"error":{"type":"a","message":"Your credit balance is too low to access"}}"#,
        ] {
            assert_eq!(kind(&refused(400, body)), "misconfigured", "{body}");
        }
        let quota = r#"{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}"#;
        assert_eq!(kind(&refused(429, quota)), "misconfigured");
        let limit = r#"{"error":{"message":"Rate limit reached for this API key"}}"#;
        assert_eq!(kind(&refused(429, limit)), "later");
        let filtered = r#"{"error":{"code":"content_filter"}}"#;
        assert_eq!(kind(&refused(400, filtered)), "refused");
    }

    #[test]
    fn error_in_success_body_is_an_error() {
        let problem = "the response is an error";
        let busy = error_in_success_body(br#"{"error":{"type":"rate_limited"}}"#);
        assert_eq!(busy, ModelFault::new(FaultKind::Unusable, problem));
        let long = error_in_success_body(br#"{"error":{"message":"prompt is too long"}}"#);
        assert_eq!(long, ModelFault::new(FaultKind::TooLong, problem));
    }

    #[test]
    fn error_codes_are_reported_and_messages_are_not() {
        let of = |body: &str, private: &str| {
            ErrorResponse::read(body.as_bytes()).shown(&[private].into_iter())
        };
        let openai = r#"{"error":{"message":"Incorrect key: sk-123","type":"invalid_request_error",
            "param":null,"code":"invalid_api_key"}}"#;
        assert_eq!(
            of(openai, "sk-123"),
            "invalid_request_error, invalid_api_key"
        );
        assert_eq!(
            of(
                r#"{"error":"too long: hello","error_type":"Validation"}"#,
                ""
            ),
            "Validation"
        );
        assert_eq!(
            of(
                r#"{"object":"error","type":"BadRequestError","code":400}"#,
                ""
            ),
            "BadRequestError"
        );
        for word in ["two words", "", "a\\u001b[2J", "grün", &"x".repeat(65)] {
            assert_eq!(
                of(&format!(r#"{{"error":{{"code":"{word}"}}}}"#), ""),
                "",
                "{word}"
            );
        }
        assert_eq!(of(openai, "a"), "invalid_request_error, invalid_api_key");
        for private in ["hunter2", "my password is hunter2!", "hunter"] {
            assert_eq!(
                of(r#"{"error":{"code":"hunter2"}}"#, private),
                "",
                "{private}"
            );
        }
        for body in [
            "",
            "null",
            "[]",
            "{",
            r#"{"error":null}"#,
            r#"{"error":{"code":{}}}"#,
        ] {
            assert_eq!(of(body, ""), "", "{body}");
        }
    }

    #[test]
    fn wrong_key_is_detected_by_message() {
        for body in [
            r#"{"code":"invalid-argument","error":"Incorrect API key provided: xa***. You can"}"#,
            r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}"#,
            r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key."}}]"#,
        ] {
            assert_eq!(kind(&refused(400, body)), "misconfigured", "{body}");
        }
        let long = r#"[{"error":{"message":"exceeds the maximum number of tokens"}}]"#;
        assert_eq!(kind(&refused(400, long)), "too long");
    }
}
