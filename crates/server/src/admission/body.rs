//! The bytes of a request on their way in, and of an answer until they are sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::CallPlace;
use crate::rates::RequestMeter;

/// A request whose bytes are counted, and refused where there are too many.
pub(crate) struct CountedRequest {
    inner: Body,
    place: Arc<CallPlace>,
    meter: RequestMeter,
}

/// An answer that keeps the place of its call until it is sent, or nobody wants it any more.
pub(crate) struct CountedAnswer {
    inner: Body,
    place: Arc<CallPlace>,
    bytes: u64,
}

/// Bytes on their way to a client, which may read them slowly: the connection has them long
/// after the body is at its end.
struct Unsent {
    data: Bytes,
    _place: Arc<CallPlace>,
}

/// Fewer bytes are as good as sent.
const UNSENT_BYTES_MIN: usize = 16 << 10;

/// What a frame of a body is polled to.
type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

impl CountedRequest {
    pub(crate) fn new(inner: Body, place: Arc<CallPlace>, meter: RequestMeter) -> Self {
        Self {
            inner,
            place,
            meter,
        }
    }
}

impl CountedRequest {
    fn add(&mut self, bytes: u64) -> Result<(), Status> {
        self.meter.add(bytes)?;
        self.place.add_bytes(bytes)
    }
}

impl CountedAnswer {
    pub(crate) fn new(inner: Body, place: Arc<CallPlace>) -> Self {
        let bytes = 0;
        Self {
            inner,
            place,
            bytes,
        }
    }
}

impl AsRef<[u8]> for Unsent {
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
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && frame.is_data()
            && let Err(refused) = self.add(data_bytes(frame))
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
                    _place: Arc::clone(&self.place),
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
