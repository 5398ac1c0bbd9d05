//! Authenticates calls before their message is read, and checks the caller's role.
//!
//! Without a key, the certificate or Unix user of the connection counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use tower::Service;
use tracing::warn;

use super::call::{CallService, IncomingCall, OrRejected, Rejection};
use crate::connections::schedule::Schedule;
use crate::connections::{Connection, Peer, WrongKeys};
use crate::keyring::{AuthError, Caller, Keyring};
use crate::rpc::{Call, Role};
use crate::wire::refusal::Refusal;
use crate::wire::status;

#[derive(Clone)]
pub(crate) struct AuthLayer<S> {
    pub(super) inner: S,
    pub(super) auth: Arc<Auth>,
}

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

impl<S: CallService> Service<IncomingCall> for AuthLayer<S> {
    type Response = S::Response;
    type Error = Rejection;
    type Future = OrRejected<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Rejection>> {
        self.inner.poll_ready(context)
    }

    /// Stores the caller in the request's extensions.
    ///
    /// Nothing of a call is retained before its key is verified.
    fn call(&mut self, mut incoming: IncomingCall) -> Self::Future {
        let connection = &incoming.connection;
        let caller = match self.auth.caller(&incoming.request, connection) {
            Ok(caller) => caller,
            Err(denied) => return self.auth.deny(denied, connection).ready(),
        };
        if let Err(refused) = check_role(incoming.call, caller.role) {
            return Rejection::from(refused).ready();
        }
        incoming.request.extensions_mut().insert(caller);
        OrRejected::Left(self.inner.call(incoming))
    }
}

/// Rejects a bot's call of an rpc that requires `role: admin`.
fn check_role(call: Call, role: Role) -> Result<(), Refusal> {
    if call.is_admin() && role != Role::Admin {
        return Err(status::role_required());
    }
    Ok(())
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
        if self.keyring.load().is_shared() {
            connection.owner.enter(self.schedule.unauthenticated_lane());
        }
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
                let delay = address.map(|address| self.wrong_keys.delay(address));
                (
                    &self.denied.wrong_key,
                    delay.unwrap_or(Some(Duration::ZERO)),
                )
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
