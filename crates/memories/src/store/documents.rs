//! Storage of documents: puts, lookups by name, ordered scans, and deletion.
//!
//! Each part of a stored path ends with a zero byte, so that all paths below a namespace are one
//! index range. Another index finds the newest key of a namespace in one step. The number of a
//! tenant's documents and their bytes are stored separately. A filtered list checks a bounded
//! number of documents.

use memoird_core::idempotency::fingerprint;
use memoird_core::time::Timestamp;
use rusqlite::{ToSql, params};

use super::checksum::{DamageLog, document_checksum, is_whole};
use super::reader::MemoryReader;
use super::row::{damaged, limit, whole};
use super::sql::{Row, Sql, StoreResult};
use super::time::{after, moment, timestamp};
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::rules::MemoryLimits;
use crate::rules::documents::{
    Document, DocumentDelete, DocumentFilter, DocumentGet, DocumentName, DocumentOperation,
    DocumentOutcome, DocumentPage, DocumentPut, DocumentQuery, DocumentRange, DocumentValue,
    NamespacePage, NamespacePath, NamespaceQuery, StoredDocument,
};

/// Bytes of values after which a page ends. By default, clients accept messages of 4 MiB.
const PAGE_BYTES_MAX: u64 = 2 << 20;
/// Maximum documents that a filtered page checks.
const LOOKED_AT_MAX: usize = 10_000;
/// Maximum bytes of values that a filtered page checks.
const LOOKED_AT_BYTES_MAX: u64 = 32 << 20;
/// Documents per read, without values.
const LISTED_AT_ONCE: usize = 32;
/// Documents per read, with values of up to 4 MiB each.
pub(super) const VALUES_AT_ONCE: usize = 8;
/// Maximum namespaces that a page of namespaces checks.
const NAMESPACES_MAX: usize = 10_000;
/// Namespaces per query.
const NAMESPACES_AT_ONCE: usize = 256;
/// Maximum bytes that one step deletes, because deleting overwrites them.
const STEP_BYTES_MAX: u64 = 16 << 20;
/// Maximum expired documents to delete to make room for a new one.
const MADE_ROOM: usize = 500;

/// Stored form of a value.
const BYTES: u8 = 0;
const JSON: u8 = 1;

/// A stored document, or the name of one that is damaged, if that can be read.
pub(super) type CheckedDocument = Result<Document, Option<DocumentName>>;

/// The columns that [`read`] expects, and the number of the document.
pub(super) const SELECT: &str = "SELECT path, key, version, created, updated, expires, form,
    length(value), value, checksum, documents.no
    FROM documents CROSS JOIN namespaces ON namespaces.no = namespace";
/// Index of the number.
pub(super) const NO: usize = 10;

/// A document row without its value.
struct DocumentRow {
    no: i64,
    namespace: i64,
    version: u64,
    created: i64,
    expires: Option<i64>,
    size: u64,
    /// Whether one of these fields is damaged.
    is_damaged: bool,
}

/// A row to delete.
struct DeletedRow {
    no: i64,
    namespace: i64,
    /// Bytes of its value, key and namespace.
    bytes: u64,
}

/// Ranges of paths and keys to scan. Lower bounds are inclusive, upper bounds exclusive.
struct Span {
    paths: (Vec<u8>, Vec<u8>),
    keys: (Vec<u8>, Vec<u8>),
}

/// SQL for the live rows of a span.
const WITHIN: &str = "FROM namespaces CROSS JOIN documents ON namespace = namespaces.no
    WHERE path >= ? AND path < ? AND key >= ? AND key < ? AND (expires IS NULL OR expires > ?)";

impl Span {
    fn parameters<'a>(&'a self, now: &'a i64) -> [&'a dyn ToSql; 5] {
        let (paths, keys) = (&self.paths, &self.keys);
        [&paths.0, &paths.1, &keys.0, &keys.1, now]
    }
}

impl MemoryReader<'_> {
    /// Returns a document with its value.
    ///
    /// # Errors
    /// [`MemoryError::DocumentDamaged`].
    pub fn document(&self, name: &DocumentName, now: Timestamp) -> StoreResult<Option<Document>> {
        let sql =
            "SELECT path, key, version, created, updated, expires, form, length(value), value,
            checksum FROM namespaces CROSS JOIN documents ON namespace = namespaces.no
            WHERE path = ? AND key = ? AND (expires IS NULL OR expires > ?)";
        let parameters = params![name.namespace.as_bytes(), name.key.as_bytes(), moment(now)];
        let found = self.one(sql, parameters, read)?;
        found
            .map(|document| document.map_err(|_| self.damaged_document(name)))
            .transpose()
    }

    /// Records a damaged document, and returns the error of the call that requested it.
    fn damaged_document(&self, name: &DocumentName) -> MemoryError {
        self.damage.note(|| described(Some(name)));
        MemoryError::DocumentDamaged {
            key: name.key.clone(),
        }
    }

    /// Lists a page of documents.
    ///
    /// Without a filter, it contains at least one document if there are any. Damaged ones are left
    /// out.
    pub fn documents(&self, query: &DocumentQuery, now: Timestamp) -> StoreResult<DocumentPage> {
        let mut listing = Listing {
            query,
            page: DocumentPage::default(),
            last: None,
            is_full: false,
            bytes: 0,
            looked_at: 0,
            looked_at_bytes: 0,
            damage: self.damage,
        };
        let direction = if query.is_descending { "DESC" } else { "ASC" };
        let (value, at_once) = if query.with_values || query.filter.is_some() {
            ("value", VALUES_AT_ONCE)
        } else {
            ("NULL", LISTED_AT_ONCE)
        };
        let sql = format!(
            "SELECT path, key, version, created, updated, expires, form, length(value), {value},
             checksum {WITHIN} ORDER BY path {direction}, key {direction}"
        );
        for span in spans(query, query.after.as_ref()) {
            self.each(&sql, &span.parameters(&moment(now)), at_once, |row| {
                if listing.is_full {
                    // There is another document, so this is not the last page.
                    listing.page.next = listing.last.take();
                    return Ok(false);
                }
                listing.look_at(row)?;
                Ok(true)
            })?;
            if listing.page.next.is_some() {
                break;
            }
        }
        Ok(listing.page)
    }

    /// Lists a page of namespaces that contain documents.
    pub fn namespaces(&self, query: &NamespaceQuery, now: Timestamp) -> StoreResult<NamespacePage> {
        let sql = "SELECT path FROM namespaces WHERE path >= ? AND path < ?
            AND EXISTS (SELECT 1 FROM documents WHERE namespace = namespaces.no
                AND (expires IS NULL OR expires > ?))
            ORDER BY path LIMIT ?";
        let (mut from, before) = query.paths();
        let mut page = NamespacePage::default();
        let mut looked_at = 0;
        loop {
            let parameters = params![from, before, moment(now), limit(NAMESPACES_AT_ONCE)];
            let found = self.all(sql, parameters, read_path)?;
            let is_last = found.len() < NAMESPACES_AT_ONCE;
            for path in found {
                // Its truncated path is already in the page.
                if path.as_bytes() < from.as_slice() {
                    continue;
                }
                if page.namespaces.len() >= query.count || looked_at >= NAMESPACES_MAX {
                    page.next = Some(from);
                    return Ok(page);
                }
                looked_at += 1;
                from = path.behind_itself();
                if !query.takes(&path) {
                    continue;
                }
                let told = match query.depth {
                    0 => path,
                    depth => path.first(depth),
                };
                if query.depth > 0 && told.parts().count() == query.depth {
                    from = told.behind();
                }
                page.namespaces.push(told);
            }
            if is_last {
                return Ok(page);
            }
        }
    }

    /// Runs a batch of reads.
    ///
    /// # Errors
    /// [`MemoryError::DocumentsTooLarge`], or if the memories cannot be read.
    pub fn document_reads(
        &self,
        operations: &[DocumentOperation],
        now: Timestamp,
    ) -> StoreResult<Vec<DocumentOutcome>> {
        let mut bytes_left = MemoryLimits::BATCH_READ_BYTES;
        let gets = operations.iter().filter_map(|operation| match operation {
            DocumentOperation::Get(get) => Some(get),
            DocumentOperation::Put(_) | DocumentOperation::Delete(_) => None,
        });
        gets.map(|get| DocumentOutcome::from_get(self.document(&get.name, now)?, &mut bytes_left))
            .collect()
    }

    /// Whether any documents are stored.
    pub fn has_documents(&self) -> StoreResult<bool> {
        Ok(self.documents_kept()?.0 > 0)
    }

    /// Number of stored documents, including expired ones, and their bytes.
    pub(super) fn documents_kept(&self) -> StoreResult<(u64, u64)> {
        let sql = "SELECT documents, bytes FROM document_state";
        let read = |row: &Row<'_>| Ok((row.get::<i64>(0)?, row.get::<i64>(1)?));
        let (documents, bytes) = self.one(sql, &[], read)?.unwrap_or_default();
        Ok((documents.unsigned_abs(), bytes.unsigned_abs()))
    }

    /// Finds a document's row, even if it has expired.
    fn find(&self, name: &DocumentName) -> StoreResult<Option<DocumentRow>> {
        let sql = "SELECT documents.no, namespace, version, created, updated, expires,
            length(value), checksum FROM namespaces CROSS JOIN documents ON namespace = namespaces.no
            WHERE path = ? AND key = ?";
        let parameters = params![name.namespace.as_bytes(), name.key.as_bytes()];
        self.one(sql, parameters, |row| {
            let (version, created) = (row.get::<i64>(2)?, row.get(3)?);
            let expires: Option<i64> = row.get(5)?;
            let document = Document {
                name: name.clone(),
                value: None,
                size: row.get::<i64>(6)?.unsigned_abs(),
                version: version.unsigned_abs(),
                created_at: timestamp(created),
                updated_at: timestamp(row.get(4)?),
                expires_at: expires.map(timestamp),
            };
            Ok(DocumentRow {
                no: row.get(0)?,
                namespace: row.get(1)?,
                version: document.version,
                created,
                expires,
                size: document.size,
                is_damaged: !is_whole(&document, row.get(7)?),
            })
        })
    }
}

impl MemoryWriter<'_> {
    /// Applies operations in order.
    ///
    /// # Errors
    /// [`MemoryError::InList`] for the operation that was rejected, or
    /// [`MemoryError::DocumentsTooLarge`].
    pub fn document_batch(
        &self,
        operations: &[DocumentOperation],
        limits: &MemoryLimits,
        at: Timestamp,
    ) -> StoreResult<Vec<DocumentOutcome>> {
        let mut bytes_left = MemoryLimits::BATCH_READ_BYTES;
        let mut outcomes = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            let outcome = match operation {
                DocumentOperation::Get(get) => self
                    .read_document(get, at)
                    .and_then(|found| DocumentOutcome::from_get(found, &mut bytes_left)),
                DocumentOperation::Put(put) => {
                    let put = self.put_document(put, limits, at);
                    put.map(DocumentOutcome::Stored)
                }
                DocumentOperation::Delete(delete) => {
                    let deleted = self.delete_document(delete, at);
                    deleted.map(DocumentOutcome::Deleted)
                }
            };
            outcomes.push(outcome.map_err(|error| error.in_list("operations", index))?);
        }
        Ok(outcomes)
    }

    /// Reads a document. If it expires and the request has a lifetime, restarts its lifetime.
    pub fn read_document(&self, get: &DocumentGet, at: Timestamp) -> StoreResult<Option<Document>> {
        let mut found = self.document(&get.name, at)?;
        if let (Some(document), Some(ttl)) = (&mut found, get.ttl)
            && document.expires_at.is_some()
        {
            let expires = after(at, ttl);
            document.expires_at = Some(expires);
            let sql = "UPDATE documents SET expires = ?, checksum = ? WHERE key = ?
                AND namespace = (SELECT no FROM namespaces WHERE path = ?)";
            let (path, key) = (get.name.namespace.as_bytes(), get.name.key.as_bytes());
            let checksum = document_checksum(document, document.value.as_ref());
            self.run(sql, params![moment(expires), checksum, key, path])?;
        }
        Ok(found)
    }

    /// Stores a document, unless its idempotency key was already used.
    ///
    /// Replaces a damaged one, unless the request depends on its version.
    ///
    /// # Errors
    /// [`MemoryError::StaleVersion`], [`MemoryError::DocumentDamaged`],
    /// [`MemoryError::DocumentsFull`], a reused idempotency key.
    pub fn put_document(
        &self,
        put: &DocumentPut,
        limits: &MemoryLimits,
        at: Timestamp,
    ) -> StoreResult<StoredDocument> {
        if let Some(document) = self.put_before(put, limits, at)? {
            return Ok(StoredDocument {
                document,
                duplicate: true,
            });
        }
        let document = self.store_document(put, limits, at)?;
        self.keep_put(put, &document, limits)?;
        Ok(StoredDocument {
            document,
            duplicate: false,
        })
    }

    fn store_document(
        &self,
        put: &DocumentPut,
        limits: &MemoryLimits,
        at: Timestamp,
    ) -> StoreResult<Document> {
        let now = moment(at);
        let mut found = self.find(&put.name)?;
        let live = found.as_ref().filter(|found| found.is_live(now));
        let version = live.map_or(0, |found| found.version);
        self.check_version(&put.name, put.expected_version, found.as_ref(), version)?;
        let created = live.map_or(now, |found| found.created);
        let expires = put.ttl.map(|ttl| moment(after(at, ttl)));
        let bytes = put.value.as_bytes();
        let size = bytes.len() as u64;
        if !self.has_room(found.as_ref(), &put.name, size, limits)? {
            self.expire_documents(at, MADE_ROOM)?;
            found = self.find(&put.name)?;
            if !self.has_room(found.as_ref(), &put.name, size, limits)? {
                return Err(MemoryError::DocumentsFull {
                    documents: limits.documents,
                    bytes: limits.documents_bytes as u64,
                });
            }
        }
        let form = match &put.value {
            DocumentValue::Bytes(_) => BYTES,
            DocumentValue::Json(_) => JSON,
        };
        let document = Document {
            name: put.name.clone(),
            value: None,
            size,
            version: version + 1,
            created_at: timestamp(created),
            updated_at: at,
            expires_at: expires.map(timestamp),
        };
        let version = whole(document.version);
        let checksum = document_checksum(&document, Some(&put.value));
        let fields = params![version, created, now, expires, form, bytes, checksum];
        match found {
            Some(found) => {
                let sql = "UPDATE documents
                    SET (version, created, updated, expires, form, value, checksum)
                    = (?1, ?2, ?3, ?4, ?5, ?6, ?7) WHERE no = ?8";
                let no: &dyn ToSql = &found.no;
                self.run(sql, &[fields, &[no]].concat())?;
                self.count_documents(0, whole(size) - whole(found.size))?;
            }
            None => {
                let sql = "INSERT INTO namespaces (no, path, documents)
                    VALUES ((SELECT coalesce(max(no), 0) + 1 FROM namespaces), ?, 1)
                    ON CONFLICT (path) DO UPDATE SET documents = namespaces.documents + 1
                    RETURNING no";
                let path = put.name.namespace.as_bytes();
                let namespace = self.number(sql, params![path])?;
                let sql = "INSERT INTO documents
                    (no, version, created, updated, expires, form, value, checksum, namespace, key)
                    VALUES ((SELECT coalesce(max(no), 0) + 1 FROM documents),
                        ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
                let key = put.name.key.as_bytes();
                let place: [&dyn ToSql; 2] = [&namespace, &key];
                self.run(sql, &[fields, &place].concat())?;
                self.count_documents(1, whole(size + name_bytes(&put.name)))?;
            }
        }
        Ok(document)
    }

    /// Deletes a document. Returns `false` if there is none.
    ///
    /// # Errors
    /// [`MemoryError::StaleVersion`], [`MemoryError::DocumentDamaged`].
    pub fn delete_document(&self, delete: &DocumentDelete, at: Timestamp) -> StoreResult<bool> {
        let found = self.find(&delete.name)?;
        let found = found.filter(|found| found.is_live(moment(at)));
        let version = found.as_ref().map_or(0, |found| found.version);
        self.check_version(
            &delete.name,
            delete.expected_version,
            found.as_ref(),
            version,
        )?;
        let Some(found) = found else {
            return Ok(false);
        };
        self.remove_document(&DeletedRow {
            no: found.no,
            namespace: found.namespace,
            bytes: found.size + name_bytes(&delete.name),
        })?;
        Ok(true)
    }

    /// Deletes up to `count_max` documents of a range, including expired ones.
    ///
    /// With `with_keys`, also deletes their idempotency keys. Returns how many documents were
    /// deleted; 0 if none are left.
    pub fn delete_documents_step(
        &self,
        range: &DocumentRange,
        count_max: usize,
        with_keys: bool,
    ) -> StoreResult<u64> {
        let sql = "SELECT documents.no, namespace, length(value) + length(key) + length(path),
            path, key FROM namespaces CROSS JOIN documents ON namespace = namespaces.no
            WHERE path >= ? AND path < ? AND key >= ? AND key < ? LIMIT ?";
        let (paths, keys) = (range.paths(), range.keys());
        let parameters = params![paths.0, paths.1, keys.0, keys.1, limit(count_max)];
        let found = self.all(sql, parameters, |row| {
            let digest = fingerprint([&row.get::<Vec<u8>>(3)?[..], &row.get::<Vec<u8>>(4)?]);
            Ok((read_gone(row)?, digest))
        })?;
        let (gone, digests): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if with_keys {
            for digest in digests {
                self.run("DELETE FROM keys WHERE memory = ?", params![digest])?;
            }
        }
        self.remove_documents(&gone)
    }

    /// Deletes up to `count_max` expired documents. Returns how many.
    pub fn expire_documents(&self, now: Timestamp, count_max: usize) -> StoreResult<u64> {
        let sql = "SELECT documents.no, namespace, length(value) + length(key) + length(path)
            FROM documents CROSS JOIN namespaces ON namespaces.no = namespace
            WHERE expires <= ? ORDER BY expires LIMIT ?";
        let gone = self.all(sql, params![moment(now), limit(count_max)], read_gone)?;
        self.remove_documents(&gone)
    }

    /// Deletes rows up to the maximum bytes of a step, so that other writes are not delayed.
    fn remove_documents(&self, gone: &[DeletedRow]) -> StoreResult<u64> {
        let (mut removed, mut bytes) = (0, 0);
        for row in gone {
            self.remove_document(row)?;
            removed += 1;
            bytes += row.bytes;
            if bytes > STEP_BYTES_MAX {
                break;
            }
        }
        Ok(removed)
    }

    fn remove_document(&self, gone: &DeletedRow) -> StoreResult<()> {
        self.run("DELETE FROM documents WHERE no = ?", params![gone.no])?;
        let sql = "UPDATE namespaces SET documents = documents - 1 WHERE no = ?
            RETURNING documents";
        if self.number(sql, params![gone.namespace])? == 0 {
            self.run(
                "DELETE FROM namespaces WHERE no = ?",
                params![gone.namespace],
            )?;
        }
        self.count_documents(-1, -whole(gone.bytes))
    }

    fn count_documents(&self, documents: i64, bytes: i64) -> StoreResult<()> {
        let sql = "UPDATE document_state SET documents = documents + ?, bytes = bytes + ?";
        self.run(sql, params![documents, bytes])
    }

    /// Checks the version that a request expects. Any is right for a request without one.
    fn check_version(
        &self,
        name: &DocumentName,
        expected: Option<u64>,
        found: Option<&DocumentRow>,
        version: u64,
    ) -> StoreResult<()> {
        let Some(expected) = expected else {
            return Ok(());
        };
        if found.is_some_and(|found| found.is_damaged) {
            return Err(self.damaged_document(name));
        }
        if expected == version {
            Ok(())
        } else {
            Err(MemoryError::StaleVersion {
                key: name.key.clone(),
                expected,
                version,
            })
        }
    }

    /// Whether a value of this size may replace what was found.
    fn has_room(
        &self,
        found: Option<&DocumentRow>,
        name: &DocumentName,
        size: u64,
        limits: &MemoryLimits,
    ) -> StoreResult<bool> {
        let (documents, bytes) = self.documents_kept()?;
        let (is_one_more, bytes) = match found {
            // A document may always shrink, even above the limits.
            Some(found) if size <= found.size => return Ok(true),
            Some(found) => (false, bytes + size - found.size),
            None => (true, bytes + size + name_bytes(name)),
        };
        let has_number = !is_one_more || documents < limits.documents;
        Ok(has_number && bytes <= limits.documents_bytes as u64)
    }
}

/// A page under construction.
struct Listing<'a> {
    query: &'a DocumentQuery,
    page: DocumentPage,
    /// The last document that was checked.
    last: Option<DocumentName>,
    /// Whether the page has reached one of its limits.
    is_full: bool,
    bytes: u64,
    looked_at: usize,
    looked_at_bytes: u64,
    damage: &'a DamageLog,
}

impl Listing<'_> {
    fn look_at(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let size = row.get::<i64>(7)?.unsigned_abs();
        self.looked_at += 1;
        self.looked_at_bytes += size;
        let filter = self.query.filter.as_ref();
        match read(row)? {
            Ok(mut document) => {
                self.last = Some(document.name.clone());
                if filter.map_or(Ok(true), |filter| fits(filter, row))? {
                    self.bytes += name_bytes(&document.name);
                    if self.query.with_values {
                        self.bytes += size;
                    } else {
                        document.value = None;
                    }
                    self.page.documents.push(document);
                }
            }
            Err(name) => self.damage.note(|| described(name.as_ref())),
        }
        let has_looked_enough =
            self.looked_at >= LOOKED_AT_MAX || self.looked_at_bytes >= LOOKED_AT_BYTES_MAX;
        self.is_full = self.page.documents.len() >= self.query.count
            || self.bytes >= PAGE_BYTES_MAX
            || filter.is_some() && has_looked_enough;
        Ok(())
    }
}

impl DocumentRow {
    fn is_live(&self, now: i64) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

impl DocumentOutcome {
    /// Result of a get. Fails if the value exceeds the bytes left in the response.
    fn from_get(document: Option<Document>, bytes_left: &mut usize) -> StoreResult<Self> {
        let Some(document) = document else {
            return Ok(Self::Absent);
        };
        let bytes = document
            .value
            .as_ref()
            .map_or(0, |value| value.as_bytes().len());
        let left = bytes_left.checked_sub(bytes);
        *bytes_left = left.ok_or(MemoryError::DocumentsTooLarge {
            limit: MemoryLimits::BATCH_READ_BYTES,
        })?;
        Ok(Self::Document(document))
    }
}

/// Spans that follow a document: the rest of its namespace, then the namespaces after it.
fn spans(query: &DocumentQuery, after: Option<&DocumentName>) -> Vec<Span> {
    let (paths, keys) = (query.range.paths(), query.range.keys());
    let Some(last) = after else {
        return vec![Span { paths, keys }];
    };
    let (path, key) = (&last.namespace, last.key.as_bytes().to_vec());
    let within = (path.as_bytes().to_vec(), path.behind_itself());
    let (rest, behind) = if query.is_descending {
        (
            (keys.0.clone(), key.min(keys.1.clone())),
            (paths.0, within.0.clone().min(paths.1)),
        )
    } else {
        // The smallest key after it.
        let next = [&key[..], &[0]].concat();
        (
            (next.max(keys.0.clone()), keys.1.clone()),
            (within.1.clone().max(paths.0), paths.1),
        )
    };
    vec![
        Span {
            paths: within,
            keys: rest,
        },
        Span {
            paths: behind,
            keys,
        },
    ]
}

/// Bytes of a document's namespace and key.
fn name_bytes(name: &DocumentName) -> u64 {
    (name.namespace.as_bytes().len() + name.key.len()) as u64
}

fn fits(filter: &DocumentFilter, row: &Row<'_>) -> rusqlite::Result<bool> {
    let is_json = row.get::<u8>(6)? == JSON;
    Ok(is_json && filter.takes(row.bytes(8)?))
}

fn read_path(row: &Row<'_>) -> rusqlite::Result<NamespacePath> {
    NamespacePath::from_bytes(row.get(0)?).ok_or(damaged(0, "namespace"))
}

fn read_name(row: &Row<'_>) -> rusqlite::Result<DocumentName> {
    Ok(DocumentName {
        namespace: read_path(row)?,
        key: String::from_utf8(row.get(1)?).map_err(|_| damaged(1, "key"))?,
    })
}

/// Names a damaged document in the log.
pub(super) fn described(name: Option<&DocumentName>) -> String {
    match name {
        Some(name) => {
            let parts: Vec<&str> = name.namespace.parts().collect();
            format!("document {:?} of namespace {parts:?}", name.key)
        }
        None => "a document without a readable name".to_owned(),
    }
}

/// Reads path, key, version, created, updated, expires, form, length(value), value and checksum.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<CheckedDocument> {
    let checksum = row.get(9)?;
    match decode(row) {
        Ok(document) if is_whole(&document, checksum) => Ok(Ok(document)),
        Ok(document) => Ok(Err(Some(document.name))),
        Err(rusqlite::Error::FromSqlConversionFailure(..)) => Ok(Err(read_name(row).ok())),
        Err(error) => Err(error),
    }
}

fn decode(row: &Row<'_>) -> rusqlite::Result<Document> {
    let value = match row.get::<Option<Vec<u8>>>(8)? {
        None => None,
        Some(bytes) if row.get::<u8>(6)? == JSON => {
            let text = String::from_utf8(bytes).map_err(|_| damaged(8, "JSON"))?;
            Some(DocumentValue::Json(text))
        }
        Some(bytes) => Some(DocumentValue::Bytes(bytes)),
    };
    Ok(Document {
        name: read_name(row)?,
        value,
        size: row.get::<i64>(7)?.unsigned_abs(),
        version: row.get::<i64>(2)?.unsigned_abs(),
        created_at: timestamp(row.get(3)?),
        updated_at: timestamp(row.get(4)?),
        expires_at: row.get::<Option<_>>(5)?.map(timestamp),
    })
}

fn read_gone(row: &Row<'_>) -> rusqlite::Result<DeletedRow> {
    Ok(DeletedRow {
        no: row.get(0)?,
        namespace: row.get(1)?,
        bytes: row.get::<i64>(2)?.unsigned_abs(),
    })
}
