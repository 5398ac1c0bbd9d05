//! `memoird sessions redact`: overwrites the content of a turn and keeps its position.

use clap::Args;
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    GetHistoryRequest, Part, Role, Turn, UpdateTurnRequest, UpdateTurnResponse,
};

use super::connect::Target;
use super::{export, transcript};
use crate::exit::CliError;

#[derive(Args)]
pub struct RedactArgs {
    /// Session id, chosen by the bot
    id: String,
    /// Seq of the turn, as shown by `sessions show`
    #[arg(long)]
    seq: u64,
    /// Replacement text
    #[arg(long, default_value = "[redacted]")]
    text: String,
}

pub(super) async fn run(target: &Target, args: RedactArgs) -> Result<(), CliError> {
    let request = GetHistoryRequest {
        session_id: args.id.clone(),
        after_seq: args.seq.saturating_sub(1),
        before_seq: args.seq.saturating_add(1),
        ..GetHistoryRequest::default()
    };
    let mut page = export::page(target, request).await?;
    let turn = page.turns.pop().map(|turn| redacted(turn, &args.text));
    let session = page.session.unwrap_or_default();
    let request = UpdateTurnRequest {
        session_id: args.id,
        seq: args.seq,
        // If the turn does not exist, the daemon reports that.
        turn: Some(turn.unwrap_or_else(|| said(&args.text))),
        expected_generation: session.generation,
        ..UpdateTurnRequest::default()
    };
    target.show(&request, shown).await
}

fn shown(reply: &UpdateTurnResponse) -> String {
    let turns: Vec<Turn> = reply.turn.clone().into_iter().collect();
    format!("overwritten\n{}", transcript::table(&turns))
}

fn said(text: &str) -> Turn {
    Turn {
        role: Role::User.into(),
        parts: vec![part(Kind::Text(text.to_owned()))],
        ..Turn::default()
    }
}

fn part(kind: Kind) -> Part {
    Part {
        part: Some(kind),
        ..Part::default()
    }
}

/// Returns the turn with its content replaced by `text`. Calls and results keep their ids.
fn redacted(turn: Turn, text: &str) -> Turn {
    let kinds = turn.parts.into_iter().filter_map(|part| match part.part? {
        Kind::Text(_) | Kind::Media(_) => Some(Kind::Text(text.to_owned())),
        Kind::ToolUse(mut call) => {
            call.input_json = "{}".into();
            Some(Kind::ToolUse(call))
        }
        Kind::ToolResult(mut result) => {
            result.content = text.to_owned();
            result.parts.clear();
            Some(Kind::ToolResult(result))
        }
        Kind::Thinking(_) => None,
    });
    let mut parts: Vec<Part> = kinds.map(part).collect();
    if parts.is_empty() {
        parts.push(part(Kind::Text(text.to_owned())));
    }
    Turn {
        role: turn.role,
        parts,
        timestamp: turn.timestamp,
        format: turn.format,
        ..Turn::default()
    }
}
