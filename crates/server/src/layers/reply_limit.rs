//! Maximum size of replies: 4 MiB, the default limit of gRPC clients, unless the call asks for more.
//!
//! A client cannot report its own limit in gRPC. A larger reply fails there with an error that names
//! neither memoird nor a remedy, so the daemon rejects it first.

use http::HeaderMap;
use memoird_proto::v1::Budget;
use prost::Message;
use tonic::Code;

use super::limits::CallPermit;
use super::limits::rates::MESSAGE_HEAD_BYTES;
use crate::wire::refusal::Refusal;
use crate::wire::status;

/// The metadata key with which a call asks for larger replies, in bytes.
pub(crate) const METADATA: &str = "memoird-max-reply-bytes";
/// The limit of gRPC clients unless they are configured otherwise.
const DEFAULT_BYTES: u64 = 4 << 20;

/// Bytes of a reply per token of its window: the messages in a format and the turns.
const BYTES_PER_TOKEN: u64 = 16;

/// Returns the size in bytes that a request for a window asks for with its budget.
pub(crate) fn for_budget(budget: Option<&Budget>) -> u64 {
    let tokens = budget.and_then(|budget| budget.context_window).unwrap_or(0);
    BYTES_PER_TOKEN.saturating_mul(tokens)
}

/// Returns the maximum size of the reply to a call with these headers, in bytes.
///
/// # Errors
/// If the metadata is not a number.
pub(super) fn of_call(headers: &HeaderMap) -> Result<u64, Refusal> {
    let Some(value) = headers.get(METADATA) else {
        return Ok(DEFAULT_BYTES);
    };
    let text = value.to_str().unwrap_or_default();
    let bytes: u64 = text.parse().map_err(|_| not_a_number(text))?;
    Ok(bytes.max(DEFAULT_BYTES))
}

/// Checks the size of a unary call's reply.
///
/// # Errors
/// If it is larger than the call allows.
pub(crate) fn check(reply: &impl Message, permit: &CallPermit) -> Result<(), Refusal> {
    let bytes = (MESSAGE_HEAD_BYTES + reply.encoded_len()) as u64;
    let bytes_max = permit.reply_bytes_max();
    if bytes > bytes_max {
        return Err(too_large(bytes, bytes_max));
    }
    Ok(())
}

fn too_large(bytes: u64, bytes_max: u64) -> Refusal {
    let problem = format!(
        "the reply has {bytes} bytes, the maximum is {bytes_max}: raise the limit of your gRPC \
         client (grpc.max_receive_message_length, MaxCallRecvMsgSize, maxInboundMessageSize) and \
         send it as metadata {METADATA}, or ask for less (a smaller page or budget); turns that the \
         request appended are stored"
    );
    let facts = vec![
        ("bytes", bytes.to_string()),
        ("limit_bytes", bytes_max.to_string()),
    ];
    let code = Code::ResourceExhausted;
    status::new(code, "REPLY_TOO_LARGE", problem, None).with_facts(facts)
}

fn not_a_number(value: &str) -> Refusal {
    let problem =
        format!("metadata {METADATA} is {value:?}: expected a number of bytes, e.g. 67108864");
    status::metadata_invalid(METADATA, problem)
}
