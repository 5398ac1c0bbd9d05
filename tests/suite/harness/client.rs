//! Clients of a daemon for bots and operators.

use memoird_proto::v1::admin_service_client::AdminServiceClient;
use memoird_proto::v1::document_service_client::DocumentServiceClient;
use memoird_proto::v1::memory_service_client::MemoryServiceClient;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use memoird_proto::v1::{
    GetStatsRequest, GetStatsResponse, ReloadConfigRequest, ReloadConfigResponse, TenantStats,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// Adds an API key to every call.
#[derive(Clone, Debug)]
pub(crate) struct Key(Option<MetadataValue<Ascii>>);

pub(crate) type Sessions = SessionServiceClient<InterceptedService<Channel, Key>>;

pub(crate) type Memories = MemoryServiceClient<InterceptedService<Channel, Key>>;

pub(crate) type Documents = DocumentServiceClient<InterceptedService<Channel, Key>>;

pub(crate) type Admin = AdminServiceClient<InterceptedService<Channel, Key>>;

impl Interceptor for Key {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert("memoird-max-reply-bytes", (64 << 20).into());
        if let Some(value) = &self.0 {
            metadata.insert("authorization", value.clone());
        }
        Ok(request)
    }
}

impl Key {
    pub(super) fn new(key: Option<&str>) -> Self {
        Self(key.map(|key| format!("Bearer {key}").parse().expect("a key in ASCII")))
    }
}

/// A connection that is established on first use.
pub(crate) fn channel(addr: &str) -> Channel {
    Endpoint::from_shared(format!("http://{addr}"))
        .expect("an address")
        .connect_lazy()
}

pub(super) fn sessions(addr: &str, key: Option<&str>) -> Sessions {
    SessionServiceClient::with_interceptor(channel(addr), Key::new(key))
        .max_decoding_message_size(64 << 20)
}

/// A client with a small flow-control window for unread replies.
pub(crate) fn narrow_sessions(addr: &str) -> Sessions {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address");
    let channel = endpoint.initial_stream_window_size(1 << 16).connect_lazy();
    SessionServiceClient::with_interceptor(channel, Key::new(None))
}

pub(super) fn memories(addr: &str, key: Option<&str>) -> Memories {
    MemoryServiceClient::with_interceptor(channel(addr), Key::new(key))
        .max_decoding_message_size(64 << 20)
        .max_encoding_message_size(64 << 20)
}

pub(super) fn documents(addr: &str, key: Option<&str>) -> Documents {
    DocumentServiceClient::with_interceptor(channel(addr), Key::new(key))
        .max_decoding_message_size(64 << 20)
}

pub(super) fn admin(addr: &str, key: Option<&str>) -> Admin {
    AdminServiceClient::with_interceptor(channel(addr), Key::new(key))
}

pub(crate) async fn stats(admin: &mut Admin) -> GetStatsResponse {
    admin
        .get_stats(GetStatsRequest::default())
        .await
        .expect("stats")
        .into_inner()
}

pub(crate) async fn tenant(admin: &mut Admin) -> TenantStats {
    stats(admin).await.tenants.swap_remove(0)
}

pub(crate) async fn try_reload(
    admin: &mut Admin,
) -> Result<Response<ReloadConfigResponse>, Status> {
    admin.reload_config(ReloadConfigRequest {}).await
}

/// Reloads the configuration successfully. Returns the applied and the refused settings.
pub(crate) async fn reload(admin: &mut Admin) -> (Vec<String>, Vec<String>) {
    let answer = try_reload(admin).await.expect("reloaded").into_inner();
    (answer.applied, answer.refused)
}

/// Requests a page by HTTP. Returns status and body.
pub(crate) async fn http_get(addr: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.expect("the port answers");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the request is sent");
    let mut text = String::new();
    stream
        .read_to_string(&mut text)
        .await
        .expect("a page of text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}
