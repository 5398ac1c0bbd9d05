//! The layer that every call passes before its message is read: it limits how many calls are in
//! flight, finds out who calls, and counts and times the calls.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use http::{Request, Response};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::{Code, Status};
use tower::Layer;

use crate::auth::{Keyring, Role};
use crate::metrics::CallMetrics;
use crate::wire::status;

/// What all calls share.
#[derive(Clone, Debug)]
pub(crate) struct AuthLayer {
    keyring: Arc<ArcSwap<Keyring>>,
    permits: Arc<Semaphore>,
    max_calls: usize,
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
        max_calls: usize,
        metrics: CallMetrics,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(max_calls));
        Self {
            keyring,
            permits,
            max_calls,
            metrics,
        }
    }

    /// Calls that have no answer yet, or no first word of it.
    pub(crate) fn calls_under_way(&self) -> usize {
        self.max_calls
            .saturating_sub(self.permits.available_permits())
    }

    /// Makes the caller known to the service, or refuses the call.
    fn admit(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let path = request.uri().path();
        if is_probe(path) {
            return Ok(());
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
        request.extensions_mut().insert(caller);
        Ok(())
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
        let refused = match Arc::clone(&self.layer.permits).try_acquire_owned() {
            Ok(permit) => match self.layer.admit(&mut request) {
                Ok(()) => {
                    let answer = self.inner.call(request);
                    return Box::pin(async move {
                        let mut answer = answer.await;
                        drop(permit);
                        if is_ours && let Ok(answer) = &mut answer {
                            explain(answer);
                        }
                        timer.stop(answer.as_ref().ok());
                        answer
                    });
                }
                Err(refused) => refused,
            },
            Err(_) => status::too_many_calls(),
        };
        let answer = refused.into_http();
        timer.stop(Some(&answer));
        Box::pin(async move { Ok(answer) })
    }
}

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
