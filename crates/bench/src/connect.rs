//! How the load generator reaches a server: its address, its key, and its clients.

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

/// A daemon that runs already, and the key to call it with.
#[derive(Args)]
pub(crate) struct ConnectArgs {
    /// Drive the daemon at host:port or http://host:port, and not a private one
    #[arg(long, global = true)]
    pub(crate) addr: Option<String>,
    /// A file with the key to call it with; otherwise the environment's MEMOIRD_KEY is used
    #[arg(long, global = true, value_name = "FILE")]
    key_file: Option<PathBuf>,
    // Only for its environment variable: every process of the machine could read an argument.
    #[arg(
        long = "key",
        id = "key",
        hide = true,
        env = "MEMOIRD_KEY",
        hide_env_values = true
    )]
    key: Option<String>,
}

/// A server that is called.
#[derive(Clone)]
pub(crate) struct Target {
    endpoint: Endpoint,
    key: Option<MetadataValue<Ascii>>,
    channel: Channel,
}

impl ConnectArgs {
    /// The daemon that `--addr` names.
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
    /// Connects on the first call, and again whenever the connection broke.
    pub(crate) fn new(addr: &str, key: Option<&str>) -> Result<Self> {
        let url = match addr.starts_with("http://") {
            true => addr.to_owned(),
            false => format!("http://{addr}"),
        };
        let endpoint = Endpoint::from_shared(url)
            .with_context(|| format!("{addr} is no address"))?
            .connect_timeout(CONNECT_TIME_MAX);
        let key = key.map(str::trim).filter(|key| !key.is_empty());
        let key = key.map(|key| format!("Bearer {key}").parse()).transpose();
        let channel = endpoint.connect_lazy();
        Ok(Self {
            endpoint,
            key: key.context("the key is not one line of ASCII characters")?,
            channel,
        })
    }

    /// Another connection, made when it is first used.
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

    /// The same with room for few bytes of an answer that is not read.
    pub(crate) fn narrow_channel(&self) -> Channel {
        let endpoint = self.endpoint.clone();
        endpoint.initial_stream_window_size(1 << 16).connect_lazy()
    }

    /// A client of the sessions with a connection of its own.
    pub(crate) fn sessions_anew(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.another_channel())
    }

    /// A client of the memories with a connection of its own.
    pub(crate) fn memories_anew(&self) -> MemoryServiceClient<Channel> {
        MemoryServiceClient::new(self.another_channel())
    }

    /// A client of the sessions.
    pub(crate) fn sessions(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.channel.clone())
    }

    /// A client for operators.
    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_may_have_its_scheme_and_a_key_must_be_a_line() {
        for addr in ["127.0.0.1:7717", "http://127.0.0.1:7717"] {
            assert!(Target::new(addr, Some("k\n")).is_ok(), "{addr}");
        }
        assert!(Target::new("a b", None).is_err());
        assert!(Target::new("h:1", Some("two\nlines")).is_err());
    }
}
