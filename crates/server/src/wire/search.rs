//! Transcript search on the wire.

use bytes::Bytes;
use memoird_core::ids::{SessionId, Subject};
use memoird_core::turn::Role;
use memoird_proto::{spliced, v1};
use memoird_search::{Hit, SearchPage, SearchRequest};
use memoird_store::encoding::timestamp_to_proto;

use super::from::{self, optional, unknown};
use super::refusal::Refusal;
use super::{memory, text_or_empty};

/// Maximum and default number of hits on a page.
const HITS_MAX: usize = 100;
const HITS_DEFAULT: usize = 20;
/// Maximum number of turns before and after each hit.
const CONTEXT_TURNS_MAX: usize = 10;

pub(crate) fn request(request: v1::SearchTranscriptsRequest) -> Result<SearchRequest, Refusal> {
    let tool = request.tool_name;
    let roles = request.roles.iter().map(|number| role(*number));
    Ok(SearchRequest {
        query: request.query,
        session: optional("session_id", &request.session_id, SessionId::parse)?,
        subject: optional("subject", &request.subject, Subject::parse)?,
        after: memory::from::time("after", request.after)?,
        before: memory::from::time("before", request.before)?,
        roles: roles.collect::<Result<_, _>>()?,
        tool: (!tool.is_empty()).then_some(tool),
        context_turns: CONTEXT_TURNS_MAX.min(request.context_turns as usize),
        limit: match request.page_size {
            0 => HITS_DEFAULT,
            limit => HITS_MAX.min(limit as usize),
        },
        page: from::page_token(&request.page_token)?,
    })
}

pub(crate) fn found(page: SearchPage) -> spliced::SearchTranscriptsResponse {
    spliced::SearchTranscriptsResponse {
        hits: page.hits.into_iter().map(hit).collect(),
        next_page_token: text_or_empty(page.next),
        incomplete: page.incomplete,
    }
}

fn hit(hit: Hit) -> spliced::TranscriptHit {
    let role = match hit.role {
        Role::User => v1::Role::User,
        Role::Assistant => v1::Role::Assistant,
        Role::Tool => v1::Role::Tool,
        Role::System => v1::Role::System,
    };
    spliced::TranscriptHit {
        snippet: hit.snippet,
        session_id: hit.session.to_string(),
        generation: hit.generation.to_string(),
        seq: hit.seq,
        role: role.into(),
        time: Some(timestamp_to_proto(hit.at)),
        score: hit.score,
        turns: hit.turns.into_iter().map(Bytes::from_owner).collect(),
    }
}

fn role(number: i32) -> Result<Role, Refusal> {
    match v1::Role::try_from(number) {
        Ok(v1::Role::User) => Ok(Role::User),
        Ok(v1::Role::Assistant) => Ok(Role::Assistant),
        Ok(v1::Role::Tool) => Ok(Role::Tool),
        Ok(v1::Role::System) => Ok(Role::System),
        Ok(v1::Role::Unspecified) | Err(_) => unknown("ROLE_INVALID", "roles", number, "Role"),
    }
}
