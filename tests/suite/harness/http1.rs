//! An HTTP/1.1 client that is driven by hand.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

pub(crate) struct Http1 {
    stream: Box<dyn ByteStream>,
    received: Vec<u8>,
    /// The value of `authorization` of each request, unless it is empty.
    key: String,
}

#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Http1 {
    pub(crate) async fn connect(addr: &str, key: &str) -> Self {
        let stream = TcpStream::connect(addr).await.expect("it listens");
        Self::over(stream, key)
    }

    pub(crate) fn over(stream: impl ByteStream + 'static, key: &str) -> Self {
        Self {
            stream: Box::new(stream),
            received: Vec::new(),
            key: key.to_owned(),
        }
    }

    /// Sends bytes as they are.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.stream.write_all(bytes.as_ref()).await;
        sent.expect("it is sent");
    }

    /// The head of a request, with further header lines, each with its line break.
    pub(crate) fn head(&self, line: &str, headers: &str) -> String {
        let mut head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        if !self.key.is_empty() {
            head += &format!("authorization: Bearer {}\r\n", self.key);
        }
        head + "\r\n"
    }

    /// Sends a request with this body.
    pub(crate) async fn request(&mut self, line: &str, headers: &str, body: &[u8]) -> HttpReply {
        let length = format!("content-length: {}\r\n{headers}", body.len());
        let head = self.head(line, &length);
        self.send([head.as_bytes(), body].concat()).await;
        self.reply().await
    }

    /// Calls a method with a message in JSON.
    pub(crate) async fn call(&mut self, path: &str, message: &Value) -> HttpReply {
        let body = message.to_string();
        self.call_text(path, "", body.as_bytes()).await
    }

    /// Calls a method with a text that should be JSON.
    pub(crate) async fn call_text(&mut self, path: &str, headers: &str, body: &[u8]) -> HttpReply {
        let headers = format!("content-type: application/json\r\n{headers}");
        self.request(&format!("POST {path}"), &headers, body).await
    }

    /// Appends a turn, and returns the reply.
    pub(crate) async fn say(&mut self, session: &str, text: &str) -> HttpReply {
        let turn = json!({ "role": "ROLE_USER", "parts": [{ "text": text }] });
        let message = json!({ "sessionId": session, "turns": [turn] });
        self.call("/memoird.v1.SessionService/Append", &message)
            .await
    }

    /// Reads the next reply.
    pub(crate) async fn reply(&mut self) -> HttpReply {
        let mut reply = self.reply_head().await;
        if let Some(length) = reply.header("content-length") {
            let length: usize = length.parse().expect("a length");
            reply.body = self.take(length).await;
            return reply;
        }
        loop {
            let chunk = self.chunk().await;
            if chunk.is_empty() {
                return reply;
            }
            reply.body.extend(chunk);
        }
    }

    /// Reads the head of the next reply.
    pub(crate) async fn reply_head(&mut self) -> HttpReply {
        let head = self.until("\r\n\r\n").await;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        HttpReply {
            status: status.expect("a status"),
            head,
            body: Vec::new(),
        }
    }

    /// Reads a chunk of a body. The last one is empty.
    pub(crate) async fn chunk(&mut self) -> Vec<u8> {
        let length = self.until("\r\n").await;
        let length = usize::from_str_radix(length.trim_end(), 16).expect("a length");
        let mut chunk = self.take(length + 2).await;
        chunk.truncate(length);
        chunk
    }

    /// Reads to the end of the connection, which the daemon closes.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        let reading = self.stream.read_to_end(&mut self.received);
        let closed = tokio::time::timeout(PATIENCE, reading).await;
        // An orderly close and a reset count alike.
        let _ = closed.expect("the daemon closes the connection");
        std::mem::take(&mut self.received)
    }

    async fn until(&mut self, end: &str) -> String {
        loop {
            let found = self
                .received
                .windows(end.len())
                .position(|window| window == end.as_bytes());
            if let Some(position) = found {
                let line = self.received.drain(..position + end.len());
                return String::from_utf8(line.collect()).expect("UTF-8");
            }
            self.more().await;
        }
    }

    async fn take(&mut self, length: usize) -> Vec<u8> {
        while self.received.len() < length {
            self.more().await;
        }
        self.received.drain(..length).collect()
    }

    async fn more(&mut self) {
        let reading = self.stream.read_buf(&mut self.received);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        let read = read.expect("an answer in time").expect("an answer");
        let received = String::from_utf8_lossy(&self.received);
        assert!(read > 0, "the connection has ended after {received:?}");
    }
}

impl HttpReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(": "));
        let found = pairs.find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The reply of a successful call.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self.json()
    }

    /// The status, the code and the reason of an error.
    #[track_caller]
    pub(crate) fn error(&self) -> (u16, String, String) {
        let json = self.json();
        let info = &json["details"][0];
        assert_eq!(info["type"], "google.rpc.ErrorInfo", "{json}");
        assert_eq!(info["debug"]["domain"], "memoird", "{json}");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let reason = text(&info["debug"]["reason"]);
        (self.status, text(&json["code"]), reason)
    }
}
