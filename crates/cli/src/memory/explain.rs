//! `memoird memory explain`: shows how the score of each hit is composed.

use memoird_proto::v1::{RecallHit, RecallResponse};

use super::{RecallArgs, content, recall_request, whose};
use crate::connect::Target;
use crate::exit::CliError;
use crate::output;

pub(super) async fn run(target: &Target, args: RecallArgs, json: bool) -> Result<(), CliError> {
    let mut request = recall_request(args);
    request.explain = true;
    let found = target.done(target.memories_of(whose(&request)).recall(request).await)?;
    if !json {
        for note in &found.notes {
            output::note(&format!("note: {note}"));
        }
    }
    output::show(json, &found, readable)
}

fn readable(found: &RecallResponse) -> String {
    let header = [
        "SCORE",
        "RELEVANCE",
        "WORDS",
        "BM25",
        "MEANING",
        "COSINE",
        "FORM",
        "RERANKER",
        "BESIDE",
        "IMPORTANCE",
        "AGE",
        "ID",
        "CONTENT",
    ];
    output::fitted_table(Some(header), found.hits.iter().map(row))
}

fn row(hit: &RecallHit) -> [String; 13] {
    let memory = hit.memory.clone().unwrap_or_default();
    let parts = hit.parts.unwrap_or_default();
    let figure = |value: f64| output::figure(value, 3);
    let or_none = |value: Option<f64>| value.map_or("-".to_owned(), figure);
    [
        output::figure(hit.score, 4),
        figure(hit.relevance),
        figure(parts.words_share),
        figure(parts.words),
        or_none(parts.meaning_share),
        or_none(parts.cosine),
        factor(parts.form),
        or_none(parts.reranker),
        figure(parts.beside),
        factor(parts.importance),
        factor(parts.recency),
        output::printable(&memory.id),
        content(&memory),
    ]
}

fn factor(factor: f64) -> String {
    format!("×{}", output::figure(factor, 3))
}
