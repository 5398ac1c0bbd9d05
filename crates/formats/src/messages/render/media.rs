//! Media during translation: kind and location of the content, independent of the provider.

use std::borrow::Cow;

use memoird_core::quote::unmarked;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind};
use serde_json::Value;

use super::extra::Extra;
use super::given::uri;
use crate::base64;
use crate::media_type::is_text;

/// Characters of a URL in the label of media without a name.
const LABEL_CHARS_MAX: usize = 200;

/// Image types that every provider accepts. Any other makes it reject the whole request.
const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Audio,
    /// Not accepted by any provider in these formats.
    Video,
    Document,
}

/// Location of the content.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// Inline.
    Base64(Cow<'a, str>),
    /// At a web URL.
    Url(&'a str),
    /// Stored at the target provider, under an id.
    File(&'a str),
    /// Not accessible to the target provider.
    Elsewhere,
}

/// An image, a document, audio or video.
#[derive(Debug)]
pub(super) struct Media<'a> {
    pub(super) kind: Kind,
    /// Empty if unknown.
    pub(super) media_type: &'a str,
    pub(super) source: Source<'a>,
    /// Empty if unknown.
    pub(super) name: &'a str,
}

impl<'a> Media<'a> {
    /// Converts a media part of one format for another.
    pub(super) fn read(
        part: &'a Part,
        extra: &Extra,
        from: Option<MessageFormat>,
        to: MessageFormat,
    ) -> Option<Self> {
        let PartKind::Media {
            media_type,
            source: given,
            name,
        } = &part.kind
        else {
            return None;
        };
        let (source, in_url) = match given {
            MediaSource::Data(data) => (Source::Base64(base64::encode(data).into()), ""),
            MediaSource::Uri(uri) => match data_url(uri) {
                Some((in_url, data)) => (Source::Base64(data.into()), in_url),
                None if is_web(uri) => (Source::Url(uri), ""),
                // The bot's own store, such as `s3://`. Ids of a provider's files are not URLs.
                None if uri.starts_with("data:") || uri.contains("://") => (Source::Elsewhere, ""),
                None if holds_raw_base64(extra) => (Source::Base64(uri.into()), ""),
                None if shares_files(from, to) => (Source::File(uri), ""),
                None => (Source::Elsewhere, ""),
            },
        };
        let named_type = match media_type.as_str() {
            "" => in_url,
            stated => stated,
        };
        let media_type = match named_type {
            // A common misnomer that no provider accepts.
            "image/jpg" => "image/jpeg",
            media_type => media_type,
        };
        let kind = kind(media_type, extra, given);
        let is_odd = kind == Kind::Image && !IMAGE_TYPES.contains(&media_type);
        Some(Self {
            kind,
            media_type,
            source: match source {
                Source::Base64(data) if data.is_empty() || is_odd => Source::Elsewhere,
                source => source,
            },
            name,
        })
    }

    /// Text that replaces it if the provider does not accept it.
    pub(super) fn label(&self) -> String {
        let kind = match self.kind {
            Kind::Image => "image",
            Kind::Audio => "audio",
            Kind::Video => "video",
            Kind::Document => "document",
        };
        let label = match self.source {
            _ if !self.name.is_empty() => self.name,
            Source::Url(url) => url,
            _ => self.media_type,
        };
        let said: String = label.chars().take(LABEL_CHARS_MAX).collect();
        match said.split_whitespace().collect::<Vec<_>>().join(" ") {
            said if said.is_empty() => format!("[{kind}]"),
            said => format!("[{kind}: {}]", unmarked(&said)),
        }
    }

    /// Returns the content as a URL, if its type is known.
    pub(super) fn url(&self) -> Option<String> {
        match &self.source {
            Source::Base64(data) if !self.media_type.is_empty() => {
                Some(format!("data:{};base64,{data}", self.media_type))
            }
            Source::Url(url) => Some((*url).to_owned()),
            _ => None,
        }
    }

    /// Returns the content of a text document. Text that imitates memoird's own is escaped.
    pub(super) fn text(&self) -> Option<String> {
        match &self.source {
            Source::Base64(data) if is_text(self.media_type) => {
                let text = String::from_utf8(base64::decode(data)?).ok()?;
                Some(unmarked(&text).into_owned())
            }
            _ => None,
        }
    }

    /// File name, which a provider requires.
    pub(super) fn file_name(&self) -> &'a str {
        if self.name.is_empty() {
            "document"
        } else {
            self.name
        }
    }
}

/// Returns media type and content of a base64 `data:` URL.
fn data_url(uri: &str) -> Option<(&str, &str)> {
    let (prefix, data) = uri.strip_prefix("data:")?.split_once(',')?;
    let head = prefix.strip_suffix(";base64")?;
    Some((head.split(';').next().unwrap_or_default(), data))
}

fn is_web(uri: &str) -> bool {
    uri.starts_with("https://") || uri.starts_with("http://")
}

/// Whether it is a file of OpenAI whose base64 has no `data:` prefix.
fn holds_raw_base64(extra: &Extra) -> bool {
    let inner = extra.rest.get("file").and_then(Value::as_object);
    let data = inner.unwrap_or(&extra.rest).get("file_data");
    data.is_some_and(Value::is_string)
}

/// Whether a file id is valid in both formats.
fn shares_files(from: Option<MessageFormat>, to: MessageFormat) -> bool {
    let is_anthropic = |format| format == MessageFormat::Anthropic;
    from.is_none_or(|from| is_anthropic(from) == is_anthropic(to))
}

fn kind(media_type: &str, extra: &Extra, source: &MediaSource) -> Kind {
    let of_web = |uri: &str| {
        let path = uri.split(['?', '#']).next().unwrap_or_default();
        let ending = path.rsplit('.').next().unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "png" | "jpg" | "jpeg" | "gif" | "webp" => Kind::Image,
            "mp3" | "wav" | "ogg" | "m4a" => Kind::Audio,
            "mp4" | "mov" | "webm" => Kind::Video,
            _ => Kind::Document,
        }
    };
    match (media_type.split('/').next(), extra.kind()) {
        (Some("video"), _) => Kind::Video,
        (_, Some("image_url" | "input_image" | "image")) => Kind::Image,
        (_, Some("input_audio")) => Kind::Audio,
        (_, Some("file" | "input_file" | "document")) => Kind::Document,
        (Some("image"), _) => Kind::Image,
        (Some("audio"), _) => Kind::Audio,
        (Some(""), _) => uri(source).map_or(Kind::Document, of_web),
        _ => Kind::Document,
    }
}
