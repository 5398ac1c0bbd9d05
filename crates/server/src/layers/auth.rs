//! Authenticates calls before their message is read.
//!
//! Without a key, the certificate or Unix user of the connection counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use tracing::warn;

use super::call::Rejection;
use crate::connections::schedule::Schedule;
use crate::connections::{Connection, OpenCall, Peer, WrongKeys};
use crate::keyring::{AuthError, Caller, Keyring};
use crate::wire::status;

#[derive(Debug)]
pub(crate) struct Auth {
    keyring: Arc<ArcSwap<Keyring>>,
    schedule: Arc<Schedule>,
    pub(crate) denied: DeniedCounts,
    wrong_keys: WrongKeys,
}

#[derive(Debug, Default)]
pub(crate) struct DeniedCounts {
    pub(crate) no_key: AtomicU64,
    pub(crate) wrong_key: AtomicU64,
    pub(crate) wrong_certificate: AtomicU64,
}

impl Auth {
    pub(crate) fn new(keyring: Arc<ArcSwap<Keyring>>, schedule: Arc<Schedule>) -> Self {
        Self {
            keyring,
            schedule,
            denied: DeniedCounts::default(),
            wrong_keys: WrongKeys::default(),
        }
    }

    /// Assigns a new connection to the queue of unauthenticated ones, if tenants have queues.
    pub(super) fn begin(&self, connection: &Connection) {
        if self.keyring.load().is_shared {
            connection.owner.enter(self.schedule.unauthenticated_lane());
        }
    }

    /// Whether the client has shown anything that can identify it.
    pub(super) fn has_credential<B>(request: &Request<B>, connection: &Connection) -> bool {
        request.headers().contains_key(AUTHORIZATION)
            || connection.certificate().is_some()
            || connection.peer.uid.is_some()
    }

    /// Returns the caller, and records that the connection has shown a valid credential.
    pub(super) fn caller<B>(
        &self,
        request: &Request<B>,
        connection: &Connection,
    ) -> Result<Caller, AuthError> {
        let keyring = self.keyring.load();
        let caller = keyring.caller(authorization(request)?, connection)?;
        connection.show_key();
        if caller.is_one_of_several {
            let weight = caller.tenant.policy().weight;
            let lane = self.schedule.lane_of(&caller.tenant.id);
            self.schedule.set_weight(lane, weight);
            connection.owner.enter(lane);
        }
        Ok(caller.clone())
    }

    /// Begins a health check, which needs no key.
    pub(super) fn begin_probe<B>(
        &self,
        request: &Request<B>,
        connection: &Arc<Connection>,
    ) -> Result<OpenCall, Rejection> {
        // Health checks must not help to guess keys either.
        if let Err(denied @ (AuthError::WrongKey | AuthError::SeveralKeys)) =
            self.caller(request, connection)
        {
            return Err(self.deny(denied, connection));
        }
        connection.begin_keyless_call().ok_or_else(|| {
            if connection.count_refusal() {
                status::too_many_calls().into()
            } else {
                Rejection::Reset
            }
        })
    }

    /// Counts a denied call. Delays responses to wrong keys to slow down guessing.
    pub(super) fn deny(&self, denied: AuthError, connection: &Connection) -> Rejection {
        let is_answered = connection.count_refusal();
        match self.delay(denied, connection) {
            Some(delay) if is_answered => Rejection::Refused(Box::new(denied.into()), delay),
            _ => {
                connection.finish_if_unauthenticated();
                Rejection::Reset
            }
        }
    }

    /// Returns the delay of the response to a denied call, if it gets one.
    fn delay(&self, denied: AuthError, connection: &Connection) -> Option<Duration> {
        let Peer { address, uid } = connection.peer;
        let (count, delay) = match denied {
            AuthError::NoKey => (&self.denied.no_key, Some(Duration::ZERO)),
            // Not a guess: the client does not match the configuration, or sends a malformed call.
            AuthError::NoKeysHere | AuthError::SeveralKeys => {
                (&self.denied.wrong_key, Some(Duration::ZERO))
            }
            AuthError::WrongKey => {
                warn!(?address, ?uid, "a call came with a wrong key");
                let delay = self.wrong_keys.delay(connection.peer);
                (&self.denied.wrong_key, delay)
            }
            AuthError::WrongCertificate => {
                let names = connection.certificate();
                warn!(?address, ?names, "a client certificate names no tenant");
                (&self.denied.wrong_certificate, Some(Duration::ZERO))
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        delay
    }
}

fn authorization<B>(request: &Request<B>) -> Result<Option<&[u8]>, AuthError> {
    let mut values = request.headers().get_all(AUTHORIZATION).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    match values.next() {
        Some(_) => Err(AuthError::SeveralKeys),
        None => Ok(first),
    }
}
