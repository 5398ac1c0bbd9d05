//! Opens connections to the daemon over TLS or a Unix socket.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use clap::Args;
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower::Service;

use super::connect::{CLIENT_OPTIONS, set_variable};
use crate::exit::{CliError, Exit};

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// File with the CA certificates to trust; if omitted, MEMOIRD_CA is used, or those of the
    /// system
    #[arg(long, global = true, value_name = "FILE", help_heading = CLIENT_OPTIONS)]
    ca: Option<PathBuf>,

    /// Client certificate to present instead of a key; if omitted, MEMOIRD_CERT is used
    #[arg(
        long = "cert",
        id = "client_cert",
        global = true,
        value_name = "FILE",
        help_heading = CLIENT_OPTIONS
    )]
    cert: Option<PathBuf>,

    /// Private key of the client certificate; if omitted, MEMOIRD_CERT_KEY is used
    #[arg(
        long = "cert-key",
        id = "client_cert_key",
        global = true,
        value_name = "FILE",
        help_heading = CLIENT_OPTIONS
    )]
    cert_key: Option<PathBuf>,
}

#[derive(Clone)]
pub(crate) enum Connector {
    /// TLS over TCP.
    Tls {
        tls: TlsConnector,
        /// The name that the daemon's certificate must contain.
        name: ServerName<'static>,
        /// `host:port`.
        place: String,
    },
    /// A Unix socket.
    Unix(Arc<Path>),
}

type Stream = Either<Box<TlsStream<TcpStream>>, UnixStream>;

impl TlsArgs {
    /// Adds the files named by the environment.
    pub(crate) fn with_environment(&self) -> Self {
        let file = |typed: &Option<PathBuf>, name| {
            let typed = typed.clone();
            typed.or_else(|| set_variable(name).map(PathBuf::from))
        };
        Self {
            ca: file(&self.ca, "MEMOIRD_CA"),
            cert: file(&self.cert, "MEMOIRD_CERT"),
            cert_key: file(&self.cert_key, "MEMOIRD_CERT_KEY"),
        }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.ca.is_some() || self.cert.is_some()
    }

    pub(crate) fn connector(&self, host: &str, port: u16) -> Result<Connector, CliError> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned())
            .map_err(|_| CliError::usage(format!("{host:?} is no host")))?;
        Ok(Connector::Tls {
            tls: TlsConnector::from(Arc::new(self.config()?)),
            name,
            place: format!("{host}:{port}"),
        })
    }

    fn config(&self) -> Result<ClientConfig, CliError> {
        let failed = |error: rustls::Error| {
            CliError::failed(Exit::Unavailable, format!("TLS is unavailable: {error}"))
        };
        let versioned = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?;
        let builder = match &self.ca {
            None => versioned.with_platform_verifier().map_err(failed)?,
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(failed)?;
                }
                versioned.with_root_certificates(roots)
            }
        };
        let mut config = match (&self.cert, &self.cert_key) {
            (Some(cert), Some(key)) => {
                let text = std::fs::read(key).map_err(CliError::no_input(key))?;
                let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
                    CliError::failed(Exit::Data, format!("{}: {error}", key.display()))
                })?;
                let chain = certificates(cert)?;
                builder.with_client_auth_cert(chain, key).map_err(failed)?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => {
                let problem = "--cert and --cert-key (or MEMOIRD_CERT and MEMOIRD_CERT_KEY) must \
                    be used together";
                return Err(CliError::usage(problem));
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let text = std::fs::read(path).map_err(CliError::no_input(path))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => {
            let problem = format!("{} contains no certificate", path.display());
            Err(CliError::failed(Exit::Data, problem))
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let stream = match this {
                Self::Unix(path) => Either::Right(UnixStream::connect(path).await?),
                Self::Tls { tls, name, place } => {
                    let stream = TcpStream::connect(place).await?;
                    stream.set_nodelay(true)?;
                    Either::Left(Box::new(tls.connect(name, stream).await?))
                }
            };
            Ok(TokioIo::new(stream))
        })
    }
}
