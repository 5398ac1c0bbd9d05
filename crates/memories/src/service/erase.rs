//! The memory crate's part of an erasure.
//!
//! Forgets the memories of an erased subject, and those from erased sessions, through forget jobs.

use memoird_core::ids::{Generation, TenantId};
use memoird_engine::{EraseFuture, EraseRequest, ErasedElsewhere, Eraser};
use memoird_store::EraseTarget;

use super::forget::Forgetting;
use crate::error::MemoryError;
use crate::requests::{ForgetRequest, ForgetSources};
use crate::store::MemoryReader;

/// Message in the erasure report of a tenant that has documents.
const DOCUMENTS: &str = "documents are not looked at, because nothing says whose they are: delete \
                         those that are meant by their namespaces (DeleteDocuments)";

impl Forgetting {
    async fn erase_sources(&self, request: EraseRequest) -> Result<ErasedElsewhere, MemoryError> {
        let tenant = &request.tenant;
        if !self.storage.is_on() || !self.storage.tenants().await?.contains(tenant) {
            return Ok(ErasedElsewhere::default());
        }
        let names = request.generations.iter().map(|(name, _)| *name);
        let names: Vec<Generation> = names.collect();
        let mut parts: Vec<ForgetRequest> = names
            .chunks(ForgetSources::GENERATIONS_MAX)
            .map(|part| {
                ForgetRequest::Sources(ForgetSources {
                    session: None,
                    generations: part.to_vec(),
                })
            })
            .collect();
        match request.target {
            EraseTarget::Session {
                session,
                generation: None,
            } => parts.push(ForgetRequest::Sources(ForgetSources {
                session: Some(session),
                generations: Vec::new(),
            })),
            EraseTarget::Session { .. } => {}
            EraseTarget::Subject(subject) => parts.push(ForgetRequest::Subject(subject)),
        }
        let mut erased = ErasedElsewhere::default();
        for part in parts {
            erased.memories += self.forget_for_good(tenant, part).await?;
        }
        let has_documents = |reader: &MemoryReader<'_>| reader.has_documents();
        if self.storage.read(tenant, has_documents).await? {
            erased.outside.push(DOCUMENTS.to_owned());
        }
        Ok(erased)
    }

    /// Forgets memories.
    ///
    /// Fails if the disk's pages are not clean yet, so that the erasure is retried.
    async fn forget_for_good(
        &self,
        tenant: &TenantId,
        request: ForgetRequest,
    ) -> Result<u64, MemoryError> {
        let outcome = self.forget_all(tenant, request, self.storage.now()).await?;
        if outcome.erased {
            Ok(outcome.memories + outcome.superseded)
        } else {
            Err(crate::FileError::LogInUse.into())
        }
    }
}

impl Eraser for Forgetting {
    fn name(&self) -> &'static str {
        "memories"
    }

    fn erase(&self, request: EraseRequest) -> EraseFuture<'_> {
        Box::pin(async move {
            let erased = self.erase_sources(request).await;
            erased.map_err(|error| format!("{error:?}"))
        })
    }
}
