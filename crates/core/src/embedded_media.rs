//! Finds base64 media inside text and JSON: `data:` URIs, MCP content blocks, audio of messages.
//!
//! It searches the raw text and also finds media in JSON inside JSON strings, because JSON escapes
//! no base64 characters except `/` and line breaks.

use std::borrow::Cow;
use std::ops::Range;

/// Base64 media in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded<'a> {
    /// Range in bytes, including the head of a `data:` URI.
    pub range: Range<usize>,
    /// Media type stated by the URI or an adjacent field, or empty.
    pub media_type: &'a str,
    /// The base64, possibly with line breaks and JSON escapes.
    pub data: &'a str,
}

/// Minimum bytes of base64 media. Shorter text is an id, a hash or a word.
const DATA_BYTES_MIN: usize = 64;
/// Minimum bytes of base64 that counts as data without a stated type.
const LONG_BYTES_MIN: usize = 2_048;
/// Minimum bytes of a base64 line that continues on the next one.
const LINE_BYTES_MIN: usize = 60;
/// Bytes of the text around the base64 in which its type may be stated.
const NEAR_BYTES: usize = 256;
/// Bytes of long base64 checked for variety, and the minimum number of distinct characters.
///
/// Hexadecimal has 16, and words or repeated text rarely have digits, small and capital letters.
const SAMPLE_BYTES: usize = 1_024;
const DIFFERENT_MIN: usize = 32;

/// Starts of files in base64, with their media types.
const HEADS: [(&str, &str); 14] = [
    ("iVBORw0KGgo", "image/png"),
    ("/9j/", "image/jpeg"),
    ("R0lGODdh", "image/gif"),
    ("R0lGODlh", "image/gif"),
    ("JVBERi0", "application/pdf"),
    ("SUQz", "audio/mpeg"),
    ("//uQ", "audio/mpeg"),
    ("//vQ", "audio/mpeg"),
    ("T2dnUw", "audio/ogg"),
    ("ZkxhQ", "audio/flac"),
    ("UklGR", ""),
    ("AAAAIGZ0eX", "video/mp4"),
    ("AAAAGGZ0eX", "video/mp4"),
    ("AAAAHGZ0eX", "video/mp4"),
];
/// Range of the kind (`WEBP`, `WAVE`) in the base64 of a RIFF file. Next, the kinds in base64.
const RIFF_KIND: Range<usize> = 11..16;
const RIFF_KINDS: [(&str, &str); 2] = [("XRUJQ", "image/webp"), ("XQVZF", "audio/wav")];

/// JSON fields that contain base64.
const DATA_FIELDS: [&str; 8] = [
    "data",
    "blob",
    "base64",
    "b64_json",
    "file_data",
    "bytes",
    "image",
    "audio",
];

/// Finds the media in a text, in order.
pub fn find(text: &str) -> Vec<Embedded<'_>> {
    let runs = Runs { text, at: 0 };
    runs.filter_map(|run| embedded(text, run)).collect()
}

/// Number of bytes of a text besides its media.
pub(crate) fn bytes_without(text: &str) -> usize {
    let media: usize = find(text).iter().map(|media| media.range.len()).sum();
    text.len() - media
}

/// Replaces each medium with the result of `replacement` for its media type.
pub(crate) fn replaced<T: AsRef<str>>(text: &str, replacement: impl Fn(&str) -> T) -> Cow<'_, str> {
    let found = find(text);
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut short = String::new();
    let mut end = 0;
    for media in found {
        short.push_str(&text[end..media.range.start]);
        short.push_str(replacement(media.media_type).as_ref());
        end = media.range.end;
    }
    short.push_str(&text[end..]);
    Cow::Owned(short)
}

/// Iterates over runs of base64 characters, which may span several long lines.
struct Runs<'a> {
    text: &'a str,
    at: usize,
}

impl Iterator for Runs<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        loop {
            let skipped = bytes[self.at..].iter().position(|byte| is_base64(*byte))?;
            let start = self.at + skipped;
            let mut end = start;
            loop {
                let line = end;
                end += line_bytes(&bytes[end..]);
                let break_bytes = if end - line >= LINE_BYTES_MIN {
                    line_break_bytes(&bytes[end..])
                } else {
                    0
                };
                let goes_on = bytes
                    .get(end + break_bytes)
                    .is_some_and(|byte| is_base64(*byte));
                if break_bytes == 0 || !goes_on {
                    break;
                }
                end += break_bytes;
            }
            self.at = end.max(start + 1);
            if end - start >= DATA_BYTES_MIN {
                return Some(start..end);
            }
        }
    }
}

/// Length of the base64 at the start. `/` may be escaped as in JSON.
fn line_bytes(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some(byte) = bytes.get(end) {
        end += match byte {
            byte if is_base64(*byte) => 1,
            b'\\' => match bytes[end..].iter().position(|byte| *byte != b'\\') {
                Some(slashes) if bytes[end + slashes] == b'/' => slashes + 1,
                _ => break,
            },
            _ => break,
        };
    }
    end
}

/// Length of a line break at the start, raw or escaped as in JSON, or 0.
fn line_break_bytes(bytes: &[u8]) -> usize {
    let is_break = |byte: &u8| b"\\rn\r\n".contains(byte);
    let all = bytes.iter().take_while(|byte| is_break(byte)).count();
    let breaks = &bytes[..all];
    // `r` and `n` are base64 letters too. They are part of the break only after a backslash.
    let end = breaks
        .iter()
        .enumerate()
        .take_while(|(at, byte)| {
            matches!(byte, b'\r' | b'\n' | b'\\') || breaks[..*at].last() == Some(&b'\\')
        })
        .count();
    let has_break = breaks[..end].iter().any(|byte| b"rn\r\n".contains(byte));
    if has_break { end } else { 0 }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

fn embedded(text: &str, run: Range<usize>) -> Option<Embedded<'_>> {
    let before = &text[text.floor_char_boundary(run.start.saturating_sub(NEAR_BYTES))..run.start];
    let data = &text[run.clone()];
    let by_head = type_by_head(data);
    if let Some((head_bytes, stated)) = data_uri(before) {
        let is_escaped = stated.contains('\\');
        return Some(Embedded {
            range: run.start - head_bytes..run.end,
            media_type: if is_escaped {
                by_head.unwrap_or_default()
            } else {
                stated
            },
            data,
        });
    }
    let after = &text[run.end..text.floor_char_boundary(run.end + NEAR_BYTES)];
    let stated = stated_type(before, after);
    let is_field = is_data_field(before);
    let is_long = data.len() >= LONG_BYTES_MIN;
    let is_data = by_head.is_some() || (is_long && (is_field || is_varied(data)));
    let is_media = is_data || (is_field && stated.is_some());
    is_media.then(|| Embedded {
        range: run,
        media_type: stated.or(by_head).unwrap_or_default(),
        data,
    })
}

/// Length and media type of the head of a `data:` URI that ends directly before the base64.
fn data_uri(before: &str) -> Option<(usize, &str)> {
    let before_comma = before.strip_suffix(',')?;
    let start = before_comma.rfind("data:")?;
    let head = &before_comma[start + "data:".len()..];
    let is_uri = head.to_ascii_lowercase().ends_with(";base64") && !head.contains(['"', ' ', '\n']);
    let media_type = head.split(';').next().unwrap_or_default();
    is_uri.then_some((before.len() - start, media_type))
}

/// The media type stated by another field of the same object.
fn stated_type<'a>(before: &'a str, after: &'a str) -> Option<&'a str> {
    let start = before.rfind('{').map_or(0, |at| at + 1);
    let end = after.find('}').unwrap_or(after.len());
    let outer = &before[..start];
    let sides = [&after[..end], &before[start..]].into_iter();
    let mut named = sides.filter_map(|fields| {
        ["image/", "audio/", "video/", "application/"]
            .iter()
            .find_map(|family| {
                let found = &fields[fields.find(family)?..];
                let is_name = |c: char| c.is_ascii_alphanumeric() || "/.+-".contains(c);
                Some(&found[..found.find(|c| !is_name(c)).unwrap_or(found.len())])
            })
    });
    let is_audio = |text: &str| {
        let name = text.trim_end_matches(['{', ' ', ':', '"', '\\']);
        name.ends_with("audio")
    };
    let audio = || is_audio(outer).then_some("audio/*");
    named.next().or_else(audio)
}

fn type_by_head(data: &str) -> Option<&'static str> {
    let head: String = data
        .chars()
        .filter(|c| *c != '\\')
        .take(RIFF_KIND.end)
        .collect();
    let data = head.as_str();
    let (_, media_type) = HEADS.iter().find(|(head, _)| data.starts_with(head))?;
    if !media_type.is_empty() {
        return Some(media_type);
    }
    let kind = data.get(RIFF_KIND)?;
    let found = RIFF_KINDS.iter().find(|(word, _)| kind.starts_with(word));
    found.map(|(_, media_type)| *media_type)
}

/// Whether the preceding text starts a string in a field for base64.
fn is_data_field(before: &str) -> bool {
    let quote = |text: &'_ str| text.trim_end_matches('\\').len();
    let Some(before) = before.strip_suffix('"') else {
        return false;
    };
    let before = before[..quote(before)].trim_end();
    let Some(before) = before.strip_suffix(':') else {
        return false;
    };
    let Some(before) = before.trim_end().strip_suffix('"') else {
        return false;
    };
    let before = &before[..quote(before)];
    let name = before.rsplit(['"', '\\']).next().unwrap_or_default();
    DATA_FIELDS.contains(&name)
}

/// Whether the text has the variety of characters of compressed data.
fn is_varied(data: &str) -> bool {
    let mut seen = [false; 256];
    for byte in data.bytes().take(SAMPLE_BYTES) {
        seen[usize::from(byte)] = true;
    }
    seen.iter().filter(|is_seen| **is_seen).count() >= DIFFERENT_MIN
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Base64 of random bytes that starts like a PNG.
    fn png(bytes: usize) -> String {
        let mut state = 7_u32;
        let mut data = "iVBORw0KGgo".to_owned();
        while data.len() < bytes {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
            data.push(digits[(state >> 26) as usize].into());
        }
        data
    }

    #[test]
    fn media_in_structured_results_is_found_with_its_type() {
        let (data, zeros) = (png(3_000), "A".repeat(3_000));
        let mcp = json!({ "content": [
            { "type": "text", "text": "a shot" },
            { "type": "image", "data": data, "mimeType": "image/webp" },
        ] });
        let resource = json!({ "type": "resource", "resource":
            { "uri": "file:///a", "mimeType": "application/pdf", "blob": zeros } });
        let cases = [
            (mcp.to_string(), "image/webp"),
            (
                json!({ "output": mcp.to_string() }).to_string(),
                "image/webp",
            ),
            (
                json!([json!({ "output": mcp.to_string() }).to_string()]).to_string(),
                "image/webp",
            ),
            (serde_json::to_string_pretty(&mcp).unwrap(), "image/webp"),
            (resource.to_string(), "application/pdf"),
            (
                json!({ "audio": { "id": "a", "data": zeros } }).to_string(),
                "audio/*",
            ),
            (
                json!({ "image_url": format!("data:image/jpeg;base64,{zeros}") }).to_string(),
                "image/jpeg",
            ),
            (
                format!("![shot](data:image/gif;charset=x;base64,{zeros})"),
                "image/gif",
            ),
            (format!("before {data} after"), "image/png"),
            (
                json!({ "type": "image", "data": "A".repeat(80), "mimeType": "image/png" })
                    .to_string(),
                "image/png",
            ),
            (mcp.to_string().replace('/', "\\/"), "image\\"),
        ];
        for (text, media_type) in cases {
            let found = find(&text);
            assert_eq!(found.len(), 1, "{text}");
            let media = &found[0];
            assert!(
                media
                    .media_type
                    .starts_with(media_type.trim_end_matches('\\')),
                "{media:?}"
            );
            assert!(text[media.range.clone()].ends_with(media.data));
        }
    }

    #[test]
    fn wrapped_base64_is_found_as_one_item() {
        let data = png(3_000);
        let lines: Vec<&str> = data
            .as_bytes()
            .chunks(76)
            .map(|line| str::from_utf8(line).unwrap())
            .collect();
        for line_break in ["\n", "\r\n"] {
            let text = lines.join(line_break);
            let json = json!({ "data": text }).to_string();
            let twice = json!({ "output": json }).to_string();
            for text in [format!("x {text} y"), json, twice] {
                let found = find(&text);
                assert_eq!(found.len(), 1, "{text}");
                assert!(found[0].data.len() >= 3_000, "{text}");
            }
        }
    }

    #[test]
    fn long_text_is_not_detected_as_media() {
        let long = [
            "x".repeat(5_000),
            "deadbeef0123".repeat(400),
            "the_quick-brown/fox".repeat(300),
            "words and words ".repeat(300),
            format!("{{\"content\":\"{}\"}}", "y".repeat(9_000)),
            format!("https://example.com/{}", "a/b".repeat(900)),
            "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==".to_owned(),
        ];
        for text in long {
            assert_eq!(find(&text), [], "{text}");
        }
    }
}
