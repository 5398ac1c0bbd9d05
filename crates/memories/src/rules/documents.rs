//! What documents are: how they are named, what they hold, and what is asked of them.

mod filter;

use std::time::Duration;

use memoird_core::time::Timestamp;

use super::MemoryLimits;
use crate::MemoryError;

pub use filter::DocumentFilter;

/// No byte of a text: behind every path and every key.
const BEHIND_ALL: u8 = 0xff;

/// The path of a namespace as it is stored: a zero byte ends each part. So paths sort part by
/// part, and all that is below one begins with its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacePath(Vec<u8>);

/// What a document is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentName {
    /// Its namespace, which is not empty.
    pub namespace: NamespacePath,
    /// Its key in there.
    pub key: String,
}

/// What a document holds.
#[derive(Clone, PartialEq, Eq)]
pub enum DocumentValue {
    /// JSON, as it was put.
    Json(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A document.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// What it is found by.
    pub name: DocumentName,
    /// What it holds; `None` where that was not asked for.
    pub value: Option<DocumentValue>,
    /// Bytes of its value.
    pub size: u64,
    /// From 1; one more with each Put.
    pub version: u64,
    /// When version 1 was put.
    pub created_at: Timestamp,
    /// When this version was put.
    pub updated_at: Timestamp,
    /// From when on it is not there.
    pub expires_at: Option<Timestamp>,
}

/// Reads a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentGet {
    /// Which.
    pub name: DocumentName,
    /// How long it lives from now on, where it expires.
    pub ttl: Option<Duration>,
}

/// Stores a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentPut {
    /// What it is found by.
    pub name: DocumentName,
    /// What it holds.
    pub value: DocumentValue,
    /// The version that has to be there; 0: none. `None`: whatever is there.
    pub expected_version: Option<u64>,
    /// How long it lives.
    pub ttl: Option<Duration>,
}

/// Removes a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentDelete {
    /// Which.
    pub name: DocumentName,
    /// As in [`DocumentPut`].
    pub expected_version: Option<u64>,
}

/// One of several operations.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentOperation {
    /// Reads.
    Get(DocumentGet),
    /// Stores.
    Put(DocumentPut),
    /// Removes.
    Delete(DocumentDelete),
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentOutcome {
    /// Of a Get, where it is there; of a Put, without its value.
    Document(Document),
    /// There is none.
    Absent,
    /// Of a Delete; false: there was none.
    Deleted(bool),
}

/// Documents of some namespaces and keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRange {
    /// In this namespace, and in all below it;
    pub namespace: NamespacePath,
    /// or, where this is true, in exactly this one.
    pub is_exact: bool,
    /// Only keys that begin so.
    pub key_prefix: String,
    /// Only this key and those behind it.
    pub key_from: String,
    /// Only keys before this one; empty: all.
    pub key_before: String,
}

/// Asks for a page of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentQuery {
    /// Of which namespaces and keys.
    pub range: DocumentRange,
    /// Only those that fit.
    pub filter: Option<DocumentFilter>,
    /// The last one first.
    pub is_descending: bool,
    /// With their values.
    pub with_values: bool,
    /// At most so many.
    pub count: usize,
    /// Only those that come after this one.
    pub after: Option<DocumentName>,
}

/// A page of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentPage {
    /// In their order.
    pub documents: Vec<Document>,
    /// The last one that was looked at; `None` on the last page.
    pub next: Option<DocumentName>,
}

/// Asks for a page of namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceQuery {
    /// What they begin with; [`ANY_PART`] stands for any part.
    pub prefix: Vec<String>,
    /// What they end with, alike.
    pub suffix: Vec<String>,
    /// So many parts of each are told; 0: all.
    pub depth: usize,
    /// At most so many.
    pub count: usize,
    /// Only from these bytes of a path on.
    pub from: Vec<u8>,
}

/// A page of namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespacePage {
    /// In their order, each once.
    pub namespaces: Vec<NamespacePath>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<Vec<u8>>,
}

/// Stands for any part of a namespace.
pub const ANY_PART: &str = "*";

impl std::fmt::Debug for DocumentValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.as_bytes().len();
        match self {
            Self::Json(_) => write!(f, "Json({bytes} bytes)"),
            Self::Bytes(_) => write!(f, "Bytes({bytes})"),
        }
    }
}

impl DocumentValue {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Says whether it keeps the rules.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn checked(self, limits: &MemoryLimits) -> Result<Self, MemoryError> {
        let (bytes, limit) = (self.as_bytes().len(), limits.document_bytes);
        if bytes > limit {
            let problem = format!("has {bytes} bytes, the limit is {limit} (document_bytes)");
            return Err(MemoryError::document_invalid("value", problem));
        }
        if let Self::Json(text) = &self {
            let parsed = serde_json::from_str::<serde::de::IgnoredAny>(text);
            parsed.map_err(|error| {
                MemoryError::document_invalid("json", format!("is no JSON: {error}"))
            })?;
        }
        Ok(self)
    }
}

impl NamespacePath {
    /// Parts of a path.
    pub const PARTS_MAX: usize = 16;
    /// Bytes of one part.
    pub const PART_BYTES_MAX: usize = 256;
    /// Bytes of all parts together.
    pub const BYTES_MAX: usize = 1 << 10;

    /// A path of these parts, none included.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`] of this field.
    pub fn parse<T: AsRef<str>>(field: &'static str, parts: &[T]) -> Result<Self, MemoryError> {
        let invalid = |problem: String| Err(MemoryError::document_invalid(field, problem));
        if parts.len() > Self::PARTS_MAX {
            let limit = Self::PARTS_MAX;
            return invalid(format!("has {} parts, the limit is {limit}", parts.len()));
        }
        let mut path = Vec::new();
        for (index, part) in parts.iter().map(AsRef::as_ref).enumerate() {
            let (bytes, limit) = (part.len(), Self::PART_BYTES_MAX);
            if bytes > limit {
                let problem = format!("part {index} has {bytes} bytes, the limit is {limit}");
                return invalid(problem);
            }
            if part.contains('\0') {
                return invalid(format!("part {index} has the character U+0000"));
            }
            path.extend_from_slice(part.as_bytes());
            path.push(0);
        }
        let (bytes, limit) = (path.len() - parts.len(), Self::BYTES_MAX);
        match bytes <= limit {
            true => Ok(Self(path)),
            false => invalid(format!("has {bytes} bytes, the limit is {limit}")),
        }
    }

    /// The path that was stored as these bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let is_whole = bytes.last().is_none_or(|last| *last == 0);
        (is_whole && str::from_utf8(&bytes).is_ok()).then_some(Self(bytes))
    }

    /// As it is stored.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True where it has no part.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its parts.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.0.split(|byte| *byte == 0);
        let count = self.0.iter().filter(|byte| **byte == 0).count();
        // It was made of text.
        parts
            .take(count)
            .map(|part| str::from_utf8(part).unwrap_or_default())
    }

    /// The first so many parts of it.
    #[must_use]
    pub fn first(&self, depth: usize) -> Self {
        let ends = self.0.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let end = match depth {
            0 => 0,
            depth => ends
                .map(|(index, _)| index + 1)
                .nth(depth - 1)
                .unwrap_or(self.0.len()),
        };
        Self(self.0[..end].to_vec())
    }

    /// The first bytes behind it and all that is below it.
    pub fn behind(&self) -> Vec<u8> {
        behind(&self.0)
    }

    /// The first bytes behind it; what is below it comes behind them.
    pub fn behind_itself(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.push(0);
        bytes
    }
}

/// The first bytes behind all that begins with these, which is text: it has no byte 0xff.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut bytes = prefix.to_vec();
    match bytes.last_mut() {
        Some(last) => *last += 1,
        None => bytes.push(BEHIND_ALL),
    }
    bytes
}

impl DocumentName {
    /// Bytes of a key.
    pub const KEY_BYTES_MAX: usize = 512;

    /// The name of a document.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn parse(namespace: &[String], key: String) -> Result<Self, MemoryError> {
        let namespace = NamespacePath::parse("namespace", namespace)?;
        if namespace.is_empty() {
            let problem = "has no part; name at least one";
            return Err(MemoryError::document_invalid("namespace", problem));
        }
        if key.is_empty() {
            return Err(MemoryError::document_invalid("key", "is empty"));
        }
        let key = checked_key("key", key)?;
        Ok(Self { namespace, key })
    }
}

impl DocumentRange {
    /// Says whether it keeps the rules.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn checked(mut self) -> Result<Self, MemoryError> {
        self.key_prefix = checked_key("key_prefix", self.key_prefix)?;
        self.key_from = checked_key("key_from", self.key_from)?;
        self.key_before = checked_key("key_before", self.key_before)?;
        Ok(self)
    }

    /// From which path on, and before which.
    pub(crate) fn paths(&self) -> (Vec<u8>, Vec<u8>) {
        let before = match self.is_exact {
            true => self.namespace.behind_itself(),
            false => self.namespace.behind(),
        };
        (self.namespace.as_bytes().to_vec(), before)
    }

    /// From which key on, and before which.
    pub(crate) fn keys(&self) -> (Vec<u8>, Vec<u8>) {
        let from = self.key_prefix.as_str().max(&self.key_from);
        let prefix = behind(self.key_prefix.as_bytes());
        let before = match self.key_before.as_bytes() {
            [] => prefix,
            before => prefix.min(before.to_vec()),
        };
        (from.as_bytes().to_vec(), before)
    }
}

fn checked_key(field: &'static str, key: String) -> Result<String, MemoryError> {
    let (bytes, limit) = (key.len(), DocumentName::KEY_BYTES_MAX);
    if bytes > limit {
        let problem = format!("has {bytes} bytes, the limit is {limit}");
        return Err(MemoryError::document_invalid(field, problem));
    }
    if key.contains('\0') {
        return Err(MemoryError::document_invalid(
            field,
            "has the character U+0000",
        ));
    }
    Ok(key)
}

impl NamespaceQuery {
    /// Says whether it keeps the rules.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn checked(self) -> Result<Self, MemoryError> {
        NamespacePath::parse("prefix", &self.prefix)?;
        NamespacePath::parse("suffix", &self.suffix)?;
        Ok(self)
    }

    /// From which path on it is looked, and before which.
    pub(crate) fn paths(&self) -> (Vec<u8>, Vec<u8>) {
        let known: Vec<&String> = self
            .prefix
            .iter()
            .take_while(|part| *part != ANY_PART)
            .collect();
        // It was checked: the beginning of a path is one.
        let known = NamespacePath::parse("prefix", &known).unwrap_or_default();
        let from = known.as_bytes().max(&self.from[..]).to_vec();
        (from, known.behind())
    }

    /// True of a namespace that is meant.
    pub(crate) fn takes(&self, path: &NamespacePath) -> bool {
        let parts: Vec<&str> = path.parts().collect();
        let fits = |wanted: &[String], parts: &[&str]| {
            let mut pairs = wanted.iter().zip(parts);
            pairs.all(|(wanted, part)| wanted == ANY_PART || wanted == part)
        };
        let (first, last) = (self.prefix.len(), self.suffix.len());
        parts.len() >= first.max(last)
            && fits(&self.prefix, &parts[..first])
            && fits(&self.suffix, &parts[parts.len() - last..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(parts: &[&str]) -> NamespacePath {
        NamespacePath::parse("namespace", parts).unwrap()
    }

    #[test]
    fn paths_sort_part_by_part_and_what_is_below_one_lies_together() {
        let sorted = [
            path(&[]),
            path(&[""]),
            path(&["", "a"]),
            path(&["a"]),
            path(&["a", ""]),
            path(&["a", "b"]),
            path(&["a", "b", "c"]),
            path(&["a", "ba"]),
            path(&["a\u{1}"]),
            path(&["ab"]),
            path(&["ä"]),
        ];
        assert!(sorted.is_sorted());
        for one in &sorted {
            let parts: Vec<&str> = one.parts().collect();
            for other in &sorted {
                let others: Vec<&str> = other.parts().collect();
                let is_below = others.starts_with(&parts);
                let is_between = one <= other && other.as_bytes() < one.behind().as_slice();
                assert_eq!(is_below, is_between, "{parts:?} {others:?}");
                let is_it = one.as_bytes() <= other.as_bytes()
                    && other.as_bytes() < one.behind_itself().as_slice();
                assert_eq!(one == other, is_it, "{parts:?} {others:?}");
            }
            assert_eq!(path(&parts), *one);
            assert_eq!(one.first(1).parts().count(), parts.len().min(1));
        }
    }

    #[test]
    fn names_that_break_a_rule_are_refused_by_their_field() {
        let long = |bytes| "x".repeat(bytes);
        let bad = [
            ("namespace", vec![], "k".to_owned()),
            ("namespace", vec![String::new(); 17], "k".to_owned()),
            ("namespace", vec![long(257)], "k".to_owned()),
            ("namespace", vec![long(256); 5], "k".to_owned()),
            ("namespace", vec!["a\0".to_owned()], "k".to_owned()),
            ("key", vec![long(1)], String::new()),
            ("key", vec![long(1)], long(513)),
            ("key", vec![long(1)], "a\0".to_owned()),
        ];
        for (expected, namespace, key) in bad {
            let refused = DocumentName::parse(&namespace, key).unwrap_err();
            let MemoryError::DocumentInvalid { field, .. } = refused else {
                panic!("{refused}");
            };
            assert_eq!(field, expected);
        }
        DocumentName::parse(&vec![long(256); 4], long(512)).unwrap();
        DocumentName::parse(&[String::new()], "k".to_owned()).unwrap();
    }

    #[test]
    fn keys_are_bounded_by_all_that_is_said_of_them() {
        let range = DocumentRange {
            key_prefix: "b".into(),
            key_from: "bc".into(),
            key_before: "x".into(),
            ..DocumentRange::default()
        };
        assert_eq!(range.keys(), (b"bc".to_vec(), b"c".to_vec()));
        let all = DocumentRange::default();
        assert_eq!(all.keys(), (Vec::new(), vec![0xff]));
        assert_eq!(all.paths(), (Vec::new(), vec![0xff]));
    }

    #[test]
    fn a_star_stands_for_any_part_of_a_namespace() {
        let query = |prefix: &[&str], suffix: &[&str]| NamespaceQuery {
            prefix: prefix.iter().map(|part| (*part).to_owned()).collect(),
            suffix: suffix.iter().map(|part| (*part).to_owned()).collect(),
            ..NamespaceQuery::default()
        };
        let abc = path(&["a", "b", "c"]);
        assert!(query(&["a", "*"], &["*", "c"]).takes(&abc));
        assert!(query(&[], &[]).takes(&abc));
        assert!(!query(&["*", "a"], &[]).takes(&abc));
        assert!(!query(&["a"], &["a"]).takes(&abc));
        assert!(!query(&["*", "*", "*", "*"], &[]).takes(&abc));
    }
}
