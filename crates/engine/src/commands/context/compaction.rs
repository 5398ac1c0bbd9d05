//! Effects of compaction on a window: when it is cut, and when it requests a summary.

use std::sync::Arc;

use memoird_core::compaction::{CompactionPolicy, Trigger};
use memoird_core::session::Session;
use memoird_core::window::{Omission, Policy, Window, WindowInput, WindowSettings, WindowTokens};

use super::Plan;
use crate::compaction::{CompactionRequest, NearLimit};
use crate::sessions::{SessionRef, Update};

/// Window settings of a tenant. With compaction, a window is cut before its budget is exhausted.
pub(super) fn window_settings(
    settings: WindowSettings,
    policy: &CompactionPolicy,
) -> WindowSettings {
    if !policy.enabled {
        return settings;
    }
    let watermark_percent = settings
        .watermark_percent
        .min(policy.hard_watermark_percent)
        .max(2);
    let floor_percent = settings.floor_percent.min(watermark_percent - 1);
    WindowSettings {
        watermark_percent,
        floor_percent,
        ..settings
    }
}

/// Percentage of a budget at which a summary is prepared in the background, if at all.
///
/// A local summarizer takes milliseconds and runs at the cut instead, unless the provider's own
/// count decides near the limit. The provider is asked to count a `margin` earlier.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a percentage"
)]
pub(super) fn soft_percent(
    policy: &CompactionPolicy,
    is_local: bool,
    margin: Option<f64>,
) -> Option<u8> {
    let soft = f64::from(policy.soft_watermark_percent) * (1.0 - margin.unwrap_or(0.0));
    (policy.enabled && (!is_local || margin.is_some())).then_some(soft as u8)
}

/// Whether the window leaves out turns that a summary should cover.
fn lacks_summary(window: &Window) -> bool {
    let report = &window.report;
    let is_by_choice = matches!(report.policy, Policy::SlidingWindow { .. });
    !is_by_choice && report.omissions.iter().any(Omission::is_left_out)
}

/// Whether that summary is in progress.
pub(super) fn awaits_summary(window: &Window, session: &Session) -> bool {
    lacks_summary(window) && session.compaction().running
}

/// Adds a note that explains why turns are left out without a summary.
pub(super) fn explain(window: &mut Window, session: &Session, policy: &CompactionPolicy) {
    if !lacks_summary(window) {
        return;
    }
    let report = &mut window.report;
    let status = session.compaction();
    report.notes.push(match status.failures {
        _ if !policy.enabled => {
            "turns are left out without a summary: there is no summarizer".to_owned()
        }
        0 => "turns are left out until there is a summary of them".to_owned(),
        times => format!(
            "turns are left out without a summary, which failed {times} times in a row; see \
             last_error of the session"
        ),
    });
}

impl Plan {
    /// Returns a request if this window shows that a compaction is due.
    ///
    /// `memories` is the number of tokens of memories in the window.
    pub(super) fn compaction_request(
        &self,
        session: &SessionRef,
        update: &mut Update<'_>,
        window: &Window,
        memories: u64,
        input: &WindowInput<'_>,
    ) -> Option<CompactionRequest> {
        let target = WindowTokens {
            scale: self.model.scale_id,
            budget: input.budget,
            fixed: input.fixed - input.memories,
        };
        let now = update.now.steady;
        let policy = &update.policy.compaction;
        let decides = self.counted_by_provider.is_none();
        let trigger = update
            .session
            .consider_window(window, target, now, policy, decides)?;
        let mut request = CompactionRequest::new(session.clone(), trigger);
        if let Some((system, tools_json)) = &self.counted_by_provider
            && trigger == Trigger::Preemptive
        {
            request.near_limit = Some(NearLimit {
                model: Arc::clone(&self.model),
                system: system.clone(),
                tools_json: tools_json.clone(),
                turns: window
                    .turns
                    .iter()
                    .map(|turn| turn.content.clone())
                    .collect(),
                counted: window.counted.saturating_add_signed(-input.learnt) - memories,
                due_tokens: self.input_budget / 100 * u64::from(policy.soft_watermark_percent),
            });
        }
        Some(request)
    }
}
