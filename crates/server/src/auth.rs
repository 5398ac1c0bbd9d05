//! Authentication and admission of calls.
//!
//! Every call passes [`AuthLayer`] before its message is read. The layer identifies the caller,
//! admits or rejects the call, counts it and times it. Without a key, the certificate or Unix user
//! of the connection counts.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use memoird_engine::Tenant;
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::warn;

use crate::admission::body::{CountedRequest, PermitBody};
use crate::admission::{Admission, CallPermit};
use crate::call_metrics::{CallMetrics, CallTimer};
use crate::connections::{Connection, ConnectionsConfig, OpenCall, Peer, WrongKeys};
use crate::keyring::{AuthError, Keyring};
use crate::rates::{Rates, RequestMeter};
use crate::reply_limit;
use crate::routes::Routes;
use crate::rpc::{Call, Role};
use crate::wire::status;

#[derive(Debug, Default)]
pub(crate) struct DeniedCounts {
    pub(crate) no_key: AtomicU64,
    pub(crate) wrong_key: AtomicU64,
    pub(crate) wrong_certificate: AtomicU64,
}

/// Authenticates and admits every call before its message is read.
#[derive(Clone, Debug)]
pub(crate) struct AuthLayer {
    shared: Arc<AuthInner>,
}

#[derive(Debug)]
struct AuthInner {
    keyring: Arc<ArcSwap<Keyring>>,
    admission: Admission,
    rates: Rates,
    metrics: CallMetrics,
    denied: DeniedCounts,
    wrong_keys: WrongKeys,
    /// Whether other daemons share the journal. Some calls are not served then.
    is_in_cluster: bool,
    request_timeout: Duration,
    /// Timeout of requests without a key.
    probe_timeout: Duration,
}

struct AdmittedCall {
    permit: Arc<CallPermit>,
    meter: RequestMeter,
}

/// The services behind the layer, for one connection.
#[derive(Clone)]
pub(crate) struct AuthService {
    layer: AuthLayer,
    routes: Routes,
    connection: Arc<Connection>,
}

enum CallRejection {
    AuthError(AuthError),
    Status(Status),
}

/// The error that resets the stream of a call without a response.
#[derive(Debug, thiserror::Error)]
#[error("too many calls were rejected on this connection")]
pub(crate) struct StreamReset(#[source] h2::Error);

impl From<Infallible> for StreamReset {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, StreamReset>> + Send>>;

/// Resets the stream, because the connection has had too many rejections.
fn reset_stream() -> ResponseFuture {
    let reset = StreamReset(h2::Reason::ENHANCE_YOUR_CALM.into());
    Box::pin(std::future::ready(Err(reset)))
}

impl AuthLayer {
    pub(crate) fn new(
        keyring: Arc<ArcSwap<Keyring>>,
        admission: Admission,
        rates: Rates,
        metrics: CallMetrics,
        limits: &ConnectionsConfig,
        is_in_cluster: bool,
    ) -> Self {
        let shared = AuthInner {
            keyring,
            admission,
            rates,
            metrics,
            denied: DeniedCounts::default(),
            wrong_keys: WrongKeys::default(),
            is_in_cluster,
            request_timeout: limits.request_timeout,
            probe_timeout: limits.request_timeout.min(limits.handshake_timeout),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Number of calls without a sent response. A stream counts until its response begins.
    pub(crate) fn calls_in_progress(&self) -> usize {
        self.shared.admission.calls_in_progress()
    }

    pub(crate) fn denied(&self) -> &DeniedCounts {
        &self.shared.denied
    }

    pub(crate) fn service(&self, routes: Routes, connection: &Arc<Connection>) -> AuthService {
        if self.shared.keyring.load().is_shared() {
            let unauthenticated = self.shared.admission.schedule().unauthenticated_lane();
            connection.owner.enter(unauthenticated);
        }
        AuthService {
            layer: self.clone(),
            routes,
            connection: Arc::clone(connection),
        }
    }
}

impl AuthInner {
    /// Admits a call, and stores its caller and permit in the request's extensions.
    ///
    /// Nothing of a call is retained before its key is verified.
    fn admit(
        &self,
        request: &mut Request<Body>,
        call: Call,
        connection: &Connection,
    ) -> Result<AdmittedCall, CallRejection> {
        let keyring = self.keyring.load();
        let authorization = authorization(request).map_err(CallRejection::AuthError)?;
        let caller = keyring
            .caller(authorization, connection)
            .map_err(CallRejection::AuthError)?;
        self.mark_authenticated(connection, &caller.tenant, &keyring);
        if call.is_admin() && caller.role != Role::Admin {
            return Err(status::role_required().into());
        }
        if let Some(rpc) = call.rpc()
            && self.is_in_cluster
            && rpc.is_only_alone
        {
            return Err(status::not_in_cluster(rpc.name()).into());
        }
        let meter = if call.is_admin() {
            self.rates.enter_operator(call.request_size())
        } else {
            self.rates.enter(&caller.tenant, call.request_size())?
        };
        let caller = caller.clone();
        // Limits on the number of a tenant's calls belong before this line, where no permit is
        // taken yet.
        let permit = self
            .admission
            .enter(&caller.tenant, keyring.is_shared())
            .map(Arc::new)?;
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(Arc::clone(&permit));
        Ok(AdmittedCall { permit, meter })
    }

    /// Records that the connection has shown a valid credential of a tenant.
    fn mark_authenticated(&self, connection: &Connection, tenant: &Tenant, keyring: &Keyring) {
        connection.show_key();
        if keyring.is_shared() {
            self.admission.assign_lane(&connection.owner, tenant);
        }
    }

    /// Counts a denied call and returns the delay of its response, if it gets one.
    fn count_denied(&self, denied: AuthError, connection: &Connection) -> Option<Duration> {
        let is_answered = connection.count_refusal();
        let delay = match denied {
            AuthError::NoKey => {
                self.denied.no_key.fetch_add(1, Ordering::Relaxed);
                Some(Duration::ZERO)
            }
            // Not a guess: the client does not match the configuration, or sends a malformed call.
            AuthError::NoKeysHere | AuthError::SeveralKeys => {
                self.denied.wrong_key.fetch_add(1, Ordering::Relaxed);
                Some(Duration::ZERO)
            }
            AuthError::WrongKey => {
                self.denied.wrong_key.fetch_add(1, Ordering::Relaxed);
                let Peer { address, uid } = connection.peer;
                warn!(?address, ?uid, "a call came with a wrong key");
                match address {
                    Some(address) => self.wrong_keys.delay(address),
                    None => Some(Duration::ZERO),
                }
            }
            AuthError::WrongCertificate => {
                let count = &self.denied.wrong_certificate;
                count.fetch_add(1, Ordering::Relaxed);
                let names = connection.certificate();
                let address = connection.peer.address;
                warn!(?address, ?names, "a client certificate names no tenant");
                Some(Duration::ZERO)
            }
        };
        delay.filter(|_| is_answered)
    }
}

impl From<Status> for CallRejection {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl hyper::service::Service<Request<Incoming>> for AuthService {
    type Response = Response<Body>;
    type Error = StreamReset;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        if self.connection.is_closing() {
            return reset_stream();
        }
        if let Some(status) = non_grpc_status(&request) {
            return self.reject_http(status);
        }
        let call = Call::of(request.uri().path());
        let timer = self.layer.shared.metrics.start(call);
        match call {
            Call::Health => self.serve_health_check(request, timer),
            _ => self.serve_with_key(request.map(Body::new), call, timer),
        }
    }
}

impl AuthService {
    /// Serves a call that needs a key, if keys are configured.
    fn serve_with_key(
        &self,
        mut request: Request<Body>,
        call: Call,
        timer: CallTimer,
    ) -> ResponseFuture {
        let shared = &self.layer.shared;
        let reply_bytes_max = match reply_limit::of_call(request.headers()) {
            Ok(bytes_max) => bytes_max,
            Err(refused) => return self.reject(refused.into(), timer),
        };
        let AdmittedCall { permit, meter } =
            match shared.admit(&mut request, call, &self.connection) {
                Ok(admitted) => admitted,
                Err(refusal) => return self.reject(refusal, timer),
            };
        let is_reflection = matches!(call, Call::Reflection);
        if is_reflection && let Err(refused) = permit.add_bytes(UNREAD_BYTES_MAX) {
            return self.reject(refused.into(), timer);
        }
        let open = self.connection.begin_call();
        let deadline = deadline(request.headers());
        let counted = Arc::clone(&permit);
        // Reflection streams stay open, so they have no timeout.
        let request_timeout = (!is_reflection).then_some(shared.request_timeout);
        let request = request
            .map(|body| Body::new(CountedRequest::new(body, counted, meter, request_timeout)));
        let answer = self.routes.serve(request);
        Box::pin(async move {
            let mut answer = match deadline {
                None => answer.await?,
                Some(limit) => match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer?,
                    Err(_) => status::deadline_exceeded().into_http(),
                },
            };
            add_error_details(&mut answer);
            if !is_reflection && !call.has_stream() {
                answer = reply_limit::checked(answer, reply_bytes_max).await;
            }
            timer.stop(&answer);
            Ok(answer.map(|body| {
                if is_reflection {
                    Body::new(PermitBody::new(body, (open, permit)))
                } else if call.has_stream() {
                    // It lasts as long as its client wants, and buffers little at any time.
                    Body::new(PermitBody::new(body, open))
                } else {
                    Body::new(PermitBody::counted(body, permit, open))
                }
            }))
        })
    }

    /// Rejects a call. Delays responses to wrong keys to slow down guessing.
    fn reject(&self, refusal: CallRejection, timer: CallTimer) -> ResponseFuture {
        let (status, delay) = match refusal {
            CallRejection::Status(status) => (status, Duration::ZERO),
            CallRejection::AuthError(denied) => {
                let shared = &self.layer.shared;
                let Some(delay) = shared.count_denied(denied, &self.connection) else {
                    self.connection.finish_if_unauthenticated();
                    return reset_stream();
                };
                (denied.into(), delay)
            }
        };
        let answer = status.into_http();
        timer.stop(&answer);
        Box::pin(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(answer)
        })
    }

    fn reject_http(&self, status: StatusCode) -> ResponseFuture {
        if !self.connection.count_refusal() {
            return reset_stream();
        }
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = status;
        Box::pin(std::future::ready(Ok(answer)))
    }

    /// Serves a health check, which needs no key.
    ///
    /// The request is small, and until it is complete it uses only its connection's share of
    /// resources. The same holds for `Watch` streams: when there is no room, the oldest connection
    /// without a valid key is closed, with its streams.
    fn serve_health_check(&self, request: Request<Incoming>, timer: CallTimer) -> ResponseFuture {
        let shared = &self.layer.shared;
        let keyring = shared.keyring.load();
        let caller = authorization(&request)
            .and_then(|authorization| keyring.caller(authorization, &self.connection));
        match caller {
            Ok(caller) => shared.mark_authenticated(&self.connection, &caller.tenant, &keyring),
            // Health checks must not help to guess keys either.
            Err(denied @ (AuthError::WrongKey | AuthError::SeveralKeys)) => {
                return self.reject(CallRejection::AuthError(denied), timer);
            }
            Err(_) => {}
        }
        let Some(call) = self.connection.begin_keyless_call() else {
            return if self.connection.count_refusal() {
                self.reject(status::too_many_calls().into(), timer)
            } else {
                reset_stream()
            };
        };
        let this = self.clone();
        Box::pin(async move {
            let answer = this
                .run_health_check(request, call)
                .await
                .unwrap_or_else(Status::into_http);
            timer.stop(&answer);
            Ok(answer)
        })
    }

    async fn run_health_check(
        self,
        request: Request<Incoming>,
        call: OpenCall,
    ) -> Result<Response<Body>, Status> {
        let limit = self.layer.shared.probe_timeout;
        // Keep nothing else of the head while it waits.
        let path: Uri = request.uri().path().parse().unwrap_or_default();
        let reading = Limited::new(request.into_body(), HEALTH_CHECK_BYTES_MAX).collect();
        let body = tokio::time::timeout(limit, reading)
            .await
            .map_err(|_| status::request_too_slow())?
            .map_err(|_| status::probe_too_large(HEALTH_CHECK_BYTES_MAX))?;
        let mut request = Request::new(Body::new(Full::new(body.to_bytes())));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, path);
        let grpc = HeaderValue::from_static(GRPC);
        request.headers_mut().insert(CONTENT_TYPE, grpc);
        let answer = self
            .routes
            .serve(request)
            .await
            .unwrap_or_else(|never| match never {});
        Ok(answer.map(|body| Body::new(PermitBody::new(body, call))))
    }
}

/// Why a request is not gRPC, if so.
fn non_grpc_status<B>(request: &Request<B>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|of| of.strip_prefix(GRPC.as_bytes()));
    match rest {
        Some([] | [b'+' | b';', ..]) => None,
        _ => Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
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

/// Content type of gRPC requests. A suffix such as `+proto` may follow.
const GRPC: &str = "application/grpc";

/// Maximum size in bytes of a health check request, which contains a service name.
const HEALTH_CHECK_BYTES_MAX: usize = 1 << 10;
/// Bytes that hyper buffers of a response stream if the client does not read.
const UNREAD_BYTES_MAX: u64 = 400 << 10;

/// Parses the client's deadline (gRPC over HTTP/2, `grpc-timeout`).
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol allows up to 8 digits.
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 60 * 60),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Adds the usual error details to errors of the gRPC library, such as malformed messages.
fn add_error_details(answer: &mut Response<Body>) {
    let headers = answer.headers_mut();
    if !headers.contains_key(Status::GRPC_STATUS)
        || headers.contains_key(Status::GRPC_STATUS_DETAILS)
    {
        return;
    }
    let refusal = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok);
    if let Some(refusal) = refusal {
        // Fails only for a message that no header can hold.
        let _ = status::transport(&refusal).add_header(headers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_deadline_is_read_as_grpc_writes_it() {
        let read = |text: &str| {
            let text = HeaderValue::from_str(text).unwrap();
            deadline(&HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-timeout"),
                text,
            )]))
        };
        assert_eq!(read("2S"), Some(Duration::from_secs(2)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(read("1H"), Some(Duration::from_secs(3_600)));
        for wrong in ["", "S", "2", "2s", "-2S", "999999999S", "2\u{b5}"] {
            let wrong = HeaderValue::from_bytes(wrong.as_bytes()).unwrap();
            let name = http::HeaderName::from_static("grpc-timeout");
            assert_eq!(deadline(&HeaderMap::from_iter([(name, wrong)])), None);
        }
        assert_eq!(deadline(&HeaderMap::new()), None);
    }
}
