//! What a provider's refusal means, told without a word of what was sent: providers repeat
//! keys and texts in their messages, so only their codes are shown.

use std::time::Duration;

use memoird_engine::EmbedError;
use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

/// A longer pause is not believed.
const AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of a provider's code.
const CODE_BYTES_MAX: usize = 64;
/// Bytes of a text that a code may not hold.
const PRIVATE_BYTES_LEAST: usize = 4;

/// What an answer with this status means; `said` is its code, if it told one.
pub(super) fn problem(status: StatusCode, headers: &HeaderMap, said: &str) -> EmbedError {
    let mut problem = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    if !said.is_empty() {
        problem = format!("{problem} ({said})");
    }
    match status.as_u16() {
        408 | 409 | 425 | 429 | 500..=599 => EmbedError::Later { problem, after: pause(headers) },
        400 | 413 | 422 => EmbedError::Refused { problem },
        number => {
            let hint = match number {
                401 | 403 => "check api_key, and whether it may use the model",
                404 => "check model (is it there, or pulled?) and base_url (does it lack /v1?)",
                300..=399 => "it redirects; put where to into base_url",
                _ => "check base_url, model and api_key",
            };
            EmbedError::Misconfigured { problem: format!("{problem}; {hint}") }
        }
    }
}

/// The codes of an error as OpenAI, vLLM, Ollama and TEI write it, such as
/// `invalid_request_error, model_not_found`. Nothing that stands in `private`.
pub(super) fn codes<'a>(body: &[u8], private: &(impl Iterator<Item = &'a str> + Clone)) -> String {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else { return String::new() };
    let inner = answer.get("error").filter(|error| error.is_object()).unwrap_or(&answer);
    let words = ["type", "error_type", "code"].into_iter().filter_map(|name| inner.get(name));
    let words = words.filter_map(Value::as_str);
    let words = words.filter(|word| is_code(word) && !private.clone().any(|p| meet(p, word)));
    words.collect::<Vec<_>>().join(", ")
}

fn is_code(word: &str) -> bool {
    let is_of_codes = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=CODE_BYTES_MAX).contains(&word.len()) && word.bytes().all(is_of_codes)
}

/// Whether a code repeats something private. Every code has some short text in it.
fn meet(private: &str, word: &str) -> bool {
    private.contains(word) || (private.len() >= PRIVATE_BYTES_LEAST && word.contains(private))
}

/// The pause of `Retry-After` (RFC 9110, section 10.2.3). A date is compared with the
/// answer's own; without one it says nothing.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    let pause = match asked.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let until = httpdate::parse_http_date(asked).ok()?;
            let now = httpdate::parse_http_date(text(DATE)?).ok()?;
            until.duration_since(now).unwrap_or_default()
        }
    };
    Some(pause.min(AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderName;

    use super::*;

    fn of(pairs: &[(HeaderName, &'static str)]) -> Option<Duration> {
        let pairs = pairs.iter();
        let values = pairs.map(|(name, value)| (name.clone(), value.parse().expect("a value")));
        pause(&values.collect())
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_until_a_moment() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(RETRY_AFTER, "20")]), seconds(20));
        assert_eq!(of(&[(RETRY_AFTER, "999999999999")]), seconds(86_400));
        let until = (RETRY_AFTER, "Sun, 06 Nov 1994 08:50:37 GMT");
        assert_eq!(of(std::slice::from_ref(&until)), None);
        let at = |date| of(&[until.clone(), (DATE, date)]);
        assert_eq!(at("Sun, 06 Nov 1994 08:50:07 GMT"), seconds(30));
        assert_eq!(at("Sun, 06 Nov 1994 08:51:07 GMT"), seconds(0));
        assert_eq!(at("yesterday"), None);
        for odd in ["-1", "soon", "1.5", "", "99999999999999999999999"] {
            assert_eq!(of(&[(RETRY_AFTER, odd)]), None, "{odd}");
        }
    }

    #[test]
    fn a_status_says_whether_another_try_helps() {
        let kind = |number| {
            let status = StatusCode::from_u16(number).expect("a status");
            match problem(status, &HeaderMap::new(), "") {
                EmbedError::Later { .. } => "later",
                EmbedError::Misconfigured { .. } => "misconfigured",
                EmbedError::Refused { .. } => "refused",
            }
        };
        for (expected, numbers) in [
            ("later", &[408, 409, 425, 429, 500, 502, 503, 504, 529][..]),
            ("refused", &[400, 413, 422]),
            ("misconfigured", &[101, 301, 308, 401, 402, 403, 404, 405, 410, 600]),
        ] {
            assert!(numbers.iter().all(|number| kind(*number) == expected), "{expected}");
        }
    }

    #[test]
    fn codes_are_told_and_messages_are_not() {
        let of = |body: &str, private: &str| codes(body.as_bytes(), &[private].into_iter());
        let openai = r#"{"error":{"message":"Incorrect key: sk-123","type":"invalid_request_error",
            "param":null,"code":"invalid_api_key"}}"#;
        assert_eq!(of(openai, "sk-123"), "invalid_request_error, invalid_api_key");
        assert_eq!(
            of(r#"{"error":"too long: hello","error_type":"Validation"}"#, ""),
            "Validation"
        );
        assert_eq!(
            of(r#"{"object":"error","type":"BadRequestError","code":400}"#, ""),
            "BadRequestError"
        );
        for word in ["two words", "", "a\\u001b[2J", "grün", &"x".repeat(65)] {
            assert_eq!(of(&format!(r#"{{"error":{{"code":"{word}"}}}}"#), ""), "", "{word}");
        }
        assert_eq!(of(openai, "a"), "invalid_request_error, invalid_api_key");
        for private in ["hunter2", "my password is hunter2!", "hunter"] {
            assert_eq!(of(r#"{"error":{"code":"hunter2"}}"#, private), "", "{private}");
        }
        for body in ["", "null", "[]", "{", r#"{"error":null}"#, r#"{"error":{"code":{}}}"#] {
            assert_eq!(of(body, ""), "", "{body}");
        }
    }
}
