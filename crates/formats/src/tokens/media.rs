//! Tokens of images, documents, audio and video, by the rules that providers publish.
//!
//! Their bytes are never counted as text.

mod content;
mod document;
mod image;
mod length;

use memoird_core::turn::MediaSource;
use serde_json::Value;

use super::Scale;
use crate::media_type::is_text;
use crate::model::Provider;
pub(super) use content::Content;

/// A media part, or media inside JSON.
#[derive(Clone, Copy)]
pub(super) struct Media<'a> {
    pub(super) media_type: &'a str,
    pub(super) content: Content<'a>,
    /// The provider's object around the content, or empty.
    pub(super) extra_json: &'a str,
}

/// Kinds of media with different rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Image,
    Pdf,
    Audio,
    Video,
    /// Text sent as a file.
    Text,
    /// Another document, such as a spreadsheet.
    Document,
    Unknown,
}

/// Bytes of an image that are searched for its size.
///
/// Metadata before it, such as EXIF and color profiles, is shorter.
const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of an extra that is parsed.
const EXTRA_BYTES_MAX: usize = 64 * 1024;

/// Assumed size of media at a URL or file id, which is not fetched: a typical size.
///
/// A count far above the charge would not be corrected by it, because
/// [`super::Charge::is_plausible`] rejects the charge.
const PAGES_ELSEWHERE: u64 = 3;
const AUDIO_SECONDS_ELSEWHERE: u64 = 60;
const VIDEO_SECONDS_ELSEWHERE: u64 = 15;
/// Assumed tokens of a text file behind a URL or file id.
const TEXT_TOKENS_ELSEWHERE: u64 = 2_000;

/// Google: 32 per second. OpenAI: 10. Models with open weights: up to 25.
const AUDIO_TOKENS_PER_SECOND: u64 = 32;
/// Limits of the line that replaces unsupported media: characters of the URL, minimum tokens.
///
/// The line may contain a name instead of the URL.
const LINE_CHARS_MAX: usize = 200;
const LINE_TOKENS: u64 = 64;

/// Google: 258 for one image per second, 32 for the audio, and the timestamp.
const VIDEO_TOKENS_PER_SECOND: u64 = 300;

/// Longer side of an image in pixels. `None` if its content is elsewhere or unreadable.
pub(crate) fn image_side_px(source: &MediaSource) -> Option<u64> {
    let head = Content::new(source).head(HEAD_BYTES_MAX)?;
    let size = image::size(&head)?;
    Some(size.width.max(size.height))
}

impl Media<'_> {
    /// Returns its tokens. If its size is unknown, those of a typical one.
    pub(super) fn tokens(self, scale: &Scale) -> u64 {
        let content = self.content;
        let object = self.object();
        let provider = scale.provider();
        match self.kind(&content, &object) {
            Kind::Image => {
                let head = content.head(HEAD_BYTES_MAX);
                let size = head.and_then(|head| image::size(&head));
                image::tokens(provider, size, image::Detail::read(&object))
            }
            Kind::Pdf => {
                let pages = content.whole().map(|pdf| document::pages(&pdf));
                document::tokens(provider, pages.unwrap_or(PAGES_ELSEWHERE))
            }
            Kind::Document => {
                let pages = content.len().map(document::pages_by_size);
                document::tokens(provider, pages.unwrap_or(PAGES_ELSEWHERE))
            }
            Kind::Audio => {
                let seconds = self.seconds(&content, AUDIO_SECONDS_ELSEWHERE);
                seconds.saturating_mul(AUDIO_TOKENS_PER_SECOND)
            }
            // These providers accept no video. A line replaces it.
            Kind::Video if matches!(provider, Provider::OpenAi | Provider::Anthropic) => {
                let uri = match content {
                    Content::Elsewhere(uri) => uri,
                    _ => "",
                };
                let shown: String = uri.chars().take(LINE_CHARS_MAX).collect();
                LINE_TOKENS.max(scale.text(&shown))
            }
            Kind::Video => {
                let seconds = self.seconds(&content, VIDEO_SECONDS_ELSEWHERE);
                seconds.saturating_mul(VIDEO_TOKENS_PER_SECOND)
            }
            Kind::Text => content.whole().map_or(TEXT_TOKENS_ELSEWHERE, |text| {
                scale.text(&String::from_utf8_lossy(&text))
            }),
            // The larger of an image and a document of that size, up to a limit.
            Kind::Unknown => {
                let pages = content.len().map_or(0, document::pages_by_size);
                let image = image::tokens(provider, None, image::Detail::Auto);
                image.max(document::tokens(provider, pages.min(PAGES_ELSEWHERE)))
            }
        }
    }

    /// Whether its type or its bytes identify its kind.
    pub(super) fn is_known(self) -> bool {
        self.kind(&self.content, &self.object()) != Kind::Unknown
    }

    fn seconds(self, content: &Content<'_>, elsewhere: u64) -> u64 {
        let media_type = self.media_type_of(content);
        let bytes = content.whole();
        bytes.map_or(elsewhere, |bytes| length::seconds(&media_type, &bytes))
    }

    fn object(self) -> Value {
        match self.extra_json.len() {
            1..=EXTRA_BYTES_MAX => serde_json::from_str(self.extra_json).unwrap_or_default(),
            _ => Value::Null,
        }
    }

    fn media_type_of(self, content: &Content<'_>) -> String {
        let stated = if self.media_type.is_empty() {
            content.media_type()
        } else {
            self.media_type
        };
        stated.trim().to_ascii_lowercase()
    }

    /// Determines the kind: by the stated type, else the bytes, the URL's extension, or the object.
    fn kind(self, content: &Content<'_>, object: &Value) -> Kind {
        let known = |kind: &Kind| *kind != Kind::Unknown;
        let by_head = || {
            content
                .head(64)
                .map(|head| Kind::of_head(&head))
                .filter(known)
        };
        let by_extension = || content.extension().map(Kind::of_extension).filter(known);
        Some(Kind::of_media_type(&self.media_type_of(content)))
            .filter(known)
            .or_else(by_head)
            .or_else(by_extension)
            .unwrap_or_else(|| Kind::of_object(object))
    }
}

impl Kind {
    fn of_media_type(media_type: &str) -> Self {
        let (family, parameters) = media_type.split_once('/').unwrap_or((media_type, ""));
        let format = parameters.split(';').next().unwrap_or_default().trim();
        match (family, format) {
            // A drawing as XML, which some providers read as text.
            ("image", "svg+xml") => Self::Text,
            ("image", _) => Self::Image,
            ("audio", _) => Self::Audio,
            ("video", _) => Self::Video,
            _ if is_text(media_type) => Self::Text,
            ("application", "pdf" | "x-pdf") => Self::Pdf,
            ("application", "octet-stream" | "") | ("", _) => Self::Unknown,
            ("application", _) => Self::Document,
            _ => Self::Unknown,
        }
    }

    fn of_head(head: &[u8]) -> Self {
        let has =
            |at: usize, mark: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(mark));
        if has(0, b"%PDF") {
            Self::Pdf
        } else if has(0, b"PK\x03\x04") {
            Self::Document
        } else if has(0, b"ID3") || has(0, b"OggS") || (has(0, b"RIFF") && has(8, b"WAVE")) {
            Self::Audio
        } else if imagesize::image_type(head).is_ok() {
            Self::Image
        } else if has(4, b"ftyp") {
            Self::Video
        } else {
            Self::Unknown
        }
    }

    fn of_extension(extension: &str) -> Self {
        match extension.to_ascii_lowercase().as_str() {
            "png" | "jpg" | "jpeg" | "gif" | "webp" | "heic" | "heif" | "bmp" => Self::Image,
            "pdf" => Self::Pdf,
            "mp3" | "wav" | "ogg" | "oga" | "opus" | "m4a" | "flac" | "aac" => Self::Audio,
            "mp4" | "mov" | "webm" | "mkv" | "avi" | "mpeg" => Self::Video,
            "txt" | "md" | "csv" | "json" | "xml" | "html" | "yaml" => Self::Text,
            "doc" | "docx" | "xls" | "xlsx" | "ppt" | "pptx" | "odt" => Self::Document,
            _ => Self::Unknown,
        }
    }

    /// Determines the kind by the `type` of the provider's part.
    fn of_object(object: &Value) -> Self {
        match object.get("type").and_then(Value::as_str) {
            Some("image_url" | "image" | "input_image") => Self::Image,
            Some("input_audio") => Self::Audio,
            Some("document" | "file" | "input_file") => Self::Pdf,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
