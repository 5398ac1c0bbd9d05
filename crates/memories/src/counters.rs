//! Memory counters of a tenant, for metrics.

use crate::requests::RecallMode;
use crate::rules::Outcome;

/// Counters of one tenant's memories since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Facts stored as new memories.
    pub created: u64,
    /// Facts identical to an existing memory.
    pub reinforced: u64,
    /// Facts merged into an existing memory.
    pub merged: u64,
    /// Facts that replaced the content of the memory with the same external key.
    pub replaced: u64,
    /// Facts dropped because a recall had just shown them to the session.
    pub echoed: u64,
    /// Secrets redacted.
    pub redacted: u64,
    pub recalls_hybrid: u64,
    pub recalls_lexical: u64,
    pub recalls_vector: u64,
    /// Recall events that could not be recorded.
    pub recalls_lost: u64,
    /// Memories forgotten, including superseded versions.
    pub forgotten: u64,
    /// Memories that will not be embedded, after too many failures.
    pub embedding_failed: u64,
    /// Memories and documents that were not returned, because they are damaged.
    pub damaged: u64,
    /// Memories pinned by consolidation.
    pub promoted: u64,
    /// Replies of the extraction model that were committed.
    pub extractions: u64,
    /// Calls of the extraction model that failed or returned an unusable reply.
    pub extractions_failed: u64,
    /// Facts of the extraction model that failed validation.
    pub extractions_refused: u64,
    /// Prompt tokens of the extraction model, as reported by its provider or else estimated.
    pub extraction_prompt_tokens: u64,
    /// Reply tokens of the extraction model, as reported by its provider or else estimated.
    pub extraction_answer_tokens: u64,
}

impl MemorySnapshot {
    pub(crate) fn remembered(&mut self, outcome: Outcome) -> &mut u64 {
        match outcome {
            Outcome::Created => &mut self.created,
            Outcome::Reinforced => &mut self.reinforced,
            Outcome::Merged => &mut self.merged,
            Outcome::Recalled => &mut self.echoed,
            Outcome::Replaced => &mut self.replaced,
        }
    }

    pub(crate) fn recalls(&mut self, mode: RecallMode) -> &mut u64 {
        match mode {
            RecallMode::Auto | RecallMode::Lexical => &mut self.recalls_lexical,
            RecallMode::Hybrid => &mut self.recalls_hybrid,
            RecallMode::Vector => &mut self.recalls_vector,
        }
    }
}
