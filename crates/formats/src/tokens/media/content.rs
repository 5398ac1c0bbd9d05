//! Location of a media part's bytes: inline, in a `data:` URI, or elsewhere.

use std::borrow::Cow;

use memoird_core::turn::MediaSource;

use crate::base64;

#[derive(Clone, Copy)]
pub(in crate::tokens) enum Content<'a> {
    /// Raw bytes.
    Bytes(&'a [u8]),
    /// Base64 of this media type.
    Base64 { media_type: &'a str, data: &'a str },
    /// Unencoded text of this media type.
    Plain { media_type: &'a str, data: &'a str },
    /// A URI or file id that only the provider can read.
    Elsewhere(&'a str),
}

/// Maximum bytes of a `data:` URI before its comma.
const PREFIX_BYTES_MAX: usize = 1_024;

impl<'a> Content<'a> {
    pub(in crate::tokens) fn new(source: &'a MediaSource) -> Self {
        match source {
            MediaSource::Data(bytes) => Self::Bytes(bytes),
            MediaSource::Uri(uri) => Self::of_data_uri(uri).unwrap_or(Self::Elsewhere(uri)),
        }
    }

    fn of_data_uri(uri: &'a str) -> Option<Self> {
        let (scheme, rest) = uri.split_at_checked("data:".len())?;
        let comma = rest
            .bytes()
            .take(PREFIX_BYTES_MAX)
            .position(|byte| byte == b',')?;
        if !scheme.eq_ignore_ascii_case("data:") {
            return None;
        }
        let (prefix, data) = (&rest[..comma], &rest[comma + 1..]);
        let mut words = prefix.split(';');
        let media_type = words.clone().next().unwrap_or_default();
        let is_base64 = words.any(|word| word.trim().eq_ignore_ascii_case("base64"));
        Some(if is_base64 {
            Self::Base64 { media_type, data }
        } else {
            Self::Plain { media_type, data }
        })
    }

    /// Returns the media type in the URI, or an empty string.
    pub(super) fn media_type(&self) -> &'a str {
        match self {
            Self::Base64 { media_type, .. } | Self::Plain { media_type, .. } => media_type,
            Self::Bytes(_) | Self::Elsewhere(_) => "",
        }
    }

    /// Returns the length in bytes. `None` if the content is elsewhere.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::Base64 { data, .. } => Some(data.len() / 4 * 3),
            Self::Plain { data, .. } => Some(data.len()),
            Self::Elsewhere(_) => None,
        }
    }

    /// Returns up to `bytes_max` leading bytes. `None` if the content is elsewhere.
    pub(super) fn head(&self, bytes_max: usize) -> Option<Cow<'a, [u8]>> {
        let cut = |bytes: &'a [u8]| Cow::Borrowed(&bytes[..bytes.len().min(bytes_max)]);
        match self {
            Self::Bytes(bytes) => Some(cut(bytes)),
            Self::Base64 { data, .. } => Some(Cow::Owned(base64::decode_head(data, bytes_max))),
            Self::Plain { data, .. } => Some(cut(data.as_bytes())),
            Self::Elsewhere(_) => None,
        }
    }

    /// Returns all bytes. `None` if the content is elsewhere.
    pub(super) fn whole(&self) -> Option<Cow<'a, [u8]>> {
        self.head(usize::MAX)
    }

    /// Returns the file extension in a URL's path.
    pub(super) fn extension(&self) -> Option<&'a str> {
        let Self::Elsewhere(uri) = self else {
            return None;
        };
        let path = uri.split(['?', '#']).next()?;
        let name = path.rsplit('/').next()?;
        name.rsplit_once('.').map(|(_, extension)| extension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_head_stops_at_invalid_base64() {
        for (text, bytes) in [
            ("", "".as_bytes()),
            ("aGVsbG8=", b"hello"),
            ("aGVs\r\nbG8", b"hello"),
            ("aGVs!bG8", b"hel"),
            ("-_-_", &[0xfb, 0xff, 0xbf]),
            ("a", b""),
        ] {
            assert_eq!(base64::decode_head(text, usize::MAX), bytes, "{text:?}");
        }
        assert_eq!(base64::decode_head("aGVsbG8=", 2), b"he");
    }

    #[test]
    fn content_is_classified_by_uri() {
        let of = |uri: &str| match Content::new(&MediaSource::Uri(uri.into())) {
            Content::Bytes(_) => unreachable!("a URI"),
            Content::Base64 { media_type, data } => format!("base64 {media_type} {data}"),
            Content::Plain { media_type, data } => format!("plain {media_type} {data}"),
            Content::Elsewhere(uri) => format!("elsewhere {uri}"),
        };
        assert_eq!(of("data:image/png;base64,AAEC"), "base64 image/png AAEC");
        assert_eq!(of("DATA:;charset=x;BASE64,AAEC"), "base64  AAEC");
        assert_eq!(of("data:text/plain,hello"), "plain text/plain hello");
        assert_eq!(of("data:no comma"), "elsewhere data:no comma");
        assert_eq!(of("datä,"), "elsewhere datä,");
        assert_eq!(of("file-4711"), "elsewhere file-4711");
    }
}
