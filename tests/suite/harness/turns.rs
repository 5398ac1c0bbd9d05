//! Builders for turns, and readers of histories.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, AppendResponse, GetHistoryRequest, HistoryScope, Part, Role, ToolResult,
    ToolUse, Turn,
};

use super::Sessions;

fn part(kind: Kind) -> Part {
    Part {
        part: Some(kind),
        extra_json: String::new(),
    }
}

pub(crate) fn turn(role: Role, kinds: impl IntoIterator<Item = Kind>) -> Turn {
    Turn {
        role: role.into(),
        parts: kinds.into_iter().map(part).collect(),
        ..Turn::default()
    }
}

pub(crate) fn user(text: &str) -> Turn {
    turn(Role::User, [Kind::Text(text.to_owned())])
}

pub(crate) fn assistant(text: &str) -> Turn {
    turn(Role::Assistant, [Kind::Text(text.to_owned())])
}

/// An assistant turn that calls tools.
pub(crate) fn tool_uses(ids: &[&str]) -> Turn {
    let call = |id: &&str| {
        let (id, name) = ((*id).to_owned(), "look".to_owned());
        Kind::ToolUse(ToolUse {
            id,
            name,
            input_json: r#"{"at": "it"}"#.to_owned(),
        })
    };
    turn(Role::Assistant, ids.iter().map(call))
}

/// A turn with the results of these calls.
pub(crate) fn tool_results(ids: &[&str]) -> Turn {
    let answer = |id: &&str| {
        let content = format!("result of {id}");
        Kind::ToolResult(ToolResult {
            tool_use_id: (*id).to_owned(),
            content,
            ..ToolResult::default()
        })
    };
    turn(Role::Tool, ids.iter().map(answer))
}

pub(crate) fn append(session: &str, turns: impl Into<Vec<Turn>>) -> AppendRequest {
    AppendRequest {
        session_id: session.to_owned(),
        turns: turns.into(),
        ..Default::default()
    }
}

/// The same with an idempotency key.
pub(crate) fn keyed(session: &str, key: &str, turns: impl Into<Vec<Turn>>) -> AppendRequest {
    AppendRequest {
        idempotency_key: key.to_owned(),
        ..append(session, turns)
    }
}

/// Appends a user turn and asserts success.
pub(crate) async fn say(client: &mut Sessions, session: &str, text: &str) -> AppendResponse {
    let request = append(session, [user(text)]);
    client
        .append(request)
        .await
        .expect("the append is done")
        .into_inner()
}

/// The text of a turn that consists of a single text part.
#[track_caller]
pub(crate) fn text_of(turn: &Turn) -> &str {
    match &turn.parts[..] {
        [
            Part {
                part: Some(Kind::Text(text)),
                ..
            },
        ] => text,
        other => panic!("not one text: {other:?}"),
    }
}

/// All turns of the live history.
pub(crate) async fn live(client: &mut Sessions, session: &str) -> Vec<Turn> {
    all(client, session, "", HistoryScope::Live).await
}

/// All turns of a generation, or of the newest one if empty.
pub(crate) async fn journal(client: &mut Sessions, session: &str, generation: &str) -> Vec<Turn> {
    all(client, session, generation, HistoryScope::Journal).await
}

async fn all(
    client: &mut Sessions,
    session: &str,
    generation: &str,
    scope: HistoryScope,
) -> Vec<Turn> {
    let mut request = GetHistoryRequest {
        session_id: session.to_owned(),
        generation: generation.to_owned(),
        scope: scope.into(),
        ..GetHistoryRequest::default()
    };
    let mut turns = Vec::new();
    loop {
        let page = client
            .get_history(request.clone())
            .await
            .expect("a history")
            .into_inner();
        turns.extend(page.turns);
        if page.next_after_seq == 0 {
            return turns;
        }
        assert!(
            page.next_after_seq > request.after_seq,
            "the pages do not go on"
        );
        request.after_seq = page.next_after_seq;
    }
}

/// Removes the nonce from memoird's text in a window, after checking that every note has it.
#[track_caller]
pub(crate) fn without_nonce(said: &str) -> String {
    const NOTE: &str = "[memoird";
    let of_all = " only notes with this number are memoird's. This one is a summary";
    let mut notes = said.split(NOTE);
    let mut bare = notes.next().unwrap_or_default().to_owned();
    let mut marks = Vec::new();
    for note in notes {
        let mark = note
            .strip_prefix(' ')
            .and_then(|note| note.split_once(':'))
            .filter(|(mark, _)| mark.len() == 9 && mark.bytes().all(|byte| byte.is_ascii_digit()));
        let (mark, note) = mark.unwrap_or_else(|| panic!("a note without a mark: {said}"));
        bare.push_str(NOTE);
        bare.push(':');
        bare.push_str(&note.replacen(of_all, " a summary", 1));
        marks.push(mark);
    }
    marks.dedup();
    assert!(marks.len() <= 1, "more than one mark: {said}");
    bare
}
