//! Parses and validates the scores in a service's response.

use memoird_engine::{FaultKind, ModelFault};
use serde_json::Value;

use crate::http::error_in_success_body;

/// Maximum bytes around all texts, if a service returns them.
const FRAME_BYTES_MAX: usize = 64 * 1024;
const ITEM_BYTES_MAX: usize = 1_024;
/// Maximum bytes of an escaped byte of text.
const ESCAPED_BYTES_MAX: usize = 6;

/// Maximum bytes of a response for these texts, which some services return.
pub(super) fn bytes_max(documents: &[&str]) -> usize {
    let texts: usize = documents.iter().map(|text| text.len()).sum();
    texts * ESCAPED_BYTES_MAX + documents.len() * ITEM_BYTES_MAX + FRAME_BYTES_MAX
}

/// Parses the scores of all texts, in order, each from 0 to 1.
pub(super) fn scores(body: &[u8], documents: usize) -> Result<Vec<f64>, ModelFault> {
    let answer: Value =
        serde_json::from_slice(body).map_err(|_| invalid_response("is not JSON"))?;
    if answer.get("error").is_some_and(|error| !error.is_null()) {
        return Err(error_in_success_body(body));
    }
    // Jina, Cohere, vLLM and llama.cpp; others like Voyage; text-embeddings-inference.
    let list = ["results", "data"]
        .into_iter()
        .find_map(|name| answer.get(name))
        .unwrap_or(&answer)
        .as_array()
        .ok_or_else(|| invalid_response("has no list of results"))?;
    if list.len() != documents {
        let problem = format!("has {} scores for {documents} texts", list.len());
        return Err(invalid_response(&problem));
    }
    let mut slots = vec![None; documents];
    for item in list {
        let index = item["index"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        let slot = index
            .and_then(|index| slots.get_mut(index))
            .filter(|slot| slot.is_none())
            .ok_or_else(|| invalid_response("has wrong score indexes"))?;
        let score = ["relevance_score", "score"]
            .into_iter()
            .find_map(|name| item.get(name))
            .and_then(Value::as_f64)
            .filter(|score| score.is_finite());
        *slot = Some(score.ok_or_else(|| invalid_response("has a score that is not a number"))?);
    }
    let scores: Vec<f64> = slots.into_iter().flatten().collect();
    // Scores outside 0 to 1 are logits.
    if scores.iter().all(|score| (0.0..=1.0).contains(score)) {
        Ok(scores)
    } else {
        Ok(scores.into_iter().map(probability).collect())
    }
}

fn probability(logit: f64) -> f64 {
    1.0 / (1.0 + (-logit).exp())
}

/// An invalid response: truncated, or of another API.
fn invalid_response(what: &str) -> ModelFault {
    let problem =
        format!("the response {what}; check that base_url is that of a reranking service");
    ModelFault::new(FaultKind::Unusable, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn good(body: &str, documents: usize) -> Vec<f64> {
        scores(body.as_bytes(), documents).unwrap_or_else(|fault| panic!("{body}: {fault}"))
    }

    #[test]
    fn responses_of_all_rerankers_are_parsed() {
        let jina = r#"{"model":"m","usage":{"total_tokens":9},"results":[
            {"index":1,"relevance_score":0.9,"document":{"text":"b"}},
            {"index":0,"relevance_score":0.25}]}"#;
        let cohere = r#"{"id":"x","results":[{"index":1,"relevance_score":0.9},
            {"index":0,"relevance_score":0.25}],"meta":{"api_version":{"version":"2"}}}"#;
        let tei = r#"[{"index":1,"score":0.9},{"index":0,"score":0.25,"text":"a"}]"#;
        let data = r#"{"object":"list","data":[{"index":1,"relevance_score":0.9},
            {"index":0,"relevance_score":0.25}]}"#;
        for body in [jina, cohere, tei, data] {
            assert_eq!(good(body, 2), [0.25, 0.9], "{body}");
        }
        assert_eq!(good(r#"{"results":[]}"#, 0), [] as [f64; 0]);
    }

    #[test]
    fn logits_become_probabilities_in_same_order() {
        let made = good(
            r#"[{"index":0,"score":-8},{"index":1,"score":3},{"index":2,"score":0}]"#,
            3,
        );
        assert!(made[0] < made[2] && made[2] < made[1], "{made:?}");
        assert!(
            made.iter().all(|score| (0.0..=1.0).contains(score)),
            "{made:?}"
        );
        let far = good(
            r#"[{"index":0,"score":-1e300},{"index":1,"score":1e300}]"#,
            2,
        );
        assert_eq!(far, [0.0, 1.0]);
    }

    #[test]
    fn inconsistent_response_is_rejected() {
        let item =
            |index: &str, score: &str| format!(r#"{{"index":{index},"relevance_score":{score}}}"#);
        let of = |items: &[String]| format!(r#"{{"results":[{}]}}"#, items.join(","));
        let two = |one: &str, other: &str| of(&[item(one, "0.5"), item(other, "0.5")]);
        for (body, word) in [
            (String::new(), "not JSON"),
            ("<html>".into(), "not JSON"),
            (r#"{"results":[{"index":0,"relevance_sc"#.into(), "not JSON"),
            ("{}".into(), "no list"),
            ("null".into(), "no list"),
            (r#"{"results":{}}"#.into(), "no list"),
            (of(&[item("0", "0.5")]), "1 scores for 2 texts"),
            (
                of(&["0", "1", "2"].map(|at| item(at, "0.5"))),
                "3 scores for 2 texts",
            ),
            (two("0", "0"), "has wrong score indexes"),
            (two("0", "2"), "has wrong score indexes"),
            (two("0", "-1"), "has wrong score indexes"),
            (two("0", "null"), "has wrong score indexes"),
            (two("0", "\"1\""), "has wrong score indexes"),
            (two("0", "18446744073709551616"), "has wrong score indexes"),
            (
                of(&[item("0", "0.5"), item("1", "null")]),
                "a score that is not a number",
            ),
            (
                of(&[item("0", "0.5"), item("1", "\"NaN\"")]),
                "a score that is not a number",
            ),
            (of(&[item("0", "0.5"), item("1", "NaN")]), "not JSON"),
            (
                of(&[item("0", "0.5"), item("1", "1e999")]),
                "a score that is not a number",
            ),
            (
                of(&[item("0", "0.5"), r#"{"index":1}"#.into()]),
                "a score that is not a number",
            ),
            (
                of(&[item("0", "0.5"), "7".into()]),
                "has wrong score indexes",
            ),
            (r#"{"error":{"message":"busy"}}"#.into(), "an error"),
        ] {
            let fault = scores(body.as_bytes(), 2).expect_err(&body);
            assert!(fault.problem.contains(word), "{body}: {}", fault.problem);
        }
    }
}
