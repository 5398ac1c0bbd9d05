//! The bots of the demo: what is said in their chats, and how they call the daemon.

use memoird_proto::v1::{
    AppendRequest, AppendResponse, EndSessionRequest, GetHistoryRequest, ListSessionsRequest,
    MessageFormat, ReloadConfigRequest, ReloadConfigResponse, SessionInfo, Turn,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::connect::Target;
use crate::cli::exit::CliError;

/// A client of the private daemon.
pub(super) struct Bot {
    target: Target,
}

/// What a bot appends at once: messages in OpenAI's format.
pub(super) type Said = Vec<Value>;

/// What is said in the chats.
#[derive(Deserialize)]
pub(super) struct Chats {
    /// A chat long enough to slide: two calls of tools among ten turns.
    pub(super) trip: Vec<Said>,
    /// What ends it, nearly.
    pub(super) thanks: Said,
    /// A short one with a call.
    pub(super) deploy: Said,
    /// A short one without.
    pub(super) shipping: Said,
    /// The one that comes when there is no place left.
    pub(super) greeting: Said,
}

impl Bot {
    pub(super) fn new(target: Target) -> Self {
        Self { target }
    }

    /// Appends messages.
    pub(super) async fn say(&self, session: &str, said: Said) -> Result<AppendResponse, CliError> {
        let request = AppendRequest {
            session_id: session.to_owned(),
            messages_json: Value::Array(said).to_string(),
            format: MessageFormat::Openai.into(),
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

    /// Lets the daemon read its configuration again, as an operator does.
    pub(super) async fn reload_config(&self) -> Result<ReloadConfigResponse, CliError> {
        let mut admin = self.target.admin();
        self.target
            .done(admin.reload_config(ReloadConfigRequest {}).await)
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

impl Chats {
    /// The chats of the demo, which stand in a file beside this one.
    pub(super) fn read() -> Self {
        serde_json::from_str(include_str!("chats.json")).expect("a test reads the file as well")
    }
}

/// What a user says.
pub(super) fn user(text: &str) -> Said {
    vec![json!({ "role": "user", "content": text })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chats_can_be_read() {
        assert_eq!(Chats::read().trip.len(), 8);
    }
}
