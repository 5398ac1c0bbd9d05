//! What connections may do, as the file says it.

use std::time::Duration;

use memoird_core::config::{AsText, Problems, Span};
use serde::{Deserialize, Serialize};

/// The section `server.connections`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConnectionsConfig {
    /// How long TLS and the first bytes of HTTP/2 may take; on the admin port, the head of a
    /// request.
    #[serde(with = "AsText::<Span>")]
    pub(crate) handshake_timeout: Duration,
    /// How long the rest of a request may let wait for itself.
    #[serde(with = "AsText::<Span>")]
    pub(crate) request_timeout: Duration,
    /// How long a client may take none of what is sent to it: then its connection is closed, or,
    /// where it takes only nothing of one answer, that call is reset.
    #[serde(with = "AsText::<Span>")]
    pub(crate) write_timeout: Duration,
    /// How long a connection may be idle that never had a good key. It is closed after ten
    /// times as long in any case.
    #[serde(with = "AsText::<Span>")]
    pub(crate) keyless_timeout: Duration,
    /// How long any other may be idle.
    #[serde(with = "AsText::<Span>")]
    pub(crate) idle_timeout: Duration,
    /// After this a connection takes no new calls.
    #[serde(with = "AsText::<Span>")]
    pub(crate) max_age: Duration,
    /// And so long after that it is closed, whatever goes on.
    #[serde(with = "AsText::<Span>")]
    pub(crate) max_age_grace: Duration,
    /// Connections from one address.
    pub(crate) max_per_address: usize,
    /// Probes at once on a connection that has not shown a good key.
    pub(crate) calls_without_key: usize,
    /// Connections of the admin port.
    pub(crate) admin_max: usize,
}

impl Default for ConnectionsConfig {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keyless_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(15 * 60),
            max_age: Duration::from_secs(24 * 60 * 60),
            max_age_grace: Duration::from_secs(10 * 60),
            max_per_address: 512,
            calls_without_key: 8,
            admin_max: 64,
        }
    }
}

impl ConnectionsConfig {
    pub(crate) fn check(&self, problems: &mut Problems) {
        problems.span("handshake_timeout", self.handshake_timeout);
        problems.span("request_timeout", self.request_timeout);
        problems.span("write_timeout", self.write_timeout);
        problems.span("keyless_timeout", self.keyless_timeout);
        problems.span("idle_timeout", self.idle_timeout);
        problems.span("max_age", self.max_age);
        problems.span("max_age_grace", self.max_age_grace);
        problems.at_least_one("max_per_address", self.max_per_address);
        problems.at_least_one("calls_without_key", self.calls_without_key);
        problems.at_least_one("admin_max", self.admin_max);
    }
}
