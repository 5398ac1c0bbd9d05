//! Who calls: a key names a tenant and a role. Keys are kept as digests. The layer that every call
//! passes before its message is read finds out who calls, lets the call in or refuses it, and
//! counts and times the calls.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::{Request, Response};
use memoird_core::ids::TenantId;
use memoird_engine::{Engine, Tenant};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tower::Layer;

use crate::admission::body::{CountedAnswer, CountedRequest};
use crate::admission::{Admission, CallPlace};
use crate::metrics::CallMetrics;
use crate::rates::{Rates, RequestMeter};
use crate::revocation::KeyValidity;
use crate::wire::status;

/// The rights of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Calls the services of bots, for its tenant.
    #[default]
    Bot,
    /// That, and AdminService, which sees every tenant.
    Admin,
}

/// The digest of a key.
pub(crate) type KeyDigest = [u8; 32];

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// For whom.
    pub(crate) tenant: Arc<Tenant>,
    /// Its rights.
    pub(crate) role: Role,
    /// Cancelled when other keys apply: what goes on for long must ask anew.
    /// Shared as it is, because every call gets a caller and the token's own clone takes a
    /// lock.
    pub(crate) revoked: Arc<CancellationToken>,
    /// Whether its key still applies.
    pub(crate) key: KeyValidity,
}

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Its digest.
    pub(crate) digest: KeyDigest,
    /// Whose it is.
    pub(crate) tenant: TenantId,
    /// Its rights.
    pub(crate) role: Role,
}

/// All keys.
#[derive(Debug)]
pub(crate) enum Keyring {
    /// There are no keys. Every caller is the tenant `default`, and the daemon listens on
    /// loopback only.
    Open(Caller),
    /// By the first bytes of their digest. Digests do not give their keys away, so a
    /// look-up by a part of one tells an attacker nothing; what decides is compared in
    /// constant time.
    Keys {
        /// By that.
        by_prefix: HashMap<[u8; 8], Vec<(KeyDigest, Caller)>>,
        /// True where they are of several tenants.
        is_shared: bool,
    },
}

/// Why a caller is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// There is no `authorization: Bearer <key>`.
    NoKey,
    /// The key is not configured.
    WrongKey,
    /// There is a key in the call, and none in the configuration.
    NoKeysHere,
}

/// The digest of a key, as `sha256` in the configuration.
pub(crate) fn digest(key: &[u8]) -> KeyDigest {
    Sha256::digest(key).into()
}

impl Keyring {
    /// The keys with the engine's tenants; `None` when the engine lacks one of them. Calls of
    /// those that `before` has go on.
    pub(crate) fn new(keys: &[Key], engine: &Engine, before: Option<&Self>) -> Option<Self> {
        let revoked = Arc::new(CancellationToken::new());
        let caller = |tenant, role, key| {
            let (tenant, revoked) = (engine.tenants.get(tenant)?, Arc::clone(&revoked));
            Some(Caller {
                tenant,
                role,
                revoked,
                key,
            })
        };
        if keys.is_empty() {
            return Some(Self::Open(caller(
                &TenantId::default_tenant(),
                Role::Admin,
                KeyValidity::default(),
            )?));
        }
        let mut by_prefix: HashMap<[u8; 8], Vec<_>> = HashMap::new();
        for key in keys {
            let same = before.and_then(|before| before.of_key(key));
            let validity = same.map(|same| same.key.clone()).unwrap_or_default();
            let entry = (key.digest, caller(&key.tenant, key.role, validity)?);
            let same_prefix = by_prefix.entry(prefix(&key.digest)).or_default();
            same_prefix.push(entry);
        }
        let tenants: HashSet<&TenantId> = keys.iter().map(|key| &key.tenant).collect();
        Some(Self::Keys {
            by_prefix,
            is_shared: tenants.len() > 1,
        })
    }

    /// True where several tenants may call.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Open(_) => false,
            Self::Keys { is_shared, .. } => *is_shared,
        }
    }

    /// Other keys apply: ends the streams of all callers that these let in, and the calls of
    /// those whose key is not among the others.
    pub(crate) fn revoke(&self, keys: &[Key]) {
        for caller in self.callers() {
            caller.revoked.cancel();
        }
        let kept = keys.iter().filter_map(|key| self.of_key(key));
        let kept: HashSet<*const Caller> = kept.map(std::ptr::from_ref).collect();
        let gone = self
            .callers()
            .filter(|caller| !kept.contains(&std::ptr::from_ref(*caller)));
        gone.for_each(|caller| caller.key.revoke());
    }

    fn callers(&self) -> impl Iterator<Item = &Caller> {
        let (open, by_prefix) = match self {
            Self::Open(caller) => (Some(caller), None),
            Self::Keys { by_prefix, .. } => (None, Some(by_prefix)),
        };
        let keyed = by_prefix.into_iter().flat_map(HashMap::values).flatten();
        open.into_iter().chain(keyed.map(|(_, caller)| caller))
    }

    /// Whoever calls with this very key, as the same tenant and in the same role.
    fn of_key(&self, key: &Key) -> Option<&Caller> {
        let Self::Keys { by_prefix, .. } = self else {
            return None;
        };
        let same_prefix = by_prefix.get(&prefix(&key.digest))?;
        let same = same_prefix.iter().find(|(digest, caller)| {
            *digest == key.digest && caller.tenant.id == key.tenant && caller.role == key.role
        });
        same.map(|(_, caller)| caller)
    }

    /// The caller with the key in this `authorization` header.
    pub(crate) fn caller(&self, authorization: Option<&[u8]>) -> Result<&Caller, Denied> {
        let by_prefix = match self {
            // Who has a key expects that it is looked at, and to be its tenant.
            Self::Open(_) if authorization.is_some() => return Err(Denied::NoKeysHere),
            Self::Open(caller) => return Ok(caller),
            Self::Keys { by_prefix, .. } => by_prefix,
        };
        let key = authorization.and_then(bearer).ok_or(Denied::NoKey)?;
        let presented = digest(key);
        let mut candidates = by_prefix.get(&prefix(&presented)).into_iter().flatten();
        let found = candidates.find(|(known, _)| known.ct_eq(&presented).into());
        found.map(|(_, caller)| caller).ok_or(Denied::WrongKey)
    }
}

fn prefix(digest: &KeyDigest) -> [u8; 8] {
    std::array::from_fn(|place| digest[place])
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, key) = header.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then_some(key.trim_ascii())
}

/// What all calls share.
#[derive(Clone, Debug)]
pub(crate) struct AuthLayer {
    keyring: Arc<ArcSwap<Keyring>>,
    admission: Admission,
    rates: Rates,
    metrics: CallMetrics,
}

/// A call that was let in: its place, and what its bytes have to pass.
struct LetIn {
    place: Arc<CallPlace>,
    meter: RequestMeter,
}

/// A service behind the layer.
#[derive(Clone, Debug)]
pub(crate) struct AuthService<S> {
    layer: AuthLayer,
    inner: S,
}

impl AuthLayer {
    pub(crate) fn new(
        keyring: Arc<ArcSwap<Keyring>>,
        admission: Admission,
        rates: Rates,
        metrics: CallMetrics,
    ) -> Self {
        Self {
            keyring,
            admission,
            rates,
            metrics,
        }
    }

    /// Calls whose answer is not sent yet; of a stream, whose answer has not begun.
    pub(crate) fn calls_under_way(&self) -> usize {
        self.admission.calls_under_way()
    }

    /// Lets a call in, and makes the caller and the place known to the service; or refuses it.
    fn admit(&self, request: &mut Request<Body>) -> Result<LetIn, Status> {
        let path = request.uri().path();
        if is_probe(path) {
            let place = self.admission.enter_probe().map(Arc::new)?;
            let meter = self.rates.enter_operator(path);
            return Ok(LetIn { place, meter });
        }
        let is_admin_call = path.starts_with("/memoird.v1.AdminService/");
        let authorization = request.headers().get(http::header::AUTHORIZATION);
        let keyring = self.keyring.load();
        let caller = keyring.caller(authorization.map(http::HeaderValue::as_bytes));
        let caller = caller.map_err(status::denied)?;
        if is_admin_call && caller.role != Role::Admin {
            return Err(status::role_required());
        }
        let meter = match is_admin_call {
            true => self.rates.enter_operator(path),
            false => self.rates.enter(&caller.tenant, path)?,
        };
        let caller = caller.clone();
        let place = self.admission.enter(&caller.tenant, keyring.is_shared());
        let place = place.map(Arc::new)?;
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(Arc::clone(&place));
        Ok(LetIn { place, meter })
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        AuthService {
            layer: self.clone(),
            inner,
        }
    }
}

impl<S> Service<Request<Body>> for AuthService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let timer = self.layer.metrics.start(request.uri().path());
        let is_ours = !is_probe(request.uri().path());
        let is_stream = !is_ours || STREAMS.contains(&request.uri().path());
        let LetIn { place, meter } = match self.layer.admit(&mut request) {
            Ok(let_in) => let_in,
            Err(refused) => {
                let answer = refused.into_http();
                timer.stop(Some(&answer));
                return Box::pin(async move { Ok(answer) });
            }
        };
        let counted = Arc::clone(&place);
        let request = request.map(|body| Body::new(CountedRequest::new(body, counted, meter)));
        let answer = place.in_turn(self.inner.call(request));
        Box::pin(async move {
            let mut answer = answer.await?;
            if is_ours {
                explain(&mut answer);
            }
            timer.stop(Some(&answer));
            // A stream is as long as its client wants it, and small at any time.
            Ok(match is_stream {
                true => answer,
                false => answer.map(|body| Body::new(CountedAnswer::new(body, place))),
            })
        })
    }
}

/// The calls whose answers are streams.
const STREAMS: [&str; 2] = [
    "/memoird.v1.SessionService/WatchEvents",
    "/memoird.v1.AdminService/Backup",
];

/// Probes have no keys, and the contract is no secret.
fn is_probe(path: &str) -> bool {
    path.starts_with("/grpc.health.") || path.starts_with("/grpc.reflection.")
}

/// Gives the refusals of gRPC itself, such as of bytes that are no message, the details
/// that all refusals have.
fn explain(answer: &mut Response<Body>) {
    let headers = answer.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS)
        || headers.contains_key(Status::GRPC_STATUS_DETAILS)
    {
        return;
    }
    let refusal = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    if let Some(refusal) = refusal {
        // It fails only for a message that no header can hold; then there is none.
        let _ = status::transport(&refusal).add_header(headers);
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::DESCRIPTOR_POOL;
    use memoird_proto::prost_reflect::MethodDescriptor;

    use super::*;

    #[test]
    fn the_answers_that_are_streams_are_known() {
        let services = DESCRIPTOR_POOL.services();
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
        let streams = methods.filter(MethodDescriptor::is_server_streaming);
        let mut streams: Vec<String> = streams
            .map(|of| format!("/{}/{}", of.parent_service().full_name(), of.name()))
            .collect();
        let mut known = STREAMS.map(str::to_owned);
        streams.sort();
        known.sort();
        assert_eq!(streams, known);
    }

    #[test]
    fn a_bearer_key_is_found_in_its_header() {
        assert_eq!(bearer(b"Bearer secret"), Some(&b"secret"[..]));
        assert_eq!(bearer(b"bearer  secret "), Some(&b"secret"[..]));
        assert_eq!(bearer(b"Basic secret"), None);
        assert_eq!(bearer(b"secret"), None);
    }
}
