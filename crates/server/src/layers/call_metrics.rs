//! Calls, failures and durations by method.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tonic::Status;

use super::call::CallResult;
use crate::rpc::{Call, RPCS};

/// Calls, failures and durations by method.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    /// By path.
    methods: Arc<BTreeMap<&'static str, Arc<Method>>>,
    /// All other paths.
    other: Arc<Method>,
    seconds: SecondsByMethod,
}

#[derive(Debug)]
struct Method {
    name: String,
    failures: AtomicU64,
    seconds: Histogram,
}

pub(crate) type SecondsByMethod = Family<MethodLabel, Histogram, fn() -> Histogram>;

pub(crate) type MethodLabel = [(&'static str, String); 1];

/// A call in progress, counted on drop.
///
/// Without a response it counts as failed, because calls that take too long end so.
pub(super) struct CallTimer {
    method: Arc<Method>,
    started: std::time::Instant,
    has_failed: bool,
}

impl CallMetrics {
    pub(crate) fn new() -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let seconds = Family::new_with_constructor(buckets);
        let method = |name: &str| {
            Arc::new(Method {
                name: name.to_owned(),
                failures: AtomicU64::new(0),
                seconds: Histogram::clone(&seconds.get_or_create(&[("method", name.to_owned())])),
            })
        };
        let methods = RPCS.iter().map(|rpc| (rpc.path, method(rpc.name())));
        Self {
            methods: Arc::new(methods.collect()),
            other: method("other"),
            seconds,
        }
    }

    /// Failed calls by method.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (&str, u64)> {
        let methods = self.methods.values().chain([&self.other]);
        methods.map(|method| (&*method.name, method.failures.load(Ordering::Relaxed)))
    }

    /// Durations, for the registry.
    pub(crate) fn seconds(&self) -> SecondsByMethod {
        self.seconds.clone()
    }

    #[allow(clippy::disallowed_methods)]
    pub(super) fn start(&self, call: Call) -> CallTimer {
        let known = call.rpc().and_then(|rpc| self.methods.get(rpc.path));
        let method = known.unwrap_or(&self.other);
        CallTimer {
            method: Arc::clone(method),
            started: std::time::Instant::now(),
            has_failed: true,
        }
    }
}

impl CallTimer {
    pub(super) fn stop(mut self, result: &CallResult) {
        self.has_failed = result.as_ref().map_or(true, |answer| {
            let status = answer.headers().get(Status::GRPC_STATUS);
            status.is_some_and(|status| status != "0")
        });
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        let method = &self.method;
        method.seconds.observe(self.started.elapsed().as_secs_f64());
        if self.has_failed {
            method.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;
    use tonic::body::Body;

    use super::*;

    #[test]
    fn failed_and_cancelled_calls_are_counted() {
        let calls = CallMetrics::new();
        let path = "/memoird.v1.SessionService/Append";
        let call = Call::of(path);
        drop(calls.start(call));
        let answer = |status: &'static str| {
            let mut answer = Response::new(Body::empty());
            let status = http::HeaderValue::from_static(status);
            answer.headers_mut().insert(Status::GRPC_STATUS, status);
            Ok(answer)
        };
        calls.start(call).stop(&Ok(Response::default()));
        calls.start(call).stop(&answer("0"));
        calls.start(call).stop(&answer("3"));
        calls
            .start(call)
            .stop(&Err(crate::layers::call::Rejection::Reset));
        assert_eq!(calls.methods[path].failures.load(Ordering::Relaxed), 3);
        let mut registry = Registry::default();
        registry.register("seconds", "", calls.seconds());
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        assert!(
            page.contains("seconds_count{method=\"Append\"} 5"),
            "{page}"
        );
    }
}
