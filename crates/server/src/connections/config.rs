//! Connection limits in the configuration file.

use std::time::Duration;

use memoird_core::config::{AsText, Problems, Span};
use serde::{Deserialize, Serialize};

/// The section `server.connections`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConnectionsConfig {
    /// Timeout for TLS and the first bytes of HTTP/2, or for the request head on the admin port.
    #[serde(with = "AsText::<Span>")]
    pub(crate) handshake_timeout: Duration,
    /// Total time to wait for the rest of a request.
    #[serde(with = "AsText::<Span>")]
    pub(crate) request_timeout: Duration,
    /// How long a client may read nothing.
    ///
    /// Then its connection is closed, or only the call if it reads other responses.
    #[serde(with = "AsText::<Span>")]
    pub(crate) write_timeout: Duration,
    /// Idle timeout of a connection that never had a valid key. Its maximum age is ten times this.
    #[serde(with = "AsText::<Span>")]
    pub(crate) keyless_timeout: Duration,
    /// Idle timeout of any other connection.
    #[serde(with = "AsText::<Span>")]
    pub(crate) idle_timeout: Duration,
    /// Age after which a connection takes no new calls.
    #[serde(with = "AsText::<Span>")]
    pub(crate) max_age: Duration,
    /// Time after `max_age` until it is closed in any case.
    #[serde(with = "AsText::<Span>")]
    pub(crate) max_age_grace: Duration,
    /// Maximum connections from one address.
    pub(crate) max_per_address: usize,
    /// Maximum concurrent health checks on a connection without a valid key.
    pub(crate) calls_without_key: usize,
    /// Maximum connections of the admin port.
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
