//! The body of a streamed response: enveloped messages, or server-sent events.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use memoird_proto::prost_reflect::DynamicMessage;
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::{CURSOR, CallStyle, END_OF_STREAM, HttpCall, error, put_envelope};
use crate::layers::limits::rates::MESSAGE_HEAD_BYTES;
use crate::wire::refusal::Refusal;

/// Interval of comments in an idle stream of events, which proxies would close otherwise.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Converts the body of a gRPC response.
pub(super) struct StreamReply {
    inner: Body,
    call: HttpCall,
    /// Bytes of a message that is incomplete.
    received: BytesMut,
    is_over: bool,
    heartbeat: Option<Pin<Box<Sleep>>>,
}

impl StreamReply {
    pub(super) fn new(inner: Body, call: HttpCall) -> Self {
        Self {
            inner,
            call,
            received: BytesMut::new(),
            is_over: false,
            heartbeat: None,
        }
    }

    /// Converts the messages that are complete.
    fn convert(&mut self) -> Result<Vec<u8>, Refusal> {
        let mut out = Vec::new();
        while let Some(&[_, ref length @ ..]) = self.received.first_chunk::<MESSAGE_HEAD_BYTES>() {
            let bytes = u32::from_be_bytes(*length) as usize;
            if self.received.len() - MESSAGE_HEAD_BYTES < bytes {
                break;
            }
            self.received.advance(MESSAGE_HEAD_BYTES);
            let message = self.received.split_to(bytes);
            if self.call.style == CallStyle::Events {
                self.put_event(&message, &mut out)?;
            } else {
                put_envelope(0, &mut out, |out| self.call.write(&message, out))?;
            }
        }
        Ok(out)
    }

    fn put_event(&self, message: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        if let Some(cursor) = self.cursor(message) {
            out.extend_from_slice(b"id: ");
            out.extend_from_slice(cursor.as_bytes());
            out.push(b'\n');
        }
        out.extend_from_slice(b"data: ");
        // JSON has no line breaks.
        self.call.write(message, out)?;
        out.extend_from_slice(b"\n\n");
        Ok(())
    }

    /// The position of an event in its stream, if events have one.
    fn cursor(&self, message: &[u8]) -> Option<String> {
        let descriptor = self.call.rpc.method.output();
        let field = descriptor.get_field_by_name(CURSOR)?;
        let event = DynamicMessage::decode(descriptor, message).ok()?;
        let cursor = event.get_field(&field).as_str()?.to_owned();
        let is_line = !cursor.is_empty() && !cursor.contains(['\n', '\r', '\0']);
        is_line.then_some(cursor)
    }

    /// Ends the stream with this status.
    fn end(&mut self, status: &Status) -> Vec<u8> {
        self.is_over = true;
        let mut out = Vec::new();
        if self.call.style == CallStyle::Stream {
            put_end(status, &mut out);
        } else if status.code() != Code::Ok {
            out.extend_from_slice(b"event: error\ndata: ");
            out.extend(error::text(status));
            out.extend_from_slice(b"\n\n");
        }
        out
    }

    /// A comment, if it is time for one.
    fn poll_heartbeat(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        if self.call.style != CallStyle::Events {
            return Poll::Pending;
        }
        let begin = || Box::pin(tokio::time::sleep(HEARTBEAT));
        let heartbeat = self.heartbeat.get_or_insert_with(begin);
        heartbeat.as_mut().poll(context).map(|()| b":\n\n".to_vec())
    }

    fn poll_data(&mut self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        loop {
            let frame = match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => return self.poll_heartbeat(context),
            };
            let status = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    self.received.extend_from_slice(&data);
                    match self.convert() {
                        Ok(out) if out.is_empty() => continue,
                        Ok(out) => return Poll::Ready(out),
                        Err(refusal) => refusal.into(),
                    }
                }
                Some(Ok(Err(trailers))) => {
                    let status = trailers.trailers_ref().and_then(Status::from_header_map);
                    status.unwrap_or_else(|| Status::ok(""))
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            return Poll::Ready(self.end(&status));
        }
    }
}

impl HttpBody for StreamReply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.poll_data(context).map(|data| {
            self.heartbeat = None;
            // At the end of a stream of events there may be nothing to send.
            (!data.is_empty()).then(|| Ok(Frame::data(data.into())))
        })
    }
}

/// Appends the last message of a stream, which contains the error if there is one.
pub(super) fn put_end(status: &Status, out: &mut Vec<u8>) {
    let ended = put_envelope(END_OF_STREAM, out, |out| {
        if status.code() == Code::Ok {
            out.extend_from_slice(b"{}");
        } else {
            out.extend_from_slice(b"{\"error\":");
            out.extend(error::text(status));
            out.push(b'}');
        }
        Ok(())
    });
    debug_assert!(ended.is_ok(), "writing to a buffer cannot fail");
}
