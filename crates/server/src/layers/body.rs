//! Accounts for the bytes of a request while it arrives, and of a response until it is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::limits::CallPermit;
use super::reply_limit;
use crate::connections::send_progress::SendProgress;
use crate::connections::{Connection, OpenCall};
use crate::rpc::Call;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// Bytes that hyper buffers of a response stream if the client does not read.
const UNREAD_BYTES_MAX: u64 = 400 << 10;

/// An admitted call, with the resources that it holds until its response is sent.
pub(super) struct AdmittedCall {
    call: Call,
    open: OpenCall,
    permit: Arc<CallPermit>,
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
    /// The trailers, if any, after the end of `inner`. Held back until the data is sent.
    end: Option<Option<Frame<Bytes>>>,
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

impl AdmittedCall {
    pub(super) fn new(
        call: Call,
        headers: &HeaderMap,
        connection: &Arc<Connection>,
        permit: &Arc<CallPermit>,
    ) -> Result<Self, Refusal> {
        permit.allow_reply(reply_limit::of_call(headers)?);
        let admitted = Self {
            call,
            open: connection.begin_call(),
            permit: Arc::clone(permit),
        };
        if admitted.is_reflection() {
            admitted.permit.add_bytes(UNREAD_BYTES_MAX)?;
        }
        Ok(admitted)
    }

    /// Counts the bytes of the request, which must arrive within `timeout`.
    pub(super) fn counted(&self, request: Request<Body>, timeout: Duration) -> Request<Body> {
        request.map(|inner| {
            Body::new(CountedRequest {
                inner,
                permit: Arc::clone(&self.permit),
                // Reflection streams stay open, so they have no timeout.
                timeout: (!self.is_reflection()).then_some(timeout),
                late: None,
            })
        })
    }

    fn is_reflection(&self) -> bool {
        matches!(self.call, Call::Reflection)
    }

    pub(super) fn respond(self, answer: Response<Body>) -> Response<Body> {
        if self.is_reflection() {
            let held = (self.open, self.permit);
            return answer.map(|body| Body::new(HeldBody::new(body, held)));
        }
        if self.call.has_stream() {
            // It lasts as long as its client wants, and buffers little at any time.
            return answer.map(|body| Body::new(HeldBody::new(body, self.open)));
        }
        answer.map(|body| Body::new(HeldBody::counted(body, self.permit, self.open)))
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

    /// Whether the end of the response waits until all data is sent.
    ///
    /// A large response keeps its call open until the client has read it, so that a stalled client
    /// can be detected. A small one is sent with its end.
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
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.take(data),
                    Err(trailers) => this.end = Some(Some(trailers)),
                },
                None => this.end = Some(None),
                error => return Poll::Ready(error),
            }
        }
        if this.rest.is_empty() {
            if this.end_waits() {
                ready!(this.progress.poll_sent(context));
            }
            let trailers = this.end.as_mut().and_then(Option::take);
            return Poll::Ready(trailers.map(Ok));
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
        // A large response without trailers ends only when its data is sent.
        self.rest.is_empty()
            && self.end.as_ref().is_none_or(Option::is_none)
            && self.inner.is_end_stream()
            && !self.end_waits()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
