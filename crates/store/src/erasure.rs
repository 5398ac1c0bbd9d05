//! Erasures: jobs that remove what is known of a session or of a subject, as a store keeps them.

use memoird_core::ids::{
    ErasureId, Generation, HookName, SessionId, SessionKey, Subject, TenantId,
};

/// What is to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EraseTarget {
    /// A session: one life of it, or all that it had when the job began.
    Session {
        /// The bot's own id of it.
        session: SessionId,
        /// The life; `None`: all.
        generation: Option<Generation>,
    },
    /// Every life of a session that is this subject's, and what is remembered of the subject.
    Subject(Subject),
}

/// How far an erasure is. The stages come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErasureStage {
    /// The generations that it covers are being found.
    Collect,
    /// Those that live are being ended.
    End,
    /// Their rows leave the journal.
    Rows,
    /// What lies elsewhere is being erased.
    Elsewhere,
    /// Names leave the job, and what was removed leaves the disk's pages.
    Clean,
    /// Nothing is left to do.
    Done,
}

/// What an erasure removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedCounts {
    /// Turns of the journal.
    pub turns: u64,
    /// Summaries.
    pub summaries: u64,
    /// Idempotency keys.
    pub keys: u64,
    /// Memories, older versions included.
    pub memories: u64,
    /// Deliveries that were owed, and are not made.
    pub deliveries: u64,
    /// Commits of checkpoints that were written anew, or left out.
    pub commits: u64,
}

/// An erasure as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// Its name.
    pub id: ErasureId,
    /// Who asked for it.
    pub tenant: TenantId,
    /// `None` once its names were forgotten.
    pub target: Option<EraseTarget>,
    /// How far it is.
    pub stage: ErasureStage,
    /// What it removed so far.
    pub counts: ErasedCounts,
    /// What it cannot reach, for people.
    pub outside: Vec<String>,
}

/// What an erasure covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasureScope {
    /// The generations, ascending, each with its session.
    pub generations: Vec<(Generation, SessionId)>,
    /// The hooks that were given something of them, or may have been.
    pub given: Vec<(Generation, HookName)>,
}

/// What a step that removes rows came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedRows {
    /// There are more rows.
    More,
    /// There are no more.
    AllGone,
    /// One of the generations lives: it has to be ended first.
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

    /// Under which it is stored.
    pub fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(stage, _)| *stage == self);
        known.map_or("collect", |(_, name)| name)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let known = Self::NAMES.iter().find(|(_, known)| *known == name);
        known.map(|(stage, _)| *stage)
    }
}

impl Erasure {
    /// The job for a session or a subject of a tenant, before its first step.
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

    /// The session that it erases whole, if it is one.
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

    /// True when it covers this generation.
    pub(crate) fn covers(
        &self,
        key: &SessionKey,
        name: Generation,
        owner: Option<&Subject>,
    ) -> bool {
        key.tenant == self.tenant
            && match &self.target {
                Some(EraseTarget::Session {
                    session,
                    generation,
                }) => key.session == *session && generation.is_none_or(|wanted| wanted == name),
                Some(EraseTarget::Subject(subject)) => owner == Some(subject),
                None => false,
            }
    }
}

impl ErasedCounts {
    /// In the order in which they are stored.
    fn fields(&mut self) -> [&mut u64; 6] {
        [
            &mut self.turns,
            &mut self.summaries,
            &mut self.keys,
            &mut self.memories,
            &mut self.deliveries,
            &mut self.commits,
        ]
    }

    /// As they are stored.
    pub fn pack(mut self) -> Vec<u8> {
        let fields = self.fields().into_iter();
        fields.flat_map(|count| count.to_le_bytes()).collect()
    }

    /// What [`Self::pack`] gave; what is missing there is 0.
    pub fn unpack(bytes: &[u8]) -> Self {
        let mut counts = Self::default();
        for (count, bytes) in counts.fields().into_iter().zip(bytes.as_chunks::<8>().0) {
            *count = u64::from_le_bytes(*bytes);
        }
        counts
    }
}
