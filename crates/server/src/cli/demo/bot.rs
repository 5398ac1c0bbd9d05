//! The bots of the demo: what is said in their chats, and how they call the daemon.

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, AppendResponse, EndSessionRequest, GetHistoryRequest, ListSessionsRequest, Part,
    Role, SessionInfo, ToolResult, ToolUse, Turn,
};

use crate::cli::connect::Target;
use crate::cli::exit::CliError;

/// A client of the private daemon.
pub(super) struct Bot {
    target: Target,
}

/// What a bot appends at once.
pub(super) type Said = Vec<Turn>;

impl Bot {
    pub(super) fn new(target: Target) -> Self {
        Self { target }
    }

    /// Appends turns.
    pub(super) async fn say(&self, session: &str, turns: Said) -> Result<AppendResponse, CliError> {
        let request = AppendRequest {
            session_id: session.to_owned(),
            turns,
            ..AppendRequest::default()
        };
        let mut sessions = self.target.sessions();
        self.target.done(sessions.append(request).await)
    }

    /// The history, as the next call of a model gets it.
    pub(super) async fn history(&self, session: &str) -> Result<Vec<Turn>, CliError> {
        let request = GetHistoryRequest {
            session_id: session.to_owned(),
            ..GetHistoryRequest::default()
        };
        let mut sessions = self.target.sessions();
        let reply = self.target.done(sessions.get_history(request).await)?;
        Ok(reply.turns)
    }

    /// The live sessions, most recently used first.
    pub(super) async fn sessions(&self) -> Result<Vec<SessionInfo>, CliError> {
        let request = ListSessionsRequest::default();
        let mut sessions = self.target.sessions();
        let reply = self.target.done(sessions.list_sessions(request).await)?;
        Ok(reply.sessions)
    }

    /// Ends a session.
    pub(super) async fn end(&self, session: &str) -> Result<SessionInfo, CliError> {
        let request = EndSessionRequest {
            session_id: session.to_owned(),
        };
        let mut sessions = self.target.sessions();
        let reply = self.target.done(sessions.end_session(request).await)?;
        Ok(reply.session.unwrap_or_default())
    }
}

/// A chat long enough to slide: two calls of tools among ten turns.
pub(super) fn trip() -> [Said; 8] {
    [
        vec![user("I have to be in Oslo on Friday before noon.")],
        vec![
            call("c1", "find_trains", r#"{"to":"Oslo","by":"Fri 12:00"}"#),
            result("c1", "06:02, arrives 10:47, 2 seats left"),
        ],
        vec![assistant(
            "There is one at 06:02, in Oslo at 10:47. Book it?",
        )],
        vec![user("Yes, by the window please.")],
        vec![
            call("c2", "book", r#"{"train":"06:02","seat":"window"}"#),
            result("c2", "car 3, seat 41"),
        ],
        vec![assistant("Booked: car 3, seat 41, by the window.")],
        vec![user("Is there coffee on board?")],
        vec![assistant("Yes, in car 5, all the way.")],
    ]
}

/// A short one with a call.
pub(super) fn deploy() -> Said {
    vec![
        user("Is the shop deployed?"),
        call("c1", "ci_status", r#"{"job":"shop"}"#),
        result("c1", "green, 14 minutes ago"),
        assistant("Yes, 14 minutes ago, and all checks are green."),
    ]
}

/// A short one without.
pub(super) fn shipping() -> Said {
    vec![
        user("Do you ship to Iceland?"),
        assistant("Yes, within five days."),
    ]
}

/// The one that comes when there is no place left.
pub(super) fn greeting() -> Said {
    vec![
        user("Hello! Can I change my order?"),
        assistant("Sure. Which one is it?"),
    ]
}

/// What ends it, nearly.
pub(super) fn thanks() -> Said {
    vec![user("Thanks!"), assistant("Have a good trip.")]
}

/// What a user says.
pub(super) fn user(text: &str) -> Turn {
    turn(Role::User, Kind::Text(text.to_owned()))
}

fn assistant(text: &str) -> Turn {
    turn(Role::Assistant, Kind::Text(text.to_owned()))
}

fn call(id: &str, name: &str, input_json: &str) -> Turn {
    let call = ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input_json: input_json.to_owned(),
    };
    turn(Role::Assistant, Kind::ToolUse(call))
}

fn result(id: &str, content: &str) -> Turn {
    let result = ToolResult {
        tool_use_id: id.to_owned(),
        content: content.to_owned(),
        ..ToolResult::default()
    };
    turn(Role::Tool, Kind::ToolResult(result))
}

fn turn(role: Role, kind: Kind) -> Turn {
    let part = Part {
        part: Some(kind),
        extra_json: String::new(),
    };
    Turn {
        role: role.into(),
        parts: vec![part],
        ..Turn::default()
    }
}
