//! `BuildContext` on the wire: parses the request and builds the reply.

use std::collections::HashSet;

use memoird_core::budget::{Budget, BudgetOverride};
use memoird_core::ids::TenantId;
use memoird_core::json::{VALUES_MAX, has_too_many_values};
use memoird_core::limits::Limits;
use memoird_core::nonce::Nonce;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::turn::{MessageFormat, Part, PartKind, Role, Turn};
use memoird_core::window::{NextCut, Omission, OmissionReason, Policy, Report};
use memoird_engine::{ContextOutcome, ContextRequest, WindowTurns};
use memoird_formats::messages::{RenderOptions, Rendered, render};
use memoird_formats::model::MessageRules;
use memoird_memories::{RecallForWindow, RecallRequest};
use memoird_proto::spliced::{self, EncodedTurns};
use memoird_proto::v1;
use memoird_store::encoding;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::refusal::{Names, Refusal};
use super::to::count;
use super::{compaction, from, history, memory, recall_tool, status, to};
use crate::heavy::HeavyWork;

#[derive(Debug)]
pub(crate) struct ContextCall {
    pub(crate) request: ContextRequest,
    pub(crate) memories: Option<RecallRequest>,
    pub(crate) options: ReplyOptions,
}

/// Options of the reply.
#[derive(Debug)]
pub(crate) struct ReplyOptions {
    /// The provider's message format. `None` for turns only.
    format: Option<MessageFormat>,
    system: String,
    /// Whether to mark where the provider may cache.
    set_cache_control: bool,
    /// Empty if the recall tool was not requested.
    recall_tool_json: String,
}

struct WindowToRender {
    turns: WindowTurns,
    /// Indices of the turns after which a cache may break.
    breakpoints: Vec<usize>,
    /// Text of the memories; may be empty.
    block: String,
    /// Nonce in text inserted by memoird.
    nonce: Nonce,
    rewound: SeqRanges,
    /// Rules of the model for requests.
    rules: MessageRules,
}

/// Bytes to parse before a window is built.
pub(crate) fn bytes_to_parse(request: &v1::BuildContextRequest) -> usize {
    let append = request.append.as_ref().map_or(0, from::append_bytes);
    append + request.tools_json.len()
}

/// Parses a request, and checks everything that does not depend on the session.
///
/// `has_search` is whether the recall tool offers a search.
pub(crate) fn parse(
    request: v1::BuildContextRequest,
    limits: &Limits,
    has_search: bool,
) -> Result<ContextCall, Refusal> {
    let asked_append = request.append;
    if let Some(append) = &asked_append {
        check_append(append, &request.session_id, request.peek)?;
    }
    check_tools(&request.tools_json)?;
    let policy = policy(request.policy)?;
    let format = history::format(request.format)?;
    let recall_tool = match format {
        _ if !request.recall_tool => None,
        Some(format) => Some(recall_tool::definition(format, has_search)),
        None => {
            let problem = "recall_tool requires format, for the definition of the tool";
            let reason = "RECALL_TOOL_WITHOUT_FORMAT";
            return Err(status::invalid(reason, "format", problem));
        }
    };
    let memories = request
        .memories
        .map(|memories| recall(memories, &request.session_id))
        .transpose()?;
    let append = asked_append
        .map(|append| from::append(append, limits))
        .transpose()
        .map_err(|refusal| refusal.under("append"))?;
    let options = ReplyOptions {
        format,
        system: request.system.clone(),
        set_cache_control: request.set_cache_control,
        recall_tool_json: recall_tool
            .as_ref()
            .map_or_else(String::new, Value::to_string),
    };
    let tools_json = match &recall_tool {
        Some(definition) => recall_tool::with_definition(request.tools_json, definition),
        None => request.tools_json,
    };
    let request = ContextRequest {
        append,
        model: request.model,
        budget: request.budget.map(budget_override).unwrap_or_default(),
        overhead_tokens: request.overhead_tokens,
        system: request.system,
        tools_json,
        format,
        policy,
        attempt: request.attempt,
        peek: request.peek,
        memories: None,
        recall_tool: None,
    };
    Ok(ContextCall {
        request,
        memories,
        options,
    })
}

pub(crate) async fn reply(
    outcome: ContextOutcome,
    recall: Option<&RecallForWindow>,
    options: ReplyOptions,
    tenant: &TenantId,
    heavy: &HeavyWork,
) -> Result<spliced::BuildContextResponse, Refusal> {
    let session = to::session_info(&outcome.session);
    let turns = outcome.turns;
    let mut report = report(outcome.report, &turns);
    report.next_cut = outcome.next_cut.map(next_cut);
    let hits = recall.into_iter().flat_map(|recall| {
        let explain = recall.explains();
        let shown = recall.shown(&outcome.memories);
        shown.map(move |hit| memory::to::hit(hit, explain))
    });
    let mut response = v1::BuildContextResponse {
        memories: hits.collect(),
        memories_text: outcome.memories.text.clone(),
        session: Some(session),
        recall_tool_json: options.recall_tool_json.clone(),
        ..v1::BuildContextResponse::default()
    };
    report.cache_breakpoints = match options.format {
        None => {
            response.system = options.system;
            outcome.cache_breakpoints.into_iter().map(count).collect()
        }
        Some(format) => {
            let breakpoints = outcome.cache_breakpoints.clone();
            let window = WindowToRender {
                turns: turns.clone(),
                breakpoints,
                block: outcome.memories.text,
                nonce: outcome.nonce,
                rewound: outcome.rewound,
                rules: outcome.rules,
            };
            let rendered = render_window(format, window, options, tenant, heavy).await?;
            response.system = rendered.system;
            response.messages_json = rendered.messages_json;
            messages_of(&outcome.cache_breakpoints, &rendered.ends)
        }
    };
    response.report = Some(report);
    Ok(spliced::BuildContextResponse {
        turns: Box::new(StoredTurns(turns)),
        rest: response,
    })
}

/// The turns of a window, in their stored encoding.
#[derive(Debug)]
struct StoredTurns(WindowTurns);

impl EncodedTurns for StoredTurns {
    fn each(&self, give: &mut dyn FnMut(&[u8])) {
        self.0.iter().for_each(|turn| give(&turn.content));
    }
}

/// Names of the fields of `BuildContext` in errors: those of the append, if there is one.
pub(crate) fn names(request: &v1::BuildContextRequest) -> Names {
    let names = request.append.as_ref().map(|append| Names::ContextAppend {
        has_messages: !append.messages_json.is_empty(),
    });
    names.unwrap_or(Names::Common)
}

fn check_append(append: &v1::AppendRequest, session_id: &str, peek: bool) -> Result<(), Refusal> {
    if peek {
        let problem = "peek and append cannot be combined";
        return Err(status::invalid("PEEK_WITH_APPEND", "peek", problem));
    }
    if !append.session_id.is_empty() && append.session_id != session_id {
        let problem = "append.session_id differs from session_id; leave it empty";
        let field = "append.session_id";
        return Err(status::invalid("SESSION_ID_MISMATCH", field, problem));
    }
    Ok(())
}

fn check_tools(tools_json: &str) -> Result<(), Refusal> {
    if tools_json.is_empty() {
        return Ok(());
    }
    if has_too_many_values(tools_json) {
        let problem = format!("tools_json has more than {VALUES_MAX} JSON values");
        return Err(status::invalid("TOOLS_INVALID", "tools_json", problem));
    }
    let tools: Result<Vec<IgnoredAny>, _> = serde_json::from_str(tools_json);
    tools.map(drop).map_err(|error| {
        // The position only: the text of the error would quote the request.
        let (line, column) = (error.line(), error.column());
        let problem = format!(
            "tools_json is not a JSON array, line {line} column {column}; send the provider's \
             array of tools, or leave it empty"
        );
        status::invalid("TOOLS_INVALID", "tools_json", problem)
    })
}

fn policy(policy: Option<v1::WindowPolicy>) -> Result<Option<Policy>, Refusal> {
    use v1::window_policy::Policy as Proto;
    let Some(policy) = policy.and_then(|policy| policy.policy) else {
        return Ok(None);
    };
    Ok(Some(match policy {
        Proto::SlidingWindow(v1::SlidingWindow { turns: 0 }) => {
            let problem = "policy.sliding_window.turns must be at least 1";
            return Err(status::invalid(
                "POLICY_INVALID",
                "policy.sliding_window.turns",
                problem,
            ));
        }
        Proto::SlidingWindow(v1::SlidingWindow { turns }) => Policy::SlidingWindow { turns },
        Proto::HeadTail(v1::HeadTail { turns }) => Policy::HeadTail { turns },
        Proto::TokenBudget(_) => Policy::TokenBudget,
        Proto::Salience(_) => Policy::Salience,
    }))
}

fn policy_to_proto(policy: Policy) -> v1::WindowPolicy {
    use v1::window_policy::Policy as Proto;
    let policy = match policy {
        Policy::SlidingWindow { turns } => Proto::SlidingWindow(v1::SlidingWindow { turns }),
        Policy::HeadTail { turns } => Proto::HeadTail(v1::HeadTail { turns }),
        Policy::TokenBudget => Proto::TokenBudget(v1::TokenBudget {}),
        Policy::Salience => Proto::Salience(v1::Salience {}),
    };
    v1::WindowPolicy {
        policy: Some(policy),
    }
}

pub(super) fn budget_override(budget: v1::Budget) -> BudgetOverride {
    BudgetOverride {
        context_window: budget.context_window,
        max_reply_tokens: budget.max_reply_tokens,
        safety_headroom: budget.safety_headroom,
        tool_result_headroom: budget.tool_result_headroom,
    }
}

impl ReplyOptions {
    pub(crate) fn has_recall_tool(&self) -> bool {
        !self.recall_tool_json.is_empty()
    }
}

/// Renders the messages in the provider's format, those of a long window on a separate thread.
async fn render_window(
    format: MessageFormat,
    window: WindowToRender,
    options: ReplyOptions,
    tenant: &TenantId,
    heavy: &HeavyWork,
) -> Result<Rendered, Refusal> {
    let bytes = window.turns.iter().map(|turn| turn.content.len()).sum();
    let render = move || rendered(format, window, &options).ok_or_else(status::turn_damaged);
    heavy.run(tenant, bytes, render).await
}

/// Renders the messages, unless the bytes of a turn are damaged.
fn rendered(
    format: MessageFormat,
    window: WindowToRender,
    options: &ReplyOptions,
) -> Option<Rendered> {
    let WindowToRender {
        turns,
        mut breakpoints,
        block,
        nonce,
        rewound,
        rules,
    } = window;
    let opened = turns
        .iter()
        .map(|turn| encoding::open_with_seq(&turn.content));
    let (seqs, mut turns): (Vec<u64>, Vec<Turn>) =
        opened.collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let mut behind_gap = behind_gap(&seqs, &rewound);
    let block =
        (!block.is_empty()).then(|| insert_memories(&mut turns, &mut breakpoints, block, rules));
    for turn in &mut behind_gap {
        *turn += usize::from(block.is_some_and(|block| block <= *turn));
    }
    let cached = breakpoints.len() * usize::from(options.set_cache_control);
    let options = RenderOptions {
        system: &options.system,
        cache_after: &breakpoints[..cached],
        behind_gap: &behind_gap,
        nonce,
        is_request: true,
        is_start: true,
        rules,
    };
    let mut rendered = render(format, &turns, &options);
    if let Some(block) = block {
        // The window's own indices do not count the inserted turn.
        rendered.ends.remove(block);
    }
    Some(rendered)
}

/// Returns the indices of turns that follow turns missing from the window.
///
/// Turns inserted by memoird have seq 0. Rewound turns are not missing.
fn behind_gap(seqs: &[u64], rewound: &SeqRanges) -> Vec<usize> {
    let is_gap = |pair: &[u64]| pair[0] > 0 && rewound.rest(pair[0] + 1, pair[1]).next().is_some();
    let gaps = seqs.windows(2).enumerate().filter(|(_, pair)| is_gap(pair));
    gaps.map(|(index, _)| index + 1).collect()
}

/// Returns the indices of the messages that end these turns, without duplicates.
fn messages_of(turns: &[usize], ends: &[usize]) -> Vec<u32> {
    let ends = turns
        .iter()
        .filter_map(|turn| ends.get(*turn)?.checked_sub(1));
    let mut messages: Vec<u32> = ends.map(count).collect();
    messages.dedup();
    messages
}

/// Parses the request for memories.
fn recall(request: v1::RecallRequest, session_id: &str) -> Result<RecallRequest, Refusal> {
    if !request.session_id.is_empty() && request.session_id != session_id {
        let problem = "memories.session_id differs from session_id; leave it empty";
        let field = "memories.session_id";
        return Err(status::invalid("SESSION_ID_MISMATCH", field, problem));
    }
    let session_id = session_id.to_owned();
    memory::from::recall(v1::RecallRequest {
        session_id,
        ..request
    })
    .map_err(|refusal| refusal.under("memories"))
}

/// Inserts the memories as a separate turn and returns its index. Shifts the breakpoints.
fn insert_memories(
    turns: &mut Vec<Turn>,
    breakpoints: &mut [usize],
    block: String,
    rules: MessageRules,
) -> usize {
    let index = memories_index(turns, rules);
    let block = PartKind::Text(block).into();
    turns.insert(index, Turn::new(Role::User, vec![block]));
    for breakpoint in breakpoints {
        *breakpoint += usize::from(*breakpoint >= index);
    }
    index
}

/// Returns the index for the block of memories.
///
/// It normally comes last, where it does not affect a provider's cache. No turn may follow if the
/// last turn is the model's, to be continued, if a tool call has no result yet, or if the model
/// accepts no text after results. Then the block precedes the user's last turn.
fn memories_index(turns: &[Turn], rules: MessageRules) -> usize {
    let is_result = |turn: &Turn| !turn.links().results.is_empty();
    let may_follow = |last: &Turn| match last.role {
        Role::Assistant => false,
        _ => rules.user_after_tool || !is_result(last),
    };
    if turns.last().is_none_or(may_follow) && !waits(turns) && !answers_program(turns) {
        return turns.len();
    }
    let is_said_by_user = |turn: &Turn| turn.role == Role::User && turn.links().results.is_empty();
    turns.iter().rposition(is_said_by_user).unwrap_or_else(|| {
        // The system prompt always comes first.
        let system = turns.iter().take_while(|turn| turn.role == Role::System);
        system.count()
    })
}

/// Whether a program or an open call of Anthropic waits for the results in the last turns.
///
/// The results are of calls made by a program, or of calls issued together with one that Anthropic
/// has yet to answer.
fn answers_program(turns: &[Turn]) -> bool {
    let is_result = |turn: &&Turn| !turn.links().results.is_empty();
    let results = turns.iter().rev().take_while(is_result).count();
    let (before, last) = turns.split_at(turns.len() - results);
    let answered: HashSet<_> = last.iter().flat_map(|turn| turn.links().results).collect();
    let is_made = |part: &Part| match &part.kind {
        PartKind::ToolUse { id, .. } => {
            answered.contains(id.as_str()) && !part.ids().callers.is_empty()
        }
        _ => false,
    };
    let caller = before.last().filter(|_| !answered.is_empty());
    caller.is_some_and(|turn| {
        let is_open = turn.format == Some(MessageFormat::Anthropic);
        turn.parts.iter().any(is_made) || (is_open && !turn.links().names.is_empty())
    })
}

/// Whether a tool call has no result yet.
fn waits(turns: &[Turn]) -> bool {
    let links: Vec<_> = turns.iter().map(Turn::links).collect();
    let results: HashSet<_> = links.iter().flat_map(|links| &links.results).collect();
    let mut uses = links.iter().flat_map(|links| &links.uses);
    uses.any(|id| !results.contains(id))
}

/// Converts the report without breakpoints, which depend on the format.
fn report(report: Report, turns: &WindowTurns) -> v1::ContextReport {
    v1::ContextReport {
        input_budget: report.input_budget,
        tokens_total: report.blocks.total(),
        tokens_by_block: Some(v1::TokensByBlock {
            system: report.blocks.system,
            summary: report.blocks.summary,
            memories: report.blocks.memories,
            anchor: report.blocks.anchor,
            tail: report.blocks.tail,
        }),
        turns_included: report.turns_included,
        turns_omitted: report.turns_omitted,
        results_trimmed: report.results_trimmed,
        stable_prefix_tokens: report.stable_prefix_tokens,
        cache_breakpoints: Vec::new(),
        turn_tokens: turns.charged().collect(),
        token_factor: report.token_factor,
        token_margin: report.token_margin,
        policy: Some(policy_to_proto(report.policy)),
        degraded: report.degraded,
        notes: report.notes,
        budget: Some(budget(report.budget)),
        omissions: report.omissions.into_iter().map(omission).collect(),
        model: report.model,
        summary: report.summary.as_deref().map(compaction::summary_info),
        next_cut: None,
    }
}

fn next_cut(next: NextCut) -> v1::NextCut {
    v1::NextCut {
        at_tokens: next.at_tokens,
        in_turns: next.in_turns,
        tokens_after: next.tokens_after,
        summary_ready: next.is_summary_ready,
        omissions: next.omissions.into_iter().map(omission).collect(),
    }
}

fn budget(budget: Budget) -> v1::Budget {
    v1::Budget {
        context_window: Some(budget.context_window),
        max_reply_tokens: Some(budget.max_reply_tokens),
        safety_headroom: Some(budget.safety_headroom),
        tool_result_headroom: Some(budget.tool_result_headroom),
    }
}

fn omission(omission: Omission) -> v1::Omission {
    let reason = match omission.reason {
        OmissionReason::Dropped => v1::OmissionReason::Dropped,
        OmissionReason::Cut => v1::OmissionReason::Cut,
        OmissionReason::Salience => v1::OmissionReason::Salience,
        OmissionReason::Superseded => v1::OmissionReason::Superseded,
        OmissionReason::Trimmed => v1::OmissionReason::Trimmed,
        OmissionReason::Excerpt => v1::OmissionReason::Excerpt,
        OmissionReason::Summarized => v1::OmissionReason::Summarized,
    };
    v1::Omission {
        first_seq: omission.first_seq,
        last_seq: omission.last_seq,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests;
