//! A web service on a bare socket, which can send any malformed response.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Service {
    listener: TcpListener,
}

/// A received request.
#[derive(Debug)]
pub(crate) struct Request {
    /// Method and target, such as `POST /a?b`.
    pub(crate) line: String,
    /// In order, with lowercase names.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Service {
    pub(crate) async fn bind() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.expect("a port"),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port())
    }

    pub(crate) async fn accept(&self) -> TcpStream {
        self.listener.accept().await.expect("a connection").0
    }

    /// Receives one request and leaves the connection open.
    pub(crate) async fn take(&self) -> (Request, TcpStream) {
        let mut stream = self.accept().await;
        let request = read_request(&mut stream).await;
        (request, stream)
    }

    /// Receives one request, sends these bytes and closes the connection.
    pub(crate) async fn say(&self, raw: &str) -> Request {
        let (request, mut stream) = self.take().await;
        stream
            .write_all(raw.as_bytes())
            .await
            .expect("somebody reads");
        stream.shutdown().await.expect("somebody is there");
        request
    }

    /// Receives one request and sends a valid response. `more` has additional header lines.
    pub(crate) async fn answer(&self, status: &str, more: &str, body: &str) -> Request {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close");
        self.say(&format!("{head}\r\n{more}\r\n{body}")).await
    }
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} stands there twice");
        value
    }
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
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head of text");
    let mut lines = head.lines();
    let line = lines
        .next()
        .unwrap_or_default()
        .trim_end_matches(" HTTP/1.1")
        .to_owned();
    let split = |line: &str| {
        let (name, value) = line.split_once(": ").expect("a header");
        (name.to_lowercase(), value.to_owned())
    };
    let mut request = Request {
        line,
        headers: lines.map(split).collect(),
        body: Vec::new(),
    };
    let length: usize = request
        .header("content-length")
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    request.body = bytes.split_off(end + 4);
    while request.body.len() < length {
        let read = stream.read_buf(&mut request.body).await.expect("a body");
        assert_ne!(read, 0, "a body broke off");
    }
    request
}
