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

pub(crate) fn session_erased(erasure: Erasure) -> v1::EraseSessionResponse {
    v1::EraseSessionResponse {
        job_id: erasure.id.to_string(),
        done: is_done(&erasure),
        erased: Some(counts(erasure.counts)),
        outside: erasure.outside,
    }
}

pub(crate) fn subject_erased(erasure: Erasure) -> v1::EraseSubjectResponse {
    v1::EraseSubjectResponse {
        job_id: erasure.id.to_string(),
        done: is_done(&erasure),
        erased: Some(counts(erasure.counts)),
        outside: erasure.outside,
    }
}

/// Progress of an erasure, with what it is waiting for.
pub(crate) fn found(erasure: Erasure, waits_for: String) -> v1::GetErasureResponse {
    let waits_for = if is_done(&erasure) {
        String::new()
    } else {
        waits_for
    };
    v1::GetErasureResponse {
        job_id: erasure.id.to_string(),
        done: is_done(&erasure),
        erased: Some(counts(erasure.counts)),
        outside: erasure.outside,
        waits_for,
    }
}

fn is_done(erasure: &Erasure) -> bool {
    erasure.stage == ErasureStage::Done
}

fn counts(counts: ErasedCounts) -> v1::Erased {
    v1::Erased {
        turns: counts.turns,
        summaries: counts.summaries,
        keys: counts.keys,
        memories: counts.memories,
        deliveries: counts.deliveries,
        commits: counts.commits,
    }
}
