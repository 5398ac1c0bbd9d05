//! Requests for windows, with checks of the invariants of every window.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, Budget, BuildContextRequest, BuildContextResponse, ContextReport, HeadTail,
    Salience, SlidingWindow, TokenBudget, Turn, WindowPolicy, window_policy,
};
use prost::Message;
use tonic::Status;

use crate::harness::{Daemon, Sessions, channel, raw_call, without_nonce};

/// The part of a window response that holds the encoded turns.
#[derive(Clone, PartialEq, Message)]
struct Raw {
    #[prost(bytes = "vec", repeated, tag = "1")]
    turns: Vec<Vec<u8>>,
}

/// A request for a window of `chat`.
pub(crate) fn window_request() -> BuildContextRequest {
    BuildContextRequest {
        session_id: "chat".to_owned(),
        ..BuildContextRequest::default()
    }
}

/// The same, with an append of these turns.
pub(crate) fn window_request_with(turns: impl Into<Vec<Turn>>) -> BuildContextRequest {
    let append = AppendRequest {
        turns: turns.into(),
        ..AppendRequest::default()
    };
    BuildContextRequest {
        append: Some(append),
        ..window_request()
    }
}

/// A budget of `tokens` tokens without reserves.
pub(crate) fn budget(tokens: u64) -> Option<Budget> {
    Some(Budget {
        context_window: Some(tokens),
        max_reply_tokens: Some(0),
        safety_headroom: Some(0),
        tool_result_headroom: Some(0),
    })
}

pub(crate) fn head_tail(turns: u32) -> Option<WindowPolicy> {
    policy(window_policy::Policy::HeadTail(HeadTail { turns }))
}

pub(crate) fn sliding(turns: u32) -> Option<WindowPolicy> {
    policy(window_policy::Policy::SlidingWindow(SlidingWindow {
        turns,
    }))
}

pub(crate) fn token_budget() -> Option<WindowPolicy> {
    policy(window_policy::Policy::TokenBudget(TokenBudget {}))
}

pub(crate) fn salience() -> Option<WindowPolicy> {
    policy(window_policy::Policy::Salience(Salience {}))
}

fn policy(policy: window_policy::Policy) -> Option<WindowPolicy> {
    Some(WindowPolicy {
        policy: Some(policy),
    })
}

/// A text of about 130 tokens that differs by number.
pub(crate) fn words(number: usize) -> String {
    format!(
        "number {number}: {}",
        format!("it is {number} o'clock and all is well, ").repeat(10)
    )
}

/// Requests a window and checks its invariants.
pub(crate) async fn ask(
    client: &mut Sessions,
    request: BuildContextRequest,
) -> BuildContextResponse {
    let answer = client
        .build_context(request)
        .await
        .expect("a window")
        .into_inner();
    check(&answer);
    answer
}

/// Requests a window and returns the error.
pub(crate) async fn no_window(client: &mut Sessions, request: BuildContextRequest) -> Status {
    client.build_context(request).await.expect_err("no window")
}

/// Asserts the invariants of a window and its report.
#[track_caller]
fn check(answer: &BuildContextResponse) {
    let report = report(answer);
    let blocks = report.tokens_by_block.expect("blocks");
    let said: u64 = report.turn_tokens.iter().sum();
    assert_eq!(report.turn_tokens.len(), answer.turns.len());
    assert_eq!(said + blocks.system, report.tokens_total, "{report:?}");
    let all = blocks.system + blocks.summary + blocks.memories + blocks.anchor + blocks.tail;
    assert_eq!(all, report.tokens_total, "{report:?}");
    assert!(report.tokens_total <= report.input_budget, "{report:?}");
    assert!(
        report.stable_prefix_tokens <= report.tokens_total,
        "{report:?}"
    );
    assert!(report.cache_breakpoints.is_sorted(), "{report:?}");
    let places = report.omissions.iter().map(|omission| omission.first_seq);
    assert!(places.is_sorted(), "{report:?}");
    assert!(!answer.turns.is_empty(), "{report:?}");
}

#[track_caller]
pub(crate) fn report(answer: &BuildContextResponse) -> &ContextReport {
    answer.report.as_ref().expect("a report")
}

/// The turns of a window as words: seqs, and labels for text inserted or changed by memoird.
pub(crate) fn outline(answer: &BuildContextResponse) -> String {
    let word = |turn: &Turn| match turn.metadata.get("memoird") {
        Some(label) if turn.seq == 0 => format!("[{label}]"),
        Some(label) => format!("{}:{label}", turn.seq),
        None => turn.seq.to_string(),
    };
    answer.turns.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The seqs of the stored turns in a window.
pub(crate) fn seqs(answer: &BuildContextResponse) -> Vec<u64> {
    answer
        .turns
        .iter()
        .map(|turn| turn.seq)
        .filter(|&seq| seq > 0)
        .collect()
}

/// Asserts that the text is the marker for these missing turns.
#[track_caller]
pub(crate) fn is_gap(text: &str, first_seq: u64, last_seq: u64) {
    let turns = if first_seq == last_seq {
        format!("turn {first_seq} is")
    } else {
        format!("turns {first_seq}-{last_seq} are")
    };
    let marker = format!("[memoird: {turns} not shown here");
    assert!(
        without_nonce(text).starts_with(&marker),
        "{text} is no {marker}"
    );
}

/// Asserts that each call is directly followed by its result, and each result has a call.
#[track_caller]
pub(crate) fn is_paired(turns: &[Turn]) {
    let mut open: Vec<&str> = Vec::new();
    for (place, turn) in turns.iter().enumerate() {
        let kinds: Vec<&Kind> = turn
            .parts
            .iter()
            .filter_map(|part| part.part.as_ref())
            .collect();
        if !kinds.iter().any(|kind| matches!(kind, Kind::ToolResult(_))) {
            assert!(open.is_empty(), "turn {place}: {open:?} have no result");
        }
        for kind in kinds {
            match kind {
                Kind::ToolUse(call) => open.push(&call.id),
                Kind::ToolResult(result) => {
                    let found = open.iter().position(|id| *id == result.tool_use_id);
                    let found = found.unwrap_or_else(|| panic!("turn {place}: {result:?}"));
                    open.remove(found);
                }
                _ => {}
            }
        }
    }
}

/// The encoded turns of a window.
pub(crate) async fn bytes_of(daemon: &Daemon, request: &BuildContextRequest) -> Vec<Vec<u8>> {
    let path = "/memoird.v1.SessionService/BuildContext";
    let channel = channel(daemon.grpc_addr());
    let answer = raw_call(&channel, path, request.encode_to_vec())
        .await
        .expect("a window");
    let answer = answer.into_inner();
    check(&BuildContextResponse::decode(answer.clone()).expect("a window"));
    Raw::decode(answer).expect("a window").turns
}
