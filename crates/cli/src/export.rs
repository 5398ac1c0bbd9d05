//! `memoird export`: writes sessions as JSON lines.
//!
//! A session has one line with its state, followed by one per turn.

use clap::Args;
use memoird_proto::v1::{
    GetHistoryRequest, GetHistoryResponse, GetSessionRequest, GetSessionResponse, HistoryScope,
    ListSessionsRequest, SessionInfo, SessionOrder, Turn,
};
use serde_json::json;
use serde_json::value::RawValue;

use super::connect::{ClientArgs, Target};
use super::pages::{PAGE_MAX, Pages};
use super::progress::Progress;
use super::{json, list, output};
use crate::exit::CliError;

#[derive(Args)]
pub struct ExportArgs {
    /// Session to export [default: all live sessions of the key's tenant]
    session: Option<String>,
    /// Generation of the session, which may have ended [default: the live one]
    #[arg(long, value_name = "ULID", requires = "session")]
    generation: Option<String>,
}

struct Exporter<'a> {
    target: &'a Target,
    progress: Progress,
    sessions: u64,
    turns: u64,
}

/// Exports page by page: a tenant's sessions may not fit into memory.
pub(super) async fn run(client: &ClientArgs, args: ExportArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let mut exporter = Exporter {
        target: &target,
        progress: Progress::new(None),
        sessions: 0,
        turns: 0,
    };
    match (args.session, args.generation) {
        (Some(session_id), Some(generation)) => {
            let session = SessionInfo {
                session_id,
                generation,
                ..SessionInfo::default()
            };
            exporter.session(&session, None).await?;
        }
        (Some(session), None) => exporter.live(session).await?,
        (None, _) => exporter.all().await?,
    }
    drop(exporter.progress);
    let (sessions, turns) = (
        output::count(exporter.sessions),
        output::count(exporter.turns),
    );
    output::note(&format!("{sessions} sessions, {turns} turns"));
    Ok(())
}

impl Exporter<'_> {
    async fn all(&mut self) -> Result<(), CliError> {
        let request = ListSessionsRequest {
            // This order is stable while sessions are in use.
            order: SessionOrder::Id.into(),
            ..ListSessionsRequest::default()
        };
        let mut pages = Pages::new(self.target, &request);
        while let Some(sessions) = pages.next(PAGE_MAX).await? {
            for session in sessions.iter().map(list::typed::<SessionInfo>) {
                match self.live(session.session_id).await {
                    // It ended after it was listed.
                    Err(error) if error.is_because("SESSION_NOT_FOUND") => {}
                    exported => exported?,
                }
            }
        }
        Ok(())
    }

    async fn live(&mut self, session_id: String) -> Result<(), CliError> {
        let reply = session(self.target, session_id).await?;
        let info = reply.session.unwrap_or_default();
        self.session(&info, Some(&info.state_json)).await
    }

    async fn session(&mut self, info: &SessionInfo, state: Option<&str>) -> Result<(), CliError> {
        let state = state.and_then(|state| RawValue::from_string(state.to_owned()).ok());
        let header = json!({
            "session": {
                "session_id": info.session_id,
                "generation": info.generation,
                "subject": info.subject,
                "labels": info.labels,
                "ttl_class": info.ttl_class,
                "keep_all": info.keep_all,
            },
            "state": state,
        });
        let mut lines = format!("{header}\n");
        let mut after_seq = 0;
        loop {
            let request = GetHistoryRequest {
                session_id: info.session_id.clone(),
                generation: info.generation.clone(),
                after_seq,
                ..GetHistoryRequest::default()
            };
            let (turns, next) = history(self.target, request).await?;
            for turn in &turns {
                let line = json!({ "session_id": info.session_id, "turn": json::of(turn) });
                lines.push_str(&format!("{line}\n"));
            }
            output::print(&lines)?;
            lines.clear();
            self.turns += turns.len() as u64;
            let (sessions, turns) = (self.sessions, self.turns);
            self.progress
                .show(|| format!("{sessions} sessions, {turns} turns"));
            if next == 0 {
                break;
            }
            after_seq = next;
        }
        self.sessions += 1;
        Ok(())
    }
}

/// Fetches a live session with its state.
pub(super) async fn session(
    target: &Target,
    session_id: String,
) -> Result<GetSessionResponse, CliError> {
    let request = GetSessionRequest {
        session_id,
        include_state: true,
    };
    target.call(&request).await
}

/// Fetches a page of turns, and the seq after which the next page starts.
pub(super) async fn history(
    target: &Target,
    request: GetHistoryRequest,
) -> Result<(Vec<Turn>, u64), CliError> {
    let mut page = page(target, request).await?;
    // Rewound turns are not exported.
    page.turns.retain(|turn| !turn.removed);
    Ok((page.turns, page.next_after_seq))
}

/// Fetches turns from the journal, or from the live history of a daemon without a journal.
pub(super) async fn page(
    target: &Target,
    mut request: GetHistoryRequest,
) -> Result<GetHistoryResponse, CliError> {
    request.scope = HistoryScope::Journal.into();
    match target.call(&request).await {
        Err(error) if error.is_because("JOURNAL_OFF") => {
            request.scope = HistoryScope::Live.into();
            target.call(&request).await
        }
        page => page,
    }
}
