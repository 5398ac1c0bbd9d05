//! Clients over TLS and over Unix sockets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use memoird_proto::v1::session_service_client::SessionServiceClient;
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::binary::run;
use super::client::{Key, Sessions};
use super::wait::wall_ms;

/// A private certificate authority with certificates for the daemon and for each tenant.
#[derive(Debug)]
pub(crate) struct Authority {
    dir: TempDir,
}

impl Authority {
    /// Creates the authority with `memoird cert`.
    pub(crate) async fn new(tenants: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().display().to_string();
        let tenants = tenants.iter().flat_map(|&tenant| ["--tenant", tenant]);
        let args: Vec<&str> = ["cert", &path].into_iter().chain(tenants).collect();
        let made = run(&args, &[]).await;
        assert_eq!(made.code, Some(0), "{made:?}");
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The setting `tls` of a daemon with a certificate of this authority.
    pub(crate) fn setting(&self, more: &str) -> String {
        let (certificate, key) = (self.file("server.pem"), self.file("server-key.pem"));
        format!("tls: {{ certificate: {certificate:?}, key: {key:?}{more} }}")
    }

    /// Replaces the daemon's certificate by a self-signed one that expires after `span`.
    pub(crate) fn end_in(&self, span: Duration) {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let end = Duration::from_millis(wall_ms().unsigned_abs()) + span;
        params.not_after = date_time_ymd(1970, 1, 1) + end;
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        std::fs::write(self.path("server.pem"), certificate).expect("written");
        std::fs::write(self.path("server-key.pem"), key.serialize_pem()).expect("written");
    }

    /// Client configuration that trusts this authority, with a tenant's certificate if given.
    pub(crate) fn client(&self, tenant: Option<(&Self, &str)>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&self.path("ca.pem")) {
            roots.add(authority).expect("an authority");
        }
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS")
            .with_root_certificates(roots);
        match tenant {
            None => config.with_no_client_auth(),
            Some((of, tenant)) => {
                let chain = certificates(&of.path(&format!("client-{tenant}.pem")));
                let key = of.path(&format!("client-{tenant}-key.pem"));
                let key = PrivateKeyDer::from_pem_file(key).expect("a key");
                config.with_client_auth_cert(chain, key).expect("a pair")
            }
        }
    }
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    let found = CertificateDer::pem_file_iter(path).expect("a file");
    found.map(|found| found.expect("a certificate")).collect()
}

/// Opens a TLS connection to `host:port`.
pub(crate) async fn tls_stream(
    addr: &str,
    config: ClientConfig,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(addr).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// A session client over TLS, with a key if given.
pub(crate) fn sessions_by_tls(addr: &str, mut config: ClientConfig, key: Option<&str>) -> Sessions {
    config.alpn_protocols = vec![b"h2".to_vec()];
    let addr = addr.to_owned();
    let connector = service_fn(move |_| {
        let (addr, config) = (addr.clone(), config.clone());
        async move { tls_stream(&addr, config).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("https://localhost");
    client(endpoint.connect_with_connector_lazy(connector), key)
}

/// A session client over a Unix socket.
pub(crate) fn sessions_at_socket(path: &Path, key: Option<&str>) -> Sessions {
    let path = path.to_owned();
    let connector = service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    client(endpoint.connect_with_connector_lazy(connector), key)
}

fn client(channel: Channel, key: Option<&str>) -> Sessions {
    SessionServiceClient::with_interceptor(channel, Key::new(key))
}
