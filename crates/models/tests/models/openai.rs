//! Requests to a provider of embeddings, and its valid responses.

use memoird_memories::{Embedder, Purpose};
use memoird_models::{OpenAiEmbedder, OpenAiEmbedderConfig};
use serde_json::json;

use crate::kit::{config, embedder, exchange, strings};
use crate::service::{Service, data, vector};

/// The service's vector of a text, normalized.
fn unit(text: &str) -> Vec<f32> {
    let vector = vector(text);
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    vector.iter().map(|value| value / length).collect()
}

#[track_caller]
fn assert_of(vectors: &[Vec<f32>], texts: &[&str]) {
    assert_eq!(vectors.len(), texts.len());
    for (vector, text) in vectors.iter().zip(texts) {
        let pairs = vector.iter().zip(unit(text));
        let is_near = pairs
            .map(|(a, b)| (a - b).abs())
            .all(|distance| distance < 1e-6);
        assert!(is_near && vector.len() == 2, "{text}: {vector:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn provider_receives_texts_and_vectors_are_normalized() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let texts = ["tea", "no \"milk\"\n", "Grüße 🦀"];
    let (vectors, got) = exchange(&embedder, &texts, service.good()).await;
    assert_of(&vectors.expect("vectors"), &texts);
    assert_eq!(got.line, "POST /v1/embeddings");
    assert_eq!(
        got.body,
        json!({"model": "small", "input": texts, "encoding_format": "float"})
    );
    for line in [
        "authorization: bearer sk-hunter2",
        "content-type: application/json",
    ] {
        assert!(got.head.lines().any(|found| found == line), "{}", got.head);
    }
    assert_eq!(
        embedder.model(),
        format!("openai:{}:small:-", service.place())
    );
    let (none, ()) = exchange(&embedder, &[], async {}).await;
    assert_eq!(none, Ok(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn request_without_key_has_dimensions() {
    let service = Service::bind().await;
    let config = OpenAiEmbedderConfig {
        dimensions: Some(2),
        ..config(format!("{}/", service.url()))
    };
    let embedder = OpenAiEmbedder::new(&config, None).expect("a good configuration");
    let (vectors, got) = exchange(&embedder, &["tea"], service.good()).await;
    assert_of(&vectors.expect("vectors"), &["tea"]);
    assert_eq!(got.line, "POST /v1/embeddings");
    assert_eq!(got.body["dimensions"], json!(2));
    assert!(!got.head.contains("authorization"), "{}", got.head);
    assert_eq!(
        embedder.model(),
        format!("openai:{}:small:2", service.place())
    );
}

#[tokio::test(start_paused = true)]
async fn batches_are_limited_by_texts_and_bytes_in_order() {
    let service = Service::bind().await;
    let config = OpenAiEmbedderConfig {
        batch: 3,
        batch_bytes: 10,
        ..config(service.url())
    };
    let embedder = embedder(&config);
    assert_eq!(embedder.batch_max(), 3);
    let texts = [
        "a",
        "bb",
        "ccc",
        "dddd",
        "eeeee",
        "ff",
        "gggggggggggggggg",
        "h",
    ];
    let (vectors, batches) = exchange(&embedder, &texts, async {
        let mut batches = Vec::new();
        for _ in 0..5 {
            batches.push(strings(&service.good().await.texts()));
        }
        batches
    })
    .await;
    assert_of(&vectors.expect("vectors"), &texts);
    let sizes: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 2, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn vectors_in_other_order_are_sorted_by_index() {
    let service = Service::bind().await;
    let embedder = embedder(&config(service.url()));
    let texts = ["a", "bb", "ccc", "dddd"];
    let vectors: Vec<Vec<f32>> = texts.iter().map(|text| vector(text)).collect();
    let body = data(
        [2, 0, 3, 1]
            .into_iter()
            .map(|index| (index, &vectors[index])),
    );
    let (vectors, _) = exchange(&embedder, &texts, service.answer("200 OK", "", &body)).await;
    assert_of(&vectors.expect("vectors"), &texts);
}

#[tokio::test(start_paused = true)]
async fn purpose_selects_prefix_and_name_includes_prefixes() {
    let service = Service::bind().await;
    let plain = config(service.url());
    let config = OpenAiEmbedderConfig {
        query_prefix: "query: ".to_owned(),
        memory_prefix: "passage: ".to_owned(),
        ..plain.clone()
    };
    let embedder = embedder(&config);
    for (purpose, expected) in [
        (Purpose::Query, "query: tea"),
        (Purpose::Memory, "passage: tea"),
    ] {
        let asked = embedder.embed(purpose, strings(&["tea"]));
        let (vectors, got) = tokio::join!(asked, service.good());
        assert_eq!(got.texts(), [expected]);
        assert_of(&vectors.expect("vectors"), &[expected]);
    }
    let swapped = OpenAiEmbedderConfig {
        query_prefix: config.memory_prefix.clone(),
        memory_prefix: config.query_prefix.clone(),
        ..plain.clone()
    };
    let name = |config| {
        OpenAiEmbedder::new(config, None)
            .expect("a good one")
            .model()
            .to_owned()
    };
    let names = [name(&plain), name(&config), name(&swapped)];
    assert!(names[1].starts_with(&format!("{}:", names[0])), "{names:?}");
    assert!(names[1] != names[2], "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn long_text_is_truncated_between_characters() {
    let service = Service::bind().await;
    let config = OpenAiEmbedderConfig {
        text_bytes_max: 1_000,
        ..config(service.url())
    };
    let text = format!("a{}", "é".repeat(600));
    let (vectors, got) = exchange(&embedder(&config), &[&text], service.good()).await;
    assert_eq!(got.texts(), [&text[..999]]);
    assert_of(&vectors.expect("vectors"), &[&text[..999]]);
}
