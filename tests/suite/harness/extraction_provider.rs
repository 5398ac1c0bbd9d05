//! A fake extraction provider with OpenAI's chat completions and scripted replies.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::service::read;
use super::{Setup, eventually};

/// Response to a call.
#[derive(Clone, Debug)]
pub(crate) enum ExtractionReply {
    /// Returns these facts.
    These(Value),
    /// Returns a reply that is cut off in the middle of these facts.
    Half(Value),
    /// Never replies.
    Never,
    /// Fails with status 503.
    Down,
    /// Returns a response body whose JSON is truncated.
    Breaks,
}

#[derive(Debug, Default)]
struct State {
    script: Mutex<VecDeque<ExtractionReply>>,
    prompts: Mutex<Vec<String>>,
}

/// A provider that runs until the end of the test.
#[derive(Debug)]
pub(crate) struct ExtractionProvider {
    port: u16,
    state: Arc<State>,
    /// Stops the server when dropped.
    _serving: JoinSet<()>,
}

impl ExtractionProvider {
    /// Follows the script and then finds no facts.
    pub(crate) async fn start(script: impl IntoIterator<Item = ExtractionReply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State::default());
        state.script.lock().expect("no panic").extend(script);
        let mut serving = JoinSet::new();
        let shared = Arc::clone(&state);
        serving.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let state = Arc::clone(&shared);
                open.spawn(async move { serve(stream, &state).await });
            }
        });
        Self {
            port,
            state,
            _serving: serving,
        }
    }

    /// A daemon that uses this provider, with more settings of `long_term` and `extraction`.
    pub(crate) fn setup(&self, long_term: &str, extraction: &str) -> Setup {
        let port = self.port;
        Setup::default()
            .env("LEARNER_KEY", "sk-learner-0ddba11")
            .section(format!(
                "long_term: {{ {long_term} extraction: {{ openai: {{ model: small, tries: 1, \
                 base_url: 'http://127.0.0.1:{port}/v1', timeout: 5s, \
                 api_key: {{ env: LEARNER_KEY }} }}, {extraction} }} }}"
            ))
    }

    /// Appends to the script.
    pub(crate) fn add_replies(&self, script: impl IntoIterator<Item = ExtractionReply>) {
        self.state.script.lock().expect("no panic").extend(script);
    }

    pub(crate) fn prompts(&self) -> Vec<String> {
        self.state.prompts.lock().expect("no panic").clone()
    }

    /// Waits for at least `times` calls.
    pub(crate) async fn was_asked(&self, times: usize) {
        eventually("the model is asked", async || {
            (self.prompts().len() >= times).then_some(())
        })
        .await;
    }
}

async fn serve(mut stream: TcpStream, state: &State) {
    let Some(posted) = read(&mut stream).await else {
        return;
    };
    let body: Value = serde_json::from_slice(&posted.body).expect("JSON");
    let prompt = body["messages"][0]["content"].as_str().expect("a prompt");
    assert_eq!(posted.header("authorization"), "Bearer sk-learner-0ddba11");
    let reply = state.script.lock().expect("no panic").pop_front();
    state
        .prompts
        .lock()
        .expect("no panic")
        .push(prompt.to_owned());
    let (status, body) = match reply {
        None => ("200 OK", good("[]")),
        Some(ExtractionReply::These(facts)) => ("200 OK", good(&facts.to_string())),
        Some(ExtractionReply::Half(facts)) => {
            let text = facts.to_string();
            ("200 OK", good(&text[..text.len() / 2]))
        }
        Some(ExtractionReply::Breaks) => {
            let whole = good("[]");
            ("200 OK", whole[..whole.len() / 2].to_owned())
        }
        Some(ExtractionReply::Down) => ("503 Service Unavailable", "{}".to_owned()),
        Some(ExtractionReply::Never) => {
            // Until the client disconnects.
            let _ = stream.read(&mut [0; 1]).await;
            return;
        }
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
    let answer = format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn good(text: &str) -> String {
    let message = json!({"role": "assistant", "content": text});
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "small",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1_200, "completion_tokens": 34},
    })
    .to_string()
}
