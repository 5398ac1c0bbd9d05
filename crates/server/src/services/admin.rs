//! AdminService, for operators. The layers have checked the role.

use std::sync::Arc;

use memoird_core::ids::TenantId;
use memoird_proto::v1::{
    BackupRequest, BackupResponse, DropHookDeliveryRequest, DropHookDeliveryResponse,
    GetClusterRequest, GetClusterResponse, GetStatsRequest, GetStatsResponse,
    ListHookDeliveriesRequest, ListHookDeliveriesResponse, ReindexMemoriesRequest,
    ReindexMemoriesResponse, ReloadConfigRequest, ReloadConfigResponse, RetryHookDeliveryRequest,
    RetryHookDeliveryResponse, RunDreamRequest, RunDreamResponse, SweepNowRequest,
    SweepNowResponse, VerifyRequest, VerifyResponse,
};
use tokio_stream::{Stream, StreamExt};
use tonic::Status;

use super::{Api, ApiCall, Reply};
use crate::process;
use crate::reload::{ReloadCause, ReloadReport};
use crate::wire::refusal::Refusal;
use crate::wire::{from, memory, status, to};

impl Api {
    /// Parses the tenant of a request. `None` means all tenants.
    fn tenant_filter(&self, named: &str) -> Result<Option<TenantId>, Refusal> {
        let filter = from::optional("tenant", named, TenantId::parse)?;
        match &filter {
            Some(id) if self.engine.tenants.get(id).is_none() => Err(status::tenant_not_found()),
            _ => Ok(filter),
        }
    }
}

pub(crate) async fn get_stats(call: ApiCall<GetStatsRequest>) -> Reply<GetStatsResponse> {
    let filter = call.api.tenant_filter(&call.message.tenant)?;
    let mut stats = call.api.engine.exact_stats().await?;
    let is_wanted = |id: &TenantId| filter.as_ref().is_none_or(|filter| filter == id);
    stats.tenants.retain(|tenant| is_wanted(&tenant.id));
    let counts = call.api.engine.hooks.count_deliveries().await?;
    let counts = counts.iter().filter(|count| is_wanted(&count.tenant));
    let refused = |id: &TenantId| call.api.rates.refused_calls(id);
    Ok(to::stats(
        stats,
        counts,
        process::usage(),
        call.api.started_at,
        refused,
    ))
}

pub(crate) async fn get_cluster(call: ApiCall<GetClusterRequest>) -> Reply<GetClusterResponse> {
    Ok(call.api.members.read(&*call.api.engine.machine).await?)
}

pub(crate) async fn sweep_now(call: ApiCall<SweepNowRequest>) -> Reply<SweepNowResponse> {
    let filter = call.api.tenant_filter(&call.message.tenant)?;
    let ended = call.api.engine.sessions.sweep(filter.as_ref()).await?;
    Ok(to::swept(&ended))
}

pub(crate) async fn run_dream(call: ApiCall<RunDreamRequest>) -> Reply<RunDreamResponse> {
    let filter = call.api.tenant_filter(&call.message.tenant)?;
    let consolidation = &call.api.memories.consolidation;
    let reports = consolidation.run(filter.as_ref(), call.message.dry_run);
    Ok(memory::to::consolidated(reports.await?))
}

pub(crate) async fn reindex_memories(
    call: ApiCall<ReindexMemoriesRequest>,
) -> Reply<ReindexMemoriesResponse> {
    let filter = call.api.tenant_filter(&call.message.tenant)?;
    let mut queued = 0;
    for tenant in call.api.engine.tenants.all() {
        if filter.as_ref().is_none_or(|filter| *filter == tenant.id) {
            queued += call.api.memories.facts.reindex(&tenant).await?;
        }
    }
    Ok(ReindexMemoriesResponse { queued })
}

pub(crate) async fn list_hook_deliveries(
    call: ApiCall<ListHookDeliveriesRequest>,
) -> Reply<ListHookDeliveriesResponse> {
    let request = call.message;
    let tenant = call.api.tenant_filter(&request.tenant)?;
    let filter = from::delivery_filter(&request, tenant)?;
    let after = from::page_token(&request.page_token)?;
    let size = from::page_size(request.page_size);
    let listed = call
        .api
        .engine
        .hooks
        .deliveries(filter, after, size)
        .await?;
    Ok(to::deliveries(&listed, size))
}

pub(crate) async fn retry_hook_delivery(
    call: ApiCall<RetryHookDeliveryRequest>,
) -> Reply<RetryHookDeliveryResponse> {
    let id = call.message.id.parse()?;
    let view = call.api.engine.hooks.retry_delivery(id).await?;
    let delivery = Some(to::delivery(&view));
    Ok(RetryHookDeliveryResponse { delivery })
}

pub(crate) async fn drop_hook_delivery(
    call: ApiCall<DropHookDeliveryRequest>,
) -> Reply<DropHookDeliveryResponse> {
    let id = call.message.id.parse()?;
    call.api.engine.hooks.drop_delivery(id).await?;
    Ok(DropHookDeliveryResponse {})
}

pub(crate) async fn reload_config(
    call: ApiCall<ReloadConfigRequest>,
) -> Reply<ReloadConfigResponse> {
    let reloader = Arc::clone(&call.api.reloader);
    let reloaded = reloader.reload_in_task(ReloadCause::Call).await;
    let ReloadReport { applied, refused } = reloaded?;
    Ok(ReloadConfigResponse { applied, refused })
}

pub(crate) async fn verify(call: ApiCall<VerifyRequest>) -> Reply<VerifyResponse> {
    Ok(call.api.maintenance.verify().await?)
}

/// Sends the steps of a backup, until the caller's key is revoked.
pub(crate) async fn backup(
    call: ApiCall<BackupRequest>,
) -> Reply<impl Stream<Item = Result<BackupResponse, Status>>> {
    let steps = call.api.maintenance.backup(call.message.have)?;
    let key = call.caller.key;
    Ok(steps.map(move |step| key.check().map_err(Status::from).and(step)))
}
