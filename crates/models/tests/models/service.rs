//! A provider on a bare socket, which can send any malformed response.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Service {
    listener: TcpListener,
}

/// A received request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Method and target, such as `POST /v1/embeddings`.
    pub(crate) line: String,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

impl Service {
    pub(crate) async fn bind() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        }
    }

    pub(crate) fn place(&self) -> String {
        format!(
            "127.0.0.1:{}/v1",
            self.listener.local_addr().expect("an address").port()
        )
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.place())
    }

    /// Receives one request and leaves the connection open.
    pub(crate) async fn take(&self) -> (Request, TcpStream) {
        let (mut stream, _) = self.listener.accept().await.expect("a connection");
        let request = read_request(&mut stream).await;
        (request, stream)
    }

    /// Receives one request and replies. `more` has additional header lines.
    pub(crate) async fn answer(&self, status: &str, more: &str, body: &str) -> Request {
        let (request, mut stream) = self.take().await;
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close");
        // Fails if the client closes the connection after reading enough.
        let _ = stream
            .write_all(format!("{head}\r\n{more}\r\n{body}").as_bytes())
            .await;
        let _ = stream.shutdown().await;
        request
    }

    /// Receives one request, sends these bytes and closes the connection.
    pub(crate) async fn say(&self, bytes: &[u8]) -> Request {
        let (request, mut stream) = self.take().await;
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        request
    }

    /// Receives one request and replies with the vectors of its texts.
    pub(crate) async fn good(&self) -> Request {
        let (request, mut stream) = self.take().await;
        let vectors = request
            .texts()
            .iter()
            .map(|text| vector(text))
            .collect::<Vec<_>>();
        let body = data(vectors.iter().enumerate());
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}");
        stream
            .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
            .await
            .expect("a reader");
        request
    }
}

impl Request {
    pub(crate) fn texts(&self) -> Vec<&str> {
        let texts = self.body["input"].as_array().expect("texts");
        texts
            .iter()
            .map(|text| text.as_str().expect("a text"))
            .collect()
    }
}

/// A response with these vectors at these indexes.
pub(crate) fn data<'a>(vectors: impl Iterator<Item = (usize, &'a Vec<f32>)>) -> String {
    let item =
        |(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector});
    let items: Vec<Value> = vectors.map(item).collect();
    json!({"object": "list", "data": items, "usage": {"total_tokens": 7}}).to_string()
}

/// The service's vector of a text: its length in bytes, and 3.
pub(crate) fn vector(text: &str) -> Vec<f32> {
    let bytes = u16::try_from(text.len()).expect("a short text");
    vec![f32::from(bytes), 3.0]
}

/// Reads one request with a `content-length`.
async fn read_request(stream: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        assert_ne!(
            stream.read_buf(&mut bytes).await.expect("a head"),
            0,
            "a head broke off"
        );
    };
    let mut body = bytes.split_off(end + 4);
    let text = String::from_utf8(bytes).expect("a head of text");
    let line = text
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end_matches(" HTTP/1.1")
        .to_owned();
    let head = text.to_lowercase();
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .expect("a length")
        .parse()
        .expect("a number");
    while body.len() < length {
        assert_ne!(
            stream.read_buf(&mut body).await.expect("a body"),
            0,
            "a body broke off"
        );
    }
    Request {
        line,
        head,
        body: serde_json::from_slice(&body).expect("JSON"),
    }
}
