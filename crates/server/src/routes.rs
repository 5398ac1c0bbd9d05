//! Which service answers a call: the one that the first part of its path names.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// The services. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Routes(Arc<[Route]>);

/// A service under its name.
pub(crate) struct Route {
    name: &'static str,
    service: Box<dyn Answers>,
}

/// A service, whichever it is.
pub(crate) trait Answers: Send + Sync {
    fn answer(&self, call: Request<Body>) -> Answer;
}

/// The future of a service's answer.
type Answer = BoxFuture<Response<Body>, Infallible>;

impl<S> Answers for S
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future = Answer>,
    S: Clone + Send + Sync,
{
    /// A service of gRPC is ready at any time.
    fn answer(&self, call: Request<Body>) -> Answer {
        self.clone().call(call)
    }
}

impl Route {
    pub(crate) fn new<S: NamedService + Answers + 'static>(service: S) -> Self {
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

    /// Gives a call to the service that its path names. An unknown service is answered with
    /// UNIMPLEMENTED.
    pub(crate) fn answer(&self, call: Request<Body>) -> Answer {
        let path = call.uri().path().strip_prefix('/');
        let named = path.and_then(|path| path.split_once('/'));
        let route = named.and_then(|(name, _)| self.0.iter().find(|route| route.name == name));
        match route {
            Some(route) => route.service.answer(call),
            None => Box::pin(ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}
