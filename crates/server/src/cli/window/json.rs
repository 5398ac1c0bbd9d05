//! A window as JSON, for `--json`.

use memoird_proto::v1::{
    Budget, ContextReport, GetContextResponse, Omission, OmissionReason, TokensByBlock,
};
use serde_json::{Value, json};

use crate::cli::compaction;
use crate::cli::json::{session, turn};

/// The whole answer.
pub(super) fn window(window: &GetContextResponse) -> Value {
    json!({
        "turns": window.turns.iter().map(turn).collect::<Vec<_>>(),
        "system": window.system,
        "messages_json": window.messages_json,
        "session": window.session.as_ref().map(session),
        "report": window.report.as_ref().map(report),
    })
}

fn report(report: &ContextReport) -> Value {
    json!({
        "input_budget": report.input_budget,
        "tokens_total": report.tokens_total,
        "tokens_by_block": report.tokens_by_block.as_ref().map(blocks),
        "turns_included": report.turns_included,
        "turns_omitted": report.turns_omitted,
        "results_trimmed": report.results_trimmed,
        "stable_prefix_tokens": report.stable_prefix_tokens,
        "cache_breakpoints": report.cache_breakpoints,
        "turn_tokens": report.turn_tokens,
        "token_factor": report.token_factor,
        "token_margin": report.token_margin,
        "policy": report.policy,
        "degraded": report.degraded,
        "notes": report.notes,
        "budget": report.budget.as_ref().map(budget),
        "omissions": report.omissions.iter().map(omission).collect::<Vec<_>>(),
        "model": report.model,
        "summary": report.summary.as_ref().map(compaction::summary_json),
    })
}

fn blocks(blocks: &TokensByBlock) -> Value {
    json!({
        "system": blocks.system,
        "summary": blocks.summary,
        "memories": blocks.memories,
        "anchor": blocks.anchor,
        "tail": blocks.tail,
    })
}

fn budget(budget: &Budget) -> Value {
    json!({
        "context_window": budget.context_window,
        "max_reply_tokens": budget.max_reply_tokens,
        "safety_headroom": budget.safety_headroom,
        "tool_result_headroom": budget.tool_result_headroom,
    })
}

fn omission(omission: &Omission) -> Value {
    let reason = OmissionReason::try_from(omission.reason);
    json!({
        "first_seq": omission.first_seq,
        "last_seq": omission.last_seq,
        "reason": reason.map_or_else(
            |_| omission.reason.to_string(),
            |reason| reason.as_str_name().to_owned(),
        ),
    })
}
