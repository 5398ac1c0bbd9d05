//! The deadline that a client sets for its call.

use std::time::Duration;

use http::HeaderMap;

/// Parses the client's deadline (gRPC over HTTP/2, `grpc-timeout`).
pub(super) fn of_grpc(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows up to 8 digits.
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn grpc_timeout_is_parsed() {
        let read = |text: &str| {
            let text = HeaderValue::from_str(text).unwrap();
            of_grpc(&HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-timeout"),
                text,
            )]))
        };
        assert_eq!(read("2S"), Some(Duration::from_secs(2)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(read("1H"), Some(Duration::from_secs(3_600)));
        for wrong in ["", "S", "2", "2s", "-2S", "999999999S", "2\u{b5}"] {
            let wrong = HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            let name = http::HeaderName::from_static("grpc-timeout");
            assert_eq!(of_grpc(&HeaderMap::from_iter([(name, wrong)])), None);
        }
        assert_eq!(of_grpc(&HeaderMap::new()), None);
    }
}
