//! Decides whether a redirect is followed, and formats URLs.

use memoird_engine::HookError;
use memoird_http::status_text;
use reqwest::header::LOCATION;
use reqwest::{Response, Url};

use super::CHARS_MAX;
use crate::text::line;

/// The target of a redirect that may be followed. `None` if the response is not a redirect.
pub(super) fn redirect(from: &Url, answer: &Response) -> Result<Option<Url>, HookError> {
    let status = answer.status();
    let keeps_method = match status.as_u16() {
        307 | 308 => true,
        301..=303 => false,
        _ => return Ok(None),
    };
    let title = status_text(status);
    let location = answer
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok());
    let Some(to) = location.and_then(|location| from.join(location).ok()) else {
        return Err(HookError::later(format!("{title} without a location")));
    };
    let is_same_host = from.origin() == to.origin();
    if keeps_method && is_same_host && to.username().is_empty() && to.password().is_none() {
        return Ok(Some(to));
    }
    let problem = if is_same_host {
        "only 307 and 308 are followed"
    } else {
        "redirects to another host are not followed"
    };
    let to = shown(&to);
    Err(HookError::later(format!(
        "{title} to {to}: {problem}; is that the url to configure?"
    )))
}

/// Formats a URL without parts that may be secret.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // They fail if the URL cannot have them.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    line(url.as_str().as_bytes(), CHARS_MAX)
}
