//! Parses and validates the vectors in a provider's response.

use std::collections::BTreeMap;

use memoird_engine::{FaultKind, ModelFault};
use serde_json::from_str;
use serde_json::value::RawValue;

use crate::vector::unit;

/// Maximum dimensions. The longest vectors of providers have half as many.
pub(super) const DIMENSIONS_MAX: usize = 8_192;
/// Maximum bytes per number, including indentation.
const NUMBER_BYTES_MAX: usize = 40;
/// Maximum bytes of everything around the vectors.
const FRAME_BYTES_MAX: usize = 64 * 1024;

/// An object with unparsed values.
///
/// Numbers are parsed directly: a tree of JSON values would take ten times their memory.
type Object<'a> = BTreeMap<String, &'a RawValue>;

/// Maximum bytes of a response with the vectors of `texts` texts.
pub(super) fn bytes_max(texts: usize) -> usize {
    texts * DIMENSIONS_MAX * NUMBER_BYTES_MAX + FRAME_BYTES_MAX
}

/// Parses the vectors of `texts` texts, in order, normalized and with equal dimensions.
pub(super) fn vectors(body: &[u8], texts: usize) -> Result<Vec<Vec<f32>>, ModelFault> {
    let answer: Object =
        serde_json::from_slice(body).map_err(|_| invalid_response("is not a JSON object"))?;
    let data = answer
        .get("data")
        .and_then(|data| from_str::<Vec<Object>>(data.get()).ok())
        .ok_or_else(|| invalid_response("has no list named data"))?;
    if data.len() != texts {
        return Err(invalid_response(&format!(
            "has {} vectors for {texts} texts",
            data.len()
        )));
    }
    let mut slots = vec![None; texts];
    for (position, item) in data.iter().enumerate() {
        // Servers that omit it reply in order.
        let index = match item.get("index") {
            Some(index) => from_str(index.get()).unwrap_or(texts),
            None => position,
        };
        let slot = slots
            .get_mut(index)
            .filter(|slot| slot.is_none())
            .ok_or_else(|| invalid_response("has wrong vector indexes"))?;
        *slot = Some(vector(item)?);
    }
    let vectors: Vec<Vec<f32>> = slots.into_iter().flatten().collect();
    let dimensions = vectors.first().map_or(0, Vec::len);
    if vectors.iter().all(|vector| vector.len() == dimensions) {
        Ok(vectors)
    } else {
        Err(invalid_response("has vectors of different dimensions"))
    }
}

fn vector(item: &Object) -> Result<Vec<f32>, ModelFault> {
    let nullable = item
        .get("embedding")
        .and_then(|numbers| from_str::<Vec<Option<f32>>>(numbers.get()).ok())
        .filter(|numbers| (1..=DIMENSIONS_MAX).contains(&numbers.len()))
        .ok_or_else(|| invalid_response("has an embedding that is not a list of numbers"))?;
    // Some servers write null for what their model could not compute. A retry would not help.
    let numbers: Option<Vec<f32>> = nullable.into_iter().collect();
    numbers.and_then(unit).ok_or_else(|| {
        let problem = "the model returns no usable vector for a text: not finite, or zero";
        ModelFault::new(FaultKind::Refused, problem)
    })
}

/// An invalid response, such as from a proxy or a server that is starting.
fn invalid_response(what: &str) -> ModelFault {
    let problem =
        format!("the response {what}; check that base_url is that of an OpenAI-compatible server");
    ModelFault::new(FaultKind::Later, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str, texts: usize) -> String {
        let fault = vectors(body.as_bytes(), texts).expect_err(body);
        assert_eq!(
            (fault.kind, fault.after),
            (FaultKind::Later, None),
            "{body}"
        );
        fault.problem
    }

    #[test]
    fn vectors_are_ordered_by_index_and_normalized() {
        let body = r#"{"object":"list","usage":{"total_tokens":2},"data":[
            {"index":1,"object":"embedding","embedding":[0,-2e0]},
            {"index":0,"object":"embedding","embedding":[3.0,4]}]}"#;
        assert_eq!(
            vectors(body.as_bytes(), 2),
            Ok(vec![vec![0.6, 0.8], vec![0.0, -1.0]])
        );
        let body = r#"{"data":[{"embedding":[1]},{"embedding":[-1]}]}"#;
        assert_eq!(vectors(body.as_bytes(), 2), Ok(vec![vec![1.0], vec![-1.0]]));
    }

    #[test]
    fn invalid_response_is_retried_later() {
        for body in [
            "",
            "<html>",
            "[]",
            "null",
            "{\"data\":[{\"embedding\":[NaN]}]}",
            "\u{0}",
        ] {
            assert!(problem(body, 1).contains("not a JSON object"), "{body}");
        }
        for body in ["{}", r#"{"data":1}"#, r#"{"data":[1]}"#] {
            assert!(problem(body, 1).contains("no list named data"), "{body}");
        }
        let item = |index: &str| format!(r#"{{"index":{index},"embedding":[1]}}"#);
        let of = |indexes: &[&str]| {
            let items: Vec<String> = indexes.iter().map(|index| item(index)).collect();
            format!(r#"{{"data":[{}]}}"#, items.join(","))
        };
        assert!(problem(&of(&["0"]), 2).contains("1 vectors for 2 texts"));
        assert!(problem(&of(&["0", "1", "2"]), 2).contains("3 vectors for 2 texts"));
        for indexes in [
            ["0", "0"],
            ["0", "2"],
            ["0", "-1"],
            ["0", "null"],
            ["0", "\"1\""],
        ] {
            assert!(
                problem(&of(&indexes), 2).contains("has wrong vector indexes"),
                "{indexes:?}"
            );
        }
        for embedding in ["\"AACAPw==\"", "[]", "[\"1\"]", "null", "[[1]]", "{}"] {
            let body = format!(r#"{{"data":[{{"embedding":{embedding}}}]}}"#);
            assert!(
                problem(&body, 1).contains("not a list of numbers"),
                "{body}"
            );
        }
        let long = format!(
            r#"{{"data":[{{"embedding":[1{}]}}]}}"#,
            ",1".repeat(DIMENSIONS_MAX)
        );
        assert!(problem(&long, 1).contains("not a list of numbers"));
        let mixed = r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#;
        assert!(problem(mixed, 2).contains("different dimensions"));
    }

    #[test]
    fn zero_vector_is_rejected() {
        for embedding in ["[null,1]", "[0,0]", "[0.0,-0.0]", "[1e39,1]"] {
            let body = format!(r#"{{"data":[{{"embedding":{embedding}}}]}}"#);
            let error = vectors(body.as_bytes(), 1).expect_err(&body);
            assert!(error.kind == FaultKind::Refused, "{body}: {error:?}");
        }
    }
}
