//! Routes calls to services by the first segment of the path.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

#[derive(Clone)]
pub(crate) struct Routes(Arc<[Route]>);

pub(crate) struct Route {
    name: &'static str,
    service: Box<dyn ErasedService>,
}

/// A type-erased service.
pub(crate) trait ErasedService: Send + Sync {
    fn serve(&self, call: Request<Body>) -> ServiceFuture;
}

type ServiceFuture = BoxFuture<Response<Body>, Infallible>;

impl<S> ErasedService for S
where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = ServiceFuture,
        >,
    S: Clone + Send + Sync,
{
    /// gRPC services are always ready.
    fn serve(&self, call: Request<Body>) -> ServiceFuture {
        self.clone().call(call)
    }
}

impl Route {
    pub(crate) fn new<S: NamedService + ErasedService + 'static>(service: S) -> Self {
        Self {
            name: S::NAME,
            service: Box::new(service),
        }
    }
}

impl Routes {
    pub(crate) fn new(routes: Vec<Route>) -> Self {
        Self(routes.into())
    }

    /// Passes a call to the service of its path. UNIMPLEMENTED if there is none.
    pub(crate) fn serve(&self, call: Request<Body>) -> ServiceFuture {
        let path = call.uri().path().strip_prefix('/');
        let named = path.and_then(|path| path.split_once('/'));
        let route = named.and_then(|(name, _)| self.0.iter().find(|route| route.name == name));
        match route {
            Some(route) => route.service.serve(call),
            None => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}
