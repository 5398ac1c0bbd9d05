//! AdminService: what an operator asks. The auth layer has checked the role.

use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::Engine;
use memoird_memories::Memories;
use memoird_proto::spliced::admin_service_server::AdminService;
use memoird_proto::v1;
use memoird_store::DeliveryCount;
use tonic::{Request, Response, Status, async_trait};

use super::maintenance::BackupStream;
use super::{Answer, Maintenance, answer};
use crate::process;
use crate::reload::{Reloaded, Reloader};
use crate::wire::{from, memory, status, to};

/// The engine as operators see it.
#[derive(Clone, Debug)]
pub(crate) struct AdminApi {
    engine: Engine,
    memories: Memories,
    reloader: Arc<Reloader>,
    maintenance: Maintenance,
    started_at: Timestamp,
}

impl AdminApi {
    pub(crate) fn new(
        engine: Engine,
        memories: Memories,
        reloader: Arc<Reloader>,
        maintenance: Maintenance,
        started_at: Timestamp,
    ) -> Self {
        Self {
            engine,
            memories,
            reloader,
            maintenance,
            started_at,
        }
    }

    /// A tenant that exists; `None` for all of them.
    fn tenant(&self, named: &str) -> Result<Option<TenantId>, Status> {
        let filter = from::tenant_filter(named)?;
        match &filter {
            Some(id) if self.engine.tenants.get(id).is_none() => Err(status::tenant_not_found()),
            _ => Ok(filter),
        }
    }
}

#[async_trait]
impl AdminService for AdminApi {
    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Answer<v1::GetStatsResponse> {
        let filter = self.tenant(&request.into_inner().tenant)?;
        let mut stats = self.engine.stats();
        stats
            .tenants
            .retain(|tenant| filter.as_ref().is_none_or(|id| *id == tenant.id));
        let counts = self.engine.hooks.count_deliveries().await;
        let counts = counts.map_err(|error| status::engine(&error))?;
        let is_wanted =
            |count: &&DeliveryCount| filter.as_ref().is_none_or(|id| *id == count.tenant);
        let mut answer = to::stats(stats, process::usage(), self.started_at);
        to::put_hooks(&mut answer, counts.iter().filter(is_wanted));
        Ok(Response::new(answer))
    }

    async fn list_tenants(
        &self,
        _: Request<v1::ListTenantsRequest>,
    ) -> Answer<v1::ListTenantsResponse> {
        let tenants = self.engine.stats().tenants.iter().map(to::tenant).collect();
        Ok(Response::new(v1::ListTenantsResponse { tenants }))
    }

    async fn sweep_now(
        &self,
        request: Request<v1::SweepNowRequest>,
    ) -> Answer<v1::SweepNowResponse> {
        let filter = self.tenant(&request.into_inner().tenant)?;
        let ended = self.engine.sessions.sweep(filter.as_ref()).await;
        answer(ended, |ended| to::swept(&ended))
    }

    async fn run_dream(
        &self,
        request: Request<v1::RunDreamRequest>,
    ) -> Answer<v1::RunDreamResponse> {
        let request = request.into_inner();
        let filter = self.tenant(&request.tenant)?;
        let reports = self.memories.consolidate(filter.as_ref(), request.dry_run);
        answer(reports.await, memory::to::consolidated)
    }

    async fn list_hook_deliveries(
        &self,
        request: Request<v1::ListHookDeliveriesRequest>,
    ) -> Answer<v1::ListHookDeliveriesResponse> {
        let request = request.into_inner();
        let tenant = self.tenant(&request.tenant)?;
        let (filter, after, size) = from::deliveries(&request, tenant)?;
        let listed = self.engine.hooks.deliveries(filter, after, size).await;
        answer(listed, |listed| to::deliveries(&listed, size))
    }

    async fn retry_hook_delivery(
        &self,
        request: Request<v1::RetryHookDeliveryRequest>,
    ) -> Answer<v1::RetryHookDeliveryResponse> {
        let id = from::delivery_id(&request.into_inner().id)?;
        let retried = self.engine.hooks.retry_delivery(id).await;
        answer(retried, |view| v1::RetryHookDeliveryResponse {
            delivery: Some(to::delivery(&view)),
        })
    }

    async fn drop_hook_delivery(
        &self,
        request: Request<v1::DropHookDeliveryRequest>,
    ) -> Answer<v1::DropHookDeliveryResponse> {
        let id = from::delivery_id(&request.into_inner().id)?;
        let dropped = self.engine.hooks.drop_delivery(id).await;
        answer(dropped, |_| v1::DropHookDeliveryResponse {})
    }

    async fn reload_config(
        &self,
        _: Request<v1::ReloadConfigRequest>,
    ) -> Answer<v1::ReloadConfigResponse> {
        let reloaded = Arc::clone(&self.reloader)
            .reload_aside("ReloadConfig")
            .await;
        let Reloaded { applied, refused } = reloaded.map_err(|error| status::reload(&error))?;
        Ok(Response::new(v1::ReloadConfigResponse { applied, refused }))
    }

    async fn verify(&self, _: Request<v1::VerifyRequest>) -> Answer<v1::VerifyResponse> {
        answer(self.maintenance.verify().await, |reply| reply)
    }

    type BackupStream = BackupStream;

    async fn backup(&self, request: Request<v1::BackupRequest>) -> Answer<BackupStream> {
        let steps = self.maintenance.backup(request.into_inner().have);
        answer(steps, |steps| steps)
    }
}
