//! Documents: named values of a bot. Written through the tenant's write queue, like memories.

use std::sync::Arc;

use memoird_engine::Tenant;

use super::forget::{Forgetting, Unfinished};
use super::storage::MemoryStorage;
use crate::error::MemoryError;
use crate::rules::documents::{
    Document, DocumentDelete, DocumentGet, DocumentOperation, DocumentOutcome, DocumentPage,
    DocumentPut, DocumentQuery, DocumentRange, NamespacePage, NamespaceQuery, StoredDocument,
};
use crate::store::{MemoryReader, MemoryWriter};

/// Documents per step. A step delays the tenant's other writes.
const ROWS_MAX: usize = 500;

/// Documents of bots. Clones share their state.
#[derive(Clone, Debug)]
pub struct Documents {
    pub(super) storage: Arc<MemoryStorage>,
    pub(super) forgetting: Forgetting,
}

impl Documents {
    /// Reads a document. With a new lifetime, returns once that is durable.
    ///
    /// # Errors
    /// [`MemoryError::DocumentNotFound`].
    pub async fn get(&self, tenant: &Tenant, get: DocumentGet) -> Result<Document, MemoryError> {
        let (key, now) = (get.name.key.clone(), self.storage.now());
        let found = match get.ttl {
            None => {
                let read = move |reader: &MemoryReader<'_>| reader.document(&get.name, now);
                self.storage.read(&tenant.id, read).await?
            }
            Some(_) => {
                let read = move |writer: &MemoryWriter<'_>| writer.read_document(&get, now);
                self.storage.write(&tenant.id, read).await?
            }
        };
        found.ok_or(MemoryError::DocumentNotFound { key })
    }

    /// Stores a document. Returns once it is durable.
    ///
    /// # Errors
    /// [`MemoryError::StaleVersion`], [`MemoryError::DocumentsFull`], a reused idempotency key, or
    /// if the write fails.
    pub async fn put(
        &self,
        tenant: &Tenant,
        put: DocumentPut,
    ) -> Result<StoredDocument, MemoryError> {
        let (config, now) = (self.storage.config(), self.storage.now());
        let write = move |writer: &MemoryWriter<'_>| writer.put_document(&put, &config.limits, now);
        self.storage.write(&tenant.id, write).await
    }

    /// Deletes a document. Returns `false` if there is none.
    ///
    /// # Errors
    /// [`MemoryError::StaleVersion`], or if the write fails.
    pub async fn delete(
        &self,
        tenant: &Tenant,
        delete: DocumentDelete,
    ) -> Result<bool, MemoryError> {
        let now = self.storage.now();
        let write = move |writer: &MemoryWriter<'_>| writer.delete_document(&delete, now);
        self.storage.write(&tenant.id, write).await
    }

    /// Deletes all documents of a range in steps.
    ///
    /// With `erase`, also deletes their idempotency keys, and clears both from the disk's pages.
    ///
    /// Returns the number of deleted documents, and whether no trace of them is left on disk.
    ///
    /// # Errors
    /// If a write fails. Some documents may be deleted then.
    pub async fn delete_matching(
        &self,
        tenant: &Tenant,
        range: DocumentRange,
        erase: bool,
    ) -> Result<(u64, bool), MemoryError> {
        // If this call is cancelled, the maintenance worker clears the pages.
        let mut unfinished = erase.then(|| Unfinished::new(&self.storage, &tenant.id, None));
        let mut removed = 0;
        loop {
            let range = range.clone();
            let step = move |writer: &MemoryWriter<'_>| {
                writer.delete_documents_step(&range, ROWS_MAX, erase)
            };
            match self.storage.write(&tenant.id, step).await? {
                0 => break,
                step => removed += step,
            }
        }
        let is_erased = erase && self.forgetting.erased_soon(&tenant.id).await;
        if let Some(unfinished) = &mut unfinished {
            unfinished.is_done = is_erased;
        }
        Ok((removed, is_erased && self.forgetting.have_no_copies()))
    }

    pub async fn list(
        &self,
        tenant: &Tenant,
        query: DocumentQuery,
    ) -> Result<DocumentPage, MemoryError> {
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| reader.documents(&query, now);
        self.storage.read(&tenant.id, read).await
    }

    pub async fn namespaces(
        &self,
        tenant: &Tenant,
        query: NamespaceQuery,
    ) -> Result<NamespacePage, MemoryError> {
        let now = self.storage.now();
        let read = move |reader: &MemoryReader<'_>| reader.namespaces(&query, now);
        self.storage.read(&tenant.id, read).await
    }

    /// Applies operations in order and atomically. Returns once they are durable.
    ///
    /// # Errors
    /// [`MemoryError::InList`], [`MemoryError::DocumentsTooLarge`], or if the write fails.
    pub async fn batch(
        &self,
        tenant: &Tenant,
        operations: Vec<DocumentOperation>,
    ) -> Result<Vec<DocumentOutcome>, MemoryError> {
        let (config, now) = (self.storage.config(), self.storage.now());
        let only_reads = operations
            .iter()
            .all(|it| matches!(it, DocumentOperation::Get(DocumentGet { ttl: None, .. })));
        if only_reads {
            let read = move |reader: &MemoryReader<'_>| reader.document_reads(&operations, now);
            return self.storage.read(&tenant.id, read).await;
        }
        let write = move |writer: &MemoryWriter<'_>| {
            writer.document_batch(&operations, &config.limits, now)
        };
        self.storage.write(&tenant.id, write).await
    }
}
