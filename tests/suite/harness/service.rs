//! A web service for webhooks with scripted responses.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Response to a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// Sends the rest of a status line, such as `200 OK`, and headers.
    Says(&'static str, &'static str),
    /// Reads the request and never responds.
    Hangs,
    /// Sends half a response and closes the connection.
    Breaks,
}

#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A service that runs until the end of the test.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) port: u16,
    calls: Arc<Mutex<Vec<Posted>>>,
    /// Stops the server when dropped.
    _serving: JoinSet<()>,
}

impl Posted {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = pairs.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found
            .unwrap_or_else(|| panic!("no {name} in {}", self.head))
            .1
    }
}

impl Service {
    /// Sends these responses in order, and then repeats the last one.
    pub(crate) async fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let calls = Arc::<Mutex<Vec<Posted>>>::default();
        let (answers, seen) = (answers.to_vec(), Arc::clone(&calls));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    return;
                };
                let (answers, seen) = (answers.clone(), Arc::clone(&seen));
                open.spawn(async move { serve(stream, &answers, &seen).await });
            }
        });
        Self {
            port,
            calls,
            _serving: serving,
        }
    }

    pub(crate) fn calls(&self) -> Vec<Posted> {
        self.calls.lock().expect("no test panicked with it").clone()
    }
}

/// Serves one request per connection.
async fn serve(mut stream: TcpStream, answers: &[Answer], seen: &Mutex<Vec<Posted>>) {
    let Some(posted) = read(&mut stream).await else {
        return;
    };
    let place = {
        let mut seen = seen.lock().expect("no test panicked with it");
        seen.push(posted);
        seen.len() - 1
    };
    let answer = answers.get(place).or(answers.last()).expect("an answer");
    let text = match answer {
        Answer::Says(status, headers) => {
            format!("HTTP/1.1 {status}\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n")
        }
        Answer::Breaks => "HTTP/1.1 200 OK\r\ncontent-le".to_owned(),
        Answer::Hangs => {
            // Until the client disconnects.
            let _ = stream.read(&mut [0; 1]).await;
            return;
        }
    };
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}

pub(crate) async fn read(stream: &mut TcpStream) -> Option<Posted> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 65_536];
    loop {
        let count = stream
            .read(&mut chunk)
            .await
            .ok()
            .filter(|count| *count > 0)?;
        bytes.extend_from_slice(&chunk[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let posted = Posted {
            head,
            body: bytes[end + 4..].to_vec(),
        };
        if posted.body.len() >= posted.header("content-length").parse::<usize>().ok()? {
            return Some(posted);
        }
    }
}
