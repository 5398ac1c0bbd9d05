//! A provider of facts that speaks OpenAI's chat completions, and answers as it is told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::service::read;
use super::{Setup, eventually};

/// What it does with a call.
#[derive(Clone, Debug)]
pub(crate) enum Finds {
    /// These facts.
    These(Value),
    /// Half of them.
    Half(Value),
    /// Nothing is ever said.
    Never,
    /// 503.
    Down,
    /// The answer of OpenAI's server ends in the middle of its JSON.
    Breaks,
}

#[derive(Debug, Default)]
struct State {
    script: Mutex<VecDeque<Finds>>,
    prompts: Mutex<Vec<String>>,
}

/// A provider that lives as long as the test.
#[derive(Debug)]
pub(crate) struct Learner {
    port: u16,
    state: Arc<State>,
    /// Ends with it.
    _serving: JoinSet<()>,
}

impl Learner {
    /// Does these, in this order, and then finds nothing.
    pub(crate) async fn start(script: impl IntoIterator<Item = Finds>) -> Self {
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

    /// A daemon that asks it, with these settings of `long_term` and of `extraction`.
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

    /// Does these next.
    pub(crate) fn finds(&self, script: impl IntoIterator<Item = Finds>) {
        self.state.script.lock().expect("no panic").extend(script);
    }

    /// The prompts so far.
    pub(crate) fn prompts(&self) -> Vec<String> {
        self.state.prompts.lock().expect("no panic").clone()
    }

    /// Waits until it was asked so often.
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
    let finds = state.script.lock().expect("no panic").pop_front();
    state
        .prompts
        .lock()
        .expect("no panic")
        .push(prompt.to_owned());
    let (status, body) = match finds {
        None => ("200 OK", good("[]")),
        Some(Finds::These(facts)) => ("200 OK", good(&facts.to_string())),
        Some(Finds::Half(facts)) => {
            let text = facts.to_string();
            ("200 OK", good(&text[..text.len() / 2]))
        }
        Some(Finds::Breaks) => {
            let whole = good("[]");
            ("200 OK", whole[..whole.len() / 2].to_owned())
        }
        Some(Finds::Down) => ("503 Service Unavailable", "{}".to_owned()),
        Some(Finds::Never) => {
            // Until the other side gives up.
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
