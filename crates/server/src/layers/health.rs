//! Serves health checks, which need no key, without the other layers.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use tokio_util::either::Either;
use tonic::body::Body;
use tower::Service;

use super::auth::Auth;
use super::body::HeldBody;
use super::call::{CallFuture, CallResult, CallService, GRPC, IncomingCall, OrRejected, Rejection};
use crate::connections::OpenCall;
use crate::keyring::AuthError;
use crate::rpc::{Call, Services};
use crate::wire::status;

/// Maximum size in bytes of a health check request, which contains a service name.
const REQUEST_BYTES_MAX: usize = 1 << 10;

#[derive(Clone)]
pub(crate) struct HealthLayer<S> {
    pub(super) inner: S,
    pub(super) auth: Arc<Auth>,
    pub(super) services: Services,
    /// Maximum time for a request to arrive.
    pub(super) timeout: Duration,
}

impl<S: CallService> Service<IncomingCall> for HealthLayer<S> {
    type Response = S::Response;
    type Error = Rejection;
    type Future = Either<S::Future, OrRejected<CallFuture>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Rejection>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, incoming: IncomingCall) -> Self::Future {
        if !matches!(incoming.call, Call::Health) {
            return Either::Left(self.inner.call(incoming));
        }
        Either::Right(match self.begin(&incoming) {
            Ok(call) => {
                let (services, timeout) = (self.services.clone(), self.timeout);
                let check = check(incoming.request, call, services, timeout);
                Either::Left(Box::pin(check))
            }
            Err(rejection) => rejection.ready(),
        })
    }
}

impl<S> HealthLayer<S> {
    fn begin(&self, incoming: &IncomingCall) -> Result<OpenCall, Rejection> {
        let connection = &incoming.connection;
        // Health checks must not help to guess keys either.
        if let Err(denied @ (AuthError::WrongKey | AuthError::SeveralKeys)) =
            self.auth.caller(&incoming.request, connection)
        {
            return Err(self.auth.deny(denied, connection));
        }
        connection.begin_keyless_call().ok_or_else(|| {
            if connection.count_refusal() {
                status::too_many_calls().into()
            } else {
                Rejection::Reset
            }
        })
    }
}

/// Serves a health check.
///
/// The request is small, and until it is complete it uses only its connection's share of resources.
/// The same holds for `Watch` streams: when there is no room, the oldest connection without a valid
/// key is closed, with its streams.
async fn check(
    request: Request<Body>,
    call: OpenCall,
    mut services: Services,
    timeout: Duration,
) -> CallResult {
    // Keep nothing else of the head while it waits.
    let path: Uri = request.uri().path().parse().unwrap_or_default();
    let reading = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let body = tokio::time::timeout(timeout, reading)
        .await
        .map_err(|_| status::request_too_slow())?
        .map_err(|_| status::probe_too_large(REQUEST_BYTES_MAX))?;
    let mut request = Request::new(Body::new(Full::new(body.to_bytes())));
    (*request.method_mut(), *request.uri_mut()) = (Method::POST, path);
    let grpc = HeaderValue::from_static(GRPC);
    request.headers_mut().insert(CONTENT_TYPE, grpc);
    let answer = services.call(request).await?;
    Ok(answer.map(|body| Body::new(HeldBody::new(body, call))))
}
