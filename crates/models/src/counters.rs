//! Counters that ask the provider how many tokens a request has. They answer soon or not at
//! all: there is always an estimate to go on with.

mod anthropic;
mod config;
mod openai;

use std::collections::BTreeMap;

use memoird_engine::{CountAsk, CountError};
use serde_json::from_str;
use serde_json::value::RawValue;

use crate::http::{Fault, Provider, Question};
pub use anthropic::AnthropicCounter;
pub use config::{AnthropicCounterConfig, CountEndpoint, CounterSpec, OpenAiCounterConfig};
pub use openai::OpenAiCounter;

/// Bytes of an answer. vLLM counts by writing all tokens down.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// An object whose values are given on or left alone: a request is as large as a window.
type Object<'a> = BTreeMap<&'a str, Box<RawValue>>;

/// Puts what is JSON already into a request.
fn put<'a>(request: &mut Object<'a>, name: &'a str, json: &str) -> Result<(), Fault> {
    let json = RawValue::from_string(json.to_owned());
    let problem = || Fault::Refused {
        problem: format!("{name} of the request is no JSON"),
    };
    request.insert(name, json.map_err(|_| problem())?);
    Ok(())
}

/// Puts a text into a request.
fn put_text<'a>(request: &mut Object<'a>, name: &'a str, text: &str) -> Result<(), Fault> {
    put(request, name, &serde_json::json!(text).to_string())
}

/// Asks with this request and reads the number of this name.
async fn count(
    provider: &Provider,
    ask: &CountAsk,
    request: &Object<'_>,
    number: &'static str,
) -> Result<u64, Fault> {
    let body = serde_json::to_string(request);
    let body = body.map_err(|_| Fault::Refused {
        problem: "the request is no JSON".to_owned(),
    })?;
    let private = [ask.system.as_str(), &ask.tools_json, &ask.messages_json];
    let question = Question {
        body,
        private: &private,
        bytes_max: ANSWER_BYTES_MAX,
    };
    let read = |answer: &[u8]| {
        let answer: Option<BTreeMap<String, &RawValue>> = serde_json::from_slice(answer).ok();
        let found = answer.and_then(|answer| from_str(answer.get(number)?.get()).ok());
        let problem = || format!("the answer has no number named {number}; check base_url");
        found.ok_or_else(|| Fault::Strange { problem: problem() })
    };
    provider.ask(&question, read).await
}

impl From<Fault> for CountError {
    fn from(fault: Fault) -> Self {
        let (Fault::Later { problem, .. }
        | Fault::Strange { problem }
        | Fault::Misconfigured { problem }
        | Fault::TooLong { problem }
        | Fault::Refused { problem }) = fault;
        Self { problem }
    }
}
