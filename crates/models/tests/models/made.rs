//! A tiny BERT with random weights, in the directory layout of sentence-transformers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Dimensions of its vectors.
pub(crate) const HIDDEN: usize = 16;
/// Maximum tokens of its input.
pub(crate) const POSITIONS: usize = 24;
const INTERMEDIATE: usize = 32;
/// Fixed, so that failures are reproducible.
const SEED: u64 = 7_117;

/// Its vocabulary besides special tokens.
pub(crate) const WORDS: [&str; 10] = [
    "tea", "milk", "ann", "likes", "seattle", "live", "where", "do", "i", "in",
];
const MARKS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Creates a valid model directory.
#[allow(clippy::print_stdout)]
pub(crate) fn folder() -> TempDir {
    println!("seed {SEED}");
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path(), "config.json", &config());
    write(dir.path(), "tokenizer.json", &tokenizer());
    fs::write(dir.path().join("model.safetensors"), weights(SEED)).expect("a file");
    dir
}

/// Writes JSON to a file in the directory.
pub(crate) fn write(dir: &Path, name: &str, value: &Value) {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::write(path, value.to_string()).expect("a file");
}

pub(crate) fn config() -> Value {
    json!({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": POSITIONS, "type_vocab_size": 2,
        "vocab_size": MARKS.len() + WORDS.len(), "layer_norm_eps": 1e-12, "pad_token_id": 0,
        "position_embedding_type": "absolute",
    })
}

/// Truncates at 12 tokens and pads to 128, like the file of a real model.
pub(crate) fn tokenizer() -> Value {
    let mark = |id: usize| {
        json!({"id": id, "content": MARKS[id], "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let special = |id: usize| json!({"SpecialToken": {"id": MARKS[id], "type_id": 0}});
    let known = |id: usize| json!({"id": MARKS[id], "ids": [id], "tokens": [MARKS[id]]});
    let vocab: serde_json::Map<String, Value> = MARKS
        .iter()
        .chain(&WORDS)
        .enumerate()
        .map(|(id, word)| ((*word).into(), id.into()))
        .collect();
    json!({
        "version": "1.0",
        "truncation": {"max_length": 12, "strategy": "LongestFirst", "stride": 0,
            "direction": "Right"},
        "padding": {"strategy": {"Fixed": 128}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": (0..MARKS.len()).map(mark).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [special(2), {"Sequence": {"id": "A", "type_id": 0}}, special(3)],
            "pair": [special(2), {"Sequence": {"id": "A", "type_id": 0}}, special(3),
                {"Sequence": {"id": "B", "type_id": 1}}, special(3)],
            "special_tokens": {"[CLS]": known(2), "[SEP]": known(3)}},
        "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// A file in the safetensors format: length of the header, header, numbers.
pub(crate) fn weights(seed: u64) -> Vec<u8> {
    let mut tensors = serde_json::Map::new();
    let mut numbers: Vec<u8> = Vec::new();
    let mut state = seed;
    for (name, shape) in names() {
        let start = numbers.len();
        for _ in 0..shape.iter().product() {
            // Layer norms close to 1, as in trained models. Otherwise all texts get similar
            // vectors.
            let number = match (name.contains("LayerNorm"), name.ends_with("weight")) {
                (true, true) => 1.0 + random(&mut state) / 10.0,
                (true, false) => random(&mut state) / 10.0,
                (false, _) => random(&mut state),
            };
            numbers.extend(number.to_le_bytes());
        }
        let place = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, numbers.len()]});
        tensors.insert(name, place);
    }
    let head = Value::Object(tensors).to_string();
    let length = u64::try_from(head.len()).expect("a small head");
    [&length.to_le_bytes()[..], head.as_bytes(), &numbers].concat()
}

fn names() -> Vec<(String, Vec<usize>)> {
    let mut names = Vec::new();
    let mut add = |name: String, shape: &[usize]| names.push((name, shape.to_vec()));
    for (name, count) in [
        ("word", MARKS.len() + WORDS.len()),
        ("position", POSITIONS),
        ("token_type", 2),
    ] {
        add(
            format!("embeddings.{name}_embeddings.weight"),
            &[count, HIDDEN],
        );
    }
    let mut norms = vec!["embeddings.LayerNorm".to_owned()];
    for layer in 0..2 {
        let layer = format!("encoder.layer.{layer}");
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            add(
                format!("{layer}.attention.{name}.weight"),
                &[HIDDEN, HIDDEN],
            );
            add(format!("{layer}.attention.{name}.bias"), &[HIDDEN]);
        }
        for (name, from, to) in [
            ("intermediate", HIDDEN, INTERMEDIATE),
            ("output", INTERMEDIATE, HIDDEN),
        ] {
            add(format!("{layer}.{name}.dense.weight"), &[to, from]);
            add(format!("{layer}.{name}.dense.bias"), &[to]);
        }
        norms
            .extend(["attention.output", "output"].map(|name| format!("{layer}.{name}.LayerNorm")));
    }
    for norm in norms {
        add(format!("{norm}.weight"), &[HIDDEN]);
        add(format!("{norm}.bias"), &[HIDDEN]);
    }
    names
}

/// A number between -1 and 1 from SplitMix64 (Steele et al., 2014).
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let bits = u16::try_from((mixed ^ (mixed >> 31)) >> 48).expect("16 bits");
    f32::from(bits) / 32_768.0 - 1.0
}
