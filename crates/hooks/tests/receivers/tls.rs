//! A TLS service whose certificate the system trusts or not.
//!
//! The trust store is read from the environment once, so a test runs itself again with a different
//! environment. The certificates were created with rcgen for 127.0.0.1 and practically never
//! expire. The CA's key was discarded.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use memoird_engine::{HookError, Retry};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

use crate::kit::call;
use crate::service::Service;
use crate::webhook::{config, exchange, new};

const CERTIFICATE: &[u8] = include_bytes!("certificates/service.der");
const KEY: &[u8] = include_bytes!("certificates/service.key.der");

fn acceptor() -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(KEY).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key);
    TlsAcceptor::from(Arc::new(config.expect("a certificate")))
}

/// Delivers to a TLS service that accepts the delivery if its certificate is trusted.
async fn delivered() -> Result<(), HookError> {
    let service = Service::bind().await;
    let url = format!("https://127.0.0.1:{}/hook", service.port());
    let hook = new(&config(url)).expect("certificates of the system");
    let (answer, ()) = exchange(&hook, call(), async {
        let stream = service.accept().await;
        let Ok(mut stream) = acceptor().accept(stream).await else {
            return;
        };
        let mut head = Vec::new();
        while !head.ends_with(b"]}") && stream.read_buf(&mut head).await.expect("a request") > 0 {}
        assert!(head.starts_with(b"POST /hook HTTP/1.1\r\n"));
        stream
            .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
            .await
            .expect("somebody reads");
    })
    .await;
    answer
}

#[tokio::test]
async fn untrusted_service_receives_nothing() {
    let error = delivered().await.unwrap_err();
    assert_eq!(error.retry, Retry::Later);
    assert!(
        error.problem.contains("invalid peer certificate"),
        "{error}"
    );
}

#[tokio::test]
#[ignore = "started by the next one, in an environment of its own"]
async fn with_another_environment() {
    assert_eq!(delivered().await, Ok(()));
}

#[test]
fn trusted_service_receives_payload() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receivers/certificates");
    let again = std::env::current_exe().expect("this test");
    let output = Command::new(again)
        .args(["--exact", "tls::with_another_environment", "--ignored"])
        .env("SSL_CERT_FILE", here.join("authority.pem"))
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}
