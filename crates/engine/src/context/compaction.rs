//! What a window has to do with compaction: when it is cut, and when it asks for a summary.

use memoird_core::compaction::CompactionPolicy;
use memoird_core::session::{Goal, Session};
use memoird_core::time::Steady;
use memoird_core::window::{Omission, OmissionReason, Policy, SoftMark, Window, WindowSettings};

use super::Plan;
use crate::compaction::Wish;
use crate::config::EngineConfig;

/// What an operator decided of windows: where sessions are compacted, a window is cut before
/// the last of its room is used.
pub(super) fn settings(config: &EngineConfig) -> WindowSettings {
    let (settings, compaction) = (config.context.settings, &config.compaction);
    if !compaction.is_on() {
        return settings;
    }
    let watermark_percent = settings
        .watermark_percent
        .min(compaction.policy.hard_watermark_percent)
        .max(2);
    let floor_percent = settings.floor_percent.min(watermark_percent - 1);
    WindowSettings {
        watermark_percent,
        floor_percent,
        ..settings
    }
}

/// From when on results are shown in other words.
pub(super) fn soft(config: &EngineConfig) -> Option<SoftMark> {
    let policy = &config.compaction.policy;
    config.compaction.is_on().then_some(SoftMark {
        watermark_percent: policy.soft_watermark_percent,
        floor_percent: policy.floor_percent,
    })
}

/// Says why turns are left out that no summary stands for.
pub(super) fn explain(window: &mut Window, session: &Session, config: &EngineConfig) {
    use OmissionReason::{Cut, Dropped, Salience};
    let report = &mut window.report;
    let is_left_out = |omission: &Omission| matches!(omission.reason, Dropped | Cut | Salience);
    let is_by_choice = matches!(report.policy, Policy::SlidingWindow { .. });
    if is_by_choice || !config.compaction.is_on() || !report.omissions.iter().any(is_left_out) {
        return;
    }
    let status = session.compaction();
    report.degraded |= status.failures > 0;
    report.notes.push(match status.failures {
        0 => "turns are left out until there is a summary of them".to_owned(),
        times => format!(
            "turns are left out without a summary, which failed {times} times in a row; see \
             last_error of the session"
        ),
    });
}

impl Plan {
    /// What this window says of the session: whether it is to be compacted.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a percentage"
    )]
    pub(super) fn wish(
        &self,
        session: &mut Session,
        window: &Window,
        budget: u64,
        now: Steady,
        policy: &CompactionPolicy,
    ) -> Option<Wish> {
        let goal = Goal {
            scale: self.model.scale_id,
            budget,
            fixed: self.fixed,
        };
        let soft = policy.soft_watermark_percent;
        let Some((system, tools_json)) = &self.counted_by_provider else {
            let trigger = session.consider_window(window, goal, now, policy, true)?;
            return Some(Wish {
                trigger,
                near: None,
            });
        };
        // Near the limit the provider's own count decides.
        let nearly = f64::from(soft) * (1.0 - self.model.scale.margin());
        let nearly = CompactionPolicy {
            soft_watermark_percent: nearly as u8,
            ..*policy
        };
        let trigger = session.consider_window(window, goal, now, &nearly, false)?;
        let near = crate::compaction::Near {
            model: std::sync::Arc::clone(&self.model),
            system: system.clone(),
            tools_json: tools_json.clone(),
            turns: window
                .turns
                .iter()
                .map(|turn| turn.content.clone())
                .collect(),
            counted: window.counted,
            due_tokens: self.input_budget / 100 * u64::from(soft),
        };
        let near = (trigger == memoird_core::compaction::Trigger::Preemptive).then_some(near);
        Some(Wish { trigger, near })
    }
}
