//! The shape of the file. What it leaves out is as in [`FileConfig::default`].

use std::net::SocketAddr;
use std::path::PathBuf;

use memoird_core::limits::Limits;
use memoird_engine::{
    CompactionConfig, ContextConfig, Durability, EngineConfig, HooksConfig, JournalConfig,
    SessionConfig,
};
use serde::{Deserialize, Serialize};

use super::ServerConfig;
use super::compaction::CompactionShape;
use super::context::ContextShape;
use super::hooks::HookShape;
use super::long_term::LongTermShape;
use super::tenants::TenantShape;
use super::units::{AutoSpan, Size, Span};

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct FileConfig {
    version: u32,
    pub(super) data_dir: PathBuf,
    pub(super) server: ServerShape,
    pub(super) log: LogShape,
    short_term: ShortTermShape,
    journal: JournalShape,
    pub(super) context: ContextShape,
    pub(super) compaction: CompactionShape,
    pub(super) long_term: LongTermShape,
    limits: LimitsShape,
    pub(super) hooks: Vec<HookShape>,
    pub(super) tenants: Vec<TenantShape>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ServerShape {
    pub(super) listen: SocketAddr,
    admin_listen: SocketAddr,
    shutdown_grace: Span,
    max_connections: usize,
    max_streams_per_connection: u32,
    max_calls_in_flight: usize,
    max_request_bytes: Size,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LogShape {
    pub(super) filter: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct ShortTermShape {
    max_history_turns: usize,
    max_history_bytes: Size,
    max_sessions: usize,
    session_ttl: Span,
    sweep_interval: AutoSpan,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct JournalShape {
    durability: DurabilityShape,
    flush_interval: Span,
    retention: Span,
    queue_bytes: Size,
    queue_wait: Span,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum DurabilityShape {
    Sync,
    Interval,
    Off,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct LimitsShape {
    turn_bytes: Size,
    turns_per_append: usize,
    parts_per_turn: usize,
    metadata_entries: usize,
    metadata_bytes: Size,
    state_bytes: Size,
    pinned_turns: usize,
    pinned_bytes: Size,
    hooks_under_way: usize,
    hook_content_bytes: Size,
    hook_memory_bytes: Size,
}

/// Everything that is wrong, in the order in which it was found.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<String>);

impl Problems {
    pub(super) fn add(&mut self, place: &str, problem: impl AsRef<str>) {
        self.0.push(format!("{place}: {}", problem.as_ref()));
    }

    /// `good` when there are none.
    pub(super) fn or<T>(self, good: T) -> Result<T, String> {
        match &self.0[..] {
            [] => Ok(good),
            [one] => Err(one.clone()),
            many => Err(format!("{} problems\n  {}", many.len(), many.join("\n  "))),
        }
    }

    pub(super) fn unless(&mut self, good: bool, place: &str, problem: &str) {
        if !good {
            self.add(place, problem);
        }
    }
}

impl FileConfig {
    /// Reads the YAML. The one call of the YAML library.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_yaml::from_str(text).map_err(|error| error.to_string())
    }

    pub(super) fn check_values(&self, problems: &mut Problems) {
        problems.unless(self.version == 1, "version", "this memoird reads version 1");
        let more_than_zero = "must be more than zero";
        let at_least_one = "must be at least 1";
        let spans = [
            ("server.shutdown_grace", self.server.shutdown_grace),
            ("short_term.session_ttl", self.short_term.session_ttl),
            ("journal.flush_interval", self.journal.flush_interval),
            ("journal.queue_wait", self.journal.queue_wait),
        ];
        for (place, span) in spans {
            problems.unless(!span.0.is_zero(), place, more_than_zero);
        }
        if let AutoSpan::Span(span) = self.short_term.sweep_interval {
            problems.unless(!span.is_zero(), "short_term.sweep_interval", more_than_zero);
        }
        let counts = [
            ("server.max_connections", self.server.max_connections),
            (
                "server.max_calls_in_flight",
                self.server.max_calls_in_flight,
            ),
            ("server.max_request_bytes", self.server.max_request_bytes.0),
            (
                "short_term.max_history_turns",
                self.short_term.max_history_turns,
            ),
            (
                "short_term.max_history_bytes",
                self.short_term.max_history_bytes.0,
            ),
            ("limits.turn_bytes", self.limits.turn_bytes.0),
            ("limits.turns_per_append", self.limits.turns_per_append),
            ("limits.parts_per_turn", self.limits.parts_per_turn),
            ("limits.state_bytes", self.limits.state_bytes.0),
            ("limits.hooks_under_way", self.limits.hooks_under_way),
            (
                "limits.hook_content_bytes",
                self.limits.hook_content_bytes.0,
            ),
            ("limits.hook_memory_bytes", self.limits.hook_memory_bytes.0),
            ("journal.queue_bytes", self.journal.queue_bytes.0),
        ];
        for (place, count) in counts {
            problems.unless(count > 0, place, at_least_one);
        }
        let streams = self.server.max_streams_per_connection;
        problems.unless(
            streams > 0,
            "server.max_streams_per_connection",
            at_least_one,
        );
        for (place, tenant) in self.tenants.iter().enumerate() {
            tenant.check(place, problems);
        }
    }

    pub(super) fn server(&self) -> ServerConfig {
        let server = &self.server;
        ServerConfig {
            listen: server.listen,
            admin_listen: server.admin_listen,
            shutdown_grace: server.shutdown_grace.0,
            max_connections: server.max_connections,
            max_streams_per_connection: server.max_streams_per_connection,
            max_calls_in_flight: server.max_calls_in_flight,
            max_request_bytes: server.max_request_bytes.0,
        }
    }

    /// What the engine is told; windows, compaction, memories, tenants and hooks are put to it
    /// by the caller.
    pub(super) fn engine(&self) -> EngineConfig {
        let (short_term, journal, limits) = (&self.short_term, &self.journal, &self.limits);
        EngineConfig {
            limits: Limits {
                max_history_turns: short_term.max_history_turns,
                max_history_bytes: short_term.max_history_bytes.0,
                turn_bytes: limits.turn_bytes.0,
                turns_per_append: limits.turns_per_append,
                parts_per_turn: limits.parts_per_turn,
                metadata_entries: limits.metadata_entries,
                metadata_bytes: limits.metadata_bytes.0,
                state_bytes: limits.state_bytes.0,
                pinned_turns: limits.pinned_turns,
                pinned_bytes: limits.pinned_bytes.0,
                ..Limits::default()
            },
            sessions: SessionConfig {
                max_sessions: short_term.max_sessions,
                session_ttl: short_term.session_ttl.0,
                sweep_interval: match short_term.sweep_interval {
                    AutoSpan::Auto => None,
                    AutoSpan::Span(span) => Some(span),
                },
            },
            journal: JournalConfig {
                durability: match journal.durability {
                    DurabilityShape::Sync => Durability::Sync,
                    DurabilityShape::Interval => Durability::Interval,
                    DurabilityShape::Off => Durability::Off,
                },
                flush_interval: journal.flush_interval.0,
                retention: journal.retention.0,
                queue_bytes: journal.queue_bytes.0,
                queue_wait: journal.queue_wait.0,
                ..JournalConfig::default()
            },
            context: ContextConfig::default(),
            compaction: CompactionConfig::default(),
            hooks: HooksConfig {
                concurrency: limits.hooks_under_way,
                content_bytes: limits.hook_content_bytes.0,
                memory_bytes: limits.hook_memory_bytes.0,
                drain: self.server.shutdown_grace.0,
                hooks: Vec::new(),
            },
            tenants: Vec::new(),
        }
    }
}

impl Default for FileConfig {
    fn default() -> Self {
        Self {
            version: 1,
            data_dir: PathBuf::from("./memoird-data"),
            server: ServerShape::default(),
            log: LogShape::default(),
            short_term: ShortTermShape::default(),
            journal: JournalShape::default(),
            context: ContextShape::default(),
            compaction: CompactionShape::default(),
            long_term: LongTermShape::default(),
            limits: LimitsShape::default(),
            hooks: Vec::new(),
            tenants: Vec::new(),
        }
    }
}

impl Default for ServerShape {
    fn default() -> Self {
        let server = ServerConfig::default();
        Self {
            listen: server.listen,
            admin_listen: server.admin_listen,
            shutdown_grace: Span(server.shutdown_grace),
            max_connections: server.max_connections,
            max_streams_per_connection: server.max_streams_per_connection,
            max_calls_in_flight: server.max_calls_in_flight,
            max_request_bytes: Size(server.max_request_bytes),
        }
    }
}

impl Default for LogShape {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
        }
    }
}

impl Default for ShortTermShape {
    fn default() -> Self {
        let (limits, sessions) = (Limits::default(), SessionConfig::default());
        Self {
            max_history_turns: limits.max_history_turns,
            max_history_bytes: Size(limits.max_history_bytes),
            max_sessions: sessions.max_sessions,
            session_ttl: Span(sessions.session_ttl),
            sweep_interval: AutoSpan::Auto,
        }
    }
}

impl Default for JournalShape {
    fn default() -> Self {
        let journal = JournalConfig::default();
        Self {
            durability: DurabilityShape::Sync,
            flush_interval: Span(journal.flush_interval),
            retention: Span(journal.retention),
            queue_bytes: Size(journal.queue_bytes),
            queue_wait: Span(journal.queue_wait),
        }
    }
}

impl Default for LimitsShape {
    fn default() -> Self {
        let (limits, hooks) = (Limits::default(), HooksConfig::default());
        Self {
            turn_bytes: Size(limits.turn_bytes),
            turns_per_append: limits.turns_per_append,
            parts_per_turn: limits.parts_per_turn,
            metadata_entries: limits.metadata_entries,
            metadata_bytes: Size(limits.metadata_bytes),
            state_bytes: Size(limits.state_bytes),
            pinned_turns: limits.pinned_turns,
            pinned_bytes: Size(limits.pinned_bytes),
            hooks_under_way: hooks.concurrency,
            hook_content_bytes: Size(hooks.content_bytes),
            hook_memory_bytes: Size(hooks.memory_bytes),
        }
    }
}
