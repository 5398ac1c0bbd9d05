//! Base URLs of providers.

use memoird_http::parse_url;
use reqwest::Url;

use crate::error::ModelError;

/// Maximum bytes of a base URL in the configuration.
const URL_BYTES_MAX: usize = 1_024;
/// Suffixes of OpenAI's hosts.
const OPENAI_HOSTS: [&str; 2] = ["api.openai.com", ".openai.azure.com"];

/// Parses the base URL of a provider.
///
/// # Errors
/// [`ModelError::BaseUrlInvalid`].
pub(crate) fn base(base_url: &str) -> Result<Url, ModelError> {
    let invalid = |problem: String| ModelError::BaseUrlInvalid { problem };
    if base_url.len() > URL_BYTES_MAX {
        return Err(invalid(format!("has more than {URL_BYTES_MAX} bytes")));
    }
    let mut url = parse_url(base_url).map_err(|error| invalid(error.to_string()))?;
    url.set_fragment(None);
    Ok(url)
}

/// Removes `/v1` from the end of a base URL, which users may write or omit.
pub(crate) fn above_v1(mut base: Url) -> Url {
    let path = base.path().trim_end_matches('/');
    let above = path.strip_suffix("/v1").unwrap_or(path).to_owned();
    base.set_path(&above);
    base
}

/// Whether the host is OpenAI's or Azure's.
///
/// Only these have some endpoints, and only these reject some fields.
pub(crate) fn is_openai(base: &Url) -> bool {
    let host = base.host_str().unwrap_or_default();
    OPENAI_HOSTS.iter().any(|openai| host.ends_with(openai))
}

/// The URL of an endpoint below a base URL. For an empty path, the base URL itself.
pub(super) fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    if !path.is_empty() {
        url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    }
    url
}

/// Host, port and path of a base URL, without the query, which may contain a token.
pub(crate) fn shown(base: &Url) -> String {
    let host = base.host_str().unwrap_or_default();
    let port = base
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{host}{port}{}", base.path().trim_end_matches('/'))
}

/// The same for a configured text. Empty if it is not a URL.
pub(crate) fn shown_base(base_url: &str) -> String {
    base(base_url).as_ref().map(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_appended_to_base_url() {
        for (given, expected, seen) in [
            (
                "https://api.openai.com/v1",
                "https://api.openai.com/v1/embeddings",
                "api.openai.com/v1",
            ),
            (
                "http://127.0.0.1:11434/v1/",
                "http://127.0.0.1:11434/v1/embeddings",
                "127.0.0.1:11434/v1",
            ),
            ("http://tei", "http://tei/embeddings", "tei"),
            (
                "https://a.example/v1?key=s#x",
                "https://a.example/v1/embeddings?key=s",
                "a.example/v1",
            ),
        ] {
            let base = base(given).expect(given);
            assert_eq!(below(&base, "/embeddings").as_str(), expected);
            assert_eq!(
                (shown(&base), shown_base(given)),
                (seen.to_owned(), seen.to_owned())
            );
            assert_eq!(below(&base, ""), base);
        }
        for given in [
            "http://a.example/x",
            "http://a.example/x/v1",
            "http://a.example/x/v1/",
        ] {
            let base = above_v1(base(given).expect(given));
            assert_eq!(
                below(&base, "/v1/messages").as_str(),
                "http://a.example/x/v1/messages"
            );
        }
        let long = format!("http://a.example/{}", "x".repeat(URL_BYTES_MAX));
        for bad in [
            "",
            "api.openai.com/v1",
            "ftp://a.example",
            "http://ann:pw@a.example",
            &long,
        ] {
            assert_eq!(shown_base(bad), "");
            let error = base(bad).expect_err(bad);
            assert!(
                matches!(error, ModelError::BaseUrlInvalid { .. }),
                "{error}"
            );
            assert!(!error.to_string().contains("pw"), "{error}");
        }
    }
}
