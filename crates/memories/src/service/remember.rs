//! Remembering a fact: resolve its source, redact secrets, validate it, store it.

use std::sync::Arc;

use memoird_core::ids::{MemoryId, Subject};
use memoird_engine::Tenant;
use serde_json::Value;

use super::Memories;
use super::sources::SourceTurns;
use crate::embedder::Purpose;
use crate::error::MemoryError;
use crate::requests::{RememberOutcome, RememberRequest};
use crate::rules::dates::with_dates;
use crate::rules::secrets::{self, SecretPolicy};
use crate::rules::{Memory, MemoryLimits, NearDuplicate, Origin, Patch};
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
        let given = self.given_vector(request.vector.clone())?;
        let mut command = self.command(request, found, Origin::Bot)?;
        let is_given = given.is_some();
        let content = &command.memory.content;
        command.vector = match command.near_duplicate {
            _ if is_given => given,
            // Only a rejection must be known before the reply. Other near-duplicates are merged in
            // the background.
            NearDuplicate::Refuse => self
                .vector_of(Purpose::Memory, content)
                .await
                .ok()
                .flatten(),
            NearDuplicate::Merge | NearDuplicate::Keep | NearDuplicate::Apart => None,
        };
        let config = self.config();
        let prepared = Prepared::of(&command.memory.content);
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
        self.note_outcome(tenant, &done);
        Ok(done)
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
        let (config, now) = (self.config(), self.now());
        let subject = request.subject.take().or(found.subject).ok_or_else(|| {
            let problem = "is empty, and no session says whose memory it is";
            MemoryError::invalid("subject", problem)
        })?;
        if request.content.trim().is_empty() {
            request.content = found.text;
        }
        request.observed_at = request.observed_at.or(found.said_at);
        request.source = found.source;
        let (id, cosine_min) = (self.next_id(now), config.near_duplicate_cosine);
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
            let state = self.state(&tenant.id);
            let mut counts = state.counters.raise();
            *counts.remembered(done.outcome) += 1;
            counts.redacted += done.redacted as u64;
        }
        self.shared.embedding.add(&tenant.id);
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
            memory.clone().checked(limits).map_err(refused)?;
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
