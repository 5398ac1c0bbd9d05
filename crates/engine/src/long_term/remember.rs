//! Promoting a fact: find its source, take out secrets, let the rules decide, write it.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::memory::secrets::{self, SecretPolicy};
use memoird_core::memory::{
    Fact, IMPORTANCE_DEFAULT, Memory, NearDuplicate, Origin, Patch, Source, Visibility,
};
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Turn};
use memoird_store::long_term::{Embedding, Remembered, Remembering};
use memoird_store::{StoreError, encoding};

use super::lane::Touch;
use super::{RememberAsk, RememberOutcome, SourceAsk};
use crate::embedder::Purpose;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::{HistoryPage, HistoryQuery, HistoryScope};
use crate::tenant::Tenant;

/// Bytes that are read at once while the turns of a source are looked for.
const SOURCE_BYTES_MAX: usize = 4 << 20;
/// Turns that are read at once.
const SOURCE_TURNS_MAX: usize = 1_000;
/// Reads of one source: seqs that lie far apart are refused.
const SOURCE_READS_MAX: usize = 16;

/// What is known of the turns that a fact comes from.
#[derive(Default)]
struct Found {
    source: Option<Source>,
    subject: Option<Subject>,
    /// The text of the turns.
    text: String,
    said_at: Option<Timestamp>,
    /// The newest turn of the live session.
    at_seq: Option<u64>,
}

impl Engine {
    /// Promotes a fact; answers when it is on the disk.
    ///
    /// # Errors
    /// What the rules refuse, a source that is not there, a disk that cannot be written.
    pub async fn remember(
        &self,
        tenant: &Arc<Tenant>,
        ask: RememberAsk,
    ) -> Result<RememberOutcome, EngineError> {
        let found = match &ask.source {
            Some(source) => {
                self.find_source(tenant, source, ask.content.trim().is_empty())
                    .await?
            }
            None => Found::default(),
        };
        let (at_seq, key) = (found.at_seq, ask.key);
        let fact = fact_of(ask, found)?;
        let (fact, redacted) = self.admit(fact)?;
        let vector = match fact.near_duplicate {
            // Who wants to be told has to wait for it; others are merged in the background.
            NearDuplicate::Refuse => self.vector_of(Purpose::Memory, &fact.content).await.ok(),
            NearDuplicate::Merge | NearDuplicate::Keep => None,
        };
        let mut remembering = self.remembering(fact, key, at_seq, vector.flatten());
        let limits = self.shared.config.load().long_term.limits.clone();
        let done = self
            .write_memories(tenant, move |writer| {
                let done = match writer.remember(&remembering, &limits) {
                    Err(StoreError::DimensionMismatch { .. }) => {
                        // It says nothing of those that are there.
                        remembering.vector = None;
                        writer.remember(&remembering, &limits)?
                    }
                    done => done?,
                };
                // Whose place it takes may be one that all saw.
                let touch = match remembering.fact.supersedes {
                    Some(_) => Touch::All,
                    None => touch_of(&done.memory),
                };
                Ok((done, touch))
            })
            .await?;
        Ok(self.remembered(tenant, done, redacted))
    }

    /// What is written of a fact that was checked.
    pub(super) fn remembering(
        &self,
        fact: Fact,
        key: Option<memoird_core::idempotency::IdempotencyKey>,
        at_seq: Option<u64>,
        vector: Option<Embedding>,
    ) -> Remembering {
        let now = self.shared.machine.now().wall;
        Remembering {
            id: self.shared.ids.memory(&*self.shared.machine, now),
            fact,
            at: now,
            key,
            at_seq,
            vector,
            cosine_min: self.shared.config.load().long_term.near_cosine,
        }
    }

    /// Counts what became of a fact, and wakes who embeds it.
    pub(super) fn remembered(
        &self,
        tenant: &Arc<Tenant>,
        done: Remembered,
        redacted: usize,
    ) -> RememberOutcome {
        if !done.is_repetition {
            tenant
                .stats
                .memories
                .count_remembered(done.outcome, redacted);
        }
        self.shared.long_term.wake_embedder(&tenant.id);
        RememberOutcome {
            memory: done.memory,
            outcome: done.outcome,
            redacted,
        }
    }

    /// Takes secrets out, or refuses them, and says whether the rest keeps the rules.
    pub(super) fn admit(&self, mut fact: Fact) -> Result<(Fact, usize), CoreError> {
        let config = self.shared.config.load();
        let (content, mut redacted) = secrets::admit(&fact.content, config.long_term.secrets)?;
        fact.content = content;
        for tag in &mut fact.tags {
            let (admitted, found) = secrets::admit(tag, config.long_term.secrets)?;
            *tag = admitted;
            redacted += found;
        }
        Ok((fact.checked(&config.long_term.limits)?, redacted))
    }

    /// Changes a memory; with a subject only if it is that one's. Says how many secrets were
    /// taken out.
    ///
    /// # Errors
    /// What the rules refuse.
    pub async fn update_memory(
        &self,
        tenant: &Arc<Tenant>,
        id: MemoryId,
        subject: Option<Subject>,
        mut patch: Patch,
    ) -> Result<(Memory, usize), EngineError> {
        let config = self.shared.config.load_full();
        let mut redacted = 0;
        if let Some(content) = &mut patch.content {
            (*content, redacted) = secrets::admit(content, config.long_term.secrets)?;
        }
        for tag in patch.tags.iter_mut().flatten() {
            let (admitted, found) = secrets::admit(tag, config.long_term.secrets)?;
            *tag = admitted;
            redacted += found;
        }
        let now = self.shared.machine.now().wall;
        let memory = self
            .write_memories(tenant, move |writer| {
                let was = writer.get(id)?;
                let limits = &config.long_term.limits;
                let memory = writer.update(id, subject.as_ref(), &patch, now, limits)?;
                let was_team = was.is_some_and(|was| was.visibility == Visibility::Team);
                let touch = if was_team {
                    Touch::All
                } else {
                    touch_of(&memory)
                };
                Ok((memory, touch))
            })
            .await?;
        tenant.stats.memories.count_redacted(redacted);
        self.shared.long_term.wake_embedder(&tenant.id);
        Ok((memory, redacted))
    }

    /// Stores memories as they are; says how many are new, and how many were there.
    ///
    /// # Errors
    /// What the rules refuse: then nothing is stored.
    pub async fn import_memories(
        &self,
        tenant: &Arc<Tenant>,
        memories: Vec<Memory>,
    ) -> Result<(u64, u64), EngineError> {
        let config = self.shared.config.load_full();
        let limits = &config.long_term.limits;
        if memories.len() > limits.imported {
            let problem = format!("{} are more than {}", memories.len(), limits.imported);
            return Err(CoreError::MemoryInvalid {
                field: "memories",
                problem,
            }
            .into());
        }
        for memory in &memories {
            // What is imported is stored as it is, so a secret in it can only be refused.
            if config.long_term.secrets != SecretPolicy::Allow {
                for text in std::iter::once(&memory.content).chain(&memory.tags) {
                    secrets::admit(text, SecretPolicy::Block)?;
                }
            }
            shape_of(memory).checked(limits)?;
        }
        let imported = self
            .write_memories(tenant, move |writer| {
                let imported = writer.import(&memories, &config.long_term.limits)?;
                Ok((imported, Touch::All))
            })
            .await?;
        self.shared.long_term.wake_embedder(&tenant.id);
        Ok((imported.added, imported.skipped))
    }

    /// The turns that a fact comes from, as far as somebody needs to know of them.
    async fn find_source(
        &self,
        tenant: &Arc<Tenant>,
        ask: &SourceAsk,
        wants_text: bool,
    ) -> Result<Found, EngineError> {
        let live = match self.session(tenant, &ask.session).await {
            Ok(view) => Some(view),
            Err(EngineError::SessionNotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_live = |head: &memoird_core::session::Head| {
            ask.generation.is_none_or(|named| named == head.generation)
        };
        let head = live
            .as_ref()
            .map(|view| &view.head)
            .filter(|head| is_live(head));
        let mut generation = ask.generation.or(head.map(|head| head.generation));
        let subject = match head {
            Some(head) => head.subject.clone(),
            None if generation.is_none() && ask.seqs.is_empty() => None,
            None => {
                self.source_page(tenant, &ask.session, generation, 0, 1)
                    .await?
                    .subject
            }
        };
        let at_seq = head.map(|head| head.last_seq);
        let mut found = Found {
            subject,
            at_seq,
            ..Found::default()
        };
        let mut seqs = ask.seqs.clone();
        seqs.sort_unstable();
        seqs.dedup();
        let limit = self.shared.config.load().long_term.limits.source_seqs;
        if seqs.len() > limit || seqs.first() == Some(&0) {
            let problem = format!("takes up to {limit}, from 1");
            return Err(CoreError::MemoryInvalid {
                field: "source.seqs",
                problem,
            }
            .into());
        }
        if !seqs.is_empty() {
            let turns;
            (turns, generation) = self
                .source_turns(tenant, &ask.session, generation, &seqs)
                .await?;
            found.said_at = turns.last().and_then(|turn| turn.timestamp);
            if wants_text {
                found.text = turns.iter().map(text_of).collect::<Vec<_>>().join("\n");
            }
        }
        found.source = Some(Source {
            session: ask.session.clone(),
            generation,
            seqs,
        });
        Ok(found)
    }

    /// These turns of a generation, all of them; and which generation it is.
    async fn source_turns(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut generation: Option<Generation>,
        seqs: &[u64],
    ) -> Result<(Vec<Turn>, Option<Generation>), EngineError> {
        let missing = |problem: String| EngineError::Core(CoreError::SourceNotFound { problem });
        let (mut turns, mut wanted) = (
            Vec::with_capacity(seqs.len()),
            seqs.iter().copied().peekable(),
        );
        for _ in 0..SOURCE_READS_MAX {
            let Some(&next) = wanted.peek() else {
                return Ok((turns, generation));
            };
            let page = self
                .source_page(tenant, session, generation, next - 1, SOURCE_TURNS_MAX)
                .await?;
            generation = page.generation;
            let before = turns.len();
            for content in &page.turns {
                let Some((seq, turn)) = encoding::open_placed(content) else {
                    continue;
                };
                if wanted.next_if_eq(&seq).is_some() {
                    turns.push(turn);
                }
            }
            if turns.len() == before {
                return Err(missing(format!(
                    "turn {next} of session {session} is not there"
                )));
            }
        }
        match wanted.peek() {
            None => Ok((turns, generation)),
            Some(_) => Err(missing(
                "the turns lie too far apart; name fewer".to_owned(),
            )),
        }
    }

    async fn source_page(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        generation: Option<Generation>,
        after_seq: u64,
        turns_max: usize,
    ) -> Result<HistoryPage, EngineError> {
        let scope = match self.shared.journal.is_on() {
            true => HistoryScope::Journal,
            false => HistoryScope::Live,
        };
        let bytes_max = SOURCE_BYTES_MAX;
        let query = HistoryQuery {
            scope,
            generation,
            after_seq,
            turns_max,
            bytes_max,
        };
        self.history(tenant, session, query)
            .await
            .map_err(|error| match error {
                EngineError::SessionNotFound { .. } | EngineError::GenerationNotFound { .. } => {
                    let problem = format!("session {session} has no such turns (any more)");
                    CoreError::SourceNotFound { problem }.into()
                }
                other => other,
            })
    }
}

/// The fact that is asked to be remembered, with what its source says where the call says
/// nothing.
fn fact_of(ask: RememberAsk, found: Found) -> Result<Fact, CoreError> {
    let subject = ask
        .subject
        .or(found.subject)
        .ok_or_else(|| CoreError::MemoryInvalid {
            field: "subject",
            problem: "is empty, and no session says whose memory it is".to_owned(),
        })?;
    let is_said = !ask.content.trim().is_empty();
    Ok(Fact {
        subject,
        kind: ask.kind,
        visibility: ask.visibility,
        polarity: ask.polarity,
        content: if is_said { ask.content } else { found.text },
        tags: ask.tags,
        importance: ask.importance.unwrap_or(IMPORTANCE_DEFAULT),
        source: found.source,
        observed_at: ask.observed_at.or(found.said_at),
        expires_at: ask.expires_at,
        supersedes: ask.supersedes,
        pinned: ask.pinned,
        near_duplicate: ask.near_duplicate,
        origin: Origin::Bot,
    })
}

/// What a memory says, to be checked like a fact.
fn shape_of(memory: &Memory) -> Fact {
    Fact {
        visibility: memory.visibility,
        polarity: memory.polarity,
        tags: memory.tags.clone(),
        importance: memory.importance,
        source: memory.source.clone(),
        ..Fact::new(memory.subject.clone(), memory.kind, memory.content.clone())
    }
}

pub(super) fn touch_of(memory: &Memory) -> Touch {
    match memory.visibility {
        Visibility::Private => Touch::One(memory.subject.clone()),
        Visibility::Team => Touch::All,
    }
}

/// What a turn says in words.
pub(super) fn text_of(turn: &Turn) -> String {
    let texts = turn.parts.iter().filter_map(|part| match &part.kind {
        PartKind::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
