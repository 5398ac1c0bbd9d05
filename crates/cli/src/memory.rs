//! `memoird memory`: the memories of the key's tenant.

mod conflicts;
mod dream;
mod eval;
mod import;
mod learn;

use std::time::Duration;

use clap::{Args, Subcommand};
use memoird_proto::v1::forget_request::Target as What;
use memoird_proto::v1::{
    ForgetRequest, ForgetResponse, GetManifestRequest, GetManifestResponse, GetMemoryRequest,
    GetMemoryStatsRequest, GetMemoryStatsResponse, ListMemoriesRequest, ListSubjectsRequest,
    Memory, RecallRequest, ReindexMemoriesRequest, RememberRequest,
};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::choice::{moment, one_of, request};
use super::connect::{ClientArgs, Target};
use super::json::short_name;
use super::lines::read_stdin;
use super::list::{
    self, Age, Count, Factor, Figure, Line, ListColumn, Moment, Name, Rank, Text, Until, with,
};
use super::progress::Progress;
use super::{clock, json, output};
use crate::exit::{CliError, Exit};
use conflicts::ConflictsArgs;
use dream::DreamArgs;
use eval::EvalArgs;
use import::ImportArgs;
use learn::LearnArgs;

#[derive(Subcommand)]
pub enum MemoryCommand {
    /// List memories, oldest first
    List(ListArgs),
    /// List the subjects that have memories, with their counts
    Subjects {
        /// Only subjects with this id prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
        /// Maximum number to print; 0 prints all
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Show a memory with all its fields
    Show {
        /// Id of the memory
        id: String,
    },
    /// Add a memory
    Add(Box<AddArgs>),
    /// Search memories
    Recall(RecallArgs),
    /// Search memories and show how their scores are composed
    ///
    /// SCORE = (fused + BESIDE) × IMPORTANCE × AGE. The fused score is the weighted sum of WORDS
    /// and MEANING, times FORM, or the RERANKER's score. BESIDE is a bonus from the turns before
    /// and after. RELEVANCE is independent of other hits; windows drop memories below a minimum.
    /// The call has no side effects: no memory counts as recalled.
    Explain(RecallArgs),
    /// Measure recall quality and latency with questions and their known answers
    ///
    /// R@k is the percentage of questions with a correct memory among the first k hits. MRR is the
    /// mean of 1 / (position of the first correct hit). Latencies are measured by this client, with
    /// one call at a time. The calls have no side effects: no memory counts as recalled.
    Eval(EvalArgs),
    /// List memories that may contradict each other
    ///
    /// Two memories of a subject are listed if they differ in a number, in a "not", or in one word
    /// in the same place.
    Conflicts(ConflictsArgs),
    /// Permanently forget memories; shows the counts and asks first
    Forget(ForgetArgs),
    /// Print the manifest of a subject, as agents read it
    Manifest(ManifestArgs),
    /// Export memories to stdout as JSON lines, with all fields except their vectors
    Export(ExportArgs),
    /// Import memories from `memoird memory export`; existing memories are not changed
    Import(ImportArgs),
    /// Rebuild the indexes of all tenants, and wait for the one of the key (role admin)
    Reindex,
    /// Consolidate memories now, like the dream sweep (role admin)
    Dream(DreamArgs),
    /// Extract facts from a session now, with the configured model
    Learn(LearnArgs),
}

pub(crate) async fn run(client: &ClientArgs, command: MemoryCommand) -> Result<(), CliError> {
    let target = client.target()?;
    match command {
        MemoryCommand::List(args) => {
            let request: ListMemoriesRequest = request(&args)?;
            target.list(&request, args.limit, MEMORIES).await
        }
        MemoryCommand::Subjects { prefix, limit } => {
            let request = ListSubjectsRequest {
                prefix,
                ..ListSubjectsRequest::default()
            };
            target.list(&request, limit, SUBJECTS).await
        }
        MemoryCommand::Show { id } => show(&target, id).await,
        MemoryCommand::Add(args) => add(&target, &args).await,
        MemoryCommand::Recall(args) => recall(&target, request(&args)?, HITS).await,
        MemoryCommand::Explain(args) => {
            let request = RecallRequest {
                explain: true,
                ..request(&args)?
            };
            recall(&target, request, EXPLAINED_HITS).await
        }
        MemoryCommand::Eval(args) => eval::run(&target, args).await,
        MemoryCommand::Conflicts(args) => conflicts::run(&target, args).await,
        MemoryCommand::Forget(args) => forget(&target, &args).await,
        MemoryCommand::Manifest(args) => {
            let request: GetManifestRequest = request(&args)?;
            target.show(&request, printed).await
        }
        MemoryCommand::Export(args) => {
            let request = ListMemoriesRequest {
                include_history: true,
                ..request(&args)?
            };
            target.export(&request).await
        }
        MemoryCommand::Import(args) => import::run(&target, &args).await,
        MemoryCommand::Reindex => reindex(&target).await,
        MemoryCommand::Dream(args) => dream::run(&target, &args).await,
        MemoryCommand::Learn(args) => learn::run(&target, &args).await,
    }
}

#[derive(Args, Serialize)]
pub struct RecallArgs {
    /// Query text
    query: String,
    /// Subject to search; can be repeated [default: only memories visible to the team]
    #[arg(long = "subject", value_name = "ID")]
    subjects: Vec<String>,
    /// Only this kind; can be repeated
    #[arg(long = "kind", value_parser = one_of("MemoryKind"))]
    kinds: Vec<i32>,
    /// Only memories with this tag; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Search by words, by meaning, or both [default: hybrid if an embedder is configured]
    #[arg(long, value_parser = one_of("RecallMode"))]
    mode: Option<i32>,
    /// Maximum number of hits, up to 100 [default: as configured]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    limit: u32,
    /// Only memories observed at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    after: Option<String>,
    /// Only memories observed before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    before: Option<String>,
    /// Also search all subjects with this id prefix
    #[arg(long, value_name = "TEXT")]
    subject_prefix: Option<String>,
    /// Only memories with matching metadata, such as '{"source": "crm"}'
    #[arg(long = "metadata", value_name = "JSON")]
    metadata_filter_json: Option<String>,
    /// Minimum relevance, 0 to 1
    #[arg(long, value_name = "SHARE")]
    min_relevance: Option<f64>,
}

/// Prints hits, with the columns of a command.
async fn recall(
    target: &Target,
    request: RecallRequest,
    columns: &[ListColumn],
) -> Result<(), CliError> {
    let found = target.call(&request).await?;
    if !target.json {
        for note in &found.notes {
            output::note(&format!("note: {note}"));
        }
    }
    output::show(target.json, &found, |found| {
        list::table(columns, &found.hits)
    })
}

const HITS: &[ListColumn] = &[
    ("SCORE", "score", Figure(4)),
    ("WORDS", "lexical_rank", Rank),
    ("MEANING", "vector_rank", Rank),
    ("AGE", "memory.observed_at", Age),
    ("KIND", "memory.kind", Name),
    ("SUBJECT", "memory.subject", Text),
    ("ID", "memory.id", Text),
    ("CONTENT", "memory.content", Line),
];

const EXPLAINED_HITS: &[ListColumn] = &[
    ("SCORE", "score", Figure(4)),
    ("RELEVANCE", "relevance", Figure(3)),
    ("WORDS", "parts.words_share", Figure(3)),
    ("BM25", "parts.words", Figure(3)),
    ("MEANING", "parts.meaning_share", Figure(3)),
    ("COSINE", "parts.cosine", Figure(3)),
    ("FORM", "parts.form", Factor),
    ("RERANKER", "parts.reranker", Figure(3)),
    ("BESIDE", "parts.beside", Figure(3)),
    ("IMPORTANCE", "parts.importance", Factor),
    ("AGE", "parts.recency", Factor),
    ("ID", "memory.id", Text),
    ("CONTENT", "memory.content", Line),
];

#[derive(Args, Serialize)]
pub struct ManifestArgs {
    /// Subject of the manifest
    subject: String,
    /// Maximum number of lines [default: 200, also the upper limit]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_lines: u32,
    /// Maximum size in bytes [default: 25,000, also the upper limit]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    max_bytes: u32,
}

fn printed(manifest: &GetManifestResponse) -> String {
    let lines = manifest.text.lines().map(output::printable);
    lines.collect::<Vec<_>>().join("\n")
}

/// Interval for polling the progress of indexing.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

async fn reindex(target: &Target) -> Result<(), CliError> {
    target.call(&ReindexMemoriesRequest::default()).await?;
    let stats = wait_indexed(target).await?;
    output::show(target.json, &stats, indexed)?;
    match stats.embedding_failed {
        0 => Ok(()),
        failed => {
            let failed = output::count(failed);
            let problem = format!("{failed} could not be embedded; see the daemon's log");
            Err(CliError::failed(Exit::Refused, problem))
        }
    }
}

/// Waits until the indexing queue is empty.
async fn wait_indexed(target: &Target) -> Result<GetMemoryStatsResponse, CliError> {
    let progress = Progress::new(None);
    let mut all = 0;
    loop {
        let stats = target.call(&GetMemoryStatsRequest {}).await?;
        // Both include memories stored in the meantime.
        match (stats.words_queued, stats.embedding_queued) {
            (0, 0) => return Ok(stats),
            (0, waiting) => {
                all = all.max(waiting);
                progress.show(|| format!("{waiting} of {all} wait to be embedded"));
            }
            (left, _) => {
                progress.show(|| format!("the words of {left} memories are to be indexed"));
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn indexed(stats: &GetMemoryStatsResponse) -> String {
    let memories = output::count(stats.memories + stats.superseded);
    match &*stats.embedding_model {
        "" => format!("indexed {memories} by words; no embedder is configured"),
        model => format!(
            "indexed {memories} by words, {} by meaning ({})",
            output::count(stats.embedded),
            output::printable(model)
        ),
    }
}

#[derive(Args, Serialize)]
pub struct ListArgs {
    /// Only memories of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only this kind [default: any]
    #[arg(long, value_parser = one_of("MemoryKind"))]
    kind: Option<i32>,
    /// Only memories with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Only subjects with this id prefix
    #[arg(long, value_name = "TEXT", conflicts_with = "subject")]
    subject_prefix: Option<String>,
    /// Only memories with matching metadata, such as '{"source": "crm", "year": {"$gte": 2020}}'
    #[arg(long = "metadata", value_name = "JSON")]
    metadata_filter_json: Option<String>,
    /// Include superseded and expired memories
    #[arg(long = "history")]
    include_history: bool,
    /// Maximum number to print; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[serde(skip)]
    limit: usize,
}

#[derive(Args, Serialize)]
pub struct ExportArgs {
    /// Only memories of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
}

const MEMORIES: &[ListColumn] = &[
    ("ID", "id", Text),
    ("SUBJECT", "subject", Text),
    ("KIND", "kind", Name),
    ("AGE", "observed_at", Age),
    ("", "", with!(state)),
    ("CONTENT", "content", Line),
];

const SUBJECTS: &[ListColumn] = &[
    ("SUBJECT", "subject", Text),
    ("MEMORIES", "memories", Count),
];

async fn show(target: &Target, id: String) -> Result<(), CliError> {
    let request = GetMemoryRequest {
        id,
        ..GetMemoryRequest::default()
    };
    target
        .show(&request, |reply| {
            described(&reply.memory.clone().unwrap_or_default())
        })
        .await
}

/// State of a memory for a table, in one word.
fn state(memory: &Memory) -> &'static str {
    match () {
        () if !memory.superseded_by.is_empty() => "superseded",
        () if clock::is_past(memory.expires_at.as_ref()) => "expired",
        () if memory.pinned => "pinned",
        () => "",
    }
}

/// Formats a memory, one field per line.
fn described(memory: &Memory) -> String {
    list::record(MEMORY, memory)
}

const MEMORY: &[ListColumn] = &[
    ("id", "id", Text),
    ("subject", "subject", Text),
    ("kind", "kind", Name),
    ("content", "content", Text),
    ("visibility", "visibility", Name),
    ("polarity", "polarity", Name),
    ("tags", "tags", Text),
    ("importance", "importance", Text),
    ("external key", "external_key", Text),
    ("metadata", "metadata_json", Text),
    ("source", "", with!(source)),
    ("observed", "observed_at", Moment),
    ("created", "created_at", Moment),
    ("updated", "updated_at", Moment),
    ("expires in", "expires_at", Until),
    ("superseded by", "superseded_by", Text),
    ("said again", "reinforced", Count),
    ("recalled", "", with!(recalled)),
    ("pinned", "", with!(pin)),
    ("made by", "", with!(maker)),
];

fn source(memory: &Memory) -> String {
    let Some(from) = &memory.source else {
        return String::new();
    };
    let seqs: Vec<String> = from.seqs.iter().map(ToString::to_string).collect();
    let seqs = seqs.join(" ");
    output::printable(&format!(
        "{}, {}, turns {seqs}",
        from.session_id, from.generation
    ))
}

fn recalled(memory: &Memory) -> String {
    let times = output::count(memory.recall_count);
    match &memory.last_recalled_at {
        Some(last) => format!("{times}, {} ago", clock::age(Some(last))),
        None => times,
    }
}

fn maker(memory: &Memory) -> String {
    match memory.origin {
        0 => "bot".to_owned(),
        origin => short_name("MemoryOrigin", origin),
    }
}

fn pin(memory: &Memory) -> &'static str {
    match (memory.pinned, memory.pinned_by_dream) {
        (false, _) => "no",
        (true, false) => "yes",
        (true, true) => "by a dream sweep",
    }
}

/// Maximum bytes read from stdin. The daemon enforces its own limit.
const TEXT_BYTES_MAX: u64 = 1 << 20;

#[derive(Args, Serialize)]
pub struct AddArgs {
    /// Subject of the memory
    #[arg(long, value_name = "ID")]
    subject: String,
    /// Kind of the memory
    #[arg(long, value_parser = one_of("MemoryKind"))]
    kind: i32,
    /// The fact as text; `-` reads stdin
    #[arg(value_name = "TEXT")]
    content: String,
    /// Tag; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Importance, from 0 to 1 [default: 0.5]
    #[arg(long, value_name = "X")]
    importance: Option<f32>,
    /// Subjects that may recall it [default: private]
    #[arg(long, value_parser = one_of("Visibility"))]
    visibility: Option<i32>,
    /// Whether feedback corrects or confirms
    #[arg(long, value_parser = one_of("Polarity"))]
    polarity: Option<i32>,
    /// Put it first in the manifest
    #[arg(long = "pin")]
    pinned: bool,
    /// Memory that it replaces
    #[arg(long = "supersedes", value_name = "ID")]
    supersedes_id: Option<String>,
    /// What to do if a memory already states it in slightly different text: merge the two, refuse
    /// it, or keep it as a memory of its own [default: merge]
    #[arg(long, value_parser = one_of("NearDuplicate"))]
    near_duplicate: Option<i32>,
    /// When it was observed, such as 2026-01-31 [default: now]
    #[arg(long = "observed", value_name = "TIME", value_parser = moment)]
    observed_at: Option<String>,
    /// When it expires and is no longer recalled [default: never]
    #[arg(long = "expires", value_name = "TIME", value_parser = moment)]
    expires_at: Option<String>,
    /// Idempotency key: a repeat with the same key and fact has no effect
    #[arg(long = "key", value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Your own key for it; replaces the subject's memory that has the same key
    #[arg(long, value_name = "KEY")]
    external_key: Option<String>,
    /// Metadata: NAME=TEXT, which can be repeated, or a JSON object
    #[arg(long, value_name = "NAME=TEXT|JSON")]
    #[serde(skip)]
    metadata: Vec<String>,
    /// Never merge it with another memory, not even with an identical one
    #[arg(long)]
    keep_apart: bool,
}

/// Combines the values of `--metadata`. Invalid JSON is left for the daemon to reject.
fn metadata_json(noted: &[String]) -> String {
    let texts: Option<Map<String, Value>> = noted
        .iter()
        .filter(|noted| !noted.starts_with('{'))
        .map(|noted| noted.split_once('='))
        .map(|pair| pair.map(|(name, text)| (name.to_owned(), text.into())))
        .collect();
    match texts {
        Some(texts) if noted.len() == texts.len() && !texts.is_empty() => {
            Value::Object(texts).to_string()
        }
        _ => noted.concat(),
    }
}

async fn add(target: &Target, args: &AddArgs) -> Result<(), CliError> {
    let mut request: RememberRequest = request(args)?;
    if request.content == "-" {
        request.content = output::blocking(read_text).await?;
    }
    request.metadata_json = metadata_json(&args.metadata);
    let done = target.call(&request).await?;
    let outcome = short_name("RememberOutcome", done.outcome);
    if target.json {
        let mut shown = json::of(&done);
        shown["outcome"] = outcome.into();
        return output::print_json(&shown);
    }
    if done.redacted > 0 {
        let count = done.redacted;
        output::note(&format!("note: secrets removed before storing: {count}"));
    }
    output::print(&outcome)?;
    output::print(&described(&done.memory.unwrap_or_default()))
}

fn read_text() -> Result<String, CliError> {
    let bytes = read_stdin(TEXT_BYTES_MAX, "a fact")?;
    let problem = "cannot read stdin: it is not valid UTF-8";
    String::from_utf8(bytes).map_err(|_| CliError::failed(Exit::Io, problem))
}

#[derive(Args, Serialize)]
pub struct ForgetArgs {
    /// Forget the memory with this id, and those it superseded
    #[arg(long, conflicts_with_all = ["subject", "kinds", "tags", "after", "before"])]
    #[serde(skip)]
    id: Option<String>,
    /// Forget all memories of this subject, or those selected by filters
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Filter: only this kind; can be repeated
    #[arg(long = "kind", value_parser = one_of("MemoryKind"))]
    kinds: Vec<i32>,
    /// Filter: only memories with this tag; can be repeated
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Filter: only memories observed at or after this time, such as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = moment)]
    after: Option<String>,
    /// Filter: only memories observed before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    before: Option<String>,
    /// Only count the memories
    #[arg(long)]
    #[serde(skip)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    #[serde(skip)]
    yes: bool,
}

async fn forget(target: &Target, args: &ForgetArgs) -> Result<(), CliError> {
    let (dry_run, yes) = (args.dry_run, args.yes);
    let what = args.what()?;
    if dry_run || !yes {
        let request = ForgetRequest {
            target: Some(what.clone()),
            dry_run: true,
        };
        let counted = target.call(&request).await?;
        if dry_run {
            return output::show(target.json, &counted, counts_of);
        }
        let notes = format!("This would go for good:\n{}", counts_of(&counted));
        let instead = "check with --dry-run, then use --yes";
        if !output::confirm(false, &notes, "Forget it?", instead).await? {
            return Ok(());
        }
    }
    let request = ForgetRequest {
        target: Some(what),
        dry_run: false,
    };
    let gone = target.call(&request).await?;
    if !gone.erased && !target.json {
        output::note("note: gone from all results; the pages on disk are erased later");
    }
    output::show(target.json, &gone, counts_of)
}

impl ForgetArgs {
    fn what(&self) -> Result<What, CliError> {
        let filters = !self.kinds.is_empty()
            || !self.tags.is_empty()
            || self.after.is_some()
            || self.before.is_some();
        match (&self.id, &self.subject) {
            (Some(id), _) => Ok(What::Id(id.clone())),
            (None, Some(subject)) if !filters => Ok(What::Subject(subject.clone())),
            (None, _) if filters => Ok(What::Filter(request(self)?)),
            (None, _) => Err(CliError::usage("specify --id, --subject, or a filter")),
        }
    }
}

fn counts_of(counts: &ForgetResponse) -> String {
    list::record(FORGOTTEN, counts)
}

const FORGOTTEN: &[ListColumn] = &[
    ("memories", "memories", Count),
    ("superseded", "superseded", Count),
    ("vectors", "vectors", Count),
    ("recall events", "recall_events", Count),
    ("queued embeddings", "queued_embeddings", Count),
    ("cursors", "cursors", Count),
];

#[cfg(test)]
mod tests {
    use clap::Parser;
    use memoird_proto::v1::{MemoryFilter, MemoryKind};
    use prost_types::Timestamp as ApiTimestamp;

    use super::*;

    #[test]
    fn memory_output_escapes_control_characters() {
        let memory = Memory {
            subject: "ann\u{1b}[2J".into(),
            content: "likes tea\nand cake".into(),
            kind: MemoryKind::User.into(),
            pinned: true,
            ..Memory::default()
        };
        let text = described(&memory);
        assert!(
            !text.contains('\u{1b}') && text.contains("likes tea\\nand cake"),
            "{text}"
        );
        assert!(
            text.contains("kind        user") && text.contains("made by     bot"),
            "{text}"
        );
    }

    #[test]
    fn list_shows_key_fields_of_memory() {
        let pinned = Memory {
            pinned: true,
            ..Memory::default()
        };
        let expires_at = Some(ApiTimestamp {
            seconds: 10,
            nanos: 0,
        });
        let expired = Memory {
            expires_at,
            ..pinned.clone()
        };
        let old = Memory {
            superseded_by: "x".into(),
            ..expired.clone()
        };
        let states = [&Memory::default(), &pinned, &expired, &old].map(state);
        assert_eq!(states, ["", "pinned", "expired", "superseded"]);
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ForgetArgs,
    }

    fn what(args: &str) -> Result<What, String> {
        let line = Line::try_parse_from(["forget"].into_iter().chain(args.split_whitespace()));
        line.map_err(|error| error.to_string())?
            .args
            .what()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn forget_request_matches_arguments() {
        assert_eq!(what("--id x"), Ok(What::Id("x".into())));
        assert_eq!(what("--subject ann"), Ok(What::Subject("ann".into())));
        let filter = |subject: &str| {
            What::Filter(MemoryFilter {
                subject: subject.into(),
                kinds: vec![3],
                tags: vec!["t".into()],
                ..MemoryFilter::default()
            })
        };
        assert_eq!(
            what("--subject ann --kind project --tag t"),
            Ok(filter("ann"))
        );
        assert_eq!(what("--kind project --tag t"), Ok(filter("")));
        assert!(what("--before 2026-01-31").is_ok());
        for bad in [
            "",
            "--yes",
            "--id x --subject ann",
            "--id x --tag t",
            "--after soon",
        ] {
            assert!(what(bad).is_err(), "{bad}");
        }
    }
}
