//! `/metrics`: what the engine counts and what calls cost, in the OpenMetrics format.

mod compactions;
mod memories;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::Response;
use memoird_core::outbox::DeliveryState;
use memoird_engine::{Engine, TenantSnapshot};
use memoird_memories::Memories;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tonic::body::Body;

use crate::process;
use crate::reload::Reloader;
use crate::services::Watching;

/// The methods that are counted apart; any other path counts as `other`.
const METHODS: [&str; 31] = [
    "/memoird.v1.SessionService/Append",
    "/memoird.v1.SessionService/GetContext",
    "/memoird.v1.SessionService/GetHistory",
    "/memoird.v1.SessionService/GetSession",
    "/memoird.v1.SessionService/ListSessions",
    "/memoird.v1.SessionService/PatchState",
    "/memoird.v1.SessionService/CompactSession",
    "/memoird.v1.SessionService/UndoCompaction",
    "/memoird.v1.SessionService/ResetSession",
    "/memoird.v1.SessionService/EndSession",
    "/memoird.v1.SessionService/WatchEvents",
    "/memoird.v1.MemoryService/Remember",
    "/memoird.v1.MemoryService/Recall",
    "/memoird.v1.MemoryService/GetMemory",
    "/memoird.v1.MemoryService/ListMemories",
    "/memoird.v1.MemoryService/UpdateMemory",
    "/memoird.v1.MemoryService/Forget",
    "/memoird.v1.MemoryService/GetManifest",
    "/memoird.v1.MemoryService/LeaseExtraction",
    "/memoird.v1.MemoryService/CommitExtraction",
    "/memoird.v1.MemoryService/ImportMemories",
    "/memoird.v1.MemoryService/GetMemoryStats",
    "/memoird.v1.MemoryService/ReindexMemories",
    "/memoird.v1.AdminService/GetStats",
    "/memoird.v1.AdminService/ListTenants",
    "/memoird.v1.AdminService/SweepNow",
    "/memoird.v1.AdminService/RunDream",
    "/memoird.v1.AdminService/ListHookDeliveries",
    "/memoird.v1.AdminService/RetryHookDelivery",
    "/memoird.v1.AdminService/DropHookDelivery",
    "/memoird.v1.AdminService/ReloadConfig",
];

/// Calls by method: how many, how many failed, how long they took.
#[derive(Clone, Debug)]
pub(crate) struct CallMetrics {
    methods: Arc<[Method]>,
    /// The histograms of the methods, as one family.
    seconds: Family<MethodLabel, Histogram, fn() -> Histogram>,
}

#[derive(Debug)]
struct Method {
    name: &'static str,
    failures: AtomicU64,
    seconds: Histogram,
}

/// The labels of a method's histogram.
type MethodLabel = [(&'static str, &'static str); 1];

/// A call under way.
pub(crate) struct CallTimer {
    methods: Arc<[Method]>,
    method: usize,
    started: std::time::Instant,
}

impl CallMetrics {
    pub(crate) fn new() -> Self {
        let name = |path: &&'static str| path.rsplit('/').next().unwrap_or(path);
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.000_05, 2.0, 16));
        let seconds = Family::new_with_constructor(buckets);
        let methods = METHODS
            .iter()
            .map(name)
            .chain(["other"])
            .map(|name| Method {
                name,
                failures: AtomicU64::new(0),
                seconds: Histogram::clone(&seconds.get_or_create(&[("method", name)])),
            });
        Self {
            methods: methods.collect(),
            seconds,
        }
    }

    /// A call of this path begins.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn start(&self, path: &str) -> CallTimer {
        let method = METHODS
            .iter()
            .position(|known| *known == path)
            .unwrap_or(METHODS.len());
        let started = std::time::Instant::now();
        CallTimer {
            methods: Arc::clone(&self.methods),
            method,
            started,
        }
    }
}

impl CallTimer {
    /// The call has its answer.
    pub(crate) fn stop(self, answer: Option<&Response<Body>>) {
        let method = &self.methods[self.method];
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
    registry.register(
        "call_seconds",
        "How long a call takes",
        sources.calls.seconds.clone(),
    );
    let help = "Hook deliveries by what became of them";
    registry.register("hook_deliveries", help, commits.hooks.deliveries.clone());
    registry.register(
        "hook_seconds",
        "How long a hook takes",
        commits.hooks.seconds.clone(),
    );
    let help = "How long a recall takes, with the embedding of its query";
    registry.register("recall_seconds", help, sources.memories.recall_seconds());
    let help = "How long a summary takes, from the snapshot to the answer";
    registry.register(
        "compaction_seconds",
        help,
        commits.compaction_seconds.clone(),
    );
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
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// A metric by tenant: its name, what it says, where it is read, whether it only grows.
type ByTenant = (
    &'static str,
    &'static str,
    fn(&TenantSnapshot) -> u64,
    MetricType,
);

const BY_TENANT: [ByTenant; 16] = [
    (
        "sessions_live",
        "Sessions alive",
        |t| t.sessions_live,
        MetricType::Gauge,
    ),
    (
        "turns_live",
        "Turns in their histories",
        |t| t.turns_live,
        MetricType::Gauge,
    ),
    (
        "bytes_live",
        "Encoded bytes of those turns",
        |t| t.bytes_live,
        MetricType::Gauge,
    ),
    (
        "sessions_created",
        "Generations started",
        |t| t.sessions_created,
        MetricType::Counter,
    ),
    (
        "sessions_expired",
        "Generations ended by their TTL",
        |t| t.expired,
        MetricType::Counter,
    ),
    (
        "sessions_evicted",
        "Generations ended by a cap",
        |t| t.evicted,
        MetricType::Counter,
    ),
    (
        "sessions_ended",
        "Generations ended by their bot",
        |t| t.ended,
        MetricType::Counter,
    ),
    (
        "turns_appended",
        "Turns appended",
        |t| t.turns_appended,
        MetricType::Counter,
    ),
    (
        "turns_dropped",
        "Turns that left to make room",
        |t| t.turns_dropped,
        MetricType::Counter,
    ),
    (
        "windows_built",
        "Windows built",
        |t| t.windows.built,
        MetricType::Counter,
    ),
    (
        "windows_refused",
        "Windows that could not fit",
        |t| t.windows.refused,
        MetricType::Counter,
    ),
    (
        "window_tokens",
        "Tokens of the windows",
        |t| t.windows.tokens,
        MetricType::Counter,
    ),
    (
        "window_tokens_saved",
        "Tokens of kept turns that windows did not send",
        |t| t.windows.tokens_saved,
        MetricType::Counter,
    ),
    (
        "window_prefix_tokens",
        "Tokens of the windows in a prefix sent before",
        |t| t.windows.prefix_tokens,
        MetricType::Counter,
    ),
    (
        "window_cuts",
        "Cuts made",
        |t| t.windows.cuts,
        MetricType::Counter,
    ),
    (
        "window_results_trimmed",
        "Tool results that cuts trimmed or replaced",
        |t| t.windows.results_trimmed,
        MetricType::Counter,
    ),
];

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let stats = self.engine.stats();
        for (name, help, read, kind) in BY_TENANT {
            let values = stats
                .tenants
                .iter()
                .map(|tenant| ([label(tenant)], read(tenant)));
            family(encoder, kind, name, help, values)?;
        }
        compactions::encode(
            encoder,
            &stats.tenants,
            self.engine.compaction.summarizer_state(),
        )?;
        let tenants = stats.tenants.iter().map(|tenant| &tenant.id);
        memories::encode(encoder, &self.memories, tenants)?;
        let counts = [
            ("commits", "Journal transactions", stats.commits),
            ("commit_sets", "Change sets in them", stats.commit_sets),
            (
                "commit_failures",
                "Change sets not written",
                stats.commit_failures,
            ),
        ];
        for (name, help, value) in counts {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        self.encode_by_name(encoder)?;
        self.encode_hooks(encoder)?;
        gauge(
            encoder,
            "events_watchers",
            "Streams of WatchEvents",
            self.watching.count() as u64,
        )?;
        let counts = &self.reloader.counts;
        let outcomes = [("applied", &counts.applied), ("refused", &counts.refused)];
        let outcomes = outcomes
            .map(|(outcome, count)| ([("outcome", outcome)], count.load(Ordering::Relaxed)));
        let help = "How often the configuration was read again";
        family(encoder, MetricType::Counter, "reloads", help, outcomes)?;
        let usage = process::usage();
        let metric = encoder.encode_descriptor("cpu_seconds", "CPU", None, MetricType::Counter)?;
        ConstCounter::new(usage.cpu_seconds).encode(metric)?;
        gauge(encoder, "rss_bytes", "Resident memory", usage.rss_bytes)
    }
}

impl Sources {
    /// As they were counted for this page.
    fn encode_hooks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (counts, names) = (
            self.engine.hooks.last_delivery_counts(),
            self.engine.hooks.hook_names(),
        );
        let states = [
            (
                "hooks_pending",
                "Hook deliveries that are owed",
                DeliveryState::Pending,
            ),
            (
                "hooks_dead",
                "Hook deliveries that were given up",
                DeliveryState::Dead,
            ),
        ];
        for (name, help, state) in states {
            let mut sums: BTreeMap<&str, u64> =
                names.iter().map(|hook| (hook.as_str(), 0)).collect();
            for of_hook in counts.iter().filter(|of_hook| of_hook.state == state) {
                *sums.entry(of_hook.hook.as_str()).or_default() += of_hook.count;
            }
            let sums = sums.into_iter().map(|(hook, sum)| ([("hook", hook)], sum));
            family(encoder, MetricType::Gauge, name, help, sums)?;
        }
        Ok(())
    }

    fn encode_by_name(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counter = MetricType::Counter;
        let methods = self.calls.methods.iter().map(|method| {
            let failures = method.failures.load(Ordering::Relaxed);
            ([("method", method.name)], failures)
        });
        family(
            encoder,
            counter,
            "call_failures",
            "Calls that failed",
            methods,
        )?;
        let workers = self.engine.workers();
        let failures = workers
            .iter()
            .map(|worker| ([("worker", worker.name)], worker.failures()));
        let help = "Background steps that failed";
        family(encoder, counter, "worker_failures", help, failures)?;
        let steps = workers
            .iter()
            .map(|worker| ([("worker", worker.name)], worker.steps()));
        family(
            encoder,
            counter,
            "worker_steps",
            "Background steps done",
            steps,
        )
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

/// Writes a metric that goes up and down and has no labels.
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(signed(value)).encode(metric)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
