//! Accounts for the bytes of a request while it arrives, and of a response until it is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;
use tokio_util::either::Either;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::call::{CallFuture, IncomingCall, OrRejected, Rejection};
use super::limits::CallPermit;
use super::reply_limit;
use crate::connections::OpenCall;
use crate::connections::send_progress::SendProgress;
use crate::rpc::Call;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Bytes that hyper buffers of a response stream if the client does not read.
const UNREAD_BYTES_MAX: u64 = 400 << 10;

/// The innermost layer, directly around the services.
#[derive(Clone)]
pub(crate) struct BodyLayer<S> {
    pub(super) inner: S,
    /// Maximum time for a request to arrive.
    pub(super) timeout: Duration,
}

/// An admitted call, with the resources that it holds until its response is sent.
struct AdmittedCall {
    call: Call,
    open: OpenCall,
    permit: Arc<CallPermit>,
    reply_bytes_max: u64,
}

/// A request body that fails if it is too large or too slow.
pub(crate) struct CountedRequest {
    inner: Body,
    permit: Arc<CallPermit>,
    /// Total time the daemon waits for the body.
    timeout: Option<Duration>,
    /// Started when the body is pending for the first time.
    late: Option<Pin<Box<Sleep>>>,
}

/// A response body in parts. Holds the resources of its call until all are sent or dropped.
pub(crate) struct HeldBody<T> {
    inner: Body,
    held: Arc<T>,
    /// Data from `inner` that has not been returned yet.
    rest: Bytes,
    bytes: u64,
    progress: Arc<SendProgress>,
    /// Trailers, held back until the data is sent.
    end: Option<Frame<Bytes>>,
    permit: Option<Arc<CallPermit>>,
}

/// A part on its way to a client, which may stay queued long after the body has ended.
struct UnsentPart<T> {
    data: Bytes,
    _held: Arc<T>,
    progress: Arc<SendProgress>,
}

/// Size of a part in bytes: an HTTP/2 frame, unless the client allows larger ones.
const PART_BYTES: usize = 16 << 10;

type PolledFrame = Poll<Option<Result<Frame<Bytes>, Status>>>;

impl<S> Service<IncomingCall> for BodyLayer<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Rejection;
    type Future = OrRejected<CallFuture>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Rejection>> {
        self.inner.poll_ready(context).map_err(Rejection::from)
    }

    fn call(&mut self, incoming: IncomingCall) -> Self::Future {
        let admitted = match AdmittedCall::new(&incoming) {
            Ok(admitted) => admitted,
            Err(refused) => return Rejection::from(refused).ready(),
        };
        // Reflection streams stay open, so they have no timeout.
        let timeout = (!admitted.is_reflection()).then_some(self.timeout);
        let answer = self.inner.call(incoming.request.map(|inner| {
            Body::new(CountedRequest {
                inner,
                permit: Arc::clone(&admitted.permit),
                timeout,
                late: None,
            })
        }));
        Either::Left(Box::pin(async {
            let answer = answer.await?;
            admitted.respond(answer).await.map_err(Rejection::from)
        }))
    }
}

impl AdmittedCall {
    fn new(incoming: &IncomingCall) -> Result<Self, Refusal> {
        let request = &incoming.request;
        let permit = request.extensions().get::<Arc<CallPermit>>();
        let admitted = Self {
            reply_bytes_max: reply_limit::of_call(request.headers())?,
            call: incoming.call,
            open: incoming.connection.begin_call(),
            permit: permit.map(Arc::clone).ok_or_else(status::no_caller)?,
        };
        if admitted.is_reflection() {
            admitted.permit.add_bytes(UNREAD_BYTES_MAX)?;
        }
        Ok(admitted)
    }

    fn is_reflection(&self) -> bool {
        matches!(self.call, Call::Reflection)
    }

    async fn respond(self, answer: Response<Body>) -> Result<Response<Body>, Refusal> {
        if self.is_reflection() {
            let held = (self.open, self.permit);
            return Ok(answer.map(|body| Body::new(HeldBody::new(body, held))));
        }
        if self.call.has_stream() {
            // It lasts as long as its client wants, and buffers little at any time.
            return Ok(answer.map(|body| Body::new(HeldBody::new(body, self.open))));
        }
        let answer = reply_limit::checked(answer, self.reply_bytes_max).await?;
        Ok(answer.map(|body| Body::new(HeldBody::counted(body, self.permit, self.open))))
    }
}

impl CountedRequest {
    /// Returns pending until `timeout` has passed, then an error.
    fn wait(&mut self, context: &mut Context<'_>) -> PolledFrame {
        let Some(timeout) = self.timeout else {
            return Poll::Pending;
        };
        let late = self
            .late
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        late.as_mut()
            .poll(context)
            .map(|()| Some(Err(status::request_too_slow().into())))
    }
}

impl HeldBody<(OpenCall, Arc<CallPermit>)> {
    /// Creates a response body that updates the byte count of `permit`.
    pub(crate) fn counted(inner: Body, permit: Arc<CallPermit>, call: OpenCall) -> Self {
        Self {
            permit: Some(Arc::clone(&permit)),
            ..Self::new(inner, (call, permit))
        }
    }
}

impl<T> HeldBody<T> {
    pub(crate) fn new(inner: Body, held: T) -> Self {
        Self {
            inner,
            held: Arc::new(held),
            rest: Bytes::new(),
            bytes: 0,
            progress: SendProgress::of_this_call(),
            end: None,
            permit: None,
        }
    }

    fn take(&mut self, data: Bytes) {
        self.bytes += data.len() as u64;
        if let Some(permit) = &self.permit {
            permit.set_bytes(self.bytes);
        }
        self.rest = data;
    }

    /// Whether the trailers wait until all data is sent.
    ///
    /// A large response keeps its call open until the client has read it, so that a stalled client
    /// can be detected. A small one is sent with its trailers.
    fn end_waits(&self) -> bool {
        self.bytes > PART_BYTES as u64
    }
}

impl<T> AsRef<[u8]> for UnsentPart<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl<T> Drop for UnsentPart<T> {
    fn drop(&mut self) {
        self.progress.note_sent();
    }
}

impl HttpBody for CountedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if polled.is_pending() {
            return self.wait(context);
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.permit.add_request(data)
        {
            return Poll::Ready(Some(Err(refused.into())));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<T: Send + Sync + 'static> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> PolledFrame {
        let this = &mut *self;
        while this.rest.is_empty() && this.end.is_none() {
            let frame = match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            match frame.into_data() {
                Ok(data) => this.take(data),
                Err(trailers) => this.end = Some(trailers),
            }
        }
        if this.rest.is_empty() {
            if this.end_waits() {
                ready!(this.progress.poll_sent(context));
            }
            return Poll::Ready(this.end.take().map(Ok));
        }
        let part = this.rest.split_to(this.rest.len().min(PART_BYTES));
        this.progress.note_produced();
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_owner(UnsentPart {
            data: part,
            _held: Arc::clone(&this.held),
            progress: Arc::clone(&this.progress),
        })))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.end.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
