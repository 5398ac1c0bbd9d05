//! Erasures on the wire: parses requests and builds replies.

use memoird_core::ids::Subject;
use memoird_proto::v1;
use memoird_store::{EraseTarget, ErasedCounts, Erasure, ErasureStage};

use super::from;
use super::refusal::Refusal;

/// Parses the session or generation to erase.
pub(crate) fn session(request: &v1::EraseSessionRequest) -> Result<EraseTarget, Refusal> {
    Ok(EraseTarget::Session {
        session: from::session_id(&request.session_id)?,
        generation: from::generation("generation", &request.generation)?,
    })
}

pub(crate) fn subject(request: &v1::EraseSubjectRequest) -> Result<EraseTarget, Refusal> {
    Ok(EraseTarget::Subject(Subject::parse(&request.subject)?))
}

/// Converts an erasure. `waits_for` is why it waits, if it does.
pub(crate) fn erasure(erasure: Erasure, waits_for: String) -> v1::Erasure {
    let done = erasure.stage == ErasureStage::Done;
    v1::Erasure {
        id: erasure.id.to_string(),
        done,
        erased: Some(counts(erasure.counts)),
        outside: erasure.outside,
        waits_for: if done { String::new() } else { waits_for },
    }
}

fn counts(counts: ErasedCounts) -> v1::ErasedCounts {
    v1::ErasedCounts {
        turns: counts.turns,
        summaries: counts.summaries,
        keys: counts.keys,
        memories: counts.memories,
        deliveries: counts.deliveries,
        commits: counts.commits,
    }
}
