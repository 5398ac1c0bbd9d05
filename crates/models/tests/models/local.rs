//! Vectors computed by a local model.

use memoird_memories::{Embedder, Purpose};
use memoird_models::{LocalEmbedder, open_local};
use serde_json::json;

use crate::kit::strings;
use crate::made::{HIDDEN, POSITIONS, WORDS, folder, weights, write};

async fn vectors(embedder: &dyn Embedder, texts: &[String]) -> Vec<Vec<f32>> {
    embedder
        .embed(Purpose::Memory, texts.to_vec())
        .await
        .expect("vectors")
}

async fn vector(embedder: &dyn Embedder, text: &str) -> Vec<f32> {
    vectors(embedder, &strings(&[text])).await.remove(0)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Texts of all lengths, long and short alternating.
fn texts() -> Vec<String> {
    let words = |count: usize| (0..count).map(move |at| WORDS[(at * at + count) % WORDS.len()]);
    let text = |at: usize| words(1 + at * 7 % 19).collect::<Vec<_>>().join(" ");
    (0..80).map(text).collect()
}

#[tokio::test]
async fn vectors_do_not_depend_on_batch() {
    let dir = folder();
    let embedder = open_local(dir.path()).expect("a model");
    assert_eq!(embedder.batch_max(), 32);
    let texts = texts();
    let together = vectors(&*embedder, &texts).await;
    assert_eq!(together.len(), texts.len());
    let mut differing = 0;
    for (text, vector_among_many) in texts.iter().zip(&together) {
        let alone = vector(&*embedder, text).await;
        assert_eq!(alone.len(), HIDDEN);
        assert!(
            (cosine(&alone, &alone) - 1.0).abs() < 1e-5,
            "{text}: {alone:?}"
        );
        let cosine_of = cosine(&alone, vector_among_many);
        assert!(cosine_of > 0.9999, "{text}: {cosine_of}");
        differing += usize::from(cosine(&alone, &together[0]) < 0.99);
    }
    // Equal vectors would pass the checks above.
    assert!(differing > 40, "{differing} texts differ");
    assert_eq!(vectors(&*embedder, &[]).await, Vec::<Vec<f32>>::new());
}

#[tokio::test]
async fn long_text_is_truncated_at_model_limit() {
    let dir = folder();
    let embedder = LocalEmbedder::open(dir.path()).expect("a model");
    // Two of the positions are for special tokens.
    let words = |count: usize| vec!["tea milk"; count / 2].join(" ");
    let full = vector(&embedder, &words(POSITIONS - 2)).await;
    let long = vector(&embedder, &words(100_000)).await;
    let short = vector(&embedder, &words(POSITIONS - 4)).await;
    assert!(cosine(&full, &long) > 0.9999, "{full:?} {long:?}");
    assert!(cosine(&full, &short) < 0.999, "{full:?} {short:?}");
    let odd = [
        "",
        " ",
        "\u{0}",
        &"é".repeat(100_000),
        &"x".repeat(100_000),
        "[CLS] tea [MASK]",
    ];
    for vector in vectors(&embedder, &strings(&odd)).await {
        assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-5, "{vector:?}");
    }
    write(
        dir.path(),
        "sentence_bert_config.json",
        &json!({"max_seq_length": 10}),
    );
    let shorter = LocalEmbedder::open(dir.path()).expect("a model");
    let eight = vector(&shorter, &words(8)).await;
    assert!(cosine(&eight, &vector(&shorter, &words(30)).await) > 0.9999);
}

#[tokio::test]
async fn special_tokens_written_by_users_are_text() {
    let dir = folder();
    let embedder = LocalEmbedder::open(dir.path()).expect("a model");
    let mark = vector(&embedder, "tea [SEP] milk").await;
    let words = vector(&embedder, "tea [x] milk").await;
    assert!(cosine(&mark, &words) > 0.9999, "{mark:?} {words:?}");
}

#[tokio::test]
async fn pooling_and_prompts_are_read_from_model_files() {
    let dir = folder();
    let mean = LocalEmbedder::open(dir.path()).expect("a model");
    let pooling = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    write(dir.path(), "1_Pooling/config.json", &pooling);
    let cls = LocalEmbedder::open(dir.path()).expect("a model");
    let (by_mean, by_cls) = (
        vector(&mean, "ann likes tea").await,
        vector(&cls, "ann likes tea").await,
    );
    assert!(cosine(&by_mean, &by_cls) < 0.99, "{by_mean:?} {by_cls:?}");
    let prompts = json!({"prompts": {"query": "where ", "passage": "in "}});
    write(dir.path(), "config_sentence_transformers.json", &prompts);
    let prompted = LocalEmbedder::open(dir.path()).expect("a model");
    for (purpose, same) in [(Purpose::Query, "where tea"), (Purpose::Memory, "in tea")] {
        let found = prompted
            .embed(purpose, strings(&["tea"]))
            .await
            .expect("vectors")
            .remove(0);
        assert!(cosine(&found, &vector(&cls, same).await) > 0.9999, "{same}");
    }
    let names = [mean.model(), cls.model(), prompted.model()];
    assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");
}

#[test]
fn model_name_depends_on_content_and_not_on_path() {
    let (here, there) = (folder(), folder());
    let name = |dir: &tempfile::TempDir| {
        LocalEmbedder::open(dir.path())
            .expect("a model")
            .model()
            .to_owned()
    };
    let first = name(&here);
    assert!(
        first.starts_with("local:bert:") && first.len() == 27,
        "{first}"
    );
    assert_eq!(first, name(&there));
    std::fs::write(there.path().join("model.safetensors"), weights(1)).expect("a file");
    assert_ne!(first, name(&there));
}

#[tokio::test]
async fn runtime_is_not_blocked_by_computation() {
    let dir = folder();
    let embedder = LocalEmbedder::open(dir.path()).expect("a model");
    let texts = texts();
    // On a single-threaded runtime the first poll must return before there is a vector.
    let mut asked = embedder.embed(Purpose::Memory, texts.clone());
    let first = std::future::poll_fn(|context| {
        std::task::Poll::Ready(asked.as_mut().poll(context).is_ready())
    });
    assert!(!first.await, "it computed where it was polled");
    // A dropped call must release the lock.
    drop(asked);
    let (one, many) = tokio::join!(vector(&embedder, "tea"), vectors(&embedder, &texts));
    assert_eq!((one.len(), many.len()), (HIDDEN, texts.len()));
}
