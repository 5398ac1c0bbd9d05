//! Memories of a window: how they are asked for, and where the model reads them.

use std::collections::HashSet;

use memoird_core::turn::{PartKind, Role, Turn};
use memoird_memories::RecallRequest;
use memoird_proto::v1;
use tonic::Status;

use crate::wire::{memory, status};

/// The memories that a window of this session asks for.
pub(super) fn asked(request: v1::RecallRequest, session_id: &str) -> Result<RecallRequest, Status> {
    if !request.session_id.is_empty() && request.session_id != session_id {
        let problem = "memories.session_id is another one than session_id; leave it empty";
        return Err(status::invalid("SESSION_ID_MISMATCH", problem));
    }
    let session_id = session_id.to_owned();
    memory::from::recall(v1::RecallRequest {
        session_id,
        ..request
    })
    .map_err(|refusal| status::at("memories", &refusal))
}

/// Puts the block among the turns that are rendered, as a turn of its own. Gives its place;
/// breakpoints stay with the turns that they are of.
pub(super) fn put(turns: &mut Vec<Turn>, breakpoints: &mut [usize], block: String) -> usize {
    let place = place(turns);
    let block = PartKind::Text(block).into();
    turns.insert(place, Turn::new(Role::User, vec![block]));
    for breakpoint in breakpoints {
        *breakpoint += usize::from(*breakpoint >= place);
    }
    place
}

/// Behind all turns, where it breaks no provider's cache. But where the model has the last
/// word, and goes on from it, or waits for a result, nothing may follow: then before the
/// last turn of the user.
fn place(turns: &[Turn]) -> usize {
    let is_reply = |last: &Turn| last.role == Role::Assistant;
    if !turns.last().is_some_and(is_reply) && !waits(turns) {
        return turns.len();
    }
    let is_said_by_user = |turn: &Turn| turn.role == Role::User && turn.links().results.is_empty();
    turns.iter().rposition(is_said_by_user).unwrap_or_else(|| {
        // The system prompt comes first everywhere.
        let system = turns.iter().take_while(|turn| turn.role == Role::System);
        system.count()
    })
}

/// True when a call has no result yet.
fn waits(turns: &[Turn]) -> bool {
    let links: Vec<_> = turns.iter().map(Turn::links).collect();
    let results: HashSet<_> = links.iter().flat_map(|links| &links.results).collect();
    let mut uses = links.iter().flat_map(|links| &links.uses);
    uses.any(|id| !results.contains(id))
}
