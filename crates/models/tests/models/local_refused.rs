//! Directories without a valid model.

use std::fs::{self, File};
use std::path::Path;

use memoird_models::{LocalEmbedder, ModelError};
use serde_json::{Value, json};

use crate::made::{config, folder, tokenizer, write};

/// The error of opening this directory.
#[track_caller]
fn refused(dir: &Path) -> ModelError {
    LocalEmbedder::open(dir).expect_err("a refusal")
}

#[test]
fn missing_and_oversized_files_are_rejected() {
    for name in ["model.safetensors", "tokenizer.json", "config.json"] {
        let dir = folder();
        let path = dir.path().join(name);
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_len(u64::from(u32::MAX)).expect("a hole");
        let large = refused(dir.path());
        assert!(matches!(large, ModelError::FileTooLarge { .. }), "{large}");
        fs::remove_file(&path).expect("a file");
        let missing = refused(dir.path());
        assert!(
            matches!(missing, ModelError::ModelIncomplete { .. }),
            "{missing}"
        );
        assert!(
            missing.to_string().contains(&format!("{name} is missing")),
            "{missing}"
        );
        fs::create_dir(&path).expect("a directory");
        let unreadable = refused(dir.path());
        assert!(
            matches!(unreadable, ModelError::FileUnreadable { .. }),
            "{unreadable}"
        );
    }
    let dir = folder();
    let nowhere = refused(&dir.path().join("nowhere"));
    assert!(
        matches!(nowhere, ModelError::ModelIncomplete { .. }),
        "{nowhere}"
    );
}

#[test]
fn other_model_family_is_rejected_with_advice() {
    let change = |file: &Value, name: &str, value: Value| {
        let mut file = file.clone();
        file[name] = value;
        file
    };
    let both = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true});
    let max = json!({"pooling_mode_max_tokens": true});
    let dense = json!([{"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]);
    let prompt = json!({"pooling_mode_mean_tokens": true, "include_prompt": false});
    for (name, value, what) in [
        (
            "config.json",
            change(&config(), "model_type", json!("roberta")),
            "roberta",
        ),
        ("config.json", json!({}), "model_type is nothing"),
        (
            "config.json",
            change(&config(), "hidden_act", json!("swish")),
            "swish",
        ),
        (
            "config.json",
            change(&config(), "position_embedding_type", json!("relative_key")),
            "key",
        ),
        ("1_Pooling/config.json", both, "cls_token"),
        ("1_Pooling/config.json", max, "max_tokens"),
        ("1_Pooling/config.json", prompt, "without the prompt"),
        ("modules.json", dense, "Dense"),
    ] {
        let dir = folder();
        write(dir.path(), name, &value);
        let error = refused(dir.path());
        assert!(
            matches!(error, ModelError::ModelUnsupported { .. }),
            "{what}: {error}"
        );
        let said = error.to_string();
        assert!(
            said.contains(what) && said.contains("all-MiniLM-L6-v2"),
            "{said}"
        );
    }
}

#[test]
fn empty_and_inconsistent_files_are_rejected() {
    for (name, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(9)),
        ("num_attention_heads", json!(0)),
        ("num_attention_heads", json!(-1)),
        ("max_position_embeddings", json!(1)),
        ("num_hidden_layers", json!(1_000)),
        ("vocab_size", json!("many")),
    ] {
        let dir = folder();
        let mut config = config();
        config[name] = value;
        write(dir.path(), "config.json", &config);
        let error = refused(dir.path());
        assert!(
            matches!(error, ModelError::ModelInvalid { .. }),
            "{name}: {error}"
        );
    }
    // More words than the model has, or weights of another size.
    for (name, value) in [
        ("vocab_size", 10),
        ("hidden_size", 32),
        ("num_hidden_layers", 3),
    ] {
        let dir = folder();
        let mut config = config();
        config[name] = json!(value);
        write(dir.path(), "config.json", &config);
        let error = refused(dir.path());
        assert!(
            matches!(error, ModelError::ModelUnusable { .. }),
            "{name}: {error}"
        );
    }
    for name in [
        "config.json",
        "modules.json",
        "model.safetensors",
        "tokenizer.json",
    ] {
        for content in ["", "{", "\u{0}"] {
            let dir = folder();
            fs::write(dir.path().join(name), content).expect("a file");
            refused(dir.path());
        }
    }
    let dir = folder();
    let mut nothing = tokenizer();
    nothing["model"]["vocab"] = json!({});
    write(dir.path(), "tokenizer.json", &nothing);
    refused(dir.path());
}
