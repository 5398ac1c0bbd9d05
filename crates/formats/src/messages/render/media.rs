//! Media on the way from one provider to another: what it is and where its content is,
//! in words that all of them share.

use std::borrow::Cow;

use memoird_core::quote::unmarked;
use memoird_core::turn::{MediaSource, MessageFormat, Part, PartKind};
use serde_json::Value;

use super::extra::Extra;
use super::given::uri;
use crate::base64;
use crate::media_type::is_text;

/// Characters of a URL that are shown for media without a name.
const LABEL_CHARS_MAX: usize = 200;

/// The images that every provider takes; of others it refuses the whole request.
const IMAGE_TYPES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// The kind of media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Image,
    Audio,
    /// No provider takes it in these formats.
    Video,
    Document,
}

/// Where the content is.
#[derive(Debug)]
pub(super) enum Source<'a> {
    /// Here.
    Base64(Cow<'a, str>),
    /// On the web.
    Url(&'a str),
    /// With this provider, under an id.
    File(&'a str),
    /// Where this provider does not find it.
    Elsewhere,
}

/// An image, a document, a sound.
#[derive(Debug)]
pub(super) struct Media<'a> {
    pub(super) kind: Kind,
    /// Empty where it is not known.
    pub(super) media_type: &'a str,
    pub(super) source: Source<'a>,
    /// Empty where it is not known.
    pub(super) name: &'a str,
}

impl<'a> Media<'a> {
    /// Reads a media part that came in one format, to be shown in another.
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
                // A bot's own store, such as `s3://`; the id of a provider's file is no address.
                None if uri.starts_with("data:") || uri.contains("://") => (Source::Elsewhere, ""),
                None if holds_raw_base64(extra) => (Source::Base64(uri.into()), ""),
                None if shares_files(from, to) => (Source::File(uri), ""),
                None => (Source::Elsewhere, ""),
            },
        };
        let media_type = match media_type.as_str() {
            "" => in_url,
            stated => stated,
        };
        let media_type = match media_type {
            // The name that many programs give it, and that no provider takes.
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

    /// The line that replaces it where the provider does not take it.
    pub(super) fn label(&self) -> String {
        let kind = match self.kind {
            Kind::Image => "image",
            Kind::Audio => "audio",
            Kind::Video => "video",
            Kind::Document => "document",
        };
        let said = match self.source {
            _ if !self.name.is_empty() => self.name,
            Source::Url(url) => url,
            _ => self.media_type,
        };
        let said: String = said.chars().take(LABEL_CHARS_MAX).collect();
        match said.split_whitespace().collect::<Vec<_>>().join(" ") {
            said if said.is_empty() => format!("[{kind}]"),
            said => format!("[{kind}: {}]", unmarked(&said)),
        }
    }

    /// The content as a URL, where its type is known.
    pub(super) fn url(&self) -> Option<String> {
        match &self.source {
            Source::Base64(data) if !self.media_type.is_empty() => {
                Some(format!("data:{};base64,{data}", self.media_type))
            }
            Source::Url(url) => Some((*url).to_owned()),
            _ => None,
        }
    }

    /// The text of a document that is text, with what looks like memoird's own words told from
    /// them.
    pub(super) fn text(&self) -> Option<String> {
        match &self.source {
            Source::Base64(data) if is_text(self.media_type) => {
                let text = String::from_utf8(base64::decode(data)?).ok()?;
                Some(unmarked(&text).into_owned())
            }
            _ => None,
        }
    }

    /// The name that a provider wants of a file.
    pub(super) fn file_name(&self) -> &'a str {
        if self.name.is_empty() {
            "document"
        } else {
            self.name
        }
    }
}

/// The media type and the content of a URL that holds it.
fn data_url(uri: &str) -> Option<(&str, &str)> {
    let (head, data) = uri.strip_prefix("data:")?.split_once(',')?;
    let head = head.strip_suffix(";base64")?;
    Some((head.split(';').next().unwrap_or_default(), data))
}

fn is_web(uri: &str) -> bool {
    uri.starts_with("https://") || uri.starts_with("http://")
}

/// True for OpenAI's files whose data has no head that says what it is.
fn holds_raw_base64(extra: &Extra) -> bool {
    let inner = extra.rest.get("file").and_then(Value::as_object);
    let data = inner.unwrap_or(&extra.rest).get("file_data");
    data.is_some_and(Value::is_string)
}

/// True when an id of a file means the same to both.
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
