//! Which summarizers a file may name, and where their keys are.

use std::io::Write;

use serde_json::{from_value, json};

use super::*;

fn built(shape: serde_json::Value) -> Result<Built, Fault> {
    from_value::<SummarizerShape>(shape)
        .expect("a shape")
        .build()
}

fn name(shape: serde_json::Value) -> String {
    built(shape)
        .expect("a summarizer")
        .expect("one")
        .name()
        .to_owned()
}

#[test]
fn every_kind_can_be_named() {
    assert!(built(json!("none")).expect("nobody").is_none());
    assert_eq!(name(json!("extractive")), "extractive");
    let remote = [
        json!({"anthropic": {"model": "claude-haiku-4-5"}}),
        json!({"openai": {
            "model": "qwen3:8b", "base_url": "http://127.0.0.1:11434/v1", "input_tokens": 24_000,
            "timeout": "5s", "tries": 1, "token_limit": "max_tokens", "thinking_tokens": 9,
            "json_object": true,
        }}),
        json!({"webhook": {"url": "https://bots.example/summarize"}}),
    ];
    for shape in remote {
        let summarizer = built(shape).expect("a summarizer").expect("one");
        assert!(summarizer.is_remote(), "{summarizer:?}");
        let tokens = summarizer.input_tokens_max();
        assert!(
            [150_000, 24_000, 100_000].contains(&tokens),
            "{summarizer:?}"
        );
    }
    assert!(name(json!({"openai": {"model": "qwen3:8b"}})).contains("qwen3:8b"));
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (shape, place) in [
        (json!({"anthropic": {"model": ""}}), ".anthropic"),
        (
            json!({"openai": {"model": "m", "base_url": "ftp://a.example"}}),
            ".openai",
        ),
        (
            json!({"openai": {"model": "m", "input_tokens": 999}}),
            ".openai",
        ),
        (json!({"webhook": {"url": "nowhere"}}), ".webhook"),
        (
            json!({"webhook": {"url": "https://a.example", "tries": 0}}),
            ".webhook",
        ),
        (
            json!({"webhook": {"url": "https://a.example", "api_key": {}}}),
            ".webhook.api_key",
        ),
    ] {
        let (found, problem) = built(shape).expect_err(place);
        assert!(found == place && !problem.is_empty(), "{found}: {problem}");
    }
}

#[test]
fn a_key_is_read_from_its_file_and_never_shown() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "sk-hunter2").expect("written");
    let shape = json!({"anthropic": {"model": "m", "api_key": {"file": file.path()}}});
    let shape: SummarizerShape = from_value(shape).expect("a shape");
    assert_eq!(shape.file().as_deref(), Some(file.path()));
    let shown = format!("{shape:?} {:?}", shape.build().expect("a summarizer"));
    assert!(!shown.contains("hunter2"), "{shown}");
}
