//! `/metrics`: what the engine counts and what calls cost, in the OpenMetrics format.

mod compactions;
mod memories;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Response;
use memoird_core::ids::TenantId;
use memoird_core::outbox::DeliveryState;
use memoird_engine::{Engine, TenantSnapshot};
use memoird_memories::Memories;
use memoird_proto::{DESCRIPTORS, PACKAGE};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use prost::Message;
use prost_types::{FileDescriptorSet, MethodDescriptorProto};
use tonic::body::Body;

use crate::logging::LostLines;
use crate::process;
use crate::reload::Reloader;
use crate::services::Watching;

/// Calls by method: how many, how many failed, how long they took.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    /// The methods of the contract by their paths.
    methods: Arc<BTreeMap<String, Arc<Method>>>,
    /// Any other path.
    other: Arc<Method>,
    /// The histograms of the methods, as one family.
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug)]
struct Method {
    name: String,
    failures: AtomicU64,
    seconds: Histogram,
}

/// The labels of a method's histogram.
type MethodLabel = [(&'static str, String); 1];

/// A call under way.
pub(crate) struct CallTimer {
    method: Arc<Method>,
    started: std::time::Instant,
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
        let contract = FileDescriptorSet::decode(DESCRIPTORS).unwrap_or_default();
        let services = contract.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| {
            let method = |method_of: &MethodDescriptorProto| {
                let path = format!("/{PACKAGE}.{}/{}", service.name(), method_of.name());
                (path, method(method_of.name()))
            };
            service.method.iter().map(method).collect::<Vec<_>>()
        });
        Self {
            methods: Arc::new(methods.collect()),
            other: method("other"),
            seconds,
        }
    }

    /// A call of this path begins.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(&self, path: &str) -> CallTimer {
        let method = self.methods.get(path).unwrap_or(&self.other);
        CallTimer {
            method: Arc::clone(method),
            started: std::time::Instant::now(),
        }
    }
}

impl CallTimer {
    /// The call has its answer.
    pub(crate) fn stop(self, answer: Option<&Response<Body>>) {
        let method = self.method;
        method.seconds.observe(self.started.elapsed().as_secs_f64());
        let status = answer.and_then(|answer| answer.headers().get("grpc-status"));
        if status.is_some_and(|status| status != "0") {
            method.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// All metrics of the process.
pub(crate) fn registry(sources: Sources) -> Registry {
    let mut registry = Registry::with_prefix("memoird");
    let commits = sources.engine.commit_stats();
    let help = "How long a journal transaction takes";
    registry.register("commit_seconds", help, commits.commit_seconds.clone());
    let help = "Change sets of a journal transaction";
    registry.register("commit_batch_sets", help, commits.commit_batch.clone());
    let help = "How long a call takes";
    registry.register("call_seconds", help, sources.calls.seconds.clone());
    let help = "Hook deliveries by what became of them";
    registry.register("hook_deliveries", help, commits.hooks.deliveries.clone());
    let help = "How long a hook takes";
    registry.register("hook_seconds", help, commits.hooks.seconds.clone());
    let help = "How long a recall takes, with the embedding of its query";
    registry.register("recall_seconds", help, sources.memories.recall_seconds());
    let help = "How long a summary takes, from the snapshot to the answer";
    let summaries = commits.compaction_seconds.clone();
    registry.register("compaction_seconds", help, summaries);
    registry.register_collector(Box::new(sources));
    registry
}

/// Where metrics are read when somebody asks.
pub(crate) struct Sources {
    /// Sessions, commits, hooks, workers.
    pub(crate) engine: Engine,
    /// Memories.
    pub(crate) memories: Memories,
    /// Calls.
    pub(crate) calls: CallMetrics,
    /// Streams of events.
    pub(crate) watching: Watching,
    /// Reloads.
    pub(crate) reloader: Arc<Reloader>,
    /// Lines that are not in the log.
    pub(crate) lost_lines: Arc<LostLines>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// A metric that every tenant has.
struct TenantMetric<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: fn(&T) -> u64,
}

/// One that only grows.
const fn total<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> TenantMetric<T> {
    let kind = MetricType::Counter;
    TenantMetric {
        name,
        help,
        kind,
        read,
    }
}

/// One that goes up and down.
const fn level<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> TenantMetric<T> {
    TenantMetric {
        kind: MetricType::Gauge,
        ..total(name, help, read)
    }
}

impl<T> TenantMetric<T> {
    /// Writes the value of each tenant.
    fn encode<'a>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        tenants: impl IntoIterator<Item = (&'a TenantId, &'a T)>,
    ) -> fmt::Result
    where
        T: 'a,
    {
        let tenants = tenants.into_iter();
        let values = tenants.map(|(id, counts)| ([("tenant", id.as_str())], (self.read)(counts)));
        family(encoder, self.kind, self.name, self.help, values)
    }
}

const BY_TENANT: [TenantMetric<TenantSnapshot>; 16] = [
    level("sessions_live", "Sessions alive", |t| t.sessions_live),
    level("turns_live", "Turns in their histories", |t| t.turns_live),
    level("bytes_live", "Encoded bytes of those turns", |t| {
        t.bytes_live
    }),
    total("sessions_created", "Generations started", |t| {
        t.sessions_created
    }),
    total("sessions_expired", "Generations ended by their TTL", |t| {
        t.expired
    }),
    total("sessions_evicted", "Generations ended by a cap", |t| {
        t.evicted
    }),
    total("sessions_ended", "Generations ended by their bot", |t| {
        t.ended
    }),
    total("turns_appended", "Turns appended", |t| t.turns_appended),
    total("turns_dropped", "Turns that left to make room", |t| {
        t.turns_dropped
    }),
    total("windows_built", "Windows built", |t| t.windows.built),
    total("windows_refused", "Windows that could not fit", |t| {
        t.windows.refused
    }),
    total("window_tokens", "Tokens of the windows", |t| {
        t.windows.tokens
    }),
    total(
        "window_tokens_saved",
        "Tokens of kept turns that windows did not send",
        |t| t.windows.tokens_saved,
    ),
    total(
        "window_prefix_tokens",
        "Tokens of the windows in a prefix sent before",
        |t| t.windows.prefix_tokens,
    ),
    total("window_cuts", "Cuts made", |t| t.windows.cuts),
    total(
        "window_results_trimmed",
        "Tool results that cuts trimmed or replaced",
        |t| t.windows.results_trimmed,
    ),
];

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let stats = self.engine.stats();
        for metric in &BY_TENANT {
            let tenants = stats.tenants.iter().map(|tenant| (&tenant.id, tenant));
            metric.encode(encoder, tenants)?;
        }
        let summarizer = self.engine.compaction.summarizer_state();
        compactions::encode(encoder, &stats.tenants, summarizer)?;
        let tenants = stats.tenants.iter().map(|tenant| &tenant.id);
        memories::encode(encoder, &self.memories, tenants)?;
        counter(encoder, "commits", "Journal transactions", stats.commits)?;
        let help = "Change sets in them";
        counter(encoder, "commit_sets", help, stats.commit_sets)?;
        let memory = stats.memory;
        let parts = [
            ("sessions", memory.session_bytes),
            ("content", memory.content_bytes),
            ("calls", memory.call_bytes),
        ]
        .map(|(of, bytes)| ([("of", of)], bytes));
        let help = "Memory that clients use, as limits.memory counts it";
        family(encoder, MetricType::Gauge, "memory_used_bytes", help, parts)?;
        let help = "Memory that clients may use; 0: no limit";
        gauge(encoder, "memory_limit_bytes", help, memory.limit_bytes)?;
        let help = "How often the content of a session has left memory";
        counter(encoder, "sessions_unloaded", help, memory.unloads)?;
        let help = "Change sets not written";
        counter(encoder, "commit_failures", help, stats.commit_failures)?;
        self.encode_by_name(encoder)?;
        self.encode_hooks(encoder)?;
        let watchers = self.watching.count() as u64;
        let help = "Streams of WatchEvents";
        gauge(encoder, "events_watchers", help, watchers)?;
        let counts = &self.reloader.counts;
        let outcomes = [("applied", &counts.applied), ("refused", &counts.refused)]
            .map(|(outcome, count)| ([("outcome", outcome)], count.load(Ordering::Relaxed)));
        let help = "How often the configuration was read again";
        family(encoder, MetricType::Counter, "reloads", help, outcomes)?;
        let lost = &self.lost_lines;
        let causes = [
            ("unwritable", &lost.unwritable),
            ("over_limit", &lost.over_limit),
        ]
        .map(|(cause, count)| ([("cause", cause)], count.load(Ordering::Relaxed)));
        let help = "Lines that are not in the log";
        family(encoder, MetricType::Counter, "log_lines_lost", help, causes)?;
        let usage = process::usage();
        counter(encoder, "cpu_seconds", "CPU", usage.cpu_seconds)?;
        gauge(encoder, "rss_bytes", "Resident memory", usage.rss_bytes)
    }
}

impl Sources {
    /// As they were counted for this page.
    fn encode_hooks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.engine.hooks.last_delivery_counts();
        let names = self.engine.hooks.hook_names();
        let mut of_state = |name, help, state| {
            let mut sums: BTreeMap<&str, u64> =
                names.iter().map(|hook| (hook.as_str(), 0)).collect();
            for of_hook in counts.iter().filter(|of_hook| of_hook.state == state) {
                *sums.entry(of_hook.hook.as_str()).or_default() += of_hook.count;
            }
            let sums = sums.into_iter().map(|(hook, sum)| ([("hook", hook)], sum));
            family(encoder, MetricType::Gauge, name, help, sums)
        };
        let help = "Hook deliveries that are owed";
        of_state("hooks_pending", help, DeliveryState::Pending)?;
        let help = "Hook deliveries that were given up";
        of_state("hooks_dead", help, DeliveryState::Dead)
    }

    fn encode_by_name(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = MetricType::Counter;
        let methods = self.calls.methods.values().chain([&self.calls.other]);
        let failures = methods.map(|method| {
            let failures = method.failures.load(Ordering::Relaxed);
            ([("method", method.name.as_str())], failures)
        });
        let help = "Calls that failed";
        family(encoder, kind, "call_failures", help, failures)?;
        let workers = self.engine.workers();
        let failures = workers
            .iter()
            .map(|it| ([("worker", it.name)], it.failures()));
        let help = "Background steps that failed";
        family(encoder, kind, "worker_failures", help, failures)?;
        let steps = workers.iter().map(|it| ([("worker", it.name)], it.steps()));
        let help = "Background steps done";
        family(encoder, kind, "worker_steps", help, steps)
    }
}

/// A label with its value.
type Label<'a> = (&'a str, &'a str);

fn label(tenant: &TenantSnapshot) -> Label<'_> {
    ("tenant", tenant.id.as_str())
}

/// Writes a metric that has labels: its values, each with its own.
fn family<'a, const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    kind: MetricType,
    name: &str,
    help: &str,
    values: impl IntoIterator<Item = ([Label<'a>; N], u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let metric = family.encode_family(&labels)?;
        match kind {
            MetricType::Counter => ConstCounter::new(value).encode(metric)?,
            _ => ConstGauge::new(signed(value)).encode(metric)?,
        }
    }
    Ok(())
}

/// Writes a metric that only grows and has no labels.
fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeCounterValue,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

/// Writes a metric that goes up and down and has no labels.
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(signed(value)).encode(metric)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
