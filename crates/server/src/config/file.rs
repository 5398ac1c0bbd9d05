//! The configuration file: the sections that components own, composed. What a file leaves
//! out is as the components' defaults have it.

use std::path::PathBuf;
use std::time::Duration;

use memoird_core::compaction::CompactionPolicy;
use memoird_core::config::{AsText, Flat, Off, Size};
use memoird_core::limits::Limits;
use memoird_core::window::WindowSettings;
use memoird_engine::{CompactionConfig, HooksConfig, JournalConfig, SessionConfig};
use memoird_hooks::HookSpec;
use memoird_memories::MemoriesConfig;
use memoird_memories::files::FilesOptions;
use memoird_memories::rules::MemoryLimits;
use memoird_memories::rules::consolidation::ConsolidationSettings;
use memoird_models::{EmbedderSpec, SummarizerSpec};
use memoird_search::SearchConfig;
use serde::{Deserialize, Serialize};

use super::models::ModelsSection;
use super::tenants::TenantSpec;
use super::{LogConfig, ServerConfig};

/// The version of the file that this program reads.
pub(super) const VERSION: u32 = 1;
/// What `long_term.dir` says when memories are in the data directory.
pub(super) const AUTO: &str = "auto";
/// How like a known word an unknown one has to be to be taken for it, from 0 to 1.
const LIKENESS_MIN: f64 = 0.6;

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) version: u32,
    pub(super) data_dir: PathBuf,
    pub(super) server: ServerConfig,
    pub(super) log: LogConfig,
    pub(super) short_term: Flat<HistoryCaps, SessionConfig>,
    pub(super) journal: JournalConfig,
    pub(super) context: Flat<WindowSettings, ModelsSection>,
    pub(super) compaction: Flat<CompactionPolicy, CompactionConfig, SummarizerKey>,
    pub(super) long_term: Flat<MemoriesConfig, MemoryLimits, MemoryKeys>,
    pub(super) search: SearchConfig,
    pub(super) limits: Flat<Limits, HooksConfig>,
    pub(super) hooks: Vec<HookSpec>,
    pub(super) tenants: Vec<TenantSpec>,
}

/// The two of [`Limits`] that stand in `short_term`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HistoryCaps {
    pub(super) max_history_turns: usize,
    #[serde(with = "AsText::<Size>")]
    pub(super) max_history_bytes: usize,
}

/// Who writes summaries, in `compaction`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct SummarizerKey {
    pub(super) summarizer: SummarizerSpec,
}

/// What stands in `long_term` beside the engine's own settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct MemoryKeys {
    pub(super) dir: PathBuf,
    pub(super) open_files: usize,
    pub(super) embedder: EmbedderSpec,
    pub(super) dream: Flat<ConsolidationSettings, DreamInterval>,
}

/// How often memories are consolidated, in `long_term.dream`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct DreamInterval {
    #[serde(with = "AsText::<Off>")]
    pub(super) interval: Option<Duration>,
}

impl File {
    /// Reads the YAML. The one call of the YAML library.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        serde_yaml::from_str(text).map_err(|error| with_suggestion(&error.to_string()))
    }
}

/// Adds to the message of an unknown word which of the known ones was probably meant.
fn with_suggestion(message: &str) -> String {
    match suggestion(message) {
        Some(known) => format!("{message}\ndid you mean `{known}`?"),
        None => message.to_owned(),
    }
}

/// The known word that is most like the unknown one, if any is.
fn suggestion(message: &str) -> Option<&str> {
    let (_, unknown) = message.split_once("unknown ")?;
    let (_, unknown) = unknown.split_once('`')?;
    let (word, known) = unknown.split_once("`, expected one of ")?;
    let known = known.lines().next()?.split(", ");
    let like = known.map(|known| (likeness(word, known), known));
    let (likeness, known) = like.max_by(|one, other| one.0.total_cmp(&other.0))?;
    (likeness >= LIKENESS_MIN).then_some(known)
}

/// How like two words are, from 0 to 1: a letter may be wrong, and a part may be missing.
fn likeness(one: &str, other: &str) -> f64 {
    let by_letters = strsim::normalized_damerau_levenshtein(one, other);
    by_letters.max(strsim::sorensen_dice(one, other))
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: VERSION,
            data_dir: PathBuf::from("./memoird-data"),
            server: ServerConfig::default(),
            log: LogConfig::default(),
            short_term: Flat::default(),
            journal: JournalConfig::default(),
            context: Flat::default(),
            compaction: Flat::default(),
            long_term: Flat::default(),
            search: SearchConfig::default(),
            limits: Flat::default(),
            hooks: Vec::new(),
            tenants: Vec::new(),
        }
    }
}

impl Default for HistoryCaps {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_history_turns: limits.max_history_turns,
            max_history_bytes: limits.max_history_bytes,
        }
    }
}

impl Default for MemoryKeys {
    fn default() -> Self {
        Self {
            dir: AUTO.into(),
            open_files: FilesOptions::default().files_open_max,
            embedder: EmbedderSpec::default(),
            dream: Flat::default(),
        }
    }
}

impl Default for DreamInterval {
    fn default() -> Self {
        Self {
            interval: MemoriesConfig::default().consolidation_interval,
        }
    }
}
