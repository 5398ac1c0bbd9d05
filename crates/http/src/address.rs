//! Validates URLs from the configuration, and the addresses that their hosts resolve to.
//!
//! The operator chooses a URL, but the host's addresses come from foreign DNS and may belong to a
//! private network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

/// Maximum number of addresses considered per name.
const ADDRESSES_MAX: usize = 64;

/// Resolves names to public addresses only.
///
/// The connection uses the address that was checked, so later DNS changes have no effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublicResolver;

/// Why a URL cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UrlInvalid {
    /// Not a valid URL.
    #[error("is not valid: {0}")]
    Malformed(String),
    /// Neither http nor https.
    #[error("has the unsupported scheme {0}; use http or https")]
    SchemeUnsupported(String),
    /// Credentials in a URL would be logged with it.
    #[error("has a user or a password; configure a key or a header instead")]
    HasCredentials,
}

/// Parses the URL of a web service from a configuration.
///
/// # Errors
/// [`UrlInvalid`], as the end of a sentence whose subject is the URL.
pub fn parse_url(text: &str) -> Result<Url, UrlInvalid> {
    let url = Url::parse(text).map_err(|error| UrlInvalid::Malformed(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(UrlInvalid::SchemeUnsupported(url.scheme().to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlInvalid::HasCredentials);
    }
    Ok(url)
}

/// Why a name has no address to connect to.
#[derive(Debug, Error)]
enum ResolveError {
    #[error("{host} resolves to a private address; set allow_private: true if that is meant")]
    Private { host: String },
    #[error("{host} cannot be resolved: {problem}")]
    Unresolved { host: String, problem: String },
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        Box::pin(async move {
            let outcome = tokio::net::lookup_host((host.as_str(), 0)).await;
            let unresolved = |problem: String| ResolveError::Unresolved {
                host: host.clone(),
                problem,
            };
            let found = outcome
                .map_err(|error| unresolved(error.to_string()))?
                .take(ADDRESSES_MAX)
                .collect();
            Ok(Box::new(public_of(host, found)?.into_iter()) as Addrs)
        })
    }
}

fn public_of(host: String, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ResolveError> {
    if found.is_empty() {
        let problem = "it has no address".to_owned();
        return Err(ResolveError::Unresolved { host, problem });
    }
    let public: Vec<SocketAddr> = found
        .into_iter()
        .filter(|address| is_public(address.ip()))
        .collect();
    if public.is_empty() {
        Err(ResolveError::Private { host })
    } else {
        Ok(public)
    }
}

/// Whether an address is on the public internet.
///
/// It must not be in the IANA Special-Purpose Address Registries (RFC 6890), nor be an IPv6 address
/// that maps to one of these.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Whether a host is private without a DNS lookup.
///
/// These are private addresses, and `localhost`, which always means this machine (RFC 6761, section
/// 6.3).
pub fn is_private_host(host: &str) -> bool {
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        return !is_public(address);
    }
    let name = host.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_special = match address.octets() {
        // This network; private; loopback; link-local, where clouds serve credentials.
        [0 | 10 | 127, ..] | [169, 254, ..] | [172, 16..=31, ..] | [192, 168, ..] => true,
        // Carrier-grade NAT (RFC 6598).
        [100, 64..=127, ..] => true,
        // IETF protocols, documentation, 6to4 relays, benchmarks.
        [192, 0, 0 | 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        [192, 88, 99, _] | [198, 18..=19, ..] => true,
        // Multicast, reserved, broadcast.
        [224..=255, ..] => true,
        _ => false,
    };
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let hidden = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        // IPv4-mapped, NAT64 (RFC 6052) and 6to4 (RFC 3056) reach an IPv4 address.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            is_public_v4(hidden(high, low))
        }
        [0x2002, high, low, ..] => is_public_v4(hidden(high, low)),
        // IETF protocols and Teredo, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Only these are global unicast addresses (RFC 4291).
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIVATE: [&str; 47] = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.1.2.3",
        "::ffff:169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:db8::1",
        "2002:a00:1::",
        "2002:7f00:1::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "ff0e::1",
    ];
    const PUBLIC: [&str; 17] = [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ];

    #[test]
    fn private_addresses_are_detected_in_every_notation() {
        for text in PRIVATE {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in PUBLIC {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn only_public_addresses_of_a_name_are_used() {
        let of = |texts: &[&str]| {
            let found: Vec<SocketAddr> = texts
                .iter()
                .map(|ip| SocketAddr::new(ip.parse().unwrap(), 0))
                .collect();
            public_of("a.example".to_owned(), found).map_err(|error| error.to_string())
        };
        assert_eq!(
            of(&["127.0.0.1", "8.8.8.8"]).unwrap(),
            ["8.8.8.8:0".parse().unwrap()]
        );
        assert_eq!(
            of(&["127.0.0.1", "::1"]).unwrap_err(),
            "a.example resolves to a private address; set allow_private: true if that is meant"
        );
        assert!(of(&[]).unwrap_err().contains("no address"));
    }
}
