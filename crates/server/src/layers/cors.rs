//! Cross-origin requests of web pages (CORS).

use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Method, Uri};
use memoird_core::config::Problems;
use serde::{Deserialize, Serialize};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// How long a browser may cache the response to a preflight request.
const CACHED: Duration = Duration::from_secs(10 * 60);

/// The section `server.cors`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CorsConfig {
    /// Origins of pages that may call the API.
    allowed_origins: Vec<String>,
}

impl CorsConfig {
    pub(crate) fn check(&self, problems: &mut Problems) {
        for (index, origin) in self.allowed_origins.iter().enumerate() {
            problems.unless(
                is_origin(origin),
                &format!("allowed_origins[{index}]"),
                "expected an origin: a scheme and a host, such as https://chat.example or \
                 http://localhost:3000",
            );
        }
    }

    /// Returns the layer that answers browsers, unless no origin is allowed.
    pub(crate) fn layer(&self) -> Option<CorsLayer> {
        let origins = self.allowed_origins.iter();
        let origins: Vec<HeaderValue> = origins.filter_map(|origin| origin.parse().ok()).collect();
        if origins.is_empty() {
            return None;
        }
        let headers = [
            "connect-protocol-version",
            "connect-timeout-ms",
            "last-event-id",
            "memoird-inline-json",
            "memoird-max-reply-bytes",
        ];
        let headers = headers.into_iter().map(HeaderName::from_static);
        let headers = headers.chain([ACCEPT, AUTHORIZATION, CONTENT_TYPE]);
        let layer = CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(headers.collect::<Vec<_>>())
            .max_age(CACHED);
        Some(layer)
    }
}

/// Whether a text is an origin as browsers send it: without a path, and in lower case.
fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let expected = match (uri.scheme_str(), uri.authority()) {
        (Some(scheme @ ("http" | "https")), Some(authority)) => format!("{scheme}://{authority}"),
        _ => return false,
    };
    let has_user = text.contains('@');
    expected == text && !has_user && !text.contains('*') && text == text.to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_scheme_and_host() {
        for origin in [
            "https://chat.example",
            "http://localhost:3000",
            "http://[::1]:80",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for other in [
            "",
            "*",
            "null",
            "chat.example",
            "https://",
            "https://chat.example/",
            "https://a.example/b",
            "https://*.example",
            "https://Chat.example",
            "ftp://a.example",
            "https://u@a.example",
        ] {
            assert!(!is_origin(other), "{other}");
        }
    }
}
