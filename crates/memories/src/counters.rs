//! Counters of a tenant's memories, for metrics.

use std::sync::{Mutex, MutexGuard};

use crate::locked;
use crate::requests::RecallMode;
use crate::rules::Outcome;

/// Counts of one tenant's memories since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySnapshot {
    /// Facts that became memories.
    pub created: u64,
    /// Facts that were there to the letter.
    pub reinforced: u64,
    /// Facts that a memory took in.
    pub merged: u64,
    /// Facts that replaced what the memory of their external key said.
    pub replaced: u64,
    /// Facts that were no new ones: a recall had just shown them.
    pub echoed: u64,
    /// Secrets that were taken out.
    pub redacted: u64,
    /// Recalls by words and by meaning.
    pub recalls_hybrid: u64,
    /// Recalls by words.
    pub recalls_lexical: u64,
    /// Recalls by meaning.
    pub recalls_vector: u64,
    /// Recalls whose event could not be recorded.
    pub recalls_lost: u64,
    /// Memories forgotten, older versions included.
    pub forgotten: u64,
    /// Memories whose embedding was given up.
    pub embedding_failed: u64,
    /// Memories that consolidations pinned.
    pub promoted: u64,
    /// Answers of a model that extracts that were committed.
    pub extractions: u64,
    /// Calls of it that failed, or whose answers could not be used.
    pub extractions_failed: u64,
    /// Facts of it that were not believed.
    pub extractions_refused: u64,
    /// Tokens of its prompts, as its provider counts them, else estimated,
    pub extraction_prompt_tokens: u64,
    /// and of its answers.
    pub extraction_answer_tokens: u64,
}

/// The same while it grows.
#[derive(Debug, Default)]
pub(crate) struct MemoryCounters(Mutex<MemorySnapshot>);

impl MemoryCounters {
    /// The counts, to be raised at once and not held.
    pub(crate) fn raise(&self) -> MutexGuard<'_, MemorySnapshot> {
        locked(&self.0)
    }

    pub(crate) fn snapshot(&self) -> MemorySnapshot {
        *self.raise()
    }
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
