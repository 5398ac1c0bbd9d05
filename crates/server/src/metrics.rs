//! The page `/metrics` in the OpenMetrics format.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::breaker::BreakerState;
use memoird_core::ids::TenantId;
use memoird_core::outbox::DeliveryState;
use memoird_engine::{CompactionSnapshot, TenantSnapshot};
use memoird_memories::MemorySnapshot;
use memoird_store::Store;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::connections::Ports;
use crate::layers::Layers;
use crate::layers::limits::rates::RateLimit;
use crate::services::Api;
use crate::{cluster, process};

pub(crate) fn registry(sources: Sources) -> Registry {
    let mut registry = Registry::with_prefix("memoird");
    let commits = sources.api.engine.commit_stats();
    let help = "Duration of a journal transaction";
    registry.register("commit_seconds", help, commits.commit_seconds.clone());
    let help = "Change sets per journal transaction";
    registry.register("commit_batch_sets", help, commits.commit_batch.clone());
    let help = "Duration of a call";
    registry.register("call_seconds", help, sources.layers.metrics.seconds());
    let help = "Hook delivery attempts by outcome";
    registry.register("hook_deliveries", help, commits.hooks.deliveries.clone());
    let help = "Duration of a hook's run";
    registry.register("hook_seconds", help, commits.hooks.seconds.clone());
    let help = "Duration of a recall, including the embedding of its query";
    let recalls = sources.api.memories.recall_seconds();
    registry.register("recall_seconds", help, recalls);
    let help = "Duration of a transcript search";
    registry.register("search_seconds", help, sources.api.search.seconds());
    let help = "Duration of a compaction, from the snapshot to the summary";
    let summaries = commits.compaction_seconds.clone();
    registry.register("compaction_seconds", help, summaries);
    registry.register_collector(Box::new(sources));
    registry
}

/// Sources of the metrics.
pub(crate) struct Sources {
    pub(crate) api: Arc<Api>,
    /// Damaged and unchecked turns, and commits in doubt.
    pub(crate) journal: Option<Arc<dyn Store>>,
    pub(crate) journal_away: watch::Receiver<Option<String>>,
    pub(crate) layers: Layers,
    pub(crate) connections: Ports,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

struct TenantMetric<T> {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    read: fn(&T) -> u64,
}

/// A counter.
const fn total<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> TenantMetric<T> {
    let kind = MetricType::Counter;
    TenantMetric {
        name,
        help,
        kind,
        read,
    }
}

/// A gauge.
const fn level<T>(name: &'static str, help: &'static str, read: fn(&T) -> u64) -> TenantMetric<T> {
    TenantMetric {
        kind: MetricType::Gauge,
        ..total(name, help, read)
    }
}

fn encode_by_tenant<T>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[TenantMetric<T>],
    tenants: &[(&TenantId, &T)],
) -> fmt::Result {
    metrics.iter().try_for_each(|metric| {
        let values = tenants
            .iter()
            .map(|(id, counts)| ([("tenant", id.as_str())], (metric.read)(counts)));
        family(encoder, metric.kind, metric.name, metric.help, values)
    })
}

/// Covers all daemons if they share the journal.
const LIVE: [TenantMetric<TenantSnapshot>; 1] =
    [level("sessions_live", "Live sessions", |t| t.sessions_live)];

const SESSIONS: [TenantMetric<TenantSnapshot>; 15] = [
    level("turns_live", "Turns in histories of live sessions", |t| {
        t.turns_live
    }),
    level(
        "bytes_live",
        "Encoded bytes of turns in histories of live sessions",
        |t| t.bytes_live,
    ),
    total("sessions_created", "Generations started", |t| {
        t.sessions_created
    }),
    total("sessions_expired", "Generations ended by their TTL", |t| {
        t.expired
    }),
    total("sessions_evicted", "Generations ended by a cap", |t| {
        t.evicted
    }),
    total("sessions_ended", "Generations ended by a client", |t| {
        t.ended
    }),
    total("turns_appended", "Turns appended", |t| t.turns_appended),
    total(
        "turns_dropped",
        "Turns dropped from histories by their limits",
        |t| t.turns_dropped,
    ),
    total("windows_built", "Windows built", |t| t.windows.built),
    total(
        "windows_refused",
        "Windows refused because their fixed content exceeds the budget",
        |t| t.windows.refused,
    ),
    total("window_tokens", "Tokens of windows", |t| t.windows.tokens),
    total(
        "window_tokens_saved",
        "Tokens of stored turns that windows left out",
        |t| t.windows.tokens_saved,
    ),
    total(
        "window_prefix_tokens",
        "Tokens of windows in a prefix that was sent before",
        |t| t.windows.prefix_tokens,
    ),
    total("window_cuts", "Cuts of windows", |t| t.windows.cuts),
    total(
        "window_results_trimmed",
        "Tool results that cuts trimmed or replaced",
        |t| t.windows.results_trimmed,
    ),
];

const COMPACTIONS: [TenantMetric<CompactionSnapshot>; 5] = [
    total(
        "compaction_tokens_before",
        "Tokens of summarized turns",
        |c| c.tokens_before,
    ),
    total("compaction_tokens_after", "Tokens of summaries", |c| {
        c.tokens_after
    }),
    total(
        "compaction_breakers_opened",
        "Openings of the compaction breaker of a session",
        |c| c.breakers_opened,
    ),
    total("compactions_undone", "Summaries undone", |c| c.undone),
    level(
        "compaction_breakers_open",
        "Live sessions with an open compaction breaker",
        |c| c.breakers_open,
    ),
];

const MEMORIES: [TenantMetric<MemorySnapshot>; 11] = [
    total(
        "memories_damaged",
        "Memories and documents that were read and not returned, because they are damaged",
        |m| m.damaged,
    ),
    total(
        "recall_notes_lost",
        "Recalls that could not be recorded for dream sweeps",
        |m| m.recalls_lost,
    ),
    total(
        "memories_forgotten",
        "Memories forgotten, including superseded versions",
        |m| m.forgotten,
    ),
    total(
        "secrets_redacted",
        "Secrets redacted before a memory was stored",
        |m| m.redacted,
    ),
    total(
        "embeddings_failed",
        "Memories whose embedding failed permanently",
        |m| m.embedding_failed,
    ),
    total("dream_promotions", "Memories pinned by dream sweeps", |m| {
        m.promoted
    }),
    total(
        "extractions",
        "Committed results of the extraction model",
        |m| m.extractions,
    ),
    total(
        "extractions_failed",
        "Calls of the extraction model that failed or returned an unusable result",
        |m| m.extractions_failed,
    ),
    total(
        "extraction_facts_refused",
        "Extracted facts that were rejected",
        |m| m.extractions_refused,
    ),
    total(
        "extraction_prompt_tokens",
        "Prompt tokens of the extraction model",
        |m| m.extraction_prompt_tokens,
    ),
    total(
        "extraction_answer_tokens",
        "Output tokens of the extraction model",
        |m| m.extraction_answer_tokens,
    ),
];

impl Collector for Sources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let stats = self.api.engine.stats();
        let tenants: Vec<_> = stats.tenants.iter().map(|it| (&it.id, it)).collect();
        if self.api.engine.leads() {
            // Only the leader exports values of the whole cluster, so that a sum counts them once.
            encode_by_tenant(encoder, &LIVE, &tenants)?;
            self.encode_hooks(encoder)?;
            let help = "How long ending expired and surplus sessions has been overdue";
            let overdue = self.api.engine.sessions.sweep_overdue();
            gauge(encoder, "sweep_overdue_seconds", help, overdue.as_secs())?;
        }
        encode_by_tenant(encoder, &SESSIONS, &tenants)?;
        self.encode_rates(encoder, &stats.tenants)?;
        self.encode_compactions(encoder, &stats.tenants)?;
        self.encode_memories(encoder, &stats.tenants)?;
        self.encode_search(encoder)?;
        counter(encoder, "commits", "Journal transactions", stats.commits)?;
        let help = "Change sets in journal transactions";
        counter(encoder, "commit_sets", help, stats.commit_sets)?;
        let memory = stats.memory;
        let parts = [
            ("sessions", memory.session_bytes),
            ("content", memory.content_bytes),
            ("calls", memory.call_bytes),
            ("events", memory.event_bytes),
            ("hooks", memory.hook_bytes),
        ]
        .map(|(of, bytes)| ([("of", of)], bytes));
        let help = "Memory used on behalf of clients, as counted against limits.memory";
        family(encoder, MetricType::Gauge, "memory_used_bytes", help, parts)?;
        let help = "Value of limits.memory, or 0 without a limit";
        gauge(encoder, "memory_limit_bytes", help, memory.limit_bytes)?;
        let help = "Times that the content of a session was unloaded from memory";
        counter(encoder, "sessions_unloaded", help, memory.unloads)?;
        let help = "Change sets that the journal failed to write";
        counter(encoder, "commit_failures", help, stats.commit_failures)?;
        let doubts = self
            .journal
            .as_ref()
            .map(|journal| journal.in_doubt_commits())
            .unwrap_or_default();
        let outcomes = [
            ("written", doubts.written),
            ("unwritten", doubts.unwritten),
            ("unknown", doubts.unknown),
        ]
        .map(|(outcome, count)| ([("outcome", outcome)], count));
        let help = "Commits without a response from the database, by their later known outcome";
        family(
            encoder,
            MetricType::Counter,
            "commits_in_doubt",
            help,
            outcomes,
        )?;
        let help = "Times that the journal's database had lost acknowledged commits";
        counter(encoder, "journal_set_back", help, doubts.set_back)?;
        let turns = self
            .journal
            .as_ref()
            .map(|journal| journal.turn_counts())
            .unwrap_or_default();
        let help = "Turns read from the journal whose content was damaged";
        counter(encoder, "journal_turns_damaged", help, turns.damaged)?;
        let help = "Turns read from the journal without a checksum, as older versions wrote them";
        counter(encoder, "journal_turns_unchecked", help, turns.unchecked)?;
        self.encode_by_name(encoder)?;
        self.encode_connections(encoder)?;
        let tls = self.api.reloader.tls.as_ref();
        if let Some(left_s) = tls.and_then(|tls| tls.seconds_left(process::wall_clock())) {
            let name = "tls_certificate_remaining_seconds";
            let help = "Time until the daemon's certificate expires; negative once it has expired";
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(left_s).encode(metric)?;
        }
        let watchers = self.api.watching.count() as u64;
        let help = "Open WatchEvents streams";
        gauge(encoder, "events_watchers", help, watchers)?;
        let counts = &self.api.reloader.counts;
        let outcomes = [("applied", &counts.applied), ("refused", &counts.refused)]
            .map(|(outcome, count)| ([("outcome", outcome)], count.load(Ordering::Relaxed)));
        let help = "Reloads of the configuration by outcome";
        family(encoder, MetricType::Counter, "reloads", help, outcomes)?;
        let lost = &self.api.reloader.log.lost;
        let causes = [
            ("unwritable", &lost.unwritable),
            ("over_limit", &lost.over_limit),
        ]
        .map(|(cause, count)| ([("cause", cause)], count.load(Ordering::Relaxed)));
        let help = "Log lines dropped, by cause";
        family(encoder, MetricType::Counter, "log_lines_lost", help, causes)?;
        let usage = process::usage();
        counter(
            encoder,
            "cpu_seconds",
            "CPU time of the process",
            usage.cpu_seconds,
        )?;
        let help = "1 while the journal cannot be reached; /readyz has the reason";
        let is_away = self.journal_away.borrow().is_some();
        gauge(encoder, "journal_away", help, is_away.into())?;
        if let Some(own) = self.api.engine.cluster() {
            let help = "1 if this daemon leads its cluster";
            gauge(encoder, "cluster_leads", help, own.leads().into())?;
            let seen = self.api.members.seen();
            let help = "Daemons that share the journal, including this one";
            gauge(
                encoder,
                "cluster_members",
                help,
                cluster::here(&seen).count() as u64,
            )?;
            let help = "Leaders of the cluster; sweeps and hooks are paused at 0";
            let leaders = cluster::here(&seen).filter(|member| member.leads).count() as u64;
            gauge(encoder, "cluster_leaders", help, leaders)?;
            let help = "Version of the cluster's policy";
            let newest = self.api.members.policy.newest();
            let version = newest.map_or(0, |newest| newest.version);
            gauge(encoder, "cluster_policy_version", help, version)?;
            let help = "Daemons whose settings differ where all must agree";
            let others = cluster::disagreements(&seen).len() as u64;
            gauge(encoder, "cluster_members_disagreeing", help, others)?;
            let help = "How long the longest due hook delivery has been due";
            let late = seen.deliveries_late.map_or(0, |late| late.seconds);
            gauge(
                encoder,
                "cluster_deliveries_late_seconds",
                help,
                late.cast_unsigned(),
            )?;
        }
        gauge(encoder, "rss_bytes", "Resident memory", usage.rss_bytes)
    }
}

impl Sources {
    fn encode_compactions(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        tenants: &[TenantSnapshot],
    ) -> fmt::Result {
        let outcomes = tenants.iter().flat_map(|tenant| {
            let outcomes = tenant.compaction.outcomes.iter();
            outcomes.map(|(trigger, outcome, count)| {
                let labels = [
                    ("tenant", tenant.id.as_str()),
                    ("trigger", trigger.name()),
                    ("outcome", outcome.name()),
                ];
                (labels, *count)
            })
        });
        let help = "Compactions by trigger and outcome";
        family(encoder, MetricType::Counter, "compactions", help, outcomes)?;
        let counts: Vec<_> = tenants.iter().map(|it| (&it.id, &it.compaction)).collect();
        encode_by_tenant(encoder, &COMPACTIONS, &counts)?;
        let compaction = &self.api.engine.compaction;
        let help = "Compactions queued or running";
        gauge(
            encoder,
            "compactions_pending",
            help,
            compaction.pending() as u64,
        )?;
        let summarizer = compaction.summarizer_state();
        let (name, breaker) = summarizer.unwrap_or(("local".to_owned(), BreakerState::Closed));
        let state = match breaker {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        };
        let help = "State of the summarizer's breaker: 0 closed, 1 half open, 2 open";
        let values = [([("summarizer", name.as_str())], state)];
        let kind = MetricType::Gauge;
        family(encoder, kind, "summarizer_breaker", help, values)
    }

    fn encode_rates(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        tenants: &[TenantSnapshot],
    ) -> fmt::Result {
        let refused = tenants.iter().flat_map(|tenant| {
            [RateLimit::Calls, RateLimit::Bytes].map(|limit| {
                let labels = [("tenant", tenant.id.as_str()), ("limit", limit.key())];
                (labels, self.api.rates.refused(&tenant.id, limit))
            })
        });
        let help = "Calls refused by a tenant's rate limits";
        family(encoder, MetricType::Counter, "calls_refused", help, refused)
    }

    fn encode_memories(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        tenants: &[TenantSnapshot],
    ) -> fmt::Result {
        let memories = &self.api.memories;
        let counts: Vec<_> = tenants.iter().map(|it| memories.counts(&it.id)).collect();
        let ids = tenants.iter().map(|tenant| &tenant.id);
        let tenants: Vec<_> = ids.zip(&counts).collect();
        let remembered = tenants.iter().flat_map(|(tenant, m)| {
            let outcomes = [
                ("created", m.created),
                ("reinforced", m.reinforced),
                ("merged", m.merged),
                ("replaced", m.replaced),
                ("recalled", m.echoed),
            ];
            outcomes.map(|(name, count)| ([("tenant", tenant.as_str()), ("outcome", name)], count))
        });
        let kind = MetricType::Counter;
        let help = "Remembered facts by outcome";
        family(encoder, kind, "memories_remembered", help, remembered)?;
        let recalls = tenants.iter().flat_map(|(tenant, m)| {
            let modes = [
                ("hybrid", m.recalls_hybrid),
                ("lexical", m.recalls_lexical),
                ("vector", m.recalls_vector),
            ];
            modes.map(|(name, count)| ([("tenant", tenant.as_str()), ("mode", name)], count))
        });
        let help = "Recalls by search mode";
        family(encoder, kind, "recalls", help, recalls)?;
        encode_by_tenant(encoder, &MEMORIES, &tenants)
    }

    fn encode_search(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.api.search.counts();
        let help = "Turns taken into the index of transcripts";
        counter(encoder, "search_turns_indexed", help, counts.indexed)?;
        let help = "Turns taken out of it, past their retention";
        counter(encoder, "search_turns_forgotten", help, counts.forgotten)?;
        let help = "How often it was begun anew";
        counter(encoder, "search_rebuilds", help, counts.rebuilds)?;
        let help = "Turns of the journal that are not in it yet";
        gauge(encoder, "search_turns_behind", help, counts.behind)?;
        let help = "Bytes of its file";
        gauge(encoder, "search_file_bytes", help, counts.file_bytes)
    }

    /// Uses the counts taken for this page.
    fn encode_hooks(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.api.engine.hooks.last_delivery_counts();
        let names = self.api.engine.hooks.hook_names();
        let mut of_state = |name, help, state| {
            let mut sum_of_hooks: BTreeMap<&str, u64> =
                names.iter().map(|hook| (hook.as_str(), 0)).collect();
            for of_hook in counts.iter().filter(|of_hook| of_hook.state == state) {
                *sum_of_hooks.entry(of_hook.hook.as_str()).or_default() += of_hook.count;
            }
            let sums = sum_of_hooks
                .into_iter()
                .map(|(hook, sum)| ([("hook", hook)], sum));
            family(encoder, MetricType::Gauge, name, help, sums)
        };
        let help = "Pending hook deliveries";
        of_state("hooks_pending", help, DeliveryState::Pending)?;
        let help = "Dead hook deliveries";
        of_state("hooks_dead", help, DeliveryState::Dead)
    }

    fn encode_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let denials = &self.layers.auth.denied;
        let denied = [
            ("NO_KEY", &denials.no_key),
            ("WRONG_KEY", &denials.wrong_key),
            ("WRONG_CERTIFICATE", &denials.wrong_certificate),
        ]
        .map(|(reason, count)| ([("reason", reason)], count.load(Ordering::Relaxed)));
        let kind = MetricType::Counter;
        let help = "Calls denied for lack of a valid key or certificate";
        family(encoder, kind, "calls_denied", help, denied)?;
        let ports = [
            ("grpc", &self.connections.grpc),
            ("admin", &self.connections.admin),
        ];
        let open = ports.map(|(port, of)| ([("port", port)], of.count() as u64));
        let help = "Open connections";
        family(encoder, MetricType::Gauge, "connections", help, open)?;
        let closed = ports.iter().flat_map(|(port, of)| {
            let causes = of.counts.by_cause();
            causes.map(|(cause, count)| ([("port", *port), ("cause", cause)], count))
        });
        let help = "Connections closed by the daemon, by cause";
        family(encoder, kind, "connections_ended", help, closed)
    }

    fn encode_by_name(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let kind = MetricType::Counter;
        let failures = self.layers.metrics.failures();
        let call_failures = failures.map(|(method, failures)| ([("method", method)], failures));
        let help = "Calls that failed or were cancelled by their clients";
        family(encoder, kind, "call_failures", help, call_failures)?;
        let workers = self.api.engine.workers();
        let failures = workers
            .iter()
            .map(|it| ([("worker", it.name)], it.failures()));
        let help = "Failed steps of background workers";
        family(encoder, kind, "worker_failures", help, failures)?;
        let steps = workers.iter().map(|it| ([("worker", it.name)], it.steps()));
        let help = "Completed steps of background workers";
        family(encoder, kind, "worker_steps", help, steps)
    }
}

type Label<'a> = (&'a str, &'a str);

/// Encodes a metric with labels.
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

/// Encodes a counter without labels.
fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeCounterValue,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

/// Encodes a gauge without labels.
fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(signed(value)).encode(metric)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
