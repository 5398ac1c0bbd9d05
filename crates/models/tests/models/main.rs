//! Tests of models against providers on a bare socket, and with random local weights.

mod counts;
mod kit;
#[cfg(feature = "local-embedder")]
mod local;
#[cfg(feature = "local-embedder")]
mod local_refused;
#[cfg(feature = "local-embedder")]
mod made;
mod openai;
mod openai_failures;
mod rerankers;
mod service;
mod summaries;

#[cfg(not(feature = "tokenizer-json"))]
#[test]
fn tokenizer_file_without_feature_has_advice() {
    let path = std::path::Path::new("a/tokenizer.json");
    let error = memoird_models::open_tokenizer(path).expect_err("no tokenizer");
    let problem = error.to_string();
    assert!(
        problem.contains("cannot read a/tokenizer.json"),
        "{problem}"
    );
    assert!(problem.contains("--features tokenizer-json"), "{problem}");
}

#[cfg(not(feature = "local-embedder"))]
#[test]
fn local_model_without_feature_has_advice() {
    let error = memoird_models::open_local(std::path::Path::new("a/model")).expect_err("no model");
    let problem = error.to_string();
    assert!(
        problem.contains("built without local-embedder"),
        "{problem}"
    );
    assert!(problem.contains("--features local-embedder"), "{problem}");
}
