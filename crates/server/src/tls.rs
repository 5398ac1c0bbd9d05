//! TLS of the ports: certificates with reload and expiry, and tenants of client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::civil;
use memoird_core::config::Environment;
use memoird_core::date::Date;
use memoird_core::time::Timestamp;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use webpki::EndEntityCert;

/// The section `server.tls`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    /// PEM file with the daemon's certificate and intermediate certificates.
    certificate: PathBuf,
    /// PEM file with its private key.
    key: PathBuf,
    /// PEM file with the CAs of client certificates, which can replace a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_ca: Option<PathBuf>,
    /// Where a client certificate names its tenant.
    #[serde(default)]
    client_tenant: ClientTenant,
    /// Whether the admin port uses TLS as well.
    #[serde(default = "yes")]
    admin: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientTenant {
    /// A DNS name equal to the tenant's id.
    #[default]
    SanDns,
    /// The last segment of a URI, such as `acme` in `spiffe://example.org/memoird/acme`.
    SanUri,
    /// The common name of the subject.
    Cn,
}

/// The TLS configuration and the currently loaded files.
#[derive(Debug)]
pub(crate) struct Tls {
    config: TlsConfig,
    loaded: ArcSwap<TlsFiles>,
}

/// Contents of the files.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// Earliest expiry in the daemon's certificate chain, if known.
    ends_at: Option<Timestamp>,
    grpc: Arc<ServerConfig>,
    admin: Arc<ServerConfig>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsPort {
    /// The gRPC port.
    Grpc,
    /// The admin port, which requests neither client certificates nor keys.
    Admin,
}

/// Days before expiry when warnings begin.
const TOLD_DAYS: i64 = 14;
const DAY_S: i64 = 24 * 60 * 60;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn yes() -> bool {
    true
}

impl TlsConfig {
    /// Whether clients may present certificates.
    pub(crate) fn takes_clients(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A description of the first problem.
    pub(crate) fn load(&self, environment: &dyn Environment) -> Result<TlsFiles, String> {
        let chain = certificates(&self.certificate, environment)?;
        let text = read(&self.key, environment)?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes())
            .map_err(|error| at(&self.key, &format!("no private key: {error}")))?;
        let unusable = |error: rustls::Error| {
            let what = format!("cannot be used with {}: {error}", self.key.display());
            at(&self.certificate, &what)
        };
        let builder = || {
            ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .map_err(unusable)
        };
        let pages = builder()?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let builder_of_calls = match &self.client_ca {
            None => builder()?.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, environment)? {
                    let added = roots.add(authority);
                    added.map_err(|error| at(path, &error.to_string()))?;
                }
                // Without a certificate, calls need a key.
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
                        .allow_unauthenticated()
                        .build()
                        .map_err(|error| at(path, &error.to_string()))?;
                builder()?.with_client_cert_verifier(verifier)
            }
        };
        let ends_at = chain.iter().filter_map(|it| not_after(it)).min();
        let calls = builder_of_calls
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        Ok(TlsFiles {
            ends_at,
            grpc: with_protocols(calls, &[b"h2", b"http/1.1"]),
            admin: with_protocols(pages, &[b"http/1.1"]),
        })
    }
}

impl TlsFiles {
    /// Returns a warning if the certificate expires soon or has expired.
    pub(crate) fn warning(&self, now: Timestamp) -> Option<String> {
        ending(self.ends_at?, now)
    }
}

impl Tls {
    pub(crate) fn new(config: TlsConfig, loaded: TlsFiles) -> Self {
        Self {
            config,
            loaded: ArcSwap::from_pointee(loaded),
        }
    }

    /// Reads the files again, for new connections.
    ///
    /// # Errors
    /// A description of the first problem. Nothing has changed then.
    pub(crate) fn reload(&self, environment: &dyn Environment) -> Result<(), String> {
        let loaded = self.config.load(environment)?;
        self.loaded.store(Arc::new(loaded));
        Ok(())
    }

    /// Returns the TLS settings of a port, if it uses TLS.
    pub(crate) fn server(&self, port: TlsPort) -> Option<Arc<ServerConfig>> {
        let loaded = self.loaded.load();
        match port {
            TlsPort::Grpc => Some(Arc::clone(&loaded.grpc)),
            TlsPort::Admin => self.config.admin.then(|| Arc::clone(&loaded.admin)),
        }
    }

    /// Seconds until the certificate expires, negative afterwards.
    pub(crate) fn seconds_left(&self, now: Timestamp) -> Option<i64> {
        let ends_at = self.loaded.load().ends_at?;
        Some(ends_at.seconds() - now.seconds())
    }

    /// Returns the candidates for the tenant's id in a client certificate.
    pub(crate) fn names(&self, certificate: &CertificateDer<'_>) -> Vec<String> {
        let Ok(certificate) = EndEntityCert::try_from(certificate) else {
            return Vec::new();
        };
        let owned = |name: &str| name.to_owned();
        match self.config.client_tenant {
            ClientTenant::SanDns => certificate.valid_dns_names().map(owned).collect(),
            ClientTenant::SanUri => {
                let uris = certificate.valid_uri_names();
                let segments = uris.filter_map(|uri| uri.rsplit_once('/'));
                segments.map(|(_, last)| owned(last)).collect()
            }
            ClientTenant::Cn => common_names(certificate.subject()),
        }
    }
}

fn with_protocols(mut config: ServerConfig, names: &[&[u8]]) -> Arc<ServerConfig> {
    config.alpn_protocols = names.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// Parses the certificates of a file. Fails if there is none.
pub(crate) fn certificates(
    path: &Path,
    environment: &dyn Environment,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(path, environment)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(at(path, "it contains no certificate")),
        Err(error) => Err(at(path, &error.to_string())),
    }
}

fn read(path: &Path, environment: &dyn Environment) -> Result<String, String> {
    let text = environment.file(path);
    text.map_err(|error| at(path, &format!("cannot be read: {error}")))
}

fn at(path: &Path, problem: &str) -> String {
    format!("{}: {problem}", path.display())
}

/// Returns the common names of a DER subject (X.520 `id-at-commonName`).
///
/// A subject is a sequence of sets of pairs of an object identifier and a text. Only verified
/// certificates are parsed; other structures yield no names.
fn common_names(subject: &[u8]) -> Vec<String> {
    const SET: u8 = 0x31;
    const PAIR: u8 = 0x30;
    const IDENTIFIER: u8 = 0x06;
    const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
    const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
    let mut names = Vec::new();
    for (_, set) in elements(subject).filter(|(tag, _)| *tag == SET) {
        for (_, pair) in elements(set).filter(|(tag, _)| *tag == PAIR) {
            let mut parts = elements(pair);
            let is_name = parts.next() == Some((IDENTIFIER, &COMMON_NAME[..]));
            let text = parts
                .next()
                .filter(|(tag, _)| TEXTS.contains(tag))
                .and_then(|(_, text)| std::str::from_utf8(text).ok());
            names.extend(text.filter(|_| is_name).map(str::to_owned));
        }
    }
    names
}

/// Formats a warning if a certificate expires soon or has expired.
fn ending(ends_at: Timestamp, now: Timestamp) -> Option<String> {
    let left_s = ends_at.seconds() - now.seconds();
    let day = Date::from_timestamp(ends_at);
    match left_s.div_euclid(DAY_S) {
        TOLD_DAYS.. => None,
        days @ 0.. => Some(format!(
            "server.tls.certificate ends on {day}, in {days} days: renew it; the files are read \
             again when they change"
        )),
        ..0 => Some(format!(
            "server.tls.certificate ended on {day}: clients refuse it; renew it"
        )),
    }
}

/// Parses the expiry of a certificate, if it has the expected structure.
///
/// This is the second time of the validity, after the serial number, algorithm and issuer (RFC
/// 5280, section 4.1).
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    const VERSION: u8 = 0xa0;
    let (_, certificate) = elements(certificate).next()?;
    let (_, signed) = elements(certificate).next()?;
    let mut fields = elements(signed).skip_while(|(tag, _)| *tag == VERSION);
    let (_, validity) = fields.nth(3)?;
    let (tag, text) = elements(validity).nth(1)?;
    moment(tag, std::str::from_utf8(text).ok()?)
}

/// Parses a time in a certificate, such as `261122100203Z` or `20501122100203Z`.
fn moment(tag: u8, text: &str) -> Option<Timestamp> {
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;
    let digits = text.strip_suffix('Z')?;
    let century = match (tag, digits.as_bytes().first()?) {
        (UTC_TIME, b'5'..) => "19",
        (UTC_TIME, _) => "20",
        (GENERALIZED_TIME, _) => "",
        _ => return None,
    };
    let at = civil::DateTime::strptime("%Y%m%d%H%M%S", format!("{century}{digits}")).ok()?;
    let since = at.duration_since(civil::date(1970, 1, 1).at(0, 0, 0, 0));
    Timestamp::new(since.as_secs(), 0)
}

/// Iterates over DER elements as pairs of tag and content. Ends at an incomplete element.
fn elements(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[tag, first], rest) = bytes.split_first_chunk::<2>()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => {
                let (&length, rest) = rest.split_first()?;
                (usize::from(length), rest)
            }
            0x82 => {
                let (&length, rest) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(length)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        Some((tag, content))
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn at(year: i16, month: i8, day: i8) -> Timestamp {
        let since = civil::date(year, month, day).duration_since(civil::date(1970, 1, 1));
        Timestamp::new(since.as_secs(), 0).expect("a moment")
    }

    #[test]
    fn certificate_expiry_is_parsed_in_both_time_formats() {
        for year in [1999, 2026, 2049, 2050, 2400] {
            let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
            params.not_before = date_time_ymd(1990, 1, 1);
            params.not_after = date_time_ymd(year.into(), 11, 26);
            let key = KeyPair::generate().expect("a key");
            let der = params
                .self_signed(&key)
                .expect("a certificate")
                .der()
                .to_vec();
            assert_eq!(not_after(&der), Some(at(year, 11, 26)));
            for end in 0..der.len() {
                assert_eq!(not_after(&der[..end]), None, "it is not whole");
            }
        }
        for wrong in ["", "Z", "261126100203", "261326100203Z", "yymmddhhmmssZ"] {
            assert_eq!(moment(0x17, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn expiring_and_expired_certificates_cause_warnings() {
        let ends_at = at(2026, 11, 26);
        let told = |now| ending(ends_at, now);
        assert_eq!(told(at(2026, 11, 12)), None, "14 days are left");
        let soon = told(at(2026, 11, 13)).expect("told");
        assert!(soon.contains("ends on 2026-11-26, in 13 days"), "{soon}");
        let today = told(at(2026, 11, 26)).expect("told");
        assert!(today.contains("in 0 days"), "{today}");
        let over = told(at(2026, 11, 27)).expect("told");
        assert!(over.contains("ended on 2026-11-26"), "{over}");
    }

    #[test]
    fn common_name_is_found_among_other_attributes() {
        // O=example, CN=acme
        let mut subject = vec![
            0x31, 0x10, 0x30, 0x0e, 0x06, 0x03, 0x55, 0x04, 0x0a, 0x0c, 0x07,
        ];
        subject.extend_from_slice(b"example");
        subject.extend_from_slice(&[0x31, 0x0d, 0x30, 0x0b, 0x06, 0x03, 0x55, 0x04, 0x03, 0x13]);
        subject.extend_from_slice(b"\x04acme");
        assert_eq!(common_names(&subject), ["acme"]);
        for end in 0..subject.len() {
            assert!(common_names(&subject[..end]).is_empty());
        }
        assert!(common_names(&[0x31, 0x84, 0xff, 0xff, 0xff, 0xff]).is_empty());
    }
}
