//! AdminService: what an operator asks. The edge has seen the role.

use memoird_core::ids::TenantId;
use memoird_core::time::Timestamp;
use memoird_engine::Engine;
use memoird_proto::spliced::admin_service_server::AdminService;
use memoird_proto::v1;
use tonic::{Request, Response, Status, async_trait};

use crate::process;
use crate::wire::{from, status, to};

/// The engine as operators see it.
#[derive(Clone, Debug)]
pub(crate) struct AdminApi {
    engine: Engine,
    started_at: Timestamp,
}

impl AdminApi {
    pub(crate) fn new(engine: Engine, started_at: Timestamp) -> Self {
        Self { engine, started_at }
    }

    /// A tenant that exists; `None` for all of them.
    fn tenant(&self, named: &str) -> Result<Option<TenantId>, Status> {
        let filter = from::tenant_filter(named)?;
        match &filter {
            Some(id) if self.engine.tenant(id).is_none() => Err(status::tenant_not_found()),
            _ => Ok(filter),
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl AdminService for AdminApi {
    async fn get_stats(
        &self,
        request: Request<v1::GetStatsRequest>,
    ) -> Answer<v1::GetStatsResponse> {
        let filter = self.tenant(&request.into_inner().tenant)?;
        let mut stats = self.engine.stats();
        stats.tenants.retain(|tenant| filter.as_ref().is_none_or(|id| *id == tenant.id));
        Ok(Response::new(to::stats(stats, process::usage(), self.started_at)))
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
        let ended = self.engine.sweep(filter.as_ref()).await;
        Ok(Response::new(to::swept(&ended.map_err(|error| status::engine(&error))?)))
    }

    async fn run_dream(&self, _: Request<v1::RunDreamRequest>) -> Answer<v1::RunDreamResponse> {
        Err(status::unimplemented("RunDream"))
    }

    async fn list_hook_deliveries(
        &self,
        _: Request<v1::ListHookDeliveriesRequest>,
    ) -> Answer<v1::ListHookDeliveriesResponse> {
        Err(status::unimplemented("ListHookDeliveries"))
    }

    async fn retry_hook_delivery(
        &self,
        _: Request<v1::RetryHookDeliveryRequest>,
    ) -> Answer<v1::RetryHookDeliveryResponse> {
        Err(status::unimplemented("RetryHookDelivery"))
    }

    async fn drop_hook_delivery(
        &self,
        _: Request<v1::DropHookDeliveryRequest>,
    ) -> Answer<v1::DropHookDeliveryResponse> {
        Err(status::unimplemented("DropHookDelivery"))
    }

    async fn reload_config(
        &self,
        _: Request<v1::ReloadConfigRequest>,
    ) -> Answer<v1::ReloadConfigResponse> {
        Err(status::unimplemented("ReloadConfig"))
    }
}
