//! Erasure jobs, which remove all data of a session or of a subject, in their stored form.

use memoird_core::ids::{
    ErasureId, Generation, HookName, SessionId, SessionKey, Subject, TenantId,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseTarget {
    /// One generation of a session, or all that existed when the job began.
    Session {
        session: SessionId,
        /// `None` for all generations.
        generation: Option<Generation>,
    },
    /// All generations that belong to this subject, and the subject's memories.
    Subject(Subject),
}

/// Progress of an erasure. The stages run in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErasureStage {
    /// Find the generations that it covers.
    Collect,
    /// End the live ones.
    End,
    /// Delete their rows from the journal.
    Rows,
    /// Erase data outside the journal.
    Elsewhere,
    /// Remove names from the job, and deleted bytes from the disk's pages.
    Clean,
    Done,
}

/// Counters of an erasure: items that it removed, and attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedCounts {
    pub turns: u64,
    pub summaries: u64,
    /// Idempotency keys.
    pub keys: u64,
    /// Memories, including older versions.
    pub memories: u64,
    /// Pending deliveries that were cancelled.
    pub deliveries: u64,
    /// Checkpoint commits that were rewritten or dropped.
    pub commits: u64,
    /// Attempts of [`ErasureStage::Elsewhere`] that did not return: the process ended.
    pub attempts: u64,
}

/// A stored erasure job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    pub id: ErasureId,
    pub tenant: TenantId,
    /// `None` once the names were removed.
    pub target: Option<EraseTarget>,
    pub stage: ErasureStage,
    pub counts: ErasedCounts,
    /// Human-readable descriptions of data that the job cannot reach.
    pub outside: Vec<String>,
}

/// Generations that an erasure covers, and the hooks that received them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureScope {
    /// Ascending, each with its session.
    pub generations: Vec<(Generation, SessionId)>,
    /// Hooks that received, or may have received, a generation.
    pub delivered: Vec<(Generation, HookName)>,
    /// Copies of these generations, ascending.
    pub copies: Vec<Generation>,
    /// Of the erasure of a subject: other generations that belonged to it before their subject was
    /// changed, ascending.
    pub formerly_owned: Vec<Generation>,
}

/// Result of a step that deletes rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedRows {
    /// More rows remain.
    More,
    /// No rows remain.
    AllGone,
    /// A covered generation is live and must be ended first.
    Live,
}

impl ErasureStage {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::Collect, "collect"),
        (Self::End, "end"),
        (Self::Rows, "rows"),
        (Self::Elsewhere, "elsewhere"),
        (Self::Clean, "clean"),
        (Self::Done, "done"),
    ];

    /// Name under which the stage is stored.
    pub fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(stage, _)| *stage == self);
        known.map_or("collect", |(_, name)| name)
    }

    /// Parses the name of a stage.
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::NAMES.iter().find(|(_, known)| *known == name);
        known.map(|(stage, _)| *stage)
    }
}

impl Erasure {
    pub fn new(id: ErasureId, tenant: TenantId, target: EraseTarget) -> Self {
        Self {
            id,
            tenant,
            target: Some(target),
            stage: ErasureStage::Collect,
            counts: ErasedCounts::default(),
            outside: Vec::new(),
        }
    }

    /// Returns the session if the job erases all its generations.
    pub fn whole_session(&self) -> Option<SessionKey> {
        match self.target.as_ref()? {
            EraseTarget::Session {
                session,
                generation: None,
            } => Some(SessionKey {
                tenant: self.tenant.clone(),
                session: session.clone(),
            }),
            _ => None,
        }
    }
}

impl ErasedCounts {
    /// The counts in storage order.
    fn fields(&mut self) -> [&mut u64; 7] {
        [
            &mut self.turns,
            &mut self.summaries,
            &mut self.keys,
            &mut self.memories,
            &mut self.deliveries,
            &mut self.commits,
            &mut self.attempts,
        ]
    }

    /// Encodes the counts for storage.
    pub fn pack(mut self) -> Vec<u8> {
        let fields = self.fields().into_iter();
        fields.flat_map(|count| count.to_le_bytes()).collect()
    }

    /// Decodes [`Self::pack`]. Missing counts are 0.
    pub fn unpack(bytes: &[u8]) -> Self {
        let mut counts = Self::default();
        for (count, bytes) in counts.fields().into_iter().zip(bytes.as_chunks::<8>().0) {
            *count = u64::from_le_bytes(*bytes);
        }
        counts
    }
}
