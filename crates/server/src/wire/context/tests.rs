//! Tests of valid and invalid window requests, and of the reply.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role};
use memoird_core::window::Blocks;
use memoird_engine::WindowTurn;
use tonic::Code;
use tonic::Status;
use tonic_types::StatusExt;

use super::*;
use crate::heavy::HEAVY_BYTES;

fn request() -> v1::BuildContextRequest {
    v1::BuildContextRequest {
        session_id: "chat".into(),
        ..Default::default()
    }
}

fn append(session_id: &str) -> v1::AppendRequest {
    let text = Some(v1::part::Part::Text("hello".into()));
    let parts = vec![v1::Part {
        part: text,
        extra_json: String::new(),
    }];
    let turn = v1::Turn {
        role: v1::Role::User.into(),
        parts,
        ..Default::default()
    };
    v1::AppendRequest {
        session_id: session_id.into(),
        turns: vec![turn],
        ..Default::default()
    }
}

fn policy_of(policy: v1::window_policy::Policy) -> Option<v1::WindowPolicy> {
    Some(v1::WindowPolicy {
        policy: Some(policy),
    })
}

#[track_caller]
fn refused(request: v1::BuildContextRequest, reason: &str) -> String {
    let refusal = parse(request, &Limits::default(), true).expect_err(reason);
    let status = Status::from(refusal);
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, reason, "{status:?}");
    status.message().to_owned()
}

#[test]
fn all_request_fields_are_parsed() {
    let asked = parse(
        v1::BuildContextRequest {
            append: Some(append("chat")),
            model: "m".into(),
            budget: Some(v1::Budget {
                context_window: Some(9_000),
                ..Default::default()
            }),
            overhead_tokens: 7,
            system: "be kind".into(),
            tools_json: r#" [ {"name": "f"} ] "#.into(),
            policy: policy_of(v1::window_policy::Policy::HeadTail(v1::HeadTail {
                turns: 4,
            })),
            format: v1::MessageFormat::OpenaiResponses.into(),
            attempt: 2,
            set_cache_control: true,
            ..request()
        },
        &Limits::default(),
        true,
    );
    let ContextCall {
        request, options, ..
    } = asked.expect("a window");
    assert_eq!(request.append.map(|append| append.turns.len()), Some(1));
    assert_eq!(
        (&*request.model, request.overhead_tokens, request.attempt),
        ("m", 7, 2)
    );
    assert_eq!(request.budget.context_window, Some(9_000));
    assert_eq!(request.budget.max_reply_tokens, None);
    assert_eq!((&*request.system, &*options.system), ("be kind", "be kind"));
    assert_eq!(request.policy, Some(Policy::HeadTail { turns: 4 }));
    assert_eq!(options.format, Some(MessageFormat::OpenAiResponses));
    assert!(options.set_cache_control && !request.peek);
}

#[test]
fn bare_request_uses_configured_defaults() {
    let none = Some(v1::WindowPolicy { policy: None });
    let bare = v1::BuildContextRequest {
        policy: none,
        append: Some(append("")),
        ..request()
    };
    let ContextCall {
        request, options, ..
    } = parse(bare, &Limits::default(), true).expect("a window");
    assert!(
        request.append.is_some(),
        "an append without an id is for this session"
    );
    assert_eq!(
        (request.policy, request.budget),
        (None, BudgetOverride::default())
    );
    assert_eq!(options.format, None);
}

#[test]
fn invalid_request_is_rejected_before_append() {
    let other = v1::BuildContextRequest {
        append: Some(append("other")),
        ..request()
    };
    refused(other, "SESSION_ID_MISMATCH");
    let peeking = v1::BuildContextRequest {
        append: Some(append("")),
        peek: true,
        ..request()
    };
    refused(peeking, "PEEK_WITH_APPEND");
    let sliding = v1::window_policy::Policy::SlidingWindow(v1::SlidingWindow { turns: 0 });
    refused(
        v1::BuildContextRequest {
            policy: policy_of(sliding),
            ..request()
        },
        "POLICY_INVALID",
    );
    refused(
        v1::BuildContextRequest {
            format: 99,
            ..request()
        },
        "FORMAT_INVALID",
    );
    refused(
        v1::BuildContextRequest {
            format: -1,
            ..request()
        },
        "FORMAT_INVALID",
    );
    let mut empty = append("");
    empty.turns.clear();
    refused(
        v1::BuildContextRequest {
            append: Some(empty),
            ..request()
        },
        "TURN_COUNT_INVALID",
    );
}

#[test]
fn tools_must_be_json_array_or_empty() {
    let many = format!("[{}0]", "0,".repeat(300_000));
    for tools in [
        &many,
        "{}",
        "null",
        "\"sesame\"",
        "[",
        "[1] [2]",
        "sesame",
        "[{\"a\": sesame}]",
    ] {
        let request = v1::BuildContextRequest {
            tools_json: tools.into(),
            ..request()
        };
        let said = refused(request, "TOOLS_INVALID");
        assert!(!said.contains("sesame"), "{said}");
    }
    for tools in ["", "[]", "\n[{}, {\"n\": 1e999}]"] {
        assert!(check_tools(tools).is_ok(), "{tools}");
    }
}

#[test]
fn breakpoints_are_mapped_to_messages() {
    // A system message first; turns 1 and 2 share a message.
    let ends = [2, 3, 3, 5];
    assert_eq!(messages_of(&[0, 1, 2, 3], &ends), [1, 2, 4]);
    assert_eq!(messages_of(&[], &ends), [0; 0]);
    assert_eq!(
        messages_of(&[0, 9], &[0]),
        [0; 0],
        "a turn that is in no message"
    );
}

#[test]
fn report_has_all_fields() {
    let budget = Budget {
        context_window: 1_000,
        max_reply_tokens: 100,
        safety_headroom: 10,
        tool_result_headroom: 1,
    };
    let blocks = Blocks {
        system: 1,
        summary: 2,
        memories: 3,
        anchor: 4,
        tail: 5,
    };
    let cut = Omission {
        first_seq: 2,
        last_seq: 6,
        reason: OmissionReason::Cut,
    };
    let turns = WindowTurns::from(vec![WindowTurn {
        content: Arc::from(&b""[..]),
        tokens: 9,
    }]);
    let told = report(
        Report {
            summary: None,
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
    assert_eq!(
        (
            told.turns_included,
            told.turns_omitted,
            told.results_trimmed
        ),
        (1, 5, 6)
    );
    assert_eq!(
        (told.stable_prefix_tokens, &told.turn_tokens[..]),
        (7, &[9][..])
    );
    assert_eq!((told.token_factor, told.token_margin), (1.5, 0.25));
    assert_eq!(
        (told.policy, &*told.model, told.degraded),
        (Some(policy_to_proto(Policy::Salience)), "m", true)
    );
    assert_eq!(
        told.budget.and_then(|budget| budget.safety_headroom),
        Some(10)
    );
    assert_eq!(
        told.tokens_by_block
            .map(|blocks| (blocks.anchor, blocks.tail)),
        Some((4, 5))
    );
    let omission = told.omissions.first().expect("one");
    assert_eq!((omission.first_seq, omission.last_seq), (2, 6));
    assert_eq!(omission.reason(), v1::OmissionReason::Cut);
    assert_eq!(told.notes, ["a note"]);
}

#[test]
fn too_large_turn_error_has_tokens_and_budget() {
    let refusal = CoreError::CurrentTurnTooLarge {
        budget: 100,
        tokens: 120,
        system: 1,
        pinned: 2,
        turn: 117,
    };
    let status = Status::from(Refusal::from(refusal));
    assert_eq!(status.code(), Code::FailedPrecondition);
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(info.reason, "CURRENT_TURN_TOO_LARGE");
    assert_eq!(
        (&*info.metadata["tokens"], &*info.metadata["budget"]),
        ("120", "100")
    );
}

fn window_turn(role: Role, text: &str) -> WindowTurn {
    let parts = vec![PartKind::Text(text.to_owned()).into()];
    let turn = encoding::encode(Turn::new(role, parts));
    let content = encoding::seal(&turn, 1, Timestamp::new(5, 6).expect("a time"));
    WindowTurn { content, tokens: 1 }
}

fn options(format: MessageFormat) -> ReplyOptions {
    ReplyOptions {
        format: Some(format),
        system: String::new(),
        set_cache_control: true,
        recall_tool_json: String::new(),
    }
}

fn shown(turns: Vec<WindowTurn>, block: &str) -> WindowToRender {
    WindowToRender {
        turns: turns.into(),
        breakpoints: vec![0],
        block: block.to_owned(),
        nonce: Nonce::default(),
        rewound: SeqRanges::default(),
        rules: MessageRules::default(),
    }
}

async fn render(format: MessageFormat, window: WindowToRender) -> Result<Rendered, Refusal> {
    let (tenant, heavy) = (TenantId::default_tenant(), HeavyWork::default());
    render_window(format, window, options(format), &tenant, &heavy).await
}

#[tokio::test]
async fn messages_are_equal_inline_and_on_thread() {
    for long in [10, HEAVY_BYTES + 1] {
        let turns = vec![
            window_turn(Role::User, &"x".repeat(long)),
            window_turn(Role::Assistant, "short"),
        ];
        for format in [MessageFormat::OpenAi, MessageFormat::Anthropic] {
            let rendered = render(format, shown(turns.clone(), ""))
                .await
                .expect("messages");
            assert_eq!(rendered.ends, [1, 2]);
            let messages: Value = serde_json::from_str(&rendered.messages_json).expect("JSON");
            assert_eq!(messages.as_array().map(Vec::len), Some(2), "{format:?}");
            assert!(messages.to_string().len() > long);
        }
    }
}

#[tokio::test]
async fn damaged_turn_is_reported_without_panic() {
    let damaged = WindowTurn {
        content: Arc::from(&b"\xff\xff"[..]),
        tokens: 1,
    };
    let format = MessageFormat::OpenAi;
    let status = render(format, shown(vec![damaged], "")).await;
    assert_eq!(
        Status::from(status.expect_err("damaged")).code(),
        Code::DataLoss
    );
}

fn messages(format: MessageFormat, turns: Vec<Turn>) -> (Vec<Value>, Vec<usize>) {
    messages_by(MessageRules::default(), format, turns)
}

fn messages_by(
    rules: MessageRules,
    format: MessageFormat,
    turns: Vec<Turn>,
) -> (Vec<Value>, Vec<usize>) {
    let turns: Vec<WindowTurn> = turns
        .into_iter()
        .map(|turn| WindowTurn {
            content: encoding::encode_with_seq(turn, 1),
            tokens: 1,
        })
        .collect();
    let count = turns.len();
    let window = WindowToRender {
        turns: turns.into(),
        breakpoints: vec![count - 1],
        block: "known: tea".into(),
        nonce: Nonce::default(),
        rewound: SeqRanges::default(),
        rules,
    };
    let rendered = rendered(format, window, &options(format)).expect("messages");
    assert_eq!(rendered.ends.len(), count, "the block is nobody's turn");
    (
        serde_json::from_str(&rendered.messages_json).expect("JSON"),
        rendered.ends,
    )
}

fn says(role: Role, text: &str) -> Turn {
    Turn::new(role, vec![PartKind::Text(text.to_owned()).into()])
}

fn calls(ids: &[&str]) -> Turn {
    let call = |id: &&str| {
        PartKind::ToolUse {
            id: (*id).into(),
            name: "f".into(),
            input_json: "{}".into(),
        }
        .into()
    };
    Turn::new(Role::Assistant, ids.iter().map(call).collect())
}

fn result(id: &str) -> Turn {
    let result = PartKind::ToolResult {
        tool_use_id: id.into(),
        content: "42".into(),
        parts: Vec::new(),
        is_error: false,
    };
    Turn::new(Role::Tool, vec![result.into()])
}

#[test]
fn memories_are_the_last_message() {
    use serde_json::json;
    let turns = vec![
        says(Role::User, "a"),
        says(Role::Assistant, "b"),
        says(Role::User, "c"),
    ];
    let (chat, ends) = messages(MessageFormat::OpenAi, turns.clone());
    assert_eq!(chat[3], json!({"role": "user", "content": "known: tea"}));
    assert_eq!((chat.len(), &ends[..]), (4, &[1, 2, 3][..]));
    let (items, _) = messages(MessageFormat::OpenAiResponses, turns.clone());
    assert_eq!((items.len(), &items[3]["role"]), (4, &json!("user")));
    assert!(items[3].to_string().contains("known: tea"));
    // User and assistant must alternate there, so the block joins the user's text. The cache marker
    // stays where the cache may break.
    let (messages, ends) = messages(MessageFormat::Anthropic, turns);
    assert_eq!((messages.len(), &ends[..]), (3, &[1, 2, 3][..]));
    let last = messages[2]["content"].as_array().expect("blocks");
    assert_eq!(last[0]["cache_control"], json!({"type": "ephemeral"}));
    assert_eq!(last[1], json!({"type": "text", "text": "known: tea"}));
}

#[test]
fn memories_follow_results_and_split_no_call_from_its_result() {
    let asked = || says(Role::User, "a");
    for format in [
        MessageFormat::OpenAi,
        MessageFormat::OpenAiResponses,
        MessageFormat::Anthropic,
    ] {
        let last_with_block = |turns| {
            let (messages, _) = messages(format, turns);
            let place = messages
                .iter()
                .position(|m| m.to_string().contains("known: tea"));
            (place.expect("the block") + 1, messages.len())
        };
        let (place, count) = last_with_block(vec![asked(), calls(&["c1"]), result("c1")]);
        assert_eq!(place, count, "{format:?}: behind the result");
        for waiting in [
            vec![asked(), calls(&["c1"])],
            vec![asked(), calls(&["c1", "c2"]), result("c1")],
            vec![asked(), says(Role::Assistant, "so far")],
        ] {
            let (place, count) = last_with_block(waiting);
            assert!(place == 1 && count > 1, "{format:?}: {place} of {count}");
        }
    }
}

#[test]
fn memories_precede_user_message_if_results_must_be_last() {
    let mut made = calls(&["c1"]);
    let program = r#"{"type":"server_tool_use","id":"p","name":"code_execution","input":{}}"#;
    made.parts[0].extra_json = r#"{"caller":{"type":"code_execution","tool_id":"p"}}"#.into();
    made.parts.insert(
        0,
        Part {
            kind: PartKind::Text(String::new()),
            extra_json: program.into(),
        },
    );
    made.format = Some(MessageFormat::Anthropic);
    let mut answered = result("c1");
    answered.role = Role::User;
    let asked = || says(Role::User, "asked");
    let (sent, _) = messages(MessageFormat::Anthropic, vec![asked(), made, answered]);
    let last = sent.last().expect("the result");
    assert_eq!(last["content"].as_array().map(Vec::len), Some(1), "{last}");
    assert!(sent[0].to_string().contains("known: tea"), "{sent:?}");

    let rules = MessageRules {
        user_after_tool: false,
        ..MessageRules::default()
    };
    let turns = vec![asked(), calls(&["c1"]), result("c1")];
    let (sent, _) = messages_by(rules, MessageFormat::OpenAi, turns);
    let roles: Vec<_> = sent.iter().filter_map(|it| it["role"].as_str()).collect();
    assert_eq!(roles, ["user", "user", "assistant", "tool"]);
    assert_eq!(sent[0]["content"], "known: tea");
}

#[test]
fn breakpoints_move_with_their_turns() {
    let mut turns = vec![says(Role::User, "a"), calls(&["c1"])];
    let mut breakpoints = [0, 1];
    assert_eq!(
        insert_memories(
            &mut turns,
            &mut breakpoints,
            "x".into(),
            MessageRules::default()
        ),
        0
    );
    assert_eq!(breakpoints, [1, 2]);
    let mut turns = vec![says(Role::System, "be kind"), says(Role::Assistant, "hi")];
    assert_eq!(
        insert_memories(&mut turns, &mut [], "x".into(), MessageRules::default()),
        1,
        "behind the system prompt"
    );
}

#[test]
fn recall_request_is_limited_to_session() {
    let of = |session_id: &str| {
        let memories = v1::RecallRequest {
            query: "tea".into(),
            session_id: session_id.into(),
            ..Default::default()
        };
        v1::BuildContextRequest {
            memories: Some(memories),
            ..request()
        }
    };
    for session_id in ["", "chat"] {
        let asked = parse(of(session_id), &Limits::default(), true).expect("a window");
        let session = asked.memories.and_then(|memories| memories.session);
        assert_eq!(session.map(|id| id.to_string()).as_deref(), Some("chat"));
    }
    refused(of("other"), "SESSION_ID_MISMATCH");
    let mut bad = of("");
    bad.memories.as_mut().expect("some").mode = 9;
    let said = refused(bad, "RECALL_MODE_INVALID");
    assert!(said.starts_with("memories.mode: "), "{said}");
}
