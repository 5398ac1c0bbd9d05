//! Tests with small tokenizers.

use super::*;

/// Knows some words, splits at spaces, and has truncation and padding enabled.
const WORDS: &str = r#"{
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    "added_tokens": [{"id": 1, "content": "<|end|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": null,
    "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "<|end|>": 1, "[UNK]": 2, "hello": 3},
        "unk_token": "[UNK]"}
}"#;

/// Merges `aa` and no other bytes. Needs the library's regular expressions.
fn bytes_of_a() -> String {
    // The alphabet of byte-level tokenizers: printable bytes represent themselves.
    let printable: Vec<u32> = (33..=126).chain(161..=172).chain(174..=255).collect();
    let others = (256..256 + 256 - printable.len()).map(|code| u32::try_from(code).expect("small"));
    let letters = printable.iter().copied().chain(others);
    let letter = |code| char::from_u32(code).expect("a character");
    let vocab: Vec<String> = letters
        .enumerate()
        .map(|(id, code)| format!("{}: {id}", quoted(letter(code))))
        .chain(["\"aa\": 256".to_owned()])
        .collect();
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [
                {{"type": "Split", "pattern": {{"Regex": "\\s+(?!\\S)|\\S+|\\s+"}},
                    "behavior": "Isolated", "invert": false}},
                {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": false}}]}},
            "post_processor": null, "decoder": null,
            "model": {{"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": {{{}}}, "merges": ["a a"]}}}}"#,
        vocab.join(", ")
    )
}

/// A unigram model, which chooses the likeliest pieces. Its scores are decimal numbers.
const LIKELY: &str = r#"{
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true},
    "post_processor": null, "decoder": null,
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0.0],
        ["▁", -2.5], ["h", -5.25], ["hell", -3.5], ["o", -3.0], ["▁hello", -4.125]]}
}"#;

fn quoted(letter: char) -> String {
    match letter {
        '"' | '\\' => format!("\"\\{letter}\""),
        letter => format!("\"{letter}\""),
    }
}

#[test]
fn tokens_are_counted_without_truncation_and_padding() {
    let tokenizer = HfTokenizer::from_json(WORDS.as_bytes()).expect("a tokenizer");
    for (text, expected) in [("", 0), ("hello", 1), ("hello strange hello", 3)] {
        assert_eq!(tokenizer.count(text), expected, "{text:?}");
    }
    assert_eq!(tokenizer.count(&"hello ".repeat(50_000)), 50_000);
    assert!(
        format!("{tokenizer:?}").contains("vocabulary: 4"),
        "{tokenizer:?}"
    );
}

#[test]
fn special_tokens_in_text_are_plain_text() {
    let tokenizer = HfTokenizer::from_json(bytes_of_a().as_bytes()).expect("a tokenizer");
    assert_eq!(tokenizer.count("<|end|>"), 7);
    let words = HfTokenizer::from_json(WORDS.as_bytes()).expect("a tokenizer");
    // One unknown word, and no special token between two words.
    assert_eq!(words.count("hello<|end|>hello"), 1);
}

#[test]
fn byte_level_merges_of_file_apply() {
    let tokenizer = HfTokenizer::from_json(bytes_of_a().as_bytes()).expect("a tokenizer");
    let cases = [
        ("aa", 1),
        ("aaa", 2),
        ("b a", 3),
        ("é", 2),
        ("aa  aa", 4),
        ("中", 3),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.count(text), expected, "{text:?}");
    }
}

#[test]
fn unigram_model_counts_likeliest_pieces() {
    let tokenizer = HfTokenizer::from_json(LIKELY.as_bytes()).expect("a tokenizer");
    for (text, expected) in [("hello", 1), ("hello hello", 2), ("hell", 2), ("ho", 3)] {
        assert_eq!(tokenizer.count(text), expected, "{text:?}");
    }
}

#[test]
fn long_text_is_counted_completely() {
    let tokenizer = HfTokenizer::from_json(bytes_of_a().as_bytes()).expect("a tokenizer");
    assert_eq!(tokenizer.count(&"a".repeat(200_000)), 100_000);
    assert_eq!(tokenizer.count(&"中".repeat(50_000)), 150_000);
    assert_eq!(tokenizer.count(&" ".repeat(100_000)), 100_000);
    assert_eq!(tokenizer.count(&"aa bb\n".repeat(20_000)), 20_000 * 5);
}

#[test]
fn pieces_cover_text_and_end_before_spaces() {
    let texts = [
        "",
        "a",
        "é".repeat(40_000).as_str(),
        "word ".repeat(20_000).as_str(),
        "\n",
    ]
    .map(str::to_owned);
    for text in texts {
        let found: Vec<&str> = pieces(&text).collect();
        assert_eq!(found.concat(), text);
        assert!(
            found
                .iter()
                .all(|piece| (1..=PIECE_BYTES_MAX).contains(&piece.len()))
        );
    }
    let words = "word ".repeat(20_000);
    assert!(pieces(&words).skip(1).all(|piece| piece.starts_with(' ')));
}

#[test]
fn invalid_tokenizer_file_is_rejected_with_advice() {
    let no_words = WORDS.replace(r#""unk_token": "[UNK]""#, r#""unk_token": "nothing""#);
    for json in [
        "",
        "{}",
        "[]",
        "null",
        "\u{0}",
        "{\"version\":\"1.0\"}",
        &no_words,
    ] {
        let error = HfTokenizer::from_json(json.as_bytes())
            .expect_err(json)
            .to_string();
        assert!(
            error.contains("the given text") && error.contains("tokenizer.json"),
            "{error}"
        );
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("tokenizer.json");
    let missing = HfTokenizer::from_file(&path).expect_err("no file");
    assert!(
        matches!(missing, ModelError::FileUnreadable { .. }),
        "{missing}"
    );
    std::fs::write(&path, "{").expect("a file");
    let broken = HfTokenizer::from_file(&path).expect_err("no tokenizer");
    assert!(
        broken
            .to_string()
            .contains("tokenizer.json is not a tokenizer"),
        "{broken}"
    );
    File::create(&path)
        .and_then(|file| file.set_len(TOKENIZER_BYTES_MAX + 1))
        .expect("a file");
    let large = HfTokenizer::from_file(&path).expect_err("too large");
    assert!(matches!(large, ModelError::FileTooLarge { .. }), "{large}");
    std::fs::write(&path, WORDS).expect("a file");
    assert_eq!(
        HfTokenizer::from_file(&path)
            .expect("a tokenizer")
            .count("hello hello"),
        2
    );
}
