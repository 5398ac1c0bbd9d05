//! Serves health checks, which need no key, without the other layers.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use tonic::body::Body;

use super::body::HeldBody;
use super::call::{CallResult, GRPC};
use crate::connections::OpenCall;
use crate::rpc::Services;
use crate::wire::status;

/// Maximum size in bytes of a health check request, which contains a service name.
const REQUEST_BYTES_MAX: usize = 1 << 10;

/// Serves a health check.
///
/// The request is small, and until it is complete it uses only its connection's share of resources.
/// The same holds for `Watch` streams: when there is no room, the oldest connection without a valid
/// key is closed, with its streams.
pub(super) async fn check(
    request: Request<Body>,
    call: OpenCall,
    services: Services,
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
    let answer = services.call(request).await;
    Ok(answer.map(|body| Body::new(HeldBody::new(body, call))))
}
