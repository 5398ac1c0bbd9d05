//! Warnings about secrets and turns sent in plain text.
//!
//! These are not errors, because a private network or a proxy may protect the traffic.

use std::net::IpAddr;

use http::Uri;
use serde_json::Value;

use super::ServerConfig;
use super::file::File;
use super::tenants;
use crate::connections::socket::ListenAddress;

/// Keys of sections that contain the address to call.
const ADDRESSES: [&str; 2] = ["url", "base_url"];
/// Keys of sections that contain credentials.
const SECRETS: [&str; 3] = ["api_key", "secret", "secret_headers"];

pub(super) fn warnings(file: &File) -> Vec<String> {
    let mut warnings = Vec::new();
    of_listeners(
        &file.server,
        tenants::have_keys(&file.tenants),
        &mut warnings,
    );
    // All components use these names. Serialization cannot fail here.
    let settings = serde_json::to_value(file).unwrap_or_default();
    collect("", &settings, &mut warnings);
    warnings
}

fn of_listeners(server: &ServerConfig, has_keys: bool, warnings: &mut Vec<String>) {
    let ServerConfig {
        listen,
        admin_listen,
        tls,
        ..
    } = server;
    if has_keys && tls.is_none() && !listen.is_of_this_machine() {
        warnings.push(format!(
            "server.listen: {listen} is reachable from other machines, and sends keys and turns \
             in plain text; set server.tls, use a TLS proxy, or listen on 127.0.0.1"
        ));
    }
    if matches!(admin_listen, ListenAddress::Tcp(address) if address.ip().is_unspecified()) {
        warnings.push(format!(
            "server.admin_listen: {admin_listen} listens on all addresses of this machine, \
             without keys; use an address in your monitoring network"
        ));
    }
}

/// Adds a warning for each section that sends a secret to another machine over `http`.
fn collect(path: &str, value: &Value, warnings: &mut Vec<String>) {
    match value {
        Value::Object(section) => {
            let has_secret = SECRETS
                .iter()
                .any(|key| section.get(*key).is_some_and(is_there));
            for key in ADDRESSES.iter().filter(|_| has_secret) {
                let address = section.get(*key).and_then(Value::as_str);
                if address.is_some_and(is_readable_on_the_way) {
                    warnings.push(format!(
                        "{path}.{key}: is http and sends its secret in plain text; use https"
                    ));
                }
            }
            for (name, value) in section {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                collect(&path, value, warnings);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(&format!("{path}[{index}]"), item, warnings);
            }
        }
        _ => {}
    }
}

fn is_there(secret: &Value) -> bool {
    !secret.is_null() && secret.as_object().is_none_or(|fields| !fields.is_empty())
}

fn is_readable_on_the_way(address: &str) -> bool {
    let Ok(address) = address.parse::<Uri>() else {
        return false;
    };
    let host = address.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    address.scheme_str() == Some("http") && !is_here
}
