//! Remembering a fact: resolve its source, redact secrets, validate it, store it.

use std::sync::Arc;

use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{MemoryId, Subject};
use memoird_core::time::Timestamp;
use memoird_engine::Tenant;
use serde_json::Value;

use super::Memories;
use super::sources::SourceTurns;
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::requests::{RememberOutcome, RememberRequest};
use crate::rules::dates::with_dates;
use crate::rules::secrets::{self, SecretPolicy};
use crate::rules::{Fact, IMPORTANCE_DEFAULT, Memory, MemoryLimits, NearDuplicate, Origin, Patch};
use crate::store::{CLIENTS, Embedding, Imported, Prepared, RememberCommand};

impl Memories {
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
                self.find_source(tenant, source, wants_text).await?
            }
            None => SourceTurns::default(),
        };
        let (at_seq, key) = (found.at_seq, request.key);
        let given = self.given_vector(request.vector.clone())?;
        let (fact, redacted) = self.admit(fact_of(request, found, Origin::Bot)?, None)?;
        let is_given = given.is_some();
        let vector = match fact.near_duplicate {
            _ if is_given => Some(given),
            // Only a rejection must be known before the reply. Other near-duplicates are merged in
            // the background.
            NearDuplicate::Refuse => self.vector_of(Purpose::Memory, &fact.content).await.ok(),
            NearDuplicate::Merge | NearDuplicate::Keep | NearDuplicate::Apart => None,
        };
        let mut command = RememberCommand {
            at_seq,
            vector: vector.flatten(),
            ..self.command(fact, key)
        };
        let config = self.config();
        let prepared = Prepared::of(&command.fact.content);
        let done = self
            .write(&tenant.id, move |writer| {
                if command.vector.is_none() {
                    return writer.remember_alone(&command, &prepared, &config.limits);
                }
                if is_given && config.embedder.is_none() {
                    writer.use_clients_vectors()?;
                }
                match writer.remember(&command, &config.limits) {
                    Err(error @ MemoryError::DimensionMismatch { .. }) if is_given => {
                        Err(error.of_given_vector())
                    }
                    Err(MemoryError::DimensionMismatch { .. }) => {
                        // It cannot be compared with the stored vectors.
                        command.vector = None;
                        writer.remember(&command, &config.limits)
                    }
                    done => done,
                }
            })
            .await?;
        Ok(self.remembered(tenant, done, redacted))
    }

    /// Validates a vector computed by a client and assigns it to the model in use.
    ///
    /// `None` if it is empty.
    pub(super) fn given_vector(&self, values: Vec<f32>) -> Result<Option<Embedding>, MemoryError> {
        if values.is_empty() {
            return Ok(None);
        }
        let limit = MemoryLimits::DIMENSIONS;
        if values.len() > limit {
            let problem = format!("has {} dimensions, the limit is {limit}", values.len());
            return Err(MemoryError::invalid("vector", problem));
        }
        if !Embedding::is_measurable(&values) {
            let problem = "is zero, not finite, or too short or long to be compared: divide it by \
                           its length";
            return Err(MemoryError::invalid("vector", problem));
        }
        if !self.store()?.has_vectors() {
            return Err(MemoryError::NoVectors);
        }
        let config = self.config();
        let model = config.embedder.as_ref().map_or(CLIENTS, |it| it.model());
        Ok(Some(Embedding {
            model: model.into(),
            values,
        }))
    }

    pub(super) fn command(&self, fact: Fact, key: Option<IdempotencyKey>) -> RememberCommand {
        let now = self.now();
        RememberCommand {
            id: self.next_id(now),
            fact,
            at: now,
            key,
            at_seq: None,
            vector: None::<Embedding>,
            cosine_min: self.config().near_duplicate_cosine,
        }
    }

    /// Counts the outcome of a fact, and wakes the embedding worker.
    pub(super) fn remembered(
        &self,
        tenant: &Tenant,
        done: RememberOutcome,
        redacted: usize,
    ) -> RememberOutcome {
        if !done.is_repetition {
            let state = self.state(&tenant.id);
            let mut counts = state.counters.raise();
            *counts.remembered(done.outcome) += 1;
            counts.redacted += redacted as u64;
        }
        self.shared.embedding.add(&tenant.id);
        RememberOutcome { redacted, ..done }
    }

    /// Applies the secret policy, adds absolute dates and validates the fact.
    ///
    /// Relative dates count from `said`, or else from the time of the observation. Returns the
    /// number of redacted secrets, too.
    pub(super) fn admit(
        &self,
        mut fact: Fact,
        said: Option<Timestamp>,
    ) -> Result<(Fact, usize), MemoryError> {
        let config = self.config();
        let mut redacted = admit_texts(Some(&mut fact.content), &mut fact.tags, config.secrets)?;
        redacted += admit_metadata(fact.metadata.as_mut(), config.secrets)?;
        let said = said.or(fact.observed_at).unwrap_or_else(|| self.now());
        fact.content = with_dates(&fact.content, said, config.limits.content_bytes);
        Ok((fact.checked(&config.limits)?, redacted))
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
        let config = self.config();
        let tags = patch.tags.as_deref_mut().unwrap_or_default();
        let mut redacted = admit_texts(patch.content.as_mut(), tags, config.secrets)?;
        let metadata = patch.metadata.as_mut().and_then(Option::as_mut);
        redacted += admit_metadata(metadata, config.secrets)?;
        let now = self.now();
        let said = patch.observed_at.unwrap_or(now);
        patch.content = patch
            .content
            .map(|content| with_dates(&content, said, config.limits.content_bytes));
        let memory = self
            .write(&tenant.id, move |writer| {
                writer.update(id, subject.as_ref(), &patch, now, &config.limits)
            })
            .await?;
        let state = self.state(&tenant.id);
        state.counters.raise().redacted += redacted as u64;
        self.shared.embedding.add(&tenant.id);
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
        let config = self.config();
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
            shape_of(memory).checked(limits).map_err(refused)?;
        }
        let now = self.now();
        let imported = self
            .write(&tenant.id, move |writer| {
                writer.import(&memories, now, &config.limits)
            })
            .await?;
        self.shared.embedding.add(&tenant.id);
        Ok(imported)
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

/// Builds the fact of a request. Its source provides the fields that the request leaves empty.
pub(super) fn fact_of(
    request: RememberRequest,
    found: SourceTurns,
    origin: Origin,
) -> Result<Fact, MemoryError> {
    let subject = request.subject.or(found.subject).ok_or_else(|| {
        let problem = "is empty, and no session says whose memory it is";
        MemoryError::invalid("subject", problem)
    })?;
    let is_said = !request.content.trim().is_empty();
    Ok(Fact {
        subject,
        kind: request.kind,
        visibility: request.visibility,
        polarity: request.polarity,
        content: if is_said { request.content } else { found.text },
        tags: request.tags,
        importance: request.importance.unwrap_or(IMPORTANCE_DEFAULT),
        source: found.source,
        observed_at: request.observed_at.or(found.said_at),
        expires_at: request.expires_at,
        supersedes: request.supersedes,
        pinned: request.pinned,
        near_duplicate: request.near_duplicate,
        origin,
        external_key: request.external_key,
        metadata: request.metadata,
    })
}

/// Converts a memory to a fact, to validate it by the same rules.
fn shape_of(memory: &Memory) -> Fact {
    Fact {
        visibility: memory.visibility,
        polarity: memory.polarity,
        tags: memory.tags.clone(),
        importance: memory.importance,
        source: memory.source.clone(),
        external_key: memory.external_key.clone(),
        metadata: memory.metadata.clone(),
        ..Fact::new(memory.subject.clone(), memory.kind, memory.content.clone())
    }
}
