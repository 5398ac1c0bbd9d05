//! A memory itself, both ways: what a list gives is what an import takes, and nothing of
//! it is lost on the way.

use memoird_core::ids::{MemoryId, Subject};
use memoird_core::time::Timestamp;
use memoird_memories::rules::{Memory, MemoryKind, Origin, Pin, Polarity, Source, Visibility};
use memoird_proto::v1;
use memoird_store::encoding::timestamp_to_proto;
use tonic::Status;

use crate::wire::{from, status, text_or_empty};

/// A memory as it is told.
pub(crate) fn told(memory: &Memory) -> v1::Memory {
    let time = |time: Timestamp| Some(timestamp_to_proto(time));
    v1::Memory {
        id: memory.id.to_string(),
        subject: memory.subject.to_string(),
        kind: told_kind(memory.kind).into(),
        visibility: told_visibility(memory.visibility).into(),
        polarity: told_polarity(memory.polarity).into(),
        content: memory.content.clone(),
        tags: memory.tags.clone(),
        importance: memory.importance,
        source: memory.source.as_ref().map(told_source),
        observed_at: time(memory.observed_at),
        created_at: time(memory.created_at),
        updated_at: time(memory.updated_at),
        expires_at: memory.expires_at.and_then(time),
        superseded_by: text_or_empty(memory.superseded_by),
        reinforced: memory.reinforced,
        recall_count: memory.recalls,
        last_recalled_at: memory.recalled_at.and_then(time),
        pinned: memory.pin.is_some(),
        pinned_by_dream: memory.pin == Some(Pin::Consolidation),
        origin: told_origin(memory.origin).into(),
    }
}

/// A memory as it was told, to be stored as it is. What was left out of its times is when
/// its id says that it was made.
pub(super) fn taken(memory: v1::Memory) -> Result<Memory, Status> {
    let id = memory_id(&memory.id)?;
    let created_at = time("created_at", memory.created_at)?.unwrap_or_else(|| made_at(id));
    let superseded_by = from::optional(&memory.superseded_by, str::parse)?;
    let source = match memory.source {
        None => None,
        Some(source) => Some(Source {
            session: from::session_id(&source.session_id)?,
            generation: from::generation(&source.generation)?,
            seqs: source.seqs,
        }),
    };
    Ok(Memory {
        id,
        subject: Subject::parse(&memory.subject).map_err(from::refused)?,
        kind: kind(memory.kind)?,
        visibility: visibility(memory.visibility)?.unwrap_or_default(),
        polarity: polarity(memory.polarity)?,
        content: memory.content,
        tags: memory.tags,
        importance: memory.importance,
        source,
        observed_at: time("observed_at", memory.observed_at)?.unwrap_or(created_at),
        created_at,
        updated_at: time("updated_at", memory.updated_at)?.unwrap_or(created_at),
        expires_at: time("expires_at", memory.expires_at)?,
        superseded_by,
        reinforced: memory.reinforced,
        recalls: memory.recall_count,
        recalled_at: time("last_recalled_at", memory.last_recalled_at)?,
        pin: match (memory.pinned, memory.pinned_by_dream) {
            (true, true) => Some(Pin::Consolidation),
            (true, false) => Some(Pin::Bot),
            (false, _) => None,
        },
        origin: origin(memory.origin)?,
    })
}

/// A memory's id.
pub(super) fn memory_id(text: &str) -> Result<MemoryId, Status> {
    text.parse().map_err(from::refused)
}

/// One of the four kinds.
pub(super) fn kind(kind: i32) -> Result<MemoryKind, Status> {
    match v1::MemoryKind::try_from(kind) {
        Ok(v1::MemoryKind::User) => Ok(MemoryKind::User),
        Ok(v1::MemoryKind::Feedback) => Ok(MemoryKind::Feedback),
        Ok(v1::MemoryKind::Project) => Ok(MemoryKind::Project),
        Ok(v1::MemoryKind::Reference) => Ok(MemoryKind::Reference),
        Ok(v1::MemoryKind::Unspecified) | Err(_) => Err(from::unknown(
            "MEMORY_KIND_INVALID",
            "kind",
            kind,
            "MemoryKind",
        )),
    }
}

/// Who may recall it; `None` where that is not said.
pub(super) fn visibility(visibility: i32) -> Result<Option<Visibility>, Status> {
    match v1::Visibility::try_from(visibility) {
        Ok(v1::Visibility::Unspecified) => Ok(None),
        Ok(v1::Visibility::Private) => Ok(Some(Visibility::Private)),
        Ok(v1::Visibility::Team) => Ok(Some(Visibility::Team)),
        Err(_) => Err(from::unknown(
            "VISIBILITY_INVALID",
            "visibility",
            visibility,
            "Visibility",
        )),
    }
}

/// Which way it points.
pub(super) fn polarity(polarity: i32) -> Result<Option<Polarity>, Status> {
    match v1::Polarity::try_from(polarity) {
        Ok(v1::Polarity::Unspecified) => Ok(None),
        Ok(v1::Polarity::Correction) => Ok(Some(Polarity::Correction)),
        Ok(v1::Polarity::Confirmation) => Ok(Some(Polarity::Confirmation)),
        Err(_) => Err(from::unknown(
            "POLARITY_INVALID",
            "polarity",
            polarity,
            "Polarity",
        )),
    }
}

/// A moment of this field; `None` where there is none.
pub(crate) fn time(
    field: &'static str,
    time: Option<prost_types::Timestamp>,
) -> Result<Option<Timestamp>, Status> {
    let Some(time) = time else { return Ok(None) };
    let nanos = u32::try_from(time.nanos).ok();
    let moment = nanos.and_then(|nanos| Timestamp::new(time.seconds, nanos));
    moment.map(Some).ok_or_else(|| {
        let problem = format!("{field} is outside the years 1970 to 9999");
        status::invalid("TIMESTAMP_INVALID", problem)
    })
}

fn origin(origin: i32) -> Result<Origin, Status> {
    match v1::MemoryOrigin::try_from(origin) {
        Ok(v1::MemoryOrigin::Unspecified) => Ok(Origin::Bot),
        Ok(v1::MemoryOrigin::Extraction) => Ok(Origin::Extraction),
        Ok(v1::MemoryOrigin::Import) => Ok(Origin::Import),
        Err(_) => {
            let problem = format!("origin is {origin}; leave it as a list gave it");
            Err(status::invalid("ORIGIN_INVALID", problem))
        }
    }
}

/// The moment that a ULID begins with: its first 48 bits, in milliseconds.
fn made_at(id: MemoryId) -> Timestamp {
    let ms = id.to_bytes()[..6]
        .iter()
        .fold(0_i64, |ms, byte| ms << 8 | i64::from(*byte));
    Timestamp::from_ms(ms)
}

fn told_source(source: &Source) -> v1::MemorySource {
    v1::MemorySource {
        session_id: source.session.to_string(),
        generation: text_or_empty(source.generation),
        seqs: source.seqs.clone(),
    }
}

fn told_kind(kind: MemoryKind) -> v1::MemoryKind {
    match kind {
        MemoryKind::User => v1::MemoryKind::User,
        MemoryKind::Feedback => v1::MemoryKind::Feedback,
        MemoryKind::Project => v1::MemoryKind::Project,
        MemoryKind::Reference => v1::MemoryKind::Reference,
    }
}

fn told_visibility(visibility: Visibility) -> v1::Visibility {
    match visibility {
        Visibility::Private => v1::Visibility::Private,
        Visibility::Team => v1::Visibility::Team,
    }
}

fn told_polarity(polarity: Option<Polarity>) -> v1::Polarity {
    match polarity {
        None => v1::Polarity::Unspecified,
        Some(Polarity::Correction) => v1::Polarity::Correction,
        Some(Polarity::Confirmation) => v1::Polarity::Confirmation,
    }
}

fn told_origin(origin: Origin) -> v1::MemoryOrigin {
    match origin {
        Origin::Bot => v1::MemoryOrigin::Unspecified,
        Origin::Extraction => v1::MemoryOrigin::Extraction,
        Origin::Import => v1::MemoryOrigin::Import,
    }
}
