//! Memories as JSON: what `--json` prints, what an export writes and an import reads. The
//! contract's own names; what is not there is left out, and nothing else.

use memoird_proto::v1::{
    Memory, MemoryKind, MemoryOrigin, MemorySource, Polarity, RecallHit, RecallMode,
    RecallResponse, Visibility,
};
use prost_types::Timestamp;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

use crate::cli::json::{put_text, time};

/// A memory, whole.
pub(super) fn memory(memory: &Memory) -> Value {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
    put("id", memory.id.as_str().into());
    put("subject", memory.subject.as_str().into());
    put(
        "kind",
        name_of(memory.kind, |kind: MemoryKind| kind.as_str_name()),
    );
    put(
        "visibility",
        name_of(memory.visibility, |seen: Visibility| seen.as_str_name()),
    );
    if memory.polarity != 0 {
        put(
            "polarity",
            name_of(memory.polarity, |points: Polarity| points.as_str_name()),
        );
    }
    put("content", memory.content.as_str().into());
    if !memory.tags.is_empty() {
        put("tags", json!(memory.tags));
    }
    put("importance", memory.importance.into());
    if let Some(from) = &memory.source {
        put("source", source(from));
    }
    for (name, moment) in [
        ("observed_at", &memory.observed_at),
        ("created_at", &memory.created_at),
        ("updated_at", &memory.updated_at),
        ("expires_at", &memory.expires_at),
        ("last_recalled_at", &memory.last_recalled_at),
    ] {
        if moment.is_some() {
            put(name, time(moment.as_ref()));
        }
    }
    for (name, count) in [
        ("reinforced", memory.reinforced),
        ("recall_count", memory.recall_count),
    ] {
        if count != 0 {
            put(name, count.into());
        }
    }
    for (name, is_so) in [
        ("pinned", memory.pinned),
        ("pinned_by_dream", memory.pinned_by_dream),
    ] {
        if is_so {
            put(name, true.into());
        }
    }
    if memory.origin != 0 {
        put(
            "origin",
            name_of(memory.origin, |origin: MemoryOrigin| origin.as_str_name()),
        );
    }
    put_text(&mut object, "superseded_by", &memory.superseded_by);
    Value::Object(object)
}

/// What was found.
pub(super) fn recalled(found: &RecallResponse) -> Value {
    json!({
        "hits": found.hits.iter().map(hit).collect::<Vec<_>>(),
        "mode": name_of(found.mode, |mode: RecallMode| mode.as_str_name()),
        "degraded": found.degraded,
        "notes": found.notes,
    })
}

fn hit(hit: &RecallHit) -> Value {
    json!({
        "memory": hit.memory.as_ref().map(memory),
        "score": hit.score,
        "lexical_rank": hit.lexical_rank,
        "vector_rank": hit.vector_rank,
        "age": hit.age.as_ref().map(ToString::to_string),
    })
}

fn source(source: &MemorySource) -> Value {
    let mut object = Map::new();
    put_text(&mut object, "session_id", &source.session_id);
    put_text(&mut object, "generation", &source.generation);
    if !source.seqs.is_empty() {
        object.insert("seqs".to_owned(), json!(source.seqs));
    }
    Value::Object(object)
}

/// The name of an enum's value; the number where this memoird knows no name.
fn name_of<E: TryFrom<i32>>(number: i32, name: impl Fn(E) -> &'static str) -> Value {
    E::try_from(number).map_or_else(|_| number.into(), |value| name(value).into())
}

/// A line of an export. What it has beside these fields is refused: it would be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    id: String,
    subject: String,
    #[serde(deserialize_with = "kind")]
    kind: i32,
    #[serde(default, deserialize_with = "visibility")]
    visibility: i32,
    #[serde(default, deserialize_with = "polarity")]
    polarity: i32,
    content: String,
    #[serde(default)]
    tags: Vec<String>,
    importance: f32,
    #[serde(default)]
    source: Option<SourceLine>,
    #[serde(default)]
    observed_at: Option<Moment>,
    #[serde(default)]
    created_at: Option<Moment>,
    #[serde(default)]
    updated_at: Option<Moment>,
    #[serde(default)]
    expires_at: Option<Moment>,
    #[serde(default)]
    last_recalled_at: Option<Moment>,
    #[serde(default)]
    reinforced: u64,
    #[serde(default)]
    recall_count: u64,
    #[serde(default)]
    pinned: bool,
    #[serde(default)]
    pinned_by_dream: bool,
    #[serde(default, deserialize_with = "origin")]
    origin: i32,
    #[serde(default)]
    superseded_by: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceLine {
    #[serde(default)]
    session_id: String,
    #[serde(default)]
    generation: String,
    #[serde(default)]
    seqs: Vec<u64>,
}

/// A time in RFC 3339.
struct Moment(Timestamp);

impl From<Line> for Memory {
    fn from(line: Line) -> Self {
        let moment = |moment: Option<Moment>| moment.map(|moment| moment.0);
        Self {
            id: line.id,
            subject: line.subject,
            kind: line.kind,
            visibility: line.visibility,
            polarity: line.polarity,
            content: line.content,
            tags: line.tags,
            importance: line.importance,
            source: line.source.map(|source| MemorySource {
                session_id: source.session_id,
                generation: source.generation,
                seqs: source.seqs,
            }),
            observed_at: moment(line.observed_at),
            created_at: moment(line.created_at),
            updated_at: moment(line.updated_at),
            expires_at: moment(line.expires_at),
            superseded_by: line.superseded_by,
            reinforced: line.reinforced,
            recall_count: line.recall_count,
            last_recalled_at: moment(line.last_recalled_at),
            pinned: line.pinned,
            pinned_by_dream: line.pinned_by_dream,
            origin: line.origin,
        }
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let problem = || de::Error::custom(format!("{text:?} is no time of RFC 3339"));
        text.parse().map(Self).map_err(|_| problem())
    }
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    value_of(deserializer, |name| {
        MemoryKind::from_str_name(name).map(Into::into)
    })
}

fn visibility<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    value_of(deserializer, |name| {
        Visibility::from_str_name(name).map(Into::into)
    })
}

fn polarity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    value_of(deserializer, |name| {
        Polarity::from_str_name(name).map(Into::into)
    })
}

fn origin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    value_of(deserializer, |name| {
        MemoryOrigin::from_str_name(name).map(Into::into)
    })
}

/// The number of an enum's value by its name.
fn value_of<'de, D: Deserializer<'de>>(
    deserializer: D,
    number: impl Fn(&str) -> Option<i32>,
) -> Result<i32, D::Error> {
    let name = String::deserialize(deserializer)?;
    number(&name).ok_or_else(|| de::Error::custom(format!("{name:?} is not known here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Memory {
        let at = |seconds, nanos| Some(Timestamp { seconds, nanos });
        Memory {
            id: "01ARYZ6S410000000000000000".into(),
            subject: "ann\n\u{1b}".into(),
            kind: MemoryKind::Feedback.into(),
            visibility: Visibility::Team.into(),
            polarity: Polarity::Correction.into(),
            content: "„Tee“, \"black\"\nno \\ sugar \u{1f375}".into(),
            tags: vec!["a b".into(), "c".into()],
            importance: 0.1,
            source: Some(MemorySource {
                session_id: "chat".into(),
                generation: "01ARYZ6S410000000000000001".into(),
                seqs: vec![1, u64::MAX],
            }),
            observed_at: at(1, 5),
            created_at: at(2, 120_000_000),
            updated_at: at(253_402_300_799, 999_999_999),
            expires_at: at(0, 0),
            superseded_by: "01ARYZ6S410000000000000002".into(),
            reinforced: u64::MAX,
            recall_count: 9_007_199_254_740_993,
            last_recalled_at: at(7, 1_000),
            pinned: true,
            pinned_by_dream: true,
            origin: MemoryOrigin::Extraction.into(),
        }
    }

    fn read(line: &str) -> Result<Memory, serde_json::Error> {
        serde_json::from_str::<Line>(line).map(Memory::from)
    }

    #[test]
    fn a_memory_is_the_same_behind_an_export_and_an_import() {
        let bare = Memory {
            id: "01ARYZ6S410000000000000000".into(),
            subject: "ann".into(),
            kind: MemoryKind::User.into(),
            visibility: Visibility::Private.into(),
            ..Memory::default()
        };
        let small = Memory {
            importance: f32::MIN_POSITIVE,
            ..bare.clone()
        };
        for told in [whole(), bare, small] {
            let line = memory(&told).to_string();
            assert!(!line.contains('\n'), "{line}");
            let again = read(&line).expect("a memory");
            assert_eq!(again, told);
            assert_eq!(memory(&again).to_string(), line);
        }
    }

    #[test]
    fn what_would_be_lost_is_refused() {
        let with = |name: &str, value: Value| {
            let mut line = memory(&whole());
            line[name] = value;
            read(&line.to_string()).expect_err(name).to_string()
        };
        assert!(with("colour", "red".into()).contains("colour"));
        assert!(with("kind", "MEMORY_KIND_JOKE".into()).contains("MEMORY_KIND_JOKE"));
        assert!(with("created_at", "yesterday".into()).contains("RFC 3339"));
        assert!(with("reinforced", json!(-1)).contains("u64"));
        assert!(read("{\"id\": \"x\"}").is_err());
    }
}
