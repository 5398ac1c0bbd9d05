//! Documents: names, values, operations and queries, with their validation.

mod filter;

use std::time::Duration;

use memoird_core::idempotency::{Fingerprint, IdempotencyKey, fingerprint};
use memoird_core::time::Timestamp;

use super::MemoryLimits;
use crate::MemoryError;

pub use filter::DocumentFilter;

/// Byte that occurs in no UTF-8 text, so that it sorts after every path and key.
const BEHIND_ALL: u8 = 0xff;

/// The stored form of a namespace: its parts, each terminated by a zero byte.
///
/// Paths therefore sort part by part, and a namespace's path is a prefix of all paths below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacePath(Vec<u8>);

/// Unique name of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentName {
    /// Never empty.
    pub namespace: NamespacePath,
    pub key: String,
}

#[derive(Clone, PartialEq, Eq)]
pub enum DocumentValue {
    /// JSON text as the client sent it.
    Json(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    pub name: DocumentName,
    /// `None` if values were not requested.
    pub value: Option<DocumentValue>,
    /// Size of the value in bytes.
    pub size: u64,
    /// Starts at 1 and increases by 1 with each put.
    pub version: u64,
    /// When version 1 was put.
    pub created_at: Timestamp,
    /// When this version was put.
    pub updated_at: Timestamp,
    /// From this time on, the document does not exist.
    pub expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DocumentGet {
    pub name: DocumentName,
    /// If set, resets the lifetime of an expiring document to this duration from now.
    pub ttl: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DocumentPut {
    pub name: DocumentName,
    pub value: DocumentValue,
    /// Version that the stored document must have; 0 for no document. `None` for any.
    pub expected_version: Option<u64>,
    /// Lifetime from now.
    pub ttl: Option<Duration>,
    /// Idempotency key, in the scope of the document.
    pub idempotency: Option<IdempotencyKey>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StoredDocument {
    /// The document as it was stored, by this put or the original one. Without its value.
    pub document: Document,
    /// Whether the idempotency key was already used, so that nothing was stored.
    pub duplicate: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DocumentDelete {
    pub name: DocumentName,
    /// As in [`DocumentPut`].
    pub expected_version: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DocumentOperation {
    Get(DocumentGet),
    Put(DocumentPut),
    Delete(DocumentDelete),
}

#[derive(Clone, Debug, PartialEq)]
pub enum DocumentOutcome {
    /// The document read by a get.
    Document(Document),
    Absent,
    Stored(StoredDocument),
    /// Whether a delete found the document.
    Deleted(bool),
}

/// A range of namespaces and keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRange {
    /// This namespace and, unless `is_exact` is set, all namespaces below it.
    pub namespace: NamespacePath,
    /// Whether to exclude the namespaces below.
    pub is_exact: bool,
    pub key_prefix: String,
    /// Only keys from this one on, inclusive.
    pub key_from: String,
    /// Only keys before this one. Empty for no limit.
    pub key_before: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentQuery {
    pub range: DocumentRange,
    pub filter: Option<DocumentFilter>,
    pub is_descending: bool,
    pub with_values: bool,
    /// Maximum number of documents in the page.
    pub count: usize,
    /// Only documents after this one, in the order of the page.
    pub after: Option<DocumentName>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DocumentPage {
    pub documents: Vec<Document>,
    /// Cursor of the next page: the last document checked. `None` on the last page.
    pub next: Option<DocumentName>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespaceQuery {
    /// Parts that a namespace must begin with. [`ANY_PART`] matches any part.
    pub prefix: Vec<String>,
    /// Parts that a namespace must end with. [`ANY_PART`] matches any part.
    pub suffix: Vec<String>,
    /// Number of parts to return of each namespace. 0 for all.
    pub depth: usize,
    /// Maximum number of namespaces in the page.
    pub count: usize,
    /// Only paths from these bytes on.
    pub from: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamespacePage {
    /// In order, without duplicates.
    pub namespaces: Vec<NamespacePath>,
    /// Cursor of the next page. `None` on the last page.
    pub next: Option<Vec<u8>>,
}

/// Wildcard for one part of a namespace.
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
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Validates the value.
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
                MemoryError::document_invalid("json", format!("is not JSON: {error}"))
            })?;
        }
        Ok(self)
    }
}

impl NamespacePath {
    pub const PARTS_MAX: usize = 16;
    pub const PART_BYTES_MAX: usize = 256;
    /// Maximum bytes of all parts together.
    pub const BYTES_MAX: usize = 1 << 10;

    /// Builds a path from its parts, of which there may be none.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`] with this field.
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
        if bytes <= limit {
            Ok(Self(path))
        } else {
            invalid(format!("has {bytes} bytes, the limit is {limit}"))
        }
    }

    /// Parses the stored form of a path.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let is_whole = bytes.last().is_none_or(|last| *last == 0);
        (is_whole && str::from_utf8(&bytes).is_ok()).then_some(Self(bytes))
    }

    /// Returns the stored form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.0.split(|byte| *byte == 0);
        let count = self.0.iter().filter(|byte| **byte == 0).count();
        // The path was built from UTF-8 text.
        parts
            .take(count)
            .map(|part| str::from_utf8(part).unwrap_or_default())
    }

    /// Returns the path of the first `depth` parts.
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

    /// Exclusive upper bound of this path and all paths below it.
    pub fn behind(&self) -> Vec<u8> {
        behind(&self.0)
    }

    /// Exclusive upper bound of this path alone. All paths below it sort at or after the bound.
    pub fn behind_itself(&self) -> Vec<u8> {
        let mut bytes = self.0.clone();
        bytes.push(0);
        bytes
    }
}

/// Exclusive upper bound of all texts with this prefix.
///
/// UTF-8 has no byte 0xff, so no byte overflows.
pub(crate) fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut bytes = prefix.to_vec();
    match bytes.last_mut() {
        Some(last) => *last += 1,
        None => bytes.push(BEHIND_ALL),
    }
    bytes
}

impl DocumentName {
    pub const KEY_BYTES_MAX: usize = 512;

    /// Validates a namespace and key, neither of which may be empty.
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

    pub(crate) fn digest(&self) -> Fingerprint {
        fingerprint([self.namespace.as_bytes(), self.key.as_bytes()])
    }
}

impl DocumentRange {
    /// Validates the range.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn checked(mut self) -> Result<Self, MemoryError> {
        self.key_prefix = checked_key("key_prefix", self.key_prefix)?;
        self.key_from = checked_key("key_from", self.key_from)?;
        self.key_before = checked_key("key_before", self.key_before)?;
        Ok(self)
    }

    /// Bounds of the paths: inclusive lower, exclusive upper.
    pub(crate) fn paths(&self) -> (Vec<u8>, Vec<u8>) {
        let before = if self.is_exact {
            self.namespace.behind_itself()
        } else {
            self.namespace.behind()
        };
        (self.namespace.as_bytes().to_vec(), before)
    }

    /// Bounds of the keys: inclusive lower, exclusive upper.
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
    /// Validates the query.
    ///
    /// # Errors
    /// [`MemoryError::DocumentInvalid`].
    pub fn checked(self) -> Result<Self, MemoryError> {
        NamespacePath::parse("prefix", &self.prefix)?;
        NamespacePath::parse("suffix", &self.suffix)?;
        Ok(self)
    }

    /// Bounds of the paths to scan: inclusive lower, exclusive upper.
    pub(crate) fn paths(&self) -> (Vec<u8>, Vec<u8>) {
        let known: Vec<&String> = self
            .prefix
            .iter()
            .take_while(|part| *part != ANY_PART)
            .collect();
        // The whole prefix was validated, so its beginning is valid too.
        let known = NamespacePath::parse("prefix", &known).unwrap_or_default();
        let from = known.as_bytes().max(&self.from[..]).to_vec();
        (from, known.behind())
    }

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
    fn paths_sort_by_part_and_subtrees_are_contiguous() {
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
    fn invalid_names_are_rejected_with_their_field() {
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
    fn key_range_is_the_intersection_of_all_bounds() {
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
    fn star_matches_any_namespace_part() {
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
