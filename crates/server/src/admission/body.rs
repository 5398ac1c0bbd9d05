//! The bytes of a request on their way in, and of an answer until they are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::CallPlace;
use crate::connections::OpenCall;
use crate::rates::RequestMeter;
use crate::wire::status;

/// A request whose bytes are counted, and refused where there are too many, or where they do
/// not come.
pub(crate) struct CountedRequest {
    inner: Body,
    place: Arc<CallPlace>,
    meter: RequestMeter,
    /// How long it may let wait for itself, altogether.
    timeout: Option<Duration>,
    /// Runs from the first time that it does.
    late: Option<Pin<Box<Sleep>>>,
}

/// An answer that keeps the place of its call until it is sent, or nobody wants it any more.
pub(crate) struct CountedAnswer {
    inner: Body,
    place: Arc<CallPlace>,
    bytes: u64,
    _call: OpenCall,
}

/// An answer that keeps what its call has until nothing of it is left to send, or nobody wants
/// it any more.
pub(crate) struct HeldAnswer<T> {
    inner: Body,
    held: Arc<T>,
}

/// Bytes on their way to a client, which may read them slowly: the connection has them long
/// after the body is at its end.
struct Unsent<T> {
    data: Bytes,
    _held: Arc<T>,
}

/// Fewer bytes are as good as sent.
const UNSENT_BYTES_MIN: usize = 16 << 10;

/// What a frame of a body is polled to.
type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

impl CountedRequest {
    pub(crate) fn new(
        inner: Body,
        place: Arc<CallPlace>,
        meter: RequestMeter,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            inner,
            place,
            meter,
            timeout,
            late: None,
        }
    }

    fn add(&mut self, data: &Bytes) -> Result<(), Status> {
        self.meter.add(data)?;
        self.place.add_bytes(data.len() as u64)
    }

    /// Waits for more, but not for ever.
    fn wait(&mut self, context: &mut Context<'_>) -> Polled {
        let Some(timeout) = self.timeout else {
            return Poll::Pending;
        };
        let late = self
            .late
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        late.as_mut()
            .poll(context)
            .map(|()| Some(Err(status::request_too_slow())))
    }
}

impl CountedAnswer {
    pub(crate) fn new(inner: Body, place: Arc<CallPlace>, call: OpenCall) -> Self {
        Self {
            inner,
            place,
            bytes: 0,
            _call: call,
        }
    }
}

impl<T> HeldAnswer<T> {
    pub(crate) fn new(inner: Body, held: T) -> Self {
        Self {
            inner,
            held: Arc::new(held),
        }
    }
}

impl<T> AsRef<[u8]> for Unsent<T> {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

fn data_bytes(frame: &Frame<Bytes>) -> u64 {
    frame.data_ref().map_or(0, |data| data.len() as u64)
}

impl HttpBody for CountedRequest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if polled.is_pending() {
            return self.wait(context);
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
            && let Err(refused) = self.add(data)
        {
            return Poll::Ready(Some(Err(refused)));
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

impl HttpBody for CountedAnswer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        polled.map_ok(|frame| {
            if frame.is_data() {
                self.bytes += data_bytes(&frame);
                self.place.set_bytes(self.bytes);
            }
            frame.map_data(|data| match data.len() >= UNSENT_BYTES_MIN {
                true => Bytes::from_owner(Unsent {
                    data,
                    _held: Arc::clone(&self.place),
                }),
                false => data,
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<T: Send + Sync + 'static> HttpBody for HeldAnswer<T> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        polled.map_ok(|frame| {
            frame.map_data(|data| {
                Bytes::from_owner(Unsent {
                    data,
                    _held: Arc::clone(&self.held),
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
