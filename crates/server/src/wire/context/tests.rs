//! What may be asked of a window, and what is said of what may not.

use memoird_core::CoreError;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role};
use memoird_core::window::Blocks;
use tonic::Code;
use tonic_types::StatusExt;

use super::*;

fn request() -> v1::GetContextRequest {
    v1::GetContextRequest { session_id: "chat".into(), ..Default::default() }
}

fn append(session_id: &str) -> v1::AppendRequest {
    let text = Some(v1::part::Part::Text("hello".into()));
    let parts = vec![v1::Part { part: text, extra_json: String::new() }];
    let turn = v1::Turn { role: v1::Role::User.into(), parts, ..Default::default() };
    v1::AppendRequest { session_id: session_id.into(), turns: vec![turn], ..Default::default() }
}

fn policy_of(policy: v1::window_policy::Policy) -> Option<v1::WindowPolicy> {
    Some(v1::WindowPolicy { policy: Some(policy) })
}

#[track_caller]
fn refused(request: v1::GetContextRequest, reason: &str) -> String {
    let status = asked(request, &Limits::default()).expect_err(reason);
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, reason, "{status:?}");
    status.message().to_owned()
}

#[test]
fn a_window_is_asked_for_with_all_that_the_call_says() {
    let asked = asked(
        v1::GetContextRequest {
            append: Some(append("chat")),
            model: "m".into(),
            budget: Some(v1::Budget { context_window: Some(9_000), ..Default::default() }),
            overhead_tokens: 7,
            system: "be kind".into(),
            tools_json: r#" [ {"name": "f"} ] "#.into(),
            policy: policy_of(v1::window_policy::Policy::HeadTail(v1::HeadTail { turns: 4 })),
            format: v1::MessageFormat::OpenaiResponses.into(),
            attempt: 2,
            set_cache_control: true,
            ..request()
        },
        &Limits::default(),
    );
    let Asked { request, wanted } = asked.expect("a window");
    assert_eq!(request.append.map(|append| append.turns.len()), Some(1));
    assert_eq!((&*request.model, request.overhead_tokens, request.attempt), ("m", 7, 2));
    assert_eq!(request.budget.context_window, Some(9_000));
    assert_eq!(request.budget.max_reply_tokens, None);
    assert_eq!((&*request.system, &*wanted.system), ("be kind", "be kind"));
    assert_eq!(request.policy, Some(Policy::HeadTail { turns: 4 }));
    assert_eq!(wanted.format, Some(MessageFormat::OpenAiResponses));
    assert!(wanted.set_cache_control && !request.peek);
}

#[test]
fn a_bare_request_leaves_all_to_the_configuration() {
    let none = Some(v1::WindowPolicy { policy: None });
    let bare = v1::GetContextRequest { policy: none, append: Some(append("")), ..request() };
    let Asked { request, wanted } = asked(bare, &Limits::default()).expect("a window");
    assert!(request.append.is_some(), "an append without an id is for this session");
    assert_eq!((request.policy, request.budget), (None, BudgetOverride::default()));
    assert_eq!(wanted.format, None);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_appended() {
    let other = v1::GetContextRequest { append: Some(append("other")), ..request() };
    refused(other, "SESSION_ID_MISMATCH");
    let peeking = v1::GetContextRequest { append: Some(append("")), peek: true, ..request() };
    refused(peeking, "PEEK_WITH_APPEND");
    let sliding = v1::window_policy::Policy::SlidingWindow(v1::SlidingWindow { turns: 0 });
    refused(v1::GetContextRequest { policy: policy_of(sliding), ..request() }, "POLICY_INVALID");
    refused(v1::GetContextRequest { format: 99, ..request() }, "FORMAT_INVALID");
    refused(v1::GetContextRequest { format: -1, ..request() }, "FORMAT_INVALID");
    let mut empty = append("");
    empty.turns.clear();
    refused(v1::GetContextRequest { append: Some(empty), ..request() }, "TURN_COUNT_INVALID");
}

#[test]
fn tools_are_a_json_array_or_nothing() {
    for tools in ["{}", "null", "\"sesame\"", "[", "[1] [2]", "sesame", "[{\"a\": sesame}]"] {
        let request = v1::GetContextRequest { tools_json: tools.into(), ..request() };
        let said = refused(request, "TOOLS_INVALID");
        assert!(!said.contains("sesame"), "{said}");
    }
    for tools in ["", "[]", "\n[{}, {\"n\": 1e999}]"] {
        assert!(check_tools(tools).is_ok(), "{tools}");
    }
}

#[test]
fn breakpoints_become_those_of_messages() {
    // A system message first; turns 1 and 2 share a message.
    let ends = [2, 3, 3, 5];
    assert_eq!(messages_of(&[0, 1, 2, 3], &ends), [1, 2, 4]);
    assert_eq!(messages_of(&[], &ends), [0; 0]);
    assert_eq!(messages_of(&[0, 9], &[0]), [0; 0], "a turn that is in no message");
}

#[test]
fn a_report_is_told_whole() {
    let budget = Budget {
        context_window: 1_000,
        max_reply_tokens: 100,
        safety_headroom: 10,
        tool_result_headroom: 1,
    };
    let blocks = Blocks { system: 1, summary: 2, memories: 3, anchor: 4, tail: 5 };
    let cut = Omission { first_seq: 2, last_seq: 6, reason: OmissionReason::Cut };
    let turns = [WindowTurn { content: Arc::from(&b""[..]), tokens: 9 }];
    let told = report(
        Report {
            model: "m".into(),
            budget,
            input_budget: 889,
            blocks,
            turns_included: 1,
            turns_omitted: 5,
            results_trimmed: 6,
            stable_prefix_tokens: 7,
            token_factor: 1.5,
            token_margin: 0.25,
            policy: Policy::Salience,
            degraded: true,
            notes: vec!["a note".into()],
            omissions: vec![cut],
        },
        &turns,
    );
    assert_eq!((told.input_budget, told.tokens_total), (889, 15));
    assert_eq!((told.turns_included, told.turns_omitted, told.results_trimmed), (1, 5, 6));
    assert_eq!((told.stable_prefix_tokens, &told.turn_tokens[..]), (7, &[9][..]));
    assert_eq!((told.token_factor, told.token_margin), (1.5, 0.25));
    assert_eq!((&*told.policy, &*told.model, told.degraded), ("salience", "m", true));
    assert_eq!(told.budget.and_then(|budget| budget.safety_headroom), Some(10));
    assert_eq!(told.tokens_by_block.map(|blocks| (blocks.anchor, blocks.tail)), Some((4, 5)));
    let omission = told.omissions.first().expect("one");
    assert_eq!((omission.first_seq, omission.last_seq), (2, 6));
    assert_eq!(omission.reason(), v1::OmissionReason::Cut);
    assert_eq!(told.notes, ["a note"]);
}

#[test]
fn a_turn_that_is_too_large_says_by_how_much() {
    let refusal = CoreError::CurrentTurnTooLarge {
        budget: 100,
        tokens: 120,
        system: 1,
        pinned: 2,
        turn: 117,
    };
    let status = status::core(&refusal);
    assert_eq!(status.code(), Code::FailedPrecondition);
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "CURRENT_TURN_TOO_LARGE");
    assert_eq!((&*info.metadata["tokens"], &*info.metadata["budget"]), ("120", "100"));
}

fn window_turn(role: Role, text: &str) -> WindowTurn {
    let parts = vec![PartKind::Text(text.to_owned()).into()];
    let turn = encoding::encode(Turn::new(role, parts));
    let content = encoding::seal(&turn, 1, Timestamp::new(5, 6).expect("a time"));
    WindowTurn { content, tokens: 1 }
}

fn wanted(format: MessageFormat) -> Wanted {
    Wanted { format: Some(format), system: String::new(), set_cache_control: true }
}

#[tokio::test]
async fn messages_are_the_same_in_place_and_aside() {
    for long in [10, IN_PLACE_BYTES_MAX + 1] {
        let turns =
            vec![window_turn(Role::User, &"x".repeat(long)), window_turn(Role::Assistant, "short")];
        for format in [MessageFormat::OpenAi, MessageFormat::Anthropic] {
            let rendered = written(format, turns.clone(), vec![0], wanted(format)).await;
            let rendered = rendered.expect("messages");
            assert_eq!(rendered.ends, [1, 2]);
            let messages: serde_json::Value =
                serde_json::from_str(&rendered.messages_json).expect("JSON");
            assert_eq!(messages.as_array().map(Vec::len), Some(2), "{format:?}");
            assert!(messages.to_string().len() > long);
        }
    }
}

#[tokio::test]
async fn a_damaged_turn_is_told_and_no_panic() {
    let damaged = WindowTurn { content: Arc::from(&b"\xff\xff"[..]), tokens: 1 };
    let format = MessageFormat::OpenAi;
    let status = written(format, vec![damaged], Vec::new(), wanted(format)).await;
    assert_eq!(status.expect_err("damaged").code(), Code::DataLoss);
}
