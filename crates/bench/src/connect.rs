//! Connections of the load generator: address, key and clients.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use memoird_proto::v1::admin_service_client::AdminServiceClient;
use memoird_proto::v1::memory_service_client::MemoryServiceClient;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// A running daemon, and the key for it.
#[derive(Args)]
pub(crate) struct ConnectArgs {
    /// Use the daemon at host:port or http://host:port instead of a private one
    #[arg(long, global = true)]
    pub(crate) addr: Option<String>,
    /// File with the key; the default is the environment variable MEMOIRD_KEY
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    // Only for its environment variable: other processes could read an argument.
    #[arg(
        long = "key",
        id = "key",
        hide = true,
        env = "MEMOIRD_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
}

/// A server to call.
#[derive(Clone)]
pub(crate) struct Target {
    endpoint: Endpoint,
    key: Option<MetadataValue<Ascii>>,
    channel: Channel,
}

impl ConnectArgs {
    pub(crate) fn target(&self, addr: &str) -> Result<Target> {
        let key = match &self.key_file {
            Some(path) => Some(
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot open {}", path.display()))?,
            ),
            None => self.key.clone(),
        };
        Target::new(addr, key.as_deref())
    }
}

impl Target {
    /// Connects on the first call, and reconnects when the connection is lost.
    pub(crate) fn new(addr: &str, key: Option<&str>) -> Result<Self> {
        let url = if addr.starts_with("http://") {
            addr.to_owned()
        } else {
            format!("http://{addr}")
        };
        let endpoint = Endpoint::from_shared(url)
            .with_context(|| format!("{addr} is no address"))?
            .connect_timeout(CONNECT_TIME_MAX);
        let key = key
            .map(str::trim)
            .filter(|key| !key.is_empty())
            .map(|key| format!("Bearer {key}").parse())
            .transpose();
        let channel = endpoint.connect_lazy();
        Ok(Self {
            endpoint,
            key: key.context("the key is not one line of ASCII characters")?,
            channel,
        })
    }

    /// A separate connection, opened on first use.
    pub(crate) fn another_channel(&self) -> Channel {
        self.endpoint.connect_lazy()
    }

    /// A request with the key.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = &self.key {
            request.metadata_mut().insert("authorization", key.clone());
        }
        request
    }

    /// A separate connection with a small receive window, for responses that are not read.
    pub(crate) fn narrow_channel(&self) -> Channel {
        let endpoint = self.endpoint.clone();
        endpoint.initial_stream_window_size(1 << 16).connect_lazy()
    }

    pub(crate) fn sessions_anew(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.another_channel())
    }

    pub(crate) fn memories_anew(&self) -> MemoryServiceClient<Channel> {
        MemoryServiceClient::new(self.another_channel())
    }

    pub(crate) fn sessions(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.channel.clone())
    }

    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn target_accepts_optional_scheme_and_one_line_key() {
        for addr in ["127.0.0.1:7717", "http://127.0.0.1:7717"] {
            assert!(Target::new(addr, Some("k\n")).is_ok(), "{addr}");
        }
        assert!(Target::new("a b", None).is_err());
        assert!(Target::new("h:1", Some("two\nlines")).is_err());
    }
}
