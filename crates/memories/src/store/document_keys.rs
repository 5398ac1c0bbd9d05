//! Idempotency keys of puts of documents.
//!
//! They are stored with those of facts, and expire with them. A key belongs to one document.

use memoird_core::CoreError;
use memoird_core::idempotency::{Fingerprint, IdempotencyKey, fingerprint};
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::remember::StoredKey;
use super::sql::{Sql, StoreResult};
use super::time::{after, before, timestamp};
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::rules::MemoryLimits;
use crate::rules::documents::{Document, DocumentPut};

impl MemoryWriter<'_> {
    /// The document that an earlier put with the same idempotency key stored, without its value.
    pub(super) fn put_before(
        &self,
        put: &DocumentPut,
        limits: &MemoryLimits,
        at: Timestamp,
    ) -> StoreResult<Option<Document>> {
        let Some(named) = put.idempotency else {
            return Ok(None);
        };
        let sql = "SELECT content, at, version, created FROM keys WHERE key = ?";
        let found = self.one(sql, params![key_of(put, named)], |row| {
            let stored_at = timestamp(row.get(1)?);
            let document = Document {
                name: put.name.clone(),
                value: None,
                size: put.value.as_bytes().len() as u64,
                version: row.get::<i64>(2)?.unsigned_abs(),
                created_at: timestamp(row.get(3)?),
                updated_at: stored_at,
                expires_at: put.ttl.map(|ttl| after(stored_at, ttl)),
            };
            Ok((row.get::<[u8; 16]>(0)?, document))
        })?;
        match found {
            Some((_, document)) if document.updated_at < before(at, limits.idempotency_span) => {
                Ok(None)
            }
            Some((content, _)) if content != named.content => {
                Err(MemoryError::Core(CoreError::IdempotencyKeyReused))
            }
            found => Ok(found.map(|(_, document)| document)),
        }
    }

    /// Records the idempotency key of a put.
    pub(super) fn keep_put(
        &self,
        put: &DocumentPut,
        stored: &Document,
        limits: &MemoryLimits,
    ) -> StoreResult<()> {
        let Some(named) = put.idempotency else {
            return Ok(());
        };
        let record = StoredKey {
            key: key_of(put, named),
            content: named.content,
            memory: put.name.digest(),
            outcome: 0,
            at: stored.updated_at,
            document: Some((stored.version, stored.created_at)),
        };
        self.store_key(&record, limits)
    }
}

/// The stored form of an idempotency key of a put.
fn key_of(put: &DocumentPut, named: IdempotencyKey) -> Fingerprint {
    fingerprint([&put.name.digest()[..], &named.key])
}
