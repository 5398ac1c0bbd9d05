//! Recall with a reranker that replies or fails.

use std::sync::{Arc, Mutex};

use memoird_proto::v1::RecallRequest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::{
    Daemon, Setup, contents, fact, memory_stats, query_of, read_post, recall, remember_new,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum RerankReply {
    Well,
    Oops,
    Half,
    Never,
}

/// A service with Jina's `/v1/rerank` that ranks shorter texts higher.
struct Reranker {
    port: u16,
    reply: Arc<Mutex<RerankReply>>,
    asked: Arc<Mutex<Vec<Value>>>,
    /// Stops the server when dropped.
    _serving: JoinSet<()>,
}

impl Reranker {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let reply = Arc::new(Mutex::new(RerankReply::Well));
        let asked = Arc::<Mutex<Vec<Value>>>::default();
        let (script, seen) = (Arc::clone(&reply), Arc::clone(&asked));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let reply = *script.lock().expect("no test panicked with it");
                let seen = Arc::clone(&seen);
                open.spawn(async move { serve(stream, reply, &seen).await });
            }
        });
        Self {
            port,
            reply,
            asked,
            _serving: serving,
        }
    }

    fn set_reply(&self, reply: RerankReply) {
        *self.reply.lock().expect("no test panicked with it") = reply;
    }

    fn calls(&self) -> usize {
        self.asked.lock().expect("no test panicked with it").len()
    }
}

async fn serve(mut stream: TcpStream, reply: RerankReply, seen: &Mutex<Vec<Value>>) {
    let Some(posted) = read_post(&mut stream).await else {
        return;
    };
    let body: Value = serde_json::from_slice(&posted.body).expect("JSON");
    let texts = body["documents"].as_array().cloned().unwrap_or_default();
    seen.lock().expect("no test panicked with it").push(body);
    let score = |text: &Value| 1.0 / text.as_str().map_or(1, str::len) as f64;
    let results: Vec<Value> = texts
        .iter()
        .enumerate()
        .rev()
        .map(|(index, text)| json!({"index": index, "relevance_score": score(text)}))
        .collect();
    let good = json!({ "results": results }).to_string();
    let (status, body) = match reply {
        RerankReply::Well => ("200 OK", good.as_str()),
        RerankReply::Oops => ("500 Oops", "{}"),
        RerankReply::Half => ("200 OK", &good[..good.len() / 2]),
        RerankReply::Never => {
            // Until the client disconnects.
            let _ = stream.read(&mut [0; 1]).await;
            return;
        }
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close");
    let _ = stream
        .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
        .await;
    let _ = stream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reranker_reorders_hits_and_its_failure_degrades_recall() {
    let service = Reranker::start().await;
    let port = service.port;
    let section = format!(
        "long_term: {{ reranker: {{ jina: {{ base_url: 'http://127.0.0.1:{port}/v1', \
         model: m, timeout: 300ms }} }} }}"
    );
    let daemon = Daemon::with(Setup::default().section(section)).await;
    let mut client = daemon.memories();
    let long = "Ann likes green tea, green tea and once more green tea in the morning";
    for content in [long, "green tea", "Ann drinks no coffee"] {
        remember_new(&mut client, fact("ann", content)).await;
    }
    let plain = RecallRequest {
        rerank: Some(false),
        ..query_of("ann", "does Ann like green tea in the morning")
    };
    let ask = RecallRequest {
        rerank: None,
        ..plain.clone()
    };
    let before = recall(&mut client, plain).await;
    assert_eq!(contents_of(&before)[0], long);
    assert!(!before.reranked && !before.degraded, "{before:?}");
    assert_eq!(service.calls(), 0);
    let stats = memory_stats(&mut client).await;
    assert!(
        stats.reranker.contains("127.0.0.1") && stats.reranker.ends_with(":m"),
        "{stats:?}"
    );

    let judged = recall(&mut client, ask.clone()).await;
    assert_eq!(contents_of(&judged)[0], "green tea");
    assert!(judged.reranked && !judged.degraded, "{judged:?}");

    for reply in [RerankReply::Oops, RerankReply::Half, RerankReply::Never] {
        service.set_reply(reply);
        let outcome = recall(&mut client, ask.clone()).await;
        assert_eq!(contents_of(&outcome), contents_of(&before), "{reply:?}");
        assert!(
            !outcome.reranked && outcome.degraded,
            "{reply:?}: {outcome:?}"
        );
        assert!(outcome.notes[0].contains("reranker"), "{outcome:?}");
    }
    assert_eq!(service.calls(), 4);
    service.set_reply(RerankReply::Well);
    let paused = recall(&mut client, ask).await;
    assert!(
        !paused.reranked && paused.degraded,
        "after three failures it has a pause"
    );
    assert_eq!(service.calls(), 4);
}

fn contents_of(found: &memoird_proto::v1::RecallResponse) -> Vec<String> {
    let memories: Vec<_> = found
        .hits
        .iter()
        .filter_map(|hit| hit.memory.clone())
        .collect();
    contents(&memories).into_iter().map(str::to_owned).collect()
}
