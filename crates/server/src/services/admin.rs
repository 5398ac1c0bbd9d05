//! AdminService, for operators. The auth layer has checked the role.

use std::pin::Pin;
use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_proto::spliced::admin_service_server::AdminService;
use memoird_proto::v1;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, async_trait};

use super::maintenance::BackupSteps;
use super::{Api, RpcResult, caller, operator, rpc_result};
use crate::process;
use crate::reload::ReloadReport;
use crate::wire::{from, memory, status, to};

/// The steps of a backup, until the caller's key is revoked.
type BackupStream = Pin<Box<dyn Stream<Item = Result<v1::BackupResponse, Status>> + Send>>;

impl Api {
    /// Parses the tenant of a request. `None` means all tenants.
    fn tenant_filter(&self, named: &str) -> Result<Option<TenantId>, Status> {
        let filter = from::tenant_filter(named)?;
        match &filter {
            Some(id) if self.engine.tenants.get(id).is_none() => {
                Err(status::tenant_not_found().into())
            }
            _ => Ok(filter),
        }
    }
}

#[async_trait]
impl AdminService for Api {
    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> RpcResult<v1::GetStatsResponse> {
        let filter = self.tenant_filter(&operator(request)?.tenant)?;
        let mut stats = self.engine.stats();
        let is_wanted = |id: &TenantId| filter.as_ref().is_none_or(|filter| filter == id);
        stats.tenants.retain(|tenant| is_wanted(&tenant.id));
        let counts = self.engine.hooks.count_deliveries().await;
        rpc_result(counts, |counts| {
            let counts = counts.iter().filter(|count| is_wanted(&count.tenant));
            let refused = |id: &TenantId| self.rates.refused_calls(id);
            to::stats(stats, counts, process::usage(), self.started_at, refused)
        })
    }

    async fn get_cluster(
        &self,
        request: Request<v1::GetClusterRequest>,
    ) -> RpcResult<v1::GetClusterResponse> {
        operator(request)?;
        let looked = self.members.read(&*self.engine.machine).await;
        rpc_result(looked, to::cluster)
    }

    async fn list_tenants(
        &self,
        request: Request<v1::ListTenantsRequest>,
    ) -> RpcResult<v1::ListTenantsResponse> {
        operator(request)?;
        let tenants = self.engine.stats().tenants.iter().map(to::tenant).collect();
        Ok(Response::new(v1::ListTenantsResponse { tenants }))
    }

    async fn sweep_now(
        &self,
        request: Request<v1::SweepNowRequest>,
    ) -> RpcResult<v1::SweepNowResponse> {
        let filter = self.tenant_filter(&operator(request)?.tenant)?;
        let ended = self.engine.sessions.sweep(filter.as_ref()).await;
        rpc_result(ended, |ended| to::swept(&ended))
    }

    async fn run_dream(
        &self,
        request: Request<v1::RunDreamRequest>,
    ) -> RpcResult<v1::RunDreamResponse> {
        let request = operator(request)?;
        let filter = self.tenant_filter(&request.tenant)?;
        let reports = self
            .memories
            .consolidation
            .run(filter.as_ref(), request.dry_run);
        rpc_result(reports.await, memory::to::consolidated)
    }

    async fn list_hook_deliveries(
        &self,
        request: Request<v1::ListHookDeliveriesRequest>,
    ) -> RpcResult<v1::ListHookDeliveriesResponse> {
        let request = operator(request)?;
        let tenant = self.tenant_filter(&request.tenant)?;
        let filter = from::delivery_filter(&request, tenant)?;
        let after = from::page_token(&request.page_token)?;
        let size = from::page_size(request.page_size);
        let listed = self.engine.hooks.deliveries(filter, after, size).await;
        rpc_result(listed, |listed| to::deliveries(&listed, size))
    }

    async fn retry_hook_delivery(
        &self,
        request: Request<v1::RetryHookDeliveryRequest>,
    ) -> RpcResult<v1::RetryHookDeliveryResponse> {
        let id = from::delivery_id(&operator(request)?.id)?;
        let retried = self.engine.hooks.retry_delivery(id).await;
        rpc_result(retried, |view| v1::RetryHookDeliveryResponse {
            delivery: Some(to::delivery(&view)),
        })
    }

    async fn drop_hook_delivery(
        &self,
        request: Request<v1::DropHookDeliveryRequest>,
    ) -> RpcResult<v1::DropHookDeliveryResponse> {
        let id = from::delivery_id(&operator(request)?.id)?;
        let dropped = self.engine.hooks.drop_delivery(id).await;
        rpc_result(dropped, |_| v1::DropHookDeliveryResponse {})
    }

    async fn reload_config(
        &self,
        request: Request<v1::ReloadConfigRequest>,
    ) -> RpcResult<v1::ReloadConfigResponse> {
        operator(request)?;
        let reloaded = Arc::clone(&self.reloader)
            .reload_in_task("ReloadConfig")
            .await;
        let ReloadReport { applied, refused } = reloaded?;
        Ok(Response::new(v1::ReloadConfigResponse { applied, refused }))
    }

    async fn verify(&self, request: Request<v1::VerifyRequest>) -> RpcResult<v1::VerifyResponse> {
        operator(request)?;
        let checked = self.maintenance.verify().await;
        checked.map(Response::new).map_err(Status::from)
    }

    type BackupStream = BackupStream;

    async fn backup(&self, request: Request<v1::BackupRequest>) -> RpcResult<BackupStream> {
        let (caller, request) = caller(request)?;
        let steps = self.maintenance.backup(request.have);
        let key = caller.key;
        let while_it_applies = |steps: BackupSteps| -> BackupStream {
            Box::pin(steps.map(move |step| key.check().map_err(Status::from).and(step)))
        };
        steps
            .map(|steps| Response::new(while_it_applies(steps)))
            .map_err(Status::from)
    }
}
