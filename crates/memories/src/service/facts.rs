//! Remembering facts (resolve the source, redact secrets, validate, store), and reading them.

use std::ops::Range;
use std::sync::Arc;

use memoird_core::ids::{MemoryId, Subject};
use memoird_engine::Tenant;
use serde_json::Value;

use super::forget::Unfinished;
use super::sources::SourceTurns;
use super::storage::MemoryStorage;
use super::vectors::TextVectors;
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::requests::{
    Conflicts, ListRequest, MemoryPage, MemoryStats, RememberOutcome, RememberRequest, SubjectPage,
};
use crate::rules::dates::with_dates;
use crate::rules::secrets::{self, SecretPolicy};
use crate::rules::{Memory, MemoryLimits, NearDuplicate, Origin, Patch, external_key};
use crate::store::{FactLookup, Imported, MemoryReader, MemoryWriter, Prepared, RememberCommand};

/// Memories of bots: remembering, changing and reading them. Clones share their state.
#[derive(Clone, Debug)]
pub struct Facts {
    pub(super) storage: Arc<MemoryStorage>,
    pub(super) vectors: Arc<TextVectors>,
}

impl Facts {
    /// Remembers a fact. Returns once it is durable.
    ///
    /// # Errors
    /// If the fact is invalid, its source does not exist, or the write fails.
    pub async fn remember(
        &self,
        tenant: &Arc<Tenant>,
        request: RememberRequest,
    ) -> Result<RememberOutcome, MemoryError> {
        let found = match &request.source {
            Some(source) => {
                let wants_text = request.content.trim().is_empty();
                self.storage.find_source(tenant, source, wants_text).await?
            }
            None => SourceTurns::default(),
        };
        let given = self.vectors.given_vector(request.vector.clone())?;
        let mut command = self.command(request, found, Origin::Bot)?;
        let is_given = given.is_some();
        let content = &command.memory.content;
        command.vector = match command.near_duplicate {
            _ if is_given => given,
            // Only a rejection must be known before the reply. Other near-duplicates are merged in
            // the background.
            NearDuplicate::Refuse => self
                .vectors
                .vector_of(Purpose::Memory, content)
                .await
                .ok()
                .flatten(),
            NearDuplicate::Merge | NearDuplicate::Keep | NearDuplicate::Apart => None,
        };
        let config = self.storage.config();
        let prepared = Prepared::new(&command.memory.content);
        let fact = FactLookup::new(&command, &prepared);
        let done = self
            .storage
            .write_fact(&tenant.id, Some(fact), move |writer| {
                if is_given && config.embedder.is_none() {
                    writer.use_clients_vectors()?;
                }
                match writer.remember_prepared(&command, &prepared, &config.limits) {
                    Err(error @ MemoryError::DimensionMismatch { .. }) if is_given => {
                        Err(error.of_given_vector())
                    }
                    Err(MemoryError::DimensionMismatch { .. }) => {
                        // It cannot be compared with the stored vectors.
                        command.vector = None;
                        writer.remember_prepared(&command, &prepared, &config.limits)
                    }
                    done => done,
                }
            })
            .await?;
        self.note_outcome(tenant, &done);
        Ok(done)
    }

    /// Builds the command of a fact and validates it.
    ///
    /// The source provides the fields that the request leaves empty. Applies the secret policy and
    /// adds absolute dates.
    pub(super) fn command(
        &self,
        mut request: RememberRequest,
        found: SourceTurns,
        origin: Origin,
    ) -> Result<RememberCommand, MemoryError> {
        let (config, now) = (self.storage.config(), self.storage.now());
        let subject = request.subject.take().or(found.subject).ok_or_else(|| {
            let problem = "is empty, and no session says whose memory it is";
            MemoryError::invalid("subject", problem)
        })?;
        if request.content.trim().is_empty() {
            request.content = found.text;
        }
        request.observed_at = request.observed_at.or(found.said_at);
        request.source = found.source;
        let (id, cosine_min) = (self.storage.next_id(now), config.near_duplicate_cosine);
        let mut command = RememberCommand::new(request, subject, id, now, cosine_min);
        let memory = &mut command.memory;
        memory.origin = origin;
        let policy = config.secrets;
        command.redacted = admit_texts(Some(&mut memory.content), &mut memory.tags, policy)?
            + admit_metadata(memory.metadata.as_mut(), policy)?;
        // Relative dates of an extracted fact count from its last turn, others from the observation.
        let said = found.said_at.filter(|_| origin == Origin::Extraction);
        let said = said.unwrap_or(memory.observed_at);
        memory.content = with_dates(&memory.content, said, config.limits.content_bytes);
        command.memory = command.memory.checked(&config.limits)?;
        command.at_seq = found.at_seq;
        Ok(command)
    }

    /// Counts the outcome of a fact, and wakes the embedding worker.
    pub(super) fn note_outcome(&self, tenant: &Tenant, done: &RememberOutcome) {
        if !done.is_repetition {
            let state = self.storage.state(&tenant.id);
            let mut counts = state.counters();
            *counts.remembered(done.outcome) += 1;
            counts.redacted += done.redacted as u64;
        }
        self.storage.embedding.add(&tenant.id);
    }

    /// Changes a memory. With a subject, only if the memory belongs to it.
    ///
    /// Returns the number of redacted secrets, too.
    ///
    /// # Errors
    /// If the change is invalid.
    pub async fn update(
        &self,
        tenant: &Tenant,
        id: MemoryId,
        subject: Option<Subject>,
        mut patch: Patch,
    ) -> Result<(Memory, usize), MemoryError> {
        let config = self.storage.config();
        let tags = patch.tags.as_deref_mut().unwrap_or_default();
        let mut redacted = admit_texts(patch.content.as_mut(), tags, config.secrets)?;
        let metadata = patch.metadata.as_mut().and_then(Option::as_mut);
        redacted += admit_metadata(metadata, config.secrets)?;
        let now = self.storage.now();
        let said = patch.observed_at.unwrap_or(now);
        patch.content = patch
            .content
            .map(|content| with_dates(&content, said, config.limits.content_bytes));
        let memory = self
            .storage
            .write(&tenant.id, move |writer| {
                writer.update(id, subject.as_ref(), &patch, now, &config.limits)
            })
            .await?;
        let state = self.storage.state(&tenant.id);
        state.counters().redacted += redacted as u64;
        self.storage.embedding.add(&tenant.id);
        Ok((memory, redacted))
    }

    /// Stores memories unchanged.
    ///
    /// # Errors
    /// If a memory is invalid. Nothing is stored then.
    pub async fn import(
        &self,
        tenant: &Tenant,
        mut memories: Vec<Memory>,
    ) -> Result<Imported, MemoryError> {
        let config = self.storage.config();
        let limits = &config.limits;
        if memories.len() > MemoryLimits::IMPORTED {
            let limit = MemoryLimits::IMPORTED;
            let problem = format!("{} are more than {limit}", memories.len());
            return Err(MemoryError::invalid("memories", problem));
        }
        for (index, memory) in memories.iter_mut().enumerate() {
            let refused = |error: MemoryError| error.in_list("memories", index);
            memory.recalls = memory.recalls.min(MemoryLimits::COUNTED);
            memory.reinforced = memory.reinforced.min(MemoryLimits::COUNTED);
            // Imports are stored unchanged, so secrets cannot be redacted, only rejected.
            if config.secrets != SecretPolicy::Allow {
                let content = std::iter::once(("content", &memory.content));
                let metadata = memory.metadata.iter().map(|json| ("metadata_json", json));
                let tags = memory.tags.iter().map(|tag| ("tags", tag));
                for (field, text) in content.chain(metadata).chain(tags) {
                    secrets::admit(field, text, SecretPolicy::Block).map_err(refused)?;
                }
            }
            memory.clone().checked(limits).map_err(refused)?;
        }
        let now = self.storage.now();
        let imported = self
            .storage
            .write(&tenant.id, move |writer| {
                writer.import(&memories, now, &config.limits)
            })
            .await?;
        self.storage.embedding.add(&tenant.id);
        Ok(imported)
    }

    /// Returns one memory. With a subject, only if the subject may see it.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub async fn get(
        &self,
        tenant: &Tenant,
        id: MemoryId,
        subject: Option<Subject>,
    ) -> Result<Memory, MemoryError> {
        let memory = self
            .storage
            .read(&tenant.id, move |reader| reader.get(id))
            .await?;
        memory
            .filter(|memory| subject.is_none_or(|subject| memory.is_visible_to(&subject)))
            .ok_or(MemoryError::NotFound { id })
    }

    pub async fn list(
        &self,
        tenant: &Tenant,
        request: ListRequest,
    ) -> Result<MemoryPage, MemoryError> {
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| reader.page_of(&request, now);
        self.storage.read(&tenant.id, read).await
    }

    /// Lists a page of subjects that have memories.
    pub async fn subjects(
        &self,
        tenant: &Tenant,
        prefix: String,
        after: Option<Subject>,
        count: usize,
    ) -> Result<SubjectPage, MemoryError> {
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| {
            reader.subjects(&prefix, after.as_ref(), count.saturating_add(1), now)
        };
        let mut subjects = self.storage.read(&tenant.id, read).await?;
        let has_more = subjects.len() > count;
        subjects.truncate(count);
        Ok(SubjectPage { subjects, has_more })
    }

    /// Returns the current memory of a subject with this external key.
    ///
    /// # Errors
    /// [`MemoryError::KeyNotFound`].
    pub async fn get_by_key(
        &self,
        tenant: &Tenant,
        subject: Subject,
        key: String,
    ) -> Result<Memory, MemoryError> {
        external_key(&key)?;
        let wanted = key.clone();
        let read = move |reader: &MemoryReader<'_>| reader.named(&subject, &wanted);
        let found = self.storage.read(&tenant.id, read).await?;
        found.ok_or(MemoryError::KeyNotFound { key })
    }

    /// Finds a page of the possible contradictions among a subject's newest memories.
    pub async fn conflicts(
        &self,
        tenant: &Tenant,
        subject: Subject,
        page: Range<usize>,
    ) -> Result<Conflicts, MemoryError> {
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| {
            reader.conflicts(&subject, MemoryLimits::COMPARED, page.clone(), now)
        };
        self.storage.read(&tenant.id, read).await
    }

    pub async fn stats(&self, tenant: &Tenant) -> Result<MemoryStats, MemoryError> {
        let (config, now) = (self.storage.config(), self.storage.now());
        let reranker = config.reranker.as_ref().map(|one| one.name().to_owned());
        let read = move |reader: &MemoryReader<'_>| {
            let model = config.embedder.as_ref().map(|embedder| embedder.model());
            reader.stats(model, now)
        };
        let stats = self.storage.read(&tenant.id, read).await?;
        Ok(MemoryStats { reranker, ..stats })
    }

    /// Rebuilds the indexes in the background. Returns the number of memories queued for embedding.
    pub async fn reindex(&self, tenant: &Tenant) -> Result<u64, MemoryError> {
        // On drop, hands the work to the maintenance worker, also if this call is cancelled.
        let _unfinished = Unfinished::new(&self.storage, &tenant.id, None);
        let begin = |writer: &MemoryWriter<'_>| writer.reindex_begin();
        self.storage.write(&tenant.id, begin).await?;
        let stats = self.stats(tenant).await?;
        Ok(if stats.embedding_model.is_some() {
            stats.memories
        } else {
            0
        })
    }
}

/// Applies the secret policy to texts. Returns the number of redactions.
fn admit_texts(
    content: Option<&mut String>,
    tags: &mut [String],
    policy: SecretPolicy,
) -> Result<usize, MemoryError> {
    let mut redacted = 0;
    let content = content.map(|text| ("content", text));
    let tags = tags.iter_mut().map(|tag| ("tags", tag));
    for (field, text) in content.into_iter().chain(tags) {
        let (admitted, found) = secrets::admit(field, text, policy)?;
        *text = admitted;
        redacted += found;
    }
    Ok(redacted)
}

/// Applies the secret policy to the strings of a JSON object. Returns the number of redactions.
///
/// Metadata without secrets stays exactly as sent. Invalid JSON is rejected later, by validation.
fn admit_metadata(json: Option<&mut String>, policy: SecretPolicy) -> Result<usize, MemoryError> {
    let Some(json) = json else { return Ok(0) };
    if json.len() > MemoryLimits::METADATA_BYTES {
        return Ok(0);
    }
    let Ok(mut value) = serde_json::from_str::<Value>(json) else {
        return Ok(0);
    };
    let redacted = admit_value(&mut value, policy)?;
    if redacted > 0 {
        *json = value.to_string();
    }
    Ok(redacted)
}

fn admit_value(value: &mut Value, policy: SecretPolicy) -> Result<usize, MemoryError> {
    match value {
        Value::String(text) => {
            let (admitted, found) = secrets::admit("metadata_json", text, policy)?;
            *text = admitted;
            Ok(found)
        }
        Value::Array(items) => {
            let mut items = items.iter_mut();
            items.try_fold(0, |sum, item| Ok(sum + admit_value(item, policy)?))
        }
        Value::Object(members) => {
            let mut members = members.values_mut();
            members.try_fold(0, |sum, item| Ok(sum + admit_value(item, policy)?))
        }
        _ => Ok(0),
    }
}
