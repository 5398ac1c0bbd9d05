//! Token counts of media of every kind, and of garbage.

use std::sync::Arc;

use super::super::OpenAiTokenizer::O200k;
use super::*;
use crate::model::Provider;

const PROVIDERS: [Provider; 4] = [
    Provider::OpenAi,
    Provider::Anthropic,
    Provider::Google,
    Provider::Open,
];

fn scale(provider: Provider) -> Scale {
    Scale::new(
        Arc::new(O200k),
        super::super::Dialect::for_model(provider, ""),
    )
}

fn weigh(provider: Provider, media_type: &str, source: &MediaSource, extra_json: &str) -> u64 {
    Media {
        media_type,
        content: Content::new(source),
        extra_json,
    }
    .tokens(&scale(provider))
}

fn uri(uri: &str) -> MediaSource {
    MediaSource::Uri(uri.to_owned())
}

/// Header of a PNG with this size.
fn png(width: u32, height: u32) -> Vec<u8> {
    let signature = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
    [signature.as_slice(), &sides, b"\x08\x06\0\0\0"].concat()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..=three.len() {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(char::from(letter));
        }
    }
    text
}

#[test]
fn image_tokens_do_not_depend_on_its_source() {
    let image = png(1024, 1024);
    let encoded = base64(&image);
    let sources = [
        ("image/png", MediaSource::Data(image.clone())),
        ("", MediaSource::Data(image.clone())),
        ("application/octet-stream", MediaSource::Data(image)),
        ("", uri(&format!("data:image/png;base64,{encoded}"))),
        (
            "image/png",
            uri(&format!("data:image/png;base64,{encoded}")),
        ),
        ("", uri(&format!("data:;base64,{encoded}"))),
    ];
    for (media_type, source) in sources {
        assert_eq!(
            weigh(Provider::Anthropic, media_type, &source, ""),
            1_369,
            "{source:?}"
        );
        assert_eq!(
            weigh(Provider::OpenAi, media_type, &source, ""),
            1_229,
            "{source:?}"
        );
    }
}

#[test]
fn image_size_is_read_from_first_kilobytes() {
    let mut image = png(640, 480);
    image.resize(5_000_000, 0x55);
    let source = uri(&format!("data:image/png;base64,{}", base64(&image)));
    assert_eq!(weigh(Provider::Anthropic, "", &source, ""), 23 * 18);
}

#[test]
fn image_of_unknown_size_counts_as_1024_px_square() {
    let object = r#"{"type":"image_url","image_url":{"url":""}}"#;
    let sources = [
        ("", uri("https://example.com/cat"), object),
        ("", uri("https://example.com/cat.JPG?size=large"), ""),
        ("image/png", uri("file-4711"), ""),
        ("image/png", MediaSource::Data(b"not an image".to_vec()), ""),
        ("image/png", uri("data:image/png;base64,!!!"), ""),
        ("image/png", MediaSource::Data(png(0, 0)), ""),
    ];
    for (media_type, source, extra) in sources {
        assert_eq!(
            weigh(Provider::OpenAi, media_type, &source, extra),
            1_229,
            "{source:?}"
        );
        assert_eq!(
            weigh(Provider::Anthropic, media_type, &source, extra),
            1_369,
            "{source:?}"
        );
        assert_eq!(
            weigh(Provider::Google, media_type, &source, extra),
            1_120,
            "{source:?}"
        );
    }
    let low = r#"{"type":"image_url","image_url":{"url":"","detail":"low"}}"#;
    assert_eq!(
        weigh(Provider::OpenAi, "", &uri("https://example.com/cat"), low),
        308
    );
}

#[test]
fn documents_audio_and_video_count_by_length() {
    let pdf = b"%PDF-1.4 <</Type/Pages/Count 2>> <</Type/Page>> <</Type/Page>>".to_vec();
    let encoded = uri(&format!("data:application/pdf;base64,{}", base64(&pdf)));
    let cases = [
        ("application/pdf", MediaSource::Data(pdf.clone()), 2 * 560),
        ("", MediaSource::Data(pdf), 2 * 560),
        ("", encoded, 2 * 560),
        (
            "application/pdf",
            uri("https://example.com/report"),
            3 * 560,
        ),
        ("", uri("https://example.com/report.pdf"), 3 * 560),
        (
            "application/msword",
            MediaSource::Data(vec![1; 25_000]),
            3 * 560,
        ),
        ("audio/ogg", MediaSource::Data(vec![1; 20_000]), 10 * 32),
        ("audio/mpeg", uri("https://example.com/song"), 60 * 32),
        ("video/mp4", MediaSource::Data(vec![1; 640_000]), 10 * 300),
        ("", uri("https://example.com/film.mp4"), 15 * 300),
    ];
    for (media_type, source, expected) in cases {
        assert_eq!(
            weigh(Provider::Google, media_type, &source, ""),
            expected,
            "{media_type}"
        );
    }
}

#[test]
fn unsupported_video_counts_as_its_placeholder() {
    let films = [
        ("video/mp4", MediaSource::Data(vec![1; 640_000])),
        ("", uri("https://example.com/film.mp4")),
    ];
    for (media_type, source) in films {
        for provider in [Provider::OpenAi, Provider::Anthropic] {
            let line = weigh(provider, media_type, &source, "");
            assert!((10..200).contains(&line), "{provider:?}: {line}");
        }
        // Its server may accept videos.
        assert!(weigh(Provider::Open, media_type, &source, "") >= 3_000);
    }
}

#[test]
fn text_file_counts_as_its_text() {
    let words = "the captain read the letter twice ".repeat(50);
    let tokens = scale(Provider::Anthropic).text(&words);
    let encoded = format!("data:text/plain;base64,{}", base64(words.as_bytes()));
    let cases = [
        ("text/plain", MediaSource::Data(words.clone().into_bytes())),
        (
            "text/markdown; charset=utf-8",
            MediaSource::Data(words.into_bytes()),
        ),
        ("", uri(&encoded)),
    ];
    for (media_type, source) in cases {
        assert_eq!(
            weigh(Provider::Anthropic, media_type, &source, ""),
            tokens,
            "{media_type}"
        );
    }
}

#[test]
fn binary_data_is_never_counted_as_text() {
    let noise: Vec<u8> = (0..200_000_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[1])
        .collect();
    for provider in PROVIDERS {
        for media_type in [
            "image/png",
            "image/x-new",
            "application/octet-stream",
            "",
            "model/gltf",
        ] {
            let source = uri(&format!("data:{media_type};base64,{}", base64(&noise)));
            let tokens = weigh(provider, media_type, &source, "");
            assert!(tokens > 0 && tokens < 50_000, "{media_type}: {tokens}");
        }
    }
}

#[test]
fn garbage_media_counts_without_panic() {
    let seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut state = seed;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let starts: [&[u8]; 9] = [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe1",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBPVP8 ",
        b"%PDF-",
        b"\0\0\0\x18ftypheic",
        b"II*\0",
        b"RIFF\0\0\0\0WAVEfmt ",
    ];
    let types = [
        "",
        "image/jpeg",
        "application/pdf",
        "audio/wav",
        "video/mp4",
        "text/plain",
        "/",
        ";",
    ];
    for round in 0..400 {
        let start = starts[round % starts.len()];
        let tail = (0..next() % 600).map(|_| next().to_be_bytes()[3]);
        let bytes: Vec<u8> = start.iter().copied().chain(tail).collect();
        let media_type = types[usize::from(next().to_be_bytes()[2]) % types.len()];
        for provider in PROVIDERS {
            let encoded = uri(&format!("data:{media_type};base64,{}", base64(&bytes)));
            let lossy = uri(&String::from_utf8_lossy(&bytes));
            let data = MediaSource::Data(bytes.clone());
            for source in [data, encoded, lossy] {
                let tokens = weigh(provider, media_type, &source, "{\"type\":");
                assert!(tokens < 10_000_000, "seed {seed}, round {round}");
            }
        }
    }
}
