//! The layer that every call passes before its message is read: it finds out who calls, lets the
//! call in or refuses it, and counts and times the calls.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::{Request, Response};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tower::Layer;

use crate::admission::body::{CountedAnswer, CountedRequest};
use crate::admission::{Admission, CallPlace};
use crate::auth::{Keyring, Role};
use crate::metrics::CallMetrics;
use crate::wire::status;

/// What all calls share.
#[derive(Clone, Debug)]
pub(crate) struct AuthLayer {
    keyring: Arc<ArcSwap<Keyring>>,
    admission: Admission,
    metrics: CallMetrics,
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
        metrics: CallMetrics,
    ) -> Self {
        Self {
            keyring,
            admission,
            metrics,
        }
    }

    /// Calls whose answer is not sent yet; of a stream, whose answer has not begun.
    pub(crate) fn calls_under_way(&self) -> usize {
        self.admission.calls_under_way()
    }

    /// Lets a call in, and makes the caller and the place known to the service; or refuses it.
    fn admit(&self, request: &mut Request<Body>) -> Result<Arc<CallPlace>, Status> {
        let path = request.uri().path();
        if is_probe(path) {
            return self.admission.enter_probe().map(Arc::new);
        }
        let is_admin_call = path.starts_with("/memoird.v1.AdminService/");
        let authorization = request.headers().get(http::header::AUTHORIZATION);
        let keyring = self.keyring.load();
        let caller = keyring.caller(authorization.map(http::HeaderValue::as_bytes));
        let caller = caller.map_err(status::denied)?;
        if is_admin_call && caller.role != Role::Admin {
            return Err(status::role_required());
        }
        let caller = caller.clone();
        let place = self.admission.enter(&caller.tenant, keyring.is_shared());
        let place = place.map(Arc::new)?;
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(Arc::clone(&place));
        Ok(place)
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
        let is_stream = !is_ours || request.uri().path() == WATCH_EVENTS;
        let place = match self.layer.admit(&mut request) {
            Ok(place) => place,
            Err(refused) => {
                let answer = refused.into_http();
                timer.stop(Some(&answer));
                return Box::pin(async move { Ok(answer) });
            }
        };
        let counted = Arc::clone(&place);
        let request = request.map(|body| Body::new(CountedRequest::new(body, counted)));
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

/// The call whose answer is a stream.
const WATCH_EVENTS: &str = "/memoird.v1.SessionService/WatchEvents";

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
