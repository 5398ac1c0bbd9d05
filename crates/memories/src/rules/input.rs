//! Validation of memories and of changes to them.

use memoird_core::time::Timestamp;

use super::{Memory, MemoryKind, MemoryLimits, Pin, Polarity, Visibility};
use crate::MemoryError;

/// How to handle a fact that an existing memory already states in other words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NearDuplicate {
    /// Merge it into the memory.
    #[default]
    Merge,
    /// Reject it with an error that names the memory.
    Refuse,
    /// Store it as a memory of its own, unless a memory has the same text.
    Keep,
    /// Always store it as a memory of its own.
    Apart,
}

/// Changes to a [`Memory`]. `None` leaves a field unchanged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch {
    pub content: Option<String>,
    pub kind: Option<MemoryKind>,
    pub visibility: Option<Visibility>,
    /// `Some(None)` clears it.
    pub polarity: Option<Option<Polarity>>,
    /// Replaces all tags.
    pub tags: Option<Vec<String>>,
    pub importance: Option<f32>,
    pub observed_at: Option<Timestamp>,
    /// `Some(None)` for never.
    pub expires_at: Option<Option<Timestamp>>,
    /// Whether it comes first in the manifest. `false` removes any pin.
    pub pinned: Option<bool>,
    /// `Some(None)` clears it.
    pub metadata: Option<Option<String>>,
}

/// Importance of a fact that has none set.
pub const IMPORTANCE_DEFAULT: f32 = 0.5;

impl Memory {
    /// Normalizes and validates the fields that a client sets.
    ///
    /// Trims the content and the tags, and sorts and deduplicates the tags and the seqs of the
    /// source.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`].
    pub fn checked(mut self, limits: &MemoryLimits) -> Result<Self, MemoryError> {
        self.content = content(&self.content, limits)?;
        self.tags = tags(&self.tags)?;
        importance(self.importance)?;
        agree(self.kind, self.visibility, self.polarity)?;
        self.external_key.as_deref().map_or(Ok(()), external_key)?;
        self.metadata.as_deref().map_or(Ok(()), metadata)?;
        if let Some(source) = &mut self.source {
            source.seqs = checked_seqs(std::mem::take(&mut source.seqs), limits)?;
        }
        Ok(self)
    }
}

impl Patch {
    /// Normalizes and validates the changes, and applies them.
    ///
    /// They must agree with the fields that stay. Other fields are not validated, because the
    /// limits may have been higher when they were stored.
    ///
    /// # Errors
    /// [`MemoryError::Invalid`].
    pub fn apply(self, memory: &mut Memory, limits: &MemoryLimits) -> Result<(), MemoryError> {
        fn set<T>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        let text = self.content.map(|text| content(&text, limits));
        set(&mut memory.content, text.transpose()?);
        let given = self.tags.map(|given| tags(&given));
        set(&mut memory.tags, given.transpose()?);
        self.importance.map_or(Ok(()), importance)?;
        let given = self.metadata.as_ref().and_then(Option::as_deref);
        given.map_or(Ok(()), metadata)?;
        set(&mut memory.kind, self.kind);
        set(&mut memory.visibility, self.visibility);
        set(&mut memory.polarity, self.polarity);
        set(&mut memory.importance, self.importance);
        set(&mut memory.observed_at, self.observed_at);
        set(&mut memory.expires_at, self.expires_at);
        set(&mut memory.metadata, self.metadata);
        let pin = self.pinned.map(|pinned| pinned.then_some(Pin::Bot));
        set(&mut memory.pin, pin);
        agree(memory.kind, memory.visibility, memory.polarity)
    }
}

/// Sorts, deduplicates and validates seqs.
///
/// # Errors
/// [`MemoryError::Invalid`].
pub(crate) fn checked_seqs(
    mut seqs: Vec<u64>,
    limits: &MemoryLimits,
) -> Result<Vec<u64>, MemoryError> {
    seqs.sort_unstable();
    seqs.dedup();
    let limit = limits.source_seqs;
    if seqs.len() > limit || seqs.first() == Some(&0) {
        let problem = format!("takes up to {limit}, from 1");
        return Err(MemoryError::invalid("source.seqs", problem));
    }
    Ok(seqs)
}

fn content(text: &str, limits: &MemoryLimits) -> Result<String, MemoryError> {
    let text = text.trim();
    let problem = match text.len() {
        0 => "is empty; say the fact in words".to_owned(),
        bytes if bytes > limits.content_bytes => {
            let limit = limits.content_bytes;
            format!("has {bytes} bytes, the limit is {limit}; split it")
        }
        _ => return Ok(text.to_owned()),
    };
    Err(MemoryError::invalid("content", problem))
}

fn tags(given: &[String]) -> Result<Vec<String>, MemoryError> {
    let mut tags: Vec<String> = given.iter().map(|tag| tag.trim().to_owned()).collect();
    tags.sort_unstable();
    tags.dedup();
    if tags.len() > MemoryLimits::TAGS {
        let problem = format!("{} are more than {}", tags.len(), MemoryLimits::TAGS);
        return Err(MemoryError::invalid("tags", problem));
    }
    let limit = MemoryLimits::TAG_BYTES;
    let bad = tags
        .iter()
        .map(String::len)
        .find(|bytes| !(1..=limit).contains(bytes));
    if let Some(bytes) = bad {
        let problem = format!("one has {bytes} bytes; a tag takes 1 to {limit}");
        return Err(MemoryError::invalid("tags", problem));
    }
    Ok(tags)
}

pub(crate) fn external_key(key: &str) -> Result<(), MemoryError> {
    let (bytes, limit) = (key.len(), MemoryLimits::EXTERNAL_KEY_BYTES);
    if (1..=limit).contains(&bytes) && !key.contains('\0') {
        return Ok(());
    }
    let problem = format!("has {bytes} bytes; it takes 1 to {limit}, without U+0000");
    Err(MemoryError::invalid("external_key", problem))
}

fn metadata(json: &str) -> Result<(), MemoryError> {
    let (bytes, limit) = (json.len(), MemoryLimits::METADATA_BYTES);
    if bytes > limit {
        let problem = format!("has {bytes} bytes, the limit is {limit}");
        return Err(MemoryError::invalid("metadata_json", problem));
    }
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json) {
        Ok(_) => Ok(()),
        Err(error) => {
            let problem = format!("is not a JSON object: {error}");
            Err(MemoryError::invalid("metadata_json", problem))
        }
    }
}

fn importance(importance: f32) -> Result<(), MemoryError> {
    if (0.0..=1.0).contains(&importance) {
        return Ok(());
    }
    let problem = format!("{importance} is not between 0 and 1");
    Err(MemoryError::invalid("importance", problem))
}

fn agree(
    kind: MemoryKind,
    visibility: Visibility,
    polarity: Option<Polarity>,
) -> Result<(), MemoryError> {
    if kind == MemoryKind::User && visibility == Visibility::Team {
        let problem = "a memory of kind `user` is always PRIVATE";
        return Err(MemoryError::invalid("visibility", problem));
    }
    if kind != MemoryKind::Feedback && polarity.is_some() {
        let problem = "is for memories of kind `feedback`";
        return Err(MemoryError::invalid("polarity", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::manifest::tests::memory;
    use super::*;

    fn fact(content: &str) -> Memory {
        memory(1, MemoryKind::User, content)
    }

    #[test]
    fn valid_fact_is_normalized() {
        let mut given = fact("  likes tea \n");
        given.tags = vec!["b".into(), " a ".into(), "b".into()];
        let checked = given.checked(&MemoryLimits::default()).unwrap();
        assert_eq!(checked.content, "likes tea");
        assert_eq!(checked.tags, ["a", "b"]);
    }

    #[test]
    fn invalid_field_is_named_in_the_error() {
        let limits = MemoryLimits::default();
        type Spoil = fn(&mut Memory);
        let broken: [(&str, Spoil); 11] = [
            ("content", |fact| fact.content = " \n ".into()),
            ("content", |fact| fact.content = "x".repeat(8 * 1_024 + 1)),
            ("tags", |fact| fact.tags = vec![String::new()]),
            ("tags", |fact| {
                fact.tags = (0..33).map(|n| n.to_string()).collect();
            }),
            ("importance", |fact| fact.importance = f32::NAN),
            ("external_key", |fact| {
                fact.external_key = Some(String::new());
            }),
            ("external_key", |fact| {
                fact.external_key = Some("x".repeat(257));
            }),
            ("metadata_json", |fact| fact.metadata = Some("[]".into())),
            ("metadata_json", |fact| {
                fact.metadata = Some(format!("{{\"a\": \"{}\"}}", "x".repeat(4_096)));
            }),
            ("visibility", |fact| fact.visibility = Visibility::Team),
            ("polarity", |fact| {
                fact.polarity = Some(Polarity::Correction);
            }),
        ];
        for (field, spoil) in broken {
            let mut given = fact("likes tea");
            spoil(&mut given);
            let Err(MemoryError::Invalid { field: named, .. }) = given.checked(&limits) else {
                panic!("{field} was taken");
            };
            assert_eq!(named, field);
        }
    }
}
