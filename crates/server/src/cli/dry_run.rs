//! `memoird replay --dry-run`: estimates the cost of recorded conversations.
//!
//! Builds a window wherever a bot would call its model, in an in-process engine without a journal,
//! and compares each window with the one before.

mod chart;
mod prices;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use memoird_cli::connect::ClientArgs;
use memoird_cli::output;
use memoird_cli::replay::{self, Conversation, Conversations, ReplayArgs};
use memoird_cli::window::PolicyName;
use memoird_core::CoreError;
use memoird_core::budget::BudgetOverride;
use memoird_core::ids::{SessionId, TenantId};
use memoird_core::session::AppendCommand;
use memoird_core::turn::{MessageFormat, Role};
use memoird_core::window::{Omission, OmissionReason, Policy};
use memoird_engine::{
    Blocking, ContextOutcome, ContextRequest, Engine, EngineConfig, EngineError, Summarizer,
    SystemMachine, Tenant,
};
use memoird_formats::messages;
use memoird_models::ExtractiveSummarizer;
use memoird_proto::v1;
use memoird_store::encoding;
use serde::Serialize;
use serde_json::json;

use prices::Price;

use crate::config;
use crate::exit::{CliError, Exit};

#[derive(Args)]
pub(super) struct ReplayOrDryRunArgs {
    #[command(flatten)]
    replay: ReplayArgs,
    #[command(flatten)]
    dry: DryRunArgs,
}

#[derive(Args)]
struct DryRunArgs {
    /// Simulate without a daemon, and report tokens, cache hits, cost, cuts and summaries
    #[arg(long)]
    dry_run: bool,
    /// Configuration file to simulate [default: the embedded one]
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    config: Option<PathBuf>,
    /// Model of the configuration [default: its default_model]
    #[arg(long, value_name = "NAME", requires = "dry_run")]
    model: Option<String>,
    /// Context window in tokens, instead of the model's
    #[arg(long, value_name = "TOKENS", requires = "dry_run")]
    context_window: Option<u64>,
    /// Input budget of a request in tokens, with nothing reserved
    #[arg(long, value_name = "TOKENS", requires = "dry_run")]
    #[arg(conflicts_with = "context_window")]
    input_budget: Option<u64>,
    /// Tokens of the system prompt and the tools of every request
    #[arg(long, value_name = "TOKENS", requires = "dry_run", default_value_t = 0)]
    overhead_tokens: u64,
    /// Window policy [default: as configured]
    #[arg(long, value_enum, value_name = "POLICY", requires = "dry_run")]
    policy: Option<PolicyName>,
    /// Number of turns: at least 1 for sliding_window; those of the tail for head_tail
    #[arg(long, value_name = "N", requires = "policy")]
    turns: Option<u32>,
    /// Number of conversations to replay one after another in each session
    #[arg(long, value_name = "N", requires = "dry_run", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    chain: u32,
    /// Prices by model per million tokens, as JSON: {"NAME": {"input", "cached_input",
    /// "cache_write"}}; without cache_write, tokens written to the cache cost as much as `input`
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    prices: Option<PathBuf>,
    /// Write a chart of all windows to this HTML file
    #[arg(long, value_name = "FILE", requires = "dry_run")]
    html: Option<PathBuf>,
}

/// Turns of the plain sliding window used for comparison.
const COMPARED_TURNS: u32 = 10;

pub(super) async fn run(client: &ClientArgs, args: ReplayOrDryRunArgs) -> Result<(), CliError> {
    let ReplayOrDryRunArgs { replay, dry } = args;
    if !dry.dry_run {
        return replay::run(client, replay).await;
    }
    let (_, conversations) = replay.conversations(1)?;
    let format = match replay.format() {
        v1::MessageFormat::Anthropic => MessageFormat::Anthropic,
        _ => MessageFormat::OpenAi,
    };
    simulate(&dry, conversations, format, client.json).await
}

/// Simulates all conversations and prints the outcome.
async fn simulate(
    args: &DryRunArgs,
    mut conversations: Conversations,
    format: MessageFormat,
    json: bool,
) -> Result<(), CliError> {
    let mut all = Vec::new();
    while let Some(conversation) = conversations.recv().await {
        all.push(conversation?.item);
    }
    let sessions: Vec<&[Conversation]> = all.chunks(args.chain as usize).collect();
    let config = match &args.config {
        Some(path) => config::load(path)?,
        None => config::embedded()?,
    };
    let default_model = &config.engine.context.default_model;
    let price = prices::find(args.prices.as_deref(), args.model.as_deref(), default_model)?;
    let simulation = Simulation {
        args,
        config: quiet(config.engine),
        format,
    };
    let policy = args
        .policy
        .map(|name| name.policy(args.turns))
        .transpose()?;
    let asked = simulation.play(&sessions, policy).await?;
    let sliding = Policy::SlidingWindow {
        turns: COMPARED_TURNS,
    };
    let compared = simulation.play(&sessions, Some(sliding)).await?;
    if let Some(path) = &args.html {
        let page = chart::page(&asked.bars(), &summary(&asked, &compared, &price));
        std::fs::write(path, page).map_err(CliError::cannot_create(path))?;
    }
    if json {
        output::print_json(&json!({
            "outcome": asked,
            "cost": price.cost(asked.tokens, asked.cached_tokens),
            "sliding_window_10": compared,
            "sliding_window_10_cost": price.cost(compared.tokens, compared.cached_tokens),
        }))
    } else {
        output::print(&output::rows(summary(&asked, &compared, &price)))
    }
}

fn summary(asked: &Outcome, compared: &Outcome, price: &Price) -> Vec<(&'static str, String)> {
    let cost = price.cost(asked.tokens, asked.cached_tokens);
    let other = price.cost(compared.tokens, compared.cached_tokens);
    let share = |part: u64, all: u64| format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64);
    vec![
        ("sessions", output::count(asked.sessions)),
        ("model calls", output::count(asked.calls)),
        ("refused", output::count(asked.refused)),
        ("input tokens", output::count(asked.tokens)),
        ("in cache", share(asked.cached_tokens, asked.tokens)),
        ("largest window", output::count(asked.tokens_max)),
        ("prefix changed", output::count(asked.prefix_changes)),
        ("summaries", output::count(asked.summaries)),
        ("turns left out", output::count(asked.turns_left_out)),
        ("degraded windows", output::count(asked.degraded)),
        (
            "cost",
            format!("{} {}", output::figure(cost, 4), price.unit),
        ),
        (
            "last 10 turns",
            format!("{} {}", output::figure(other, 4), price.unit),
        ),
        ("of that", output::figure(cost / other.max(1e-12), 3)),
    ]
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    sessions: u64,
    /// Number of windows, one per model call.
    calls: u64,
    /// Calls with a current turn that does not fit.
    refused: u64,
    /// Tokens of all windows, and those of them in a prefix that was sent before.
    tokens: u64,
    cached_tokens: u64,
    tokens_max: u64,
    /// Windows that do not extend the previous window.
    prefix_changes: u64,
    summaries: u64,
    /// Turns omitted without a summary from the last window of each session.
    turns_left_out: u64,
    degraded: u64,
    /// All windows, by session.
    windows: Vec<Vec<WindowFacts>>,
}

#[derive(Debug, Serialize)]
struct WindowFacts {
    /// Seq of the newest turn.
    seq: u64,
    tokens: u64,
    /// Tokens in a prefix that was sent before.
    cached_tokens: u64,
    /// Number of the summary in it; 0 for none.
    summary: u32,
    /// Turns omitted without a summary.
    left_out: u64,
    /// Turns that are not shown verbatim.
    shortened: usize,
}

/// Disables everything in the engine that calls out of the process or ends a session.
fn quiet(mut config: EngineConfig) -> EngineConfig {
    config.hooks.hooks.clear();
    config.tenants.clear();
    config.memory_bytes = 0;
    config.journal_bytes = 0;
    config.sessions.max_sessions = 0;
    // A simulation must not call a paid model.
    let is_remote = |summarizer: &Arc<dyn Summarizer>| summarizer.is_remote();
    if config.compaction.summarizer.as_ref().is_some_and(is_remote) {
        config.compaction.summarizer = Some(Arc::new(ExtractiveSummarizer));
    }
    config
}

struct Simulation<'a> {
    args: &'a DryRunArgs,
    config: EngineConfig,
    format: MessageFormat,
}

impl Simulation<'_> {
    async fn play(
        &self,
        sessions: &[&[Conversation]],
        policy: Option<Policy>,
    ) -> Result<Outcome, CliError> {
        let machine = Arc::new(SystemMachine::resume(None));
        let engine = Engine::open(self.config.clone(), None, machine, Blocking::Threads)
            .await
            .map_err(failed)?;
        let tenant = engine.tenants.get_or_insert(&TenantId::default_tenant());
        let mut outcome = Outcome::default();
        for (number, conversations) in sessions.iter().enumerate() {
            let name = format!("{number}");
            let session = SessionId::parse(&name)
                .map_err(|error| CliError::failed(Exit::Internal, error.to_string()))?;
            let player = SessionPlayer {
                simulation: self,
                engine: &engine,
                tenant: &tenant,
                session,
                policy,
            };
            player.play(conversations, &mut outcome).await?;
        }
        engine.close().await;
        Ok(outcome)
    }
}

struct SessionPlayer<'a> {
    simulation: &'a Simulation<'a>,
    engine: &'a Engine,
    tenant: &'a Arc<Tenant>,
    session: SessionId,
    policy: Option<Policy>,
}

impl SessionPlayer<'_> {
    /// Appends all messages, and builds a window wherever the model would reply.
    async fn play(
        &self,
        conversations: &[Conversation],
        outcome: &mut Outcome,
    ) -> Result<(), CliError> {
        let mut before: Option<ContextOutcome> = None;
        let mut windows = Vec::new();
        for (place, conversation) in conversations.iter().enumerate() {
            for (index, message) in conversation.messages.iter().enumerate() {
                let turns = messages::parse(self.simulation.format, message).map_err(|error| {
                    let place = format!("line {}, {}", conversation.line, conversation.name(index));
                    CliError::failed(Exit::Data, format!("{place}: {error}"))
                })?;
                // A session needs only one system prompt.
                if place > 0 && turns.iter().all(|turn| turn.role == Role::System) {
                    continue;
                }
                let asks = turns
                    .last()
                    .is_some_and(|turn| matches!(turn.role, Role::User | Role::Tool));
                let command = AppendCommand {
                    turns: turns.into_iter().map(encoding::encode).collect(),
                    ..AppendCommand::default()
                };
                if !asks {
                    let commands = &self.engine.commands;
                    let appended = commands.append(self.tenant, &self.session, command);
                    appended.await.map_err(failed)?;
                    continue;
                }
                let Some(window) = self.window(command).await? else {
                    outcome.refused += 1;
                    continue;
                };
                windows.push(outcome.count(before.as_ref(), &window));
                before = Some(window);
                // Wait for compactions: in practice, a model call takes longer than one.
                self.engine.compaction.idle().await;
            }
        }
        outcome.sessions += 1;
        if let Some(last) = &before {
            outcome.summaries += last
                .session
                .head
                .compaction
                .as_ref()
                .map_or(0, |status| u64::from(status.summaries));
            outcome.turns_left_out += left_out(last);
        }
        outcome.windows.push(windows);
        Ok(())
    }

    /// Builds the window. `None` if the current turn does not fit.
    async fn window(&self, append: AppendCommand) -> Result<Option<ContextOutcome>, CliError> {
        let args = self.simulation.args;
        let budget = match args.input_budget {
            Some(tokens) => BudgetOverride::without_reserves(tokens),
            None => BudgetOverride {
                context_window: args.context_window,
                ..BudgetOverride::default()
            },
        };
        let request = ContextRequest {
            append: Some(append),
            model: args.model.clone().unwrap_or_default(),
            budget,
            overhead_tokens: args.overhead_tokens,
            policy: self.policy,
            ..ContextRequest::default()
        };
        let window = self
            .engine
            .commands
            .context(self.tenant, &self.session, request);
        match window.await {
            Ok(window) => Ok(Some(window)),
            Err(EngineError::Core(CoreError::CurrentTurnTooLarge { .. })) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

impl Outcome {
    /// Tokens of each window and those in the cache, by session.
    fn bars(&self) -> Vec<Vec<(u64, u64)>> {
        let bar = |window: &WindowFacts| (window.tokens, window.cached_tokens);
        let sessions = self.windows.iter();
        sessions
            .map(|windows| windows.iter().map(bar).collect())
            .collect()
    }

    /// Adds a window to the totals and returns its facts.
    fn count(&mut self, before: Option<&ContextOutcome>, window: &ContextOutcome) -> WindowFacts {
        let report = &window.report;
        let tokens = report.blocks.total();
        let cached = before.map_or(0, |before| {
            let pairs = window.turns.iter().zip(before.turns.iter());
            let same = pairs.take_while(|(now, then)| now.content == then.content);
            let count = same.count();
            self.prefix_changes += u64::from(count < before.turns.len());
            report.blocks.system + window.turns.charged().take(count).sum::<u64>()
        });
        self.calls += 1;
        self.tokens += tokens;
        self.cached_tokens += cached;
        self.tokens_max = self.tokens_max.max(tokens);
        self.degraded += u64::from(report.degraded);
        WindowFacts {
            seq: window.session.head.last_seq,
            tokens,
            cached_tokens: cached,
            summary: report.summary.as_ref().map_or(0, |summary| summary.number),
            left_out: left_out(window),
            shortened: report
                .omissions
                .iter()
                .filter(|it| is_shortened(it))
                .count(),
        }
    }
}

/// Number of turns that a window omits without a summary.
fn left_out(window: &ContextOutcome) -> u64 {
    let omissions = window.report.omissions.iter();
    let left_out = omissions.filter(|omission| omission.is_left_out());
    let turns = left_out.map(|omission| omission.last_seq - omission.first_seq + 1);
    turns.sum()
}

fn is_shortened(omission: &Omission) -> bool {
    !omission.is_left_out() && omission.reason != OmissionReason::Summarized
}

#[allow(clippy::needless_pass_by_value, reason = "map_err gives it away")]
fn failed(error: EngineError) -> CliError {
    CliError::failed(Exit::Refused, error.to_string())
}
